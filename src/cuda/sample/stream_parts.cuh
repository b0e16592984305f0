// What the ways to draw from streamed rows share. See stream_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/device/row_stream.cuh"
#include "cuda/device/shared_list.cuh"
#include "cuda/sample/sample_parts.cuh"

namespace shortlist::cuda::sampling {

template <class Stored>
using logit_stream = row_stream<Stored, kThreads>;

struct alignas(16) stream_scratch {
  sample_scratch row;
  std::uint32_t block_own[kMostBlocks];
  std::uint32_t warp_counts[kWarps];
  std::uint32_t in_range;
  share_scratch<kThreads> shares;
};

template <class T>
__device__ __forceinline__ void tell_blocks(T* where, const cluster_place& place, T value) {
  if (threadIdx.x < place.blocks) of_block(where, threadIdx.x)[place.rank] = value;
}

/// The sums of two values of the threads before this one. All threads come.
struct two_sums {
  std::uint64_t weight;
  std::uint32_t count;
};
__device__ __forceinline__ two_sums sums_before(two_sums value, stream_scratch& scratch, two_sums& total) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  two_sums sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const std::uint64_t weight = __shfl_up_sync(kFullWarp, sum.weight, offset);
    const std::uint32_t count = __shfl_up_sync(kFullWarp, sum.count, offset);
    if (lane >= offset) sum = {sum.weight + weight, sum.count + count};
  }
  if (lane == kWarp - 1) {
    scratch.row.warp_sums[threadIdx.x / kWarp] = sum.weight;
    scratch.warp_counts[threadIdx.x / kWarp] = sum.count;
  }
  __syncthreads();
  two_sums before{sum.weight - value.weight, sum.count - value.count};
  total = {0, 0};
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    const two_sums of_warp{scratch.row.warp_sums[w], scratch.warp_counts[w]};
    if (w < static_cast<int>(threadIdx.x / kWarp)) {
      before.weight += of_warp.weight;
      before.count += of_warp.count;
    }
    total.weight += of_warp.weight;
    total.count += of_warp.count;
  }
  return before;
}

}  // namespace shortlist::cuda::sampling
