// Rows on their way into shared memory: by the copy engine, which wants multiples of 16 bytes, or by threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {

constexpr std::int64_t kCopyUnit = 16;  // bytes, of a bulk copy

enum class stage_mode : std::uint8_t {
  packed,  // rows lie behind each other, at multiples of 16 bytes: several in one copy
  dense,   // they lie behind each other, and begin anywhere: the same, and by threads what a copy must not bring
  units,   // rows apart: the 16-byte units that a row touches; what precedes it comes along, and is a row's of the same
           // matrix
  by_threads  // ragged rows: nothing outside them is read
};

struct row_stage {
  const unsigned char* data;
  const unsigned char* end;   // of the last row
  std::int64_t stride_bytes;  // from row to row in the matrix
  std::int64_t first_inner;   // rows [first_inner, inner_end): units that these touch lie in the matrix
  std::int64_t inner_end;
  std::int32_t row_bytes;
  std::int32_t pitch_bytes;  // from row to row in shared memory; a multiple of 16, but for dense rows
  std::int32_t value_bytes;
  std::uint32_t lead_of_first;  // bytes by which values are behind a multiple of 16, and what each row adds
  std::uint32_t lead_of_each;
  stage_mode mode;

  /// Where the first value of row first + r is in shared memory, of rows that were fetched from `first` on: as far
  /// behind a multiple of 16 as it is in the matrix, unless threads bring all rows.
  __device__ __forceinline__ int offset_bytes(std::int64_t first, int r) const {
    return r * pitch_bytes + lead_bytes(mode == stage_mode::dense ? first : first + r);
  }
  /// Shared memory for `rows` rows, of which the last may be read up to `values` values; a multiple of 128.
  std::int64_t bytes_of(int rows, int values) const {
    const std::int64_t brought = mode == stage_mode::dense ? 2 * kCopyUnit : 0;  // before the first, behind the last
    return (brought + (rows - 1) * std::int64_t{pitch_bytes} + std::int64_t{values} * value_bytes + 127) / 128 * 128;
  }
  /// Columns of a row, and those that may come along before it.
  std::int64_t columns_held() const {
    const bool aligned = mode == stage_mode::packed || mode == stage_mode::by_threads;
    return (row_bytes + (aligned ? 0 : kCopyUnit - value_bytes)) / value_bytes;
  }

