// Sampling from plain rows of which the few best remain. See count_sample.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Asynchronous on `stream`, can be captured; one launch. @pre sample_work_of(request) is filtered, and every row keeps
/// only its best by count: top_k for all of them, or temperature 0
void launch_count_sample(cudaStream_t stream, const core::sample_request& request, int multiprocessors);

}  // namespace shortlist::cuda
