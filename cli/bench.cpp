// `shortlist bench`: one shape of search on random data, verified against the reference, then timed host to host.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "command.hpp"
#include "compare.hpp"
#include "samples.hpp"
#include "shortlist/shortlist.hpp"
#include "terminal.hpp"

namespace shortlist::program {
namespace {

constexpr std::uint64_t kRowsSeed = 1;
constexpr std::uint64_t kQueriesSeed = 2;
constexpr std::int64_t kQuerySets = 8;  // rotated, so that no run repeats the query before it
constexpr double kTimingSeconds = 2.0;  // without --repeat: enough runs for a steady median, soon over
constexpr std::int64_t kFewestRuns = 5;
constexpr std::int64_t kMostRuns = 2000;
// The reference takes about two nanoseconds for each element of a row: this many of them are some seconds. Of a batch
// that wants more, evenly spread queries are verified.
constexpr std::int64_t kReferenceElements = 2'000'000'000;

struct bench_options {
  search_shape shape{.rows = 100'000, .dim = 384};
  std::string type = "f32";
  std::string metric = "ip";
  std::string storage = "full";
  std::string device = "best";
  std::int64_t repeat = 0;
  bool json = false;
};

struct timing {
  double median_ms = 0;
  double min_ms = 0;
  std::int64_t runs = 0;
};

std::string_view short_name(metric by) { return by == metric::inner_product ? "ip" : to_string(by); }

/// The job in the one form that all results of this project use.
std::string work_name(const search_shape& shape, const search_stats& stats) {
  return fmt::format("flat/q{}/{}x{}/{}/{}/k{}/host{}", shape.queries, shape.rows, shape.dim, to_string(shape.type),
                     short_name(shape.metric), shape.k, stats.certified_queries > 0 ? "/certified" : "");
}

void check_shape(const search_shape& shape, std::int64_t repeat) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // the arithmetic on bytes below stays within 64 bits
  const auto check = [](std::string_view name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return;
    throw invalid_argument(fmt::format("{} is {}; allowed is {} to {}", name, value, least, most));
  };
  check("--dim", shape.dim, 1, 65536);
  check("--rows", shape.rows, 1, kMost / shape.dim);
  check("--queries", shape.queries, 1, kMost / shape.dim / kQuerySets);
  check("--k", shape.k, 1, kMost / shape.queries);
  check("--repeat", repeat, 0, kMost);
}

std::vector<std::int64_t> spread_queries(const search_shape& shape) {
  const std::int64_t affordable = std::max<std::int64_t>(1, kReferenceElements / (shape.rows * shape.dim));
  const std::int64_t count = std::min(affordable, shape.queries);
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < count; ++i) chosen.push_back(count == 1 ? 0 : i * (shape.queries - 1) / (count - 1));
  return chosen;
}

any_matrix_view one_row(any_matrix_view m, std::int64_t row) {
  const auto* data = static_cast<const std::byte*>(m.data) + row * m.row_stride * size_bytes(m.type);
  return {data, m.type, 1, m.cols, m.row_stride};
}

search_result one_query(const search_result& all, std::int64_t query) {
  const auto scores = all.scores_of(query);
  const auto ids = all.ids_of(query);
  return {1, all.k, all.k_found, {scores.begin(), scores.end()}, {ids.begin(), ids.end()}};
}

/// @throws error at the first difference. Returns how many queries were checked.
std::int64_t verify_answer(any_matrix_view rows, any_matrix_view queries, const search_shape& shape,
                           const search_result& answer) {
  const std::vector<std::int64_t> chosen = spread_queries(shape);
  for (const std::int64_t query : chosen) {
    const search_result expected = reference_search(rows, one_row(queries, query), shape.metric, {.k = shape.k});
    if (const auto difference = first_difference(one_query(answer, query), "the search", expected, "the reference")) {
      throw error(fmt::format("verification failed: of the batch's query {}: {}", query, *difference));
    }
  }
  return std::ssize(chosen);
}

timing time_searches(const flat_index& index, const std::vector<vectors>& query_sets, const search_shape& shape,
                     std::int64_t repeat, search_result& out) {
  using clock = std::chrono::steady_clock;
  std::vector<double> times_ms;
  double total_ms = 0;
  const auto enough = [&](std::int64_t runs) {
    if (repeat > 0) return runs >= repeat;
    return runs >= kMostRuns || (runs >= kFewestRuns && total_ms >= kTimingSeconds * 1e3);
  };
  for (std::int64_t run = 0; !enough(run); ++run) {
    const any_matrix_view queries = query_sets[static_cast<std::size_t>(run % std::ssize(query_sets))].view();
    const auto start = clock::now();
    index.search(queries, {.k = shape.k}, {out.scores.data(), out.ids.data()});
    times_ms.push_back(std::chrono::duration<double, std::milli>(clock::now() - start).count());
    total_ms += times_ms.back();
  }
  std::sort(times_ms.begin(), times_ms.end());
  return {times_ms[times_ms.size() / 2], times_ms.front(), std::ssize(times_ms)};
}

void bench(const bench_options& options) {
  search_shape shape = options.shape;
  shape.type = parse_element_type(options.type);
  shape.metric = parse_metric(options.metric);
  shape.storage = parse_storage(options.storage);
  check_shape(shape, options.repeat);
  const device where = device::parse(options.device);

  const vectors rows = normal_vectors(shape.rows, shape.dim, shape.type, kRowsSeed);
  std::vector<vectors> query_sets;
  for (std::int64_t set = 0; set < kQuerySets; ++set) {
    query_sets.push_back(
        normal_vectors(shape.queries, shape.dim, element_type::f32, kQueriesSeed + static_cast<std::uint64_t>(set)));
  }
  flat_index index(where, {.dim = shape.dim, .metric = shape.metric, .type = shape.type, .storage = shape.storage});
  index.reserve({.max_rows = shape.rows, .max_queries = shape.queries, .max_k = shape.k});
  index.add(rows.view());

  search_stats stats;
  const search_result answer = index.search(query_sets[0].view(), {.k = shape.k, .stats = &stats});
  const std::int64_t verified = verify_answer(rows.view(), query_sets[0].view(), shape, answer);

  search_result again = answer;
  const timing measured = time_searches(index, query_sets, shape, options.repeat, again);
  index.search(query_sets[0].view(), {.k = shape.k}, {again.scores.data(), again.ids.data()});
  if (const auto difference = first_difference(again, "a later run", answer, "the first run")) {
    throw error("verification failed: " + *difference);
  }

  const std::int64_t bytes = shape.rows * shape.dim * size_bytes(shape.type);
  const double gb_per_s = static_cast<double>(bytes) / (measured.median_ms * 1e6);
  if (options.json) {
    const nlohmann::ordered_json record = {{"work", work_name(shape, stats)},
                                           {"ms", measured.median_ms},
                                           {"min_ms", measured.min_ms},
                                           {"runs", measured.runs},
                                           {"bytes", bytes},
                                           {"gb_per_s", gb_per_s},
                                           {"certified_queries", stats.certified_queries},
                                           {"survivors", stats.survivors},
                                           {"verified", true},
                                           {"verified_queries", verified},
                                           {"device", where.name()},
                                           {"device_description", where.description()},
                                           {"version", version()}};
    fmt::print("{}\n", record.dump(2));
    return;
  }
  fmt::print("{} on {} ({})\n", work_name(shape, stats), where.name(), where.description());
  fmt::print("verified   {} of {} {}: every id and every bit of every score equals the reference's\n",
             grouped(verified), grouped(shape.queries), shape.queries == 1 ? "query" : "queries");
  fmt::print("median     {}\n", readable_time(measured.median_ms / 1e3));
  fmt::print("min        {}, of {} runs, host to host\n", readable_time(measured.min_ms / 1e3), grouped(measured.runs));
  if (stats.certified_queries > 0) {
    fmt::print("survivors  {:.1f} rows a query, beside a plane of {}\n",
               static_cast<double>(stats.survivors) / static_cast<double>(stats.certified_queries),
               readable_size(index.memory().planes_bytes));
  }
  fmt::print("rows       {}, read once in the median time: {:.1f} GB/s\n", readable_size(bytes), gb_per_s);
}

}  // namespace

