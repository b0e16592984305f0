// How the scans of one query compute scores: a few rows a warp at once, from shared or from global memory, against a
// query in shared memory. See device/score.cuh for the tree.
#pragma once

#include "core/score.hpp"
#include "cuda/device/element.cuh"
#include "cuda/device/score.cuh"
#include "cuda/flat/scan_search.cuh"

namespace shortlist::cuda {

/// Lanes of a row. All of the warp where a row's chunk fills the banks; eight where it is narrow, which saves most of
/// the tree's instructions: they, not memory, would limit the narrow types.
template <element_type E>
inline constexpr int kLanesPerRow = E == element_type::f32 ? 32 : 8;
template <element_type E>
inline constexpr int kRowsPerPass = kWarp / kLanesPerRow<E>;  // rows that a warp holds side by side
template <element_type E>
inline constexpr int kQuads = kQuadsPerLane<kLanesPerRow<E>>;
/// Rows that a lane holds at once: the query's elements are read once for all of them.
template <element_type E>
inline constexpr int kRowsPerLane = E == element_type::f32 ? 4 : 16 / sizeof(typename quad<E>::raw);
template <element_type E>
using partial_sums = float[kRowsPerLane<E>][kQuads<E>][4];

/// Chunks of 128 elements that a lane loads ahead without bulk copies: as many as its registers hold.
template <element_type E>
inline constexpr int kDirectChunks = E == element_type::f32 ? 3
                                     : kRowsPerLane<E> == 2 ? 2
                                                            : 1;

/// Which quad of a chunk a lane reads as its v-th. Eight lanes of a narrow row cover only a part of the banks, so the
/// rows of a pass start at different quads; the tree is the same for any exclusive-or of v, since pairs stay pairs.
template <element_type E>
__device__ __forceinline__ int quad_of(int v, int lane) {
  return (v ^ (lane / kLanesPerRow<E>)) * kLanesPerRow<E> + lane % kLanesPerRow<E>;
}

/// Partial sums of rows in shared memory, `stride` bytes apart: row r of the lane is row r * kRowsPerPass + lane /
/// kLanesPerRow.
template <element_type E, bool L2>
__device__ __forceinline__ void sums_from_shared(const unsigned char* rows, int stride, const float4* query, int lane,
                                                 partial_sums<E>& sums) {
  using raw = typename quad<E>::raw;
  constexpr int kChunkBytes = kWarp * sizeof(raw);
  const unsigned char* mine = rows + lane / kLanesPerRow<E> * stride;
  const int whole = stride / kChunkBytes;
#pragma unroll 1
  for (int t = 0; t < whole; t++) {
#pragma unroll
    for (int v = 0; v < kQuads<E>; v++) {
      const int at = quad_of<E>(v, lane);
      const float4 q = query[t * kWarp + at];
#pragma unroll
      for (int r = 0; r < kRowsPerLane<E>; r++) {
        const auto* x = reinterpret_cast<const raw*>(mine + r * kRowsPerPass<E> * stride + t * kChunkBytes) + at;
        step4<L2>(q, quad<E>::widen(*x), sums[r][v]);
      }
    }
  }
  const int rest = stride - whole * kChunkBytes;  // the last chunk, if partial: zeros beyond the row take no step
  if (rest == 0) return;
#pragma unroll
  for (int v = 0; v < kQuads<E>; v++) {
    const int at = quad_of<E>(v, lane);
    const float4 q = query[whole * kWarp + at];
#pragma unroll
    for (int r = 0; r < kRowsPerLane<E>; r++) {
      const auto* x = reinterpret_cast<const raw*>(mine + r * kRowsPerPass<E> * stride + whole * kChunkBytes) + at;
      if (at * static_cast<int>(sizeof(raw)) < rest) step4<L2>(q, quad<E>::widen(*x), sums[r][v]);
    }
  }
}

/// The same straight from global memory. `rows` are the lane's, null where there is none.
template <element_type E, bool L2>
__device__ __forceinline__ void sums_from_global(const unsigned char* const (&rows)[kRowsPerLane<E>],
                                                 std::int64_t stride, const float4* query, int lane,
                                                 partial_sums<E>& sums) {
  using raw = typename quad<E>::raw;
  constexpr int kChunkBytes = kWarp * sizeof(raw);
  for (std::int64_t chunk = 0; chunk < stride;
       chunk += kDirectChunks<E> * kChunkBytes, query += kDirectChunks<E> * kWarp) {
    raw x[kDirectChunks<E>][kQuads<E>][kRowsPerLane<E>];
#pragma unroll
    for (int t = 0; t < kDirectChunks<E>; t++)
#pragma unroll
      for (int v = 0; v < kQuads<E>; v++) {
        const std::int64_t at =
            chunk + t * kChunkBytes + (v * kLanesPerRow<E> + lane % kLanesPerRow<E>)*static_cast<int>(sizeof(raw));
#pragma unroll
        for (int r = 0; r < kRowsPerLane<E>; r++) {
          x[t][v][r] = raw{};
          if (at < stride && rows[r]) x[t][v][r] = load_streaming(reinterpret_cast<const raw*>(rows[r] + at));
        }
      }
#pragma unroll
    for (int t = 0; t < kDirectChunks<E>; t++)
#pragma unroll
      for (int v = 0; v < kQuads<E>; v++) {
        const int at = v * kLanesPerRow<E> + lane % kLanesPerRow<E>;
        if (chunk + t * kChunkBytes + at * static_cast<int>(sizeof(raw)) >= stride) continue;
        const float4 q = query[t * kWarp + at];
#pragma unroll
        for (int r = 0; r < kRowsPerLane<E>; r++) step4<L2>(q, quad<E>::widen(x[t][v][r]), sums[r][v]);
      }
  }
}

/// The query's first elements, on their way while the first bulk copies are not yet in the way.
struct query_head {
  float values[2];
};

__device__ __forceinline__ query_head fetch_query_head(const float* from, int dim) {
  query_head head;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = i * kScanThreads + threadIdx.x;
    head.values[i] = at < dim ? from[at] : core::kQueryPadding;
  }
  return head;
}

