// Row-wise top k of short rows: the kind of the kernel for early stops of 16 bits.
#include "cuda/top_k/warp_rows_kernel.cuh"
#include "cuda/top_k/warp_rows_kinds.hpp"

namespace shortlist::cuda {
namespace {

template <class Stored>
void launch_as(cudaStream_t stream, warp_args& args, int multiprocessors) {
  constexpr auto kKind = warp_rows_kind::half_early;
  const std::int64_t columns = args.request.matrix.cols;
  if (columns <= 256) return launch_warp_rows_of<Stored, 64, 4, kKind>(stream, args, multiprocessors);
  if (columns <= 512) return launch_warp_rows_of<Stored, 64, 8, kKind>(stream, args, multiprocessors);
  if (columns <= 768) return launch_warp_rows_of<Stored, 96, 8, kKind>(stream, args, multiprocessors);
  if (columns <= 1024) return launch_warp_rows_of<Stored, 64, 16, kKind>(stream, args, multiprocessors);
  if (columns <= 2048) return launch_warp_rows_of<Stored, 64, 32, kKind>(stream, args, multiprocessors);
  launch_warp_rows_of<Stored, 128, 32, kKind>(stream, args, multiprocessors);
}

}  // namespace

void launch_half_stop_warp_rows(cudaStream_t stream, warp_args& args, int multiprocessors) {
  if (args.request.matrix.type == value_type::f16) return launch_as<float16>(stream, args, multiprocessors);
  launch_as<bfloat16>(stream, args, multiprocessors);
}

}  // namespace shortlist::cuda
