// Where a search's answers go, and how a key becomes one.
#pragma once

#include <cstdint>

#include "core/order.hpp"

namespace shortlist::cuda {

struct result_lists {
  const std::int64_t* ids = nullptr;  ///< labels of positions, or null
  float* scores = nullptr;            ///< [queries, k]
  std::int64_t* labels = nullptr;     ///< [queries, k]
  std::int64_t k = 0;
  metric by = metric::inner_product;

  __device__ __forceinline__ void write(std::int64_t query, std::int64_t rank, std::uint64_t key) const {
    const std::int64_t at = query * k + rank;
    const std::uint32_t position = core::position_of(key);
    scores[at] = core::score_from_key(core::key_of(key), by);
    labels[at] = ids ? ids[position] : static_cast<std::int64_t>(position);
  }
  __device__ __forceinline__ void pad(std::int64_t query, std::int64_t rank) const {
    const std::int64_t at = query * k + rank;
    scores[at] = core::worst_score(by);
    labels[at] = core::kNoId;
  }
};

}  // namespace shortlist::cuda
