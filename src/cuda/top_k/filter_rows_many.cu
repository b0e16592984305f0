// The exact search of long rows for a large k. See filter_rows_kernel.cuh.
#include "cuda/top_k/filter_rows_kernel.cuh"
#include "cuda/top_k/filter_rows_kinds.hpp"

namespace shortlist::cuda::filtering {

void launch_many_filter_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  by_stored_type(request.matrix.type, [&](auto stored) {
    launch_filter_kernel<decltype(stored), row_result::many_by_column>(stream, request, multiprocessors);
  });
}

}  // namespace shortlist::cuda::filtering
