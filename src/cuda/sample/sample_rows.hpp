// Sampling with a row spread over the blocks of a cluster. See sample_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Asynchronous on `stream`; one launch, can be captured.
void launch_sample_rows(cudaStream_t stream, const core::sample_request& request);

}  // namespace shortlist::cuda
