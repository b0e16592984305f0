// Row-wise top k of short rows: the kinds of the kernel for an eps.
#include "cuda/top_k/warp_rows_kernel.cuh"
#include "cuda/top_k/warp_rows_kinds.hpp"

namespace shortlist::cuda {

void launch_eps_warp_rows(cudaStream_t stream, warp_args& args, warp_rows_kind of_request, int multiprocessors) {
  using kind = warp_rows_kind;
  if (of_request == kind::wide_eps) return launch_warp_rows_as<float, kind::wide_eps>(stream, args, multiprocessors);
  by_stored_type(args.request.matrix.type,
                 [&](auto value) { launch_warp_rows_as<decltype(value), kind::eps>(stream, args, multiprocessors); });
}

}  // namespace shortlist::cuda
