// The shared memory of a row that is drawn from by count, or searched where it lies. See count_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/device/shared_list.cuh"
#include "cuda/sample/sample_parts.cuh"

namespace shortlist::cuda::sampling {

struct alignas(16) stream_scratch {
  sample_scratch row;
  share_scratch<kThreads> shares;
};

}  // namespace shortlist::cuda::sampling
