// The best of few rows for many queries, to the bit: which lists rows go to, and which ones queries look at.
// See coarse.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/ivf_pq.hpp"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/filter.hpp"

namespace shortlist::cuda {

struct exact_part;

/// fp32 rows of at most kCoarseMaxDim elements, and at most kCoarseMaxLists of them asked for.
inline constexpr std::int64_t kCoarseMaxDim = kMaxWideHalves;
inline constexpr std::int64_t kCoarseMaxLists = 2048;  ///< that a query looks for
bool has_coarse(std::int64_t dim, std::int64_t k);

/// Bytes that rows take as halves, as the matrix units have them.
std::int64_t coarse_pages_bytes(std::int64_t dim, std::int64_t rows);
/// Writes them. Asynchronous.
void launch_coarse_pages(cudaStream_t stream, const core::flat_corpus& rows, std::byte* pages);

/// Halves of a row of the pages, or of a query's column.
std::int64_t coarse_halves(std::int64_t dim);
/// What a filter is given: these rows, of which the pages were made, and the request's queries.
void set_coarse(filter_batch& filter, const std::byte* pages, const core::flat_corpus& rows,
                const core::flat_request& request);

std::int64_t coarse_search_bytes(std::int64_t dim, std::int64_t rows, std::int64_t queries, std::int64_t k,
                                 int multiprocessors);
/// As core::backend::flat_search. `memory` suffices for at least these queries and this k. What these queries are
/// filtered for next is prepared too, if it is given. `parts` are those of exact searches, as many as they may have
/// blocks, or null.
void launch_coarse_search(cudaStream_t stream, void* memory, const std::byte* pages, const core::flat_corpus& rows,
                          const core::flat_request& request, int multiprocessors, const filter_batch* next = nullptr,
                          exact_part* parts = nullptr);

}  // namespace shortlist::cuda
