// Sampling with a row spread over the blocks of a cluster. See sample_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"
#include "core/plan.hpp"

namespace shortlist::cuda {

/// @param algorithm chip_rows or memory_rows, as core/plan.hpp chose. Asynchronous on `stream`, can be captured; one
/// launch, unless rows in global memory are so many that they take turns in it.
void launch_sample_rows(cudaStream_t stream, core::sample_algorithm algorithm, const core::sample_request& request,
                        int multiprocessors);

}  // namespace shortlist::cuda
