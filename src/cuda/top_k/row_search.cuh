// The search for the k best of a row that lies in shared memory, by a group of threads; each marks those of its
// columns.
//
// Steps: a guess of the border -> 16-bit numbers in registers, counted until k reach a threshold (row_numbers.cuh) ->
// marks. The guess is the border of the rows before, or comes from mean and deviation. Rows that this does not settle
// (NaN or infinities among the best, values that fp16 cannot tell apart) are searched by their 32-bit keys, counted in
// shared memory. Either way the result is two sets, told apart by bits: those that are sure, and those that fill up
// what is missing, in the order of columns.
#pragma once

#include <cstdint>

#include "core/normal.hpp"
#include "cuda/top_k/row_share.cuh"

namespace shortlist::cuda {

// What few rows need is not inlined, and is given copies: what the search of other rows holds stays in registers.

template <class Share>
__device__ __noinline__ row_marks<typename Share::bits> marks_by_key(staged_row<typename Share::stored> row, int rank,
                                                                     key_border border) {
  const typename Share::places units(rank);
  return Share(row, rank, units).marks_of(border);
}
/// Mean and variance, as row_share has them. The caller synchronises the group afterwards.
template <class Share, class Group>
__device__ __noinline__ float2 moments_of(Group group, staged_row<typename Share::stored> row, int rank) {
  const typename Share::places units(rank);
  float2 moments;
  Share(row, rank, units).moments(group, moments.x, moments.y);
  return moments;
}

/// The columns that a thread has chosen of a row.
template <class Bits>
struct row_choice {
  Bits chosen;  // in the order of columns
  int place;    // of the first, among the row's
};

/// The first `quota` of the marked columns; marks are ascending.
__device__ __forceinline__ std::uint32_t keep_first(std::uint32_t marks, int quota) {
  if (quota <= 0) return 0;
  if (count_marks(marks) <= quota) return marks;
  int kept = 0;  // so many low bits hold no more than `quota` marks
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    if (count_marks(marks & ((1u << (kept + step)) - 1)) <= quota) kept += step;
  return marks & ((1u << kept) - 1);
}
/// The same of more than a word: one word has the last that is kept.
template <class Bits>
__device__ __forceinline__ Bits keep_first(Bits marks, int quota) {
  if (quota <= 0) return 0;
  if (count_marks(marks) <= quota) return marks;
  constexpr int kWords = sizeof(Bits) / 4;
  int at = 0;
  std::uint32_t last = 0;
  int of_last = 0;
  int left = quota;
#pragma unroll
  for (int w = 0; w < kWords; w++) {
    if (left > 0) {
      at = w;
      last = word_of(marks, w);
      of_last = left;
    }
    left -= __popc(word_of(marks, w));
  }
  last = keep_first(last, of_last);
  std::uint32_t words[kWords];
#pragma unroll
  for (int w = 0; w < kWords; w++) words[w] = w < at ? word_of(marks, w) : w == at ? last : 0;
  return joined_words<Bits>(words);
}

/// Of the sets that threads marked, in ascending columns: the first k that are sure, then the first that fill up.
/// @param place where the thread's first one goes among the row's. All that run in step call it.
template <class Group, class Bits>
__device__ __forceinline__ Bits choose(Group& group, Bits sure, Bits fill, int k, int& place) {
  int all_sure = 0;
  const int sure_before = group.before(count_marks(sure), all_sure);
  int all_fill = 0;
  int fill_before = 0;
  if (!Group::kHasRoom || !group.all(fill == 0)) fill_before = group.before(count_marks(fill), all_fill);
  const int missing = max(k - all_sure, 0);
  place = min(sure_before, k) + min(fill_before, missing);
  return keep_first(sure, k - sure_before) | keep_first(fill, missing - fill_before);
}

constexpr int kNearCounts = 2;  // a value that was near, and the next: they end most ties
constexpr int kFewBetween = 4;  // so near the border is to a bracket's end: then the next value below that is counted
constexpr int kKeyGuesses = 8;  // passes that interpolate between values; later ones halve brackets of keys

/// The border of any row, by counting its keys; one row at a time, all threads of the group together. Not inlined, and
/// given copies: what the search before it holds stays in registers. The caller synchronises the group afterwards.
/// @param k in [1, row.count]. @param near the border may lie near, or equal it. @param deviations where that of normal
/// data lies, from the mean.
template <class Group, class Stored>
__device__ __noinline__ key_border find_border_by_keys(Group group, staged_row<Stored> row, int k, float near,
                                                       float deviations) {
  std::uint32_t least = 0;  // of the complements
  std::uint32_t most = 0;
  float sum = 0.0f;
  float squares = 0.0f;
  std::uint32_t numbers = 0;
  row.visit(group, [&](float value) {
    const std::uint32_t key = core::score_key(value, metric::inner_product);
    least = max(least, ~key);
    most = max(most, key);
    if (isfinite(value)) {
      sum += value;
      squares += value * value;
      numbers++;
    }
  });
  least = ~group.largest(least);
  most = group.largest(most);
  numbers = group.sum(numbers);
  const float mean = group.sum(sum) / static_cast<float>(numbers);
  const float variance = group.sum(squares) / static_cast<float>(numbers) - mean * mean;
  const float deviation = sqrtf(fmaxf(variance, 0.0f));
  const bool has_shape = isfinite(mean) && isfinite(deviation) && deviation > 0.0f;

  std::uint32_t low = least;      // at_low >= k values reach it
  std::uint32_t high = most + 1;  // at_high < k do
  int at_low = row.count;
  int at_high = 0;
  float at = mean + deviations * deviation;
  float step = 0.25f * deviation;
  key_border border{high, low};
  bool exact = false;
#pragma unroll 1
  for (int pass = 0; high - low > 1; pass++) {
    const bool walks = pass >= kNearCounts && min(at_low, k) - at_high <= kFewBetween;
    const bool guesses = pass < kNearCounts || (has_shape && pass < kKeyGuesses);
    if (!guesses || walks) {   // the ends become values that are there
      std::uint32_t from = 0;  // of the complements
      std::uint32_t below = 0;
      row.visit(group, [&](float value) {
        const std::uint32_t key = core::score_key(value, metric::inner_product);
        if (key >= low) from = max(from, ~key);
        if (key < high) below = max(below, key);
      });
      low = ~group.largest(from);
      high = group.largest(below) + 1;
      if (high - low <= 1) break;
    }
    std::uint32_t from = walks ? high - 1 : low + (high - low) / 2;
    if (pass < kNearCounts) {
      const std::uint32_t near_key = core::score_key(near, metric::inner_product);
      from = pass == 0 || low != near_key ? near_key : near_key + 1;
    } else if (guesses && !walks) {
      if (low > kMinusInfinityKey && high < kInfinityKey) {
        const float low_value = core::from_ascending_key(low);
        const float share = (static_cast<float>(at_low - k) + 0.5f) / static_cast<float>(at_low - at_high);
        at = low_value + (core::from_ascending_key(high) - low_value) * fminf(0.9f, fmaxf(0.1f, share));
      }
      if (isfinite(at)) from = core::ascending_key(at);
    }
    from = min(max(from, low + 1), high - 1);
    std::uint32_t mine = 0;
    row.visit(group, [&](float value) { mine += core::score_key(value, metric::inner_product) >= from ? 1u : 0u; });
    const int reached = static_cast<int>(group.sum(mine));
    if (reached == k) {
      border = {from, from};
      exact = true;
      break;
    }
    if (reached > k) {
      low = from;
      at_low = reached;
      at += step;
    } else {
      high = from;
      at_high = reached;
      at -= step;
    }
    step *= 2.0f;
  }
  return exact ? border : key_border{high, low};
}

constexpr float kWindow = 4.0f;              // levels of fp32 reach so many times as far as borders seldom move
constexpr std::int64_t kManyRows = 1 << 18;  // fewer of them end sooner in smaller steps, and tell each other less

/// What stays the same for all rows of a request.
struct search_plan {
  int k;
  float deviations;    // where the border of normal data lies, in standard deviations above the mean
  float density;       // of such data there: values a standard deviation
  float reach;         // how many values a guess of the border is off, at most
  float spread;        // the same, seldom more
  float window;        // of levels of fp32: so many values wide
  float window_scale;  // 1 / window
  early_stop stop;
  int narrowed_steps;  // so many of an early stop pay for a search of 16-bit numbers first
  float each_span;     // a deviation, of the distance between a row's extremes
  float each_value;    // the distance between values at the border, in deviations
};

inline search_plan search_plan_of(const core::top_k_request& request) {
  const auto cols = static_cast<double>(request.matrix.cols);
  const double share = (static_cast<double>(request.options.k) + 0.5) / (cols + 1.0);
  const double deviations = core::upper_quantile(share);
  const double density = cols * core::normal_density(deviations);
  const float spread = kSpread * std::sqrt(static_cast<float>(request.options.k)) + kSpread;
  const double extreme = std::max(core::upper_quantile(1.0 / (cols + 1.0)), 0.5);
  return {.k = static_cast<int>(request.options.k),
          .deviations = static_cast<float>(deviations),
          .density = static_cast<float>(density),
          .reach = kReach * std::sqrt(static_cast<float>(request.options.k)) + kReach,
          .spread = spread,
          .window = kWindow * spread,
          .window_scale = 1.0f / (kWindow * spread),
          .stop = early_stop_of(request.options),
          .narrowed_steps = request.matrix.rows < kManyRows ? 6 : 8,
          .each_span = static_cast<float>(0.5 / extreme),
          .each_value = static_cast<float>(1.0 / density)};
}

constexpr float kLearning = 0.25f;        // weight of the last row
constexpr float kLearningSlope = 0.125f;  // the same, of how close values lie
constexpr float kSteepest = 3.0f;         // change that one row may tell
constexpr float kMostSlope = 8.0f;        // of its logarithm: beyond lie ties, and maps that overflow
constexpr float kFarthest =
    1e20f;  // of a map's offset: finite, too, when the bracket's map makes it 2^28 times as large

/// What a group has learned from its rows so far.
struct row_shape {
  float border;        // in standard deviations from the mean
  float slope = 1.0f;  // how close the values around it lie, over how close those of normal data do
  float scale = 1.0f;  // how many values a unit around it has
  float at = 0.0f;     // where borders are
  bool steady =
      false;  // the last rows' were there too, those of all groups in step: the next rows' shape is not looked at
  bool tied = false;  // they were numbers that many share
};

/// Guesses the border from a row's mean and deviation. All that run in step call it.
template <class Share, class Group>
__device__ __forceinline__ void look_at_row(Group& group, const search_plan& plan,
                                            const staged_row<typename Share::stored>& row, const Share& share,
                                            row_shape& shape) {
  float mean = 0.0f;
  float variance = 0.0f;
  if constexpr (Group::kHasRoom) {
    share.moments(group, mean, variance);
  } else {
    const float2 moments = moments_of<Share>(group, row, group.rank());
    group.sync();
    mean = moments.x;
    variance = moments.y;
  }
  if (!isfinite(mean) || !isfinite(variance)) return;  // squares overflow, and the row before must do
  constexpr float kLeast = 9.5e-7f;                    // of the mean's square: rounding leaves less of a constant row
  variance = fmaxf(variance, fmaxf(mean * mean * kLeast, 1e-30f));
  const float each = rsqrtf(variance);
  shape.scale = plan.density * shape.slope * each;
  shape.at = __fmaf_rn(shape.border, variance * each, row.negated ? -mean : mean);
}

/// Whether the turn-th of a group's rows tells it how close values lie.
__device__ __forceinline__ bool learns_from(int turn) { return turn < 8 || turn % 4 == 0; }

/// Marks the k best of a row, if 16-bit numbers settle it. All that run in step call it.
/// @tparam Plain k is below the count. @param settled whether the marks are right; a row of no more than k columns
/// always is. @param learns whether to learn how close values lie, which changes slowly.
template <bool Plain, class Share, class Group>
__device__ __forceinline__ row_marks<typename Share::bits> search_row(Group& group, const search_plan& plan,
                                                                      const staged_row<typename Share::stored>& row,
                                                                      const Share& share, row_shape& shape, bool learns,
                                                                      bool& settled) {
  using kind = thread_numbers<typename Share::stored, Share::kValues>;
  const bool takes_all = !Plain && row.count <= plan.k;
  kind numbers;
  float at = 0.0f;      // where the search begins, as a number
  float offset = 0.0f;  // of fp32 numbers
  float beyond = 0.0f;
  const auto wanted = static_cast<float>(plan.k);
  if constexpr (!kind::kMapped) share.read(numbers, 1.0f, 0.0f);
  bool steady = shape.steady;
  const bool was_tied = Group::kHasRoom && shape.tied;
  const float before = shape.at;
  number_border border;
#pragma unroll 1
  for (;;) {
    if (!steady) look_at_row(group, plan, row, share, shape);
    if constexpr (kind::kMapped) {
      offset = -shape.at * shape.scale;
      share.read(numbers, row.negated ? -shape.scale : shape.scale, offset);
      if (was_tied) at = kind::rounded(__fmaf_rn(shape.at, shape.scale, offset));  // what the tie became
    } else {
      at = kind::rounded(shape.at);
    }
    beyond = group.sum_count(numbers.count_from(at)) - wanted;
    if (was_tied) {  // as before: more than k reach it, fewer what lies above?
      border.above = kind::next_above(at);
      const float reach_more = group.sum_count(numbers.count_from(border.above));
      border.tied = beyond > 0.0f && reach_more < wanted;
      if (group.all(border.tied)) break;
      border.tied = false;
    }
    if (!steady || group.all(takes_all || fabsf(beyond) <= plan.reach)) break;
    steady = false;
  }
  const auto zoom = [&](float center, float factor) {
    const float sharper = shape.scale * factor;
    if constexpr (kind::kMapped) share.read(numbers, row.negated ? -sharper : sharper, (offset - center) * factor);
  };
  const bool usable = !takes_all && fabsf(offset) < kFarthest;  // else numbers might become NaN
  const float each = near_reciprocal(shape.scale);              // from one value to the next
  const float step = kind::kMapped ? 1.0f : each;
  if (was_tied && group.all(border.tied)) {
    border.found = true;
    border.from = border.plain = at;
  } else {
    border = find_border(group, numbers, plan.k, at, beyond, step, plan.reach, usable, zoom);
  }
  settled = takes_all || border.found;
  const float moved = (border.plain - at) * (kind::kMapped ? 1.0f : shape.scale);  // in values
  const float found_at = __fmaf_rn(moved, each, shape.at);
  shape.steady = group.all(takes_all || (border.found && fabsf(found_at - before) * shape.scale < 0.5f * plan.reach));
  if (border.found) {
    if (!steady) {
      const float most = plan.density * shape.slope;
      shape.border = __fmaf_rn(kLearning * fminf(most, fmaxf(-most, moved)), near_reciprocal(most), shape.border);
      shape.at = found_at;
    } else if (!was_tied || !border.tied) {
      shape.at = __fmaf_rn(kLearning * moved, each, shape.at);
    }
    if (learns && !border.tied) {
      const float steeper = (fabsf(beyond) + 1.0f) * near_reciprocal(fabsf(moved) + 1.0f);
      const float change = __fmaf_rn(kLearningSlope, fminf(kSteepest, steeper) - 1.0f, 1.0f);
      if (fabsf(__log2f(shape.slope * change)) < kMostSlope) {
        shape.slope *= change;
        shape.scale *= change;
      }
    }
  }

  row_marks<typename Share::bits> marks;
  if (border.found) marks.sure = share.marks_from(numbers, border.tied ? border.above : border.from);
  if (takes_all) marks.sure = share.present();
  marks.chosen = takes_all || (border.found && !border.tied);
  float tie = 0.0f;
  shape.tied = false;
  if (!group.all(!border.tied)) {
    if (border.tied) marks.fill = share.marks_from(numbers, border.from) & ~marks.sure;
    if constexpr (kind::kMapped) {  // are those that fp16 cannot tell apart equal?
      tie = group.largest(marks.fill ? share.first_of(marks.fill) : -INFINITY);
      const bool equal = group.largest((marks.fill & ~share.marks_equal(tie)) != 0 ? 1.0f : 0.0f) == 0.0f;
      if (border.tied) settled = equal;
    } else {
      tie = border.from;
    }
    if constexpr (Group::kHasRoom) {
      if (border.tied) shape.at = tie;
      shape.tied = group.all(border.tied && settled);
    }
  }
  return marks;
}

/// Marks the k best of rows whose search `settled` is false for, by their keys. All lanes of a warp call it.
/// @param near of each row's border.
template <class Share, int Lanes>
__device__ __forceinline__ void settle_by_keys(const lane_group<Lanes>& group, const search_plan& plan,
                                               const staged_row<typename Share::stored>& row, float near, bool& settled,
                                               row_marks<typename Share::bits>& marks) {
  const int group_index = static_cast<int>(threadIdx.x) % kWarp / Lanes;
  while (const unsigned open = __ballot_sync(kFullWarp, !settled)) {
    const int leader = __ffs(static_cast<int>(open)) - 1;
    staged_row<typename Share::stored> other = row;
    const auto place = static_cast<int>(row.bytes - dynamic_shared());
    other.bytes += __shfl_sync(kFullWarp, place, leader) - place;
    other.count = __shfl_sync(kFullWarp, row.count, leader);
    const float near_other = __shfl_sync(kFullWarp, near, leader);
    const key_border border = find_border_by_keys(lane_group<kWarp>(), other, plan.k, near_other, plan.deviations);
    if (group_index == leader / Lanes) {
      marks = marks_by_key<Share>(row, group.rank(), border);
      settled = true;
    }
  }
}

}  // namespace shortlist::cuda
