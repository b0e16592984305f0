// A row in shared memory: its values, and the least and the largest of them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {

/// A row in shared memory. Bytes past its columns may be read, and mean nothing.
template <class Stored>
struct staged_row {
  const unsigned char* bytes;
  int count;
  bool negated;        // the smallest are best
  int lead;            // columns' worth of bytes between the last multiple of 16 bytes and the first column
  bool wraps = false;  // see row_share; the same for all rows

  __device__ __forceinline__ float value(int column) const {
    const float value = core::widen(reinterpret_cast<const Stored*>(bytes)[column]);
    return negated ? -value : value;
  }
  /// Calls f(value) for each of a thread's columns, all threads of the group together for all columns.
  template <class Group, class F>
  __device__ __forceinline__ void visit(const Group& group, F f) const {
#pragma unroll 4
    for (int c = group.rank(); c < count; c += group.threads()) f(value(c));
  }
};

/// The values of 16 bytes.
template <class Stored>
__device__ __forceinline__ void widen_unit(const uint4& words, float (&values)[16 / sizeof(Stored)]) {
  const std::uint32_t all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int w = 0; w < 4; w++) {
    if constexpr (std::is_same_v<Stored, float>) {
      values[w] = __uint_as_float(all[w]);
    } else if constexpr (std::is_same_v<Stored, bfloat16>) {
      values[2 * w] = __uint_as_float(all[w] << 16);
      values[2 * w + 1] = __uint_as_float(all[w] & 0xFFFF0000u);
    } else {
      __half2 two;
      memcpy(&two, &all[w], sizeof two);
      values[2 * w] = __low2float(two);
      values[2 * w + 1] = __high2float(two);
    }
  }
}

/// Shifts in, from the right, whether a finite value is less than another: by the sign of the difference, which
/// denormals keep; an instruction less than a comparison takes. @pre `than` is not +0, for -0 - 0 is -0: see below.
__device__ __forceinline__ std::uint32_t shift_in_less(float value, float than, std::uint32_t marks) {
  return __funnelshift_l(__float_as_uint(__fsub_rn(value, than)), marks, 1);
}
/// The same number; -0 for both zeros.
__device__ __forceinline__ float without_plus_zero(float value) { return value == 0.0f ? -0.0f : value; }

/// The least and the largest of numbers, and whether all are finite, by their bits: three operands an instruction.
class float_ends {
 public:
  template <int Count>
  __device__ __forceinline__ void add(const float (&values)[Count]) {
    static_assert(Count % 4 == 0);
    int most = most_;  // two by turns: each waits for its own last one
    unsigned most_bits = most_bits_;
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
      add(values[i], values[i + 1], most_, most_bits_);
      add(values[i + 2], values[i + 3], most, most_bits);
    }
    most_ = max(most_, most);
    most_bits_ = max(most_bits_, most_bits);
  }
  /// Of all that a group's threads added.
  template <class Group>
  __device__ __forceinline__ void join(Group& group) {
    const uint2 mine = words();
    *this = of_words({group.largest(mine.x), group.largest(mine.y)}, least_bits_);
  }
  /// What threads join by the largest of each.
  __device__ __forceinline__ uint2 words() const {
    return {static_cast<std::uint32_t>(most_) ^ core::kSignBit, most_bits_};
  }
  static __device__ __forceinline__ float_ends of_words(uint2 words, std::uint32_t least_bits) {
    float_ends ends;
    ends.most_ = static_cast<int>(words.x ^ core::kSignBit);
    ends.most_bits_ = words.y;
    ends.least_bits_ = least_bits;
    return ends;
  }
  /// Where all have one sign, one of the ends has the least bits.
  __device__ __forceinline__ bool have_both_signs() const { return most_ >= 0 && most_bits_ >= core::kSignBit; }
  __device__ __forceinline__ void add_least_bits(std::uint32_t bits) { least_bits_ = bits; }

  /// Of numbers below 0, the larger bits are the lesser.
  __device__ __forceinline__ float most() const { return __uint_as_float(most_ >= 0 ? most_ : least_bits_); }
  __device__ __forceinline__ float least() const {
    return __uint_as_float(most_bits_ >= core::kSignBit ? most_bits_ : least_bits_);
  }
  /// Whether there is NaN or an infinity.
  __device__ __forceinline__ bool odd() const {
    constexpr unsigned kInfinity = 0x7F800000u;
    return most_ >= static_cast<int>(kInfinity) || most_bits_ >= (kInfinity | core::kSignBit);
  }

 private:
  static __device__ __forceinline__ void add(float a, float b, int& most, unsigned& most_bits) {
    most = __vimax3_s32(most, __float_as_int(a), __float_as_int(b));
    most_bits = __vimax3_u32(most_bits, __float_as_uint(a), __float_as_uint(b));
  }

  int most_ = static_cast<int>(core::kSignBit);
  unsigned most_bits_ = 0;
  unsigned least_bits_ = 0;
};
/// A row's extremes, the largest first.
struct row_ends {
  float least;
  float most;
  bool odd;  // there is NaN or an infinity
};
__device__ __forceinline__ row_ends ends_of(const float_ends& ends, bool negated) {
  return {negated ? -ends.most() : ends.least(), negated ? -ends.least() : ends.most(), ends.odd()};
}

/// The least of `least` and the bits of values.
template <int Count>
__device__ __forceinline__ std::uint32_t least_bits_of(const float (&values)[Count], std::uint32_t least) {
  static_assert(Count % 2 == 0);
#pragma unroll
  for (int i = 0; i < Count; i += 2)
    least = __vimin3_u32(least, __float_as_uint(values[i]), __float_as_uint(values[i + 1]));
  return least;
}

}  // namespace shortlist::cuda
