// The columns that reached a row's filter: a list in a block's shared memory, and how the k best of it are found and
// written. See filter_rows_kernel.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/plan.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/count_from.cuh"
#include "cuda/top_k/filter_parts.cuh"

namespace shortlist::cuda::filtering {

/// A column: its number in x, its stored bits in y.
using entry = uint2;

template <class Stored>
__device__ __forceinline__ entry entry_of(Stored value, std::uint32_t column) {
  return make_uint2(column, bits_of(value));
}
template <class Stored>
__device__ __forceinline__ Stored stored_in(entry e) {
  return of_bits<Stored>(e.y);
}

/// Columns in shared memory, in their order.
struct row_list {
  std::uint32_t entries;  // their shared address
  std::uint32_t capacity;

  __device__ __forceinline__ entry operator()(std::uint32_t i) const { return load_shared<uint2>(entries + i * 8); }
};

/// A row's columns where they lie in global memory, as a list's.
template <class Stored>
struct columns_of_row {
  const whole_row<Stored>& row;

  __device__ __forceinline__ entry operator()(std::uint32_t i) const {
    return entry_of(row.values[i], row.first_column + i);
  }
};

/// A thread's share of entries: of a round of kHeld for each thread, each has neighbours. An odd number of them, so
/// that the lanes of a half warp read other banks.
constexpr int kHeld = 15;
constexpr std::uint32_t kRound = kHeld * kThreads;
static_assert(kHeld % 2 == 1 && kRound == core::kFilterRowsHeld);
struct round_share {
  std::uint32_t first;
  int steps;  // of all threads
  int count;  // of entries that the thread has

