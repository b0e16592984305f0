// One query against all rows: a scan and its merge. See scan.cu and scan_merge.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "core/backend.hpp"
#include "cuda/flat/joined_launches.hpp"
#include "cuda/runtime/completion.hpp"

namespace shortlist::cuda {

/// The largest k of the scan; beyond it the tiles take over.
inline constexpr std::int64_t kScanMaxK = 2048;
/// The largest dim whose query fits a block's shared memory beside the ring; beyond it the tiles take over.
inline constexpr std::int64_t kScanMaxDim = 24576;
/// Queries of up to this dim may travel as kernel parameters.
inline constexpr std::int64_t kScanParameterDim = 1024;

/// Device bytes that the scan works in, for corpora of up to max_rows.
std::int64_t scan_workspace_bytes(std::int64_t max_rows, std::int64_t max_k, int multiprocessors);

/// Once per GPU, before its first scan: loads the kernels, so that no search, and no capture, has to.
void prepare_flat_scan();

/// Searches one query, in device memory: `request.query_count` is 1. Two launches, asynchronous, can be captured.
/// The workspace is zeroed once, when it is made; every search leaves it as it found it.
void launch_flat_scan(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus,
                      const core::flat_request& request, int multiprocessors);

/// The same two launches as one graph, made once, for queries from the host: setting its parameters and launching it
/// takes the CPU half the time of two launches, and the merge is there when the scan begins.
class scan_graph {
 public:
  scan_graph(void* workspace, int multiprocessors);

  /// `host_query` is read before the call returns and travels as a kernel parameter (dim <= kScanParameterDim).
  void launch(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus, const core::flat_request& request,
              const float* host_query, completion_flag done);

 private:
  int multiprocessors_;
  std::optional<joined_launches> launches_;
};

}  // namespace shortlist::cuda
