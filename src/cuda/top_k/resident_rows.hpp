// Row-wise top k of many long rows that fit a block's shared memory. See resident_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Asynchronous on `stream`; one launch, no memory of its own, can be captured.
/// @pre core/plan.hpp chose it: exact, or stopped early and by column; no mask, values of at most 32 bits, one behind
/// the other,
/// core::resident_rows_list_holds(cols, k, core::kResidentRowsMaxCapacity), and
/// core::resident_rows_bytes(shape) <= core::kResidentRowsMaxBytes.
void launch_resident_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
