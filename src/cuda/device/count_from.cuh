// Counting what reaches a number.
#pragma once

#include <cstdint>

namespace shortlist::cuda {

/// Counts a number that is no less than another, in two instructions.
__device__ __forceinline__ void count_from(std::uint32_t number, std::uint32_t least, std::uint32_t& count) {
  asm("{\n"
      ".reg .pred reaches;\n"
      "setp.ge.u32 reaches, %1, %2;\n"
      "@reaches add.u32 %0, %0, 1;\n"
      "}"
      : "+r"(count)
      : "r"(number), "r"(least));
}

}  // namespace shortlist::cuda
