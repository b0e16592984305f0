// The parts of a certified scan: the query's codes, the filter of 16 rows, the list of survivors, scores of rows.
#pragma once

#include "core/certified.hpp"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/matrix_unit.cuh"
#include "cuda/device/plane_codes.cuh"
#include "cuda/flat/certified_scan.hpp"
#include "cuda/flat/scan_score.cuh"

namespace shortlist::cuda {

inline constexpr int kMaxPlaneStages = 4;  ///< of a warp
inline constexpr int kNearSurvivors = 1024;
/// A query's code is 128 times a high part plus a low part, each of which a signed byte holds: so wide that what the
/// codes leave of the query is no more than roundings.
inline constexpr int kWideQueryCode = 8191;
inline constexpr int kColumnWords = 16;  ///< of the query, for one product: two parts of 32 bytes

/// Rows are read, instead of filtered, from where of the last survivors, at least kPressure, more than a quarter of the
/// rows seen are there still, beyond those that a good filter leaves of a beginning.
inline constexpr std::uint32_t kGiveUpShare = 4;
inline constexpr std::uint32_t kLeftPerResult = 16;
inline constexpr std::uint32_t kDrawsToPublish = 4;  // times the first draws: until then blocks may not have published
/// Or at once, if of a block's first rows, at least kLeastSample, all but an eighth reach the first threshold.
inline constexpr std::uint32_t kSpareShare = 8;
inline constexpr std::uint32_t kLeastSample = 128;

/// Rows whose scores raise the threshold at a time, at most.
inline constexpr int kRowsOfRound = 16;
/// Draws after which the threshold is raised by scores grow by this factor, so many times.
inline constexpr std::uint32_t kScoreGrowth = 3;
inline constexpr int kScoreRounds = 4;

/// The first of these numbers of draws, from the last.
__host__ __device__ constexpr std::uint32_t first_scores(std::uint32_t score_draws) {
  for (int i = 1; i < kScoreRounds; i++) score_draws /= kScoreGrowth;
  return score_draws < 1 ? 1 : score_draws;
}

struct certified_args : scan_search {
  bool may_read_rows;  // not across the bus: rows that survive cost less than all
  const unsigned char* plane;
  const unsigned char* rows;
  const float* inverse_norms;
  certified_counters* counters;
  std::int64_t row_stride_bytes;
  std::int64_t block_bytes;  // of the plane
  std::int64_t codes_at;     // where in a block the codes begin that are read
  std::int32_t terms_bytes;  // of the numbers behind them
  bool is_coarse;            // they are the coarse copy's
  std::uint32_t groups;      // of group_blocks blocks
  std::int32_t group_blocks;
  std::int32_t steps;  // of a block: groups of 32 codes, or coarse pairs of them
  std::int32_t step_bytes;
  std::int32_t step_words;   // of the query's columns
  std::int32_t pieces;       // stages that a group takes; more than one only where it is one block
  std::int32_t piece_steps;  // of a piece but the last
  std::int32_t unit_bytes;   // of a stage, for each block
  std::int32_t stage_bytes;
  std::int32_t stages;  // of a warp
  std::int32_t ring_bytes;
  std::int32_t max_query_code;
  std::uint32_t near_survivors;  // in shared memory; the rest spills
  std::uint32_t pressure;        // survivors after which the threshold is raised out of turn
  std::uint32_t refresh_draws;   // after so many it is raised anyway
  std::uint32_t last_refresh;    // draws after which nothing is raised any more
  std::uint32_t last_pressed;    // the same where many rows survived
  std::uint32_t score_draws;     // by scores after so many, and after a third, a ninth, .. of them; 0: never
  float inline_query[kScanParameterDim];
};

/// Draws of a block that its warps make before they scan: one for each group that their stages begin with.
__host__ __device__ constexpr int primed_draws(int warps, int stages, int pieces) {
  return warps * ((stages + pieces - 1) / pieces);
}

/// What a block keeps in shared memory, behind the ring of stages and before the query.
struct alignas(16) certified_shared : scan_selection {
  std::uint64_t survivors[kNearSurvivors];  // key of the interval's upper end, and position
  std::uint64_t barriers[kScanWarps * kMaxPlaneStages];
  std::int32_t stage_group[kScanWarps * kMaxPlaneStages];  // which group of rows a stage holds; -1: none left
  double squares[kScanWarps];
  double residual_squares[kScanWarps];
  float largest[kScanWarps];
  std::uint64_t slot_next[kScanWarps * kSlotsPerWarp];  // of every slot, the best upper end since scores were computed
  std::uint64_t best_next[kRowsOfRound];                // the best of sets of them
  core::query_terms terms;
  std::uint32_t survivor_count;
  std::uint32_t judged_survivors;  // how many there were when the filter was judged last
  std::uint32_t judged_draws;
  std::uint32_t reads_rows;  // the filter has been given up
  std::uint32_t rows_read;   // since
  std::uint32_t sample_judged;
  std::uint32_t next_scores;  // draws after which the threshold is raised by scores again
  std::int32_t to_score;      // of best_next, the first so many are still to be taken
  std::uint32_t scored;       // of this round
};

/// Whether the threshold says something of the filter: that of coarse codes does after two rounds of scores.
__device__ __forceinline__ bool may_judge(const certified_args& args, const certified_shared& shared) {
  return args.score_draws == 0 || *reinterpret_cast<const volatile std::uint32_t*>(&shared.next_scores) >
                                      kScoreGrowth * kScoreGrowth * first_scores(args.score_draws);
}

__device__ __forceinline__ bool reads_rows(const certified_shared& shared) {
  return *reinterpret_cast<const volatile std::uint32_t*>(&shared.reads_rows) != 0;
}

/// The group of a block's draw, or -1: draw d is group d * blocks + block, so that positions rise together.
__device__ __forceinline__ std::int64_t group_of(const certified_args& args, std::uint32_t draw) {
  const std::int64_t group = static_cast<std::int64_t>(draw) * gridDim.x + blockIdx.x;
  return group < args.groups ? group : -1;
}

/// A block's survivors: first in shared memory, then at the end of its spill, downwards; the list of scored rows takes
/// the beginning. The last are scored first, so that the two never meet.
struct survivor_list {
  std::uint64_t* near;
  std::uint64_t* far_end;
  std::uint32_t near_capacity;
  __device__ volatile std::uint64_t& operator[](std::uint32_t i) const {
    return i < near_capacity ? near[i] : *(far_end - 1 - (i - near_capacity));
  }
};

__device__ __forceinline__ survivor_list survivors_of(const certified_args& args, certified_shared& shared) {
  return {shared.survivors, args.spill + (static_cast<std::int64_t>(blockIdx.x) + 1) * args.spill_capacity,
          args.near_survivors};
}

// ---- the query

__device__ __forceinline__ double sum_of_block(double value, double* sums) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  double sum = 0.0;
#pragma unroll 1
  for (int w = 0; w < kScanWarps; w++) sum += sums[w];
  return sum;
}

