// Sets of a thread's columns, a bit for each.
#pragma once

#include <cstdint>
#include <type_traits>

namespace shortlist::cuda {

/// A bit for each of so many columns, where no built-in type has as many. Shifts are by constants, once loops are
/// unrolled: else the words would lie in local memory. Built-in types are shifted by variables, too.
template <int Words>
struct word_marks {
  std::uint32_t words[Words] = {};

  constexpr word_marks() = default;
  constexpr word_marks(std::uint32_t first) : words{first} {}
  constexpr explicit operator std::uint32_t() const { return words[0]; }
  constexpr explicit operator bool() const { return *this != word_marks(); }

  friend constexpr word_marks operator~(word_marks a) {
    for (std::uint32_t& word : a.words) word = ~word;
    return a;
  }
  friend constexpr word_marks operator&(word_marks a, word_marks b) {
    for (int w = 0; w < Words; w++) a.words[w] &= b.words[w];
    return a;
  }
  friend constexpr word_marks operator|(word_marks a, word_marks b) {
    for (int w = 0; w < Words; w++) a.words[w] |= b.words[w];
    return a;
  }
  constexpr word_marks& operator|=(word_marks other) { return *this = *this | other; }
  friend constexpr bool operator==(word_marks a, word_marks b) {
    std::uint32_t differ = 0;
    for (int w = 0; w < Words; w++) differ |= a.words[w] ^ b.words[w];
    return differ == 0;
  }
  friend constexpr word_marks operator<<(word_marks a, int by) {
    word_marks moved;
    for (int w = 0; w < Words; w++) {
      const int from = w - by / 32;
      if (from >= 0) moved.words[w] = a.words[from] << by % 32;
      if (from > 0 && by % 32 > 0) moved.words[w] |= a.words[from - 1] >> (32 - by % 32);
    }
    return moved;
  }
  friend constexpr word_marks operator>>(word_marks a, int by) {
    word_marks moved;
    for (int w = 0; w < Words; w++) {
      const int from = w + by / 32;
      if (from < Words) moved.words[w] = a.words[from] >> by % 32;
      if (from + 1 < Words && by % 32 > 0) moved.words[w] |= a.words[from + 1] << (32 - by % 32);
    }
    return moved;
  }
};

/// A bit for each of so many columns.
__extension__ typedef unsigned __int128 wide_bits;
template <int Values>
using mark_bits = std::conditional_t<
    (Values > 128), word_marks<(Values + 31) / 32>,
    std::conditional_t<(Values > 64), wide_bits, std::conditional_t<(Values > 32), std::uint64_t, std::uint32_t>>>;
/// Whether it is a word_marks.
template <class Bits>
constexpr bool kInWords = sizeof(Bits) > sizeof(wide_bits);

__device__ __forceinline__ int count_marks(std::uint32_t marks) { return __popc(marks); }
__device__ __forceinline__ int count_marks(std::uint64_t marks) { return __popcll(marks); }
__device__ __forceinline__ int count_marks(wide_bits marks) {
  return __popcll(static_cast<std::uint64_t>(marks)) + __popcll(static_cast<std::uint64_t>(marks >> 64));
}
template <int Words>
__device__ __forceinline__ int count_marks(const word_marks<Words>& marks) {
  int count = 0;
#pragma unroll
  for (const std::uint32_t word : marks.words) count += __popc(word);
  return count;
}
/// Bit v of word w stands for column 32 w + v.
template <class Bits, int Words>
__device__ __forceinline__ Bits joined_words(const std::uint32_t (&words)[Words]) {
  Bits marks = words[0];
#pragma unroll
  for (int w = 1; w < Words; w++) {
    if constexpr (kInWords<Bits>) {
      marks.words[w] = words[w];
    } else {
      marks |= static_cast<Bits>(words[w]) << (32 * w);
    }
  }
  return marks;
}
/// The marks of columns from 32 w on. @param w a constant, once loops are unrolled
template <class Bits>
__device__ __forceinline__ std::uint32_t word_of(const Bits& marks, int w) {
  return static_cast<std::uint32_t>(marks >> (32 * w));
}
template <int Words>
__device__ __forceinline__ std::uint32_t word_of(const word_marks<Words>& marks, int w) {
  return marks.words[w];
}
/// Marks of the first `count` columns, fewer than all.
template <class Bits>
__device__ __forceinline__ Bits first_marks(int count) {
  if constexpr (kInWords<Bits>) {
    Bits marks;
#pragma unroll
    for (int w = 0; w < static_cast<int>(sizeof(Bits) / 4); w++)
      marks.words[w] = __funnelshift_lc(~0u, 0u, static_cast<unsigned>(max(count - 32 * w, 0)));
    return marks;
  } else {
    return (Bits{1} << count) - 1;
  }
}
/// Marks of so many columns, `by` < 32 columns on, with those of the next ones behind them; what is beyond is
/// undefined.
template <int Values, class Bits>
__device__ __forceinline__ Bits moved_down(const Bits& marks, std::uint32_t of_next, int by) {
  return marks >> by | static_cast<Bits>(of_next) << 1 << (Values - 1 - by);
}
template <int Values, int Words>
__device__ __forceinline__ word_marks<Words> moved_down(const word_marks<Words>& marks, std::uint32_t of_next, int by) {
  static_assert(Values == 32 * Words);
  word_marks<Words> moved;
#pragma unroll
  for (int w = 0; w < Words; w++)
    moved.words[w] = __funnelshift_r(marks.words[w], w + 1 < Words ? marks.words[w + 1] : of_next, by);
  return moved;
}
/// The number of the first mark. @pre there is one
__device__ __forceinline__ int first_mark(std::uint32_t marks) { return __ffs(static_cast<int>(marks)) - 1; }
__device__ __forceinline__ int first_mark(std::uint64_t marks) { return __ffsll(static_cast<long long>(marks)) - 1; }
__device__ __forceinline__ int first_mark(wide_bits marks) {
  const auto low = static_cast<std::uint64_t>(marks);
  return low ? first_mark(low) : 64 + first_mark(static_cast<std::uint64_t>(marks >> 64));
}

/// Two sets of a thread's columns, a bit for each, in the order that the thread reads them.
template <class Bits>
struct row_marks {
  Bits sure = 0;
  Bits fill = 0;
  bool chosen = false;  // `sure` is the result, and there is no `fill`
};

}  // namespace shortlist::cuda
