// Early stops of rows of up to 32,768 columns: a block a row.
//
// Why it is fast: a midpoint is reached by k values exactly where it does not exceed the k-th best value, so that the
// bisection's whole path follows from the row's extremes and its k-th and (k+1)-th best values, without a count. The
// extremes need one pass, which lists the few columns that may be among the best as well; a warp finds the two values
// in that list, as the exact search does. What the path ends with is mostly in the list, too, but after a few steps;
// else a second pass marks it.
//
// Steps of a block, a row at a time: bulk copy -> extremes and list -> the two values -> the path, and what it ends
// with written from the list -> else the path, by every thread -> marks -> write (row_output.cuh). Rows that a list
// does not serve are searched in full (row_search.cuh), and tell the two values by what was chosen; a row that holds
// NaN or an infinity is answered by that.
//
// Limit: bytes(in) + bytes(out) over read bandwidth. Measured share: docs/kernels.md.
//
// History, 65,536 x 4096, k 64, 4 steps and eps 1e-4: the search of row_stop.cuh 0.42 and 0.56 ms -> extremes and list
// in two passes 0.40 and 0.43 -> marks by signs of products, one meeting for extremes and counts 0.33 and 0.36 -> a
// warp goes one way 0.32 and 0.35 -> written from the list, eps 0.30; 8 steps 0.33 -> 0.30.
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/top_k/block_launch.cuh"
#include "cuda/top_k/block_rows.hpp"
#include "cuda/top_k/stop_rows.hpp"

