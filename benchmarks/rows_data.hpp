// The matrices of the row-wise benchmarks: generated on the host with all cores, the same for the same seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "shortlist/top_k.hpp"

namespace shortlist::benchmark {

/// What the values of a matrix look like.
enum class row_values : std::uint8_t {
  normal,     ///< independent standard normal
  lognormal,  ///< exp of those: most values in a small part of the range
  uniform,    ///< in [0, 1)
  ties90,     ///< nine values of ten are one number, which the k-th best is too
  all_equal,  ///< one number
  scaled,     ///< normal, each row times another number from 1 to 13
  nan10,      ///< normal; every tenth row holds one NaN
  ascending,  ///< column over cols: the best come last
  one_bin,    ///< 1 + i * 2^-20 for i in [0, 1024): one step of fp16
  half_inf,   ///< normal; half of the values, at random, are -inf, as a mask leaves them
  logits,     ///< normal, standard deviation 3
};

std::string_view to_string(row_values values);

/// [rows, cols] of one type in host memory, dense, on huge pages where the system has them.
class row_matrix {
 public:
  /// `room_bytes` more behind the matrix: for outputs, so that one read of both can be timed.
  row_matrix(std::int64_t rows, std::int64_t cols, value_type type, row_values values, std::int64_t room_bytes = 0);

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  value_type type() const { return type_; }
  std::int64_t bytes() const { return rows_ * cols_ * size_bytes(type_); }
  std::int64_t room_bytes() const { return room_bytes_; }
  const std::byte* data() const { return memory_.get(); }
  std::byte* room() { return memory_.get() + room_at(); }
  value_matrix view() const { return {data(), type_, rows_, cols_, cols_}; }
  /// `count` rows: first, first + step, ...
  value_matrix every(std::int64_t first, std::int64_t step, std::int64_t count) const {
    return {data() + first * cols_ * size_bytes(type_), type_, count, cols_, cols_ * step};
  }

 private:
  struct unmap {
    std::int64_t bytes;
    void operator()(std::byte* memory) const noexcept;
  };
  static constexpr std::int64_t kLineBytes = 64;
  std::int64_t room_at() const { return (bytes() + kLineBytes - 1) / kLineBytes * kLineBytes; }

  std::int64_t rows_;
  std::int64_t cols_;
  value_type type_;
  std::int64_t room_bytes_;
  std::unique_ptr<std::byte, unmap> memory_;
};

}  // namespace shortlist::benchmark
