// Levels of a row's values as planes of bits, and the search for the level of the border.
//
// A thread's levels, small whole numbers, are turned into planes that hold a bit of each; from the uppermost plane on,
// a count of those that may still be the border tells a bit or two of it. The same few instructions serve all rows of a
// warp, whatever the data are. What becomes a level: row_levels.cuh.
#pragma once

#include <cstdint>

#include "cuda/device/select_bits.cuh"
#include "cuda/top_k/row_share.cuh"

namespace shortlist::cuda {

/// Of every 2 Shift bits, the lower ones of `a` and of `b` go to `a`, the upper ones to `b`.
template <int Shift>
__device__ __forceinline__ void exchange_bits(std::uint32_t& a, std::uint32_t& b) {
  constexpr std::uint32_t kLower = Shift == 4 ? 0x0F0F0F0Fu : Shift == 2 ? 0x33333333u : 0x55555555u;
  const std::uint32_t lower = select_bits<kLower>(a, b << Shift);
  b = select_bits<kLower>(a >> Shift, b);
  a = lower;
}
/// Bit i of byte b of word j becomes bit j of byte b of word i.
__device__ __forceinline__ void transpose_bits(std::uint32_t (&words)[8]) {
#pragma unroll
  for (int j = 0; j < 4; j++) exchange_bits<4>(words[j], words[j + 4]);
#pragma unroll
  for (int j = 0; j < 8; j++)
    if (j % 4 < 2) exchange_bits<2>(words[j], words[j + 2]);
#pragma unroll
  for (int j = 0; j < 8; j += 2) exchange_bits<1>(words[j], words[j + 1]);
}
/// The same of bits 4 to 7 alone, which become words 0 to 3.
__device__ __forceinline__ void transpose_upper_bits(std::uint32_t (&words)[8]) {
#pragma unroll
  for (int j = 0; j < 4; j++) words[j] = select_bits<0x0F0F0F0Fu>(words[j] >> 4, words[j + 4]);
#pragma unroll
  for (int j = 0; j < 2; j++) exchange_bits<2>(words[j], words[j + 2]);
#pragma unroll
  for (int j = 0; j < 4; j += 2) exchange_bits<1>(words[j], words[j + 1]);
}

/// The levels of a thread's values, a plane for each of their bits: bit v of word w is of value 32 w + v.
template <int Values, int Bits>
struct level_planes {
  static constexpr int kWords = (Values + 31) / 32;
  std::uint32_t planes[kWords][Bits];

  level_planes() = default;
  /// @param levels two a word, in the order of values
  __device__ __forceinline__ explicit level_planes(const std::uint32_t (&levels)[Values / 2]) {
    static_assert(Bits == 8 || Bits == 10);
#pragma unroll
    for (int w = 0; w < kWords; w++) {
      std::uint32_t words[8];
      planes_of_byte(levels, w, 0, words);
#pragma unroll
      for (int b = 0; b < 8; b++) planes[w][b] = words[b];
      if constexpr (Bits == 10) planes_of_pair(levels, w, 1, planes[w][8], planes[w][9]);
    }
  }
  /// The w-th words of the planes of a byte's bits.
  static __device__ __forceinline__ void planes_of_byte(const std::uint32_t (&levels)[Values / 2], int w, int byte,
                                                        std::uint32_t (&words)[8]) {
    gather_bytes(levels, w, byte, words);
    transpose_bits(words);
  }
  /// Those of its bits 4 to 7 alone, as words 0 to 3.
  static __device__ __forceinline__ void planes_of_upper_bits(const std::uint32_t (&levels)[Values / 2], int w,
                                                              int byte, std::uint32_t (&words)[8]) {
    gather_bytes(levels, w, byte, words);
    transpose_upper_bits(words);
  }

