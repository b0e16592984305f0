// Row-wise top k of many long rows: a block holds a row in shared memory, marks what reaches a filter that a sample of
// the row suggests, and searches that while the next row comes.
//
// Why it is fast: a column costs a compare and an eighth of a byte of marks, and all that is done for columns that
// reach the filter is done once, by all threads, when the row is there. Two blocks share a multiprocessor where two
// rows fit it, so that one marks and searches while the other's row comes.
// Steps of a block, a row at a time: a sample spread over the row -> a cut that somewhat more than k columns reach,
// almost surely -> a bit for each column that reaches it, chunk by chunk -> their places, in their order -> if their
// count is at least k and within what threads hold, the k best are among them: that proves the sample right; else the
// row is searched in global memory -> their values into registers; the next row may come -> the exact border, by
// counting -> entries by column, or sorted.
// Limit: bytes(in) + bytes(out) over read bandwidth. Measured share: docs/kernels.md.
#include <algorithm>
#include <cstdint>

#include "core/plan.hpp"
#include "cuda/device/cluster.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/filter_list.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_sample.cuh"
#include "cuda/top_k/filter_write.cuh"
#include "cuda/top_k/resident_rows.hpp"
#include "cuda/top_k/row_marks.cuh"

namespace shortlist::cuda {
namespace {

using namespace filtering;

#ifndef FILTER_BLOCKS
#define FILTER_BLOCKS 2
#endif
constexpr int kBlocks = FILTER_BLOCKS;  // a multiprocessor holds, where their rows let it
constexpr std::uint32_t kCapacity = kRound < core::kResidentRowsMaxCapacity ? kRound : core::kResidentRowsMaxCapacity;

/// Where a block's parts lie in shared memory, in bytes. Marks take the place of bins, which are empty meanwhile; so do
/// chosen values on their way out.
struct resident_layout {
  std::int64_t marks;
  std::int64_t totals;
  std::int64_t list;
  std::int64_t values;  // of place 0
  std::int64_t bytes;
};

template <class Stored, bool Sorted>
SHORTLIST_HOST_DEVICE resident_layout layout_of(std::int64_t cols, std::int64_t k) {
  constexpr std::int64_t kValueBytes = sizeof(Stored);
  constexpr std::int64_t kSortBytes = 8 * 2 * kCapacity + sizeof(order_scratch);
  constexpr std::int64_t kPieceColumns = kPiece<Stored> * kPerVector<Stored>;  // whole pieces are read and marked
  const std::int64_t held = (cols + kPieceColumns - 1) / kPieceColumns * kPieceColumns;
  const std::int64_t words = held / kPlacesOfWord;
  const std::int64_t marks = offsetof(filter_scratch, bins);
  std::int64_t marks_bytes = words * 4 > kBins * 4 ? words * 4 : kBins * 4;
  if (!Sorted && marks_bytes < k * kValueBytes) marks_bytes = k * kValueBytes;
  const std::int64_t totals = (marks + marks_bytes + 15) / 16 * 16;
  const std::int64_t list = totals + kMarkRounds * kWarps * 4;
  const std::int64_t values = (list + 2 * kCapacity + kLineBytes - 1) / kLineBytes * kLineBytes;
  const std::int64_t placed = cols + 3 * kPlacesOfWord;
  std::int64_t row_bytes = (held > placed ? held : placed) * kValueBytes;
  if (Sorted && row_bytes < kSortBytes) row_bytes = kSortBytes;
  return {marks, totals, list, values, values + row_bytes};
}

/// What threads hold of a row's list.
struct held_list {
  std::uint32_t numbers[kHeld];  // 0, which nothing is worse than, where there is no entry
  std::uint32_t places[kHeld];
  std::uint32_t bits[kHeld];  // of values
};

template <class Stored>
__device__ __forceinline__ Stored of_bits(std::uint32_t bits) {
  if constexpr (sizeof(Stored) == 4)
    return __uint_as_float(bits);
  else
    return {static_cast<std::uint16_t>(bits)};
}

/// Reads what the list's places have. @param least no number is below it: where it is a positive value's, bits are in
/// order already.
template <class Stored>
__device__ __forceinline__ void hold(const resident_row<Stored>& values, std::uint32_t list, const round_share& share,
                                     std::uint32_t least, bool negated, held_list& held) {
#pragma unroll
  for (int i = 0; i < kHeld; i++) held.numbers[i] = held.places[i] = 0;
#pragma unroll
  for (int i = 0; i < kHeld; i++) {
    if (i >= share.steps) break;
    if (share.at(i) < share.end) held.places[i] = load_shared<std::uint16_t>(list + share.at(i) * 2);
  }
#pragma unroll
  for (int i = 0; i < kHeld; i++) {
    if (i >= share.steps) break;
    held.bits[i] = values.bits(held.places[i]);
  }
  constexpr std::uint32_t kZeroNumber = kZeroKey >> kSharedBits<Stored>;
  if (std::is_same_v<Stored, float16> || least <= kZeroNumber) {
#pragma unroll
    for (int i = 0; i < kHeld; i++) {
      if (i >= share.steps) break;
      if (share.at(i) < share.end) held.numbers[i] = number_of(of_bits<Stored>(held.bits[i]), negated);
    }
    return;
  }
  constexpr std::uint32_t kSign = sizeof(Stored) == 4 ? core::kSignBit : 0x8000u;
  const std::uint32_t turned = negated ? 0 : kSign;
#pragma unroll
  for (int i = 0; i < kHeld; i++) {
    if (i >= share.steps) break;
    const std::uint32_t number = held.bits[i] ^ turned;
    if (share.at(i) < share.end && number <= kInfinityNumber<Stored>) held.numbers[i] = number;  // NaN is none
  }
}

/// A cut for a row like the one before: its border, and below that as many columns as the counts of such rows differ by,
/// but for one in a thousand. 0: nothing is known.
template <class Stored>
__device__ __forceinline__ std::uint64_t cut_of_row_before(const learned& from_before, std::uint32_t k) {
  constexpr float kDeviations = 3.0f;
  constexpr float kLeast = 8.0f;
  if (from_before.least == 0 || from_before.by_columns) return 0;
  const float below = (kDeviations * sqrtf(2.0f * static_cast<float>(k)) + kLeast) * from_before.spread;
  const auto number = static_cast<std::uint32_t>(fmaxf(static_cast<float>(from_before.least) - below, 1.0f));
  const std::uint32_t lower = min(number, from_before.least);
  return static_cast<std::uint64_t>(lower >> kCoarseShift<Stored> << kCoarseShift<Stored> << kSharedBits<Stored>) << 32;
}

template <class Stored, bool Sorted>
__global__ void __launch_bounds__(kThreads, kBlocks)
    resident_rows_kernel(const __grid_constant__ core::top_k_request request) {
  const resident_layout layout = layout_of<Stored, Sorted>(request.matrix.cols, request.options.k);
  auto& scratch = *reinterpret_cast<filter_scratch*>(dynamic_shared());
  const std::uint32_t marks = held(shared_address(scratch.bins));
  const std::uint32_t list = held(shared_address(dynamic_shared() + layout.list));
  const std::uint32_t totals = held(shared_address(dynamic_shared() + layout.totals));
  std::byte* values = reinterpret_cast<std::byte*>(dynamic_shared()) + layout.values;
  const filter_block block{.request = request,
                           .scratch = scratch,
                           .list = {shared_address(values), kCapacity},
                           .places = list,
                           .entries = reinterpret_cast<std::uint64_t*>(values),
                           .order = reinterpret_cast<order_scratch*>(values + 8 * 2 * kCapacity)};
  block_sums sums(scratch);
  clear_scratch(scratch);
  constexpr int kMostChunks = kWarps * kMostStages;
  if (threadIdx.x < kMostChunks) barrier_init(&scratch.full[0][0] + threadIdx.x, 1);
  barrier_init_fence();
  __syncthreads();

  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const std::uint32_t flip = sign_flip<Stored>(request);
  resident_row<Stored> held_row(held(shared_address(values)), held(shared_address(scratch.full)));
  row_sample<Stored> sample;
  learned from_before{.spread = static_cast<float>(0x10000u >> kSharedBits<Stored>) / 32.0f};
  const auto is_held = [](const whole_row<Stored>& row) { return row.columns > core::kFilterRowsSample; };
  // Begins to bring a row. All threads come, after a barrier behind what has used the memory.
  const auto bring = [&](const whole_row<Stored>& row) {
    if (sums.warp() != 0 || !is_held(row)) return;
    async_fence();
    held_row.bring(row, sums.lane());
  };
  const auto clear_bins = [&] {
    if (threadIdx.x < kBins / 4) store_shared(marks + threadIdx.x * 16, make_uint4(0, 0, 0, 0));
  };
  bool is_alike = true;  // the next row to this one
  std::int64_t index = blockIdx.x;
  whole_row<Stored> row = open_row<Stored>(request, index);
  if (is_held(row)) sample.load(row);
  bring(row);
#pragma unroll 1
  for (;;) {
    const std::int64_t after = index + gridDim.x;
    const whole_row<Stored> next =
        after < request.matrix.rows ? open_row<Stored>(request, after) : whole_row<Stored>{};
    bool written = false;
    bool is_next_coming = false;
    if (is_held(row)) {
      const std::uint64_t learned_cut = cut_of_row_before<Stored>(from_before, k);
      bool by_sample = !is_alike || learned_cut == 0;
      std::uint64_t cut = learned_cut;
      std::uint32_t n = 0;
      unsigned before_vectors = 0;
      unsigned behind_vectors = 0;
      marked_words mine;
#pragma unroll 1
      for (;;) {
        if (by_sample) {
          clear_bins();
          __syncthreads();
          cut = sample_cut(sample, row, flip, sampled_rank(k, row.columns), from_before, sums, scratch);
          from_before.cut = core::key_of(cut) >> kSharedBits<Stored>;
          from_before.by_columns = static_cast<std::uint32_t>(cut) != 0;
        }
        const row_filter<Stored> filter(cut, row);
        if (negated)
          mark_row<Stored, true>(row, held_row, filter, marks, sums);
        else
          mark_row<Stored, false>(row, held_row, filter, marks, sums);
        n = read_marks(marks, row_places<Stored>(row).words(), totals, mine, sums);
        before_vectors = marks_beside(row, 0, row.head, 0, filter, negated, sums.lane());
        behind_vectors =
            marks_beside(row, row.columns - row.tail(), row.tail(), row.vectors, filter, negated, sums.lane());
        n += __popc(before_vectors) + __popc(behind_vectors);
        if (by_sample || (n >= k && n <= kCapacity)) break;
        is_alike = false;
        by_sample = true;
        sample.load(row);
        __syncthreads();  // the totals have been read
      }
      held_row.used(row);
      clear_bins();
      if (n >= k && n <= kCapacity) {
        const std::uint32_t least = core::key_of(cut) >> kSharedBits<Stored>;
        const row_places<Stored> places(row);
        list_places(mine, places.words(), list + __popc(before_vectors) * 2);
        if ((before_vectors | behind_vectors) != 0 && sums.warp() == 0) {
          list_beside(row, 0, before_vectors, places.before(), held_row, list, sums.lane());
          list_beside(row, row.columns - row.tail(), behind_vectors, places.behind, held_row,
                      list + (n - __popc(behind_vectors)) * 2, sums.lane());
        }
        __syncthreads();
        const round_share share(0, n, false);
        held_list of_list;
        hold(held_row, list, share, least, negated, of_list);
        __syncthreads();  // the row has been read
        if constexpr (Sorted) {
#pragma unroll
          for (int i = 0; i < kHeld; i++) {
            if (i >= share.steps) break;
            if (share.at(i) < share.end)
              store_shared(block.list.entries + share.at(i) * 8,
                           make_uint2(row.first_column + places.column(of_list.places[i]), of_list.bits[i]));
          }
          __syncthreads();
          const row_writer<Stored> write(request, index, row);
          written = write_held<Stored, true>(block, write, n, least, from_before, sums, [] {});
        } else {
          bring(next);
          is_next_coming = true;
          const row_border border = held_border(of_list.numbers, share, n, k, least, kInfinityNumber<Stored>,
                                                from_before, sums, scratch);
          uint2 before = make_uint2(0, 0);
          const auto keep = [&](std::uint32_t place, int i) {
            store_shared(list + place * 2, static_cast<std::uint16_t>(of_list.places[i]));
            if constexpr (sizeof(Stored) == 4)
              store_shared(marks + place * 4, of_list.bits[i]);
            else
              store_shared(marks + place * 2, static_cast<std::uint16_t>(of_list.bits[i]));
          };
          if (border.ties == 0)
            place_round<false>(of_list.numbers, share, border, before, sums, keep);
          else
            place_round<true>(of_list.numbers, share, border, before, sums, keep);
          written = before.x + min(before.y, border.ties) == k;
          if (written) {
            __syncthreads();
            const row_writer<Stored> write(request, index, row);
            for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) {
              const std::uint32_t place = load_shared<std::uint16_t>(list + i * 2);
              std::uint32_t bits;
              if constexpr (sizeof(Stored) == 4)
                bits = load_shared<std::uint32_t>(marks + i * 4);
              else
                bits = load_shared<std::uint16_t>(marks + i * 2);
              write.stored(i, row.first_column + places.column(place), of_bits<Stored>(bits));
            }
          }
        }
        if (by_sample && learned_cut != 0 && from_before.least != 0) {
          const std::uint32_t learned_least = core::key_of(learned_cut) >> kSharedBits<Stored>;
          const float farther = static_cast<float>(from_before.least - learned_least);
          is_alike = from_before.least >= learned_least &&
                     farther < static_cast<float>(kCapacity - k) * from_before.spread;
        }
      }
    }
    if (!written) {
      from_before.least = 0;
      __syncthreads();
      clear_bins();
      __syncthreads();
      search_row<Stored, Sorted>(block, index, sums);
    }
    if (after >= request.matrix.rows) break;
    __syncthreads();  // the row's memory has been left
    if (!is_next_coming) bring(next);
    index = after;
    row = next;
    if (is_held(row) && (!is_alike || cut_of_row_before<Stored>(from_before, k) == 0)) sample.load(row);
  }
}

template <class Stored, bool Sorted>
void launch_as(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  constexpr const char* kWhat = "launching the row-wise top k of rows in shared memory";
  launch_shape shape;
  shape.threads = kThreads;
  shape.shared_bytes = layout_of<Stored, Sorted>(request.matrix.cols, request.options.k).bytes;
  const std::int64_t fitting =
      blocks_per_multiprocessor(resident_rows_kernel<Stored, Sorted>, kThreads, shape.shared_bytes, kWhat);
  shape.grid =
      dim3(static_cast<unsigned>(std::min(request.matrix.rows, std::max<std::int64_t>(fitting, 1) * multiprocessors)));
  launch(resident_rows_kernel<Stored, Sorted>, shape, stream, request, kWhat);
}

}  // namespace

void launch_resident_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  by_stored_type(request.matrix.type, [&](auto stored) {
    using value = decltype(stored);
    if (request.options.sorted)
      launch_as<value, true>(stream, request, multiprocessors);
    else
      launch_as<value, false>(stream, request, multiprocessors);
  });
}

}  // namespace shortlist::cuda
