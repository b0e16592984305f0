// fp32 to the 16-bit types, rounded to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

#include "shortlist/types.hpp"

namespace shortlist::program {

inline constexpr std::uint32_t kFloatInfinity = 0x7F800000u;

/// Finite values beyond 65504 become infinite when they round to 2^16.
inline float16 to_float16(float value) {
  constexpr std::uint32_t kRoundsToInfinity = 0x477FF000u;  // 65520, half-way between 65504 and 2^16: ties to even, up
  constexpr std::uint32_t kSmallestNormal = 0x38800000u;    // 2^-14
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  std::uint32_t half = 0;
  if (magnitude > kFloatInfinity) {
    half = 0x7E00u;
  } else if (magnitude >= kRoundsToInfinity) {
    half = 0x7C00u;
  } else if (magnitude >= kSmallestNormal) {
    half = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  } else {
    // In [0.5, 1) one unit of fp32 is 2^-24, which is one unit of a denormal fp16: the addition itself rounds.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<std::uint32_t>(0.5f);
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

inline bfloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > kFloatInfinity) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};  // stays a NaN
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

inline bool is_infinite(float16 value) { return (value.bits & 0x7FFFu) == 0x7C00u; }
inline bool is_infinite(bfloat16 value) { return (value.bits & 0x7FFFu) == 0x7F80u; }

}  // namespace shortlist::program
