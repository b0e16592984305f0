// Queries of any element type as fp32, exactly.
#pragma once

#include <cstdint>

#include "shortlist/types.hpp"

namespace shortlist::index {

/// Rows [first, first + count) of `from`, dense: `to` is [count, from.cols].
void widen_rows(const any_matrix_view& from, std::int64_t first, std::int64_t count, float* to);

/// The stride in elements; a single row needs none and may come with any.
constexpr std::int64_t stride_of(const any_matrix_view& matrix) {
  return matrix.rows > 1 ? matrix.row_stride : matrix.cols;
}

}  // namespace shortlist::index
