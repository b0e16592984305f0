// Row-wise top k of long rows of which two fit a multiprocessor: a block holds a row in shared memory, marks what
// reaches a filter, and searches that while the next row comes.
//
// Why it is fast: a column costs a compare and an eighth of a byte of marks; all else is done for the columns that
// reach the filter, once a row, by all threads. The row before suggests the filter, at no cost: a row that is not like
// it is there to be marked again, by what a sample suggests. While one block's row comes, another block searches: of
// shorter 16-bit rows with a smaller k, three share a multiprocessor.
// Steps of a block, a row at a time: a cut that somewhat more than k columns reach, almost surely -> a bit for each
// column that reaches it, as chunks of the row come -> their places, in their order -> if their count is at least k and
// within what threads hold, the k best are among them: that proves the cut right; else the row is searched in global
// memory -> their values into registers; the next row may come -> the exact border, by counting -> entries by column,
// or sorted. Limit: bytes(in) + bytes(out) over read bandwidth. Measured share: docs/kernels.md. History, 1024 x 50,000
// of bf16, k 2048, a launch in a graph on an H200 (filter_rows: 60 us): 54 -> the border of the row before as the
// filter, entries that are written joined in shared memory 45 -> places listed without branches 42, 39 in
// the record -> entries looked at without a branch for each 37. Sorted: 84 -> bins of numbers and columns 75, 69 -> 66.
// 4096 x 32,000 of bf16, k 50: 79 -> three blocks a multiprocessor 73; sorted 95 -> 82.
// Early stops: the worst value is looked for while columns are marked, the best and the border are among what threads
// hold, and the three tell the path (stop_range.cuh). The cut is lower by the width of the bracket that the row before
// ended with; where the path ends lower still, the row is marked again from there, before the next one comes.
// History, 10,000 x 50,000 of bf16, k 64, four steps, calls: filter_rows 0.434 ms -> 0.274 (exact 0.268); 1024 x
// 50,000, k 2048: filter_rows 0.098 -> what lies lower read from global memory 0.112 -> the row marked again 0.070.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/plan.hpp"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/filter_list.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_sample.cuh"
#include "cuda/top_k/filter_stop.cuh"
#include "cuda/top_k/resident_list.cuh"
#include "cuda/top_k/resident_rows.hpp"
#include "cuda/top_k/resident_stop.cuh"
#include "cuda/top_k/row_marks.cuh"

