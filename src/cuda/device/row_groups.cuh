// The best of disjoint groups of a row that a cluster's blocks share: a cut that the k best reach, before any is known.
#pragma once

#include <bit>
#include <cstdint>

#include "cuda/device/cluster_send.cuh"
#include "cuda/device/score.cuh"

namespace shortlist::cuda {

constexpr int kGroups = 128;
/// Beyond so many of the groups, too few are left out for the cut to be near.
constexpr std::uint32_t kMostByGroups = 112;

/// Shared memory of a block.
template <int Threads>
struct alignas(16) row_groups {
  std::uint32_t best[kGroups];  // keys of the whole row's groups
  std::uint32_t of_threads[Threads];
  std::uint64_t arrived;  // of the groups' keys
};

/// Readies the barrier for the next time that groups are shared. By one thread, once all blocks have seen the last
/// ones.
template <int Threads>
__device__ __forceinline__ void expect_groups(std::uint32_t blocks, row_groups<Threads>& groups) {
  if (blocks > 1) barrier_expect(&groups.arrived, sizeof groups.best);
}

/// By one thread, before the blocks are told that this one has begun.
template <int Threads>
__device__ __forceinline__ void init_groups(std::uint32_t blocks, row_groups<Threads>& groups) {
  if (blocks > 1) barrier_init(&groups.arrived, 1);
  expect_groups(blocks, groups);
}

/// Joins the threads' best keys into those of the row's groups, in every block. Groups are columns of threads, so that
/// the row's best values are spread over them whatever its order. All threads of the cluster come, for the `time`-th
/// time.
template <int Threads>
__device__ __forceinline__ void share_groups(std::uint32_t blocks, std::uint32_t rank, std::uint32_t key,
                                             row_groups<Threads>& groups, std::uint32_t time = 0) {
  groups.of_threads[threadIdx.x] = key;
  __syncthreads();
  constexpr std::uint32_t kEachBits = std::bit_width(static_cast<unsigned>(Threads / kGroups)) - 1;
  const std::uint32_t shift = shift_of(blocks);
  const std::uint32_t own = kGroups >> shift;              // groups of this block
  const std::uint32_t joined = 1u << (kEachBits + shift);  // threads of one, at least `blocks`
  const std::uint32_t group = threadIdx.x >> (kEachBits + shift);
  const std::uint32_t member = threadIdx.x & (joined - 1);
  std::uint32_t best = groups.of_threads[member * own + group];
  for (std::uint32_t offset = joined / 2; offset > 0; offset /= 2)
    best = max(best, __shfl_xor_sync(kFullWarp, best, static_cast<int>(offset)));
  if (blocks == 1) {
    if (member == 0) groups.best[group] = best;
    __syncthreads();
    return;
  }
  if (member < blocks) send_to_block(groups.best + rank * own + group, member, best, &groups.arrived);
  barrier_wait(&groups.arrived, time % 2);
}

/// The best key of all groups. All lanes of a warp come.
template <int Threads>
__device__ __forceinline__ std::uint32_t best_of_groups(const row_groups<Threads>& groups) {
  std::uint32_t best = 0;
#pragma unroll
  for (int g = 0; g < kGroups; g += kWarp) best = max(best, groups.best[g + threadIdx.x % kWarp]);
  return __reduce_max_sync(kFullWarp, best);
}

/// A key that at least `wanted` of the groups reach, and hardly more. Every warp searches for itself.
template <int Threads>
__device__ __forceinline__ std::uint32_t cut_of_groups(std::uint32_t wanted, const row_groups<Threads>& groups) {
  static_assert(kGroups == 4 * kWarp);
  const uint4 mine = *reinterpret_cast<const uint4*>(groups.best + threadIdx.x % kWarp * 4);
  std::uint32_t low = __reduce_min_sync(kFullWarp, min(min(mine.x, mine.y), min(mine.z, mine.w)));
  std::uint32_t high = __reduce_max_sync(kFullWarp, max(max(mine.x, mine.y), max(mine.z, mine.w)));
  if (wanted == 1) return high;
  const std::uint32_t enough = wanted + min(wanted / 4 + 1, (kGroups - wanted) / 4);
  std::uint32_t reached = kGroups;
#pragma unroll 1
  while (reached > enough && high - low > 1) {  // all reach `low`, fewer than wanted the number above `high`
    const std::uint32_t middle = low + (high - low) / 2;
    const std::uint32_t count =
        __reduce_add_sync(kFullWarp, (mine.x >= middle) + (mine.y >= middle) + (mine.z >= middle) + (mine.w >= middle));
    if (count >= wanted) {
      low = middle;
      reached = count;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace shortlist::cuda
