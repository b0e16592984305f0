// The path of an early stop's bisection: it follows from a row's extremes and from where its border is.
#pragma once

#include <cstdint>

#include "cuda/top_k/row_numbers.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {

constexpr int kPlainSteps = 12;  // of a path that is followed without looking at its width

/// A bracket of the bisection.
struct stop_bracket {
  float low;
  float high;
  bool ends = false;  // the bisection ends here
};

/// What a group follows the bisection of its row by.
struct stop_path {
  float lower;  // the row's extremes
  float upper;
  float width;  // Algorithm 1 ends at it
  bool fits;    // the sum of any two values is finite

  /// So many halvings surely leave a bracket that is wider than `target`, and than what rounding does.
  __device__ __forceinline__ int sure_steps(float target) const {
    constexpr float kRounding = 0x1p-19f;
    const float least = fmaxf(fmaxf(target, width), kRounding * fmaxf(fabsf(lower), fabsf(upper)));
    const auto exponent = static_cast<int>(__float_as_uint((upper - lower) * near_reciprocal(least)) >> 23) - 127;
    return exponent > 30 ? 0 : exponent - 1;
  }
};

/// A step to where a border `at` would lead it. @pre the sum of any two values is finite
__device__ __forceinline__ void halve(float at, float& low, float& high) {
  const float middle = __fmul_rn(__fadd_rn(low, high), 0.5f);
  const bool up = at >= middle;
  low = up ? middle : low;
  high = up ? high : middle;
}

/// Follows the bisection to where a border `at` would lead it.
/// @param fine a bracket of that width is narrow enough, if one of its ends lies within (low, high).
__device__ __forceinline__ stop_bracket follow(const early_stop& stop, const stop_path& path, float at, float low,
                                               float high, float fine) {
  stop_bracket bracket{path.lower, path.upper};
  const auto halve = [&](float middle) {
    const bool up = at >= middle;
    bracket.low = up ? middle : bracket.low;
    bracket.high = up ? bracket.high : middle;
  };
  int step = 0;
  if (path.fits) {
    const bool few = stop.by_count && stop.max_iter <= kPlainSteps;
    int plain = stop.max_iter;
    if (!few) plain = stop.by_count ? min(plain, path.sure_steps(fine)) : path.sure_steps(fine);
#pragma unroll 4
    for (; step < plain; step++) halve(__fmul_rn(__fadd_rn(bracket.low, bracket.high), 0.5f));
    bracket.ends = few;
    if (few) return bracket;
  }
#pragma unroll 1
  for (;; step++) {
    const float middle = midpoint(bracket.low, bracket.high);
    bracket.ends = middle <= bracket.low || (middle >= bracket.high && (stop.by_eps || at < middle)) ||
                   (stop.by_count ? step >= stop.max_iter : !(__fsub_rn(bracket.high, bracket.low) > path.width));
    if (bracket.ends) return bracket;
    const bool helps = bracket.low > low || (bracket.high < high && bracket.high < path.upper);
    if (helps && __fsub_rn(bracket.high, bracket.low) <= fine) return bracket;
    halve(middle);
  }
}

}  // namespace shortlist::cuda
