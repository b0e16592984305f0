// Row-wise top k with a block a row, for what the lanes of a warp cannot hold. See any_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Serves every request. Asynchronous on `stream`; one launch, can be captured.
void launch_any_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
