// The lists nearest to a batch of queries, or of rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/backend.hpp"
#include "cpu/ivf_pq/kernels.hpp"

namespace shortlist::cpu {

/// Centroids as batches are compared with them, under squared L2 or the inner product: in lanes, with their squared
/// norms under squared L2.
struct coarse_lists {
  core::flat_corpus corpus;
  lane_centroids lanes;
  double largest = 0.0;  ///< norm; NaN if one is no number

  static std::int64_t bytes(std::int64_t count, std::int64_t dim);
  static void write(const core::flat_corpus& corpus, std::byte* to);
  /// Of what was written.
  coarse_lists(const core::flat_corpus& corpus, const std::byte* from);
};

/// Queries that pass over the centroids together.
inline constexpr std::int64_t kProbeQueries = 24;

/// Whether estimates pay, for so many queries; else a flat search is as good.
bool probes_by_estimates(const core::flat_corpus& centroids, std::int64_t queries);

/// Bytes for a slot of probe_by_estimates.
std::int64_t probe_bytes(std::int64_t count, std::int64_t dim);

/// The nprobe best centroids of up to kProbeQueries queries, best first, with their scores unless `scores` is null:
/// those of a flat search. False, and nothing is written, if nothing is known of a query's scores.
bool probe_by_estimates(const coarse_lists& centroids, const float* queries, std::int64_t stride, std::int64_t count,
                        std::int64_t nprobe, std::byte* memory, float* scores, std::int64_t* lists);

}  // namespace shortlist::cpu
