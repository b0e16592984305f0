// The canonical score by one warp: lane l holds the partial sums p[4l..4l+3] of every row. See docs/ordering.md.
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

/// Halves the values at each step and adds across lanes `Offset` apart: rows spread over lanes while they are summed,
/// so that N values of 32 lanes cost N + 1 shuffles instead of 5 N.
template <int N, int Offset>
__device__ __forceinline__ float add_across_lanes(const float (&values)[N], int lane) {
  if constexpr (N == 1) {
    float sum = values[0];
#pragma unroll
    for (int offset = Offset; offset > 0; offset >>= 1) sum += __shfl_xor_sync(kFullWarp, sum, offset);
    return sum;
  } else {
    const bool upper = lane & Offset;
    float half[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const float keep = upper ? values[i + N / 2] : values[i];
      const float give = upper ? values[i] : values[i + N / 2];
      half[i] = keep + __shfl_xor_sync(kFullWarp, give, Offset);
    }
    return add_across_lanes<N / 2, Offset / 2>(half, lane);
  }
}

/// The sums p[0] of `Rows` rows after the whole tree; lane l returns that of row l / (32 / Rows).
/// s = 64 .. 4 are lanes 16 .. 1 apart; s = 2 and 1 are the components, which by then lie in lanes of their own.
template <int Rows>
__device__ __forceinline__ float finish_sums(const float (&sums)[Rows * 4], int lane) {
  static_assert(Rows == 1 || Rows == 2 || Rows == 4);
  float sum = add_across_lanes<Rows * 4, 16>(sums, lane);
  sum += __shfl_xor_sync(kFullWarp, sum, 16 / Rows);
  return sum + __shfl_xor_sync(kFullWarp, sum, 8 / Rows);
}

/// A finished sum as a score.
__device__ __forceinline__ float score_of(float sum, metric by, float query_inverse_norm, float row_inverse_norm) {
  return by == metric::cosine ? core::cosine_score(sum, query_inverse_norm, row_inverse_norm) : sum;
}

}  // namespace shortlist::cuda
