// Exact search for any number of queries at any dim: canonical scores on CUDA cores in tiles of rows x queries.
//
// Why it is fast: a thread owns 8 rows x 8 queries, so that 64 fused multiply-adds follow 10 loads from shared memory,
// and the order of the score's 128 partial sums costs no register beyond three sets of sums: lane class c = lane / 4
// owns the elements i with i mod 8 == c, group by group of eight, in bit-reversed order 0, 8, 4, 12, 2, ...; then
// the steps s = 64, 32, 16, 8 of the tree merge each finished group with one that is parked (two levels in registers,
// two, rarely touched, in shared memory) and s = 4, 2, 1 are three exchanges across the classes, which leave
// each lane with one row. The first step of a group starts from a constant zero, so nothing is ever cleared.
// Steps of a stage (one group, or a part of it where dim is large): await the thread's copies -> widen what is not
// fp32 -> barrier -> issue the copies of a later stage, of the next tile if need be -> multiply.
// End of a tile: score, key, compare with the query's least key, append to its list: one atomic per query and warp.
// Phases, lists and prunes: tiles_search.cu.
// Limit: 2 x rows x queries x dim flops, plus 127 adds a pair. At dim 768, 64 of 76 instructions of a step multiply,
// and copies, merges and the tile's end leave about 60 % of all instructions to multiply. Measured on an H200, before
// the teams took these shapes (1M x 768 fp32, k 100): 16 queries 1.96 ms, 64 queries 4.44, 1024 queries 69.8, which is
// 22 TFLOP/s. Block barriers, and two levels of the tree in shared memory, take what the teams gain.
// History: 4 x 8 a thread on 512 threads would be bound by shared memory (8 loads' time for 8 of arithmetic, against
// 12 for 16) -> 8 x 8 on 256 threads, run-time strides: 82 instructions a step, 80 a stage for copies -> strides at
// compile time, steps unrolled, copies at constant distances: 76 and 54.
#include <algorithm>

#include "core/score.hpp"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/element.cuh"
#include "cuda/device/score.cuh"
#include "cuda/flat/tiles_candidates.cuh"
#include "cuda/flat/tiles_score.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kClasses = 8;  // lanes that share a pair's partial sums
constexpr int kGroups = core::kPartialSums / kClasses;
constexpr int kThreadRows = 8;
constexpr int kThreadQueries = 8;
constexpr int kSums = kThreadRows * kThreadQueries;  // accumulators of a thread
constexpr int kWarpRows = kThreadRows * kWarp / kClasses;
constexpr int kThreads = 256;  // 255 registers each: all of a multiprocessor's
constexpr int kWarps = kThreads / kWarp;
constexpr int kParkedSlots = 2;  // merges that reach beyond the registers' two levels
constexpr std::int64_t kParkedBytes = std::int64_t{kParkedSlots} * kSums * kThreads * sizeof(float);
constexpr int kMaxStages = 6;     // more would hide no more latency
constexpr int kEnoughStages = 3;  // one computed, two under way: some 2,000 cycles ahead

/// How the block's warps tile rows x queries.
template <int TileQueries>
struct tile_shape {
  static constexpr int kQueries = TileQueries;
  static constexpr int kWarpsAcross = TileQueries / kThreadQueries;
  static constexpr int kRows = kWarps / kWarpsAcross * kWarpRows;
};

/// Where the four queries `unit` of class c lie among a step's, in units of 16 bytes: swizzled, so that the four
/// classes that a half-warp reads at once lie in different banks.
template <int TileQueries>
SHORTLIST_HOST_DEVICE constexpr int query_unit(int unit, int c) {
  if (TileQueries == 32) return unit ^ (2 * (c & 3));
  return unit ^ (2 * ((c >> 1) & 1));
}

