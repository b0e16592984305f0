// Exact search for one query: one pass over the rows with selection fused in; a second, tiny kernel merges.
//
// Why it is fast: the rows stream through shared memory by bulk copies, some 150 KB in flight on each multiprocessor,
// with no block-wide barrier; each row costs a few shuffles and one comparison with a threshold that only rises.
// Steps of a warp: await its stage -> a few rows at a time: partial sums -> tree -> key -> append if above the
// threshold -> refill the stage. Now and then one warp publishes its block's best keys and, in one block of eight,
// raises the common threshold to about the k-th best of all published ones: distinct rows, so a valid lower bound.
// End of a block: cut its list by the threshold, sort it if short, write it to the block's slots. See scan_merge.cu for
// what follows; it is launched with the scan, and fetches its instructions while the scan runs.
// Nothing is ever dropped: what does not fit a block's list in shared memory goes to its spill, sized for all its rows.
// Limit: bytes of the rows over read bandwidth; measured share: see docs/kernels.md.
// History, 1M x 384, k 100, host to host, us on an H200: last block merges by radix cuts 361 -> keys published and cut
// before the merge 363, no cliff with k or ties -> the merge as a kernel of its own that rehearses 354 -> cuts probed
// by all warps at once 353. int8: 32 lanes a row 166 -> eight lanes 125 -> 122 with the last two steps.
#include <algorithm>
#include <exception>

#include "core/order.hpp"
#include "core/score.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/element.cuh"
#include "cuda/device/score.cuh"
#include "cuda/flat/scan.hpp"
#include "cuda/flat/scan_merge.cuh"
#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxStages = 4;                // of a warp
constexpr int kSlotsPerWarp = 16;            // rows that a warp holds at once, at most
constexpr int kListCapacity = 512;           // keys of a block in shared memory; the rest spills
constexpr std::uint32_t kDrawsPerLook = 16;  // at every draw, loads of the common threshold slow the scan by a tenth
constexpr std::uint32_t kPressure = 512;     // appended keys after which the threshold is raised out of turn
constexpr std::int64_t kSharedBytes = 184 * 1024;  // leaves room for the merge on the same multiprocessor

struct scan_args {
  const unsigned char* rows;
  const float* inverse_norms;
  const float* query;  // null: `inline_query` below holds it
  scan_control* control;
  unsigned long long* published;  // [blocks, kMaxPublished]
  std::uint32_t* slot_counts;     // [blocks]
  std::uint64_t* slots;           // [blocks, slot_capacity]
  std::uint64_t* spill;           // [blocks, spill_capacity]
  std::int64_t row_stride_bytes;
  std::uint32_t count;
  std::uint32_t groups;  // of stage_rows rows
  std::int32_t dim;
  std::int32_t k;
  std::int32_t publish;     // keys a block publishes
  std::int32_t warp_rows;   // rows that a warp holds at once
  std::int32_t stage_rows;  // rows of a stage, a multiple of what a warp holds at once
  std::int32_t stages;      // stages of a warp
  std::int32_t warps;       // warps that scan; the others only help at the end
  std::int32_t slot_capacity;
  std::int32_t ring_bytes;
  std::int64_t spill_capacity;
  metric by;
  float inline_query[kScanParameterDim];
};

/// What a block keeps in shared memory, behind the ring of stages.
struct alignas(16) scan_shared {
  std::uint64_t list[kListCapacity];
  std::uint64_t barriers[kWarps * kMaxStages];
  std::uint64_t slot_best[kWarps * kSlotsPerWarp];  // the best key of every (warp, row slot)
  std::int32_t stage_group[kWarps * kMaxStages];    // which group of rows a stage holds; -1: none left
  select_scratch<kThreads> select;
  std::uint64_t published[kMaxBlocks * kMaxPublished];  // a warp's copy while it raises the threshold
  unsigned long long threshold;
  float query_inverse_norm;
  std::uint32_t next_draw;
  std::uint32_t list_count;
  std::uint32_t refreshed_at;  // list_count at the last refresh
  std::uint32_t refresh_lock;
  std::uint32_t kept;
};

/// A block's list: `list` in shared memory, then its spill.
struct block_list {
  std::uint64_t* near;
  std::uint64_t* far;
  __device__ std::uint64_t& operator[](std::uint32_t i) const {
    return i < kListCapacity ? near[i] : far[i - kListCapacity];
  }
};

