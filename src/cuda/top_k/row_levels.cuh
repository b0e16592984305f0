// The border of a row among levels near it.
//
// Where rows are alike, the border is near that of the rows before. Each value becomes a level: of 16-bit values which
// of the numbers around that border it is, of fp32 values which of as many ranges; 0 if it is less, the last if it is
// more. row_planes.cuh finds the level of the border. Equal values need no search of their own: of the values at the
// border the first in the order of columns are taken, where they may differ the best. A row whose border lies
// elsewhere, or is the first of a group, has it guessed from its mean and deviation, so that few rows need another
// search (row_search.cuh), nor the code of one, which no cache holds at first. History, 2^20 x 256, k 32, fp32: counts
// of numbers, 1,404 instructions for eight rows -> levels 1,068 -> the digits of a level by two bits at a time, so that
// lanes wait half as often for each other. 65,536 x 1024, k 64, each row of another scale: rows unlike those before
// counted 0.106 ms -> guessed 0.087.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/plan.hpp"
#include "cuda/top_k/row_gap.cuh"
#include "cuda/top_k/row_half_stop.cuh"
#include "cuda/top_k/row_planes.cuh"
#include "cuda/top_k/row_search.cuh"

namespace shortlist::cuda {

/// Neighbouring numbers of fp16 or bf16: so many that half of them are an octave, of fp16 half of one.
template <class Stored>
struct number_window {
  static constexpr int kBits = std::is_same_v<Stored, bfloat16> ? 8 : 10;
  static constexpr std::uint32_t kLast = (1u << kBits) - 1;
  static constexpr std::uint32_t kInfinity = std::is_same_v<Stored, bfloat16> ? 0x7F80 : 0x7C00;
  std::uint32_t first;  // as it is stored

  /// So that `at` is in the middle.
  static __device__ __forceinline__ number_window around(float at) {
    return {static_cast<std::uint32_t>(stored_bits(narrowed<Stored>(at))) - kLast / 2};
  }
  /// Whether its numbers are above 0 and finite: then more bits are more.
  __device__ __forceinline__ bool usable() const { return first - 1 < kInfinity - kLast - 1; }
  /// Whether a level is neither that of all that is less nor that of all that is more.
  __device__ __forceinline__ bool holds(std::uint32_t level) const { return level - 1 < kLast - 1; }
  /// Whether levels tell what reaches a level: all but that of all that is less.
  __device__ __forceinline__ bool tells(std::uint32_t level) const { return level - 1 < kLast; }
  __device__ __forceinline__ float number(std::uint32_t level) const {
    return core::widen(of_stored_bits(static_cast<std::uint16_t>(first + level)));
  }
  /// The levels of two values whose bits are `two`, none below the first number.
  __device__ __forceinline__ std::uint32_t levels(std::uint32_t two) const {
    return __viaddmin_u16x2(two, (0x10000u - first) * 0x10001u, kLast * 0x10001u);
  }

