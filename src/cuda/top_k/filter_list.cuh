// What reached a row's filter: a list of keys in a block's shared memory, and how the k best of it are written. See
// filter_rows.cu.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/block_select.cuh"
#include "cuda/top_k/filter_parts.cuh"

namespace shortlist::cuda::filtering {

/// Entries in shared memory that all threads of a block append to: columns as they were found, or their keys. Those
/// beyond the capacity are counted only.
struct row_list {
  std::uint64_t* entries;
  std::uint32_t capacity;

  __device__ __forceinline__ void append(std::uint64_t entry, filter_scratch& scratch) const {
    const std::uint32_t place = atomicAdd(&scratch.count, 1u);
    if (place < capacity) entries[place] = entry;
  }
};

/// A column as it was found: its stored bits above, the column below.
template <class Stored>
__device__ __forceinline__ std::uint64_t found_column(Stored value, std::uint32_t column) {
  std::uint32_t bits;
  if constexpr (sizeof(Stored) == 4)
    bits = __float_as_uint(value);
  else
    bits = value.bits;
  return static_cast<std::uint64_t>(bits) << 32 | column;
}
template <class Stored>
__device__ __forceinline__ std::uint64_t key_of_found(std::uint64_t found, bool negated) {
  const auto bits = static_cast<std::uint32_t>(found >> 32);
  Stored value;
  if constexpr (sizeof(Stored) == 4)
    value = __uint_as_float(bits);
  else
    value = {static_cast<std::uint16_t>(bits)};
  return core::row_key(key_of_value(value, negated), static_cast<std::uint32_t>(found));
}

/// Calls f(key) for this thread's share of the list's n keys.
template <class F>
__device__ __forceinline__ void for_each_key(const std::uint64_t* keys, std::uint32_t n, F f) {
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) f(keys[i]);
}

/// The same where neighbouring threads' keys should lie apart in the list.
template <class F>
__device__ __forceinline__ void for_each_key_apart(const std::uint64_t* keys, std::uint32_t n, F f) {
  const std::uint32_t share = (n + kThreads - 1) / kThreads | 1;  // odd: no two lanes read from one bank
  const std::uint32_t end = min(n, (threadIdx.x + 1) * share);
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x * share; i < end; i++) f(keys[i]);
}

/// Calls write(place, key) for the n keys that reach the cut, by column: a map has a bit for each column, and the bits
/// before it are its place. All threads come, after a barrier.
template <class Write>
__device__ __forceinline__ void for_each_by_column(const std::uint64_t* keys, std::uint32_t n, std::uint64_t cut,
                                                   std::uint32_t first_column, std::uint32_t columns,
                                                   filter_scratch& scratch, Write write) {
  std::uint32_t written = 0;
  for (std::uint32_t start = 0; start < columns; start += kMapColumns) {
    if (start > 0) __syncthreads();  // the map is empty again
    const auto place_of = [&](std::uint64_t key) { return core::position_of(key) - first_column - start; };
    for_each_key_apart(keys, n, [&](std::uint64_t key) {  // neighbours would meet in one word
      const std::uint32_t place = place_of(key);
      if (key >= cut && place < kMapColumns) atomicOr(&scratch.map[place / 32], 1u << place % 32);
    });
    __syncthreads();
    auto* mine = reinterpret_cast<uint4*>(scratch.map) + threadIdx.x * (kWordsPerThread / 4);
    std::uint32_t words[kWordsPerThread];
#pragma unroll
    for (int q = 0; q < kWordsPerThread / 4; q++) {
      const uint4 four = mine[q];
      words[4 * q] = four.x, words[4 * q + 1] = four.y, words[4 * q + 2] = four.z, words[4 * q + 3] = four.w;
    }
    std::uint32_t sum = 0;
#pragma unroll
    for (int w = 0; w < kWordsPerThread; w++) sum += __popc(words[w]);
    std::uint32_t total = 0;
    std::uint32_t before = written + sum_before(sum, total, scratch);
    alignas(16) std::uint16_t places[kWordsPerThread];
#pragma unroll
    for (int w = 0; w < kWordsPerThread; w++) {
      places[w] = static_cast<std::uint16_t>(before);
      before += __popc(words[w]);
    }
    using packed = std::conditional_t<kWordsPerThread == 8, uint4, uint2>;
    reinterpret_cast<packed*>(scratch.chosen_before)[threadIdx.x] = reinterpret_cast<const packed&>(places);
    __syncthreads();
    for_each_key(keys, n, [&](std::uint64_t key) {
      const std::uint32_t place = place_of(key);
      if (key < cut || place >= kMapColumns) return;
      const std::uint32_t word = place / 32;
      write(scratch.chosen_before[word] + __popc(scratch.map[word] & ((1u << place % 32) - 1)), key);
    });
    written += total;
    __syncthreads();
#pragma unroll
    for (int q = 0; q < kWordsPerThread / 4; q++) mine[q] = make_uint4(0, 0, 0, 0);
  }
}

/// Leaves the keys that reach the cut alone in the list: at its begin, in no order. All threads come, after a barrier;
/// they leave through one.
__device__ __forceinline__ void keep_from(std::uint64_t* keys, std::uint32_t n, std::uint64_t cut,
                                          filter_scratch& scratch) {
  constexpr int kHeld = 4;  // keys of a thread between two barriers
  if (threadIdx.x == 0) scratch.few_count = 0;
  for (std::uint32_t start = 0; start < n; start += kHeld * kThreads) {
    std::uint64_t held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; i++) {
      const std::uint32_t at = start + i * kThreads + threadIdx.x;
      held[i] = at < n ? keys[at] : core::kNoRow;
    }
    __syncthreads();  // these have been read, and what is written below lies before them
#pragma unroll
    for (int i = 0; i < kHeld; i++) {
      if (held[i] >= cut && held[i] != core::kNoRow) keys[atomicAdd(&scratch.few_count, 1u)] = held[i];
    }
  }
  __syncthreads();
}

/// Calls write(rank, key) for the n keys of the list, the largest first. The keys are moved. All threads come, after a
/// barrier, and leave before one. @pre room for twice n keys, and for n padded to a power of two.
template <class Write>
__device__ __forceinline__ void for_each_in_order(const row_list& list, std::uint32_t n, filter_scratch& scratch,
                                                  Write write) {
  std::uint64_t* keys = list.entries;
  if (n <= kThreads) {
    rank_by_counting<kThreads>(keys, n, write);
    return;
  }
  const bool sorted = sort_by_bins<kThreads>(keys, n, n, keys + n, n, scratch.order, scratch.select, write);
  __syncthreads();
  clear_map(scratch);
  if (sorted) return;
  const std::uint32_t padded = 1u << (32 - __clz(static_cast<int>(n - 1)));
  for (std::uint32_t i = n + threadIdx.x; i < padded; i += kThreads) keys[i] = core::kNoRow;
  block_sort<kThreads>(keys, padded);
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) write(i, keys[i]);
}

}  // namespace shortlist::cuda::filtering
