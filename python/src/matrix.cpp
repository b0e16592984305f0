#include "matrix.hpp"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "calls.hpp"
#include "errors.hpp"

namespace shortlist::python {
namespace {

bool is_float(dtype type) {
  return type == dtype::f32 || type == dtype::f64 || type == dtype::f16 || type == dtype::bf16;
}

/// One stride for all axes before the last, or false if there is none.
bool merge_rows(const array& of, matrix& seen) {
  seen.rows = 1;
  seen.row_stride = 0;
  std::int64_t next = 0;  // the stride that the axis before must have
  for (int axis = of.axes - 2; axis >= 0; --axis) {
    const std::int64_t extent = of.shape[axis];
    if (extent == 1) continue;
    if (seen.rows == 1) {
      seen.row_stride = of.strides[axis];
    } else if (extent > 0 && seen.rows > 0 && of.strides[axis] != next) {
      return false;
    }
    seen.rows *= extent;
    next = of.strides[axis] * extent;
  }
  return true;
}

bool is_usable(const array& of, columns allowed, matrix& seen) {
  if (!of.aligned || !merge_rows(of, seen)) return false;
  seen.cols = of.shape[of.axes - 1];
  seen.col_stride = seen.cols > 1 ? of.strides[of.axes - 1] : 1;
  if (seen.rows == 0 || seen.cols == 0) {
    seen.col_stride = 1;
    seen.row_stride = seen.cols > 0 ? seen.cols : 1;
    return true;
  }
  if (seen.rows == 1) seen.row_stride = seen.cols * (seen.col_stride > 0 ? seen.col_stride : 1);
  if (allowed == columns::dense) return seen.col_stride == 1 && seen.row_stride >= seen.cols;
  return seen.col_stride >= 1 && seen.row_stride >= 1;
}

}  // namespace

matrix read_matrix(nb::handle object, const char* argument, columns allowed, array& into) {
  read_array(object, argument, into);
  if (into.axes < 1) throw_value(argument, "a single number", "an array of one axis or more");
  matrix seen;
  if (is_usable(into, allowed, seen)) return seen;
  replace_by_copy(into, argument);
  if (!is_usable(into, allowed, seen)) throw_value(argument, "laid out in another way", "an array of dense rows");
  return seen;
}

void change_type(array& of, const char* argument, dtype wanted) {
  if (of.type == wanted || (of.type == dtype::i64 && wanted == dtype::u64)) return;
  const bool convertible = of.type != dtype::other && (is_float(wanted) || !is_float(of.type));
  if (!convertible) {
    throw_type(fmt::format("{}.dtype", argument), to_string(of.type),
               fmt::format("{}, or {}", to_string(wanted), is_float(wanted) ? "what it holds" : "other integers"));
  }
  const bool is_signed = of.type == dtype::i64;
  if (wanted == dtype::i32 && (is_signed || of.type == dtype::u32 || of.type == dtype::u64)) {
    constexpr auto kLimits = std::numeric_limits<std::int32_t>{};
    of.object = of.object.attr("clip")(is_signed ? kLimits.min() : 0, kLimits.max());
  }
  replace_by_type(of, argument, wanted);
}

void check_same_place(const array& other, const char* argument, const array& like) {
  if (other.where != like.where) {
    throw_value(argument, fmt::format("on {}", other.where.name()),
                fmt::format("an array on {}, where the rows are", like.where.name()));
  }
  if (like.where.kind() == device_kind::cuda && other.from != like.from) {
    throw_type(argument, "an array of another library", "one of the rows' own, whose stream the work runs on");
  }
}

void read_list(nb::handle object, const char* argument, dtype wanted, const array& like, array& into) {
  nb::object made;
  if (!is_float(wanted) && is_list(object)) {
    static const nb::object& convert = *new nb::object(nb::module_::import_("shortlist._arguments").attr("integers"));
    made = convert(object, argument, to_string(wanted));
    object = made;
  }
  read_array(object, argument, into);
  check_same_place(into, argument, like);
  if (into.axes != 1) throw_value(argument, fmt::format("of shape {}", shape_text(into)), "an array of one axis");
  change_type(into, argument, wanted);
  if (!into.aligned || (into.shape[0] > 1 && into.strides[0] != 1)) replace_by_copy(into, argument);
}

void read_rows(nb::handle object, const char* argument, dtype wanted, std::int64_t rows, const array& like,
               array& into) {
  read_list(object, argument, wanted, like, into);
  if (into.shape[0] != rows) {
    throw_value(argument, fmt::format("of shape {}", shape_text(into)), fmt::format("[{}], one a row", rows));
  }
}

result_shape::result_shape(const array& of) : axes(of.axes - 1) {
  for (int axis = 0; axis < axes; ++axis) extents[axis] = of.shape[axis];
}

result_shape::result_shape(const array& of, std::int64_t last) : result_shape(of) { extents[axes++] = last; }

index_type index_type_of(std::string_view name, const char* argument) {
  if (name == "int64") return index_type::i64;
  if (name == "int32") return index_type::i32;
  throw_value(argument, name, "int32 or int64");
}

named_tuple::named_tuple(const char* class_name)
    : class_(nb::module_::import_("shortlist._results").attr(class_name)),
      new_(nb::borrow(reinterpret_cast<PyObject*>(&PyTuple_Type)).attr("__new__")) {}

nb::object named_tuple::make(std::span<nb::object> fields) const {
  nb::object plain = checked(PyTuple_New(static_cast<Py_ssize_t>(fields.size())));
  for (std::size_t i = 0; i < fields.size(); ++i) {
    PyTuple_SetItem(plain.ptr(), static_cast<Py_ssize_t>(i), fields[i].release().ptr());
  }
  PyObject* arguments[] = {class_.ptr(), plain.ptr()};
  return checked(PyObject_Vectorcall(new_.ptr(), arguments, 2, nullptr));
}

}  // namespace shortlist::python
