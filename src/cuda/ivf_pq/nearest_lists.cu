// The nearest lists of a few queries.
//
// Two launches for very few. The first scores all centroids to the bit: a warp holds eight of them in registers, and
// meets all of the block's queries; of more than 128 elements, it reads them again for each. The second, a block a
// query, chooses (pick_lists.cuh), if not every block of the search that comes next does so itself.
// More queries are estimated instead, by products of halves on the matrix units. The choice is the same, but a margin
// wider, and only what it chose is scored. A query that nothing is known of, or of which too much reaches the cut, has
// all centroids scored by its block.
// Limit, for one query: latency; of scoring, some 16 instructions of a warp for each centroid and query; of estimates,
// reading them.
#include <algorithm>

#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/flat/results.cuh"
#include "cuda/ivf_pq/answer.cuh"
#include "cuda/ivf_pq/coarse.hpp"
#include "cuda/ivf_pq/decode.cuh"
#include "cuda/ivf_pq/filter_decode.cuh"
#include "cuda/ivf_pq/inline_query.cuh"
#include "cuda/ivf_pq/nearest_lists.hpp"
#include "cuda/ivf_pq/pick_lists.cuh"
#include "cuda/runtime/carver.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kWarpRows = kScoredAtOnce;
constexpr int kBlockRows = kWarps * kWarpRows;
constexpr int kBlockQueries = 8;
constexpr int kQuads = kQuadsPerLane<kLanesOfScore>;
constexpr int kPickBlocks = 2;  // of a multiprocessor
constexpr int kEstimateThreads = 128;
constexpr int kEstimateWarps = kEstimateThreads / kWarp;  // a page of centroids each
constexpr int kEstimatedQueries = 32;                     // of a block
constexpr int kColumns = 8;                               // queries of a product
constexpr std::int64_t kFewestEstimated = 12;             // queries
constexpr std::int64_t kMostEstimated = 1024;

struct nearest_args {
  query_source queries;
  std::int32_t query_count;
  std::int32_t dim;
  const float* rows;
  std::int64_t row_stride;
  const float* inverse_norms;
  std::int32_t row_count;
  std::int32_t wanted;
  std::uint32_t* keys;  // [queries, rows], or estimates, floats
  std::int64_t key_stride;
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
      args.keys[static_cast<std::int64_t>(first_query + q) * args.key_stride + mine] = core::score_key(score, by);
  }
}

constexpr int kWideThreads = 64;
constexpr int kWideRows = kWideThreads / kWarp * kWarpRows;

/// The same of rows of any dim: x rows, y queries.
template <bool L2>
__global__ void __launch_bounds__(kWideThreads) score_wide_kernel(const __grid_constant__ nearest_args args) {
  auto* staged = reinterpret_cast<float*>(dynamic_shared());
  join_chain();
  stage_query(args.queries.of(blockIdx.y), args.dim, staged);
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const metric by = args.results.by;
  const float inverse_norm = by == metric::cosine ? inverse_norm_of_query(staged, args.dim, lane) : 0.0f;
  const auto first = static_cast<std::int32_t>(blockIdx.x * kWideRows + threadIdx.x / kWarp * kWarpRows) +
                     lane / kLanesOfScore * kScoredOfLanes;
  const float* rows[kScoredOfLanes];
#pragma unroll
  for (int r = 0; r < kScoredOfLanes; r++)
    rows[r] = args.rows + static_cast<std::int64_t>(min(first + r, args.row_count - 1)) * args.row_stride;
  const float sum = sum_by_eights<L2, kQuads>(args.dim, staged, lane, [&](std::int32_t from, scored_fours<kQuads>& x) {
    for_each_four<kQuads>(from, args.dim, [&](int i, std::int32_t at) {
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) x[i][r] = *reinterpret_cast<const float4*>(rows[r] + at);
    });
  });
  const std::int32_t mine = first + finished_row<kLanesOfScore, kScoredOfLanes>(lane);
  if (!leads_finished_row<kLanesOfScore, kScoredOfLanes>(lane) || mine >= args.row_count) return;
  const float row_inverse_norm = by == metric::cosine ? args.inverse_norms[mine] : 0.0f;
  args.keys[static_cast<std::int64_t>(blockIdx.y) * args.key_stride + mine] =
      core::score_key(score_of(sum, by, inverse_norm, row_inverse_norm), by);
}

