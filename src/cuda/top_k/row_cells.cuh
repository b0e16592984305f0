// Where a bisection of few steps ends, without its steps.
//
// s halvings of the distance between a row's extremes end in one of 2^s cells of equal width, whose lower end the k-th
// best value reaches, but not its upper end. A value becomes a number of 15 bits, in equal steps from the least to the
// most, whose first s bits are its cell; row_planes.cuh finds the cell of the k-th best from planes of these bits, by
// the same few instructions whatever the data are.
//
// What is rounded moves a value by less than a number, and only upwards across the end of a cell, so that no value that
// reaches a midpoint is missed; and where no value has the very first number of the cell, none was moved into it. Else
// the lower end is worked out, and the values that reach it are counted. History: row_stop.cuh.
#pragma once

#include <cstdint>

#include "cuda/top_k/row_parts.cuh"
#include "cuda/top_k/row_planes.cuh"
#include "cuda/top_k/row_share.cuh"

namespace shortlist::cuda {

constexpr int kCellBits = 15;     // of a number; and one above them: values at the upper extreme may have 2^15
constexpr int kMostHalvings = 8;  // the upper byte has seven bits of a number, and the eighth costs a look at the other

/// Values between two extremes as numbers in equal steps.
class cell_map {
 public:
  __device__ __forceinline__ cell_map(float lower, float upper) {
    // By so many numbers midpoints and values are off where the larger extreme, M, is eight ranges: 0.087 by what the
    // last of eight midpoints was rounded, 5.6 x 2^-24 M, for each adds 2^-24 M to the mean of two before; 0.018 by the
    // offset; 0.006 by the range and its reciprocal; 0.002 by the sum. That is less than kRoundings.
    constexpr float kFarthestOff = 8.0f;  // extremes from 0, in ranges
    constexpr float kLeastRange = 0x1p-100f;
    const float range = __fsub_rn(upper, lower);
    usable_ =
        range > kLeastRange && range < 1.0f / kLeastRange && fmaxf(fabsf(lower), fabsf(upper)) <= kFarthestOff * range;
    scale_ = usable_ ? near_reciprocal(range) * kFirst : 0.0f;
    offset_ = usable_ ? __fmaf_rn(-lower, scale_, kFirst + kRoundings) : 0.0f;
  }
  /// Else all numbers are 0.
  __device__ __forceinline__ bool usable() const { return usable_; }
  /// The numbers of two values, two a word.
  __device__ __forceinline__ std::uint32_t numbers(float a, float b) const {
    return __byte_perm(grains(a), grains(b), 0x6521);
  }

 private:
  static constexpr float kFirst = 1 << kCellBits;  // from here on fp32 has 256 grains a number: its 8 lowest bits
  static constexpr float kRoundings = 0.125f;      // of a number

  __device__ __forceinline__ std::uint32_t grains(float x) const {
    return __float_as_uint(__fmaf_rn(x, scale_, offset_));
  }

  float scale_;
  float offset_;
  bool usable_;
};

/// The planes of the eight uppermost bits of numbers, the last one only if `all`.
template <int Values>
__device__ __forceinline__ level_planes<Values, kMostHalvings> cell_planes(const std::uint32_t (&numbers)[Values / 2],
                                                                           bool all) {
  using planes_type = level_planes<Values, kMostHalvings>;
  planes_type planes;
  std::uint32_t beyond[planes_type::kWords];  // numbers of 2^15, which belong to the last cell
#pragma unroll
  for (int w = 0; w < planes_type::kWords; w++) {
    std::uint32_t upper[8];
    planes_type::planes_of_byte(numbers, w, 1, upper);
    beyond[w] = upper[7];
    planes.planes[w][0] = 0;
#pragma unroll
    for (int b = 0; b < 7; b++) planes.planes[w][b + 1] = upper[b] | beyond[w];
  }
  if (all) {
#pragma unroll
    for (int w = 0; w < planes_type::kWords; w++) {
      std::uint32_t lower[8];
      planes_type::planes_of_byte(numbers, w, 0, lower);
      planes.planes[w][0] = lower[7] | beyond[w];
    }
  }
  return planes;
}

/// Marks the values that reach the lower end of the bracket where a bisection of a row ends, whose values are finite
/// and more than k. All that run in step call it. @param steps of the bisection, kMostHalvings at most. @param open
/// whether the row matters. @returns whether the marks are proved.
template <class Group, class StopValues>
__device__ __forceinline__ bool mark_by_cells(Group& group, const StopValues& values, int k, int steps, float lower,
                                              float upper, bool open, typename StopValues::bits& marks) {
  constexpr int kValues = StopValues::kValues;
  using planes_type = level_planes<kValues, kMostHalvings>;
  constexpr int kTop = kMostHalvings - 1;  // plane
  const cell_map map(lower, upper);
  std::uint32_t numbers[kValues / 2];
  values.map(numbers, map);
  planes_type planes = cell_planes<kValues>(numbers, steps == kMostHalvings);
  level_search<typename StopValues::bits, kValues, kMostHalvings> search(planes, k, values.there());
  if constexpr (kSumsDigits<Group, kValues>) {
#pragma unroll
    for (int p = kTop - 1; p >= 0; p -= 2) {
      if (kTop - p > steps) break;
      if (kTop - p == steps) {  // one bit is left: both of the digit's are it
#pragma unroll
        for (int w = 0; w < planes_type::kWords; w++) planes.planes[w][p] = planes.planes[w][p + 1];
      }
      search.find_digit(group, p);
    }
  } else {
#pragma unroll
    for (int p = kTop; p >= 0; p--) {
      if (kTop - p >= steps) break;
      search.find_bit(group, p);
    }
  }
  marks = search.reaching();
  const std::uint32_t first = search.level << (kCellBits - kMostHalvings) & ~0u << (kCellBits - steps);  // of the cell
  std::uint32_t nearest = ~0u;  // of those that are no less; two by turns
#pragma unroll
  for (const std::uint32_t two : numbers) nearest = __viaddmin_u16x2(two, (0x10000u - first) * 0x10001u, nearest);
  const bool is_near = first != 0 && ((nearest & 0xFFFFu) == 0 || nearest >> 16 == 0);
  bool proved = map.usable() || lower == upper;
  if (!group.all(!(open && is_near))) {
    float low = lower;
    float high = upper;
#pragma unroll 1
    for (int step = 1; step <= steps; step++) {
      const float middle = midpoint(low, high);
      (first >> (kCellBits - step) & 1 ? low : high) = middle;
    }
    marks = values.reaching(low);
    const auto reach = static_cast<int>(group.sum(static_cast<std::uint32_t>(count_marks(marks))));
    proved = proved && reach >= k;
  }
  return proved;
}

}  // namespace shortlist::cuda
