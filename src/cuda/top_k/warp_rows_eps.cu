// Row-wise top k of short rows: the kind of the kernel for an eps.
#include "cuda/top_k/warp_rows_kernel.cuh"
#include "cuda/top_k/warp_rows_kinds.hpp"

namespace shortlist::cuda {

void launch_eps_warp_rows(cudaStream_t stream, warp_args& args, int multiprocessors) {
  by_stored_type(args.request.matrix.type, [&](auto value) {
    launch_warp_rows_as<decltype(value), warp_rows_kind::eps>(stream, args, multiprocessors);
  });
}

}  // namespace shortlist::cuda
