// Before and between the scans of a batch: queries become columns of halves, pairs of query and list are grouped by
// list, and samples become thresholds.
#include <cmath>

#include "core/certified.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/filter.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPlanThreads = 1024;

/// Sums over the block's threads, known to all.
__device__ double block_total(double value, double* totals) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) totals[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = 0.0;
  for (int w = 0; w < kThreads / kWarp; w++) value += totals[w];
  return value;
}

struct query_sums {
  double squares;           ///< of the query
  double weighted_squares;  ///< of what its products with codes are taken with
  double lost_squares;      ///< of what that loses as halves
  double steps;             ///< query times steps
};

/// What a distance may be wrong by, against half the squared L2 score, or minus the dot product, as the score by code
/// is defined. docs/ivf_pq.md, section 4, names the terms.
__device__ double error_of(const filter_batch& batch, const query_sums& sums, std::int32_t halves) {
  constexpr double kUnit = 0x1p-24;
  constexpr double kProductStep = 0x1p-20;  // assumed of 16 products and a sum by the matrix units, relative
  constexpr double kPad = 1.01;
  const core::ivf_pq_shape& shape = batch.shape;
  const prepared_header& header = *batch.header;
  const bool l2 = shape.metric == metric::l2;
  const double dim = static_cast<double>(shape.dim);
  const double query = sqrt(sums.squares);
  const double multiple = *batch.lists.largest;  // of uniform codes
  const double coded = shape.uniform ? multiple * header.largest_step : multiple;
  const double centroid = shape.encodes == encoded::residual ? header.largest_centroid : 0.0;
  const double row = centroid + coded;
  const double gamma = core::gamma_of(core::roundings_of_sum(shape.dim) + 3);
  // Codes as the matrix units have them: of uniform codes half a step off.
  const double factor = shape.uniform ? multiple + 0.5 * sqrt(dim) : coded;
  const double term = l2 ? centroid * coded + 0.5 * coded * coded : 0.0;
  const double base = l2 ? 0.5 * (query + centroid) * (query + centroid) : query * centroid;
  const double score = l2 ? 0.5 * (query + row) * (query + row) : query * row;
  const double halved = sqrt(sums.lost_squares) * factor + query * header.lost_of_rows;
  const double products = (halves / 16.0 + 1.0) * kProductStep * (sqrt(sums.weighted_squares) * factor + term);
  const double terms = (dim + 16.0) * kUnit * (term + fabs(sums.steps)) + (gamma + 8.0 * kUnit) * base;
  const double decoding = 2.0 * kUnit * (query + row) * row;
  const double adding = 16.0 * kUnit * (base + term + query * row);
  return kPad * (halved + products + terms + decoding + gamma * score + adding);
}

/// A block a query.
__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ filter_batch batch) {
  __shared__ double totals[kThreads / kWarp];
  __shared__ float partial[core::kPartialSums];
  static_assert(kThreads == core::kPartialSums);
  const core::ivf_pq_shape& shape = batch.shape;
  const page_layout layout(shape);
  const auto halves = static_cast<std::int32_t>(layout.padded_halves());
  const auto width = static_cast<std::int32_t>(layout.halves);
  const auto dim = static_cast<std::int32_t>(shape.dim);
  const auto piece_dim = static_cast<std::int32_t>(shape.piece_dim);
  const std::int64_t query = blockIdx.x;
  const float* x = batch.queries + query * batch.query_stride;
  const float scale = batch.header->query_scale;

  query_sums sums{};
  float finite = 0.0f;
  for (std::int32_t at = threadIdx.x; at < halves; at += kThreads) {
    const std::int32_t in_piece = at % width;
    const std::int32_t i = at / width * piece_dim + in_piece;
    float half = 0.0f;
    if (in_piece < piece_dim && i < dim) {
      const double weighted = shape.uniform ? static_cast<double>(x[i]) * batch.steps[i] : static_cast<double>(x[i]);
      const __half rounded = __float2half_rn(-static_cast<float>(weighted) * scale);
      half = __half2float(rounded);
      const double lost = weighted + static_cast<double>(half) / scale;
      sums.squares += static_cast<double>(x[i]) * x[i];
      sums.weighted_squares += weighted * weighted;
      sums.lost_squares += lost * lost;
      sums.steps += shape.uniform ? weighted : 0.0;
      finite += half - half;  // NaN of infinity
    }
    batch.columns[query * halves + at] = __float2half_rn(half);
  }
  sums.squares = block_total(sums.squares, totals);
  sums.weighted_squares = block_total(sums.weighted_squares, totals);
  sums.lost_squares = block_total(sums.lost_squares, totals);
  sums.steps = block_total(sums.steps, totals);
  const double is_finite = block_total(static_cast<double>(finite), totals);

  if (shape.metric == metric::cosine) {
    float sum = 0.0f;
    for (std::int32_t i = threadIdx.x; i < dim; i += kThreads) sum = core::step_dot(x[i], x[i], sum);
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int s = core::kPartialSums / 2; s > 0; s /= 2) {
      if (static_cast<int>(threadIdx.x) < s) partial[threadIdx.x] += partial[threadIdx.x + s];
      __syncthreads();
    }
  }
  if (threadIdx.x != 0) return;
  const float inverse_norm = shape.metric == metric::cosine ? core::inverse_norm(partial[0]) : 1.0f;
  const double error = error_of(batch, sums, halves);
  const bool is_known = is_finite == 0.0 && error < 0x1p60 && inverse_norm > 0.0f;
  const double own = shape.metric == metric::l2 && shape.encodes == encoded::row ? 0.5 * sums.squares : 0.0;
  // Codes are half a step more than the whole numbers that are multiplied.
  batch.shares[query] = static_cast<float>(own - 0.5 * sums.steps);
  batch.margins[query] = is_known ? __double2float_ru(2.0 * error) : __uint_as_float(0x7F800000u);
  batch.inverse_norms[query] = inverse_norm;
  batch.hit_counts[query] = 0;
}

