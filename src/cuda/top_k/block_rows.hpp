// Row-wise top k of rows of up to 32,768 columns: a block a row. See block_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// The widest row that a block holds.
inline constexpr std::int64_t kBlockRowsMaxCols = 32'768;

/// Whether the rows of this request can be held so: neighbouring values of at most 32 bits, few enough, and, where they
/// are sorted, room for the entries to sort.
bool block_rows_serve(const core::top_k_request& request);
/// Asynchronous on `stream`; one launch, can be captured.
void launch_block_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors);

}  // namespace shortlist::cuda
