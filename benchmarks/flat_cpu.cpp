// The flat search on the CPU: one query over the 45 configurations, and batches. SHORTLIST_FORCE_ISA picks another
// instruction set for the whole run; its name then ends the names of the work.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "campaigns.hpp"
#include "flat_bench.hpp"
#include "seed_shapes.hpp"

namespace shortlist::benchmark {
namespace {

struct batch_corpus {
  std::int64_t rows;
  std::int64_t dim;
};
constexpr batch_corpus kBatchCorpora[] = {{100'000, 768}, {1'000'000, 384}};
constexpr std::int64_t kBatchQueries[] = {16, 256};
constexpr std::int64_t kBatchKs[] = {10, 100};

struct job {
  std::int64_t queries;
  std::int64_t k;
};

std::vector<job> jobs_of(std::int64_t rows, std::int64_t dim) {
  std::vector<job> jobs;
  for (const std::int64_t k : kSeedKs) jobs.push_back({1, k});
  for (const auto& [batch_rows, batch_dim] : kBatchCorpora) {
    if (batch_rows != rows || batch_dim != dim) continue;
    for (const std::int64_t queries : kBatchQueries) {
      for (const std::int64_t k : kBatchKs) jobs.push_back({queries, k});
    }
  }
  return jobs;
}

}  // namespace

limits_report run_flat_cpu(results& out, const campaign_settings& settings) {
  const patience one_query =
      settings.quick ? patience{.seconds = 0.05, .fewest = 3} : patience{.seconds = 0.5, .fewest = 7};
  const patience batch = settings.quick ? patience{.seconds = 0.05, .fewest = 1} : patience{.seconds = 1, .fewest = 5};
  const char* isa = std::getenv("SHORTLIST_FORCE_ISA");
  const std::string apart = isa && *isa ? std::string("cpu/") + isa : "cpu";

  limits_report limits;  // of the largest corpus, the last one: smaller ones lie in caches
  for (const std::int64_t rows : kSeedRows) {
    for (const std::int64_t dim : kSeedDims) {
      const auto work = [&](const job& j) {
        return work_name({.rows = rows, .dim = dim, .queries = j.queries, .k = j.k}, "host", apart);
      };
      std::vector<job> jobs = jobs_of(rows, dim);
      std::erase_if(jobs, [&](const job& j) { return !out.wants(work(j)); });
      if (jobs.empty()) continue;

      const std::int64_t most_queries = std::ranges::max(jobs, {}, &job::queries).queries;
      flat_data data(rows, dim, element_type::f32, distribution::normal, std::max(kQuerySets, 2 * most_queries),
                     kSeedMaxK);
      flat_bench bench(device::cpu(), data, out, one_query, most_queries, kSeedMaxK);
      const double limit_ms = bench.limit_ms(nullptr);
      limits["read_gb_per_s"]["cpu"] = static_cast<double>(data.rows.bytes()) / (limit_ms * 1e6);
      for (const job& j : jobs) {
        bench.set_patience(j.queries == 1 ? one_query : batch);
        bench.host(j.queries, j.k, work(j), limit_ms);
      }
    }
  }
  return limits;
}

}  // namespace shortlist::benchmark
