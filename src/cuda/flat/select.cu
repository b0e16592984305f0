// Exact selection from candidate lists: prune to the k best in place, then sort and write.
//
// Why it is fast: a prune reads its list about four times from L2, by one block or a cluster of up to eight; the first
// pass finds the bits in which the keys differ at all, so that the histogram's first 11 bits already separate them.
// Keys are distinct (score above, position below), so the k-th best is one key and "exactly k reach the cut" can be
// met whatever the data: equal scores are separated by their positions in the same passes.
// Steps of a prune: extremes -> histogram passes until the count is exact -> the holes among the first k places take
// the keys beyond them that reach the cut.
// Steps of the results: up to 2048 keys are sorted in shared memory by one block; longer lists as runs of 2048, then
// rounds that merge eight runs, where each key finds its place by binary search in the other seven.
// Limit: the lists' bytes over L2 bandwidth; in practice launch and barrier latency.
#include <algorithm>

#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/flat/results.cuh"
#include "cuda/flat/select.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kBinsPerThread = kBins / kThreads;
constexpr int kKeysInFlight = 8;             // loads a thread issues before it uses the first
constexpr int kMaxCluster = 8;               // the portable limit
constexpr int kFullMachine = 128;            // blocks that keep a GPU busy
constexpr std::int64_t kBlockLength = 4096;  // a list of this length is as fast with one block as with a cluster
constexpr int kRun = 2048;                   // keys that one block sorts in shared memory
constexpr int kFanIn = 8;                    // runs that one round merges

struct prune_shared {
  std::uint32_t histogram[2][kBins];  // double-buffered: one cluster barrier a pass
  std::uint64_t extremes[2][kWarps];
  std::uint32_t cluster_extremes[4];  // largest, ~smallest: high and low words
  std::uint32_t totals[kWarps];
  std::uint32_t digit;
  std::uint32_t above;
  std::uint32_t here;
};

__device__ __forceinline__ std::uint64_t largest_in_warp(std::uint64_t value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset >>= 1) {
    const std::uint64_t other = __shfl_xor_sync(kFullWarp, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

/// Calls f(key, index) for this thread's share of list[0, n), several loads ahead.
template <class F>
__device__ __forceinline__ void visit(const std::uint64_t* list, std::uint32_t n, F&& f) {
  const std::uint32_t step = cluster_size() * kThreads;
  for (std::uint32_t base = cluster_rank() * kThreads + threadIdx.x; base < n; base += kKeysInFlight * step) {
    std::uint64_t keys[kKeysInFlight];
#pragma unroll
    for (int j = 0; j < kKeysInFlight; j++) keys[j] = base + j * step < n ? list[base + j * step] : core::kNoRow;
#pragma unroll
    for (int j = 0; j < kKeysInFlight; j++)
      if (keys[j] != core::kNoRow) f(keys[j], base + j * step);
  }
}

__device__ __forceinline__ std::uint64_t joined(std::uint32_t high, std::uint32_t low) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

/// The largest and the smallest key of the list, known to all threads of the cluster.
__device__ void find_extremes(const std::uint64_t* list, std::uint32_t n, prune_shared& shared, std::uint64_t& largest,
                              std::uint64_t& smallest) {
  std::uint64_t high = 0;
  std::uint64_t low = 0;  // of the complements
  visit(list, n, [&](std::uint64_t key, std::uint32_t) {
    high = key > high ? key : high;
    low = ~key > low ? ~key : low;
  });
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  high = largest_in_warp(high);
  low = largest_in_warp(low);
  if (lane == 0) {
    shared.extremes[0][warp] = high;
    shared.extremes[1][warp] = low;
  }
  __syncthreads();
  if (warp == 0) {
    high = largest_in_warp(lane < kWarps ? shared.extremes[0][lane] : 0);
    low = largest_in_warp(lane < kWarps ? shared.extremes[1][lane] : 0);
    if (lane == 0) {
      shared.cluster_extremes[0] = static_cast<std::uint32_t>(high >> 32);
      shared.cluster_extremes[1] = static_cast<std::uint32_t>(high);
      shared.cluster_extremes[2] = static_cast<std::uint32_t>(low >> 32);
      shared.cluster_extremes[3] = static_cast<std::uint32_t>(low);
    }
  }
  cluster_sync();
  high = 0;
  low = 0;
  for (std::uint32_t rank = 0; rank < cluster_size(); rank++) {
    const std::uint64_t other_high =
        joined(cluster_load(shared.cluster_extremes, rank), cluster_load(shared.cluster_extremes + 1, rank));
    const std::uint64_t other_low =
        joined(cluster_load(shared.cluster_extremes + 2, rank), cluster_load(shared.cluster_extremes + 3, rank));
    high = other_high > high ? other_high : high;
    low = other_low > low ? other_low : low;
  }
  largest = high;
  smallest = ~low;
}

/// Adds up the cluster's histograms and finds the bin, from above, in which the wanted-th key lies.
__device__ void find_digit(const std::uint32_t* histogram, std::uint32_t wanted, prune_shared& shared) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  std::uint32_t bins[kBinsPerThread] = {};
  std::uint32_t mine = 0;
  const std::uint32_t top = kBins - 1 - kBinsPerThread * threadIdx.x;  // this thread's bins, falling
  for (std::uint32_t rank = 0; rank < cluster_size(); rank++) {
#pragma unroll
    for (int i = 0; i < kBinsPerThread; i++) bins[i] += cluster_load(histogram + top - i, rank);
  }
#pragma unroll
  for (int i = 0; i < kBinsPerThread; i++) mine += bins[i];
  std::uint32_t before = running_sum(mine);
  if (lane == kWarp - 1) shared.totals[warp] = before;
  before -= mine;
  __syncthreads();
  for (int w = 0; w < warp; w++) before += shared.totals[w];
#pragma unroll
  for (int i = 0; i < kBinsPerThread; i++) {
    if (before < wanted && before + bins[i] >= wanted) {
      shared.digit = top - i;
      shared.above = before;
      shared.here = bins[i];
    }
    before += bins[i];
  }
  __syncthreads();
}

/// A number that exactly k of the list's n >= k keys reach.
__device__ std::uint64_t find_cut(const std::uint64_t* list, std::uint32_t n, std::uint32_t k, prune_shared& shared) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) shared.histogram[0][i] = 0;
  std::uint64_t largest;
  std::uint64_t smallest;
  find_extremes(list, n, shared, largest, smallest);
  if (n == k || largest == smallest) return smallest;
  int bits = 64 - __clzll(static_cast<long long>(largest ^ smallest));  // low bits not yet decided
  std::uint64_t cut = bits == 64 ? 0 : largest >> bits << bits;
  std::uint32_t wanted = k;
  for (int pass = 0; bits > 0; pass++) {
    std::uint32_t* histogram = shared.histogram[pass & 1];
    const int shift = bits > kDigitBits ? bits - kDigitBits : 0;
    const std::uint32_t digit_mask = (1u << (bits - shift)) - 1u;
    const std::uint64_t decided = bits == 64 ? 0 : ~std::uint64_t{0} << bits;
    visit(list, n, [&](std::uint64_t key, std::uint32_t) {
      if ((key & decided) == cut) atomicAdd(&histogram[static_cast<std::uint32_t>(key >> shift) & digit_mask], 1u);
    });
    cluster_sync();
    for (int i = threadIdx.x; i < kBins; i += kThreads) shared.histogram[(pass + 1) & 1][i] = 0;
    find_digit(histogram, wanted, shared);
    cut |= static_cast<std::uint64_t>(shared.digit) << shift;
    wanted -= shared.above;
    bits = shift;
    if (shared.here == wanted) break;
    __syncthreads();
  }
  return cut;
}

