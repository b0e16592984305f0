// Rows on their way to the warps of a block that has a multiprocessor to itself: whichever warp is free takes the next.
//
// Rows take unequally long, and the scheduler serves some warps before others, so that warps with equal shares end far
// apart: of 24 of them, 18 were at work on the average. A few rows at a time have a slot in shared memory, of which
// there are more than warps. Slots are filled by the copy engine, each completing on a barrier of its own; warps take
// them in turn, and fill each again when they have done with it.
#pragma once

#include <cstdint>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/score.cuh"

namespace shortlist::cuda {

/// The rows of a slot: the block's `order`-th share.
struct queued_rows {
  std::uint32_t slot;
  std::uint32_t turn;  // how often the slot was filled before
  std::uint32_t order;
  bool there;  // else the block has no more
};

/// In shared memory. @tparam Together all lanes of a warp call `fetch`; else one does.
template <bool Together>
class row_queue {
 public:
  static constexpr std::uint32_t kMaxSlots = 64;

  /// All threads call it, and meet afterwards. @param count of the block's shares. @param fetch see fill.
  /// @return a warp's first rows. @pre slots >= the block's warps, of which the first `slots` shares begin to arrive.
  template <class Fetch>
  __device__ __forceinline__ queued_rows begin(std::uint32_t slots, std::uint32_t count, Fetch fetch) {
    const std::uint32_t warp = threadIdx.x / kWarp;
    const std::uint32_t warps = blockDim.x / kWarp;
    if (threadIdx.x == 0) next_ = slots == warps ? 0 : warps;
    const auto fill_all = [&] {
      for (std::uint32_t slot = warp; slot < slots; slot += warps) fill(slot, 0, slots, count, fetch);
      if (warp < count && (!Together || threadIdx.x % kWarp == 0)) turns_[warp] = kTaken;
    };
    if (threadIdx.x % kWarp == 0) {
      for (std::uint32_t slot = warp; slot < slots; slot += warps) barrier_init(barriers_ + slot, Together ? kWarp : 1);
      barrier_init_fence();
      if constexpr (!Together) fill_all();
    }
    if constexpr (Together) {
      __syncwarp();
      fill_all();
    }
    return {warp, 0, warp, warp < count};
  }
  __device__ __forceinline__ void wait(const queued_rows& rows) { barrier_wait(barriers_ + rows.slot, rows.turn % 2); }
  /// Fills the slot of rows that a warp has done with, and takes the next. All lanes of the warp call it.
  template <class Fetch>
  __device__ __forceinline__ queued_rows next_after(const queued_rows& rows, std::uint32_t slots, std::uint32_t count,
                                                    Fetch fetch) {
    std::uint32_t word = 0;
    if constexpr (Together) fill(rows.slot, rows.turn + 1, slots, count, fetch);
    if (threadIdx.x % kWarp == 0) {
      if constexpr (!Together) fill(rows.slot, rows.turn + 1, slots, count, fetch);
      word = take(slots);
    }
    word = __reduce_max_sync(kFullWarp, word);  // all lanes have the same, and the compiler knows
    const std::uint32_t slot = word % kMaxSlots;
    const std::uint32_t turn = word / kMaxSlots;
    return {slot, turn, turn * slots + slot, word != kNoMore};
  }
  /// The same where warps bring the rows themselves, each to a slot of its own.
  __device__ __forceinline__ queued_rows next_unfetched(std::uint32_t count) {
    const std::uint32_t order = __reduce_max_sync(kFullWarp, threadIdx.x % kWarp == 0 ? atomicAdd(&next_, 1u) : 0u);
    return {threadIdx.x / kWarp, 0, order, order < count};
  }

 private:
  static constexpr std::uint32_t kTaken = ~0u;
  static constexpr std::uint32_t kNoMore = ~1u;

  /// @param fetch fetch(order, slot, barrier) begins to bring a share; all threads that call it arrive at the barrier.
  template <class Fetch>
  __device__ __forceinline__ void fill(std::uint32_t slot, std::uint32_t turn, std::uint32_t slots, std::uint32_t count,
                                       Fetch fetch) {
    const std::uint32_t order = turn * slots + slot;
    if (order < count) fetch(order, slot, barriers_ + slot);
    if (!Together || threadIdx.x % kWarp == 0) atomicExch(turns_ + slot, order < count ? turn : kNoMore);
  }
  __device__ __forceinline__ std::uint32_t take(std::uint32_t slots) {
    const std::uint32_t slot = atomicInc(&next_, slots - 1);
    std::uint32_t turn;
    do {
      turn = atomicExch(turns_ + slot, kTaken);
    } while (turn == kTaken);  // what was there before is still searched
    if (turn != kNoMore) return turn * kMaxSlots + slot;
    atomicExch(turns_ + slot, kNoMore);
    return kNoMore;
  }

  std::uint64_t barriers_[kMaxSlots];
  std::uint32_t turns_[kMaxSlots];  // of what is in a slot, or on its way there
  std::uint32_t next_;              // slot
};

constexpr std::int64_t kQueueBytes = (sizeof(row_queue<false>) + 127) / 128 * 128;

}  // namespace shortlist::cuda