struct pick_shared {
  select_scratch<kPickThreads> select;
  pick_keys keys;
};

/// Answers the block's query from the keys of all centroids.
__device__ __forceinline__ void answer_from_keys(const nearest_args& args, const std::uint32_t* keys,
                                                 pick_shared& shared) {
  pick_lists({keys, args.row_count}, static_cast<std::uint32_t>(args.wanted), shared.keys, shared.select,
             [&](std::uint32_t rank, std::uint64_t key) { args.results.write(blockIdx.x, rank, key); });
}

__global__ void __launch_bounds__(kPickThreads) pick_kernel(const __grid_constant__ nearest_args args) {
  join_chain();
  answer_from_keys(args, args.keys + static_cast<std::int64_t>(blockIdx.x) * args.key_stride,
                   *reinterpret_cast<pick_shared*>(dynamic_shared()));
}

// ---- estimates

struct estimate_args {
  nearest_args nearest;
  filter_batch batch;
};

/// Products of queries and centroids, with the centroids' terms: what is smaller is nearer. x pages, y queries.
template <int Steps>
__global__ void __launch_bounds__(kEstimateThreads) estimate_kernel(const __grid_constant__ estimate_args args) {
  constexpr int kChunks = 2 * Steps;                      // of 16 bytes, of a column
  __shared__ uint4 columns[kEstimatedQueries * kChunks];  // by eight queries: [Steps / 2][32 lanes]
  join_chain();
  const int lane = threadIdx.x % kWarp;
  const std::int32_t first_query = static_cast<std::int32_t>(blockIdx.y) * kEstimatedQueries;
  const std::int32_t queries = min(kEstimatedQueries, args.batch.count - first_query);
  const auto* from = reinterpret_cast<const uint4*>(args.batch.columns) + std::int64_t{first_query} * kChunks;
#pragma unroll
  for (int i = 0; i < kEstimatedQueries * kChunks / kEstimateThreads; i++) {
    const int at = i * kEstimateThreads + static_cast<int>(threadIdx.x);
    const int q = at / kChunks;
    const int chunk = at % kChunks;
    columns[q / kColumns * (Steps / 2 * kWarp) + chunk % (Steps / 2) * kWarp + q % kColumns * 4 + chunk / (Steps / 2)] =
        q < queries ? from[at] : make_uint4(0, 0, 0, 0);
  }
  __syncthreads();
  const std::int64_t page = blockIdx.x * kEstimateWarps + threadIdx.x / kWarp;
  const std::int64_t rows_of_all = args.nearest.row_count;
  if (page * core::kPageRows >= rows_of_all) return;
  page_rows<Steps> rows;
  page_terms terms;
  load_halves<Steps>(args.batch.lists.pages + page * args.batch.page_bytes, lane, rows, terms);
  const std::int64_t row = page * core::kPageRows + lane / 4;
#pragma unroll 1
  for (int q = 0; q < queries; q += kColumns) {
    float sums[kPageTiles][4];
    multiply_page<Steps>(rows, terms, columns + q / kColumns * (Steps / 2 * kWarp) + lane, sums);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int query = q + lane % 4 * 2 + i;
      if (query >= queries) break;
      auto* to = reinterpret_cast<float*>(args.nearest.keys + (first_query + query) * args.nearest.key_stride) + row;
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int below = tile * static_cast<int>(kTileRows) + half * 8;
          if (row + below < rows_of_all) to[below] = sums[tile][half * 2 + i];
        }
    }
  }
}

constexpr int kFoursAtOnce = 1;

