// Exact search for up to eight queries at once: rows stream through shared memory once, each is scored against all.
//
// Why it is fast: each warp owns a ring of stages that bulk copies fill, about 190 KB in flight on a multiprocessor,
// with no barrier between warps; eight queries cost less arithmetic than their rows cost memory.
// Steps of a warp: await a stage of four rows (or a part of them, where dim is large) -> for every 128 elements, four
// loads of rows and one of each query feed 16 multiply-adds a query -> refill the stage; at a row's end the tree, in
// which the pairs spread over the lanes -> score -> key -> enter the list if it reaches the query's least key.
// Phases, lists and prunes are those of tiles.cu; see tiles_search.cu.
// Limit: bytes of the rows over read bandwidth; measured share: see docs/kernels.md.
#include <algorithm>

#include "core/score.hpp"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/element.cuh"
#include "cuda/device/score.cuh"
#include "cuda/flat/tiles_score.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;  // eight queries need 128 sums a thread
constexpr int kWarps = kThreads / kWarp;
constexpr int kRows = 4;  // rows that a warp scores together: the tree's cost is shared
constexpr int kLaneElements = 4;
constexpr int kMaxStages = 4;  // of a warp; with 12 KB each, more would not fit
constexpr int kMinStages = 2;
constexpr std::int64_t kMaxQueryBytes = std::int64_t{96} * 1024;  // leaves more than half to the ring
constexpr std::int64_t kBarrierBytes = kWarps * kMaxStages * sizeof(std::uint64_t);

struct stream_args {
  const unsigned char* rows;  // of the phase
  std::int64_t row_stride_bytes;
  const float* row_inverse_norms;  // of the phase
  const float* query_inverse_norms;
  query_batch batch;
  candidate_lists lists;
  std::uint32_t first_row;
  std::int32_t row_count;
  std::int32_t steps;       // ceil(dim / 128)
  std::int32_t part_bytes;  // of a row in a stage; whole steps
  std::int32_t parts;       // stages that make four rows
  std::int32_t stages;
  phase_kind phase;
  metric by;
};

/// A warp's ring of stages. Stage after stage holds the next part of its next four rows.
class row_ring {
 public:
  __device__ row_ring(const stream_args& args, unsigned char* stages, std::uint64_t* barriers, int lane)
      : args_(args), stages_(stages), barriers_(barriers), leads_(lane == 0) {
    fetch_row_ = first_row();
    if (!leads_) return;
    for (int i = 0; i < args.stages; i++) barrier_init(&barriers[i], 1);
    barrier_init_fence();
    for (int i = 0; i < args.stages; i++) fetch(i);
  }

  __device__ __forceinline__ std::int64_t first_row() const {
    return kRows * (static_cast<std::int64_t>(threadIdx.x / kWarp) * gridDim.x + blockIdx.x);
  }
  static __device__ __forceinline__ std::int64_t row_step() {
    return static_cast<std::int64_t>(kRows) * kWarps * gridDim.x;
  }

  /// Waits for the stage that is next.
  __device__ __forceinline__ const unsigned char* wait() {
    barrier_wait(&barriers_[slot_], parity_);
    return stages_ + slot_ * kRows * args_.part_bytes;
  }

  /// Gives that stage back to be filled anew; the whole warp.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (leads_) fetch(slot_);
    if (++slot_ == args_.stages) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ __forceinline__ void fetch(int slot) {
    if (fetch_row_ >= args_.row_count) return;
    const int rows = static_cast<int>(min(static_cast<std::int64_t>(kRows), args_.row_count - fetch_row_));
    const std::int64_t stride = args_.row_stride_bytes;
    const std::int64_t offset = static_cast<std::int64_t>(fetch_part_) * args_.part_bytes;
    const auto bytes = static_cast<std::uint32_t>(min(static_cast<std::int64_t>(args_.part_bytes), stride - offset));
    unsigned char* to = stages_ + slot * kRows * args_.part_bytes;
    const unsigned char* from = args_.rows + fetch_row_ * stride + offset;
    barrier_expect(&barriers_[slot], rows * bytes);
    for (int r = 0; r < rows; r++) bulk_copy(to + r * args_.part_bytes, from + r * stride, bytes, &barriers_[slot]);
    if (++fetch_part_ == args_.parts) {
      fetch_part_ = 0;
      fetch_row_ += row_step();
    }
  }

  const stream_args& args_;
  unsigned char* stages_;
  std::uint64_t* barriers_;
  std::int64_t fetch_row_ = 0;
  int fetch_part_ = 0;
  int slot_ = 0;
  std::uint32_t parity_ = 0;
  bool leads_;
};

/// One step: 128 elements of four rows against all queries. The lane's sums: [row][query][element].
template <element_type E, bool L2, int Queries>
__device__ __forceinline__ void multiply(const unsigned char* rows, int row_pitch, const float4* queries,
                                         int query_pitch, float (&sums)[kRows * Queries * kLaneElements]) {
  using quads = quad<E>;
  float4 x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; r++)
    x[r] = quads::widen(*reinterpret_cast<const typename quads::raw*>(rows + r * row_pitch));
