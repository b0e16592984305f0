// Whether an eps leaves the exact result of a row as it is.
//
// Algorithm 1 halves a bracket that holds the k-th best and takes what reaches its upper end and, in the order of
// columns, what lies within. It ends when no more than `width` is left, eps times the magnitude of the row's largest.
// As long as the k-th best and the next are both within, the bracket is wider than the gap between them; so a gap of
// more than the width has a midpoint in it, which exactly k values reach. And where several equal the k-th best, but no
// other value is within the width, the bracket ends with nothing else inside. Either way the result is the exact one.
#pragma once

#include <cstdint>

#include "cuda/top_k/row_planes.cuh"
#include "cuda/top_k/row_share.cuh"

namespace shortlist::cuda {

/// What an exact search tells besides: nothing.
struct no_gap {
  static constexpr bool kAsked = false;
  static constexpr bool kStops = false;
};

/// The k-th best of a row, and whether the gap around it is surely wider than an eps.
struct eps_gap {
  static constexpr bool kAsked = true;
  static constexpr bool kStops = false;
  float border;
  bool wide;
};

/// No less than the largest of numbers, if that is not below 0; of their negatives, if `Negated`. More numbers than a
/// row has make it larger at most.
template <bool Negated>
class upper_bound {
 public:
  /// By their bits, three operands an instruction.
  template <int Count>
  __device__ __forceinline__ void add(const float (&values)[Count]) {
    static_assert(Count % 2 == 0);
#pragma unroll
    for (int i = 0; i < Count; i += 2) {
      if constexpr (Negated) {
        bits_ = __vimax3_u32(bits_, __float_as_uint(values[i]), __float_as_uint(values[i + 1]));
      } else {
        const int most =
            __vimax3_s32(static_cast<int>(bits_), __float_as_int(values[i]), __float_as_int(values[i + 1]));
        bits_ = static_cast<std::uint32_t>(most);
      }
    }
  }
  /// NaN if one may be among them. All that run in step call it.
  template <class Group>
  __device__ __forceinline__ float of_all(Group& group) const {
    return fabsf(__uint_as_float(group.largest(bits_ ^ kLeast) ^ kLeast));
  }

 private:
  static constexpr std::uint32_t kLeast = Negated ? 0 : core::kSignBit;
  std::uint32_t bits_ = kLeast;
};

/// The larger of two numbers that are not below 0, or NaN.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  return __int_as_float(max(__float_as_int(a), __float_as_int(b)));
}

/// The least number that may be within eps x |the row's largest| of the border, as a bisection rounds both: what is
/// less is farther. @param upper no less than the largest, if that is not below 0; else the border is farther from 0
/// than it
__device__ __forceinline__ float least_within(float border, float eps, float upper) {
  constexpr float kMore = 1.0f + 0x1p-22f;
  const float most = larger_or_nan(upper, fabsf(border));
  return __fsub_rd(border, __fmul_ru(__fmul_ru(eps, most), kMore));
}

/// The gap of a row whose k best were chosen by levels. All that run in step call it. @param level of the k-th best.
/// @param at those at that level. @param chosen ascending, as `at` is. @param upper see least_within.
template <class Share, class Group, class Window, class Planes>
__device__ __forceinline__ eps_gap find_gap(Group& group, const staged_row<typename Share::stored>& row,
                                            const Share& share, const Window& window, const Planes& planes,
                                            std::uint32_t level, typename Share::bits at, typename Share::bits chosen,
                                            float eps, float upper) {
  using bits = typename Share::bits;
  float last = INFINITY;
  for (bits left = at & chosen; left != 0; left &= left - 1) last = fminf(last, share.first_of_ascending(left));
  const float border = -group.largest(-last);
  const float least = least_within(border, eps, upper);
  const std::uint32_t least_level = window.level(row.negated ? -least : least);
  bits near = at & ~chosen;
  if (!group.all(least_level == level))
    near = share.ascending(planes.template reaching<bits>(least_level) & share.there()) & ~chosen;
  bool wide = least_level > 0;
  for (; near != 0 && wide; near &= near - 1) wide = share.first_of_ascending(near) < least;
  return {border, group.every(wide)};
}

}  // namespace shortlist::cuda