/// The query's codes as columns of products, high parts and low parts by turns, and its terms. A query that cannot be
/// certified gets terms that let every row survive.
__device__ __forceinline__ void encode_query(const certified_args& args, certified_shared& shared, const float* query,
                                             std::uint32_t* columns) {
  const int warp = threadIdx.x / kWarp;
  float largest = 0.0f;
  double squares = 0.0;
#pragma unroll 1
  for (int i = threadIdx.x; i < args.dim; i += kScanThreads) {
    largest = fmaxf(largest, fabsf(query[i]));
    squares += static_cast<double>(query[i]) * query[i];
  }
  largest = __uint_as_float(__reduce_max_sync(kFullWarp, __float_as_uint(largest)));
  if (threadIdx.x % kWarp == 0) shared.largest[warp] = largest;
  squares = sum_of_block(squares, shared.squares);
#pragma unroll 1
  for (int w = 0; w < kScanWarps; w++) largest = fmaxf(largest, shared.largest[w]);

  const bool is_certifiable = core::is_certifiable(squares, shared.query_inverse_norm);
  const float scale = is_certifiable ? core::code_scale(largest, args.max_query_code) : 0.0f;
  const float inverse = core::inverse_scale(scale);
  double residual_squares = 0.0;
#pragma unroll 1
  for (int i = threadIdx.x; i < args.steps * args.step_words / 2; i += kScanThreads) {  // four elements
    std::uint32_t high = 0;
    std::uint32_t low = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      if (4 * i + c >= args.dim) break;
      const float element = query[4 * i + c];
      const float code = scale == 0.0f ? 0.0f : core::code_of(element, inverse, args.max_query_code);
      const int whole = static_cast<int>(code);
      const int upper = (whole + 64) >> 7;
      high |= (static_cast<std::uint32_t>(upper) & 0xFFu) << (8 * c);
      low |= (static_cast<std::uint32_t>(whole - 128 * upper) & 0xFFu) << (8 * c);
      const double residual = element - static_cast<double>(scale) * code;
      residual_squares += residual * residual;
    }
    std::uint32_t* to = columns + i / 8 * kColumnWords + i % 4 * 2 + i % 8 / 4;  // word t of a half, for lane t
    to[0] = high;
    to[kColumnWords / 2] = low;
  }
  residual_squares = sum_of_block(residual_squares, shared.residual_squares);
  if (threadIdx.x == 0) {
    if (is_certifiable) {
      shared.terms =
          core::terms_of_query(args.by, args.dim, scale, squares, residual_squares, shared.query_inverse_norm);
    } else {
      shared.terms = {.residual_weight = core::float_from_bits(0x7F800000u), .inverse_norm = shared.query_inverse_norm};
      shared.reads_rows = 1;
    }
  }
  __syncthreads();
}

