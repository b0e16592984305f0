// Many queries against all rows through the int8 plane. See certified_batch.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// The largest k and dim that a batch serves.
inline constexpr std::int64_t kCertifiedBatchMaxK = 2048;
inline constexpr std::int64_t kCertifiedBatchMaxDim = 12288;

/// What searches through planes have done since their workspace was made.
struct certified_counters {
  unsigned long long rescored = 0;           ///< rows whose score was computed, of certified queries
  unsigned long long certified_queries = 0;  ///< answered through the plane
  unsigned long long full_queries = 0;       ///< answered by reading all rows
};

/// Device bytes that suffice for every search within the limits. The first are a certified_counters.
std::int64_t certified_batch_workspace_bytes(const search_limits& limits);

/// Whether the current GPU, and this shape, can be served.
bool certified_batch_serves(const core::flat_corpus& corpus, std::int64_t k, int compute_capability);

/// Searches any number of queries on the current device. Device pointers; asynchronous on `stream`; allocates nothing,
/// never waits for the device, may be captured. The workspace is zeroed once, when it is made. `tiles` is a workspace
/// of tiles_workspace_bytes for the same limits: queries that the plane cannot serve are searched in full.
/// @pre certified_batch_serves
void launch_certified_batch(cudaStream_t stream, void* workspace, void* tiles, std::int64_t tiles_bytes,
                            const core::flat_corpus& corpus, const core::flat_request& request, int multiprocessors);

}  // namespace shortlist::cuda
