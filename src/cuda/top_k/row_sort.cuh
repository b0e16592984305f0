// Chosen columns of a row, best first.
//
// A sort moves 32 bits an entry: how far its value lies behind the best, in as many upper bits as its place among the
// chosen leaves; equal values so stay in the order of columns. Chosen values lie close together, so that these bits
// nearly always tell them apart. Where they may not (of fp32, if neighbours are equal by them) neighbours are compared
// by whole keys, and if many turn out of order, two sorts follow, by the lower bits and by the upper.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/device/lane_sort.cuh"
#include "cuda/device/shared_memory.cuh"
#include "cuda/top_k/row_share.cuh"

namespace shortlist::cuda {

/// How far a value is behind the best that there can be; NaN most, both zeros alike. Of as many bits as the value.
/// Of fp32 it is ~key_of_value(), without a branch or a predicate: 5 instructions instead of 7.
template <class Stored>
__device__ __forceinline__ std::uint32_t behind(std::uint32_t bits, bool negated) {
  constexpr std::uint32_t kSign = 1u << (8 * sizeof(Stored) - 1);
  constexpr std::uint32_t kMost = 2 * kSign - 1;
  if constexpr (sizeof(Stored) == 4) {
    const float value = __fmaf_rn(__uint_as_float(bits), negated ? -1.0f : 1.0f, 0.0f);  // -0 becomes +0
    bits = __float_as_uint(value);
    bits ^= ~static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) & ~kSign;
    return value != value ? kMost : bits;
  } else {
    bits ^= negated ? kSign : 0;
    constexpr std::uint32_t kInfinity = std::is_same_v<Stored, float16> ? 0x7C00u : 0x7F80u;
    const std::uint32_t magnitude = bits & ~kSign;
    if (magnitude > kInfinity) return kMost;
    return magnitude == 0 ? ~kSign & kMost : bits ^ (bits & kSign ? 0 : ~kSign & kMost);
  }
}

/// Stores neighbouring words; whole vectors where there are four. @pre then the address is a multiple of 16.
template <int Each>
__device__ __forceinline__ void store_words(std::uint32_t address, const std::uint32_t (&words)[Each]) {
  if constexpr (Each % 4 == 0) {
#pragma unroll
    for (int e = 0; e < Each; e += 4)
      store_shared(address + e * 4, make_uint4(words[e], words[e + 1], words[e + 2], words[e + 3]));
  } else {
#pragma unroll
    for (int e = 0; e < Each; e++) store_shared(address + e * 4, words[e]);
  }
}

/// Exchanges a word and the next.
__device__ __forceinline__ void swap_words(std::uint32_t address) {
  const auto first = load_shared<std::uint32_t>(address);
  store_shared(address, load_shared<std::uint32_t>(address + 4));
  store_shared(address + 4, first);
}

/// Columns of a row in shared memory, by their shared addresses.
template <class T>
struct row_entries {
  using stored = T;
  std::uint32_t columns;
  std::uint32_t row;
  bool negated;

  __device__ __forceinline__ std::uint32_t column(std::uint32_t i) const {
    return load_shared<std::uint32_t>(columns + i * 4);
  }
  __device__ __forceinline__ std::uint32_t value_bits(std::uint32_t column) const {
    return load_bits<stored>(row + column * static_cast<std::uint32_t>(sizeof(stored)));
  }
  __device__ __forceinline__ std::uint32_t behind_at(std::uint32_t i) const {
    return behind<stored>(value_bits(column(i)), negated);
  }
  /// Exchanges entry i and the next.
  __device__ __forceinline__ void swap(std::uint32_t i) const { swap_words(columns + i * 4); }
  /// How far entries places[e] are behind, in place of them.
  template <int Each>
  __device__ __forceinline__ void load(std::uint32_t (&places)[Each]) const {
#pragma unroll
    for (int e = 0; e < Each; e++) places[e] = column(places[e]);
#pragma unroll
    for (int e = 0; e < Each; e++) places[e] = behind<stored>(value_bits(places[e]), negated);
  }
  /// Entries places[e] become those from `first` on; nothing where they begin behind the last. Groups of a warp do so
  /// together.
  template <int Each>
  __device__ __forceinline__ void reorder(std::uint32_t (&places)[Each], int first, int count) const {
#pragma unroll
    for (int e = 0; e < Each; e++) places[e] = column(places[e]);
    __syncwarp();
    if (first < count) store_words(columns + static_cast<std::uint32_t>(first) * 4, places);
    __syncwarp();
  }
};

