// Rows as an IVF-PQ index takes them, and what is left of them beside their centroids.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/ivf_pq.hpp"

namespace shortlist::cuda {

/// Numbers of the first rows, at most `limit`, that have an element that is not finite. Waits for the stream.
std::vector<std::int64_t> find_rows_not_finite(cudaStream_t stream, const any_matrix_view& rows, std::int64_t limit);

/// out [n, dim]: rows widened, divided by their norm under cosine, then turned unless `rotation` is null.
void launch_take_rows(cudaStream_t stream, metric by, const float* rotation, const any_matrix_view& rows, float* out);

/// out [n, padded_dim]: rows less the centroids of their lists, or the rows themselves, with 0 past dim.
void launch_residuals(cudaStream_t stream, const core::ivf_pq_shape& shape, const float* rows, std::int64_t n,
                      const std::int64_t* lists, const float* centroids, std::int64_t centroid_stride, float* out);

}  // namespace shortlist::cuda