  /// Starts copying a row; one thread calls it. @pre mode is not by_threads.
  __device__ __forceinline__ void fetch_row(std::int64_t index, unsigned char* to, std::uint64_t* barrier) const {
    if (mode == stage_mode::packed) return fetch_packed(index, 1, to, barrier);
    if (mode == stage_mode::dense) return fetch_dense(index, 1, to, barrier);
    const std::uint32_t bytes = fetched_bytes(index);
    barrier_expect(barrier, bytes);
    if (bytes > 0) bulk_copy(to, units_of(index), bytes, barrier);
  }
  /// Starts copying rows [first, first + rows), no more than a warp has lanes, all of which call it and arrive at the
  /// barrier. @pre as above.
  __device__ __forceinline__ void fetch_rows(std::int64_t first, int rows, unsigned char* to,
                                             std::uint64_t* barrier) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (mode == stage_mode::units) {
      if (lane < rows) {
        const std::uint32_t bytes = fetched_bytes(first + lane);
        barrier_expect_more(barrier, bytes);
        if (bytes > 0) bulk_copy(to + lane * pitch_bytes, units_of(first + lane), bytes, barrier);
      }
      barrier_arrive_at(shared_address(barrier));
    } else if (lane > 0) {
      barrier_arrive_at(shared_address(barrier));
    } else if (mode == stage_mode::packed) {
      fetch_packed(first, rows, to, barrier);
    } else {
      fetch_dense(first, rows, to, barrier);
    }
  }
  /// One thread calls it. @pre mode is packed.
  __device__ __forceinline__ void fetch_packed(std::int64_t first, int rows, unsigned char* to,
                                               std::uint64_t* barrier) const {
    const auto bytes = static_cast<std::uint32_t>(rows * row_bytes);
    barrier_expect(barrier, bytes);
    bulk_copy(to, data + first * row_bytes, bytes, barrier);
  }
  /// Whether threads must bring a part of rows [first, first + rows): ragged rows, rows whose units leave the matrix,
  /// and what dense ones have in a unit that does. The same for all threads.
  __device__ __forceinline__ bool has_rest(std::int64_t first, int rows) const {
    if (mode == stage_mode::by_threads) return true;
    if (mode == stage_mode::packed || !is_at_end(first, rows)) return false;
    if (mode == stage_mode::dense) return dense_copy_of(first, rows).has_ends();
    return fetched_bytes(first) == 0 || fetched_bytes(first + rows - 1) == 0;
  }
  /// Brings ragged rows; the threads must meet before they read. @pre mode is by_threads.
  __device__ __forceinline__ void copy_ragged(const core::top_k_request& request, std::int64_t first, int rows,
                                              unsigned char* to, int thread, int threads) const {
    for (int r = 0; r < rows; r++) {
      const row_span span = span_of(request, first + r);
      copy_values(data + (first + r) * stride_bytes + span.begin * value_bytes, to + r * pitch_bytes, span.count,
                  thread, threads);
    }
  }
  /// Brings what the engine does not, of the first or last rows; the threads must meet before they read, and before the
  /// engine brings others. @pre mode is dense or units.
  __device__ __forceinline__ void copy_ends(std::int64_t first, int rows, unsigned char* to, int thread,
                                            int threads) const {
    if (mode == stage_mode::dense) {
      const dense_copy copy = dense_copy_of(first, rows);
      to += copy.lead;
      const unsigned char* begin_of_copy = copy.low < copy.end ? copy.low : copy.end;
      copy_values(copy.begin, to, (begin_of_copy - copy.begin) / value_bytes, thread, threads);
      copy_values(copy.high, to + (copy.high - copy.begin), (copy.end - copy.high) / value_bytes, thread, threads);
    } else {
      for (int r = 0; r < rows; r++)
        if (fetched_bytes(first + r) == 0)
          copy_values(data + (first + r) * stride_bytes, to + offset_bytes(first, r), row_bytes / value_bytes, thread,
                      threads);
    }
    async_fence();
  }
  /// The same, not inlined: where loops are long, what few rows need must not stand between what all of them do.
  __device__ __noinline__ void call_copy_ends(std::int64_t first, int rows, unsigned char* to, int thread,
                                              int threads) const {
    copy_ends(first, rows, to, thread, threads);
  }

 private:
  /// Rows behind each other: [begin, end), of which the engine brings [low, high).
  struct dense_copy {
    const unsigned char* begin;
    const unsigned char* end;
    const unsigned char* low;
    const unsigned char* high;
    int lead;

    __device__ __forceinline__ bool has_ends() const { return begin < low || end > high; }
  };
  __device__ __forceinline__ int lead_bytes(std::int64_t index) const {
    return static_cast<int>((lead_of_first + static_cast<std::uint32_t>(index) * lead_of_each) % kCopyUnit);
  }
  __device__ __forceinline__ bool is_at_end(std::int64_t first, int rows) const {
    return first < first_inner || first + rows > inner_end;
  }
  __device__ __forceinline__ dense_copy dense_copy_of(std::int64_t first, int rows) const {
    dense_copy copy;
    copy.begin = data + first * stride_bytes;
    copy.end = copy.begin + rows * row_bytes;
    copy.lead = lead_bytes(first);
    copy.low = copy.begin - copy.lead;
    if (copy.low < data) copy.low += kCopyUnit;
    const auto over = static_cast<int>(reinterpret_cast<std::uintptr_t>(copy.end) % kCopyUnit);
    copy.high = copy.end - over;
    if (over != 0 && copy.high + kCopyUnit <= end) copy.high += kCopyUnit;
    if (copy.high < copy.low) copy.high = copy.low;  // all in a unit or two: nothing
    return copy;
  }
  __device__ __forceinline__ void fetch_dense(std::int64_t first, int rows, unsigned char* to,
                                              std::uint64_t* barrier) const {
    if (is_at_end(first, rows)) return fetch_dense_end(first, rows, to, barrier);
    const int lead = lead_bytes(first);
    const std::uint32_t bytes = units_bytes(lead + rows * row_bytes);
    barrier_expect(barrier, bytes);
    bulk_copy(to, data + first * stride_bytes - lead, bytes, barrier);
  }
  __device__ __noinline__ void fetch_dense_end(std::int64_t first, int rows, unsigned char* to,
                                               std::uint64_t* barrier) const {
    const dense_copy copy = dense_copy_of(first, rows);
    const auto bytes = static_cast<std::uint32_t>(copy.high - copy.low);
    barrier_expect(barrier, bytes);
    if (bytes > 0) bulk_copy(to + (copy.low - copy.begin) + copy.lead, copy.low, bytes, barrier);
  }
  __device__ __forceinline__ void copy_values(const unsigned char* from, unsigned char* to, std::int64_t values,
                                              int thread, int threads) const {
    const auto count = static_cast<int>(values);
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
  static __device__ __forceinline__ std::uint32_t units_bytes(int bytes) {
    return (static_cast<std::uint32_t>(bytes) + kCopyUnit - 1) / kCopyUnit * kCopyUnit;
  }
  __device__ __forceinline__ const unsigned char* units_of(std::int64_t index) const {
    return data + index * stride_bytes - lead_bytes(index);
  }
  /// Bytes that the copy engine brings of a row that lies apart; 0 if its units leave the matrix.
  __device__ __forceinline__ std::uint32_t fetched_bytes(std::int64_t index) const {
    const std::uint32_t bytes = units_bytes(lead_bytes(index) + row_bytes);
    const unsigned char* from = units_of(index);
    return from >= data && from + bytes <= end ? bytes : 0u;
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
  const std::int64_t rows_at_end = 1 + (kCopyUnit - 1) / std::max(stride_bytes, std::int64_t{1});
  row_stage stage{data,
                  data + (matrix.rows - 1) * stride_bytes + row_bytes,
                  stride_bytes,
                  rows_at_end,
                  matrix.rows - rows_at_end,
                  static_cast<std::int32_t>(row_bytes),
                  static_cast<std::int32_t>((row_bytes + 2 * kCopyUnit - 1) / kCopyUnit * kCopyUnit),
                  static_cast<std::int32_t>(value_bytes),
                  static_cast<std::uint32_t>(address % kCopyUnit),
                  static_cast<std::uint32_t>(stride_bytes % kCopyUnit),
                  stage_mode::units};
  const bool behind_each_other = stride_bytes == row_bytes;
  if (ragged) {
    stage.mode = stage_mode::by_threads;
  } else if (behind_each_other && address % kCopyUnit == 0 && row_bytes % kCopyUnit == 0) {
    stage.mode = stage_mode::packed;
    stage.pitch_bytes = stage.row_bytes;
  } else if (stage.columns_held() > most_columns) {
    stage.mode = stage_mode::by_threads;
  } else if (behind_each_other) {
    stage.mode = stage_mode::dense;
    stage.pitch_bytes = stage.row_bytes;
  }
  if (stage.mode == stage_mode::packed || stage.mode == stage_mode::by_threads)
    stage.lead_of_first = stage.lead_of_each = 0;
  return stage;
}

}  // namespace shortlist::cuda