namespace shortlist::cuda {
namespace {

using namespace filtering;

/// What a block is made for.
enum class block_kind : std::uint8_t {
  by_column,
  few_by_column,  // of which so few reach a filter that three blocks share a multiprocessor
  sorted,
  few_sorted,
  stopped,  // early, by column
  few_stopped
};
constexpr bool is_few(block_kind kind) { return static_cast<int>(kind) % 2 == 1; }
constexpr bool is_sorted(block_kind kind) { return kind == block_kind::sorted || kind == block_kind::few_sorted; }
constexpr bool is_stopped(block_kind kind) { return kind == block_kind::stopped || kind == block_kind::few_stopped; }
constexpr int blocks_of(block_kind kind) { return is_few(kind) ? 3 : 2; }
/// Columns that may reach a row's filter.
constexpr std::uint32_t capacity_of(block_kind kind) { return is_few(kind) ? 1024 : core::kResidentRowsMaxCapacity; }
/// So many of them are a thread's.
constexpr int most_of(block_kind kind) { return static_cast<int>(capacity_of(kind)) / kThreads; }
static_assert(core::kResidentRowsMaxCapacity <= kRound && core::kResidentRowsMaxCapacity % kThreads == 0 &&
              capacity_of(block_kind::few_by_column) % kThreads == 0);

/// Where a block's parts lie in shared memory, in bytes. Marks take the place of bins, which are empty meanwhile; so do
/// values on their way out.
struct resident_layout {
  std::int64_t marks;
  std::int64_t totals;  // of marks; of rows that are stopped early, what that takes when the marks have been read
  std::int64_t list;
  std::int64_t values;  // of place 0
  std::int64_t bytes;
};

template <class Stored, block_kind Kind>
SHORTLIST_HOST_DEVICE resident_layout layout_of(std::int64_t cols, std::int64_t k) {
  constexpr bool kSorted = is_sorted(Kind);
  constexpr std::int64_t kValueBytes = sizeof(Stored);
  constexpr std::int64_t kCapacity = capacity_of(Kind);
  constexpr std::int64_t kSortBytes = 8 * 2 * kCapacity + sizeof(order_scratch);
  static_assert(!kSorted || kSortBytes <= core::kResidentRowsSortBytes);
  const std::int64_t words = (cols + kPlacesOfWord - 1) / kPlacesOfWord;
  const std::int64_t marks = offsetof(filter_scratch, bins);
  std::int64_t marks_bytes = words * 4 > kBinBytes ? words * 4 : kBinBytes;
  if (!kSorted && marks_bytes < k * kValueBytes) marks_bytes = k * kValueBytes;
  const std::int64_t totals = (marks + marks_bytes + 15) / 16 * 16;
  const std::int64_t list = totals + kMarkRounds * kWarps * 4;
  const std::int64_t values = (list + 2 * kCapacity + kLineBytes - 1) / kLineBytes * kLineBytes;
  const std::int64_t row_bytes = (cols + 3 * std::int64_t{kPlacesOfWord}) * kValueBytes;
  return {marks, totals, list, values, values + (kSorted && row_bytes < kSortBytes ? kSortBytes : row_bytes)};
}

/// Of the GPU. So many blocks come before one that shares a multiprocessor with another.
__device__ __forceinline__ std::uint32_t multiprocessors() {
  std::uint32_t count;
  asm("mov.u32 %0, %%nsmid;" : "=r"(count));
  return count;
}

/// By so many columns the counts of two rows that are alike differ at most, but for one in a thousand.
__device__ __forceinline__ float most_difference(std::uint32_t k) {
  constexpr float kDeviations = 3.0f;
  constexpr float kLeast = 8.0f;
  const float both = 2.0f * static_cast<float>(k);
  return kDeviations * (both * rsqrtf(both)) + kLeast;
}
/// The least key of a row like the one before: of its border, and so many columns below. 0: nothing is known. @param
/// lower it is so many numbers lower, where rows are stopped.
template <class Stored, bool Stops>
__device__ __forceinline__ std::uint32_t key_by_row_before(const learned& from_before, std::uint32_t k, float lower) {
  if (from_before.least == 0 || from_before.by_columns) return 0;
  float below = most_difference(k) * from_before.spread;
  if constexpr (Stops) below += lower;
  const auto number = static_cast<std::uint32_t>(fmaxf(static_cast<float>(from_before.least) - below, 1.0f));
  constexpr std::uint32_t kShift = kCoarseShift<Stored>;
  const std::uint32_t coarse = min(number, from_before.least) >> kShift << kShift;
  return coarse << kSharedBits<Stored>;
}
/// Whether it would have been right for the row that `from_before` now knows. @param beyond_k room for more than k
template <class Stored>
__device__ __forceinline__ bool was_right(std::uint32_t key, const learned& from_before, std::uint32_t beyond_k) {
  const std::uint32_t least = key >> kSharedBits<Stored>;
  if (key == 0 || from_before.least < least) return false;
  return static_cast<float>(from_before.least - least) < static_cast<float>(beyond_k) * from_before.spread;
}

struct resident_args {
  core::top_k_request request;
  early_stop stop;
};

template <class Stored, block_kind Kind>
__global__ void __launch_bounds__(kThreads, blocks_of(Kind))
    resident_rows_kernel(const __grid_constant__ resident_args args) {
  constexpr bool kSorted = is_sorted(Kind);
  constexpr bool kStops = is_stopped(Kind);
  const core::top_k_request& request = args.request;
  constexpr std::uint32_t kCapacity = capacity_of(Kind);
  const resident_layout layout = layout_of<Stored, Kind>(request.matrix.cols, request.options.k);
  auto& scratch = *reinterpret_cast<filter_scratch*>(dynamic_shared());
  const std::uint32_t marks = held(shared_address(scratch.bins));
  const std::uint32_t list = held(shared_address(dynamic_shared() + layout.list));
  const std::uint32_t totals = held(shared_address(dynamic_shared() + layout.totals));
  std::byte* values = reinterpret_cast<std::byte*>(dynamic_shared()) + layout.values;
  const filter_block block{.request = request,
                           .scratch = scratch,
                           .list = {shared_address(values), kCapacity},  // where a row was
                           .places = list,
                           .entries = reinterpret_cast<std::uint64_t*>(values),
                           .order = reinterpret_cast<order_scratch*>(values + 8 * 2 * kCapacity)};
  static_assert(sizeof(stop_scratch) <= kMarkRounds * kWarps * 4);
  const stop_block stops{.of_exact = block,
                         .stop = args.stop,
                         .scratch = *reinterpret_cast<stop_scratch*>(dynamic_shared() + layout.totals)};
  block_sums sums(scratch);
  clear_scratch(scratch);
  constexpr int kBarriers = kWarps * kMostStages;
  static_assert(kBarriers * resident_row<Stored>::kChunk * 16 >= core::kResidentRowsMaxBytes);
  if (threadIdx.x < kBarriers) barrier_init(&scratch.full[0][0] + threadIdx.x, 1);
  barrier_init_fence();
  __syncthreads();
  join_chain();

  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  resident_row<Stored> held_row(held(shared_address(values)), held(shared_address(scratch.full)));
  row_sample<Stored> sample;
  learned from_before{.spread = static_cast<float>(0x10000u >> kSharedBits<Stored>) / 32.0f};
  std::uint32_t learned_key = 0;  // from the row before
  bool is_alike = true;           // a row to the one before
  float reach = 0.0f;             // of the early stop of the row before
  const auto is_held = [](const whole_row<Stored>& row) { return row.columns > core::kFilterRowsSample; };
  // All threads come, after a barrier behind what has used the memory.
  const auto bring = [&](const whole_row<Stored>& row) {
    if (sums.warp() != 0 || !is_held(row)) return;
    async_fence();
    held_row.bring(row, sums.lane());
  };
  std::int64_t index = blockIdx.x;
  whole_row<Stored> row = open_row<Stored>(request, index);
  if (is_held(row)) {
    sample.load(row);
    // Of the blocks of a multiprocessor one gets its first row sooner, and is ahead from then on. Sorted rows and fp32
    // take longer by it.
    if (!kSorted && sizeof(Stored) == 2 && blockIdx.x >= multiprocessors()) sample.await();
  }
  bring(row);
#pragma unroll 1
  for (;;) {
    const std::int64_t after = index + gridDim.x;
    const whole_row<Stored> next = after < request.matrix.rows ? open_row<Stored>(request, after) : whole_row<Stored>{};
    bool written = false;
    bool is_next_coming = false;
    const auto leave = [&] {
      bring(next);
      is_next_coming = true;
    };
    counted_range unlisted;
    if (is_held(row)) {
      const resident_search<Stored> search{row, held_row, row_places<Stored>(row), marks, totals, list};
      bool by_sample = !is_alike || learned_key == 0;
      std::uint64_t cut = static_cast<std::uint64_t>(learned_key) << 32;
      std::uint32_t n = 0;
      filtering::row_marks found;
      std::uint32_t worst = 0;
#pragma unroll 1
      for (;;) {
        if (by_sample) {
          clear_bins(scratch);
          __syncthreads();
          cut = sample_cut(sample, row, sign_flip<Stored>(request), sampled_rank(k, row.columns), from_before, sums,
                           scratch);
          from_before.cut = core::key_of(cut) >> kSharedBits<Stored>;
          from_before.by_columns = static_cast<std::uint32_t>(cut) != 0;
        }
        const row_filter<Stored> filter(cut, row);
        n = mark<kStops>(search, filter, negated, sums, worst, found);
        if (by_sample || (n >= k && n <= kCapacity)) break;
        is_alike = false;
        by_sample = true;
        sample.load(row);
        __syncthreads();  // the totals have been read
      }
      if constexpr (!kStops) held_row.used(row);
      clear_bins(scratch);
      if (n >= k && n <= kCapacity) {
        const std::uint32_t least = core::key_of(cut) >> kSharedBits<Stored>;
        list_places(row, held_row, found, n, list, sums);
        __syncthreads();
        const round_share share(0, n, false);
        held_list<most_of(Kind)> of_list;
        hold(held_row, list, share, least, negated, of_list);
        const row_writer<Stored> write(request, index, row);
        if constexpr (kSorted) {
          written = write_in_order(block, search, write, of_list, share, n, least, from_before, sums);
        } else if constexpr (kStops) {
          stop_range range;
          written = write_stopped_by_column(stops, search, write, of_list, share, n, least, worst, from_before, sums,
                                            leave, range, unlisted);
          reach = from_before.least == 0 ? 0.0f : reach_of_stop<Stored>(range, from_before, k, n, (kCapacity + k) / 2);
        } else {
          written = write_by_column(block, search, write, of_list, share, n, least, from_before, sums, leave);
        }
        if (by_sample && from_before.least != 0)
          is_alike = learned_key == 0 || was_right<Stored>(learned_key, from_before, kCapacity - k);
      }
      if constexpr (kStops) held_row.used(row);
    }
    if (!written) {
      if (!kStops || unlisted.k == 0) from_before.least = 0;
      __syncthreads();
      clear_bins(scratch);
      __syncthreads();
      if constexpr (kStops)
        search_stop<Stored>(stops, index, unlisted, sums,
                            [&](const row_writer<Stored>& write, const whole_row<Stored>& of_row, std::uint32_t low) {
                              write_first_unlisted(stops, write, of_row, low);
                            });
      else
        search_row<Stored, kSorted>(block, index, sums);
    }
    if (after >= request.matrix.rows) break;
    __syncthreads();  // the row's memory has been left
    if (!is_next_coming) bring(next);
    index = after;
    row = next;
    learned_key = key_by_row_before<Stored, kStops>(from_before, k, reach);
    sample = {};  // see held_list
    if (is_held(row) && (!is_alike || learned_key == 0)) sample.load(row);
  }
}

constexpr const char* kWhat = "launching the row-wise top k of rows in shared memory";

/// Whether so few columns reach a filter that three blocks have room for their rows and lists.
template <class Stored, block_kind Few>
bool are_few(const core::top_k_request& request) {
  const std::int64_t cols = request.matrix.cols;
  const std::int64_t k = request.options.k;
  return core::resident_rows_list_holds(cols, k, capacity_of(Few)) &&
         blocks_per_multiprocessor(resident_rows_kernel<Stored, Few>, kThreads, layout_of<Stored, Few>(cols, k).bytes,
                                   kWhat) >= blocks_of(Few);
}

template <class Stored, block_kind Kind>
void launch_as(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  const std::int64_t shared_bytes = layout_of<Stored, Kind>(request.matrix.cols, request.options.k).bytes;
  const resident_args args{request, early_stop_of(request.options)};
  launch_over(request.matrix.rows, multiprocessors, resident_rows_kernel<Stored, Kind>,
              {.threads = kThreads, .shared_bytes = shared_bytes, .overlaps = true}, stream, args, kWhat);
}

/// @tparam Any and @tparam Few kinds of block, of which the second is for few columns that reach a filter.
template <class Stored, block_kind Any, block_kind Few>
void launch_type(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  constexpr bool kHalves = sizeof(Stored) == 2;  // fp32 rows that are so short take longer
  // A block's first row takes longest, and longer beside two others: 1024 x 32,000 sorted, k 50, 0.039 ms for 0.037.
  const std::int64_t least_rows = is_sorted(Any) ? std::int64_t{4} * blocks_of(Few) * multiprocessors : 0;
  if constexpr (kHalves)
    if (request.matrix.rows >= least_rows && are_few<Stored, Few>(request))
      return launch_as<Stored, Few>(stream, request, multiprocessors);
  launch_as<Stored, Any>(stream, request, multiprocessors);
}

}  // namespace

void launch_resident_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  by_type_and_order(request, [&](auto stored, auto sorted) {
    using type = decltype(stored);
    if constexpr (sorted.value)
      launch_type<type, block_kind::sorted, block_kind::few_sorted>(stream, request, multiprocessors);
    else if (early_stop_of(request.options).asked())
      launch_type<type, block_kind::stopped, block_kind::few_stopped>(stream, request, multiprocessors);
    else
      launch_type<type, block_kind::by_column, block_kind::few_by_column>(stream, request, multiprocessors);
  });
}

}  // namespace shortlist::cuda
