// Sampling from plain rows of which top_p or min_p alone, or nothing, decides what is kept: a cluster of blocks holds a
// row, weighs it, and draws from what may be kept.
//
// Why it is fast: a row is read once and stays in shared memory and registers; where all rows run at a time, each block
// has a multiprocessor for itself, so that none has more to do than another; where many follow each other, two or four
// share one, and some load while others weigh; blocks tell each other by sends, which wait for no loads.
// Steps: load, the largest logit -> bins of a sample's exponents, told to all: a floor that what top_p keeps should
// reach -> all weighed, exactly; what reaches the floor is listed by its lane -> the lists' weights in bins of
// exponents, told to all: the border's bin -> what lies before it added up by columns, what lies in it told to all ->
// every block decides those, and knows the draw's block -> which finds the range of columns, then the token.
// Flat rows keep more than lists hold: a ceiling is guessed, too, and what reaches it is added up, by ranges of
// columns, as it is weighed; what lies between is listed, and the range that the draw falls into is read again. Where
// nothing but min_p filters, or nothing at all, what is kept is known beforehand, and nothing is listed. Exact for any
// data: sums are integers, and tell a wrong guess. Then the row is weighed again, by a guess that knows how far off the
// first was, or among equal logits by their tokens; after that it is searched where it lies, by passes that serve any
// data. The steps' code: weight_steps.cuh. Limit: bytes(logits) over read bandwidth. Measured share: docs/kernels.md.
// History, 64 x 128,256 fp32, p 0.95, us by a driver: streamed, two or three blocks a multiprocessor 50.8 -> held on
// the chip, lists by lanes 48.4 -> lists joined 39.2 -> columns summed before the border is decided 37.6. Launched in a
// graph of 24, 31.7
// -> marks by upper halves, no clamp where a warp's logits allow it, tokens listed at a pitch 30.5 -> the sample
// counted without branches, registers loaded before copies 30.0. 256 such rows: streamed 166 -> held on the chip, 66
// after 66 of them 106. Flat rows, T 1.5, 64, on an H100: searched where they lie 250 -> a ceiling 38; what this costs
// others, and rows whose best are neighbours: 33 -> 37, 135 -> 61 -> a floor that 768 tokens reach in any case 42.
// 4,096 x 32,000 bf16, T 0.8 and 1.5: streamed 374, 1,018 -> two blocks a multiprocessor 381, 448. 1 x 128,256 fp32, T
// 0.8, on an H100: 22.8 -> blocks' bins added up by warps, a sample that does not grow with blocks 19.8; 200 x 32,000
// at T 1.5, where few threads sample more, 51 -> 37.
#include <cstdint>

#include "cuda/device/chain.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/sample/weight_sample.hpp"
#include "cuda/sample/weight_steps.cuh"

namespace shortlist::cuda {
namespace {

using namespace sampling;
using namespace sampling::weighing;

struct weight_args {
  core::sample_request request;
  weight_plan plan;
  row_kinds kinds;
};

template <class Stored, class Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks)
    weight_sample_kernel(const __grid_constant__ weight_args args) {
  join_chain();
  const std::int64_t index = blockIdx.x >> shift_of(cluster_size());
  if (!skips(args.kinds, args.request, index)) draw_weighed_row<Stored, Form>(args.request, args.plan);
}

/// How rows are spread over the GPU.
struct weight_layout {
  int form;    // block_form: blocks of a multiprocessor
  int blocks;  // of a row
};

/// The first whose bounds hold a request serves it.
struct layout_rule {
  std::int64_t most_rows;   // for each multiprocessor
  std::int64_t most_bytes;  // of a row
  weight_layout layout;
};
constexpr std::int64_t kAnyRows = std::int64_t{1} << 40;
constexpr layout_rule kLayouts[] = {
    {1, 32'768, {2, 1}},                            // half as many threads wait for each other
    {1, block_form<1>::kHeldBytes, {1, 1}},         // a row has a multiprocessor
    {2, block_form<2>::kHeldBytes, {2, 1}},         // all run at a time
    {kAnyRows, block_form<4>::kHeldBytes, {4, 1}},  // in waves, as many at a time as are on the chip as a whole
    {kAnyRows, block_form<2>::kHeldBytes, {2, 1}},  // the same
    {kAnyRows, 245'760, {2, 2}},                    // and room for what two blocks tell each other
    {kAnyRows, block_form<1>::kHeldBytes, {1, 1}},  // longer ones have more blocks
};

weight_layout layout_of(const core::sample_request& request, int multiprocessors) {
  constexpr std::int64_t kMostBytes = 2 * block_form<1>::kHeldBytes;  // of a block
  constexpr std::int64_t kMostColumns = std::int64_t{1} << 20;        // of a block: its ranges' tokens have room
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

template <class Stored, class Form>
void launch_form(cudaStream_t stream, const core::sample_request& request, row_kinds kinds, int blocks) {
  const weight_args args{request, plan_weighing<Stored, Form>(request, blocks), kinds};
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(request.logits.rows * blocks));
  shape.threads = Form::kThreads;
  shape.shared_bytes = args.plan.template bytes<Form>();
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
