// Queries in device memory, or one that travels with the kernel's parameters: a copy less to wait for.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shortlist::cuda {

inline constexpr std::int64_t kInlineQueryDim = 128;

struct query_source {
  query_source() = default;
  /// `one`, if it is not null, lies in host memory.
  query_source(const float* queries, std::int64_t stride, const float* one, std::int64_t dim)
      : rows(one ? nullptr : queries), row_stride(stride) {
    if (one) std::copy_n(one, dim, inline_row);
  }

  __device__ __forceinline__ const float* of(std::int64_t query) const {
    return rows ? rows + query * row_stride : inline_row;
  }

  const float* rows = nullptr;
  std::int64_t row_stride = 0;
  float inline_row[kInlineQueryDim] = {};
};

}  // namespace shortlist::cuda
