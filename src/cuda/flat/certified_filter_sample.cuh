// The best rows of a sample, by the estimates of their merits. See certified_filter.cu.
#pragma once

#include <cstdint>

#include "core/certified.hpp"
#include "core/order.hpp"
#include "cuda/device/score.cuh"
#include "cuda/flat/certified_filter.hpp"
#include "cuda/flat/certified_filter_parts.cuh"

namespace shortlist::cuda::certifying {

/// A row's merit, or nearly, as a key whose last bits tell the row: which of `merged` tiles, and which of its 16.
constexpr std::uint32_t kRowBits = 6;
static_assert(kMaxMerged * core::kPlaneRows == 1u << kRowBits);

/// The best of a block's 16 rows, for each column; lane l gets columns best_column(l, 0), ...
template <int N>
constexpr int kBestColumns = N >= 32 ? N / 32 : 1;

template <int N>
__device__ __forceinline__ int best_column(int lane, int i) {
  int index = i;
  int count = N / 4;
#pragma unroll
  for (int offset = kWarp / 2; offset >= 4; offset /= 2) {
    if (count > 1) {
      count /= 2;
      index += lane & offset ? count : 0;
    }
  }
  return index / 2 * 8 + lane % 4 * 2 + index % 2;
}

template <int N, int Count, int Offset>
__device__ __forceinline__ void best_across_lanes(std::uint32_t (&keys)[N / 4], int lane) {
  if constexpr (Offset >= 4) {
    if constexpr (Count > 1) {
      const bool upper = lane & Offset;
#pragma unroll
      for (int i = 0; i < Count / 2; i++) {
        const std::uint32_t keep = upper ? keys[i + Count / 2] : keys[i];
        const std::uint32_t give = upper ? keys[i] : keys[i + Count / 2];
        keys[i] = max(keep, __shfl_xor_sync(kFullWarp, give, Offset));
      }
      best_across_lanes<N, Count / 2, Offset / 2>(keys, lane);
    } else {
      keys[0] = max(keys[0], __shfl_xor_sync(kFullWarp, keys[0], Offset));
      best_across_lanes<N, 1, Offset / 2>(keys, lane);
    }
  }
}

template <int N>
__device__ __forceinline__ void raise_best(const filter_args& args, const filter_shared<N>& shared,
                                           const row_pair& pair, const std::int32_t (&sums)[N / 2],
                                           std::uint32_t merged, std::uint32_t (&best)[kBestColumns<N>]) {
  const int lane = threadIdx.x % kWarp;
  std::uint32_t keys[N / 4];
  float scales[2];
  float squares[2];
  std::uint32_t rows[2];
  bool known[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    known[r] = pair.first + 8 * r < args.rows && pair.rows[r].residual < __uint_as_float(0x7F800000u) &&
               !(args.by == metric::cosine && pair.rows[r].fourth < 0.0f);
    squares[r] = args.by == metric::l2 ? pair.rows[r].fourth : 0.0f;
    scales[r] = args.by == metric::cosine ? __fmul_rn(pair.rows[r].scale, pair.rows[r].fourth) : pair.rows[r].scale;
    rows[r] = merged * core::kPlaneRows + lane / 4 + 8 * r;
  }
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const float square_weight = shared.weights[column_of_sum(i + c, lane)].square;
      std::uint32_t key = 0;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float product =
            __fmul_rn(__fsub_rn(__int_as_float(kOriginBits - sums[i + 2 * r + c]), kOrigin), scales[r]);
        const float merit = __fmaf_rn(-square_weight, squares[r], product);
        const std::uint32_t mine = (core::ascending_key(merit) & ~((1u << kRowBits) - 1u)) | rows[r];
        key = known[r] ? max(key, mine) : key;
      }
      keys[i / 2 + c] = key;
    }
  }
  best_across_lanes<N, N / 4, kWarp / 2>(keys, lane);
#pragma unroll
  for (int i = 0; i < kBestColumns<N>; i++) best[i] = max(best[i], keys[i]);
}

}  // namespace shortlist::cuda::certifying
