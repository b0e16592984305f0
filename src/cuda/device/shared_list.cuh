// A list that a cluster's blocks fill together, in the first block's shared memory: each block its own share of it, so
// that none waits for another's count.
#pragma once

#include <bit>
#include <cstdint>

#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster_send.cuh"
#include "cuda/device/warp_sum.cuh"

namespace shortlist::cuda {

constexpr int kMostBlocks = 8;  // of a cluster: what every GPU that has clusters grants

/// How many blocks all run at a time, one a multiprocessor, in clusters of so many: those of four and eight are not
/// placed on every multiprocessor.
inline int blocks_at_a_time(int cluster, int multiprocessors) {
  return cluster <= 2 ? multiprocessors : multiprocessors * 15 / 16;
}

/// Whether a row may have twice as many blocks, if so many run at a time.
inline bool blocks_can_double(std::int64_t rows, std::int64_t columns, int blocks, std::int64_t at_a_time) {
  constexpr std::int64_t kLeastColumns = 4096;  // a block: fewer do not pay for its part in the meetings
  return rows * blocks * 2 <= at_a_time && columns >= 2 * kLeastColumns * blocks;
}

/// Blocks of a row: as many as all run at a time, one a multiprocessor.
inline int blocks_of_row(std::int64_t rows, std::int64_t columns, int multiprocessors) {
  int blocks = 1;
  while (blocks < kMostBlocks &&
         blocks_can_double(rows, columns, blocks, blocks_at_a_time(2 * blocks, multiprocessors)))
    blocks *= 2;
  return blocks;
}

/// A block in its cluster, and its list, which in the first block is in shares.
struct cluster_place {
  std::uint32_t rank;
  std::uint32_t blocks;
  std::uint64_t* own;
  std::uint32_t capacity;

  /// Keys that a block has room for in the first one's list.
  __device__ __forceinline__ std::uint32_t share() const { return capacity >> shift_of(blocks); }
};

template <int Threads>
struct share_scratch {
  static constexpr std::uint32_t kWarps = Threads / kWarp;
  std::uint32_t bins[Threads];
  std::uint32_t warp_counts[kWarps];
  std::uint32_t listed[kMostBlocks];  // keys that each block has appended
  std::uint32_t best[kMostBlocks];    // the largest value key that each has seen
  std::uint32_t appended;             // by this block, those without room counted
  bool refused;                       // keys are missing, whatever the count says
  std::uint32_t border;
  std::uint32_t sure;  // keys before it
  std::uint64_t told;
  select_scratch<Threads> select;
};

/// By one thread, before the blocks are told that this one has begun.
template <int Threads>
__device__ __forceinline__ void init_shares(std::uint32_t blocks, share_scratch<Threads>& scratch) {
  if (blocks > 1) barrier_init(&scratch.told, blocks);
  scratch.appended = 0;
  scratch.refused = false;
}

/// Puts a key at one of the places that were appended to the block's share of the list.
template <int Threads>
__device__ __forceinline__ void put_in_share(std::uint32_t at, std::uint64_t key, const cluster_place& place,
                                             share_scratch<Threads>& scratch) {
  if (at >= place.share()) return;
  if (place.blocks == 1)
    place.own[at] = key;
  else
    send_to_block(place.own + place.rank * place.share() + at, 0, key, &scratch.told);
}

/// What all blocks know when the list is filled.
struct told_shares {
  std::uint32_t best;
  bool fit;
};

/// What a block tells the first one beside: nothing. Of others, note() is called by all threads, joined() by those of
/// the first warp, and one of them tells what they have joined, in so many bytes that arrive on the shares' barrier.
struct tells_no_more {
  static constexpr std::uint32_t kBytes = 0;
  __device__ __forceinline__ void note() const {}
  __device__ __forceinline__ std::uint32_t joined() const { return 0; }
  __device__ __forceinline__ void tell(std::uint32_t /*joined*/) const {}
};

/// Tells the blocks this one's count and best key. All threads of the cluster come, for the `time`-th time; the list is
/// complete after it.
template <int Threads, class More = tells_no_more>
__device__ __forceinline__ told_shares tell_shares(std::uint32_t best, const cluster_place& place,
                                                   share_scratch<Threads>& scratch, std::uint32_t time = 0,
                                                   const More& more = {}) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  scratch.bins[threadIdx.x] = 0;
  best = __reduce_max_sync(kFullWarp, best);
  if (lane == 0) scratch.warp_counts[threadIdx.x / kWarp] = best;
  more.note();
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const std::uint32_t all = __reduce_max_sync(kFullWarp, lane < scratch.kWarps ? scratch.warp_counts[lane] : 0);
    const std::uint32_t listed = scratch.refused ? ~0u : scratch.appended;
    const std::uint32_t joined = more.joined();
    if (place.blocks == 1) {
      if (lane == 0) {
        scratch.best[0] = all;
        scratch.listed[0] = listed;
        more.tell(joined);
      }
    } else if (lane < place.blocks) {
      const std::uint32_t keys = lane == 0 ? min(scratch.appended, place.share()) : 0;
      expect_in_block(&scratch.told, lane,
                      keys * sizeof(std::uint64_t) + 2 * sizeof(std::uint32_t) + (lane == 0 ? More::kBytes : 0));
      send_to_block(scratch.best + place.rank, lane, all, &scratch.told);
      send_to_block(scratch.listed + place.rank, lane, listed, &scratch.told);
      if (lane == 0) more.tell(joined);
    }
  }
  if (place.blocks == 1)
    __syncthreads();
  else
    barrier_wait(&scratch.told, time % 2);
  const bool is_block = lane < place.blocks;
  const bool fits = !is_block || scratch.listed[lane] <= place.share();
  return {__reduce_max_sync(kFullWarp, is_block ? scratch.best[lane] : 0), __all_sync(kFullWarp, fits) != 0};
}

