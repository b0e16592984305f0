// The rows that may be among the best of a coarse search, by Hopper's matrix units: see coarse_scan.cu.
#pragma once

#include "cuda/ivf_pq/filter.hpp"

namespace shortlist::cuda {

/// Queries that a cluster of blocks has: batches of as many for each of its blocks leave none idle.
inline constexpr std::int64_t kCoarseScanQueries = 160;

/// Whether the GPU and so many rows of such a dimension, of which k are asked for, are served.
bool has_coarse_scan(std::int64_t dim, std::int64_t rows, std::int64_t k);
/// What the sample's scan, thresholds and the filter's scan give of pages of halves, whose table is in order: hits.
/// Queries are prepared. A query that is not served has fewer hits than wanted.
void launch_coarse_scan(cudaStream_t stream, const filter_batch& batch, std::int64_t rows, int multiprocessors);

}  // namespace shortlist::cuda
