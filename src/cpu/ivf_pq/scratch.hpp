// What a search of an IVF-PQ index holds, and its bounds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/ivf_pq.hpp"
#include "cpu/flat/search.hpp"
#include "cpu/ivf_pq/filter.hpp"
#include "cpu/ivf_pq/parts.hpp"
#include "cpu/ivf_pq/probe.hpp"
#include "cpu/memory.hpp"

namespace shortlist::cpu {

/// Queries that are probed and put in order together: more share more lists, as long as their probes are few.
inline constexpr std::int64_t kMaxQueryGroup = 16384;
inline constexpr std::int64_t kLeastQueryGroup = 4096;
inline constexpr std::int64_t kGroupProbes = std::int64_t{1} << 20;
/// Room for keys beyond those that are looked for: fewer cuts for small k.
inline constexpr std::int64_t kMinExtraKeys = 64;
/// Room for candidates: a list that still fills half of it after it was cut is scored at once.
inline constexpr std::int64_t kCandidatesPerRow = 4;
inline constexpr std::int64_t kMinExtraCandidates = 384;
/// What queries that are scanned together may take of a slot: more of them share a list that was fetched, as long as
/// their tables stay in the outer cache.
inline constexpr std::int64_t kTeamBytes = std::int64_t{6} << 20;
inline constexpr std::int64_t kMaxTeam = 1024;
/// The state of a query's scan, with the best rows' keys and so on beside it.
inline constexpr std::int64_t kStateBytes = 384;

/// Rows that are looked for by their codes.
constexpr std::int64_t rows_by_code(std::int64_t k, std::int64_t refine_ratio, std::int64_t rows) {
  const std::int64_t ratio = std::max<std::int64_t>(refine_ratio, 1);
  return k > rows / ratio ? rows : std::min(k * ratio, rows);
}

/// Keys of a query: those looked for, as many more before they are cut back, and a page on top.
constexpr std::int64_t key_capacity(std::int64_t looked_for) {
  return round_up(looked_for + std::max(looked_for, kMinExtraKeys) + core::kPageRows, kCacheLineBytes / 8);
}

/// Candidates of a query.
constexpr std::int64_t candidate_capacity(std::int64_t looked_for, std::int64_t rows) {
  return std::min(kCandidatesPerRow * looked_for + kMinExtraCandidates, rows) + core::kPageRows;
}

/// Queries of a group that look at so many lists each.
constexpr std::int64_t query_group(std::int64_t nprobe) {
  return std::clamp(kGroupProbes / nprobe, kLeastQueryGroup, kMaxQueryGroup);
}

/// Elements of a query, padded for the score's kernels and to whole pieces.
constexpr std::int64_t query_capacity(const core::ivf_pq_shape& shape) {
  return padded_dim(std::max(shape.dim, shape.padded_dim()));
}

/// The memory of one query that is scanned, in bytes from its beginning.
struct query_memory {
  std::int64_t candidates = 0;  ///< that there is room for
  std::int64_t query_at = 0;    ///< padded
  std::int64_t tables_at = 0;
  std::int64_t candidates_at = 0;
  std::int64_t keys_at = 0;
  std::int64_t bytes = 0;

  query_memory(const core::ivf_pq_shape& shape, std::int64_t looked_for, std::int64_t rows)
      : candidates(candidate_capacity(looked_for, rows)),
        query_at(kStateBytes),
        tables_at(query_at + query_capacity(shape) * 4),
        candidates_at(tables_at + table_sizes(shape).bytes()),
        keys_at(candidates_at + round_up(candidates * static_cast<std::int64_t>(sizeof(candidate)), kCacheLineBytes)),
        bytes(keys_at + key_capacity(looked_for) * 8) {}

