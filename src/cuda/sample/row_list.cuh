// The list of a row's candidates, in the first block of its cluster: filled by all blocks, ordered and drawn from by
// the first. See sample_rows.cu.
#pragma once

#include "cuda/device/block_select.cuh"
#include "cuda/sample/cut_search.cuh"

namespace shortlist::cuda::sampling {

/// Lets a warp's lanes append keys to the first block's list, as far as there is room; all are counted.
__device__ __forceinline__ void append(sample_scratch* first_block, bool mine, std::uint64_t key) {
  const unsigned those = __ballot_sync(kFullWarp, mine);
  if (those == 0) return;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const int leader = __ffs(static_cast<int>(those)) - 1;
  std::uint32_t at = 0;
  if (static_cast<int>(lane) == leader) at = atomicAdd(&first_block->listed, static_cast<std::uint32_t>(__popc(those)));
  at = __shfl_sync(kFullWarp, at, leader) + __popc(those & ((1u << lane) - 1u));
  if (mine && at < kListed) first_block->list[at] = key;
}

/// Makes the first block's list empty. All threads of the cluster come.
template <class Part>
__device__ __forceinline__ void empty_list(const Part& part, sample_scratch& scratch) {
  if (part.rank == 0 && threadIdx.x == 0) scratch.listed = 0;
  cluster_sync();
}

/// How many keys were to be appended to the first block's list. All threads of the cluster come.
__device__ __forceinline__ std::uint32_t listed_by_all(sample_scratch& scratch) {
  cluster_sync();
  return *static_cast<volatile std::uint32_t*>(&of_block(&scratch, 0)->listed);
}

/// Calls take(passes, key) for the block's logits where any of a warp's reaches the filter's cut; all lanes together.
template <class Part, class Take>
__device__ __forceinline__ void for_each_near(const Part& part, const row_filter& filter, Take take) {
  const float border = core::from_ascending_key(core::key_of(filter.cut));
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t end = part.filled(warp, kStep);
  const std::uint32_t first_token = part.first_position(warp) - part.shift;
#pragma unroll 2
  for (std::uint32_t i = threadIdx.x % kWarp * 4; i < end; i += kStep) {
    const float4 four = part.four(warp, i);
    if (!__any_sync(kFullWarp, fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)) >= border)) continue;
    const float x[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (__any_sync(kFullWarp, x[e] >= border))
        take(filter.passes(x[e], first_token + i + e), key_of_logit(x[e], first_token + i + e));
    }
  }
}

/// Lists all that passes the filter. @returns how many that are, more than kListed if there is no room for all. All
/// threads of the cluster come; the list is empty.
template <class Part>
__device__ __forceinline__ std::uint32_t list_passing(const Part& part, const row_filter& filter,
                                                      sample_scratch& scratch) {
  sample_scratch* first_block = of_block(&scratch, 0);
  for_each_near(part, filter, [&](bool passes, std::uint64_t key) { append(first_block, passes, key); });
  return listed_by_all(scratch);
}

/// Where the blocks' shares of a list would end if they stood behind each other. @param share that each has room for.
/// @returns whether each fits its share.
__device__ __forceinline__ bool shares_of(std::uint32_t blocks, std::uint32_t share, const sample_scratch& scratch,
                                          std::uint32_t (&ends)[kMostBlocks]) {
  std::uint32_t counts[kMostBlocks];
#pragma unroll
  for (int b = 0; b < kMostBlocks; b += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(scratch.block_listed + b);
    counts[b] = four.x, counts[b + 1] = four.y, counts[b + 2] = four.z, counts[b + 3] = four.w;
  }
  bool fits = true;
  std::uint32_t end = 0;
#pragma unroll
  for (int b = 0; b < kMostBlocks; b++) {
    if (b < static_cast<int>(blocks)) {
      fits = fits && counts[b] <= share;
      end += counts[b];
    }
    ends[b] = end;
  }
  return fits;
}

/// The same, each block to a share of the list, so that none waits for another's count. @returns false if a share was
/// too small: then the list is as good as empty. @pre scratch.appended is 0, which a barrier has shown.
template <class Part>
__device__ __forceinline__ bool list_by_shares(const Part& part, const row_filter& filter, sample_scratch& scratch) {
  const std::uint32_t share = kListed >> shift_of(part.blocks);
  std::uint64_t* list = of_block(scratch.list, 0) + part.rank * share;
  for_each_near(part, filter, [&](bool passes, std::uint64_t key) {
    if (!passes) return;
    const std::uint32_t at = atomicAdd(&scratch.appended, 1u);
    if (at < share) list[at] = key;
  });
  __syncthreads();
  if (threadIdx.x < part.blocks) of_block(scratch.block_listed, threadIdx.x)[part.rank] = scratch.appended;
  cluster_sync();
  std::uint32_t ends[kMostBlocks];
  return shares_of(part.blocks, share, scratch, ends);
}

/// Joins the shares of the first block's list, which comes.
__device__ __forceinline__ void join_shares(std::uint32_t blocks, sample_scratch& scratch) {
  constexpr int kEach = kListed / kThreads;
  const std::uint32_t share = kListed >> shift_of(blocks);
  std::uint32_t ends[kMostBlocks];
  shares_of(blocks, share, scratch, ends);
  const std::uint32_t total = ends[kMostBlocks - 1];
  std::uint64_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; i++) {
    const std::uint32_t place = i * kThreads + threadIdx.x;
    std::uint32_t from = place;
#pragma unroll
    for (int b = 0; b < kMostBlocks - 1; b++)
      if (place >= ends[b]) from = (b + 1) * share + place - ends[b];
    keys[i] = place < total ? scratch.list[from] : core::kNoRow;
  }
  __syncthreads();  // all keys are held
