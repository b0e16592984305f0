// Sampling from few plain rows of which the device alone knows what top_k leaves. See array_sample.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Whether all rows run at a time, so that one launch is faster than two.
bool array_sample_serves(const core::sample_request& request, int multiprocessors);

/// Asynchronous on `stream`, can be captured; one launch. @pre array_sample_serves(request, multiprocessors), and
/// sample_work_of(request) is filtered
void launch_array_sample(cudaStream_t stream, const core::sample_request& request, int multiprocessors);

}  // namespace shortlist::cuda
