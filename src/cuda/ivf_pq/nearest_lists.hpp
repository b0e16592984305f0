// The nearest lists of a few queries: scores of all centroids, to the bit, and the best of them. See nearest_lists.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Whether that serves queries of `dim` elements which look at `nprobe` of `lists`.
bool has_nearest_lists(std::int64_t dim, std::int64_t lists, std::int64_t nprobe);
std::int64_t nearest_lists_bytes(std::int64_t lists, std::int64_t queries);

/// Flat search of centroids. `inline_query`, if it is not null, is the one query, in host memory, and read at once.
void launch_nearest_lists(cudaStream_t stream, void* memory, const core::flat_corpus& centroids,
                          const core::flat_request& request, const float* inline_query);

}  // namespace shortlist::cuda
