// The one order: better score first, on a tie the smaller position, NaN after everything else. See docs/ordering.md.
//
// A score becomes a 32-bit key whose unsigned order is the order of scores, larger = better; a key and a position
// become one 64-bit number, so that one unsigned comparison decides, and no two rows are ever equal.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.hpp"
#include "shortlist/types.hpp"

namespace shortlist::core {

SHORTLIST_HOST_DEVICE std::uint32_t float_bits(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return std::bit_cast<std::uint32_t>(value);
#endif
}

SHORTLIST_HOST_DEVICE float float_from_bits(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

inline constexpr std::uint32_t kSignBit = 0x80000000u;
inline constexpr std::uint32_t kCanonicalNan = 0x7FC00000u;  ///< every NaN score is returned as this
inline constexpr std::uint32_t kNanKey = 0;                  ///< below the key of the worst number, 0x007FFFFF
inline constexpr std::uint64_t kNoRow = 0;                   ///< a 64-bit key that no row has: padding

/// Keys of numbers, ascending with the number; -0 and +0 share one. Not for NaN.
SHORTLIST_HOST_DEVICE std::uint32_t ascending_key(float value) {
  const std::uint32_t bits = float_bits(value + 0.0f);  // -0 + 0 == +0
  return (bits & kSignBit) ? ~bits : (bits | kSignBit);
}

SHORTLIST_HOST_DEVICE float from_ascending_key(std::uint32_t key) {
  return float_from_bits((key & kSignBit) ? (key & ~kSignBit) : ~key);
}

SHORTLIST_HOST_DEVICE constexpr bool smaller_is_better(metric by) { return by == metric::l2; }

/// The key of a score: larger is better, NaN is kNanKey.
SHORTLIST_HOST_DEVICE std::uint32_t score_key(float score, metric by) {
  if (score != score) return kNanKey;
  const std::uint32_t key = ascending_key(score);
  return smaller_is_better(by) ? ~key : key;
}

/// The score of a key, to the bit; a zero is +0 (see docs/ordering.md).
SHORTLIST_HOST_DEVICE float score_from_key(std::uint32_t key, metric by) {
  if (key == kNanKey) return float_from_bits(kCanonicalNan);
  return from_ascending_key(smaller_is_better(by) ? ~key : key);
}

/// Score key above, position below: larger is better, and among equals the smaller position wins.
SHORTLIST_HOST_DEVICE std::uint64_t row_key(std::uint32_t key, std::uint32_t position) {
  return (static_cast<std::uint64_t>(key) << 32) | static_cast<std::uint32_t>(~position);
}

SHORTLIST_HOST_DEVICE std::uint32_t key_of(std::uint64_t row) { return static_cast<std::uint32_t>(row >> 32); }
SHORTLIST_HOST_DEVICE std::uint32_t position_of(std::uint64_t row) { return ~static_cast<std::uint32_t>(row); }

/// What pads a list beyond k_found: -inf, or +inf where smaller is better.
SHORTLIST_HOST_DEVICE float worst_score(metric by) {
  return float_from_bits(smaller_is_better(by) ? 0x7F800000u : 0xFF800000u);
}
inline constexpr std::int64_t kNoId = -1;  ///< the id of padding

/// Positions travel in 32 bits of a key, and ~position must not make a NaN row equal to kNoRow.
inline constexpr std::int64_t kMaxRows = (std::int64_t{1} << 32) - 1;

}  // namespace shortlist::core
