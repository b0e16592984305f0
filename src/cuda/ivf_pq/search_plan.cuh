// How a batch of an IVF-PQ search is answered, and the memory that takes. See search_plan.cu.
#pragma once

#include <cstdint>

#include "cuda/ivf_pq/exact_search.cuh"
#include "cuda/ivf_pq/few_search.cuh"
#include "cuda/ivf_pq/filter.hpp"
#include "cuda/runtime/carver.hpp"
#include "cuda/runtime/memory.cuh"

namespace shortlist::cuda {

inline constexpr std::int64_t kSearchCounts = 5;  ///< search_memory::counts

/// A batch, as far as memory goes.
struct search_shape_of_batch {
  std::int64_t queries = 0;
  std::int64_t nprobe = 0;
  std::int64_t by_code = 0;
  std::int64_t region_pages = 0;  ///< of the lists of a query with many rows by code, at most; 0: hits are collected
  std::int64_t all_pages = 0;     ///< of all lists, at most, if rows are marked; 0: distances are written
};

/// What a batch works in.
struct search_memory {
  few_control* few = nullptr;         ///< of each query; zero between searches
  exact_part* exact_parts = nullptr;  ///< [kExactBlocksPerMultiprocessor x multiprocessors] zero between searches
  std::uint64_t* few_keys = nullptr;
  std::byte* nearest = nullptr;
  std::byte* coarse = nullptr;
  std::int64_t* probes = nullptr;
  float* probe_scores = nullptr;
  float* turned = nullptr;
  std::uint32_t* unanswered = nullptr;  ///< by the first scan
  std::uint32_t* counts = nullptr;      ///< of the three lists of queries, then the items of a retry and its next
  retry_plan retry;
  unsigned long long* counters = nullptr;  ///< rows decoded, queries not filtered
  std::uint64_t* exact_keys = nullptr;
  std::int64_t exact_capacity = 0;
  std::int32_t exact_blocks = 0;
  filter_batch filter;
  std::uint64_t* many = nullptr;  ///< of queries with many rows by code
  std::uint32_t* many_counts = nullptr;
  std::uint32_t* border_counts = nullptr;
};

/// What searches of an index go through.
struct batch_memory {
  core::ivf_pq_limits limits;
  std::int64_t most_queries = 0;
  std::int64_t batch = 0;  ///< queries of the largest searches that go through it at once
  device_memory memory;
};

/// Rows by code that a query needs.
std::int64_t rows_by_code(std::int64_t k, std::int64_t refine_ratio);
/// Whether the queries' lists are found by the scores or estimates of all centroids.
bool scores_centroids(const core::ivf_pq_shape& shape, std::int64_t queries, std::int64_t nprobe);
/// Whether they are found by products of halves, otherwise; else by a flat search.
bool filters_centroids(const core::ivf_pq_shape& shape, std::int64_t queries, std::int64_t nprobe);
/// Whether every row of the queries' lists is decoded by all of the GPU. The estimate of the rows to look at takes each
/// query to probe the longest list.
bool goes_by_few(const core::ivf_pq_shape& shape, const search_shape_of_batch& batch, const core::ivf_pq_lists& lists);
/// Whether the filter serves a batch.
bool is_filtered(const core::ivf_pq_shape& shape, std::int64_t by_code, std::int64_t nprobe);

/// What a batch works in. `turns`: queries are turned first.
search_memory memory_of(carver& carve, const core::ivf_pq_shape& shape, bool turns, const search_shape_of_batch& batch,
                        int multiprocessors);
/// What a batch is filtered for, before its lists are known.
void set_filter(search_memory& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                const search_shape_of_batch& batch, const float* queries, std::int64_t query_stride,
                int multiprocessors);

/// Takes memory for all searches up to the limits, of batches of as many queries as what a batch may take has room for,
/// or half of that, and so on, where the GPU has less.
void take_memory(batch_memory& scratch, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                 int multiprocessors);
/// How a search goes through that memory: the shape of a batch of as many queries as go through it at once, more of
/// smaller searches than of the largest. `results` is how many there is room for.
search_shape_of_batch batch_of(const batch_memory& scratch, const core::ivf_pq_model& model,
                               const core::ivf_pq_lists& lists, const core::ivf_pq_request& request,
                               std::int64_t results, int multiprocessors);

}  // namespace shortlist::cuda
