// Row-wise top k of many long rows: a block a row, which is streamed once past a filter that a sample of it suggests.
//
// Why it is fast: the copy engine streams rows through a ring in shared memory, the next row's while this one is
// chosen from; a column that does not reach the filter costs one or two instructions.
// Steps of a block, a row at a time: a sample spread over the row -> a cut that somewhat more than k columns reach,
// almost surely -> piece by piece, columns that reach it go to a list -> if their count is at least k and within the
// list's capacity, the k best are in it: that proves the sample right; else the row is searched by its keys in global
// memory -> the exact border, by bins of keys -> entries by column, through a map of bits, or sorted.
// Keys are distinct, value above and column below, so that ties need no care anywhere: of many equal columns, the
// sample's cut takes the first ones.
// Limit: bytes(in) + bytes(out) over read bandwidth. Measured share: docs/kernels.md.
// History, 1024 x 50,000, k 2048: chunks shared by a block's warps 0.117 ms -> entries as found, no calls 0.106 -> bins
// without branches 0.099 -> pieces of each warp's own 0.097.
#include <algorithm>
#include <cstdint>

#include "core/plan.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/filter_list.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_pieces.cuh"
#include "cuda/top_k/filter_rows.hpp"

namespace shortlist::cuda {
namespace {

using namespace filtering;

constexpr int kBlocks = 2;  // a multiprocessor holds

constexpr std::int64_t kRingsBegin = (sizeof(filter_scratch) + 127) / 128 * 128;

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
      for (int e = 0; e < kPerVector<Stored>; e++) {
        const float number = fmaxf(values[e], core::float_from_bits(0xFF800000u));  // not NaN, which is as bad as -inf
        f(core::row_key(core::ascending_key(number), column + e));
      }
    }
  }
};

/// A cut that about `wanted` of the sample's keys reach. @param previous the value key of the row before's, or 0: rows
/// of a matrix are mostly alike. All threads come.
template <class Stored>
__device__ __forceinline__ std::uint64_t sample_cut(const row_sample<Stored>& sample, const whole_row<Stored>& row,
                                                    std::uint32_t flip, std::uint32_t wanted, std::uint32_t previous,
                                                    filter_scratch& scratch) {
  constexpr std::uint32_t kSlackShare = 8;                    // of what is wanted: a pass less, mostly
  constexpr std::uint32_t kCoarseShift = 16;                  // of kCoarseStep
  constexpr std::uint32_t kNear = kBins / 2 << kCoarseShift;  // bins around the row before's cut: some octaves
  constexpr number_bins kAll{0, 32 - kBinBits};
  const std::uint32_t slack = wanted / kSlackShare + 1;
  number_bins bins = kAll;
  if (previous >= kNear) bins = {previous / kCoarseStep * kCoarseStep - kNear, kCoarseShift, kBins, true};
  found_bin found{};
  for (;;) {
    const bin_counter counter(bins, scratch);
    sample.for_each_key(row, flip, [&](std::uint64_t key) { counter.count(core::key_of(key)); });
    if (!find_bin(wanted, found, scratch) || (bins.open && found.bin == kBins - 1)) {
      bins = kAll;
      continue;
    }
    const std::uint32_t begin = bins.begin(found.bin);
    if (found.inside <= slack) return static_cast<std::uint64_t>(begin) << 32;
    wanted -= found.before;
    const std::uint32_t finest = bins.shift > kCoarseShift ? kCoarseShift : kFinestShift<Stored>;
    if (bins.shift > finest) {
      bins = bins.within(found.bin, finest);
      continue;
    }
    // One value fills the bin: it is cut by columns.
    const number_bins places{~(row.first_column + row.columns - 1), shift_for(row.columns)};
    bool has = false;
    std::uint32_t value = 0;
    const bin_counter of_places(places, scratch);
    sample.for_each_key(row, flip, [&](std::uint64_t key) {
      if ((core::key_of(key) - begin) >> bins.shift != 0) return;
      of_places.count(static_cast<std::uint32_t>(key));
      has = true;
      value = core::key_of(key);
    });
    tell_single(has, value, scratch);
    find_bin(wanted, found, scratch);
    return static_cast<std::uint64_t>(scratch.single) << 32 | places.begin(found.bin);
  }
}

/// How many of the sample must reach a cut for k of the row's columns to reach it, but for one row in 100,000: the
/// count of those that k columns would give spreads by its root.
__device__ __forceinline__ std::uint32_t sampled_rank(std::uint32_t k, std::uint32_t columns) {
  const float expected = static_cast<float>(k) * core::kFilterRowsSample / static_cast<float>(columns);
  const float rank = expected + core::kFilterRowsDeviations * sqrtf(expected) + core::kFilterRowsLeast;
  return min(static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(core::kFilterRowsSample));
}

