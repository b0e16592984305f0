// Sampling: a row of logits by a cluster of blocks, which hold it on the chip from the one time that it is read.
//
// Why it is fast: a row is read once, by 16-byte loads of up to eight blocks; all later passes touch shared memory.
// With top_k on, a cut that the k best surely reach comes for nothing from the best of 128 disjoint groups of tokens,
// and what reaches it is a list of about 1.5 k in the first block, which alone orders, weighs and draws. Without top_k,
// counts of exponents guess where top_p's border is; one weighing confirms it, and only the border's tokens are listed.
// Steps: load -> best of groups, shared -> list of the best, or cuts of the whole row -> draw: from the list; or a
// segment by the sums of the kept weights, then its token. A row too long for the chip is read where it lies each time.
// Exact for any data: sums are integers; a list that overflows is shortened by a cut that is searched by counting, and
// a border bin that overflows by weighing, keys and tokens as one number, so that no ties are left.
// Limit: bytes(logits) over read bandwidth. Measured share: docs/kernels.md.
// History, 64 x 128,256 bf16, k 50: appended by remote atomics 31.7 us -> shares of the list, all clusters resident at
// once, groups cut within a warp 22.8.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/runtime/launch.cuh"
#include "cuda/sample/row_choice.cuh"
#include "cuda/sample/row_load.cuh"
#include "cuda/sample/sample_rows.hpp"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {
namespace {

using namespace sampling;

constexpr std::int64_t kMostHeld = 16'384;  // logits a block: two of fp32 share a multiprocessor, five of 16 bits
constexpr std::int64_t kLeastHeld = 2'048;  // fewer a block do not pay for its part in the meetings
constexpr std::int64_t kWantedBlocks = 2;   // a multiprocessor, where rows are few

struct sample_args {
  core::sample_request request;
  std::int64_t first_row;
  std::uint32_t segment;
};

/// Blocks that a multiprocessor has room for: shared memory's share of kMostHeld logits decides.
template <class Stored, bool OnChip>
constexpr int blocks_held = OnChip && sizeof(Stored) == 2 ? 5 : 2;

/// @tparam OnChip the logits are held in shared memory; else they are read where they lie.
template <class Stored, bool OnChip>
__global__ void __launch_bounds__(kThreads, blocks_held<Stored, OnChip>)
    sample_rows_kernel(const __grid_constant__ sample_args args) {
  const core::sample_request& request = args.request;
  const value_matrix& logits = request.logits;
  auto& scratch = *reinterpret_cast<sample_scratch*>(dynamic_shared());
  const std::int64_t row = args.first_row + blockIdx.x / cluster_size();
  const Stored* values = static_cast<const Stored*>(logits.data) + row * logits.row_stride;
  if (threadIdx.x == 0) {
    init_groups(cluster_size(), scratch.groups);
    cluster_barriers_ready();
  }
  cluster_arrive_begun();
  std::conditional_t<OnChip, row_part<Stored>, row_in_place<Stored>> part;
  part.segment = args.segment;
  part.blocks = cluster_size();
  part.rank = cluster_rank();
  part.shift = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(values) % 16 / sizeof(Stored));
  part.vocab = static_cast<std::uint32_t>(logits.cols);
  if (threadIdx.x == 0) {
    scratch.params = core::params_of(request.params, row, logits.cols);
    scratch.listed = 0;
    scratch.appended = 0;
  }
  float most;
  if constexpr (OnChip) {
    part.held = reinterpret_cast<Stored*>(&scratch + 1);
    most = load_part(part, values);
  } else {
    part.begin = values - part.shift;
    most = largest_of_part(part);
  }
  __syncthreads();
  cluster_wait();  // all blocks have begun
  share_logits(part.blocks, part.rank, most, scratch);
  choose_token(request, row, part, best_of_groups(scratch.groups), scratch);
  if (part.rank == 0) cluster_sync();  // the others may still look at this block's memory, until they end
}

/// Blocks a row: enough to hold it, and more where rows are few.
int blocks_of(const core::sample_request& request, int multiprocessors) {
  int blocks = 1;
  const auto grow_while = [&](auto condition) {
    while (blocks < kMostBlocks && condition()) blocks *= 2;
  };
  grow_while([&] { return request.logits.cols > kMostHeld * blocks; });
  grow_while([&] {
    return request.logits.cols >= 2 * kLeastHeld * blocks &&
           request.logits.rows * blocks < kWantedBlocks * multiprocessors;
  });
  return blocks;
}

template <class Stored, bool OnChip>
void launch_rows(cudaStream_t stream, const core::sample_request& request, int multiprocessors) {
  const int blocks = blocks_of(request, multiprocessors);
  const std::uint32_t segment = segment_of(request, blocks);
  const std::int64_t rows = request.logits.rows;
  const std::int64_t at_once = kMostGrid / blocks;
  for (std::int64_t first = 0; first < rows; first += at_once) {
    const sample_args args{request, first, segment};
    launch_shape shape;
    shape.grid = dim3(static_cast<unsigned>(std::min(at_once, rows - first) * blocks));
    shape.threads = kThreads;
    shape.shared_bytes =
        static_cast<std::int64_t>(sizeof(sample_scratch)) +
        (OnChip ? std::int64_t{kWarps} * segment * static_cast<std::int64_t>(sizeof(Stored)) : std::int64_t{0});
    shape.cluster = blocks;
    launch(sample_rows_kernel<Stored, OnChip>, shape, stream, args, "starting to sample rows");
  }
}

}  // namespace

void launch_sample_rows(cudaStream_t stream, core::sample_algorithm algorithm, const core::sample_request& request,
                        int multiprocessors) {
  by_stored_type(request.logits.type, [&](auto stored) {
    if (algorithm == core::sample_algorithm::chip_rows)
      launch_rows<decltype(stored), true>(stream, request, multiprocessors);
    else
      launch_rows<decltype(stored), false>(stream, request, multiprocessors);
  });
}

}  // namespace shortlist::cuda