/// A block's query, estimated.
template <bool L2>
class estimated_choice {
 public:
  __device__ estimated_choice(const estimate_args& args, pick_shared& shared, const float* staged)
      : args_(args),
        nearest_(args.nearest),
        shared_(shared),
        staged_(staged),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        keys_(nearest_.keys + static_cast<std::int64_t>(blockIdx.x) * nearest_.key_stride) {}

  /// The query is staged.
  __device__ void run() {
    if (nearest_.results.by == metric::cosine) inverse_norm_ = inverse_norm_of_query(staged_, nearest_.dim, lane_);
    if (choose()) {
      const std::uint32_t n = shared_.keys.count;
      score(
          n, [&](std::uint32_t i) { return core::position_of(shared_.keys.chosen[i]); },
          [&](std::uint32_t i, std::uint64_t key) { shared_.keys.chosen[i] = key; });
      return rank_chosen(shared_.keys, static_cast<std::uint32_t>(nearest_.wanted), shared_.select,
                         [&](std::uint32_t rank, std::uint64_t key) { nearest_.results.write(blockIdx.x, rank, key); });
    }
    score(
        static_cast<std::uint32_t>(nearest_.row_count), [](std::uint32_t i) { return i; },
        [&](std::uint32_t i, std::uint64_t key) { keys_[i] = core::key_of(key); });
    answer_from_keys(nearest_, keys_, shared_);
  }

 private:
  /// Puts what may be among the best into shared.chosen, as keys of no score. @returns false if that is not known.
  __device__ bool choose() {
    const auto* estimates = reinterpret_cast<const float*>(keys_);
    const std::int32_t rows = nearest_.row_count;
    const float infinity = __uint_as_float(0x7F800000u);
    float held[kHeldKeys];
#pragma unroll
    for (int i = 0; i < kHeldKeys; i++) {
      const std::int32_t at = i * kPickThreads + static_cast<std::int32_t>(threadIdx.x);
      held[i] = at < rows ? estimates[at] : infinity;
    }
    float least = infinity;
#pragma unroll
    for (int i = 0; i < kHeldKeys; i++) least = fminf(least, held[i]);
    const auto beyond = [&](auto visit) {
#pragma unroll 8
      for (std::int32_t at = kHeldKeys * kPickThreads + static_cast<std::int32_t>(threadIdx.x); at < rows;
           at += kPickThreads)
        visit(at, estimates[at]);
    };
    beyond([&](std::int32_t, float estimate) { least = fminf(least, estimate); });
    shared_.keys.best[threadIdx.x] = least < infinity ? core::row_key(distance_key(least), threadIdx.x) : core::kNoRow;
    if (threadIdx.x == 0) shared_.keys.count = 0;
    const float margin = args_.batch.margins[blockIdx.x];
    __syncthreads();
    const auto wanted = static_cast<std::uint32_t>(nearest_.wanted);
    const std::uint64_t cut =
        block_cut<kPickThreads>(shared_.keys.best, kPickThreads, wanted, wanted / 8, shared_.select);
    if (!(margin < infinity) || cut <= 1) {
      __syncthreads();
      return false;
    }
    const float limit = __fadd_ru(distance_of_key(core::key_of(cut)), margin * args_.batch.header->inverse_unit);
    const auto enter = [&](std::int32_t at, float estimate) {
      if (!(estimate <= limit)) return;
      const std::uint32_t place = atomicAdd(&shared_.keys.count, 1u);
      if (place < kPickRoom) shared_.keys.chosen[place] = core::row_key(0, static_cast<std::uint32_t>(at));
    };
#pragma unroll
    for (int i = 0; i < kHeldKeys; i++) {
      const std::int32_t at = i * kPickThreads + static_cast<std::int32_t>(threadIdx.x);
      if (at < rows) enter(at, held[i]);
    }
    beyond(enter);
    __syncthreads();
    return shared_.keys.count <= kPickRoom;
  }