/// Columns and their values in shared memory.
template <class T>
struct listed_entries {
  using stored = T;
  std::uint32_t columns;
  std::uint32_t bits;  // of the values, a word each
  bool negated;

  __device__ __forceinline__ std::uint32_t column(std::uint32_t i) const {
    return load_shared<std::uint32_t>(columns + i * 4);
  }
  __device__ __forceinline__ std::uint32_t value_bits(std::uint32_t i) const {
    return load_shared<std::uint32_t>(bits + i * 4);
  }
  __device__ __forceinline__ std::uint32_t behind_at(std::uint32_t i) const {
    return behind<stored>(value_bits(i), negated);
  }
  __device__ __forceinline__ void swap(std::uint32_t i) const {
    swap_words(columns + i * 4);
    swap_words(bits + i * 4);
  }
  template <int Each>
  __device__ __forceinline__ void load(std::uint32_t (&places)[Each]) const {
#pragma unroll
    for (int e = 0; e < Each; e++) places[e] = behind_at(places[e]);
  }
  template <int Each>
  __device__ __forceinline__ void reorder(std::uint32_t (&places)[Each], int first, int count) const {
    std::uint32_t values[Each];
#pragma unroll
    for (int e = 0; e < Each; e++) values[e] = value_bits(places[e]);
#pragma unroll
    for (int e = 0; e < Each; e++) places[e] = column(places[e]);
    __syncwarp();
    if (first < count) {
      store_words(columns + static_cast<std::uint32_t>(first) * 4, places);
      store_words(bits + static_cast<std::uint32_t>(first) * 4, values);
    }
    __syncwarp();
  }
};

/// The part of what entries are behind by that a sort looks at, above `place_bits` bits of places.
struct key_field {
  std::uint32_t least;
  int shift;

  __device__ __forceinline__ std::uint32_t key(std::uint32_t behind, int place_bits, int place) const {
    return ((behind - least) >> shift << place_bits) + static_cast<std::uint32_t>(place);
  }
};

/// What one sort can tell of [least, most]: all of it, if shift is 0.
__device__ __forceinline__ key_field widest_field(std::uint32_t least, std::uint32_t most, int place_bits) {
  return {least, max(place_bits - __clz(static_cast<int>(most - least)), 0)};
}

constexpr std::uint32_t kNoEntry = ~0u;  // behind all entries: one that has its place leaves room for no other

/// What a sort looks at.
enum class sort_part : std::uint8_t {
  widest,  // most of the keys
  lower,   // their lower bits, as many as a sort can look at
  upper    // all above these
};
__device__ __forceinline__ key_field field_of(sort_part part, int place_bits) {
  return {0, part == sort_part::lower ? 0 : 32 - place_bits};
}

/// Sorts the entries of each group of lanes in registers, no more than Each of a lane, by a part of their keys; equal
/// ones stay in order. All lanes of the warp call it, after they met.
/// @pre there is memory for Each entries a lane, and entry 0 may be read if there is none.
/// @return whether neighbours of any group may be in the wrong order.
template <int Lanes, int Each, class Entries>
__device__ __noinline__ bool sort_in_registers(Entries entries, int count, sort_part part) {
  using stored = typename Entries::stored;
  constexpr int kSize = Lanes * Each;
  constexpr int kPlaceBits = std::bit_width(static_cast<unsigned>(kSize)) - 1;
  const int rank = static_cast<int>(threadIdx.x) % Lanes;
  const bool full = __all_sync(kFullWarp, count == kSize);
  std::uint32_t keys[Each];
#pragma unroll
  for (int e = 0; e < Each; e++) {  // of entries that are not there, the last one's
    const int i = e * Lanes + rank;
    keys[e] = static_cast<std::uint32_t>(full ? i : max(min(i, count - 1), 0));
  }
  entries.load(keys);
  key_field field{0, 0};
  if (part != sort_part::widest) {
    field = field_of(part, kPlaceBits);
  } else if constexpr (sizeof(stored) == 4) {
    std::uint32_t least = keys[0];
    std::uint32_t most = keys[0];
#pragma unroll
    for (int e = 1; e < Each; e++) {
      least = min(least, keys[e]);
      most = max(most, keys[e]);
    }
#pragma unroll
    for (int apart = Lanes / 2; apart > 0; apart /= 2) {
      least = min(least, __shfl_xor_sync(kFullWarp, least, apart));
      most = max(most, __shfl_xor_sync(kFullWarp, most, apart));
    }
    field = widest_field(least, most, kPlaceBits);
  }
#pragma unroll
  for (int e = 0; e < Each; e++) {
    const int i = e * Lanes + rank;
    keys[e] = field.key(keys[e], kPlaceBits, i);
    if (!full) keys[e] = i < count ? keys[e] : kNoEntry;
  }
  sort_lanes<Lanes>(keys);
  bool doubt = false;
  if (sizeof(stored) == 4 && part == sort_part::widest && !__all_sync(kFullWarp, field.shift == 0)) {
    const std::uint32_t next = __shfl_down_sync(kFullWarp, keys[0], 1);
#pragma unroll
    for (int e = 0; e < Each; e++) {
      const std::uint32_t after = e + 1 < Each ? keys[(e + 1) % Each] : next;
      doubt |= rank * Each + e + 1 < count && keys[e] >> kPlaceBits == after >> kPlaceBits;
    }
    doubt = __any_sync(kFullWarp, doubt && field.shift > 0);
  }
#pragma unroll
  for (int e = 0; e < Each; e++) keys[e] &= kSize - 1;
  entries.reorder(keys, rank * Each, count);
  return doubt;
}

