// Row-wise top k of few long rows, each streamed by a team of blocks. See stream_rows_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Asynchronous on `stream`; one launch or two, can be captured. Takes scratch memory for rows that a team shares.
/// @pre core/plan.hpp chose it: exact, no mask, values of at most 32 bits, one behind the other, k <=
/// core::kStreamRowsMaxK.
void launch_stream_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

/// The same for an early stop, in as many launches as it takes for each row to have several blocks. @pre columns are
/// below 2^31
void launch_stopped_stream_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
