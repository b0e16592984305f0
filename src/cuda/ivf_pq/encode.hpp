// The nearest codeword of each piece of a row, on CUDA devices.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/ivf_pq.hpp"

namespace shortlist::cuda {

/// `residuals` [n, padded_dim], `codes` [n, pieces]. Asynchronous.
void launch_encode(cudaStream_t stream, const core::ivf_pq_shape& shape, const float* codebook, const float* residuals,
                   std::int64_t n, std::uint8_t* codes);

}  // namespace shortlist::cuda
