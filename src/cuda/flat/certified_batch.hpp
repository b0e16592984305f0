// Many queries against all rows through the int8 plane. See certified_batch.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/backend.hpp"
#include "cuda/flat/certified_counters.hpp"
#include "cuda/runtime/hopper.hpp"

namespace shortlist::cuda {

/// Device bytes that suffice for every search within the limits. The first are a certified_counters.
std::int64_t certified_batch_workspace_bytes(const search_limits& limits);

/// Whether GPUs of this compute capability have the instructions. k is at most core::kCertifiedBatchMaxK, dim at most
/// core::kCertifiedBatchMaxDim.
constexpr bool has_certified_batch(int compute_capability) { return runs_hopper_code(compute_capability); }

/// Searches any number of queries on the current device. Device pointers; asynchronous on `stream`; allocates nothing,
/// never waits for the device, may be captured. The workspace is zeroed once, when it is made. `tiles` is a workspace
/// of tiles_workspace_bytes for the same limits: queries that the plane cannot serve are searched in full.
void launch_certified_batch(cudaStream_t stream, void* workspace, void* tiles, std::int64_t tiles_bytes,
                            const core::flat_corpus& corpus, const core::flat_request& request, int multiprocessors);

}  // namespace shortlist::cuda
