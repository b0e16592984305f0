// Rows in the pages of lists on CUDA devices: where they go, how they are written and read. See page_layout.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/ivf_pq.hpp"

namespace shortlist::cuda {

/// Marks pages [first, first + count) as empty: code 0, a term of +infinity and no position in every place.
void launch_clear_pages(cudaStream_t stream, const core::ivf_pq_shape& shape, std::byte* pages, std::int64_t first,
                        std::int64_t count);

/// counts[nlist] rows by list, and places[n] of each row among those of its list, by row. Takes memory for the call.
void launch_place_rows(cudaStream_t stream, const std::int64_t* lists, std::int64_t n, std::int64_t nlist,
                       std::uint32_t* counts, std::uint32_t* places);

/// Codes, terms and positions of rows [0, n); raises to.largest. See core::ivf_pq_ops::write_rows.
void launch_write_rows(cudaStream_t stream, const core::ivf_pq_model& model, const core::ivf_pq_lists& to,
                       const std::uint32_t* sizes_before, const std::int64_t* lists, const std::uint32_t* places,
                       const std::uint8_t* codes, std::int64_t n, std::int64_t first_position,
                       const std::uint32_t* positions);

/// Codes [n, pieces] and positions [n] of n places of the sequence of all lists, from `first` on.
void launch_read_rows(cudaStream_t stream, const core::ivf_pq_shape& shape, const core::ivf_pq_lists& lists,
                      const std::int64_t* list_starts, std::int64_t first, std::int64_t n, std::uint8_t* codes,
                      std::uint32_t* positions);

}  // namespace shortlist::cuda
