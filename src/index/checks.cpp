// The checks of arguments at the public border.
#include "index/checks.hpp"

#include <fmt/format.h>

#include <limits>

#include "core/message.hpp"
#include "core/order.hpp"

namespace shortlist::index {
namespace {

constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxResultEntries = kMaxBytes / static_cast<std::int64_t>(sizeof(std::int64_t));

std::string member(std::string_view argument, std::string_view name) { return fmt::format("{}.{}", argument, name); }

/// The bytes from a matrix's first element to its last fit an int64.
bool extent_fits(const any_matrix_view& matrix) {
  std::int64_t extent = 0;
  return !__builtin_mul_overflow(matrix.rows - 1, matrix.row_stride, &extent) &&
         !__builtin_add_overflow(extent, matrix.cols, &extent) &&
         !__builtin_mul_overflow(extent, size_bytes(matrix.type), &extent);
}

void check_product(std::string_view argument, std::int64_t queries, std::int64_t k) {
  if (k > 0 && queries > kMaxResultEntries / k) {
    core::throw_invalid(argument, fmt::format("{} with {} queries", k, queries),
                        fmt::format("up to {} results in one call", kMaxResultEntries));
  }
}

}  // namespace

void check_options(const flat_index_options& options) {
  if (options.dim < 1 || options.dim > kMaxDim) {
    core::throw_invalid("options.dim", options.dim, fmt::format("1 to {}", kMaxDim));
  }
  if (size_bytes(options.type) == 0) {
    core::throw_invalid("options.type", static_cast<std::int64_t>(options.type), "an element_type");
  }
  if (options.metric > metric::l2) {
    core::throw_invalid("options.metric", static_cast<std::int64_t>(options.metric), "a metric");
  }
  if (options.storage > storage::int8_and_host) {
    core::throw_invalid("options.storage", static_cast<std::int64_t>(options.storage), "a storage");
  }
  if (options.storage != storage::full && size_bytes(options.type) == 1) {
    core::throw_invalid(
        "options.storage", to_string(options.storage),
        fmt::format("full for rows of {}, which an int8 plane would not make smaller", to_string(options.type)));
  }
}

void check_shape(const search_shape& shape) {
  check_options({.dim = shape.dim, .metric = shape.metric, .type = shape.type, .storage = shape.storage});
  check_row_count("shape", shape.rows, 0);
  if (shape.rows < 0) core::throw_invalid("shape.rows", shape.rows, "0 or more");
  if (shape.queries < 1) core::throw_invalid("shape.queries", shape.queries, "1 or more");
  if (shape.k < 1) core::throw_invalid("shape.k", shape.k, "1 or more");
}

void check_matrix(std::string_view argument, const any_matrix_view& matrix, std::int64_t dim) {
  if (size_bytes(matrix.type) == 0) {
    core::throw_invalid(member(argument, "type"), static_cast<std::int64_t>(matrix.type), "an element_type");
  }
  if (matrix.rows < 0) core::throw_invalid(member(argument, "rows"), matrix.rows, "0 or more");
  if (matrix.cols != dim) {
    core::throw_invalid(member(argument, "cols"), matrix.cols, fmt::format("{}, the dim of the index", dim));
  }
  if (matrix.rows == 0) return;
  if (!matrix.data) {
    core::throw_invalid(member(argument, "data"), "null", fmt::format("memory of {} rows", matrix.rows));
  }
  if (matrix.rows == 1) return;  // one row has no stride
  if (matrix.row_stride < matrix.cols) {
    core::throw_invalid(member(argument, "row_stride"), matrix.row_stride,
                        fmt::format("{} or more, so that no rows overlap", matrix.cols));
  }
  if (!extent_fits(matrix)) {
    core::throw_invalid(member(argument, "rows"),
                        fmt::format("{} with a row_stride of {}", matrix.rows, matrix.row_stride),
                        "a matrix of less than 2^63 bytes");
  }
}

void check_row_count(std::string_view argument, std::int64_t new_rows, std::int64_t rows_so_far) {
  if (new_rows > core::kMaxRows - rows_so_far) {
    core::throw_invalid(
        member(argument, "rows"), new_rows,
        fmt::format("up to {} beside the {} rows that are there", core::kMaxRows - rows_so_far, rows_so_far));
  }
}

void check_search(std::int64_t queries, const search_options& options) {
  if (options.k < 1) core::throw_invalid("k", options.k, "1 or more");
  check_product("k", queries, options.k);
}

void check_output(const search_output& out, std::int64_t queries) {
  if (queries == 0) return;
  if (!out.scores) core::throw_invalid("out.scores", "null", "memory of queries x k scores");
  if (!out.ids) core::throw_invalid("out.ids", "null", "memory of queries x k ids");
}

void check_limits(const search_limits& limits, std::int64_t min_rows) {
  if (limits.max_rows < min_rows || limits.max_rows > core::kMaxRows) {
    core::throw_invalid("limits.max_rows", limits.max_rows, fmt::format("{} to {}", min_rows, core::kMaxRows));
  }
  if (limits.max_queries < 1) core::throw_invalid("limits.max_queries", limits.max_queries, "1 or more");
  if (limits.max_k < 1) core::throw_invalid("limits.max_k", limits.max_k, "1 or more");
  check_product("limits.max_k", limits.max_queries, limits.max_k);
}

void check_stream(const stream& s, device where) {
  if (s.where() != where) {
    core::throw_invalid("stream", "one of " + s.where().name(), "one of " + where.name() + ", the index's device");
  }
}

}  // namespace shortlist::index
