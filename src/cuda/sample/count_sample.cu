// Sampling from rows of which the few best remain: a cluster of blocks streams a row past a cut, and draws from what
// reaches it.
//
// Why it is fast: one launch, which follows the kernel before without a gap; a row is read once, as much of it under
// way as shared memory holds; blocks tell each other by sends, which wait for no loads.
// Steps: the first rounds of vectors, from all over the row -> the best of 128 groups of them, shared -> their k-th
// best is the cut -> what reaches it, some hundred tokens, is listed in the first block -> which ranks and draws.
// Under an overlay, the bits of a block's vectors come to shared memory before them; what they hide no step sees, and
// the penalized tokens are looked at behind the vectors, whose logits L2 has by then.
// Exact for any data: where a list overflows, the row is searched where it lies, by passes that serve any data.
// Limit: bytes(logits) over read bandwidth. Measured share: docs/kernels.md.
#include <algorithm>
#include <cstdint>

#include "cuda/device/chain.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/sample/count_sample.hpp"
#include "cuda/sample/row_overlay.cuh"
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

/// An overlay's bits take the place of batches.
constexpr std::uint32_t kMostBitWords = 6 * 1024;
constexpr std::int64_t kMultiprocessorBytes = 228 * 1024;  // of shared memory,
constexpr std::int64_t kBlockBytes = 1280;                 // of which each block takes so many beside that
constexpr std::int64_t kBatchBytes = std::int64_t{kFlight} * kThreads * 16;

struct count_args {
  core::sample_request request;
  std::uint32_t segment;  // of a row that is read in place
  count_room room;
  row_kinds kinds;
  std::uint32_t bit_words = 0;  // of a block's vectors
  row_overlay overlay{};
};

/// The same as draw_in_place, under an overlay.
template <class Stored>
__device__ __noinline__ void draw_under_overlay(const count_args& args, std::int64_t index, float most,
                                                const cluster_place& place, stream_scratch& scratch) {
  const overlaid_row<Stored> over(args.overlay, args.request, index, place);
  over.place_times();
  const overlaid_part<Stored> part(part_in_place<Stored>(args.request.logits, args.segment, index, place), over);
  draw_by_part(args.request, part, index, most, place, scratch, 1);
}

/// @tparam Overlaid whether the rows lie under an overlay.
template <class Stored, bool Overlaid>
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
  if (skips(args.kinds, request, index)) {
    cluster_wait();
    return;
  }
  const Stored* values = static_cast<const Stored*>(logits.data) + index * logits.row_stride;
  const auto vocab = static_cast<std::uint32_t>(logits.cols);
  auto* const memory = reinterpret_cast<uint4*>(own + args.room.own);
  row_ring<Stored, kThreads> ring(values, vocab, place.rank, place.blocks, memory + (Overlaid ? args.bit_words / 4 : 0),
                                  args.room.batches, args.room.first, kLeastWord<Stored>);
  __shared__ kept_words<Stored> kept;
  const overlaid_row<Stored> over(args.overlay, request, index, place);
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
      draw_under_overlay<Stored>(args, index, most, place, scratch);
    else
      draw_in_place<Stored>(request, args.segment, index, most, place, scratch);
    if (place.rank == 0) cluster_sync();  // the others may still look at this block's memory, until they end
  }
}

/// Words of the bits of a block's vectors of a row, of which each of so many blocks has a part.
std::uint32_t bit_words_of_part(const core::sample_request& request, int blocks) {
  const auto per_vector = static_cast<std::uint32_t>(16 / size_bytes(request.logits.type));
  const std::uint32_t vectors = static_cast<std::uint32_t>(request.logits.cols) / per_vector;
  return bit_words_of((vectors + blocks - 1) / blocks, per_vector);
}

int blocks_of(const core::sample_request& request, bool overlaid, int multiprocessors) {
  int blocks = blocks_of_row(request.logits.rows, request.logits.cols, multiprocessors);
  while (blocks < kMostBlocks && overlaid && bit_words_of_part(request, blocks) > kMostBitWords) blocks *= 2;
  return blocks;
}

template <class Stored>
void launch_type(cudaStream_t stream, const core::sample_request& request, const row_overlay* overlay, row_kinds kinds,
                 int multiprocessors) {
  const int blocks = overlay ? overlay->pieces : blocks_of(request, false, multiprocessors);
  const std::int64_t grid = request.logits.rows * blocks;
  const std::int64_t held = std::clamp<std::int64_t>((grid + multiprocessors - 1) / multiprocessors, 1, kBlocks);
  count_args args{.request = request, .segment = segment_of(request, blocks), .room = kRooms[held - 1], .kinds = kinds};
  if (overlay) {
    args.overlay = *overlay;
    args.bit_words = bit_words_of_part(request, blocks);
  }
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(grid));
  shape.threads = kThreads;
  const std::int64_t fixed_bytes = static_cast<std::int64_t>(sizeof(stream_scratch)) + std::int64_t{args.room.own} * 8 +
                                   std::int64_t{args.bit_words} * 4;
  const auto bytes = [&] { return fixed_bytes + args.room.batches * kBatchBytes; };
  while (bytes() > kMultiprocessorBytes / held - kBlockBytes) args.room.batches--;
  args.room.first = std::min(args.room.first, args.room.batches);
  shape.shared_bytes = bytes();
  shape.cluster = blocks;
  shape.overlaps = true;
  constexpr const char* kWhat = "starting to sample the best of streamed rows";
  if (overlay)
    launch(count_sample_kernel<Stored, true>, shape, stream, args, kWhat);
  else
    launch(count_sample_kernel<Stored, false>, shape, stream, args, kWhat);
}

}  // namespace

bool count_sample_serves_overlay(const core::sample_request& request) {
  return bit_words_of_part(request, kMostBlocks) <= kMostBitWords;
}

int overlaid_pieces(const core::sample_request& request, int multiprocessors) {
  return blocks_of(request, true, multiprocessors);
}

void launch_count_sample(cudaStream_t stream, const core::sample_request& request, const row_overlay* overlay,
                         row_kinds kinds, int multiprocessors) {
  by_stored_type(request.logits.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, request, overlay, kinds, multiprocessors); });
}

}  // namespace shortlist::cuda
