// Early stops of few long rows. See cluster_rows_kernel.cuh.
#include "cuda/top_k/cluster_rows.hpp"
#include "cuda/top_k/cluster_rows_kernel.cuh"

namespace shortlist::cuda {

void launch_stopped_cluster_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  const clustering::stopped_request stopped{request, early_stop_of(request.options)};
  clustering::launch_clusters(stream, stopped, multiprocessors);
}

}  // namespace shortlist::cuda
