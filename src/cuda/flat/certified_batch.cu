// A batch of queries through the int8 plane: filter by the matrix units, canonical scores of what passes, selection.
//
// Steps of a batch: prepare queries -> sample: rows from all over the corpus, by their estimates -> refine: the k best
// of the sample get their scores, the worst of which is the query's target -> filter all rows -> refine: the same with
// the candidates, then the scores of all that reach the target -> the k best. docs/certified.md proves that every row
// of the answer is among those scored.
// A query is searched in full instead, by tiles, if nothing is known of it, or if its candidates do not fit: the
// device decides, and gathers those queries; the launches depend on the shape alone.
// Limit: see certified_filter.cu; of the rest, the bytes of the rows that are scored.
#include <algorithm>
#include <cmath>

#include "core/certified.hpp"
#include "core/order.hpp"
#include "core/plan.hpp"
#include "cuda/device/cluster.cuh"
#include "cuda/device/matrix_bytes.cuh"
#include "cuda/device/score.cuh"
#include "cuda/flat/certified_batch.hpp"
#include "cuda/flat/certified_filter.hpp"
#include "cuda/flat/certified_refine.hpp"
#include "cuda/flat/select.hpp"
#include "cuda/flat/tiles.hpp"
#include "cuda/runtime/carver.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr std::int64_t kMaxBatch = 1024;
constexpr int kThreads = 256;
constexpr std::int64_t kSampleRows = 32768;     // at least
constexpr std::int64_t kSampleRowsPerK = 1300;  // at least, for many queries: products are what takes time
constexpr std::int64_t kFewQueries = 64;        // for so many or fewer, reading the plane is
constexpr std::int64_t kSampleRowsPerKOfFew = 900;
constexpr std::int64_t kMaxSampleRows = 262144;  // at most
constexpr std::int64_t kMaxSampleGroups = 6144;
constexpr std::int64_t kFewSampleGroups = 2048;
constexpr std::int64_t kSampleGroupsPerK = 8;
constexpr std::int64_t kListRows = 16384;  // candidates of a query, about; at least
constexpr std::int64_t kListRowsPerK = 32;
constexpr std::int64_t kScoredRows = 4096;  // rows of a query whose scores are computed, at most
constexpr std::int64_t kScoredRowsPerK = 12;
constexpr std::int64_t kFewInFull = 64;  // queries that are searched in full together

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

__device__ float padded_weight(double value) { return static_cast<float>(value - kWeightPad * fabs(value)); }

__device__ filter_weights weights_of(metric by, const core::query_terms& terms) {
  const double scale = terms.scale;
  const double unit = by == metric::l2 ? 2.0 * scale : scale;
  filter_weights weights;
  weights.target = -__uint_as_float(0x7F800000u);
  weights.residual = padded_weight(-static_cast<double>(terms.residual_weight) / unit);
  weights.norm = padded_weight(-static_cast<double>(terms.norm_weight) / unit);
  weights.square = by == metric::l2 ? padded_weight((1.0 - terms.square_weight) / unit) : 0.0f;
  return weights;
}

struct prepare_args {
  batch_memory memory;
  const float* queries;
  std::int64_t stride;
  std::int64_t dim;
  std::int64_t chunks;
  std::int32_t count;
  std::int32_t tile;
  metric by;
};

constexpr int kPrepareThreads = 128;

/// Sums over the block's threads, in double, known to thread 0 .. all.
__device__ double block_total(double value, double* totals) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) totals[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = 0.0;
  for (int w = 0; w < kPrepareThreads / kWarp; w++) value += totals[w];
  return value;
}