  /// @param odd how many of 8 bytes each thread has. @param most entries of a round.
  __device__ __forceinline__ round_share(std::uint32_t start, std::uint32_t n, bool odd = true,
                                         std::uint32_t most = kRound) {
    const std::uint32_t there = min(n - start, most);
    steps = static_cast<int>((there + kThreads - 1) / kThreads);
    if (odd) steps |= 1;
    const int before = static_cast<int>(threadIdx.x) * steps;
    first = start + before;
    count = max(min(static_cast<int>(there) - before, steps), 0);
  }
  __device__ __forceinline__ std::uint32_t at(int i) const { return first + i; }
  __device__ __forceinline__ bool has(int i) const { return i < count; }
};

/// Calls f(i) for a thread's entries, and for some behind them: a few at a time without a branch, so that what is done
/// with them overlaps. @tparam Most a share has
template <int Most, class F>
__device__ __forceinline__ void for_each_held(const round_share& share, F f) {
  constexpr int kAtOnce = 4;
#pragma unroll
  for (int start = 0; start < Most; start += kAtOnce) {
    if (start >= share.steps) break;
#pragma unroll
    for (int i = start; i < Most && i < start + kAtOnce; i++) f(i);
  }
}

/// The numbers of a thread's share; 0, which nothing is worse than, where it has no entry.
template <class Stored, int Most, class Entries>
__device__ __forceinline__ void load_numbers(const Entries& entries, const round_share& share, bool negated,
                                             std::uint32_t (&numbers)[Most]) {
#pragma unroll
  for (int i = 0; i < Most; i++) numbers[i] = 0;
  for_each_held<Most>(share, [&](int i) {
    if (share.has(i)) numbers[i] = number_of(stored_in<Stored>(entries(share.at(i))), negated);
  });
}

/// Of each thread's numbers in order, those that are no less than `least`: calls keep(place, i) for them, place
/// counting over the block. @returns how many there are. All threads come.
template <int Most, class Keep>
__device__ __forceinline__ std::uint32_t place_from(const std::uint32_t (&numbers)[Most], const round_share& share,
                                                    std::uint32_t least, block_sums& sums, Keep keep) {
  std::uint32_t mine = 0;
  for_each_held<Most>(share, [&](int i) { count_from(numbers[i], least, mine); });
  const std::uint32_t up_to = lanes_up_to(mine);
  std::uint32_t place = 0;
  const std::uint32_t all = sums.of_warps(up_to, place);
  place += up_to - mine;
  for_each_held<Most>(share, [&](int i) {
    if (numbers[i] >= least) keep(place, i);
    count_from(numbers[i], least, place);
  });
  return all;
}

/// The same of those within a border. @param before columns above the border, and ties, of earlier rounds; becomes what
/// later ones need. All threads come.
template <int Most, class Border, class Keep>
__device__ __forceinline__ void place_round(const std::uint32_t (&numbers)[Most], const round_share& share,
                                            const Border& border, uint2& before, block_sums& sums, Keep keep) {
  constexpr std::uint32_t kTie = 1u << 16;  // ties are counted in the upper half
  static_assert(Most * kThreads < kTie);
  std::uint32_t mine = 0;
  for_each_held<Most>(share, [&](int i) {
    mine += border.is_above(numbers[i]) ? 1 : 0;
    mine += border.is_tie(numbers[i]) && share.has(i) ? kTie : 0;
  });
  const std::uint32_t up_to = lanes_up_to(mine);
  std::uint32_t of_warps_before = 0;
  const std::uint32_t all = sums.of_warps(up_to, of_warps_before);
  const std::uint32_t of_lanes_before = up_to - mine;
  std::uint32_t above = before.x + of_warps_before % kTie + of_lanes_before % kTie;
  std::uint32_t ties = before.y + of_warps_before / kTie + of_lanes_before / kTie;
  const std::uint32_t chosen_ties = border.ties_beside(all % kTie);
  for_each_held<Most>(share, [&](int i) {
    const bool is_above = border.is_above(numbers[i]);
    const bool is_tie = border.is_tie(numbers[i]) && share.has(i);
    if (is_above || (is_tie && ties < chosen_ties)) keep(above + min(ties, chosen_ties), i);
    ties += is_tie ? 1 : 0;
    above += is_above ? 1 : 0;
  });
  before.x += all % kTie;
  before.y += all / kTie;
}

/// Of one round. @returns how many are within the border. All threads come.
template <int Most, class Keep>
__device__ __forceinline__ std::uint32_t place_within(const std::uint32_t (&numbers)[Most], const round_share& share,
                                                      const row_border& border, block_sums& sums, Keep keep) {
  if (border.ties == 0) return place_from(numbers, share, border.number + 1, sums, keep);
  uint2 before = make_uint2(0, 0);
  place_round(numbers, share, border, before, sums, keep);
  return before.x + min(before.y, border.ties);
}

/// Calls f(share, numbers, before) for rounds of n entries, `before` being as of place_round. @returns it. All threads
/// come.
template <class Stored, class Entries, class F>
__device__ __forceinline__ uint2 for_each_round(const Entries& entries, std::uint32_t n, bool negated, F f) {
  uint2 before = make_uint2(0, 0);
#pragma unroll 1
  for (std::uint32_t start = 0; start < n; start += kRound) {
    const round_share share(start, n);
    std::uint32_t numbers[kHeld];
    load_numbers<Stored>(entries, share, negated, numbers);
    f(share, numbers, before);
  }
  return before;
}

/// Calls keep(place, entry) for those of n entries that are within a border, in their order. @returns how many there
/// are. All threads come, after a barrier.
template <class Stored, class Entries, class Keep>
__device__ __forceinline__ std::uint32_t for_each_within(const Entries& entries, std::uint32_t n, bool negated,
                                                         const row_border& border, block_sums& sums, Keep keep) {
  const auto place = [&](const round_share& share, const std::uint32_t(&numbers)[kHeld], uint2& before) {
    place_round(numbers, share, border, before, sums,
                [&](std::uint32_t place, int i) { keep(place, entries(share.at(i))); });
  };
  const uint2 placed = for_each_round<Stored>(entries, n, negated, place);
  return placed.x + min(placed.y, border.ties);
}

/// The same of one round for the keys of those entries, which go to the begin of a list, be it the one that they come
/// from. All threads come; a barrier must follow.
template <class Stored, class Entries>
__device__ __forceinline__ void gather_round(const Entries& entries, const std::uint32_t (&numbers)[kHeld],
                                             const round_share& share, bool negated, const row_border& border,
                                             const row_list& list, uint2& before, block_sums& sums) {
  uint2 keys[kHeld];
  std::uint32_t places[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; i++) places[i] = ~0u;
  place_round(numbers, share, border, before, sums, [&](std::uint32_t place, int i) {
    const entry e = entries(share.at(i));
    places[i] = place;
    keys[i] = make_uint2(~e.x, key_of_value(stored_in<Stored>(e), negated));  // see core::row_key
  });
  __syncthreads();  // the round has been read, and its places are not behind it
#pragma unroll
  for (int i = 0; i < kHeld; i++)
    if (places[i] != ~0u) store_shared(list.entries + places[i] * 8, keys[i]);
}
/// Of all rounds. All threads leave through a barrier.
template <class Stored, class Entries>
__device__ __forceinline__ std::uint32_t gather_keys(const Entries& entries, std::uint32_t n, bool negated,
                                                     const row_border& border, const row_list& list, block_sums& sums) {
  const auto gather = [&](const round_share& share, const std::uint32_t(&numbers)[kHeld], uint2& before) {
    gather_round<Stored>(entries, numbers, share, negated, border, list, before, sums);
  };
  const uint2 gathered = for_each_round<Stored>(entries, n, negated, gather);
  __syncthreads();
  return gathered.x + min(gathered.y, border.ties);
}

/// Sorts keys[0, n) in shared memory, which has room for a power of two, and calls write(rank, key) for the k best. All
/// threads come, after a barrier, and leave before one.
template <class Write>
__device__ __forceinline__ void sort_padded(std::uint64_t* keys, std::uint32_t n, std::uint32_t k, Write write) {
  const std::uint32_t padded = 1u << (32 - __clz(static_cast<int>(n - 1)));
  for (std::uint32_t i = n + threadIdx.x; i < padded; i += kThreads) keys[i] = core::kNoRow;
  block_sort<kThreads>(keys, padded);
  for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) write(i, keys[i]);
}

