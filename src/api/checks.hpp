// Checks that the calls on a value_matrix share. Each failure names the argument, its value and what is allowed.
#pragma once

#include <cstdint>
#include <string_view>

#include "shortlist/top_k.hpp"

namespace shortlist::api {

/// Whether `rows` rows of `row_elements`, `row_stride` elements apart, end within what a program can address.
bool is_addressable(std::int64_t rows, std::int64_t row_stride, double row_elements, std::int64_t element_bytes);

/// Sizes of 0 or more, strides of 1 or more where they matter, a pointer if there is anything, and no address that
/// overflows.
void check_layout(std::string_view argument, const value_matrix& matrix);

}  // namespace shortlist::api
