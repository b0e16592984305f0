// A scan of one query and its merge as one graph: launching it takes the CPU half the time of two launches, and the
// merge is there when the scan begins.
#include <exception>

#include "cuda/flat/captured_scan.hpp"
#include "cuda/flat/scan_merge.cuh"
#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {

captured_scan::captured_scan(const std::function<void(cudaStream_t)>& launch_both) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  cudaError_t code = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (code == cudaSuccess) {
    std::exception_ptr failure;
    try {
      launch_both(stream);
    } catch (...) {
      failure = std::current_exception();
    }
    code = cudaStreamEndCapture(stream, &graph_);
    if (failure) {
      release();
      cudaStreamDestroy(stream);
      std::rethrow_exception(failure);
    }
  }
  cudaStreamDestroy(stream);
  cudaGraphNode_t nodes[2] = {};
  std::size_t count = 1;
  if (code == cudaSuccess) code = cudaGraphGetRootNodes(graph_, nodes, &count);
  scan_node_ = nodes[0];
  count = 2;
  if (code == cudaSuccess) code = cudaGraphGetNodes(graph_, nodes, &count);
  merge_node_ = nodes[0] == scan_node_ ? nodes[1] : nodes[0];
  if (code == cudaSuccess) code = cudaGraphInstantiate(&executable_, graph_, 0);  // its nodes are named by graph_'s
  if (code != cudaSuccess) release();
  check(code, "making the scan's graph");
}

captured_scan::~captured_scan() { release(); }

void captured_scan::release() {
  if (executable_) cudaGraphExecDestroy(executable_);
  if (graph_) cudaGraphDestroy(graph_);
}

void captured_scan::launch(cudaStream_t stream, const cudaKernelNodeParams& scan, const merge_launch& merge) {
  check(cudaGraphExecKernelNodeSetParams(executable_, scan_node_, &scan), "setting the scan's parameters");
  const cudaKernelNodeParams merged = merge.node();
  check(cudaGraphExecKernelNodeSetParams(executable_, merge_node_, &merged), "setting the merge's parameters");
  check(cudaGraphLaunch(executable_, stream), "launching the flat scan");
}

}  // namespace shortlist::cuda
