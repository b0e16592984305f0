// Exact top k of few long rows. See cluster_rows_kernel.cuh.
#include "cuda/top_k/cluster_rows.hpp"
#include "cuda/top_k/cluster_rows_kernel.cuh"

namespace shortlist::cuda {

void launch_cluster_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  clustering::launch_clusters(stream, request, multiprocessors);
}

}  // namespace shortlist::cuda