struct tiles_args {
  const unsigned char* rows;  // of the phase
  std::int64_t row_stride_bytes;
  const float* row_inverse_norms;  // of the phase
  const float* queries;            // prepared: [query tiles, kGroups, steps, kClasses, tile queries]
  const float* query_inverse_norms;
  candidate_lists lists;
  std::uint32_t first_row;
  std::int32_t row_count;
  std::int32_t query_tiles;
  std::int32_t tiles;
  std::int32_t dim;
  std::int32_t steps;        // steps of a partial sum: ceil(dim / 128)
  std::int32_t stage_steps;  // steps of a stage
  std::int32_t group_stages;
  phase_kind phase;
  metric by;
};

/// How rows of a stored type come into shared memory.
template <element_type E>
struct row_copy {
  static constexpr bool kWidens = E != element_type::f32;
  static constexpr int kElementBytes = E == element_type::f32                             ? 4
                                       : (E == element_type::i8 || E == element_type::u8) ? 1
                                                                                          : 2;
  static constexpr int kGroupBytes = kClasses * kElementBytes;  // eight neighbouring elements
  static constexpr int kCopyBytes = kGroupBytes > 16 ? 16 : kGroupBytes;
  static constexpr int kCopies = kGroupBytes / kCopyBytes;  // copies a row and step

  static __device__ __forceinline__ void copy(std::uint32_t to, const void* from, bool real) {
    if constexpr (kCopyBytes == 16) {
      async_copy_16(to, from, real);
    } else {
      async_copy_8(to, from, real);
    }
  }
};

/// How a stage lies in shared memory: stored rows, then queries; and twice the rows once more where they are widened.
template <element_type E, class Shape>
struct stage_shape {
  static constexpr bool kWidens = row_copy<E>::kWidens;
  static constexpr int pitch(int steps) { return kClasses * steps; }  // floats from a row to the next
  static constexpr int wide_bytes(int steps) { return Shape::kRows * pitch(steps) * 4; }
  static constexpr int row_bytes(int steps) { return Shape::kRows * steps * row_copy<E>::kGroupBytes; }
  static constexpr int bytes(int steps) { return row_bytes(steps) + steps * kClasses * Shape::kQueries * 4; }
  static constexpr std::int64_t fixed_bytes(int steps) { return kParkedBytes + (kWidens ? 2 * wide_bytes(steps) : 0); }
  static constexpr int stages(int steps) {
    const std::int64_t fit = (kMaxSharedBytes - fixed_bytes(steps)) / bytes(steps);
    return static_cast<int>(fit < kMaxStages ? fit : kMaxStages);
  }
  static constexpr int most_steps() {
    int steps = 7;  // odd, so that four neighbouring rows lie in different banks
    while (stages(steps) < kEnoughStages) steps -= 2;
    return steps;
  }

  static constexpr int kSteps = most_steps();  // at most; an address is a constant away from the next
  static constexpr int kStages = stages(kSteps);
  static constexpr int kPitch = pitch(kSteps);
  static constexpr int kBytes = bytes(kSteps);
  static constexpr int kQueriesAt = row_bytes(kSteps);
  static constexpr std::int64_t kTotalBytes = fixed_bytes(kSteps) + static_cast<std::int64_t>(kStages) * kBytes;
  static_assert(kTotalBytes <= kMaxSharedBytes);
};

/// The bit-reversed order of the groups.
__device__ __forceinline__ int group_at(int turn) {
  return static_cast<int>(__brev(static_cast<unsigned>(turn)) >> 28);
}

struct prepare_args {
  query_batch batch;
  float* prepared;  // [query tiles, kGroups, steps, kClasses, tile queries]
  std::int32_t steps;
  std::int64_t total;  // floats
};

