// What the plan wants to know of a plane's rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Adds rows [first, first + count) of `plane` to a summary in device memory. Asynchronous on `stream`.
void launch_plane_summary(cudaStream_t stream, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                          const std::byte* plane, core::plane_summary* summary);

}  // namespace shortlist::cuda
