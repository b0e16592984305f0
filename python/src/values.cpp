#include "values.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "errors.hpp"

namespace shortlist::python {
namespace {

constexpr const char* kAllowed = "float32, float16, bfloat16 or float64";

std::optional<value_type> value_type_of(dtype type) {
  switch (type) {
    case dtype::f32: return value_type::f32;
    case dtype::f16: return value_type::f16;
    case dtype::bf16: return value_type::bf16;
    case dtype::f64: return value_type::f64;
    default: return {};
  }
}

}  // namespace

value_type value_type_of_name(std::string_view name, const char* argument) {
  const auto found = value_type_of(dtype_of_name(name));
  if (!found) throw_value(argument, name, kAllowed);
  return *found;
}

value_matrix read_values(nb::handle object, const char* argument, array& into) {
  const matrix seen = read_matrix(object, argument, columns::strided, into);
  const auto type = value_type_of(into.type);
  if (!type) throw_type(fmt::format("{}.dtype", argument), to_string(into.type), kAllowed);
  return {into.data, *type, seen.rows, seen.cols, seen.row_stride, seen.col_stride};
}

}  // namespace shortlist::python
