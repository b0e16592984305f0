// See sample_values.hpp. A distribution is a function that fills one row with numbers, as doubles.
#include "conformance/sample_values.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace shortlist::conformance {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

double& any_of(row_numbers& row, random_numbers& random) {
  return row.values[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(row.values.size())))];
}

template <int Scale>
void fill_normal_times(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = Scale * random.normal();
}
/// Of a trained model: a few tokens far above the rest.
void fill_peaked(row_numbers& row, random_numbers& random) {
  fill_normal_times<2>(row, random);
  for (int i = 0; i < 8; ++i) any_of(row, random) = 12.0 + 2.0 * random.normal();
}
/// Vocabularies have their frequent tokens first.
void fill_falling(row_numbers& row, random_numbers& random) {
  for (std::size_t i = 0; i < row.values.size(); ++i)
    row.values[i] = 2.0 * random.normal() - 1.5 * std::log(1.0 + static_cast<double>(i) / 50.0);
}
/// Of runs of 128 tokens one in three is far above the others: what is seen of a row now and then tells little of it.
void fill_runs(row_numbers& row, random_numbers& random) {
  const std::int64_t high = random.below(3);
  for (std::size_t i = 0; i < row.values.size(); ++i)
    row.values[i] = random.normal() + (static_cast<std::int64_t>(i) / 128 % 3 == high ? 4.0 : 0.0);
}
/// Steps of a half: many equal weights at every height.
void fill_coarse(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = 0.5 * static_cast<double>(random.below(40));
}
void fill_one_finite(row_numbers& row, random_numbers& random) {
  std::fill(row.values.begin(), row.values.end(), -kInf);
  any_of(row, random) = random.normal();
}
void fill_minus_inf(row_numbers& row, random_numbers&) { std::fill(row.values.begin(), row.values.end(), -kInf); }
void fill_mostly_minus_inf(row_numbers& row, random_numbers& random) {
  for (double& value : row.values) value = random.one_in(20) ? 3.0 * random.normal() : -kInf;
}
void fill_nan_in_some_rows(row_numbers& row, random_numbers& random) {
  fill_normal_times<3>(row, random);
  if (random.one_in(3)) any_of(row, random) = kNan;
}
/// One, or several that are equal.
void fill_plus_inf(row_numbers& row, random_numbers& random) {
  fill_normal_times<3>(row, random);
  const std::int64_t count = random.one_in(3) ? 0 : 1 + random.below(4);
  for (std::int64_t i = 0; i < count; ++i) any_of(row, random) = kInf;
}

struct named_fill {
  std::string_view name;
  void (*fill)(row_numbers&, random_numbers&);
};
constexpr named_fill kFills[] = {
    {"normal_3", fill_normal_times<3>},
    {"normal_10", fill_normal_times<10>},
    {"peaked", fill_peaked},
    {"falling", fill_falling},
    {"runs", fill_runs},
    {"coarse", fill_coarse},
    {"one_finite", fill_one_finite},
    {"minus_inf", fill_minus_inf},
    {"mostly_minus_inf", fill_mostly_minus_inf},
    {"nan_in_some_rows", fill_nan_in_some_rows},
    {"plus_inf", fill_plus_inf},
};
constexpr std::string_view kOfTopK[] = {"normal",     "uniform",   "all_equal",   "ties_90",
                                        "two_valued", "ascending", "descending",  "narrow_band",
                                        "one_huge",   "denormals", "signed_zeros"};

}  // namespace

const std::vector<std::string_view>& logit_distributions() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all(std::begin(kOfTopK), std::end(kOfTopK));
    for (const named_fill& fill : kFills) all.push_back(fill.name);
    return all;
  }();
  return names;
}

void fill_logits(std::string_view distribution, row_numbers& row, random_numbers& random) {
  for (const named_fill& fill : kFills) {
    if (fill.name == distribution) return fill.fill(row, random);
  }
  fill_row(distribution, row, random);
}

}  // namespace shortlist::conformance