__device__ __forceinline__ block_list list_of(const scan_args& args, scan_shared& shared) {
  return {shared.list, args.spill + static_cast<std::int64_t>(blockIdx.x) * args.spill_capacity};
}

/// Publishes, for each of the block's `publish` sets of row slots, the best key seen. A key belongs to one set only,
/// and a set's best only rises, so that readers never count a row twice, whenever they look. One warp.
__device__ __forceinline__ void publish_best(const scan_args& args, const scan_shared& shared, int lane) {
  const volatile std::uint64_t* best = shared.slot_best;
  const int slots = args.warps * args.warp_rows;
  std::uint64_t key = core::kNoRow;
#pragma unroll 2
  for (int i = lane; i < slots; i += kWarp) key = max(key, best[i]);
#pragma unroll 1
  for (int offset = kWarp / 2; offset >= args.publish; offset /= 2)  // publish is a power of two
    key = max(key, __shfl_xor_sync(kFullWarp, key, offset));
  volatile unsigned long long* mine = args.published + blockIdx.x * kMaxPublished;
  if (lane < args.publish) mine[lane] = key;
}

/// A threshold that at least k of the published keys reach; 0 if fewer than k are published. One warp.
__device__ __forceinline__ std::uint64_t published_cut(const scan_args& args, scan_shared& shared, int lane) {
  const int n = gridDim.x * args.publish;
  const std::uint32_t k = args.k;
  std::uint32_t there = 0;
  unsigned long long smallest = ~0ull;
  unsigned long long largest = 0;
#pragma unroll 4
  for (int i = lane; i < n; i += kWarp) {
    const std::uint64_t key = published_key(args.published, args.publish, i);
    shared.published[i] = key;
    there += key != core::kNoRow;
    smallest = min(smallest, static_cast<unsigned long long>(key - 1));  // kNoRow wraps to the largest
    largest = max(largest, static_cast<unsigned long long>(key));
  }
  __syncwarp();
  there = __reduce_add_sync(kFullWarp, there);
  if (there < k) return 0;
#pragma unroll 1
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    smallest = min(smallest, __shfl_xor_sync(kFullWarp, smallest, offset));
    largest = max(largest, __shfl_xor_sync(kFullWarp, largest, offset));
  }
  return search_cut(smallest + 1, there, largest, k, slack_of(k), [&](std::uint64_t cut) {
    std::uint32_t count = 0;
#pragma unroll 4
    for (int i = lane; i < n; i += kWarp) count += shared.published[i] >= cut;
    return __reduce_add_sync(kFullWarp, count);
  });
}

/// Publishes the block's best keys and, if `raise`, lifts the common threshold. One warp at a time; others go on.
__device__ __forceinline__ void refresh_threshold(const scan_args& args, scan_shared& shared, int lane, bool raise) {
  int free = 1;
  if (lane == 0) free = atomicCAS(&shared.refresh_lock, 0u, 1u) == 0u;
  if (!__shfl_sync(kFullWarp, free, 0)) return;
  publish_best(args, shared, lane);
  __syncwarp();
  const std::uint64_t threshold = raise ? published_cut(args, shared, lane) : 0;
  if (lane == 0) {
    const std::uint64_t common = common_threshold(args.control);
    if (threshold > common) atomicMax(&args.control->threshold, threshold);
    atomicMax(&shared.threshold, max(threshold, common));
    shared.refreshed_at = *reinterpret_cast<volatile std::uint32_t*>(&shared.list_count);
    __threadfence_block();
    atomicExch(&shared.refresh_lock, 0u);
  }
  __syncwarp();
}

/// The block's last word: its final best, and, unless its list is short, the threshold that all blocks have reached by
/// now; where the list is still too long for its slots, what the published keys say.
__device__ __forceinline__ void refresh_at_end(const scan_args& args, scan_shared& shared) {
  const bool is_short = shared.list_count <= kSortedSlots;
  if (threadIdx.x < kWarp) {
    const int lane = threadIdx.x;
    publish_best(args, shared, lane);
    if (!is_short) {
      std::uint64_t threshold = common_threshold(args.control);
      if (shared.list_count > static_cast<std::uint32_t>(args.slot_capacity))
        threshold = max(threshold, published_cut(args, shared, lane));
      if (lane == 0) atomicMax(&shared.threshold, static_cast<unsigned long long>(threshold));
    }
  }
  if (!is_short) __syncthreads();
}

