// Sampling from plain rows: a cluster of blocks streams a row past a cut, and draws from what reaches it.
//
// Where every row keeps its few best by count, count_sample.cu serves; where none does, weight_sample.cu, but for many
// short rows. Here a row may ask for either: an array of top_k tells what on the device alone. Where such rows have
// many logits, count_sample.cu serves those that it can, and what is launched behind it the others.
//
// Why it is fast: a row is read once; as much of it as fits is held in shared memory, the rest asked for from L2 while
// the blocks meet. With top_k, the best of 128 groups of what is held give a cut that the k best surely reach, and what
// reaches it, some hundred tokens, is ranked by one block. With top_p alone, a sample suggests which tokens may be
// kept; one weighing of all logits lists them, and the exact sums find the border among them. Steps: load, the best of
// groups, shared -> by count: list, rank, draw; by weight: floor guessed from the sample -> all weighed, what reaches
// it listed by each block -> the border's bin, its tokens ranked -> the block that the draw falls into -> its token.
// Exact for any data: sums are integers; where a list overflows, or does not hold the border, the row is searched where
// it lies, by passes that serve any data.
// Limit: bytes(logits) over read bandwidth. Measured share: docs/kernels.md, "Parameters that are arrays".
#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/device/chain.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/sample/count_sample.hpp"
#include "cuda/sample/stream_count.cuh"
#include "cuda/sample/stream_in_place.cuh"
#include "cuda/sample/stream_sample.hpp"
#include "cuda/sample/stream_weight.cuh"
#include "cuda/sample/weight_sample.hpp"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {
namespace {

using namespace sampling;

constexpr int kBlocks = 3;  // a multiprocessor holds
constexpr std::int64_t kMostGrid = std::int64_t{1} << 30;

struct stream_args {
  core::sample_request request;
  std::uint32_t segment;  // of a row that is read in place
  std::uint32_t own;      // keys in a block's list
  std::uint32_t held_rounds;
  std::uint32_t border;  // keys that their memory has room for, a power of two
  row_kinds kinds;
};

template <class Stored>
__global__ void __launch_bounds__(kThreads, kBlocks) stream_sample_kernel(const __grid_constant__ stream_args args) {
  const core::sample_request& request = args.request;
  const value_matrix& logits = request.logits;
  auto& scratch = *reinterpret_cast<stream_scratch*>(dynamic_shared());
  sample_scratch& row = scratch.row;
  auto* own = reinterpret_cast<std::uint64_t*>(&scratch + 1);
  const cluster_place place{cluster_rank(), cluster_size(), own, args.own};
  const std::int64_t index = blockIdx.x >> shift_of(place.blocks);
  join_chain();
  if (skips(args.kinds, request, index)) return;
  const Stored* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  if (threadIdx.x == 0) {
    init_groups(place.blocks, row.groups);
    init_shares(place.blocks, scratch.shares);
    cluster_barriers_ready();
  }
  cluster_arrive_begun();
  std::uint64_t* held = own + args.own;
  const logit_stream<Stored> stream(values, static_cast<std::uint32_t>(logits.cols), place.rank, place.blocks,
                                    reinterpret_cast<uint4*>(held), args.held_rounds, kLeastWord<Stored>);
  stream.begin_to_hold();
  stream.prefetch();
  if (threadIdx.x == 0) {
    row.params = core::params_of(request.params, index, logits.cols);
    row.listed = 0;
    row.appended = 0;
  }
  __syncthreads();
  const core::row_params& params = row.params;
  const std::uint32_t wanted = wanted_by_count(params);
  const bool by_count = wanted > 0 && wanted <= kMostByGroups;
  const bool min_p_first = !params.min_p_off && request.params.min_p_order == min_p_order::first;
  const bool by_weight =
      wanted == 0 && !params.top_p_off && !min_p_first && (stream.piece + 2) * (16 / sizeof(Stored)) < kMostRange;
  float most = stream.edge;
  const auto look = [&](uint4 raw) {
    most = larger_or_nan(most, largest_of<Stored, true>(raw));
    return 0u;
  };
  const auto none = [](std::uint32_t) { return 0u; };
  const auto nothing = [](std::uint32_t, float, std::uint32_t) {};
  async_wait<0>();
  stream.template for_each_vector<true>(look, none, nothing);
  if (!by_count && stream.step > 1) stream.template for_each_vector<false>(look, none, nothing);
  cluster_wait();  // all blocks have begun
  share_logits(place.blocks, place.rank, most, row);
  const std::uint32_t best = best_of_groups(row.groups);
  if (!params.valid || best == kNanGroup || (!by_count && best < kLeastKey)) {
    if (place.rank == 0)
      write_failure(request.out, index,
                    !params.valid       ? sample_status::bad_parameter
                    : best == kNanGroup ? sample_status::nan_logit
                                        : sample_status::nothing_allowed);
    return;
  }
  bool done = false;
  if (by_count) {
    const auto for_each_vector = [&](auto mark, auto room, auto take) {
      stream.template for_each_vector<true>(mark, room, take);
      if (stream.step > 1) stream.template for_each_vector<false>(mark, room, take);
    };
    const auto for_each_alone = [&](auto look) {
      if (stream.has_edge) look(stream.edge, stream.edge_column);
    };
    done = draw_by_count<Stored>(request, index, for_each_vector, for_each_alone, as_stored{}, wanted, most, place,
                                 scratch);
  } else if (by_weight && core::is_finite(core::from_ascending_key(best))) {
    const row_filter filter{core::from_ascending_key(best), params.steepness, kEveryCandidate, minus_infinity<float>()};
    done = draw_by_weight(request, index, stream, whole_row_filter{filter}, most, border_room{held, args.border}, place,
                          scratch);
  }
  if (!done) draw_in_place<Stored>(request, args.segment, index, most, place, scratch);
  if (place.rank != 0) return;
  cluster_sync();  // the others may still look at this block's memory, until they end
}

/// How a request is spread over the GPU.
struct stream_layout {
  int blocks;  // a row
  int held_rounds;
  int own;
};

stream_layout layout_of(const core::sample_request& request, std::int64_t multiprocessors) {
  constexpr std::int64_t kMostLogits = 64 * 1024;  // a block: its list holds a twentieth of them
  const std::int64_t cols = request.logits.cols;
  const std::int64_t rows = request.logits.rows;
  int blocks = 1;  // instructions are the limit: two blocks a multiprocessor
  while (blocks < kMostBlocks &&
         (cols > kMostLogits * blocks || blocks_can_double(rows, cols, blocks, 2 * multiprocessors))) {
    blocks *= 2;
  }
  const bool large = rows * blocks <= multiprocessors || blocks <= 2;  // three blocks pay less than longer lists
  return large ? stream_layout{blocks, 16, 4096} : stream_layout{blocks, 8, 2048};
}

template <class Stored>
void launch_type(cudaStream_t stream, const core::sample_request& request, row_kinds kinds,
                 const stream_layout& layout) {
  const std::int64_t vectors = request.logits.cols * static_cast<std::int64_t>(sizeof(Stored)) / 16;
  const std::int64_t rounds = ((vectors + layout.blocks - 1) / layout.blocks + kThreads - 1) / kThreads;
  const std::int64_t held_bytes = std::clamp<std::int64_t>(rounds, kFlight, layout.held_rounds) * kThreads * 16;
  const stream_args args{request,
                         segment_of(request, layout.blocks),
                         static_cast<std::uint32_t>(layout.own),
                         static_cast<std::uint32_t>(layout.held_rounds),
                         std::bit_floor(static_cast<std::uint32_t>(held_bytes / 8)),
                         kinds};
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(request.logits.rows * layout.blocks));
  shape.threads = kThreads;
  shape.shared_bytes = static_cast<std::int64_t>(sizeof(stream_scratch)) + std::int64_t{layout.own} * 8 + held_bytes;
  shape.cluster = layout.blocks;
  shape.overlaps = true;
  launch(stream_sample_kernel<Stored>, shape, stream, args, "starting to sample streamed rows");
}

