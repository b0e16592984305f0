// From a query's best rows by code to its answer: refined if asked for, cut to k, sorted, written.
#pragma once

#include "cuda/device/block_select.cuh"
#include "cuda/device/element.cuh"
#include "cuda/flat/results.cuh"

namespace shortlist::cuda {

struct answer_plan {
  result_lists results;
  const float* queries;  ///< as they were given
  std::int64_t query_stride;
  const unsigned char* rows;  ///< kept rows, if answers are refined, else null
  std::int64_t row_stride_bytes;
  const float* inverse_norms;  ///< of kept rows, under cosine
  std::int32_t dim;
  std::uint32_t by_code;  ///< how many rows the codes choose: k, or refine_ratio x k
  element_type type;      ///< of kept rows
};

/// A query as warps read it: padded with -0 to whole chunks of 128. Known to the block after a barrier.
__device__ __forceinline__ void stage_query(const float* query, std::int32_t dim, float* staged) {
  const std::int32_t padded = (dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  for (std::int32_t i = threadIdx.x; i < padded; i += blockDim.x) staged[i] = i < dim ? query[i] : core::kQueryPadding;
}

/// 1 / |q|, or kZeroVector, of a staged query; known to all lanes of the warp.
__device__ __forceinline__ float inverse_norm_of_query(const float* staged, std::int32_t dim, int lane) {
  float sums[1][1][4] = {};
  for (std::int32_t at = lane * 4; at < dim; at += core::kPartialSums) {
    float4 q = *reinterpret_cast<const float4*>(staged + at);
    step4<false>(q, q, sums[0][0]);
  }
  return core::inverse_norm(__shfl_sync(kFullWarp, finish_sums<kWarp, 1>(sums, lane), 0));
}

template <element_type E>
__device__ __forceinline__ float4 load_four(const unsigned char* row, std::int32_t at) {
  using raw = typename quad<E>::raw;
  return quad<E>::widen(load_streaming(reinterpret_cast<const raw*>(row) + at / 4));
}

__device__ __forceinline__ float4 load_four(element_type type, const unsigned char* row, std::int32_t at) {
  switch (type) {
    case element_type::f32: return load_four<element_type::f32>(row, at);
    case element_type::f16: return load_four<element_type::f16>(row, at);
    case element_type::bf16: return load_four<element_type::bf16>(row, at);
    case element_type::i8: return load_four<element_type::i8>(row, at);
    default: return load_four<element_type::u8>(row, at);
  }
}

inline constexpr int kRefinedRows = 4;  // of a warp at once

/// Replaces keys[0, n) by those of the scores of the rows themselves. The query is staged.
template <int Threads>
__device__ void refine_keys(const answer_plan& plan, const float* staged, std::uint64_t* keys, std::uint32_t n) {
  const int lane = threadIdx.x % kWarp;
  const metric by = plan.results.by;
  const bool l2 = by == metric::l2;
  const float query_inverse_norm = by == metric::cosine ? inverse_norm_of_query(staged, plan.dim, lane) : 0.0f;
  constexpr std::uint32_t kStep = Threads / kWarp * kRefinedRows;
  for (std::uint32_t first = threadIdx.x / kWarp * kRefinedRows; first < n; first += kStep) {
    std::uint32_t positions[kRefinedRows];
    const unsigned char* rows[kRefinedRows];
    float sums[kRefinedRows][1][4] = {};
#pragma unroll
    for (int r = 0; r < kRefinedRows; r++) {
      positions[r] = core::position_of(keys[min(first + r, n - 1)]);
      rows[r] = plan.rows + positions[r] * plan.row_stride_bytes;
    }
#pragma unroll 1
    for (std::int32_t at = lane * 4; at < plan.dim; at += core::kPartialSums) {
      const float4 q = *reinterpret_cast<const float4*>(staged + at);
      float4 x[kRefinedRows];
#pragma unroll
      for (int r = 0; r < kRefinedRows; r++) x[r] = load_four(plan.type, rows[r], at);
#pragma unroll
      for (int r = 0; r < kRefinedRows; r++) {
        if (l2)
          step4<true>(q, x[r], sums[r][0]);
        else
          step4<false>(q, x[r], sums[r][0]);
      }
    }
    __syncwarp();
    const float sum = finish_sums<kWarp, kRefinedRows>(sums, lane);
    const int mine = finished_row<kWarp, kRefinedRows>(lane);
    if (leads_finished_row<kWarp, kRefinedRows>(lane) && first + mine < n) {
      std::uint32_t position = positions[0];
#pragma unroll
      for (int r = 1; r < kRefinedRows; r++) position = mine == r ? positions[r] : position;
      const float row_inverse_norm = by == metric::cosine ? plan.inverse_norms[position] : 0.0f;
      keys[first + mine] =
          core::row_key(core::score_key(score_of(sum, by, query_inverse_norm, row_inverse_norm), by), position);
    }
  }
  __syncthreads();
}

/// Writes a query's answer from keys[0, n), its best rows by code in no order, at most plan.by_code of them. `spare`
/// has room for the smallest power of two that is k or more, of n if n is less; `staged` for a query.
template <int Threads>
__device__ void write_answer(const answer_plan& plan, std::int64_t query, std::uint64_t* keys, std::uint32_t n,
                             std::uint64_t* spare, float* staged, select_scratch<Threads>& scratch) {
  if (plan.rows != nullptr && n > 0) {
    __syncthreads();
    stage_query(plan.queries + query * plan.query_stride, plan.dim, staged);
    __syncthreads();
    refine_keys<Threads>(plan, staged, keys, n);
  }
  const auto k = static_cast<std::uint32_t>(min(plan.results.k, static_cast<std::int64_t>(n)));
  const auto visit = [&](auto f) {
    for (std::uint32_t i = threadIdx.x; i < n; i += Threads) f(keys[i]);
  };
  std::uint64_t* chosen = keys;
  if (n > k || k > Threads) {
    const std::uint64_t cut = n > k ? block_cut_radix<Threads>(visit, k, scratch) : 1;
    __syncthreads();
    if (threadIdx.x == 0) scratch.counter = 0;
    std::uint32_t room = 2;
    while (room < k) room *= 2;
    for (std::uint32_t i = k + threadIdx.x; i < room; i += Threads) spare[i] = core::kNoRow;
    __syncthreads();
    visit([&](std::uint64_t key) {
      if (key >= cut) spare[atomicAdd(&scratch.counter, 1u)] = key;
    });
    __syncthreads();
    chosen = spare;
    if (k > Threads) block_sort<Threads>(spare, room);
  }
  const auto write = [&](std::uint32_t rank, std::uint64_t key) { plan.results.write(query, rank, key); };
  if (k <= Threads) {
    rank_by_counting<Threads>(chosen, k, write);
  } else {
    for (std::uint32_t i = threadIdx.x; i < k; i += Threads) write(i, chosen[i]);
  }
  for (std::int64_t i = k + static_cast<std::int64_t>(threadIdx.x); i < plan.results.k; i += Threads)
    plan.results.pad(query, i);
  __syncthreads();
}

}  // namespace shortlist::cuda
