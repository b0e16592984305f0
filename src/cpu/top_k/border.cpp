#include "cpu/top_k/border.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace shortlist::cpu {
namespace {

constexpr int kFreeGuesses = 12;             // passes before every second one halves the bracket of keys
constexpr std::int64_t kNarrowAbove = 1024;  // keys that are worth copying the bracket's out of
constexpr double kSteep = 1.5;               // how much further each step outside a bracket goes
constexpr double kMargin = 0.1;              // of a bracket, which a guess keeps from its ends

constexpr row_order_key kInfinityKey = 0x7F800000;
constexpr row_order_key kMinusInfinityKey = static_cast<row_order_key>(0x807FFFFFu);

float value_of(row_order_key key) { return std::bit_cast<float>(key < 0 ? key ^ 0x7FFFFFFF : key); }

row_order_key key_of(float value) {
  const auto bits = std::bit_cast<std::int32_t>(value + 0.0f);
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

bool is_number(std::int64_t key) { return key > kMinusInfinityKey && key < kInfinityKey; }

/// The quantile of the normal distribution that `share` of it lies above (Abramowitz and Stegun 26.2.23, 4e-4).
double upper_quantile(double share) {
  const bool mirrored = share > 0.5;
  const double t = std::sqrt(-2.0 * std::log(mirrored ? 1.0 - share : share));
  const double x =
      t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  return mirrored ? -x : x;
}

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

border_guess::border_guess(std::int64_t k, std::int64_t count) {
  const double share = (static_cast<double>(k) + 0.5) / (static_cast<double>(count) + 1.0);
  deviations_ = upper_quantile(std::clamp(share, 1e-12, 1.0 - 1e-12));
  constexpr double kDensityAtMean = 0.3989422804014327;
  density_ = kDensityAtMean * std::exp(-0.5 * deviations_ * deviations_);
}

row_border find_border(const top_k_kernels& kernels, const row_keys& row, std::int64_t k, border_guess& guess) {
  const auto n = static_cast<double>(row.count);
  const double mean = static_cast<double>(row.summary.sum) / n;
  const double deviation = std::sqrt(static_cast<double>(row.summary.squares) / n - mean * mean);
  const bool has_shape = std::isfinite(mean) && std::isfinite(deviation) && deviation > 0.0;

  bracket in{row.summary.least, std::int64_t{row.summary.most} + 1, row.count, 0};
  const row_order_key* active = row.keys;  // the keys within a bracket that was met before
  std::int64_t active_count = row.count;
  std::int64_t above = 0;  // keys that left it upwards
  int room = 0;
  double at = mean + guess.deviations() * deviation;
  double step = 1.0;
  bool met_low = false;  // the bracket's ends have been moved by counts
  bool met_high = false;
  for (int pass = 0; in.high - in.low > 1; ++pass) {
    std::int64_t from = in.low + (in.high - in.low) / 2;
    if (pass < kFreeGuesses || pass % 2 == 0) {
      if (met_low && met_high && is_number(in.low) && is_number(in.high))
        at = interpolate(in, k);
      else if (!has_shape)
        at = std::numeric_limits<double>::quiet_NaN();
      constexpr double kMost = std::numeric_limits<float>::max();
      if (std::isfinite(at)) from = key_of(static_cast<float>(std::clamp(at, -kMost, kMost)));
    }
    from = std::clamp(from, in.low + 1, in.high - 1);
    const auto threshold = static_cast<row_order_key>(from);
    const std::int64_t reached = above + kernels.count_from(active, active_count, threshold);
    if (reached == k) {
      if (has_shape) guess.learn((static_cast<double>(value_of(threshold)) - mean) / deviation);
      return {threshold - 1, 0};
    }
    if (reached > k) {
      in.low = from;
      in.at_low = reached;
      met_low = true;
    } else {
      in.high = from;
      in.at_high = reached;
      met_high = true;
    }
    if (has_shape && !(met_low && met_high)) {
      at += step * deviation * static_cast<double>(reached - k) / (n * guess.density());
      step *= kSteep;
    }
    if (active_count > kNarrowAbove && (in.at_low - in.at_high) * 4 < active_count) {
      const auto low = static_cast<row_order_key>(std::max(in.low, std::int64_t{kNanOrPadding} + 1));
      active_count =
          kernels.keep_between(active, active_count, low, static_cast<row_order_key>(in.high), row.room[room]);
      active = row.room[room];
      room ^= 1;
      above = in.at_high;
    }
  }
  const auto border = static_cast<row_order_key>(in.low);
  if (has_shape && is_number(in.low)) guess.learn((static_cast<double>(value_of(border)) - mean) / deviation);
  return {border, k - in.at_high};
}

bool is_finite(const row_summary& summary) { return summary.least > kMinusInfinityKey && summary.most < kInfinityKey; }

namespace {

/// The midpoint of docs/ordering.md, section 9: never outside [low, high], never overflowing.
float midpoint(float low, float high) {
  const float sum = low + high;
  return std::isfinite(sum) ? sum * 0.5f : low * 0.5f + high * 0.5f;
}

}  // namespace

bisected bisect_to_width(const top_k_kernels& kernels, const row_keys& row, std::int64_t k, float eps) {
  float low = value_of(row.summary.least);
  float high = value_of(row.summary.most);
  const float width = eps * std::fabs(high);
  while (high - low > width) {
    const float middle = midpoint(low, high);
    if (middle <= low || middle >= high) break;
    const row_order_key from = key_of(middle);
    const std::int64_t reached = kernels.count_from(row.keys, row.count, from);
    if (reached == k) return {from, from};
    (reached < k ? high : low) = middle;
  }
  return {key_of(high), key_of(low)};
}

bisected bisect_steps(const top_k_kernels& kernels, const row_keys& row, std::int64_t k, int max_iter) {
  float low = value_of(row.summary.least);
  float high = value_of(row.summary.most);
  for (int step = 0; step < max_iter; ++step) {
    const float middle = midpoint(low, high);
    const std::int64_t reached = kernels.count_from(row.keys, row.count, key_of(middle));
    (reached < k ? high : low) = middle;
  }
  return {key_of(low), key_of(low)};
}

}  // namespace shortlist::cpu
