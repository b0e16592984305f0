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

constexpr int kHalfPasses = 8;    // counts before the border is sought among the numbers themselves: ties end there
constexpr int kNumberPasses = 3;  // steps from number to number
constexpr float kSteep = 1.5f;    // growth of steps while the border is on one side
constexpr float kBoldest = 0.9f;  // interpolation keeps away from the ends of its bracket
constexpr std::uint32_t kHalfNan = 0x7FFF;

/// `Values` of a thread: 8, 16, 32 or 64.
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
  /// Bit v of word w: whether value 32 w + v reaches `from`.
  __device__ __forceinline__ std::uint32_t marks_from(__half2 from, int word) const {
    std::uint32_t marks = 0;
#pragma unroll
    for (int i = 0; i < kPairs; i++) {
      const std::uint32_t own = 0x00010001u << i;
      marks = (marks & ~own) | (__hge2_mask(u[word * kPairs + i], from) & own);
    }
    if constexpr (kPairs < 16) marks = (marks & 0xFFFFu) | (marks >> (16 - kPairs));
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
  bool tied = false;   // `sure` reach `above`, fewer than k; more than k reach `from`, and no number lies between
  float from = 0.0f;   // if not tied, exactly k reach it
  float above = 0.0f;
  int sure = 0;
};

/// For all groups that run in step; only those that are `usable` are searched. @param k in [1, the values there are).
template <class Group, int Values>
__device__ __forceinline__ half_border find_border(Group& group, const thread_halves<Values>& halves, int k,
                                                   bool usable) {
  half_border border;
  const auto wanted = static_cast<float>(k);
  float low = -INFINITY;
  float high = INFINITY;
  float at_low = 0.0f;  // of the numbers that reach it, those beyond k
  float at_high = 0.0f;
  float steep = 1.0f;
  float at = 0.0f;
#pragma unroll 1
  for (int pass = 0; pass < kHalfPasses; pass++) {
    const __half2 from = __float2half2_rn(at);
    const float beyond = group.sum(halves.count_from(from)) - wanted;
    if (!border.found) {
      at = __low2float(from);
      border.from = at;
      border.found = usable && beyond == 0.0f;
    }
    if (group.all(border.found || !usable)) return border;
    const bool too_many = beyond > 0.0f;
    low = too_many ? at : low;
    at_low = too_many ? beyond : at_low;
    high = too_many ? high : at;
    at_high = too_many ? at_high : beyond;
    const bool bracketed = low > -INFINITY && high < INFINITY;
    const float share = fminf(kBoldest, fmaxf(1.0f - kBoldest, __fdividef(at_low, at_low - at_high)));
    const float inside = __fmaf_rn(high - low, share, low);
    const float outside = __fmaf_rn(beyond, steep, at + (too_many ? 0.5f : -0.5f));
    at = bracketed ? inside : outside;
    steep *= kSteep;
  }
#pragma unroll 1
  for (int pass = 0; pass < kNumberPasses; pass++) {
    const bool open = usable && !border.found && high < INFINITY;
    if (group.all(!open)) return border;
    const float next = group.largest(halves.most_below(__float2half2_rn(high)));
    const float beyond = group.sum(halves.count_from(__float2half2_rn(next))) - wanted;
    if (!open) continue;
    border.from = next;
    if (beyond >= 0.0f) {
      border.found = true;
      border.tied = beyond > 0.0f;
      border.above = high;
      border.sure = k + static_cast<int>(at_high);
    } else {
      high = next;
      at_high = beyond;
    }
  }
  return border;
}

}  // namespace shortlist::cuda
