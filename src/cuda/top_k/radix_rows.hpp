// Row-wise top k by radix selection, for what no other kernel serves. See radix_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Serves every request, except that `sorted` is left out: entries are written by ascending column. Asynchronous on
/// `stream`; one launch, can be captured.
void launch_radix_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

/// An early stop of rows whose exact result is in the output, by ascending column, which it replaces. Asynchronous on
/// `stream`; one launch, can be captured. @pre no mask, no fp64
void launch_radix_stops(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