  /// Queries that a slot scans together, of `count` for all slots.
  std::int64_t team(std::int64_t count) const {
    constexpr std::int64_t kTeamsPerSlot = 2;  // so that all slots finish together
    const std::int64_t share = divide_up(count, core_count() * kTeamsPerSlot);
    return std::min(std::clamp<std::int64_t>(kTeamBytes / bytes, 1, kMaxTeam), share);
  }
};

/// One query's n-th list, by numbers within a group.
struct probe_pair {
  std::uint32_t list;
  std::uint32_t query;
  std::uint32_t n;
};

/// A query's number within a group, and its nearest list.
struct ordered_query {
  std::uint32_t list;
  std::uint32_t number;
};

class ivf_pq_scratch final : public core::scratch {
 public:
  /// @throws out_of_memory.
  ivf_pq_scratch(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists, const core::ivf_pq_limits& limits) {
    const std::int64_t group = std::min(limits.max_queries, kMaxQueryGroup);
    const std::int64_t dim = model.shape.dim;
    coarse_ = make_flat_scratch({.max_rows = model.shape.nlist, .max_queries = group, .max_k = limits.max_nprobe}, dim,
                                storage::full);
    if (model.rotation != nullptr) {
      rotation_ = std::make_unique<turner>(model.rotation, dim);
      turned.reserve(group * dim * 4);
    }
    reserve(model, group, limits.max_nprobe,
            query_memory(model.shape, rows_by_code(limits.max_k, limits.max_refine_ratio, lists.rows), lists.rows));
    allocations_ = 0;
  }

  void reserve(const core::ivf_pq_model& model, std::int64_t group, std::int64_t nprobe, const query_memory& memory) {
    const core::ivf_pq_shape& shape = model.shape;
    const std::int64_t slots = core_count();
    const std::int64_t team = memory.team(group);
    // A group that looks at fewer lists than `nprobe` may be larger.
    const std::int64_t probed = std::min(group * nprobe, std::max(kGroupProbes, kLeastQueryGroup * nprobe));
    allocations_ += probes.reserve(probed * 8);
    allocations_ += probe_scores.reserve(probed * 4);
    if (probes_by_estimates(model.probes, group)) {
      const std::int64_t parts = std::min(slots, divide_up(group, kProbeQueries));
      allocations_ += probing.reserve(parts * probe_bytes(shape.nlist, shape.dim));
    }
    allocations_ += order.reserve(group * static_cast<std::int64_t>(sizeof(ordered_query)));
    allocations_ += pairs.reserve(slots * team * nprobe * static_cast<std::int64_t>(sizeof(probe_pair)));
    allocations_ += queries.reserve(slots * team * memory.bytes);
    allocations_ += estimates.reserve(slots * (memory.candidates + kValuesSlack) * 4);
    allocations_ += decoded.reserve(slots * core::kPageRows * decoded_stride(shape.dim) * 4);
  }

  std::int64_t bytes() const noexcept override {
    return coarse_->bytes() + turned.bytes() + probes.bytes() + probe_scores.bytes() + probing.bytes() + order.bytes() +
           pairs.bytes() + queries.bytes() + estimates.bytes() + decoded.bytes();
  }
  std::int64_t device_allocations() const noexcept override { return allocations_ + coarse_->device_allocations(); }

  core::scratch& coarse() { return *coarse_; }
  const turner& rotation() const { return *rotation_; }

  /// Elements from one decoded row to the next: what the score's kernels can read.
  static constexpr std::int64_t decoded_stride(std::int64_t dim) { return round_up(dim, kCacheLineBytes / 4); }

  growing_memory turned;                // queries [group, dim], with a rotation
  growing_memory probes, probe_scores;  // [group, nprobe]
  growing_memory probing;               // [slots]
  growing_memory order;                 // queries [group]
  growing_memory pairs;                 // [slots, team * nprobe]
  growing_memory queries;               // query_memory [slots, team]
  growing_memory estimates;             // [slots, candidates of a query]
  growing_memory decoded;               // rows [slots, 32]

 private:
  std::unique_ptr<core::scratch> coarse_;
  std::unique_ptr<turner> rotation_;
  std::int64_t allocations_ = 0;
};

}  // namespace shortlist::cpu
