// Sampling from plain rows of which no top_k is asked, by clusters that hold a row on the chip. See weight_sample.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"
#include "cuda/sample/row_kinds.cuh"

namespace shortlist::cuda {

/// Asynchronous on `stream`, can be captured; one launch. Log-probabilities of the drawn tokens may be asked for, but
/// not the best tokens. @param kinds all, of which no top_k is asked, or others
void launch_weight_sample(cudaStream_t stream, const core::sample_request& request, row_kinds kinds,
                          int multiprocessors);

}  // namespace shortlist::cuda
