// The flat search on the CPU: one query over the 45 configurations, and batches. SHORTLIST_FORCE_ISA picks another
// instruction set for the whole run; its name then ends the names of the work.
#include <cstdlib>
#include <string>

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
constexpr std::int64_t kBatchQueryPool = 512;  // two sets of the larger batch

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
      const search_shape shape{.rows = rows, .dim = dim};
      const auto works = [&](const std::int64_t queries, const std::int64_t k) {
        search_shape one = shape;
        one.queries = queries;
        one.k = k;
        return work_name(one, "host", apart);
      };
      bool has_batches = false;
      for (const auto& [batch_rows, batch_dim] : kBatchCorpora) {
        has_batches = has_batches || (batch_rows == rows && batch_dim == dim);
      }
      bool wanted = false;
      for (const std::int64_t k : kSeedKs) wanted = wanted || out.wants(works(1, k));
      bool batch_wanted = false;
      if (has_batches) {
        for (const std::int64_t queries : kBatchQueries) {
          for (const std::int64_t k : kBatchKs) batch_wanted = batch_wanted || out.wants(works(queries, k));
        }
      }
      if (!wanted && !batch_wanted) continue;

      flat_data data(rows, dim, element_type::f32, distribution::normal, batch_wanted ? kBatchQueryPool : kQuerySets,
                     kSeedMaxK);
      flat_bench bench(device::cpu(), data, out, one_query, batch_wanted ? kBatchQueryPool / 2 : 1, kSeedMaxK);
      const double limit_ms = bench.limit_ms(nullptr);
      limits["read_gb_per_s"]["cpu"] = static_cast<double>(data.rows.bytes()) / (limit_ms * 1e6);
      for (const std::int64_t k : kSeedKs) bench.host(1, k, works(1, k), limit_ms);
      if (!batch_wanted) continue;
      bench.set_patience(batch);
      for (const std::int64_t queries : kBatchQueries) {
        for (const std::int64_t k : kBatchKs) bench.host(queries, k, works(queries, k), limit_ms);
      }
    }
  }
  return limits;
}

}  // namespace shortlist::benchmark
