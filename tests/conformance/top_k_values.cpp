// See top_k_values.hpp. A distribution is a function that fills one row with numbers, as doubles.
#include "conformance/top_k_values.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>

#include "conformance/distributions.hpp"

namespace shortlist::conformance {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

double smallest_denormal_of(value_type type) {
  switch (type) {
    case value_type::f32: return 0x1p-149;
    case value_type::f16: return 0x1p-24;
    case value_type::bf16: return 0x1p-133;
    case value_type::f64: return std::numeric_limits<double>::denorm_min();
  }
  return 0.0;
}

/// The distance from 1 to the next number.
double step_of(value_type type) {
  switch (type) {
    case value_type::f32: return 0x1p-23;
    case value_type::f16: return 0x1p-10;
    case value_type::bf16: return 0x1p-7;
    case value_type::f64: return 0x1p-52;
  }
  return 0.0;
}

void fill_normal(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.normal();
}
void fill_uniform(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = 2.0 * random.uniform() - 1.0;
}
void fill_lognormal(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = std::exp2(2.0 * random.normal());
}
void fill_all_equal(row_numbers& row, random_numbers& random) {
  std::fill(row.values.begin(), row.values.end(), random.normal());
}
void fill_ties_90(row_numbers& row, random_numbers& random) {
  const double tied = random.normal();
  for (double& value : row.values) value = random.one_in(10) ? random.normal() : tied;
}
void fill_ascending(row_numbers& row, random_numbers&) {
  const auto cols = static_cast<double>(row.values.size());
  for (std::size_t i = 0; i < row.values.size(); ++i) row.values[i] = static_cast<double>(i) / cols - 0.5;
}
void fill_descending(row_numbers& row, random_numbers& random) {
  fill_ascending(row, random);
  std::reverse(row.values.begin(), row.values.end());
}
/// Values that differ in their last two bits only.
void fill_narrow_band(row_numbers& row, random_numbers& random) {
  const double step = step_of(row.type);
  for (double& value : row.values) value = 1.0 + static_cast<double>(random.below(4)) * step;
}
void fill_two_valued(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.one_in(3) ? 0.75 : -0.25;
}
/// Zeros of both signs, with a few smallest numbers around them.
void fill_signed_zeros(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) {
    value = random.sign();
    value *= random.one_in(8) ? smallest_denormal_of(row.type) : 0.0;
  }
}
void fill_nan_anywhere(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.one_in(16) ? kNan : random.normal();
}
/// Often fewer numbers than k.
void fill_mostly_nan(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.one_in(16) ? random.normal() : kNan;
}
void fill_nan_only(row_numbers& row, random_numbers&) { std::fill(row.values.begin(), row.values.end(), kNan); }
void fill_nan_in_tenth_row(row_numbers& row, random_numbers& random) {
  fill_normal(row, random);
  const auto at = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(row.values.size())));
  if (row.index % 10 == 0) row.values[at] = kNan;
}
void fill_infinities(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.one_in(10) ? random.sign() * kInf : random.normal();
}
void fill_masked(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.one_in(2) ? -kInf : random.normal();
}
void fill_denormals(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) {
    value = static_cast<double>(random.below(2001) - 1000) * smallest_denormal_of(row.type);
  }
}
void fill_one_huge(row_numbers& row, random_numbers& random) {
  fill_normal(row, random);
  const auto at = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(row.values.size())));
  row.values[at] = random.sign() * largest_of(row.type);
}
/// Beyond the bracket of +-99999 that RTop-K's code starts with, where the type reaches that far.
void fill_beyond_99999(row_numbers& row, random_numbers& random) {
  const double limit = std::min(1e7, largest_of(row.type));
  for (double& value : row.values) value = limit * (2.0 * random.uniform() - 1.0);
}
/// Up to the largest numbers of both signs: sums and differences of two overflow.
void fill_overflowing(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) {
    value = random.sign() * largest_of(row.type);
    value *= 0.5 + 0.5 * random.uniform();
  }
}

