// The best of all centroids for one query, by a block: from the keys of their scores.
//
// Each thread's best key; of those the wanted-th, or one a little further, which so many keys reach and not many more;
// what reaches it is ranked.
#pragma once

#include "cuda/device/block_select.cuh"

namespace shortlist::cuda {

inline constexpr int kPickThreads = 512;
inline constexpr int kHeldKeys = 16;                           ///< of a thread, in registers
inline constexpr std::int64_t kMostPicked = kPickThreads / 2;  ///< lists of a query
inline constexpr std::int64_t kPickRoom = 4096;                ///< keys that may be among the best

/// Centroids that all threads together hold.
inline constexpr std::int64_t kHeldCentroids = std::int64_t{kPickThreads} * kHeldKeys;

/// What a choice works in: shared memory.
struct pick_keys {
  std::uint64_t best[kPickThreads];
  std::uint64_t chosen[kPickRoom];
  std::uint32_t count;  ///< of the chosen
};

/// Scores of a query's centroids as keys; their numbers are their places. Pairs are aligned.
struct centroid_keys {
  const std::uint32_t* keys;
  std::int32_t count;

  static constexpr int kVector = 2;  // of a load

  /// How many keys apart two queries' are, whose keys lie one after another.
  SHORTLIST_HOST_DEVICE static constexpr std::int64_t stride(std::int64_t count) {
    return (count + kVector - 1) / kVector * kVector;
  }

  /// How many keys a thread has, at most.
  SHORTLIST_HOST_DEVICE static constexpr std::int64_t most_of_thread(std::int64_t count) {
    constexpr std::int64_t kStep = std::int64_t{kPickThreads} * kVector;
    return (count + kStep - 1) / kStep * kVector;
  }

  /// Calls visit(j, key) for the j-th centroid of vector i; of those that there are not, kNoRow.
  template <class Visit>
  __device__ __forceinline__ void vector(std::int32_t i, Visit visit) const {
    const std::int32_t first = i * kVector;
    uint2 both = make_uint2(0, 0);
    if (first < count) both = reinterpret_cast<const uint2*>(keys)[i];
    const std::uint32_t each[kVector] = {both.x, both.y};
#pragma unroll
    for (int j = 0; j < kVector; j++)
      visit(j, first + j < count ? core::row_key(each[j], static_cast<std::uint32_t>(first + j)) : core::kNoRow);
  }
};

/// Calls write(rank, key) for the `wanted` best of keys.chosen[0, keys.count), which is complete.
template <class Write>
__device__ void rank_chosen(pick_keys& keys, std::uint32_t wanted, select_scratch<kPickThreads>& scratch, Write write) {
  std::uint32_t n = keys.count;
  const std::uint64_t* chosen = keys.chosen;
  if (n > kPickThreads) {
    const std::uint64_t cut = block_cut<kPickThreads>(chosen, n, wanted, 0, scratch);
    __syncthreads();
    if (threadIdx.x == 0) keys.count = 0;
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < n; i += kPickThreads)
      if (chosen[i] >= cut) keys.best[atomicAdd(&keys.count, 1u)] = chosen[i];
    __syncthreads();
    n = keys.count;
    chosen = keys.best;
  }
  rank_by_counting<kPickThreads>(chosen, n, [&](std::uint32_t rank, std::uint64_t key) {
    if (rank < wanted) write(rank, key);
  });
}

/// Calls write(rank, key) for the `wanted` best centroids, each once.
template <class Write>
__device__ __forceinline__ void pick_lists(const centroid_keys& centroids, std::uint32_t wanted, pick_keys& keys,
                                           select_scratch<kPickThreads>& scratch, Write write) {
  constexpr int kVector = centroid_keys::kVector;
  constexpr int kHeldVectors = kHeldKeys / kVector;
  const auto beyond = [&](auto visit) {
#pragma unroll 4
    for (std::int32_t i = kHeldVectors * kPickThreads + static_cast<std::int32_t>(threadIdx.x);
         i * kVector < centroids.count; i += kPickThreads)
      centroids.vector(i, [&](int, std::uint64_t key) { visit(key); });
  };
  std::uint64_t held[kHeldKeys];
#pragma unroll
  for (int i = 0; i < kHeldVectors; i++)
    centroids.vector(i * kPickThreads + static_cast<std::int32_t>(threadIdx.x),
                     [&](int j, std::uint64_t key) { held[i * kVector + j] = key; });
  std::uint64_t best = core::kNoRow;
#pragma unroll
  for (int i = 0; i < kHeldKeys; i++) best = max(best, held[i]);
  beyond([&](std::uint64_t key) { best = max(best, key); });
  keys.best[threadIdx.x] = best;
  if (threadIdx.x == 0) keys.count = 0;
  __syncthreads();
  std::uint32_t reached = 0;
  std::uint64_t cut = block_cut_by_bins<kPickThreads>(keys.best, kPickThreads, wanted, scratch, reached);
  if (reached > kPickRoom / centroid_keys::most_of_thread(centroids.count)) {
    __syncthreads();
    cut = block_cut<kPickThreads>(keys.best, kPickThreads, wanted, wanted / 8, scratch);
  }
  const auto enter = [&](std::uint64_t key) {
    if (key >= cut) keys.chosen[atomicAdd(&keys.count, 1u)] = key;
  };
#pragma unroll
  for (int i = 0; i < kHeldKeys; i++) enter(held[i]);
  beyond(enter);
  __syncthreads();
  rank_chosen(keys, wanted, scratch, write);
}

}  // namespace shortlist::cuda
