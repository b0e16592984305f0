// Row-wise top k of many long rows, each streamed past a filter by one block. See filter_rows_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Asynchronous on `stream`; one launch, no memory of its own, can be captured.
/// @pre core/plan.hpp chose it: exact, no mask, values of at most 32 bits, one behind the other, and
/// core::filter_rows_capacity(cols, k) <= core::kFilterRowsMaxCapacity.
void launch_filter_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

/// The same for an early stop. @pre in the order of columns
void launch_stopped_filter_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