/// Values that differ in their last bits only, and a few so far off that the upper bits of a key tell nothing else.
void fill_outliers(row_numbers& row, random_numbers& random) {
  const double step = step_of(row.type);
  for (double& value : row.values) {
    value = random.one_in(40) ? random.sign() * kInf : 1.0 + static_cast<double>(random.below(100)) * step;
  }
}
/// Of any magnitude.
void fill_any_exponent(row_numbers& row, random_numbers& random) {
  const double most = std::log2(largest_of(row.type));
  for (double& value : row.values) value = random.sign() * std::exp2(most * (2.0 * random.uniform() - 1.0));
}
/// The midpoints of a bisection between the row's extremes, or the numbers beside them; extremes up to 16 of their
/// distance from 0. Most lie on the way to one place.
void fill_near_midpoints(row_numbers& row, random_numbers& random) {
  const double range = std::exp2(static_cast<double>(random.below(9) - 4));
  const auto lower =
      static_cast<float>(range * (random.one_in(2) ? -random.uniform() : 32.0 * random.uniform() - 16.0));
  const auto upper = static_cast<float>(lower + range * (0.5 + random.uniform()));
  const auto place = static_cast<float>(lower + (upper - lower) * random.uniform());
  for (double& value : row.values) {
    float low = lower;
    float high = upper;
    float middle = low;
    for (std::int64_t steps = 1 + random.below(13); steps > 0; --steps) {
      middle = (low + high) * 0.5f;
      const bool up = random.one_in(8) ? random.one_in(2) : place >= middle;
      (up ? low : high) = middle;
    }
    constexpr float kBeyond[] = {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()};
    value = random.one_in(2) ? middle : std::nextafter(middle, kBeyond[random.below(2)]);
  }
  for (const float extreme : {lower, upper})
    row.values[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(row.values.size())))] = extreme;
}
/// Every other value follows the one before it, in the order of one of the two, by what an eps of 1e-4 makes of the
/// row's best, or by a last bit more or less: gaps just as wide as the bracket that a bisection ends with. All values
/// of some rows are below 0.
void fill_apart_by_eps(row_numbers& row, random_numbers& random) {
  constexpr double kBelowZero = -8.0;
  fill_normal(row, random);
  if (random.one_in(3)) {
    for (double& value : row.values) value += kBelowZero;
  }
  const auto [least, most] = std::minmax_element(row.values.begin(), row.values.end());
  const float sign = random.one_in(2) ? 1.0f : -1.0f;
  const float width = 1e-4f * std::fabs(static_cast<float>(sign > 0.0f ? *most : *least));
  for (std::size_t i = 1; i < row.values.size(); i += 2) {
    const float next = static_cast<float>(row.values[i - 1]) - sign * width;
    constexpr float kBeyond[] = {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()};
    row.values[i] = random.one_in(3) ? next : std::nextafter(next, kBeyond[random.below(2)]);
  }
}

/// Long runs of rows of one kind, the same tie in all of a run, and between them rows of any kind: a kernel that learns
/// from the rows before is right and wrong by turns.
void fill_changing(row_numbers& row, random_numbers& random) {
  constexpr std::int64_t kRun = 9000;
  constexpr double kTie = 0.5;
  const std::int64_t of_run = row.index / kRun % 5;
  switch (random.one_in(4) ? random.below(9) : of_run) {
    case 0: return fill_normal(row, random);
    case 1:
      for (double& value : row.values) value = random.one_in(10) ? random.normal() : kTie;
      return;
    case 2: return std::fill(row.values.begin(), row.values.end(), kTie);
    case 3: {
      fill_normal(row, random);
      const double scale = std::exp2(static_cast<double>(random.below(17) - 8));
      for (double& value : row.values) value *= scale;
      return;
    }
    case 4: return fill_lognormal(row, random);
    case 5: return fill_two_valued(row, random);
    case 6: return fill_nan_anywhere(row, random);
    case 7: return fill_narrow_band(row, random);
    default: return fill_infinities(row, random);
  }
}

