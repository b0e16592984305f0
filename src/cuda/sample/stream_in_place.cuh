// What the kernels that read a row once fall back on: a row searched where it lies. See count_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/sample/row_choice.cuh"
#include "cuda/sample/row_load.cuh"
#include "cuda/sample/stream_parts.cuh"

namespace shortlist::cuda::sampling {

/// The block's part of a row that is read where it lies.
template <class Stored>
__device__ __forceinline__ row_in_place<Stored> part_in_place(const value_matrix& logits, std::uint32_t segment,
                                                              std::int64_t index, const cluster_place& place) {
  const auto* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  row_in_place<Stored> part;
  part.segment = segment;
  part.blocks = place.blocks;
  part.rank = place.rank;
  part.shift = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(values) % 16 / sizeof(Stored));
  part.vocab = static_cast<std::uint32_t>(logits.cols);
  part.begin = values - part.shift;
  return part;
}

/// A row that no list is made for, or whose list overflowed: searched by the block's part of it, which is in place. All
/// threads of the cluster come, after a meeting. @param most of the thread's logits. @param time that groups are shared
template <class Part>
__device__ __forceinline__ void draw_by_part(const core::sample_request& request, const Part& part, std::int64_t index,
                                             float most, const cluster_place& place, stream_scratch& scratch,
                                             std::uint32_t time) {
  sample_scratch& row = scratch.row;
  cluster_sync();  // none looks at the lists any more
  if (threadIdx.x == 0) {
    row.listed = 0;
    row.appended = 0;
    expect_groups(place.blocks, row.groups);
  }
  share_logits(place.blocks, place.rank, most, row, time);
  choose_token(request, index, part, best_of_groups(row.groups), row);
}

/// The same of a row as it is stored.
template <class Stored>
__device__ __noinline__ void draw_in_place(const core::sample_request& request, std::uint32_t segment,
                                           std::int64_t index, float most, const cluster_place& place,
                                           stream_scratch& scratch, std::uint32_t time = 1) {
  draw_by_part(request, part_in_place<Stored>(request.logits, segment, index, place), index, most, place, scratch,
               time);
}

}  // namespace shortlist::cuda::sampling
