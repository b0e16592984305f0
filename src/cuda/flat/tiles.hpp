// Any number of queries, any k: exact search by tiles of rows x queries. See tiles.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/backend.hpp"
#include "cuda/flat/select.hpp"

namespace shortlist::cuda {

/// Device bytes that suffice for every search within the limits, of any dim.
std::int64_t tiles_workspace_bytes(const search_limits& limits);

/// Searches any number of queries for any k >= 1 on the current device. Device pointers; asynchronous on `stream`;
/// allocates nothing, never waits for the device, and may be captured in a graph. The workspace needs no preparation
/// and keeps nothing between calls; all of its bytes are put to use. Nothing is searched where the gate is closed.
void launch_flat_tiles(cudaStream_t stream, void* workspace, std::int64_t workspace_bytes,
                       const core::flat_corpus& corpus, const core::flat_request& request, launch_gate gate = {});

}  // namespace shortlist::cuda
