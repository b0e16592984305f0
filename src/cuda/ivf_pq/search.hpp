// The search of an IVF-PQ index on one GPU. See search.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "core/ivf_pq.hpp"

namespace shortlist::cuda {

std::unique_ptr<core::scratch> make_search_scratch(core::backend& backend, const core::ivf_pq_model& model,
                                                   const core::ivf_pq_lists& lists, const core::ivf_pq_limits& limits,
                                                   int multiprocessors);
/// Device to device, asynchronous on `stream`. `ops` turns the queries, if there is a rotation.
void launch_search(cudaStream_t stream, core::backend& backend, core::ivf_pq_ops& ops, core::scratch& memory,
                   const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                   const core::ivf_pq_request& request, int multiprocessors);
/// Host to host, complete on return.
void search_from_host(cudaStream_t stream, core::backend& backend, core::ivf_pq_ops& ops, core::scratch& memory,
                      const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                      const core::ivf_pq_request& request, int multiprocessors);

}  // namespace shortlist::cuda