#pragma unroll
  for (int u = 0; u < Queries; u++) {
    const float4 q = queries[u * query_pitch];
#pragma unroll
    for (int r = 0; r < kRows; r++) step4<L2>(q, x[r], sums + (r * Queries + u) * kLaneElements);
  }
}

/// The tree. Lane l holds p[4l .. 4l+3], so s = 64 .. 4 are lanes 16 .. 1 apart: while there is more than one pair in a
/// lane, half of them move at each step; s = 2 and 1 stay in the lane.
template <int N, int Offset>
__device__ __forceinline__ float finish(const float (&values)[N], int lane) {
  if constexpr (Offset == 0) {
    static_assert(N == kLaneElements);
    return (values[0] + values[2]) + (values[1] + values[3]);
  } else if constexpr (N > kLaneElements) {
    float half[N / 2];
    halve_across_lanes<Offset>(values, half, lane);
    return finish<N / 2, Offset / 2>(half, lane);
  } else {
    float whole[N];
#pragma unroll
    for (int i = 0; i < N; i++) whole[i] = values[i] + __shfl_xor_sync(kFullWarp, values[i], Offset);
    return finish<N, Offset / 2>(whole, lane);
  }
}

template <element_type E, bool L2, int Queries>
__global__ void __launch_bounds__(kThreads, 1) flat_stream_kernel(const __grid_constant__ stream_args args) {
  if (args.lists.gate.closed()) return;
  constexpr int kPairs = kRows * Queries;
  constexpr int kPairLanes = kWarp / kPairs;  // lanes that end with the same pair
  constexpr int kStepBytes = core::kPartialSums / kLaneElements * static_cast<int>(sizeof(typename quad<E>::raw));
  unsigned char* memory = dynamic_shared();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int padded_dim = args.steps * core::kPartialSums;
  auto* queries = reinterpret_cast<float*>(memory + kBarrierBytes);
  unsigned char* rings = memory + kBarrierBytes + Queries * padded_dim * sizeof(float);
  row_ring ring(args, rings + static_cast<std::int64_t>(warp) * args.stages * kRows * args.part_bytes,
                reinterpret_cast<std::uint64_t*>(memory) + warp * kMaxStages, lane);

  for (int i = static_cast<int>(threadIdx.x); i < Queries * padded_dim; i += kThreads) {
    const int query = i / padded_dim;
    const int element = i - query * padded_dim;
    const bool real = query < args.batch.count && element < args.batch.dim;
    queries[i] = real ? args.batch.queries[query * args.batch.stride + element] : core::kQueryPadding;
  }
  const int my_query = lane / kPairLanes % Queries;
  const int my_row = lane / kPairLanes / Queries;
  const bool leads = lane % kPairLanes == 0 && my_query < args.batch.count;
  const std::uint32_t least_key = args.lists.least_keys[my_query];
  const float query_inverse_norm = args.query_inverse_norms[my_query];
  std::uint64_t* list = args.lists.keys + my_query * args.lists.capacity;
  unsigned same_query = 0;  // lanes that lead a pair of this lane's query
#pragma unroll
  for (int r = 0; r < kRows; r++) same_query |= 1u << (r * Queries + my_query) * kPairLanes;
  __syncthreads();

  const auto* lane_queries = reinterpret_cast<const float4*>(queries) + lane;
  for (std::int64_t first = ring.first_row(); first < args.row_count; first += row_ring::row_step()) {
    const std::int64_t row = first + my_row;
    const bool there = leads && row < args.row_count;
    float row_inverse_norm = 0.0f;
    if (args.row_inverse_norms && there) row_inverse_norm = args.row_inverse_norms[row];
    float sums[kPairs * kLaneElements] = {};
    int step = 0;
    for (int part = 0; part < args.parts; part++) {
      const unsigned char* rows = ring.wait() + lane * sizeof(typename quad<E>::raw);
      const std::int64_t left = args.row_stride_bytes - static_cast<std::int64_t>(part) * args.part_bytes;
      const int bytes = static_cast<int>(min(static_cast<std::int64_t>(args.part_bytes), left));
      int at = 0;
      for (; at + kStepBytes <= bytes; at += kStepBytes, step++)
        multiply<E, L2, Queries>(rows + at, args.part_bytes, lane_queries + step * kWarp, padded_dim / kLaneElements,
                                 sums);
      if (at + lane * static_cast<int>(sizeof(typename quad<E>::raw)) < bytes)  // beyond the stride lie old bytes
        multiply<E, L2, Queries>(rows + at, args.part_bytes, lane_queries + step * kWarp, padded_dim / kLaneElements,
                                 sums);
      ring.release();
    }
    const float sum = finish<kPairs * kLaneElements, kWarp / 2>(sums, lane);
    const std::uint32_t key = core::score_key(score_of(sum, args.by, query_inverse_norm, row_inverse_norm), args.by);
    const std::uint32_t position = args.first_row + static_cast<std::uint32_t>(row);
    if (args.phase == phase_kind::dense) {
      if (there) list[row] = core::row_key(key, position);
      continue;
    }
    const bool passes = there && key >= least_key;
    const unsigned passing = __ballot_sync(kFullWarp, passes);
    if (passing == 0) continue;
    const unsigned mine = passing & same_query;
    const int leader = mine ? __ffs(static_cast<int>(mine)) - 1 : lane;
    std::uint32_t base = 0;
    if (passes && lane == leader)
      base = atomicAdd(args.lists.counts + my_query, static_cast<std::uint32_t>(__popc(mine)));
    base = __shfl_sync(kFullWarp, base, leader);
    if (passes) list[base + __popc(mine & ((1u << lane) - 1u))] = core::row_key(key, position);
  }
}

