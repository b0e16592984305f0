// Sums over the lanes of a warp.
#pragma once

#include "cuda/device/score.cuh"

namespace shortlist::cuda {

/// The sum of a value of the lanes up to this one. All lanes of the warp come.
template <class Value>
__device__ __forceinline__ Value running_sum(Value value) {
  Value sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const Value other = __shfl_up_sync(kFullWarp, sum, offset);
    if (threadIdx.x % kWarp >= offset) sum += other;
  }
  return sum;
}

}  // namespace shortlist::cuda