void add_bench(CLI::App& app, action& chosen) {
  auto options = std::make_shared<bench_options>();
  search_shape& shape = options->shape;
  CLI::App* command = app.add_subcommand("bench", "Verify and time one shape of search on random normal data");
  command->add_option("-n,--rows", shape.rows, "rows of the index")->capture_default_str()->type_name("N");
  command->add_option("--dim", shape.dim, "elements of a row")->capture_default_str()->type_name("D");
  command->add_option("-q,--queries", shape.queries, "queries in one call")->capture_default_str()->type_name("Q");
  command->add_option("-k,--k", shape.k, "how many rows for each query")->capture_default_str()->type_name("K");
  command->add_option("-t,--type", options->type, kTypeHelp)->capture_default_str()->type_name("TYPE");
  command->add_option("-m,--metric", options->metric, kMetricHelp)->capture_default_str()->type_name("METRIC");
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  command->add_option("-s,--storage", options->storage, kStorageHelp)->capture_default_str()->type_name("STORAGE");
  command->add_option("--repeat", options->repeat, "timed runs; without it, as many as two seconds hold")
      ->type_name("RUNS");
  command->add_flag("--json", options->json, "as one JSON record");
  command->footer("Example:\n  shortlist bench --rows 1000000 --dim 384 -k 100 --device cuda");
  command->callback([options, &chosen] { chosen = [options] { bench(*options); }; });
}

}  // namespace shortlist::program
