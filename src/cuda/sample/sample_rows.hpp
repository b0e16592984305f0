// Sampling with a row spread over the blocks of a cluster. See sample_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"
#include "core/plan.hpp"

namespace shortlist::cuda {

/// @param algorithm chip_rows or memory_rows, as core/plan.hpp chose. Asynchronous on `stream`, can be captured; one
/// launch, of up to 2^27 rows. @pre changes_rows(request) is false
void launch_sample_rows(cudaStream_t stream, core::sample_algorithm algorithm, const core::sample_request& request,
                        int multiprocessors);

}  // namespace shortlist::cuda
