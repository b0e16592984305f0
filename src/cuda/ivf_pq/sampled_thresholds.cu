// Of a sample of each query's distances, a threshold that enough of all rows reach.
//
// A block a query. Each sampled distance stands for as many rows as its list has for one that was looked at; the
// threshold is the least that so many rows reach in the mean that, with room for chance, they are as many as are
// wanted. That is a guess: scores to the bit tell. Then the query's pairs of the full pass have their limits.
// Limit: 58 % of the issue slots are used; 10 KB of a query are read twice, once from memory. History: docs/kernels.md.
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/score.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/ivf_pq/filter_pairs.cuh"
#include "cuda/ivf_pq/half_ranks.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kVector = 8;  // distances that a thread loads at once
constexpr std::uint32_t kPageVectors = core::kPageRows / kVector;
constexpr std::uint32_t kBins = 1024;        // of ranks
constexpr float kDeviations = 4.5f;          // of what chance may do to a sample
constexpr std::uint32_t kWeightOfRow = 16;   // so that weights are whole numbers
constexpr std::uint32_t kNone = 0x7C007C00;  // two infinities

/// The lesser of two halves each.
__device__ __forceinline__ std::uint32_t lesser(std::uint32_t a, std::uint32_t b) {
  std::uint32_t least;
  asm("min.f16x2 %0, %1, %2;" : "=r"(least) : "r"(a), "r"(b));
  return least;
}

struct sampled_list {
  std::uint32_t start;   // its first page in the query's region
  std::uint32_t weight;  // of a row
};

struct threshold_shared {
  std::uint32_t bins[kBins];
  sampled_list lists[core::kLongestLists];
  std::uint32_t totals[kThreads / kWarp];
  std::uint32_t smallest;
  std::uint32_t nearest;  // the largest of the threads' smallest ranks
  std::uint32_t found;
};

/// A query's sample; a block.
class query_sample {
 public:
  __device__ query_sample(const filter_batch& batch, threshold_shared& shared, std::uint32_t query)
      : batch_(batch),
        shared_(shared),
        query_(query),
        vectors_(reinterpret_cast<const uint4*>(batch.distances + static_cast<std::int64_t>(query) *
                                                                      batch.region_pages * core::kPageRows)),
        count_(batch.pages[query] * kPageVectors),
        weights_(reinterpret_cast<std::uint32_t*>(dynamic_shared())) {}

  /// The distance that the wanted rows reach, most likely; infinity if all may be among them.
  __device__ float distance() {
    const std::uint32_t rows = batch_.rows[query_];
    if (rows <= batch_.wanted) return __uint_as_float(0x7F800000u);
    bring_lists();
    find_range();
    const std::uint32_t wanted = weight_wanted(rows);
    std::uint32_t rank = last_of(wanted, shared_.nearest);
    if (rank > kLargestRank) rank = last_of(wanted, kLargestRank);
    if (rank >= kLargestRank) return __uint_as_float(0x7F800000u);
    return (0.5f * value_of(rank) + 0.5f * value_of(rank + 1)) / batch_.scales[query_];
  }

 private:
  __device__ void bring_lists() {
    if (threadIdx.x == 0) {
      shared_.smallest = kLargestRank;
      shared_.nearest = 0;
    }
    for (std::uint32_t probe = threadIdx.x; probe < static_cast<std::uint32_t>(batch_.nprobe); probe += kThreads) {
      constexpr std::uint32_t kRows = core::kPageRows;
      const std::int64_t at = static_cast<std::int64_t>(query_) * batch_.nprobe + probe;
      const std::uint32_t rows = batch_.lists.sizes[batch_.probes[at]];
      const std::uint32_t pages = pages_of_rows(rows);
      const std::uint32_t sampled = spread_of(batch_.spread, pages);
      const bool has_last = sampled > 0 && (sampled - 1) * batch_.spread.stride == pages - 1;
      const std::uint32_t there = sampled * kRows - (has_last ? pages * kRows - rows : 0);
      shared_.lists[probe] = {batch_.starts[at], there > 0 ? (rows * kWeightOfRow + there / 2) / there : 0};
    }
    __syncthreads();
    const auto start_of = [&](std::uint32_t rank) { return shared_.lists[rank].start; };
    for (std::uint32_t page = threadIdx.x; page < count_ / kPageVectors; page += kThreads)
      weights_[page] = shared_.lists[list_with_page(page, batch_.nprobe, start_of)].weight;
  }

  /// The smallest rank, and one that as many distances reach as there are threads, if there are.
  __device__ void find_range() {
    std::uint32_t least = kNone;  // of two each
    for (std::uint32_t i = threadIdx.x; i < count_; i += kThreads) {
      const uint4 x = vectors_[i];
      least = lesser(lesser(least, lesser(x.x, x.y)), lesser(x.z, x.w));
    }
    const std::uint32_t rank = min(rank_of(least & 0xFFFFu), rank_of(least >> 16));
    const std::uint32_t smallest = __reduce_min_sync(kFullWarp, rank);
    const std::uint32_t nearest = __reduce_max_sync(kFullWarp, rank);
    if (threadIdx.x % kWarp == 0) {
      atomicMin(&shared_.smallest, smallest);
      atomicMax(&shared_.nearest, min(nearest, kLargestRank));
    }
    __syncthreads();
  }

