// The scores of a batch's candidates: targets for the filter, and at last the answer.
//
// Why it is fast: a query's candidates are cut in shared memory, which holds their keys; rows are scored four a warp,
// with all their loads in flight, by a cluster of blocks where there are few queries; the list never leaves the block
// between the scores and the sorted answer.
// Steps: cut to about the k best by upper ends -> their scores: at least k rows are as good as the worst of them, which
// is the target -> the scores of all other candidates that reach the target -> the k best, sorted.
// Limit: bytes of the rows that are scored over read bandwidth.
#include <algorithm>

#include "core/order.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/flat/certified_refine.hpp"
#include "cuda/flat/rescore.cuh"
#include "cuda/flat/results.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxCluster = 8;
constexpr std::int32_t kKeysOfMany = 6144;  // candidates in shared memory; as many as a sample has groups, or more
constexpr std::int32_t kKeysOfFew = 12288;  // where queries do not fill the GPU
constexpr std::uint32_t kSlackShare = 8;    // about the k best: up to an eighth more

struct refine_args {
  batch_memory memory;
  sample_plan sample;
  result_lists results;
  const unsigned char* rows;
  std::int64_t row_stride_bytes;
  const float* inverse_norms;
  const float* queries;
  std::int64_t query_stride;
  std::int32_t dim;
  std::int32_t kept;
  std::int32_t last;         // 0: the candidates are the sample's maxima
  std::int32_t sorted_room;  // keys, a power of two that holds `kept`
  std::int32_t room;         // keys in shared memory
  metric by;
};

struct alignas(16) refine_shared {
  std::uint64_t* keys;  // [args.room] of candidates; at last of scores
  select_scratch<kThreads> select;
  std::uint32_t smallest;
  std::uint32_t largest;
  std::uint32_t there;   // candidates
  std::uint32_t stored;  // places of `keys` that they lie in
  std::uint32_t entered;
  std::uint32_t worst_key;
  std::uint32_t overflow;
};

/// A query's candidates: keys in the order of upper ends or, in the sample, of estimates; positions below. They are
/// worked on in shared memory if they fit.
class candidate_keys {
 public:
  __device__ candidate_keys(const refine_args& args, refine_shared& shared, std::int64_t query)
      : args_(args), shared_(shared), query_(query) {}

  /// Finds how many there are, the smallest and the largest. @returns false if some are missing.
  __device__ bool load() {
    if (threadIdx.x == 0) {
      shared_.smallest = ~0u;
      shared_.largest = 0;
      shared_.there = 0;
      shared_.overflow = 0;
    }
    __syncthreads();
    std::uint32_t smallest = ~0u;
    std::uint32_t largest = 0;
    const auto enter = [&](std::uint64_t key, std::uint32_t place) {
      if (place < static_cast<std::uint32_t>(args_.room)) shared_.keys[place] = key;
      if (key == core::kNoRow) return;
      smallest = min(smallest, core::key_of(key));
      largest = max(largest, core::key_of(key));
    };
    if (args_.last) {
      load_segments(enter);
    } else {
      const std::uint32_t* maxima = args_.memory.maxima + query_ * args_.sample.groups;
      std::uint32_t there = 0;
#pragma unroll 4
      for (std::uint32_t i = threadIdx.x; i < args_.sample.groups; i += kThreads) {
        const std::uint32_t key = maxima[i];
        enter(key == 0 ? core::kNoRow : core::row_key(key, args_.sample.position_of(i, key)), i);
        there += key != 0;
      }
      there = __reduce_add_sync(kFullWarp, there);
      if (threadIdx.x % kWarp == 0) {
        atomicAdd(&shared_.there, there);
        shared_.stored = args_.sample.groups;
      }
    }
    smallest = __reduce_min_sync(kFullWarp, smallest);
    largest = __reduce_max_sync(kFullWarp, largest);
    if (threadIdx.x % kWarp == 0) {
      atomicMin(&shared_.smallest, smallest);
      atomicMax(&shared_.largest, largest);
    }
    __syncthreads();
    return shared_.overflow == 0;
  }

  /// A number that min(k, all) to k and some more keys reach.
  __device__ std::uint64_t cut(std::uint32_t k) {
    if (shared_.there <= k) return 1;
    if (k == 1) return best();
    if (!cached())
      return block_cut_radix<kThreads>([&](auto f) { visit([&](std::uint64_t& key) { f(key); }); }, k, shared_.select);
    int phase = 0;
    const std::uint64_t low = static_cast<std::uint64_t>(shared_.smallest) << 32;
    const std::uint64_t high = (static_cast<std::uint64_t>(shared_.largest) << 32) | ~0u;
    return search_cut(low, shared_.there, high, k, k / kSlackShare, [&](std::uint64_t least) {
      std::uint32_t count = 0;
      visit([&](std::uint64_t& key) { count += key >= least; });
      return block_sum(count, shared_.select, phase);
    });
  }

