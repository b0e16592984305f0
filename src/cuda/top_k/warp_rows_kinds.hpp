// Kinds of the kernel of short rows that have files of their own, for each takes long to compile. See
// warp_rows_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shortlist::cuda {

struct warp_args;
enum class warp_rows_kind : std::uint8_t;

/// Those that may write the best first, for launch_warp_rows. @pre most_sorted(of_request) > 0
void launch_sorted_warp_rows(cudaStream_t stream, warp_args& args, warp_rows_kind of_request, int multiprocessors);

/// Early stops of 16 bits that levels tell.
void launch_half_stop_warp_rows(cudaStream_t stream, warp_args& args, int multiprocessors);

/// Those of an eps.
void launch_eps_warp_rows(cudaStream_t stream, warp_args& args, warp_rows_kind of_request, int multiprocessors);

}  // namespace shortlist::cuda
