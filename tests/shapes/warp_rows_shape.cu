// Times one shape of the kernel of short rows by itself, for a look at a change of it: compiled in seconds, where the
// library takes minutes. SHORTLIST_SHAPE_TYPE, _VALUES, _LANES and _KIND, all four, choose the shape when it is
// compiled. See rows_shape.cuh.
#ifndef SHORTLIST_SHAPE_TYPE
#define SHORTLIST_SHAPE_TYPE float
#define SHORTLIST_SHAPE_VALUES 64
#define SHORTLIST_SHAPE_LANES 4
#define SHORTLIST_SHAPE_KIND packed
#endif

#include "cuda/top_k/warp_rows_kernel.cuh"
#include "rows_shape.cuh"

namespace shortlist::shapes {
namespace {

using kind = cuda::warp_rows_kind;
constexpr kind kKind = kind::SHORTLIST_SHAPE_KIND;

void launch(const core::top_k_request& request, int multiprocessors) {
  cuda::warp_args args = cuda::warp_args_of(request);
  cuda::launch_warp_rows_of<stored, SHORTLIST_SHAPE_VALUES, SHORTLIST_SHAPE_LANES, kKind>(nullptr, args,
                                                                                          multiprocessors);
}

constexpr timed_shape kShape{.most_columns = SHORTLIST_SHAPE_VALUES * SHORTLIST_SHAPE_LANES,
                             .whole_units = cuda::is_packed(kKind),
                             .exact = cuda::is_exact(kKind),
                             .sorts = kKind == kind::sorted || kKind == kind::plain_sorted,
                             .launch = launch};

}  // namespace
}  // namespace shortlist::shapes

int main(int count, char** arguments) {
  return shortlist::shapes::shape_main(shortlist::shapes::kShape, count, arguments);
}
