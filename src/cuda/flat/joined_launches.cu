// A scan of one query and its merge as one graph: launching it takes the CPU half the time of two launches, and the
// merge is there when the scan begins. The graph is put together, not captured from a stream: while a thread captures,
// others may not wait for the device, and a capture would fail if they did.
#include "cuda/flat/joined_launches.hpp"
#include "cuda/flat/scan_merge.cuh"
#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {

joined_launches::joined_launches(const cudaKernelNodeParams& scan, const merge_launch& merge) {
  const cudaKernelNodeParams merged = merge.node();
  cudaGraphEdgeData begins_early{};  // the merge waits for the scan by itself
  begins_early.type = cudaGraphDependencyTypeProgrammatic;
  begins_early.from_port = cudaGraphKernelNodePortProgrammatic;
  cudaError_t code = cudaGraphCreate(&graph_, 0);
  if (code == cudaSuccess) code = cudaGraphAddKernelNode(&scan_node_, graph_, nullptr, 0, &scan);
  if (code == cudaSuccess) code = cudaGraphAddKernelNode(&merge_node_, graph_, nullptr, 0, &merged);
  if (code == cudaSuccess) code = cudaGraphAddDependencies(graph_, &scan_node_, &merge_node_, &begins_early, 1);
  if (code == cudaSuccess) code = cudaGraphInstantiate(&executable_, graph_, 0);  // its nodes are named by graph_'s
  if (code != cudaSuccess) release();
  check(code, "making the scan's graph");
}

joined_launches::~joined_launches() { release(); }

void joined_launches::release() {
  if (executable_) cudaGraphExecDestroy(executable_);
  if (graph_) cudaGraphDestroy(graph_);
}

void joined_launches::launch(cudaStream_t stream, const cudaKernelNodeParams& scan, const merge_launch& merge) {
  check(cudaGraphExecKernelNodeSetParams(executable_, scan_node_, &scan), "setting the scan's parameters");
  const cudaKernelNodeParams merged = merge.node();
  check(cudaGraphExecKernelNodeSetParams(executable_, merge_node_, &merged), "setting the merge's parameters");
  check(cudaGraphLaunch(executable_, stream), "launching the flat scan");
}

}  // namespace shortlist::cuda
