// Exact search for nine queries and more, at dims up to 1,024: rows stream past queries that stay in shared memory.
//
// Why it is fast: a warp scores 8 rows x 8 queries with one element of 32 a lane, so that 64 multiply-adds follow ten
// loads from shared memory, rows come by bulk copies, and no block barrier is ever met. The order of the score's 128
// partial sums: lane l owns the elements i with i mod 32 == l, in four groups of which only three sets of sums are
// alive (0 + 2 is kept while 1 and 3 are summed): s = 64 and 32; then s = 16 .. 1 are exchanges across the lanes in
// which the pairs spread, the queries first: each lane meets its queries in an order of its own, made when they were
// staged, in which those that it gives away always come last, so that nothing is selected.
// Steps: the block's queries -> shared memory, once. A team of warps, one for every eight queries, takes a stage of
// eight rows: await it -> multiply -> the last warp of the team to leave has the slot filled anew -> tree, keys, lists.
// Blocks that hold different queries read the same rows at about the same time, once from memory and then from L2.
// Phases, lists and prunes are those of tiles.cu; see tiles_search.cu.
// Limit: 2 x rows x queries x dim flops, and 127 adds a pair: 57 TFLOP/s at dim 768 and 1.98 GHz. Measured on an H200:
// 34, which is 0.85 ms for 16 queries over 1M x 768, 2.9 for 64, 45.7 for 1,024; the rows' bytes alone would take 0.66.
// What the profiler says: 73 % of the issue slots are used, 68 % of them multiply; most of the rest is lost to register
// banks (a third of the multiply-adds find two operands in one bank) and to the tree, in which latency shows.
// History, with what each design gave for 1,024 queries: docs/kernels.md.
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

constexpr int kThreads = 256;  // 255 registers each: all of a multiprocessor's
constexpr int kWarps = kThreads / kWarp;
constexpr int kRows = 8;         // of a stage
constexpr int kWarpQueries = 8;  // of a warp
constexpr int kSums = kRows * kWarpQueries;
constexpr int kQueryLanes = kWarp / kWarpQueries;  // lanes that end with the same query
constexpr int kQueryQuads = kWarpQueries / 4;      // 16-byte loads of a lane's queries
constexpr int kGroups = core::kPartialSums / kWarp;
constexpr int kLaneRows = 2;  // finished sums that a lane holds, of one query
constexpr int kMaxSlots = 16;
constexpr int kMaxSteps = 8;          // of a partial sum: dim <= 1024
constexpr int kMinSharedStages = 16;  // a multiprocessor: with fewer, left-over blocks would not pay

struct team_args {
  const unsigned char* rows;  // of the phase
  std::int64_t row_stride_bytes;
  const float* row_inverse_norms;  // of the phase
  const float* query_inverse_norms;
  query_batch batch;
  candidate_lists lists;
  std::uint32_t first_row;
  std::int32_t row_count;
  std::int32_t steps;         // of a partial sum: ceil(dim / 128)
  std::int32_t query_groups;  // of a block, and so warps of a team
  std::int32_t query_tiles;
  std::int32_t slots;
  phase_kind phase;
  metric by;
};

/// The state of the slots, ahead of queries and rows in shared memory.
struct slot_states {
  std::uint64_t arrived[kMaxSlots];    // completes when the slot's rows are there
  std::uint64_t left[kMaxSlots];       // completes when all warps of the team have read them
  std::int32_t filled_for[kMaxSlots];  // the stage that a slot has last been asked to hold
  std::int32_t claimed[kMaxSlots];     // the same, before it is asked
};

template <element_type E>
struct stored {
  using type = float;
  static __device__ __forceinline__ float widen(float value) { return value; }
};
template <>
struct stored<element_type::f16> {
  using type = __half;
  static __device__ __forceinline__ float widen(__half value) { return __half2float(value); }
};
template <>
struct stored<element_type::bf16> {
  using type = bfloat16;
  static __device__ __forceinline__ float widen(bfloat16 value) { return core::widen(value); }
};
template <>
struct stored<element_type::i8> {
  using type = std::int8_t;
  static __device__ __forceinline__ float widen(std::int8_t value) { return core::widen(value); }
};
template <>
struct stored<element_type::u8> {
  using type = std::uint8_t;
  static __device__ __forceinline__ float widen(std::uint8_t value) { return core::widen(value); }
};

