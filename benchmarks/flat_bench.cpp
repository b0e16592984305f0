// Verifies and times flat searches. See flat_bench.hpp.
#include "flat_bench.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "read_speed.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kCrossChecks = 64;  // queries of a batch that are compared with a search of their own

constexpr std::int64_t kCountedSets = 8;  // sets of queries of which survivors are counted

/// Thrown by a measurement whose answer is wrong.
class wrong_answer : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void demand(const std::optional<std::string>& difference) {
  if (difference) throw wrong_answer(*difference);
}

/// Forces how flat searches work, for as long as it lives.
class forced_search {
 public:
  forced_search(flat_bench::through what, std::int64_t queries) {
    if (const char* before = std::getenv(kVariable)) before_ = before;
    if (what == flat_bench::through::plane) setenv(kVariable, "certified", 1);
    if (what == flat_bench::through::rows) setenv(kVariable, queries == 1 ? "scan" : "tiles", 1);
  }
  forced_search(const forced_search&) = delete;
  forced_search& operator=(const forced_search&) = delete;
  ~forced_search() {
    if (before_) {
      setenv(kVariable, before_->c_str(), 1);
    } else {
      unsetenv(kVariable);
    }
  }

 private:
  static constexpr const char* kVariable = "SHORTLIST_FORCE_FLAT_SEARCH";
  std::optional<std::string> before_;
};

}  // namespace

flat_bench::flat_bench(device where, flat_data& data, results& out, const patience& limit, std::int64_t max_queries,
                       std::int64_t max_k, int concurrency, storage kept)
    : where_(where),
      data_(data),
      out_(out),
      limit_(limit),
      index_(where,
             {.dim = data.rows.dim(), .metric = metric::inner_product, .type = data.rows.type(), .storage = kept}) {
  index_.reserve({.max_rows = data.rows.rows(), .max_queries = max_queries, .max_k = max_k}, concurrency);
  index_.add(data.rows.view());
}

double flat_bench::limit_ms(gpu_clock* gpu) {
  if (where_.kind() == device_kind::cpu) return cpu_read_ms(data_.rows.data(), data_.rows.bytes());
  return gpu->read_ms(data_.rows.bytes());
}

void flat_bench::attempt(const std::string& work, const std::function<void()>& measure) {
  if (!out_.wants(work)) return;
  try {
    measure();
  } catch (const std::exception& failure) {
    out_.add_wrong(work, failure.what());
  }
}

std::optional<std::string> flat_bench::check(const answer& found, std::int64_t run, std::int64_t queries) {
  const std::int64_t first = run % data_.query_sets(queries) * queries;
  const std::set<std::int64_t> by_reference = {0, queries / 2, queries - 1};
  for (const std::int64_t q : by_reference) {
    if (auto difference = first_difference(found, q, data_.right.of(first + q), 0)) return difference;
  }
  const std::int64_t others = std::min(queries, kCrossChecks);
  for (std::int64_t i = 0; i < others; ++i) {
    const std::int64_t q = i * queries / others;
    if (by_reference.contains(q)) continue;
    answer alone(1, found.k);
    index_.search(data_.queries.view(first + q, 1), {.k = found.k}, alone.output());
    if (auto difference = first_difference(found, q, alone, 0)) return *difference + " by a search of its own";
  }
  return std::nullopt;
}

void flat_bench::compare_with_rows(const answer& found, std::int64_t run, std::int64_t queries) {
  if (!reads_plane()) return;
  const forced_search by_rows(through::rows, queries);
  answer expected(queries, found.k);
  index_.search(data_.query_set(run, queries), {.k = found.k}, expected.output());
  for (std::int64_t q = 0; q < queries; ++q) {
    if (auto difference = first_difference(found, q, expected, q)) {
      throw wrong_answer(*difference + " by a search of all rows");
    }
  }
}

std::int64_t flat_bench::plane_bytes(std::int64_t queries, std::int64_t k) const {
  constexpr std::string_view kReads = "reads:";
  const std::string plan = index_.explain(queries, {.k = k});
  return std::llround(std::stod(plan.substr(plan.find(kReads) + kReads.size())) * 1e6);  // MB
}

