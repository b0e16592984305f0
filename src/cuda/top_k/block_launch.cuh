// What the kernels of rows by blocks are given, and how one is launched: as many blocks as are resident.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/plan.hpp"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/row_candidates.cuh"
#include "cuda/top_k/row_output.cuh"
#include "cuda/top_k/row_search.cuh"
#include "cuda/top_k/row_stage.cuh"

namespace shortlist::cuda {

constexpr std::int64_t kStartBytes = 512;  // barriers, and memory to meet in
constexpr std::int64_t kFewestWarps = 2;   // of a block; short rows that another kernel would take leave some idle
constexpr int kListedShareOfBlock = 5;     // see candidate_plan_of

struct block_args {
  core::top_k_request request;
  search_plan search;
  output_plan output;
  row_stage stage;
  std::int32_t stage_bytes;
  candidate_plan candidates;
  std::uint32_t searchers;  // of lists: warps that take turns, less 1; a power of two
  std::uint32_t ahead;      // rows that come while another is searched: 0 or 1
};

inline block_args block_args_of(const core::top_k_request& request) {
  block_args args{};
  args.request = request;
  args.search = search_plan_of(request);
  args.output = output_plan_of(request);
  args.stage = row_stage_of(request, core::kBlockRowsMaxCols);
  return args;
}

/// Blocks have as many warps as a row needs, and as many blocks share a multiprocessor as can. @tparam Values of a
/// thread. @tparam MostSorted entries of a lane that one warp sorts in registers while the others wait.
/// @tparam MayAhead whether the kernel can have the next row come while it searches one; where no block is lost by it.
template <int Values, int MostSorted, bool MayAhead>
void launch_block_shape(void (*kernel)(block_args), cudaStream_t stream, block_args& args, int multiprocessors) {
  constexpr std::int64_t kOfWarp = Values * kWarp;
  const std::int64_t warps = std::max((args.stage.columns_held() + kOfWarp - 1) / kOfWarp, kFewestWarps);
  const auto threads = static_cast<int>(warps * kWarp);
  args.stage_bytes = static_cast<std::int32_t>(args.stage.bytes_of(1, warps * kOfWarp));
  args.searchers = std::bit_floor(static_cast<std::uint32_t>(warps)) - 1;
  std::int64_t shared_bytes = kStartBytes + args.stage_bytes +
                              std::max(staged_bytes<block_group, MostSorted>(args.output), args.candidates.bytes());
  const char* what = "launching the row-wise top k";
  const auto blocks_of = [&](std::int64_t bytes) { return blocks_per_multiprocessor(kernel, threads, bytes, what); };
  const int blocks = blocks_of(shared_bytes);
  const std::int64_t of_two = shared_bytes + args.stage_bytes;
  args.ahead = MayAhead && of_two <= kMaxSharedBytes && blocks_of(of_two) == blocks ? 1 : 0;
  if (args.ahead > 0) shared_bytes = of_two;
  const std::int64_t resident = std::int64_t{multiprocessors} * blocks;
  const launch_shape how{.grid = dim3(static_cast<unsigned>(std::min(args.request.matrix.rows, resident))),
                         .threads = threads,
                         .shared_bytes = shared_bytes,
                         .overlaps = true};
  launch(kernel, how, stream, args, what);
}

}  // namespace shortlist::cuda
