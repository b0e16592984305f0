// Kernels that follow each other without a gap: see launch_shape::overlaps.
#pragma once

#include <cuda_runtime.h>

namespace shortlist::cuda {

/// First in a kernel of a chain: the next kernel's blocks may come and wait, and all that the kernels before wrote is
/// seen after.
__device__ __forceinline__ void join_chain() {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
}

}  // namespace shortlist::cuda
