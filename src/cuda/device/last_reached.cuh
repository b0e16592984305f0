// Which key enough of many others reach, by bisection.
#pragma once

#include <cstdint>

namespace shortlist::cuda {

/// As many as are wanted reach `low`, fewer reach high + 1.
struct reached_range {
  std::uint32_t low;
  std::uint32_t high;
};

/// Narrows such a range, until no more than `more` beyond those wanted reach its low end. count(key) is how many reach
/// a key, to all threads that come.
template <class Count>
__device__ __forceinline__ reached_range last_reached(reached_range range, std::uint32_t wanted, std::uint32_t more,
                                                      Count count) {
  auto& [low, high] = range;
  while (low < high) {
    const std::uint32_t middle = high - (high - low) / 2;
    const std::uint32_t reached = count(middle);
    if (reached >= wanted) {
      low = middle;
      if (reached <= wanted + more) break;
    } else {
      high = middle - 1;
    }
  }
  return range;
}

}  // namespace shortlist::cuda