/// Calls write(rank, key) for n keys in shared memory, the largest first. The keys are moved. All threads come, after a
/// barrier, and leave before one. @pre room for twice n keys, and for n padded to a power of two.
template <class Write>
__device__ __forceinline__ void for_each_in_order(std::uint64_t* keys, std::uint32_t n, order_scratch& scratch,
                                                  Write write) {
  if (n <= kThreads) {
    rank_by_counting<kThreads>(keys, n, write);
    return;
  }
  if (sort_by_bins<kThreads>(keys_in_turn<kThreads>{keys, n}, n, n, keys + n, n, scratch.bins, scratch.select, write))
    return;
  sort_padded(keys, n, n, write);
}

/// Calls write(rank, key) for the k best of what the threads hold of a list, the largest first: in bins of numbers and,
/// within a number, of columns; then by counting within a bin, where the list was. @param entries of the list, in
/// memory that has room for a power of two. @param columns all are below.
/// @returns false, and writes nothing, if fewer than k are within the border. All threads come; they leave through a
/// barrier.
template <class Stored, class Write>
__device__ __forceinline__ bool for_each_held_in_order(std::uint64_t* entries, const row_list& list,
                                                       const round_share& share, bool negated, const row_border& border,
                                                       std::uint32_t k, std::uint32_t columns, order_scratch& scratch,
                                                       block_sums& sums, Write write) {
  constexpr std::uint32_t kMostInBin = 256;  // more are sorted otherwise
  constexpr int kBinsEach = kOrderBins / kThreads;
  constexpr std::uint64_t kNone = 0;  // no key has position ~0
  for (int i = threadIdx.x; i < kOrderBins; i += kThreads) scratch.bins.next[i] = 0;
  std::uint64_t keys[kHeld];
  std::uint32_t best = 0;
#pragma unroll
  for (int i = 0; i < kHeld; i++) keys[i] = kNone;
  for_each_held<kHeld>(share, [&](int i) {
    if (!share.has(i)) return;
    const entry e = list(share.at(i));
    const std::uint64_t key = core::row_key(key_of_value(stored_in<Stored>(e), negated), e.x);
    const std::uint32_t number = core::key_of(key) >> kSharedBits<Stored>;
    if (number > border.number || (number == border.number && border.ties > 0)) keys[i] = key;
    best = max(best, number);
  });
  best = __reduce_max_sync(kFullWarp, best);
  if (sums.lane() == 0) scratch.best[sums.warp()] = best;
  __syncthreads();  // the list has been read
  best = __reduce_max_sync(kFullWarp, sums.lane() < kWarps ? scratch.best[sums.lane()] : 0);
  const float scale = __fdividef(kOrderBins - 1, static_cast<float>(best - border.number) + 1.0f);
  const float share_of_column = __frcp_rd(__uint2float_ru(columns));  // all together are no more than a number
  // Bin 0 holds the best: sum and product are monotone, and so is their rounding.
  const auto bin_of = [&](std::uint64_t key) {
    const std::uint32_t worse = best - (core::key_of(key) >> kSharedBits<Stored>);
    const float of_columns = static_cast<float>(core::position_of(key)) * share_of_column;
    return min(kOrderBins - 1, static_cast<int>((static_cast<float>(worse) + of_columns) * scale));
  };
  for_each_held<kHeld>(share, [&](int i) {
    if (keys[i] != kNone) atomicAdd(&scratch.bins.next[bin_of(keys[i])], 1u);
  });
  __syncthreads();
  std::uint32_t counts[kBinsEach];
  std::uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kBinsEach; i++) mine += counts[i] = scratch.bins.next[threadIdx.x * kBinsEach + i];
  const std::uint32_t up_to = lanes_up_to(mine);
  std::uint32_t before = 0;
  const std::uint32_t n = sums.of_warps(up_to, before);
  before += up_to - mine;
  std::uint32_t fullest = 0;
