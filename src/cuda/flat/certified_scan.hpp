// One query against a plane, certified: a scan of the plane, scores of its survivors, and the scan's merge. See
// certified_scan.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "core/backend.hpp"
#include "cuda/flat/certified_counters.hpp"
#include "cuda/flat/joined_launches.hpp"
#include "cuda/flat/scan.hpp"
#include "cuda/runtime/completion.hpp"

namespace shortlist::cuda {

/// Device bytes that the scan works in, for corpora of up to max_rows.
std::int64_t certified_scan_workspace_bytes(std::int64_t max_rows, std::int64_t max_k, int multiprocessors);

/// Once per GPU, before its first scan.
void prepare_certified_scan();

/// Searches one query, in device memory: `request.query_count` is 1, k at most core::kCertifiedScanMaxK, dim at most
/// core::kCertifiedScanMaxDim, whose query and codes fit a block's shared memory beside the ring. Two launches,
/// asynchronous, can be captured. The workspace is zeroed once, when it is made; every search leaves it as it found it,
/// but for the counters.
void launch_certified_scan(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus,
                           const core::flat_request& request, int multiprocessors);

/// The same two launches as one graph, for queries from the host; see scan_graph.
class certified_scan_graph {
 public:
  certified_scan_graph(void* workspace, int multiprocessors);

  /// `host_query` is read before the call returns and travels as a kernel parameter (dim <= kScanParameterDim).
  void launch(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus, const core::flat_request& request,
              const float* host_query, completion_flag done);

 private:
  int multiprocessors_;
  std::optional<joined_launches> launches_;
};

}  // namespace shortlist::cuda