/// Which query stands at a lane's place: the exchanges at lane distances from 16 down to kQueryLanes halve the places.
__device__ __forceinline__ int query_at(int place, int lane) { return place ^ (lane / kQueryLanes); }

/// A lane's share of 32 elements of eight rows and eight queries.
struct operands {
  float x[kRows];
  float4 q[kQueryQuads];
};

/// Where a lane reads: its elements of a stage's rows and of its warp's queries.
template <element_type E>
struct lane_place {
  const typename stored<E>::type* rows;
  const float4* queries;  // [steps, kGroups, kQueryQuads, kWarp]
};

/// Elements from a staged row to the next, known to the compiler: every load of a step is a constant away from one
/// address. Steps is a kernel's number of steps, or 0 for one that is told at run time.
template <int Steps>
inline constexpr int kPitch = (Steps > 0 ? Steps : kMaxSteps) * core::kPartialSums;

template <element_type E, int Steps>
__device__ __forceinline__ void load(operands& to, const lane_place<E>& at, int step) {
#pragma unroll
  for (int v = 0; v < kQueryQuads; v++) to.q[v] = at.queries[(step * kGroups * kQueryQuads + v) * kWarp];
#pragma unroll
  for (int r = 0; r < kRows; r++) to.x[r] = stored<E>::widen(at.rows[step * core::kPartialSums + r * kPitch<Steps>]);
}

template <bool L2, bool Fresh>
__device__ __forceinline__ void multiply(const operands& with, float (&sums)[kSums]) {
#pragma unroll
  for (int r = 0; r < kRows; r++) {
#pragma unroll
    for (int u = 0; u < kWarpQueries; u++) {
      const float4& quad = with.q[u / 4];
      const float q = u % 4 == 0 ? quad.x : u % 4 == 1 ? quad.y : u % 4 == 2 ? quad.z : quad.w;
      float& sum = sums[u * kRows + r];
      const float before = Fresh ? 0.0f : sum;
      sum = L2 ? core::step_l2(q, with.x[r], before) : core::step_dot(q, with.x[r], before);
    }
  }
}

/// The partial sums of one group: a step's loads are under way while the step before it is multiplied.
template <element_type E, bool L2, int Steps>
__device__ __forceinline__ void sum_group(lane_place<E> at, int group, int steps, float (&sums)[kSums]) {
  at.rows += group * kWarp;
  at.queries += group * kQueryQuads * kWarp;
  operands turns[2];
  load<E, Steps>(turns[0], at, 0);
#pragma unroll
  for (int step = 0; step < (Steps > 0 ? Steps : kMaxSteps); step++) {
    if (Steps == 0 ? step + 1 < steps : step + 1 < Steps) load<E, Steps>(turns[(step + 1) % 2], at, step + 1);
    if (step == 0) {
      multiply<L2, true>(turns[0], sums);
    } else {
      multiply<L2, false>(turns[step % 2], sums);
    }
    if (Steps == 0 && step + 1 == steps) break;
  }
}

/// The tree's steps across the lanes, s = 16 .. 1. While there is more than one query, they spread over the lanes, with
/// places in the order of query_at(); then the rows. A lane ends with two rows, the first of which is
/// kLaneRows (lane mod kQueryLanes), of query lane / kQueryLanes.
template <int N, int Offset>
__device__ __forceinline__ void add_across_team_lanes(const float (&sums)[N], int lane, float (&finished)[kLaneRows]) {
  if constexpr (Offset == 0) {
    finished[0] = sums[0];
    finished[1] = sums[1];
  } else {
    float half[N / 2];
    if constexpr (N > kRows) {
#pragma unroll
      for (int v = 0; v < N / 2; v++) half[v] = sums[v] + __shfl_xor_sync(kFullWarp, sums[v + N / 2], Offset);
    } else {
      halve_across_lanes<Offset>(sums, half, lane);
    }
    add_across_team_lanes<N / 2, Offset / 2>(half, lane, finished);
  }
}

