// The draw from the best of a streamed row, as many as top_k says. See count_sample.cu.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sample/row_choice.cuh"
#include "cuda/sample/row_load.cuh"
#include "cuda/sample/stream_parts.cuh"

namespace shortlist::cuda::sampling {

/// Vectors whose logits all count as they are stored.
struct as_stored {};

/// Samples a row of which the `wanted` best remain. @returns false if the row has to be searched otherwise; the same
/// for all blocks. All threads of the cluster come. @param most of the thread's logits: of those looked at first
/// before, of all after @param for_each_vector (mark, room, take) over the block's vectors of the row @param
/// for_each_alone (look) over its other logits: look(x, token) @param plain as_stored; or plain.bits(which vector): of
/// its logits, those that count
template <class Stored, class ForEachVector, class ForEachAlone, class Plain>
__device__ __forceinline__ bool draw_by_count(const core::sample_request& request, std::int64_t index,
                                              ForEachVector for_each_vector, ForEachAlone for_each_alone, Plain plain,
                                              std::uint32_t wanted, float& most, const cluster_place& place,
                                              stream_scratch& scratch) {
  sample_scratch& row = scratch.row;
  const std::uint32_t cut = max(cut_of_groups(wanted, row.groups), kLeastKey);
  const float least = core::from_ascending_key(cut);
  constexpr bool kAsStored = std::is_same_v<Plain, as_stored>;
  const auto mark = [&](uint4 raw, auto... which) {
    const float largest = largest_of<Stored, true>(raw);
    if constexpr (kAsStored) most = larger_or_nan(most, largest);
    // Where some logits do not count, NaN is listed as well, so that it is seen whether it counts.
    const bool some = kAsStored ? largest >= least : !(largest < least);
    std::uint32_t marks = 0;
    if (some) {
      float x[16 / sizeof(Stored)];
      widen_values<Stored>(raw, x);
#pragma unroll
      for (std::uint32_t e = 0; e < 16 / sizeof(Stored); e++)
        marks |= (kAsStored ? x[e] >= least : !(x[e] < least)) ? 1u << e : 0u;
      if constexpr (!kAsStored) marks &= plain.bits(which...);
    }
    return marks;
  };
  const auto room = [&](std::uint32_t count) { return atomicAdd(&scratch.shares.appended, count); };
  const auto take = [&](std::uint32_t at, float x, std::uint32_t token) {
    if constexpr (!kAsStored) most = larger_or_nan(most, x);
    put_in_share(at, key_of_logit(x, token), place, scratch.shares);
  };
  for_each_vector(mark, room, take);
  for_each_alone([&](float x, std::uint32_t token) {
    most = larger_or_nan(most, x);
    if (x >= least) take(room(1), x, token);
  });

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