/// One list a cluster.
__global__ void __launch_bounds__(kThreads) prune_kernel(const __grid_constant__ candidate_lists lists) {
  if (lists.gate.closed()) return;
  auto& shared = *reinterpret_cast<prune_shared*>(dynamic_shared());
  const std::int64_t query = blockIdx.x / cluster_size();
  std::uint64_t* list = lists.keys + query * lists.capacity;
  const std::uint32_t n = lists.counts[query];
  const std::uint32_t k = lists.kept;
  if (n < k) return;

  const std::uint64_t cut = find_cut(list, n, k, shared);
  std::uint32_t* holes = reinterpret_cast<std::uint32_t*>(lists.spare + query * lists.kept);
  std::uint32_t* movers = holes + k;
  std::uint32_t* cursors = lists.cursors + 2 * query;  // zero between launches
  if (n > k) {
    visit(list, n, [&](std::uint64_t key, std::uint32_t index) {
      const bool stays = key >= cut;
      if (!stays && index < k) holes[atomicAdd(cursors, 1u)] = index;
      if (stays && index >= k) movers[atomicAdd(cursors + 1, 1u)] = index;
    });
  }
  cluster_sync();
  const std::uint32_t moved = n > k ? *const_cast<volatile std::uint32_t*>(cursors) : 0;
  for (std::uint32_t i = cluster_rank() * kThreads + threadIdx.x; i < moved; i += cluster_size() * kThreads)
    list[__ldcg(holes + i)] = list[__ldcg(movers + i)];
  cluster_sync();
  if (cluster_rank() == 0 && threadIdx.x == 0) {
    cursors[0] = 0;
    cursors[1] = 0;
    lists.counts[query] = k;
    lists.least_keys[query] = core::key_of(cut) + 1;  // a later row loses every tie
  }
}

struct results_args {
  const std::uint64_t* from;  // [queries, from_stride]
  std::uint64_t* to;          // [queries, to_stride]; unused in the last round
  std::int64_t from_stride;
  std::int64_t to_stride;
  result_lists results;
  std::int64_t run;  // length of the sorted runs
  std::int32_t kept;
  std::int32_t last;
  launch_gate gate;
};

