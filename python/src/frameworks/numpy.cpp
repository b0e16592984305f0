// NumPy's arrays, whatever has the buffer protocol, and lists of numbers. All of them are answered with NumPy's arrays.
#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <string>

#include "array.hpp"
#include "calls.hpp"
#include "errors.hpp"

namespace shortlist::python {
namespace {

/// A PEP 3118 format of one native element, its size known.
dtype dtype_of_format(const char* format, Py_ssize_t bytes) {
  if (!format) return dtype::u8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (*format == '\0' || format[1] != '\0') return dtype::other;
  switch (*format) {
    case 'e':
    case 'f':
    case 'd': return bytes == 4 ? dtype::f32 : bytes == 8 ? dtype::f64 : bytes == 2 ? dtype::f16 : dtype::other;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n': return bytes == 8 ? dtype::i64 : bytes == 4 ? dtype::i32 : bytes == 1 ? dtype::i8 : dtype::other;
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N': return bytes == 8 ? dtype::u64 : bytes == 4 ? dtype::u32 : bytes == 1 ? dtype::u8 : dtype::other;
    case '?': return dtype::boolean;
    default: return dtype::other;
  }
}

class numpy_framework final : public framework {
 public:
  numpy_framework()
      : module_(nb::module_::import_("numpy")), ndarray_(module_.attr("ndarray")), empty_(module_.attr("empty")) {}

  void read(nb::handle object, const char* argument, array& into) override {
    if (!hold_buffer(object, into)) {
      PyErr_Clear();
      read_without_buffer(object, argument, into);
      return;
    }
    into.object = nb::borrow(object);
    into.type = dtype_of_format(into.buffer.format, into.buffer.itemsize);
    take_layout(argument, into);
  }

  new_array empty(const array& /*like*/, std::span<const std::int64_t> shape, dtype type) override {
    const nb::object extents =
        shape.size() == 1 ? checked(PyLong_FromLongLong(shape[0])) : make_tuple_of(shape.data(), shape.size());
    PyObject* arguments[] = {extents.ptr(), dtype_object(type).ptr()};
    new_array made;
    made.object = checked(PyObject_Vectorcall(empty_.ptr(), arguments, std::size(arguments), nullptr));
    array view;
    read(made.object, "a new array", view);
    made.data = const_cast<void*>(view.data);  // NumPy's own memory, new and writable
    return made;
  }

  nb::object copied(nb::handle object) override {
    return module_.attr("array")(object, nb::arg("copy") = true, nb::arg("order") = "C");
  }

  nb::object converted(nb::handle object, const char* /*argument*/, dtype type) override {
    return module_.attr("asarray")(object, nb::arg("dtype") = dtype_object(type), nb::arg("order") = "C");
  }

  work_order order(const array& of) override { return {stream::wrap(of.where, nullptr)}; }

 private:
  static bool hold_buffer(nb::handle object, array& into) {
    if (!PyObject_CheckBuffer(object.ptr())) return false;
    return PyObject_GetBuffer(object.ptr(), &into.buffer, PyBUF_RECORDS_RO) == 0;
  }

  /// What NumPy reads where no buffer can be had: bfloat16, which PEP 3118 does not have, and lists.
  void read_without_buffer(nb::handle object, const char* argument, array& into) {
    const nb::object whole = is_ndarray(object) ? nb::borrow(object) : nb::object(module_.attr("asarray")(object));
    const std::string type = nb::cast<std::string>(whole.attr("dtype").attr("name"));
    const bool is_bfloat16 = type == "bfloat16";
    const nb::object bits = is_bfloat16 ? nb::object(whole.attr("view")("uint16")) : whole;
    if (!hold_buffer(bits, into)) {
      PyErr_Clear();
      throw_type(fmt::format("{}.dtype", argument), type, "a dtype of numbers");
    }
    into.object = whole;
    into.type = is_bfloat16 ? dtype::bf16 : dtype_of_format(into.buffer.format, into.buffer.itemsize);
    take_layout(argument, into);
  }

  bool is_ndarray(nb::handle object) const {
    const int answer = PyObject_IsInstance(object.ptr(), ndarray_.ptr());
    if (answer < 0) throw nb::python_error();
    return answer == 1;
  }

  static void take_layout(const char* argument, array& into) {
    const Py_buffer& buffer = into.buffer;
    if (buffer.ndim > kMaxAxes) throw_value(argument, fmt::format("{}-dimensional", buffer.ndim), "up to 16 axes");
    const std::int64_t bytes = buffer.itemsize;
    into.data = buffer.buf;
    into.axes = buffer.ndim;
    into.where = device::cpu();
    const bool is_known = into.type != dtype::other;  // what is refused anyway is not copied first
    into.aligned = !is_known || reinterpret_cast<std::uintptr_t>(buffer.buf) % static_cast<std::uintptr_t>(bytes) == 0;
    for (int axis = 0; axis < into.axes; ++axis) {
      into.shape[axis] = buffer.shape[axis];
      into.strides[axis] = buffer.strides[axis] / bytes;
      into.aligned = into.aligned && (buffer.strides[axis] % bytes == 0 || buffer.shape[axis] < 2);
    }
  }

  nb::handle dtype_object(dtype type) {
    nb::object& known = dtypes_[static_cast<int>(type)];
    if (!known.is_valid()) known = make_dtype(type);
    return known;
  }

  nb::object make_dtype(dtype type) {
    if (type != dtype::bf16) return module_.attr("dtype")(to_string(type));
    try {
      return module_.attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
    } catch (nb::python_error& e) {
      if (!e.matches(PyExc_ImportError)) throw;
      throw unsupported("NumPy has no bfloat16 of its own: install ml_dtypes");
    }
  }

  nb::object module_;
  nb::object ndarray_;
  nb::object empty_;
  nb::object dtypes_[kDtypes];
};

}  // namespace

framework& numpy() {
  static auto& only = *new numpy_framework;
  return only;
}

}  // namespace shortlist::python
