// Row-wise top k of short rows: the kinds of the kernel that may write the best first.
#include "cuda/top_k/warp_rows_kernel.cuh"
#include "cuda/top_k/warp_rows_kinds.hpp"

namespace shortlist::cuda {

void launch_sorted_warp_rows(cudaStream_t stream, warp_args& args, warp_rows_kind of_request, int multiprocessors) {
  using kind = warp_rows_kind;
  by_stored_type(args.request.matrix.type, [&](auto value) {
    using stored = decltype(value);
    if (of_request == kind::sorted) return launch_warp_rows_as<stored, kind::sorted>(stream, args, multiprocessors);
    if (of_request == kind::plain_sorted)
      return launch_warp_rows_as<stored, kind::plain_sorted>(stream, args, multiprocessors);
    launch_warp_rows_as<stored, kind::any>(stream, args, multiprocessors);
  });
}

}  // namespace shortlist::cuda