  /// Calls write(i, key of row_of(i)) for each i below n; a barrier after.
  template <class RowOf, class Write>
  __device__ __forceinline__ void score(std::uint32_t n, RowOf row_of, Write write) {
    constexpr std::uint32_t kStep = kPickThreads / kWarp * kScoredAtOnce;
    score_by_eights(
        threadIdx.x / kWarp * kScoredAtOnce, n, kStep, lane_, row_of,
        [&](const std::uint32_t(&rows)[kScoredOfLanes], int mine) { return key_of(rows, mine); }, write);
    __syncthreads();
  }

  __device__ __forceinline__ std::uint64_t key_of(const std::uint32_t (&rows)[kScoredOfLanes], int mine) const {
    const metric by = nearest_.results.by;
    const float sum = sum_by_eights<L2, kFoursAtOnce>(
        nearest_.dim, staged_, lane_, [&](std::int32_t first, scored_fours<kFoursAtOnce>& x) {
          for_each_four<kFoursAtOnce>(first, nearest_.dim, [&](int i, std::int32_t element) {
#pragma unroll
            for (int r = 0; r < kScoredOfLanes; r++)
              x[i][r] = *reinterpret_cast<const float4*>(nearest_.rows + rows[r] * nearest_.row_stride + element);
          });
        });
    const std::uint32_t row = mine == 0 ? rows[0] : rows[1];
    const float row_inverse_norm = by == metric::cosine ? nearest_.inverse_norms[row] : 0.0f;
    return core::row_key(core::score_key(score_of(sum, by, inverse_norm_, row_inverse_norm), by), row);
  }

  const estimate_args& args_;
  const nearest_args& nearest_;
  pick_shared& shared_;
  const float* staged_;
  int lane_;
  std::uint32_t* keys_;
  float inverse_norm_ = 0.0f;
};

template <bool L2>
__global__ void __launch_bounds__(kPickThreads, kPickBlocks) choose_kernel(const __grid_constant__ estimate_args args) {
  __shared__ __align__(16) float staged[core::kPartialSums];
  join_chain();
  stage_query(args.nearest.queries.of(blockIdx.x), args.nearest.dim, staged);
  __syncthreads();
  estimated_choice<L2>(args, *reinterpret_cast<pick_shared*>(dynamic_shared()), staged).run();
}

using estimate_pointer = void (*)(estimate_args);

estimate_pointer estimate_kernel_of(std::int64_t halves) {
  switch (halves / 16) {
    case 2: return estimate_kernel<2>;
    case 4: return estimate_kernel<4>;
    case 6: return estimate_kernel<6>;
    default: return estimate_kernel<8>;
  }
}

struct nearest_memory {
  std::uint32_t* keys;
  filter_batch batch;
};

nearest_memory memory_of(carver& carve, std::int64_t dim, std::int64_t keys, std::int64_t queries) {
  nearest_memory memory{};
  memory.keys = carve.take<std::uint32_t>(keys + (centroid_keys::kVector - 1) * queries);
  memory.batch.columns = carve.take<__half>(queries * coarse_halves(dim));
  memory.batch.margins = carve.take<float>(queries);
  memory.batch.shares = carve.take<float>(queries);
  memory.batch.inverse_norms = carve.take<float>(queries);
  memory.batch.hit_counts = carve.take<std::uint32_t>(queries);
  return memory;
}

nearest_memory memory_at(void* begin, const core::flat_corpus& centroids, const core::flat_request& request) {
  carver carve(begin);
  return memory_of(carve, centroids.dim, request.query_count * centroids.count, request.query_count);
}

nearest_args args_of(const nearest_memory& memory, const core::flat_corpus& centroids,
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
  args.keys = memory.keys;
  args.key_stride = centroid_keys::stride(centroids.count);
  args.results = {centroids.ids, request.scores, request.ids, request.k, centroids.metric};
  return args;
}

