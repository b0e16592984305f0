// Selection by one block: the k largest of n distinct 64-bit keys, whatever the data.
//
// Keys are visited through `visit(f)`, which calls f(key) for this thread's share: the same code serves lists in
// shared memory, in global memory, or in both. Distinct keys make every cut exact: "exactly k keys are >= cut".
#pragma once

#include <cstdint>

#include "cuda/device/score.cuh"

namespace shortlist::cuda {

/// Shared memory that a selection works in.
template <int Threads>
struct select_scratch {
  std::uint32_t totals[2][Threads / kWarp];  // double-buffered: one barrier a sum
  std::uint64_t extremes[2][Threads / kWarp];
  std::uint32_t histogram[256];
  std::uint64_t cut;
  std::uint32_t counter;
  std::uint32_t digit;
  std::uint32_t above;
};

template <int Threads>
__device__ std::uint32_t block_sum(std::uint32_t value, select_scratch<Threads>& scratch, int& phase) {
  value = __reduce_add_sync(kFullWarp, value);
  std::uint32_t* totals = scratch.totals[phase & 1];
  phase++;
  if (threadIdx.x % kWarp == 0) totals[threadIdx.x / kWarp] = value;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  return __reduce_add_sync(kFullWarp, lane < Threads / kWarp ? totals[lane] : 0u);
}

__device__ __forceinline__ std::uint64_t warp_max(std::uint64_t value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const std::uint64_t other = __shfl_xor_sync(kFullWarp, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

/// The cut of the k largest among the keys that the block's threads hold in `keys` (kNoRow where there is none):
/// exactly min(k, n) keys are >= it. Bisects over the bits below the common prefix and stops at an exact count.
template <int Threads, int PerThread>
__device__ std::uint64_t block_cut_registers(const std::uint64_t (&keys)[PerThread], std::uint32_t k,
                                             select_scratch<Threads>& scratch, int& phase) {
  std::uint64_t largest = 0;
  std::uint64_t smallest = ~std::uint64_t{0};
#pragma unroll
  for (int i = 0; i < PerThread; i++) {
    if (keys[i] == core::kNoRow) continue;
    largest = keys[i] > largest ? keys[i] : largest;
    smallest = keys[i] < smallest ? keys[i] : smallest;
  }
  largest = warp_max(largest);
  smallest = ~warp_max(~smallest);
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) {
    scratch.extremes[0][warp] = largest;
    scratch.extremes[1][warp] = ~smallest;
  }
  __syncthreads();
  largest = warp_max(lane < Threads / kWarp ? scratch.extremes[0][lane] : 0);
  smallest = ~warp_max(lane < Threads / kWarp ? scratch.extremes[1][lane] : 0);
  if (largest <= smallest) return smallest;  // one key, or none

  int bit = 63 - __clzll(static_cast<long long>(largest ^ smallest));
  std::uint64_t cut = bit == 63 ? 0 : (largest >> (bit + 1)) << (bit + 1);
  for (; bit >= 0; bit--) {
    const std::uint64_t candidate = cut | (std::uint64_t{1} << bit);
    std::uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < PerThread; i++) count += keys[i] >= candidate;
    count = block_sum<Threads>(count, scratch, phase);
    if (count >= k) cut = candidate;
    if (count == k) break;
  }
  return cut;
}

/// The same for any number of keys: a radix search by digits of eight bits, each a pass over the keys.
template <int Threads, class Visit>
__device__ std::uint64_t block_cut_radix(Visit visit, std::uint32_t k, select_scratch<Threads>& scratch) {
  static_assert(Threads >= 256);
  std::uint64_t prefix = 0;
  std::uint64_t prefix_mask = 0;
  std::uint32_t wanted = k;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += Threads) scratch.histogram[i] = 0;
    __syncthreads();
    visit([&](std::uint64_t key) {
      if (key != core::kNoRow && (key & prefix_mask) == prefix)
        atomicAdd(&scratch.histogram[(key >> shift) & 255u], 1u);
    });
    __syncthreads();
    if (threadIdx.x < kWarp) {  // lane l owns the eight digits below 255 - 8 l
      std::uint32_t mine = 0;
      for (int i = 0; i < 8; i++) mine += scratch.histogram[255 - 8 * threadIdx.x - i];
      std::uint32_t before = mine;
      for (int offset = 1; offset < kWarp; offset <<= 1) {
        const std::uint32_t other = __shfl_up_sync(kFullWarp, before, offset);
        if (threadIdx.x >= static_cast<unsigned>(offset)) before += other;
      }
      before -= mine;
      if (threadIdx.x == 0) scratch.digit = 256;  // fewer than k keys: everything passes
      __syncwarp();
      for (int i = 0; i < 8; i++) {
        const std::uint32_t here = scratch.histogram[255 - 8 * threadIdx.x - i];
        if (before < wanted && before + here >= wanted) {
          scratch.digit = 255 - 8 * threadIdx.x - i;
          scratch.above = before;
          scratch.counter = here;
        }
        before += here;
      }
    }
    __syncthreads();
    const std::uint32_t digit = scratch.digit;
    if (digit == 256) return 1;
    wanted -= scratch.above;
    const bool exact = scratch.counter == wanted;
    prefix |= static_cast<std::uint64_t>(digit) << shift;
    prefix_mask |= std::uint64_t{255} << shift;
    __syncthreads();
    if (exact) break;
  }
  return prefix;
}

/// Sorts `keys[0, n)` in shared memory, largest first; n is a power of two.
template <int Threads>
__device__ void block_sort(std::uint64_t* keys, std::uint32_t n) {
  for (std::uint32_t size = 2; size <= n; size <<= 1) {
    for (std::uint32_t stride = size >> 1; stride > 0; stride >>= 1) {
      __syncthreads();
      for (std::uint32_t t = threadIdx.x; t < n / 2; t += Threads) {
        const std::uint32_t low = ((t & ~(stride - 1)) << 1) | (t & (stride - 1));
        const std::uint64_t a = keys[low];
        const std::uint64_t b = keys[low + stride];
        const bool descending = (low & size) == 0;
        if (descending ? a < b : a > b) {
          keys[low] = b;
          keys[low + stride] = a;
        }
      }
    }
  }
  __syncthreads();
}

}  // namespace shortlist::cuda
