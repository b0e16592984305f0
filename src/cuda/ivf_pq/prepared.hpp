// What is made of a trained model for scans on the matrix units: scales, and the codebook as halves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/ivf_pq/page_layout.hpp"

namespace shortlist::cuda {

/// At the beginning of ivf_pq_model::prepared. Products of halves are products of rows and queries over `unit`:
/// queries become halves after a product with query_scale, codewords are halves times 2^exponent. Powers of two all.
struct prepared_header {
  float query_scale;       ///< so that an element as large as the largest of any decoded row becomes 2^7 to 2^8
  float unit;              ///< 2^exponent / query_scale
  float inverse_unit;      ///< what a row's term is multiplied by
  float largest_centroid;  ///< norm
  float largest_step;      ///< of uniform codes
  float lost_of_rows;      ///< norm of what a row loses as halves, at most; codes lose nothing
};
inline constexpr std::int64_t kPreparedTableAt = 64;  ///< then codewords as halves: code_table.hpp

/// Where what scans take ends, and the centroids that queries are compared with begin, as coarse.hpp has them.
std::int64_t prepared_table_end(const core::ivf_pq_shape& shape);
std::int64_t prepared_model_bytes(const core::ivf_pq_shape& shape);
void launch_prepare_model(cudaStream_t stream, const core::ivf_pq_model& model, std::byte* prepared);

/// The term of a row in its page, times inverse_unit: under squared L2 c.w + |w|^2 / 2 where w is what the codes stand
/// for and c the centroid (0 with encoded::row), else 0; +infinity in places without a row. And what `largest` of
/// ivf_pq_lists keeps: the largest |w|, of uniform codes the largest |m|, m the multiples of steps; rounded up.

}  // namespace shortlist::cuda