  /// W, so that a sample's estimate of W rows, each of which stands for w, is by deviations above those wanted:
  /// W - deviations * sqrt(W (w - 1)) = wanted.
  __device__ std::uint32_t weight_wanted(std::uint32_t rows) const {
    const auto wanted = static_cast<float>(batch_.wanted);
    const float rows_of_one = static_cast<float>(rows) / static_cast<float>(max(batch_.pages[query_], 1u)) /
                              static_cast<float>(core::kPageRows);
    const float chance = kDeviations * sqrtf(fmaxf(rows_of_one - 1.0f, 0.0f));
    const float root = 0.5f * (chance + sqrtf(chance * chance + 4.0f * wanted));
    return static_cast<std::uint32_t>(ceilf(root * root * kWeightOfRow));
  }

  /// The least rank that rows of this weight reach, or one slightly larger, up to `high`; kInfinityRank if there is
  /// none.
  __device__ std::uint32_t last_of(std::uint32_t wanted, std::uint32_t high) {
    constexpr int kOfThread = kBins / kThreads;
    const std::uint32_t low = min(shared_.smallest, high);
    const int shift = max(0, 32 - __clz((high - low) / kBins));
    for (int i = 0; i < kOfThread / 4; i++)
      reinterpret_cast<uint4*>(shared_.bins)[i * kThreads + threadIdx.x] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (threadIdx.x == 0) shared_.found = kInfinityRank;  // all have read what was found before
    for (std::uint32_t i = threadIdx.x; i < count_; i += kThreads) {
      const uint4 x = vectors_[i];
      const std::uint32_t weight = weights_[i / kPageVectors];
      const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
      const auto add = [&](std::uint32_t rank) {
        if (rank <= high) atomicAdd(&shared_.bins[(rank - low) >> shift], weight);
      };
#pragma unroll
      for (int j = 0; j < 4; j++) {
        add(rank_of(words[j] & 0xFFFFu));
        add(rank_of(words[j] >> 16));
      }
    }
    __syncthreads();
    std::uint32_t each[kOfThread];
    std::uint32_t mine = 0;
#pragma unroll
    for (int i = 0; i < kOfThread / 4; i++) {
      const uint4 weights = reinterpret_cast<const uint4*>(shared_.bins)[threadIdx.x * (kOfThread / 4) + i];
      each[4 * i] = weights.x;
      each[4 * i + 1] = weights.y;
      each[4 * i + 2] = weights.z;
      each[4 * i + 3] = weights.w;
      mine += weights.x + weights.y + weights.z + weights.w;
    }
    const std::uint32_t sum = running_sum(mine);
    const std::uint32_t warp = threadIdx.x / kWarp;
    const std::uint32_t lane = threadIdx.x % kWarp;
    if (lane == kWarp - 1) shared_.totals[warp] = sum;
    __syncthreads();
    std::uint32_t before = sum - mine + __reduce_add_sync(kFullWarp, lane < warp ? shared_.totals[lane] : 0u);
    if (before < wanted && before + mine >= wanted) {
      std::uint32_t bin = threadIdx.x * kOfThread;
#pragma unroll
      for (int i = 0; i < kOfThread; i++) bin += (before += each[i]) < wanted;
      shared_.found = min(high, low + ((bin + 1) << shift) - 1);
    }
    __syncthreads();
    return shared_.found;
  }

  const filter_batch& batch_;
  threshold_shared& shared_;
  std::uint32_t query_;
  const uint4* vectors_;
  std::uint32_t count_;
  std::uint32_t* weights_;  // [pages] of a row
};

/// A query's pair with its list of rank `probe`, and where its marks will be.
__device__ void fill_pair(const filter_batch& batch, std::uint32_t query, std::uint32_t probe, float threshold) {
  const std::int64_t at = static_cast<std::int64_t>(query) * batch.nprobe + probe;
  const std::int64_t list = batch.probes[at];
  const std::uint32_t place = batch.places[at];
  const float base = base_of(batch, query, list, batch.probe_scores[at]);
  const pass_shape cut = shape_of_list(batch.all, batch.all.counts[list], batch.lists.sizes[list]);
  const std::uint32_t group = cut.pairs > 0 ? place / cut.pairs : 0;
  const std::uint32_t of_group = place - group * cut.pairs;
  const std::uint32_t marks = group * marks_of_group(cut) + of_group / kMarkedQueries;
  const std::uint32_t pair = batch.all.offsets[list] + place;
  const std::uint32_t place_of_marks = batch.first_marks[list] + marks * cut.pages;
  batch.all.pairs[pair] = {query, base, limit_of(batch, threshold, base), place_of_marks - batch.lists.first[list]};
  batch.marked[pair] = {query, static_cast<std::uint32_t>(list), place_of_marks,
                        cut.pages * kMarkedQueries + of_group % kMarkedQueries};
}

__global__ void __launch_bounds__(kThreads) sampled_threshold_kernel(const __grid_constant__ filter_batch batch) {
  join_chain();
  __shared__ threshold_shared shared;
  const std::uint32_t query = blockIdx.x;
  const bool is_known = batch.margins[query] < __uint_as_float(0x7F800000u);
  const float distance = is_known ? query_sample(batch, shared, query).distance() : 0.0f;
  const float threshold = set_threshold(batch, query, distance, true, static_cast<int>(threadIdx.x));
  for (std::uint32_t probe = threadIdx.x; probe < static_cast<std::uint32_t>(batch.nprobe); probe += kThreads)
    fill_pair(batch, query, probe, threshold);
}

}  // namespace

void launch_sampled_thresholds(cudaStream_t stream, const filter_batch& batch) {
  launch(sampled_threshold_kernel,
         {.grid = dim3(static_cast<unsigned>(batch.count)),
          .threads = kThreads,
          .shared_bytes = batch.region_pages * static_cast<std::int64_t>(sizeof(std::uint32_t)),
          .overlaps = true},
         stream, batch, "launching thresholds from samples");
}

}  // namespace shortlist::cuda
