// The values of a row as fp16 numbers in the registers of a group, and the search for its border among them.
//
// Value x becomes u = fp16(x * scale + offset). The map keeps the order, so that a threshold of u that exactly k values
// reach proves the k best, whatever was rounded. Near the border one unit of u is about one value, so that a count says
// how far to move. A compare and an add serve two values; if no threshold has exactly k, the border is one number of u,
// and whoever called looks at the values that became it.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/top_k/row_group.cuh"

namespace shortlist::cuda {

constexpr int kPlainPasses = 8;    // interpolations that most rows end with
constexpr int kPlainStalls = 2;    // counts like the ones before: more of plain interpolation leads nowhere
constexpr int kFirstPasses = 6;    // more of them, with care, while the map is the row's
constexpr int kLastPasses = 14;    // and with the map of the bracket, where ties take a few
constexpr int kSameSide = 2;       // counts in a row on one side of k, after which brackets are halved
constexpr int kStalls = 3;         // counts that leave a bracket as full as it was, before the map is changed
constexpr float kManyTied = 8.0f;  // beyond k: so many are hardly ones that only the first map makes equal
constexpr float kBracket = 16.0f;  // width of the bracket in its own map: fp16 has 2,048 numbers of [4, 8) alone
constexpr float kSteep = 1.5f;     // growth of steps while the border is on one side
constexpr float kReach = 8.0f;    // times the square root of k, and as much more: further off the border hardly ever is
constexpr float kBoldest = 0.9f;  // interpolation keeps away from the ends of its bracket
constexpr std::uint32_t kHalfNan = 0x7FFF;

/// `Values` of a thread: 8, 16, 24, 32, 48 or 64.
template <int Values>
struct thread_halves {
  static constexpr int kWords = (Values + 31) / 32;
  static constexpr int kPairs = Values / kWords / 2;  // of a word: values i and i + kPairs share a register
  __half2 u[kWords * kPairs];

  /// Values v and v + kPairs of word w share register w x kPairs + v.
  __device__ __forceinline__ void set(int at, float low, float high) { u[at] = __floats2half2_rn(low, high); }
  /// Value v is not there: it becomes a NaN, which reaches no threshold.
  __device__ __forceinline__ void drop(int v) {
    __half2& pair = u[v / (2 * kPairs) * kPairs + v % kPairs];
    const __half nan = __ushort_as_half(kHalfNan);
    pair = v / kPairs % 2 == 0 ? __halves2half2(nan, __high2half(pair)) : __halves2half2(__low2half(pair), nan);
  }
  /// How many of the low and of the high halves reach `from`.
  __device__ __forceinline__ __half2 count_from(__half2 from) const {
    __half2 even = __hge2(u[0], from);
    __half2 odd = __hge2(u[1], from);
#pragma unroll
    for (int i = 2; i < kWords * kPairs; i += 2) {
      even = __hadd2(even, __hge2(u[i], from));
      odd = __hadd2(odd, __hge2(u[i + 1], from));
    }
    return __hadd2(even, odd);
  }
  /// Bit v of word w: whether value 2 w kPairs + v reaches `from`.
  __device__ __forceinline__ std::uint32_t marks_from(__half2 from, int word) const {
    std::uint32_t marks = 0;
#pragma unroll
    for (int i = 0; i < kPairs; i++) {
      const std::uint32_t own = 0x00010001u << i;
      marks = (marks & ~own) | (__hge2_mask(u[word * kPairs + i], from) & own);
    }
    if constexpr (kPairs < 16) marks = (marks & 0xFFFFu) | (marks >> 16 << kPairs);
    return marks;
  }
  /// The largest number below `limit`, or -inf.
  __device__ __forceinline__ float most_below(__half2 limit) const {
    const std::uint32_t lowest = 0xFC00FC00u;  // -inf, twice
    __half2 most = __halves2half2(__ushort_as_half(0xFC00), __ushort_as_half(0xFC00));
#pragma unroll
    for (int i = 0; i < kWords * kPairs; i++) {
      const std::uint32_t below = __hlt2_mask(u[i], limit);
      std::uint32_t bits;
      memcpy(&bits, &u[i], sizeof bits);
      bits = (bits & below) | (lowest & ~below);
      __half2 candidate;
      memcpy(&candidate, &bits, sizeof bits);
      most = __hmax2(most, candidate);
    }
    return fmaxf(__low2float(most), __high2float(most));
  }
};

/// Where the border is, in numbers of u.
struct half_border {
  bool found = false;  // else another search must find it
  bool tied = false;   // more than k reach `from`, fewer than k reach `above`, and no number lies between
  float from = 0.0f;   // if not tied, exactly k reach it
  float above = 0.0f;
  float moved = 0.0f;  // from 0 to the border, in units of the first map
};

/// 1 / value, nearly; of no denormal.
__device__ __forceinline__ float near_reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

/// What is known of the border: `low` is reached by more than k numbers, by `over` more; `high` by `under` (< 0) more.
struct half_bracket {
  float low = -INFINITY;
  float high = INFINITY;
  float over = 0.0f;
  float under = 0.0f;

