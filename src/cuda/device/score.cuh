// The canonical score by a warp, eight lanes a row. See docs/ordering.md for the definition.
//
// Lane a of the eight holds the partial sums p[j] of j = 32 v + 4 a + c, v and c in 0..3: sixteen a row. The tree's
// steps s = 64 and 32 then stay in the lane, s = 16, 8 and 4 cross lanes 4, 2 and 1 apart, and s = 2 and 1 join the
// components c. Where a lane has several rows, they spread over lanes while they are summed, which saves shuffles.
#pragma once

#include "core/score.hpp"
#include "cuda/device/element.cuh"

namespace shortlist::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullWarp = 0xFFFFFFFFu;

/// Four steps, one for each of the lane's partial sums.
template <bool L2>
__device__ __forceinline__ void step4(const float4& query, const float4& row, float* sums) {
  if constexpr (L2) {
    sums[0] = core::step_l2(query.x, row.x, sums[0]);
    sums[1] = core::step_l2(query.y, row.y, sums[1]);
    sums[2] = core::step_l2(query.z, row.z, sums[2]);
    sums[3] = core::step_l2(query.w, row.w, sums[3]);
  } else {
    sums[0] = core::step_dot(query.x, row.x, sums[0]);
    sums[1] = core::step_dot(query.y, row.y, sums[1]);
    sums[2] = core::step_dot(query.z, row.z, sums[2]);
    sums[3] = core::step_dot(query.w, row.w, sums[3]);
  }
}

inline constexpr int kLanesPerRow = 8;
inline constexpr int kRowsPerPass = kWarp / kLanesPerRow;                    ///< rows that a warp holds side by side
inline constexpr int kQuadsPerLane = core::kPartialSums / 4 / kLanesPerRow;  ///< v: quads of partial sums of a lane

/// Halves the values at each step and adds across lanes `Offset`, Offset / 2, .. `Last` apart.
template <int N, int Offset, int Last>
__device__ __forceinline__ void add_across_lanes(float (&values)[N], int lane) {
  if constexpr (Offset >= Last) {
    if constexpr (N == 1) {
      values[0] += __shfl_xor_sync(kFullWarp, values[0], Offset);
      add_across_lanes<1, Offset / 2, Last>(values, lane);
    } else {
      const bool upper = lane & Offset;
      float half[N / 2];
#pragma unroll
      for (int i = 0; i < N / 2; i++) {
        const float keep = upper ? values[i + N / 2] : values[i];
        const float give = upper ? values[i] : values[i + N / 2];
        half[i] = keep + __shfl_xor_sync(kFullWarp, give, Offset);
      }
      add_across_lanes<N / 2, Offset / 2, Last>(half, lane);
#pragma unroll
      for (int i = 0; i < N / 2; i++) values[i] = half[i];
    }
  }
}

/// Which of its `RowsPerLane` rows a lane holds after finish_sums.
template <int RowsPerLane>
__device__ __forceinline__ int finished_row(int lane) {
  return RowsPerLane == 1 ? 0 : (lane % kLanesPerRow) / (kLanesPerRow / RowsPerLane);
}

/// Whether the lane is the first of those that hold the same finished sum.
template <int RowsPerLane>
__device__ __forceinline__ bool leads_finished_row(int lane) {
  return lane % (kLanesPerRow / RowsPerLane) == 0;
}

/// p[0] of a lane's rows after the whole tree; the lane returns that of row finished_row().
template <int RowsPerLane>
__device__ __forceinline__ float finish_sums(const float (&sums)[RowsPerLane][kQuadsPerLane][4], int lane) {
  static_assert(RowsPerLane == 1 || RowsPerLane == 2 || RowsPerLane == 4);
  float values[RowsPerLane * 4];
#pragma unroll
  for (int r = 0; r < RowsPerLane; r++)
#pragma unroll
    for (int c = 0; c < 4; c++)  // s = 64, s = 32
      values[4 * r + c] = (sums[r][0][c] + sums[r][2][c]) + (sums[r][1][c] + sums[r][3][c]);
  add_across_lanes<RowsPerLane * 4, 4, 1>(values, lane);  // s = 16, 8, 4
  if constexpr (RowsPerLane == 4) {
    float pair[2] = {values[0], values[1]};  // c and c + 1; lanes 1 apart differ in c by 2
    add_across_lanes<2, 1, 1>(pair, lane);   // s = 2
    return pair[0] + __shfl_xor_sync(kFullWarp, pair[0], 1);
  } else {
    const float sum = values[0] + __shfl_xor_sync(kFullWarp, values[0], 4 / RowsPerLane);  // s = 2
    return sum + __shfl_xor_sync(kFullWarp, sum, 2 / RowsPerLane);
  }
}

/// A finished sum as a score.
__device__ __forceinline__ float score_of(float sum, metric by, float query_inverse_norm, float row_inverse_norm) {
  return by == metric::cosine ? core::cosine_score(sum, query_inverse_norm, row_inverse_norm) : sum;
}

}  // namespace shortlist::cuda
