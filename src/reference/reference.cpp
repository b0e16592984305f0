// See docs/ordering.md; the names of its sections stand beside what implements them.
#include "reference/reference.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace shortlist::reference {
namespace {

// --- Elements ---------------------------------------------------------------------------------------------------

/// The number that an IEEE binary of `exponent_bits` and `fraction_bits` stands for, from the standard's formula.
float ieee_value(unsigned bits, int exponent_bits, int fraction_bits) {
  const int largest_exponent = (1 << exponent_bits) - 1;
  const int bias = largest_exponent / 2;
  const int exponent = static_cast<int>(bits >> fraction_bits) & largest_exponent;
  const int fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
  double magnitude = 0.0;
  if (exponent == largest_exponent) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, 1 - bias - fraction_bits);
  } else {
    magnitude = std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  }
  const bool negative = ((bits >> (exponent_bits + fraction_bits)) & 1u) != 0;
  return static_cast<float>(negative ? -magnitude : magnitude);
}

/// The values of all 16-bit patterns, so that the formula runs once for each.
std::vector<float> table_of_values(int exponent_bits, int fraction_bits) {
  std::vector<float> values(65536);
  for (unsigned bits = 0; bits < 65536; ++bits) values[bits] = ieee_value(bits, exponent_bits, fraction_bits);
  return values;
}

float value_of(float element) { return element; }
float value_of(std::int8_t element) { return element; }
float value_of(std::uint8_t element) { return element; }
float value_of(float16 element) {
  static const std::vector<float> values = table_of_values(5, 10);
  return values[element.bits];
}
float value_of(bfloat16 element) {
  static const std::vector<float> values = table_of_values(8, 7);
  return values[element.bits];
}

template <class T>
void widen_row(any_matrix_view rows, std::int64_t row, std::vector<float>& wide) {
  const T* elements = static_cast<const T*>(rows.data) + row * rows.row_stride;
  for (std::int64_t i = 0; i < rows.cols; ++i) wide[static_cast<std::size_t>(i)] = value_of(elements[i]);
}

}  // namespace

std::vector<float> widened(any_matrix_view rows, std::int64_t row) {
  std::vector<float> wide;
  wide.resize(static_cast<std::size_t>(rows.cols));
  switch (rows.type) {
    case element_type::f32: widen_row<float>(rows, row, wide); break;
    case element_type::f16: widen_row<float16>(rows, row, wide); break;
    case element_type::bf16: widen_row<bfloat16>(rows, row, wide); break;
    case element_type::i8: widen_row<std::int8_t>(rows, row, wide); break;
    case element_type::u8: widen_row<std::uint8_t>(rows, row, wide); break;
  }
  return wide;
}

namespace {

// --- Sums -------------------------------------------------------------------------------------------------------

using partial_sums = std::array<float, 128>;

float tree_sum(partial_sums& p) {
  for (std::size_t s = 64; s >= 1; s /= 2) {
    for (std::size_t j = 0; j < s; ++j) p[j] += p[j + s];
  }
  return p[0];
}

}  // namespace

float dot(const float* a, const float* b, std::int64_t dim) {
  partial_sums p{};
  const auto count = static_cast<std::size_t>(dim);
  for (std::size_t first = 0; first < count; first += p.size()) {
    for (std::size_t i = first; i < std::min(count, first + p.size()); ++i)
      p[i - first] = std::fma(a[i], b[i], p[i - first]);
  }
  return tree_sum(p);
}

float squared_distance(const float* a, const float* b, std::int64_t dim) {
  partial_sums p{};
  const auto count = static_cast<std::size_t>(dim);
  for (std::size_t first = 0; first < count; first += p.size()) {
    for (std::size_t i = first; i < std::min(count, first + p.size()); ++i) {
      const float difference = a[i] - b[i];
      p[i - first] = std::fma(difference, difference, p[i - first]);
    }
  }
  return tree_sum(p);
}

// --- Scores -----------------------------------------------------------------------------------------------------

float inverse_norm(float squared_norm) {
  const float norm = std::sqrt(squared_norm);
  return 1.0f / norm;
}

namespace {

float cosine(const float* query, float query_squared_norm, const float* row, std::int64_t dim) {
  const float row_squared_norm = dot(row, row, dim);
  if (query_squared_norm == 0.0f || row_squared_norm == 0.0f) return -std::numeric_limits<float>::infinity();
  const float scaled_by_query = dot(query, row, dim) * inverse_norm(query_squared_norm);
  return scaled_by_query * inverse_norm(row_squared_norm);
}

}  // namespace

/// One NaN, the quiet positive one without payload, and one zero, the positive one.
float as_returned(float score) {
  if (std::isnan(score)) return std::numeric_limits<float>::quiet_NaN();
  if (score == 0.0f) return 0.0f;
  return score;
}

namespace {

/// A query with what its scores share.
struct prepared_query {
  const float* elements;
  std::int64_t dim;
  float squared_norm;

  prepared_query(const float* query, std::int64_t cols, metric by)
      : elements(query), dim(cols), squared_norm(by == metric::cosine ? dot(query, query, cols) : 0.0f) {}

  float score(const float* row, metric by) const {
    switch (by) {
      case metric::inner_product: return as_returned(dot(elements, row, dim));
      case metric::cosine: return as_returned(cosine(elements, squared_norm, row, dim));
      case metric::l2: return as_returned(squared_distance(elements, row, dim));
    }
    return 0.0f;
  }
};

// --- Order ------------------------------------------------------------------------------------------------------

}  // namespace

bool is_better(float a, float b, metric by) {
  if (std::isnan(a)) return false;
  if (std::isnan(b)) return true;
  return by == metric::l2 ? a < b : a > b;
}

float score(any_matrix_view rows, std::int64_t row, const float* query, metric by) {
  return prepared_query(query, rows.cols, by).score(widened(rows, row).data(), by);
}

std::vector<hit> search(any_matrix_view rows, const float* query, metric by, std::int64_t k) {
  const prepared_query prepared(query, rows.cols, by);
  std::vector<hit> hits;
  hits.reserve(static_cast<std::size_t>(rows.rows));
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    hits.push_back({prepared.score(widened(rows, row).data(), by), row});
  }
  // Rows enter by position and the sort is stable, so that the earlier row of a tie stays first.
  std::stable_sort(hits.begin(), hits.end(),
                   [by](const hit& a, const hit& b) { return is_better(a.score, b.score, by); });
  hits.resize(static_cast<std::size_t>(std::min(k, rows.rows)));
  return hits;
}

}  // namespace shortlist::reference
