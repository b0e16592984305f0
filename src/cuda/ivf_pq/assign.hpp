// Lists of rows: the nearest centroid of each. See assign.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "core/ivf_pq.hpp"

namespace shortlist::cuda {

std::unique_ptr<core::scratch> make_assign_scratch(core::backend& backend, const core::flat_corpus& centroids,
                                                   std::int64_t max_rows, int multiprocessors);
void launch_assign(cudaStream_t stream, core::backend& backend, core::scratch& memory,
                   const core::flat_corpus& centroids, const float* rows, std::int64_t n, std::int64_t* lists,
                   int multiprocessors);

}  // namespace shortlist::cuda