/// Lays queries out as the stages hold them, padded; one thread a float.
template <int TileQueries>
__global__ void __launch_bounds__(kThreads) prepare_queries_kernel(const __grid_constant__ prepare_args args) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= args.total) return;
  const int within = static_cast<int>(at % TileQueries);
  std::int64_t rest = at / TileQueries;
  const int c = static_cast<int>(rest % kClasses);
  rest /= kClasses;
  const int step = static_cast<int>(rest % args.steps);
  rest /= args.steps;
  const int group = group_at(static_cast<int>(rest % kGroups));
  const std::int64_t tile = rest / kGroups;
  const std::int64_t query = tile * TileQueries + 4 * query_unit<TileQueries>(within / 4, c) + within % 4;
  const std::int64_t element = std::int64_t{core::kPartialSums} * step + kClasses * group + c;
  const bool real = query < args.batch.count && element < args.batch.dim;
  args.prepared[at] = real ? args.batch.queries[query * args.batch.stride + element] : core::kQueryPadding;
}

/// A block's stages: which one is computed, which one is being fetched, and in which tile.
template <element_type E, class Shape>
class stage_ring {
  using rows_of = row_copy<E>;
  using stage_of = stage_shape<E, Shape>;
  static constexpr int kLanesAcross = Shape::kRows * rows_of::kCopies;  // threads that copy one step of all rows
  static constexpr int kStepLanes = kThreads / kLanesAcross;            // steps that are copied at once
  static_assert(kStepLanes >= 1 && kThreads % kLanesAcross == 0);

 public:
  __device__ stage_ring(const tiles_args& args, unsigned char* ring, float* widened)
      : args_(args),
        ring_(ring),
        ring_address_(shared_address(ring)),
        widened_(widened),
        fetch_tile_(static_cast<int>(blockIdx.x)) {
    begin_tile();
    for (int i = 0; i < stage_of::kStages - 1; i++) fetch();
  }

  /// Makes the next stage ready; all threads of the block.
  __device__ __forceinline__ void next() {
    async_wait<stage_of::kStages - 2>();
    unsigned char* stage = ring_ + compute_slot_ * stage_of::kBytes;
    queries_ = reinterpret_cast<const float*>(stage + stage_of::kQueriesAt);
    if constexpr (rows_of::kWidens) {
      parity_ ^= 1;
      float* wide = widened_ + parity_ * Shape::kRows * stage_of::kPitch;
      widen(stage, wide);
      rows_ = wide;
    } else {
      rows_ = reinterpret_cast<const float*>(stage);
    }
    compute_slot_ = compute_slot_ + 1 == stage_of::kStages ? 0 : compute_slot_ + 1;
    __syncthreads();  // the stage is there for all, and all have left the one that is overwritten now
    fetch();
  }

  __device__ __forceinline__ const float* rows() const { return rows_; }
  __device__ __forceinline__ const float* queries() const { return queries_; }

 private:
  __device__ __forceinline__ int my_row() const {
    return static_cast<int>(threadIdx.x) % kLanesAcross / rows_of::kCopies;
  }
  __device__ __forceinline__ int my_part() const { return static_cast<int>(threadIdx.x) % rows_of::kCopies; }
  __device__ __forceinline__ int my_step() const { return static_cast<int>(threadIdx.x) / kLanesAcross; }

  /// Points at this thread's row and at the queries of the tile that is fetched.
  __device__ __forceinline__ void begin_tile() {
    if (fetch_tile_ >= args_.tiles) return;
    const int row_tile = fetch_tile_ / args_.query_tiles;
    const int query_tile = fetch_tile_ - row_tile * args_.query_tiles;
    const int row = min(row_tile * Shape::kRows + my_row(), args_.row_count - 1);  // rows beyond are scored in vain
    row_ = args_.rows + row * args_.row_stride_bytes + my_part() * rows_of::kCopyBytes +
           my_step() * core::kPartialSums * rows_of::kElementBytes;
    fetch_queries_ = args_.queries + threadIdx.x * 4 +
                     static_cast<std::int64_t>(query_tile) * kGroups * args_.steps * kClasses * Shape::kQueries;
  }

