// The nearest lists of a few queries: scores or estimates of all centroids, and the best of them, to the bit. See
// nearest_lists.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/backend.hpp"
#include "cuda/ivf_pq/filter.hpp"

namespace shortlist::cuda {

/// Whether that serves queries of `dim` elements which look at `nprobe` of `lists`.
bool has_nearest_lists(std::int64_t dim, std::int64_t lists, std::int64_t nprobe);
/// Of so many queries at once, at most.
std::int64_t most_nearest_queries(std::int64_t dim);
/// `keys` are queries by lists, at most.
std::int64_t nearest_lists_bytes(std::int64_t dim, std::int64_t keys, std::int64_t queries);

/// Flat search of centroids; `pages` are theirs, as coarse.hpp has them. `inline_query`, if it is not null, is the one
/// query, in host memory, and read at once. What these queries are filtered for next is prepared too, if it is given.
void launch_nearest_lists(cudaStream_t stream, void* memory, const core::flat_corpus& centroids, const std::byte* pages,
                          const core::flat_request& request, const float* inline_query, const filter_batch* next);

/// Whether so many queries may choose from so many lists themselves, each of their blocks, as it begins.
bool has_centroid_keys(std::int64_t queries, std::int64_t lists);
/// Keys of the scores of all centroids, for each query: what pick_lists.cuh chooses from.
const std::uint32_t* launch_centroid_keys(cudaStream_t stream, void* memory, const core::flat_corpus& centroids,
                                          const core::flat_request& request, const float* inline_query);

}  // namespace shortlist::cuda