/// Lanes of a row. All of the warp where a row's chunk fills the banks; eight where it is narrow, which saves most of
/// the tree's instructions: they, not memory, would limit the narrow types.
template <element_type E>
inline constexpr int kLanesPerRow = E == element_type::f32 ? 32 : 8;
template <element_type E>
inline constexpr int kRowsPerPass = kWarp / kLanesPerRow<E>;  // rows that a warp holds side by side
template <element_type E>
inline constexpr int kQuads = kQuadsPerLane<kLanesPerRow<E>>;
/// Rows that a lane holds at once: the query's elements are read once for all of them.
template <element_type E>
inline constexpr int kRowsPerLane = E == element_type::f32 ? 4 : 16 / sizeof(typename quad<E>::raw);
template <element_type E>
using partial_sums = float[kRowsPerLane<E>][kQuads<E>][4];

/// Chunks of 128 elements that a lane loads ahead without bulk copies: as many as its registers hold.
template <element_type E>
inline constexpr int kDirectChunks = E == element_type::f32 ? 3
                                     : kRowsPerLane<E> == 2 ? 2
                                                            : 1;

/// Which quad of a chunk a lane reads as its v-th. Eight lanes of a narrow row cover only a part of the banks, so the
/// rows of a pass start at different quads; the tree is the same for any exclusive-or of v, since pairs stay pairs.
template <element_type E>
__device__ __forceinline__ int quad_of(int v, int lane) {
  return (v ^ (lane / kLanesPerRow<E>)) * kLanesPerRow<E> + lane % kLanesPerRow<E>;
}

/// Partial sums of rows in shared memory, `stride` bytes apart: row r of the lane is row r * kRowsPerPass + lane /
/// kLanesPerRow.
template <element_type E, bool L2>
__device__ __forceinline__ void sums_from_shared(const unsigned char* rows, int stride, const float4* query, int lane,
                                                 partial_sums<E>& sums) {
  using raw = typename quad<E>::raw;
  constexpr int kChunkBytes = kWarp * sizeof(raw);
  const unsigned char* mine = rows + lane / kLanesPerRow<E> * stride;
  const int whole = stride / kChunkBytes;
#pragma unroll 1
  for (int t = 0; t < whole; t++) {
#pragma unroll
    for (int v = 0; v < kQuads<E>; v++) {
      const int at = quad_of<E>(v, lane);
      const float4 q = query[t * kWarp + at];
#pragma unroll
      for (int r = 0; r < kRowsPerLane<E>; r++) {
        const auto* x = reinterpret_cast<const raw*>(mine + r * kRowsPerPass<E> * stride + t * kChunkBytes) + at;
        step4<L2>(q, quad<E>::widen(*x), sums[r][v]);
      }
    }
  }
  const int rest = stride - whole * kChunkBytes;  // the last chunk, if partial: zeros beyond the row take no step
  if (rest == 0) return;
#pragma unroll
  for (int v = 0; v < kQuads<E>; v++) {
    const int at = quad_of<E>(v, lane);
    const float4 q = query[whole * kWarp + at];
#pragma unroll
    for (int r = 0; r < kRowsPerLane<E>; r++) {
      const auto* x = reinterpret_cast<const raw*>(mine + r * kRowsPerPass<E> * stride + whole * kChunkBytes) + at;
      if (at * static_cast<int>(sizeof(raw)) < rest) step4<L2>(q, quad<E>::widen(*x), sums[r][v]);
    }
  }
}

/// The same straight from global memory, for rows too long for the ring of stages.
template <element_type E, bool L2>
__device__ __forceinline__ void sums_from_global(const unsigned char* rows, std::int64_t stride, int rows_left,
                                                 const float4* query, int lane, partial_sums<E>& sums) {
  using raw = typename quad<E>::raw;
  constexpr int kChunkBytes = kWarp * sizeof(raw);
  const unsigned char* mine = rows + lane / kLanesPerRow<E> * stride;
  for (std::int64_t chunk = 0; chunk < stride;
       chunk += kDirectChunks<E> * kChunkBytes, query += kDirectChunks<E> * kWarp) {
    raw x[kDirectChunks<E>][kQuads<E>][kRowsPerLane<E>];
#pragma unroll
    for (int t = 0; t < kDirectChunks<E>; t++)
#pragma unroll
      for (int v = 0; v < kQuads<E>; v++) {
        const std::int64_t at =
            chunk + t * kChunkBytes + (v * kLanesPerRow<E> + lane % kLanesPerRow<E>)*static_cast<int>(sizeof(raw));
#pragma unroll
        for (int r = 0; r < kRowsPerLane<E>; r++) {
          x[t][v][r] = raw{};
          if (at < stride && r * kRowsPerPass<E> + lane / kLanesPerRow<E> < rows_left)
            x[t][v][r] = load_streaming(reinterpret_cast<const raw*>(mine + r * kRowsPerPass<E> * stride + at));
        }
      }
#pragma unroll
    for (int t = 0; t < kDirectChunks<E>; t++)
#pragma unroll
      for (int v = 0; v < kQuads<E>; v++) {
        const int at = v * kLanesPerRow<E> + lane % kLanesPerRow<E>;
        if (chunk + t * kChunkBytes + at * static_cast<int>(sizeof(raw)) >= stride) continue;
        const float4 q = query[t * kWarp + at];
#pragma unroll
        for (int r = 0; r < kRowsPerLane<E>; r++) step4<L2>(q, quad<E>::widen(x[t][v][r]), sums[r][v]);
      }
  }
}

