// Row-wise top k: the k best of every row of a matrix, exactly, or by an early-stopped bisection.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shortlist/device.hpp"
#include "shortlist/types.hpp"

namespace shortlist {

/// Which values are best.
enum class order : std::uint8_t { largest, smallest };

/// The type of a matrix's values.
enum class value_type : std::uint8_t { f32, f16, bf16, f64 };

/// The type of the columns that are returned.
enum class index_type : std::uint8_t { i32, i64 };

/// "f32", "f16", "bf16", "f64".
std::string_view to_string(value_type type);
/// The inverse of to_string. @throws invalid_argument that lists the known names.
value_type parse_value_type(std::string_view name);

/// Bytes of one value: 4, 2, 2, 8.
constexpr std::int64_t size_bytes(value_type type) {
  switch (type) {
    case value_type::f32: return 4;
    case value_type::f16:
    case value_type::bf16: return 2;
    case value_type::f64: return 8;
  }
  return 0;
}

/// The value_type of a C++ type.
template <class T>
constexpr value_type value_type_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>)
    return value_type::f32;
  else if constexpr (std::is_same_v<U, float16>)
    return value_type::f16;
  else if constexpr (std::is_same_v<U, bfloat16>)
    return value_type::bf16;
  else {
    static_assert(std::is_same_v<U, double>, "values are float, float16, bfloat16 or double");
    return value_type::f64;
  }
}

/// A read-only matrix of values with any strides, in elements: value (r, c) is data[r * row_stride + c * col_stride].
/// A matrix_view converts to it.
struct value_matrix {
  const void* data = nullptr;
  value_type type = value_type::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;

  constexpr value_matrix() = default;
  constexpr value_matrix(const void* data, value_type type, std::int64_t rows, std::int64_t cols,
                         std::int64_t row_stride, std::int64_t col_stride = 1)
      : data(data), type(type), rows(rows), cols(cols), row_stride(row_stride), col_stride(col_stride) {}
  template <class T>
  constexpr value_matrix(matrix_view<T> m)  // NOLINT(google-explicit-constructor): a view of a view
      : value_matrix(m.data, value_type_of<T>(), m.rows, m.cols, m.row_stride) {}
};

/// Rows of different lengths: row r has the columns [begins[r], ends[r]), and nothing outside them is read. Both arrays
/// are [rows], on the device of the matrix. Null `begins` are zeros: `ends` are lengths then. Null `ends`: whole rows.
struct ragged_rows {
  const std::int64_t* begins = nullptr;
  const std::int64_t* ends = nullptr;
};

struct top_k_options {
  std::int64_t k = 1;
  shortlist::order order = order::largest;
  /// Best first, in the one order of docs/ordering.md; else by ascending column, which is reproducible too.
  bool sorted = false;
  /// RTop-K's Algorithm 1: the bisection stops at a bracket no wider than eps x |the row's maximum|. 0 is exact.
  std::optional<float> eps = {};
  /// RTop-K's Algorithm 2: exactly so many bisection steps, then the first k columns that reach the lower end.
  std::optional<int> max_iter = {};
};

/// Where the k best of every row go; all arrays are on the device of the matrix. Give `indices`, `values`, or both; or
/// `mask` alone. A ragged row shorter than k is padded: index -1, and the worst value, -inf or +inf.
struct top_k_output {
  void* values = nullptr;   ///< [rows, k] of the matrix's type, dense; the input's own bits
  void* indices = nullptr;  ///< [rows, k] of `indices_as`, dense: columns of the matrix
  index_type indices_as = index_type::i64;
  std::uint8_t* mask = nullptr;  ///< [rows, cols], dense: 1 where a value is among the k best, else 0
};

/// The k best of every row.
///
/// The exact set under the one order: better values first, of equal ones the smaller column, NaN after all numbers
/// whatever the order; -0 equals +0. `eps` and `max_iter` return what their algorithms return, to the bit, on every
/// device; rows that hold NaN or infinities are exact in any case.
///
/// @param s       the stream; its device holds all arrays. The CPU has finished when the call returns.
/// @param matrix  [rows, cols], any strides of 1 or more.
/// @throws invalid_argument if k < 1 or k > cols, a stride or pointer is wrong, eps is negative or not finite, max_iter
///         is not in [1, 64], both are given, either is given for f64, cols do not fit `indices_as`, or `out` is not
///         one of the combinations above. The border of a ragged row outside [0, cols] throws on the CPU.
/// @throws cuda_error if a launch fails, or the GPU has no scratch memory left: for rows that blocks share, or to sort.
/// Order and algorithms: docs/ordering.md, sections 8 and 9. Cost: one read of the matrix.
/// Source: RTop-K (ICLR 2025), Algorithms 1 and 2.
void top_k(const stream& s, const value_matrix& matrix, const top_k_options& options, const top_k_output& out,
           const ragged_rows& ragged = {});

/// The oracle: what top_k returns on any device, by the definition, a full sort and plain loops, on one core of the
/// CPU.
/// @throws what top_k throws for arrays on the CPU.
void reference_top_k(const value_matrix& matrix, const top_k_options& options, const top_k_output& out,
                     const ragged_rows& ragged = {});
/// How many midpoints the oracle's Algorithm 1 counts in a row before it ends, with an absent eps as 0; none in a row
/// that takes the exact path. @throws the same; invalid_argument if there is no such row.
int reference_bisection_steps(const value_matrix& matrix, std::int64_t row, const top_k_options& options);

/// The shape of a row-wise top k, for choosing an algorithm before any data is there.
struct top_k_shape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t k = 1;
  value_type type = value_type::f32;
  bool early_stop = false;  ///< eps or max_iter
  bool sorted = false;
  bool mask = false;  ///< instead of values and indices
  index_type indices_as = index_type::i64;
  std::int64_t col_stride = 1;
};

/// For people: the algorithm for this shape on this device, why, and the bytes it moves.
/// @throws invalid_argument if a size is < 1, or SHORTLIST_FORCE_TOP_K names no algorithm.
std::string explain(device where, const top_k_shape& shape);

}  // namespace shortlist
