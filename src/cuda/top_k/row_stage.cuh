// Rows on their way into shared memory: by the copy engine where they begin at multiples of 16 bytes, else by threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {

struct row_stage {
  const unsigned char* data;
  std::int64_t stride_bytes;  // from row to row in the matrix
  std::int32_t row_bytes;
  std::int32_t pitch_bytes;  // from row to row in shared memory; a multiple of 16
  std::int32_t value_bytes;
  bool bulk;

  /// Shared memory for `rows` rows, of which the last may be read up to `values` values; a multiple of 128.
  std::int64_t bytes_of(int rows, int values) const {
    return ((rows - 1) * std::int64_t{pitch_bytes} + std::int64_t{values} * value_bytes + 127) / 128 * 128;
  }
  /// Starts copying rows [first, first + rows); one thread calls it.
  __device__ __forceinline__ void fetch(std::int64_t first, int rows, unsigned char* to, std::uint64_t* barrier) const {
    barrier_expect(barrier, static_cast<std::uint32_t>(rows * row_bytes));
    const unsigned char* from = data + first * stride_bytes;
    if (stride_bytes == row_bytes) return bulk_copy(to, from, static_cast<std::uint32_t>(rows * row_bytes), barrier);
    for (int r = 0; r < rows; r++)
      bulk_copy(to + r * pitch_bytes, from + r * stride_bytes, static_cast<std::uint32_t>(row_bytes), barrier);
  }
  /// Copies the columns of one row, by `threads` threads.
  __device__ __forceinline__ void copy(const core::top_k_request& request, std::int64_t row, unsigned char* to,
                                       int thread, int threads) const {
    const row_span span = span_of(request, row);
    const unsigned char* from = data + row * stride_bytes + span.begin * value_bytes;
    const auto count = static_cast<int>(span.count);
    if (value_bytes == 4) {
#pragma unroll 8
      for (int c = thread; c < count; c += threads)
        reinterpret_cast<std::uint32_t*>(to)[c] = reinterpret_cast<const std::uint32_t*>(from)[c];
    } else {
#pragma unroll 8
      for (int c = thread; c < count; c += threads)
        reinterpret_cast<std::uint16_t*>(to)[c] = reinterpret_cast<const std::uint16_t*>(from)[c];
    }
  }
};

inline row_stage row_stage_of(const core::top_k_request& request) {
  const std::int64_t value_bytes = size_bytes(request.matrix.type);
  const std::int64_t row_bytes = request.matrix.cols * value_bytes;
  const std::int64_t stride_bytes = request.matrix.row_stride * value_bytes;
  const bool ragged = request.ragged.begins || request.ragged.ends;
  const auto address = reinterpret_cast<std::uintptr_t>(request.matrix.data);
  return {static_cast<const unsigned char*>(request.matrix.data),
          stride_bytes,
          static_cast<std::int32_t>(row_bytes),
          static_cast<std::int32_t>((row_bytes + 15) / 16 * 16),
          static_cast<std::int32_t>(value_bytes),
          !ragged && address % 16 == 0 && row_bytes % 16 == 0 && stride_bytes % 16 == 0};
}

}  // namespace shortlist::cuda