  __device__ __forceinline__ float inside() const {
    const float share = over * near_reciprocal(over - under);
    return __fmaf_rn(high - low, fminf(kBoldest, fmaxf(1.0f - kBoldest, share)), low);
  }
  __device__ __forceinline__ void narrow(float at, float beyond) {
    const bool too_many = beyond > 0.0f;
    low = too_many ? at : low;
    over = too_many ? beyond : over;
    high = too_many ? high : at;
    under = too_many ? under : beyond;
  }
};

/// Ends the search of rows that plain interpolation did not end: ties, and rows unlike the ones before.
/// @param zoom zoom(center, factor) maps this thread's values anew: u becomes (u - center) * factor.
template <class Group, int Values, class Zoom>
__device__ __forceinline__ void find_hard_border(Group& group, const thread_halves<Values>& halves, float wanted,
                                                 bool usable, half_bracket bracket, float at, int stalls, Zoom zoom,
                                                 half_border& border) {
  float steep = 1.0f;
  int same_side = 0;
  bool was_too_many = false;
  bool open = usable && !border.found;
  bool top_counted = bracket.high < INFINITY;     // with this map
  bool walk = open && stalls > 0 && top_counted;  // from the top to the next number below: ties end there
#pragma unroll 1
  for (int round = 0; round < 2; round++) {
#pragma unroll 1
    for (int pass = round == 0 ? kFirstPasses : kLastPasses; pass > 0; pass--) {
      if (!group.all(!walk)) {
        const float next = group.largest(halves.most_below(__float2half2_rn(bracket.high)));
        if (walk) at = next;
      }
      const __half2 from = __float2half2_rn(at);
      const float beyond = group.sum(halves.count_from(from)) - wanted;
      const bool too_many = beyond > 0.0f;
      if (open) {
        at = __low2float(from);
        border.from = at;
        border.tied = walk && (round == 0 ? beyond > kManyTied : too_many);
        border.found = beyond == 0.0f || border.tied;
        border.above = bracket.high;
        open = !border.found;
        if (bracket.high - bracket.low < INFINITY && beyond == (too_many ? bracket.over : bracket.under)) stalls++;
      }
      if (group.all(!open || (round == 0 && stalls >= kStalls))) break;
      bracket.narrow(at, beyond);
      top_counted = top_counted || !too_many;
      same_side = too_many == was_too_many ? same_side + 1 : 0;
      was_too_many = too_many;
      if (bracket.high - bracket.low < INFINITY) {
        at = same_side < kSameSide ? bracket.inside() : bracket.low + 0.5f * (bracket.high - bracket.low);
      } else {
        at = __fmaf_rn(beyond, steep, at + (too_many ? 0.5f : -0.5f));
        steep *= kSteep;
      }
      walk = open && stalls > 0 && !walk;
      if (walk && !top_counted) {
        at = bracket.high < INFINITY ? bracket.high : at;
        walk = false;
      }
    }
    if (round == 0) {
      if (border.found) border.moved = border.from;
      if (group.all(!open)) return;
      if (open && bracket.high - bracket.low < INFINITY) {
        const float center = bracket.low + 0.5f * (bracket.high - bracket.low);
        zoom(center, kBracket / (bracket.high - bracket.low));
        border.moved = center;
        bracket.low = -0.5f * kBracket;
        bracket.high = 0.5f * kBracket;
        at = 0.0f;
        top_counted = false;  // rounding is another now: what reached the end may be more, or fewer
        stalls = 0;
        walk = false;
      }
    }
  }
}

/// For all groups that run in step; only those that are `usable` are searched. @param k in [1, the values there are).
/// @param reach further than so many values off the border hardly ever is. @param beyond how many numbers more than k
/// reach 0.
template <class Group, int Values, class Zoom>
__device__ __forceinline__ half_border find_border(Group& group, const thread_halves<Values>& halves, int k,
                                                   float reach, float beyond, bool usable, Zoom zoom) {
  half_border border;
  const auto wanted = static_cast<float>(k);
  half_bracket bracket{-reach, reach, reach, -reach};  // as if both ends had been counted: a unit is about one value
  float at = 0.0f;
  float last = INFINITY;
  int stalls = 0;
#pragma unroll 1
  for (int pass = 1;; pass++) {
    if (!border.found) border.from = at;
    border.found = border.found || beyond == 0.0f;
    stalls += beyond == last ? 1 : 0;
    if (group.all(border.found || stalls >= kPlainStalls)) break;
    last = beyond;
    bracket.narrow(at, beyond);
    at = bracket.inside();
    if (pass == kPlainPasses) break;
    beyond = group.sum(halves.count_from(__float2half2_rn(at))) - wanted;
  }
  border.found = border.found && usable;
  border.moved = border.from;
  if (group.all(border.found || !usable)) return border;
  if (bracket.low == -reach) bracket.low = -INFINITY;
  if (bracket.high == reach) bracket.high = INFINITY;
  find_hard_border(group, halves, wanted, usable, bracket, at, stalls > 0 ? 1 : 0, zoom, border);
  return border;
}

}  // namespace shortlist::cuda
