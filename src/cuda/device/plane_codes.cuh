// Codes of a plane's coarse copy as products take them: see core::fragment_layout.
//
// A pair of 64 codes becomes the left sides of two products of 16 rows by 32 codes, of which lane 4 g + t gives words
// w0 of rows g and g + 8, then w1 of both; then w2 and w3.
#pragma once

#include <cstdint>

#include "cuda/device/select_bits.cuh"

namespace shortlist::cuda {

inline constexpr std::uint32_t kUpperBits = 0xFCFCFCFCu;  ///< of four codes: those that coarse ones have

/// Word 3 of a row, from what the other three carry of it.
__device__ __forceinline__ std::uint32_t fourth_word(std::uint32_t w0, std::uint32_t w1, std::uint32_t w2) {
  const std::uint32_t highest = select_bits<0xC0C0C0C0u>(w0 << 6, w1 << 4);
  return select_bits<0xF0F0F0F0u>(highest, w2 << 2 & 0x0C0C0C0Cu);
}

/// The first product's side, from words 0 and 1 of both rows.
__device__ __forceinline__ uint4 coarse_codes_of_first(const uint4& words) {
  return {words.x & kUpperBits, words.y & kUpperBits, words.z & kUpperBits, words.w & kUpperBits};
}

/// The second's, from word 2 of both, too.
__device__ __forceinline__ uint4 coarse_codes_of_second(const uint4& words, const uint2& thirds) {
  return {thirds.x & kUpperBits, thirds.y & kUpperBits, fourth_word(words.x, words.z, thirds.x),
          fourth_word(words.y, words.w, thirds.y)};
}

}  // namespace shortlist::cuda
