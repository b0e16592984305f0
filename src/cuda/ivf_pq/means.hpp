// Sums of k-means on CUDA devices: of whole numbers, so that their order does not matter.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/ivf_pq.hpp"

namespace shortlist::cuda {

/// Adds rows [n, dim], each element times 2^scale and rounded, to sums [groups, dim], and 1 to counts [groups].
void launch_add_to_means(cudaStream_t stream, const float* rows, std::int64_t n, std::int64_t dim,
                         const std::int64_t* group_of, int scale, std::int64_t* sums, std::int64_t* counts);

/// The same for the codebook: sums [pieces, codewords, piece_dim], counts [pieces, codewords].
void launch_add_to_codewords(cudaStream_t stream, const core::ivf_pq_shape& shape, const float* residuals,
                             std::int64_t n, const std::uint8_t* codes, int scale, std::int64_t* sums,
                             std::int64_t* counts);

}  // namespace shortlist::cuda