/// A query becomes a column of negated codes; one block a query. Thread j owns the elements of the canonical partial
/// sum p[j].
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ prepare_args args) {
  __shared__ double totals[kPrepareThreads / kWarp];
  __shared__ float partial[core::kPartialSums];
  __shared__ unsigned largest_bits;
  const int query = static_cast<int>(blockIdx.x);
  const bool real = query < args.count;
  const float* x = args.queries + query * args.stride;
  unsigned char* column = args.memory.columns + query / args.tile * args.chunks * args.tile * kColumnChunk;
  const int in_tile = query % args.tile;

  if (threadIdx.x == 0) largest_bits = 0;
  __syncthreads();
  double squares = 0.0;
  float sum = 0.0f;
  float largest = 0.0f;
  if (real) {
    for (std::int64_t i = threadIdx.x; i < args.dim; i += kPrepareThreads) {
      squares += static_cast<double>(x[i]) * x[i];
      sum = core::step_dot(x[i], x[i], sum);
      largest = fmaxf(largest, fabsf(x[i]));
    }
  }
  atomicMax(&largest_bits, __float_as_uint(largest));
  partial[threadIdx.x] = sum;
  squares = block_total(squares, totals);
  for (int s = core::kPartialSums / 2; s > 0; s /= 2) {
    if (static_cast<int>(threadIdx.x) < s) partial[threadIdx.x] += partial[threadIdx.x + s];
    __syncthreads();
  }
  const float inverse_norm = args.by == metric::cosine ? core::inverse_norm(partial[0]) : 0.0f;
  const float scale = core::code_scale(__uint_as_float(largest_bits), core::kMaxRowCode);
  const bool certifiable = real && core::is_certifiable(squares, inverse_norm) && scale >= kLeastScale;
  const float inverse = certifiable ? core::inverse_scale(scale) : 0.0f;
  double residual_squares = 0.0;
  for (std::int64_t i = threadIdx.x; i < args.chunks * kColumnChunk; i += kPrepareThreads) {
    float code = 0.0f;
    if (certifiable && i < args.dim) {
      code = core::code_of(x[i], inverse, core::kMaxRowCode);
      const double residual = static_cast<double>(x[i]) - static_cast<double>(scale) * code;
      residual_squares += residual * residual;
    }
    column[column_byte_at(args.tile, in_tile, i)] = static_cast<unsigned char>(static_cast<signed char>(-code));
  }
  residual_squares = block_total(residual_squares, totals);
  if (threadIdx.x != 0) return;
  core::query_terms terms;
  filter_weights weights = weights_of_none();
  if (certifiable) {
    terms = core::terms_of_query(args.by, args.dim, scale, squares, residual_squares, inverse_norm);
    weights = weights_of(args.by, terms);
  }
  args.memory.terms[query] = terms;
  args.memory.weights[query] = weights;
  args.memory.targets[query] = -__uint_as_float(0x7F800000u);
  if (!real) return;
  args.memory.states[query] = {0, certifiable ? 0u : 1u};
}

/// Which queries are to be searched in full. One block; a batch has at most as many queries as it has threads.
__global__ void __launch_bounds__(kMaxBatch) collect_kernel(batch_memory memory, std::int32_t count) {
  __shared__ std::uint32_t found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  const auto query = static_cast<std::int32_t>(threadIdx.x);
  if (query < count && memory.states[query].in_full) memory.full_queries[atomicAdd(&found, 1u)] = threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) *memory.full_count = found;
}

/// Their vectors side by side, or their answers to where they belong; one block a query.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(batch_memory memory, const float* queries, std::int64_t stride, std::int64_t dim) {
  if (blockIdx.x >= *memory.full_count) return;
  const float* from = queries + memory.full_queries[blockIdx.x] * stride;
  float* to = memory.gathered + blockIdx.x * dim;
  for (std::int64_t i = threadIdx.x; i < dim; i += kThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads)
    scatter_kernel(batch_memory memory, std::int64_t k, float* scores, std::int64_t* ids) {
  if (blockIdx.x >= *memory.full_count) return;
  const std::int64_t query = memory.full_queries[blockIdx.x];
  for (std::int64_t i = threadIdx.x; i < k; i += kThreads) {
    scores[query * k + i] = memory.full_scores[blockIdx.x * k + i];
    ids[query * k + i] = memory.full_ids[blockIdx.x * k + i];
  }
}

