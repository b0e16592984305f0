// Row-wise top k of short rows, best first. See warp_rows_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

namespace shortlist::cuda {

struct warp_args;

/// Serves any request that launch_warp_rows may get; a file of its own, for these kernels take as long to compile.
void launch_sorted_warp_rows(cudaStream_t stream, warp_args& args, int multiprocessors);

}  // namespace shortlist::cuda
