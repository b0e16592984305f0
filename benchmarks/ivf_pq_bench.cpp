// Verifies and times searches of an IVF-PQ index. See ivf_pq_bench.hpp.
#include "ivf_pq_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <unordered_set>

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kUnfiltered = 16;  // queries of a batch that are compared with a search that decodes every row

/// Searches decode and score every row of their lists, for as long as it lives.
class unfiltered_searches {
 public:
  unfiltered_searches() { setenv(kVariable, "decode", 1); }
  unfiltered_searches(const unfiltered_searches&) = delete;
  unfiltered_searches& operator=(const unfiltered_searches&) = delete;
  ~unfiltered_searches() { unsetenv(kVariable); }

 private:
  static constexpr const char* kVariable = "SHORTLIST_FORCE_IVF_PQ";
};

}  // namespace

std::string ivf_pq_work(std::int64_t rows, std::int64_t dim, const ivf_pq_job& what, std::string_view code,
                        std::string_view apart) {
  const std::string refine = what.refine_ratio > 0 ? fmt::format("/refine{}", what.refine_ratio) : "";
  return fmt::format("ivf_pq/{}x{}/q{}/k{}/nprobe{}/{}{}{}{}", rows, dim, what.queries, what.k, what.nprobe, code,
                     refine, apart.empty() ? "" : "/", apart);
}

ivf_pq_queries::ivf_pq_queries(device where, std::vector<float> values, std::int64_t dim)
    : dim_(dim), values_(std::move(values)), memory_(where, static_cast<std::int64_t>(values_.size() * sizeof(float))) {
  memory_.upload(stream(where), values_.data());
}

void ivf_pq_queries::set_truth(std::int64_t k, std::vector<std::int64_t> ids) {
  truths_.push_back({k, std::move(ids)});
  std::ranges::sort(truths_, {}, &known::k);
}

std::optional<double> ivf_pq_queries::recall(const answer& found, std::int64_t queries) const {
  const auto right = std::ranges::find_if(truths_, [&](const known& one) { return one.k >= found.k; });
  if (right == truths_.end()) return std::nullopt;
  const std::int64_t with_truth = std::min(queries, static_cast<std::int64_t>(right->ids.size()) / right->k);
  std::int64_t hits = 0;
  for (std::int64_t q = 0; q < with_truth; ++q) {
    const auto best = right->ids.begin() + q * right->k;
    const std::unordered_set<std::int64_t> nearest(best, best + found.k);
    const auto ids = found.ids.begin() + q * found.k;
    hits += std::count_if(ids, ids + found.k, [&](std::int64_t id) { return nearest.contains(id); });
  }
  return static_cast<double>(hits) / static_cast<double>(with_truth * found.k);
}

std::string ivf_pq_bench::work(const ivf_pq_job& what, std::string_view apart) const {
  return ivf_pq_work(index_.rows(), index_.options().dim, what, code_.name, apart);
}

answer ivf_pq_bench::search(const ivf_pq_queries& queries, std::int64_t first, const ivf_pq_job& what) const {
  const ivf_pq_result found = index_.search(queries.on_host(first, what.queries),
                                            {.k = what.k, .nprobe = what.nprobe, .refine_ratio = what.refine_ratio});
  answer copied(what.queries, what.k);
  copied.scores = found.scores;
  copied.ids = found.ids;
  return copied;
}

void ivf_pq_bench::compare_with_unfiltered(const ivf_pq_queries& queries, const ivf_pq_job& what,
                                           const answer& found) const {
  const unfiltered_searches forced;
  ivf_pq_job few = what;
  few.queries = std::min(what.queries, kUnfiltered);
  const answer expected = search(queries, 0, few);
  for (std::int64_t q = 0; q < few.queries; ++q) {
    if (auto difference = first_difference(found, q, expected, q))
      throw std::runtime_error(*difference + " by a search without a filter");
  }
}

ivf_pq_outcome ivf_pq_bench::outcome_of(const ivf_pq_job& what, const timing& time,
                                        std::optional<double> recall) const {
  const ivf_pq_options& options = index_.options();
  const auto queries = static_cast<double>(what.queries);
  const auto codes = static_cast<double>(index_.rows() * code_.scanned_bytes(options.dim));
  const double probes = queries * static_cast<double>(what.nprobe) / static_cast<double>(options.nlist);
  const double refined = queries * static_cast<double>(what.k * what.refine_ratio * options.dim) * sizeof(float);
  // Lists that several queries probe need to be read once; the model reads them for every query.
  const double once_bytes = std::min(1.0, probes) * codes + refined;
  const double model_bytes = probes * codes + refined;
  const double bytes_per_ms = read_gb_per_s_ * 1e6;
  ivf_pq_outcome made;
  made.what = {.time = time, .bytes = static_cast<std::int64_t>(once_bytes), .limit_ms = once_bytes / bytes_per_ms};
  made.recall = recall.value_or(0);
  if (recall) made.fields["recall"] = *recall;
  made.fields["qps"] = queries * 1e3 / time.median_ms;
  made.fields["model_bytes"] = model_bytes;
  made.fields["share_of_model"] = model_bytes / bytes_per_ms / time.median_ms;
  return made;
}

ivf_pq_outcome ivf_pq_bench::on_device(const ivf_pq_queries& queries, const ivf_pq_job& what,
                                       const patience& limit) const {
  const device where = index_.where();
  const stream s = stream::wrap(where, gpu_.stream());
  buffer scores(where, what.queries * what.k * static_cast<std::int64_t>(sizeof(float)));
  buffer ids(where, what.queries * what.k * static_cast<std::int64_t>(sizeof(std::int64_t)));
  const search_output out{static_cast<float*>(scores.data()), static_cast<std::int64_t*>(ids.data())};
  const ivf_pq_search_options options{.k = what.k, .nprobe = what.nprobe, .refine_ratio = what.refine_ratio};
  const std::int64_t sets = queries.count() / what.queries;
  const auto search_set = [&](std::int64_t set) {
    index_.search(s, queries.on_gpu(set % sets * what.queries, what.queries), options, out);
  };
  search_set(0);
  answer found(what.queries, what.k);
  scores.download(s, found.scores.data());
  ids.download(s, found.ids.data());
  compare_with_unfiltered(queries, what, found);
  const timing time = repeat(limit, [&](std::int64_t run) { return gpu_.time_ms([&] { search_set(run); }); });
  ivf_pq_outcome made = outcome_of(what, time, queries.recall(found, what.queries));
  ivf_pq_stats stats;
  ivf_pq_search_options counted = options;
  counted.stats = &stats;
  index_.search(queries.on_host(0, what.queries), counted);
  made.fields["decoded_rows"] = stats.decoded_rows;
  made.fields["unfiltered_queries"] = stats.unfiltered_queries;
  return made;
}

ivf_pq_outcome ivf_pq_bench::on_host(const ivf_pq_queries& queries, const ivf_pq_job& what,
                                     const patience& limit) const {
  const std::int64_t sets = queries.count() / what.queries;
  const answer found = search(queries, 0, what);
  compare_with_unfiltered(queries, what, found);
  const ivf_pq_search_options options{.k = what.k, .nprobe = what.nprobe, .refine_ratio = what.refine_ratio};
  const timing time = repeat(limit, [&](std::int64_t run) {
    const matrix_view<const float> set = queries.on_host(run % sets * what.queries, what.queries);
    return wall_ms([&] { index_.search(set, options); });
  });
  return outcome_of(what, time, std::nullopt);
}

}  // namespace shortlist::benchmark