/// Stages of one query tile: stage i of them is stage first + i x step of the phase.
struct segment {
  int query_tile;
  int first;
  int step;
  int count;
};

/// How stages and query tiles are shared among blocks. Block b holds query tile b mod tiles, and the blocks of one tile
/// take turns at the stages: all tiles read the same rows at about the same time. Blocks that are left over take the
/// last stages of every tile, tile after tile.
class block_plan {
 public:
  __device__ block_plan(const team_args& args)
      : tiles_(args.query_tiles),
        turns_(static_cast<int>(gridDim.x) / args.query_tiles),
        stages_((args.row_count + kRows - 1) / kRows) {
    const int regular = turns_ * tiles_;
    const int extra = static_cast<int>(gridDim.x) - regular;
    shared_ = static_cast<int>(static_cast<std::int64_t>(stages_) * regular / static_cast<int>(gridDim.x));
    const int block = static_cast<int>(blockIdx.x);
    if (block < regular) return;
    const std::int64_t left = static_cast<std::int64_t>(stages_ - shared_) * tiles_;
    next_ = left * (block - regular) / extra;
    end_ = left * (block - regular + 1) / extra;
  }

  /// The block's next segment, if there is one.
  __device__ bool next(segment& to) {
    const int block = static_cast<int>(blockIdx.x);
    if (block < turns_ * tiles_) {
      if (next_ > 0) return false;
      next_ = 1;
      const int turn = block / tiles_;
      to = {block % tiles_, turn, turns_, (shared_ - turn + turns_ - 1) / turns_};
      return to.count > 0;
    }
    if (next_ >= end_) return false;
    const int left = stages_ - shared_;
    const int tile = static_cast<int>(next_ / left);
    const int from = static_cast<int>(next_ - static_cast<std::int64_t>(tile) * left);
    const int count = static_cast<int>(min(end_ - next_, static_cast<std::int64_t>(left - from)));
    next_ += count;
    to = {tile, shared_ + from, 1, count};
    return true;
  }

 private:
  int tiles_;
  int turns_;
  int stages_;
  int shared_;  // stages that the regular blocks take
  std::int64_t next_ = 0;
  std::int64_t end_ = 0;
};

/// Lays a tile's queries out as the warps read them; all threads of the block.
__device__ __forceinline__ void stage_queries(const team_args& args, int first_query, int steps, float4* queries) {
  const int group_quads = steps * kGroups * kQueryQuads * kWarp;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < args.query_groups * group_quads; i += kThreads) {
    const int group = i / group_quads;
    const int rest = i - group * group_quads;
    const int element = rest / (kQueryQuads * kWarp) * kWarp + rest % kWarp;
    const int place = rest / kWarp % kQueryQuads * 4;
    float q[4];
#pragma unroll
    for (int p = 0; p < 4; p++) {
      const int query = first_query + group * kWarpQueries + query_at(place + p, rest % kWarp);
      const bool real = query < args.batch.count && element < args.batch.dim;
      q[p] = real ? __ldg(args.batch.queries + query * args.batch.stride + element) : core::kQueryPadding;
    }
    queries[i] = make_float4(q[0], q[1], q[2], q[3]);
  }
}

/// Two finished rows of a query enter its list, if they may; a query's lanes are neighbours.
__device__ __forceinline__ void enter_lane_rows(const candidate_lists& lists, phase_kind phase, int query, int lane,
                                                const std::uint32_t (&keys)[kLaneRows], const bool (&passes)[kLaneRows],
                                                int row, std::uint32_t position) {
  std::uint64_t* list = lists.keys + query * lists.capacity;
  if (phase == phase_kind::dense) {
#pragma unroll
    for (int r = 0; r < kLaneRows; r++)
      if (passes[r]) list[row + r] = core::row_key(keys[r], position + r);
    return;
  }
  if (!__any_sync(kFullWarp, passes[0] || passes[1])) return;
  const int leader = lane / kQueryLanes * kQueryLanes;
  const unsigned same_query = ((1u << kQueryLanes) - 1u) << leader;
  const unsigned lower = (1u << lane) - 1u;
  const unsigned even = __ballot_sync(kFullWarp, passes[0]) & same_query;
  const unsigned odd = __ballot_sync(kFullWarp, passes[1]) & same_query;
  std::uint32_t base = 0;
  if (lane == leader && (even | odd) != 0)
    base = atomicAdd(lists.counts + query, static_cast<std::uint32_t>(__popc(even) + __popc(odd)));
  base = __shfl_sync(kFullWarp, base, leader);
  if (passes[0]) list[base + __popc(even & lower)] = core::row_key(keys[0], position);
  if (passes[1]) list[base + __popc(even) + __popc(odd & lower)] = core::row_key(keys[1], position + 1);
}

