// One vector of the deep-like set, for host and device code: both make the same bits.
//
// That needs arithmetic that both have: additions, products, divisions and square roots of fp32, correctly rounded and
// not contracted, in one order, and functions of this file made of them. Their errors, about 1e-6, are far below what
// the set is about.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define DEEP_LIKE_FUNCTION __host__ __device__ __forceinline__
#else
#define DEEP_LIKE_FUNCTION inline
#endif

namespace shortlist::benchmark::deep_like_row {

inline constexpr int kDim = 96;
inline constexpr int kLatent = 24;
inline constexpr int kClusters = 4000;
inline constexpr int kLanes = 32;              // a vector is made by 32 lanes, 3 elements each
inline constexpr int kOfLane = kDim / kLanes;  // elements lane, lane + 32, lane + 64
inline constexpr float kCentreShare = 1.2f;
inline constexpr float kNormalShare = 0.7f;
inline constexpr float kSlope = 0.25f;
inline constexpr float kNoise = 0.15f;

/// What all vectors share. On a GPU the pointers lead there.
struct tables {
  const float* centres = nullptr;  // [kClusters, kLatent], times kCentreShare
  const float* matrix = nullptr;   // [kLatent, kDim]: A
  const std::uint32_t* thresholds =
      nullptr;  // [kClusters] of the first 32 random bits, ascending; the last is all ones
};

DEEP_LIKE_FUNCTION float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
DEEP_LIKE_FUNCTION std::uint32_t to_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

/// SplitMix64's number at any place of its sequence.
DEEP_LIKE_FUNCTION std::uint64_t random_bits(std::uint64_t place) {
  std::uint64_t z = (place + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// The natural logarithm of x in (0, 1]: of 2^e m, m from sqrt(1/2) on, as e ln 2 + 2 artanh((m - 1) / (m + 1)).
DEEP_LIKE_FUNCTION float logarithm(float x) {
  constexpr std::uint32_t kSqrtHalf = 0x3F3504F3u;
  constexpr float kLn2 = 0.693147181f;
  const std::uint32_t bits = to_bits(x) - kSqrtHalf;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  const float m = from_bits((bits & 0x7FFFFFu) + kSqrtHalf);
  const float s = (m - 1.0f) / (m + 1.0f);
  const float z = s * s;
  const float series = ((z * (2.0f / 7.0f) + 2.0f / 5.0f) * z + 2.0f / 3.0f) * z + 2.0f;
  return exponent * kLn2 + s * series;
}

struct sine_cosine {
  float sine;
  float cosine;
};

/// Of x quarter turns, x in [0, 4): series in the distance from the middle of the quarter.
DEEP_LIKE_FUNCTION sine_cosine quarter_turns(float x) {
  constexpr float kQuarter = 1.57079633f;
  constexpr float kSqrtHalf = 0.707106781f;
  const int quarter = static_cast<int>(x);
  const float a = (x - static_cast<float>(quarter) - 0.5f) * kQuarter;  // within +-pi/4
  const float z = a * a;
  const float s = ((z * (-1.0f / 5040.0f) + 1.0f / 120.0f) * z - 1.0f / 6.0f) * z * a + a;
  const float c = (((z * (1.0f / 40320.0f) - 1.0f / 720.0f) * z + 1.0f / 24.0f) * z - 0.5f) * z + 1.0f;
  const float sine = kSqrtHalf * (c + s);  // of the angle within its quarter, which is pi/4 + a
  const float cosine = kSqrtHalf * (c - s);
  const float first = (quarter & 1) != 0 ? cosine : sine;
  const float second = (quarter & 1) != 0 ? -sine : cosine;
  return (quarter & 2) != 0 ? sine_cosine{-first, -second} : sine_cosine{first, second};
}

/// Two standard normal numbers of 64 random bits: Box-Muller.
DEEP_LIKE_FUNCTION sine_cosine two_normals(std::uint64_t bits) {
  constexpr float kUnit = 0x1p-24f;
  const float above_zero = static_cast<float>(static_cast<std::int32_t>(bits >> 40) + 1) * kUnit;
  const float radius = std::sqrt(-2.0f * logarithm(above_zero));
  const sine_cosine angle =
      quarter_turns(static_cast<float>(static_cast<std::int32_t>(bits & 0xFFFFFFu)) * (4 * kUnit));
  return {radius * angle.sine, radius * angle.cosine};
}

/// The hyperbolic tangent: 1 - 2 / (e^2x + 1), e^2x as 2^n times a series.
DEEP_LIKE_FUNCTION float tangent(float x) {
  constexpr float kLargest = 9.0f;  // from where on it is 1
  constexpr float kTwoOverLn2 = 2.88539008f;
  constexpr float kLn2 = 0.693147181f;
  constexpr float kToWhole = 12582912.0f;  // 1.5 x 2^23: adding it rounds to a whole number
  const float within = x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
  const float power = within * kTwoOverLn2;
  const float shifted = power + kToWhole;
  const float f = (power - (shifted - kToWhole)) * kLn2;  // within +-0.35
  const float series = ((((f * (1.0f / 720.0f) + 1.0f / 120.0f) * f + 1.0f / 24.0f) * f + 1.0f / 6.0f) * f + 0.5f) * f;
  const float fraction = (series + 1.0f) * f + 1.0f;
  const float scale = from_bits((to_bits(shifted) - to_bits(kToWhole) + 127u) << 23);
  return 1.0f - 2.0f / (fraction * scale + 1.0f);
}

/// The random numbers of one lane of vector `index`: noise of its elements, and for lanes below kLatent a number of the
/// latent vector.
struct lane_numbers {
  float noise[kOfLane];
  float latent;
};
DEEP_LIKE_FUNCTION lane_numbers numbers_of_lane(std::uint64_t index, int lane) {
  const std::uint64_t place = index * 128 + static_cast<std::uint64_t>(lane);
  const sine_cosine first = two_normals(random_bits(place));
  const sine_cosine second = two_normals(random_bits(place + kLanes));
  return {{first.cosine, first.sine, second.cosine}, second.sine};
}

/// The cluster of vector `index`: the first whose threshold is not below 32 random bits.
DEEP_LIKE_FUNCTION int cluster_of(const std::uint32_t* thresholds, std::uint64_t index) {
  const auto bits = static_cast<std::uint32_t>(random_bits(index * 128 + 64) >> 32);
  int low = 0;
  int high = kClusters - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (thresholds[middle] < bits) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// An element before the vector is scaled to length 1. `sum` is that of latent x matrix, by ascending latent number.
DEEP_LIKE_FUNCTION float element(float sum, float noise) { return tangent(kSlope * sum) + kNoise * noise; }

/// The sum of a lane's squares; the lanes' are then added in pairs 16, 8, 4, 2 and 1 apart.
DEEP_LIKE_FUNCTION float sum_of_squares(const float (&x)[kOfLane]) { return x[0] * x[0] + x[1] * x[1] + x[2] * x[2]; }

}  // namespace shortlist::benchmark::deep_like_row
