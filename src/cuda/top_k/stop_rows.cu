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
// Few steps end in a wide bracket, which the rows before tell: bulk copy -> extremes -> the path of a guess -> counts
// at both ends of its bracket, which mostly prove it -> write. Nothing is listed, and no warp waits for another's
// search.
//
// Limit: bytes(in) + bytes(out) over read bandwidth. Measured share: docs/kernels.md.
//
// History, 65,536 x 4096, k 64, 4 steps and eps 1e-4: the search of row_stop.cuh 0.42 and 0.56 ms -> extremes and list
// in two passes 0.40 and 0.43 -> marks by signs of products, one meeting for extremes and counts 0.33 and 0.36 -> a
// warp goes one way 0.32 and 0.35 -> written from the list, eps 0.30; 8 steps 0.33 -> 0.30 -> 4 steps guessed 0.28.
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/top_k/block_launch.cuh"
#include "cuda/top_k/block_rows.hpp"
#include "cuda/top_k/stop_rows.hpp"

namespace shortlist::cuda {
namespace {

// What fewer steps end with is guessed sooner than found in a list; of longer lists, two passes are as short a way.
constexpr int kListSteps = 6;
constexpr int kMostOfLists = 128;  // k
constexpr int kGuesses = 2;        // of a path

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
  all.ends = ends_of(ends, negated);
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

constexpr std::int64_t kMeetBytes = 16;

/// Begins to bring the block's first row. All threads come, and leave through a barrier.
__device__ __forceinline__ void begin_rows(const block_args& args, std::uint64_t* barrier, unsigned char* row_bytes) {
  join_chain();
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barrier_init_fence();
    args.stage.fetch_row(blockIdx.x, row_bytes, barrier);
  }
  __syncthreads();
}

/// A row that has come. All threads come.
template <class Stored>
__device__ __forceinline__ staged_row<Stored> staged_row_of(const block_args& args, std::int64_t index,
                                                            unsigned char* row_bytes, const block_group& group) {
  if (args.stage.has_rest(index, 1)) {
    args.stage.copy_ends(index, 1, row_bytes, static_cast<int>(threadIdx.x), group.threads());
    __syncthreads();
  }
  const int lead_bytes = args.stage.offset_bytes(index, 0);
  return {row_bytes + lead_bytes, static_cast<int>(args.request.matrix.cols),
          args.request.options.order == order::smallest, lead_bytes / static_cast<int>(sizeof(Stored))};
}

/// The exact choice of a row, by its numbers, or by keys where these do not settle it. All threads come.
template <class Share>
__device__ __forceinline__ typename Share::bits choose_by_search(block_group& group, const block_args& args,
                                                                 const staged_row<typename Share::stored>& row,
                                                                 const Share& share, row_shape& shape,
                                                                 std::uint32_t turn, int& place) {
  bool settled = false;
  auto marks = search_row<true>(group, args.search, row, share, shape, learns_from(static_cast<int>(turn)), settled);
  if (!settled) {
    marks = share.marks_of(find_border_by_keys(group, row, args.search.k, shape.at, args.search.deviations));
    group.sync();
  }
  return choose(group, share.ascending(marks.sure), share.ascending(marks.fill), args.search.k, place);
}

/// @tparam WritesLists whether what a bisection ends with may be written from a row's list.
template <class Stored, int Values, int Threads, int Blocks, bool WritesLists>
__global__ void __launch_bounds__(Threads, Blocks) stop_rows_kernel(const __grid_constant__ block_args args) {
  using share_type = row_share<Stored, Values>;
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
  begin_rows(args, barrier, row_bytes);
  const typename share_type::places units(group.rank());
  row_shape shape{.border = args.search.deviations};
  candidate_threshold threshold;
  float each = 0.0f;  // of the warp's lists
  std::uint32_t turn = 0;
  for (std::int64_t index = blockIdx.x; index < rows; index += gridDim.x, turn++) {
    barrier_wait(barrier, turn & 1);
    const staged_row<Stored> row = staged_row_of<Stored>(args, index, row_bytes, group);
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
      chosen = choose_by_search(group, args, row, share, shape, turn, place);
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
    write_row<mark_limit::mark, 0>(group, args.output, row, share, chosen, place, index, 0, staged,
                                   [] { return false; });
    __syncthreads();
    if (threadIdx.x == 0) fetch_next();
  }
}

/// What a block has learned of its rows' borders: where they were, and which of the two tells more of the next row's.
struct border_guess {
  float part;          // of the way from a row's least to its most
  float at = 0.0f;     // the number
  float trust = 0.0f;  // above 0: the number was nearer lately
  float each = 0.0f;   // of that way, from one value to the next

