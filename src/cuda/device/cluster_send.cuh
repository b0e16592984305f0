// Words sent to other blocks of a cluster, which count as arrived on a barrier there.
//
// Why it is fast: a meeting of the cluster waits until memory has answered all that its threads ask, loads under way
// among it. A barrier of its own waits for what is sent to it, and for nothing else.
// Only blocks of a cluster of several may send, to themselves too: elsewhere it is an illegal instruction.
#pragma once

#include <cstdint>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/cluster.cuh"

namespace shortlist::cuda {

/// By the thread that has initialised barriers, before `cluster_arrive_begun`: the other blocks may send to them.
__device__ __forceinline__ void cluster_barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// The first half of a meeting that says no more than that this block has begun; the other is `cluster_wait`.
__device__ __forceinline__ void cluster_arrive_begun() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// What shared address of the cluster a place of this block has in block `rank`.
__device__ __forceinline__ std::uint32_t cluster_address(const void* mine, std::uint32_t rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(mine)), "r"(rank));
  return there;
}

/// Arrives on the barrier of block `rank`, and tells it how many bytes more to await.
__device__ __forceinline__ void expect_in_block(std::uint64_t* barrier, std::uint32_t rank, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(
                   cluster_address(barrier, rank)),
               "r"(bytes)
               : "memory");
}

/// Writes to the same place in block `rank`; its barrier there counts the bytes.
__device__ __forceinline__ void send_to_block(std::uint32_t* mine, std::uint32_t rank, std::uint32_t value,
                                              std::uint64_t* barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                   cluster_address(mine, rank)),
               "r"(value), "r"(cluster_address(barrier, rank))
               : "memory");
}
__device__ __forceinline__ void send_to_block(std::uint64_t* mine, std::uint32_t rank, std::uint64_t value,
                                              std::uint64_t* barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
                   cluster_address(mine, rank)),
               "l"(value), "r"(cluster_address(barrier, rank))
               : "memory");
}

}  // namespace shortlist::cuda