/// Puts the query into shared memory, padded with -0 to whole chunks, and computes its inverse norm under cosine.
__device__ __forceinline__ void place_query(const scan_search& args, const float* from, const query_head& head,
                                            float* query, scan_selection& shared) {
  const int padded = (args.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = i * kScanThreads + threadIdx.x;
    if (at < padded) query[at] = head.values[i];
  }
  for (int i = 2 * kScanThreads + threadIdx.x; i < padded; i += kScanThreads)
    query[i] = i < args.dim ? from[i] : core::kQueryPadding;
  __syncthreads();
  if (args.by != metric::cosine) return;
  if (threadIdx.x < kWarp) {
    float sums[1][1][4] = {};
    const auto* q4 = reinterpret_cast<const float4*>(query);
    for (int t = 0; t < padded / core::kPartialSums; t++) {  // the padding's square is +0: no step
      const float4 q = q4[t * kWarp + threadIdx.x];
      step4<false>(q, q, sums[0][0]);
    }
    const float sum = finish_sums<kWarp, 1>(sums, threadIdx.x);
    if (threadIdx.x == 0) shared.query_inverse_norm = core::inverse_norm(sum);
  }
  __syncthreads();
}

/// The rows that a warp's lanes hold at once.
template <element_type E>
inline constexpr int kRowsAtOnce = kRowsPerPass<E>* kRowsPerLane<E>;

/// Which of them a lane has the score of, after the tree.
template <element_type E>
__device__ __forceinline__ int scored_row(int lane) {
  return finished_row<kLanesPerRow<E>, kRowsPerLane<E>>(lane) * kRowsPerPass<E> + lane / kLanesPerRow<E>;
}

/// Whether the lane is the first of those that have it.
template <element_type E>
__device__ __forceinline__ bool leads_scored_row(int lane) {
  return leads_finished_row<kLanesPerRow<E>, kRowsPerLane<E>>(lane);
}

}  // namespace shortlist::cuda
