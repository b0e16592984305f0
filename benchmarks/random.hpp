// Random numbers of the benchmarks: the same for the same seed and row, on any number of cores.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace shortlist::benchmark {

/// SplitMix64: one multiply-and-shift chain a number, and any start is a good start.
class random_row {
 public:
  random_row(std::uint64_t seed, std::int64_t row) : state_((seed << 56) ^ (static_cast<std::uint64_t>(row) << 20)) {
    state_ = next();  // rows start far apart
  }
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// In [0, 1), a multiple of 2^-24.
  float uniform() { return static_cast<float>(next() >> 40) * kUnit; }

  /// Standard normal numbers; Box-Muller makes two of two uniform ones.
  void normal(float* to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += 2) {
      const std::uint64_t bits = next();
      const float above_zero = static_cast<float>((bits >> 40) + 1) * kUnit;
      const float angle = 2.0f * std::numbers::pi_v<float> * static_cast<float>(bits & 0xFFFFFFu) * kUnit;
      const float radius = std::sqrt(-2.0f * std::log(above_zero));
      to[i] = radius * std::cos(angle);
      if (i + 1 < count) to[i + 1] = radius * std::sin(angle);
    }
  }

 private:
  static constexpr float kUnit = 0x1p-24f;
  std::uint64_t state_;
};

}  // namespace shortlist::benchmark
