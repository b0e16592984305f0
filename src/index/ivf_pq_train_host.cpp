// The steps of training that the host computes, in fp64 and whole numbers, so that every device gets the same.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "core/sampling.hpp"
#include "index/ivf_pq_train.hpp"

namespace shortlist::index {
namespace {

constexpr int kUseShift = 60;  // of a counter: the uses begin so far apart that no two meet
constexpr int kUniformsOfNormal = 12;
constexpr std::int64_t kBalanceShare = 8;  // groups below this part of the mean take half of another
constexpr float kNudge = 0x1p-10f;

// Sixteen multiples of the root mean square that cover heavy tails as well as flat ones, for the span of 16 and of 256
// codes: a normal distribution's best steps are 0.335 and 0.031.
constexpr int kMultiples = 16;
constexpr double kLeastMultiple4 = 0.16, kMultipleStep4 = 0.025;
constexpr double kLeastMultiple8 = 0.014, kMultipleStep8 = 0.0025;
// Of an element that is the same in every row that was seen.
constexpr float kStepOfConstant = 0x1p-60f;

/// A sum of products in eight partial sums, which compilers keep in registers of vectors.
double dot(const double* a, const double* b, std::int64_t n) {
  constexpr std::int64_t kParts = 8;
  double parts[kParts] = {};
  std::int64_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (std::int64_t part = 0; part < kParts; ++part) parts[part] += a[i + part] * b[i + part];
  }
  for (; i < n; ++i) parts[0] += a[i] * b[i];
  double sum = 0.0;
  for (const double part : parts) sum += part;
  return sum;
}

}  // namespace

random_numbers::random_numbers(std::uint64_t seed, random_use use)
    : seed_(seed), at_(static_cast<std::uint64_t>(use) << kUseShift) {}

std::uint32_t random_numbers::next() { return core::philox(seed_, at_++); }

std::int64_t random_numbers::below(std::int64_t bound) {
  const std::uint64_t high = next();
  const std::uint64_t low = next();
  return static_cast<std::int64_t>(core::multiply_high((high << 32) | low, static_cast<std::uint64_t>(bound)));
}

double random_numbers::about_normal() {
  double sum = 0.0;
  for (int i = 0; i < kUniformsOfNormal; ++i) sum += std::ldexp(static_cast<double>(next()), -32);
  return sum - kUniformsOfNormal / 2.0;
}

std::vector<std::int64_t> chosen_numbers(random_numbers& random, std::int64_t n, std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(n));
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  for (std::int64_t i = 0; i < count; ++i) std::swap(numbers[i], numbers[i + random.below(n - i)]);
  numbers.resize(static_cast<std::size_t>(count));
  return numbers;
}

void balance(float* centres, std::int64_t* counts, std::int64_t groups, std::int64_t dim) {
  using sized = std::pair<std::int64_t, std::int64_t>;  // count and number
  const std::int64_t total = std::accumulate(counts, counts + groups, std::int64_t{0});
  std::set<sized> ascending,
      descending;  // the second with counts below 0, so that of equals the smaller number is first
  for (std::int64_t group = 0; group < groups; ++group) {
    ascending.emplace(counts[group], group);
    descending.emplace(-counts[group], group);
  }
  const auto recount = [&](std::int64_t group, std::int64_t count) {
    ascending.erase({counts[group], group});
    descending.erase({-counts[group], group});
    ascending.emplace(count, group);
    descending.emplace(-count, group);
    counts[group] = count;
  };
  while (kBalanceShare * groups * ascending.begin()->first < total) {
    const std::int64_t small = ascending.begin()->second;
    const std::int64_t large = descending.begin()->second;
    if (counts[large] < 2) return;  // fewer rows than groups
    float* to = centres + small * dim;
    float* from = centres + large * dim;
    for (std::int64_t i = 0; i < dim; ++i) {
      const float up = from[i] * (1.0f + kNudge);
      const float down = from[i] * (1.0f - kNudge);
      to[i] = i % 2 == 0 ? up : down;
      from[i] = i % 2 == 0 ? down : up;
    }
    const std::int64_t half = counts[large] / 2;
    recount(small, half);
    recount(large, counts[large] - half);
  }
}

std::vector<float> random_rotation(std::uint64_t seed, std::int64_t dim) {
  random_numbers random(seed, random_use::rotation);
  std::vector<double> rows(static_cast<std::size_t>(dim * dim));
  for (double& value : rows) value = random.about_normal();
  const auto row = [&](std::int64_t i) { return rows.data() + i * dim; };
  for (std::int64_t i = 0; i < dim; ++i) {  // modified Gram-Schmidt
    const double length = std::sqrt(dot(row(i), row(i), dim));
    for (std::int64_t at = 0; at < dim; ++at) row(i)[at] /= length;
    for (std::int64_t later = i + 1; later < dim; ++later) {
      const double share = dot(row(i), row(later), dim);
      for (std::int64_t at = 0; at < dim; ++at) row(later)[at] -= share * row(i)[at];
    }
  }
  return {rows.begin(), rows.end()};
}

std::vector<float> scalar_steps(const core::ivf_pq_shape& shape, const std::vector<float>& residuals, std::int64_t n) {
  const bool fine = shape.bits > 4;
  const double middle = 0.5 * static_cast<double>(shape.codewords() - 1);
  std::vector<float> steps(static_cast<std::size_t>(shape.dim));
  std::vector<double> column(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < shape.dim; ++i) {
    double squares = 0.0;
    for (std::int64_t row = 0; row < n; ++row) {
      column[row] = residuals[static_cast<std::size_t>(row * shape.padded_dim() + i)];
      squares += column[row] * column[row];
    }
    const double root = std::sqrt(squares / static_cast<double>(n));
    double least_error = INFINITY;
    float best = kStepOfConstant;
    for (int multiple = 0; multiple < kMultiples; ++multiple) {
      const double factor =
          fine ? kLeastMultiple8 + multiple * kMultipleStep8 : kLeastMultiple4 + multiple * kMultipleStep4;
      const auto step = static_cast<float>(factor * root);
      if (step == 0.0f) break;
      double error = 0.0;
      for (const double value : column) {
        const double code = std::clamp(std::floor(value / step) + 0.5, -middle, middle);
        const double missed = value - code * step;
        error += missed * missed;
      }
      if (error < least_error) {
        least_error = error;
        best = step;
      }
    }
    steps[static_cast<std::size_t>(i)] = best;
  }
  return steps;
}

}  // namespace shortlist::index