/// Appends the marked columns of a piece to the list, as they are found. @param mine the lane's first vector of the
/// piece. @param column its first one's. All lanes of a warp come.
template <class Stored>
__device__ __forceinline__ void append_marked(std::uint32_t marks, const uint4* mine, std::uint32_t column,
                                              const row_list& list, filter_scratch& scratch) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t count = __popc(marks);
  const std::uint32_t all = __reduce_add_sync(kFullWarp, count);
  if (all == 0) return;
  std::uint32_t begin = 0;  // of the warp's entries
  if (lane == 0) begin = atomicAdd(&scratch.count, all);
  const std::uint32_t before = lanes_before(count);
  begin = __shfl_sync(kFullWarp, begin, 0);
  if (begin + all > list.capacity) return;  // the row will be searched otherwise
  std::uint64_t* to = list.entries + begin + before;
  const Stored* values = reinterpret_cast<const Stored*>(mine);
  while (marks) {  // two at a time: their loads overlap
    const std::uint32_t first = column_of_mark<Stored>(__ffs(static_cast<int>(marks)) - 1);
    const Stored value = values[first];
    marks &= marks - 1;
    const bool two = marks != 0;
    const std::uint32_t second = two ? column_of_mark<Stored>(__ffs(static_cast<int>(marks)) - 1) : first;
    const Stored other = values[second];
    marks &= marks - 1;
    to[0] = found_column(value, column + first);
    if (two) to[1] = found_column(other, column + second);
    to += 2;
  }
}

/// Calls f(key) for this thread's share of a row in global memory, NaN too.
template <class Stored, class F>
__device__ __forceinline__ void for_each_of_row(const whole_row<Stored>& row, bool negated, F f) {
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < row.columns; i += kThreads)
    f(core::row_key(key_of_value(row.values[i], negated), row.first_column + i));
}

/// A row that is searched by its keys: one whose sample was wrong, or a short one. Lists the keys of its k best, or of
/// all its columns if it has no more, and finds the cut that the k best reach. All threads come, after a barrier; they
/// leave through one.
template <class Stored>
__device__ __forceinline__ std::uint64_t list_by_keys(const whole_row<Stored>& row, bool negated, std::uint32_t k,
                                                      const row_list& list, filter_scratch& scratch) {
  std::uint64_t cut = 1;  // every key reaches it
  if (row.columns > k) {
    const auto visit = [&](auto f) { for_each_of_row(row, negated, f); };
    find_cut(visit, visit, k, number_bins{0, 32 - kBinBits}, kFinestShift<Stored>,
             make_uint2(row.first_column, row.first_column + row.columns), cut, scratch);
  }
  if (threadIdx.x == 0) scratch.count = 0;
  __syncthreads();
  for_each_of_row(row, negated, [&](std::uint64_t key) {
    if (key >= cut) list.append(key, scratch);
  });
  __syncthreads();
  return cut;
}

/// Finds the cut that the k best of the list's n columns reach, which become their keys. @param least no column's key
/// is below it. @returns false if fewer than k are numbers. All threads come, after a barrier; they leave through one.
template <class Stored>
__device__ __forceinline__ bool cut_list(const whole_row<Stored>& row, bool negated, std::uint32_t k, std::uint32_t n,
                                         std::uint64_t least, const row_list& list, std::uint64_t& cut,
                                         filter_scratch& scratch) {
  constexpr std::uint32_t kUsualShift = 14;  // bins of two octaves: the k-th best is mostly alone with a few in one
  const auto visit_found = [&](auto f) {
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) {
      const std::uint64_t key = key_of_found<Stored>(list.entries[i], negated);
      list.entries[i] = key;
      f(key);
    }
  };
  const auto visit = [&](auto f) { for_each_key(list.entries, n, f); };
  const bool one_value = static_cast<std::uint32_t>(least) != 0;
  const number_bins bins{core::key_of(least), one_value ? kFinestShift<Stored> : kUsualShift, kBins, true};
  return find_cut(visit_found, visit, k, bins, kFinestShift<Stored>,
                  make_uint2(row.first_column, row.first_column + row.columns), cut, scratch);
}

/// Writes the k best of the list's n keys, those that reach the cut, in the order that the request asks for, padded.
/// All threads come, after a barrier; they leave through one.
template <class Stored>
__device__ __forceinline__ void write_best(const core::top_k_request& request, std::int64_t index,
                                           const whole_row<Stored>& row, std::uint32_t n, std::uint64_t cut,
                                           const row_list& list, filter_scratch& scratch) {
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const row_writer<Stored> write(request, index, row);
  if (request.options.sorted) {
    if (n > k) keep_from(list.entries, n, cut, scratch);
    for_each_in_order(list, min(n, k), scratch, write);
  } else {
    for_each_by_column(list.entries, n, cut, row.first_column, row.columns, scratch, write);
  }
  for (std::uint32_t place = n + threadIdx.x; place < k; place += kThreads) write.pad(place);
  __syncthreads();  // the list has been read
}

