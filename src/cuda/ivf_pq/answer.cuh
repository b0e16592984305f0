// From a query's best rows by code to its answer: refined if asked for, cut to k, sorted, written.
#pragma once

#include "cuda/device/block_select.cuh"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/element.cuh"
#include "cuda/flat/results.cuh"
#include "cuda/ivf_pq/decode.cuh"

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

/// Elements of a query as warps read it.
SHORTLIST_HOST_DEVICE constexpr std::int32_t padded_dim(std::int32_t dim) {
  return (dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
}

/// A query as warps read it: padded with -0 to whole chunks of 128. Known to the block after a barrier.
__device__ __forceinline__ void stage_query(const float* query, std::int32_t dim, float* staged) {
  const std::int32_t padded = padded_dim(dim);
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

/// What names a row in the key that its score replaces.
struct number_of_key {
  __device__ __forceinline__ std::uint32_t operator()(std::uint64_t key) const { return core::position_of(key); }
};

inline constexpr int kLanesThatAsk = kWarp / static_cast<int>(kScoredAtOnce);  // for a row

/// Calls write(i, key) for each i in [first, n), by `step`, with key_of(numbers of the lane's rows, which of them is
/// its); a warp. number_at(i) is the number of row i, which the warp reads before it writes. While rows are scored,
/// key_of.ask_for(number) has those of the next step sent for, a lane of four a row, if there is such a function.
template <class NumberAt, class KeyOf, class Write>
__device__ __forceinline__ void score_by_eights(std::uint32_t first, std::uint32_t n, std::uint32_t step, int lane,
                                                NumberAt number_at, KeyOf key_of, Write write) {
  const int mine = finished_row<kLanesOfScore, kScoredOfLanes>(lane);
  for (; first < n; first += step) {
    const std::uint32_t at = first + lane / kLanesOfScore * kScoredOfLanes;
    std::uint32_t numbers[kScoredOfLanes];
#pragma unroll
    for (int r = 0; r < kScoredOfLanes; r++) numbers[r] = number_at(min(at + r, n - 1));
    if constexpr (requires { key_of.ask_for(0u); }) {
      const std::uint32_t next = first + step + lane / kLanesThatAsk;
      if (next < n) key_of.ask_for(number_at(next));
    }
    __syncwarp();
    const std::uint64_t key = key_of(numbers, mine);
    if (leads_finished_row<kLanesOfScore, kScoredOfLanes>(lane) && at + mine < n) write(at + mine, key);
    __syncwarp();
  }
}

/// Replaces keys[first, n), by `step`. number_of takes a row's number from the key that is replaced.
template <class NumberOf, class KeyOf>
__device__ __forceinline__ void replace_keys(std::uint64_t* keys, std::uint32_t first, std::uint32_t n,
                                             std::uint32_t step, int lane, NumberOf number_of, KeyOf key_of) {
  score_by_eights(
      first, n, step, lane, [&](std::uint32_t i) { return number_of(keys[i]); }, key_of,
      [&](std::uint32_t i, std::uint64_t key) { keys[i] = key; });
}

/// The key of one of a lane's two kept rows. Rows lie apart, and a step's loads are all that a lane has under way:
/// those of the step after come from the L2 cache.
template <bool L2>
class kept_row_scorer {
 public:
  /// The query is staged.
  __device__ kept_row_scorer(const answer_plan& plan, const float* staged, int lane)
      : plan_(plan), staged_(staged), lane_(lane) {
    if (plan.results.by == metric::cosine) inverse_norm_ = inverse_norm_of_query(staged, plan.dim, lane);
  }

  __device__ __forceinline__ std::uint64_t operator()(const std::uint32_t (&positions)[kScoredOfLanes],
                                                      int mine) const {
    const metric by = plan_.results.by;
    const unsigned char* rows[kScoredOfLanes];
#pragma unroll
    for (int r = 0; r < kScoredOfLanes; r++) rows[r] = plan_.rows + positions[r] * plan_.row_stride_bytes;
    const float sum = sum_by_eights<L2, kAtOnce>(
        plan_.dim, staged_, lane_, [&](std::int32_t first, scored_fours<kAtOnce>& x) { load(rows, first, x); });
    const std::uint32_t position = mine == 0 ? positions[0] : positions[1];
    const float row_inverse_norm = by == metric::cosine ? plan_.inverse_norms[position] : 0.0f;
    return core::row_key(core::score_key(score_of(sum, by, inverse_norm_, row_inverse_norm), by), position);
  }

  /// A row's lines go to the L2 cache.
  __device__ __forceinline__ void ask_for(std::uint32_t position) const {
    constexpr std::uint64_t kLine = kLineBytes;
    const auto row = reinterpret_cast<std::uint64_t>(plan_.rows + position * plan_.row_stride_bytes);
    const std::uint64_t end = row + static_cast<std::uint64_t>(plan_.dim) * size_bytes(plan_.type);
    for (std::uint64_t line = row / kLine * kLine + lane_ % kLanesThatAsk * kLine; line < end;
         line += kLanesThatAsk * kLine)
      prefetch_line(reinterpret_cast<const void*>(line));
  }

 private:
  using row_pointers = const unsigned char* [kScoredOfLanes];
  static constexpr int kAtOnce = 2;

  /// All of these loads are under way at once, so that memory is waited for once.
  template <element_type E>
  __device__ __forceinline__ void load(const row_pointers& rows, std::int32_t first, scored_fours<kAtOnce>& x) const {
    using raw = typename quad<E>::raw;
    for_each_four<kAtOnce>(first, plan_.dim, [&](int i, std::int32_t at) {
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++)
        x[i][r] = quad<E>::widen(load_apart(reinterpret_cast<const raw*>(rows[r]) + at / 4));
    });
  }
  __device__ __forceinline__ void load(const row_pointers& rows, std::int32_t first, scored_fours<kAtOnce>& x) const {
    switch (plan_.type) {
      case element_type::f32: return load<element_type::f32>(rows, first, x);
      case element_type::f16: return load<element_type::f16>(rows, first, x);
      case element_type::bf16: return load<element_type::bf16>(rows, first, x);
      case element_type::i8: return load<element_type::i8>(rows, first, x);
      default: return load<element_type::u8>(rows, first, x);
    }
  }

  const answer_plan& plan_;
  const float* staged_;
  int lane_;
  float inverse_norm_ = 0.0f;
};

/// Replaces keys[0, n) by those of the scores of the rows themselves. The query is staged.
template <int Threads>
__device__ void refine_keys(const answer_plan& plan, const float* staged, std::uint64_t* keys, std::uint32_t n) {
  constexpr std::uint32_t kStep = Threads / kWarp * kScoredAtOnce;
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t first = threadIdx.x / kWarp * kScoredAtOnce;
  if (plan.results.by == metric::l2)
    replace_keys(keys, first, n, kStep, lane, number_of_key{}, kept_row_scorer<true>(plan, staged, lane));
  else
    replace_keys(keys, first, n, kStep, lane, number_of_key{}, kept_row_scorer<false>(plan, staged, lane));
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
  const auto write = [&](std::uint32_t rank, std::uint64_t key) {
    if (rank < k) plan.results.write(query, rank, key);
  };
  if (n <= Threads) {
    rank_by_counting<Threads>(keys, n, write);
  } else {
    const auto visit = [&](auto f) {
      for (std::uint32_t i = threadIdx.x; i < n; i += Threads) f(keys[i]);
    };
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
    if (k <= Threads) {
      rank_by_counting<Threads>(spare, k, write);
    } else {
      block_sort<Threads>(spare, room);
      for (std::uint32_t i = threadIdx.x; i < k; i += Threads) write(i, spare[i]);
    }
  }
  for (std::int64_t i = k + static_cast<std::int64_t>(threadIdx.x); i < plan.results.k; i += Threads)
    plan.results.pad(query, i);
  __syncthreads();
}

/// Writes the best of n keys, all scored, as a query's answer. @returns false, and writes nothing, if bins do not
/// serve them.
template <int Threads, class Keys>
__device__ bool write_sorted(const result_lists& results, std::int64_t query, Keys keys, std::uint32_t n,
                             std::uint64_t* spare, std::uint32_t room, sort_bins<>& bins,
                             select_scratch<Threads>& scratch) {
  const auto k = static_cast<std::uint32_t>(min(results.k, static_cast<std::int64_t>(n)));
  if (!sort_by_bins<Threads>(keys, n, k, spare, room, bins, scratch,
                             [&](std::uint32_t rank, std::uint64_t key) { results.write(query, rank, key); }))
    return false;
  for (std::int64_t i = k + static_cast<std::int64_t>(threadIdx.x); i < results.k; i += Threads) results.pad(query, i);
  return true;
}

}  // namespace shortlist::cuda
