// Sorts the k best of each row after a kernel that wrote them by ascending column. See sort_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Reorders the values and indices of request.out in place, best first; of equals, the smaller column first. Padding
/// stays at a row's end. A mask has no order and stays. Asynchronous on `stream`; several launches, can be captured.
/// @throws unsupported if k is 2^32 or more.
void launch_sort_rows(cudaStream_t stream, const core::top_k_request& request);

}  // namespace shortlist::cuda