constexpr std::int64_t kMaxTile = 256;
constexpr std::int64_t kMaxSegments = 512;  // two blocks of the filter on each multiprocessor

/// Places of a segment: its share, and more than a random one needs beyond it.
std::int64_t segment_places(std::int64_t k, std::int64_t segments) {
  const std::int64_t share = std::max(kListRows, kListRowsPerK * k) / segments;
  return share + 5 * static_cast<std::int64_t>(std::sqrt(static_cast<double>(share))) + 8;
}

/// Those of them that a search uses: a workspace does not depend on what tests force.
std::int64_t segment_capacity(std::int64_t k, std::int64_t segments) {
  const std::int64_t places = segment_places(k, segments);
  const auto forced = core::forced_survivors();
  return forced ? std::min(places, 1 + (k + *forced) / segments) : places;
}

/// Places of all candidates of a batch. Only few queries have so many segments each.
std::int64_t candidate_places(std::int64_t batch, std::int64_t k) {
  const auto places = [&](std::int64_t queries, std::int64_t segments) {
    return queries * segments * segment_places(k, segments);
  };
  return std::max(places(std::min(batch, kFewQueries), kMaxSegments), places(batch, kMaxSegments / 2));
}

std::int64_t scored_capacity(std::int64_t k) { return std::max(kScoredRows, kScoredRowsPerK * k); }

batch_memory memory_of(carver& carve, std::int64_t batch, std::int64_t k, std::int64_t dim) {
  const std::int64_t padded = round_up(batch, kMaxTile);
  batch_memory memory{};
  memory.counters = carve.take<certified_counters>(1);
  memory.full_count = carve.take<std::uint32_t>(1);
  memory.full_queries = carve.take<std::uint32_t>(padded);
  memory.terms = carve.take<core::query_terms>(padded);
  memory.weights = carve.take<filter_weights>(padded);
  memory.targets = carve.take<float>(padded);
  memory.states = carve.take<query_state>(padded);
  memory.candidates.counts = carve.take<std::uint32_t>(batch * kMaxSegments);
  memory.full_scores = carve.take<float>(batch * k);
  memory.full_ids = carve.take<std::int64_t>(batch * k);
  memory.candidates.keys = carve.take<std::uint64_t>(candidate_places(batch, k));
  memory.scored.capacity = scored_capacity(k);
  memory.scored.keys = carve.take<std::uint64_t>(batch * memory.scored.capacity);
  memory.maxima = carve.take<std::uint32_t>(batch * kMaxSampleGroups);
  memory.columns = carve.take<unsigned char>(padded * round_up(dim, kColumnChunk));
  memory.gathered = carve.take<float>(batch * dim);
  return memory;
}

/// The narrowest tile of columns that takes all queries, or the widest that fits.
int column_tile(std::int64_t queries, std::int64_t dim) {
  const int widest = widest_column_tile(dim);
  for (const int tile : kColumnTiles)
    if (tile >= queries && tile <= widest) return tile;
  return widest;
}