// ---- the filter

/// Adds the products of 16 rows' codes with the query: to sums 0 and 1 those of row lane / 4 with high and low parts,
/// to 2 and 3 those of row lane / 4 + 8. The columns repeat, so that all lanes of a row have them.
__device__ __forceinline__ void multiply_groups(const unsigned char* codes, const std::uint32_t* columns, int count,
                                                int lane, std::int32_t (&sums)[4]) {
  const auto* rows = reinterpret_cast<const uint4*>(codes) + lane;
  const auto* query = reinterpret_cast<const uint2*>(columns) + lane / 4 % 2 * 4 + lane % 4;
#pragma unroll 4
  for (int i = 0; i < count; i++) multiply_codes(rows[i * kWarp], query[i * (kColumnWords / 2)], sums);
}

/// The same of pairs of a coarse copy.
__device__ __forceinline__ void multiply_pairs(const unsigned char* codes, const std::uint32_t* columns, int count,
                                               int lane, std::int32_t (&sums)[4]) {
  using core::fragment_layout;
  const auto* query = reinterpret_cast<const uint2*>(columns) + lane / 4 % 2 * 4 + lane % 4;
#pragma unroll 4  // by three, nvcc 13.0 takes no care of the rest
  for (int i = 0; i < count; i++) {
    const unsigned char* pair = codes + i * fragment_layout::kPairBytes;
    const uint4 words = reinterpret_cast<const uint4*>(pair)[lane];
    const uint2 thirds = reinterpret_cast<const uint2*>(pair + fragment_layout::kThirdWordsAt)[lane];
    multiply_codes(coarse_codes_of_first(words), query[i * kColumnWords], sums);
    multiply_codes(coarse_codes_of_second(words, thirds), query[i * kColumnWords + kColumnWords / 2], sums);
  }
}

/// The keys of an interval's ends; none, and the best, where nothing is known.
struct interval_keys {
  std::uint32_t low;
  std::uint32_t high;
};

__device__ __forceinline__ interval_keys keys_of(const core::merit_interval& interval, metric by) {
  const bool is_bounded = interval.low > core::worst_score(metric::inner_product);  // false for NaN
  return {is_bounded ? core::score_key(core::merit_of(interval.low, by), by) : core::kNanKey,
          interval.high == interval.high ? core::score_key(core::merit_of(interval.high, by), by) : ~0u};
}

