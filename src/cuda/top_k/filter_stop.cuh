// Early stops of rows that were streamed past a filter: what they select, and how it is written. See
// filter_rows_kernel.cuh.
//
// The path of the bisection follows from a row's extremes and its k-th best (row_path.cuh). The worst value is looked
// for while the row comes; the best and the k-th best are in the list. What reaches the path's lower end is in the
// list, too, if that end is no lower than the filter; else the row is read once more, from its first column until all
// is found: many reach so low an end, and the first k of them are soon there.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/top_k/filter_list.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_write.cuh"
#include "cuda/top_k/stop_range.cuh"

namespace shortlist::cuda::filtering {

/// What a block has in shared memory beside for early stops.
struct stop_scratch {
  uint2 ends[kWarps];
  std::uint32_t totals[2][kWarps];  // of the warps, in turn: none is written while it is read
  std::uint32_t worst[kWarps];      // keys of the warps' worst values
};

/// What a block has for rows that are stopped early.
struct stop_block {
  const filter_block& of_exact;
  early_stop stop;
  stop_scratch& scratch;
};

/// Over the block's threads, the least of one and the largest of the other. All threads come.
__device__ __forceinline__ uint2 ends_of_block(std::uint32_t least, std::uint32_t most, stop_scratch& scratch,
                                               const block_sums& sums) {
  least = __reduce_min_sync(kFullWarp, least);
  most = __reduce_max_sync(kFullWarp, most);
  if (sums.lane() == 0) scratch.ends[sums.warp()] = make_uint2(least, most);
  __syncthreads();
  const uint2 told = sums.lane() < kWarps ? scratch.ends[sums.lane()] : make_uint2(~0u, 0);
  return make_uint2(__reduce_min_sync(kFullWarp, told.x), __reduce_max_sync(kFullWarp, told.y));
}

/// Tells the block the thread's worst key, with what lies beside the row's vectors. A barrier must follow.
template <class Stored>
__device__ __forceinline__ void tell_worst(const whole_row<Stored>& row, bool negated, std::uint32_t worst,
                                           const stop_block& stops, const block_sums& sums) {
  const auto see = [&](std::uint32_t first, std::uint32_t columns) {
    if (sums.lane() < columns) worst = min(worst, key_of_value(row.values[first + sums.lane()], negated));
  };
  see(0, row.head);
  see(row.columns - row.tail(), row.tail());
  worst = __reduce_min_sync(kFullWarp, worst);
  if (sums.lane() == 0) stops.scratch.worst[sums.warp()] = worst;
}
/// The row's worst key.
__device__ __forceinline__ std::uint32_t told_worst(const stop_block& stops, const block_sums& sums) {
  return __reduce_min_sync(kFullWarp, sums.lane() < kWarps ? stops.scratch.worst[sums.lane()] : ~0u);
}

constexpr int kReadAtOnce = 4;  // vectors of a thread

/// Calls keep(place, value, column) for the first k columns of a row whose numbers are at least `low`: there are as
/// many. All threads come, after a barrier; one must follow.
template <class Stored, class Keep>
__device__ __forceinline__ void for_each_first(const whole_row<Stored>& row, bool negated, std::uint32_t low,
                                               std::uint32_t k, stop_scratch& scratch, Keep keep) {
  constexpr std::uint32_t kPer = kPerVector<Stored>;
  constexpr std::uint32_t kTile = kThreads * kReadAtOnce;
  const auto* vectors = reinterpret_cast<const uint4*>(row.values + row.head);
  const float from = value_of_number<Stored>(low);
  const std::uint32_t flip = negated ? kSigns<Stored> : 0;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  std::uint32_t listed = 0;
  const auto keep_beside = [&](std::uint32_t first, std::uint32_t columns) {
    const bool is_there = lane < columns;
    const Stored value = is_there ? row.values[first + lane] : Stored{};
    const bool reaches = is_there && number_of(value, negated) >= low;
    const unsigned marks = __ballot_sync(kFullWarp, reaches);
    const std::uint32_t place = listed + __popc(marks & ((1u << lane) - 1));
    if (reaches && warp == 0 && place < k) keep(place, value, row.first_column + first + lane);
    listed += __popc(marks);
  };
  keep_beside(0, row.head);
  uint4 raw[kReadAtOnce];
  const auto load = [&](std::uint32_t tile, uint4(&to)[kReadAtOnce]) {
#pragma unroll
    for (std::uint32_t v = 0; v < kReadAtOnce; v++) {
      const std::uint32_t at = tile + (warp * kReadAtOnce + v) * kWarp + lane;
      to[v] = at < row.vectors ? __ldg(vectors + at) : uint4{~0u, ~0u, ~0u, ~0u};  // NaN, which reaches nothing
    }
  };
  std::uint32_t turn = 0;
  load(0, raw);
#pragma unroll 1
  for (std::uint32_t tile = 0; tile < row.vectors && listed < k; tile += kTile, turn ^= 1) {
    std::uint32_t marks = 0;
    std::uint32_t up_to[kReadAtOnce];
    std::uint32_t of_warp = 0;
#pragma unroll
    for (std::uint32_t v = 0; v < kReadAtOnce; v++) {
      float values[kPer];
      widen_vector<Stored>(make_uint4(raw[v].x ^ flip, raw[v].y ^ flip, raw[v].z ^ flip, raw[v].w ^ flip), values);
      std::uint32_t of_vector = 0;
#pragma unroll
      for (std::uint32_t e = 0; e < kPer; e++) of_vector |= values[e] >= from ? 1u << e : 0u;
      marks |= of_vector << (v * kPer);
      const std::uint32_t with_mine = lanes_up_to(__popc(of_vector));
      up_to[v] = of_warp + with_mine - __popc(of_vector);
      of_warp += __shfl_sync(kFullWarp, with_mine, kWarp - 1);
    }
    if (lane == 0) scratch.totals[turn][warp] = of_warp;
    __syncthreads();
    const std::uint32_t told = lane < kWarps ? scratch.totals[turn][lane] : 0;
    const std::uint32_t before = listed + __reduce_add_sync(kFullWarp, lane < warp ? told : 0);
    listed += __reduce_add_sync(kFullWarp, told);
#pragma unroll
    for (std::uint32_t v = 0; v < kReadAtOnce; v++) {
      Stored values[kPer];
      memcpy(values, &raw[v], sizeof raw[v]);
      const std::uint32_t first = row.head + (tile + (warp * kReadAtOnce + v) * kWarp + lane) * kPer;
      std::uint32_t place = before + up_to[v];
#pragma unroll
      for (std::uint32_t e = 0; e < kPer; e++) {
        if ((marks & 1u << (v * kPer + e)) == 0) continue;
        if (place < k) keep(place, values[e], row.first_column + first + e);
        place++;
      }
    }
    load(tile + kTile, raw);
  }
  if (listed < k) keep_beside(row.columns - row.tail(), row.tail());
}

/// Writes those columns, through the block's list. All threads come, after a barrier; they leave through one.
template <class Stored>
__device__ __forceinline__ void write_first(const stop_block& block, const row_writer<Stored>& write,
                                            const whole_row<Stored>& row, std::uint32_t low) {
  const core::top_k_request& request = block.of_exact.request;
  const std::uint32_t entries = block.of_exact.list.entries;
  for_each_first(row, request.options.order == order::smallest, low, static_cast<std::uint32_t>(request.options.k),
                 block.scratch, [&](std::uint32_t place, Stored value, std::uint32_t column) {
                   store_shared(entries + place * 8, entry_of(value, column));
                 });
  __syncthreads();
  write_by_place<kWrittenAtOnce, Stored>(request, write.first(),
                                         [&](std::uint32_t i) { return block.of_exact.list(i); });
  __syncthreads();
}

/// Writes what an early stop selects of a row with a list. @param exact the border of its k best. @param least all
/// columns above it are in the list, and those that have it unless `by_columns`. @param worst the row's worst number,
/// NaN's if it has one. @param visit calls its argument with each of this thread's numbers. @param place_listed writes
/// what a range has of the list, if k are there; and returns whether they are. @param read_row does the same of the
/// row.
/// @returns whether all is written; if not, nothing of use is. All threads come.
template <class Stored, class Visit, class PlaceListed, class ReadRow>
__device__ __forceinline__ bool write_stopped(const stop_block& block, const row_border& exact, std::uint32_t least,
                                              bool by_columns, std::uint32_t worst, block_sums& sums, Visit visit,
                                              PlaceListed place_listed, ReadRow read_row) {
  const std::uint32_t from = exact.number + (exact.ties > 0 ? 0 : 1);
  std::uint32_t border = ~0u;
  std::uint32_t best = 0;
  visit([&](std::uint32_t number) {
    if (number >= from) border = min(border, number);
    best = max(best, number);
  });
  const uint2 ends = ends_of_block(border, best, block.scratch, sums);
  stop_range range{from, exact.number + 1, static_cast<std::uint32_t>(block.of_exact.request.options.k)};
  const bool stops = find_stop<Stored>(block.stop, {worst, ends.y, ends.x}, range);
  if (!stops || (by_columns ? range.low > least : range.low >= least)) return place_listed(range);
  std::uint32_t above = 0;
  if (!block.stop.by_count) {
    visit([&](std::uint32_t number) { count_from(number, range.high, above); });
    above = sums.of_threads(above);
  }
  return read_row(counted_range(range, above));
}

/// Of each thread's numbers in order, those that an early stop selects, and more: calls keep(place, i) for them, place
/// counting over the block. @returns how many there are. All threads come.
template <int Most, class Keep>
__device__ __forceinline__ std::uint32_t place_stopped(const std::uint32_t (&numbers)[Most], const round_share& share,
                                                       const stop_range& range, block_sums& sums, Keep keep) {
  if (range.none_above()) return place_from(numbers, share, range.low, sums, keep);
  uint2 placed = make_uint2(0, 0);
  place_round(numbers, share, range, placed, sums, keep);
  return placed.x + placed.y;
}

/// Finds and writes what an early stop selects of a row, from what the threads hold of its list. @param n entries of
/// it, k or more. @param meanwhile is called on the way. @param unlisted becomes what must be read from the row where
/// that is not done here. Else as above. All threads come.
template <class Stored, class Meanwhile>
__device__ __forceinline__ bool write_held_stopped(const stop_block& block, const row_writer<Stored>& write,
                                                   const whole_row<Stored>& row, std::uint32_t n, std::uint32_t least,
                                                   std::uint32_t worst, learned& from_before, block_sums& sums,
                                                   Meanwhile meanwhile, counted_range& unlisted) {
  const core::top_k_request& request = block.of_exact.request;
  const row_list& list = block.of_exact.list;
  const std::uint32_t places = block.of_exact.places;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const round_share share(0, n);
  std::uint32_t numbers[kHeld];
  load_marked_numbers<Stored>(list, share, least, request.options.order == order::smallest, numbers);
  const row_border exact = held_border(numbers, share, n, k, least, kInfinityNumber<Stored>, from_before, sums);
  meanwhile();
  const auto visit = [&](auto f) {
    for_each_held<kHeld>(share, [&](int i) {
      if (share.has(i)) f(numbers[i]);
    });
  };
  const auto place_listed = [&](const stop_range& range) {
    const auto keep = [&](std::uint32_t place, int i) {
      if (place < k) store_shared(places + place * 2, static_cast<std::uint16_t>(share.at(i)));
    };
    if (place_stopped(numbers, share, range, sums, keep) < k) return false;
    __syncthreads();
    write_by_place<kWrittenAtOnce, Stored>(
        request, write.first(), [&](std::uint32_t i) { return list(load_shared<std::uint16_t>(places + i * 2)); });
    return true;
  };
  const auto read_row = [&](const counted_range& range) {
    if (!range.none_above()) {
      unlisted = range;
      return false;
    }
    write_first(block, write, row, range.low);
    meanwhile();  // again: what it has loaded was in nobody's way so
    return true;
  };
  return write_stopped<Stored>(block, exact, least, from_before.by_columns, worst, sums, visit, place_listed, read_row);
}

/// The same of a list that is longer than the threads may hold. All threads come, after a barrier; they leave through
/// one.
template <class Stored>
__device__ __forceinline__ bool write_long_stopped(const stop_block& block, const row_writer<Stored>& write,
                                                   std::uint32_t n, std::uint32_t least, std::uint32_t worst,
                                                   const learned& from_before, block_sums& sums,
                                                   counted_range& unlisted) {
  const core::top_k_request& request = block.of_exact.request;
  const row_list& list = block.of_exact.list;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const auto visit = [&](auto f) {
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) f(number_of(stored_in<Stored>(list(i)), negated));
  };
  row_border exact{};
  if (!border_of_long<Stored>(visit, k, least, exact, sums, block.of_exact.scratch)) return false;
  const auto place_listed = [&](const stop_range& range) {
    std::uint32_t above = 0;
    visit([&](std::uint32_t number) { count_from(number, range.high, above); });
    const counted_range counted(range, sums.of_threads(above));
    const auto place = [&](const round_share& share, const std::uint32_t(&numbers)[kHeld], uint2& before) {
      place_round(numbers, share, counted, before, sums, [&](std::uint32_t at, int i) {
        const entry e = list(share.at(i));
        if (at < k) write.stored(at, e.x, stored_in<Stored>(e));
      });
    };
    const uint2 placed = for_each_round<Stored>(list, n, negated, place);
    __syncthreads();
    return placed.x + placed.y >= k;
  };
  const auto read_row = [&](const counted_range& range) {
    unlisted = range;
    return false;
  };
  return write_stopped<Stored>(block, exact, least, from_before.by_columns, worst, sums, visit, place_listed, read_row);
}

