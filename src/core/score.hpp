// The one score, to the last bit. See docs/ordering.md for the definition and the reasons.
//
// A backend computes the 128 partial sums and their tree in its own way; this header holds what all of them share: how
// an element widens, one step of a partial sum, and how a sum becomes a score.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.hpp"
#include "core/order.hpp"
#include "shortlist/types.hpp"

namespace shortlist::core {

inline constexpr int kPartialSums = 128;       ///< p[j] sums the elements j, j + 128, j + 256, ...
inline constexpr float kQueryPadding = -0.0f;  ///< fma(-0, +0, p) == p for every p: padding takes no step
inline constexpr float kRowPadding = 0.0f;
inline constexpr float kZeroVector = -1.0f;  ///< stands for the inverse norm of a vector whose dot(x, x) is 0

SHORTLIST_HOST_DEVICE float widen(float value) { return value; }
SHORTLIST_HOST_DEVICE float widen(std::int8_t value) { return static_cast<float>(value); }
SHORTLIST_HOST_DEVICE float widen(std::uint8_t value) { return static_cast<float>(value); }
SHORTLIST_HOST_DEVICE float widen(bfloat16 value) {
  return float_from_bits(static_cast<std::uint32_t>(value.bits) << 16);
}
SHORTLIST_HOST_DEVICE float widen(float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const std::uint32_t fraction = value.bits & 0x3FFu;
  if (exponent == 0) {  // zero or denormal: fraction * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    return float_from_bits(sign | float_bits(magnitude));
  }
  const std::uint32_t wide_exponent = exponent == 0x1Fu ? 0xFFu : exponent + 112u;
  return float_from_bits(sign | (wide_exponent << 23) | (fraction << 13));
}

/// One step of a partial sum, rounded once.
SHORTLIST_HOST_DEVICE float step_dot(float query, float row, float sum) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(query, row, sum);
#else
  return std::fma(query, row, sum);
#endif
}
SHORTLIST_HOST_DEVICE float step_l2(float query, float row, float sum) {
#ifdef __CUDA_ARCH__
  const float difference = __fsub_rn(query, row);
#else
  const float difference = query - row;
#endif
  return step_dot(difference, difference, sum);
}

/// 1 / sqrt(dot(x, x)), both correctly rounded, or kZeroVector.
SHORTLIST_HOST_DEVICE float inverse_norm(float squared_norm) {
  if (squared_norm == 0.0f) return kZeroVector;
#ifdef __CUDA_ARCH__
  return __frcp_rn(__fsqrt_rn(squared_norm));
#else
  return 1.0f / std::sqrt(squared_norm);
#endif
}

/// The cosine of a dot product. Negative inverse norms are kZeroVector: such a pair comes last, and is still there.
SHORTLIST_HOST_DEVICE float cosine_score(float dot, float query_inverse_norm, float row_inverse_norm) {
  if (query_inverse_norm < 0.0f || row_inverse_norm < 0.0f) return worst_score(metric::cosine);
#ifdef __CUDA_ARCH__
  return __fmul_rn(__fmul_rn(dot, query_inverse_norm), row_inverse_norm);
#else
  return (dot * query_inverse_norm) * row_inverse_norm;
#endif
}

}  // namespace shortlist::core