/// Sorts run blockIdx.x of list blockIdx.y; if the list is that one run, writes the results.
__global__ void __launch_bounds__(kThreads) sort_runs_kernel(const __grid_constant__ results_args args) {
  if (args.gate.closed()) return;
  auto* keys = reinterpret_cast<std::uint64_t*>(dynamic_shared());
  const std::int64_t query = blockIdx.y;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRun;
  const std::uint32_t n = static_cast<std::uint32_t>(min(static_cast<std::int64_t>(kRun), args.kept - first));
  std::uint32_t padded = 2;
  while (padded < n) padded <<= 1;
  const std::uint64_t* from = args.from + query * args.from_stride + first;
  for (std::uint32_t i = threadIdx.x; i < padded; i += kThreads) keys[i] = i < n ? from[i] : core::kNoRow;
  block_sort<kThreads>(keys, padded);
  if (args.last) {
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) args.results.write(query, i, keys[i]);
    for (std::int64_t i = args.kept + threadIdx.x; i < args.results.k; i += kThreads) args.results.pad(query, i);
  } else {
    std::uint64_t* to = args.to + query * args.to_stride + first;
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) to[i] = keys[i];
  }
}

/// How many of a falling run's n keys are above `key`.
__device__ __forceinline__ std::int64_t count_above(const std::uint64_t* run, std::int64_t n, std::uint64_t key) {
  std::int64_t low = 0;
  std::int64_t high = n;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (run[middle] > key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Merges groups of kFanIn sorted runs: one thread a key. The last round writes the results.
__global__ void __launch_bounds__(kThreads) merge_runs_kernel(const __grid_constant__ results_args args) {
  if (args.gate.closed()) return;
  const std::int64_t query = blockIdx.y;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= args.kept) {
    if (args.last && index < args.results.k) args.results.pad(query, index);
    return;
  }
  const std::uint64_t* list = args.from + query * args.from_stride;
  const std::uint64_t key = list[index];
  const std::int64_t mine = index / args.run;
  const std::int64_t group = mine / kFanIn * kFanIn;
  std::int64_t rank = group * args.run + index - mine * args.run;
  for (std::int64_t other = group; other < group + kFanIn; other++) {
    const std::int64_t first = other * args.run;
    if (first >= args.kept) break;
    if (other == mine) continue;
    rank += count_above(list + first, min(args.run, args.kept - first), key);
  }
  if (args.last) {
    args.results.write(query, rank, key);
  } else {
    args.to[query * args.to_stride + rank] = key;
  }
}

}  // namespace

void launch_prune(cudaStream_t stream, const candidate_lists& lists, std::int64_t likely_length) {
  int cluster = 1;
  while (cluster < kMaxCluster && 2 * cluster * lists.queries <= kFullMachine &&
         cluster * kBlockLength < likely_length) {
    cluster *= 2;
  }
  const launch_shape shape{.grid = dim3(static_cast<unsigned>(lists.queries * cluster)),
                           .threads = kThreads,
                           .shared_bytes = sizeof(prune_shared),
                           .cluster = cluster};
  launch(prune_kernel, shape, stream, lists, "launching the prune of candidates");
}

void launch_results(cudaStream_t stream, const candidate_lists& lists, const core::flat_corpus& corpus, std::int64_t k,
                    float* scores, std::int64_t* labels) {
  const auto blocks_of = [](std::int64_t n, std::int64_t each) { return static_cast<unsigned>((n + each - 1) / each); };
  const unsigned queries = static_cast<unsigned>(lists.queries);
  const std::int64_t kept = lists.kept;

  results_args args{};
  args.from = lists.keys;
  args.from_stride = lists.capacity;
  args.to = lists.keys;
  args.to_stride = lists.capacity;
  args.results = {corpus.ids, scores, labels, k, corpus.metric};
  args.kept = lists.kept;
  args.last = kept <= kRun;
  args.gate = lists.gate;
  const launch_shape sort_shape{.grid = dim3(std::max(1u, blocks_of(kept, kRun)), queries),
                                .threads = kThreads,
                                .shared_bytes = kRun * sizeof(std::uint64_t)};
  launch(sort_runs_kernel, sort_shape, stream, args, "launching the sort of results");
  if (args.last) return;

  args.to = lists.spare;
  args.to_stride = kept;
  for (args.run = kRun; args.run < kept; args.run *= kFanIn) {
    args.last = args.run * kFanIn >= kept;
    const launch_shape merge_shape{.grid = dim3(blocks_of(args.last ? k : kept, kThreads), queries),
                                   .threads = kThreads};
    launch(merge_runs_kernel, merge_shape, stream, args, "launching the merge of results");
    std::uint64_t* written = args.to;
    args.to = const_cast<std::uint64_t*>(args.from);
    args.from = written;
    std::swap(args.from_stride, args.to_stride);
  }
}

}  // namespace shortlist::cuda
