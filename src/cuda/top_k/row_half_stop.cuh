// An early stop of 16-bit rows: what it selects instead of the exact choice.
//
// The path of the bisection follows from a row's extremes and its k-th best (row_path.cuh). Extremes cost little of 16
// bits: three operands an instruction, of two values each. Few steps need no more than a guess of the k-th best, where
// those of the rows before were: it gives a path, and the path is proved by counts at its two ends. Of 16 bits a count
// is a subtraction for two values, and two instructions for four that gather their signs. Else the k-th best is found
// among levels (row_levels.cuh), which tell what reaches an end of the path, too, if it lies among them; else the
// values are read once more. A row that holds NaN or an infinity keeps the exact choice.
//
// History, bf16, 2^20 x 256, k 32, two, four and eight steps, and an eps of 1e-2: row_stop.cuh, values taken for fp32
// 0.299, 0.283, 0.298 and 0.385 ms -> levels 0.279, 0.237, 0.235 and 0.266 -> one set of marks for steps, written
// without a look at each mark, few steps by counts 0.231, 0.213, 0.223 and 0.242. The exact search: 0.181.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/top_k/row_path.cuh"
#include "cuda/top_k/row_planes.cuh"
#include "cuda/top_k/row_search.cuh"

namespace shortlist::cuda {

/// Asks choose_by_level for an early stop's choice.
struct half_stop {
  static constexpr bool kAsked = true;
  static constexpr bool kStops = true;
};

/// A row's extremes, of all its numbers as they were read. All that run in step call it.
/// @param all whether no row of theirs has columns that are not there
template <class Group, class Share, class Numbers>
__device__ __forceinline__ row_ends ends_of_numbers(Group& group, const Share& share, const Numbers& numbers,
                                                    bool all) {
  constexpr int kWords = Share::kValues / 2;
  constexpr int kWordsEach = 4;  // of a unit
  constexpr std::uint32_t kSign = 0x8000u;
  constexpr std::uint32_t kInfinity = Numbers::kWide ? 0x7F80u : 0x7C00u;
  const auto word_of_pair = [](const auto& pair) {
    std::uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
  };
  // Calls f(a, b) for two words at a time, with the row's first number in the place of those that are not there.
  const auto visit = [&](auto f) {
    const auto visit_words = [&](auto whole, std::uint32_t first) {
#pragma unroll
      for (int i = 0; i < kWords; i += 2) {
        const bool there = whole || share.has_unit(i / kWordsEach);
        f(there ? word_of_pair(numbers.u[i]) : first, there ? word_of_pair(numbers.u[i + 1]) : first);
      }
    };
    if (all) return visit_words(std::true_type(), 0);
    visit_words(std::false_type(), word_of_pair(numbers.twice(share.first_value())));
  };
  const auto joined = [&](std::uint32_t both) {  // over the group, of two halves each
#pragma unroll
    for (int o = Group::kLanes / 2; o > 0; o >>= 1) both = __vmaxu2(both, __shfl_xor_sync(kFullWarp, both, o));
    return both;
  };
  // As in float_ends: of numbers of one sign the bits are in order, one way or the other.
  std::uint32_t most = kSign | kSign << 16;
  std::uint32_t most_bits = 0;
  visit([&](std::uint32_t a, std::uint32_t b) {
    most = __vimax3_s16x2(a, b, most);
    most_bits = __vimax3_u16x2(a, b, most_bits);
  });
  most ^= kSign | kSign << 16;  // unsigned ones, too, are in order then
  const std::uint32_t upper_halves = __byte_perm(most, most_bits, 0x3276);
  const std::uint32_t lower_halves = __byte_perm(most, most_bits, 0x1054);
  const std::uint32_t both = joined(__vmaxu2(upper_halves, lower_halves));
  most = both >> 16 ^ kSign;
  most_bits = both & 0xFFFFu;
  std::uint32_t least_bits = 0;
  if (!group.all(most < kSign && most_bits >= kSign)) {
    std::uint32_t least = ~0u;
    visit([&](std::uint32_t a, std::uint32_t b) { least = __vimin3_u16x2(a, b, least); });
    const std::uint32_t complements = joined(~least);
    least_bits = ~max(complements & 0xFFFFu, complements >> 16) & 0xFFFFu;
  }
  return {Numbers::of_bits(most_bits >= kSign ? most_bits : least_bits),
          Numbers::of_bits(most < kSign ? most : least_bits),
          (most >= kInfinity && most < kSign) || most_bits >= (kInfinity | kSign)};
}

/// So few steps are told by counts. Rows in step wait for the last one's count: fewer rows, more steps. fp16 has levels
/// of ten bits, which cost more. ms by counts and by levels, 2^20 x 256, k 32: bf16, four steps 0.213, 0.224, five
/// 0.231, 0.222; fp16, six 0.262, 0.278; eight 0.339, 0.272; 65,536 x 1024, k 64, bf16, six 0.061, 0.063, eight 0.074,
/// 0.062; 65,536 x 4096, fp16, eight 0.183, 0.215.
template <class Stored, int Lanes>
constexpr int kCountedSteps = std::is_same_v<Stored, float16> ? (Lanes == kWarp ? 8 : 6)
                              : Lanes == 4                    ? 4
                              : Lanes == 8                    ? 5
                                                              : 6;
constexpr int kMostCounts = 12;  // then levels tell

/// Whether choose_by_counts is tried.
template <class Stored, class Group>
__device__ __forceinline__ bool is_counted(const early_stop& stop) {
  return stop.by_count && stop.max_iter <= kCountedSteps<Stored, Group::kLanes>;
}

/// Chooses what few steps select by counts. All that run in step call it.
/// @param numbers what is not there is -inf. @param ends the row's. @param all whether all columns are there, of all
/// their rows. @param guessed whether shape.at is the rows' own guess.
/// @param place where the thread's first one goes among the row's. @returns whether all their rows are settled; else
/// nothing has changed
template <class Group, class Share, class Numbers>
__device__ __forceinline__ bool choose_by_counts(Group& group, const search_plan& plan, const Share& share,
                                                 const Numbers& numbers, const row_ends& ends, bool all, bool guessed,
                                                 row_shape& shape, typename Share::bits& chosen, int& place) {
  const float lower = ends.least;
  const float upper = ends.most;
  if (!group.all(!ends.odd && isfinite(__fadd_rn(lower, lower)) && isfinite(__fadd_rn(upper, upper)))) return false;
  // `over` (>= 0) more than k reach `low`, all but those below, and `under` (< 0) more reach `high`: but at the row's
  // largest, which is no midpoint, and need not be counted.
  number_marks<Numbers> below{};
  if (!all) below = numbers.below(lower);
  float low = lower;
  float high = upper;
  float over = static_cast<float>(share.columns() - plan.k);
  float under = static_cast<float>(-plan.k);
  const auto between = [&] { return __fmaf_rn(high - low, (over + 0.5f) * near_reciprocal(over - under + 1.0f), low); };
  const float each = near_reciprocal(shape.scale);  // from one value to the next
  float at = shape.at > lower && shape.at < upper ? shape.at : between();
  stop_bracket bracket{};
  bool moved = true;
#pragma unroll 1
  for (int counts = 0;; counts++) {
    if (!group.all(!moved)) {
      bracket = {lower, upper};
#pragma unroll 1
      for (int step = 0; step < plan.stop.max_iter; step++) halve(at, bracket.low, bracket.high);
    }
    const bool asks_low = bracket.low > low;
    const bool asks_high = bracket.high < high;
    if (group.all(!asks_low && !asks_high)) break;
    if (counts == kMostCounts) return false;
    const bool counts_low = asks_low && (!asks_high || at - bracket.low < bracket.high - at);
    const float from = counts_low ? bracket.low : bracket.high;
    const auto below_from = numbers.below(from);
    const float beyond = static_cast<float>(group.sum(below_from.others())) - static_cast<float>(plan.k);
    moved = false;
    if (!(asks_low || asks_high)) continue;
    const bool reached = beyond >= 0.0f;
    low = reached ? from : low;
    over = reached ? beyond : over;
    if (reached) below = below_from;
    high = !reached || beyond == 0.0f ? from : high;  // k reach it: whatever follows
    under = reached ? under : beyond;
    const float stepped = __fmaf_rn(beyond + (reached ? 0.5f : -0.5f), each, from);
    const bool steps = (low == lower || high == upper) && stepped > low && stepped < high;
    if (!(at >= low && at < high)) at = steps ? stepped : between();
    if (!(at > low && at < high)) at = low;
    moved = !(at >= bracket.low && at < bracket.high);
  }
  shape.at = __fmaf_rn(guessed ? 1.0f : kLearning, between() - shape.at, shape.at);
  chosen = share.ascending(below.template others_in_order<typename Share::bits>());
  place = group.before(count_marks(chosen));
  return true;
}

/// Marks the numbers that reach `from`. All that run in step call it.
/// @param matters whether the row's marks do.
template <class Group, class Share, class Window, class Planes>
__device__ __forceinline__ typename Share::bits reaching_number(Group& group, const Share& share, const Window& window,
                                                                const Planes& planes, float from, bool matters) {
  using kind = thread_numbers<typename Share::stored, Share::kValues>;
  const std::uint32_t number = kind::bits_no_less(from);
  const std::uint32_t level = number - window.first;  // of a number below 0, too, none that levels tell
  if (group.all(!matters || window.tells(level))) return planes.template reaching<typename Share::bits>(level);
  kind numbers;
  share.read_all(numbers, 1.0f, 0.0f);
  return share.marks_from(numbers, kind::of_bits(number)) & share.there();
}

/// follow(), in fewer instructions where there are few steps, or a width that rounding does not matter to. All that run
/// in step call it.
template <class Group>
__device__ __forceinline__ stop_bracket follow_by_group(Group& group, const early_stop& stop, float lower, float upper,
                                                        float width, float at) {
  constexpr float kRounding = 0x1p-19f;  // of the larger extreme: a wider bracket has its midpoint inside
  const bool fits = isfinite(__fadd_rn(lower, lower)) && isfinite(__fadd_rn(upper, upper));
  stop_bracket bracket{lower, upper};
  const bool few = stop.by_count && stop.max_iter <= kPlainSteps;
  const bool wide = !stop.by_count && width >= kRounding * fmaxf(fabsf(lower), fabsf(upper));
  if (!group.all(fits && (few || wide)))
    return follow(stop, {lower, upper, width, group.all(fits)}, at, INFINITY, -INFINITY, 0.0f);
  if (few) {
#pragma unroll 4
    for (int step = 0; step < stop.max_iter; step++) halve(at, bracket.low, bracket.high);
  } else {
#pragma unroll 1
    while (__fsub_rn(bracket.high, bracket.low) > width) halve(at, bracket.low, bracket.high);
  }
  return bracket;
}

/// Chooses what an early stop selects of rows whose borders are known; of more than k the first k are meant. All that
/// run in step call it. @param border its level. @param place where the thread's first one goes among the row's.
template <class Group, class Share, class Window, class Planes>
__device__ __forceinline__ void choose_stopped(Group& group, const search_plan& plan, const Share& share,
                                               const Window& window, const Planes& planes, const row_ends& ends,
                                               std::uint32_t border, typename Share::bits& chosen, int& place) {
  using bits = typename Share::bits;
  const bool by_count = plan.stop.by_count;
  const float lower = ends.odd ? 0.0f : ends.least;
  const float upper = ends.odd ? 0.0f : ends.most;
  const float width = __fmul_rn(plan.stop.eps, fabsf(upper));
  stop_bracket bracket = follow_by_group(group, plan.stop, lower, upper, width, window.number(border));
  if (ends.odd) bracket = {window.number(border), window.number(border + 1)};  // the exact choice
  const bool has_upper = !by_count || ends.odd;  // what reaches it goes before what lies below
  const bool one_end = group.all(!has_upper);
  // What reaches the lower end, and then the upper one; one code for both.
  bits reach_low = 0;
  bits reaching = 0;
  float end = bracket.low;
#pragma unroll 1
  for (int ends_left = one_end ? 1 : 2; ends_left > 0; ends_left--) {
    reach_low = reaching;
    reaching = reaching_number(group, share, window, planes, end, end == bracket.low || has_upper);
    end = bracket.high;
  }
  if (one_end) {
    chosen = share.ascending(reaching);
    place = group.before(count_marks(chosen));
    return;
  }
  if (!has_upper) reaching = 0;
  chosen = share.ascending(reaching);
  const bits between = share.ascending(reach_low & ~reaching);
  constexpr int kShift = 16;  // as in place_level
  int all = 0;
  const int before = group.before(count_marks(chosen) << kShift | count_marks(between), all);
  const int between_before = before & ((1 << kShift) - 1);
  const int missing = max(plan.k - (all >> kShift), 0);  // none: of those that reach the upper end the first
  chosen |= keep_first(between, missing - between_before);
  place = (before >> kShift) + min(between_before, missing);
}

}  // namespace shortlist::cuda
