// Rows that an early stop does not take: they hold NaN or an infinity, and their result is the exact one.
//
// They are few, or all: of masked rows, every one holds -inf. Calls keep their search out of the registers, and of the
// loop, of rows that an early stop takes; what they learn of where borders lie is kept in shared memory. History, 2^20
// x 256, k 32, four steps, on an H100: one row after the other by its keys, infinities in every row 5.39 ms, NaN in
// every tenth 1.28 -> all rows of a warp by 16-bit numbers 0.54 and 0.80. On an H200, 0.43 and 0.38 -> what is known in
// shared memory instead of local 0.36 and 0.38.
#pragma once

#include "cuda/top_k/row_levels.cuh"
#include "cuda/top_k/row_queue.cuh"
#include "cuda/top_k/row_search.cuh"

namespace shortlist::cuda {

/// What a group knows of rows that were searched exactly. It lies behind the queue, where calls find it by themselves:
/// an address that they are handed takes registers from all rows.
struct rows_apart {
  row_shape shape;
  level_trials<false> trials;
};
template <int Lanes>
constexpr std::int64_t apart_bytes(int warps) {
  return (warps * (kWarp / Lanes) * std::int64_t{sizeof(rows_apart)} + 127) / 128 * 128;
}
template <int Lanes>
__device__ __forceinline__ rows_apart& known_apart() {
  return reinterpret_cast<rows_apart*>(dynamic_shared() + kQueueBytes)[threadIdx.x / Lanes];
}

/// Whether it is kept from row to row. Where registers are short, a call that knows it costs all rows more than it
/// saves those apart.
template <int Values, int Lanes>
constexpr bool kKnowsApart = Values != 32 || Lanes < kWarp;

/// Keeps what all lanes of a warp know of their groups' rows. They call it together.
template <int Lanes, class T>
__device__ __forceinline__ void keep(T& known, const T& now) {
  __syncwarp();  // it has been read
  if (threadIdx.x % Lanes == 0) known = now;
  __syncwarp();
}

/// Chooses the k best of the rows of a warp, but for those that are `settled`, whose choice is `before`: by search_row,
/// and by keys. All its lanes call it.
template <class Share, int Lanes>
__device__ __noinline__ row_choice<typename Share::bits> search_exactly(const search_plan& plan,
                                                                        staged_row<typename Share::stored> row,
                                                                        bool settled,
                                                                        row_choice<typename Share::bits> before) {
  lane_group<Lanes> group;
  const typename Share::places units(group.rank());
  const Share share(row, group.rank(), units);
  constexpr bool kKnows = kKnowsApart<Share::kValues, Lanes>;
  row_shape shape{.border = plan.deviations};
  if constexpr (kKnows) shape = known_apart<Lanes>().shape;
  bool found = false;
  auto marks = search_row<false>(group, plan, row, share, shape, true, found);
  if constexpr (kKnows) keep<Lanes>(known_apart<Lanes>().shape, shape);
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
                                                                        row_choice<typename Share::bits> before) {
  lane_group<Lanes> group;
  const typename Share::places units(group.rank());
  const Share share(row, group.rank(), units);
  rows_apart& known = known_apart<Lanes>();
  row_shape shape = known.shape;
  level_trials<false> trials = known.trials;
  row_choice<typename Share::bits> choice;
  const bool found = trials.choose(group, plan, row, share, shape, choice.chosen, choice.place);
  keep<Lanes>(known, {shape, trials});
  if (!found) return search_exactly<Share, Lanes>(plan, row, settled, before);
  return settled ? before : choice;
}

}  // namespace shortlist::cuda
