// Sampling from plain rows of which the few best remain: a cluster of blocks streams a row past a cut, and draws from
// what reaches it.
//
// Why it is fast: one launch, which follows the kernel before without a gap; a row is read once, as much of it under
// way as shared memory holds; blocks tell each other by sends, which wait for no loads.
// Steps: the first rounds of vectors, from all over the row -> the best of 128 groups of them, shared -> their k-th
// best is the cut -> what reaches it, some hundred tokens, is listed in the first block -> which ranks and draws.
// Exact for any data: where a list overflows, the row is searched where it lies, by passes that serve any data.
// Limit: bytes(logits) over read bandwidth. Measured share: docs/kernels.md.
#include <algorithm>
#include <cstdint>

#include "cuda/device/chain.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/sample/count_sample.hpp"
#include "cuda/sample/stream_count.cuh"
#include "cuda/sample/stream_in_place.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {
namespace {

using namespace sampling;

/// How much a block has room for.
struct count_room {
  std::uint32_t own;      // keys in its list
  std::uint32_t batches;  // of kFlight rounds,
  std::uint32_t first;    // those among them that the cut comes from
};

// By the blocks that a multiprocessor holds.
constexpr int kBlocks = 3;
constexpr count_room kRooms[kBlocks] = {{4096, 11, 4}, {2048, 5, 4}, {1024, 3, 2}};

struct count_args {
  core::sample_request request;
  std::uint32_t segment;  // of a row that is read in place
  count_room room;
};

template <class Stored>
__global__ void __launch_bounds__(kThreads, kBlocks) count_sample_kernel(const __grid_constant__ count_args args) {
  const core::sample_request& request = args.request;
  const value_matrix& logits = request.logits;
  auto& scratch = *reinterpret_cast<stream_scratch*>(dynamic_shared());
  sample_scratch& row = scratch.row;
  auto* own = reinterpret_cast<std::uint64_t*>(&scratch + 1);
  const cluster_place place{cluster_rank(), cluster_size(), own, args.room.own};
  if (threadIdx.x == 0) {
    init_groups(place.blocks, row.groups);
    init_shares(place.blocks, scratch.shares);
    row.listed = 0;
    row.appended = 0;
    cluster_barriers_ready();
  }
  cluster_arrive_begun();
  join_chain();
  const std::int64_t index = blockIdx.x >> shift_of(place.blocks);
  const Stored* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  row_ring<Stored, kThreads> ring(values, static_cast<std::uint32_t>(logits.cols), place.rank, place.blocks,
                                  reinterpret_cast<uint4*>(own + args.room.own), args.room.batches, args.room.first,
                                  kLeastWord<Stored>);
  ring.begin();
  if (threadIdx.x == 0) row.params = core::params_of(request.params, index, logits.cols);
  float most = ring.edge;
  ring.for_each_first([&](uint4 raw) { most = larger_or_nan(most, largest_of<Stored, true>(raw)); });
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
  if (!draw_by_count(request, index, ring, for_each_vector, wanted_by_count(params), most, place, scratch)) {
    draw_in_place<Stored>(request, args.segment, index, most, place, scratch);
    if (place.rank == 0) cluster_sync();  // the others may still look at this block's memory, until they end
  }
}

template <class Stored>
void launch_type(cudaStream_t stream, const core::sample_request& request, int blocks, int multiprocessors) {
  const std::int64_t grid = request.logits.rows * blocks;
  const std::int64_t held = std::clamp<std::int64_t>((grid + multiprocessors - 1) / multiprocessors, 1, kBlocks);
  const count_args args{request, segment_of(request, blocks), kRooms[held - 1]};
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(grid));
  shape.threads = kThreads;
  shape.shared_bytes = static_cast<std::int64_t>(sizeof(stream_scratch)) + std::int64_t{args.room.own} * 8 +
                       std::int64_t{args.room.batches} * kFlight * kThreads * 16;
  shape.cluster = blocks;
  shape.overlaps = true;
  launch(count_sample_kernel<Stored>, shape, stream, args, "starting to sample the best of streamed rows");
}

}  // namespace

void launch_count_sample(cudaStream_t stream, const core::sample_request& request, int multiprocessors) {
  int blocks = 1;
  while (blocks < kMostBlocks && blocks_can_double(request, blocks, multiprocessors)) blocks *= 2;
  by_stored_type(request.logits.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, request, blocks, multiprocessors); });
}

}  // namespace shortlist::cuda