/// The stage that a slot holds or awaits; another warp may change it at any time.
__device__ __forceinline__ int stage_of(const slot_states& slots, int slot) {
  return *const_cast<const volatile std::int32_t*>(&slots.filled_for[slot]);
}

template <element_type E, bool L2, int Steps>
__global__ void __launch_bounds__(kThreads, 1) flat_team_kernel(const __grid_constant__ team_args args) {
  if (args.lists.gate.closed()) return;
  using element = typename stored<E>::type;
  constexpr int kPitchBytes = kPitch<Steps> * static_cast<int>(sizeof(element));
  constexpr int kStageBytes = kRows * kPitchBytes;
  unsigned char* memory = dynamic_shared();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int team = warp / args.query_groups;
  const int teams = kWarps / args.query_groups;
  const int my_group = warp - team * args.query_groups;
  const int steps = Steps > 0 ? Steps : args.steps;
  auto& slots = *reinterpret_cast<slot_states*>(memory);
  auto* queries = reinterpret_cast<float4*>(memory + sizeof(slot_states));  // [groups, steps, kGroups, quads, kWarp]
  const int group_quads = steps * kGroups * kQueryQuads * kWarp;
  unsigned char* stages = memory + sizeof(slot_states) + args.query_groups * group_quads * sizeof(float4);

  if (args.row_stride_bytes != kPitchBytes) {  // what no copy writes stays zero
    for (int i = static_cast<int>(threadIdx.x); i < args.slots * kStageBytes / 16; i += kThreads)
      reinterpret_cast<uint4*>(stages)[i] = make_uint4(0, 0, 0, 0);
    async_fence();
  }
  block_plan plan(args);
  segment mine{};
  for (bool again = false; plan.next(mine); again = true) {
    const auto first_row_of = [&](int stage) { return (mine.first + stage * mine.step) * kRows; };
    const auto fill = [&](int stage, int slot) {
      const int first = first_row_of(stage);
      const int rows = min(kRows, args.row_count - first);
      const auto row_bytes = static_cast<std::uint32_t>(args.row_stride_bytes);
      unsigned char* to = stages + slot * kStageBytes;
      const unsigned char* from = args.rows + first * args.row_stride_bytes;
      barrier_expect(&slots.arrived[slot], rows * row_bytes);
      if (row_bytes == kPitchBytes) {
        bulk_copy(to, from, rows * row_bytes, &slots.arrived[slot]);
      } else {
#pragma unroll 1
        for (int r = 0; r < rows; r++)
          bulk_copy(to + r * kPitchBytes, from + r * args.row_stride_bytes, row_bytes, &slots.arrived[slot]);
      }
    };
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < args.slots; i++) {
        if (again) {
          barrier_forget(&slots.arrived[i]);
          barrier_forget(&slots.left[i]);
        }
        barrier_init(&slots.arrived[i], 1);
        barrier_init(&slots.left[i], static_cast<std::uint32_t>(args.query_groups));
        slots.filled_for[i] = i;
        slots.claimed[i] = i;
      }
      barrier_init_fence();
#pragma unroll 1
      for (int i = 0; i < min(args.slots, mine.count); i++) fill(i, i);
    }
    const int first_query = mine.query_tile * args.query_groups * kWarpQueries;
    stage_queries(args, first_query, steps, queries);
    __syncthreads();

    const int query = first_query + my_group * kWarpQueries + lane / kQueryLanes;  // of the lane's finished sums
    const bool real_query = query < args.batch.count;
    const std::uint32_t least_key = real_query ? args.lists.least_keys[query] : 0;
    int slot = team % args.slots;
    std::uint32_t parity = static_cast<std::uint32_t>(team / args.slots) & 1u;
    int awaited = stage_of(slots, slot);
