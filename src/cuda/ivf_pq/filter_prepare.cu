// Before and between the scans of a batch: queries become columns of halves, pairs of query and list are grouped by
// list, and samples become thresholds.
#include <cmath>

#include "core/certified.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/last_reached.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/device/warp_total.cuh"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/filter.hpp"
#include "cuda/ivf_pq/filter_pairs.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPrepareThreads = 512;
constexpr int kPrepared = kPrepareThreads / kWarp;  // queries of a block
constexpr int kPlanThreads = 128;

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
  // Sums may begin at a row's term less a query's limit, which is a sum of another row: three times as large.
  const double begun = batch.table == nullptr && !shape.uniform ? 3.0 : 1.0;
  const double products = (halves / 16.0 + 1.0) * kProductStep * begun * (sqrt(sums.weighted_squares) * factor + term);
  const double terms = (dim + 16.0) * kUnit * (term + fabs(sums.steps)) + (gamma + 8.0 * kUnit) * base;
  const double decoding = 2.0 * kUnit * (query + row) * row;
  const double adding = 16.0 * kUnit * (base + term + query * row);
  return kPad * (halved + products + terms + decoding + gamma * score + adding);
}

/// What a warp finds out of a query.
struct query_facts {
  query_sums sums;
  float inverse_norm;
  bool is_finite;
};

/// Writes the query's column; a warp.
__device__ query_facts prepare_column(const filter_batch& batch, std::int64_t query) {
  const core::ivf_pq_shape& shape = batch.shape;
  const page_layout layout(shape);
  const auto halves = static_cast<std::int32_t>(layout.padded_halves());
  const auto width = static_cast<std::int32_t>(layout.halves);
  const auto dim = static_cast<std::int32_t>(shape.dim);
  const auto piece_dim = static_cast<std::int32_t>(shape.piece_dim);
  const int lane = threadIdx.x % kWarp;
  const float* x = batch.queries + query * batch.query_stride;
  const float scale = batch.header->query_scale;
  const double inverse_scale = 1.0 / scale;  // exact: a power of two

  query_sums sums{};
  float finite = 0.0f;
  for (std::int32_t at = lane; at < halves; at += kWarp) {
    const std::int32_t in_piece = at % width;
    const std::int32_t i = at / width * piece_dim + in_piece;
    float half = 0.0f;
    if (in_piece < piece_dim && i < dim) {
      const double weighted = shape.uniform ? static_cast<double>(x[i]) * batch.steps[i] : static_cast<double>(x[i]);
      half = __half2float(__float2half_rn(-static_cast<float>(weighted) * scale));
      const double lost = weighted + static_cast<double>(half) * inverse_scale;
      sums.squares += static_cast<double>(x[i]) * x[i];
      sums.weighted_squares += weighted * weighted;
      sums.lost_squares += lost * lost;
      sums.steps += shape.uniform ? weighted : 0.0;
      finite += half - half;  // NaN of infinity
    }
    const auto place = static_cast<std::uint32_t>(at);
    batch.columns[query * halves + (batch.by_chunks ? place_in_chunks(halves, place) : place)] = __float2half_rn(half);
  }
  sums.squares = warp_total(sums.squares);
  sums.weighted_squares = warp_total(sums.weighted_squares);
  sums.lost_squares = warp_total(sums.lost_squares);
  sums.steps = warp_total(sums.steps);
  const bool is_finite = __all_sync(kFullWarp, finite == 0.0f);
  float inverse_norm = 1.0f;
  if (shape.metric == metric::cosine) {
    float partial[1][1][4] = {};
    for (std::int32_t at = lane * 4; at < dim; at += core::kPartialSums)
      for (int c = 0; c < 4 && at + c < dim; c++)
        partial[0][0][c] = core::step_dot(x[at + c], x[at + c], partial[0][0][c]);
    __syncwarp();
    inverse_norm = core::inverse_norm(finish_sums<kWarp, 1>(partial, lane));
  }
  return {sums, inverse_norm, is_finite};
}

struct prepare_args {
  filter_batch batches[2];
};

