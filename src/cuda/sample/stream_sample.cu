// Sampling from plain rows: a cluster of blocks streams a row past a cut, and draws from what reaches it.
//
// Why it is fast: a row is read once; as much of it as fits is held in shared memory, the rest asked for from L2 while
// the blocks meet. With top_k, the best of 128 groups of what is held give a cut that the k best surely reach, and what
// reaches it, some hundred tokens, is ranked by one block. With top_p alone, a sample suggests which tokens may be
// kept; one weighing of all logits lists them, and the exact sums find the border among them. Steps: load, the best of
// groups, shared -> by count: list, rank, draw; by weight: floor guessed from the sample -> all weighed, what reaches
// it listed by each block -> the border's bin, its tokens ranked -> the block that the draw falls into -> its token.
// Exact for any data: sums are integers; where a list overflows, or does not hold the border, the row is searched where
// it lies, by passes that serve any data.
// Limit: bytes(logits) over read bandwidth. Measured share: docs/kernels.md.
#include <algorithm>
#include <cstdint>

#include "cuda/runtime/launch.cuh"
#include "cuda/sample/stream_count.cuh"
#include "cuda/sample/stream_sample.hpp"
#include "cuda/sample/stream_weight.cuh"
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
};

/// A row that no list is made for, or whose list overflowed: searched where it lies. All threads of the cluster come,
/// after a meeting. @param most of the thread's logits.
template <class Stored>
__device__ __noinline__ void draw_in_place(const stream_args& args, std::int64_t index, float most,
                                           const cluster_place& place, stream_scratch& scratch) {
  const value_matrix& logits = args.request.logits;
  const auto* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  row_in_place<Stored> part;
  part.segment = args.segment;
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
  }
  share_logits(place.blocks, place.rank, most, row);
  choose_token(args.request, index, part, best_of_groups(row.groups), row);
}

template <class Stored>
__global__ void __launch_bounds__(kThreads, kBlocks) stream_sample_kernel(const __grid_constant__ stream_args args) {
  const core::sample_request& request = args.request;
  const value_matrix& logits = request.logits;
  auto& scratch = *reinterpret_cast<stream_scratch*>(dynamic_shared());
  sample_scratch& row = scratch.row;
  auto* own = reinterpret_cast<std::uint64_t*>(&scratch + 1);
  const cluster_place place{cluster_rank(), cluster_size(), own, args.own};
  const std::int64_t index = blockIdx.x / place.blocks;
  const Stored* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  cluster_arrive();
  const logit_stream<Stored> stream(values, static_cast<std::uint32_t>(logits.cols), place.rank, place.blocks,
                                    reinterpret_cast<uint4*>(own + args.own), args.held_rounds, kLeastWord<Stored>);
  stream.begin_to_hold();
  stream.prefetch();
  if (threadIdx.x == 0) {
    row.params = core::params_of(request.params, index, logits.cols);
    row.listed = 0;
    row.appended = 0;
    scratch.shares.appended = 0;
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
    done = draw_by_count(request, index, stream, wanted, most, place, scratch);
    if (!done && stream.step > 1) stream.template for_each_vector<false>(look, none, nothing);
  } else if (by_weight && core::is_finite(core::from_ascending_key(best))) {
    const row_filter filter{core::from_ascending_key(best), params.steepness, kEveryCandidate, minus_infinity<float>()};
    done = draw_by_weight(request, index, stream, whole_row_filter{filter}, most, place, scratch);
  }
  if (!done) draw_in_place<Stored>(args, index, most, place, scratch);
  if (place.rank != 0) return;
  cluster_sync();  // the others may still look at this block's memory, until they end
}

/// How a request is spread over the GPU.
struct stream_layout {
  int blocks;  // a row
  int held_rounds;
  int own;
};

/// Whether no row asks for a draw by weight alone: values that lie on the device are not known here.
bool counts_alone(const sample_params& params) {
  const bool greedy = !params.temperature.rows && params.temperature.common == 0;
  return greedy || (!params.top_k.rows && params.top_k.common > 0);
}

