// Row-wise top k of short rows: the kinds of the kernel that write by ascending column, but those of an eps.
#include "cuda/top_k/block_rows.hpp"
#include "cuda/top_k/warp_rows.hpp"
#include "cuda/top_k/warp_rows_kernel.cuh"
#include "cuda/top_k/warp_rows_kinds.hpp"

namespace shortlist::cuda {

void launch_warp_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  using kind = warp_rows_kind;
  warp_args args = warp_args_of(request);
  const kind of_request = kind_of(args);
  if (of_request == kind::any && request.matrix.cols > core::kWarpRowsMaxCols)  // ragged, or stopped and apart
    return launch_block_rows(stream, request, multiprocessors);
  if (of_request == kind::eps || of_request == kind::wide_eps)
    return launch_eps_warp_rows(stream, args, of_request, multiprocessors);
  if (of_request == kind::half_early) return launch_half_stop_warp_rows(stream, args, multiprocessors);
  if (most_sorted(of_request) > 0) return launch_sorted_warp_rows(stream, args, of_request, multiprocessors);
  by_stored_type(request.matrix.type, [&](auto value) {
    using stored = decltype(value);
    if (of_request == kind::packed) return launch_warp_rows_as<stored, kind::packed>(stream, args, multiprocessors);
    if (of_request == kind::plain) return launch_warp_rows_as<stored, kind::plain>(stream, args, multiprocessors);
    launch_warp_rows_as<stored, kind::early>(stream, args, multiprocessors);
  });
}

}  // namespace shortlist::cuda