/// The query's first elements, on their way while the first bulk copies are not yet in the way.
struct query_head {
  float values[2];
};

__device__ __forceinline__ const float* query_of(const scan_args& args) {
  return args.query ? args.query : args.inline_query;
}

__device__ __forceinline__ query_head fetch_query_head(const scan_args& args) {
  query_head head;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = i * kThreads + threadIdx.x;
    head.values[i] = at < args.dim ? query_of(args)[at] : core::kQueryPadding;
  }
  return head;
}

/// Puts the query into shared memory, padded with -0 to whole chunks, and computes its inverse norm under cosine.
__device__ void place_query(const scan_args& args, const query_head& head, float* query, scan_shared& shared) {
  const int padded = (args.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = i * kThreads + threadIdx.x;
    if (at < padded) query[at] = head.values[i];
  }
  for (int i = 2 * kThreads + threadIdx.x; i < padded; i += kThreads)
    query[i] = i < args.dim ? query_of(args)[i] : core::kQueryPadding;
  __syncthreads();
  if (args.by != metric::cosine) return;
  if (threadIdx.x < kWarp) {
    float sums[1][1][4] = {};
    const auto* q4 = reinterpret_cast<const float4*>(query);
    for (int t = 0; t < padded / core::kPartialSums; t++) {  // the padding's square is +0: no step
      const float4 q = q4[t * kWarp + threadIdx.x];
      step4<false>(q, q, sums[0][0]);
    }
    const float sum = finish_sums<kWarp, 1>(sums, threadIdx.x);
    if (threadIdx.x == 0) shared.query_inverse_norm = core::inverse_norm(sum);
  }
  __syncthreads();
}

/// Cuts the block's list by the threshold, and to its own k best where the slots cannot hold it, into the slots: best
/// first where few remain, so that the merge reads no more of them than it needs. `room` is the ring's memory.
__device__ __forceinline__ void write_slots(const scan_args& args, scan_shared& shared, std::uint64_t* room) {
  const block_list list = list_of(args, shared);
  const std::uint32_t count = shared.list_count;
  std::uint64_t cut = max(static_cast<std::uint64_t>(shared.threshold), std::uint64_t{1});
  if (count > static_cast<std::uint32_t>(args.slot_capacity)) {
    int phase = 0;
    std::uint32_t passing = 0;
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) passing += list[i] >= cut;
    passing = block_sum<kThreads>(passing, shared.select, phase);
    if (passing > static_cast<std::uint32_t>(args.slot_capacity)) {
      const auto visit = [&](auto&& f) {
        for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
          const std::uint64_t key = list[i];
          f(key >= cut ? key : core::kNoRow);
        }
      };
      cut = max(cut, block_cut_radix<kThreads>(visit, args.k, shared.select));
    }
  }
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const std::uint64_t key = list[i];
    if (key >= cut) room[atomicAdd(&shared.kept, 1u)] = key;
  }
  __syncthreads();
  const std::uint32_t kept = shared.kept;
  std::uint64_t* slots = args.slots + static_cast<std::int64_t>(blockIdx.x) * args.slot_capacity;
  if (kept > kSortedSlots) {
    for (std::uint32_t i = threadIdx.x; i < kept; i += kThreads) slots[i] = room[i];
  } else {
    rank_by_counting<kThreads>(room, kept, [&](std::uint32_t rank, std::uint64_t key) { slots[rank] = key; });
  }
  if (threadIdx.x == 0) args.slot_counts[blockIdx.x] = kept;
}

