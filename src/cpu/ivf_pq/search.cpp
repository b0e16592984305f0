// IVF-PQ search on the CPU: the lists of queries by a flat search over the centroids, then their rows.
//
// A query's lists pass the filter best first, so that its limit is low early; a batch is spread over cores by queries,
// one query by lists. Keys of rows order them completely: neither the order of lists nor the split can be seen.
#include "cpu/flat/search.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <new>

#include "core/plan.hpp"
#include "core/score.hpp"
#include "cpu/ivf_pq/candidates.hpp"

namespace shortlist::cpu {
namespace {

/// Rows of queries: the caller's, or turned ones.
struct query_rows {
  const float* data = nullptr;
  std::int64_t stride = 0;
  const float* at(std::int64_t query) const { return data + query * stride; }
};

class searcher {
 public:
  searcher(ivf_pq_scratch& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
           const core::ivf_pq_request& request)
      : memory_(memory),
        model_(model),
        shape_(model.shape),
        lists_(lists),
        request_(request),
        scorer_(model, lists),
        page_bytes_(page_layout(model.shape).bytes()),
        strips_(page_layout(model.shape).strips),
        wanted_(rows_by_code(request.k, request.refine_ratio, lists.rows)),
        room_(candidate_capacity(wanted_, lists.rows)) {}

  void search();

 private:
  // A slot's memory.
  float* query_at(int slot) const { return memory_.queries.as<float>() + slot * query_capacity(shape_); }
  float* decoded_at(int slot) const {
    return memory_.decoded.as<float>() + slot * core::kPageRows * ivf_pq_scratch::decoded_stride(shape_.dim);
  }
  best_rows found_at(int slot) const {
    return {memory_.keys.as<std::uint64_t>() + slot * key_capacity(wanted_), wanted_};
  }
  candidate_rows candidates_at(int slot, shared_scan& scan) const {
    return {scan, memory_.candidates.as<candidate>() + slot * room_, room_, wanted_, decoded_at(slot), found_at(slot)};
  }

  void turn_queries(std::int64_t first, std::int64_t count);
  void probe(std::int64_t first, std::int64_t count);
  std::int64_t list_at(std::int64_t q, std::int64_t n) const {
    return memory_.probes.as<std::int64_t>()[q * request_.nprobe + n];
  }
  float base_of(const shared_scan& scan, std::int64_t q, std::int64_t n) const;
  void scan_probe(shared_scan& scan, std::int64_t q, std::int64_t n, candidate_rows& rows) const;
  bool takes_all_cores(std::int64_t count) const;

  void answer(int slot, std::int64_t first, std::int64_t q);
  void answer_on_all_cores(std::int64_t first, std::int64_t q);
  best_rows decode_all(int slot, const padded_query& query, std::int64_t q);
  void finish(int slot, std::int64_t query, best_rows& found) const;

