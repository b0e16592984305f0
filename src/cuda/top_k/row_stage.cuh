// Rows on their way into shared memory: by the copy engine, which wants multiples of 16 bytes, or by threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {

constexpr std::int64_t kCopyUnit = 16;  // bytes, of a bulk copy

enum class stage_mode : std::uint8_t {
  packed,     // rows lie behind each other, at multiples of 16 bytes: several in one copy
  units,      // the 16-byte units that a row touches; what precedes it comes along, and is a row's of the same matrix
  by_threads  // ragged rows: nothing outside them is read
};

struct row_stage {
  const unsigned char* data;
  const unsigned char* end;   // of the last row
  std::int64_t stride_bytes;  // from row to row in the matrix
  std::int32_t row_bytes;
  std::int32_t pitch_bytes;  // from row to row in shared memory; a multiple of 16
  std::int32_t value_bytes;
  stage_mode mode;

  /// Bytes of shared memory before the first value of row `index`.
  __device__ __forceinline__ int lead_bytes(std::int64_t index) const {
    if (mode != stage_mode::units) return 0;
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(data + index * stride_bytes) % kCopyUnit);
  }
  /// Shared memory for `rows` rows, of which the last may be read up to `values` values; a multiple of 128.
  std::int64_t bytes_of(int rows, int values) const {
    return ((rows - 1) * std::int64_t{pitch_bytes} + std::int64_t{values} * value_bytes + 127) / 128 * 128;
  }
  /// Columns that threads must hold for a row: its own, and those that may come along.
  std::int64_t columns_held() const {
    return (row_bytes + (mode == stage_mode::units ? kCopyUnit - value_bytes : 0)) / value_bytes;
  }

  /// Starts copying rows [first, first + rows); one thread calls it. @pre mode is not by_threads.
  __device__ __forceinline__ void fetch(std::int64_t first, int rows, unsigned char* to, std::uint64_t* barrier) const {
    if (mode == stage_mode::packed) return fetch_packed(first, rows, to, barrier);
    std::uint32_t all = 0;
    for (int r = 0; r < rows; r++) all += fetched_bytes(first + r);
    barrier_expect(barrier, all);
    for (int r = 0; r < rows; r++) {
      const std::uint32_t bytes = fetched_bytes(first + r);
      if (bytes > 0) bulk_copy(to + r * pitch_bytes, units_of(first + r), bytes, barrier);
    }
  }
  /// @pre mode is packed.
  __device__ __forceinline__ void fetch_packed(std::int64_t first, int rows, unsigned char* to,
                                               std::uint64_t* barrier) const {
    const auto bytes = static_cast<std::uint32_t>(rows * row_bytes);
    barrier_expect(barrier, bytes);
    bulk_copy(to, data + first * row_bytes, bytes, barrier);
  }
  /// Whether threads must copy row `index`: the copy engine must not bring ragged rows, and rows whose units leave the
  /// matrix.
  __device__ __forceinline__ bool needs_threads(std::int64_t index) const {
    return mode == stage_mode::by_threads || (mode == stage_mode::units && fetched_bytes(index) == 0);
  }
  /// Copies such a row; the threads must meet before they read.
  __device__ __forceinline__ void copy(const core::top_k_request& request, std::int64_t index, unsigned char* to,
                                       int thread, int threads) const {
    const row_span span = span_of(request, index);
    const unsigned char* from = data + index * stride_bytes + span.begin * value_bytes;
    const auto count = static_cast<int>(span.count);
    to += lead_bytes(index);
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

 private:
  __device__ __forceinline__ const unsigned char* units_of(std::int64_t index) const {
    return data + index * stride_bytes - lead_bytes(index);
  }
  /// Bytes that the copy engine brings of a row; 0 if its units leave the matrix.
  __device__ __forceinline__ std::uint32_t fetched_bytes(std::int64_t index) const {
    const std::int64_t bytes = (lead_bytes(index) + row_bytes + kCopyUnit - 1) / kCopyUnit * kCopyUnit;
    const unsigned char* from = units_of(index);
    return from >= data && from + bytes <= end ? static_cast<std::uint32_t>(bytes) : 0u;
  }
};

/// @param most_columns that the kernel holds; rows that fit only without what comes along are copied by threads.
inline row_stage row_stage_of(const core::top_k_request& request, std::int64_t most_columns) {
  const value_matrix& matrix = request.matrix;
  const std::int64_t value_bytes = size_bytes(matrix.type);
  const std::int64_t row_bytes = matrix.cols * value_bytes;
  const std::int64_t stride_bytes = matrix.row_stride * value_bytes;
  const bool ragged = request.ragged.begins || request.ragged.ends;
  const auto address = reinterpret_cast<std::uintptr_t>(matrix.data);
  const auto* data = static_cast<const unsigned char*>(matrix.data);
  row_stage stage{data,
                  data + (matrix.rows - 1) * stride_bytes + row_bytes,
                  stride_bytes,
                  static_cast<std::int32_t>(row_bytes),
                  static_cast<std::int32_t>((row_bytes + 2 * kCopyUnit - 1) / kCopyUnit * kCopyUnit),
                  static_cast<std::int32_t>(value_bytes),
                  stage_mode::units};
  if (ragged) {
    stage.mode = stage_mode::by_threads;
  } else if (stride_bytes == row_bytes && address % kCopyUnit == 0 && row_bytes % kCopyUnit == 0) {
    stage.mode = stage_mode::packed;
    stage.pitch_bytes = stage.row_bytes;
  } else if (stage.columns_held() > most_columns) {
    stage.mode = stage_mode::by_threads;
  }
  return stage;
}

}  // namespace shortlist::cuda
