// Rows of logits that penalties, a bias or a mask change, made plain. See change_rows.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "core/backend.hpp"
#include "cuda/sample/row_kinds.cuh"

namespace shortlist::cuda {

inline bool has_history(const sample_params& params) { return params.prompt.begins || params.generated.begins; }

inline bool are_neighbours(const value_matrix& logits) { return logits.col_stride == 1 || logits.cols == 1; }

/// Whether rows have to be changed before a token is drawn from them; so have those whose logits are not neighbours.
bool changes_rows(const core::sample_request& request);

/// The same request for the rows from `first` on, of plain logits.
core::sample_request plain_rows(const core::sample_request& request, const value_matrix& logits, std::int64_t first);

/// Rows that are changed at once: all, or so many as take 256 MiB, but one at least.
std::int64_t changed_at_once(std::int64_t rows, std::int64_t row_bytes);

/// Calls sample(plain) for requests that ask the same of rows that are changed and begin at 16 bytes: for all rows at
/// once, or for some after the others where they take more than 256 MiB. What `sample` starts on `stream` may read
/// them. Rows of other kinds are not copied. Asynchronous, can be captured; one launch and one call a turn.
/// @pre changes_rows(request)
void sample_changed_rows(cudaStream_t stream, const core::sample_request& request, row_kinds kinds, int multiprocessors,
                         const std::function<void(const core::sample_request& plain)>& sample);

}  // namespace shortlist::cuda