void launch_estimated(cudaStream_t stream, const estimate_args& args, const filter_batch* next) {
  launch_prepare_queries(stream, args.batch, next);
  const std::int64_t pages = (args.nearest.row_count + core::kPageRows - 1) / core::kPageRows;
  const launch_shape estimates{
      .grid = dim3(static_cast<unsigned>((pages + kEstimateWarps - 1) / kEstimateWarps),
                   static_cast<unsigned>((args.batch.count + kEstimatedQueries - 1) / kEstimatedQueries)),
      .threads = kEstimateThreads,
      .overlaps = true};
  launch(estimate_kernel_of(coarse_halves(args.nearest.dim)), estimates, stream, args,
         "launching the estimates of centroids");
  launch(args.nearest.results.by == metric::l2 ? choose_kernel<true> : choose_kernel<false>,
         {.grid = dim3(static_cast<unsigned>(args.batch.count)),
          .threads = kPickThreads,
          .shared_bytes = static_cast<std::int64_t>(sizeof(pick_shared)),
          .overlaps = true},
         stream, args, "launching the choice of lists");
}

/// Of all centroids, for each query.
void launch_scores(cudaStream_t stream, const nearest_args& args) {
  const bool l2 = args.results.by == metric::l2;
  const bool wide = args.dim > core::kPartialSums;
  const int block_rows = wide ? kWideRows : kBlockRows;
  const int block_queries = wide ? 1 : kBlockQueries;
  const launch_shape shape{.grid = dim3(static_cast<unsigned>((args.row_count + block_rows - 1) / block_rows),
                                        static_cast<unsigned>((args.query_count + block_queries - 1) / block_queries)),
                           .threads = wide ? kWideThreads : kThreads,
                           .shared_bytes = wide ? padded_dim(args.dim) * static_cast<std::int64_t>(sizeof(float)) : 0,
                           .overlaps = true};
  const auto kernel = wide ? (l2 ? score_wide_kernel<true> : score_wide_kernel<false>)
                           : (l2 ? score_kernel<true> : score_kernel<false>);
  launch(kernel, shape, stream, args, "launching the scores of centroids");
}

}  // namespace

bool has_nearest_lists(std::int64_t dim, std::int64_t lists, std::int64_t nprobe) {
  const std::int64_t keys_of_thread = centroid_keys::most_of_thread(lists);
  return dim <= kMaxWideHalves && nprobe <= kMostPicked && (nprobe + nprobe / 8) * keys_of_thread <= kPickRoom;
}

std::int64_t most_nearest_queries(std::int64_t dim) {
  return dim <= core::kPartialSums ? kMostEstimated : kFewestEstimated - 1;
}

std::int64_t nearest_lists_bytes(std::int64_t dim, std::int64_t keys, std::int64_t queries) {
  carver carve(nullptr);
  memory_of(carve, dim, keys, queries);
  return carve.taken();
}

bool has_centroid_keys(std::int64_t queries, std::int64_t lists) {
  return queries < kFewestEstimated && lists <= kHeldCentroids;
}

const std::uint32_t* launch_centroid_keys(cudaStream_t stream, void* memory_begin, const core::flat_corpus& centroids,
                                          const core::flat_request& request, const float* inline_query) {
  const nearest_memory memory = memory_at(memory_begin, centroids, request);
  launch_scores(stream, args_of(memory, centroids, request, inline_query));
  return memory.keys;
}

void launch_nearest_lists(cudaStream_t stream, void* memory_begin, const core::flat_corpus& centroids,
                          const std::byte* pages, const core::flat_request& request, const float* inline_query,
                          const filter_batch* next) {
  const nearest_memory memory = memory_at(memory_begin, centroids, request);
  const nearest_args args = args_of(memory, centroids, request, inline_query);
  if (request.query_count >= kFewestEstimated) {
    estimate_args estimated{args, memory.batch};
    set_coarse(estimated.batch, pages, centroids, request);
    return launch_estimated(stream, estimated, next);
  }
  if (next) launch_prepare_queries(stream, *next);
  launch_scores(stream, args);
  launch(pick_kernel,
         {.grid = dim3(static_cast<unsigned>(args.query_count)),
          .threads = kPickThreads,
          .shared_bytes = static_cast<std::int64_t>(sizeof(pick_shared)),
          .overlaps = true},
         stream, args, "launching the choice of lists");
}

}  // namespace shortlist::cuda
