// Candidates of one query: cut by estimates, by steps while lists are scanned and exact ones at the end, then scored.
#include "cpu/ivf_pq/candidates.hpp"

#include <algorithm>
#include <limits>

#include "cpu/ivf_pq/bounds.hpp"

namespace shortlist::cpu {
namespace {

/// Rows that join between two cuts: cuts are cheap, and early ones lower the limit.
constexpr std::int64_t kRowsBetweenCuts = 64;
/// A row's codes are a byte in each strip of its page: so many rows are fetched ahead of the one that is looked at.
constexpr std::int64_t kRowsAhead = 3;
/// Above the key of any score: rows that surely belong to the best.
constexpr std::uint32_t kSureKey = ~0u;

}  // namespace

candidate_rows::candidate_rows(query_scan& scan, candidate* rows, std::int64_t room, best_rows found)
    : scan_(scan), pending_{.rows = rows}, capacity_(room), wanted_(found.wanted()), found_(found) {
  pending_.room = std::min(capacity_, wanted_ + std::max(wanted_, kRowsBetweenCuts));
}

void candidate_rows::scan_list(float base, const list_span& list, const slot_buffers& buffers) {
  candidate_rows* const only = this;
  scan_list({&only, 1}, &base, list, buffers);
}

void candidate_rows::scan_list(std::span<candidate_rows* const> queries, const float* bases, const list_span& list,
                               const slot_buffers& buffers) {
  const std::int64_t pages = divide_up(list.rows, core::kPageRows);
  list_filter of_list[kScannedQueries];
  candidate_list* found[kScannedQueries];
  for (std::int64_t page = 0;;) {
    for (std::size_t q = 0; q < queries.size(); ++q) {
      of_list[q] = queries[q]->filter(bases[q]);
      found[q] = &queries[q]->pending_;
    }
    page = current_ivf_pq_kernels().scan_list(of_list, std::ssize(queries), list, page, found);
    if (page == pages) return;
    for (candidate_rows* query : queries) {
      if (!query->has_room()) query->make_room(buffers);
    }
  }
}

void candidate_rows::lower_limit(double limit) {
  const float to = rounded_up(limit);
  float now = scan_.limit.load(std::memory_order_relaxed);
  while (to < now && !scan_.limit.compare_exchange_weak(now, to, std::memory_order_relaxed)) {
  }
}

void candidate_rows::drop_above(float limit) {
  candidate* rows = pending_.rows;
  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < pending_.size; ++i) {  // without branches, which would be mispredicted
    const candidate row = rows[i];
    rows[kept] = row;
    kept += row.estimate <= limit ? 1 : 0;
  }
  pending_.size = kept;
}

void candidate_rows::copy_estimates(const slot_buffers& buffers) const {
  for (std::int64_t i = 0; i < pending_.size; ++i) buffers.estimates[i] = pending_.rows[i].estimate;
}

/// Drops what is above the best rows' estimates by more than estimates can be wrong.
void candidate_rows::cut_by_estimates(double spread, const slot_buffers& buffers) {
  if (found_.size() == 0 && pending_.size > wanted_ && wanted_ > 0) {
    copy_estimates(buffers);
    const float reached = current_ivf_pq_kernels().limit_of_rank(buffers.estimates, pending_.size, wanted_);
    lower_limit(static_cast<double>(reached) + spread);
  }
  drop_above(scan_.limit.load(std::memory_order_relaxed));
}

void candidate_rows::make_room(const slot_buffers& buffers) {
  cut_by_estimates(scan_.filter.steps_bound(), buffers);
  if (pending_.size > capacity_ / 2) score_all(buffers);
  pending_.room = std::min(capacity_, pending_.size + std::max(pending_.size, kRowsBetweenCuts) + core::kPageRows);
}

void candidate_rows::score_all(const slot_buffers& buffers) {
  for (std::int64_t first = 0; first < pending_.size; first += core::kPageRows) {
    scan_.scorer.add(scan_.query, pending_.rows + first, std::min(core::kPageRows, pending_.size - first),
                     buffers.decoded, found_);
  }
  scored_ += pending_.size;
  pending_.size = 0;
  found_.cut();
  if (found_.least() == core::kNoRow || core::key_of(found_.least()) == kSureKey) return;
  lower_limit(scan_.filter.oriented(found_.least(), scan_.query.inverse_norm) + scan_.filter.bound());
}

void candidate_rows::join(const candidate_rows& other, const slot_buffers& buffers) {
  for (std::int64_t i = 0; i < other.found_.size(); ++i) found_.add(other.found_.keys()[i]);
  found_.cut();
  for (std::int64_t i = 0; i < other.pending_.size; ++i) {
    if (pending_.size == pending_.room) make_room(buffers);
    pending_.rows[pending_.size++] = other.pending_.rows[i];
  }
  scored_ += other.scored_;
}

/// Moves rows that are among the best whatever the others' scores are to found(), without theirs.
void candidate_rows::keep_sure(const slot_buffers& buffers) {
  float next = std::numeric_limits<float>::infinity();  // the (k' + 1)-th estimate
  if (pending_.size > wanted_) {
    copy_estimates(buffers);
    std::nth_element(buffers.estimates, buffers.estimates + wanted_, buffers.estimates + pending_.size);
    next = buffers.estimates[wanted_];
  }
  const double spread = 2.0 * scan_.filter.bound();
  const candidate* rest = std::partition(pending_.rows, pending_.rows + pending_.size, [&](const candidate& row) {
    if (!(static_cast<double>(row.estimate) + spread < static_cast<double>(next))) return true;
    found_.add(core::row_key(kSureKey, scan_.scorer.position(row)));
    return false;
  });
  pending_.size = rest - pending_.rows;
}

void candidate_rows::finish(bool only_the_set, const slot_buffers& buffers) {
  cut_by_estimates(scan_.filter.steps_bound(), buffers);
  for (std::int64_t i = 0; i < pending_.size; ++i) {
    if (i + kRowsAhead < pending_.size) scan_.scorer.fetch(pending_.rows[i + kRowsAhead]);
    candidate& row = pending_.rows[i];
    row.estimate = scan_.filter.estimate(row.base, scan_.scorer.page_of(row), row.place % core::kPageRows);
  }
  cut_by_estimates(2.0 * scan_.filter.bound(), buffers);
  if (only_the_set && found_.size() == 0) keep_sure(buffers);
  score_all(buffers);
}

}  // namespace shortlist::cpu