/// Which of 16 rows a lane finishes: lanes 4 g and 4 g + 1 have rows g and g + 8.
__device__ __forceinline__ int filtered_row(int lane) { return lane / 4 + lane % 2 * 8; }

/// Which of a warp's row slots a row's keys go to. It depends on the position alone, so that the interval's end and the
/// score of a row are never in two published sets. Rows some whole blocks apart take turns, or the best rows of data
/// with a period would all be in the same sets.
__device__ __forceinline__ int slot_of(std::int64_t position) {
  return static_cast<int>((position + position / core::kPlaneRows) % kSlotsPerWarp);
}

/// Enters a key among the best of its row's slot. Of two lanes that enter at once either may win.
__device__ __forceinline__ void enter_best(std::uint64_t* slots, std::int64_t position, std::uint64_t key) {
  volatile std::uint64_t* best = slots + threadIdx.x / kWarp * kSlotsPerWarp + slot_of(position);
  if (key > *best) *best = key;
}

/// Finishes 16 rows, the first of which is at position `first`: rows whose interval reaches the threshold survive.
/// @returns how many survivors the block has, if it has any of these, else 0.
__device__ __forceinline__ std::uint32_t filter_rows(const certified_args& args, certified_shared& shared,
                                                     const core::query_terms& query, const float* terms,
                                                     std::int64_t first, const std::int32_t (&sums)[4], int lane) {
  const int mine = filtered_row(lane);
  const std::int64_t row = first + mine;
  const std::uint32_t product = lane % 2 == 0 ? 128u * sums[0] + sums[1] : 128u * sums[2] + sums[3];
  core::plane_row known{
      .scale = terms[mine], .residual = terms[core::kPlaneRows + mine], .norm = terms[2 * core::kPlaneRows + mine]};
  float inverse_norm = 0.0f;
  if (args.by == metric::l2) known.square = terms[3 * core::kPlaneRows + mine];
  if (args.by == metric::cosine) inverse_norm = terms[3 * core::kPlaneRows + mine];
  const interval_keys keys =
      keys_of(core::interval_of(args.by, query, known, inverse_norm, static_cast<std::int32_t>(product)), args.by);
  const auto position = static_cast<std::uint32_t>(row);
  const std::uint64_t high = core::row_key(keys.high, position);
  const bool survives = lane % 4 < 2 && row < args.count && high > threshold_of(shared);
  const unsigned surviving = __ballot_sync(kFullWarp, survives);
  if (surviving == 0) return 0;
  std::uint32_t at = 0;
  if (lane == 0) at = atomicAdd(&shared.survivor_count, static_cast<std::uint32_t>(__popc(surviving)));
  at = __shfl_sync(kFullWarp, at, 0);
  if (survives) {
    survivors_of(args, shared)[at + __popc(surviving & ((1u << lane) - 1))] = high;
    if (keys.low != core::kNanKey) {
      enter_best(shared.slot_best, row, core::row_key(keys.low, position));
      if (args.score_draws != 0) enter_best(shared.slot_next, row, high);
    }
  }
  return at + __popc(surviving);
}

