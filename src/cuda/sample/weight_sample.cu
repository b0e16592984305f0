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

constexpr int kMostTurns = 3;  // a guess; another, knowing what was wrong with it; then which of equal tokens

struct weight_args {
  core::sample_request request;
  std::uint32_t segment;  // of a row that is read in place
  std::uint32_t border;   // keys that may lie in the border's bin, a power of two
  std::uint32_t slots;    // of a lane
  std::uint32_t slots_at;
  row_kinds kinds;
};

template <class Stored, class Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks)
    weight_sample_kernel(const __grid_constant__ weight_args args) {
  const core::sample_request& request = args.request;
  const value_matrix& logits = request.logits;
  auto& state = *reinterpret_cast<weight_state<Form>*>(dynamic_shared());
  unsigned char* memory = dynamic_shared() + sizeof(state);
  auto& scratch = *reinterpret_cast<weight_scratch<Form>*>(memory);
  auto* behind = reinterpret_cast<std::uint64_t*>(memory + sizeof(scratch));
  const weight_place<Form> place{cluster_rank(), cluster_size(), args.border,         state,
                                 scratch,        behind,         behind + args.border};
  const std::uint32_t warp = threadIdx.x / kWarp;
  join_chain();
  const std::int64_t index = blockIdx.x >> shift_of(place.blocks);
  if (skips(args.kinds, request, index)) return;
  const Stored* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  const auto columns = static_cast<std::uint32_t>(logits.cols);
  const row_pieces<Stored, Form> all(values, columns, place.blocks);
  unsigned char* slots = dynamic_shared() + args.slots_at + warp * args.slots * kWarp * 16;
  row_part_of_warp<Stored, Form> part(values, all, place.rank, slots, args.slots, state.landed[warp]);
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
  auto* of_others = reinterpret_cast<float*>(slots - warp * args.slots * kWarp * 16);
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
  draw_in_place<Stored>(request, args.segment, index, most, cluster, in_place, 0);
  if (place.rank == 0) cluster_sync();  // the others may still look at this block's memory, until they end
}

/// How rows are spread over the GPU.
struct weight_layout {
  int form;    // block_form: blocks of a multiprocessor
  int blocks;  // of a row
};

/// The first whose bounds hold a request serves it. A block of the three forms has 260, 131 and 33 KB on the chip.
struct layout_rule {
  std::int64_t most_rows;   // for each multiprocessor
  std::int64_t most_bytes;  // of a row
  weight_layout layout;
};
constexpr std::int64_t kAnyRows = std::int64_t{1} << 40;
constexpr layout_rule kLayouts[] = {
    {1, 32'768, {2, 1}},          // half as many threads wait for each other
    {1, 260'000, {1, 1}},         // a row has a multiprocessor
    {2, 131'072, {2, 1}},         // all run at a time
    {kAnyRows, 32'768, {4, 1}},   // in waves, as many at a time as are on the chip as a whole
    {kAnyRows, 131'072, {2, 1}},  //
    {kAnyRows, 245'760, {2, 2}},  // room for what two blocks tell each other, too
    {kAnyRows, 260'000, {1, 1}},
};

weight_layout layout_of(const core::sample_request& request, int multiprocessors) {
  constexpr std::int64_t kMostBytes = 520'000;                  // of a block, half of them on the chip
  constexpr std::int64_t kMostColumns = std::int64_t{1} << 20;  // of a block: its ranges' tokens have room
  const std::int64_t rows = request.logits.rows;
  const std::int64_t columns = request.logits.cols;
  const std::int64_t row_bytes = columns * size_bytes(request.logits.type);
  int blocks = blocks_of_row(rows, columns, multiprocessors);
  if (blocks == 1) {
    for (const layout_rule& rule : kLayouts)
      if (rows <= rule.most_rows * multiprocessors && row_bytes <= rule.most_bytes) return rule.layout;
    blocks = 2;
    while (blocks < kMostBlocks && row_bytes > kMostBytes * blocks) blocks *= 2;
  }
  while (blocks < kMostBlocks && columns > kMostColumns * blocks) blocks *= 2;
  return {1, blocks};
}

std::int64_t rounded_up(std::int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

template <class Stored, class Form>
void launch_form(cudaStream_t stream, const core::sample_request& request, row_kinds kinds, int blocks) {
  constexpr std::int64_t kPerVector = 16 / sizeof(Stored);
  constexpr std::int64_t kLeastBorder = 1024;
  const std::int64_t round = std::int64_t{blocks} * Form::kThreads * kPerVector;  // columns
  const std::int64_t rounds = (request.logits.cols + round - 1) / round;
  const std::int64_t range =
      std::int64_t{1} << range_shift(static_cast<std::uint32_t>(rounds * Form::kThreads * kPerVector + 2 * kPerVector));
  weight_args args{};
  args.request = request;
  args.kinds = kinds;
  args.segment = segment_of(request, blocks);
  args.border = std::bit_ceil(
      static_cast<std::uint32_t>(std::max({kLeastBorder, std::int64_t{Form::kThreads} * blocks, 2 * range})));
  const std::int64_t border_bytes = args.border * std::int64_t{sizeof(std::uint64_t)};
  const std::int64_t told_bytes =
      std::max<std::int64_t>(blocks * kBorderBins * sizeof(std::uint64_t), Form::kThreads / 2 * sizeof(weighed_key));
  const std::int64_t scratch_bytes =
      std::max<std::int64_t>(sizeof(weight_scratch<Form>) + border_bytes + told_bytes, sizeof(stream_scratch));
  const std::int64_t slots_at = rounded_up(sizeof(weight_state<Form>) + scratch_bytes);
  constexpr std::int64_t kTakenBytes = 1024;  // of a multiprocessor's shared memory, by each block for the system
  constexpr std::int64_t kBytes = (kMaxSharedBytes + kTakenBytes) / Form::kBlocks - kTakenBytes;
  constexpr std::int64_t kSlotBytes = Form::kThreads * 16;
  constexpr std::int64_t kMostSlots = kSpareSlots + kMostChunks * row_part_of_warp<Stored, Form>::kChunk;
  args.slots = static_cast<std::uint32_t>(std::min((kBytes - slots_at) / kSlotBytes, kMostSlots));
  args.slots_at = static_cast<std::uint32_t>(slots_at);
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(request.logits.rows * blocks));
  shape.threads = Form::kThreads;
  shape.shared_bytes = slots_at + args.slots * kSlotBytes;
  shape.cluster = blocks;
  shape.overlaps = true;
  launch(weight_sample_kernel<Stored, Form>, shape, stream, args, "starting to sample rows by weight");
}

template <class Stored>
void launch_type(cudaStream_t stream, const core::sample_request& request, row_kinds kinds,
                 const weight_layout& layout) {
  if (layout.form == 4)
    launch_form<Stored, block_form<4>>(stream, request, kinds, layout.blocks);
  else if (layout.form == 2)
    launch_form<Stored, block_form<2>>(stream, request, kinds, layout.blocks);
  else
    launch_form<Stored, block_form<1>>(stream, request, kinds, layout.blocks);
}

}  // namespace

void launch_weight_sample(cudaStream_t stream, const core::sample_request& request, row_kinds kinds,
                          int multiprocessors) {
  const weight_layout layout = layout_of(request, multiprocessors);
  by_stored_type(request.logits.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, request, kinds, layout); });
}

}  // namespace shortlist::cuda