template <class Stored>
__global__ void __launch_bounds__(kThreads, kBlocks) filter_rows_kernel(const __grid_constant__ filter_args args) {
  const core::top_k_request& request = args.request;
  auto& scratch = *reinterpret_cast<filter_scratch*>(dynamic_shared());
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t lane = threadIdx.x % kWarp;
  auto* rings = reinterpret_cast<uint4*>(dynamic_shared() + kRingsBegin);
  const row_list list{reinterpret_cast<std::uint64_t*>(rings + kWarps * kRingBytes / 16), args.capacity};
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const std::uint32_t flip = sign_flip<Stored>(request);

  whole_row<Stored> row = open_row<Stored>(request, blockIdx.x);
  row_sample<Stored> sample;
  if (row.columns > args.capacity) sample.load(row);  // before the pieces, which it would wait for
  clear_map(scratch);
  if (lane == 0) {
    for (int s = 0; s < kStages<Stored>; s++) barrier_init(&scratch.full[warp][s], 1);
    barrier_init_fence();
  }
  __syncwarp();
  piece_ring<Stored> ring(rings + warp * (kRingBytes / 16), scratch.full[warp]);
  const auto pieces_of = [&](const whole_row<Stored>& data) {
    return data.columns > args.capacity ? row_pieces<Stored>(data) : row_pieces<Stored>();
  };
  row_pieces<Stored> pieces = pieces_of(row);
  ring.fill(pieces, {});
  std::uint32_t previous = 0;
  __syncthreads();
#pragma unroll 1
  for (std::int64_t index = blockIdx.x; index < request.matrix.rows; index += gridDim.x) {
    if (threadIdx.x == 0) scratch.count = 0;
    const bool streamed = row.columns > args.capacity;
    std::uint64_t least = 0;
    if (streamed) least = sample_cut(sample, row, flip, sampled_rank(k, row.columns), previous, scratch);
    const whole_row<Stored> next =
        index + gridDim.x < request.matrix.rows ? open_row<Stored>(request, index + gridDim.x) : whole_row<Stored>{};
    const row_pieces<Stored> next_pieces = pieces_of(next);
    ring.fill(pieces, next_pieces);
    if (streamed) {
      previous = core::key_of(least);
      const row_filter<Stored> filter(least, row, negated);
      if (threadIdx.x < row.head + row.tail()) {  // the columns beside the vectors
        const bool behind = threadIdx.x >= row.head;
        const std::uint32_t at = threadIdx.x + (behind ? row.vectors * kPerVector<Stored> : 0);
        const Stored value = row.values[at];
        if (filter.reached_by(value, behind ? row.vectors : 0))
          list.append(found_column(value, row.first_column + at), scratch);
      }
#pragma unroll 1
      for (std::uint32_t piece = 0; piece < pieces.count(); piece++) {
        const std::uint32_t vector = pieces.first_vector(piece) + lane;
        const std::uint32_t there = pieces.vectors_of(piece);
        const uint4* mine = ring.wait() + lane;
        std::uint32_t marks;
        if (filter.coarse == 0 || there < kPiece<Stored>)
          marks = careful_marks(mine, there, vector, filter);
        else if (negated)
          marks = coarse_marks<Stored, true>(mine, filter.coarse);
        else
          marks = coarse_marks<Stored, false>(mine, filter.coarse);
        append_marked<Stored>(marks, mine, row.first_column + row.head + vector * kPerVector<Stored>, list, scratch);
        __syncwarp();
        ring.leave();
        ring.fill_one(pieces, next_pieces);
      }
    }
    ring.end_row(pieces);
    if (next.columns > args.capacity) sample.load(next);
    __syncthreads();  // the list is complete
    std::uint32_t n = scratch.count;
    std::uint64_t cut = 1;
    if (!streamed || n < k || n > args.capacity || !cut_list(row, negated, k, n, least, list, cut, scratch)) {
      __syncthreads();  // all have read the count
      cut = list_by_keys(row, negated, k, list, scratch);
      n = min(k, row.columns);
    }
    write_best(request, index, row, n, cut, list, scratch);
    row = next;
    pieces = next_pieces;
  }
}

template <class Stored>
void launch_type(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  constexpr const char* kWhat = "launching the row-wise top k of many long rows";
  const std::int64_t capacity = core::filter_rows_capacity(request.matrix.cols, request.options.k);
  const filter_args args{request, static_cast<std::uint32_t>(capacity)};
  launch_shape shape;
  shape.threads = kThreads;
  shape.shared_bytes = kRingsBegin + kWarps * kRingBytes + capacity * static_cast<std::int64_t>(sizeof(std::uint64_t));
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