/// A warp a query; then a thread a query, for what its margin takes in double precision. y batches.
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ prepare_args args) {
  join_chain();
  const filter_batch& batch = args.batches[blockIdx.y];
  for (std::uint32_t i = blockIdx.x * kPrepareThreads + threadIdx.x; i < batch.zeroed_count;
       i += gridDim.x * kPrepareThreads)
    batch.zeroed[i] = 0;
  __shared__ query_facts found[kPrepared];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kPrepared;
  const int warp = threadIdx.x / kWarp;
  if (first + warp < batch.count) {
    const query_facts facts = prepare_column(batch, first + warp);
    if (threadIdx.x % kWarp == 0) found[warp] = facts;
  }
  __syncthreads();
  const std::int64_t query = first + threadIdx.x;
  if (threadIdx.x >= kPrepared || query >= batch.count) return;
  const auto& [sums, inverse_norm, is_finite] = found[threadIdx.x];
  const core::ivf_pq_shape& shape = batch.shape;
  const double error = error_of(batch, sums, static_cast<std::int32_t>(page_layout(shape).padded_halves()));
  const bool is_known = is_finite && error < 0x1p60 && inverse_norm > 0.0f;
  const double own = shape.metric == metric::l2 && shape.encodes == encoded::row ? 0.5 * sums.squares : 0.0;
  // Codes are half a step more than the whole numbers that are multiplied.
  batch.shares[query] = static_cast<float>(own - 0.5 * sums.steps);
  batch.margins[query] = is_known ? __double2float_ru(2.0 * error) : __uint_as_float(0x7F800000u);
  batch.inverse_norms[query] = inverse_norm;
  batch.hit_counts[query] = 0;
}

__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ filter_batch batch) {
  join_chain();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= static_cast<std::int64_t>(batch.count) * batch.nprobe) return;
  const auto rank = static_cast<std::int32_t>(at % batch.nprobe);
  const std::int64_t list = batch.probes[at];
  batch.places[at] = atomicAdd(batch.all.counts + list, 1u);
  if (rank < batch.sample.lists_of_query)
    batch.sample_places[at / batch.nprobe * batch.sample.lists_of_query + rank] =
        atomicAdd(batch.sample.counts + list, 1u);
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

/// What a block of lists takes of two counts at once: where this thread's part begins. All threads come.
__device__ uint2 take_places(uint2 mine, std::uint32_t* first, std::uint32_t* second) {
  __shared__ uint2 warps[kPlanThreads / kWarp];
  __shared__ uint2 begin;
  const uint2 before = sum_before(mine, warps);
  if (threadIdx.x == kPlanThreads - 1)
    begin = make_uint2(atomicAdd(first, before.x + mine.x), atomicAdd(second, before.y + mine.y));
  __syncthreads();
  return make_uint2(before.x + begin.x, before.y + begin.y);
}

/// Where each list's pairs begin, and the items, if there are to be some: a thread a list, blocks in any order, y a
/// pass.
__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const __grid_constant__ filter_batch batch) {
  join_chain();
  const scan_pass& pass = blockIdx.y == 0 ? batch.all : batch.sample;
  const std::uint32_t list = blockIdx.x * kPlanThreads + threadIdx.x;
  const bool is_real = list < static_cast<std::uint32_t>(batch.shape.nlist);
  const std::uint32_t pairs = is_real ? pass.counts[list] : 0;
  const pass_shape cut = pass.items ? shape_of_list(pass, pairs, is_real ? batch.lists.sizes[list] : 0) : pass_shape{};
  const uint2 at = take_places(make_uint2(pairs, cut.groups * cut.chunks), pass.pair_count, pass.item_count);
  if (is_real) pass.offsets[list] = at.x;
  for (std::uint32_t group = 0; group < cut.groups; group++) {
    const std::uint32_t of_list = group * cut.pairs;
    for (std::uint32_t chunk = 0; chunk < cut.chunks; chunk++) {
      const std::uint32_t first = share_of(cut.pages, chunk, cut.chunks);
      pass.items[at.y + group * cut.chunks + chunk] = {at.x + of_list, min(cut.pairs, pairs - of_list),
                                                       batch.lists.first[list] + first,
                                                       share_of(cut.pages, chunk + 1, cut.chunks) - first};
    }
  }
  if (blockIdx.y != 0 || batch.marks == nullptr) return;
  const scan_pass& spread = batch.spread;
  const uint2 marks = take_places(make_uint2(cut.groups * marks_of_group(cut) * cut.pages, cut.groups),
                                  batch.marked_pages, spread.item_count);
  if (is_real) batch.first_marks[list] = marks.x;
  for (std::uint32_t group = 0; group < cut.groups; group++) {
    const std::uint32_t of_list = group * cut.pairs;
    spread.items[marks.y + group] = {at.x + of_list, min(cut.pairs, pairs - of_list), batch.lists.first[list],
                                     spread_of(spread, cut.pages)};
  }
}