/// Queries that a kernel is made for: the next power of two.
int kernel_queries(std::int64_t count) { return count <= 1 ? 1 : count <= 2 ? 2 : count <= 4 ? 4 : 8; }

std::int64_t query_bytes(std::int64_t queries, std::int64_t dim) {
  const std::int64_t padded_dim = (dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  return kernel_queries(queries) * padded_dim * static_cast<std::int64_t>(sizeof(float));
}

template <element_type E, int Queries>
void launch_queries(cudaStream_t stream, const score_phase& phase, int multiprocessors) {
  const core::flat_corpus& corpus = *phase.corpus;
  stream_args args{};
  args.rows = static_cast<const unsigned char*>(corpus.rows) + phase.first_row * corpus.row_stride_bytes;
  args.row_stride_bytes = corpus.row_stride_bytes;
  args.row_inverse_norms = corpus.inverse_norms ? corpus.inverse_norms + phase.first_row : nullptr;
  args.query_inverse_norms = phase.query_inverse_norms;
  args.batch = phase.batch;
  args.lists = phase.lists;
  args.first_row = static_cast<std::uint32_t>(phase.first_row);
  args.row_count = static_cast<std::int32_t>(phase.row_count);
  args.steps = (phase.batch.dim + core::kPartialSums - 1) / core::kPartialSums;
  args.phase = phase.kind;
  args.by = corpus.metric;

  // As few parts as leave every warp two stages.
  constexpr int kStepBytes = core::kPartialSums / kLaneElements * static_cast<int>(sizeof(typename quad<E>::raw));
  const std::int64_t fixed = kBarrierBytes + query_bytes(Queries, phase.batch.dim);
  const std::int64_t warp_bytes = (kMaxSharedBytes - fixed) / kWarps;
  for (int parts = 1;; parts++) {
    const int part_steps = (args.steps + parts - 1) / parts;
    args.part_bytes = part_steps * kStepBytes;
    args.parts = (args.steps + part_steps - 1) / part_steps;
    args.stages = static_cast<int>(
        std::min<std::int64_t>(kMaxStages, warp_bytes / (kRows * static_cast<std::int64_t>(args.part_bytes))));
    if (args.stages >= kMinStages) break;
  }
  const int quads = (args.row_count + kRows - 1) / kRows;
  const launch_shape how{
      .grid = dim3(static_cast<unsigned>(std::min(quads, multiprocessors))),
      .threads = kThreads,
      .shared_bytes = fixed + static_cast<std::int64_t>(kWarps) * args.stages * kRows * args.part_bytes};
  launch(corpus.metric == metric::l2 ? flat_stream_kernel<E, true, Queries> : flat_stream_kernel<E, false, Queries>,
         how, stream, args, "launching the stream of the flat search");
}

template <element_type E>
void launch_type(cudaStream_t stream, const score_phase& phase, int multiprocessors) {
  switch (kernel_queries(phase.batch.count)) {
    case 1: return launch_queries<E, 1>(stream, phase, multiprocessors);
    case 2: return launch_queries<E, 2>(stream, phase, multiprocessors);
    case 4: return launch_queries<E, 4>(stream, phase, multiprocessors);
    default: return launch_queries<E, 8>(stream, phase, multiprocessors);
  }
}

}  // namespace

bool stream_serves(std::int64_t queries, std::int64_t dim) {
  return queries <= kMaxStreamQueries && query_bytes(queries, dim) <= kMaxQueryBytes;
}

void launch_stream_phase(cudaStream_t stream, const score_phase& phase, int multiprocessors) {
  switch (phase.corpus->type) {
    case element_type::f32: return launch_type<element_type::f32>(stream, phase, multiprocessors);
    case element_type::f16: return launch_type<element_type::f16>(stream, phase, multiprocessors);
    case element_type::bf16: return launch_type<element_type::bf16>(stream, phase, multiprocessors);
    case element_type::i8: return launch_type<element_type::i8>(stream, phase, multiprocessors);
    case element_type::u8: return launch_type<element_type::u8>(stream, phase, multiprocessors);
  }
}

}  // namespace shortlist::cuda