  /// Issues the copies of the next stage, if there is one, and commits a group in any case.
  __device__ __forceinline__ void fetch() {
    if (fetch_tile_ < args_.tiles) {
      const std::uint32_t stage = ring_address_ + fetch_slot_ * stage_of::kBytes;
      const int first_step = fetch_part_ * args_.stage_steps;
      const int steps = min(args_.stage_steps, args_.steps - first_step);
      constexpr int kPartElements = rows_of::kCopyBytes / rows_of::kElementBytes;
      constexpr int kStepBytes = core::kPartialSums * rows_of::kElementBytes;
      const int element = kClasses * group_at(fetch_group_) + core::kPartialSums * first_step;
      const int left = args_.dim - element - my_part() * kPartElements;
      const int real_steps = (left + core::kPartialSums - 1) >> 7;  // beyond dim: zeros
      static_assert(core::kPartialSums == 1 << 7);
      const std::uint32_t to = kept(stage + (my_row() * stage_of::kSteps + my_step()) * rows_of::kGroupBytes +
                                    my_part() * rows_of::kCopyBytes);
      const unsigned char* from = kept(row_ + static_cast<std::int64_t>(element) * rows_of::kElementBytes);
#pragma unroll
      for (int i = 0; i < stage_of::kSteps; i += kStepLanes) {
        const int t = my_step() + i;
        if (t < steps) rows_of::copy(to + i * rows_of::kGroupBytes, from + i * kStepBytes, t < real_steps);
      }
      constexpr int kQueryCopies = kClasses * Shape::kQueries / 4;  // a step
      const int copies = steps * kQueryCopies - static_cast<int>(threadIdx.x);
      const std::uint32_t to_query = kept(stage + stage_of::kQueriesAt + threadIdx.x * 16);
#pragma unroll
      for (int i = 0; i < stage_of::kSteps * kQueryCopies; i += kThreads)
        if (i < copies) async_copy_16(to_query + i * 16, fetch_queries_ + i * 4, true);
      fetch_queries_ += steps * kClasses * Shape::kQueries;

      fetch_slot_ = fetch_slot_ + 1 == stage_of::kStages ? 0 : fetch_slot_ + 1;
      if (++fetch_part_ == args_.group_stages) {
        fetch_part_ = 0;
        if (++fetch_group_ == kGroups) {
          fetch_group_ = 0;
          fetch_tile_ += static_cast<int>(gridDim.x);
          begin_tile();
        }
      }
    }
    async_commit();
  }

  /// Widens what this very thread has copied. Steps past the stage's end hold old bytes that nobody reads.
  __device__ __forceinline__ void widen(const unsigned char* stage, float* wide) const {
    using quads = quad<E>;
    const unsigned char* from = stage + (my_row() * stage_of::kSteps + my_step()) * rows_of::kGroupBytes;
    float* to = wide + my_row() * stage_of::kPitch + my_step() * kClasses;
#pragma unroll
    for (int i = 0; i < stage_of::kSteps; i += kStepLanes) {
      if (my_step() + i >= args_.stage_steps) continue;
      const auto* raw = reinterpret_cast<const typename quads::raw*>(from + i * rows_of::kGroupBytes);
      auto* out = reinterpret_cast<float4*>(to + i * kClasses);
      out[0] = quads::widen(raw[0]);
      out[1] = quads::widen(raw[1]);
    }
  }

  const tiles_args& args_;
  unsigned char* ring_;
  std::uint32_t ring_address_;
  float* widened_;
  const float* rows_ = nullptr;
  const float* queries_ = nullptr;
  const unsigned char* row_ = nullptr;
  const float* fetch_queries_ = nullptr;
  int compute_slot_ = 0;
  int parity_ = 0;
  int fetch_slot_ = 0;
  int fetch_tile_;
  int fetch_group_ = 0;
  int fetch_part_ = 0;
};

