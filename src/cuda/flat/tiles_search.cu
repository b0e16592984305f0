// A tiled search from queries to results: batches of queries, phases of rows, prunes between them.
//
// The first phase enters all its rows; each later one is several times as long as all before it and enters only rows
// that beat the k-th best so far, which on ordinary data are few. A list has room for k candidates and a whole phase,
// so phases also end where the workspace does. Nothing here looks at data: the launches depend on the shape alone.
#include <algorithm>

#include "core/order.hpp"
#include "cuda/device/score.cuh"
#include "cuda/flat/select.hpp"
#include "cuda/flat/tiles.hpp"
#include "cuda/flat/tiles_score.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr std::int64_t kMaxBatch = 1024;                         // queries that share the passes over the rows
constexpr std::int64_t kMaxDim = 65536;                          // of the public API
constexpr std::int64_t kPreparedBytes = std::int64_t{32} << 20;  // prepared queries: 10k of 768, 128 of kMaxDim
constexpr std::int64_t kListBytes = std::int64_t{1} << 30;       // 1,024 queries: phases of 131k rows
constexpr std::int64_t kMinPhaseRows = 8192;                     // shorter phases would leave multiprocessors idle
constexpr std::int64_t kFirstPhaseRows = 16384;
constexpr std::int64_t kFirstPhaseKs = 4;  // the first phase has at least this many rows per result
constexpr std::int64_t kPhaseGrowth = 8;   // so about 8 k rows enter a list in each later phase
constexpr std::int64_t kMaxPhaseRows = std::int64_t{1} << 30;
constexpr int kThreads = 128;

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// Bytes of a batch besides prepared queries and lists: inverse norms, counts, least keys, cursors.
std::int64_t state_bytes(std::int64_t queries) {
  return 5 * round_up(round_up(queries, kWideTile) * static_cast<std::int64_t>(sizeof(std::uint32_t)), 256);
}

std::int64_t prepared_bytes(std::int64_t queries, std::int64_t dim) {
  return round_up(queries, kWideTile) * round_up(dim, core::kPartialSums) * static_cast<std::int64_t>(sizeof(float));
}

/// Places of a list that let every phase be worth its launch, and that let all but the first be as long as it likes.
std::int64_t least_capacity(std::int64_t rows, std::int64_t kept) { return std::min(rows, kept + kMinPhaseRows); }

std::int64_t list_bytes(std::int64_t capacity, std::int64_t kept) {
  return (capacity + kept) * static_cast<std::int64_t>(sizeof(std::uint64_t));
}

/// What a workspace is cut into for one search.
struct search_layout {
  std::int64_t batch;  // queries at once
  std::int64_t capacity;
  std::int64_t kept;
  std::int64_t state_at;
  std::int64_t lists_at;
  std::int64_t spare_at;
};

search_layout layout_of(std::int64_t workspace_bytes, std::int64_t rows, std::int64_t dim, std::int64_t queries,
                        std::int64_t k) {
  search_layout at{};
  at.kept = std::min(k, rows);
  at.batch = std::min(queries, kMaxBatch);
  const auto room = [&](std::int64_t batch) {
    return workspace_bytes - prepared_bytes(batch, dim) - state_bytes(batch) - 256;
  };
  const auto fits = [&](std::int64_t batch) {
    return prepared_bytes(batch, dim) <= kPreparedBytes &&
           batch * list_bytes(least_capacity(rows, at.kept), at.kept) <= room(batch);
  };
  while (at.batch > 1 && !fits(at.batch))
    at.batch = at.batch > kWideTile ? round_up(at.batch / 2, kWideTile) : at.batch / 2;
  const std::int64_t places = room(at.batch) / at.batch / static_cast<std::int64_t>(sizeof(std::uint64_t));
  at.capacity = std::min(rows, places - at.kept);
  at.state_at = round_up(prepared_bytes(at.batch, dim), 256);
  at.lists_at = at.state_at + state_bytes(at.batch);
  at.spare_at = at.lists_at + at.batch * at.capacity * static_cast<std::int64_t>(sizeof(std::uint64_t));
  return at;
}

struct begin_args {
  query_batch batch;
  candidate_lists lists;
  float* inverse_norms;
  std::uint32_t first_count;  // rows of the first phase: it fills every list with them
  std::int32_t padded;        // queries, rounded up to whole tiles
  metric by;
};

/// Resets the lists' state and, under cosine, computes the queries' inverse norms; one warp a query.
__global__ void __launch_bounds__(kThreads) begin_batch_kernel(const __grid_constant__ begin_args args) {
  const int query = static_cast<int>((blockIdx.x * kThreads + threadIdx.x) / kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (query >= args.padded) return;
  const bool real = query < args.batch.count;
  float inverse_norm = 0.0f;
  if (real && args.by == metric::cosine) {
    const float* x = args.batch.queries + query * args.batch.stride;
    float sums[core::kPartialSums / kWarp] = {};  // lane l holds p[l], p[l + 32], p[l + 64], p[l + 96]
    for (int start = 0; start < args.batch.dim; start += core::kPartialSums) {
#pragma unroll
      for (int j = 0; j < core::kPartialSums / kWarp; j++) {
        const int i = start + kWarp * j + lane;
        if (i < args.batch.dim) sums[j] = core::step_dot(x[i], x[i], sums[j]);
      }
    }
    float sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);  // s = 64, s = 32
#pragma unroll
    for (int s = kWarp / 2; s > 0; s >>= 1) sum += __shfl_xor_sync(kFullWarp, sum, s);
    inverse_norm = core::inverse_norm(sum);
  }
  if (lane != 0) return;
  args.inverse_norms[query] = inverse_norm;
  args.lists.counts[query] = args.first_count;
  args.lists.least_keys[query] = real ? 0u : ~0u;  // padding lets nothing in
  args.lists.cursors[2 * query] = 0;
  args.lists.cursors[2 * query + 1] = 0;
}

