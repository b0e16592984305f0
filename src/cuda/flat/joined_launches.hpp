// A scan of one query and its merge, two launches as one graph. See joined_launches.cu.
#pragma once

#include <cuda_runtime_api.h>

namespace shortlist::cuda {

struct merge_launch;

/// Made once from any valid search; each launch sets both kernels' parameters.
class joined_launches {
 public:
  joined_launches(const cudaKernelNodeParams& scan, const merge_launch& merge);
  ~joined_launches();
  joined_launches(const joined_launches&) = delete;
  joined_launches& operator=(const joined_launches&) = delete;

  void launch(cudaStream_t stream, const cudaKernelNodeParams& scan, const merge_launch& merge);

 private:
  void release();

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  cudaGraphNode_t scan_node_ = nullptr;
  cudaGraphNode_t merge_node_ = nullptr;
};

}  // namespace shortlist::cuda
