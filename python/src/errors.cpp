#include "errors.hpp"

#include <array>
#include <exception>
#include <string>

namespace shortlist::python {
namespace {

namespace nb = nanobind;

/// The classes live as long as the process: an error may be raised while the interpreter ends.
struct classes {
  PyObject* base;
  PyObject* invalid_argument;
  PyObject* wrong_type;
  PyObject* unsupported;
  PyObject* out_of_memory;
  PyObject* corrupt_file;
  PyObject* io_error;
  PyObject* cuda_error;
};
classes raised{};

std::string sentence(std::string_view argument, std::string_view value, std::string_view allowed) {
  return std::string(argument).append(" is ").append(value).append("; allowed is ").append(allowed);
}

PyObject* make_class(nb::module_& module, const char* name, const char* doc, PyObject* builtin) {
  const std::string full_name = std::string("shortlist.") + name;
  nb::object bases = builtin == PyExc_Exception
                         ? nb::borrow(builtin)
                         : nb::object(nb::make_tuple(nb::handle(raised.base), nb::handle(builtin)));
  PyObject* made = PyErr_NewExceptionWithDoc(full_name.c_str(), doc, bases.ptr(), nullptr);
  if (!made) throw nb::python_error();
  module.attr(name) = nb::handle(made);
  return made;
}

void translate(const std::exception_ptr& failure, void*) {
  try {
    std::rethrow_exception(failure);
  } catch (const invalid_argument& e) {
    PyErr_SetString(raised.invalid_argument, e.what());
  } catch (const wrong_type& e) {
    PyErr_SetString(raised.wrong_type, e.what());
  } catch (const unsupported& e) {
    PyErr_SetString(raised.unsupported, e.what());
  } catch (const out_of_memory& e) {
    PyErr_SetString(raised.out_of_memory, e.what());
  } catch (const corrupt_file& e) {
    PyErr_SetString(raised.corrupt_file, e.what());
  } catch (const io_error& e) {
    PyErr_SetString(raised.io_error, e.what());
  } catch (const cuda_error& e) {
    PyErr_SetString(raised.cuda_error, e.what());
  } catch (const error& e) {
    PyErr_SetString(raised.base, e.what());
  }
}

}  // namespace

void throw_value(std::string_view argument, std::string_view value, std::string_view allowed) {
  throw invalid_argument(sentence(argument, value, allowed));
}

void throw_type(std::string_view argument, std::string_view value, std::string_view allowed) {
  throw wrong_type(sentence(argument, value, allowed));
}

void bind_errors(nb::module_& module) {
  raised.base = make_class(module, "Error", "The base of all errors of this package.", PyExc_Exception);
  raised.invalid_argument =
      make_class(module, "InvalidArgument", "An argument is outside of what the call allows; nothing was changed.",
                 PyExc_ValueError);
  raised.wrong_type =
      make_class(module, "WrongType",
                 "An argument's type or dtype is not one that the call takes; nothing was changed.", PyExc_TypeError);
  raised.unsupported =
      make_class(module, "Unsupported", "The request is valid, but this build, machine or device cannot serve it.",
                 PyExc_RuntimeError);
  raised.out_of_memory =
      make_class(module, "OutOfMemory", "Host or device memory ran out; nothing was changed.", PyExc_MemoryError);
  raised.corrupt_file =
      make_class(module, "CorruptFile", "A file's contents contradict its format or its checksums.", PyExc_ValueError);
  raised.io_error = make_class(
      module, "IoError", "The operating system refused to open, read, write, flush or rename a file.", PyExc_OSError);
  raised.cuda_error =
      make_class(module, "CudaError", "The CUDA runtime or a kernel reported a failure.", PyExc_RuntimeError);
  nb::register_exception_translator(translate);
}

}  // namespace shortlist::python
