// Element types, metrics and views. Sizes are int64_t; byte counts end in `_bytes`.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace shortlist {

/// IEEE binary16, as bits.
struct float16 {
  std::uint16_t bits;
};

/// The upper half of an IEEE binary32, as bits.
struct bfloat16 {
  std::uint16_t bits;
};

/// The type of a stored element. Each widens exactly to fp32 before any arithmetic.
enum class element_type : std::uint8_t { f32, f16, bf16, i8, u8 };

/// What makes a row a good match. Inner product and cosine: larger is better. Squared L2: smaller is better.
enum class metric : std::uint8_t { inner_product, cosine, l2 };

/// What a flat index keeps of its rows. A plane is an int8 copy that lets a search read a quarter of the bytes and
/// return the same bits; see docs/certified.md.
enum class storage : std::uint8_t {
  full,           ///< the rows, on the device
  int8_and_full,  ///< a plane and the rows, both on the device; on GPUs the plane has a copy of six bits an element,
                  ///< too
  int8_and_host,  ///< a plane on the device, the rows in pinned host memory; on the CPU the same as int8_and_full
};

/// "f32", "f16", "bf16", "i8", "u8".
std::string_view to_string(element_type type);
/// "inner_product", "cosine", "l2".
std::string_view to_string(metric value);
/// "full", "int8_and_full", "int8_and_host".
std::string_view to_string(storage value);
/// The inverse of to_string. @throws invalid_argument that lists the known names.
element_type parse_element_type(std::string_view name);
/// The inverse of to_string; also takes "ip" and "cos". @throws invalid_argument that lists the known names.
metric parse_metric(std::string_view name);
/// The inverse of to_string. @throws invalid_argument that lists the known names.
storage parse_storage(std::string_view name);

/// Bytes of one element: 4, 2, 2, 1, 1.
constexpr std::int64_t size_bytes(element_type type) {
  switch (type) {
    case element_type::f32: return 4;
    case element_type::f16:
    case element_type::bf16: return 2;
    case element_type::i8:
    case element_type::u8: return 1;
  }
  return 0;
}

/// The element_type of a C++ type.
template <class T>
constexpr element_type element_type_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>)
    return element_type::f32;
  else if constexpr (std::is_same_v<U, float16>)
    return element_type::f16;
  else if constexpr (std::is_same_v<U, bfloat16>)
    return element_type::bf16;
  else if constexpr (std::is_same_v<U, std::int8_t>)
    return element_type::i8;
  else {
    static_assert(std::is_same_v<U, std::uint8_t>, "elements are float, float16, bfloat16, int8_t or uint8_t");
    return element_type::u8;
  }
}

/// A row-major matrix that somebody else owns: [rows, cols], `row_stride` elements from one row to the next.
template <class T>
struct matrix_view {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;

  constexpr matrix_view() = default;
  constexpr matrix_view(T* data, std::int64_t rows, std::int64_t cols) : matrix_view(data, rows, cols, cols) {}
  constexpr matrix_view(T* data, std::int64_t rows, std::int64_t cols, std::int64_t row_stride)
      : data(data), rows(rows), cols(cols), row_stride(row_stride) {}
};

/// A read-only matrix view of any element type; a matrix_view converts to it.
struct any_matrix_view {
  const void* data = nullptr;
  element_type type = element_type::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;  // in elements

  constexpr any_matrix_view() = default;
  constexpr any_matrix_view(const void* data, element_type type, std::int64_t rows, std::int64_t cols,
                            std::int64_t row_stride)
      : data(data), type(type), rows(rows), cols(cols), row_stride(row_stride) {}
  template <class T>
  constexpr any_matrix_view(matrix_view<T> m)  // NOLINT(google-explicit-constructor): a view of a view
      : any_matrix_view(m.data, element_type_of<T>(), m.rows, m.cols, m.row_stride) {}
};

}  // namespace shortlist
