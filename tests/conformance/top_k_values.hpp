// The values of row-wise top k's tests: distributions of numbers in a row, and their bits in each type.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "shortlist/top_k.hpp"

namespace shortlist::conformance {

/// The same numbers from a seed on every machine, which the standard library's distributions are not.
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : bits_(seed) {}
  std::uint64_t bits() { return bits_(); }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n)); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// About normal: the sum of four uniform numbers, scaled to variance 1.
  double normal() {
    double sum = -2.0;
    for (int i = 0; i < 4; ++i) sum += uniform();
    return sum * 1.7320508;
  }
  double sign() { return one_in(2) ? 1.0 : -1.0; }

 private:
  std::mt19937_64 bits_;
};

/// The row that a distribution fills. A NaN gets its sign and payload when it is encoded.
struct row_numbers {
  value_type type = value_type::f32;
  std::int64_t index = 0;  ///< of the row
  std::vector<double> values;
};

/// The names of the distributions; docs at their implementation.
const std::vector<std::string_view>& row_distributions();

/// Fills the row's values. @throws std::invalid_argument if no distribution has the name.
void fill_row(std::string_view distribution, row_numbers& row, random_numbers& random);

/// The largest finite number of a type.
double largest_of(value_type type);

/// The bits of a number in a type, in the low bytes; a NaN may have any sign and payload, quiet or signalling.
std::uint64_t bits_of(double value, value_type type, random_numbers& random);

}  // namespace shortlist::conformance
