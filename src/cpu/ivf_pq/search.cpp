// IVF-PQ search on the CPU: the lists of queries by a flat search over the centroids, then their rows.
//
// A batch is spread over cores by teams of queries, those with the same nearest list in one team. A team goes through
// lists one after the other, each list with all of the team's queries that look at it while it lies in a cache; the
// nearest list of every query comes first, so that limits are low early. One query is spread over cores by its lists.
// Keys of rows order them completely: neither the order of lists nor the split can be seen.
#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <new>

#include "core/plan.hpp"
#include "core/score.hpp"
#include "cpu/ivf_pq/candidates.hpp"
#include "cpu/ivf_pq/probe.hpp"

namespace shortlist::cpu {
namespace {

/// In place of the first list of a part of a batch that estimates could not probe.
constexpr std::int64_t kNotProbed = -1;

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
        layout_(model.shape, wanted_, lists.rows),
        group_(std::min(request.query_count, query_group(request.nprobe))),
        team_(layout_.team(group_)) {}

  void search();

 private:
  // Memory of a slot, and of query t of its team.
  slot_buffers buffers_at(int slot) const {
    return {memory_.decoded.as<float>() + slot * core::kPageRows * ivf_pq_scratch::decoded_stride(shape_.dim),
            memory_.estimates.as<float>() + slot * (layout_.candidates + kValuesSlack)};
  }
  std::byte* query_at(int slot, std::int64_t t) const {
    return memory_.queries.as<std::byte>() + (slot * team_ + t) * layout_.bytes;
  }
  float* elements_at(std::byte* query) const { return reinterpret_cast<float*>(query + layout_.query_at); }
  best_rows found_at(std::byte* query) const {
    return {reinterpret_cast<std::uint64_t*>(query + layout_.keys_at), wanted_};
  }

  void turn_queries(std::int64_t first, std::int64_t count);
  void probe(std::int64_t first, std::int64_t count);
  void probe_flat(std::int64_t q, std::int64_t count);
  std::int64_t list_at(std::int64_t q, std::int64_t n) const {
    return memory_.probes.as<std::int64_t>()[q * request_.nprobe + n];
  }
  void order_by_list(std::int64_t count);

  // What lies at the beginning of a query's memory while it is scanned.
  static query_scan* scan_at(std::byte* query) { return std::launder(reinterpret_cast<query_scan*>(query)); }
  static candidate_rows* candidates_at(std::byte* query) {
    return std::launder(reinterpret_cast<candidate_rows*>(query + sizeof(query_scan)));
  }

  query_scan& begin(std::byte* query, std::int64_t q) const;
  candidate_rows& candidates_for(query_scan& scan, std::byte* query) const;
  float base_of(const query_scan& scan, std::int64_t q, std::int64_t n) const;
  list_span span_of(std::int64_t list) const;
  void scan_pairs(int slot, const ordered_query* queries, std::int64_t count, std::int64_t first_n, std::int64_t end_n);

  void answer_team(int slot, std::int64_t first, const ordered_query* queries, std::int64_t count);
  bool takes_all_cores(std::int64_t count) const;
  void answer_on_all_cores(std::int64_t first, std::int64_t q);
  void answer_by_decoding(int slot, std::byte* query, std::int64_t first, std::int64_t q);
  void finish(int slot, std::byte* query, std::int64_t number, best_rows& found) const;

  ivf_pq_scratch& memory_;
  const core::ivf_pq_model& model_;
  const core::ivf_pq_shape& shape_;
  const core::ivf_pq_lists& lists_;
  const core::ivf_pq_request& request_;
  const row_scorer scorer_;
  const std::int64_t page_bytes_;
  const std::int64_t strips_;
  const std::int64_t wanted_;  // rows, by their codes
  const query_memory layout_;
  const std::int64_t group_;  // queries that are probed together
  const std::int64_t team_;   // of those, what a slot scans together
  query_rows turned_;         // of the group
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
      memory_.rotation().turn(scorer_.pad(turned_.at(q), elements_at(query_at(slot, 0))).elements, to + q * shape_.dim);
    }
  });
  turned_ = {to, shape_.dim};
}