  /// The largest level of those marked.
  template <class Marks>
  __device__ __forceinline__ std::uint32_t largest(Marks marks) const {
    std::uint32_t those[kWords];
#pragma unroll
    for (int w = 0; w < kWords; w++) those[w] = word_of(marks, w);
    std::uint32_t level = 0;
#pragma unroll
    for (int b = Bits - 1; b >= 0; b--) {
      std::uint32_t upper = 0;
#pragma unroll
      for (int w = 0; w < kWords; w++) upper |= those[w] & planes[w][b];
      if (upper == 0) continue;
      level |= 1u << b;
#pragma unroll
      for (int w = 0; w < kWords; w++) those[w] &= planes[w][b];
    }
    return level;
  }
  /// Those whose level is no less.
  template <class Marks>
  __device__ __forceinline__ Marks reaching(std::uint32_t level) const {
    std::uint32_t those[kWords];
#pragma unroll
    for (int w = 0; w < kWords; w++) those[w] = ~0u;
#pragma unroll
    for (int b = 0; b < Bits; b++) {
      const std::uint32_t mask = filled(level, b);
#pragma unroll
      for (int w = 0; w < kWords; w++) those[w] = (planes[w][b] & those[w]) | (~mask & (planes[w][b] | those[w]));
    }
    return joined_words<Marks>(those);
  }

 private:
  /// All bits are set if a level's bit b is: four bits that follow each other are the signs of a product's bytes.
  static __device__ __forceinline__ std::uint32_t filled(std::uint32_t level, int b) {
    constexpr std::uint32_t kFour = 1u | 1u << 9 | 1u << 18 | 1u << 27;  // eight bits, four times, apart
    const int down = Bits - 1 - b;
    const int byte = down % 4;
    const std::uint32_t eight = down < 8 ? level >> (Bits - 8) : level & ((1u << (Bits - 8)) - 1);
    const std::uint32_t signs = eight * (kFour << (down < 8 ? down / 4 * 4 : 16 - Bits));
    std::uint32_t mask;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(mask) : "r"(signs), "r"(0x1111 * (8 + byte)));
    return mask;
  }
  /// A byte of each of the levels of values v, v + 8, v + 1 and v + 9.
  static __device__ __forceinline__ std::uint32_t bytes_at(const std::uint32_t (&levels)[Values / 2], int w, int v,
                                                           int byte) {
    const auto two_at = [&](int at) { return 32 * w + at < Values ? levels[16 * w + at / 2] : 0u; };
    return __byte_perm(two_at(v), two_at(v + 8), byte == 0 ? 0x6240u : 0x7351u);
  }
  /// Word j gets a byte of each of the levels of values j, j + 8, j + 16 and j + 24.
  static __device__ __forceinline__ void gather_bytes(const std::uint32_t (&levels)[Values / 2], int w, int byte,
                                                      std::uint32_t (&words)[8]) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const std::uint32_t front = bytes_at(levels, w, j, byte);
      const std::uint32_t back = bytes_at(levels, w, j + 16, byte);
      words[j] = __byte_perm(front, back, 0x5410);
      words[j + 1] = __byte_perm(front, back, 0x7632);
    }
  }
  /// The w-th words of the planes of a byte of which no more than two bits are set: those of four values share a byte.
  static __device__ __forceinline__ void planes_of_pair(const std::uint32_t (&levels)[Values / 2], int w, int byte,
                                                        std::uint32_t& lower, std::uint32_t& upper) {
    std::uint32_t front = 0;
    std::uint32_t back = 0;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      front += bytes_at(levels, w, j, byte) << j;
      back += bytes_at(levels, w, j + 16, byte) << j;
    }
    lower = __byte_perm(front, back, 0x5410);
    upper = __byte_perm(front, back, 0x7632);
    exchange_bits<1>(lower, upper);
  }
};

/// Where the border is among levels, and a thread's values around it, a bit each.
template <class Bits>
struct level_border {
  std::uint32_t level;
  int missing;  // of those at the border: so many make k with those above
  Bits above;
  Bits at;
};

/// Digits of two bits: the counts of those of at least 1, 2 and 3 are summed over a group in one word.
constexpr int kDigitShift = 10;
template <class Group, int Values>
constexpr bool kSumsDigits = !Group::kIsBlock && Values * Group::kLanes < 1 << kDigitShift;