void flat_bench::add(const std::string& work, const timing& time, double limit_ms, std::int64_t queries, std::int64_t k,
                     nlohmann::ordered_json fields, const nlohmann::ordered_json& more) {
  if (!fields.is_object()) fields = nlohmann::ordered_json::object();
  std::int64_t bytes = data_.rows.bytes();
  if (reads_plane()) {
    const memory_use memory = index_.memory();
    answer found(queries, k);
    search_stats stats;  // of searches of their own: on a GPU counting takes time
    const std::int64_t sets = std::min(data_.query_sets(queries), kCountedSets);
    for (std::int64_t set = 0; set < sets; ++set) {
      index_.search(data_.query_set(set, queries), {.k = k, .stats = &stats}, found.output());
    }
    const std::int64_t read_bytes = plane_bytes(queries, k);
    limit_ms *= static_cast<double>(read_bytes) / static_cast<double>(bytes);
    bytes = read_bytes;
    fields["plane_bytes"] = memory.planes_bytes;
    fields["certified_share"] = static_cast<double>(stats.certified_queries) / static_cast<double>(sets * queries);
    fields["rows_bytes"] = memory.rows_bytes;
    if (stats.certified_queries > 0) {
      fields["survivors_per_query"] =
          static_cast<double>(stats.survivors) / static_cast<double>(stats.certified_queries);
    }
  }
  if (more.is_object()) fields.update(more);
  out_.add(work, {.time = time, .bytes = bytes, .limit_ms = limit_ms}, fields);
}

void flat_bench::host(std::int64_t queries, std::int64_t k, const std::string& work, double limit_ms,
                      const nlohmann::ordered_json& more) {
  attempt(work, [&] {
    const forced_search forced(through_, queries);
    answer found(queries, k);
    const auto search = [&](std::int64_t run) {
      index_.search(data_.query_set(run, queries), {.k = k}, found.output());
    };
    search(0);
    demand(check(found, 0, queries));
    compare_with_rows(found, 0, queries);
    const timing time = repeat(limit_, [&](std::int64_t run) { return wall_ms([&] { search(run); }); });
    const std::int64_t later = queries == 1 ? 1 : 0;  // after the timed runs, another of the queries if that is cheap
    search(later);
    demand(check(found, later, queries));
    add(work, time, limit_ms, queries, k, {}, more);
  });
}

void flat_bench::on_device(gpu_clock& gpu, std::int64_t queries, std::int64_t k, const std::string& work,
                           double limit_ms, const nlohmann::ordered_json& more) {
  attempt(work, [&] {
    const forced_search forced(through_, queries);
    const std::int64_t set_bytes = queries * data_.rows.dim() * static_cast<std::int64_t>(sizeof(float));
    const std::int64_t sets = data_.query_sets(queries);
    const stream s = stream::wrap(where_, gpu.stream());
    workspace scratch(where_, {.max_rows = data_.rows.rows(), .max_queries = queries, .max_k = k});
    buffer all_queries(where_, sets * set_bytes);
    buffer current(where_, set_bytes);
    buffer scores(where_, queries * k * static_cast<std::int64_t>(sizeof(float)));
    buffer ids(where_, queries * k * static_cast<std::int64_t>(sizeof(std::int64_t)));
    all_queries.upload(s, data_.queries.view(0, sets * queries).data);

    const auto choose = [&](std::int64_t run) {
      gpu.copy(current.data(), static_cast<const std::byte*>(all_queries.data()) + run % sets * set_bytes, set_bytes);
    };
    const auto search = [&] {
      const matrix_view<const float> view(static_cast<const float*>(current.data()), queries, data_.rows.dim());
      index_.search(s, scratch, view, {.k = k},
                    {static_cast<float*>(scores.data()), static_cast<std::int64_t*>(ids.data())});
    };
    answer found(queries, k);
    const auto verify = [&](std::int64_t run) {
      scores.download(s, found.scores.data());
      ids.download(s, found.ids.data());
      demand(check(found, run, queries));
    };

    choose(0);
    search();
    verify(0);
    compare_with_rows(found, 0, queries);
    const gpu_clock::graph graph = gpu.capture(search);
    const std::int64_t another = queries == 1 ? 1 : 0;  // a graph must serve other queries than those it captured
    choose(another);
    graph.replay();
    verify(another);

    const auto timed = [&](const std::function<void()>& work_once) {
      return repeat(limit_, [&](std::int64_t run) {
        choose(run);
        return gpu.time_ms(work_once);
      });
    };
    const timing launched = timed(search);
    const timing replayed = timed([&] { graph.replay(); });
    const timing& better = launched.median_ms <= replayed.median_ms ? launched : replayed;
    add(work, better, limit_ms, queries, k, {{"launch_ms", launched.median_ms}, {"graph_ms", replayed.median_ms}},
        more);
  });
}

void flat_bench::round_trip(device gpu_device, std::int64_t k, const std::string& work, double limit_ms) {
  attempt(work, [&] {
    const stream s(gpu_device);
    std::vector<buffer> device_queries;
    for (std::int64_t set = 0; set < data_.query_sets(1); ++set) {
      device_queries.emplace_back(gpu_device, data_.rows.dim() * static_cast<std::int64_t>(sizeof(float)));
      device_queries.back().upload(s, data_.query_set(set, 1).data);
    }
    buffer scores(gpu_device, k * static_cast<std::int64_t>(sizeof(float)));
    buffer ids(gpu_device, k * static_cast<std::int64_t>(sizeof(std::int64_t)));
    std::vector<float> query(static_cast<std::size_t>(data_.rows.dim()));
    answer found(1, k);

    const auto trip = [&](std::int64_t run) {
      device_queries[static_cast<std::size_t>(run) % device_queries.size()].download(s, query.data());
      index_.search(matrix_view<const float>(query.data(), 1, data_.rows.dim()), {.k = k}, found.output());
      scores.upload(s, found.scores.data());
      ids.upload(s, found.ids.data());
    };
    trip(1);
    answer arrived(1, k);
    scores.download(s, arrived.scores.data());
    ids.download(s, arrived.ids.data());
    demand(check(arrived, 1, 1));
    const timing time = repeat(limit_, [&](std::int64_t run) { return wall_ms([&] { trip(run); }); });
    out_.add(work, {.time = time, .bytes = data_.rows.bytes(), .limit_ms = limit_ms});
  });
}

