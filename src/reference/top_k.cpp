// See docs/ordering.md, sections 5, 8 and 9, which the names below follow.
#include "reference/top_k.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>

namespace shortlist::reference {
namespace {

// --- Values -----------------------------------------------------------------------------------------------------

const std::byte* address_of(const value_matrix& matrix, std::int64_t row, std::int64_t column) {
  const std::int64_t element = row * matrix.row_stride + column * matrix.col_stride;
  return static_cast<const std::byte*>(matrix.data) + element * size_bytes(matrix.type);
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// IEEE binary16, from the standard's formula.
double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  double magnitude = 0.0;
  if (exponent == 31) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, -24);
  } else {
    magnitude = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// A value as a double, which holds every value of the four types exactly.
double value_at(const value_matrix& matrix, std::int64_t row, std::int64_t column) {
  const std::byte* from = address_of(matrix, row, column);
  switch (matrix.type) {
    case value_type::f32: return load<float>(from);
    case value_type::f16: return half_value(load<std::uint16_t>(from));
    case value_type::bf16: return std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(from)) << 16);
    case value_type::f64: return load<double>(from);
  }
  return 0.0;
}

/// One value of a row, negated where the smallest are asked for, so that larger is better in all that follows.
struct entry {
  double value;
  std::int64_t column;
};
using entries = std::vector<entry>;

entries entries_of(const value_matrix& matrix, std::int64_t row, std::int64_t begin, std::int64_t end,
                   const top_k_options& options) {
  entries all;
  for (std::int64_t column = begin; column < end; ++column) {
    const double value = value_at(matrix, row, column);
    all.push_back({options.order == order::smallest ? -value : value, column});
  }
  return all;
}

// --- Section 8: the exact set -------------------------------------------------------------------------------------

/// Whether `a` comes before `b` by its value. Equals, and two NaN, come neither before nor after each other.
bool is_better(const entry& a, const entry& b) {
  if (std::isnan(a.value)) return false;
  if (std::isnan(b.value)) return true;
  return a.value > b.value;
}

/// `some` are in column order and the sort is stable, so that of equals the smaller column comes first.
void sort_best_first(entries& some) { std::stable_sort(some.begin(), some.end(), is_better); }

void sort_by_column(entries& some) {
  std::sort(some.begin(), some.end(), [](const entry& a, const entry& b) { return a.column < b.column; });
}

/// The k best, by ascending column.
entries exact_set(entries all, std::size_t k) {
  sort_best_first(all);
  if (all.size() > k) all.resize(k);
  sort_by_column(all);
  return all;
}

// --- Section 9: bisection with an early stop ------------------------------------------------------------------------

bool is_bisected(const entries& all, std::size_t k) {
  return all.size() >= k && std::all_of(all.begin(), all.end(), [](const entry& e) { return std::isfinite(e.value); });
}

float minimum(const entries& all) {
  float least = std::numeric_limits<float>::infinity();
  for (const entry& e : all) least = std::min(least, static_cast<float>(e.value));
  return least == 0.0f ? 0.0f : least;
}

float maximum(const entries& all) {
  float most = -std::numeric_limits<float>::infinity();
  for (const entry& e : all) most = std::max(most, static_cast<float>(e.value));
  return most == 0.0f ? 0.0f : most;
}

std::size_t count(const entries& all, float threshold) {
  std::size_t reached = 0;
  for (const entry& e : all) reached += e.value >= threshold ? 1 : 0;
  return reached;
}

float mid(float lo, float hi) {
  const float sum = lo + hi;
  if (std::isfinite(sum)) return sum * 0.5f;
  const float half_lo = lo * 0.5f;
  const float half_hi = hi * 0.5f;
  return half_lo + half_hi;
}

/// The first entries in column order whose values are in [from, below), until `chosen` holds k of them.
void take(const entries& all, double from, double below, std::size_t k, entries& chosen) {
  for (const entry& e : all) {
    if (chosen.size() < k && e.value >= from && e.value < below) chosen.push_back(e);
  }
}

constexpr double kNoBound = std::numeric_limits<double>::infinity();

/// Where Algorithm 1 ended.
struct bracket {
  float lo;
  float hi;
  std::optional<float> met;  ///< the midpoint that exactly k values reach, if one was found
  int steps;                 ///< how many midpoints were counted
};

bracket algorithm_1(const entries& all, std::size_t k, float eps) {
  bracket at{.lo = minimum(all), .hi = maximum(all), .met = std::nullopt, .steps = 0};
  const float width = eps * std::fabs(at.hi);
  while (at.hi - at.lo > width) {
    const float m = mid(at.lo, at.hi);
    if (m <= at.lo || m >= at.hi) break;
    const std::size_t c = count(all, m);
    ++at.steps;
    if (c == k) {
      at.met = m;
      break;
    }
    if (c < k) {
      at.hi = m;
    } else {
      at.lo = m;
    }
  }
  return at;
}

