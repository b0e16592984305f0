// An eps of few halvings: what it selects of a row by the cell where its bisection ends.
//
// The width at which a bisection ends tells how many halvings it takes, and so which cell of row_cells.cuh holds the
// k-th best: the result is what lies above the cell, and the first of its own. Nothing is guessed, and no exact search
// comes before it. A value may be moved up by what is rounded: where one has the very first number of the cell, or of
// the next one, both ends are worked out, and the values that reach them are marked and counted.
//
// Rows that this does not settle hold NaN or an infinity, lie far from 0, or need more halvings and have more values in
// their cell than are wanted; they are searched exactly, and then by row_eps.cuh.
//
// Limit: as in warp_rows_kernel.cuh; measured share: docs/kernels.md. History: row_eps.cuh.
#pragma once

#include <cstdint>

#include "cuda/top_k/row_cells.cuh"
#include "cuda/top_k/row_levels.cuh"

namespace shortlist::cuda {

constexpr int kEpsHalvings = 10;
// By so many numbers values are off where the larger extreme is that many ranges: 0.081 by ten midpoints, 6.9 x 2^-24
// of it, and 0.026 by what else cell_map names, which is less than its kRoundings.
constexpr float kFarthestOffOfEps = 6.0f;

/// How many halvings of a row an eps asks for.
struct eps_halvings {
  int steps;
  bool sure;  // however ends of brackets are rounded

  __device__ __forceinline__ eps_halvings(const row_ends& ends, float eps) {
    constexpr float kRounding = 0x1p-19f;  // of the larger extreme: of two ends, some ten times
    const float range = ends.most - ends.least;
    if (range == 0.0f) {
      steps = 0;
      sure = true;
      return;
    }
    const float width = __fmul_rn(eps, fabsf(ends.most));
    const float ratio = range * near_reciprocal(width);
    steps = static_cast<int>(__float_as_uint(ratio) >> 23) - 126;  // 2^steps is the least power above it
    const float last = range * __uint_as_float(static_cast<std::uint32_t>(127 - steps) << 23);
    const float off = kRounding * fmaxf(fabsf(ends.least), fabsf(ends.most));
    sure = ratio >= 1.0f && steps < kCellBits && last + off <= width && 2.0f * last - off > width;
  }
};

/// A choice, and whether it is what the request asks for.
template <class Bits>
struct eps_choice {
  row_choice<Bits> choice;
  bool settled;
  bool odd;  // the row holds NaN or an infinity
};

/// Chooses what an eps selects of rows by their cells. All lanes of a warp call it. @pre rows are whole units, and k is
/// below the count.
template <class Group, class Share>
__device__ __forceinline__ eps_choice<typename Share::bits> choose_by_cells(
    Group& group, const search_plan& plan, const staged_row<typename Share::stored>& row, const Share& share) {
  using bits = typename Share::bits;
  constexpr int kBits = kEpsHalvings;
  constexpr int kValues = Share::kValues;
  constexpr int kByUpper = 7;  // halvings that the upper byte of numbers tells
  const row_ends ends = ends_of(share.ends(group), row.negated);
  const cell_map map(ends.least, ends.most, row.negated, kFarthestOffOfEps);
  const eps_halvings halvings(ends, plan.stop.eps);
  const int steps = max(min(halvings.steps, kBits), 1);
  const std::uint32_t finer = (1u << (kCellBits - steps)) - 1;  // bits that no halving asks for
  std::uint32_t numbers[kValues / 2];
  share.read_levels(numbers, map, [](const auto&) {});
  std::uint32_t coarse[kValues / 2];
#pragma unroll
  for (int i = 0; i < kValues / 2; i++) coarse[i] = numbers[i] & ~(finer * 0x10001u);
  const auto planes = cell_planes<kValues, kBits>(coarse, !group.all(steps <= kByUpper));
  level_search<bits, kValues, kBits> search(planes, plan.k, share.there());
#pragma unroll
  for (int p = kBits - 2; p >= 0; p -= 2) {
    const int told = kBits - 2 - p;
    if (told > kByUpper && group.all(steps <= told)) break;
    if constexpr (kSumsDigits<Group, kValues>) {
      search.find_digit(group, p);
    } else {
      search.find_bit(group, p + 1);
      search.find_bit(group, p);
    }
  }
  level_border<bits> border{search.level, search.missing, joined_words<bits>(search.above),
                            joined_words<bits>(search.at)};
  const std::uint32_t first = border.level << (kCellBits - kBits) & ~finer;
  const std::uint32_t beyond = first + finer + 1;
  bool settled = !ends.odd && halvings.sure && (map.usable() || halvings.steps == 0);
  if (!group.all(!settled || halvings.steps <= kBits)) {
    const auto same = static_cast<int>(group.sum(static_cast<std::uint32_t>(count_marks(border.at))));
    settled = settled && (halvings.steps <= kBits || same == border.missing);
  }
  const bool is_near = (first != 0 && has_number(numbers, first)) || has_number(numbers, beyond);
  if (!group.all(!(settled && is_near))) {
    const bool looks = !group.every(!is_near);
    const cell_bracket bracket(first, steps, ends.least, ends.most);
    bits reach_low = 0;
    bits reach_high = 0;
    share.reaching_both(bracket.low, bracket.high, reach_low, reach_high);
    const auto low = static_cast<int>(group.sum(static_cast<std::uint32_t>(count_marks(reach_low))));
    const auto high = static_cast<int>(group.sum(static_cast<std::uint32_t>(count_marks(reach_high))));
    if (looks) {
      const bool is_top = high >= plan.k;  // of those that have the row's largest value, the first
      const bool proved = low >= plan.k && (!is_top || bracket.high == ends.most);
      settled = settled && proved && halvings.steps <= kBits;
      border.above = is_top ? 0 : reach_high;
      border.at = is_top ? reach_high : reach_low & ~reach_high;
      border.missing = is_top ? plan.k : plan.k - high;
    }
  }
  border.above = share.ascending(border.above);
  border.at = share.ascending(border.at);
  eps_choice<bits> found;
  place_level(group, border, found.choice.chosen, found.choice.place);
  found.settled = settled;
  found.odd = ends.odd;
  return found;
}

}  // namespace shortlist::cuda
