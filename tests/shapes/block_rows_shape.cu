// Times one shape of the kernel of rows by blocks by itself. SHORTLIST_SHAPE_TYPE, _VALUES, _THREADS, _BLOCKS and
// _KIND, all five, choose the shape when it is compiled. See rows_shape.cuh.
#ifndef SHORTLIST_SHAPE_TYPE
#define SHORTLIST_SHAPE_TYPE shortlist::bfloat16
#define SHORTLIST_SHAPE_VALUES 64
#define SHORTLIST_SHAPE_THREADS 128
#define SHORTLIST_SHAPE_BLOCKS 6
#define SHORTLIST_SHAPE_KIND levelled
#endif

#include "cuda/top_k/block_rows_kernel.cuh"
#include "rows_shape.cuh"

namespace shortlist::shapes {
namespace {

using kind = cuda::block_rows_kind;
constexpr kind kKind = kind::SHORTLIST_SHAPE_KIND;

void launch(const core::top_k_request& request, int multiprocessors) {
  cuda::block_args args = cuda::block_args_of(request);
  if (kKind == kind::listed || kKind == kind::sorted)
    args.candidates = cuda::candidate_plan_of(request, cuda::kListedShareOfBlock);
  cuda::launch_block_rows_of<stored, SHORTLIST_SHAPE_VALUES, SHORTLIST_SHAPE_THREADS, SHORTLIST_SHAPE_BLOCKS, kKind>(
      nullptr, args, multiprocessors);
}

constexpr timed_shape kShape{.most_columns = SHORTLIST_SHAPE_VALUES * SHORTLIST_SHAPE_THREADS,
                             .whole_units = false,
                             .exact = kKind != kind::any,
                             .sorts = kKind == kind::sorted,
                             .launch = launch};

}  // namespace
}  // namespace shortlist::shapes

int main(int count, char** arguments) {
  return shortlist::shapes::shape_main(shortlist::shapes::kShape, count, arguments);
}