 private:
  static __device__ __forceinline__ std::uint16_t stored_bits(Stored value) {
    std::uint16_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  static __device__ __forceinline__ Stored of_stored_bits(std::uint16_t bits) {
    Stored value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
};

/// A range of fp32 values in levels: level 0 has all that are less, the last all that are more, and NaN none.
class value_window {
 public:
  static constexpr int kBits = 8;
  static constexpr std::uint32_t kLast = (1u << kBits) - 1;

  /// `at` is in the middle. @param width of all levels. @param scale 1 / width, nearly. @param negated values are taken
  /// with the other sign. Not usable: all values have level 0.
  __device__ __forceinline__ value_window(float at, float width, float scale, bool negated) : at_(at), width_(width) {
    const float offset = __fmaf_rn(-at, scale, 0.5f);
    usable_ = fabsf(offset) < kFarthest && scale > 1.0f / kFarthest;
    scale_ = !usable_ ? 0.0f : negated ? -scale : scale;
    offset_ = usable_ ? offset : 0.0f;
  }
  __device__ __forceinline__ bool usable() const { return usable_; }
  /// The levels of two values, as two numbers of 16 bits that begin with zeros or the same few bits.
  __device__ __forceinline__ std::uint32_t levels(float a, float b) const {
    const __half2 whole =
        __hfma2(__floats2half2_rn(within(a), within(b)), __float2half2_rn(kLast), __float2half2_rn(kWhole));
    std::uint32_t word;
    memcpy(&word, &whole, sizeof word);
    return word;
  }
  __device__ __forceinline__ std::uint32_t level(float x) const { return levels(x, x) & kLast; }
  /// Whether a level is neither that of all that is less nor that of all that is more.
  __device__ __forceinline__ bool holds(std::uint32_t level) const { return level - 1 < kLast - 1; }
  /// The middle of a level, less that of all.
  __device__ __forceinline__ float away(std::uint32_t level) const {
    return __fmaf_rn(static_cast<float>(level), 1.0f / kLast, -0.5f) * width_;
  }
  /// No more than the values of the level and of all above it.
  __device__ __forceinline__ float least_of(std::uint32_t level) const { return end_of(level, -1.0f); }
  /// More than the values of the level and of all below it.
  __device__ __forceinline__ float beyond(std::uint32_t level) const { return end_of(level, 1.0f); }

 private:
  static constexpr float kWhole = 1024.0f;  // from here on numbers of fp16 are whole
  /// By so many levels fp16 rounds a share of the width. No number of fp16 is nearer than 2^-19 to where a level ends,
  /// but 1/2, below which fp16 rounds by half as much: room for what fp32 rounds of a share.
  static constexpr float kRoundingOfHalf = kLast * 0x1p-12f;

  __device__ __forceinline__ float within(float x) const {
    float share;
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(share) : "f"(x), "f"(scale_), "f"(offset_));
    return share;
  }
  __device__ __forceinline__ float end_of(std::uint32_t level, float side) const {
    const float levels = static_cast<float>(level) + side * (0.5f + kRoundingOfHalf);
    return beyond_rounding(at_, __fmaf_rn(levels, 1.0f / kLast, -0.5f) * width_, side);
  }

  float at_;
  float width_;
  float scale_;
  float offset_;
  bool usable_;
};

/// Takes those above the border, and of those at it the first ones. All that run in step call it. @param border
/// ascending. @param place where the thread's first one goes among the row's
template <class Group, class Bits>
__device__ __forceinline__ void place_level(Group& group, const level_border<Bits>& border, Bits& chosen, int& place) {
  constexpr int kShift = 16;  // two counts in a word, of no more columns than a row has
  static_assert(core::kBlockRowsMaxCols <= 1 << (kShift - 1));
  const int before = group.before(count_marks(border.above) << kShift | count_marks(border.at));
  const int at_before = before & ((1 << kShift) - 1);
  chosen = border.above | keep_first(border.at, border.missing - at_before);
  place = (before >> kShift) + min(at_before, border.missing);
}

constexpr int kMostRivals = 24;  // values at a border, more than are wanted, of which the best are looked for

/// Of values that share a level takes the best, one after the other, as long as any are missing and, if not `all`, more
/// are there than missing. All that run in step call it. @param border above gets what is taken; at the end those at it
/// are equal, or all are wanted, or none is missing. @param same how many are at it. @param value_of value_of(bits) is
/// the value of the first of them. @returns the last that was taken, of equal ones if these are too many
template <class Group, class Bits, class ValueOf>
__device__ __forceinline__ float settle_level(Group& group, level_border<Bits>& border, int same, bool all, bool open,
                                              ValueOf value_of) {
  float last = -INFINITY;
  open = open && (all || same > border.missing);
  while (!group.all(!open)) {
    float best = -INFINITY;
    Bits those = 0;
    for (Bits left = open ? border.at : 0; left != 0; left &= left - 1) {
      const float value = value_of(left);
      if (value > best) those = 0;
      best = fmaxf(best, value);
      if (value == best) those |= left & (~left + 1);
    }
    const float most = group.largest(best);
    if (best < most) those = 0;
    const auto found = static_cast<int>(group.sum(static_cast<std::uint32_t>(count_marks(those))));
    if (!open) continue;
    last = most;
    if (found > border.missing) {
      border.at = those;
      open = false;
    } else {
      border.above |= those;
      border.at &= ~those;
      border.missing -= found;
      same -= found;
      open = border.missing > 0 && (all || same > border.missing);
    }
  }
  return last;
}

constexpr float kGuessWindow = 4.0f;  // so much wider, where a border is guessed from the row itself

/// What a border tells that lies so many values above the one guessed from the row's mean and deviation.
__device__ __forceinline__ void learn_guess(const search_plan& plan, row_shape& shape, float moved) {
  const float most = plan.density * shape.slope;
  shape.border = __fmaf_rn(kLearning * fminf(most, fmaxf(-most, moved)), near_reciprocal(most), shape.border);
}

/// choose_by_level of fp32.
template <class Share, class Group, class Gap>
__device__ __forceinline__ bool choose_by_value_level(Group& group, const search_plan& plan,
                                                      const staged_row<typename Share::stored>& row, const Share& share,
                                                      bool guessed, row_shape& shape, typename Share::bits& chosen,
                                                      int& place, Gap& gap) {
  using bits = typename Share::bits;
  const float scale = plan.window_scale * shape.scale * (guessed ? 1.0f / kGuessWindow : 1.0f);
  const value_window window(shape.at, near_reciprocal(scale), scale, row.negated);
  if (!group.all(window.usable())) return false;
  std::uint32_t levels[Share::kValues / 2];
  float upper = 0.0f;
  if constexpr (Gap::kAsked) {
    const auto read = [&](auto bound) {
      share.read_levels(levels, window, [&](const auto& values) { bound.add(values); });
      upper = bound.of_all(group);
    };
    row.negated ? read(upper_bound<true>()) : read(upper_bound<false>());
  } else {
    share.read_levels(levels, window, [](const auto&) {});
  }
  const level_planes<Share::kValues, value_window::kBits> planes(levels);
  auto border = find_level<bits>(group, planes, plan.k, share.there());
  const auto same = static_cast<int>(group.sum(static_cast<std::uint32_t>(count_marks(border.at))));
  if (!group.all(window.holds(border.level) && same - border.missing <= kMostRivals)) return false;
  const float moved = window.away(border.level);
  shape.at = __fmaf_rn(guessed ? 1.0f : kLearning, moved, shape.at);
  if (guessed) learn_guess(plan, shape, moved * shape.scale);
  const bits at_border = Gap::kAsked ? share.ascending(border.at) : bits{0};
  if (group.all(same == border.missing)) {
    chosen = share.ascending(border.above | border.at);
    place = group.before(count_marks(chosen));
  } else {
    border.above = share.ascending(border.above);
    border.at = share.ascending(border.at);
    settle_level(group, border, same, false, true, [&](bits marks) { return share.first_of_ascending(marks); });
    if (border.missing == 0) border.at = 0;
    place_level(group, border, chosen, place);
  }
  if constexpr (Gap::kAsked)
    gap = find_gap(group, row, share, window, planes, border.level, at_border, chosen, plan.stop.eps, upper);
  return true;
}

/// Chooses the k best of rows whose borders lie near shape.at, in the order of columns. All that run in step call it.
/// @pre k is below the count. @param guessed whether shape.at is the rows' own guess, not the border of those before.
/// @param place where the thread's first one goes among the row's. @param gap gets what it asks for.
/// @returns whether the borders of all their rows were found; else nothing has changed.
template <class Share, class Group, class Gap>
__device__ __forceinline__ bool choose_by_level(Group& group, const search_plan& plan, const Share& share, bool guessed,
                                                row_shape& shape, typename Share::bits& chosen, int& place, Gap& gap) {
  using stored = typename Share::stored;
  using bits = typename Share::bits;
  using window_type = number_window<stored>;
  const auto window = window_type::around(shape.at);
  const float reach = (shape.at - window.number(0)) * shape.scale;  // in values; on the other side it is more
  const bool near = group.all(window.usable() && reach >= plan.spread);
  bool counts = false;
  if constexpr (Gap::kStops) counts = is_counted<stored, Group>(plan.stop);
  if (!near && !counts) return false;
  // Where rows end anywhere, marks of what is there cost less than to take the rest out of the numbers.
  constexpr bool kMarksThere = !Share::kWholeUnits;
  constexpr bool kReadsAll = kMarksThere || Gap::kStops;
  static_assert(Share::kWholeUnits || !Gap::kAsked);  // a gap asks for the most of the numbers
  thread_numbers<stored, Share::kValues> numbers;
  kReadsAll ? share.read_all(numbers, 1.0f, 0.0f) : share.read(numbers, 1.0f, 0.0f);
  [[maybe_unused]] row_ends ends;
  if constexpr (Gap::kStops) {
    const bool all = group.all(share.whole());
    ends = ends_of_numbers(group, share, numbers, all);
    if (!all) numbers.sink_units([&](unsigned i) { return share.has_unit(i); });
    if (counts && choose_by_counts(group, plan, share, numbers, ends, all, guessed, shape, chosen, place)) return true;
    if (!near) return false;
  }
  const auto first = numbers.twice(window.number(0));
  std::uint32_t levels[Share::kValues / 2];
#pragma unroll
  for (int i = 0; i < Share::kValues / 2; i++) {
    const auto two = __hmax2(numbers.u[i], first);  // `first` where there is NaN
    std::uint32_t word;
    memcpy(&word, &two, sizeof word);
    levels[i] = window.levels(word);
  }
  const level_planes<Share::kValues, window_type::kBits> planes(levels);
  auto border = find_level<bits>(group, planes, plan.k, kMarksThere ? share.there() : ~bits{0});
  if (!group.all(window.holds(border.level))) return false;
  const float moved = window.number(border.level) - shape.at;
  shape.at = __fmaf_rn(guessed ? 1.0f : kLearning, moved, shape.at);
  if (guessed) learn_guess(plan, shape, moved * shape.scale);
  if constexpr (Gap::kStops) {
    choose_stopped(group, plan, share, window, planes, ends, border.level, chosen, place);
  } else {
    border.above = share.ascending(border.above);
    border.at = share.ascending(border.at);
    place_level(group, border, chosen, place);
  }
  if constexpr (Gap::kAsked && !Gap::kStops) {  // no other value is nearer than the number beside the border
    const float number = window.number(border.level);
    const float apart = fminf(number - window.number(border.level - 1), window.number(border.level + 1) - number);
    gap = {number, apart > __fmul_rn(plan.stop.eps, fabsf(group.largest(numbers.most())))};
  }
  return true;
}

/// How often what failed is tried again: of a group's turns, ever fewer. Both ways to look share a register.
class seldom_trials {
 public:
  static constexpr int kAlike = 0;
  static constexpr int kGuessed = 8;