__global__ void __launch_bounds__(kThreads) fill_sample_kernel(const __grid_constant__ filter_batch batch) {
  join_chain();
  const std::uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  const auto lists = static_cast<std::uint32_t>(batch.sample.lists_of_query);
  if (at >= static_cast<std::uint32_t>(batch.count) * lists) return;
  const std::uint32_t query = at / lists;
  const std::int64_t probe = static_cast<std::int64_t>(query) * batch.nprobe + at % lists;
  const std::int64_t list = batch.probes[probe];
  const float base = base_of(batch, query, list, batch.probe_scores[probe]);
  batch.sample.pairs[batch.sample.offsets[list] + batch.sample_places[at]] = {at, base, 0.0f};
  if (batch.lists.sizes[list] > 0) return;
  for (int group = 0; group < kGroupsOfList; group++)  // no item does it
    batch.minima[static_cast<std::int64_t>(at) * kGroupsOfList + group] = __uint_as_float(0x7F800000u);
}

/// A power of two that a query's distances are multiplied by, so that they fit halves: most are of its bases' size.
__device__ float scale_of(float largest_base) {
  constexpr int kExponent = 8;
  constexpr int kMost = 60;
  if (!(largest_base > 0.0f && largest_base < __uint_as_float(0x7F800000u))) return 1.0f;
  return exp2f(static_cast<float>(min(max(kExponent - ilogbf(largest_base), -kMost), kMost)));
}