  ivf_pq_scratch& memory_;
  const core::ivf_pq_model& model_;
  const core::ivf_pq_shape& shape_;
  const core::ivf_pq_lists& lists_;
  const core::ivf_pq_request& request_;
  const row_scorer scorer_;
  const std::int64_t page_bytes_;
  const std::int64_t strips_;
  const std::int64_t wanted_;  // rows, by their codes
  const std::int64_t room_;    // candidates of a slot
  query_rows turned_;          // of the group
  std::atomic<std::int64_t> decoded_rows_{0};
  std::atomic<std::int64_t> unfiltered_queries_{0};
};

/// The group's queries as rows are: with a rotation, turned.
void searcher::turn_queries(std::int64_t first, std::int64_t count) {
  turned_ = {request_.queries + first * request_.query_stride, request_.query_stride};
  if (model_.rotation == nullptr) return;
  float* to = memory_.turned.as<float>();
  std::atomic<std::int64_t> next{0};
  for_each_slot(static_cast<int>(std::min<std::int64_t>(thread_count(), count)), [&](int slot) {
    for (std::int64_t q = next++; q < count; q = next++) {
      memory_.rotation().turn(scorer_.pad(turned_.at(q), query_at(slot)).elements, to + q * shape_.dim);
    }
  });
  turned_ = {to, shape_.dim};
}

/// The lists of the group's queries, best first.
void searcher::probe(std::int64_t first, std::int64_t count) {
  turn_queries(first, count);
  const core::flat_request request = {.queries = turned_.data,
                                      .query_stride = turned_.stride,
                                      .query_count = count,
                                      .k = request_.nprobe,
                                      .scores = memory_.probe_scores.as<float>(),
                                      .ids = memory_.probes.as<std::int64_t>()};
  flat_search(core::choose_flat_algorithm(device_kind::cpu, core::shape_of(model_.probes, request)), memory_.coarse(),
              model_.probes, request);
}

/// What the estimates of the rows of a query's n-th list begin at.
float searcher::base_of(const shared_scan& scan, std::int64_t q, std::int64_t n) const {
  if (shape_.encodes == encoded::row) {
    return shape_.metric == metric::l2 ? static_cast<float>(scan.filter.squared_norm()) : 0.0f;
  }
  if (shape_.metric == metric::cosine) return -scorer_.dot_with_centroid(scan.query, list_at(q, n));
  const float score = memory_.probe_scores.as<float>()[q * request_.nprobe + n];
  return shape_.metric == metric::l2 ? score : -score;
}

void searcher::scan_probe(shared_scan& scan, std::int64_t q, std::int64_t n, candidate_rows& rows) const {
  const std::int64_t list = list_at(q, n);
  rows.scan_list(base_of(scan, q, n), {.pages = lists_.pages,
                                       .table = lists_.table + lists_.first[list],
                                       .page_bytes = page_bytes_,
                                       .strips = strips_,
                                       .rows = lists_.sizes[list],
                                       .list = static_cast<std::uint32_t>(list)});
}

/// Every row of the query's lists.
best_rows searcher::decode_all(int slot, const padded_query& query, std::int64_t q) {
  best_rows found = found_at(slot);
  std::int64_t rows = 0;
  for (std::int64_t n = 0; n < request_.nprobe; ++n) {
    rows += scorer_.add_list(query, list_at(q, n), decoded_at(slot), found);
  }
  found.cut();
  decoded_rows_ += rows;
  ++unfiltered_queries_;
  return found;
}

/// Query q of the group that begins at `first`.
void searcher::answer(int slot, std::int64_t first, std::int64_t q) {
  const padded_query query = scorer_.pad(turned_.at(q), query_at(slot));
  std::byte* tables = memory_.tables.as<std::byte>() + slot * table_sizes(shape_).bytes();
  const query_filter filter(model_, lists_, query.elements, query.inverse_norm, tables);
  if (!filter.can_filter()) {
    best_rows found = decode_all(slot, query, q);
    finish(slot, first + q, found);
    return;
  }
  shared_scan scan{filter, scorer_, query, std::numeric_limits<float>::infinity()};
  candidate_rows rows = candidates_at(slot, scan);
  for (std::int64_t n = 0; n < request_.nprobe; ++n) scan_probe(scan, q, n, rows);
  rows.finish(request_.refine_ratio > 0);
  decoded_rows_ += rows.scored();
  finish(slot, first + q, rows.found());
}

/// The same with the query's lists spread over all cores.
void searcher::answer_on_all_cores(std::int64_t first, std::int64_t q) {
  const padded_query query = scorer_.pad(turned_.at(q), query_at(0));
  const query_filter filter(model_, lists_, query.elements, query.inverse_norm, memory_.tables.as<std::byte>());
  if (!filter.can_filter()) {
    best_rows found = decode_all(0, query, q);
    finish(0, first + q, found);
    return;
  }
  shared_scan scan{filter, scorer_, query, std::numeric_limits<float>::infinity()};
  static_assert(sizeof(candidate_rows) <= kSlotBytes);
  auto* rows = memory_.slot_states.as<candidate_rows>();
  const int slots = static_cast<int>(std::min<std::int64_t>(thread_count(), request_.nprobe));
  std::atomic<std::int64_t> next{0};
  for_each_slot(slots, [&](int slot) {
    candidate_rows& own = *new (rows + slot) candidate_rows(candidates_at(slot, scan));
    for (std::int64_t n = next++; n < request_.nprobe; n = next++) scan_probe(scan, q, n, own);
  });
  for (int slot = 1; slot < slots; ++slot) rows[0].join(rows[slot]);
  rows[0].finish(request_.refine_ratio > 0);
  decoded_rows_ += rows[0].scored();
  finish(0, first + q, rows[0].found());
}

/// Refines what was found, sorts it and writes the k best.
void searcher::finish(int slot, std::int64_t query, best_rows& found) const {
  if (request_.refine_ratio > 0) {
    scorer_.refine(scorer_.pad(request_.queries + query * request_.query_stride, query_at(slot)), found);
  }
  const std::int64_t count = std::min(found.size(), request_.k);
  std::partial_sort(found.keys(), found.keys() + count, found.keys() + found.size(), std::greater<>());
  float* scores = request_.scores + query * request_.k;
  std::int64_t* ids = request_.ids + query * request_.k;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t position = core::position_of(found.keys()[i]);
    scores[i] = core::score_from_key(core::key_of(found.keys()[i]), shape_.metric);
    ids[i] = lists_.ids != nullptr ? lists_.ids[position] : position;
  }
  std::fill(scores + count, scores + request_.k, core::worst_score(shape_.metric));
  std::fill(ids + count, ids + request_.k, core::kNoId);
}

/// Whether a query's lists are worth waking the other cores for, which have no query of their own.
bool searcher::takes_all_cores(std::int64_t count) const {
  const std::int64_t rows = lists_.rows / shape_.nlist * request_.nprobe;
  return count < thread_count() && rows / core::kPageRows * page_bytes_ > kSerialBytes;
}

void searcher::search() {
  memory_.reserve(shape_, std::min(request_.query_count, kMaxQueryGroup), request_.nprobe, wanted_, lists_.rows);
  for (std::int64_t first = 0; first < request_.query_count; first += kMaxQueryGroup) {
    const std::int64_t count = std::min(kMaxQueryGroup, request_.query_count - first);
    probe(first, count);
    if (takes_all_cores(count)) {
      for (std::int64_t q = 0; q < count; ++q) answer_on_all_cores(first, q);
      continue;
    }
    std::atomic<std::int64_t> next{0};
    for_each_slot(static_cast<int>(std::min<std::int64_t>(thread_count(), count)), [&](int slot) {
      for (std::int64_t q = next++; q < count; q = next++) answer(slot, first, q);
    });
  }
  if (request_.stats != nullptr) {
    request_.stats->decoded_rows += decoded_rows_;
    request_.stats->unfiltered_queries += unfiltered_queries_;
  }
}

}  // namespace

std::unique_ptr<core::scratch> make_ivf_pq_scratch(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                                                   const core::ivf_pq_limits& limits) {
  return std::make_unique<ivf_pq_scratch>(model, lists, limits);
}

void ivf_pq_search(core::scratch& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                   const core::ivf_pq_request& request) {
  if (request.query_count == 0 || request.k == 0) return;
  const default_float_environment environment;
  searcher(static_cast<ivf_pq_scratch&>(memory), model, lists, request).search();
}

}  // namespace shortlist::cpu