/// The same, of a group's entries, in shared memory. All that run in step call it, after they met.
/// @param size a power of two, a piece or more and not below count. @param keys memory for so many.
template <class Entries, class Group>
__device__ __noinline__ bool sort_in_memory(Group group, Entries entries, int count, std::uint32_t* keys, int size,
                                            sort_part part) {
  constexpr bool kWide = sizeof(typename Entries::stored) == 4;
  const int place_bits = 31 - __clz(size);
  const auto any = [&](bool value) { return !group.all(group.largest(value ? 1u : 0u) == 0); };
  key_field field{0, 0};
  if (part != sort_part::widest) {
    field = field_of(part, place_bits);
  } else if constexpr (kWide) {
    std::uint32_t most = 0;
    std::uint32_t nearness = 0;  // the complement of the least
    for (int i = group.rank(); i < count; i += group.threads()) {
      const std::uint32_t behind = entries.behind_at(static_cast<std::uint32_t>(i));
      most = max(most, behind);
      nearness = max(nearness, ~behind);
    }
    most = group.largest(most);
    nearness = group.largest(nearness);
    field = widest_field(~nearness, most, place_bits);
  }
  for (int i = group.rank(); i < size; i += group.threads()) {
    keys[i] = kNoEntry;
    if (i < count) keys[i] = field.key(entries.behind_at(static_cast<std::uint32_t>(i)), place_bits, i);
  }
  group.sync();
  sort_in_shared(group, keys, size);
  bool doubt = false;
  if (kWide && part == sort_part::widest) {
    if (field.shift > 0)
      for (int i = group.rank(); i + 1 < count; i += group.threads())
        doubt |= keys[i] >> place_bits == keys[i + 1] >> place_bits;
    doubt = any(doubt);
  }
  for (int i = group.rank(); i < count; i += group.threads())
    keys[i] = entries.column(keys[i] & ((1u << place_bits) - 1));
  group.sync();
  for (int i = group.rank(); i < count; i += group.threads())
    store_shared(entries.columns + static_cast<std::uint32_t>(i) * 4, keys[i]);
  group.sync();
  return doubt;
}

constexpr int kExchanges = 3;  // rounds, between neighbours

/// Puts entry i + 1 first if it is better; whether it was.
template <class Entries>
__device__ __forceinline__ bool order_at(const Entries& entries, std::uint32_t i) {
  if (entries.behind_at(i) <= entries.behind_at(i + 1)) return false;
  entries.swap(i);
  return true;
}

/// Ends what a sort by the widest part left in doubt: orders neighbours by all of their keys, or, if a few rounds did
/// not end that, sorts by the lower bits and then by the upper. Equal entries never pass each other.
/// @param sort(part) sorts by a part.
template <class Entries, class Group, class Sort>
__device__ __forceinline__ void sort_rest_by(Group& group, const Entries& entries, int count, Sort sort) {
#pragma unroll 1
  for (int round = 0; round < kExchanges; round++) {
    bool swapped = false;
#pragma unroll 1
    for (int parity = 0; parity < 2; parity++) {
#pragma unroll 1
      for (int i = 2 * group.rank() + parity; i + 1 < count; i += 2 * group.threads())
        swapped |= order_at(entries, static_cast<std::uint32_t>(i));
      group.sync();
    }
    if (group.all(group.largest(swapped ? 1u : 0u) == 0)) return group.sync();
  }
  group.sync();  // what its sums went through is free
  sort(sort_part::lower);
  sort(sort_part::upper);
}

