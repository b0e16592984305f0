// Exact search for one query: one launch, one pass over the rows, selection fused into the scan, last block merges.
//
// Why it is fast: the rows stream through shared memory by bulk copies, about 190 KB in flight on each multiprocessor,
// with no block-wide barrier; each row costs a few shuffles and one comparison with a threshold that only rises.
// Steps of a warp: await its stage -> four rows at a time: partial sums -> tree -> key -> append if above the
// threshold -> refill the stage. Now and then one warp publishes its block's best keys and, in one block of eight,
// raises the common threshold to the k-th best of all published ones: distinct rows, so a valid lower bound.
// End of a block: cut its list by the threshold (and to its own k best if still long), write it to the block's slots,
// draw a ticket; the last block merges all slots, sorts, writes scores and labels, and resets the workspace.
// Nothing is ever dropped: what does not fit a block's list in shared memory goes to its spill, sized for all its rows.
// Limit: bytes of the rows over read bandwidth; measured share: see docs/kernels.md.
#include <algorithm>
#include <bit>

#include "core/order.hpp"
#include "core/score.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/element.cuh"
#include "cuda/device/score.cuh"
#include "cuda/flat/scan.hpp"
#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxStages = 4;        // of a warp
constexpr int kSlotsPerWarp = 16;    // rows that a warp holds at once, at most
constexpr int kListCapacity = 1024;  // keys of a block in shared memory; the rest spills
constexpr int kMaxPublished = 16;    // keys a block may publish: 132 x 16 > kScanMaxK
constexpr int kMaxBlocks = 160;      // one per multiprocessor; later GPUs have a few more than Hopper's 132
constexpr std::uint32_t kDrawsPerLook =
    16;                                   // at every draw, the loads of the common threshold slow the scan by a tenth
constexpr std::uint32_t kPressure = 512;  // appended keys after which the threshold is raised out of turn
constexpr std::int64_t kSharedBytes = 227 * 1024;  // of a Hopper multiprocessor, for one block

/// The part of the workspace that all blocks share. Zero between launches.
struct scan_control {
  unsigned long long threshold;  // a key that k published rows reach
  std::uint32_t ticket;
};

