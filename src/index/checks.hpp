// The checks of arguments at the public border. Each failure names the argument, its value and what is allowed.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "shortlist/error.hpp"
#include "shortlist/flat_index.hpp"

namespace shortlist::index {

inline constexpr std::int64_t kMaxDim = 65536;

/// dim, metric, type and storage of a new index.
void check_options(const flat_index_options& options);
/// A shape to be explained.
void check_shape(const search_shape& shape);
/// A matrix of `dim` columns that can be read: type, sizes, stride, pointer, and no size that overflows.
void check_matrix(std::string_view argument, const any_matrix_view& matrix, std::int64_t dim);
/// Rows that may be stored beside `rows_so_far` others.
void check_row_count(std::string_view argument, std::int64_t new_rows, std::int64_t rows_so_far);
/// k, and a result of [queries, k] whose bytes can be counted.
void check_search(std::int64_t queries, const search_options& options);
/// Arrays to write [queries, k] to.
void check_output(const search_output& out, std::int64_t queries);
/// Limits of a workspace (all 1 or more), or of a reservation (rows may be 0: none beyond those that are there).
void check_limits(const search_limits& limits, std::int64_t min_rows);
/// `s` must be a stream of `where`.
void check_stream(const stream& s, device where);

/// Runs `work`; host memory that runs out in it becomes this library's own error.
template <class Work>
decltype(auto) with_host_memory(Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const std::bad_alloc&) {
    throw out_of_memory("host memory ran out");
  } catch (const std::length_error&) {
    throw out_of_memory("host memory ran out: more was asked for than a program can address");
  }
}

}  // namespace shortlist::index
