// An early stop of 16-bit rows whose borders were found among levels: what it selects instead of the exact choice.
//
// The path of the bisection follows from a row's extremes and its k-th best (row_path.cuh). Extremes cost little of 16
// bits: three operands an instruction, of two values each. What reaches an end of the path the levels tell, if it lies
// among them; else the values are read once more. A row that holds NaN or an infinity keeps the exact choice. Nothing
// is guessed or counted besides. History: row_stop.cuh served such rows before, its values taken for fp32.
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
template <class Group, class Share, class Numbers>
__device__ __forceinline__ row_ends ends_of_numbers(Group& group, const Share& share, const Numbers& numbers) {
  constexpr int kWords = Share::kValues / 2;
  constexpr int kWordsEach = 4;  // of a unit
  constexpr std::uint32_t kSign = 0x8000u;
  constexpr std::uint32_t kInfinity = Numbers::kWide ? 0x7F80u : 0x7C00u;
  const auto word_of_pair = [](const auto& pair) {
    std::uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
  };
  const bool all = group.all(share.whole());
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

/// Marks the numbers that reach `from`, also of columns that are not there. All that run in step call it.
/// @param matters whether the row's marks do.
template <class Group, class Share, class Window, class Planes>
__device__ __forceinline__ typename Share::bits reaching_number(Group& group, const Share& share, const Window& window,
                                                                const Planes& planes, float from, bool matters) {
  using kind = thread_numbers<typename Share::stored, Share::kValues>;
  float number = kind::rounded(from);
  if (number < from) number = kind::next_above(number);
  const std::uint32_t level = kind::bits_of(number) - window.first;
  if (group.all(!matters || (number > 0.0f && window.holds(level))))
    return planes.template reaching<typename Share::bits>(level);
  kind numbers;
  share.read_all(numbers, 1.0f, 0.0f);
  return share.marks_from(numbers, number);
}

/// Makes of a border's marks those of what an early stop selects. All that run in step call it. Algorithm 2's result
/// are the first k of those above.
/// @param border in the order of reading, as the marks become.
template <class Group, class Share, class Window, class Planes>
__device__ __forceinline__ void stop_at_levels(Group& group, const search_plan& plan, const Share& share,
                                               const Window& window, const Planes& planes, const row_ends& ends,
                                               level_border<typename Share::bits>& border) {
  using bits = typename Share::bits;
  const float lower = ends.odd ? 0.0f : ends.least;
  const float upper = ends.odd ? 0.0f : ends.most;
  const bool fits = isfinite(__fadd_rn(lower, lower)) && isfinite(__fadd_rn(upper, upper));
  const stop_path path{lower, upper, __fmul_rn(plan.stop.eps, fabsf(upper)), group.all(fits)};
  const stop_bracket bracket = follow(plan.stop, path, window.number(border.level), INFINITY, -INFINITY, 0.0f);
  // What reaches the lower end, and for Algorithm 1 the upper one; one code for both.
  bits reach_low = 0;
  bits reach_high = 0;
  float end = bracket.low;
#pragma unroll 1
  for (int ends_left = plan.stop.by_count ? 1 : 2; ends_left > 0; ends_left--) {
    reach_low = reach_high;
    reach_high = reaching_number(group, share, window, planes, end, !ends.odd);
    end = bracket.high;
  }
  const bits there = share.there();
  reach_low &= there;
  reach_high &= there;
  const bool by_count = plan.stop.by_count;
  const int high = by_count ? 0 : static_cast<int>(group.sum(static_cast<std::uint32_t>(count_marks(reach_high))));
  if (ends.odd) return;
  const bool is_top = high >= plan.k;  // of those that have the row's largest value, the first
  border.above = is_top ? bits{0} : reach_high;
  border.at = is_top ? reach_high : reach_low & ~reach_high;
  border.missing = is_top ? plan.k : plan.k - high;
}

}  // namespace shortlist::cuda