/// The lists of the group's queries, best first.
void searcher::probe(std::int64_t first, std::int64_t count) {
  turn_queries(first, count);
  if (!probes_by_estimates(model_.probes, count)) {
    probe_flat(0, count);
    return;
  }
  const coarse_lists centroids = prepared_model(model_).lists;
  const std::int64_t bytes = probe_bytes(shape_.nlist, shape_.dim);
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> all{true};
  const std::int64_t parts = divide_up(count, kProbeQueries);
  for_each_slot(static_cast<int>(std::min<std::int64_t>(thread_count(), parts)), [&](int slot) {
    std::byte* memory = memory_.probing.as<std::byte>() + slot * bytes;
    for (std::int64_t q = next.fetch_add(kProbeQueries); q < count; q = next.fetch_add(kProbeQueries)) {
      const std::int64_t part = std::min(kProbeQueries, count - q);
      std::int64_t* lists = memory_.probes.as<std::int64_t>() + q * request_.nprobe;
      if (probe_by_estimates(centroids, turned_.at(q), turned_.stride, part, request_.nprobe, memory,
                             memory_.probe_scores.as<float>() + q * request_.nprobe, lists)) {
        continue;
      }
      *lists = kNotProbed;
      all = false;
    }
  });
  if (all) return;
  for (std::int64_t q = 0; q < count; q += kProbeQueries) {
    if (list_at(q, 0) == kNotProbed) probe_flat(q, std::min(kProbeQueries, count - q));
  }
}

/// The same for queries [q, q + count) of the group by a flat search.
void searcher::probe_flat(std::int64_t q, std::int64_t count) {
  const core::flat_request request = {.queries = turned_.at(q),
                                      .query_stride = turned_.stride,
                                      .query_count = count,
                                      .k = request_.nprobe,
                                      .scores = memory_.probe_scores.as<float>() + q * request_.nprobe,
                                      .ids = memory_.probes.as<std::int64_t>() + q * request_.nprobe};
  flat_search(core::choose_flat_algorithm(device_kind::cpu, core::shape_of(model_.probes, request)), memory_.coarse(),
              model_.probes, request);
}

/// The group's queries such that those with the same nearest list follow each other: a team then shares most of its
/// lists, and the rows that it refines.
void searcher::order_by_list(std::int64_t count) {
  auto* order = memory_.order.as<ordered_query>();
  for (std::int64_t q = 0; q < count; ++q) {
    order[q] = {static_cast<std::uint32_t>(list_at(q, 0)), static_cast<std::uint32_t>(q)};
  }
  std::sort(order, order + count, [](const ordered_query& a, const ordered_query& b) {
    return a.list != b.list ? a.list < b.list : a.number < b.number;
  });
}

/// Query q of the group, ready to be scanned, in its memory.
query_scan& searcher::begin(std::byte* query, std::int64_t q) const {
  return *new (query)
      query_scan(model_, lists_, scorer_, scorer_.pad(turned_.at(q), elements_at(query)), query + layout_.tables_at);
}

candidate_rows& searcher::candidates_for(query_scan& scan, std::byte* query) const {
  static_assert(sizeof(query_scan) + sizeof(candidate_rows) <= kStateBytes && alignof(query_scan) == 8);
  return *new (query + sizeof(query_scan)) candidate_rows(
      scan, reinterpret_cast<candidate*>(query + layout_.candidates_at), layout_.candidates, found_at(query));
}

/// What the estimates of the rows of a query's n-th list begin at.
float searcher::base_of(const query_scan& scan, std::int64_t q, std::int64_t n) const {
  if (shape_.encodes == encoded::row) {
    return shape_.metric == metric::l2 ? static_cast<float>(scan.filter.squared_norm()) : 0.0f;
  }
  if (shape_.metric == metric::cosine) return -scorer_.dot_with_centroid(scan.query, list_at(q, n));
  const float score = memory_.probe_scores.as<float>()[q * request_.nprobe + n];
  return shape_.metric == metric::l2 ? score : -score;
}

list_span searcher::span_of(std::int64_t list) const {
  return {.pages = lists_.pages,
          .table = lists_.table + lists_.first[list],
          .page_bytes = page_bytes_,
          .strips = strips_,
          .rows = lists_.sizes[list],
          .list = static_cast<std::uint32_t>(list)};
}

/// The lists of places [first_n, end_n) of the team's queries.
void searcher::scan_pairs(int slot, const ordered_query* queries, std::int64_t count, std::int64_t first_n,
                          std::int64_t end_n) {
  probe_pair* pairs = memory_.pairs.as<probe_pair>() + slot * team_ * request_.nprobe;
  std::int64_t size = 0;
  for (std::int64_t t = 0; t < count; ++t) {
    if (!scan_at(query_at(slot, t))->filter.can_filter()) continue;
    for (std::int64_t n = first_n; n < end_n; ++n) {
      pairs[size++] = {static_cast<std::uint32_t>(list_at(queries[t].number, n)), static_cast<std::uint32_t>(t),
                       static_cast<std::uint32_t>(n)};
    }
  }
  std::sort(pairs, pairs + size, [](const probe_pair& a, const probe_pair& b) { return a.list < b.list; });
  for (std::int64_t i = 0; i < size;) {
    candidate_rows* scans[kScannedQueries];
    float bases[kScannedQueries];
    const std::uint32_t list = pairs[i].list;
    std::size_t together = 0;
    for (; together < kScannedQueries && i < size && pairs[i].list == list; ++together, ++i) {
      std::byte* query = query_at(slot, pairs[i].query);
      scans[together] = candidates_at(query);
      bases[together] = base_of(*scan_at(query), queries[pairs[i].query].number, pairs[i].n);
    }
    candidate_rows::scan_list({scans, together}, bases, span_of(list), buffers_at(slot));
  }
}