#pragma unroll 1
    for (int stage = team; stage < mine.count; stage += teams) {
      // A team that is a whole ring ahead would take the parity of the slot's last stage for that of its own.
      while (awaited != stage) awaited = stage_of(slots, slot);
      barrier_wait(&slots.arrived[slot], parity);
      const lane_place<E> at{reinterpret_cast<const element*>(stages + slot * kStageBytes) + lane,
                             queries + my_group * group_quads + lane};
      float first[kSums];
      float second[kSums];
      float pair[kSums];
#pragma unroll 1
      for (int pass = 0; pass < 2; pass++) {  // one code for both: half of the instruction cache
        sum_group<E, L2, Steps>(at, pass, steps, first);
        sum_group<E, L2, Steps>(at, pass + 2, steps, second);
        if (pass == 0) {
#pragma unroll
          for (int v = 0; v < kSums; v++) pair[v] = first[v] + second[v];
        }
      }
      __syncwarp();
      const int next = stage + args.slots;
      if (lane == 0 && barrier_arrive_completes(&slots.left[slot]) && next < mine.count &&
          atomicCAS(&slots.claimed[slot], stage, next) == stage) {  // two may have seen the last one leave
        fill(next, slot);
        __threadfence_block();
        *const_cast<volatile std::int32_t*>(&slots.filled_for[slot]) = next;
      }
      for (slot += teams; slot >= args.slots; slot -= args.slots) parity ^= 1;
      awaited = stage_of(slots, slot);  // on its way while the tree is summed
#pragma unroll
      for (int v = 0; v < kSums; v++) first[v] = pair[v] + (first[v] + second[v]);  // s = 64, s = 32
      float finished[kLaneRows];
      add_across_team_lanes<kSums, kWarp / 2>(first, lane, finished);

      const int row = first_row_of(stage) + lane % kQueryLanes * kLaneRows;
      std::uint32_t keys[kLaneRows];
      bool passes[kLaneRows];
#pragma unroll
      for (int r = 0; r < kLaneRows; r++) {
        const bool there = real_query && row + r < args.row_count;
        float query_inverse_norm = 0.0f;
        float row_inverse_norm = 0.0f;
        if (args.by == metric::cosine && there) {
          query_inverse_norm = args.query_inverse_norms[query];
          row_inverse_norm = args.row_inverse_norms[row + r];
        }
        keys[r] = core::score_key(score_of(finished[r], args.by, query_inverse_norm, row_inverse_norm), args.by);
        passes[r] = there && keys[r] >= least_key;  // 0 in the dense phase: every key reaches it
      }
      enter_lane_rows(args.lists, args.phase, query, lane, keys, passes, row,
                      args.first_row + static_cast<std::uint32_t>(row));
    }
  }
}

/// The steps of the kernel that serves a dim: its own number, or 0.
int kernel_steps(std::int64_t dim, element_type type) {
  const std::int64_t steps = (dim + core::kPartialSums - 1) / core::kPartialSums;
  return type == element_type::f32 && (steps == 3 || steps == 6 || steps == 8) ? static_cast<int>(steps) : 0;
}

