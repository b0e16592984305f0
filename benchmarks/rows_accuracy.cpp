// How close RTop-K's early stops come to the exact set, as its tables 1, 2 and 5 show it (ICLR 2025), over normal data.
// The steps are counted by the oracle; the sets come from the public op on the best device.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numbers>
#include <string>
#include <vector>

#include "campaigns.hpp"
#include "parallel.hpp"
#include "rows_data.hpp"
#include "shortlist/top_k.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kCols = 256;
constexpr std::int64_t kKs[] = {16, 32, 64, 96, 128};
constexpr float kEps = 1e-4f;
constexpr int kSteps[] = {4, 6, 8, 10, 12, 16};     // of table 1
constexpr int kMaxIters[] = {2, 3, 4, 5, 6, 7, 8};  // of table 2
constexpr std::int64_t kManyRows = 100'000;         // of tables 1 and 2
constexpr std::int64_t kFewRows = 10'000;           // of table 5
constexpr std::int64_t kQuickShare = 20;            // a quick run takes one row of so many
constexpr double kPercent = 100.0;

struct shape {
  std::int64_t cols;
  std::vector<std::int64_t> ks;
};
const shape kShapesOfTable5[] = {
    {256, {64, 128}}, {1024, {64, 128, 256, 512}}, {4096, {64, 128, 256, 512}}, {8192, {64, 128, 256, 512}}};

/// How many rows leave Algorithm 1 after 0, 1, 2, ... steps.
std::vector<std::int64_t> exits(const row_matrix& matrix, std::int64_t k, float eps) {
  constexpr std::size_t kMostSteps = 512;  // an interval of fp32 cannot be halved so often
  std::vector<std::atomic<std::int64_t>> rows(kMostSteps);
  top_k_options options;
  options.k = k;
  options.eps = eps;
  over_cores(matrix.rows(), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const int steps = reference_bisection_steps(matrix.view(), r, options);
      ++rows[std::min(static_cast<std::size_t>(steps), kMostSteps - 1)];
    }
  });
  return {rows.begin(), rows.end()};
}

double mean_exit(const std::vector<std::int64_t>& rows_by_steps, std::int64_t rows) {
  double sum = 0;
  for (std::size_t steps = 0; steps < rows_by_steps.size(); ++steps) {
    sum += static_cast<double>(steps) * static_cast<double>(rows_by_steps[steps]);
  }
  return sum / static_cast<double>(rows);
}

nlohmann::ordered_json table_1(const row_matrix& matrix) {
  nlohmann::ordered_json records = nlohmann::ordered_json::array();
  for (const std::int64_t k : kKs) {
    const std::vector<std::int64_t> rows = exits(matrix, k, kEps);
    nlohmann::ordered_json left = nlohmann::ordered_json::object();
    for (const int steps : kSteps) {
      std::int64_t sum = 0;
      for (int s = 0; s <= steps; ++s) sum += rows[static_cast<std::size_t>(s)];
      left[std::to_string(steps)] = kPercent * static_cast<double>(sum) / static_cast<double>(matrix.rows());
    }
    records.push_back({{"table", 1},
                       {"rows", matrix.rows()},
                       {"cols", matrix.cols()},
                       {"k", k},
                       {"eps", "1e-4"},
                       {"left_percent", left},
                       {"mean_exit", mean_exit(rows, matrix.rows())}});
  }
  return records;
}

/// Values and columns of all rows, by ascending column, from the public op.
struct selection {
  std::vector<float> values;
  std::vector<std::int32_t> columns;

  selection(const row_matrix& matrix, const top_k_options& options)
      : values(static_cast<std::size_t>(matrix.rows() * options.k)), columns(values.size()) {
    const stream s(device::best());
    if (s.where().kind() == device_kind::cpu) {
      top_k(s, matrix.view(), options,
            {.values = values.data(), .indices = columns.data(), .indices_as = index_type::i32});
      return;
    }
    buffer on_device(s.where(), matrix.bytes());
    buffer values_there(s.where(), static_cast<std::int64_t>(values.size() * sizeof(float)));
    buffer columns_there(s.where(), static_cast<std::int64_t>(columns.size() * sizeof(std::int32_t)));
    on_device.upload(s, matrix.data());
    value_matrix there = matrix.view();
    there.data = on_device.data();
    top_k(s, there, options,
          {.values = values_there.data(), .indices = columns_there.data(), .indices_as = index_type::i32});
    values_there.download(s, values.data());
    columns_there.download(s, columns.data());
  }
};