/// A warp a query: its lists' pages that are looked at lie one behind the other.
__global__ void __launch_bounds__(kThreads) fill_regions_kernel(const __grid_constant__ filter_batch batch) {
  join_chain();
  const int lane = threadIdx.x % kWarp;
  const auto query =
      static_cast<std::uint32_t>((static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp);
  if (query >= static_cast<std::uint32_t>(batch.count)) return;
  const std::int64_t first = static_cast<std::int64_t>(query) * batch.nprobe;
  float largest = 0.0f;
  for (std::int32_t probe = lane; probe < batch.nprobe; probe += kWarp)
    largest =
        fmaxf(largest, fabsf(base_of(batch, query, batch.probes[first + probe], batch.probe_scores[first + probe])));
  const float scale = scale_of(__uint_as_float(__reduce_max_sync(kFullWarp, __float_as_uint(largest))));
  std::uint32_t pages = 0;
  std::uint32_t rows = 0;
  for (std::int32_t begin = 0; begin < batch.nprobe; begin += kWarp) {
    const std::int32_t probe = begin + lane;
    const bool is_probe = probe < batch.nprobe;
    const std::int64_t list = is_probe ? batch.probes[first + probe] : 0;
    const std::uint32_t size = is_probe ? batch.lists.sizes[list] : 0;
    const std::uint32_t sampled = spread_of(batch.spread, pages_of_rows(size));
    const std::uint32_t sum = running_sum(sampled);
    const std::uint32_t start = pages + sum - sampled;
    if (is_probe) {
      const float base = base_of(batch, query, list, batch.probe_scores[first + probe]);
      batch.starts[first + probe] = start;
      batch.all.pairs[batch.all.offsets[list] + batch.places[first + probe]] = {
          query, base * scale, batch.header->unit * scale,
          query * batch.region_pages + start - batch.lists.first[list]};
    }
    pages += __shfl_sync(kFullWarp, sum, kWarp - 1);
    rows += __reduce_add_sync(kFullWarp, size);
  }
  if (lane != 0) return;
  batch.pages[query] = pages;
  batch.rows[query] = rows;
  batch.scales[query] = scale;
  batch.order[batch.sample.offsets[batch.probes[first]] + batch.sample_places[query]] = query;
}

/// The query's pairs of the full pass, whose threshold is known now; by so many threads.
__device__ void fill_pairs(const filter_batch& batch, std::uint32_t query, float threshold, int rank, int threads) {
  if (batch.pairs_by_query) {
    if (rank == 0) batch.all.pairs[query].limit = limit_of(batch, threshold, batch.all.pairs[query].base);
    return;
  }
  for (std::int32_t probe = rank; probe < batch.nprobe; probe += threads) {
    const std::int64_t at = static_cast<std::int64_t>(query) * batch.nprobe + probe;
    const std::int64_t list = batch.probes[at];
    const float base = base_of(batch, query, list, batch.probe_scores[at]);
    batch.all.pairs[batch.all.offsets[list] + batch.places[at]] = {query, base, limit_of(batch, threshold, base)};
  }
}

struct threshold_shared {
  select_scratch<kThreads> select;
};

/// A block a query: the k-th least of its minima is reached by k rows, since each is of rows of its own.
__global__ void __launch_bounds__(kThreads) threshold_kernel(const __grid_constant__ filter_batch batch) {
  join_chain();
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
  float farthest = __uint_as_float(0x7F800000u);
  if (n >= batch.wanted) {
    const std::uint64_t cut = block_cut<kThreads>(keys, n, batch.wanted, 0, shared.select);
    // A cut of 1 is reached by all that there are, which may be fewer. Any other is no larger than the k-th key.
    if (cut > 1) farthest = distance_of_key(core::key_of(cut));
  }
  const auto number = static_cast<std::uint32_t>(query);
  const auto rank = static_cast<int>(threadIdx.x);
  fill_pairs(batch, number, set_threshold(batch, number, farthest, false, rank), rank, kThreads);
}

constexpr int kFewMinima = 8;  // of a lane
constexpr int kManyMinima = 32;
constexpr int kMostMinima = 64;
constexpr float kDeviations = 4.5f;  // of what chance may do to an estimate

/// What the minima of one sampled list say of how many of its rows are near.
class list_sample {
 public:
  list_sample() = default;
  __device__ list_sample(const filter_batch& batch, std::int64_t query, std::int32_t rank) {
    const std::uint32_t rows = batch.lists.sizes[batch.probes[query * batch.nprobe + rank]];
    if (rows == 0) return;
    const std::uint32_t sampled = sampled_of(batch.sample, pages_of_rows(rows));
    const auto sampled_rows = static_cast<float>(min(rows, sampled * static_cast<std::uint32_t>(core::kPageRows)));
    groups_ = static_cast<float>(kGroupsOfList / kSamplingWarps * min(sampled, std::uint32_t{kSamplingWarps}));
    per_group_ = fmaxf(sampled_rows / groups_, 1.0f);
    scale_ = static_cast<float>(rows) / sampled_rows;
  }

  /// Of how many rows of the list are near, by the groups whose least distance is: the sample's, and the variance of
  /// what the others add. Rows that share a group count once.
  __device__ float2 counted(std::uint32_t near) const {
    const auto sampled = static_cast<float>(near);
    return bounded(scale_ * sampled, scale_ * (scale_ - 1.0f) * sampled);
  }

  /// The same with a guess at how many share a group, which is useless where all groups are near.
  __device__ float2 guessed(std::uint32_t near) const {
    const float there = fminf(static_cast<float>(near), groups_ - 0.5f) / groups_;
    const float sampled = groups_ * per_group_ * (1.0f - exp2f(log2f(1.0f - there) / per_group_));
    const float of_group = sampled / groups_;
    const float unseen = groups_ * (__expf(of_group) - 1.0f - of_group);
    return bounded(scale_ * sampled, scale_ * (scale_ - 1.0f) * sampled + scale_ * scale_ * unseen);
  }

 private:
  /// So that sums over lists fit.
  __device__ static float2 bounded(float rows, float variance) {
    constexpr float kMost = 1 << 22;
    return make_float2(fminf(rows, kMost), fminf(variance, kMost));
  }

  float groups_ = 1.0f;
  float per_group_ = 1.0f;  // rows
  float scale_ = 0.0f;      // of the list to the sample
};

/// What a sum of the lanes' estimates surely is, unless chance is against it.
__device__ std::uint32_t surely(const float2& mine) {
  constexpr float kUnit = 1.0f / 16;
  const float rows =
      kUnit * static_cast<float>(__reduce_add_sync(kFullWarp, static_cast<std::uint32_t>(mine.x / kUnit)));
  const float variance =
      kUnit * static_cast<float>(__reduce_add_sync(kFullWarp, static_cast<std::uint32_t>(ceilf(mine.y / kUnit))));
  return static_cast<std::uint32_t>(fmaxf(rows - kDeviations * sqrtf(variance), 0.0f));
}

/// How many rows are as near as `key`, unless chance is against it, or at least whether as many as are wanted. Each
/// lane has a list's sample.
template <int MinimaOfLane>
__device__ std::uint32_t likely_rows(const std::uint32_t (&keys)[MinimaOfLane], std::uint32_t key, std::uint32_t wanted,
                                     const list_sample& sample, int lane) {
  constexpr int kOfList = kGroupsOfList / kWarp;  // minima of a lane
  std::uint32_t near = 0;
#pragma unroll
  for (int list = 0; list < MinimaOfLane / kOfList; list++) {
    std::uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kOfList; i++) count += __popc(__ballot_sync(kFullWarp, keys[list * kOfList + i] >= key));
    near = lane == list ? count : near;
  }
  const std::uint32_t counted = surely(sample.counted(near));
  return counted >= wanted ? counted : max(counted, surely(sample.guessed(near)));
}

