// A corpus beyond the GPU's memory: its int8 plane on the GPU, its rows in the host's, under a budget that they would
// not fit. One query, host to host; every answer is compared with a search that reads all rows across the bus.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "campaigns.hpp"
#include "corpus.hpp"
#include "gpu.hpp"
#include "shortlist/flat_index.hpp"
#include "timing.hpp"
#include "truth.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kDim = 768;
constexpr std::int64_t kChunkRows = 500'000;
constexpr std::int64_t kQuerySets = 8;
constexpr std::int64_t kKs[] = {10, 100};
constexpr std::int64_t kMaxK = 100;
constexpr const char* kBudget = "SHORTLIST_DEVICE_BUDGET";
constexpr const char* kDefaultBudget = "20GiB";
constexpr const char* kForce = "SHORTLIST_FORCE_FLAT_SEARCH";
constexpr double kTargetShare = 0.7;
constexpr distribution kValues = distribution::clustered;

flat_index built(std::int64_t rows) {
  flat_index index(device::cuda(), {.dim = kDim, .storage = storage::int8_and_host});
  index.reserve({.max_rows = rows, .max_queries = 1, .max_k = kMaxK});
  const row_source source(rows, kDim, element_type::f32, kValues);
  std::vector<float> chunk(static_cast<std::size_t>(std::min(rows, kChunkRows) * kDim));
  for (std::int64_t first = 0; first < rows; first += kChunkRows) {
    const std::int64_t count = std::min(kChunkRows, rows - first);
    source.write(first, count, reinterpret_cast<std::byte*>(chunk.data()));
    index.add(matrix_view<const float>(chunk.data(), count, kDim));
  }
  return index;
}

void measure(const flat_index& index, std::int64_t k, double plane_read_ms, const patience& limit, results& out) {
  const search_shape shape = {.rows = index.rows(), .dim = kDim, .k = k, .storage = storage::int8_and_host};
  const std::string work = work_name(shape, "host", fmt::format("{}/host_rows/certified", to_string(kValues)));
  if (!out.wants(work)) return;
  const query_pool queries(kQuerySets, kDim, kValues);
  answer found(1, k);
  const auto search = [&](std::int64_t run, search_stats* stats) {
    index.search(queries.view(run % kQuerySets, 1), {.k = k, .stats = stats}, found.output());
  };
  answer expected(1, k);
  const auto search_all = [&](std::int64_t run) {
    setenv(kForce, "scan", 1);
    const double ms = wall_ms([&] { index.search(queries.view(run % kQuerySets, 1), {.k = k}, expected.output()); });
    unsetenv(kForce);
    return ms;
  };
  for (const std::int64_t run : {0, 1}) {
    search(run, nullptr);
    search_all(run);
    if (const auto difference = first_difference(found, 0, expected, 0)) {
      return out.add_wrong(work, *difference + " by a search of all rows");
    }
  }
  const memory_use memory = index.memory();
  const timing all_rows = repeat({.seconds = 0, .fewest = 2}, search_all);
  const timing time = repeat(limit, [&](std::int64_t run) { return wall_ms([&] { search(run, nullptr); }); });
  search_stats stats;
  for (std::int64_t run = 0; run < kQuerySets; ++run) search(run, &stats);
  out.add(work, {.time = time, .bytes = memory.planes_bytes, .limit_ms = plane_read_ms},
          {{"all_rows_ms", all_rows.median_ms},
           {"certified_share", static_cast<double>(stats.certified_queries) / static_cast<double>(kQuerySets)},
           {"survivors_per_query", static_cast<double>(stats.survivors) /
                                       static_cast<double>(std::max<std::int64_t>(1, stats.certified_queries))},
           {"rows_bytes", memory.rows_bytes},
           {"host_rows_bytes", memory.host_rows_bytes},
           {"device_budget", std::getenv(kBudget)},
           {"target_share", kTargetShare}});
}

}  // namespace

limits_report run_flat_host_rows(results& out, const campaign_settings& settings) {
  if (!find_gpu()) {
    throw std::runtime_error("the campaign flat_host_rows needs a GPU, and a shortlist_bench built with CUDA");
  }
  limits_report limits;
  double gb_per_s = 0;
  {
    gpu_clock gpu;
    gb_per_s = gpu.read_gb_per_s();
  }
  limits["read_gb_per_s"]["gpu"] = gb_per_s;
  setenv(kBudget, kDefaultBudget, 0);  // unless the caller gave one
  const std::int64_t rows = settings.gigabytes * 1'000'000'000 / (kDim * static_cast<std::int64_t>(sizeof(float)));
  std::optional<flat_index> index;
  limits["build_s"] = wall_ms([&] { index.emplace(built(rows)); }) / 1e3;
  const patience limit = settings.quick ? patience{.seconds = 0.1, .fewest = 3} : patience{.seconds = 1, .fewest = 9};
  const double plane_read_ms = static_cast<double>(index->memory().planes_bytes) / (gb_per_s * 1e6);
  for (const std::int64_t k : kKs) measure(*index, k, plane_read_ms, limit, out);
  return limits;
}

}  // namespace shortlist::benchmark
