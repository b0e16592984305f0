// A row of which the few best remain: what a cluster's blocks do with it, and the memory that they have for it. See
// count_sample.cu.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/sample/row_overlay.cuh"
#include "cuda/sample/stream_count.cuh"
#include "cuda/sample/stream_in_place.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda::sampling {

/// How much a block has room for.
struct count_room {
  std::uint32_t own;      // keys in its list
  std::uint32_t batches;  // of kFlight rounds,
  std::uint32_t first;    // those among them that the cut comes from
};

// By the blocks that a multiprocessor holds.
constexpr int kCountBlocks = 3;
constexpr count_room kRooms[kCountBlocks] = {{4096, 11, 4}, {2048, 5, 4}, {1024, 3, 2}};

constexpr std::int64_t kBatchBytes = std::int64_t{kFlight} * kThreads * 16;

/// A block's memory.
struct count_plan {
  std::uint32_t segment;    // of a row that is read in place
  std::uint32_t bit_words;  // of an overlay, of a block's vectors: they take the place of batches
  count_room room;

  std::int64_t bytes() const {
    return static_cast<std::int64_t>(sizeof(stream_scratch)) + std::int64_t{room.own} * 8 +
           std::int64_t{bit_words} * 4 + room.batches * kBatchBytes;
  }
};

/// @param blocks of a row @param held blocks that a multiprocessor holds, up to kCountBlocks
inline count_plan plan_counting(const core::sample_request& request, int blocks, std::int64_t held,
                                std::uint32_t bit_words) {
  constexpr std::int64_t kMultiprocessorBytes = 228 * 1024;  // of shared memory,
  constexpr std::int64_t kBlockBytes = 1280;                 // of which each block takes so many beside that
  count_plan plan{segment_of(request, blocks), bit_words, kRooms[held - 1]};
  while (plan.bytes() > kMultiprocessorBytes / held - kBlockBytes) plan.room.batches--;
  plan.room.first = std::min(plan.room.first, plan.room.batches);
  return plan;
}

__device__ __forceinline__ cluster_place counting_place(const count_plan& plan) {
  auto* own = reinterpret_cast<std::uint64_t*>(reinterpret_cast<stream_scratch*>(dynamic_shared()) + 1);
  return {cluster_rank(), cluster_size(), own, plan.room.own};
}

/// First of all; the kernel before may still run. All threads of the cluster come.
__device__ __forceinline__ void begin_to_count(std::uint32_t blocks) {
  auto& scratch = *reinterpret_cast<stream_scratch*>(dynamic_shared());
  if (threadIdx.x == 0) {
    init_groups(blocks, scratch.row.groups);
    init_shares(blocks, scratch.shares);
    scratch.row.listed = 0;
    scratch.row.appended = 0;
    cluster_barriers_ready();
  }
  cluster_arrive_begun();
}

/// The same as draw_in_place, under an overlay.
template <class Stored>
__device__ __noinline__ void draw_under_overlay(const core::sample_request& request, const count_plan& plan,
                                                const row_overlay& overlay, std::int64_t index, float most,
                                                const cluster_place& place, stream_scratch& scratch) {
  const overlaid_row<Stored> over(overlay, request, index, place);
  over.place_times();
  const overlaid_part<Stored> part(part_in_place<Stored>(request.logits, plan.segment, index, place), over);
  draw_by_part(request, part, index, most, place, scratch, 1);
}

/// Draws from a row. All threads of the cluster come, behind the kernel before, after begin_to_count.
/// @tparam Overlaid whether the row lies under an overlay
template <class Stored, bool Overlaid>
__device__ __forceinline__ void draw_counted_row(const core::sample_request& request, const count_plan& plan,
                                                 const row_overlay& overlay, std::int64_t index) {
  const value_matrix& logits = request.logits;
  auto& scratch = *reinterpret_cast<stream_scratch*>(dynamic_shared());
  sample_scratch& row = scratch.row;
  const cluster_place place = counting_place(plan);
  const Stored* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  const auto vocab = static_cast<std::uint32_t>(logits.cols);
  auto* const memory = reinterpret_cast<uint4*>(place.own + plan.room.own);
  row_ring<Stored, kThreads> ring(values, vocab, place.rank, place.blocks, memory + (Overlaid ? plan.bit_words / 4 : 0),
                                  plan.room.batches, plan.room.first, kLeastWord<Stored>);
  __shared__ kept_words<Stored> kept;
  const overlaid_row<Stored> over(overlay, request, index, place);
  const auto plain = [&] {
    if constexpr (Overlaid)
      return plain_vectors<Stored>(over.plain, ring.first_column, ring.count, reinterpret_cast<std::uint32_t*>(memory),
                                   kept);
    else
      return as_stored{};
  }();
  ring.begin();
  if (threadIdx.x == 0) row.params = core::params_of(request.params, index, logits.cols);
  if constexpr (Overlaid) {
    if (ring.has_edge && !over.is_plain(ring.edge_column)) {
      ring.has_edge = false;
      ring.edge = minus_infinity<float>();
    }
    ring.await_first();
    __syncthreads();  // the bits that other threads have copied are there, too
  }
  running_largest<Stored> first_largest;
  ring.for_each_first([&](uint4 raw, std::uint32_t vector) {
    if constexpr (Overlaid) raw = plain.of(raw, vector);
    first_largest.look(raw);
  });
  float most = larger_or_nan(ring.edge, first_largest.value());
  cluster_wait();  // all blocks have begun
  share_logits(place.blocks, place.rank, most, row);
  const std::uint32_t best = best_of_groups(row.groups);
  const core::row_params& params = row.params;
  if (!params.valid || best == kNanGroup) {
    async_wait<0>();
    if (place.rank == 0)
      write_failure(request.out, index, params.valid ? sample_status::nan_logit : sample_status::bad_parameter);
    return;
  }
  const auto for_each_vector = [&](auto mark, auto room, auto take) { ring.for_each_vector(mark, room, take); };
  const auto for_each_alone = [&](auto look) {
    if (ring.has_edge) look(ring.edge, ring.edge_column);
    if constexpr (Overlaid) over.for_each_penalized(look);
  };
  if (!draw_by_count<Stored>(request, index, for_each_vector, for_each_alone, plain, wanted_by_count(params), most,
                             place, scratch)) {
    if constexpr (Overlaid)
      draw_under_overlay<Stored>(request, plan, overlay, index, most, place, scratch);
    else
      draw_in_place<Stored>(request, plan.segment, index, most, place, scratch);
    if (place.rank == 0) cluster_sync();  // the others may still look at this block's memory, until they end
  }
}

}  // namespace shortlist::cuda::sampling
