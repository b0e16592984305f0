// The int8 plane of rows, for certified search. See core/certified.hpp for its layout, docs/certified.md for its terms.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// Writes rows [first, first + count), which are in place with their inverse norms, into the plane. Blocks may hold
/// rows before `first`, which stay as they are; rows past corpus.count in the last block become ones that nothing is
/// known of.
void launch_write_plane(cudaStream_t stream, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                        std::byte* plane);

}  // namespace shortlist::cuda
