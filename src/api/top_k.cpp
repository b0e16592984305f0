// Row-wise top k: arguments are checked here, once; then the stream's backend does the work.
#include "shortlist/top_k.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "api/checks.hpp"
#include "api/registry.hpp"
#include "core/backend.hpp"
#include "core/message.hpp"
#include "core/order.hpp"
#include "core/plan.hpp"
#include "index/checks.hpp"
#include "reference/top_k.hpp"

namespace shortlist {
namespace {

constexpr int kMaxIterations = 64;  // more bisections than fp32 has bits for change nothing

void check_matrix(const value_matrix& matrix) {
  if (to_string(matrix.type) == "unknown") {
    core::throw_invalid("matrix.type", static_cast<std::int64_t>(matrix.type), "f32, f16, bf16 or f64");
  }
  if (matrix.cols > core::kMaxRows) core::throw_invalid("matrix.cols", matrix.cols, "at most 2^32 - 1");
  api::check_layout("matrix", matrix);
}

void check_options(const value_matrix& matrix, const top_k_options& options) {
  if (options.k < 1 || options.k > matrix.cols) {
    core::throw_invalid("k", options.k, fmt::format("1 to cols, which is {}", matrix.cols));
  }
  if (options.order != order::largest && options.order != order::smallest) {
    core::throw_invalid("order", static_cast<std::int64_t>(options.order), "largest or smallest");
  }
  if (options.eps && (!std::isfinite(*options.eps) || *options.eps < 0.0f)) {
    core::throw_invalid("eps", fmt::format("{}", *options.eps), "0 or more, and finite");
  }
  if (options.max_iter && (*options.max_iter < 1 || *options.max_iter > kMaxIterations)) {
    core::throw_invalid("max_iter", *options.max_iter, fmt::format("1 to {}", kMaxIterations));
  }
  if (options.eps && options.max_iter) {
    core::throw_invalid("eps and max_iter", "given together", "one of them: each is an algorithm of its own");
  }
  if ((options.eps || options.max_iter) && matrix.type == value_type::f64) {
    core::throw_invalid(options.eps ? "eps" : "max_iter", "given for f64",
                        "f32, f16 or bf16: the bisection is in fp32");
  }
}

void check_output(const value_matrix& matrix, const top_k_output& out) {
  if (!out.values && !out.indices && !out.mask) {
    core::throw_invalid("out", "without any array", "indices, values, or both; or a mask alone");
  }
  if (out.mask && (out.values || out.indices)) {
    core::throw_invalid("out.mask", "given beside other arrays", "a mask alone");
  }
  if (out.indices_as != index_type::i32 && out.indices_as != index_type::i64) {
    core::throw_invalid("out.indices_as", static_cast<std::int64_t>(out.indices_as), "i32 or i64");
  }
  if (out.indices && out.indices_as == index_type::i32 && matrix.cols > std::numeric_limits<std::int32_t>::max()) {
    core::throw_invalid("out.indices_as", "i32", fmt::format("i64: {} columns do not fit 31 bits", matrix.cols));
  }
}

void check_borders(const value_matrix& matrix, const ragged_rows& ragged) {
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const std::int64_t begin = ragged.begins ? ragged.begins[row] : 0;
    const std::int64_t end = ragged.ends ? ragged.ends[row] : matrix.cols;
    if (begin < 0 || end > matrix.cols || begin > end) {
      core::throw_invalid(fmt::format("ragged row {}", row), fmt::format("[{}, {})", begin, end),
                          fmt::format("within [0, {}), begin <= end", matrix.cols));
    }
  }
}

}  // namespace

void top_k(const stream& s, const value_matrix& matrix, const top_k_options& options, const top_k_output& out,
           const ragged_rows& ragged) {
  check_matrix(matrix);
  check_options(matrix, options);
  check_output(matrix, out);
  if (matrix.rows == 0) return;
  if (s.where().kind() == device_kind::cpu && (ragged.begins || ragged.ends)) check_borders(matrix, ragged);
  index::with_host_memory([&] {
    core::backend_of(s.where()).top_k(s.native(), {.matrix = matrix, .ragged = ragged, .options = options, .out = out});
  });
}

void reference_top_k(const value_matrix& matrix, const top_k_options& options, const top_k_output& out,
                     const ragged_rows& ragged) {
  check_matrix(matrix);
  check_options(matrix, options);
  check_output(matrix, out);
  if (matrix.rows == 0) return;
  if (ragged.begins || ragged.ends) check_borders(matrix, ragged);
  index::with_host_memory([&] { reference::top_k(matrix, ragged, options, out); });
}

int reference_bisection_steps(const value_matrix& matrix, std::int64_t row, const top_k_options& options) {
  check_matrix(matrix);
  check_options(matrix, options);
  if (row < 0 || row >= matrix.rows) {
    core::throw_invalid("row", row, fmt::format("0 to rows - 1, and there are {}", matrix.rows));
  }
  return index::with_host_memory([&] { return reference::bisection_steps(matrix, row, 0, matrix.cols, options); });
}

std::string explain(device where, const top_k_shape& shape) {
  if (shape.rows < 1) core::throw_invalid("shape.rows", shape.rows, "1 or more");
  if (shape.cols < 1) core::throw_invalid("shape.cols", shape.cols, "1 or more");
  if (shape.k < 1 || shape.k > shape.cols) {
    core::throw_invalid("shape.k", shape.k, fmt::format("1 to cols, which is {}", shape.cols));
  }
  if (shape.col_stride < 1) core::throw_invalid("shape.col_stride", shape.col_stride, "1 or more");
  return core::explain_top_k(where.kind(), where.description(), shape);
}

}  // namespace shortlist
