// Which GPUs run code for sm_90a, which has instructions that Hopper alone knows.
#pragma once

#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {

constexpr bool runs_hopper_code(int compute_capability) { return compute_capability == 9; }

/// The same of the GPU that is current.
inline bool runs_hopper_code() {
  int device = 0;
  int major = 0;
  check(cudaGetDevice(&device), "asking for the GPU");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "reading the GPU's capability");
  return runs_hopper_code(major);
}

}  // namespace shortlist::cuda
