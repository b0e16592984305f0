// What bounds of scores are made of: docs/ivf_pq.md, section 5.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace shortlist::cpu {

inline constexpr double kRounding = 0x1p-24;
/// Roundings that belong to no element or piece.
inline constexpr double kOfTheRest = 256.0;
/// Beyond this a sum might overflow.
inline constexpr double kMostCertain = 0x1p120;
/// Of products that underflow, for each element, times one more than the query's norm: under cosine what differs by
/// more still differs after the product with the inverse norm.
inline constexpr double kUnderflow = 0x1p-140;

inline double squared_norm_of(const float* x, std::int64_t dim) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < dim; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

/// The fp32 number that is not below `value`.
inline float rounded_up(double value) {
  const auto rounded = static_cast<float>(value);
  return static_cast<double>(rounded) < value ? std::nextafter(rounded, std::numeric_limits<float>::infinity())
                                              : rounded;
}

}  // namespace shortlist::cpu
