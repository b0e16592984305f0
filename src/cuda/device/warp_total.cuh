// Sums over a warp in fp64.
#pragma once

#include "cuda/device/score.cuh"

namespace shortlist::cuda {

/// Known to all lanes.
__device__ __forceinline__ double warp_total(double value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

}  // namespace shortlist::cuda