/// One step of the thread's 64 partial sums.
template <bool L2, bool Fresh, int Pitch>
__device__ __forceinline__ void multiply(const float* rows, const float4* queries, float (&sums)[kSums]) {
  const float4 low = queries[0];
  const float4 high = queries[1];
  const float q[kThreadQueries] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  float x[kThreadRows];
#pragma unroll
  for (int r = 0; r < kThreadRows; r++) x[r] = rows[4 * r * Pitch];
#pragma unroll
  for (int r = 0; r < kThreadRows; r++) {
#pragma unroll
    for (int u = 0; u < kThreadQueries; u++) {
      float& sum = sums[r * kThreadQueries + u];
      const float before = Fresh ? 0.0f : sum;
      sum = L2 ? core::step_l2(q[u], x[r], before) : core::step_dot(q[u], x[r], before);
    }
  }
}

/// Where this thread reads in every stage.
struct thread_place {
  int row_at;    // floats
  int query_at;  // floats
};

/// The partial sums of one group for the thread's pairs.
template <element_type E, bool L2, class Shape>
__device__ __forceinline__ void sum_group(const tiles_args& args, stage_ring<E, Shape>& ring, thread_place place,
                                          float (&sums)[kSums]) {
  constexpr int kQueryStep = kClasses * Shape::kQueries / 4;
  constexpr int kPitch = stage_shape<E, Shape>::kPitch;
  ring.next();
  const float* rows = ring.rows() + place.row_at;
  const float4* queries = reinterpret_cast<const float4*>(ring.queries() + place.query_at);
  multiply<L2, true, kPitch>(rows, queries, sums);
  const int steps = min(args.stage_steps, args.steps);
#pragma unroll
  for (int t = 1; t < stage_shape<E, Shape>::kSteps; t++) {
    if (t >= steps) break;
    multiply<L2, false, kPitch>(rows + t * kClasses, queries + t * kQueryStep, sums);
  }
#pragma unroll 1
  for (int part = 1; part < args.group_stages; part++) {
    ring.next();
    rows = ring.rows() + place.row_at;
    queries = reinterpret_cast<const float4*>(ring.queries() + place.query_at);
    const int left = min(args.stage_steps, args.steps - part * args.stage_steps);
#pragma unroll 1
    for (int t = 0; t < left; t++, rows += kClasses, queries += kQueryStep)
      multiply<L2, false, kPitch>(rows, queries, sums);
  }
}

__device__ __forceinline__ void park(float4* slot, const float (&sums)[kSums]) {
#pragma unroll
  for (int v = 0; v < kSums / 4; v++)
    slot[v * kThreads] = make_float4(sums[4 * v], sums[4 * v + 1], sums[4 * v + 2], sums[4 * v + 3]);
}

__device__ __forceinline__ void merge_parked(const float4* slot, float (&sums)[kSums]) {
#pragma unroll
  for (int v = 0; v < kSums / 4; v++) {
    const float4 parked = slot[v * kThreads];
    sums[4 * v] += parked.x;
    sums[4 * v + 1] += parked.y;
    sums[4 * v + 2] += parked.z;
    sums[4 * v + 3] += parked.w;
  }
}

/// The tree's steps across the classes: s = 4, 2, 1 are lanes 16, 8, 4 apart. The rows spread over the lanes, so that
/// lane l ends with row l of the warp and its eight queries.
__device__ __forceinline__ void add_across_classes(const float (&sums)[kSums], int lane, float (&sum)[kThreadQueries]) {
  float half[kSums / 2];
  float quarter[kSums / 4];
#pragma unroll
  for (int v = 0; v < kSums / 2; v++) {
    const float keep = lane & 16 ? sums[v + kSums / 2] : sums[v];
    const float give = lane & 16 ? sums[v] : sums[v + kSums / 2];
    half[v] = keep + __shfl_xor_sync(kFullWarp, give, 16);
  }
#pragma unroll
  for (int v = 0; v < kSums / 4; v++) {
    const float keep = lane & 8 ? half[v + kSums / 4] : half[v];
    const float give = lane & 8 ? half[v] : half[v + kSums / 4];
    quarter[v] = keep + __shfl_xor_sync(kFullWarp, give, 8);
  }
#pragma unroll
  for (int v = 0; v < kThreadQueries; v++) {
    const float keep = lane & 4 ? quarter[v + kThreadQueries] : quarter[v];
    const float give = lane & 4 ? quarter[v] : quarter[v + kThreadQueries];
    sum[v] = keep + __shfl_xor_sync(kFullWarp, give, 4);
  }
}