template <element_type E, bool L2, bool Bulk>
__global__ void __launch_bounds__(kThreads, 1) flat_scan_kernel(const __grid_constant__ scan_args args) {
  cudaTriggerProgrammaticLaunchCompletion();  // the merge may come and wait
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* ring = memory;
  auto& shared = *reinterpret_cast<scan_shared*>(memory + args.ring_bytes);
  auto* query = reinterpret_cast<float*>(memory + args.ring_bytes + sizeof(scan_shared));
  const auto* q4 = reinterpret_cast<const float4*>(query);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t stride = args.row_stride_bytes;
  const int stage_rows = args.stage_rows;
  const std::uint32_t groups = args.groups;
  const int stages = args.stages;
  const std::uint32_t primed = args.warps * stages;
  const std::int64_t stage_bytes = stage_rows * (stride + (args.inverse_norms ? sizeof(float) : 0));

  for (int i = threadIdx.x; i < kWarps * kSlotsPerWarp; i += kThreads) shared.slot_best[i] = core::kNoRow;
  if (threadIdx.x == 0) {
    shared.threshold = 0;
    shared.query_inverse_norm = 0.0f;
    shared.next_draw = primed;
    shared.list_count = 0;
    shared.refreshed_at = 0;
    shared.refresh_lock = 0;
    shared.kept = 0;
  }

  // Lane 0 of a warp owns its stages. Draw d of the block is group d * blocks + block, so that positions rise together.
  const auto issue = [&](int stage, std::uint32_t draw) {
    const std::int64_t group = static_cast<std::int64_t>(draw) * gridDim.x + blockIdx.x;
    const int slot = warp * stages + stage;
    const bool there = group < groups;
    shared.stage_group[slot] = there ? static_cast<std::int32_t>(group) : -1;
    if (!Bulk || !there) return;
    const std::int64_t first = group * stage_rows;
    const int rows = min(static_cast<std::int64_t>(stage_rows), args.count - first);
    unsigned char* to = ring + slot * stage_bytes;
    const std::uint32_t row_bytes = static_cast<std::uint32_t>(rows * stride);
    const std::uint32_t norm_bytes =
        args.inverse_norms ? (rows + 3) / 4 * 4 * sizeof(float) : 0;  // allocations have slack
    barrier_expect(&shared.barriers[slot], row_bytes + norm_bytes);
    bulk_copy(to, args.rows + first * stride, row_bytes, &shared.barriers[slot]);
    if (norm_bytes) bulk_copy(to + stage_rows * stride, args.inverse_norms + first, norm_bytes, &shared.barriers[slot]);
  };
  const query_head head = fetch_query_head(args);
  if (lane == 0 && warp < args.warps) {
    if constexpr (Bulk) {
      for (int s = 0; s < stages; s++) barrier_init(&shared.barriers[warp * stages + s], 1);
      barrier_init_fence();
    }
    for (int s = 0; s < stages; s++) issue(s, s * args.warps + warp);
  }
  place_query(args, head, query, shared);
  const float query_inverse_norm = shared.query_inverse_norm;
  const block_list list = list_of(args, shared);
  constexpr int kRowsAtOnce = kRowsPerPass<E> * kRowsPerLane<E>;
  const int my_row = finished_row<kLanesPerRow<E>, kRowsPerLane<E>>(lane) * kRowsPerPass<E> + lane / kLanesPerRow<E>;
  const bool leads = leads_finished_row<kLanesPerRow<E>, kRowsPerLane<E>>(lane);
  std::uint64_t my_best = core::kNoRow;

  if (warp < args.warps) {
    int stage = 0;
    std::uint32_t parity = 0;
    while (true) {
      const int slot = warp * stages + stage;
      const int group = *reinterpret_cast<volatile std::int32_t*>(&shared.stage_group[slot]);
      if (group < 0) break;
      std::uint32_t draw = 0;
      if (lane == 0) draw = atomicAdd(&shared.next_draw, 1u);
      unsigned long long common = 0;  // now and then somebody looks at the threshold that all blocks share
      if (lane == 0 && draw % kDrawsPerLook == 0) common = common_threshold(args.control);
      if constexpr (Bulk) barrier_wait(&shared.barriers[slot], parity);
      const unsigned char* staged = ring + slot * stage_bytes;
      std::uint32_t appended = 0;

      for (int r0 = 0; r0 < stage_rows; r0 += kRowsAtOnce) {
        const std::int64_t first = static_cast<std::int64_t>(group) * stage_rows + r0;
        if (first >= args.count) break;
        const std::int64_t row = first + my_row;
        partial_sums<E> sums = {};
        float row_inverse_norm = 0.0f;
        if constexpr (Bulk) {
          if (args.inverse_norms)
            row_inverse_norm = reinterpret_cast<const float*>(staged + stage_rows * stride)[r0 + my_row];
          sums_from_shared<E, L2>(staged + r0 * stride, static_cast<int>(stride), q4, lane, sums);
        } else {
          if (args.inverse_norms && row < args.count) row_inverse_norm = args.inverse_norms[row];
          sums_from_global<E, L2>(args.rows + first * stride, stride,
                                  static_cast<int>(min(args.count - first, std::int64_t{kRowsAtOnce})), q4, lane, sums);
        }
        const float score = score_of(finish_sums<kLanesPerRow<E>, kRowsPerLane<E>>(sums, lane), args.by,
                                     query_inverse_norm, row_inverse_norm);
        const std::uint64_t key = core::row_key(core::score_key(score, args.by), static_cast<std::uint32_t>(row));
        const bool passes =
            leads && row < args.count && key > *reinterpret_cast<volatile unsigned long long*>(&shared.threshold);
        if (passes) {
          appended = atomicAdd(&shared.list_count, 1u) + 1;
          list[appended - 1] = key;
          if (key > my_best) {
            my_best = key;
            *reinterpret_cast<volatile std::uint64_t*>(&shared.slot_best[warp * kRowsAtOnce + my_row]) = key;
          }
        }
      }
      __syncwarp();
      if (lane == 0) {
        issue(stage, draw);
        if (common > *reinterpret_cast<volatile unsigned long long*>(&shared.threshold))
          atomicMax(&shared.threshold, common);
      }
      draw = __shfl_sync(kFullWarp, draw, 0);
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
      // Refresh at draws that double, then every 1024th, and out of turn when many keys were appended.
      const std::uint32_t refreshed_at = *reinterpret_cast<volatile std::uint32_t*>(&shared.refreshed_at);
      const bool pressed = __any_sync(kFullWarp, appended > refreshed_at + kPressure);
      const std::uint32_t since = draw - primed;
      const bool due =
          since >= static_cast<std::uint32_t>(args.warps) && ((since & (since - 1)) == 0 || since % 1024 == 0);
      if (pressed) {
        refresh_threshold(args, shared, lane, true);
      } else if (due && static_cast<std::int64_t>(draw) * gridDim.x < groups) {
        refresh_threshold(args, shared, lane, (blockIdx.x & 7) == (__ffs(since) & 7));
      }
      __syncwarp();
    }
  }
  __syncthreads();
  refresh_at_end(args, shared);
  write_slots(args, shared, reinterpret_cast<std::uint64_t*>(ring));
}