/// The search for the border's level, from the uppermost bit on. All that run in step call it.
template <class Marks, int Values, int Bits>
struct level_search {
  using planes_type = level_planes<Values, Bits>;
  static constexpr int kWords = planes_type::kWords;
  const planes_type& levels;
  int missing;
  std::uint32_t level = 0;
  std::uint32_t at[kWords];  // those that may be the border
  std::uint32_t above[kWords];

  __device__ __forceinline__ level_search(const planes_type& of, int k, Marks there) : levels(of), missing(k) {
#pragma unroll
    for (int w = 0; w < kWords; w++) {
      at[w] = word_of(there, w);
      above[w] = 0;
    }
  }
  template <class Group>
  __device__ __forceinline__ void find_bit(Group& group, int b) {
    std::uint32_t count = 0;
#pragma unroll
    for (int w = 0; w < kWords; w++) count += __popc(at[w] & levels.planes[w][b]);
    const auto reach = static_cast<int>(group.sum(count));
    const bool is_set = reach >= missing;
    if (!is_set) missing -= reach;
    set(b, is_set);
  }
  /// Bits b + 1 and b: lanes wait half as often for each other.
  template <class Group>
  __device__ __forceinline__ void find_digit(Group& group, int b) {
    constexpr std::uint32_t kField = (1u << kDigitShift) - 1;
    std::uint32_t count = 0;
#pragma unroll
    for (int w = 0; w < kWords; w++) {
      const std::uint32_t upper = levels.planes[w][b + 1];
      const std::uint32_t lower = levels.planes[w][b];
      count += __popc(at[w] & (upper | lower)) + (__popc(at[w] & upper) << kDigitShift) +
               (__popc(at[w] & upper & lower) << (2 * kDigitShift));
    }
    count = group.sum(count);
    const auto of_one = static_cast<int>(count & kField);
    const auto of_two = static_cast<int>(count >> kDigitShift & kField);
    const auto of_three = static_cast<int>(count >> (2 * kDigitShift));
    const bool upper_is_set = of_two >= missing;
    const bool lower_is_set = (upper_is_set ? of_three : of_one) >= missing;
    const int more_than_odd = upper_is_set ? 0 : of_two;
    const int more_than_even = upper_is_set ? of_three : of_one;
    missing -= lower_is_set ? more_than_odd : more_than_even;
    set(b + 1, upper_is_set);
    set(b, lower_is_set);
  }
  /// Those that are no less than the border, as far as it is known.
  __device__ __forceinline__ Marks reaching() const {
    std::uint32_t reaching[kWords];
#pragma unroll
    for (int w = 0; w < kWords; w++) reaching[w] = above[w] | at[w];
    return joined_words<Marks>(reaching);
  }

 private:
  __device__ __forceinline__ void set(int b, bool is_set) {
    const std::uint32_t mask = is_set ? ~0u : 0u;
#pragma unroll
    for (int w = 0; w < kWords; w++) {
      const std::uint32_t plane = levels.planes[w][b];
      above[w] |= at[w] & plane & ~mask;
      at[w] &= ~(plane ^ mask);
    }
    level |= mask & 1u << b;
  }
};

/// All that run in step call it. @param k no more than there are values. @param there those that count
template <class Marks, class Group, int Values, int Bits>
__device__ __forceinline__ level_border<Marks> find_level(Group& group, const level_planes<Values, Bits>& levels, int k,
                                                          Marks there = ~Marks{0}) {
  level_search<Marks, Values, Bits> search(levels, k, there);
  if constexpr (kSumsDigits<Group, Values>) {
    static_assert(Bits % 2 == 0);
#pragma unroll
    for (int b = Bits - 2; b >= 0; b -= 2) search.find_digit(group, b);
  } else {
#pragma unroll
    for (int b = Bits - 1; b >= 0; b--) search.find_bit(group, b);
  }
  return {search.level, search.missing, joined_words<Marks>(search.above), joined_words<Marks>(search.at)};
}

}  // namespace shortlist::cuda