/// Scores of the warp's 32 rows x 8 queries become keys, and enter the lists if they may.
template <class Shape>
__device__ __forceinline__ void finish_tile(const tiles_args& args, int tile, int warp, int lane,
                                            const float (&sums)[kSums]) {
  const int row_tile = tile / args.query_tiles;
  const int query_tile = tile - row_tile * args.query_tiles;
  const int row = row_tile * Shape::kRows + warp / Shape::kWarpsAcross * kWarpRows + lane;
  const int query = query_tile * Shape::kQueries + warp % Shape::kWarpsAcross * kThreadQueries;
  const bool there = row < args.row_count;
  float row_inverse_norm = 0.0f;
  if (args.by == metric::cosine && there) row_inverse_norm = args.row_inverse_norms[row];
  float sum[kThreadQueries];
  add_across_classes(sums, lane, sum);
  std::uint32_t keys[kThreadQueries];
#pragma unroll
  for (int u = 0; u < kThreadQueries; u++) {
    const float query_inverse_norm = args.by == metric::cosine ? args.query_inverse_norms[query + u] : 0.0f;
    keys[u] = core::score_key(score_of(sum[u], args.by, query_inverse_norm, row_inverse_norm), args.by);
  }
  enter_candidates(args.lists, args.phase, query, keys, row, args.first_row + static_cast<std::uint32_t>(row), there);
}

template <element_type E, bool L2, int TileQueries>
__global__ void __launch_bounds__(kThreads, 1) flat_tiles_kernel(const __grid_constant__ tiles_args args) {
  if (args.lists.gate.closed()) return;
  using shape = tile_shape<TileQueries>;
  using stage_of = stage_shape<E, shape>;
  unsigned char* memory = dynamic_shared();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  auto* parked = reinterpret_cast<float4*>(memory) + threadIdx.x;
  unsigned char* ring_memory = memory + kParkedBytes;
  auto* widened = reinterpret_cast<float*>(ring_memory + stage_of::kStages * stage_of::kBytes);

  const int c = lane / 4;
  const int first_row = warp / shape::kWarpsAcross * kWarpRows + lane % 4;
  const int unit = warp % shape::kWarpsAcross * (kThreadQueries / 4);
  const thread_place place{first_row * stage_of::kPitch + c, c * TileQueries + 4 * query_unit<TileQueries>(unit, c)};
  stage_ring<E, shape> ring(args, ring_memory, widened);

  float first[kSums];   // the even groups
  float second[kSums];  // the odd groups, and what comes of merging
  float pair[kSums];    // the parked sum of two groups
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x); tile < args.tiles; tile += static_cast<int>(gridDim.x)) {
#pragma unroll 1
    for (int turn = 0; turn < kGroups / 2; turn++) {
      sum_group<E, L2>(args, ring, place, first);
      sum_group<E, L2>(args, ring, place, second);
      if (turn % 2 == 0) {
#pragma unroll
        for (int v = 0; v < kSums; v++) pair[v] = first[v] + second[v];
        continue;
      }
#pragma unroll
      for (int v = 0; v < kSums; v++) second[v] = (first[v] + second[v]) + pair[v];
      float4* slots[kParkedSlots] = {parked, parked + kSums / 4 * kThreads};
      if (turn % 4 == 1) {
        park(slots[0], second);
      } else {
        merge_parked(slots[0], second);
        if (turn == 3) {
          park(slots[1], second);
        } else {
          merge_parked(slots[1], second);
        }
      }
    }
    finish_tile<shape>(args, tile, warp, lane, second);
  }
}

