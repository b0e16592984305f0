// Sampling from few plain rows whose parameters are arrays: a cluster of blocks looks at what its row asks for, and
// draws from it by count or by weight.
//
// Why it is fast: where all rows run at a time, a second launch for the rows of the other kind takes longer than all
// that this kernel does worse: its blocks have half of a multiprocessor for either way.
// The two ways: count_sample.cu and weight_sample.cu. Limit: bytes(logits) over read bandwidth. Measured share:
// docs/kernels.md, "Parameters that are arrays".
#include <algorithm>
#include <cstdint>

#include "cuda/device/chain.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/sample/array_sample.hpp"
#include "cuda/sample/count_steps.cuh"
#include "cuda/sample/row_kinds.cuh"
#include "cuda/sample/weight_steps.cuh"

namespace shortlist::cuda {
namespace {

using namespace sampling;
using namespace sampling::weighing;

using form = block_form<2>;
static_assert(form::kThreads == kThreads);

struct array_args {
  core::sample_request request;
  count_plan counting;
  weight_plan weighing;
};

template <class Stored>
__global__ void __launch_bounds__(kThreads, form::kBlocks)
    array_sample_kernel(const __grid_constant__ array_args args) {
  join_chain();
  const std::int64_t index = blockIdx.x >> shift_of(cluster_size());
  if (is_counted(args.request, index)) {
    begin_to_count(cluster_size());
    draw_counted_row<Stored, false>(args.request, args.counting, row_overlay{}, index);
  } else {
    draw_weighed_row<Stored, form>(args.request, args.weighing);
  }
}

int blocks_of(const core::sample_request& request, int multiprocessors) {
  return blocks_of_row(request.logits.rows, request.logits.cols, form::kBlocks * multiprocessors);
}

template <class Stored>
void launch_type(cudaStream_t stream, const core::sample_request& request, int blocks) {
  const array_args args{request, plan_counting(request, blocks, form::kBlocks, 0),
                        plan_weighing<Stored, form>(request, blocks)};
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(request.logits.rows * blocks));
  shape.threads = kThreads;
  shape.shared_bytes = std::max(args.counting.bytes(), args.weighing.template bytes<form>());
  shape.cluster = blocks;
  shape.overlaps = true;
  launch(array_sample_kernel<Stored>, shape, stream, args, "starting to sample rows by arrays of parameters");
}

}  // namespace

bool array_sample_serves(const core::sample_request& request, int multiprocessors) {
  const int blocks = blocks_of(request, multiprocessors);
  const std::int64_t row_bytes = request.logits.cols * size_bytes(request.logits.type);
  return !splits_rows(request) &&
         request.logits.rows * blocks <= blocks_at_a_time(blocks, form::kBlocks * multiprocessors) &&
         row_bytes <= form::kHeldBytes * blocks;
}

void launch_array_sample(cudaStream_t stream, const core::sample_request& request, int multiprocessors) {
  const int blocks = blocks_of(request, multiprocessors);
  by_stored_type(request.logits.type, [&](auto stored) { launch_type<decltype(stored)>(stream, request, blocks); });
}

}  // namespace shortlist::cuda
