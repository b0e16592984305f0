// Sets of a thread's columns, a bit for each.
#pragma once

#include <cstdint>
#include <type_traits>

namespace shortlist::cuda {

/// A bit for each of so many columns.
__extension__ typedef unsigned __int128 wide_bits;
template <int Values>
using mark_bits =
    std::conditional_t<(Values > 64), wide_bits, std::conditional_t<(Values > 32), std::uint64_t, std::uint32_t>>;

__device__ __forceinline__ int count_marks(std::uint32_t marks) { return __popc(marks); }
__device__ __forceinline__ int count_marks(std::uint64_t marks) { return __popcll(marks); }
__device__ __forceinline__ int count_marks(wide_bits marks) {
  return __popcll(static_cast<std::uint64_t>(marks)) + __popcll(static_cast<std::uint64_t>(marks >> 64));
}
/// Bit v of word w stands for column 32 w + v.
template <class Bits, int Words>
__device__ __forceinline__ Bits joined_words(const std::uint32_t (&words)[Words]) {
  Bits marks = words[0];
#pragma unroll
  for (int w = 1; w < Words; w++) marks |= static_cast<Bits>(words[w]) << (32 * w);
  return marks;
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
