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
#include "cuda/sample/count_steps.cuh"

namespace shortlist::cuda {
namespace {

using namespace sampling;

constexpr std::uint32_t kMostBitWords = 6 * 1024;  // of a block's overlay

struct count_args {
  core::sample_request request;
  count_plan plan;
  row_kinds kinds;
  row_overlay overlay{};
};

/// @tparam Overlaid whether the rows lie under an overlay.
template <class Stored, bool Overlaid>
__global__ void __launch_bounds__(kThreads, kCountBlocks) count_sample_kernel(const __grid_constant__ count_args args) {
  begin_to_count(cluster_size());
  join_chain();
  const std::int64_t index = blockIdx.x >> shift_of(cluster_size());
  if (skips(args.kinds, args.request, index)) {
    cluster_wait();
    return;
  }
  draw_counted_row<Stored, Overlaid>(args.request, args.plan, args.overlay, index);
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
  const std::int64_t held = std::clamp<std::int64_t>((grid + multiprocessors - 1) / multiprocessors, 1, kCountBlocks);
  count_args args{.request = request,
                  .plan = plan_counting(request, blocks, held, overlay ? bit_words_of_part(request, blocks) : 0),
                  .kinds = kinds};
  if (overlay) args.overlay = *overlay;
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(grid));
  shape.threads = kThreads;
  shape.shared_bytes = args.plan.bytes();
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
