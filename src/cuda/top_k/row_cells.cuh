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
constexpr float kFarthestOff = 8.0f;  // extremes from 0, in ranges: so far off, eight halvings are told; see cell_map

/// Values between two extremes as numbers in equal steps.
class cell_map {
 public:
  /// @param negated numbers of the negatives of what is mapped. @param farthest see kFarthestOff
  __device__ __forceinline__ cell_map(float lower, float upper, bool negated = false, float farthest = kFarthestOff) {
    // By so many numbers midpoints and values are off where the larger extreme, M, is eight ranges: 0.087 by what the
    // last of eight midpoints was rounded, 5.6 x 2^-24 M, for each adds 2^-24 M to the mean of two before; 0.018 by the
    // offset; 0.006 by the range and its reciprocal; 0.002 by the sum. That is less than kRoundings.
    constexpr float kLeastRange = 0x1p-100f;
    const float range = __fsub_rn(upper, lower);
    usable_ =
        range > kLeastRange && range < 1.0f / kLeastRange && fmaxf(fabsf(lower), fabsf(upper)) <= farthest * range;
    scale_ = usable_ ? near_reciprocal(range) * kFirst : 0.0f;
    offset_ = usable_ ? __fmaf_rn(-lower, scale_, kFirst + kRoundings) : 0.0f;
    if (negated) scale_ = -scale_;
  }
  /// Else all numbers are 0.
  __device__ __forceinline__ bool usable() const { return usable_; }
  /// The numbers of two values, two a word.
  __device__ __forceinline__ std::uint32_t levels(float a, float b) const {
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

/// The planes of the uppermost bits of numbers; those of the lower byte only if `all`.
template <int Values, int Bits>
__device__ __forceinline__ level_planes<Values, Bits> cell_planes(const std::uint32_t (&numbers)[Values / 2],
                                                                  bool all) {
  using planes_type = level_planes<Values, Bits>;
  constexpr int kLower = Bits - 7;  // planes of the lower byte
  planes_type planes;
  std::uint32_t beyond[planes_type::kWords];  // numbers of 2^15, which belong to the last cell
#pragma unroll
  for (int w = 0; w < planes_type::kWords; w++) {
    std::uint32_t upper[8];
    planes_type::planes_of_byte(numbers, w, 1, upper);
    beyond[w] = upper[7];
#pragma unroll
    for (int b = 0; b < kLower; b++) planes.planes[w][b] = 0;
#pragma unroll
    for (int b = 0; b < 7; b++) planes.planes[w][b + kLower] = upper[b] | beyond[w];
  }
  if (all) {
#pragma unroll
    for (int w = 0; w < planes_type::kWords; w++) {
      std::uint32_t lower[8];
      planes_type::planes_of_byte(numbers, w, 0, lower);
#pragma unroll
      for (int b = 0; b < kLower; b++) planes.planes[w][b] = lower[8 - kLower + b] | beyond[w];
    }
  }
  return planes;
}

constexpr int kFewHalvings = 3;  // that half of the upper byte tells

/// The planes of so few bits, the others 0.
template <int Values, int Bits>
__device__ __forceinline__ level_planes<Values, Bits> few_cell_planes(const std::uint32_t (&numbers)[Values / 2]) {
  using planes_type = level_planes<Values, Bits>;
  planes_type planes;
#pragma unroll
  for (int w = 0; w < planes_type::kWords; w++) {
    std::uint32_t upper[8];
    planes_type::planes_of_upper_bits(numbers, w, 1, upper);
#pragma unroll
    for (int b = 0; b < Bits; b++) planes.planes[w][b] = 0;
#pragma unroll
    for (int b = 0; b < kFewHalvings; b++) planes.planes[w][Bits - kFewHalvings + b] = upper[b] | upper[kFewHalvings];
  }
  return planes;
}

/// Whether a thread has a number.
template <int Words>
__device__ __forceinline__ bool has_number(const std::uint32_t (&numbers)[Words], std::uint32_t number) {
  std::uint32_t nearest = ~0u;  // of those that are no less; two by turns
#pragma unroll
  for (const std::uint32_t two : numbers) nearest = __viaddmin_u16x2(two, (0x10000u - number) * 0x10001u, nearest);
  return (nearest & 0xFFFFu) == 0 || nearest >> 16 == 0;
}

/// A bracket where so many halvings end, whose path the uppermost bits of a number tell.
struct cell_bracket {
  float low;
  float high;

  __device__ __forceinline__ cell_bracket(std::uint32_t number, int steps, float lower, float upper)
      : low(lower), high(upper) {
#pragma unroll 1
    for (int step = 1; step <= steps; step++) {
      const float middle = midpoint(low, high);
      (number >> (kCellBits - step) & 1 ? low : high) = middle;
    }
  }
};

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
  planes_type planes = steps <= kFewHalvings ? few_cell_planes<kValues, kMostHalvings>(numbers)
                                             : cell_planes<kValues, kMostHalvings>(numbers, steps == kMostHalvings);
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
  const bool is_near = first != 0 && has_number(numbers, first);
  bool proved = map.usable() || lower == upper;
  if (!group.all(!(open && is_near))) {
    marks = values.reaching(cell_bracket(first, steps, lower, upper).low);
    const auto reach = static_cast<int>(group.sum(static_cast<std::uint32_t>(count_marks(marks))));
    proved = proved && reach >= k;
  }
  return proved;
}

}  // namespace shortlist::cuda
