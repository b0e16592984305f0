// Row-wise top k with a row in the registers of some lanes. See warp_rows_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// @pre core/plan.hpp chose it: values of at most 32 bits, one behind the other, no more than core::kWarpRowsMaxCols a
/// row, without a mask core::kWarpRowsMaxWholeCols, and exact ones of 16 bits, by ascending column,
/// core::kWarpRowsMaxHalfCols. Asynchronous on `stream`; one launch, can be captured.
void launch_warp_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