template <element_type E>
constexpr int rows_at_once_of() {
  return kRowsPerPass<E> * kRowsPerLane<E>;
}
constexpr int rows_at_once_of(element_type type) {
  switch (size_bytes(type)) {
    case 4: return rows_at_once_of<element_type::f32>();
    case 2: return rows_at_once_of<element_type::f16>();
    default: return rows_at_once_of<element_type::i8>();
  }
}

/// How the ring is cut into stages. Measured on an H200: 6 to 16 KB a stage, about 190 KB in flight.
struct ring_shape {
  int stage_rows;
  int warps;
  int stages;
  bool bulk;
};

ring_shape choose_ring(std::int64_t stride, std::int64_t norm_bytes, int rows_at_once, std::int64_t ring_bytes) {
  constexpr std::int64_t kStageTarget = 6 * 1024;
  const std::int64_t pass_bytes = rows_at_once * (stride + norm_bytes);
  if (pass_bytes > ring_bytes / 4) return {rows_at_once, kWarps, 1, false};
  const std::int64_t passes = std::max<std::int64_t>(1, kStageTarget / pass_bytes);
  const std::int64_t stage_bytes = passes * pass_bytes;
  const std::int64_t slots = ring_bytes / stage_bytes;
  const std::int64_t warps = std::min<std::int64_t>(kWarps, slots);
  const std::int64_t stages = std::min<std::int64_t>(kMaxStages, slots / warps);
  return {static_cast<int>(passes) * rows_at_once, static_cast<int>(warps), static_cast<int>(stages), true};
}