struct scan_args {
  const unsigned char* rows;
  const float* inverse_norms;
  const std::int64_t* ids;
  const float* query;  // null: `inline_query` below holds it
  float* scores;
  std::int64_t* labels;
  scan_control* control;
  unsigned long long* published;  // [blocks, kMaxPublished]
  std::uint32_t* slot_counts;     // [blocks]
  std::uint64_t* slots;           // [blocks, slot_capacity]
  std::uint64_t* spill;           // [blocks, spill_capacity]
  std::uint32_t* done_word;
  std::uint32_t done_value;
  std::int64_t row_stride_bytes;
  std::uint32_t count;
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
  std::uint32_t offsets[kMaxBlocks + 1];
  std::uint32_t published_high[kMaxBlocks * kMaxPublished];
  unsigned long long threshold;
  float query_inverse_norm;
  std::uint32_t next_draw;
  std::uint32_t list_count;
  std::uint32_t refreshed_at;  // list_count at the last refresh
  std::uint32_t refresh_lock;
  std::uint32_t kept;
  std::uint32_t gathered;
  std::uint32_t is_last;
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
/// and a set's best only rises, so that readers never count a row twice, whenever they look.
__device__ void publish_best(const scan_args& args, const scan_shared& shared, int lane) {
  const volatile std::uint64_t* best = shared.slot_best;
  if (lane >= args.publish) return;
  std::uint64_t key = core::kNoRow;
  for (int i = lane; i < args.warps * args.warp_rows; i += args.publish) key = max(key, best[i]);
  volatile unsigned long long* mine = args.published + blockIdx.x * kMaxPublished;
  mine[lane] = key;
}

/// The largest threshold that at least k of the published keys reach; 0 if fewer than k are published. One warp.
__device__ std::uint64_t published_cut(const scan_args& args, scan_shared& shared, int lane) {
  const int n = gridDim.x * args.publish;
  const std::uint32_t k = args.k;
  const auto published = [&](int i) {
    return static_cast<std::uint64_t>(__ldcg(args.published + i / args.publish * kMaxPublished + i % args.publish));
  };
  std::uint32_t* high_words = shared.published_high;
  std::uint32_t there = 0;
#pragma unroll 8
  for (int i = lane; i < n; i += kWarp) {
    const std::uint64_t key = published(i);
    high_words[i] = core::key_of(key);
    there += key != core::kNoRow;
  }
  __syncwarp();
  there = __reduce_add_sync(kFullWarp, there);
  if (there < k) return 0;
  std::uint32_t high = 0;
  std::uint32_t reached = there;  // keys that reach the cut so far
  for (int bit = 31; bit >= 0 && reached != k; bit--) {
    const std::uint32_t candidate = high | (1u << bit);
    std::uint32_t count = 0;
#pragma unroll 4
    for (int i = lane; i < n; i += kWarp) count += high_words[i] >= candidate;
    count = __reduce_add_sync(kFullWarp, count);
    if (count >= k) {
      high = candidate;
      reached = count;
    }
  }
  std::uint64_t cut = static_cast<std::uint64_t>(high) << 32;
  for (int bit = 31; bit >= 0 && reached != k; bit--) {  // ties at the border: the smaller positions win
    const std::uint64_t candidate = cut | (std::uint64_t{1} << bit);
    std::uint32_t count = 0;
#pragma unroll 8
    for (int i = lane; i < n; i += kWarp) count += published(i) >= candidate;
    count = __reduce_add_sync(kFullWarp, count);
    if (count >= k) {
      cut = candidate;
      reached = count;
    }
  }
  return cut;
}

__device__ __forceinline__ unsigned long long common_threshold(const scan_args& args) {
  return *reinterpret_cast<volatile unsigned long long*>(&args.control->threshold);
}

/// Publishes the block's best keys and, if `raise`, lifts the common threshold. One warp at a time; others go on.
__device__ __noinline__ void refresh_threshold(const scan_args& args, scan_shared& shared, int lane, bool raise) {
  int free = 1;
  if (lane == 0) free = atomicCAS(&shared.refresh_lock, 0u, 1u) == 0u;
  if (!__shfl_sync(kFullWarp, free, 0)) return;
  publish_best(args, shared, lane);
  __syncwarp();
  const std::uint64_t threshold = raise ? published_cut(args, shared, lane) : 0;
  if (lane == 0) {
    const std::uint64_t common = common_threshold(args);
    if (threshold > common) atomicMax(&args.control->threshold, threshold);
    atomicMax(&shared.threshold, max(threshold, common));
    shared.refreshed_at = *reinterpret_cast<volatile std::uint32_t*>(&shared.list_count);
    __threadfence_block();
    atomicExch(&shared.refresh_lock, 0u);
  }
  __syncwarp();
}

/// The cut that all blocks' published keys give, by the whole block; 1 if fewer than k are published. `room` is shared
/// memory for kMaxBlocks x kMaxPublished keys.
__device__ std::uint64_t block_published_cut(const scan_args& args, scan_shared& shared, std::uint64_t* room) {
  constexpr int kPerThread = (kMaxBlocks * kMaxPublished + kThreads - 1) / kThreads;
  const int n = gridDim.x * args.publish;
  if (threadIdx.x == 0) shared.gathered = 0;
  __syncthreads();
  std::uint64_t keys[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; i++) {
    const int j = i * kThreads + threadIdx.x;
    keys[i] = j < n ? __ldcg(args.published + j / args.publish * kMaxPublished + j % args.publish) : core::kNoRow;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; i++)
    if (keys[i] != core::kNoRow) room[atomicAdd(&shared.gathered, 1u)] = keys[i];
  __syncthreads();
  const std::uint32_t there = shared.gathered;
  return there < static_cast<std::uint32_t>(args.k) ? 1 : block_cut<kThreads>(room, there, args.k, shared.select);
}

/// The block's last word: its final best, the threshold that all blocks have reached by now, and, where its list is
/// still too long for its slots, what the published keys say.
__device__ __noinline__ void refresh_at_end(const scan_args& args, scan_shared& shared, std::uint64_t* room) {
  if (threadIdx.x < kWarp) publish_best(args, shared, threadIdx.x);
  if (threadIdx.x == kWarp) atomicMax(&shared.threshold, common_threshold(args));
  if (shared.list_count > static_cast<std::uint32_t>(args.slot_capacity)) {
    const std::uint64_t cut = block_published_cut(args, shared, room);
    if (threadIdx.x == 0) {
      atomicMax(&args.control->threshold, cut);
      atomicMax(&shared.threshold, cut);
    }
  }
  __syncthreads();
}

/// How many rows a lane holds at once: sixteen bytes of rows beside each four query elements, whatever the type.
template <element_type E>
inline constexpr int kRowsPerLane = 16 / sizeof(typename quad<E>::raw);

/// Chunks of 128 elements that a lane loads ahead without bulk copies: as many as its registers hold.
template <element_type E>
inline constexpr int kDirectChunks = E == element_type::f32 ? 3
                                     : kRowsPerLane<E> == 2 ? 2
                                                            : 1;

/// Which quad of a chunk a lane reads as its v-th. Eight lanes of a narrow row cover only a part of the banks, so the
/// rows of a pass start at different quads; the tree is the same for any exclusive-or of v, since pairs stay pairs.
template <element_type E>
__device__ __forceinline__ int quad_of(int v, int lane) {
  const int turned = E == element_type::f32 ? v : v ^ (lane / kLanesPerRow);
  return turned * kLanesPerRow + lane % kLanesPerRow;
}

/// Partial sums of rows in shared memory, `stride` bytes apart: row r of the lane is row r * kRowsPerPass + lane / 8.
template <element_type E, bool L2>
__device__ __forceinline__ void sums_from_shared(const unsigned char* rows, int stride, const float4* query, int lane,
                                                 float (&sums)[kRowsPerLane<E>][kQuadsPerLane][4]) {
  using raw = typename quad<E>::raw;
  constexpr int kChunkBytes = kWarp * sizeof(raw);
  const unsigned char* mine = rows + lane / kLanesPerRow * stride;
  const int whole = stride / kChunkBytes;
#pragma unroll 1
  for (int t = 0; t < whole; t++) {
#pragma unroll
    for (int v = 0; v < kQuadsPerLane; v++) {
      const int at = quad_of<E>(v, lane);
      const float4 q = query[t * kWarp + at];
#pragma unroll
      for (int r = 0; r < kRowsPerLane<E>; r++) {
        const auto* x = reinterpret_cast<const raw*>(mine + r * kRowsPerPass * stride + t * kChunkBytes) + at;
        step4<L2>(q, quad<E>::widen(*x), sums[r][v]);
      }
    }
  }
  const int rest = stride - whole * kChunkBytes;  // the last chunk, if partial: zeros beyond the row take no step
  if (rest == 0) return;
#pragma unroll
  for (int v = 0; v < kQuadsPerLane; v++) {
    const int at = quad_of<E>(v, lane);
    const float4 q = query[whole * kWarp + at];
#pragma unroll
    for (int r = 0; r < kRowsPerLane<E>; r++) {
      const auto* x = reinterpret_cast<const raw*>(mine + r * kRowsPerPass * stride + whole * kChunkBytes) + at;
      if (at * static_cast<int>(sizeof(raw)) < rest) step4<L2>(q, quad<E>::widen(*x), sums[r][v]);
    }
  }
}

/// The same straight from global memory, for rows too long for the ring of stages.
template <element_type E, bool L2>
__device__ __forceinline__ void sums_from_global(const unsigned char* rows, std::int64_t stride, int rows_left,
                                                 const float4* query, int lane,
                                                 float (&sums)[kRowsPerLane<E>][kQuadsPerLane][4]) {
  using raw = typename quad<E>::raw;
  constexpr int kChunkBytes = kWarp * sizeof(raw);
  const unsigned char* mine = rows + lane / kLanesPerRow * stride;
  for (std::int64_t chunk = 0; chunk < stride;
       chunk += kDirectChunks<E> * kChunkBytes, query += kDirectChunks<E> * kWarp) {
    raw x[kDirectChunks<E>][kQuadsPerLane][kRowsPerLane<E>];
#pragma unroll
    for (int t = 0; t < kDirectChunks<E>; t++)
#pragma unroll
      for (int v = 0; v < kQuadsPerLane; v++) {
        const std::int64_t at =
            chunk + t * kChunkBytes + (v * kLanesPerRow + lane % kLanesPerRow) * static_cast<int>(sizeof(raw));
#pragma unroll
        for (int r = 0; r < kRowsPerLane<E>; r++) {
          x[t][v][r] = raw{};
          if (at < stride && r * kRowsPerPass + lane / kLanesPerRow < rows_left)
            x[t][v][r] = load_streaming(reinterpret_cast<const raw*>(mine + r * kRowsPerPass * stride + at));
        }
      }
#pragma unroll
    for (int t = 0; t < kDirectChunks<E>; t++)
#pragma unroll
      for (int v = 0; v < kQuadsPerLane; v++) {
        const int at = v * kLanesPerRow + lane % kLanesPerRow;
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
    float sums[1][kQuadsPerLane][4] = {};
    const auto* q4 = reinterpret_cast<const float4*>(query);
    for (int t = 0; t < padded / core::kPartialSums; t++) {
#pragma unroll
      for (int v = 0; v < kQuadsPerLane; v++) {  // four times the same row; the padding's square is +0: no step
        const float4 q = q4[t * kWarp + v * kLanesPerRow + threadIdx.x % kLanesPerRow];
        step4<false>(q, q, sums[0][v]);
      }
    }
    const float sum = finish_sums<1>(sums, threadIdx.x);
    if (threadIdx.x == 0) shared.query_inverse_norm = core::inverse_norm(sum);
  }
  __syncthreads();
}

/// Cuts the block's list by the threshold, and to its own k best where the slots cannot hold it, into the slots.
__device__ __noinline__ void write_slots(const scan_args& args, scan_shared& shared) {
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
  std::uint64_t* slots = args.slots + static_cast<std::int64_t>(blockIdx.x) * args.slot_capacity;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const std::uint64_t key = list[i];
    if (key >= cut) slots[atomicAdd(&shared.kept, 1u)] = key;
  }
  __syncthreads();
  if (threadIdx.x == 0) args.slot_counts[blockIdx.x] = shared.kept;
}

/// Writes list entry i: score and label, or padding for i >= found.
__device__ __forceinline__ void write_result(const scan_args& args, int i, std::uint64_t key) {
  if (key == core::kNoRow) {
    args.scores[i] = core::worst_score(args.by);
    args.labels[i] = core::kNoId;
    return;
  }
  const std::uint32_t position = core::position_of(key);
  args.scores[i] = core::score_from_key(core::key_of(key), args.by);
  args.labels[i] = args.ids ? args.ids[position] : static_cast<std::int64_t>(position);
}

/// Where each block's keys begin among all: shared.offsets[0 .. blocks], an exclusive sum of the slot counts.
__device__ void place_slots(const scan_args& args, scan_shared& shared) {
  const int blocks = gridDim.x;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int b = threadIdx.x;
  const std::uint32_t mine = b < blocks ? __ldcg(args.slot_counts + b) : 0;
  std::uint32_t sum = mine;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const std::uint32_t other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) shared.select.totals[0][warp] = sum;
  __syncthreads();
  std::uint32_t before = 0;
  for (int w = 0; w < warp; w++) before += shared.select.totals[0][w];
  if (b <= blocks) shared.offsets[b] = before + sum - mine;
  __syncthreads();
}

