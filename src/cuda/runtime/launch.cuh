// One way to launch a kernel: grid, block, shared memory, stream, and blocks per cluster.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {

struct launch_shape {
  dim3 grid;
  int threads = 0;
  std::int64_t shared_bytes = 0;
  int cluster = 1;
};

template <class Args>
void launch(void (*kernel)(Args), const launch_shape& shape, cudaStream_t stream, const Args& args, const char* what) {
  constexpr std::int64_t kWithoutAsking = 48 * 1024;
  if (shape.shared_bytes > kWithoutAsking) {
    check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes)),
        what);
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = shape.cluster > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, args), what);
}

}  // namespace shortlist::cuda
