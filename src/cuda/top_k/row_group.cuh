// The threads that work on one row: some lanes of a warp, or a block. Sums, extremes and scans over them.
//
// All threads that run in step call together: all groups of a warp, or the block. Results are the same in all threads
// of a group.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/score.cuh"

namespace shortlist::cuda {

/// 8, 16 or 32 lanes of a warp.
template <int Lanes>
class lane_group {
 public:
  static constexpr int kLanes = Lanes;  // of a warp
  static constexpr bool kIsBlock = false;
  static constexpr bool kHasRoom = true;  // in registers, for a look at rows unlike those before, or at their ties

  __device__ __forceinline__ int threads() const { return Lanes; }
  __device__ __forceinline__ int rank() const { return static_cast<int>(threadIdx.x) % Lanes; }
  __device__ __forceinline__ void sync() const { __syncwarp(); }
  /// Over all that run in step.
  __device__ __forceinline__ bool all(bool value) const { return __all_sync(kFullWarp, value); }
  /// Over the group.
  __device__ __forceinline__ bool every(bool value) const {
    const unsigned others = __ballot_sync(kFullWarp, !value);
    return (others >> (threadIdx.x % kWarp - rank()) & (kFullWarp >> (kWarp - Lanes))) == 0;
  }

  __device__ __forceinline__ std::uint32_t sum(std::uint32_t value) const {
    if constexpr (Lanes == kWarp) {
      return __reduce_add_sync(kFullWarp, value);
    } else if constexpr (Lanes == kWarp / 2) {
      return of_halves(value, [](std::uint32_t half) { return __reduce_add_sync(kFullWarp, half); });
    } else {
#pragma unroll
      for (int o = Lanes / 2; o > 0; o >>= 1) value += __shfl_xor_sync(kFullWarp, value, o);
      return value;
    }
  }
  __device__ __forceinline__ float sum(float value) const {
#pragma unroll
    for (int o = Lanes / 2; o > 0; o >>= 1) value += __shfl_xor_sync(kFullWarp, value, o);
    return value;
  }
  /// Of a whole number a thread.
  __device__ __forceinline__ float sum_count(float count) const {
    if constexpr (Lanes == kWarp) return static_cast<float>(sum(static_cast<std::uint32_t>(count)));
    return sum(count);
  }
  template <class T>
  __device__ __forceinline__ T largest(T value) const {
    if constexpr (Lanes == kWarp && std::is_same_v<T, std::uint32_t>) {
      return __reduce_max_sync(kFullWarp, value);
    } else if constexpr (Lanes == kWarp / 2 && std::is_same_v<T, std::uint32_t>) {
      return of_halves(value, [](std::uint32_t half) { return __reduce_max_sync(kFullWarp, half); });
    } else {
#pragma unroll
      for (int o = Lanes / 2; o > 0; o >>= 1) value = max(value, __shfl_xor_sync(kFullWarp, value, o));
      return value;
    }
  }
  /// The sum over the threads before this one.
  __device__ __forceinline__ int before(int value) const { return up_to(value) - value; }
  __device__ __forceinline__ int before(int value, int& total) const {
    const int sum = up_to(value);
    total = __shfl_sync(kFullWarp, sum, Lanes - 1, Lanes);
    return sum - value;
  }

