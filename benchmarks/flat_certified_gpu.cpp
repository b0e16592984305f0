// Certified search on the GPU beside the search of all rows of the same index: one query and batches, ordinary rows and
// those that are worst for a filter. Work that went through the plane ends in "/certified".
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "campaigns.hpp"
#include "flat_bench.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kMillion = 1'000'000;
constexpr std::int64_t kQuerySets = 8;

struct job {
  std::int64_t queries;
  std::int64_t k;
};

struct certified_corpus {
  std::int64_t rows;
  std::int64_t dim;
  distribution values;
  std::vector<job> jobs;
};

// Small ones first: through the plane even where the plan would not, to see where it should begin.
constexpr std::int64_t kPlannedRows = kMillion;
const certified_corpus kCorpora[] = {
    {10'000, 384, distribution::normal, {{1, 100}}},
    {30'000, 384, distribution::normal, {{1, 100}}},
    {100'000, 384, distribution::normal, {{1, 100}}},
    {100'000, 768, distribution::normal, {{1, 100}, {16, 100}}},
    {kMillion, 1024, distribution::normal, {{1, 8}, {1, 100}}},
    {kMillion, 1024, distribution::clustered, {{1, 8}, {1, 100}}},
    {kMillion,
     768,
     distribution::normal,
     {{1, 8},
      {1, 100},
      {1, 1000},
      {4, 100},
      {16, 8},
      {16, 100},
      {64, 8},
      {64, 100},
      {1024, 8},
      {1024, 100},
      {10'000, 10}}},
    {kMillion, 768, distribution::clustered, {{1, 8}, {1, 100}, {1, 1000}, {16, 100}, {64, 100}, {1024, 100}}},
    {kMillion, 768, distribution::all_equal, {{1, 100}, {16, 100}, {1024, 100}}},
    {kMillion, 768, distribution::ascending, {{1, 100}, {16, 100}, {1024, 100}}},
    {kMillion, 768, distribution::one_cluster, {{1, 100}, {16, 100}, {1024, 100}}},
    {10 * kMillion, 768, distribution::normal, {{1, 8}, {1, 100}, {1, 1000}}},
    {10 * kMillion, 768, distribution::clustered, {{1, 8}, {1, 100}, {1, 1000}}},
};

// Of the worst data, what a search with a plane may take beside one without.
constexpr double kWorstRatio = 1.3;

// Of the largest corpora, where what a search costs besides reading no longer counts: of the whole codes' bandwidth,
// which batches read, even where one query reads fewer bytes.
constexpr double kShareBeyondFixedCosts = 0.9;
constexpr std::int64_t kBatch = 16;

bool is_worst(distribution values) {
  return values == distribution::all_equal || values == distribution::ascending || values == distribution::one_cluster;
}

std::string work_of(const certified_corpus& corpus, const job& what, bool certified) {
  const std::string_view values = corpus.values == distribution::normal ? "" : to_string(corpus.values);
  const std::string apart =
      fmt::format("{}{}{}", values, values.empty() || !certified ? "" : "/", certified ? "certified" : "");
  return work_name({.rows = corpus.rows, .dim = corpus.dim, .queries = what.queries, .k = what.k},
                   what.queries == 1 ? "host" : "device", apart);
}

/// A multiplication and an addition for every element of every row and query, as if none were filtered.
double operations_of(const certified_corpus& corpus, const job& what) {
  return 2.0 * static_cast<double>(what.queries) * static_cast<double>(corpus.rows) * static_cast<double>(corpus.dim);
}

void run_corpus(const certified_corpus& corpus, gpu_clock& gpu, results& out, const patience& limit) {
  std::vector<job> jobs;
  std::ranges::copy_if(corpus.jobs, std::back_inserter(jobs),
                       [&](const job& what) { return out.wants(work_of(corpus, what, true)); });
  if (jobs.empty()) return;
  const std::int64_t most_queries = std::ranges::max(jobs, {}, &job::queries).queries;
  const std::int64_t max_k = std::ranges::max(jobs, {}, &job::k).k;
  flat_data data(corpus.rows, corpus.dim, element_type::f32, corpus.values, std::max(kQuerySets, most_queries), max_k);
  flat_bench bench(device::cuda(), data, out, limit, 1, max_k, 1, storage::int8_and_full);
  const double limit_ms = bench.limit_ms(&gpu);
  for (const bool certified : {false, true}) {
    const auto by_plane = corpus.rows < kPlannedRows ? flat_bench::through::plane : flat_bench::through::plan;
    bench.search_through(certified ? by_plane : flat_bench::through::rows);
    for (const job& what : jobs) {
      nlohmann::ordered_json more = nlohmann::ordered_json::object();
      if (what.queries > 1) more["operations"] = operations_of(corpus, what);
      if (certified) more["compared_with"] = work_of(corpus, what, false);
      if (certified && is_worst(corpus.values)) more["target_ratio"] = kWorstRatio;
      if (certified && corpus.rows > kMillion) {
        const double read_bytes = static_cast<double>(bench.plane_bytes(what.queries, what.k));
        more["target_share"] =
            kShareBeyondFixedCosts * read_bytes / static_cast<double>(bench.plane_bytes(kBatch, what.k));
      }
      const std::string work = work_of(corpus, what, certified);
      if (what.queries == 1) {
        bench.host(1, what.k, work, limit_ms, more);
      } else {
        bench.on_device(gpu, what.queries, what.k, work, limit_ms, more);
      }
    }
  }
}

}  // namespace

limits_report run_flat_certified_gpu(results& out, const campaign_settings& settings) {
  if (!find_gpu()) {
    throw std::runtime_error("the campaign flat_certified_gpu needs a GPU, and a shortlist_bench built with CUDA");
  }
  const patience limit =
      settings.quick ? patience{.seconds = 0.03, .fewest = 3} : patience{.seconds = 0.3, .fewest = 7};
  gpu_clock gpu;
  limits_report limits;
  limits["read_gb_per_s"]["gpu"] = gpu.read_gb_per_s();
  for (const certified_corpus& corpus : kCorpora) run_corpus(corpus, gpu, out, limit);
  return limits;
}

}  // namespace shortlist::benchmark
