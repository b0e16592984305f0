// Sampling from rows of which the few best remain. See count_sample.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"
#include "cuda/sample/row_kinds.cuh"
#include "cuda/sample/row_overlay.hpp"

namespace shortlist::cuda {

/// Whether such rows may lie under an overlay: those of a few million tokens at most.
bool count_sample_serves_overlay(const core::sample_request& request);

/// In how many pieces a row's overlay is best.
int overlaid_pieces(const core::sample_request& request, int multiprocessors);

/// Asynchronous on `stream`, can be captured; one launch. What changes rows is not looked at. @param overlay of the
/// rows, or null. @param kinds counted, or all, if every row keeps only its best by count: top_k for all of them, or
/// temperature 0. @pre sample_work_of(request) is filtered
void launch_count_sample(cudaStream_t stream, const core::sample_request& request, const row_overlay* overlay,
                         row_kinds kinds, int multiprocessors);

}  // namespace shortlist::cuda
