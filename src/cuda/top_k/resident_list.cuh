// What a block lists of a row in its shared memory, and how the k best of that are written. See resident_rows.cu.
#pragma once

#include <cstdint>

#include "cuda/top_k/filter_list.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_write.cuh"
#include "cuda/top_k/row_marks.cuh"
#include "cuda/top_k/stop_range.cuh"

namespace shortlist::cuda::filtering {

/// A row in a block's memory, and shared addresses of where the block has what it finds of it.
template <class Stored>
struct resident_search {
  const whole_row<Stored>& row;
  const resident_row<Stored>& values;
  row_places<Stored> places;
  std::uint32_t marks;
  std::uint32_t totals;  // of marks
  std::uint32_t list;    // of places

  /// Where values lie on their way out: the marks have been read.
  __device__ __forceinline__ std::uint32_t bits() const { return marks; }
};

/// Calls mark_row. @param worst becomes the thread's worst key of the row's vectors, where that is wanted.
template <bool Worst, bool Negated, class Stored>
__device__ __forceinline__ void mark_as(const resident_search<Stored>& of, const row_filter<Stored>& filter,
                                        const block_sums& sums, std::uint32_t& worst) {
  if constexpr (Worst) {
    worst_seen<Stored, Negated> seen;
    mark_row<Stored, Negated>(of.row, of.values, filter, of.marks, sums, seen);
    worst = seen.key();
  } else {
    sees_nothing seen;
    mark_row<Stored, Negated>(of.row, of.values, filter, of.marks, sums, seen);
  }
}
/// The same in either order, and reads the marks. @returns how many there are.
template <bool Worst, class Stored>
__device__ __forceinline__ std::uint32_t mark(const resident_search<Stored>& of, const row_filter<Stored>& filter,
                                              bool negated, const block_sums& sums, std::uint32_t& worst,
                                              row_marks& found) {
  if (negated)
    mark_as<Worst, true>(of, filter, sums, worst);
  else
    mark_as<Worst, false>(of, filter, sums, worst);
  return read_marks(of.row, filter, negated, of.marks, of.totals, found, sums);
}

/// What threads hold of a row's list. All is given a value: a register that one row leaves without is in use in all.
template <int Most>
struct held_list {
  std::uint32_t numbers[Most] = {};  // 0, which nothing is worse than, where there is no entry
  std::uint32_t places[Most] = {};   // in the row's memory
  std::uint32_t bits[Most] = {};     // of their values
};

/// Reads what the list's places have. @param least no number is below it.
template <class Stored, int Most>
__device__ __forceinline__ void hold(const resident_row<Stored>& row, std::uint32_t list, const round_share& share,
                                     std::uint32_t least, bool negated, held_list<Most>& held) {
  for_each_held<Most>(share, [&](int i) {
    if (share.has(i)) held.places[i] = load_shared<std::uint16_t>(list + share.at(i) * 2);
  });
  for_each_held<Most>(share, [&](int i) { held.bits[i] = row.bits(held.places[i]); });
  if (!are_bits_in_order<Stored>(least)) {
    for_each_held<Most>(share, [&](int i) {
      if (share.has(i)) held.numbers[i] = number_of(of_bits<Stored>(held.bits[i]), negated);
    });
    return;
  }
  const std::uint32_t turned = turn_of_bits<Stored>(negated);
  for_each_held<Most>(share, [&](int i) {
    const std::uint32_t number = held.bits[i] ^ turned;
    const bool is_number = sizeof(Stored) == 2 || number <= kInfinityNumber<Stored>;  // NaN of 16 bits is not marked
    if (share.has(i) && is_number) held.numbers[i] = number;
  });
}

/// Orders and writes the k best of what threads hold, in the row's memory. @returns whether they are in it. All threads
/// come, and leave through a barrier.
template <class Stored, int Most>
__device__ __forceinline__ bool write_in_order(const filter_block& block, const resident_search<Stored>& of,
                                               const row_writer<Stored>& write, const held_list<Most>& held,
                                               const round_share& share, std::uint32_t n, std::uint32_t least,
                                               learned& from_before, block_sums& sums) {
  __syncthreads();  // the row has been read
  for_each_held<Most>(share, [&](int i) {
    if (!share.has(i)) return;
    const std::uint32_t column = of.row.first_column + of.places.column(held.places[i]);
    store_shared(block.list.entries + share.at(i) * 8, make_uint2(column, held.bits[i]));
  });
  __syncthreads();
  return write_held<Stored, true>(block, write, n, least, from_before, sums, [] {});
}

/// Keeps a thread's entry to be written.
template <class Stored, int Most>
__device__ __forceinline__ void keep_held(const resident_search<Stored>& of, const held_list<Most>& held, int i,
                                          std::uint32_t place) {
  store_shared(of.list + place * 2, static_cast<std::uint16_t>(held.places[i]));
  store_bits<Stored>(of.bits() + place * static_cast<std::uint32_t>(sizeof(Stored)), held.bits[i]);
}
/// Writes the k entries that threads have kept. All threads come.
template <int Most, class Stored>
__device__ __forceinline__ void write_kept(const filter_block& block, const resident_search<Stored>& of,
                                           const row_writer<Stored>& write) {
  __syncthreads();
  write_by_place<(Most < kWrittenAtOnce ? 2 : kWrittenAtOnce), Stored>(
      block.request, write.first(), [&](std::uint32_t i) {
        const std::uint32_t place = load_shared<std::uint16_t>(of.list + i * 2);
        const std::uint32_t value = load_bits<Stored>(of.bits() + i * static_cast<std::uint32_t>(sizeof(Stored)));
        return entry_of(of_bits<Stored>(value), of.row.first_column + of.places.column(place));
      });
}

/// Writes the k best of what threads hold, by column. @param leave is called when the row has been read. @returns
/// whether they are in it. All threads come.
template <class Stored, int Most, class Leave>
__device__ __forceinline__ bool write_by_column(const filter_block& block, const resident_search<Stored>& of,
                                                const row_writer<Stored>& write, const held_list<Most>& held,
                                                const round_share& share, std::uint32_t n, std::uint32_t least,
                                                learned& from_before, block_sums& sums, Leave leave) {
  const auto k = static_cast<std::uint32_t>(block.request.options.k);
  __syncthreads();
  leave();
  const row_border border = held_border(held.numbers, share, n, k, least, kInfinityNumber<Stored>, from_before, sums);
  const auto keep = [&](std::uint32_t place, int i) { keep_held(of, held, i, place); };
  if (place_within(held.numbers, share, border, sums, keep) != k) return false;
  write_kept<Most>(block, of, write);
  return true;
}

}  // namespace shortlist::cuda::filtering
