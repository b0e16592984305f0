// Rows that an early stop does not take: they hold NaN or an infinity, and their result is the exact one.
//
// They are few, or all: of masked rows, every one holds -inf. Calls keep their search out of the registers, and of the
// loop, of rows that an early stop takes; what they learn of where borders lie is kept in memory. History, 2^20 x 256,
// k 32, four steps, on an H100: one row after the other by its keys, infinities in every row 5.39 ms, NaN in every
// tenth 1.28 -> all rows of a warp by 16-bit numbers 0.54 and 0.80.
#pragma once

#include "cuda/top_k/row_levels.cuh"
#include "cuda/top_k/row_search.cuh"

namespace shortlist::cuda {

/// What is known of rows that were searched exactly.
struct rows_apart {
  row_shape shape;
  level_trials trials;
};

/// Whether it is kept from row to row. Where registers are short, the address of it costs all rows more than it saves
/// those apart.
template <int Values, int Lanes>
constexpr bool kKnowsApart = Values != 32 || Lanes < kWarp;

/// Chooses the k best of the rows of a warp, but for those that are `settled`, whose choice is `before`: by search_row,
/// and by keys. All its lanes call it. @param known null: nothing
template <class Share, int Lanes>
__device__ __noinline__ row_choice<typename Share::bits> search_exactly(const search_plan& plan,
                                                                        staged_row<typename Share::stored> row,
                                                                        bool settled,
                                                                        row_choice<typename Share::bits> before,
                                                                        row_shape* known) {
  lane_group<Lanes> group;
  const typename Share::places units(group.rank());
  const Share share(row, group.rank(), units);
  row_shape shape{.border = plan.deviations};
  if constexpr (kKnowsApart<Share::kValues, Lanes>) shape = *known;
  bool found = false;
  auto marks = search_row<false>(group, plan, row, share, shape, true, found);
  if constexpr (kKnowsApart<Share::kValues, Lanes>) *known = shape;
  found = found || settled;
  settle_by_keys<Share>(group, plan, row, shape.at, found, marks);
  row_choice<typename Share::bits> choice;
  choice.chosen =
      choose(group, share.ascending(marks.sure), share.ascending(marks.fill), min(plan.k, row.count), choice.place);
  return settled ? before : choice;
}

/// The same, by levels where the rows are like those before.
template <class Share, int Lanes>
__device__ __noinline__ row_choice<typename Share::bits> choose_exactly(const search_plan& plan,
                                                                        staged_row<typename Share::stored> row,
                                                                        bool settled,
                                                                        row_choice<typename Share::bits> before,
                                                                        rows_apart& known) {
  lane_group<Lanes> group;
  const typename Share::places units(group.rank());
  const Share share(row, group.rank(), units);
  row_shape shape = known.shape;
  level_trials trials = known.trials;
  row_choice<typename Share::bits> choice;
  const bool found = trials.choose(group, plan, row, share, shape, choice.chosen, choice.place);
  known = {shape, trials};
  if (!found) return search_exactly<Share, Lanes>(plan, row, settled, before, &known.shape);
  return settled ? before : choice;
}

}  // namespace shortlist::cuda
