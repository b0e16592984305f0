// A scan of one query and its merge, two launches as one graph. See captured_scan.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "cuda/runtime/completion.hpp"

namespace shortlist::cuda {

struct merge_launch;

/// Made once from any valid search; each launch sets both kernels' parameters.
class captured_scan {
 public:
  /// `launch_both` launches a scan and its merge.
  explicit captured_scan(const std::function<void(cudaStream_t)>& launch_both);
  ~captured_scan();
  captured_scan(const captured_scan&) = delete;
  captured_scan& operator=(const captured_scan&) = delete;

  void launch(cudaStream_t stream, const cudaKernelNodeParams& scan, const merge_launch& merge);

 private:
  void release();

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  cudaGraphNode_t scan_node_ = nullptr;
  cudaGraphNode_t merge_node_ = nullptr;
};

}  // namespace shortlist::cuda
