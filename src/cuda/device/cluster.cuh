// Blocks of one cluster: who they are, where they meet, and how they reach each other's shared memory.
#pragma once

#include <cstdint>

namespace shortlist::cuda {

__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];
  return dynamic_shared_memory;
}

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ std::uint32_t cluster_size() {
  std::uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

/// By how much to shift instead of dividing by a cluster's number of blocks, which is a power of two.
__device__ __forceinline__ std::uint32_t shift_of(std::uint32_t blocks) { return 31 - __clz(static_cast<int>(blocks)); }

/// All threads of all the cluster's blocks meet; what they wrote before, to global memory too, is seen after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The two halves of cluster_sync, for work in between.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/// The same place in the shared memory of block `rank` of the cluster, for loads, stores and atomics. That block must
/// have begun, and not have ended.
template <class T>
__device__ __forceinline__ T* of_block(T* mine, std::uint32_t rank) {
  T* there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(mine), "r"(rank));
  return there;
}

/// Reads a word of this block's shared memory in block `rank` of the cluster.
__device__ __forceinline__ std::uint32_t cluster_load(const std::uint32_t* mine, std::uint32_t rank) {
  std::uint32_t address = static_cast<std::uint32_t>(__cvta_generic_to_shared(mine));
  std::uint32_t value;
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

}  // namespace shortlist::cuda