struct workspace_layout {
  std::int64_t published;
  std::int64_t slot_counts;
  std::int64_t slots;
  std::int64_t spill;
  std::int64_t total;
};

std::int64_t slot_capacity_of(std::int64_t k) { return 2 * k + kThreads; }

workspace_layout layout_of(std::int64_t max_rows, std::int64_t max_k, int blocks) {
  const auto aligned = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  workspace_layout at{};
  at.published = aligned(sizeof(scan_control));
  at.slot_counts = at.published + aligned(std::int64_t{8} * blocks * kMaxPublished);
  at.slots = at.slot_counts + aligned(std::int64_t{4} * blocks);
  at.spill = at.slots + aligned(8 * blocks * slot_capacity_of(std::min(max_k, kScanMaxK)));
  // A block's rows: its share of the groups, rounded up; a group has at most kStageTarget bytes, so few hundred rows.
  at.total = at.spill + aligned(8 * (max_rows + static_cast<std::int64_t>(blocks) * 2048));
  return at;
}

using kernel_pointer = void (*)(scan_args);

template <element_type E>
kernel_pointer kernel_of(bool l2, bool bulk) {
  if (l2) return bulk ? flat_scan_kernel<E, true, true> : flat_scan_kernel<E, true, false>;
  return bulk ? flat_scan_kernel<E, false, true> : flat_scan_kernel<E, false, false>;
}

kernel_pointer kernel_of(element_type type, bool l2, bool bulk) {
  switch (type) {
    case element_type::f32: return kernel_of<element_type::f32>(l2, bulk);
    case element_type::f16: return kernel_of<element_type::f16>(l2, bulk);
    case element_type::bf16: return kernel_of<element_type::bf16>(l2, bulk);
    case element_type::i8: return kernel_of<element_type::i8>(l2, bulk);
    case element_type::u8: return kernel_of<element_type::u8>(l2, bulk);
  }
  return nullptr;
}

/// All that a search's two launches need.
struct scan_plan {
  kernel_pointer kernel;
  int blocks;
  scan_args scan;
  merge_args merge;
};

scan_plan plan_scan(void* workspace, const core::flat_corpus& corpus, const core::flat_request& request,
                    const float* host_query, completion_flag done, int multiprocessors) {
  const int blocks = std::min(multiprocessors, kMaxBlocks);
  const std::int64_t padded_dim = (corpus.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  const std::int64_t fixed_bytes = sizeof(scan_shared) + padded_dim * sizeof(float);
  const std::int64_t ring_bytes = (kSharedBytes - fixed_bytes) / 128 * 128;
  const int rows_at_once = rows_at_once_of(corpus.type);
  const ring_shape ring =
      choose_ring(corpus.row_stride_bytes, corpus.inverse_norms ? sizeof(float) : 0, rows_at_once, ring_bytes);
  auto* base = static_cast<unsigned char*>(workspace);
  const workspace_layout at = layout_of(corpus.count, request.k, blocks);

  scan_plan made{};
  scan_args& args = made.scan;
  args.rows = static_cast<const unsigned char*>(corpus.rows);
  args.inverse_norms = corpus.inverse_norms;
  args.query = host_query ? nullptr : request.queries;
  args.control = reinterpret_cast<scan_control*>(base);
  args.published = reinterpret_cast<unsigned long long*>(base + at.published);
  args.slot_counts = reinterpret_cast<std::uint32_t*>(base + at.slot_counts);
  args.slots = reinterpret_cast<std::uint64_t*>(base + at.slots);
  args.spill = reinterpret_cast<std::uint64_t*>(base + at.spill);
  args.row_stride_bytes = corpus.row_stride_bytes;
  args.count = static_cast<std::uint32_t>(corpus.count);
  args.dim = static_cast<std::int32_t>(corpus.dim);
  args.k = static_cast<std::int32_t>(request.k);
  args.publish = request.k <= 16 ? 2 : request.k <= 128 ? 4 : kMaxPublished;
  args.warp_rows = rows_at_once;
  args.stage_rows = ring.stage_rows;
  args.stages = ring.stages;
  args.warps = ring.warps;
  args.slot_capacity = static_cast<std::int32_t>(slot_capacity_of(request.k));
  args.ring_bytes = static_cast<std::int32_t>(ring_bytes);
  const std::int64_t groups = (corpus.count + ring.stage_rows - 1) / ring.stage_rows;
  args.groups = static_cast<std::uint32_t>(groups);
  args.spill_capacity = (groups + blocks - 1) / blocks * ring.stage_rows;
  args.by = corpus.metric;
  if (host_query) std::copy_n(host_query, corpus.dim, args.inline_query);

  made.kernel = kernel_of(corpus.type, corpus.metric == metric::l2, ring.bulk);
  made.blocks = blocks;
  made.merge = {.ids = corpus.ids,
                .scores = request.scores,
                .labels = request.ids,
                .control = args.control,
                .published = args.published,
                .slot_counts = args.slot_counts,
                .slots = args.slots,
                .done_word = done.word,
                .done_value = done.value,
                .blocks = blocks,
                .publish = args.publish,
                .k = args.k,
                .slot_capacity = args.slot_capacity,
                .by = args.by};
  return made;
}

void launch_both(cudaStream_t stream, const scan_plan& plan) {
  plan.kernel<<<plan.blocks, kThreads, kSharedBytes, stream>>>(plan.scan);
  check(cudaGetLastError(), "launching the flat scan");
  merge_launch(plan.merge).run(stream);
}

}  // namespace

