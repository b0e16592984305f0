// Rows of one query that the filter could not leave out, until they are few enough to be scored.
#pragma once

#include <atomic>
#include <cstdint>

#include "cpu/ivf_pq/filter.hpp"
#include "cpu/ivf_pq/row_scores.hpp"

namespace shortlist::cpu {

/// What the slots that search for one query share.
struct shared_scan {
  const query_filter& filter;
  const row_scorer& scorer;
  padded_query query;
  std::atomic<float> limit;  ///< rows whose estimate by steps is above are left out
};

/// A slot's candidates of one query. When they fill their room they are cut by their estimates; if that does not help,
/// they are scored.
class candidate_rows {
 public:
  candidate_rows(shared_scan& scan, candidate* rows, std::int64_t room, std::int64_t wanted, float* decoded,
                 best_rows found);

  void scan_list(float base, const list_span& list);
  /// Takes over what another slot has; its memory lies behind this one's.
  void join(candidate_rows& other);
  /// Leaves exactly the best rows in found(): with their scores, unless only the set matters.
  void finish(bool only_the_set);

  best_rows& found() { return found_; }
  /// Rows whose score was computed.
  std::int64_t scored() const { return scored_; }

 private:
  void lower_limit(double limit);
  void drop_above(float limit);
  void cut_by_estimates(double spread);
  void make_room();
  void score_all();
  void keep_sure();

  shared_scan& scan_;
  candidate_list pending_;
  std::int64_t capacity_;
  std::int64_t wanted_;
  float* decoded_;
  best_rows found_;
  std::int64_t scored_ = 0;
};

}  // namespace shortlist::cpu
