// What the scans of one query have in common: a block's list of keys, the threshold that all blocks raise together, and
// how a block hands its best to the merge. See scan.cu and certified_scan.cu.
//
// A key of a row is one that the row's own key reaches: its score's, or that of a bound from below.
#pragma once

#include "core/order.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/flat/scan_merge.cuh"

namespace shortlist::cuda {

inline constexpr int kScanThreads = 512;
inline constexpr int kScanWarps = kScanThreads / kWarp;
inline constexpr int kSlotsPerWarp = 32;            ///< rows that a warp tells apart, at most
inline constexpr int kListCapacity = 512;           ///< keys of a block in shared memory; the rest spills
inline constexpr std::uint32_t kDrawsPerLook = 16;  ///< at every draw, looks at the threshold slow the scan by a tenth
inline constexpr std::uint32_t kPressure = 512;     ///< appended keys after which the threshold is raised out of turn
inline constexpr std::int64_t kScanSharedBytes = 184 * 1024;  ///< leaves room for the merge on the same multiprocessor

/// A search, as the kernel of a scan gets it.
struct scan_search {
  const float* query;  ///< null: it travels with the kernel's other parameters
  scan_control* control;
  unsigned long long* published;  ///< [blocks, kMaxPublished]
  std::uint32_t* slot_counts;     ///< [blocks]
  std::uint64_t* slots;           ///< [blocks, slot_capacity]
  std::uint64_t* spill;           ///< [blocks, spill_capacity]
  std::int64_t spill_capacity;
  std::uint32_t count;
  std::int32_t dim;
  std::int32_t k;
  std::int32_t publish;       ///< keys a block publishes, a power of two
  std::int32_t sets;          ///< of its row slots that they are made from
  std::int32_t rows_per_key;  ///< that a published key stands for
  std::int32_t warps;         ///< warps that scan; the others only help at the end
  std::int32_t warp_slots;    ///< row slots of a warp
  std::int32_t slot_capacity;
  metric by;
};

/// What a block keeps of it in shared memory.
struct alignas(16) scan_selection {
  std::uint64_t list[kListCapacity];
  std::uint64_t slot_best[kScanWarps * kSlotsPerWarp];  // the best key of every (warp, row slot)
  select_scratch<kScanThreads> select;
  std::uint64_t* published;  // [blocks, publish], a warp's copy while it raises the threshold
  unsigned long long threshold;
  float query_inverse_norm;
  std::uint32_t next_draw;  // of a group of rows
  std::uint32_t list_count;
  std::uint32_t refreshed_at;  // how many keys had been appended at the last refresh
  std::uint32_t refresh_lock;
  std::uint32_t kept;
};

/// Bytes of shared memory that `scan_selection::published` points at.
inline std::int64_t published_bytes(const scan_search& search, int blocks) {
  return std::int64_t{8} * blocks * search.publish;
}

/// Before the block's first barrier.
__device__ __forceinline__ void clear_selection(scan_selection& shared, std::uint64_t* published,
                                                std::uint32_t first_draw) {
  for (int i = threadIdx.x; i < kScanWarps * kSlotsPerWarp; i += kScanThreads) shared.slot_best[i] = core::kNoRow;
  if (threadIdx.x != 0) return;
  shared.published = published;
  shared.threshold = 0;
  shared.query_inverse_norm = 0.0f;
  shared.next_draw = first_draw;
  shared.list_count = 0;
  shared.refreshed_at = 0;
  shared.refresh_lock = 0;
  shared.kept = 0;
}

__device__ __forceinline__ unsigned long long threshold_of(const scan_selection& shared) {
  return *reinterpret_cast<const volatile unsigned long long*>(&shared.threshold);
}

/// A block's list: `near` in shared memory, then its spill.
struct block_list {
  std::uint64_t* near;
  std::uint64_t* far;
  __device__ std::uint64_t& operator[](std::uint32_t i) const {
    return i < kListCapacity ? near[i] : far[i - kListCapacity];
  }
};

__device__ __forceinline__ block_list list_of(const scan_search& args, scan_selection& shared) {
  return {shared.list, args.spill + static_cast<std::int64_t>(blockIdx.x) * args.spill_capacity};
}

// ---- the threshold

/// The best key of every set of row slots, in the lanes [0, sets).
__device__ __forceinline__ std::uint64_t best_of_sets(const scan_search& args, std::uint64_t key) {
#pragma unroll 1
  for (int offset = kWarp / 2; offset >= args.sets; offset /= 2)
    key = max(key, __shfl_xor_sync(kFullWarp, key, offset));
  return key;
}

/// How many of the lanes [0, sets) have a better key than this one's, or the same and come before.
__device__ __forceinline__ int rank_in_sets(const scan_search& args, std::uint64_t key, int lane) {
  int before = 0;
#pragma unroll 4
  for (int other = 0; other < args.sets; other++) {
    const std::uint64_t theirs = __shfl_sync(kFullWarp, key, other);
    before += theirs > key || (theirs == key && other < lane);
  }
  return before;
}

/// Publishes what the best keys of the block's sets of row slots say: each of them, or, where a key is to stand for
/// several rows, every second or fourth in their order. A row's key belongs to one set only, and a set's best only
/// rises, and so do these: readers never count a row twice, whenever they look. One warp.
__device__ __forceinline__ void publish_best(const scan_search& args, const scan_selection& shared, int lane) {
  const volatile std::uint64_t* best = shared.slot_best;
  const int slots = kScanWarps * args.warp_slots;
  std::uint64_t key = core::kNoRow;
#pragma unroll 4
  for (int i = lane; i < slots; i += kWarp) key = max(key, best[i]);
  key = best_of_sets(args, key);
  volatile unsigned long long* mine = args.published + blockIdx.x * kMaxPublished;
  if (args.rows_per_key == 1) {
    if (lane < args.publish) mine[lane] = key;
    return;
  }
  const int before = rank_in_sets(args, key, lane);
  const int at = before / args.rows_per_key;
  if (lane < args.sets && at < args.publish && (before + 1) % args.rows_per_key == 0) mine[at] = key;
}

/// How far beyond k a threshold's count may be: the rest of a scan lets that much more pass.
__device__ __forceinline__ std::uint32_t threshold_slack_of(std::uint32_t k) { return k / 32 + 2; }

/// A threshold that at least k of the rows reach that published keys stand for; 0 if they are fewer. One warp.
__device__ __forceinline__ std::uint64_t published_cut(const scan_search& args, scan_selection& shared, int lane) {
  const int n = gridDim.x * args.publish;
  const std::uint32_t k = published_keys_of(args.k, args.rows_per_key);
  std::uint64_t* keys = shared.published;
  std::uint32_t there = 0;
  unsigned long long smallest = ~0ull;
  unsigned long long largest = 0;
#pragma unroll 12
  for (int i = lane; i < n; i += kWarp) {  // its cost is the loads' latency while the scan fills the memory
    const std::uint64_t key = published_key(args.published, args.publish, i);
    keys[i] = key;
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
  return search_cut(smallest + 1, there, largest, k, threshold_slack_of(k), [&](std::uint64_t cut) {
    std::uint32_t count = 0;
#pragma unroll 4
    for (int i = lane; i < n; i += kWarp) count += keys[i] >= cut;
    return __reduce_add_sync(kFullWarp, count);
  });
}

struct nothing_before {
  __device__ void operator()() const {}
};

/// Publishes the block's best keys and, if `raise`, lifts the common threshold. One warp at a time; others go on.
/// `appended()` is how many keys the block's lists hold; `before()` is called by the warp that does it. @returns
/// whether this warp did.
template <class Appended, class Before = nothing_before>
__device__ __forceinline__ bool refresh_threshold(const scan_search& args, scan_selection& shared, int lane, bool raise,
                                                  Appended appended, Before before = {}) {
  int free = 1;
  if (lane == 0) free = atomicCAS(&shared.refresh_lock, 0u, 1u) == 0u;
  if (!__shfl_sync(kFullWarp, free, 0)) return false;
  before();
  publish_best(args, shared, lane);
  __syncwarp();
  const std::uint64_t threshold = raise ? published_cut(args, shared, lane) : 0;
  if (lane == 0) {
    const std::uint64_t common = common_threshold(args.control);
    if (threshold > common) atomicMax(&args.control->threshold, threshold);
    atomicMax(&shared.threshold, max(threshold, common));
    shared.refreshed_at = appended();
    __threadfence_block();
    atomicExch(&shared.refresh_lock, 0u);
  }
  __syncwarp();
  return true;
}

// ---- the end of a block

/// The block's last word: its final best, and, unless it has few rows, the threshold that all blocks have reached by
/// now; where the list is still too long for its slots, what the published keys say.
__device__ __forceinline__ void refresh_at_end(const scan_search& args, scan_selection& shared, std::uint32_t rows,
                                               std::uint32_t few_rows, std::uint32_t listed) {
  const bool is_short = rows <= few_rows;
  if (threadIdx.x < kWarp) {
    const int lane = threadIdx.x;
    std::uint64_t threshold = is_short ? 0 : common_threshold(args.control);  // on its way meanwhile
    publish_best(args, shared, lane);
    if (!is_short) {
      if (listed > static_cast<std::uint32_t>(args.slot_capacity))
        threshold = max(threshold, published_cut(args, shared, lane));
      if (lane == 0) atomicMax(&shared.threshold, static_cast<unsigned long long>(threshold));
    }
  }
  if (!is_short) __syncthreads();
}

/// Cuts the block's list by the threshold, and to its own k best where the slots cannot hold it, into the slots: best
/// first where few remain, so that the merge reads no more of them than it needs. `room` is the ring's memory.
__device__ __forceinline__ void write_slots(const scan_search& args, scan_selection& shared, std::uint64_t* room) {
  const block_list list = list_of(args, shared);
  const std::uint32_t count = shared.list_count;
  std::uint64_t cut = max(static_cast<std::uint64_t>(shared.threshold), std::uint64_t{1});
  if (count > static_cast<std::uint32_t>(args.slot_capacity)) {
    int phase = 0;
    std::uint32_t passing = 0;
    for (std::uint32_t i = threadIdx.x; i < count; i += kScanThreads) passing += list[i] >= cut;
    passing = block_sum<kScanThreads>(passing, shared.select, phase);
    if (passing > static_cast<std::uint32_t>(args.slot_capacity)) {
      const auto visit = [&](auto&& f) {
        for (std::uint32_t i = threadIdx.x; i < count; i += kScanThreads) {
          const std::uint64_t key = list[i];
          f(key >= cut ? key : core::kNoRow);
        }
      };
      cut = max(cut, block_cut_radix<kScanThreads>(visit, args.k, shared.select));
    }
  }
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < count; i += kScanThreads) {
    const std::uint64_t key = list[i];
    if (key >= cut) room[atomicAdd(&shared.kept, 1u)] = key;
  }
  __syncthreads();
  const std::uint32_t kept = shared.kept;
  std::uint64_t* slots = args.slots + static_cast<std::int64_t>(blockIdx.x) * args.slot_capacity;
  if (kept > kSortedSlots) {
    for (std::uint32_t i = threadIdx.x; i < kept; i += kScanThreads) slots[i] = room[i];
  } else {
    rank_by_counting<kScanThreads>(room, kept, [&](std::uint32_t rank, std::uint64_t key) { slots[rank] = key; });
  }
  if (threadIdx.x == 0) args.slot_counts[blockIdx.x] = kept;
}

}  // namespace shortlist::cuda
