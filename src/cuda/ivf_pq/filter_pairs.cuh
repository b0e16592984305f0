// What kernels that prepare scans share: how lists are cut into items, and what pairs of query and list are.
#pragma once

#include "cuda/ivf_pq/filter.hpp"

namespace shortlist::cuda {

// Of long lists an eighth is sampled, of the longest a sixteenth.
inline constexpr std::uint32_t kSampledShare = 8;
inline constexpr std::uint32_t kSampledOfLongest = 16;
inline constexpr std::uint32_t kManySampled = 64;  // pages

__device__ inline std::uint32_t pages_of_rows(std::uint32_t rows) {
  return (rows + core::kPageRows - 1) / static_cast<std::uint32_t>(core::kPageRows);
}

/// How many of a list's pages a pass looks at.
__device__ inline std::uint32_t sampled_of(const scan_pass& pass, std::uint32_t pages) {
  if (pass.sampled_pages == 0) return pages;
  const std::uint32_t share = max(min(pages / kSampledShare, kManySampled), pages / kSampledOfLongest);
  return min(pages, max(share, pass.sampled_pages));
}

struct pass_shape {
  std::uint32_t groups = 0;
  std::uint32_t pairs = 0;  // of a group
  std::uint32_t pages = 0;
  std::uint32_t chunks = 0;
};

/// How a list's pairs and pages are cut into items.
__device__ inline pass_shape shape_of_list(const scan_pass& pass, std::uint32_t pairs, std::uint32_t rows) {
  pass_shape cut;
  if (pairs == 0 || rows == 0) return cut;
  cut.groups = (pairs + pass.queries_of_item - 1) / pass.queries_of_item;
  cut.pairs = ((pairs + cut.groups - 1) / cut.groups + 7) / 8 * 8;
  cut.groups = (pairs + cut.pairs - 1) / cut.pairs;
  cut.pages = sampled_of(pass, pages_of_rows(rows));
  cut.chunks = min((cut.pages - 1) / pass.chunk_pages + 1, pass.most_chunks);
  return cut;
}

/// How many of so many pages a pass takes that looks at one of each stride.
__device__ inline std::uint32_t spread_of(const scan_pass& pass, std::uint32_t pages) {
  return (pages + pass.stride - 1) / pass.stride;
}

/// Of the queries of a group those that share marks.
__device__ inline std::uint32_t marks_of_group(const pass_shape& cut) {
  return (cut.pairs + kMarkedQueries - 1) / kMarkedQueries;
}

/// What the rows of a list have in common, for a query.
__device__ inline float base_of(const filter_batch& batch, std::int64_t query, std::int64_t list, float score) {
  const float share = batch.shares[query];
  if (batch.shape.encodes == encoded::row) return share;
  if (batch.shape.metric == metric::l2) return share + 0.5f * score;
  if (batch.shape.metric == metric::inner_product) return share - score;
  const float inverse_norm = batch.centroid_inverse_norms[list];
  return inverse_norm < 0.0f ? share : share - score / inverse_norm / batch.inverse_norms[query];
}

__device__ inline float limit_of(const filter_batch& batch, float threshold, float base) {
  constexpr float kLargest = 3.402823466e38f;
  return fminf((threshold - base) * batch.header->inverse_unit, kLargest);
}

/// Sets a query's threshold, from the distance that as many rows do not exceed as are wanted, if it is not guessed. Of
/// queries that nothing is known of, rows need not pass. @returns it; threads of all ranks come, or the first alone.
__device__ inline float set_threshold(const filter_batch& batch, std::uint32_t query, float distance, bool is_guess,
                                      int rank) {
  const float margin = batch.margins[query];
  const float infinity = __uint_as_float(0x7F800000u);
  const float threshold = margin < infinity ? distance + margin : -infinity;
  if (rank == 0) {
    if (batch.guessed) batch.guessed[query] = is_guess && distance < infinity;
    batch.thresholds[query] = threshold;
  }
  return threshold;
}

}  // namespace shortlist::cuda
