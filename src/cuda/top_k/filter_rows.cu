// Row-wise top k of many long rows: a block a row, which is streamed once past a filter that a sample of it suggests.
//
// Why it is fast: the copy engine streams rows through a ring in shared memory, the next row's while this one is
// chosen from; a column that does not reach the filter costs one or two instructions.
// Steps of a block, a row at a time: a sample spread over the row -> a cut that somewhat more than k columns reach,
// almost surely -> chunk by chunk, columns that reach it go to a list -> if their count is at least k and within the
// list's capacity, the k best are in it: that proves the sample right; else the row is searched by its keys in global
// memory -> the exact border, by bins of keys -> entries by column, through a map of bits, or sorted.
// Keys are distinct, value above and column below, so that ties need no care anywhere: of many equal columns, the
// sample's cut takes the first ones.
// Limit: bytes(in) + bytes(out) over read bandwidth. Measured share: docs/kernels.md.
#include <algorithm>
#include <cstdint>

#include "core/plan.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/filter_chunks.cuh"
#include "cuda/top_k/filter_list.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_rows.hpp"

namespace shortlist::cuda {
namespace {

using namespace filtering;

constexpr int kBlocks = 2;  // a multiprocessor holds

struct filter_args {
  core::top_k_request request;
  std::uint32_t capacity;  // keys in a block's list
};

/// The step between keys of stored values, as a power of two.
template <class Stored>
constexpr std::uint32_t kFinestShift = sizeof(Stored) == 4               ? 0
                                       : std::is_same_v<Stored, float16> ? 13
                                                                         : 16;

/// Vectors spread over a row: one from each of as many equal parts, at a place of its own in it, so that no period of
/// the data is the sample's, too.
template <class Stored>
struct row_sample {
  static constexpr int kTaken = core::kFilterRowsSample / kThreads / kPerVector<Stored>;  // vectors of a thread
  uint4 raw[kTaken];

