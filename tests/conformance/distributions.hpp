// Data for the tests: rows and queries of every kind that has ever broken a top-k, made from a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shortlist/types.hpp"

namespace shortlist::conformance {

/// The names of the distributions; docs at their implementation.
const std::vector<std::string_view>& distributions();
/// Whether a distribution means something for rows of this type: integers have no NaN, but their queries may.
bool is_meaningful(std::string_view distribution, element_type type);

struct dataset {
  element_type type = element_type::f32;
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  std::int64_t queries = 0;
  std::int64_t row_stride = 0;    ///< in elements; what lies between rows is NaN, or 0xFF bytes
  std::int64_t query_stride = 0;  ///< the same
  std::vector<std::byte> row_data;
  std::vector<float> query_data;

  any_matrix_view row_view() const { return {row_data.data(), type, rows, dim, row_stride}; }
  matrix_view<const float> query_view() const { return {query_data.data(), queries, dim, query_stride}; }
  const float* query(std::int64_t q) const { return query_data.data() + q * query_stride; }
};

/// The same arguments give the same data on every machine.
dataset make_dataset(element_type type, std::string_view distribution, std::int64_t rows, std::int64_t dim,
                     std::int64_t queries, std::uint64_t seed);

/// Writes `count` numbers as elements of `type`: floats are cut off towards zero, integers are floored and clamped.
void encode(const float* numbers, std::int64_t count, element_type type, std::byte* elements);

}  // namespace shortlist::conformance