entries eps_set(const entries& all, std::size_t k, float eps) {
  const bracket at = algorithm_1(all, k, eps);
  entries chosen;
  if (at.met) {
    take(all, *at.met, kNoBound, k, chosen);
  } else {
    take(all, at.hi, kNoBound, k, chosen);
    take(all, at.lo, at.hi, k, chosen);
  }
  sort_by_column(chosen);
  return chosen;
}

/// Algorithm 2.
entries max_iter_set(const entries& all, std::size_t k, int max_iter) {
  float lo = minimum(all);
  float hi = maximum(all);
  for (int step = 0; step < max_iter; ++step) {
    const float m = mid(lo, hi);
    if (count(all, m) < k) {
      hi = m;
    } else {
      lo = m;
    }
  }
  entries chosen;
  take(all, lo, kNoBound, k, chosen);
  return chosen;
}

// --- Outputs --------------------------------------------------------------------------------------------------------

void store_worst_value(value_type type, order by, std::byte* to) {
  const bool negative = by == order::largest;
  const auto store = [to](auto bits) { std::memcpy(to, &bits, sizeof(bits)); };
  switch (type) {
    case value_type::f32: return store(negative ? 0xFF800000u : 0x7F800000u);
    case value_type::f16: return store(static_cast<std::uint16_t>(negative ? 0xFC00 : 0x7C00));
    case value_type::bf16: return store(static_cast<std::uint16_t>(negative ? 0xFF80 : 0x7F80));
    case value_type::f64: return store(std::uint64_t{negative ? 0xFFF0000000000000u : 0x7FF0000000000000u});
  }
}

void store_index(const top_k_output& out, std::int64_t at, std::int64_t index) {
  if (out.indices_as == index_type::i32) {
    static_cast<std::int32_t*>(out.indices)[at] = static_cast<std::int32_t>(index);
  } else {
    static_cast<std::int64_t*>(out.indices)[at] = index;
  }
}

void store_list(const value_matrix& matrix, std::int64_t row, const std::vector<std::int64_t>& columns,
                const top_k_options& options, const top_k_output& out) {
  const std::int64_t value_bytes = size_bytes(matrix.type);
  const auto found = static_cast<std::int64_t>(columns.size());
  for (std::int64_t i = 0; i < options.k; ++i) {
    const std::int64_t at = row * options.k + i;
    const std::int64_t column = i < found ? columns[static_cast<std::size_t>(i)] : -1;
    if (out.indices) store_index(out, at, column);
    if (!out.values) continue;
    std::byte* to = static_cast<std::byte*>(out.values) + at * value_bytes;
    if (i < found) {
      std::memcpy(to, address_of(matrix, row, column), static_cast<std::size_t>(value_bytes));
    } else {
      store_worst_value(matrix.type, options.order, to);
    }
  }
}

}  // namespace

std::vector<std::int64_t> top_k_columns(const value_matrix& matrix, std::int64_t row, std::int64_t begin,
                                        std::int64_t end, const top_k_options& options) {
  const entries all = entries_of(matrix, row, begin, end, options);
  const auto k = static_cast<std::size_t>(options.k);
  entries chosen;
  if (options.eps && is_bisected(all, k)) {
    chosen = eps_set(all, k, *options.eps);
  } else if (options.max_iter && is_bisected(all, k)) {
    chosen = max_iter_set(all, k, *options.max_iter);
  } else {
    chosen = exact_set(all, k);
  }
  if (options.sorted) sort_best_first(chosen);
  std::vector<std::int64_t> columns;
  for (const entry& e : chosen) columns.push_back(e.column);
  return columns;
}

int bisection_steps(const value_matrix& matrix, std::int64_t row, std::int64_t begin, std::int64_t end,
                    const top_k_options& options) {
  const entries all = entries_of(matrix, row, begin, end, options);
  const auto k = static_cast<std::size_t>(options.k);
  return is_bisected(all, k) ? algorithm_1(all, k, options.eps.value_or(0.0f)).steps : 0;
}

void top_k(const value_matrix& matrix, const ragged_rows& ragged, const top_k_options& options,
           const top_k_output& out) {
  if (out.mask) std::memset(out.mask, 0, static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const std::int64_t begin = ragged.begins ? ragged.begins[row] : 0;
    const std::int64_t end = ragged.ends ? ragged.ends[row] : matrix.cols;
    const std::vector<std::int64_t> columns = top_k_columns(matrix, row, begin, end, options);
    for (const std::int64_t column : columns) {
      if (out.mask) out.mask[row * matrix.cols + column] = 1;
    }
    if (!out.mask) store_list(matrix, row, columns, options, out);
  }
}

}  // namespace shortlist::reference
