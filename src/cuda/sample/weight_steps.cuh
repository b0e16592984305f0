// A row that is weighed: what a cluster's blocks do with it, and the memory that they have for it. See
// weight_sample.cu.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/runtime/launch.cuh"
#include "cuda/sample/stream_in_place.cuh"
#include "cuda/sample/weight_draw.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda::sampling::weighing {

constexpr int kMostTurns = 3;  // a guess; another, knowing what was wrong with it; then which of equal tokens

/// A block's memory.
struct weight_plan {
  std::uint32_t segment;  // of a row that is read in place
  std::uint32_t border;   // keys that may lie in the border's bin, a power of two
  std::uint32_t slots;    // of a lane
  std::uint32_t slots_at;

  template <class Form>
  std::int64_t bytes() const {
    return slots_at + slots * std::int64_t{Form::kThreads} * 16;
  }
};

/// @param blocks of a row
template <class Stored, class Form>
weight_plan plan_weighing(const core::sample_request& request, int blocks) {
  constexpr std::int64_t kPerVector = 16 / sizeof(Stored);
  constexpr std::int64_t kLeastBorder = 1024;
  const std::int64_t round = std::int64_t{blocks} * Form::kThreads * kPerVector;  // columns
  const std::int64_t rounds = (request.logits.cols + round - 1) / round;
  const std::int64_t range =
      std::int64_t{1} << range_shift(static_cast<std::uint32_t>(rounds * Form::kThreads * kPerVector + 2 * kPerVector));
  weight_plan plan{};
  plan.segment = segment_of(request, blocks);
  plan.border = std::bit_ceil(
      static_cast<std::uint32_t>(std::max({kLeastBorder, std::int64_t{Form::kThreads} * blocks, 2 * range})));
  const std::int64_t border_bytes = plan.border * std::int64_t{sizeof(std::uint64_t)};
  const std::int64_t told_bytes =
      std::max<std::int64_t>(blocks * kBorderBins * sizeof(std::uint64_t), Form::kThreads / 2 * sizeof(weighed_key));
  const std::int64_t scratch_bytes =
      std::max<std::int64_t>(sizeof(weight_scratch<Form>) + border_bytes + told_bytes, sizeof(stream_scratch));
  const std::int64_t before_slots = static_cast<std::int64_t>(sizeof(weight_state<Form>)) + scratch_bytes;
  const std::int64_t slots_at = (before_slots + kLineBytes - 1) / kLineBytes * kLineBytes;
  constexpr std::int64_t kTakenBytes = 1024;  // of a multiprocessor's shared memory, by each block for the system
  constexpr std::int64_t kBytes = (kMaxSharedBytes + kTakenBytes) / Form::kBlocks - kTakenBytes;
  constexpr std::int64_t kSlotBytes = Form::kThreads * 16;
  constexpr std::int64_t kMostSlots = kSpareSlots + kMostChunks * row_part_of_warp<Stored, Form>::kChunk;
  plan.slots = static_cast<std::uint32_t>(std::min((kBytes - slots_at) / kSlotBytes, kMostSlots));
  plan.slots_at = static_cast<std::uint32_t>(slots_at);
  return plan;
}

/// Draws from the row of the cluster. All its threads come, behind the kernel before.
template <class Stored, class Form>
__device__ __forceinline__ void draw_weighed_row(const core::sample_request& request, const weight_plan& plan) {
  const value_matrix& logits = request.logits;
  auto& state = *reinterpret_cast<weight_state<Form>*>(dynamic_shared());
  unsigned char* memory = dynamic_shared() + sizeof(state);
  auto& scratch = *reinterpret_cast<weight_scratch<Form>*>(memory);
  auto* behind = reinterpret_cast<std::uint64_t*>(memory + sizeof(scratch));
  const weight_place<Form> place{cluster_rank(), cluster_size(), plan.border,         state,
                                 scratch,        behind,         behind + plan.border};
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::int64_t index = blockIdx.x >> shift_of(place.blocks);  // worked out anew wherever registers are few
  const Stored* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  const auto columns = static_cast<std::uint32_t>(logits.cols);
  const row_pieces<Stored, Form> all(values, columns, place.blocks);
  unsigned char* slots = dynamic_shared() + plan.slots_at + warp * plan.slots * kWarp * 16;
  row_part_of_warp<Stored, Form> part(values, all, place.rank, slots, plan.slots, state.landed[warp]);
  part.begin();
  clear_scratch(place);
  cluster_arrive_begun();
  if (threadIdx.x == 0) {
    state.params = core::params_of(request.params, index, logits.cols);
    state.random = core::philox(state.params.seed, state.params.offset);
  }
  float most = part.edge;
  float least = core::float_from_bits(0x7F800000u);  // that is a number
  part.look_at_all([&](uint4 raw) {
    most = larger_or_nan(most, largest_of<Stored, true>(raw));
    least = fminf(least, least_of<Stored>(raw));
  });
  cluster_wait();  // all blocks have begun
  const std::uint32_t best = share_guess(part, most, place);
  const core::row_params& params = state.params;
  if (!params.valid || best == kNanGroup || best < kLeastKey) {
    if (place.rank == 0 && threadIdx.x < kThreads)
      write_failure(request.out, index,
                    !params.valid       ? sample_status::bad_parameter
                    : best == kNanGroup ? sample_status::nan_logit
                                        : sample_status::nothing_allowed);
    return;
  }
  const bool min_p_first = !params.min_p_off && request.params.min_p_order == min_p_order::first;
  const std::uint32_t wanted = wanted_by_count(params);
  const bool by_weight = wanted == 1 || (wanted == 0 && (params.top_p_off || !min_p_first));
  const float largest = core::from_ascending_key(best);
  if (by_weight && core::is_finite(largest)) {
    const row_filter filter{largest, params.steepness, kEveryCandidate, minus_infinity<float>()};
#pragma unroll 1
    for (;;) {
      const turn_end end = draw_by_weight(request, index, all, part, least, filter, place);
      if (end == turn_end::drawn) return;
      if (end == turn_end::hopeless || state.turns + 1 == kMostTurns) break;
      async_fence();
      cluster_sync();  // none looks at another's memory
      part.begin_again();
      if (threadIdx.x == 0) state.turns++;
      clear_scratch(place, true);
      cluster_arrive();
      part.await();
      cluster_wait();
    }
  }
  // As many threads as others have search the row where it lies, in the memory of what is done with.
  auto& in_place = *reinterpret_cast<stream_scratch*>(memory);
  cluster_sync();
  auto* of_others = reinterpret_cast<float*>(slots - warp * plan.slots * kWarp * 16);
  of_others[threadIdx.x] = most;
  if (threadIdx.x == 0) {
    in_place.row.params = params;
    barrier_init(&in_place.row.groups.arrived, 1);
    cluster_barriers_ready();
  }
  __syncthreads();
  if (threadIdx.x >= kThreads) return;
  for (int other = kThreads; other < Form::kThreads; other += kThreads)
    most = larger_or_nan(most, of_others[threadIdx.x + other]);
  const cluster_place cluster{place.rank, place.blocks, nullptr, 0};
  draw_in_place<Stored>(request, plan.segment, index, most, cluster, in_place, 0);
  if (place.rank == 0) cluster_sync();  // the others may still look at this block's memory, until they end
}

}  // namespace shortlist::cuda::sampling::weighing
