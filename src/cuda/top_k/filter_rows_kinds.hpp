// The kernels of filter_rows.cu that have files of their own. See filter_rows_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda::filtering {

/// By column, of lists that one block of a multiprocessor has room for.
void launch_many_filter_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda::filtering
