// Copies from global to shared memory that the threads themselves issue and await, 8 or 16 bytes each, to shared
// addresses.
#pragma once

#include <cstdint>

#include "cuda/device/bulk_copy.cuh"

namespace shortlist::cuda {

/// Keeps an address in one register, so that accesses at constant distances from it need no arithmetic of their own:
/// the compiler would rather compute each of them from the parts.
__device__ __forceinline__ std::uint32_t kept(std::uint32_t address) {
  asm volatile("" : "+r"(address));
  return address;
}
__device__ __forceinline__ const unsigned char* kept(const unsigned char* address) {
  asm volatile("" : "+l"(address));
  return address;
}

/// Copies 16 bytes, or writes zeros without reading if not `real`. The rest of the line comes into L2 with them.
__device__ __forceinline__ void async_copy_16(std::uint32_t to_shared, const void* from_global, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from_global),
               "r"(real ? 16 : 0)
               : "memory");
}

/// The same for 8 bytes.
__device__ __forceinline__ void async_copy_8(std::uint32_t to_shared, const void* from_global, bool real) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;" ::"r"(to_shared), "l"(from_global),
               "r"(real ? 8 : 0)
               : "memory");
}

/// The same for 4 bytes, which are always real.
__device__ __forceinline__ void async_copy_4(std::uint32_t to_shared, const void* from_global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from_global) : "memory");
}

__device__ __forceinline__ void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `Pending` of the thread's youngest groups are under way.
template <int Pending>
__device__ __forceinline__ void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Arrives on a barrier, given by its shared address, when the copies that the thread has issued are there.
__device__ __forceinline__ void async_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace shortlist::cuda
