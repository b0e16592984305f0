// A word put together from two, bit by bit.
#pragma once

#include <cstdint>

namespace shortlist::cuda {

/// Bits of `a` where `Mask` has ones, and of `b` elsewhere. Compilers make two instructions of it.
template <std::uint32_t Mask>
__device__ __forceinline__ std::uint32_t select_bits(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint32_t kFirst = 0xF0;  // the table of the result, from those of a, mask and b
  constexpr std::uint32_t kSecond = 0xCC;
  constexpr std::uint32_t kThird = 0xAA;
  std::uint32_t selected;
  asm("lop3.b32 %0, %1, %2, %3, %4;"
      : "=r"(selected)
      : "r"(a), "n"(Mask), "r"(b), "n"((kFirst & kSecond) | (kThird & ~kSecond & 0xFFu)));
  return selected;
}

}  // namespace shortlist::cuda