template <element_type E, int TileQueries>
void launch_shape_of(cudaStream_t stream, const score_phase& phase, int multiprocessors) {
  using shape = tile_shape<TileQueries>;
  const core::flat_corpus& corpus = *phase.corpus;
  tiles_args args{};
  args.rows = static_cast<const unsigned char*>(corpus.rows) + phase.first_row * corpus.row_stride_bytes;
  args.row_stride_bytes = corpus.row_stride_bytes;
  args.row_inverse_norms = corpus.inverse_norms ? corpus.inverse_norms + phase.first_row : nullptr;
  args.queries = phase.prepared;
  args.query_inverse_norms = phase.query_inverse_norms;
  args.lists = phase.lists;
  args.first_row = static_cast<std::uint32_t>(phase.first_row);
  args.row_count = static_cast<std::int32_t>(phase.row_count);
  args.query_tiles = (phase.lists.queries + TileQueries - 1) / TileQueries;
  args.tiles = (args.row_count + shape::kRows - 1) / shape::kRows * args.query_tiles;
  args.dim = static_cast<std::int32_t>(corpus.dim);
  args.steps = (args.dim + core::kPartialSums - 1) / core::kPartialSums;
  constexpr int kMost = stage_shape<E, shape>::kSteps;
  args.group_stages = (args.steps + kMost - 1) / kMost;
  args.stage_steps = (args.steps + args.group_stages - 1) / args.group_stages;  // parts of nearly one length
  args.group_stages = (args.steps + args.stage_steps - 1) / args.stage_steps;
  args.phase = phase.kind;
  args.by = corpus.metric;
  const launch_shape how{.grid = dim3(static_cast<unsigned>(std::min(args.tiles, multiprocessors))),
                         .threads = kThreads,
                         .shared_bytes = stage_shape<E, shape>::kTotalBytes};
  launch(
      corpus.metric == metric::l2 ? flat_tiles_kernel<E, true, TileQueries> : flat_tiles_kernel<E, false, TileQueries>,
      how, stream, args, "launching the tiles of the flat search");
}

template <element_type E>
void launch_type(cudaStream_t stream, const score_phase& phase, int tile_queries, int multiprocessors) {
  if (tile_queries == kWideTile) return launch_shape_of<E, kWideTile>(stream, phase, multiprocessors);
  launch_shape_of<E, kNarrowTile>(stream, phase, multiprocessors);
}

}  // namespace

void launch_tiles_prepare(cudaStream_t stream, const query_batch& batch, int tile_queries, float* prepared) {
  prepare_args args{};
  args.batch = batch;
  args.prepared = prepared;
  args.steps = (batch.dim + core::kPartialSums - 1) / core::kPartialSums;
  const std::int64_t padded = (batch.count + tile_queries - 1) / tile_queries * tile_queries;
  args.total = padded * args.steps * core::kPartialSums;
  const launch_shape how{.grid = dim3(static_cast<unsigned>((args.total + kThreads - 1) / kThreads)),
                         .threads = kThreads};
  launch(tile_queries == kWideTile ? prepare_queries_kernel<kWideTile> : prepare_queries_kernel<kNarrowTile>, how,
         stream, args, "launching the preparation of queries");
}

void launch_tiles_phase(cudaStream_t stream, const score_phase& phase, int tile_queries, int multiprocessors) {
  switch (phase.corpus->type) {
    case element_type::f32: return launch_type<element_type::f32>(stream, phase, tile_queries, multiprocessors);
    case element_type::f16: return launch_type<element_type::f16>(stream, phase, tile_queries, multiprocessors);
    case element_type::bf16: return launch_type<element_type::bf16>(stream, phase, tile_queries, multiprocessors);
    case element_type::i8: return launch_type<element_type::i8>(stream, phase, tile_queries, multiprocessors);
    case element_type::u8: return launch_type<element_type::u8>(stream, phase, tile_queries, multiprocessors);
  }
}

}  // namespace shortlist::cuda
