// The canonical score by a warp, `Lanes` lanes a row. See docs/ordering.md for the definition.
//
// Lane a of a row's lanes holds the partial sums p[j] of j = 4 (Lanes v + a) + c, c in 0..3 and v in 0 .. 32 / Lanes
// - 1. The tree's first steps then stay in the lane (v), the next cross lanes, and s = 2 and 1 join the components c.
// Where a lane has several rows, they spread over lanes while they are summed, which saves shuffles.
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

/// One step across lanes `Offset` apart: each lane keeps half of the values, and adds its partner's of the same half.
template <int Offset, int N>
__device__ __forceinline__ void halve_across_lanes(const float (&values)[N], float (&half)[N / 2], int lane) {
  const bool upper = lane & Offset;
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    const float keep = upper ? values[i + N / 2] : values[i];
    const float give = upper ? values[i] : values[i + N / 2];
    half[i] = keep + __shfl_xor_sync(kFullWarp, give, Offset);
  }
}

/// Halves the values at each step and adds across lanes `Offset`, Offset / 2, .. `Last` apart.
template <int N, int Offset, int Last>
__device__ __forceinline__ void add_across_lanes(float (&values)[N], int lane) {
  if constexpr (Offset >= Last) {
    if constexpr (N == 1) {
      values[0] += __shfl_xor_sync(kFullWarp, values[0], Offset);
      add_across_lanes<1, Offset / 2, Last>(values, lane);
    } else {
      float half[N / 2];
      halve_across_lanes<Offset>(values, half, lane);
      add_across_lanes<N / 2, Offset / 2, Last>(half, lane);
#pragma unroll
      for (int i = 0; i < N / 2; i++) values[i] = half[i];
    }
  }
}

/// Quads of partial sums that a lane holds of a row: v.
template <int Lanes>
inline constexpr int kQuadsPerLane = core::kPartialSums / 4 / Lanes;

/// Which of its `RowsPerLane` rows a lane holds after finish_sums.
template <int Lanes, int RowsPerLane>
__device__ __forceinline__ int finished_row(int lane) {
  return lane % Lanes / (Lanes / RowsPerLane);
}

/// Whether the lane is the first of those that hold the same finished sum.
template <int Lanes, int RowsPerLane>
__device__ __forceinline__ bool leads_finished_row(int lane) {
  return lane % (Lanes / RowsPerLane) == 0;
}

/// p[0] of a lane's rows after the whole tree; the lane returns that of row finished_row().
template <int Lanes, int RowsPerLane>
__device__ __forceinline__ float finish_sums(const float (&sums)[RowsPerLane][kQuadsPerLane<Lanes>][4], int lane) {
  static_assert(Lanes == 8 || Lanes == 32);
  static_assert(RowsPerLane == 1 || RowsPerLane == 2 || RowsPerLane == 4);
  float values[RowsPerLane * 4];
#pragma unroll
  for (int r = 0; r < RowsPerLane; r++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      if constexpr (Lanes == 8)  // s = 64, s = 32
        values[4 * r + c] = (sums[r][0][c] + sums[r][2][c]) + (sums[r][1][c] + sums[r][3][c]);
      else
        values[4 * r + c] = sums[r][0][c];
    }
  add_across_lanes<RowsPerLane * 4, Lanes / 2, 1>(values, lane);  // down to s = 4
  if constexpr (Lanes < RowsPerLane * 4) {
    float pair[2] = {values[0], values[1]};  // c and c + 1; lanes 1 apart differ in c by 2
    add_across_lanes<2, 1, 1>(pair, lane);   // s = 2
    return pair[0] + __shfl_xor_sync(kFullWarp, pair[0], 1);
  } else {
    const float sum = values[0] + __shfl_xor_sync(kFullWarp, values[0], Lanes / RowsPerLane / 2);  // s = 2
    return sum + __shfl_xor_sync(kFullWarp, sum, Lanes / RowsPerLane / 4);
  }
}

/// A finished sum as a score.
__device__ __forceinline__ float score_of(float sum, metric by, float query_inverse_norm, float row_inverse_norm) {
  return by == metric::cosine ? core::cosine_score(sum, query_inverse_norm, row_inverse_norm) : sum;
}

}  // namespace shortlist::cuda
