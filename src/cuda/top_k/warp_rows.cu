// Row-wise top k of short rows: which kind of the kernel a request gets, and those that write by ascending column.
#include "cuda/top_k/warp_rows.hpp"
#include "cuda/top_k/warp_rows_kernel.cuh"
#include "cuda/top_k/warp_rows_sorted.hpp"

namespace shortlist::cuda {
namespace {

template <class Stored>
void launch_type(cudaStream_t stream, warp_args& args, int multiprocessors) {
  using kind = warp_rows_kind;
  const bool packed = args.stage.mode == stage_mode::packed;
  const bool exact = !args.search.stop.asked() && args.search.k < args.request.matrix.cols;
  if (packed && exact) return launch_warp_rows_as<Stored, kind::packed>(stream, args, multiprocessors);
  if (packed) return launch_warp_rows_as<Stored, kind::early>(stream, args, multiprocessors);
  launch_warp_rows_as<Stored, kind::plain>(stream, args, multiprocessors);
}

}  // namespace

void launch_warp_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  warp_args args = warp_args_of(request);
  const bool exact = !args.search.stop.asked() && args.search.k < request.matrix.cols;
  const bool any = args.stage.mode == stage_mode::by_threads || request.out.mask ||
                   (!exact && args.stage.mode != stage_mode::packed);
  if (any || args.output.sort_size > 1) return launch_sorted_warp_rows(stream, args, multiprocessors);
  by_stored_type(request.matrix.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, args, multiprocessors); });
}

}  // namespace shortlist::cuda
