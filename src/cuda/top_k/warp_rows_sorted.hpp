// The kernels of short rows that may write the best first. See warp_rows_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shortlist::cuda {

struct warp_args;
enum class warp_rows_kind : std::uint8_t;

/// Launches them for launch_warp_rows; a file of their own, for they take as long to compile as the others.
/// @pre most_sorted(of_request) > 0
void launch_sorted_warp_rows(cudaStream_t stream, warp_args& args, warp_rows_kind of_request, int multiprocessors);

}  // namespace shortlist::cuda