#pragma unroll
  for (int i = 0; i < kEach; i++) scratch.list[i * kThreads + threadIdx.x] = keys[i];
  if (threadIdx.x == 0) scratch.listed = total;
  __syncthreads();
}

/// Lists the `wanted` best of what passes the filter, or a few more, or all if they are fewer. @pre wanted <= kListed;
/// the list is empty. All threads of the cluster come.
template <class Part>
__device__ __forceinline__ void list_best(const Part& part, row_filter filter, std::uint32_t wanted,
                                          sample_scratch& scratch) {
  if (wanted <= kMostByGroups) {
    const std::uint32_t key = max(cut_of_groups(wanted, scratch.groups), kLeastKey);
    row_filter near = filter;
    near.cut = max(filter.cut, static_cast<std::uint64_t>(key) << 32);
    if (list_by_shares(part, near, scratch)) {
      if (part.rank == 0) join_shares(part.blocks, scratch);
      return;
    }
    if (list_passing(part, near, scratch) <= kListed) return;
    cluster_sync();  // all have seen that the list is too long
    empty_list(part, scratch);
  }
  filter.cut = search_cut(
      part, filter, scratch, kListed, [](float) { return std::uint64_t{1}; },
      [&](std::uint64_t total) { return min(total, std::uint64_t{wanted}); });
  list_passing(part, filter, scratch);
}

/// Orders list[0, n), the largest first. @returns where: in `other`, or in the list itself. All threads come, after a
/// barrier; they leave through one.
__device__ __forceinline__ std::uint64_t* in_order(std::uint64_t* list, std::uint64_t* other, std::uint32_t n) {
  if (n <= kThreads) {
    rank_by_counting<kThreads>(list, n, [&](std::uint32_t rank, std::uint64_t key) { other[rank] = key; });
    __syncthreads();
    return other;
  }
  const std::uint32_t padded = 1u << (32 - __clz(static_cast<int>(n - 1)));
  for (std::uint32_t i = n + threadIdx.x; i < padded; i += kThreads) list[i] = core::kNoRow;
  block_sort<kThreads>(list, padded);
  __syncthreads();
  return list;
}

/// The sum of weights of a block's keys[0, n). All threads come.
__device__ __forceinline__ std::uint64_t weight_of_keys(const std::uint64_t* keys, std::uint32_t n,
                                                        const row_filter& filter, sample_scratch& scratch) {
  std::uint64_t sum = 0;
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) sum += weight_of(filter.exponent_of_key(keys[i]));
  std::uint64_t total = 0;
  sum_before(sum, scratch, total);
  return total;
}

/// How many of keys[0, n) hold(i, key) for: they come first. All threads come.
template <class Hold>
__device__ __forceinline__ std::uint32_t count_first(const std::uint64_t* keys, std::uint32_t n, Hold hold) {
  std::uint32_t count = 0;
  for (std::uint32_t start = 0; start < n; start += kThreads) {
    const std::uint32_t i = start + threadIdx.x;
    count += static_cast<std::uint32_t>(__syncthreads_count(i < n && hold(keys[i])));
  }
  return count;
}

/// How many of keys[0, n), best first, top_p keeps: those before which the sum of weights, `before` included, is less
/// than the target. All threads come.
__device__ __forceinline__ std::uint32_t count_by_weight(const std::uint64_t* keys, std::uint32_t n,
                                                         std::uint64_t before, std::uint64_t target,
                                                         const row_filter& filter, sample_scratch& scratch) {
  std::uint32_t count = 0;
  for (std::uint32_t start = 0; start < n; start += kThreads) {
    const std::uint32_t i = start + threadIdx.x;
    const std::uint64_t weight = i < n ? weight_of(filter.exponent_of_key(keys[i])) : 0;
    std::uint64_t total = 0;
    const std::uint64_t ahead = before + sum_before(weight, scratch, total);
    const int kept = __syncthreads_count(i < n && ahead < target);
    count += static_cast<std::uint32_t>(kept);
    if (kept < kThreads) break;
    before += total;
  }
  return count;
}

/// A key with its halves exchanged: the largest then has the smallest token.
__device__ __forceinline__ std::uint64_t turned(std::uint64_t key) { return key << 32 | key >> 32; }

/// Draws from keys[0, n): calls write(key) once, in the thread that finds the token behind `remainder` of the weights
/// by ascending token. `room` is for as many keys as the list. All threads come.
template <class Write>
__device__ __forceinline__ void draw_from_keys(std::uint64_t* keys, std::uint64_t* room, std::uint32_t n,
                                               std::uint64_t remainder, const row_filter& filter,
                                               sample_scratch& scratch, Write write) {
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) keys[i] = turned(keys[i]);
  __syncthreads();
  const std::uint64_t* by_token = in_order(keys, room, n);
  std::uint64_t passed = 0;
  for (std::uint32_t start = 0; start < n && passed <= remainder; start += kThreads) {
    const std::uint32_t i = start + threadIdx.x;
    const std::uint64_t key = i < n ? turned(by_token[i]) : core::kNoRow;
    const std::uint64_t weight = i < n ? weight_of(filter.exponent_of_key(key)) : 0;
    std::uint64_t total = 0;
    const std::uint64_t ahead = passed + sum_before(weight, scratch, total);
    if (ahead <= remainder && remainder < ahead + weight) write(key);
    passed += total;
  }
}

}  // namespace shortlist::cuda::sampling
