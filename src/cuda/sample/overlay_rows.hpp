// Sampling from rows that penalties and a mask change, without a copy of them. See overlay_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Whether a request whose rows are changed is served so: no bias, neighbouring logits, every row keeps only its best
/// by count, or an array of top_k tells which do, and the logits are so many that it pays, or the algorithm is forced.
/// @pre sample_work_of(request) is filtered
bool overlay_serves(const core::sample_request& request);

/// Asynchronous on `stream`, can be captured; one launch where a mask of bits alone changes rows, else two, or two a
/// turn where what is changed takes more than 256 MiB. Where an array of top_k tells which rows keep their best by
/// count, as many more, and copies, for the others. @pre overlay_serves(request)
void sample_under_overlay(cudaStream_t stream, const core::sample_request& request, int multiprocessors);

}  // namespace shortlist::cuda