/// Sorts the `found` keys in `best` by counting how many are better: several threads a key, no barrier between steps.
__device__ void rank_and_write(const scan_args& args, const std::uint64_t* best, std::uint32_t found) {
  int helpers = 1;
  while (helpers < kWarp && found * helpers * 2 <= kThreads) helpers *= 2;
  const std::uint32_t i = threadIdx.x / helpers;
  const std::uint64_t mine = i < found ? best[i] : core::kNoRow;
  std::uint32_t rank = 0;
#pragma unroll 2
  for (std::uint32_t j = threadIdx.x % helpers; j < found; j += helpers) rank += best[j] > mine;
  for (int offset = helpers / 2; offset > 0; offset /= 2) rank += __shfl_xor_sync(kFullWarp, rank, offset);
  if (i < found && threadIdx.x % helpers == 0 && rank < static_cast<std::uint32_t>(args.k))
    write_result(args, static_cast<int>(rank), mine);
}

/// Merges the slots of all blocks. `gathered` is the ring's memory.
__device__ __noinline__ void merge_slots(const scan_args& args, scan_shared& shared, std::uint64_t* gathered) {
  const int blocks = gridDim.x;
  const std::uint32_t k = args.k;
  const std::uint32_t capacity = args.ring_bytes / sizeof(std::uint64_t) - kScanMaxK;
  std::uint64_t* best = gathered + capacity;  // the k best, unsorted, then sorted
  if (threadIdx.x == 0) shared.kept = 0;
  place_slots(args, shared);
  const std::uint32_t total = shared.offsets[blocks];
  // What all blocks have published by now cuts most of what they kept.
  std::uint64_t cut = max(static_cast<std::uint64_t>(common_threshold(args)), std::uint64_t{1});
  if (total > k) cut = max(cut, block_published_cut(args, shared, gathered));
  __syncthreads();  // `gathered` held the published keys

  // A few threads a block; each loads several keys ahead, since their latency is all that this step costs.
  const int helpers = max(1, kThreads / blocks);
  const auto visit = [&](auto&& f) {
    constexpr int kAhead = 8;
    for (int b = threadIdx.x / helpers; b < blocks; b += kThreads / helpers) {
      const std::uint64_t* slots = args.slots + static_cast<std::int64_t>(b) * args.slot_capacity;
      const std::uint32_t n = shared.offsets[b + 1] - shared.offsets[b];
#pragma unroll 1
      for (std::uint32_t i = threadIdx.x % helpers; i < n; i += kAhead * helpers) {
        std::uint64_t keys[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; j++) keys[j] = i + j * helpers < n ? __ldcg(slots + i + j * helpers) : core::kNoRow;
#pragma unroll
        for (int j = 0; j < kAhead; j++) f(keys[j] >= cut ? keys[j] : core::kNoRow);
      }
    }
  };
  visit([&](std::uint64_t key) {
    if (key == core::kNoRow) return;
    const std::uint32_t at = atomicAdd(&shared.kept, 1u);
    if (at < capacity) gathered[at] = key;
  });
  __syncthreads();
  std::uint32_t found = shared.kept;
  if (found <= kThreads / 2) {
    rank_and_write(args, gathered, found);
    found = min(found, k);
  } else {
    std::uint64_t exact = 1;
    if (found > k) {
      exact = found <= capacity ? block_cut<kThreads>(gathered, found, k, shared.select)
                                : block_cut_radix<kThreads>(visit, k, shared.select);
    }
    __syncthreads();
    if (threadIdx.x == 0) shared.kept = 0;
    __syncthreads();
    const auto keep = [&](std::uint64_t key) {
      if (key >= exact) best[atomicAdd(&shared.kept, 1u)] = key;
    };
    if (found <= capacity) {
      for (std::uint32_t i = threadIdx.x; i < found; i += kThreads) keep(gathered[i]);
    } else {
      visit([&](std::uint64_t key) {
        if (key != core::kNoRow) keep(key);
      });
    }
    found = min(found, k);
    std::uint32_t padded = kThreads;
    while (padded < found) padded <<= 1;
    for (std::uint32_t i = found + threadIdx.x; i < padded; i += kThreads) best[i] = core::kNoRow;
    block_sort<kThreads>(best, padded);
    for (std::uint32_t i = threadIdx.x; i < found; i += kThreads) write_result(args, i, best[i]);
  }
  for (std::uint32_t i = found + threadIdx.x; i < k; i += kThreads) write_result(args, i, core::kNoRow);
}