/// The same for fewer minima, a warp a query; and for slightly more of them than are wanted. With Guesses, a sample
/// that has only a share of each list is taken to stand for all of its rows, with room for chance: fewer minima suffice
/// then. That is a guess, since rows may lie in a list in an order that has to do with the query. The hits tell.
template <int MinimaOfLane, bool Guesses>
__global__ void __launch_bounds__(kThreads) warp_threshold_kernel(const __grid_constant__ filter_batch batch) {
  join_chain();
  const int lane = threadIdx.x % kWarp;
  const std::int64_t query = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (query >= batch.count) return;
  const std::int32_t n = batch.sample.lists_of_query * kGroupsOfList;
  list_sample sample;
  if (Guesses && lane < batch.sample.lists_of_query) sample = list_sample(batch, query, lane);
  const float* minima = batch.minima + query * n;
  std::uint32_t keys[MinimaOfLane];
  std::uint32_t low = ~0u;
  std::uint32_t high = 0;
  std::uint32_t there = 0;
#pragma unroll
  for (int i = 0; i < MinimaOfLane; i++) {
    const float least = i * kWarp + lane < n ? minima[i * kWarp + lane] : __uint_as_float(0x7F800000u);
    const bool is_row = least < __uint_as_float(0x7F800000u);
    keys[i] = is_row ? distance_key(least) : 0;
    low = is_row ? min(low, keys[i]) : low;
    high = max(high, keys[i]);
    there += is_row;
  }
  low = __reduce_min_sync(kFullWarp, low);
  high = __reduce_max_sync(kFullWarp, high);
  there = __reduce_add_sync(kFullWarp, there);
  const std::uint32_t wanted = batch.wanted;
  float farthest = __uint_as_float(0x7F800000u);
  if (there >= wanted || (Guesses && there > 0 && likely_rows(keys, low, wanted, sample, lane) >= wanted)) {
    while (low < high) {
      const std::uint32_t middle = high - (high - low) / 2;
      std::uint32_t count = 0;
      if constexpr (Guesses) {
        count = likely_rows(keys, middle, wanted, sample, lane);
      } else {
#pragma unroll
        for (int i = 0; i < MinimaOfLane; i++) count += keys[i] >= middle;
        count = __reduce_add_sync(kFullWarp, count);
      }
      if (count >= wanted) {
        low = middle;
        if (count <= wanted + wanted / kWarp) break;
      } else {
        high = middle - 1;
      }
    }
    farthest = distance_of_key(low);
  }
  const auto number = static_cast<std::uint32_t>(query);
  fill_pairs(batch, number, set_threshold(batch, number, farthest, Guesses, lane), lane, kWarp);
}

