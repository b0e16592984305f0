// Row-wise top k with a block a row, for what the lanes of a warp cannot hold. See block_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Serves every request. Asynchronous on `stream`; one launch, can be captured.
void launch_block_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