/// Finds what an early stop selects of a row of more than k columns by its numbers in global memory. @param visit calls
/// its argument with each of this thread's. All threads come, after a barrier.
template <class Stored, class Visit>
__device__ __forceinline__ counted_range range_of_row(const stop_block& block, Visit visit, block_sums& sums) {
  const auto k = static_cast<std::uint32_t>(block.of_exact.request.options.k);
  row_border exact{};
  border_by_bins(visit, k, all_numbers<Stored>(), all_numbers<Stored>(), exact, sums, block.of_exact.scratch);
  std::uint32_t worst = ~0u;
  std::uint32_t best = 0;
  visit([&](std::uint32_t number) {
    worst = min(worst, number);
    best = max(best, number);
  });
  const uint2 ends = ends_of_block(worst, best, block.scratch, sums);
  stop_range range{exact.number, exact.number + 1, k};
  find_stop<Stored>(block.stop, {ends.x, ends.y, exact.number}, range);
  std::uint32_t above = 0;
  visit([&](std::uint32_t number) { count_from(number, range.high, above); });
  return {range, sums.of_threads(above)};
}

/// Writes what an early stop selects of a row that is read where it lies. @param range if it is known. @param first
/// write_first, or what does the same. All threads come, after a barrier; they leave through one.
template <class Stored, class First>
__device__ __forceinline__ void search_stop(const stop_block& block, std::int64_t index, counted_range range,
                                            block_sums& sums, First first) {
  const core::top_k_request& request = block.of_exact.request;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const whole_row<Stored> row = open_row<Stored>(request, index);
  const row_writer<Stored> write(request, index, row);
  if (row.columns <= k) {
    range = {{0, stop_range::kNoneAbove, k}, 0};
  } else if (range.k == 0) {
    const auto visit = [&](auto f) {
#pragma unroll 4
      for (std::uint32_t i = threadIdx.x; i < row.columns; i += kThreads) f(number_of(row.values[i], negated));
    };
    range = range_of_row<Stored>(block, visit, sums);
  }
  if (range.none_above() && row.columns > k) {
    first(write, row, range.low);
    return;
  }
  const columns_of_row<Stored> columns{row};
  const auto place = [&](const round_share& share, const std::uint32_t(&numbers)[kHeld], uint2& before) {
    place_round(numbers, share, range, before, sums, [&](std::uint32_t at, int i) {
      const entry e = columns(share.at(i));
      if (at < k) write.stored(at, e.x, stored_in<Stored>(e));
    });
  };
  for_each_round<Stored>(columns, row.columns, negated, place);
  for (std::uint32_t i = row.columns + threadIdx.x; i < k; i += kThreads) write.pad(i);
  __syncthreads();
}

}  // namespace shortlist::cuda::filtering