/// Looks at the latest survivors, once they are many: where too many still reach the threshold, the filter is given up.
/// Best when the warp has just refreshed the threshold. Where a refresh takes long, as it does when all rows tie, half
/// of the scan is the limit, and most must have survived: a first threshold may take a quarter of a short scan. One
/// warp.
__device__ __forceinline__ void judge_filter(const certified_args& args, certified_shared& shared, int lane,
                                             std::uint32_t primed, bool refreshed) {
  std::uint32_t draws = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  if (lane == 0 && may_judge(args, shared)) {
    draws = *reinterpret_cast<volatile std::uint32_t*>(&shared.next_draw);
    from = *reinterpret_cast<volatile std::uint32_t*>(&shared.judged_survivors);
    to = *reinterpret_cast<volatile std::uint32_t*>(&shared.survivor_count);
    const bool is_early = draws < kDrawsToPublish * primed || (!refreshed && draws < args.groups / gridDim.x / 2);
    if (is_early || to - from < args.pressure || atomicCAS(&shared.judged_survivors, from, to) != from) to = from;
  }
  from = __shfl_sync(kFullWarp, from, 0);
  to = __shfl_sync(kFullWarp, to, 0);
  if (from == to) return;
  const survivor_list survivors = survivors_of(args, shared);
  const std::uint64_t cut = threshold_of(shared);
  std::uint32_t left = 0;
#pragma unroll 1
  for (std::uint32_t i = from + lane; i < to; i += kWarp) left += survivors[i] >= cut;
  left = __reduce_add_sync(kFullWarp, left);
  if (lane != 0) return;
  const std::uint32_t rows = (draws - atomicExch(&shared.judged_draws, draws)) * args.group_blocks * core::kPlaneRows;
  const std::uint32_t most =
      refreshed ? rows / kGiveUpShare + kLeftPerResult * args.k / gridDim.x : rows - rows / kGiveUpShare;
  if (left > most && args.may_read_rows) atomicExch(&shared.reads_rows, 1u);
}

/// Looks at the block's first rows, once there is a threshold that was made from them: those of a good filter reach it
/// in few per cent of all cases, whatever is still to come. One warp, once.
__device__ __forceinline__ void judge_sample(const certified_args& args, certified_shared& shared, int lane,
                                             std::uint32_t primed) {
  std::uint32_t sample = 0;
  if (lane == 0 && threshold_of(shared) != 0 && may_judge(args, shared) &&
      *reinterpret_cast<volatile std::uint32_t*>(&shared.next_draw) >= kDrawsToPublish * primed &&
      *reinterpret_cast<volatile std::uint32_t*>(&shared.sample_judged) == 0 &&
      atomicExch(&shared.sample_judged, 1u) == 0)
    sample = *reinterpret_cast<volatile std::uint32_t*>(&shared.survivor_count);
  sample = min(min(__shfl_sync(kFullWarp, sample, 0), args.near_survivors),
               static_cast<std::uint32_t>(args.warps * args.group_blocks * core::kPlaneRows));
  if (sample < kLeastSample) return;
  const std::uint64_t cut = threshold_of(shared);
  std::uint32_t left = 0;
#pragma unroll 4
  for (std::uint32_t i = lane; i < sample; i += kWarp)
    left += *reinterpret_cast<volatile std::uint64_t*>(&shared.survivors[i]) >= cut;
  left = __reduce_add_sync(kFullWarp, left);
  if (lane == 0 && left > sample - sample / kSpareShare && args.may_read_rows) atomicExch(&shared.reads_rows, 1u);
}

// ---- scores

/// Scores up to kRowsAtOnce rows: those of the keys in `list`, or the rows from `first` on if it is null. One warp.
/// @returns the key of a row's score in the lane that leads the row; 0 in others.
template <element_type E, bool L2>
__device__ __noinline__ std::uint64_t scored_key(const certified_args& args, const certified_shared& shared,
                                                 const float* query, const std::uint64_t* list, std::int64_t first,
                                                 int count) {
  const int lane = threadIdx.x % kWarp;
  const auto position_of = [&](int i) { return list ? std::int64_t{core::position_of(list[i])} : first + i; };
  const unsigned char* rows[kRowsPerLane<E>];
#pragma unroll
  for (int r = 0; r < kRowsPerLane<E>; r++) {
    const int i = r * kRowsPerPass<E> + lane / kLanesPerRow<E>;
    rows[r] = i < count ? args.rows + position_of(i) * args.row_stride_bytes : nullptr;
  }
  const int mine = scored_row<E>(lane);
  const std::int64_t position = mine < count ? position_of(mine) : 0;
  const float inverse_norm = args.inverse_norms ? args.inverse_norms[position] : 0.0f;
  partial_sums<E> sums = {};
  sums_from_global<E, L2>(rows, args.row_stride_bytes, reinterpret_cast<const float4*>(query), lane, sums);
  const float score = score_of(finish_sums<kLanesPerRow<E>, kRowsPerLane<E>>(sums, lane), args.by,
                               shared.query_inverse_norm, inverse_norm);
  if (!leads_scored_row<E>(lane) || mine >= count) return 0;
  return core::row_key(core::score_key(score, args.by), static_cast<std::uint32_t>(position));
}