#pragma unroll
  for (int i = 0; i < kBinsEach; i++) {
    const int bin = threadIdx.x * kBinsEach + i;
    scratch.bins.start[bin] = scratch.bins.next[bin] = before;
    if (before < k) fullest = max(fullest, counts[i]);
    before += counts[i];
  }
  if (threadIdx.x == kThreads - 1) scratch.bins.start[kOrderBins] = n;
  fullest = __reduce_max_sync(kFullWarp, fullest);
  if (sums.lane() == 0) scratch.fullest[sums.warp()] = fullest;
  __syncthreads();
  fullest = __reduce_max_sync(kFullWarp, sums.lane() < kWarps ? scratch.fullest[sums.lane()] : 0);
  if (n < k) return false;
  for_each_held<kHeld>(share, [&](int i) {
    if (keys[i] != kNone) entries[atomicAdd(&scratch.bins.next[bin_of(keys[i])], 1u)] = keys[i];
  });
  __syncthreads();
  if (fullest > kMostInBin) {
    sort_padded(entries, n, k, write);
  } else {
#pragma unroll 2
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) {
      const std::uint64_t key = entries[i];
      const int bin = bin_of(key);
      std::uint32_t rank = scratch.bins.start[bin];
      const std::uint32_t end = scratch.bins.start[bin + 1];
      if (rank >= k) break;
#pragma unroll 4
      for (std::uint32_t j = scratch.bins.start[bin]; j < end; j++) rank += entries[j] > key;
      if (rank < k) write(rank, key);
    }
  }
  __syncthreads();
  return true;
}

}  // namespace shortlist::cuda::filtering