  /// Whether it is tried; asked once a turn.
  template <int Way>
  __device__ __forceinline__ bool due() {
    constexpr std::uint32_t kOne = 1u << (Way + kBits);
    if ((state_ & kMost * kOne) == 0) return true;
    state_ -= kOne;
    return false;
  }
  template <int Way>
  __device__ __forceinline__ void learn(bool succeeded) {
    constexpr std::uint32_t kBoth = 1u << Way | 1u << (Way + kBits);
    const std::uint32_t waits = min(2 * (state_ >> Way & kMost) + 1, kMost);
    state_ = (state_ & ~(kMost * kBoth)) | (succeeded ? 0 : waits * kBoth);
  }

 private:
  static constexpr int kBits = 4;
  static constexpr std::uint32_t kMost = (1u << kBits) - 1;
  std::uint32_t state_ = 0;  // of each way, the turns that it waits, and those that are left
};

/// When a group looks for borders among levels: around the border of the rows before; where rows are unlike, around
/// what the row's own mean and deviation tell. @tparam Guesses whether they are worth the code.
template <bool Guesses = true>
class level_trials {
 public:
  /// choose_by_level, if it is tried. @param first whether no row was before.
  template <class Share, class Group, class Gap>
  __device__ __forceinline__ bool choose(Group& group, const search_plan& plan,
                                         const staged_row<typename Share::stored>& row, const Share& share, bool first,
                                         row_shape& shape, typename Share::bits& chosen, int& place, Gap& gap) {
    constexpr bool kGuesses = kMayGuess<typename Share::stored, Group, Gap>;
    constexpr bool kOfValues = sizeof(typename Share::stored) == 4;
    if (kOfValues && shape.tied) return false;  // search_row tries the tie first
    bool guesses = first || !shape.steady || !trials_.due<seldom_trials::kAlike>();
    if (guesses && !may_guess<kGuesses>(shape)) return false;
#pragma unroll 1
    for (;;) {
      if (guesses) look_at_row(group, plan, row, share, shape);
      bool found;
      if constexpr (kOfValues) {
        found = choose_by_value_level(group, plan, row, share, guesses, shape, chosen, place, gap);
      } else {
        found = choose_by_level(group, plan, share, guesses, shape, chosen, place, gap);
      }
      if (guesses) {
        trials_.learn<seldom_trials::kGuessed>(found);
        shape.steady = true;  // where a search begins
        return found;
      }
      trials_.learn<seldom_trials::kAlike>(found);
      if (found) return true;
      if (!may_guess<kGuesses>(shape)) return false;
      guesses = true;
    }
  }

  /// The same of rows of which others were before, for requests that ask for nothing more.
  template <class Share, class Group>
  __device__ __forceinline__ bool choose(Group& group, const search_plan& plan,
                                         const staged_row<typename Share::stored>& row, const Share& share,
                                         row_shape& shape, typename Share::bits& chosen, int& place) {
    no_gap nothing;
    return choose(group, plan, row, share, false, shape, chosen, place, nothing);
  }

 private:
  /// Of a short row a guess often misses fp16's window, which is half an octave.
  template <class Stored, class Group, class Gap>
  static constexpr bool kMayGuess = Guesses &&
                                    (Gap::kAsked || Group::kLanes >= kWarp / 2 || !std::is_same_v<Stored, float16>);

  template <bool May>
  __device__ __forceinline__ bool may_guess(const row_shape& shape) {
    if constexpr (!May) return false;
    return !shape.tied && trials_.due<seldom_trials::kGuessed>();
  }

  seldom_trials trials_;
};

}  // namespace shortlist::cuda