/// Each row another number of times as large: the border of the row before tells nothing, its own deviation does.
void fill_scaled(row_numbers& row, random_numbers& random) {
  constexpr std::int64_t kScales = 13;
  fill_normal(row, random);
  const auto scale = static_cast<double>(1 + row.index * 5 % kScales);
  for (double& value : row.values) value *= scale;
}

/// Bunches of a dozen numbers or so, equal or a few last bits apart, far from other bunches: a border among neighbours.
void fill_bunches(row_numbers& row, random_numbers& random) {
  constexpr std::int64_t kSteps = 6;
  const auto cols = static_cast<std::int64_t>(row.values.size());
  std::vector<double> middles(static_cast<std::size_t>(1 + cols / 12));
  for (double& middle : middles) middle = random.normal();
  for (double& value : row.values) {
    const auto bunch = static_cast<std::size_t>(random.below(static_cast<std::int64_t>(middles.size())));
    value = middles[bunch] * (1.0 + static_cast<double>(random.below(kSteps)) * step_of(row.type));
  }
}

struct named_fill {
  std::string_view name;
  void (*fill)(row_numbers&, random_numbers&);
};
constexpr named_fill kFills[] = {
    {"normal", fill_normal},
    {"uniform", fill_uniform},
    {"lognormal", fill_lognormal},
    {"all_equal", fill_all_equal},
    {"ties_90", fill_ties_90},
    {"ascending", fill_ascending},
    {"descending", fill_descending},
    {"narrow_band", fill_narrow_band},
    {"two_valued", fill_two_valued},
    {"signed_zeros", fill_signed_zeros},
    {"nan_anywhere", fill_nan_anywhere},
    {"mostly_nan", fill_mostly_nan},
    {"nan_only", fill_nan_only},
    {"nan_in_tenth_row", fill_nan_in_tenth_row},
    {"infinities", fill_infinities},
    {"masked", fill_masked},
    {"changing", fill_changing},
    {"scaled", fill_scaled},
    {"denormals", fill_denormals},
    {"one_huge", fill_one_huge},
    {"beyond_99999", fill_beyond_99999},
    {"overflowing", fill_overflowing},
    {"outliers", fill_outliers},
    {"any_exponent", fill_any_exponent},
    {"near_midpoints", fill_near_midpoints},
    {"apart_by_eps", fill_apart_by_eps},
    {"bunches", fill_bunches},
};

}  // namespace

double largest_of(value_type type) {
  switch (type) {
    case value_type::f32: return std::numeric_limits<float>::max();
    case value_type::f16: return 65504.0;
    case value_type::bf16: return std::bit_cast<float>(0x7F7F0000u);
    case value_type::f64: return std::numeric_limits<double>::max();
  }
  return 0.0;
}

const std::vector<std::string_view>& row_distributions() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const named_fill& fill : kFills) all.push_back(fill.name);
    return all;
  }();
  return names;
}

void fill_row(std::string_view distribution, row_numbers& row, random_numbers& random) {
  for (const named_fill& fill : kFills) {
    if (fill.name == distribution) return fill.fill(row, random);
  }
  throw std::invalid_argument("no distribution is named " + std::string(distribution));
}

std::uint64_t bits_of(double value, value_type type, random_numbers& random) {
  if (std::isnan(value)) {
    switch (type) {
      case value_type::f32: return (random.bits() & 0xFFFFFFFFu) | 0x7F800001u;
      case value_type::f16: return (random.bits() & 0xFFFFu) | 0x7C01u;
      case value_type::bf16: return (random.bits() & 0xFFFFu) | 0x7F81u;
      case value_type::f64: return random.bits() | 0x7FF0000000000001u;
    }
  }
  if (type == value_type::f64) return std::bit_cast<std::uint64_t>(value);
  const auto number = static_cast<float>(value);
  std::uint64_t bits = 0;
  constexpr element_type kAs[] = {element_type::f32, element_type::f16, element_type::bf16};
  encode(&number, 1, kAs[static_cast<std::size_t>(type)], reinterpret_cast<std::byte*>(&bits));
  return bits;
}

}  // namespace shortlist::conformance
