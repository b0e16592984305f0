// Row-wise top k of few long rows, a cluster of blocks a row. See cluster_rows_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// @pre as the plan says of cluster_rows. Asynchronous on `stream`, can be captured; one launch.
void launch_cluster_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);
/// The same of early stops.
void launch_stopped_cluster_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
