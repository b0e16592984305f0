// What a test that captures a CUDA graph holds.
#pragma once

#include <cuda_runtime_api.h>

namespace shortlist::conformance {

/// A stream, a captured graph and its executable, destroyed in the right order.
struct captured_graph {
  cudaStream_t native = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;

  captured_graph() = default;
  captured_graph(const captured_graph&) = delete;
  captured_graph& operator=(const captured_graph&) = delete;
  ~captured_graph() {
    if (executable) cudaGraphExecDestroy(executable);
    if (graph) cudaGraphDestroy(graph);
    if (native) cudaStreamDestroy(native);
  }
};

}  // namespace shortlist::conformance