  __device__ __forceinline__ float by_part(const row_ends& ends) const {
    return __fmaf_rn(part, ends.most - ends.least, ends.least);
  }
  __device__ __forceinline__ float of(const row_ends& ends) const { return trust > 0.0f ? at : by_part(ends); }
  /// Of a border that lies in [low, high), which so many more than k values reach, and so many fewer.
  __device__ __forceinline__ void learn(const row_ends& ends, float low, float high, int over, int under) {
    constexpr float kLearning = 0.25f;
    const float of_width = near_reciprocal(ends.most - ends.least);
    const float of_value = (high - low) * near_reciprocal(static_cast<float>(over - under));
    const float found = __fmaf_rn(static_cast<float>(over) + 0.5f, of_value, low);
    const float nearer = (fabsf(by_part(ends) - found) - fabsf(at - found)) * of_width;
    const float known = fminf(1.0f, fmaxf(-1.0f, nearer));
    trust = __fmaf_rn(kLearning, known - trust, trust);
    at = trust > 0.0f ? __fmaf_rn(kLearning, found - at, at) : found;
    const float moved = (found - ends.least) * of_width - part;
    if (fabsf(moved) < INFINITY) part = __fmaf_rn(kLearning, moved, part);
    const float denser = of_value * of_width - each;
    if (fabsf(denser) < INFINITY) each = __fmaf_rn(kLearning, denser, each);
  }
};

/// Where few steps of a bisection lead to a border `at`, and whether an end of the row became a midpoint.
struct few_steps {
  float low;
  float high;
  bool low_moved = false;
  bool high_moved = false;

  __device__ __forceinline__ few_steps(const early_stop& stop, const row_ends& ends, float at)
      : low(ends.least), high(ends.most) {
#pragma unroll 1
    for (int step = 0; step < stop.max_iter; step++) {
      const float middle = midpoint(low, high);
      const bool up = at >= middle;
      low = up ? middle : low;
      high = up ? high : middle;
      low_moved = low_moved || up;
      high_moved = high_moved || !up;
    }
  }
};

/// The first of the bisection's midpoints that what is known of the border does not decide; `low` if there is none.
/// @param low the border is no less. @param beyond and less than this
__device__ __forceinline__ float first_open_midpoint(const early_stop& stop, const row_ends& ends, float low,
                                                     float beyond) {
  float from = ends.least;
  float to = ends.most;
  for (int step = 0; step < stop.max_iter; step++) {
    const float middle = midpoint(from, to);
    if (middle > low && middle < beyond) return middle;
    (middle <= low ? from : to) = middle;
  }
  return low;
}

/// What reaches the lower end of a bracket, how many of it the threads before this one have, and how many reach each
/// end.
template <class Bits>
struct reached_ends {
  Bits marks;
  int before;
  int low;
  int high;