stream_layout layout_of(const core::sample_request& request, std::int64_t multiprocessors) {
  constexpr std::int64_t kLeastLogits = 4096;      // a block: fewer do not pay for its part in the meetings
  constexpr std::int64_t kMostLogits = 64 * 1024;  // a block that weighs: its list holds a twentieth of them
  const std::int64_t cols = request.logits.cols;
  const std::int64_t rows = request.logits.rows;
  const bool counts = counts_alone(request.params);
  // By weight, instructions are the limit: two blocks a multiprocessor.
  const std::int64_t wanted = counts ? multiprocessors : 2 * multiprocessors;
  int blocks = 1;
  const auto more = [&] {
    return (!counts && cols > kMostLogits * blocks) ||
           (rows * blocks * 2 <= wanted && cols >= 2 * kLeastLogits * blocks);
  };
  while (blocks < kMostBlocks && more()) blocks *= 2;
  const bool alone = rows * blocks <= multiprocessors;
  const bool large = alone || (!counts && blocks <= 2);  // three blocks a multiprocessor pay less than longer lists
  return large ? stream_layout{blocks, 16, 4096} : stream_layout{blocks, 8, 2048};
}

template <class Stored>
void launch_type(cudaStream_t stream, const core::sample_request& request, const stream_layout& layout) {
  constexpr std::int64_t kMostShift = 16 / static_cast<std::int64_t>(sizeof(Stored)) - 1;
  const std::int64_t segments = std::int64_t{layout.blocks} * kWarps;
  const std::int64_t least = (request.logits.cols + kMostShift + segments - 1) / segments;
  stream_args args{request, static_cast<std::uint32_t>((least + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit),
                   static_cast<std::uint32_t>(layout.own), static_cast<std::uint32_t>(layout.held_rounds)};
  const std::int64_t vectors = request.logits.cols * static_cast<std::int64_t>(sizeof(Stored)) / 16;
  const std::int64_t rounds = ((vectors + layout.blocks - 1) / layout.blocks + kThreads - 1) / kThreads;
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(request.logits.rows * layout.blocks));
  shape.threads = kThreads;
  shape.shared_bytes = static_cast<std::int64_t>(sizeof(stream_scratch)) + std::int64_t{layout.own} * 8 +
                       std::clamp<std::int64_t>(rounds, kFlight, layout.held_rounds) * kThreads * 16;
  shape.cluster = layout.blocks;
  launch(stream_sample_kernel<Stored>, shape, stream, args, "starting to sample streamed rows");
}

}  // namespace

core::sample_work sample_work_of(const core::sample_request& request) {
  const sample_params& params = request.params;
  const sample_output& out = request.out;
  const bool plain = !params.prompt.begins && !params.generated.begins && !params.bias.values && !params.allowed.data;
  const bool weighs_all = out.logprobs || out.top_n > 0;
  const bool neighbours = request.logits.col_stride == 1 || request.logits.cols == 1;
  // Values that lie on the device may be any.
  const bool short_lists = params.top_k.rows || params.top_k.common <= static_cast<std::int32_t>(kMostByGroups);
  const bool filtered = params.temperature.rows || params.temperature.common == 0 || params.top_k.rows ||
                        params.top_k.common > 0 || params.top_p.rows || params.top_p.common < 1;
  const bool fits = request.logits.rows <= kMostGrid / kMostBlocks;
  const bool serves = fits && plain && !weighs_all && neighbours && short_lists && filtered;
  return serves ? core::sample_work::filtered : core::sample_work::whole;
}

void launch_stream_sample(cudaStream_t stream, const core::sample_request& request, int multiprocessors) {
  const stream_layout layout = layout_of(request, multiprocessors);
  by_stored_type(request.logits.type, [&](auto stored) { launch_type<decltype(stored)>(stream, request, layout); });
}

}  // namespace shortlist::cuda
