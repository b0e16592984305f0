// Early stops of rows that a block holds in shared memory.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// @pre the plan's rule for stop_rows can take the shape.
void launch_stop_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
