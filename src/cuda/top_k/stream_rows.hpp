// Row-wise top k of few long rows, each streamed by a team of blocks. See stream_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Whether launch_stream_rows takes the request: exact, no mask, 32 or 16 bits a value, neighbours in memory, k <=
/// 2048. It is made for rows of 32k columns and more, and for any above 1024 where the rows are too few to fill the
/// GPU.
bool stream_rows_serve(const core::top_k_request& request, int multiprocessors);

/// Asynchronous on `stream`; one launch or two, can be captured. Takes scratch memory for rows that a team shares.
/// @pre stream_rows_serve.
void launch_stream_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
