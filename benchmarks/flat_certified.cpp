// Certified search on the CPU beside the same search without a plane: one query and batches, and the data that is worst
// for a filter. Work that went through the plane ends in "/certified". SHORTLIST_FORCE_ISA picks another instruction
// set.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "campaigns.hpp"
#include "flat_bench.hpp"
#include "seed_shapes.hpp"

namespace shortlist::benchmark {
namespace {

struct certified_corpus {
  std::int64_t rows;
  std::int64_t dim;
  distribution values;
  std::vector<std::int64_t> queries;
  std::vector<std::int64_t> ks;
};

const certified_corpus kCorpora[] = {
    {10'000, 384, distribution::normal, {1}, {10}},
    {100'000, 384, distribution::normal, {1}, {10, 100}},
    {100'000, 768, distribution::normal, {1, 16, 256}, {10, 100}},
    {100'000, 768, distribution::clustered, {1, 256}, {10, 100}},
    {100'000, 768, distribution::all_equal, {1, 16}, {10}},
    {100'000, 768, distribution::ascending, {1, 16}, {10}},
    {100'000, 768, distribution::one_cluster, {1, 16}, {10}},
    {1'000'000, 384, distribution::normal, {256}, {10, 100}},
    {1'000'000, 768, distribution::normal, {1}, {10, 100}},
    {1'000'000, 768, distribution::clustered, {1}, {10, 100}},
};

// Of the worst data, what a search with a plane may take beside one without.
constexpr double kWorstRatio = 1.3;

bool is_worst(distribution values) {
  return values == distribution::all_equal || values == distribution::ascending || values == distribution::one_cluster;
}

}  // namespace

limits_report run_flat_certified(results& out, const campaign_settings& settings) {
  const patience one_query =
      settings.quick ? patience{.seconds = 0.05, .fewest = 3} : patience{.seconds = 0.5, .fewest = 7};
  const patience batch = settings.quick ? patience{.seconds = 0.05, .fewest = 1} : patience{.seconds = 1, .fewest = 5};
  const char* isa = std::getenv("SHORTLIST_FORCE_ISA");

  limits_report limits;  // of the largest corpus, the last one: smaller ones lie in caches
  for (const certified_corpus& corpus : kCorpora) {
    const auto work = [&](std::int64_t queries, std::int64_t k, bool certified) {
      const std::string_view values = corpus.values == distribution::normal ? "" : to_string(corpus.values);
      const std::string apart = fmt::format("cpu{}{}{}{}{}", isa && *isa ? "/" : "", isa ? isa : "",
                                            values.empty() ? "" : "/", values, certified ? "/certified" : "");
      return work_name({.rows = corpus.rows, .dim = corpus.dim, .queries = queries, .k = k}, "host", apart);
    };
    const auto any_wanted = [&] {
      for (const std::int64_t queries : corpus.queries) {
        for (const std::int64_t k : corpus.ks) {
          if (out.wants(work(queries, k, true))) return true;  // its name holds the other one's
        }
      }
      return false;
    };
    if (!any_wanted()) continue;

    const std::int64_t most_queries = std::ranges::max(corpus.queries);
    const std::int64_t max_k = std::ranges::max(corpus.ks);
    flat_data data(corpus.rows, corpus.dim, element_type::f32, corpus.values, std::max(kQuerySets, 2 * most_queries),
                   max_k);
    for (const bool certified : {false, true}) {
      flat_bench bench(device::cpu(), data, out, one_query, most_queries, max_k, 1,
                       certified ? storage::int8_and_full : storage::full);
      const double limit_ms = bench.limit_ms(nullptr);
      limits["read_gb_per_s"]["cpu"] = static_cast<double>(data.rows.bytes()) / (limit_ms * 1e6);
      for (const std::int64_t queries : corpus.queries) {
        bench.set_patience(queries == 1 ? one_query : batch);
        for (const std::int64_t k : corpus.ks) {
          nlohmann::ordered_json more;
          if (certified) more["compared_with"] = work(queries, k, false);
          if (certified && is_worst(corpus.values)) more["target_ratio"] = kWorstRatio;
          bench.host(queries, k, work(queries, k, certified), limit_ms, more);
        }
      }
    }
  }
  return limits;
}

}  // namespace shortlist::benchmark
