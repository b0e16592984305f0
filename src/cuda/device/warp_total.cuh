// Sums over the lanes of a warp.
#pragma once

#include <cstdint>

#include "cuda/device/score.cuh"

namespace shortlist::cuda {

/// Of all lanes, known to all.
__device__ __forceinline__ double warp_total(double value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

/// Inclusive sum over the lanes.
__device__ __forceinline__ std::uint32_t lanes_up_to(std::uint32_t value) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    asm volatile(
        "{\n"
        ".reg .pred from;\n"
        ".reg .u32 other;\n"
        "shfl.sync.up.b32 other|from, %0, %1, 0, 0xFFFFFFFF;\n"
        "@from add.u32 %0, %0, other;\n"
        "}"
        : "+r"(value)
        : "r"(offset));
  }
  return value;
}

}  // namespace shortlist::cuda