/// The same; those that reach the threshold go to the block's list. @returns how many keys that has, if it has any of
/// these, else 0.
template <element_type E, bool L2>
__device__ __forceinline__ std::uint32_t score_rows(const certified_args& args, certified_shared& shared,
                                                    const float* query, const std::uint64_t* list, std::int64_t first,
                                                    int count) {
  const std::uint64_t key = scored_key<E, L2>(args, shared, query, list, first, count);
  if (key == 0 || key < threshold_of(shared)) return 0;
  const std::uint32_t at = atomicAdd(&shared.list_count, 1u);
  list_of(args, shared)[at] = key;
  enter_best(shared.slot_best, core::position_of(key), key);
  return at + 1;
}

/// Takes rows of a round of scores, if some are left, and enters their scores. One warp; any may help.
template <element_type E, bool L2>
__device__ __forceinline__ bool help_to_score(const certified_args& args, certified_shared& shared, const float* query,
                                              int lane) {
  constexpr int kTaken = kRowsAtOnce<E>;
  int left = 0;
  if (lane == 0) left = atomicSub(&shared.to_score, kTaken);
  left = __shfl_sync(kFullWarp, left, 0);
  if (left <= 0) return false;
  const int first = max(left - kTaken, 0);
  const std::uint64_t key = scored_key<E, L2>(args, shared, query, shared.best_next + first, 0, left - first);
  if (key != 0) enter_best(shared.slot_best, core::position_of(key), key);
  __syncwarp();
  if (lane == 0) {
    __threadfence_block();
    atomicAdd(&shared.scored, static_cast<std::uint32_t>(left - first));
  }
  return true;
}

/// Scores the rows with the best upper ends of the block's sets, for the threshold alone: a score is a much better
/// lower end than that of coarse codes. They stay survivors. One warp, which holds the refresh; others help, since a
/// round that takes long gives its threshold late.
template <element_type E, bool L2>
__device__ __forceinline__ void score_best(const certified_args& args, certified_shared& shared, const float* query,
                                           int lane, std::uint32_t since) {
  volatile std::uint64_t* next = shared.slot_next;
  std::uint64_t key = 0;
#pragma unroll 4
  for (int i = lane; i < kScanWarps * kSlotsPerWarp; i += kWarp) {
    key = max(key, next[i]);
    next[i] = 0;
  }
  key = best_of_sets(args, key);
  const int before = args.sets > kRowsOfRound ? rank_in_sets(args, key, lane) : 0;
  const bool counts = lane < args.sets && before < kRowsOfRound && key != 0 && key >= threshold_of(shared);
  const unsigned counting = __ballot_sync(kFullWarp, counts);
  const std::uint32_t count = __popc(counting);
  if (counts) shared.best_next[__popc(counting & ((1u << lane) - 1))] = key;
  __syncwarp();
  if (lane == 0) {
    shared.scored = 0;
    __threadfence_block();
    atomicExch(&shared.to_score, static_cast<std::int32_t>(count));
  }
  __syncwarp();
  while (help_to_score<E, L2>(args, shared, query, lane)) {
  }
  while (*reinterpret_cast<volatile std::uint32_t*>(&shared.scored) < count) __nanosleep(100);
  __syncwarp();
  if (lane == 0 && since > 0) {
    const std::uint32_t later = since * kScoreGrowth;
    const bool is_last = since >= args.score_draws;
    *const_cast<volatile std::uint32_t*>(&shared.next_scores) = is_last ? ~0u : min(later, args.score_draws);
  }
  __syncwarp();
}

}  // namespace shortlist::cuda
