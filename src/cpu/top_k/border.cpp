#include "cpu/top_k/border.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "core/normal.hpp"

namespace shortlist::cpu {
namespace {

constexpr int kGuesses = 5;            // passes over a row before the bracket's keys are copied out of it
constexpr std::int64_t kFewKeys = 24;  // are selected without counting
constexpr double kSteep = 1.5;         // how much further each step outside a bracket goes
constexpr double kMargin = 0.1;        // of a bracket, which a guess keeps from its ends

constexpr row_order_key kInfinityKey = 0x7F800000;
constexpr row_order_key kMinusInfinityKey = static_cast<row_order_key>(0x807FFFFFu);

float value_of(row_order_key key) { return std::bit_cast<float>(key < 0 ? key ^ 0x7FFFFFFF : key); }

row_order_key key_of(float value) {
  const auto bits = std::bit_cast<std::int32_t>(value + 0.0f);
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

bool is_number(std::int64_t key) { return key > kMinusInfinityKey && key < kInfinityKey; }

/// The bracket of a search: count(>= low) >= k > count(>= high). Keys beyond 32 bits stand for "above all".
struct bracket {
  std::int64_t low;
  std::int64_t high;
  std::int64_t at_low;
  std::int64_t at_high;
};

/// A threshold inside the bracket by straight interpolation of the values at its ends.
double interpolate(const bracket& in, std::int64_t k) {
  const double low = value_of(static_cast<row_order_key>(in.low));
  const double high = value_of(static_cast<row_order_key>(in.high));
  const double share = (static_cast<double>(in.at_low - k) + 0.5) / static_cast<double>(in.at_low - in.at_high);
  return low + (high - low) * std::clamp(share, kMargin, 1.0 - kMargin);
}

}  // namespace

border_guess::border_guess(std::int64_t k, std::int64_t count)
    : deviations_(core::upper_quantile((static_cast<double>(k) + 0.5) / (static_cast<double>(count) + 1.0))),
      density_(core::normal_density(deviations_)) {}

namespace {

/// The border among few keys, of which `rank` >= 1 and not all are to be above or at it.
row_border border_of_few(row_order_key* keys, std::int64_t count, std::int64_t rank) {
  std::nth_element(keys, keys + (rank - 1), keys + count, std::greater<>());
  const row_order_key border = keys[rank - 1];
  return {border, std::count(keys, keys + rank, border)};
}

/// The border among the keys of a bracket, `rank` from its top, by pivots that are keys themselves: where many are
/// equal, one of the first is the border. `keys` and `other` take turns.
row_border border_by_pivots(const top_k_kernels& kernels, row_order_key* keys, std::int64_t count, std::int64_t rank,
                            bracket in, row_order_key* other) {
  for (int pass = 0; count > kFewKeys; ++pass) {
    const row_order_key a = keys[count / 4];
    const row_order_key b = keys[count / 2];
    const row_order_key c = keys[count / 4 * 3];
    const row_order_key median = std::max(std::min(a, b), std::min(std::max(a, b), c));
    const auto middle = static_cast<row_order_key>(in.low + (in.high - in.low) / 2);
    const row_order_key pivot = pass % 4 == 3 ? middle : median;          // halving the bracket bounds the passes
    if (pivot == kNanOrPadding) return border_of_few(keys, count, rank);  // the rest are NaN, or nearly so
    const std::int64_t from_pivot = kernels.count_from(keys, count, pivot);
    const std::int64_t beyond = kernels.count_from(keys, count, pivot + 1);
    if (beyond < rank && rank <= from_pivot) return {pivot, rank - beyond};
    if (rank <= beyond) {
      in.low = std::int64_t{pivot} + 1;
    } else {
      in.high = pivot;
      rank -= from_pivot;
    }
    const auto low = static_cast<row_order_key>(std::max(in.low, std::int64_t{kNanOrPadding} + 1));
    const std::int64_t kept = kernels.keep_between(keys, count, low, static_cast<row_order_key>(in.high), other);
    if (kept < rank) return {kNanOrPadding, rank - kept};  // beyond all numbers of the bracket: NaN
    count = kept;
    std::swap(keys, other);
  }
  return border_of_few(keys, count, rank);
}

}  // namespace

row_border find_border(const top_k_kernels& kernels, const row_keys& row, std::int64_t k, border_guess& guess) {
  if (k == 1) return {row.summary.most, 1};
  const auto n = static_cast<double>(row.count);
  const double mean = static_cast<double>(row.summary.sum) / n;
  const double deviation = std::sqrt(static_cast<double>(row.summary.squares) / n - mean * mean);
  const bool has_shape = std::isfinite(mean) && std::isfinite(deviation) && deviation > 0.0;
  const auto learn = [&](row_order_key border) {
    if (has_shape && is_number(border)) guess.learn((static_cast<double>(value_of(border)) - mean) / deviation);
  };

  bracket in{row.summary.least, std::int64_t{row.summary.most} + 1, row.count, 0};
  double at = mean + guess.deviations() * deviation;
  double step = 1.0;
  bool met_low = false;  // the bracket's ends have been moved by counts
  bool met_high = false;
  for (int pass = 0; has_shape && pass < kGuesses && in.high - in.low > 1; ++pass) {
    if (met_low && met_high && is_number(in.low) && is_number(in.high)) at = interpolate(in, k);
    if (!std::isfinite(at)) break;
    constexpr double kMost = std::numeric_limits<float>::max();
    const std::int64_t from =
        std::clamp<std::int64_t>(key_of(static_cast<float>(std::clamp(at, -kMost, kMost))), in.low + 1, in.high - 1);
    const auto threshold = static_cast<row_order_key>(from);
    const std::int64_t reached = kernels.count_from(row.keys, row.count, threshold);
    if (reached == k) {
      learn(threshold);
      return {threshold - 1, 0};
    }
    if (reached > k) {
      in = {from, in.high, reached, in.at_high};
      met_low = true;
    } else {
      in = {in.low, from, in.at_low, reached};
      met_high = true;
    }
    if (!(met_low && met_high)) {
      at += step * deviation * static_cast<double>(reached - k) / (n * guess.density());
      step *= kSteep;
    } else if (in.at_low - in.at_high <= kFewKeys) {
      break;
    }
  }
  const auto low = static_cast<row_order_key>(std::max(in.low, std::int64_t{kNanOrPadding} + 1));
  const auto high = static_cast<row_order_key>(in.high);
  const std::int64_t kept = kernels.keep_between(row.keys, row.count, low, high, row.room[0]);
  const std::int64_t rank = k - in.at_high;
  if (kept < rank) return {kNanOrPadding, rank - kept};  // NaN are the best that is left
  const row_border border = border_by_pivots(kernels, row.room[0], kept, rank, in, row.room[1]);
  learn(border.key);
  return border;
}

row_order_key last_of_best(const top_k_kernels& kernels, const row_keys& row, row_border border) {
  return border.ties > 0 ? border.key : kernels.least_from(row.keys, row.count, border.key + 1);
}

bool is_finite(key_range range) { return range.least > kMinusInfinityKey && range.most < kInfinityKey; }

namespace {

/// The midpoint of docs/ordering.md, section 9: never outside [low, high], never overflowing.
float midpoint(float low, float high) {
  const float sum = low + high;
  return std::isfinite(sum) ? sum * 0.5f : low * 0.5f + high * 0.5f;
}

/// Algorithm 1 or 2. That k values reach a midpoint exactly, where Algorithm 1 ends, changes nothing but the time.
/// @param reached reached(middle): whether k values do.
template <class Reached>
bisected bisect(key_range range, const top_k_options& options, Reached reached) {
  float low = value_of(range.least);
  float high = value_of(range.most);
  const float width = options.eps.value_or(0.0f) * std::fabs(high);
  for (int step = 0; !options.max_iter || step < *options.max_iter; ++step) {
    const float middle = midpoint(low, high);
    if (options.eps && (!(high - low > width) || middle <= low || middle >= high)) break;
    (reached(middle) ? low : high) = middle;
  }
  return {key_of(options.max_iter ? low : high), key_of(low)};
}

}  // namespace

bisected count_bisection(const top_k_kernels& kernels, const row_keys& row, const top_k_options& options) {
  return bisect(row.summary, options,
                [&](float middle) { return kernels.count_from(row.keys, row.count, key_of(middle)) >= options.k; });
}

bisected follow_bisection(key_range range, row_order_key last, const top_k_options& options) {
  const float border = value_of(last);
  return bisect(range, options, [&](float middle) { return border >= middle; });
}

}  // namespace shortlist::cpu