using threshold_pointer = void (*)(filter_batch);

template <bool Guesses>
threshold_pointer warp_threshold_kernel_of(std::int64_t minima) {
  if (minima <= kFewMinima * kWarp) return warp_threshold_kernel<kFewMinima, Guesses>;
  if (minima <= kManyMinima * kWarp) return warp_threshold_kernel<kManyMinima, Guesses>;
  return warp_threshold_kernel<kMostMinima, Guesses>;
}

/// Threads for each of `threads`, in a chain of launches.
launch_shape chained(std::int64_t threads) {
  return {
      .grid = dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)), .threads = kThreads, .overlaps = true};
}

constexpr int kHitsOfLane = 32;  // whose distances stay in registers

struct retry_args {
  filter_batch batch;
  retry_plan plan;
};

/// A distance that as many of n reach as are wanted, or slightly more; infinity, if fewer are there. key_at(i) is that
/// of i.
template <class KeyAt>
__device__ float nearest_of(std::uint32_t n, std::uint32_t wanted, int lane, KeyAt key_at) {
  std::uint32_t near[kHitsOfLane];
#pragma unroll
  for (int i = 0; i < kHitsOfLane; i++) near[i] = i * kWarp + lane < n ? key_at(i * kWarp + lane) : 0;
  const auto reached_by = [&](std::uint32_t key) {
    std::uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kHitsOfLane; i++) count += near[i] >= key;
    for (std::uint32_t at = kHitsOfLane * kWarp + lane; at < n; at += kWarp) count += key_at(at) >= key;
    return __reduce_add_sync(kFullWarp, count);
  };
  const std::uint32_t low = last_reached({0, ~0u}, wanted, wanted / kWarp, reached_by).low;
  return low == 0 ? __uint_as_float(0x7F800000u) : distance_of_key(low);
}

/// What a query's threshold becomes, reached by as many rows as are wanted: those of its hits, which are too many, or
/// the minima of its sample, if less than that was guessed.
__device__ float sure_distance(const filter_batch& batch, std::uint32_t query, bool has_hits, int lane) {
  if (has_hits) {
    const std::uint64_t* hits = batch.hits + static_cast<std::int64_t>(query) * batch.capacity;
    return nearest_of(batch.capacity, batch.wanted, lane,
                      [&](std::uint32_t at) { return static_cast<std::uint32_t>(hits[at] >> 32); });
  }
  const auto n = static_cast<std::uint32_t>(batch.sample.lists_of_query * kGroupsOfList);
  const float* minima = batch.minima + static_cast<std::int64_t>(query) * n;
  return nearest_of(n, batch.wanted, lane, [&](std::uint32_t at) {
    return minima[at] < __uint_as_float(0x7F800000u) ? distance_key(minima[at]) : 0;
  });
}

/// A warp a query.
__global__ void __launch_bounds__(kThreads) retry_kernel(const __grid_constant__ retry_args args) {
  join_chain();
  const filter_batch& batch = args.batch;
  const retry_plan& plan = args.plan;
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t turn = (blockIdx.x * kThreads + threadIdx.x) / kWarp;
  if (turn >= *plan.which_count) return;
  const std::uint32_t query = plan.which[turn];
  const float margin = batch.margins[query];
  const auto nprobe = static_cast<std::uint32_t>(batch.nprobe);
  const bool has_hits = batch.hit_counts[query] > batch.capacity;
  const float infinity = __uint_as_float(0x7F800000u);
  bool is_retried = margin < infinity && (has_hits ? batch.capacity >= batch.wanted : is_guessed(batch, query));
  const float distance = is_retried ? sure_distance(batch, query, has_hits, lane) : infinity;
  is_retried = distance < infinity;  // fewer groups are sampled than rows are wanted
  std::uint32_t first = 0;
  if (is_retried) {
    if (lane == 0) first = atomicAdd(plan.item_count, nprobe);
    first = __shfl_sync(kFullWarp, first, 0);
    is_retried = first + nprobe <= plan.item_room;
    for (std::uint32_t at = first + lane; !is_retried && at < plan.item_room; at += kWarp) plan.items[at] = {};
  }
  if (!is_retried) {
    if (lane == 0) plan.left[atomicAdd(plan.left_count, 1u)] = query;
    return;
  }
  const float threshold = set_threshold(batch, query, distance, false, lane);
  if (lane == 0) {
    batch.hit_counts[query] = 0;
    plan.retried[atomicAdd(plan.retried_count, 1u)] = query;
  }
  __syncwarp();
  for (std::uint32_t probe = lane; probe < nprobe; probe += kWarp) {
    const std::int64_t at = static_cast<std::int64_t>(query) * nprobe + probe;
    const std::int64_t list = batch.probes[at];
    const std::uint32_t rows = batch.lists.sizes[list];
    const std::uint32_t pair = batch.all.offsets[list] + batch.places[at];
    batch.all.pairs[pair].limit = limit_of(batch, threshold, batch.all.pairs[pair].base);
    plan.items[first + probe] = {pair, 1, batch.lists.first[list], pages_of_rows(rows)};
  }
}

}  // namespace