/// Leaves the workspace as it was found, and tells the host.
__device__ void finish_scan(const scan_args& args) {
  for (int i = threadIdx.x; i < static_cast<int>(gridDim.x) * kMaxPublished; i += kThreads) args.published[i] = 0;
  if (threadIdx.x == 0) *args.control = scan_control{};
  if (!args.done_word) return;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    *reinterpret_cast<volatile std::uint32_t*>(args.done_word) = args.done_value;
    __threadfence_system();
  }
}

template <element_type E, bool L2, bool Bulk>
__global__ void __launch_bounds__(kThreads, 1) flat_scan_kernel(const __grid_constant__ scan_args args) {
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* ring = memory;
  auto& shared = *reinterpret_cast<scan_shared*>(memory + args.ring_bytes);
  auto* query = reinterpret_cast<float*>(memory + args.ring_bytes + sizeof(scan_shared));
  const auto* q4 = reinterpret_cast<const float4*>(query);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t stride = args.row_stride_bytes;
  const int stage_rows = args.stage_rows;
  const std::uint32_t groups = (args.count + stage_rows - 1) / stage_rows;
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
  constexpr int kRowsAtOnce = kRowsPerPass * kRowsPerLane<E>;
  const int my_row = finished_row<kRowsPerLane<E>>(lane) * kRowsPerPass + lane / kLanesPerRow;
  const bool leads = leads_finished_row<kRowsPerLane<E>>(lane);
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
      if (lane == 0 && draw % kDrawsPerLook == 0) common = common_threshold(args);
      if constexpr (Bulk) barrier_wait(&shared.barriers[slot], parity);
      const unsigned char* staged = ring + slot * stage_bytes;
      std::uint32_t appended = 0;

      for (int r0 = 0; r0 < stage_rows; r0 += kRowsAtOnce) {
        const std::int64_t first = static_cast<std::int64_t>(group) * stage_rows + r0;
        if (first >= args.count) break;
        const std::int64_t row = first + my_row;
        float sums[kRowsPerLane<E>][kQuadsPerLane][4] = {};
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
        const float score =
            score_of(finish_sums<kRowsPerLane<E>>(sums, lane), args.by, query_inverse_norm, row_inverse_norm);
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
  refresh_at_end(args, shared, reinterpret_cast<std::uint64_t*>(ring));
  write_slots(args, shared);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) shared.is_last = atomicAdd(&args.control->ticket, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!shared.is_last) return;
  __threadfence();
  merge_slots(args, shared, reinterpret_cast<std::uint64_t*>(ring));
  finish_scan(args);
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
  const std::int64_t warps = std::min<std::int64_t>(kWarps, slots / 2);
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

}  // namespace

