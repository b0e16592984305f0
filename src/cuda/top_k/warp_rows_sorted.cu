// Row-wise top k of short rows: the kinds of the kernel that may write the best first.
#include "cuda/top_k/warp_rows_kernel.cuh"
#include "cuda/top_k/warp_rows_sorted.hpp"

namespace shortlist::cuda {
namespace {

template <class Stored>
void launch_type(cudaStream_t stream, warp_args& args, int multiprocessors) {
  using kind = warp_rows_kind;
  const bool exact = !args.search.stop.asked() && args.search.k < args.request.matrix.cols;
  if (args.stage.mode == stage_mode::by_threads || args.output.out.mask || !exact)
    return launch_warp_rows_as<Stored, kind::any>(stream, args, multiprocessors);
  if (args.stage.mode == stage_mode::packed)
    return launch_warp_rows_as<Stored, kind::sorted>(stream, args, multiprocessors);
  launch_warp_rows_as<Stored, kind::plain_sorted>(stream, args, multiprocessors);
}

}  // namespace

void launch_sorted_warp_rows(cudaStream_t stream, warp_args& args, int multiprocessors) {
  by_stored_type(args.request.matrix.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, args, multiprocessors); });
}

}  // namespace shortlist::cuda
