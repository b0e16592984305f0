// Hits of a scan, on their way to their queries' lists.
#pragma once

#include "cuda/ivf_pq/decode.cuh"
#include "cuda/ivf_pq/filter.hpp"

namespace shortlist::cuda {

/// A row that reaches a query's threshold.
struct alignas(16) scan_hit {
  float distance;
  slot row;
  std::uint32_t query;
};

__device__ __forceinline__ std::uint32_t take_place(const filter_batch& batch, const scan_hit& hit) {
  return atomicAdd(batch.hit_counts + hit.query, 1u);
}
__device__ __forceinline__ void put_hit(const filter_batch& batch, std::uint32_t place, const scan_hit& hit) {
  const std::uint64_t key = (static_cast<std::uint64_t>(distance_key(hit.distance)) << 32) | hit.row;
  if (place < batch.capacity) batch.hits[static_cast<std::int64_t>(hit.query) * batch.capacity + place] = key;
}

}  // namespace shortlist::cuda