  /// All threads come. @pre all columns hold finite numbers.
  template <class Share>
  __device__ __forceinline__ reached_ends(block_group& group, const Share& share, const few_steps& steps) {
    constexpr int kHalf = 16;
    constexpr std::uint32_t kLower = (1u << kHalf) - 1;
    static_assert(core::kBlockRowsMaxCols <= kLower);
    Bits high_marks = 0;
    share.reaching_both(steps.low, steps.high, marks, high_marks);
    const auto both =
        static_cast<std::uint32_t>(count_marks(marks)) | static_cast<std::uint32_t>(count_marks(high_marks)) << kHalf;
    int total = 0;
    before = static_cast<int>(static_cast<std::uint32_t>(group.before(static_cast<int>(both), total)) & kLower);
    low = static_cast<int>(static_cast<std::uint32_t>(total) & kLower);
    high = static_cast<int>(static_cast<std::uint32_t>(total) >> kHalf);
  }
};

/// Few steps: a guess of the border gives the path, which is the right one if k values reach its lower end and fewer
/// its upper end, whatever was passed on the way.
template <class Stored, int Values, int Threads, int Blocks>
__global__ void __launch_bounds__(Threads, Blocks) few_steps_kernel(const __grid_constant__ block_args args) {
  using share_type = row_share<Stored, Values>;
  const core::top_k_request& request = args.request;
  const early_stop& stop = args.search.stop;
  const int k = args.search.k;
  auto* barrier = reinterpret_cast<std::uint64_t*>(dynamic_shared());
  block_group group(*reinterpret_cast<block_group::memory*>(dynamic_shared() + kMeetBytes));
  unsigned char* row_bytes = dynamic_shared() + kStartBytes;
  unsigned char* staged = row_bytes + args.stage_bytes;
  const std::int64_t rows = request.matrix.rows;
  begin_rows(args, barrier, row_bytes);
  const typename share_type::places units(group.rank());
  row_shape shape{.border = args.search.deviations};
  border_guess guess{.part = __fmaf_rn(args.search.deviations, args.search.each_span, 0.5f)};
  std::uint32_t turn = 0;
#pragma unroll 1
  for (std::int64_t index = blockIdx.x; index < rows; index += gridDim.x, turn++) {
    barrier_wait(barrier, turn & 1);
    const staged_row<Stored> row = staged_row_of<Stored>(args, index, row_bytes, group);
    const share_type share(row, group.rank(), units);
    const row_ends ends = ends_of(share.ends(group), row.negated);
    typename share_type::bits chosen = 0;
    int place = 0;
    if (!ends.odd) {
      float at = guess.of(ends);
      float least_border = ends.least;  // the border is no less
      float beyond_border = INFINITY;   // and less than this
#pragma unroll 1
      for (int tries = 0;; tries++) {
        const few_steps steps(stop, ends, at);
        const reached_ends<typename share_type::bits> reached(group, share, steps);
        const bool reaches_low = !steps.low_moved || reached.low >= k;
        const bool reaches_high = steps.high_moved && reached.high >= k;
        if (reaches_low && !reaches_high) {
          chosen = share.ascending(reached.marks);
          place = reached.before;
          guess.learn(ends, steps.low, steps.high, reached.low - k, reached.high - k);
          break;
        }
        const float from = reaches_low ? steps.high : steps.low;
        const float beyond = static_cast<float>((reaches_low ? reached.high : reached.low) - k);
        (reaches_low ? least_border : beyond_border) = from;
        at = __fmaf_rn(beyond + (reaches_low ? 0.5f : -0.5f), guess.each * (ends.most - ends.least), from);
        // A count tells by how many values a guess was off; then the bisection's own midpoints are counted.
        if (tries >= kGuesses || !(at >= least_border && at < beyond_border))
          at = first_open_midpoint(stop, ends, least_border, beyond_border);
      }
    } else {
      chosen = choose_by_search(group, args, row, share, shape, turn, place);
    }
    write_row<mark_limit::mark, 0>(group, args.output, row, share, chosen, place, index, 0, staged,
                                   [] { return false; });
    __syncthreads();
    if (threadIdx.x == 0 && index + gridDim.x < rows) args.stage.fetch_row(index + gridDim.x, row_bytes, barrier);
  }
}

template <class Stored, int Values, int Threads, int Blocks>
void launch_shape_of(cudaStream_t stream, block_args& args, int multiprocessors) {
  const early_stop& stop = args.search.stop;
  if (stop.by_count && stop.max_iter < kListSteps)
    return launch_block_shape<Values, 0, false>(few_steps_kernel<Stored, Values, Threads, Blocks>, stream, args,
                                                multiprocessors);
  const bool writes_lists = stop.by_eps || args.search.k <= kMostOfLists;
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
