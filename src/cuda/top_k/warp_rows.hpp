// Row-wise top k with a row in the registers of some lanes. See warp_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// The widest row that the lanes of a warp hold.
inline constexpr std::int64_t kWarpRowsMaxCols = 1024;

/// Whether the rows of this request can be held so: neighbouring values of at most 16 or 32 bits, and few enough.
bool warp_rows_serve(const core::top_k_request& request);
/// Asynchronous on `stream`; one launch, can be captured.
void launch_warp_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