/// Tokens that top_k leaves of every row; 0 if it is off, or not known here: values of rows lie on the device.
std::int64_t common_top_k(const core::sample_request& request) {
  const per_row<std::int32_t>& top_k = request.params.top_k;
  return !top_k.rows && top_k.common > 0 && top_k.common < request.logits.cols ? top_k.common : 0;
}

}  // namespace

bool counts_alone(const core::sample_request& request) {
  const per_row<float>& temperature = request.params.temperature;
  return common_top_k(request) > 0 || (!temperature.rows && temperature.common == 0);
}

core::sample_work sample_work_of(const core::sample_request& request, int multiprocessors) {
  const sample_params& params = request.params;
  const sample_output& out = request.out;
  const bool weighs_all = out.logprobs || out.top_n > 0;
  // Values that lie on the device may be any.
  const bool short_lists = common_top_k(request) <= static_cast<std::int64_t>(kMostByGroups);
  const bool top_p = params.top_p.rows || params.top_p.common < 1;
  const bool filtered = counts_alone(request) || params.temperature.rows || params.top_k.rows || top_p;
  const bool fits = request.logits.rows <= kMostGrid / kMostBlocks;
  const bool streams = !weighs_all && short_lists && filtered;
  // Rows that are weighed know the weight of all, too, and have no need of lists where nothing but min_p filters.
  const auto weighs = [&] {
    const bool min_p_first = params.min_p_order == min_p_order::first && (params.min_p.rows || params.min_p.common > 0);
    return out.top_n == 0 && !counts_alone(request) && !(min_p_first && top_p) &&
           weight_sample_serves(request, row_kinds::all, multiprocessors);
  };
  return fits && (streams || weighs()) ? core::sample_work::filtered : core::sample_work::whole;
}

void launch_stream_sample(cudaStream_t stream, const core::sample_request& request, row_kinds kinds,
                          int multiprocessors) {
  if (counts_alone(request)) return launch_count_sample(stream, request, nullptr, row_kinds::all, multiprocessors);
  if (kinds == row_kinds::all && splits_rows(request)) {
    launch_count_sample(stream, request, nullptr, row_kinds::counted, multiprocessors);
    kinds = row_kinds::others;
  }
  if (weight_sample_serves(request, kinds, multiprocessors))
    return launch_weight_sample(stream, request, kinds, multiprocessors);
  const stream_layout layout = layout_of(request, multiprocessors);
  by_stored_type(request.logits.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, request, kinds, layout); });
}

}  // namespace shortlist::cuda