__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ filter_batch batch) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= static_cast<std::int64_t>(batch.count) * batch.nprobe) return;
  const auto rank = static_cast<std::int32_t>(at % batch.nprobe);
  const std::int64_t list = batch.probes[at];
  batch.places[at] = atomicAdd(batch.all.counts + list, 1u);
  if (rank < batch.sample.lists_of_query)
    batch.sample_places[at / batch.nprobe * batch.sample.lists_of_query + rank] =
        atomicAdd(batch.sample.counts + list, 1u);
}

struct pass_shape {
  std::uint32_t groups = 0;
  std::uint32_t pairs = 0;  // of a group
  std::uint32_t pages = 0;
  std::uint32_t chunks = 0;
};

/// How a list's pairs and pages are cut into items.
__device__ pass_shape shape_of_list(const scan_pass& pass, std::uint32_t pairs, std::uint32_t rows) {
  pass_shape cut;
  if (pairs == 0 || rows == 0) return cut;
  cut.groups = (pairs + pass.queries_of_item - 1) / pass.queries_of_item;
  cut.pairs = ((pairs + cut.groups - 1) / cut.groups + 7) / 8 * 8;
  cut.groups = (pairs + cut.pairs - 1) / cut.pairs;
  cut.pages = (rows + core::kPageRows - 1) / core::kPageRows;
  if (pass.most_pages > 0) cut.pages = min(cut.pages, pass.most_pages);
  cut.chunks = min((cut.pages + pass.chunk_pages - 1) / pass.chunk_pages, pass.most_chunks);
  return cut;
}

/// Sums over the threads before this one, of two numbers; totals in the last.
__device__ uint2 sum_before(uint2 value, uint2* warps) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  uint2 sum = value;
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const std::uint32_t x = __shfl_up_sync(kFullWarp, sum.x, offset);
    const std::uint32_t y = __shfl_up_sync(kFullWarp, sum.y, offset);
    if (lane >= offset) sum = make_uint2(sum.x + x, sum.y + y);
  }
  __syncthreads();
  if (lane == kWarp - 1) warps[warp] = sum;
  __syncthreads();
  uint2 before = make_uint2(sum.x - value.x, sum.y - value.y);
  for (int w = 0; w < warp; w++) before = make_uint2(before.x + warps[w].x, before.y + warps[w].y);
  return before;
}

/// Where part `i` of `parts` of `all` begins.
__device__ std::uint32_t share_of(std::uint32_t all, std::uint32_t i, std::uint32_t parts) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(all) * i / parts);
}

/// Where each list's pairs begin, and the items. A block a pass.
__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const __grid_constant__ filter_batch batch) {
  __shared__ uint2 warps[kPlanThreads / kWarp];
  __shared__ uint2 begin;
  const scan_pass& pass = blockIdx.x == 0 ? batch.all : batch.sample;
  const auto nlist = static_cast<std::uint32_t>(batch.shape.nlist);
  if (threadIdx.x == 0) begin = make_uint2(0, 0);
  __syncthreads();
  for (std::uint32_t first = 0; first < nlist; first += kPlanThreads) {
    const std::uint32_t list = first + threadIdx.x;
    const std::uint32_t pairs = list < nlist ? pass.counts[list] : 0;
    const pass_shape cut = shape_of_list(pass, pairs, list < nlist ? batch.lists.sizes[list] : 0);
    const uint2 mine = make_uint2(pairs, cut.groups * cut.chunks);
    uint2 before = sum_before(mine, warps);
    before = make_uint2(before.x + begin.x, before.y + begin.y);
    if (list < nlist) pass.offsets[list] = before.x;
    for (std::uint32_t group = 0; group < cut.groups; group++) {
      const std::uint32_t at = group * cut.pairs;
      for (std::uint32_t chunk = 0; chunk < cut.chunks; chunk++) {
        const std::uint32_t first = share_of(cut.pages, chunk, cut.chunks);
        pass.items[before.y + group * cut.chunks + chunk] = {before.x + at, min(cut.pairs, pairs - at),
                                                             batch.lists.first[list] + first,
                                                             share_of(cut.pages, chunk + 1, cut.chunks) - first};
      }
    }
    __syncthreads();
    if (threadIdx.x == kPlanThreads - 1) begin = make_uint2(before.x + mine.x, before.y + mine.y);
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *pass.item_count = begin.y;
    *pass.next_item = 0;
  }
}