/// The sum of a count of the threads before this one. All threads come.
template <int Threads>
__device__ __forceinline__ std::uint32_t count_before(std::uint32_t value, share_scratch<Threads>& scratch) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t sum = running_sum(value);
  if (lane == kWarp - 1) scratch.warp_counts[threadIdx.x / kWarp] = sum;
  __syncthreads();
  const std::uint32_t of_warp = lane < threadIdx.x / kWarp ? scratch.warp_counts[lane] : 0;
  return sum - value + __reduce_add_sync(kFullWarp, of_warp);
}

/// How a list was cut: `sure` keys, those of values above `above`, are among the wanted; the values of the others
/// differ by less than 2^shift.
struct list_cut {
  std::uint32_t above = ~0u;
  std::uint32_t sure = 0;
  std::uint32_t shift = 32;

  /// Whether none of the shares' keys whose values reach `key` was left out; if not, none is known to be.
  __device__ __forceinline__ bool holds(std::uint32_t key) const {
    return shift < 32 && key > above - min(above, 1u << shift);
  }
};

/// Calls f with the keys of the first block's shares, each in one thread. The first block comes.
template <int Threads, class F>
__device__ __forceinline__ void for_each_in_shares(const cluster_place& place, const share_scratch<Threads>& scratch,
                                                   F f) {
  const std::uint32_t warp_shift = std::bit_width(scratch.kWarps) - 1 - shift_of(place.blocks);
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t from = warp >> warp_shift;
  const std::uint32_t first = (warp & ((1u << warp_shift) - 1)) * kWarp + threadIdx.x % kWarp;
  const std::uint32_t count = scratch.listed[from];
  for (std::uint32_t i = first; i < count; i += kWarp << warp_shift) f(place.own[from * place.share() + i]);
}

/// Of the keys that the blocks have put into their shares of the first block's own list, lists those of the `wanted`
/// best and a few more; no more than `Few` as they are. The first block comes; its counts are empty.
template <std::uint32_t Few, int Threads>
__device__ __forceinline__ list_cut list_from_shares(std::uint32_t wanted, std::uint32_t best, std::uint32_t cut,
                                                     const cluster_place& place, std::uint64_t* list,
                                                     std::uint32_t& listed, share_scratch<Threads>& scratch) {
  const std::uint32_t share = place.share();
  constexpr std::uint32_t kWarpBits = std::bit_width(scratch.kWarps) - 1;
  const std::uint32_t warp_shift = kWarpBits - shift_of(place.blocks);
  const std::uint32_t warps_each = 1u << warp_shift;
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t all = __reduce_add_sync(kFullWarp, lane < place.blocks ? scratch.listed[lane] : 0);
  const std::uint32_t from = warp >> warp_shift;
  const std::uint32_t count = scratch.listed[from];
  std::uint64_t* keys = place.own + from * share;
  const std::uint32_t first = (warp & (warps_each - 1)) * kWarp + lane;
  const std::uint32_t step = warps_each * kWarp;
  std::uint32_t least_bin = 0;
  constexpr int kBits = std::bit_width(static_cast<unsigned>(Threads)) - 1;
  const std::uint32_t shift = max(32 - __clz(static_cast<int>(best - cut)), kBits) - kBits;
  const auto bin_of = [&](std::uint64_t key) { return (best - core::key_of(key)) >> shift; };
  if (all > Few) {
    for (std::uint32_t i = first; i < count; i += step) atomicAdd(&scratch.bins[bin_of(keys[i])], 1u);
    if (threadIdx.x == 0) scratch.border = Threads;
    __syncthreads();
    const std::uint32_t mine = scratch.bins[threadIdx.x];
    const std::uint32_t before = count_before(mine, scratch);
    if (before < wanted && before + mine >= wanted) {
      scratch.border = threadIdx.x;
      scratch.sure = before;
    }
    __syncthreads();
    least_bin = scratch.border;
  } else {
    least_bin = Threads;
  }
  for (std::uint32_t i = first; i < count; i += step) {
    const std::uint64_t key = keys[i];
    if (bin_of(key) > least_bin) continue;
    const std::uint32_t at = atomicAdd(&listed, 1u);
    if (at < Threads) list[at] = key;
  }
  __syncthreads();
  if (listed <= Threads) {
    if (least_bin == Threads) return {};
    return {best - (least_bin << shift), scratch.sure, shift};
  }
  // Ties fill a bin.
  for (std::uint32_t i = count + first; i < share; i += step) keys[i] = core::kNoRow;
  __syncthreads();
  const std::uint64_t exact = block_cut<Threads>(place.own, share * place.blocks, wanted, 0, scratch.select);
  if (threadIdx.x == 0) listed = 0;
  __syncthreads();
  for (std::uint32_t i = first; i < count; i += step)
    if (keys[i] >= exact) list[atomicAdd(&listed, 1u)] = keys[i];
  __syncthreads();
  return {};
}

}  // namespace shortlist::cuda