/// E1 and E2: how far the largest and the smallest kept value are from the exact ones, over the row's maximum, on
/// average. (Over the exact smallest value E2 would be a mean of ratios to values around 0 at k = cols / 2, and the
/// paper's figures for two steps are those over the maximum.) Hit: the share of the exact set that was kept.
nlohmann::ordered_json early_stop(const row_matrix& matrix, const selection& exact, std::int64_t k, int max_iter) {
  top_k_options options;
  options.k = k;
  options.max_iter = max_iter;
  const selection early(matrix, options);
  double largest = 0;
  double smallest = 0;
  std::int64_t kept = 0;
  std::vector<std::int32_t> both;
  for (std::int64_t r = 0; r < matrix.rows(); ++r) {
    const auto begin = static_cast<std::ptrdiff_t>(r * k);
    const auto end = begin + static_cast<std::ptrdiff_t>(k);
    const auto [exact_min, exact_max] = std::minmax_element(exact.values.begin() + begin, exact.values.begin() + end);
    const auto [early_min, early_max] = std::minmax_element(early.values.begin() + begin, early.values.begin() + end);
    const double scale = std::fabs(*exact_max);
    largest += std::fabs(double{*early_max} - *exact_max) / scale;
    smallest += std::fabs(double{*early_min} - *exact_min) / scale;
    both.clear();
    std::set_intersection(exact.columns.begin() + begin, exact.columns.begin() + end, early.columns.begin() + begin,
                          early.columns.begin() + end, std::back_inserter(both));
    kept += static_cast<std::int64_t>(both.size());
  }
  const auto rows = static_cast<double>(matrix.rows());
  return {{"table", 2},
          {"rows", matrix.rows()},
          {"cols", matrix.cols()},
          {"k", k},
          {"max_iter", max_iter},
          {"e1_percent", kPercent * largest / rows},
          {"e2_percent", kPercent * smallest / rows},
          {"hit_percent", kPercent * static_cast<double>(kept) / (rows * static_cast<double>(k))}};
}

/// x with P(normal <= x) = p, by bisection; a hundred halvings are more than a double has bits.
double inverse_normal(double p) {
  double low = -40;
  double high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return high;
}

/// The paper's E(n): how many steps normal data are expected to need.
double expected_steps(std::int64_t cols, std::int64_t k) {
  const auto m = static_cast<double>(cols);
  const double quantile = inverse_normal(1 - static_cast<double>(k) / m);
  return std::log2(2 * m * std::sqrt(std::log(m) / std::numbers::pi)) - quantile * quantile / (2 * std::log(2.0));
}

}  // namespace

nlohmann::ordered_json rows_accuracy(const results& out, const campaign_settings& settings) {
  if (!out.wants("top_k/accuracy")) return nullptr;
  const std::int64_t share = settings.quick ? kQuickShare : 1;
  nlohmann::ordered_json records;
  {
    const row_matrix matrix(kManyRows / share, kCols, value_type::f32, row_values::normal);
    records = table_1(matrix);
    for (const std::int64_t k : kKs) {
      top_k_options options;
      options.k = k;
      const selection exact(matrix, options);
      for (const int max_iter : kMaxIters) records.push_back(early_stop(matrix, exact, k, max_iter));
    }
  }
  for (const shape& s : kShapesOfTable5) {
    const row_matrix matrix(kFewRows / share, s.cols, value_type::f32, row_values::normal);
    for (const std::int64_t k : s.ks) {
      records.push_back({{"table", 5},
                         {"rows", matrix.rows()},
                         {"cols", s.cols},
                         {"k", k},
                         {"mean_exit", mean_exit(exits(matrix, k, 0.0f), matrix.rows())},
                         {"expected", expected_steps(s.cols, k)}});
    }
  }
  return records;
}

}  // namespace shortlist::benchmark
