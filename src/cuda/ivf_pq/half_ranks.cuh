// Halves in order of their values, as 16-bit numbers; and which list has a page of a query's distances.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace shortlist::cuda {

inline constexpr std::uint32_t kMinusInfinityRank = 0x03FF;
inline constexpr std::uint32_t kLargestRank = 0xFBFF;  // of a number
inline constexpr std::uint32_t kInfinityRank = 0xFC00;

__device__ __forceinline__ std::uint32_t rank_of(std::uint32_t half) {
  return half ^ (half & 0x8000u ? 0xFFFFu : 0x8000u);
}
__device__ __forceinline__ std::uint32_t half_of(std::uint32_t rank) {
  return rank ^ (rank & 0x8000u ? 0x8000u : 0xFFFFu);
}
__device__ __forceinline__ float value_of(std::uint32_t rank) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(half_of(rank))));
}

/// The last of a query's lists that begins at or before a page of its region; start_of(rank) is where one begins. Lists
/// without pages begin where the next does.
template <class StartOf>
__device__ __forceinline__ std::uint32_t list_with_page(std::uint32_t page, std::uint32_t lists, StartOf start_of) {
  std::uint32_t rank = 0;
  std::uint32_t end = lists;
  while (rank + 1 < end) {
    const std::uint32_t middle = (rank + end) / 2;
    if (start_of(middle) <= page)
      rank = middle;
    else
      end = middle;
  }
  return rank;
}

}  // namespace shortlist::cuda
