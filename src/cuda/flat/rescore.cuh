// The canonical scores of a few scattered rows, by one warp: several rows at once, so that many loads are in flight.
#pragma once

#include "cuda/device/element.cuh"
#include "cuda/device/score.cuh"

namespace shortlist::cuda {

inline constexpr int kRescoredRows = 4;  // of a warp at once

/// Sums of rows[0, kRescoredRows) against the query, in shared memory, padded with -0 to whole chunks of 128. Returns
/// that of row finished_row<kWarp, kRescoredRows>(lane).
template <element_type E, bool L2>
__device__ __forceinline__ float sum_of_rows(const unsigned char* const (&rows)[kRescoredRows],
                                             std::int64_t stride_bytes, const float* query, int lane) {
  using raw = typename quad<E>::raw;
  constexpr int kQuadBytes = sizeof(raw);
  float sums[kRescoredRows][kQuadsPerLane<kWarp>][4] = {};
  const auto* q4 = reinterpret_cast<const float4*>(query) + lane;
#pragma unroll 2
  for (std::int64_t at = lane * kQuadBytes; at < stride_bytes; at += kWarp * kQuadBytes, q4 += kWarp) {
    raw x[kRescoredRows];
#pragma unroll
    for (int r = 0; r < kRescoredRows; r++) x[r] = load_streaming(reinterpret_cast<const raw*>(rows[r] + at));
    const float4 q = *q4;
#pragma unroll
    for (int r = 0; r < kRescoredRows; r++) step4<L2>(q, quad<E>::widen(x[r]), sums[r][0]);
  }
  return finish_sums<kWarp, kRescoredRows>(sums, lane);
}

}  // namespace shortlist::cuda
