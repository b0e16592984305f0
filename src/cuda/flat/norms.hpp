// Inverse norms of rows, canonical: what cosine multiplies by.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// inverse_norms[first, first + count) = 1 / sqrt(dot(x, x)) of corpus.rows; asynchronous.
void launch_inverse_norms(cudaStream_t stream, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                          float* inverse_norms);

}  // namespace shortlist::cuda
