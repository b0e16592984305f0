// An eps of rows that lie in shared memory, after their exact search, by a group of threads.
//
// Most rows have a gap at their border that is wider than the eps: their result is the exact one (row_gap.cuh). For the
// others the bisection is followed from the extremes and the k-th best, without a count, and what reaches the two ends
// of its last bracket is marked. A call, in loops where a row is long: the code of what few rows need is fetched anew
// each time, and takes longer to come than to run.
//
// Limit: as in warp_rows_kernel.cuh; measured share: docs/kernels.md. History, 2^20 x 256, k 32, eps 1e-6, 1e-4 and
// 1e-2: every midpoint counted 0.54, 0.52 and 0.57 ms -> the border by levels 0.51, 0.51 and 0.54 -> gaps 0.326, 0.341
// and 0.559; the last by cells 0.376 (row_wide_eps.cuh). The exact search: 0.320.
#pragma once

#include "cuda/top_k/row_apart.cuh"
#include "cuda/top_k/row_stop.cuh"

namespace shortlist::cuda {

/// The k-th best of the columns that were chosen.
template <class Share, class Group>
__device__ __forceinline__ float last_of(Group& group, const Share& share, typename Share::bits chosen) {
  float last = INFINITY;
  share.visit_units_by_turns([&](unsigned i, const float(&values)[Share::kUnit]) {
    const auto those = static_cast<unsigned>(chosen >> (i * Share::kUnit));
#pragma unroll
    for (unsigned c = 0; c < Share::kUnit; c++) last = fminf(last, those >> c & 1 ? values[c] : INFINITY);
  });
  return -group.largest(-last);
}

/// Chooses what an early stop selects of the rows of a warp, but for those that are `settled`, whose choice is the
/// exact one. All its lanes call it. @pre rows are whole units, and k is below the count. @param border the k-th best
/// of each row, if it is `known`.
template <class Share, int Lanes>
__device__ __noinline__ row_choice<typename Share::bits> choose_by_path(const search_plan& plan,
                                                                        staged_row<typename Share::stored> row,
                                                                        bool settled,
                                                                        row_choice<typename Share::bits> exact,
                                                                        float border, bool known) {
  using bits = typename Share::bits;
  constexpr unsigned kUnit = Share::kUnit;
  lane_group<Lanes> group;
  const typename Share::places units(group.rank());
  const Share share(row, group.rank(), units);
  float_ends ends;
  std::uint32_t least_bits = ~0u;
  share.visit_units_by_turns([&](unsigned, const float(&values)[kUnit]) {
    ends.add(values);
    least_bits = least_bits_of(values, least_bits);
  });
  ends.join(group);
  ends.add_least_bits(~group.largest(~least_bits));
  if (!known) border = last_of(group, share, exact.chosen);
  settled = settled || ends.odd();
  const float lower = ends.least();
  const float upper = ends.most();
  const bool fits = settled || (isfinite(__fadd_rn(lower, lower)) && isfinite(__fadd_rn(upper, upper)));
  const stop_path path{lower, upper, __fmul_rn(plan.stop.eps, fabsf(upper)), group.all(fits)};
  const stop_bracket bracket = follow(plan.stop, path, border, INFINITY, -INFINITY, 0.0f);
  const float high = without_plus_zero(bracket.high);
  const float low = without_plus_zero(bracket.low);
  bits sure = 0;
  bits reaching = 0;
  share.visit_units_by_turns([&](unsigned i, const float(&values)[kUnit]) {
    unsigned below_high = 0;
    unsigned below_low = 0;
#pragma unroll
    for (int c = kUnit - 1; c >= 0; c--) {
      below_high = shift_in_less(values[c], high, below_high);
      below_low = shift_in_less(values[c], low, below_low);
    }
    constexpr unsigned kAll = (1u << kUnit) - 1;
    sure |= static_cast<bits>(below_high ^ kAll) << (i * kUnit);
    reaching |= static_cast<bits>(below_low ^ kAll) << (i * kUnit);
  });
  const bits there = share.present_ascending();
  if (plan.stop.by_count) sure = 0;  // Algorithm 2 takes the first of all
  row_choice<bits> choice;
  choice.chosen = choose(group, sure & there, reaching & ~sure & there, plan.k, choice.place);
  return settled ? exact : choice;
}

}  // namespace shortlist::cuda
