// The tokens of a row's history that lie in a piece of the vocabulary. See change_rows.cu and overlay_rows.cu.
#pragma once

#include <cstdint>

#include "shortlist/sample.hpp"

namespace shortlist::cuda {

/// Calls use(i) for each of the history's tokens that is the i-th of `count` from `first` on. All threads come.
template <class Use>
__device__ __forceinline__ void for_each_of_history(const token_rows& history, std::int64_t row, std::uint32_t first,
                                                    std::uint32_t count, Use use) {
  constexpr int kFlight = 8;  // tokens under way in a thread
  if (!history.begins) return;
  const std::int64_t end = history.begins[row + 1];
  for (std::int64_t h = history.begins[row] + threadIdx.x; h < end; h += kFlight * blockDim.x) {
    std::uint32_t at[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; i++) {
      const std::int64_t other = h + i * blockDim.x;
      at[i] = other < end ? static_cast<std::uint32_t>(__ldg(history.tokens + other)) - first : ~0u;
    }
#pragma unroll
    for (int i = 0; i < kFlight; i++)
      if (at[i] < count) use(at[i]);
  }
}

}  // namespace shortlist::cuda
