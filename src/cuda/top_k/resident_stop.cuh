// Early stops of rows that a block holds in shared memory: what is not listed is looked for once more, there. See
// resident_rows.cu.
#pragma once

#include <cstdint>

#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_stop.cuh"
#include "cuda/top_k/resident_list.cuh"
#include "cuda/top_k/row_marks.cuh"

namespace shortlist::cuda::filtering {

/// Writes the first k columns of a row whose numbers are at least `low` as they are found: the block's memory may have
/// the next row. All threads come, after a barrier; they leave through one.
template <class Stored>
__device__ __forceinline__ void write_first_unlisted(const stop_block& block, const row_writer<Stored>& write,
                                                     const whole_row<Stored>& row, std::uint32_t low) {
  const core::top_k_request& request = block.of_exact.request;
  for_each_first(row, request.options.order == order::smallest, low, static_cast<std::uint32_t>(request.options.k),
                 block.scratch,
                 [&](std::uint32_t place, Stored value, std::uint32_t column) { write.stored(place, column, value); });
  __syncthreads();
}

/// How many numbers below its border the early stop of a row may end that is like the one before, as far as a list has
/// room: of columns that grow by the same factor with every number as they did between cut and border.
/// @param n columns that reached the cut, more than k. @param room for so many
template <class Stored>
__device__ __forceinline__ float reach_of_stop(const stop_range& before, const learned& from_before, std::uint32_t k,
                                               std::uint32_t n, std::uint32_t room) {
  const float end = value_of_number<Stored>(from_before.least) - before.width;
  const auto below = static_cast<float>(from_before.least - least_number_from<Stored>(end));
  const auto of = [](std::uint32_t count) { return static_cast<float>(count); };
  const float to_border = of(n - k) * from_before.spread;
  const float most = to_border * __fdividef(__logf(of(room) / of(k)), __logf(of(n) / of(k)));
  return fmaxf(fminf(below, most), 0.0f);
}

/// Writes what a range has of what threads hold of a row's list. @param leave is called first. @returns whether k are
/// in it; if not, nothing is written. All threads come, after a barrier behind what has read the row.
template <class Stored, int Most, class Leave>
__device__ __forceinline__ bool write_range(const filter_block& block, const resident_search<Stored>& of,
                                            const row_writer<Stored>& write, const held_list<Most>& held,
                                            const round_share& share, const stop_range& range, block_sums& sums,
                                            Leave leave) {
  const auto k = static_cast<std::uint32_t>(block.request.options.k);
  leave();
  const auto keep = [&](std::uint32_t place, int i) {
    if (place < k) keep_held(of, held, i, place);
  };
  if (place_stopped(held.numbers, share, range, sums, keep) < k) return false;
  write_kept<Most>(block, of, write);
  return true;
}

/// The same of the row itself, whose columns from the range's lower end on are listed anew: the first k of them where
/// those are chosen. @returns false, too, if threads cannot hold so many; then `leave` has not been called.
template <int Most, class Stored, class Leave>
__device__ __forceinline__ bool write_range_anew(const filter_block& block, const resident_search<Stored>& of,
                                                 const row_writer<Stored>& write, const stop_range& range,
                                                 block_sums& sums, Leave leave) {
  const bool negated = block.request.options.order == order::smallest;
  __syncthreads();  // what the totals' memory told has been read
  const row_filter<Stored> filter(std::uint64_t{range.low << kSharedBits<Stored>} << 32, of.row);
  std::uint32_t worst = 0;
  row_marks found;
  const std::uint32_t marked = mark<false>(of, filter, negated, sums, worst, found);
  const std::uint32_t n = range.none_above() ? min(marked, range.k) : marked;
  if (n > Most * kThreads) return false;
  list_first_places(of.row, of.values, found, marked, n, of.list, sums);
  __syncthreads();
  const round_share share(0, n, false);
  held_list<Most> held;
  hold(of.values, of.list, share, range.low, negated, held);
  __syncthreads();
  return write_range(block, of, write, held, share, range, sums, leave);
}

/// Writes what an early stop selects of a row, from what threads hold of its list, or else by looking at the row again.
/// @param worst the thread's worst key. @param leave is called when the row has been read. @param range becomes what
/// was selected by. @param unlisted becomes the same where neither was enough. @returns whether all is written. All
/// threads come.
template <class Stored, int Most, class Leave>
__device__ __forceinline__ bool write_stopped_by_column(const stop_block& stops, const resident_search<Stored>& of,
                                                        const row_writer<Stored>& write, const held_list<Most>& held,
                                                        const round_share& share, std::uint32_t n, std::uint32_t least,
                                                        std::uint32_t worst, learned& from_before, block_sums& sums,
                                                        Leave leave, stop_range& range, counted_range& unlisted) {
  const filter_block& block = stops.of_exact;
  const auto k = static_cast<std::uint32_t>(block.request.options.k);
  tell_worst(of.row, block.request.options.order == order::smallest, worst, stops, sums);
  __syncthreads();
  const row_border exact = held_border(held.numbers, share, n, k, least, kInfinityNumber<Stored>, from_before, sums);
  const auto visit = [&](auto f) {
    for_each_held<Most>(share, [&](int i) {
      if (share.has(i)) f(held.numbers[i]);
    });
  };
  const auto place_listed = [&](const stop_range& of_row) {
    range = of_row;
    return write_range(block, of, write, held, share, of_row, sums, leave);
  };
  const auto read_row = [&](const counted_range& of_row) {
    range = of_row;
    if (write_range_anew<Most>(block, of, write, of_row, sums, leave)) return true;
    unlisted = of_row;
    return false;
  };
  const std::uint32_t worst_number = told_worst(stops, sums) >> kSharedBits<Stored>;
  return write_stopped<Stored>(stops, exact, least, from_before.by_columns, worst_number, sums, visit, place_listed,
                               read_row);
}

}  // namespace shortlist::cuda::filtering
