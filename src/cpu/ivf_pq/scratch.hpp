// What a search of an IVF-PQ index holds, and its bounds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/ivf_pq.hpp"
#include "cpu/flat/search.hpp"
#include "cpu/ivf_pq/filter.hpp"
#include "cpu/ivf_pq/parts.hpp"
#include "cpu/memory.hpp"

namespace shortlist::cpu {

/// Queries that are probed together; more would only enlarge the scratch.
inline constexpr std::int64_t kMaxQueryGroup = 4096;
/// Room for keys beyond those that are looked for: fewer cuts for small k.
inline constexpr std::int64_t kMinExtraKeys = 256;
/// Room for candidates: a list that still fills half of it after it was cut is scored at once.
inline constexpr std::int64_t kCandidatesPerRow = 4;
inline constexpr std::int64_t kMinExtraCandidates = 1024;

/// What is kept of a slot's candidates, where a query's lists are spread over slots.
inline constexpr std::int64_t kSlotBytes = 128;

/// Rows that are looked for by their codes.
constexpr std::int64_t rows_by_code(std::int64_t k, std::int64_t refine_ratio, std::int64_t rows) {
  const std::int64_t ratio = std::max<std::int64_t>(refine_ratio, 1);
  return k > rows / ratio ? rows : std::min(k * ratio, rows);
}

/// Keys of a slot: those looked for, as many more before they are cut back, and a page on top.
constexpr std::int64_t key_capacity(std::int64_t looked_for) {
  return round_up(looked_for + std::max(looked_for, kMinExtraKeys) + core::kPageRows, kCacheLineBytes / 8);
}

/// Candidates of a slot.
constexpr std::int64_t candidate_capacity(std::int64_t looked_for, std::int64_t rows) {
  return std::min(kCandidatesPerRow * looked_for + kMinExtraCandidates, rows) + core::kPageRows;
}

/// Elements of a query, padded for the score's kernels and to whole pieces.
constexpr std::int64_t query_capacity(const core::ivf_pq_shape& shape) {
  return padded_dim(std::max(shape.dim, shape.padded_dim()));
}

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
    reserve(model.shape, group, limits.max_nprobe, rows_by_code(limits.max_k, limits.max_refine_ratio, lists.rows),
            lists.rows);
    allocations_ = 0;
  }

  void reserve(const core::ivf_pq_shape& shape, std::int64_t group, std::int64_t nprobe, std::int64_t looked_for,
               std::int64_t rows) {
    const std::int64_t slots = core_count();
    allocations_ += probes.reserve(group * nprobe * 8);
    allocations_ += probe_scores.reserve(group * nprobe * 4);
    allocations_ += keys.reserve(slots * key_capacity(looked_for) * 8);
    allocations_ +=
        candidates.reserve(slots * candidate_capacity(looked_for, rows) * static_cast<std::int64_t>(sizeof(candidate)));
    allocations_ += slot_states.reserve(slots * kSlotBytes);
    allocations_ += queries.reserve(slots * query_capacity(shape) * 4);
    allocations_ += tables.reserve(slots * table_sizes(shape).bytes());
    allocations_ += decoded.reserve(slots * core::kPageRows * decoded_stride(shape.dim) * 4);
  }

  std::int64_t bytes() const noexcept override {
    return coarse_->bytes() + turned.bytes() + probes.bytes() + probe_scores.bytes() + keys.bytes() +
           candidates.bytes() + slot_states.bytes() + queries.bytes() + tables.bytes() + decoded.bytes();
  }
  std::int64_t device_allocations() const noexcept override { return allocations_ + coarse_->device_allocations(); }

  core::scratch& coarse() { return *coarse_; }
  const turner& rotation() const { return *rotation_; }

  /// Elements from one decoded row to the next: what the score's kernels can read.
  static constexpr std::int64_t decoded_stride(std::int64_t dim) { return round_up(dim, kCacheLineBytes / 4); }

  growing_memory turned;                // queries [group, dim], with a rotation
  growing_memory probes, probe_scores;  // [group, nprobe]
  growing_memory keys;                  // [slots, capacity]
  growing_memory candidates;            // [slots, capacity]
  growing_memory slot_states;           // [slots]
  growing_memory queries;               // padded [slots]
  growing_memory tables;                // of one query [slots]
  growing_memory decoded;               // rows [slots, 32]

 private:
  std::unique_ptr<core::scratch> coarse_;
  std::unique_ptr<turner> rotation_;
  std::int64_t allocations_ = 0;
};

}  // namespace shortlist::cpu
