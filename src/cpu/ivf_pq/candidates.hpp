// Rows of one query that the filter could not leave out, until they are few enough to be scored.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <span>

#include "cpu/ivf_pq/filter.hpp"
#include "cpu/ivf_pq/row_scores.hpp"

namespace shortlist::cpu {

/// Queries that pass over a page while it lies in the inner cache.
inline constexpr std::int64_t kScannedQueries = 8;

/// What a slot works in, whatever query it has.
struct slot_buffers {
  float* decoded = nullptr;    ///< a page's rows
  float* estimates = nullptr;  ///< of all candidates of a query, and kValuesSlack
};

/// A query while its lists are scanned, by one slot or by several.
struct query_scan {
  query_scan(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists, const row_scorer& scores,
             const padded_query& padded, std::byte* tables)
      : scorer(scores), query(padded), filter(model, lists, padded.elements, padded.inverse_norm, tables) {}

  const row_scorer& scorer;
  const padded_query query;
  const query_filter filter;
  /// Rows whose estimate by steps is above are left out.
  std::atomic<float> limit{std::numeric_limits<float>::infinity()};
};

/// A slot's candidates of one query. When they fill their room they are cut by their estimates; if that does not help,
/// they are scored.
class candidate_rows {
 public:
  candidate_rows(query_scan& scan, candidate* rows, std::int64_t room, best_rows found);

  /// Passes a list through the filter. `base` is what estimates of its rows begin at.
  void scan_list(float base, const list_span& list, const slot_buffers& buffers);
  /// The same with several queries at once, kScannedQueries at most.
  static void scan_list(std::span<candidate_rows* const> queries, const float* bases, const list_span& list,
                        const slot_buffers& buffers);
  /// Takes over what another slot has found for the same query.
  void join(const candidate_rows& other, const slot_buffers& buffers);
  /// Leaves exactly the best rows in found(): with their scores, unless only the set matters.
  void finish(bool only_the_set, const slot_buffers& buffers);

  best_rows& found() { return found_; }
  /// Rows whose score was computed.
  std::int64_t scored() const { return scored_; }

 private:
  bool has_room() const { return pending_.size + core::kPageRows <= pending_.room; }
  list_filter filter(float base) const {
    return scan_.filter.of_list(base, scan_.limit.load(std::memory_order_relaxed));
  }
  void lower_limit(double limit);
  void drop_above(float limit);
  void cut_by_estimates(double spread, const slot_buffers& buffers);
  void copy_estimates(const slot_buffers& buffers) const;
  void make_room(const slot_buffers& buffers);
  void score_all(const slot_buffers& buffers);
  void keep_sure(const slot_buffers& buffers);

  query_scan& scan_;
  candidate_list pending_;
  std::int64_t capacity_;
  std::int64_t wanted_;
  best_rows found_;
  std::int64_t scored_ = 0;
};

}  // namespace shortlist::cpu
