// Calls into Python with names that are made once: the hot path makes no strings.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace shortlist::python {

namespace nb = nanobind;

/// An interned Python string for the life of the process.
class name {
 public:
  explicit name(const char* text) : text_(PyUnicode_InternFromString(text)) {
    if (!text_) throw nb::python_error();
  }
  PyObject* ptr() const { return text_; }

 private:
  PyObject* text_;
};

inline nb::object checked(PyObject* result) {
  if (!result) throw nb::python_error();
  return nb::steal(result);
}

inline nb::object attribute(nb::handle object, const name& which) {
  return checked(PyObject_GetAttr(object.ptr(), which.ptr()));
}

/// object.which(arguments...)
template <class... Arguments>
nb::object call_method(nb::handle object, const name& which, Arguments... arguments) {
  PyObject* all[] = {object.ptr(), arguments.ptr()...};
  return checked(PyObject_VectorcallMethod(which.ptr(), all, std::size(all), nullptr));
}

inline std::int64_t to_int64(nb::handle number) {
  const long long value = PyLong_AsLongLong(number.ptr());
  if (value == -1 && PyErr_Occurred()) throw nb::python_error();
  return value;
}

inline void* to_pointer(nb::handle number) {
  void* value = PyLong_AsVoidPtr(number.ptr());
  if (!value && PyErr_Occurred()) throw nb::python_error();
  return value;
}

inline bool is_true(nb::handle object) {
  const int answer = PyObject_IsTrue(object.ptr());
  if (answer < 0) throw nb::python_error();
  return answer == 1;
}

/// A tuple of integers, copied to `out`; their number.
inline int read_tuple(nb::handle tuple, std::int64_t* out, int most) {
  const Py_ssize_t count = PyTuple_Size(tuple.ptr());
  if (count < 0) throw nb::python_error();
  for (Py_ssize_t i = 0; i < count && i < most; ++i) out[i] = to_int64(PyTuple_GetItem(tuple.ptr(), i));
  return static_cast<int>(count);
}

inline nb::object make_tuple_of(const std::int64_t* values, std::size_t count) {
  nb::object made = checked(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i) {
    PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), checked(PyLong_FromLongLong(values[i])).release().ptr());
  }
  return made;
}

/// A module that the program has imported, or null.
inline nb::object imported(const char* module) {
  PyObject* found = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  return found && found != Py_None ? nb::borrow(found) : nb::object();
}

}  // namespace shortlist::python
