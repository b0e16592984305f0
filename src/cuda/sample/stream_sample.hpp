// Sampling from plain rows by clusters that read a row once. See stream_sample.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"
#include "core/plan.hpp"
#include "cuda/sample/row_kinds.cuh"

namespace shortlist::cuda {

/// What a request asks of its rows, for the plan; what changes the rows is not looked at.
core::sample_work sample_work_of(const core::sample_request& request);

/// Whether no row asks for a draw by weight alone.
bool counts_alone(const core::sample_request& request);

/// Asynchronous on `stream`, can be captured; one launch, or two where top_k is an array and rows are
/// many. @param kinds all or others.
/// @pre sample_work_of(request) is filtered
void launch_stream_sample(cudaStream_t stream, const core::sample_request& request, row_kinds kinds,
                          int multiprocessors);

}  // namespace shortlist::cuda