  /// Moves those that reach the cut to the list of scores, behind `scored` of them. @returns its new length, which may
  /// exceed the capacity: then the list is not complete.
  __device__ std::uint32_t move(std::uint64_t cut, std::uint32_t scored) {
    const query_lists& to = args_.memory.scored;
    if (threadIdx.x == 0) shared_.entered = scored;
    __syncthreads();
    visit([&](std::uint64_t& key) {
      if (key < cut || key == core::kNoRow) return;
      const std::uint32_t place = atomicAdd(&shared_.entered, 1u);
      if (place < to.capacity) to.keys[query_ * to.capacity + place] = key;
      key = core::kNoRow;
    });
    __syncthreads();
    return shared_.entered;
  }

 private:
  /// The largest key. Uses up shared_.smallest.
  __device__ std::uint64_t best() {
    std::uint32_t position = 0;  // of the largest keys, as its low word has it
    visit([&](std::uint64_t& key) {
      if (core::key_of(key) == shared_.largest) position = max(position, static_cast<std::uint32_t>(key));
    });
    position = __reduce_max_sync(kFullWarp, position);
    __syncthreads();
    if (threadIdx.x == 0) shared_.smallest = 0;
    __syncthreads();
    if (threadIdx.x % kWarp == 0) atomicMax(&shared_.smallest, position);
    __syncthreads();
    return static_cast<std::uint64_t>(shared_.largest) << 32 | shared_.smallest;
  }

  static constexpr int kSegmentsInFlight = 8;

  __device__ bool cached() const { return shared_.stored <= static_cast<std::uint32_t>(args_.room); }

  /// Calls enter(key, place) for every key of the query's segments. A warp takes 32 segments at a time, one a lane, and
  /// reads several of them at once: most are shorter than a warp is wide.
  template <class Enter>
  __device__ __forceinline__ void load_segments(Enter enter) {
    const candidate_segments& from = args_.memory.candidates;
    const int lane = threadIdx.x % kWarp;
    for (std::int32_t first = threadIdx.x / kWarp * kWarp; first < from.segments; first += kThreads) {
      const bool real = first + lane < from.segments;
      std::uint32_t n = real ? from.counts[query_ * from.segments + first + lane] : 0;
      if (n > static_cast<std::uint32_t>(from.capacity)) {
        shared_.overflow = 1;
        n = 0;  // none of the query's are read
      }
      std::uint32_t place = running_sum(n);
      std::uint32_t begin = 0;
      if (lane == kWarp - 1) begin = atomicAdd(&shared_.there, place);
      place += __shfl_sync(kFullWarp, begin, kWarp - 1) - n;
#pragma unroll 1
      for (int s = 0; s < kWarp; s += kSegmentsInFlight) {
        std::uint64_t keys[kSegmentsInFlight];
        std::uint32_t counts[kSegmentsInFlight];
        std::uint32_t places[kSegmentsInFlight];
#pragma unroll
        for (int i = 0; i < kSegmentsInFlight; i++) {
          counts[i] = __shfl_sync(kFullWarp, n, s + i);
          places[i] = __shfl_sync(kFullWarp, place, s + i);
          if (lane < counts[i]) keys[i] = segment_at(first + s + i)[lane];
        }
#pragma unroll
        for (int i = 0; i < kSegmentsInFlight; i++) {
          if (lane < counts[i]) enter(keys[i], places[i] + lane);
          for (std::uint32_t more = lane + kWarp; more < counts[i]; more += kWarp)
            enter(segment_at(first + s + i)[more], places[i] + more);
        }
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) shared_.stored = shared_.there;
  }

  __device__ std::uint64_t* segment_at(std::int32_t segment) const {
    const candidate_segments& from = args_.memory.candidates;
    return from.keys + (query_ * from.segments + segment) * from.capacity;
  }

  /// Calls f(key) for this thread's share; the key may be replaced by kNoRow. The sample always fits.
  template <class F>
  __device__ __forceinline__ void visit(F&& f) const {
    if (cached()) {
      const std::uint32_t n = shared_.stored;
#pragma unroll 4
      for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) f(shared_.keys[i]);
      return;
    }
    const candidate_segments& from = args_.memory.candidates;
    for (std::int32_t segment = threadIdx.x / kWarp; segment < from.segments; segment += kWarps) {
      std::uint64_t* keys = segment_at(segment);
      const std::uint32_t n = from.counts[query_ * from.segments + segment];
      for (std::uint32_t i = threadIdx.x % kWarp; i < n; i += kWarp) f(keys[i]);
    }
  }