std::int64_t scan_workspace_bytes(std::int64_t max_rows, std::int64_t max_k, int multiprocessors) {
  return layout_of(max_rows, max_k, std::min(multiprocessors, kMaxBlocks)).total;
}

void prepare_flat_scan() {
  for (const element_type type :
       {element_type::f32, element_type::f16, element_type::bf16, element_type::i8, element_type::u8})
    for (const bool l2 : {false, true})
      for (const bool bulk : {false, true})
        check(cudaFuncSetAttribute(kernel_of(type, l2, bulk), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(kSharedBytes)),
              "raising the scan's shared memory");
  prepare_scan_merge();
}

void launch_flat_scan(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus,
                      const core::flat_request& request, int multiprocessors) {
  launch_both(stream, plan_scan(workspace, corpus, request, nullptr, {}, multiprocessors));
}

scan_graph::scan_graph(void* workspace, int multiprocessors) : multiprocessors_(multiprocessors) {
  // Any valid search will do: each launch sets its own parameters.
  const core::flat_corpus corpus{.rows = workspace, .row_stride_bytes = 16, .count = 1, .dim = 1};
  const core::flat_request request{.query_count = 1, .k = 1};
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  cudaError_t code = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (code == cudaSuccess) {
    std::exception_ptr failure;
    try {
      launch_both(stream, plan_scan(workspace, corpus, request, nullptr, {}, multiprocessors));
    } catch (...) {
      failure = std::current_exception();
    }
    code = cudaStreamEndCapture(stream, &graph_);
    if (failure) {
      release();
      cudaStreamDestroy(stream);
      std::rethrow_exception(failure);
    }
  }
  cudaStreamDestroy(stream);
  cudaGraphNode_t nodes[2] = {};
  std::size_t count = 1;
  if (code == cudaSuccess) code = cudaGraphGetRootNodes(graph_, nodes, &count);
  scan_node_ = nodes[0];
  count = 2;
  if (code == cudaSuccess) code = cudaGraphGetNodes(graph_, nodes, &count);
  merge_node_ = nodes[0] == scan_node_ ? nodes[1] : nodes[0];
  if (code == cudaSuccess) code = cudaGraphInstantiate(&executable_, graph_, 0);  // its nodes are named by graph_'s
  if (code != cudaSuccess) release();
  check(code, "making the scan's graph");
}

scan_graph::~scan_graph() { release(); }

void scan_graph::release() {
  if (executable_) cudaGraphExecDestroy(executable_);
  if (graph_) cudaGraphDestroy(graph_);
}

void scan_graph::launch(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus,
                        const core::flat_request& request, const float* host_query, completion_flag done) {
  scan_plan plan = plan_scan(workspace, corpus, request, host_query, done, multiprocessors_);
  void* pointers[] = {&plan.scan};
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(plan.kernel);
  params.gridDim = dim3(plan.blocks);
  params.blockDim = dim3(kThreads);
  params.sharedMemBytes = kSharedBytes;
  params.kernelParams = pointers;
  check(cudaGraphExecKernelNodeSetParams(executable_, scan_node_, &params), "setting the scan's parameters");
  const merge_launch merge(plan.merge);
  params = merge.node();
  check(cudaGraphExecKernelNodeSetParams(executable_, merge_node_, &params), "setting the merge's parameters");
  check(cudaGraphLaunch(executable_, stream), "launching the flat scan");
}

}  // namespace shortlist::cuda
