// Sampling from plain rows of which top_p or min_p alone, or nothing, decides what is kept: a cluster of blocks holds a
// row, weighs it, and draws from what may be kept.
//
// Why it is fast: a row is read once and stays in shared memory and registers; a multiprocessor has one block, so that
// none has more to do than another; blocks tell each other by sends, which wait for no loads.
// Steps: load, the largest logit -> bins of a sample's exponents, told to all: a floor that what top_p keeps should
// reach -> all weighed, exactly; what reaches the floor is listed by its lane -> the lists' weights in bins of
// exponents, told to all: the border's bin -> what lies before it added up by columns, what lies in it told to all ->
// every block decides those, and knows the draw's block -> which finds the range of columns, then the token.
// Flat rows keep more than lists hold: a ceiling is guessed, too, and what reaches it is added up, by ranges of
// columns, as it is weighed; what lies between is listed, and the range that the draw falls into is read again. Where
// nothing but min_p filters, or nothing at all, what is kept is known beforehand, and nothing is listed. Exact for any
// data: sums are integers, and tell a wrong guess. Then the row is weighed again, by a guess that knows how far off the
// first was, or among equal logits by their tokens; after that it is searched where it lies, by passes that serve any
// data. Limit: bytes(logits) over read bandwidth. Measured share: docs/kernels.md. History, 64 x 128,256 fp32, p 0.95,
// us by a driver: streamed, two or three blocks a multiprocessor (stream_weight.cuh) 50.8 -> held on the chip, lists by
// lanes 48.4 -> lists joined 39.2 -> columns summed before the border is decided 37.6. Launched in a graph of 24, 31.7
// -> marks by upper halves, no clamp where a warp's logits allow it, tokens listed at a pitch 30.5 -> the sample
// counted without branches, registers loaded before copies 30.0. 256 such rows: streamed 166 -> held on the chip, 66
// after 66 of them 106. Flat rows, T 1.5, 64, on an H100: searched where they lie 250 -> a ceiling 38; what this costs
// others, and rows whose best are neighbours: 33 -> 37, 135 -> 61.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/device/chain.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/sample/stream_in_place.cuh"
#include "cuda/sample/weight_draw.cuh"
#include "cuda/sample/weight_sample.hpp"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {
namespace {

using namespace sampling;
using namespace sampling::weighing;

constexpr std::int64_t kLeastColumns = 8000;  // of a row: fewer are streamed
constexpr std::int64_t kLeastBytes = 60'000;  // of a block, where some follow each other: fewer are streamed
constexpr std::int64_t kHalfBytes = 100'000;  // of a block, where many follow each other
constexpr std::int64_t kFewWaves = 8;
constexpr std::int64_t kHeldBytes = 260'000;           // of a row that a block has on the chip
constexpr std::int64_t kMostColumns = (1 << 20) - 64;  // of a block: what a range has finds room with its border

constexpr int kMostTurns = 3;  // a guess; another, knowing what was wrong with it; then which of equal tokens

struct weight_args {
  core::sample_request request;
  std::uint32_t segment;  // of a row that is read in place
  std::uint32_t border;   // keys that may lie in the border's bin, a power of two
  std::uint32_t slots;    // of a lane
  std::uint32_t slots_at;
  row_kinds kinds;
};

template <class Stored>
__global__ void __launch_bounds__(kRowThreads, 1) weight_sample_kernel(const __grid_constant__ weight_args args) {
  const core::sample_request& request = args.request;
  const value_matrix& logits = request.logits;
  auto& state = *reinterpret_cast<weight_state*>(dynamic_shared());
  unsigned char* memory = dynamic_shared() + sizeof(weight_state);
  auto& scratch = *reinterpret_cast<weight_scratch*>(memory);
  const weight_place place{cluster_rank(),
                           cluster_size(),
                           args.border,
                           state,
                           scratch,
                           reinterpret_cast<std::uint64_t*>(memory + sizeof(weight_scratch)),
                           reinterpret_cast<std::uint64_t*>(memory + sizeof(weight_scratch)) + args.border};
  const std::uint32_t warp = threadIdx.x / kWarp;
  join_chain();
  const std::int64_t index = blockIdx.x >> shift_of(place.blocks);
  if (skips(args.kinds, request, index)) return;
  const Stored* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  const auto columns = static_cast<std::uint32_t>(logits.cols);
  const row_pieces<Stored> all(values, columns, place.blocks);
  unsigned char* slots = dynamic_shared() + args.slots_at + warp * args.slots * kWarp * 16;
  row_part_of_warp<Stored> part(values, all, place.rank, slots, args.slots, state.landed[warp]);
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
  // Half of the threads search the row where it lies, in the memory of what is done with.
  auto& in_place = *reinterpret_cast<stream_scratch*>(memory);
  cluster_sync();
  auto* of_others = reinterpret_cast<float*>(slots - warp * args.slots * kWarp * 16);
  of_others[threadIdx.x] = most;
  if (threadIdx.x == 0) {
    in_place.row.params = params;
    barrier_init(&in_place.row.groups.arrived, 1);
    cluster_barriers_ready();
  }
  __syncthreads();
  if (threadIdx.x >= kThreads) return;
  most = larger_or_nan(most, of_others[threadIdx.x + kThreads]);
  const cluster_place cluster{place.rank, place.blocks, nullptr, 0};
  draw_in_place<Stored>(request, args.segment, index, most, cluster, in_place, 0);
  if (place.rank == 0) cluster_sync();  // the others may still look at this block's memory, until they end
}

std::int64_t row_bytes_of(const core::sample_request& request) {
  return request.logits.cols * size_bytes(request.logits.type);
}

/// Blocks of a row of which more are than run at a time: as few as have most of it on the chip, or twice as many, if
/// their last wave leaves fewer multiprocessors without one.
int blocks_in_waves(const core::sample_request& request, int multiprocessors) {
  const std::int64_t row_bytes = row_bytes_of(request);
  if (row_bytes > kHeldBytes) {
    int blocks = 2;
    while (blocks < kMostBlocks && row_bytes > 2 * kHeldBytes * blocks) blocks *= 2;
    return blocks;
  }
  constexpr std::int64_t kTimeOfOne = 5;  // in thirds of the time of one of two, which has half as much
  const auto waves = [&](int blocks) {
    const std::int64_t at_a_time = blocks_at_a_time(blocks, multiprocessors) / blocks;
    return (request.logits.rows + at_a_time - 1) / at_a_time;
  };
  return row_bytes >= 2 * kHalfBytes && 3 * waves(2) < kTimeOfOne * waves(1) ? 2 : 1;
}

int blocks_of(const core::sample_request& request, int multiprocessors) {
  const int blocks = blocks_of_row(request.logits.rows, request.logits.cols, multiprocessors);
  return blocks > 1 ? blocks : blocks_in_waves(request, multiprocessors);
}

std::int64_t rounded_up(std::int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

template <class Stored>
void launch_type(cudaStream_t stream, const core::sample_request& request, row_kinds kinds, int blocks) {
  constexpr std::int64_t kPerVector = row_part_of_warp<Stored>::kPerVector;
  constexpr std::int64_t kLeastBorder = 1024;
  constexpr std::int64_t kBorderEach = 512;
  const std::int64_t round = std::int64_t{blocks} * kRowThreads * kPerVector;  // columns
  const std::int64_t rounds = (request.logits.cols + round - 1) / round;
  const std::int64_t range =
      std::int64_t{1} << range_shift(static_cast<std::uint32_t>(rounds * kRowThreads * kPerVector + 2 * kPerVector));
  weight_args args{};
  args.request = request;
  args.kinds = kinds;
  args.segment = segment_of(request, blocks);
  args.border = std::bit_ceil(static_cast<std::uint32_t>(std::max({kLeastBorder, kBorderEach * blocks, 2 * range})));
  const std::int64_t border_bytes = args.border * std::int64_t{sizeof(std::uint64_t)};
  const std::int64_t told_bytes =
      std::max<std::int64_t>(blocks * kBorderBins * sizeof(std::uint64_t), kRowThreads / 2 * sizeof(weighed_key));
  const std::int64_t scratch_bytes =
      std::max<std::int64_t>(sizeof(weight_scratch) + border_bytes + told_bytes, sizeof(stream_scratch));
  const std::int64_t slots_at = rounded_up(sizeof(weight_state) + scratch_bytes);
  constexpr std::int64_t kSlotBytes = kRowThreads * 16;
  constexpr std::int64_t kMostSlots = kSpareSlots + kMostChunks * kChunk;
  args.slots = static_cast<std::uint32_t>(std::min((kMaxSharedBytes - slots_at) / kSlotBytes, kMostSlots));
  args.slots_at = static_cast<std::uint32_t>(slots_at);
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(request.logits.rows * blocks));
  shape.threads = kRowThreads;
  shape.shared_bytes = slots_at + args.slots * kSlotBytes;
  shape.cluster = blocks;
  shape.overlaps = true;
  launch(weight_sample_kernel<Stored>, shape, stream, args, "starting to sample rows by weight");
}

}  // namespace

bool weight_sample_serves(const core::sample_request& request, row_kinds kinds, int multiprocessors) {
  const per_row<std::int32_t>& top_k = request.params.top_k;
  const bool weighs_alone =
      kinds == row_kinds::others || (!top_k.rows && (top_k.common < 1 || top_k.common >= request.logits.cols));
  const int blocks = blocks_of(request, multiprocessors);
  const std::int64_t of_all_rows = request.logits.rows * blocks;
  const std::int64_t at_a_time = blocks_at_a_time(blocks, multiprocessors);
  const std::int64_t block_bytes = row_bytes_of(request) / blocks;
  const bool pays = of_all_rows <= at_a_time
                        ? request.logits.cols >= kLeastColumns
                        : block_bytes >= (of_all_rows <= kFewWaves * at_a_time ? kLeastBytes : kHalfBytes);
  return weighs_alone && pays && request.logits.cols <= kMostColumns * blocks;
}

void launch_weight_sample(cudaStream_t stream, const core::sample_request& request, row_kinds kinds,
                          int multiprocessors) {
  const int blocks = blocks_of(request, multiprocessors);
  by_stored_type(request.logits.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, request, kinds, blocks); });
}

}  // namespace shortlist::cuda
