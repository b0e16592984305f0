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
  unsigned long long smallest;
  unsigned long long largest;
  std::uint32_t histogram[256];
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

/// The cut of the k largest of keys[0, n) in shared memory: exactly min(k, n) of them are >= it, and it is at least 1.
///
/// Interpolates between counts, and bisects every third time so that no data is slow. The loops stay rolled: this code
/// runs once a launch, and its instructions are not in any cache when it does.
template <int Threads>
__device__ __noinline__ std::uint64_t block_cut(const std::uint64_t* keys, std::uint32_t n, std::uint32_t k,
                                                select_scratch<Threads>& scratch) {
  if (n <= k) return 1;
  int phase = 0;
  if (threadIdx.x == 0) {
    scratch.smallest = ~0ull;
    scratch.largest = 0;
  }
  __syncthreads();
  unsigned long long smallest = ~0ull;
  unsigned long long largest = 0;
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < n; i += Threads) {
    smallest = min(smallest, static_cast<unsigned long long>(keys[i]));
    largest = max(largest, static_cast<unsigned long long>(keys[i]));
  }
#pragma unroll 1
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    smallest = min(smallest, __shfl_xor_sync(kFullWarp, smallest, offset));
    largest = max(largest, __shfl_xor_sync(kFullWarp, largest, offset));
  }
  if (threadIdx.x % kWarp == 0) {
    atomicMin(&scratch.smallest, smallest);
    atomicMax(&scratch.largest, largest);
  }
  __syncthreads();
  std::uint64_t low = scratch.smallest;  // reached by all
  std::uint32_t low_count = n;
  std::uint64_t high = scratch.largest;  // reached by one: the answer if k == 1
  std::uint32_t high_count = 1;
  if (k == 1) return high;
#pragma unroll 1
  for (int turn = 0; low_count != k; turn++) {  // distinct keys: the exact count is always found
    const float guess = (static_cast<float>(low_count - k) + 0.5f) / static_cast<float>(low_count - high_count);
    const float fraction = turn % 3 == 2 ? 0.5f : fminf(0.95f, fmaxf(0.05f, guess));
    const std::uint64_t width = high - low;
    std::uint64_t step = static_cast<std::uint64_t>(static_cast<float>(width) * fraction);
    step = min(max(step, std::uint64_t{1}), width > 1 ? width - 1 : 1);
    std::uint32_t count = 0;
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < n; i += Threads) count += keys[i] >= low + step;
    count = block_sum<Threads>(count, scratch, phase);
    if (count >= k) {
      low += step;
      low_count = count;
    } else {
      high = low + step;
      high_count = count;
    }
  }
  return low;
}

/// The same for keys that lie anywhere and are visited: a radix search by digits of eight bits, each a pass over the
/// keys.
template <int Threads, class Visit>
__device__ __noinline__ std::uint64_t block_cut_radix(Visit visit, std::uint32_t k, select_scratch<Threads>& scratch) {
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