void launch_prepare_queries(cudaStream_t stream, const filter_batch& batch, const filter_batch* next) {
  launch(prepare_kernel,
         {.grid = dim3((static_cast<unsigned>(batch.count) + kPrepared - 1) / kPrepared, next ? 2 : 1),
          .threads = kPrepareThreads,
          .overlaps = true},
         stream, {{batch, next ? *next : batch}}, "launching the preparation of queries");
}

void launch_group_pairs(cudaStream_t stream, const filter_batch& batch) {
  constexpr const char* kWhat = "launching the grouping of queries by list";
  const std::int64_t pairs = static_cast<std::int64_t>(batch.count) * batch.nprobe;
  launch_shape counting = chained(pairs);
  counting.overlaps = !batch.distances;  // a scan that writes distances is up to 15 % slower behind a longer chain
  launch(count_kernel, counting, stream, batch, kWhat);
  const auto list_blocks = static_cast<unsigned>((batch.shape.nlist + kPlanThreads - 1) / kPlanThreads);
  launch(plan_kernel, {.grid = dim3(list_blocks, 2), .threads = kPlanThreads, .overlaps = true}, stream, batch, kWhat);
  if (batch.distances) return;
  const std::int64_t sampled = static_cast<std::int64_t>(batch.count) * batch.sample.lists_of_query;
  launch(fill_sample_kernel, chained(sampled), stream, batch, kWhat);
}

void launch_fill_regions(cudaStream_t stream, const filter_batch& batch) {
  launch(fill_regions_kernel, chained(std::int64_t{kWarp} * batch.count), stream, batch,
         "launching the places of distances");
}

void launch_retry_scan(cudaStream_t stream, const filter_batch& batch, const retry_plan& plan, int multiprocessors) {
  launch(retry_kernel, chained(std::int64_t{kWarp} * batch.count), stream, {batch, plan}, "launching lower thresholds");
  filter_batch again = batch;
  again.all.items = plan.items;
  again.all.item_count = plan.item_count;
  again.all.next_item = plan.next_item;
  again.all.item_room = plan.item_room;
  launch_filter_scan(stream, again, multiprocessors);
}

void launch_thresholds(cudaStream_t stream, const filter_batch& batch) {
  constexpr const char* kWhat = "launching the thresholds";
  const std::int64_t keys = static_cast<std::int64_t>(batch.sample.lists_of_query) * kGroupsOfList;
  if (keys <= kMostMinima * kWarp) {
    const auto kernel = batch.guessed ? warp_threshold_kernel_of<true>(keys) : warp_threshold_kernel_of<false>(keys);
    return launch(kernel, chained(std::int64_t{kWarp} * batch.count), stream, batch, kWhat);
  }
  launch(threshold_kernel,
         {.grid = dim3(static_cast<unsigned>(batch.count)),
          .threads = kThreads,
          .shared_bytes = (static_cast<std::int64_t>(sizeof(threshold_shared)) + 15) / 16 * 16 + keys * 8,
          .overlaps = true},
         stream, batch, kWhat);
}

}  // namespace shortlist::cuda