/// What the rows of a list have in common, for a query.
__device__ float base_of(const filter_batch& batch, std::int64_t query, std::int64_t list, float score) {
  const float share = batch.shares[query];
  if (batch.shape.encodes == encoded::row) return share;
  if (batch.shape.metric == metric::l2) return share + 0.5f * score;
  if (batch.shape.metric == metric::inner_product) return share - score;
  const float inverse_norm = batch.centroid_inverse_norms[list];
  return inverse_norm < 0.0f ? share : share - score / inverse_norm / batch.inverse_norms[query];
}

__global__ void __launch_bounds__(kThreads) fill_kernel(const __grid_constant__ filter_batch batch) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= static_cast<std::int64_t>(batch.count) * batch.nprobe) return;
  const auto rank = static_cast<std::uint32_t>(at % batch.nprobe);
  const auto query = static_cast<std::uint32_t>(at / batch.nprobe);
  const std::int64_t list = batch.probes[at];
  const float base = base_of(batch, query, list, batch.probe_scores[at]);
  batch.all.pairs[batch.all.offsets[list] + batch.places[at]] = {query, base};
  if (rank < static_cast<std::uint32_t>(batch.sample.lists_of_query)) {
    const std::uint32_t sampled = query * batch.sample.lists_of_query + rank;
    batch.sample.pairs[batch.sample.offsets[list] + batch.sample_places[sampled]] = {sampled, base};
    if (batch.lists.sizes[list] > 0) return;
    for (int group = 0; group < kGroupsOfList; group++)  // no item does it
      batch.minima[static_cast<std::int64_t>(sampled) * kGroupsOfList + group] = __uint_as_float(0x7F800000u);
  }
}

struct threshold_shared {
  select_scratch<kThreads> select;
};

/// A block a query: the k-th least of its minima is reached by k rows, since each is of rows of its own.
__global__ void __launch_bounds__(kThreads) threshold_kernel(const __grid_constant__ filter_batch batch) {
  auto& shared = *reinterpret_cast<threshold_shared*>(dynamic_shared());
  auto* keys = reinterpret_cast<std::uint64_t*>(dynamic_shared() + (sizeof(threshold_shared) + 15) / 16 * 16);
  const std::int64_t query = blockIdx.x;
  const auto n = static_cast<std::uint32_t>(batch.sample.lists_of_query * kGroupsOfList);
  const float* minima = batch.minima + query * n;
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) {
    const float least = minima[i];
    const bool is_row = least < __uint_as_float(0x7F800000u);
    keys[i] = is_row ? core::row_key(distance_key(least), i) : core::kNoRow;
  }
  __syncthreads();
  float threshold = __uint_as_float(0x7F800000u);
  if (n >= batch.wanted) {
    const std::uint64_t cut = block_cut<kThreads>(keys, n, batch.wanted, 0, shared.select);
    // A cut of 1 is reached by all that there are, which may be fewer. Any other is no larger than the k-th key.
    if (cut > 1) threshold = distance_of_key(core::key_of(cut)) + batch.margins[query];
  }
  if (threadIdx.x == 0) batch.thresholds[query] = threshold;
}

unsigned blocks_of(std::int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

void launch_prepare_queries(cudaStream_t stream, const filter_batch& batch) {
  prepare_kernel<<<static_cast<unsigned>(batch.count), kThreads, 0, stream>>>(batch);
  check(cudaGetLastError(), "launching the preparation of queries");
}

void launch_group_pairs(cudaStream_t stream, const filter_batch& batch) {
  const std::int64_t pairs = static_cast<std::int64_t>(batch.count) * batch.nprobe;
  const auto counts_bytes = static_cast<std::size_t>(batch.shape.nlist) * sizeof(std::uint32_t);
  check(cudaMemsetAsync(batch.all.counts, 0, counts_bytes, stream), "clearing the counts of lists");
  check(cudaMemsetAsync(batch.sample.counts, 0, counts_bytes, stream), "clearing the counts of lists");
  count_kernel<<<blocks_of(pairs), kThreads, 0, stream>>>(batch);
  plan_kernel<<<2, kPlanThreads, 0, stream>>>(batch);
  fill_kernel<<<blocks_of(pairs), kThreads, 0, stream>>>(batch);
  check(cudaGetLastError(), "launching the grouping of queries by list");
}

void launch_thresholds(cudaStream_t stream, const filter_batch& batch) {
  const std::int64_t keys = static_cast<std::int64_t>(batch.sample.lists_of_query) * kGroupsOfList;
  launch(threshold_kernel,
         {.grid = dim3(static_cast<unsigned>(batch.count)),
          .threads = kThreads,
          .shared_bytes = (static_cast<std::int64_t>(sizeof(threshold_shared)) + 15) / 16 * 16 + keys * 8},
         stream, batch, "launching the thresholds");
}

}  // namespace shortlist::cuda
