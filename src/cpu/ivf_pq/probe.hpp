// Which lists queries look at.
#pragma once

#include <cstdint>

#include "core/ivf_pq.hpp"
#include "cpu/memory.hpp"

namespace shortlist::cpu {

/// Queries that are probed in one pass over the centroids.
inline constexpr std::int64_t kProbeQueries = 24;

/// Whether coarse estimates pay; else a flat search is as good.
bool probes_by_estimates(const core::ivf_pq_shape& shape, std::int64_t queries);

/// Bytes for a slot of probe_by_estimates.
std::int64_t probe_bytes(const core::ivf_pq_shape& shape);

/// The nprobe best lists of up to kProbeQueries queries, best first, with their scores: those of a flat search over
/// model.probes. False, and nothing is written, if nothing is known of a query's scores.
bool probe_by_estimates(const core::ivf_pq_model& model, const float* queries, std::int64_t stride, std::int64_t count,
                        std::int64_t nprobe, std::byte* memory, float* scores, std::int64_t* lists);

}  // namespace shortlist::cpu