  static __device__ __forceinline__ std::uint32_t vector(int v, std::uint32_t vectors) {
    constexpr std::uint32_t kParts = kTaken * kThreads;
    constexpr std::uint32_t kGoldenRatio = 2654435769;  // 0.618 of 2^32
    const std::uint32_t part = v * kThreads + threadIdx.x;
    return __umulhi(part * (~0u / kParts + 1) + part * kGoldenRatio / kParts, vectors);
  }
  __device__ __forceinline__ void load(const whole_row<Stored>& row) {
    const auto* vectors = reinterpret_cast<const uint4*>(row.values + row.head);
#pragma unroll
    for (int v = 0; v < kTaken; v++) raw[v] = __ldg(vectors + vector(v, row.vectors));
  }
  /// Calls f(key) for the thread's values.
  template <class F>
  __device__ __forceinline__ void for_each_key(const whole_row<Stored>& row, std::uint32_t flip, F f) const {
#pragma unroll
    for (int v = 0; v < kTaken; v++) {
      float values[kPerVector<Stored>];
      widen_vector<Stored>(make_uint4(raw[v].x ^ flip, raw[v].y ^ flip, raw[v].z ^ flip, raw[v].w ^ flip), values);
      const std::uint32_t column = row.first_column + row.head + vector(v, row.vectors) * kPerVector<Stored>;
#pragma unroll
      for (int e = 0; e < kPerVector<Stored>; e++) f(core::row_key(key_of_wide(values[e]), column + e));
    }
  }
};

/// A cut that about `wanted` of the sample's keys reach. @param previous the value key of the row before's, or 0: rows
/// of a matrix are mostly alike. All threads come.
template <class Stored>
__device__ __forceinline__ std::uint64_t sample_cut(const row_sample<Stored>& sample, const whole_row<Stored>& row,
                                                    std::uint32_t flip, std::uint32_t wanted, std::uint32_t previous,
                                                    filter_scratch& scratch) {
  constexpr std::uint32_t kSlackShare = 16;  // of what is wanted: a pass less, mostly
  constexpr std::uint32_t kNearShift = 13;   // bins around the row before's cut: from its half to its double or more
  constexpr std::uint32_t kAllShift = 32 - kBinBits;
  const std::uint32_t slack = wanted / kSlackShare + 1;
  number_bins bins{0, kAllShift};
  if (previous >= kBins / 2 << kNearShift) bins = {previous - (kBins / 2 << kNearShift), kNearShift, kBins, true};
  found_bin found{};
  for (;;) {
    sample.for_each_key(row, flip, [&](std::uint64_t key) { count_in(bins, core::key_of(key), scratch); });
    if (!find_bin(wanted, found, scratch) || (bins.open && found.bin == kBins - 1)) {
      bins = {0, kAllShift};
      continue;
    }
    const std::uint32_t begin = bins.begin(found.bin);
    if (found.inside <= slack) return static_cast<std::uint64_t>(begin) << 32;
    wanted -= found.before;
    if (bins.shift > kFinestShift<Stored>) {
      bins = bins.within(found.bin, kFinestShift<Stored>);
      continue;
    }
    // One value fills the bin: it is cut by columns.
    const number_bins places{~(row.first_column + row.columns - 1), shift_for(row.columns)};
    bool has = false;
    std::uint32_t value = 0;
    sample.for_each_key(row, flip, [&](std::uint64_t key) {
      if ((core::key_of(key) - begin) >> bins.shift != 0) return;
      count_in(places, static_cast<std::uint32_t>(key), scratch);
      has = true;
      value = core::key_of(key);
    });
    tell_single(has, value, scratch);
    find_bin(wanted, found, scratch);
    return static_cast<std::uint64_t>(scratch.single) << 32 | places.begin(found.bin);
  }
}

/// How many of the sample must reach a cut for k of the row's columns to reach it, but for one row in a million: the
/// count of those that k columns would give spreads by its root.
__device__ __forceinline__ std::uint32_t sampled_rank(std::uint32_t k, std::uint32_t columns) {
  const float expected = static_cast<float>(k) * core::kFilterRowsSample / static_cast<float>(columns);
  const float rank = expected + core::kFilterRowsDeviations * sqrtf(expected) + core::kFilterRowsLeast;
  return min(static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(core::kFilterRowsSample));
}

/// Appends the marked columns of a chunk to the list. @param mine the thread's first vector of the chunk.
/// @param column its first one's. All lanes of a warp come.
template <class Stored>
__device__ __forceinline__ void append_marked(std::uint32_t marks, const uint4* mine, std::uint32_t column,
                                              bool negated, const key_list& list, filter_scratch& scratch) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t count = __popc(marks);
  std::uint32_t sum = count;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const std::uint32_t other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  std::uint32_t first = 0;
  if (lane == kWarp - 1) first = atomicAdd(&scratch.count, sum);
  first = __shfl_sync(kFullWarp, first, kWarp - 1);
  if (first + __shfl_sync(kFullWarp, sum, kWarp - 1) > list.capacity) return;  // the row will be searched otherwise
  std::uint64_t* to = list.keys + first + sum - count;
  const Stored* values = reinterpret_cast<const Stored*>(mine);
  std::uint32_t largest = 0;
  for (; marks; marks &= marks - 1) {
    const std::uint32_t at = column_of_mark<Stored>(__ffs(static_cast<int>(marks)) - 1);
    const float value = core::widen(values[at]);
    const std::uint32_t key = core::ascending_key(negated ? -value : value);
    *to++ = core::row_key(key, column + at);
    largest = max(largest, key);
  }
  largest = __reduce_max_sync(kFullWarp, largest);
  if (lane == 0) atomicMax(&scratch.largest, largest);
}

/// Calls f(key) for this thread's share of a row in global memory, NaN too.
template <class Stored, class F>
__device__ __forceinline__ void for_each_of_row(const whole_row<Stored>& row, bool negated, F f) {
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < row.columns; i += kThreads)
    f(core::row_key(key_of_value(row.values[i], negated), row.first_column + i));
}

