// The nearest lists of a few queries.
//
// Two launches. The first scores all centroids to the bit: a warp holds eight of them in registers, and meets all of
// the block's queries. The second, a block a query: each thread's best key, of those the nprobe-th, which so many keys
// reach and not many more; what reaches it is ranked.
// Limit, for one query: latency; for many: scoring, some 16 instructions of a warp for each centroid and query.
#include <algorithm>

#include "cuda/device/block_select.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/flat/results.cuh"
#include "cuda/ivf_pq/answer.cuh"
#include "cuda/ivf_pq/decode.cuh"
#include "cuda/ivf_pq/inline_query.cuh"
#include "cuda/ivf_pq/nearest_lists.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kWarpRows = kWarp / kLanesOfScore * kScoredOfLanes;
constexpr int kBlockRows = kWarps * kWarpRows;
constexpr int kBlockQueries = 8;
constexpr int kQuads = kQuadsPerLane<kLanesOfScore>;
constexpr int kPickThreads = 512;
constexpr std::int64_t kMostPicked = kPickThreads / 2;  // lists of a query
constexpr std::int64_t kPickRoom = 4096;                // keys

struct nearest_args {
  query_source queries;
  std::int32_t query_count;
  std::int32_t dim;
  const float* rows;
  std::int64_t row_stride;
  const float* inverse_norms;
  std::int32_t row_count;
  std::int32_t wanted;
  std::uint64_t* keys;  // [queries, rows]
  result_lists results;
};

template <bool L2>
__global__ void __launch_bounds__(kThreads) score_kernel(const __grid_constant__ nearest_args args) {
  __shared__ __align__(16) float staged[kBlockQueries][core::kPartialSums];
  join_chain();
  const int lane = threadIdx.x % kWarp;
  const std::int32_t first_query = static_cast<std::int32_t>(blockIdx.y) * kBlockQueries;
  const std::int32_t queries = min(kBlockQueries, args.query_count - first_query);
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x * kBlockRows + threadIdx.x / kWarp * kWarpRows) +
                             lane / kLanesOfScore * kScoredOfLanes;
  float4 rows[kScoredOfLanes][kQuads];
#pragma unroll
  for (int r = 0; r < kScoredOfLanes; r++)
#pragma unroll
    for (int v = 0; v < kQuads; v++) {
      const std::int32_t at = (v * kLanesOfScore + lane % kLanesOfScore) * 4;
      rows[r][v] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (at < args.dim && first + r < args.row_count)
        rows[r][v] = *reinterpret_cast<const float4*>(args.rows + (first + r) * args.row_stride + at);
    }
  for (std::int32_t i = threadIdx.x; i < queries * core::kPartialSums; i += kThreads) {
    const std::int32_t at = i % core::kPartialSums;
    staged[0][i] = at < args.dim ? args.queries.of(first_query + i / core::kPartialSums)[at] : core::kQueryPadding;
  }
  __syncthreads();
  const metric by = args.results.by;
  const std::int32_t mine = first + finished_row<kLanesOfScore, kScoredOfLanes>(lane);
  const bool writes = leads_finished_row<kLanesOfScore, kScoredOfLanes>(lane) && mine < args.row_count;
  const float row_inverse_norm = by == metric::cosine && mine < args.row_count ? args.inverse_norms[mine] : 0.0f;
#pragma unroll 1
  for (std::int32_t q = 0; q < queries; q++) {
    const float inverse_norm = by == metric::cosine ? inverse_norm_of_query(staged[q], args.dim, lane) : 0.0f;
    float sums[kScoredOfLanes][kQuads][4] = {};
#pragma unroll
    for (int v = 0; v < kQuads; v++) {
      if (v * kLanesOfScore * 4 >= args.dim) break;
      const std::int32_t at = (v * kLanesOfScore + lane % kLanesOfScore) * 4;
      const float4 x = *reinterpret_cast<const float4*>(staged[q] + at);
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) step4<L2>(x, rows[r][v], sums[r][v]);
    }
    __syncwarp();
    const float score =
        score_of(finish_sums<kLanesOfScore, kScoredOfLanes>(sums, lane), by, inverse_norm, row_inverse_norm);
    if (writes)
      args.keys[static_cast<std::int64_t>(first_query + q) * args.row_count + mine] =
          core::row_key(core::score_key(score, by), static_cast<std::uint32_t>(mine));
  }
}

