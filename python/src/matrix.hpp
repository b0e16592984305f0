// Arrays as what the library's calls take: matrices over the last axis, and vectors with one entry a row.
#pragma once

#include <span>

#include "array.hpp"

namespace shortlist::python {

/// The last axis is a row; the axes before it are rows one after another.
struct matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;
};

/// What a matrix's columns may be: any stride of 1 or more, or dense.
enum class columns : std::uint8_t { strided, dense };

/// Reads `object` as a matrix. What cannot be seen as one without a copy (axes in another order than memory has them,
/// reversed or broadcast ones) is copied.
matrix read_matrix(nb::handle object, const char* argument, columns allowed, array& into);

/// One axis of elements of `wanted`, dense, on the device of `like`. What has another type or a stride is copied.
void read_list(nb::handle object, const char* argument, dtype wanted, const array& like, array& into);
/// The same, an entry a row: [rows].
void read_rows(nb::handle object, const char* argument, dtype wanted, std::int64_t rows, const array& like,
               array& into);
/// Has `of` hold elements of `wanted`: a copy if they are not. Integers become floats, wide ones the nearest int32, and
/// int64 stands for the uint64 of its bits. @throws wrong_type for floats where integers are wanted.
void change_type(array& of, const char* argument, dtype wanted);
/// @throws invalid_argument or wrong_type if `other`, on a GPU, is not of the device and framework of `like`.
void check_same_place(const array& other, const char* argument, const array& like);

/// The shape of a result: `of`'s axes but the last, then `last`.
struct result_shape {
  result_shape(const array& of, std::int64_t last);
  explicit result_shape(const array& of);  ///< without a last
  std::span<const std::int64_t> get() const { return {extents, static_cast<std::size_t>(axes)}; }

  std::int64_t extents[kMaxAxes];
  int axes;
};

/// "int32" or "int64", as an index_type.
index_type index_type_of(std::string_view name, const char* argument);
inline dtype dtype_of(index_type type) { return type == index_type::i32 ? dtype::i32 : dtype::i64; }

/// A named tuple of the package, made without a call into Python's own code.
class named_tuple {
 public:
  explicit named_tuple(const char* class_name);
  nb::object make(std::span<nb::object> fields) const;

 private:
  nb::object class_;
  nb::object new_;
};

}  // namespace shortlist::python
