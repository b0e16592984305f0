// Times one shape by the kernel that the plan chooses, or SHORTLIST_FORCE_TOP_K names, a call of the library each.
// SHORTLIST_SHAPE_TYPE chooses the type of the values when it is compiled. See rows_shape.cuh.
#ifndef SHORTLIST_SHAPE_TYPE
#define SHORTLIST_SHAPE_TYPE float
#endif

#include <limits>

#include "rows_shape.cuh"
#include "shortlist/top_k.hpp"

namespace shortlist::shapes {
namespace {

void launch(const core::top_k_request& request, int /*multiprocessors*/) {
  static const stream default_stream = stream::wrap(device::cuda(0), nullptr);
  top_k(default_stream, request.matrix, request.options, request.out);
}

constexpr timed_shape kShape{.most_columns = std::numeric_limits<std::int32_t>::max(),
                             .whole_units = false,
                             .exact = false,
                             .sorts = false,
                             .launch = launch};

}  // namespace
}  // namespace shortlist::shapes

int main(int count, char** arguments) {
  return shortlist::shapes::shape_main(shortlist::shapes::kShape, count, arguments);
}
