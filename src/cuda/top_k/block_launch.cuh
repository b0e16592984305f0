// What the kernels of rows by blocks are given, and how one is launched: as many blocks as are resident.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/plan.hpp"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/row_candidates.cuh"
#include "cuda/top_k/row_output.cuh"
#include "cuda/top_k/row_search.cuh"
#include "cuda/top_k/row_stage.cuh"

namespace shortlist::cuda {

constexpr std::int64_t kStartBytes = 512;  // the barrier, and memory to meet in
constexpr int kListedShareOfBlock = 5;     // see candidate_plan_of

struct block_args {
  core::top_k_request request;
  search_plan search;
  output_plan output;
  row_stage stage;
  std::int32_t stage_bytes;
  candidate_plan candidates;
};

inline block_args block_args_of(const core::top_k_request& request) {
  block_args args{};
  args.request = request;
  args.search = search_plan_of(request);
  args.output = output_plan_of(request);
  args.stage = row_stage_of(request, core::kBlockRowsMaxCols);
  return args;
}

/// @tparam MostSorted entries of a lane that one warp sorts in registers while the others wait.
template <int Values, int Threads, int MostSorted>
void launch_block_shape(void (*kernel)(block_args), cudaStream_t stream, block_args& args, int multiprocessors) {
  args.stage_bytes = static_cast<std::int32_t>(args.stage.bytes_of(1, Values * Threads));
  const std::int64_t shared_bytes = kStartBytes + args.stage_bytes +
                                    std::max(staged_bytes<block_group<Threads>, MostSorted>(args.output),
                                             candidate_plan_of(args.request, kListedShareOfBlock).bytes());
  const char* what = "launching the row-wise top k";
  const std::int64_t resident =
      std::int64_t{multiprocessors} * blocks_per_multiprocessor(kernel, Threads, shared_bytes, what);
  const launch_shape how{.grid = dim3(static_cast<unsigned>(std::min(args.request.matrix.rows, resident))),
                         .threads = Threads,
                         .shared_bytes = shared_bytes};
  launch(kernel, how, stream, args, what);
}

}  // namespace shortlist::cuda