struct pick_shared {
  select_scratch<kPickThreads> select;
  std::uint64_t best[kPickThreads];
  std::uint32_t count;
  std::uint64_t chosen[kPickRoom];
};

__global__ void __launch_bounds__(kPickThreads) pick_kernel(const __grid_constant__ nearest_args args) {
  join_chain();
  auto& shared = *reinterpret_cast<pick_shared*>(dynamic_shared());
  const std::uint64_t* keys = args.keys + static_cast<std::int64_t>(blockIdx.x) * args.row_count;
  const auto wanted = static_cast<std::uint32_t>(args.wanted);
  std::uint64_t best = core::kNoRow;
#pragma unroll 16
  for (std::int32_t i = threadIdx.x; i < args.row_count; i += kPickThreads) best = max(best, keys[i]);
  shared.best[threadIdx.x] = best;
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  std::uint64_t cut = block_cut<kPickThreads>(shared.best, kPickThreads, wanted, wanted / 8, shared.select);
#pragma unroll 16
  for (std::int32_t i = threadIdx.x; i < args.row_count; i += kPickThreads)
    if (keys[i] >= cut) shared.chosen[atomicAdd(&shared.count, 1u)] = keys[i];
  __syncthreads();
  std::uint32_t n = shared.count;
  const std::uint64_t* chosen = shared.chosen;
  if (n > kPickThreads) {
    cut = block_cut<kPickThreads>(chosen, n, wanted, 0, shared.select);
    __syncthreads();
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < n; i += kPickThreads)
      if (chosen[i] >= cut) shared.best[atomicAdd(&shared.count, 1u)] = chosen[i];
    __syncthreads();
    n = shared.count;
    chosen = shared.best;
  }
  rank_by_counting<kPickThreads>(chosen, n, [&](std::uint32_t rank, std::uint64_t key) {
    if (rank < wanted) args.results.write(blockIdx.x, rank, key);
  });
}

}  // namespace

bool has_nearest_lists(std::int64_t dim, std::int64_t lists, std::int64_t nprobe) {
  const std::int64_t keys_of_thread = (lists + kPickThreads - 1) / kPickThreads;
  return dim <= kInlineQueryDim && nprobe <= kMostPicked && (nprobe + nprobe / 8) * keys_of_thread <= kPickRoom;
}

std::int64_t nearest_lists_bytes(std::int64_t lists, std::int64_t queries) {
  return lists * queries * static_cast<std::int64_t>(sizeof(std::uint64_t));
}

void launch_nearest_lists(cudaStream_t stream, void* memory, const core::flat_corpus& centroids,
                          const core::flat_request& request, const float* inline_query) {
  nearest_args args{};
  args.queries = query_source(request.queries, request.query_stride, inline_query, centroids.dim);
  args.query_count = static_cast<std::int32_t>(request.query_count);
  args.dim = static_cast<std::int32_t>(centroids.dim);
  args.rows = static_cast<const float*>(centroids.rows);
  args.row_stride = centroids.row_stride_bytes / static_cast<std::int64_t>(sizeof(float));
  args.inverse_norms = centroids.inverse_norms;
  args.row_count = static_cast<std::int32_t>(centroids.count);
  args.wanted = static_cast<std::int32_t>(std::min(request.k, centroids.count));
  args.keys = static_cast<std::uint64_t*>(memory);
  args.results = {centroids.ids, request.scores, request.ids, request.k, centroids.metric};
  const launch_shape scores{.grid = dim3(static_cast<unsigned>((args.row_count + kBlockRows - 1) / kBlockRows),
                                         static_cast<unsigned>((args.query_count + kBlockQueries - 1) / kBlockQueries)),
                            .threads = kThreads,
                            .overlaps = true};
  launch(centroids.metric == metric::l2 ? score_kernel<true> : score_kernel<false>, scores, stream, args,
         "launching the scores of centroids");
  launch(pick_kernel,
         {.grid = dim3(static_cast<unsigned>(args.query_count)),
          .threads = kPickThreads,
          .shared_bytes = static_cast<std::int64_t>(sizeof(pick_shared)),
          .overlaps = true},
         stream, args, "launching the choice of lists");
}

}  // namespace shortlist::cuda
