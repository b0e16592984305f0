// The draw from the best of a streamed row, as many as top_k says. See count_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/sample/row_choice.cuh"
#include "cuda/sample/row_load.cuh"
#include "cuda/sample/stream_parts.cuh"

namespace shortlist::cuda::sampling {

/// Samples a row of which the `wanted` best remain. @returns false if the row has to be searched otherwise; the same
/// for all blocks. All threads of the cluster come. @param most of the thread's logits: of those looked at first
/// before, of all after @param for_each_vector (mark, room, take) over the block's part of the row
template <class Stored, class ForEachVector>
__device__ __forceinline__ bool draw_by_count(const core::sample_request& request, std::int64_t index,
                                              const row_piece<Stored, kThreads>& piece, ForEachVector for_each_vector,
                                              std::uint32_t wanted, float& most, const cluster_place& place,
                                              stream_scratch& scratch) {
  sample_scratch& row = scratch.row;
  const std::uint32_t cut = max(cut_of_groups(wanted, row.groups), kLeastKey);
  const float least = core::from_ascending_key(cut);
  const auto mark = [&](uint4 raw) {
    const float largest = largest_of<Stored, true>(raw);
    most = larger_or_nan(most, largest);
    std::uint32_t marks = 0;
    if (largest >= least) {
      float x[16 / sizeof(Stored)];
      widen_values<Stored>(raw, x);
#pragma unroll
      for (std::uint32_t e = 0; e < 16 / sizeof(Stored); e++) marks |= x[e] >= least ? 1u << e : 0u;
    }
    return marks;
  };
  const auto room = [&](std::uint32_t count) { return atomicAdd(&scratch.shares.appended, count); };
  const auto take = [&](std::uint32_t at, float x, std::uint32_t token) {
    put_in_share(at, key_of_logit(x, token), place, scratch.shares);
  };
  if (piece.has_edge && piece.edge >= least) take(room(1), piece.edge, piece.edge_column);
  for_each_vector(mark, room, take);

  const told_shares told = tell_shares(most != most ? kNanGroup : core::ascending_key(most), place, scratch.shares);
  const std::uint32_t best = told.best;
  if (best == kNanGroup) {
    if (place.rank == 0) write_failure(request.out, index, sample_status::nan_logit);
    return true;
  }
  if (!told.fit || best < kLeastKey) return false;
  if (place.rank != 0) return true;
  constexpr std::uint32_t kFew = 64;
  list_from_shares<kFew>(wanted, best, cut, place, row.list, row.listed, scratch.shares);
  const row_filter filter{core::from_ascending_key(best), row.params.steepness, kEveryCandidate,
                          minus_infinity<float>()};
  draw_from_list(request, index, place.blocks, filter, row);
  return true;
}

}  // namespace shortlist::cuda::sampling