void flat_bench::many_threads(int threads, std::int64_t k, const std::string& work, double limit_ms,
                              const nlohmann::ordered_json& more) {
  attempt(work, [&] {
    using clock = std::chrono::steady_clock;
    std::vector<answer> expected(static_cast<std::size_t>(data_.query_sets(1)), answer(1, k));
    for (std::int64_t set = 0; set < data_.query_sets(1); ++set) {
      answer& one = expected[static_cast<std::size_t>(set)];
      index_.search(data_.query_set(set, 1), {.k = k}, one.output());
      if (set < 2) demand(check(one, set, 1));
    }
    std::atomic<std::int64_t> searches{0};
    std::atomic<bool> wrong{false};
    const auto start = clock::now();
    const auto end = start + std::chrono::duration<double>(limit_.seconds);
    {
      std::vector<std::jthread> pool;
      for (int t = 0; t < threads; ++t) {
        pool.emplace_back([&, t] {
          answer found(1, k);
          try {
            for (std::int64_t run = t; clock::now() < end; ++run) {
              index_.search(data_.query_set(run, 1), {.k = k}, found.output());
              const answer& right = expected[static_cast<std::size_t>(run) % expected.size()];
              if (first_difference(found, 0, right, 0)) wrong = true;
              ++searches;
            }
          } catch (const std::exception&) {
            wrong = true;
          }
        });
      }
    }
    const double total_ms = std::chrono::duration<double, std::milli>(clock::now() - start).count();
    if (wrong) throw wrong_answer("a search on one of several threads failed or differs from the same search alone");
    const double each_ms = total_ms / static_cast<double>(searches);
    nlohmann::ordered_json fields = {{"threads", threads}, {"searches_per_s", 1e3 / each_ms}};
    if (more.is_object()) fields.update(more);
    out_.add(work,
             {.time = {.median_ms = each_ms, .min_ms = each_ms, .runs = searches},
              .bytes = data_.rows.bytes(),
              .limit_ms = limit_ms},
             fields);
  });
}

void flat_bench::allocations(gpu_clock& gpu, std::int64_t k, const std::string& work, double limit_ms) {
  attempt(work, [&] {
    constexpr std::int64_t kSearches = 1000;
    const stream s = stream::wrap(where_, gpu.stream());
    workspace scratch(where_, {.max_rows = data_.rows.rows(), .max_queries = 1, .max_k = k});
    buffer query(where_, data_.rows.dim() * static_cast<std::int64_t>(sizeof(float)));
    buffer scores(where_, k * static_cast<std::int64_t>(sizeof(float)));
    buffer ids(where_, k * static_cast<std::int64_t>(sizeof(std::int64_t)));
    query.upload(s, data_.query_set(0, 1).data);
    const matrix_view<const float> device_query(static_cast<const float*>(query.data()), 1, data_.rows.dim());
    const search_output device_output{static_cast<float*>(scores.data()), static_cast<std::int64_t*>(ids.data())};
    answer found(1, k);

    const std::int64_t device_before = index_.memory().device_allocations;
    const std::int64_t heap_before = heap_allocations();
    const double total_ms = wall_ms([&] {
      for (std::int64_t run = 0; run < kSearches; ++run) {
        index_.search(data_.query_set(run, 1), {.k = k}, found.output());
      }
    });
    for (std::int64_t run = 0; run < kSearches; ++run) {
      index_.search(s, scratch, device_query, {.k = k}, device_output);
    }
    const std::int64_t heap = heap_allocations() - heap_before;
    const std::int64_t on_device = index_.memory().device_allocations - device_before;
    demand(check(found, kSearches - 1, 1));
    s.synchronize();

    const double each_ms = total_ms / static_cast<double>(kSearches);
    out_.add(work,
             {.time = {.median_ms = each_ms, .min_ms = each_ms, .runs = kSearches},
              .bytes = data_.rows.bytes(),
              .limit_ms = limit_ms},
             {{"searches", 2 * kSearches},
              {"device_allocations", on_device},
              {"heap_allocations", heap},
              {"target_allocations", 0}});
  });
}

}  // namespace shortlist::benchmark
