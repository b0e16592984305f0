// What the kernels that stream rows fall back on: a row searched where it lies. See stream_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/sample/row_choice.cuh"
#include "cuda/sample/row_load.cuh"
#include "cuda/sample/stream_parts.cuh"

namespace shortlist::cuda::sampling {

/// A row that no list is made for, or whose list overflowed: searched where it lies. All threads of the cluster come,
/// after a meeting. @param most of the thread's logits. @param time that groups are shared
template <class Stored>
__device__ __noinline__ void draw_in_place(const core::sample_request& request, std::uint32_t segment,
                                           std::int64_t index, float most, const cluster_place& place,
                                           stream_scratch& scratch, std::uint32_t time = 1) {
  const value_matrix& logits = request.logits;
  const auto* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  row_in_place<Stored> part;
  part.segment = segment;
  part.blocks = place.blocks;
  part.rank = place.rank;
  part.shift = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(values) % 16 / sizeof(Stored));
  part.vocab = static_cast<std::uint32_t>(logits.cols);
  part.begin = values - part.shift;
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

}  // namespace shortlist::cuda::sampling