/// Few rows need it: not inlined.
template <int Lanes, int Each, class Entries>
__device__ __noinline__ void sort_rest(Entries entries, int count) {
  lane_group<Lanes> group;
  sort_rest_by(group, entries, count, [&](sort_part part) { sort_in_registers<Lanes, Each>(entries, count, part); });
}

/// Sorts the entries of each group of lanes in registers by all of their keys, as sort_in_registers does by a part.
template <int Lanes, int Each, class Entries>
__device__ __forceinline__ void sort_whole(const Entries& entries, int count) {
  const bool doubt = sort_in_registers<Lanes, Each>(entries, count, sort_part::widest);
  if constexpr (sizeof(typename Entries::stored) == 4)
    if (doubt) sort_rest<Lanes, Each>(entries, count);
}
/// The same, of a group's entries, in shared memory.
template <class Entries, class Group>
__device__ __noinline__ void sort_whole_in_memory(Group group, Entries entries, int count, std::uint32_t* keys,
                                                  int size) {
  const auto sort = [&](sort_part part) { return sort_in_memory(group, entries, count, keys, size, part); };
  if (sort(sort_part::widest)) sort_rest_by(group, entries, count, sort);
}

constexpr int kLeastEach = 4;  // entries of a lane, of fewer lanes than a warp

// `MostEach` is how many entries of a lane a kernel sorts in registers; of more, all threads sort a part in memory.

template <class Group, int MostEach>
constexpr bool sorts_in_registers(int size) {
  return size <= Group::kLanes * MostEach;
}

/// Shared memory that a group needs to order `size` entries, in words: their columns, and what sorts them in memory.
template <class Group, int MostEach>
constexpr std::int64_t sorted_column_words(int size) {
  if (!sorts_in_registers<Group, MostEach>(size)) return size;
  return std::max(size, Group::kLanes < kWarp ? kLeastEach * Group::kLanes : kWarp);
}
template <class Group, int MostEach>
constexpr std::int64_t sort_words(int size) {
  return sorts_in_registers<Group, MostEach>(size) ? 0 : std::max(size, kSortedPiece<Group>);
}

/// Orders a group's chosen columns by their values, best first. All that run in step call it, after they met, and meet
/// again.
/// @tparam Values no more of a thread's columns are chosen on average. @param size a power of two that holds all
/// counts.
/// @param keys sort_words() of shared memory.
template <int Values, int MostEach, class Stored, class Group>
__device__ __forceinline__ void sort_columns(Group& group, const row_entries<Stored>& entries, int count, int size,
                                             std::uint32_t* keys) {
  constexpr int kLanes = Group::kLanes;
  constexpr bool kBlock = Group::kIsBlock;
  constexpr int kMost = kBlock ? MostEach : std::min(MostEach, static_cast<int>(std::bit_ceil(0u + Values)));
  static_assert(kMost >= 8 && kMost <= 32);
  const auto sort = [&](auto each) {  // in a block one warp does
    if (!kBlock || threadIdx.x < kWarp) sort_whole<kLanes, decltype(each)::value>(entries, count);
    if (kBlock) group.sync();
  };
  if constexpr (kLanes == kWarp) {
    if (size <= kLanes) return sort(std::integral_constant<int, 1>());
    if (size <= 2 * kLanes) return sort(std::integral_constant<int, 2>());
  }
  if (size <= 4 * kLanes) return sort(std::integral_constant<int, 4>());
  if (size <= 8 * kLanes) return sort(std::integral_constant<int, 8>());
  if constexpr (kMost >= 16)
    if (size <= 16 * kLanes) return sort(std::integral_constant<int, 16>());
  if constexpr (kMost >= 32)
    if (size <= 32 * kLanes) return sort(std::integral_constant<int, 32>());
  if constexpr (kBlock || Values > MostEach) {
    constexpr int kLeast = kSortedPiece<Group>;
    sort_whole_in_memory(group, entries, count, keys, max(size, kLeast));
  }
}

}  // namespace shortlist::cuda