/// One batch of queries from beginning to end.
void search_batch(cudaStream_t stream, unsigned char* base, const search_layout& at, const core::flat_corpus& corpus,
                  const query_batch& batch, std::int64_t k, float* scores, std::int64_t* labels, launch_gate gate,
                  int multiprocessors) {
  const std::int64_t state_stride = state_bytes(at.batch) / 5;
  score_phase phase{};
  phase.corpus = &corpus;
  phase.lists.keys = reinterpret_cast<std::uint64_t*>(base + at.lists_at);
  phase.lists.spare = reinterpret_cast<std::uint64_t*>(base + at.spare_at);
  phase.lists.counts = reinterpret_cast<std::uint32_t*>(base + at.state_at);
  phase.lists.least_keys = reinterpret_cast<std::uint32_t*>(base + at.state_at + state_stride);
  phase.lists.cursors = reinterpret_cast<std::uint32_t*>(base + at.state_at + 2 * state_stride);
  phase.lists.capacity = at.capacity;
  phase.lists.queries = batch.count;
  phase.lists.kept = static_cast<std::int32_t>(at.kept);
  phase.lists.gate = gate;
  auto* inverse_norms = reinterpret_cast<float*>(base + at.state_at + 4 * state_stride);
  auto* prepared = reinterpret_cast<float*>(base);
  phase.batch = batch;
  phase.prepared = prepared;
  phase.query_inverse_norms = inverse_norms;

  const std::int64_t first_rows =
      std::min({corpus.count, at.capacity, kMaxPhaseRows, std::max(kFirstPhaseRows, kFirstPhaseKs * at.kept)});
  begin_args begin{};
  begin.batch = batch;
  begin.lists = phase.lists;
  begin.inverse_norms = inverse_norms;
  begin.first_count = static_cast<std::uint32_t>(first_rows);
  begin.padded = static_cast<std::int32_t>(round_up(batch.count, kWideTile));
  begin.by = corpus.metric;
  constexpr int kQueriesPerBlock = kThreads / kWarp;
  launch(begin_batch_kernel,
         {.grid = dim3(static_cast<unsigned>((begin.padded + kQueriesPerBlock - 1) / kQueriesPerBlock)),
          .threads = kThreads},
         stream, begin, "launching the start of a batch");

  const int tile_queries = batch.count <= kNarrowTile ? kNarrowTile : kWideTile;
  const bool streams = stream_serves(batch.count, batch.dim);
  const bool teams = !streams && team_serves(batch.count, batch.dim, corpus.type);
  if (!streams && !teams) launch_tiles_prepare(stream, batch, tile_queries, prepared);
  for (std::int64_t done = 0; done < corpus.count; done += phase.row_count) {
    phase.first_row = done;
    phase.kind = done == 0 ? phase_kind::dense : phase_kind::filtered;
    phase.row_count = done == 0
                          ? first_rows
                          : std::min({corpus.count - done, at.capacity - at.kept, kPhaseGrowth * done, kMaxPhaseRows});
    if (streams) {
      launch_stream_phase(stream, phase, multiprocessors);
    } else if (teams) {
      launch_team_phase(stream, phase, multiprocessors);
    } else {
      launch_tiles_phase(stream, phase, tile_queries, multiprocessors);
    }
    const std::int64_t entered = done == 0 ? phase.row_count : at.kept + at.kept * phase.row_count / done;
    if (done + phase.row_count > at.kept) launch_prune(stream, phase.lists, entered);
  }
  launch_results(stream, phase.lists, corpus, k, scores, labels);
}

}  // namespace

std::int64_t tiles_workspace_bytes(const search_limits& limits) {
  const std::int64_t rows = std::min(limits.max_rows, core::kMaxRows);
  const std::int64_t kept = std::min(limits.max_k, rows);
  const std::int64_t batch = std::min(limits.max_queries, kMaxBatch);
  const std::int64_t prepared =
      std::max(std::min(prepared_bytes(batch, kMaxDim), kPreparedBytes), prepared_bytes(1, kMaxDim));
  const std::int64_t lists =
      std::max(std::min(batch * list_bytes(rows, kept), kListBytes), list_bytes(least_capacity(rows, kept), kept));
  return prepared + state_bytes(batch) + lists + 1024;
}

void launch_flat_tiles(cudaStream_t stream, void* workspace, std::int64_t workspace_bytes,
                       const core::flat_corpus& corpus, const core::flat_request& request, launch_gate gate) {
  int device = 0;
  int multiprocessors = 0;
  check(cudaGetDevice(&device), "reading the current GPU");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "counting multiprocessors");
  const search_layout at = layout_of(workspace_bytes, corpus.count, corpus.dim, request.query_count, request.k);
  for (std::int64_t first = 0; first < request.query_count; first += at.batch) {
    query_batch batch{};
    batch.queries = request.queries + first * request.query_stride;
    batch.stride = request.query_stride;
    batch.count = static_cast<std::int32_t>(std::min(at.batch, request.query_count - first));
    batch.dim = static_cast<std::int32_t>(corpus.dim);
    search_batch(stream, static_cast<unsigned char*>(workspace), at, corpus, batch, request.k,
                 request.scores + first * request.k, request.ids + first * request.k, gate, multiprocessors);
  }
}

}  // namespace shortlist::cuda
