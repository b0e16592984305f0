#include "api/checks.hpp"

#include <fmt/format.h>

#include "core/message.hpp"

namespace shortlist::api {
namespace {

constexpr double kMostBytes = 0x1p60;

}  // namespace

bool is_addressable(std::int64_t rows, std::int64_t row_stride, double row_elements, std::int64_t element_bytes) {
  const double last = static_cast<double>(rows) * static_cast<double>(row_stride) + row_elements;
  return last * static_cast<double>(element_bytes) < kMostBytes;
}

void check_layout(std::string_view argument, const value_matrix& matrix) {
  const auto refuse = [argument](std::string_view part, std::int64_t value, std::string_view allowed) {
    core::throw_invalid(fmt::format("{}.{}", argument, part), value, allowed);
  };
  if (matrix.rows < 0) refuse("rows", matrix.rows, "0 or more");
  if (matrix.cols < 0) refuse("cols", matrix.cols, "0 or more");
  if (matrix.row_stride < 1 && matrix.rows > 1) refuse("row_stride", matrix.row_stride, "1 or more");
  if (matrix.col_stride < 1 && matrix.cols > 1) refuse("col_stride", matrix.col_stride, "1 or more");
  const double row_elements = static_cast<double>(matrix.cols) * static_cast<double>(matrix.col_stride);
  const bool outputs_fit = is_addressable(matrix.rows, matrix.cols, 0.0, sizeof(std::int64_t));
  if (!outputs_fit || !is_addressable(matrix.rows, matrix.row_stride, row_elements, size_bytes(matrix.type))) {
    core::throw_invalid(
        argument,
        fmt::format("{} x {} with strides {} and {}", matrix.rows, matrix.cols, matrix.row_stride, matrix.col_stride),
        "what 2^60 bytes hold");
  }
  if (!matrix.data && matrix.rows > 0 && matrix.cols > 0) {
    core::throw_invalid(fmt::format("{}.data", argument), "null",
                        fmt::format("{} rows of {} columns", matrix.rows, matrix.cols));
  }
}

}  // namespace shortlist::api
