// Scale, codes and sums of a vector. See quantise.hpp.
#include "cpu/flat/quantise.hpp"

#include <algorithm>
#include <cmath>

namespace shortlist::cpu {
namespace {

/// Sums run in so many lanes, which compilers turn into vectors.
constexpr std::int64_t kLanes = 8;

/// The sum of term(i) for i < dim.
template <class T, class Term>
T sum_of(std::int64_t dim, const Term& term) {
  T lanes[kLanes] = {};
  const std::int64_t whole = dim / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  T sum = 0;
  for (std::int64_t i = whole; i < dim; ++i) sum += term(i);
  for (const T lane : lanes) sum += lane;
  return sum;
}

float largest_magnitude(const float* elements, std::int64_t dim) {
  float lanes[kLanes] = {};
  const std::int64_t whole = dim / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float magnitude = std::fabs(elements[i + lane]);
      lanes[lane] = lanes[lane] < magnitude ? magnitude : lanes[lane];
    }
  }
  for (std::int64_t i = whole; i < dim; ++i) lanes[0] = std::max(lanes[0], std::fabs(elements[i]));
  return *std::max_element(lanes, lanes + kLanes);
}

}  // namespace

quantised quantise(const float* elements, std::int64_t dim, int max_code, std::int16_t* codes) {
  quantised made;
  made.squares = sum_of<double>(dim, [&](std::int64_t i) { return double{elements[i]} * double{elements[i]}; });
  made.residual_squares = made.squares;
  const bool certified = core::is_certifiable(made.squares, 1.0f);
  made.scale = certified ? core::code_scale(largest_magnitude(elements, dim), max_code) : 0.0f;
  if (made.scale == 0.0f) {
    std::fill_n(codes, dim, std::int16_t{0});
    return made;
  }
  const float inverse = core::inverse_scale(made.scale);
  for (std::int64_t i = 0; i < dim; ++i) {
    codes[i] = static_cast<std::int16_t>(core::code_of(elements[i], inverse, max_code));
  }
  const double scale = made.scale;
  made.residual_squares = sum_of<double>(dim, [&](std::int64_t i) {
    const double residual = elements[i] - scale * codes[i];
    return residual * residual;
  });
  made.code_squares = static_cast<std::int64_t>(
      sum_of<double>(dim, [&](std::int64_t i) { return static_cast<double>(codes[i]) * codes[i]; }));  // exact
  return made;
}

}  // namespace shortlist::cpu
