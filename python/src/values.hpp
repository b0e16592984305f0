// Arrays as the matrices of values that top_k and sample take.
#pragma once

#include <string_view>

#include "matrix.hpp"

namespace shortlist::python {

/// The value_type of "float32", "float16", "bfloat16" or "float64". @throws invalid_argument.
value_type value_type_of_name(std::string_view name, const char* argument);
/// Reads floats of any strides. @throws wrong_type for other dtypes.
value_matrix read_values(nb::handle object, const char* argument, array& into);

}  // namespace shortlist::python