std::int64_t scan_workspace_bytes(std::int64_t max_rows, std::int64_t max_k, int multiprocessors) {
  return layout_of(max_rows, max_k, std::min(multiprocessors, kMaxBlocks)).total;
}

void launch_flat_scan(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus,
                      const core::flat_request& request, const float* host_query, completion_flag done,
                      int multiprocessors) {
  const int blocks = std::min(multiprocessors, kMaxBlocks);
  const std::int64_t padded_dim = (corpus.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  const std::int64_t fixed_bytes = sizeof(scan_shared) + padded_dim * sizeof(float);
  const std::int64_t ring_bytes = (kSharedBytes - fixed_bytes) / 128 * 128;
  const int rows_at_once = kRowsPerPass * 4 / static_cast<int>(size_bytes(corpus.type));
  const ring_shape ring =
      choose_ring(corpus.row_stride_bytes, corpus.inverse_norms ? sizeof(float) : 0, rows_at_once, ring_bytes);
  auto* base = static_cast<unsigned char*>(workspace);
  const workspace_layout at = layout_of(corpus.count, request.k, blocks);

  scan_args args{};
  args.rows = static_cast<const unsigned char*>(corpus.rows);
  args.inverse_norms = corpus.inverse_norms;
  args.ids = corpus.ids;
  args.query = host_query ? nullptr : request.queries;
  args.scores = request.scores;
  args.labels = request.ids;
  args.control = reinterpret_cast<scan_control*>(base);
  args.published = reinterpret_cast<unsigned long long*>(base + at.published);
  args.slot_counts = reinterpret_cast<std::uint32_t*>(base + at.slot_counts);
  args.slots = reinterpret_cast<std::uint64_t*>(base + at.slots);
  args.spill = reinterpret_cast<std::uint64_t*>(base + at.spill);
  args.done_word = done.word;
  args.done_value = done.value;
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
  args.spill_capacity = (groups + blocks - 1) / blocks * ring.stage_rows;
  args.by = corpus.metric;
  if (host_query) std::copy_n(host_query, corpus.dim, args.inline_query);

  const kernel_pointer kernel = kernel_of(corpus.type, corpus.metric == metric::l2, ring.bulk);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kSharedBytes)),
        "raising the scan's shared memory");
  kernel<<<blocks, kThreads, kSharedBytes, stream>>>(args);
  check(cudaGetLastError(), "launching the flat scan");
}

}  // namespace shortlist::cuda