std::int64_t query_bytes(int query_groups, std::int64_t dim) {
  const std::int64_t steps = (dim + core::kPartialSums - 1) / core::kPartialSums;
  return query_groups * kWarpQueries * steps * core::kPartialSums * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t stage_bytes(std::int64_t dim, element_type type) {
  const int steps = kernel_steps(dim, type);
  return std::int64_t{kRows} * (steps > 0 ? steps : kMaxSteps) * core::kPartialSums * size_bytes(type);
}

int slots_of(int query_groups, std::int64_t dim, element_type type) {
  const std::int64_t room =
      kMaxSharedBytes - static_cast<std::int64_t>(sizeof(slot_states)) - query_bytes(query_groups, dim);
  return static_cast<int>(std::min<std::int64_t>(room / stage_bytes(dim, type), kMaxSlots));
}

/// Query groups of a block: those that pad the batch least and leave every team a stage and one more to come; or 0.
int query_groups_of(std::int64_t queries, std::int64_t dim, element_type type) {
  int best = 0;
  std::int64_t least_padded = 0;
  for (const int groups : {4, 2}) {
    const std::int64_t tile = groups * kWarpQueries;
    const std::int64_t padded = (queries + tile - 1) / tile * tile;
    if (slots_of(groups, dim, type) <= kWarps / groups || (best > 0 && padded >= least_padded)) continue;
    best = groups;
    least_padded = padded;
  }
  return best;
}

template <element_type E, int Steps>
void launch_steps(cudaStream_t stream, const score_phase& phase, int multiprocessors) {
  const core::flat_corpus& corpus = *phase.corpus;
  team_args args{};
  args.rows = static_cast<const unsigned char*>(corpus.rows) + phase.first_row * corpus.row_stride_bytes;
  args.row_stride_bytes = corpus.row_stride_bytes;
  args.row_inverse_norms = corpus.inverse_norms ? corpus.inverse_norms + phase.first_row : nullptr;
  args.query_inverse_norms = phase.query_inverse_norms;
  args.batch = phase.batch;
  args.lists = phase.lists;
  args.first_row = static_cast<std::uint32_t>(phase.first_row);
  args.row_count = static_cast<std::int32_t>(phase.row_count);
  args.steps = (phase.batch.dim + core::kPartialSums - 1) / core::kPartialSums;
  args.query_groups = query_groups_of(phase.batch.count, phase.batch.dim, E);
  args.query_tiles = (phase.batch.count + args.query_groups * kWarpQueries - 1) / (args.query_groups * kWarpQueries);
  args.slots = slots_of(args.query_groups, phase.batch.dim, E);
  args.phase = phase.kind;
  args.by = corpus.metric;
  const int stages = (args.row_count + kRows - 1) / kRows;
  const int turns = std::clamp(multiprocessors / args.query_tiles, 1, stages);
  const bool shares = turns * args.query_tiles < multiprocessors && stages >= kMinSharedStages * multiprocessors;
  const int blocks = shares ? multiprocessors : turns * args.query_tiles;
  const launch_shape how{.grid = dim3(static_cast<unsigned>(blocks)),
                         .threads = kThreads,
                         .shared_bytes = static_cast<std::int64_t>(sizeof(slot_states)) +
                                         query_bytes(args.query_groups, phase.batch.dim) +
                                         args.slots * stage_bytes(phase.batch.dim, E)};
  launch(corpus.metric == metric::l2 ? flat_team_kernel<E, true, Steps> : flat_team_kernel<E, false, Steps>, how,
         stream, args, "launching the teams of the flat search");
}

}  // namespace

bool team_serves(std::int64_t queries, std::int64_t dim, element_type type) {
  return dim <= kMaxSteps * core::kPartialSums && query_groups_of(queries, dim, type) > 0;
}

void launch_team_phase(cudaStream_t stream, const score_phase& phase, int multiprocessors) {
  const element_type type = phase.corpus->type;
  if (type == element_type::f32) {
    switch (kernel_steps(phase.batch.dim, type)) {
      case 3: return launch_steps<element_type::f32, 3>(stream, phase, multiprocessors);
      case 6: return launch_steps<element_type::f32, 6>(stream, phase, multiprocessors);
      case 8: return launch_steps<element_type::f32, 8>(stream, phase, multiprocessors);
      default: return launch_steps<element_type::f32, 0>(stream, phase, multiprocessors);
    }
  }
  switch (type) {
    case element_type::f16: return launch_steps<element_type::f16, 0>(stream, phase, multiprocessors);
    case element_type::bf16: return launch_steps<element_type::bf16, 0>(stream, phase, multiprocessors);
    case element_type::i8: return launch_steps<element_type::i8, 0>(stream, phase, multiprocessors);
    default: return launch_steps<element_type::u8, 0>(stream, phase, multiprocessors);
  }
}

}  // namespace shortlist::cuda