/// Fills the list with the k best of a row, read from global memory; with all of it if it has no more. For rows whose
/// sample was wrong, and short ones. All threads come; they leave through a barrier.
template <class Stored>
__device__ __noinline__ void list_by_keys(const whole_row<Stored>& row, bool negated, std::uint32_t k,
                                          const key_list& list, filter_scratch& scratch) {
  std::uint64_t cut = 0;
  if (row.columns > list.capacity) {
    const auto visit = [&](auto f) { for_each_of_row(row, negated, f); };
    cut = exact_cut(visit, k, 0, ~0u, kFinestShift<Stored>,
                    make_uint2(row.first_column, row.first_column + row.columns), scratch);
  }
  __syncthreads();  // the count has been read
  if (threadIdx.x == 0) scratch.count = 0;
  __syncthreads();
  for_each_of_row(row, negated, [&](std::uint64_t key) {
    if (key >= cut) list.append(key, scratch);
  });
  __syncthreads();
}

/// Writes the k best of the list's n keys in the order that the request asks for, padded. All threads come, after a
/// barrier; they leave through one.
template <class Stored>
__device__ __forceinline__ void write_best(const core::top_k_request& request, std::int64_t index,
                                           const whole_row<Stored>& row, std::uint32_t n, std::uint64_t least,
                                           const key_list& list, filter_scratch& scratch) {
  const auto k = static_cast<std::uint32_t>(request.options.k);
  std::uint64_t cut = 1;  // every key
  if (n > k) {
    const auto visit = [&](auto f) { for_each_key(list.keys, n, f); };
    cut = exact_cut(visit, k, core::key_of(least), scratch.largest, kFinestShift<Stored>,
                    make_uint2(row.first_column, row.first_column + row.columns), scratch);
  }
  const std::int64_t to = index * k;
  const auto write = [&](std::uint32_t place, std::uint64_t key) { write_chosen(request, row, to + place, key); };
  if (request.options.sorted) {
    if (n > k) keep_from(list.keys, n, cut, scratch);
    for_each_in_order(list.keys, min(n, k), write);
  } else {
    for_each_by_column(list.keys, n, cut, row.first_column, row.columns, scratch, write);
  }
  const bool negated = request.options.order == order::smallest;
  for (std::uint32_t place = n + threadIdx.x; place < k; place += kThreads)
    write_entry<Stored>(request.out, to + place, worst_value<Stored>(negated), kNoColumn);
  __syncthreads();  // the list has been read
}

