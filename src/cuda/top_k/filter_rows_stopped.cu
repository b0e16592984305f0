// Early stops of many long rows. See filter_rows_kernel.cuh.
#include "cuda/top_k/filter_rows.hpp"
#include "cuda/top_k/filter_rows_kernel.cuh"

namespace shortlist::cuda {

void launch_stopped_filter_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  using namespace filtering;
  by_stored_type(request.matrix.type, [&](auto stored) {
    launch_filter_kernel<decltype(stored), row_result::stopped>(stream, request, multiprocessors);
  });
}

}  // namespace shortlist::cuda
