// How a waiting host learns that a kernel has written its results.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {

/// Where the end is announced: `*word = value`, after the results, in mapped host memory.
struct completion_flag {
  std::uint32_t* word = nullptr;
  std::uint32_t value = 0;
};

/// Spins until `*flag` is `value`: some 5 us sooner than a stream's synchronisation returns. @throws what the stream's
/// work failed with.
inline void await(cudaStream_t stream, const volatile std::uint32_t* flag, std::uint32_t value) {
  constexpr int kSpinsBetweenChecks = 4096;  // looks at the flag between two looks for a failed launch
  for (int spins = 1; *flag != value; spins++) {
    if (spins % kSpinsBetweenChecks != 0) continue;
    const cudaError_t code = cudaStreamQuery(stream);
    if (code == cudaErrorNotReady) continue;
    check(code, "searching on the GPU");
    if (*flag != value) check(cudaStreamSynchronize(stream), "searching on the GPU");
  }
  std::atomic_thread_fence(std::memory_order_acquire);
}

}  // namespace shortlist::cuda
