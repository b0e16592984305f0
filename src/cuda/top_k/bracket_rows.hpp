// Row-wise top k of long rows for a k that no block's list has room for. See bracket_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Asynchronous on `stream`; one launch, no memory of its own, can be captured.
/// @pre core/plan.hpp chose it: exact, by column, no mask, values of at most 32 bits, one behind the other, no longer
/// than kBracketRowsMaxCols.
void launch_bracket_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
