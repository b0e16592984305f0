// All blocks of a cooperative launch meet.
#pragma once

#include <cooperative_groups.h>

namespace shortlist::cuda {

/// What any thread of the grid wrote before, to global memory too, is seen after.
__device__ __forceinline__ void grid_sync() { cooperative_groups::this_grid().sync(); }

}  // namespace shortlist::cuda
