// How the keys that a warp has computed enter the candidate lists.
#pragma once

#include "core/order.hpp"
#include "cuda/device/score.cuh"
#include "cuda/flat/tiles_score.hpp"

namespace shortlist::cuda {

/// Lane l holds the keys of row `row` (of the phase) and the queries [first_query, first_query + Queries); all lanes
/// of the warp hold the same queries. Least keys of padding queries are never reached.
template <int Queries>
__device__ __forceinline__ void enter_candidates(const candidate_lists& lists, phase_kind phase, int first_query,
                                                 const std::uint32_t (&keys)[Queries], std::int64_t row,
                                                 std::uint32_t position, bool there) {
  std::uint64_t* list = lists.keys + first_query * lists.capacity;
  if (phase == phase_kind::dense) {
#pragma unroll
    for (int u = 0; u < Queries; u++) {
      if (there && first_query + u < lists.queries) list[u * lists.capacity + row] = core::row_key(keys[u], position);
    }
    return;
  }
  unsigned passing[Queries];
  unsigned any = 0;
#pragma unroll
  for (int u = 0; u < Queries; u++) {
    passing[u] = __ballot_sync(kFullWarp, there && keys[u] >= lists.least_keys[first_query + u]);
    any |= passing[u];
  }
  if (any == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::uint32_t mine = 0;  // how many enter the list of query first_query + lane
#pragma unroll
  for (int u = 0; u < Queries; u++)
    if (lane == u) mine = static_cast<std::uint32_t>(__popc(passing[u]));
  std::uint32_t place = 0;
  if (mine > 0) place = atomicAdd(lists.counts + first_query + lane, mine);  // all queries of the warp in one go
#pragma unroll
  for (int u = 0; u < Queries; u++) {
    if (passing[u] == 0) continue;
    const std::uint32_t base = __shfl_sync(kFullWarp, place, u);
    if (passing[u] >> lane & 1u)
      list[u * lists.capacity + base + __popc(passing[u] & ((1u << lane) - 1u))] = core::row_key(keys[u], position);
  }
}

}  // namespace shortlist::cuda