 private:
  /// Of the lanes' half of the warp, the others taken for 0: two reductions take less time than four shuffles.
  template <class Reduce>
  static __device__ __forceinline__ std::uint32_t of_halves(std::uint32_t value, Reduce reduce) {
    const bool is_upper = threadIdx.x & Lanes;
    const std::uint32_t lower = reduce(is_upper ? 0 : value);
    const std::uint32_t upper = reduce(is_upper ? value : 0);
    return is_upper ? upper : lower;
  }
  __device__ __forceinline__ int up_to(int sum) const {
#pragma unroll
    for (int o = 1; o < Lanes; o <<= 1) {  // the shuffle itself says which lanes have another to their left
      asm volatile(
          "{ .reg .b32 left; .reg .pred there; shfl.sync.up.b32 left|there, %0, %1, %2, 0xffffffff;"
          " @there add.s32 %0, %0, left; }"
          : "+r"(sum)
          : "r"(o), "n"((kWarp - Lanes) << 8));
    }
    return sum;
  }
};

/// A block of up to 16 warps, with shared memory of its own: of warps that are not there it holds 0. Two turns of the
/// same memory: one barrier a result.
class block_group {
 public:
  static constexpr int kLanes = kWarp;
  static constexpr bool kIsBlock = true;
  static constexpr bool kHasRoom = false;  // what it saves few rows, spills cost all
  static constexpr int kMostWarps = 16;
  struct memory {
    std::uint32_t words[2][kMostWarps];
  };

  /// All threads must meet before they call anything else.
  __device__ explicit block_group(memory& shared) : shared_(shared) {
    if (threadIdx.x < 2 * kMostWarps) shared.words[threadIdx.x / kMostWarps][threadIdx.x % kMostWarps] = 0;
  }

  __device__ __forceinline__ int threads() const {
    int threads;
    asm volatile("mov.u32 %0, %%ntid.x;" : "=r"(threads));  // else what it makes of them is kept for all rows
    return threads;
  }
  __device__ __forceinline__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ bool all(bool value) const { return value; }  // the same in all threads

  __device__ __forceinline__ std::uint32_t sum(std::uint32_t value) {
    const std::uint32_t* words = exchange(__reduce_add_sync(kFullWarp, value));
    return __reduce_add_sync(kFullWarp, of_warp(words));
  }
  __device__ __forceinline__ float sum(float value) {
    const std::uint32_t* words = exchange(__float_as_uint(in_warp(value)));
    return in_warp(__uint_as_float(of_warp(words)));
  }
  __device__ __forceinline__ float sum_count(float count) {
    return static_cast<float>(sum(static_cast<std::uint32_t>(count)));
  }
  __device__ __forceinline__ std::uint32_t largest(std::uint32_t value) {
    const std::uint32_t* words = exchange(__reduce_max_sync(kFullWarp, value));
    return __reduce_max_sync(kFullWarp, of_warp(words));
  }
  /// Of numbers.
  __device__ __forceinline__ float largest(float value) {
    return core::from_ascending_key(largest(core::ascending_key(value)));
  }
  __device__ __forceinline__ int before(int value) {
    int total = 0;
    return before(value, total);
  }
  __device__ __forceinline__ int before(int value, int& total) {
    const lane_group<kWarp> warp;
    int of_my_warp = 0;
    const int in_my_warp = warp.before(value, of_my_warp);
    const std::uint32_t* words = exchange(static_cast<std::uint32_t>(of_my_warp));
    const std::uint32_t word = of_warp(words);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int my_warp = static_cast<int>(threadIdx.x) / kWarp;
    total = static_cast<int>(__reduce_add_sync(kFullWarp, word));
    return in_my_warp + static_cast<int>(__reduce_add_sync(kFullWarp, lane < my_warp ? word : 0u));
  }

 private:
  __device__ __forceinline__ float in_warp(float value) const {
    const lane_group<kWarp> warp;
    return warp.sum(value);
  }
  __device__ __forceinline__ const std::uint32_t* exchange(std::uint32_t word) {
    std::uint32_t* words = shared_.words[turn_ ^= 1];
    if (threadIdx.x % kWarp == 0) words[threadIdx.x / kWarp] = word;
    __syncthreads();
    return words;
  }
  __device__ __forceinline__ std::uint32_t of_warp(const std::uint32_t* words) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    return lane < kMostWarps ? words[lane] : 0;
  }

  memory& shared_;
  int turn_ = 0;
};

}  // namespace shortlist::cuda
