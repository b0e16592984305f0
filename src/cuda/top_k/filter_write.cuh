// How the k best of a row's list are found and written, or of the row itself where its list does not hold them. See
// filter_rows_kernel.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/block_select.cuh"
#include "cuda/device/count_from.cuh"
#include "cuda/top_k/filter_list.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_sample.cuh"

namespace shortlist::cuda::filtering {

constexpr row_border kNoneWithin{~0u - 1, 0};  // of a border

/// The border of the `wanted` best of a few of a list's numbers: those from `low` on, below low + width. @param few so
/// many there are, no more than kMostRivals; or fewer, where NaN was taken for an entry that reaches the filter.
/// @returns kNoneWithin if that is found out. All threads come.
template <int Most>
__device__ __forceinline__ row_border border_of_few(const std::uint32_t (&numbers)[Most], const round_share& share,
                                                    std::uint32_t low, std::uint32_t width, std::uint32_t few,
                                                    std::uint32_t wanted, const block_sums& sums) {
  const auto is_rival = [&](std::uint32_t number) { return number >= low && number - low < width; };
  bool has_some = false;  // mostly not
  for_each_held<Most>(share, [&](int i) { has_some |= is_rival(numbers[i]); });
  if (has_some) {
    for_each_held<Most>(share, [&](int i) {
      if (is_rival(numbers[i])) store_shared(sums.rivals() + fetch_add_shared(sums.rival_count(), 1) * 4, numbers[i]);
    });
  }
  __syncthreads();
  const bool is_one = sums.lane() < few;
  const std::uint32_t mine = is_one ? load_shared<std::uint32_t>(sums.rivals() + sums.lane() * 4) : 0;
  if (threadIdx.x == 0) store_shared(sums.rival_count(), 0u);
  std::uint32_t above = 0;
  std::uint32_t reaching = 0;
  for (std::uint32_t other = 0; other < few; other++) {
    const std::uint32_t number = __shfl_sync(kFullWarp, mine, other);
    above += number > mine ? 1 : 0;
    reaching += number >= mine ? 1 : 0;
  }
  const unsigned last = __ballot_sync(kFullWarp, is_one && above < wanted && wanted <= reaching);
  const int lane = __ffs(static_cast<int>(last)) - 1;
  const std::uint32_t number = __shfl_sync(kFullWarp, mine, lane);
  if (number < low) return kNoneWithin;  // what was in the memory before
  if (__shfl_sync(kFullWarp, reaching, lane) == wanted) return {number - 1, 0};
  return {number, wanted - __shfl_sync(kFullWarp, above, lane)};
}

/// The border of the k best of a list, by counting what each thread holds of it: in bins around where it was expected,
/// mostly of less than a number each. @param n entries of the list, no more than a round. @param least no number of the
/// list is below it. All threads come.
template <int Most>
__device__ __forceinline__ row_border held_border(const std::uint32_t (&numbers)[Most], const round_share& share,
                                                  std::uint32_t n, std::uint32_t k, std::uint32_t least,
                                                  std::uint32_t best, learned& from_before, block_sums& sums) {
  constexpr bool kComparesRivals = Most > 4;  // of fewer, registers are spilled for it
  from_before.least = 0;
  if (n == k) return {0, 0};
  const std::uint32_t dropped = n - k;
  const float spread = from_before.spread;
  // The last of the dropped is looked for from the worst on.
  const std::uint32_t shift = min(31 - __clz(static_cast<int>(max(__float2uint_rd(0.4f * spread), 1u))), 16);
  const std::uint32_t half = kBins / 2 << shift;
  const std::uint32_t expected = least + min(__float2uint_rn(static_cast<float>(dropped) * spread), best - least);
  const std::uint32_t low = max(expected - least > half ? expected - half : least, 1u);
  const std::uint32_t bins = held(sums.bins());
  std::uint32_t not_below = 0;
  for_each_held<Most>(share, [&](int i) {
    const std::uint32_t beyond = numbers[i] - low;
    count_from(numbers[i], low, not_below);
    count_shared(bins + min(beyond >> shift, std::uint32_t{kBins}) * 4);
  });
  const std::uint32_t below = __reduce_add_sync(kFullWarp, share.count - not_below);
  if (sums.lane() == 0 && below > 0) add_shared(bins, below);
  found_bin found{};
  reached_number at_least{least, n};
  reached_number above{best + 1, 0};
  if (find_bin(dropped, found, sums)) {
    const std::uint32_t bin = kBins - 1 - found.bin;  // from the worst on
    if (bin > 0) at_least = {low + (bin << shift), n - found.before};
    above = {low + ((bin + 1) << shift), n - found.before - found.inside};
  }
  row_border border{above.number - 1, 0};
  std::uint32_t end = above.number;
  if (above.count != k) {
    const std::uint32_t few = at_least.count - above.count;
    if (above.number - at_least.number == 1) {
      border = {at_least.number, k - above.count};
    } else if (kComparesRivals && few <= kMostRivals && at_least.number > 0) {
      border =
          border_of_few(numbers, share, at_least.number, above.number - at_least.number, few, k - above.count, sums);
      end = border.number + (border.ties > 0 ? 0 : 1);
    } else {
      const auto count = [&](std::uint32_t number) {
        std::uint32_t reaching = 0;
        for_each_held<Most>(share, [&](int i) { count_from(numbers[i], number, reaching); });
        return sums.of_threads(reaching);
      };
      const bool is_known = above.count != 0 || at_least.count != n;
      number_search search{
          .low = at_least, .high = above, .spread = spread, .low_is_near = true, .high_is_near = is_known};
      const std::uint32_t width = above.number - at_least.number;
      const std::uint32_t farther = is_known ? width / 2 : expected - at_least.number;
      const reached_number last = search.run(at_least.number + min(max(farther, 1u), width - 1), k, 0, 0, count);
      border = last.count == k ? row_border{last.number - 1, 0} : row_border{last.number, k - search.high.count};
      end = last.number;
    }
  }
  if (end > least) from_before.spread = __fdividef(static_cast<float>(end - least), static_cast<float>(dropped));
  from_before.least = border.number + (border.ties > 0 ? 0 : 1);
  return border;
}

/// The same as load_numbers of a list that no number below `least` is in.
template <class Stored, int Most>
__device__ __forceinline__ void load_marked_numbers(const row_list& list, const round_share& share, std::uint32_t least,
                                                    bool negated, std::uint32_t (&numbers)[Most]) {
  if (!are_bits_in_order<Stored>(least)) return load_numbers<Stored>(list, share, negated, numbers);
  const std::uint32_t turned = turn_of_bits<Stored>(negated);
  const std::uint32_t bits = list.entries + share.first * 8 + 4;
  std::uint32_t best = 0;
#pragma unroll
  for (int i = 0; i < Most; i++) numbers[i] = 0;
  for_each_held<Most>(share, [&](int i) { numbers[i] = load_shared_below(i, share.count, bits + i * 8, turned); });
  for_each_held<Most>(share, [&](int i) { best = max(best, numbers[i] ^= turned); });
  if (best <= kInfinityNumber<Stored>) return;
  for_each_held<Most>(share, [&](int i) {
    if (numbers[i] > kInfinityNumber<Stored>) numbers[i] = 0;  // NaN
  });
}

/// Calls launch(stored, sorted): a value of the matrix's type, and whether results are sorted, as a type.
template <class Launch>
void by_type_and_order(const core::top_k_request& request, Launch launch) {
  by_stored_type(request.matrix.type, [&](auto stored) {
    if (request.options.sorted)
      launch(stored, std::true_type{});
    else
      launch(stored, std::false_type{});
  });
}

/// What a block has in shared memory for a row's entries, and where its parts lie.
struct filter_block {
  const core::top_k_request& request;
  filter_scratch& scratch;
  row_list list;
  std::uint32_t places;    // the shared address of room for a round's 16-bit numbers of entries
  std::uint64_t* entries;  // the list's memory, with room for sorting it
  order_scratch* order;    // beside it
};

constexpr int kWrittenAtOnce = 8;

/// Writes the k entries of a row, so many of a thread at a time: their loads overlap. @param entry_at the i-th.
/// @param to where the first goes in the result. All threads come.
template <int AtOnce, class Stored, class EntryAt>
__device__ __forceinline__ void write_by_place(const core::top_k_request& request, std::int64_t to, EntryAt entry_at) {
  const top_k_output& out = request.out;
  const auto k = static_cast<std::uint32_t>(request.options.k);
#pragma unroll 1
  for (std::uint32_t start = threadIdx.x; start < k; start += AtOnce * kThreads) {
    entry entries[AtOnce];
#pragma unroll
    for (std::uint32_t i = 0; i < AtOnce; i++) entries[i] = entry_at(min(start + i * kThreads, k - 1));
    const auto store = [&](auto* results, auto value_of) {
      auto* mine = results + to + start;
#pragma unroll
      for (std::uint32_t i = 0; i < AtOnce; i++)
        if (start + i * kThreads < k) mine[i * kThreads] = value_of(entries[i]);
    };
    if (out.values) store(static_cast<Stored*>(out.values), [](entry e) { return stored_in<Stored>(e); });
    if (!out.indices) continue;
    if (out.indices_as == index_type::i32)
      store(static_cast<std::uint32_t*>(out.indices), [](entry e) { return e.x; });
    else
      store(static_cast<std::uint64_t*>(out.indices), [](entry e) { return std::uint64_t{e.x}; });
  }
}

/// Finds and writes the k best of what the threads hold of the list. @param n entries of it, k or more. @param least no
/// number of it is below it. @param meanwhile is called between the two. @returns whether they are in it; if not,
/// nothing of use was written. All threads come. @tparam Most a thread holds
template <class Stored, bool Sorted, int Most = kHeld, class Meanwhile>
__device__ __forceinline__ bool write_held(const filter_block& block, const row_writer<Stored>& write, std::uint32_t n,
                                           std::uint32_t least, learned& from_before, block_sums& sums,
                                           Meanwhile meanwhile) {
  const core::top_k_request& request = block.request;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const round_share share(0, n, true, Most * kThreads);
  std::uint32_t numbers[Most];
  if constexpr (Sorted) {
    load_numbers<Stored>(block.list, share, negated, numbers);
    const row_border border = held_border(numbers, share, n, k, least, kInfinityNumber<Stored>, from_before, sums);
    const auto columns = static_cast<std::uint32_t>(request.matrix.cols);
    const bool written = for_each_held_in_order<Stored>(block.entries, block.list, share, negated, border, k, columns,
                                                        *block.order, sums, write);
    meanwhile();
    return written;
  } else {
    load_marked_numbers<Stored>(block.list, share, least, negated, numbers);
    const row_border border = held_border(numbers, share, n, k, least, kInfinityNumber<Stored>, from_before, sums);
    meanwhile();
    const auto keep = [&](std::uint32_t place, int i) {
      store_shared(block.places + place * 2, static_cast<std::uint16_t>(share.at(i)));
    };
    if (place_within(numbers, share, border, sums, keep) != k) return false;
    __syncthreads();
    write_by_place<kWrittenAtOnce, Stored>(request, write.first(), [&](std::uint32_t i) {
      return block.list(load_shared<std::uint16_t>(block.places + i * 2));
    });
    return true;
  }
}

/// Writes those of n entries that are within a border. @returns how many. All threads come, after a barrier; they leave
/// through one.
template <class Stored, bool Sorted, class Entries>
__device__ __forceinline__ std::uint32_t write_within(const filter_block& block, const row_writer<Stored>& write,
                                                      const Entries& entries, std::uint32_t n, const row_border& border,
                                                      block_sums& sums) {
  const bool negated = block.request.options.order == order::smallest;
  std::uint32_t written = 0;
  if constexpr (Sorted) {
    written = gather_keys<Stored>(entries, n, negated, border, block.list, sums);
    for_each_in_order(block.entries, written, *block.order, write);
  } else {
    written = for_each_within<Stored>(entries, n, negated, border, sums, [&](std::uint32_t place, const entry& e) {
      write.stored(place, e.x, stored_in<Stored>(e));
    });
  }
  __syncthreads();
  return written;
}

/// Finds the border of the k best of a list, none of whose numbers is below `least`, in bins. @param visit calls its
/// argument with each of this thread's numbers. @returns false if there are fewer. All threads come.
template <class Stored, class Visit>
__device__ __forceinline__ bool border_of_long(Visit visit, std::uint32_t k, std::uint32_t least, row_border& border,
                                               block_sums& sums, filter_scratch& scratch) {
  constexpr std::uint32_t kUsualShift = sizeof(Stored) == 4 ? 14 : 0;
  const number_bins bins{least, kUsualShift, kBins, true};
  return border_by_bins(visit, k, bins, all_numbers<Stored>(), border, sums, scratch);
}

/// The same as write_held of a list that is longer than the threads may hold. All threads come, after a barrier.
template <class Stored, bool Sorted>
__device__ __forceinline__ bool write_long(const filter_block& block, const row_writer<Stored>& write, std::uint32_t n,
                                           std::uint32_t least, block_sums& sums) {
  const core::top_k_request& request = block.request;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const auto visit = [&](auto f) {
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) f(number_of(stored_in<Stored>(block.list(i)), negated));
  };
  row_border border{};
  if (!border_of_long<Stored>(visit, k, least, border, sums, block.scratch)) return false;
  return write_within<Stored, Sorted>(block, write, block.list, n, border, sums) == k;
}

/// Finds and writes the best of a row by its numbers in global memory: of one whose sample was wrong, or a short one.
/// All threads come, after a barrier; they leave through one.
template <class Stored, bool Sorted>
__device__ __forceinline__ void search_row(const filter_block& block, std::int64_t index, block_sums& sums) {
  const core::top_k_request& request = block.request;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const whole_row<Stored> row = open_row<Stored>(request, index);
  const row_writer<Stored> write(request, index, row);
  row_border border{0, row.columns};
  if (row.columns > k) {
    const auto visit = [&](auto f) {
#pragma unroll 4
      for (std::uint32_t i = threadIdx.x; i < row.columns; i += kThreads) f(number_of(row.values[i], negated));
    };
    border_by_bins(visit, k, all_numbers<Stored>(), all_numbers<Stored>(), border, sums, block.scratch);
  }
  write_within<Stored, Sorted>(block, write, columns_of_row<Stored>{row}, row.columns, border, sums);
  for (std::uint32_t place = row.columns + threadIdx.x; place < k; place += kThreads) write.pad(place);
}

}  // namespace shortlist::cuda::filtering