namespace shortlist::cuda {
namespace {

// What fewer steps end with is in no list of candidates for the k best; of longer lists, two passes are as short a way.
constexpr int kListSteps = 5;
constexpr int kMostOfLists = 128;  // k

struct row_ends {
  float least;
  float most;
  bool odd;  // there is NaN or an infinity
};

/// What a row's first pass tells all threads.
struct row_summary {
  row_ends ends;
  int before;  // candidates of the threads before this one
  int count;   // of all
};

/// All threads come. @param shared of each warp, 0 where there is none; it is free again behind the next barrier.
__device__ __forceinline__ row_summary summary_of(const float_ends& mine, std::uint32_t least_bits, int candidates,
                                                  bool negated, uint4* shared) {
  const lane_group<kWarp> group;
  const int lane = group.rank();
  const int my_warp = static_cast<int>(threadIdx.x) / kWarp;
  row_summary all;
  all.before = group.before(candidates, all.count);
  const uint2 words = mine.words();
  const uint4 of_warp{static_cast<std::uint32_t>(all.count), group.largest(words.x), group.largest(words.y),
                      group.largest(~least_bits)};
  if (lane == 0) shared[my_warp] = of_warp;
  __syncthreads();
  const uint4 other = lane < block_group::kMostWarps ? shared[lane] : uint4{0, 0, 0, 0};
  all.count = static_cast<int>(group.sum(other.x));
  all.before += static_cast<int>(group.sum(lane < my_warp ? other.x : 0u));
  const auto ends = float_ends::of_words({group.largest(other.y), group.largest(other.z)}, ~group.largest(other.w));
  all.ends = {negated ? -ends.most() : ends.least(), negated ? -ends.least() : ends.most(), ends.odd()};
  return all;
}

/// A thread's part of the k-th and (k+1)-th best, of the columns that were chosen and of the others; no NaN among them.
template <class Share>
__device__ __forceinline__ border_values border_of_chosen(const Share& share, typename Share::bits chosen) {
  border_values border{INFINITY, -INFINITY};
  share.visit_chosen(chosen, [&](float value, bool is_chosen) {
    border.last = fminf(border.last, is_chosen ? value : INFINITY);
    border.next = fmaxf(border.next, is_chosen ? -INFINITY : value);
  });
  return border;
}

/// What a bisection ends with: the columns that reach `sure`, and the first of the others that reach `fill`, k in all.
struct stop_end {
  float sure;
  float fill;
};

/// For a warp that writes a row by itself; by all threads, it takes registers that are spilled.
__device__ __forceinline__ stop_end follow_border(const early_stop& stop, const row_ends& ends,
                                                  const border_values& border) {
  float low = ends.least;
  float high = ends.most;
  const bool exact = bisect(stop, border.last, border.next, low, high);
  if (stop.by_count) return {INFINITY, low};
  if (border.next >= high) return {INFINITY, high};  // more than k have the row's largest value: the first of them
  return exact ? stop_end{border.last, border.last} : stop_end{high, low};
}

/// What a warp tells the others of a row's list.
struct list_tidings {
  border_values border;
  bool written;  // the row is done
};

/// @tparam WritesLists whether what a bisection ends with may be written from a row's list.
template <class Stored, int Values, int Threads, int Blocks, bool WritesLists>
__global__ void __launch_bounds__(Threads, Blocks) stop_rows_kernel(const __grid_constant__ block_args args) {
  using share_type = row_share<Stored, Values>;
  constexpr std::int64_t kMeetBytes = 16;
  constexpr std::int64_t kSummaryBytes = kStartBytes - block_group::kMostWarps * sizeof(uint4);
  constexpr std::int64_t kPostBytes = kMeetBytes + static_cast<std::int64_t>(sizeof(block_group::memory));
  static_assert(kPostBytes % alignof(list_tidings) == 0 && kPostBytes + sizeof(list_tidings) <= kSummaryBytes);
  const core::top_k_request& request = args.request;
  const early_stop& stop = args.search.stop;
  const int k = args.search.k;
  auto* barrier = reinterpret_cast<std::uint64_t*>(dynamic_shared());
  block_group group(*reinterpret_cast<block_group::memory*>(dynamic_shared() + kMeetBytes));
  auto* summaries = reinterpret_cast<uint4*>(dynamic_shared() + kSummaryBytes);
  auto& told = *reinterpret_cast<list_tidings*>(dynamic_shared() + kPostBytes);
  unsigned char* row_bytes = dynamic_shared() + kStartBytes;
  unsigned char* staged = row_bytes + args.stage_bytes;
  auto* list = reinterpret_cast<std::int32_t*>(staged);
  const std::int64_t rows = request.matrix.rows;
  if (threadIdx.x < block_group::kMostWarps) summaries[threadIdx.x] = {};
  join_chain();
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barrier_init_fence();
    args.stage.fetch_row(blockIdx.x, row_bytes, barrier);
  }
  __syncthreads();
  const typename share_type::places units(group.rank());
  row_shape shape{.border = args.search.deviations};
  candidate_threshold threshold;
  float each = 0.0f;  // of the warp's lists
  std::uint32_t turn = 0;
  for (std::int64_t index = blockIdx.x; index < rows; index += gridDim.x, turn++) {
    barrier_wait(barrier, turn & 1);
    if (args.stage.has_rest(index, 1)) {
      args.stage.copy_ends(index, 1, row_bytes, static_cast<int>(threadIdx.x), group.threads());
      __syncthreads();
    }
    const int lead_bytes = args.stage.offset_bytes(index, 0);
    const staged_row<Stored> row{row_bytes + lead_bytes, static_cast<int>(request.matrix.cols),
                                 request.options.order == order::smallest,
                                 lead_bytes / static_cast<int>(sizeof(Stored))};
    const share_type share(row, group.rank(), units);

    const bool tries = args.candidates.room > 0 && threshold.tries();
    const float least = tries ? threshold.above : 0.0f;
    float_ends mine;
    std::uint32_t least_bits = ~0u;
    const auto better = share.ascending(share.above_among(least, mine, least_bits));
    const auto [ends, before, count] = summary_of(mine, least_bits, count_marks(better), row.negated, summaries);

    const auto fetch_next = [&] {
      if (index + gridDim.x < rows) args.stage.fetch_row(index + gridDim.x, row_bytes, barrier);
    };

    border_values border;
    typename share_type::bits chosen = 0;
    int place = 0;
    if (!ends.odd && ends.least == ends.most) {
      border = {ends.least, ends.least};
    } else if (tries && !ends.odd && count > k && count <= args.candidates.room) {
      write_marked<kWarp>(better, share.first_column(), list, before);
      __syncthreads();
      if (threadIdx.x / kWarp == (turn & args.searchers)) {
        const bool first = threadIdx.x % kWarp == 0;
        const candidate_search search{count, k, least, args.candidates.entries};
        with_list(row, list, search, each, [&](const auto& columns, const auto& values, const border_values& found) {
          if (first) told.border = found;
          if constexpr (WritesLists) {
            const stop_end end = follow_border(stop, ends, found);
            const bool writes = end.fill > least;
            if (first) told.written = writes;
            if (!writes) return;
            __syncwarp();
            if (first) fetch_next();  // the row is no longer read
            write_first<Stored>(
                values, columns, k, row.negated, args.output.out, index * k,
                [&](float value) { return value >= end.sure; },
                [&](float value) { return value >= end.fill && !(value >= end.sure); });
          }
        });
      }
      __syncthreads();
      threshold.hit(count, args.candidates.aim);
      if (WritesLists && told.written) continue;
      border = told.border;
    } else {
      bool settled = false;
      auto marks =
          search_row<true>(group, args.search, row, share, shape, learns_from(static_cast<int>(turn)), settled);
      if (!settled) {
        marks = share.marks_of(find_border_by_keys(group, row, k, shape.at, args.search.deviations));
        group.sync();
      }
      chosen = choose(group, share.ascending(marks.sure), share.ascending(marks.fill), k, place);
      threshold.miss(shape.at, shape.scale, tries, count, k, args.candidates.aim);
      each = threshold.each;
      if (!ends.odd) {
        const border_values own = border_of_chosen(share, chosen);
        border = {-group.largest(-own.last), group.largest(own.next)};
      }
    }
    if (!ends.odd) {
      float low = ends.least;
      float high = ends.most;
      const bool exact = bisect(stop, border.last, border.next, low, high);
      const auto sure = share.reaching(stop.by_count ? low : exact ? border.last : high);
      if (stop.by_count || exact) {
        chosen = share.ascending(sure);
        place = group.before(count_marks(chosen));
      } else {
        const auto fill = share.reaching(low) & ~sure;
        chosen = choose(group, share.ascending(sure), share.ascending(fill), k, place);
      }
    }
    write_row<true, 0>(group, args.output, row, share, chosen, place, index, 0, staged, [] { return false; });
    __syncthreads();
    if (threadIdx.x == 0) fetch_next();
  }
}

template <class Stored, int Values, int Threads, int Blocks>
void launch_shape_of(cudaStream_t stream, block_args& args, int multiprocessors) {
  const early_stop& stop = args.search.stop;
  const bool writes_lists = stop.by_eps || (stop.max_iter >= kListSteps && args.search.k <= kMostOfLists);
  launch_block_shape<Values, 0, false>(writes_lists ? stop_rows_kernel<Stored, Values, Threads, Blocks, true>
                                                    : stop_rows_kernel<Stored, Values, Threads, Blocks, false>,
                                       stream, args, multiprocessors);
}

template <class Stored>
void launch_columns(cudaStream_t stream, block_args& args, int multiprocessors) {
  const std::int64_t columns = args.stage.columns_held();
  if (columns <= 4096) return launch_shape_of<Stored, 64, 64, 10>(stream, args, multiprocessors);
  if (columns <= 8192) return launch_shape_of<Stored, 64, 128, 5>(stream, args, multiprocessors);
  if (columns <= 24576) return launch_shape_of<Stored, 64, 384, 2>(stream, args, multiprocessors);
  launch_shape_of<Stored, 64, 512, 1>(stream, args, multiprocessors);
}

}  // namespace

void launch_stop_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  block_args args = block_args_of(request);
  if (args.stage.mode == stage_mode::by_threads) return launch_block_rows(stream, request, multiprocessors);  // ragged
  args.candidates = candidate_plan_of(args.request, kListedShareOfBlock);
  by_stored_type(request.matrix.type,
                 [&](auto stored) { launch_columns<decltype(stored)>(stream, args, multiprocessors); });
}

}  // namespace shortlist::cuda