void search_batch(cudaStream_t stream, batch_memory memory, void* tiles, std::int64_t tiles_bytes,
                  const core::flat_corpus& corpus, const core::flat_request& request, int multiprocessors) {
  const std::int64_t kept = std::min(request.k, corpus.count);
  const auto queries = static_cast<unsigned>(request.query_count);
  filter_batch batch{};
  batch.columns = memory.columns;
  batch.terms = memory.terms;
  batch.weights = memory.weights;
  batch.targets = memory.targets;
  batch.count = static_cast<std::int32_t>(queries);
  batch.tile = column_tile(request.query_count, corpus.dim);

  memory.candidates.segments = count_segments(corpus, batch, multiprocessors);
  memory.candidates.capacity = static_cast<std::int32_t>(segment_capacity(request.k, memory.candidates.segments));

  prepare_args prepare{};
  prepare.memory = memory;
  prepare.queries = request.queries;
  prepare.stride = request.query_stride;
  prepare.dim = corpus.dim;
  prepare.chunks = (corpus.dim + kColumnChunk - 1) / kColumnChunk;
  prepare.count = batch.count;
  prepare.tile = batch.tile;
  prepare.by = corpus.metric;
  launch(prepare_kernel,
         {.grid = dim3(static_cast<unsigned>(round_up(queries, batch.tile))), .threads = kPrepareThreads}, stream,
         prepare, "launching the preparation of queries");

  // The sample: whole tiles, evenly from all over.
  const std::int64_t per_k = request.query_count <= kFewQueries ? kSampleRowsPerKOfFew : kSampleRowsPerK;
  const std::int64_t sample_rows = std::min({std::max(kSampleRows, per_k * kept), corpus.count, kMaxSampleRows});
  const tile_choice choice{static_cast<std::uint32_t>(corpus.count / sample_rows)};
  const sample_plan sample = plan_filter_sample(
      corpus, batch, choice, std::clamp(kSampleGroupsPerK * kept, kFewSampleGroups, kMaxSampleGroups), multiprocessors);
  launch_filter_sample(stream, corpus, batch, sample, memory.maxima, multiprocessors);

  launch_refine(stream, memory, corpus, request, sample, false, multiprocessors);
  launch_filter(stream, corpus, batch, memory.candidates, multiprocessors);
  launch_refine(stream, memory, corpus, request, sample, true, multiprocessors);

  // Those that have to be searched in full.
  collect_kernel<<<1, kMaxBatch, 0, stream>>>(memory, batch.count);
  gather_kernel<<<queries, kThreads, 0, stream>>>(memory, request.queries, request.query_stride, corpus.dim);
  core::flat_request full = request;
  full.query_stride = corpus.dim;
  std::int64_t done = 0;  // a few of many queries are not searched at the price of all
  for (const std::int64_t most : {kFewInFull, kMaxBatch}) {
    const std::int64_t first = done;
    done = std::min(most, request.query_count);
    if (done == first) break;
    full.query_count = done - first;
    full.queries = memory.gathered + first * corpus.dim;
    full.scores = memory.full_scores + first * request.k;
    full.ids = memory.full_ids + first * request.k;
    launch_flat_tiles(stream, tiles, tiles_bytes, corpus, full, {memory.full_count, static_cast<std::uint32_t>(first)});
  }
  scatter_kernel<<<queries, kThreads, 0, stream>>>(memory, request.k, request.scores, request.ids);
  check(cudaGetLastError(), "launching the search in full");
}

}  // namespace

std::int64_t certified_batch_workspace_bytes(const search_limits& limits) {
  carver carve(nullptr);
  memory_of(carve, std::min(limits.max_queries, kMaxBatch), std::min(limits.max_k, core::kCertifiedBatchMaxK),
            core::kCertifiedBatchMaxDim);
  return carve.taken();
}

void launch_certified_batch(cudaStream_t stream, void* workspace, void* tiles, std::int64_t tiles_bytes,
                            const core::flat_corpus& corpus, const core::flat_request& request, int multiprocessors) {
  if (corpus.count == 0) return launch_flat_tiles(stream, tiles, tiles_bytes, corpus, request);  // only padding
  const std::int64_t batch = std::min(request.query_count, kMaxBatch);
  carver carve(workspace);
  const batch_memory memory = memory_of(carve, batch, request.k, corpus.dim);
  for (std::int64_t first = 0; first < request.query_count; first += batch) {
    core::flat_request part = request;
    part.query_count = std::min(batch, request.query_count - first);
    part.queries = request.queries + first * request.query_stride;
    part.scores = request.scores + first * request.k;
    part.ids = request.ids + first * request.k;
    search_batch(stream, memory, tiles, tiles_bytes, corpus, part, multiprocessors);
  }
}

}  // namespace shortlist::cuda