  const refine_args& args_;
  refine_shared& shared_;
  std::int64_t query_;
};

/// Gives the rows of scored[first, last) their scores; all blocks of the cluster. Known to all of them after the next
/// cluster_sync, as is the worst in the first block.
template <element_type E, bool L2>
__device__ __forceinline__ void score_rows(const refine_args& args, std::int64_t query, std::uint32_t first,
                                           std::uint32_t last, const float* query_vector, refine_shared& shared) {
  std::uint64_t* list = args.memory.scored.keys + query * args.memory.scored.capacity;
  const float query_inverse_norm = args.memory.terms[query].inverse_norm;
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t warps = cluster_size() * kWarps;
  for (std::uint32_t at = first + (cluster_rank() * kWarps + threadIdx.x / kWarp); at < last;
       at += kRescoredRows * warps) {
    const unsigned char* rows[kRescoredRows];
    std::uint32_t positions[kRescoredRows];
#pragma unroll
    for (int r = 0; r < kRescoredRows; r++) {
      positions[r] = core::position_of(__ldcg(list + min(at + r * warps, last - 1)));
      rows[r] = args.rows + positions[r] * args.row_stride_bytes;
    }
    const float sum = sum_of_rows<E, L2>(rows, args.row_stride_bytes, query_vector, lane);
    const int mine = finished_row<kWarp, kRescoredRows>(lane);
    if (leads_finished_row<kWarp, kRescoredRows>(lane) && at + mine * warps < last) {
      std::uint32_t position = positions[0];
#pragma unroll
      for (int r = 1; r < kRescoredRows; r++) position = mine == r ? positions[r] : position;
      const float inverse_norm = args.by == metric::cosine ? args.inverse_norms[position] : 0.0f;
      const std::uint32_t key = core::score_key(score_of(sum, args.by, query_inverse_norm, inverse_norm), args.by);
      list[at + mine * warps] = core::row_key(key, position);
      atomicMin(of_block(&shared.worst_key, 0), key);
    }
  }
}

/// Sorts the k best of a query's scores and writes them. One block.
__device__ void write_best(const refine_args& args, std::int64_t query, std::uint32_t n, refine_shared& shared,
                           std::uint64_t* sorted) {
  const std::uint64_t* list = args.memory.scored.keys + query * args.memory.scored.capacity;
  const std::uint32_t k = args.kept;
  const bool fits = n <= static_cast<std::uint32_t>(args.room);
  const auto visit = [&](auto f) {
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) f(fits ? shared.keys[i] : __ldcg(list + i));
  };
  if (threadIdx.x == 0) shared.entered = 0;
  if (fits) {
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) shared.keys[i] = __ldcg(list + i);
  }
  for (int i = threadIdx.x; i < args.sorted_room; i += kThreads) sorted[i] = core::kNoRow;
  __syncthreads();
  const std::uint64_t cut = n <= k ? 1
                            : fits ? block_cut<kThreads>(shared.keys, n, k, 0, shared.select)
                                   : block_cut_radix<kThreads>(visit, k, shared.select);
  visit([&](std::uint64_t key) {
    if (key >= cut) sorted[atomicAdd(&shared.entered, 1u)] = key;
  });
  __syncthreads();
  const auto write = [&](std::uint32_t rank, std::uint64_t key) { args.results.write(query, rank, key); };
  if (k <= kThreads) {
    rank_by_counting<kThreads>(sorted, k, write);
  } else {
    block_sort<kThreads>(sorted, args.sorted_room);
    for (std::uint32_t i = threadIdx.x; i < k; i += kThreads) write(i, sorted[i]);
  }
  for (std::int64_t i = k + static_cast<std::int64_t>(threadIdx.x); i < args.results.k; i += kThreads)
    args.results.pad(query, i);
}

