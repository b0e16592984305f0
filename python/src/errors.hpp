// Errors: the library's own become Python exceptions of the same message; those of this module read the same way.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "shortlist/error.hpp"

namespace shortlist::python {

/// An argument whose type or dtype is outside of what the call allows; a TypeError in Python.
class wrong_type : public error {
 public:
  using error::error;
};

/// "k is 0; allowed is 1 or more", as an invalid_argument or a wrong_type.
[[noreturn]] void throw_value(std::string_view argument, std::string_view value, std::string_view allowed);
[[noreturn]] void throw_type(std::string_view argument, std::string_view value, std::string_view allowed);

/// Makes the exception classes and has every error of the library raised as one of them.
void bind_errors(nanobind::module_& module);

}  // namespace shortlist::python
