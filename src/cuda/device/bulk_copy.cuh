// Bulk copies from global to shared memory by the copy engine, each completing on a barrier in shared memory.
#pragma once

#include <cstdint>

namespace shortlist::cuda {

/// A line of memory. Copies to shared memory are fastest from and to whole ones: a twentieth slower from elsewhere, a
/// sixth slower to odd multiples of 16 bytes.
inline constexpr std::int64_t kLineBytes = 128;

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/// Ends a barrier's life: its memory may then become another.
__device__ __forceinline__ void barrier_forget(std::uint64_t* barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Arrives, and tells the barrier how many bytes to await. This and the others that end in `_at` and `_to` take shared
/// addresses.
__device__ __forceinline__ void barrier_expect_at(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, std::uint32_t bytes) {
  barrier_expect_at(shared_address(barrier), bytes);
}

/// Tells it of more bytes, without arriving.
__device__ __forceinline__ void barrier_expect_more(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive_at(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives, and says whether all have. Of those that arrive at about the same time, more than the last may say so.
__device__ __forceinline__ bool barrier_arrive_completes(std::uint64_t* barrier) {
  std::uint32_t complete;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      ".reg .b64 state;\n"
      "mbarrier.arrive.shared::cta.b64 state, [%1];\n"
      "mbarrier.test_wait.shared::cta.b64 done, [%1], state;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(complete)
      : "r"(shared_address(barrier))
      : "memory");
  return complete != 0;
}

/// Orders what the threads have written to shared memory before what the copy engine does to it later.
__device__ __forceinline__ void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void barrier_wait_at(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait%=;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, std::uint32_t parity) {
  barrier_wait_at(shared_address(barrier), parity);
}

/// Both addresses and the size are multiples of 16 bytes.
__device__ __forceinline__ void bulk_copy_to(std::uint32_t to, const void* from_global, std::uint32_t bytes,
                                             std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from_global), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void bulk_copy(void* to_shared, const void* from_global, std::uint32_t bytes,
                                          std::uint64_t* barrier) {
  bulk_copy_to(shared_address(to_shared), from_global, bytes, shared_address(barrier));
}

/// Asks for the line that holds an address to be brought to the L2 cache.
__device__ __forceinline__ void prefetch_line(const void* from_global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from_global) : "memory");
}

}  // namespace shortlist::cuda