template <class Stored>
__global__ void __launch_bounds__(kThreads, kBlocks) filter_rows_kernel(const __grid_constant__ filter_args args) {
  const core::top_k_request& request = args.request;
  auto& scratch = *reinterpret_cast<filter_scratch*>(dynamic_shared());
  auto* ring = reinterpret_cast<uint4*>(&scratch + 1);
  const key_list list{reinterpret_cast<std::uint64_t*>(ring + kRingBytes / 16), args.capacity};
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const std::uint32_t flip = sign_flip<Stored>(request);

  for (int i = threadIdx.x; i < kMapWords; i += kThreads) scratch.map[i] = 0;
  if (threadIdx.x < kStages<Stored>) {
    barrier_init(&scratch.full[threadIdx.x], 1);
    scratch.left[threadIdx.x] = 0;
  }
  if (threadIdx.x == 0) barrier_init_fence();
  __syncthreads();
  chunk_feed<Stored> feed(request, args.capacity);
#pragma unroll 1
  for (int s = 0; s < kStages<Stored>; s++) feed.feed(ring + s * kChunk<Stored>, &scratch.full[s], threadIdx.x == 0);

  std::uint32_t turn = 0;  // chunks so far
  std::uint32_t previous = 0;
  row_sample<Stored> sample;
  whole_row<Stored> row = open_row<Stored>(request, blockIdx.x);
  if (row.columns > args.capacity) sample.load(row);
#pragma unroll 1
  for (std::int64_t index = blockIdx.x; index < request.matrix.rows; index += gridDim.x) {
    const whole_row<Stored> next =
        index + gridDim.x < request.matrix.rows ? open_row<Stored>(request, index + gridDim.x) : whole_row<Stored>{};
    if (threadIdx.x == 0) {
      scratch.count = 0;
      scratch.largest = 0;
    }
    std::uint64_t cut = 0;
    if (row.columns > args.capacity) {
      cut = sample_cut(sample, row, flip, sampled_rank(k, row.columns), previous, scratch);
      previous = core::key_of(cut);
      const row_filter<Stored> filter(cut, row);
      if (threadIdx.x < row.head + row.tail()) {
        const std::uint32_t at =
            threadIdx.x < row.head ? threadIdx.x : row.columns - row.tail() + threadIdx.x - row.head;
        const std::uint64_t key = core::row_key(key_of_value(row.values[at], negated), row.first_column + at);
        if (filter.reached_by(key, threadIdx.x < row.head ? 0 : row.vectors)) list.append(key, scratch);
      }
#pragma unroll 1
      for (std::uint32_t first = 0; first < row.vectors; first += kChunk<Stored>, turn++) {
        const std::uint32_t s = turn % kStages<Stored>;
        uint4* stage = ring + s * kChunk<Stored>;
        barrier_wait(&scratch.full[s], turn / kStages<Stored> & 1);
        const uint4* mine = stage + threadIdx.x;
        const std::uint32_t vector = first + threadIdx.x;
        const std::uint32_t marks =
            marks_of_chunk(mine, min(kChunk<Stored>, row.vectors - first), vector, filter, negated);
        append_marked<Stored>(marks, mine, row.first_column + row.head + vector * kPerVector<Stored>, negated, list,
                              scratch);
        // The last warp to leave a stage has it filled again.
        __syncwarp();
        const bool last = threadIdx.x % kWarp == 0 && atomicAdd(&scratch.left[s], 1u) % kWarps == kWarps - 1;
        if (last) async_fence();
        feed.feed(stage, &scratch.full[s], last);
      }
    }
    if (next.columns > args.capacity) sample.load(next);
    __syncthreads();  // the list is complete
    std::uint32_t n = scratch.count;
    if (n < min(k, row.columns) || n > args.capacity || row.columns <= args.capacity) {
      cut = 0;
      list_by_keys(row, negated, k, list, scratch);
      n = scratch.count;
    }
    write_best(request, index, row, n, cut, list, scratch);
    row = next;
  }
}

template <class Stored>
void launch_type(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  constexpr const char* kWhat = "launching the row-wise top k of many long rows";
  const std::int64_t capacity = core::filter_rows_capacity(request.matrix.cols, request.options.k);
  const filter_args args{request, static_cast<std::uint32_t>(capacity)};
  launch_shape shape;
  shape.threads = kThreads;
  shape.shared_bytes = static_cast<std::int64_t>(sizeof(filter_scratch)) + kRingBytes +
                       capacity * static_cast<std::int64_t>(sizeof(std::uint64_t));
  const std::int64_t fitting =
      blocks_per_multiprocessor(filter_rows_kernel<Stored>, kThreads, shape.shared_bytes, kWhat);
  shape.grid =
      dim3(static_cast<unsigned>(std::min(request.matrix.rows, std::max<std::int64_t>(fitting, 1) * multiprocessors)));
  launch(filter_rows_kernel<Stored>, shape, stream, args, kWhat);
}

}  // namespace

void launch_filter_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  by_stored_type(request.matrix.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, request, multiprocessors); });
}

}  // namespace shortlist::cuda