/// One query a cluster.
template <element_type E, bool L2>
__global__ void __launch_bounds__(kThreads) refine_kernel(const __grid_constant__ refine_args args) {
  auto& shared = *reinterpret_cast<refine_shared*>(dynamic_shared());
  auto* keys = reinterpret_cast<std::uint64_t*>(dynamic_shared() + sizeof(refine_shared));
  std::uint64_t* sorted = keys + args.room;
  auto* query_vector = reinterpret_cast<float*>(sorted + (args.last ? args.sorted_room : 0));
  const std::int64_t query = blockIdx.x / cluster_size();
  const batch_memory& memory = args.memory;
  query_state& state = memory.states[query];
  const bool leads = cluster_rank() == 0;
  const std::uint32_t k = args.kept;
  candidate_keys candidates(args, shared, query);
  const auto scored_now = [&] { return *const_cast<volatile std::uint32_t*>(&state.scored); };

  const int padded = (args.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  for (int i = threadIdx.x; i < padded; i += kThreads)
    query_vector[i] = i < args.dim ? args.queries[query * args.query_stride + i] : core::kQueryPadding;
  if (threadIdx.x == 0) {
    shared.keys = keys;
    shared.worst_key = ~0u;
  }
  __syncthreads();

  if (leads && !state.in_full) {
    const bool is_complete = candidates.load();
    const std::uint32_t moved = is_complete ? candidates.move(candidates.cut(k), 0) : 0;
    if (threadIdx.x == 0) {
      state.scored = moved;
      state.in_full = !is_complete;
    }
  }
  cluster_sync();
  const bool in_full = *const_cast<volatile std::uint32_t*>(&state.in_full) != 0;
  const std::uint32_t enough = in_full ? 0 : scored_now();
  score_rows<E, L2>(args, query, 0, enough, query_vector, shared);
  cluster_sync();
  const std::uint32_t target_key = leads && enough >= k ? shared.worst_key : core::kNanKey;
  if (!args.last) {
    if (!leads || threadIdx.x != 0) return;
    if (in_full) {
      memory.weights[query] = weights_of_none();
    } else if (target_key != core::kNanKey) {
      const float target = core::from_ascending_key(target_key);
      memory.targets[query] = target;
      memory.weights[query].target = target_weight(args.by, memory.terms[query], target);
    }
    return;
  }

  if (!in_full && leads) {
    const std::uint32_t all = candidates.move(static_cast<std::uint64_t>(target_key) << 32, enough);
    if (threadIdx.x == 0) state.scored = all;
  }
  cluster_sync();
  const std::uint32_t all = scored_now();
  const bool is_answered = !in_full && all <= memory.scored.capacity;
  score_rows<E, L2>(args, query, enough, is_answered ? all : enough, query_vector, shared);
  cluster_sync();
  if (!leads) return;
  if (is_answered) write_best(args, query, all, shared, sorted);
  if (threadIdx.x != 0) return;
  if (is_answered) {
    atomicAdd(&memory.counters->certified_queries, 1ull);
    atomicAdd(&memory.counters->rescored, static_cast<unsigned long long>(all));
  } else {
    state.in_full = 1;
    atomicAdd(&memory.counters->full_queries, 1ull);
  }
}

template <element_type E>
void launch_type(cudaStream_t stream, const refine_args& args, const launch_shape& shape) {
  launch(args.by == metric::l2 ? refine_kernel<E, true> : refine_kernel<E, false>, shape, stream, args,
         "launching the scores of candidates");
}

}  // namespace

void launch_refine(cudaStream_t stream, const batch_memory& memory, const core::flat_corpus& corpus,
                   const core::flat_request& request, const sample_plan& sample, bool last, int multiprocessors) {
  refine_args args{};
  args.memory = memory;
  args.sample = sample;
  args.results = {corpus.ids, request.scores, request.ids, request.k, corpus.metric};
  args.rows = static_cast<const unsigned char*>(corpus.rows);
  args.row_stride_bytes = corpus.row_stride_bytes;
  args.inverse_norms = corpus.inverse_norms;
  args.queries = request.queries;
  args.query_stride = request.query_stride;
  args.dim = static_cast<std::int32_t>(corpus.dim);
  args.kept = static_cast<std::int32_t>(std::min(request.k, corpus.count));
  args.last = last;
  args.sorted_room = 2;
  while (args.sorted_room < args.kept) args.sorted_room *= 2;
  args.room = 2 * request.query_count <= multiprocessors ? kKeysOfFew : kKeysOfMany;
  args.by = corpus.metric;

  int cluster = 1;  // two blocks of other queries share a multiprocessor with each
  while (cluster < kMaxCluster && cluster * request.query_count <= multiprocessors) cluster *= 2;
  const std::int64_t padded = (corpus.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  const launch_shape shape{
      .grid = dim3(static_cast<unsigned>(request.query_count * cluster)),
      .threads = kThreads,
      .shared_bytes = static_cast<std::int64_t>(sizeof(refine_shared)) +
                      (args.room + (last ? args.sorted_room : 0)) * static_cast<std::int64_t>(sizeof(std::uint64_t)) +
                      padded * static_cast<std::int64_t>(sizeof(float)),
      .cluster = cluster};
  switch (corpus.type) {
    case element_type::f16: return launch_type<element_type::f16>(stream, args, shape);
    case element_type::bf16: return launch_type<element_type::bf16>(stream, args, shape);
    default: return launch_type<element_type::f32>(stream, args, shape);
  }
}

}  // namespace shortlist::cuda
