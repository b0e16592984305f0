// Row-wise top k of rows of up to 32,768 columns: a block a row. See block_rows_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// @pre core/plan.hpp chose it: values of at most 32 bits, one behind the other, no more than core::kBlockRowsMaxCols a
/// row, and room for the entries. Asynchronous on `stream`; one launch, can be captured.
void launch_block_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