/// So many queries of the group that begins at `first`.
void searcher::answer_team(int slot, std::int64_t first, const ordered_query* queries, std::int64_t count) {
  for (std::int64_t t = 0; t < count; ++t) {
    std::byte* query = query_at(slot, t);
    candidates_for(begin(query, queries[t].number), query);
  }
  scan_pairs(slot, queries, count, 0, 1);
  scan_pairs(slot, queries, count, 1, request_.nprobe);
  const auto write_answer = [&](std::int64_t t) {
    std::byte* query = query_at(slot, t);
    if (scan_at(query)->filter.can_filter())
      finish(slot, query, first + queries[t].number, candidates_at(query)->found());
  };
  for (std::int64_t t = 0; t < count; ++t) {
    std::byte* query = query_at(slot, t);
    if (scan_at(query)->filter.can_filter()) {
      candidate_rows& rows = *candidates_at(query);
      rows.finish(request_.refine_ratio > 0, buffers_at(slot));
      decoded_rows_ += rows.scored();
      if (request_.refine_ratio > 0) scorer_.fetch_kept(rows.found());
    } else {
      answer_by_decoding(slot, query, first, queries[t].number);
    }
    if (t > 0) write_answer(t - 1);  // while the rows of this one come from memory
  }
  write_answer(count - 1);
}

/// Query q of the group with its lists spread over all cores.
void searcher::answer_on_all_cores(std::int64_t first, std::int64_t q) {
  std::byte* query = query_at(0, 0);
  query_scan& scan = begin(query, q);
  if (!scan.filter.can_filter()) {
    answer_by_decoding(0, query, first, q);
    return;
  }
  const int slots = static_cast<int>(std::min<std::int64_t>(thread_count(), request_.nprobe));
  std::atomic<std::int64_t> next{0};
  for_each_slot(slots, [&](int slot) {
    candidate_rows& own = candidates_for(scan, query_at(slot, 0));
    for (std::int64_t n = next++; n < request_.nprobe; n = next++) {
      own.scan_list(base_of(scan, q, n), span_of(list_at(q, n)), buffers_at(slot));
    }
  });
  candidate_rows& all = *candidates_at(query);
  for (int slot = 1; slot < slots; ++slot) all.join(*candidates_at(query_at(slot, 0)), buffers_at(0));
  all.finish(request_.refine_ratio > 0, buffers_at(0));
  decoded_rows_ += all.scored();
  finish(0, query, first + q, all.found());
}

/// The same where nothing is known of scores: every row of the query's lists.
void searcher::answer_by_decoding(int slot, std::byte* query, std::int64_t first, std::int64_t q) {
  const padded_query& padded = scan_at(query)->query;
  best_rows found = found_at(query);
  std::int64_t rows = 0;
  for (std::int64_t n = 0; n < request_.nprobe; ++n) {
    rows += scorer_.add_list(padded, list_at(q, n), buffers_at(slot).decoded, found);
  }
  found.cut();
  decoded_rows_ += rows;
  ++unfiltered_queries_;
  finish(slot, query, first + q, found);
}

/// Refines what was found, sorts it and writes the k best.
void searcher::finish(int slot, std::byte* query, std::int64_t number, best_rows& found) const {
  if (request_.refine_ratio > 0) {
    scorer_.refine(scorer_.pad(request_.queries + number * request_.query_stride, elements_at(query)),
                   buffers_at(slot).decoded, found);
  }
  const std::int64_t count = std::min(found.size(), request_.k);
  std::partial_sort(found.keys(), found.keys() + count, found.keys() + found.size(), std::greater<>());
  float* scores = request_.scores + number * request_.k;
  std::int64_t* ids = request_.ids + number * request_.k;
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
  memory_.reserve(model_, group_, request_.nprobe, layout_);
  for (std::int64_t first = 0; first < request_.query_count; first += group_) {
    const std::int64_t count = std::min(group_, request_.query_count - first);
    probe(first, count);
    if (takes_all_cores(count)) {
      for (std::int64_t q = 0; q < count; ++q) answer_on_all_cores(first, q);
      continue;
    }
    order_by_list(count);
    const auto* order = memory_.order.as<ordered_query>();
    std::atomic<std::int64_t> next{0};
    for_each_slot(static_cast<int>(std::min<std::int64_t>(thread_count(), divide_up(count, team_))), [&](int slot) {
      for (std::int64_t i = next.fetch_add(team_); i < count; i = next.fetch_add(team_)) {
        answer_team(slot, first, order + i, std::min(team_, count - i));
      }
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
