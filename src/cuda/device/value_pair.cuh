// Two 16-bit values in a word, and how both are compared at once: fp32 values by their upper halves.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "shortlist/types.hpp"

namespace shortlist::cuda {

/// A word's two values, for arithmetic on both.
template <class Stored>
using pair_of = std::conditional_t<std::is_same_v<Stored, float16>, __half2, __nv_bfloat162>;

/// All bits of a half or none for each of two values: those that reach the others, or if smaller is better, those that
/// the others reach.
template <class Stored, bool Negated = false>
__device__ __forceinline__ std::uint32_t pair_mask(std::uint32_t values, std::uint32_t least) {
  const auto& these = reinterpret_cast<const pair_of<Stored>&>(values);
  const auto& others = reinterpret_cast<const pair_of<Stored>&>(least);
  return Negated ? __hle2_mask(these, others) : __hge2_mask(these, others);
}

/// The upper halves of two fp32 values, as two bf16: the first one's below.
__device__ __forceinline__ std::uint32_t upper_halves(std::uint32_t a, std::uint32_t b) {
  return __byte_perm(a, b, 0x7632);
}

}  // namespace shortlist::cuda
