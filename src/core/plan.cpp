// The plan tables. Each line: the first that holds wins; the reason stands beside it and is printed by `explain`.
#include "core/plan.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <optional>
#include <span>

#include "core/message.hpp"
#include "shortlist/flat_index.hpp"

namespace shortlist::core {
namespace {

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr const char* kForceFlatSearch = "SHORTLIST_FORCE_FLAT_SEARCH";
constexpr const char* kForceTopK = "SHORTLIST_FORCE_TOP_K";

struct flat_algorithm_name {
  std::string_view name;
  flat_algorithm algorithm;
};
constexpr flat_algorithm_name kFlatAlgorithms[] = {{"scan", flat_algorithm::scan}, {"tiles", flat_algorithm::tiles}};

struct flat_rule {
  std::int64_t max_queries = kAny;
  std::int64_t max_k = kAny;
  flat_algorithm algorithm;
  std::string_view reason;

  constexpr bool holds(const search_shape& shape) const { return shape.queries <= max_queries && shape.k <= max_k; }
};

constexpr flat_rule kCpuFlatRules[] = {
    {.max_queries = 1,
     .algorithm = flat_algorithm::scan,
     .reason = "one query: the rows stream past it once, spread over all cores, at the speed of memory"},
    {.algorithm = flat_algorithm::tiles,
     .reason = "several queries: a row that was read serves all of them while it lies in the cache"},
};

// What the fused selection of the CUDA scan holds in shared memory; above it the tiles' selection takes over, which has
// no bound on k.
constexpr std::int64_t kCudaScanMaxK = 2048;

constexpr flat_rule kCudaFlatRules[] = {
    {.max_queries = 1,
     .max_k = kCudaScanMaxK,
     .algorithm = flat_algorithm::scan,
     .reason = "one query, k within 2048: one pass over the rows, selection fused into it"},
    {.max_queries = 1,
     .algorithm = flat_algorithm::tiles,
     .reason = "k above 2048: the selection of the tiles has no bound on k"},
    {.algorithm = flat_algorithm::tiles,
     .reason = "several queries: a row that was read serves all of them while it lies on the chip"},
};

constexpr std::span<const flat_rule> rules_of(device_kind kind) {
  return kind == device_kind::cpu ? std::span<const flat_rule>(kCpuFlatRules)
                                  : std::span<const flat_rule>(kCudaFlatRules);
}

constexpr bool ends_with_a_rule_for_all(device_kind kind) {
  const flat_rule& last = rules_of(kind).back();
  return last.max_queries == kAny && last.max_k == kAny;
}
static_assert(ends_with_a_rule_for_all(device_kind::cpu) && ends_with_a_rule_for_all(device_kind::cuda));

const flat_rule& rule_for(device_kind kind, const search_shape& shape) {
  const auto rules = rules_of(kind);
  for (const flat_rule& rule : rules) {
    if (rule.holds(shape)) return rule;
  }
  return rules.back();
}

/// The algorithm that an environment variable asks for; an empty value counts as unset.
template <class Named, std::size_t Count>
auto forced_by(const char* variable, const Named (&table)[Count]) -> std::optional<decltype(table[0].algorithm)> {
  const char* wanted = std::getenv(variable);
  if (!wanted || !*wanted) return std::nullopt;
  for (const auto& [name, algorithm] : table) {
    if (name == wanted) return algorithm;
  }
  std::string known;
  for (const auto& entry : table) known += (known.empty() ? "" : " or ") + std::string(entry.name);
  throw_invalid(variable, wanted, known);
}

std::optional<flat_algorithm> forced_flat_algorithm() { return forced_by(kForceFlatSearch, kFlatAlgorithms); }

// Row-wise top k.

struct top_k_algorithm_name {
  std::string_view name;
  top_k_algorithm algorithm;
};
constexpr top_k_algorithm_name kTopKAlgorithms[] = {{"whole_rows", top_k_algorithm::whole_rows},
                                                    {"split_rows", top_k_algorithm::split_rows}};

struct top_k_rule {
  std::int64_t max_rows = kAny;
  std::int64_t min_cols = 0;
  std::int64_t min_cols_per_k = 0;
  bool serves_early_stop = true;
  top_k_algorithm algorithm;
  std::string_view reason;

  constexpr bool holds(const top_k_shape& shape) const {
    return shape.rows <= max_rows && shape.cols >= min_cols && shape.cols / shape.k >= min_cols_per_k &&
           (serves_early_stop || !shape.early_stop);
  }
};

// A part of a row keeps its own k best, so a part much longer than k is what makes splitting pay.
constexpr top_k_rule kTopKRules[] = {
    {.max_rows = 8,
     .min_cols = 1 << 17,
     .min_cols_per_k = 64,
     .serves_early_stop = false,
     .algorithm = top_k_algorithm::split_rows,
     .reason = "few long rows: all workers share a row, and the best of their parts are few"},
    {.algorithm = top_k_algorithm::whole_rows,
     .reason = "a row fits a worker: it is read once, and the threshold search touches its keys only"},
};

const top_k_rule& top_k_rule_for(const top_k_shape& shape) {
  for (const top_k_rule& rule : kTopKRules) {
    if (rule.holds(shape)) return rule;
  }
  return std::end(kTopKRules)[-1];
}

// When does the CPU answer before the GPU? While its whole work takes less than the GPU's fixed cost of a search from
// the host and back, some 20 us for a query and 35 for a batch. Measured on an H200 and its 16 AVX-512 cores: the k10
// records of benchmarks/results/h200/flat_gpu.json, at the shapes on both sides of each border.
struct cpu_rule {
  std::int64_t max_queries = kAny;
  double max_work;  ///< rows x dim x queries
};
constexpr cpu_rule kCpuWins[] = {
    {.max_queries = 1, .max_work = 1.0e6},  // 1,000 x 384: 15.0 us, GPU 20.4; 1,000 x 1024: 20.9, GPU 20.4
    {.max_work = 0.6e6},                    // 16 x 100 x 128: 31 us, GPU 34; 16 x 100 x 384: 44, GPU 36
};

// Read bandwidths that `explain` turns bytes into a limit with, for corpora beyond the caches. Measured: `limits` of
// benchmarks/results/h200/seeds.json and cpu-2core/flat_cpu.json; a benchmark run measures its own.
constexpr double kH200GbPerS = 4617.0;
constexpr double kTwoCoresGbPerS = 76.0;

struct bandwidth {
  double gb_per_s;
  std::string_view machine;
};

constexpr bandwidth example_bandwidth(device_kind kind) {
  return kind == device_kind::cpu ? bandwidth{kTwoCoresGbPerS, "two cores of an EPYC"}
                                  : bandwidth{kH200GbPerS, "an H200"};
}

}  // namespace

std::string_view to_string(flat_algorithm algorithm) {
  for (const auto& entry : kFlatAlgorithms) {
    if (entry.algorithm == algorithm) return entry.name;
  }
  return "unknown";
}

flat_plan plan_flat_search(device_kind kind, const search_shape& shape) {
  if (const auto forced = forced_flat_algorithm()) {
    return {*forced, fmt::format("forced by {}={}", kForceFlatSearch, to_string(*forced))};
  }
  const flat_rule& rule = rule_for(kind, shape);
  return {rule.algorithm, std::string(rule.reason)};
}

flat_algorithm choose_flat_algorithm(device_kind kind, const search_shape& shape) {
  if (const auto forced = forced_flat_algorithm()) return *forced;
  return rule_for(kind, shape).algorithm;
}

bool cpu_wins(const search_shape& shape) noexcept {
  const double work =
      static_cast<double>(shape.rows) * static_cast<double>(shape.dim) * static_cast<double>(shape.queries);
  for (const cpu_rule& rule : kCpuWins) {
    if (shape.queries <= rule.max_queries) return work <= rule.max_work;
  }
  return false;
}

std::string explain_flat_search(device_kind kind, std::string_view device_description, const search_shape& shape) {
  const flat_plan plan = plan_flat_search(kind, shape);
  // In double: a shape is any four numbers, and their product need not fit.
  const double elements = static_cast<double>(shape.rows) * static_cast<double>(shape.dim);
  const double passes = plan.algorithm == flat_algorithm::scan ? static_cast<double>(shape.queries) : 1.0;
  const double norms_bytes = shape.metric == metric::cosine ? 4.0 * static_cast<double>(shape.rows) : 0.0;
  const double read_bytes = passes * (elements * static_cast<double>(size_bytes(shape.type)) + norms_bytes);
  const auto [gb_per_s, machine] = example_bandwidth(kind);
  return fmt::format(
      "search:     {} {} over {} rows x {} {}, {}, k {}\n"
      "device:     {}\n"
      "algorithm:  {}\n"
      "because:    {}\n"
      "reads:      {:.6g} MB at least, {:.6g} million multiply-adds\n"
      "limit:      bytes over read bandwidth; at the {:g} GB/s of {} that is {:.4g} ms\n",
      shape.queries, shape.queries == 1 ? "query" : "queries", shape.rows, shape.dim, to_string(shape.type),
      to_string(shape.metric), shape.k, device_description, to_string(plan.algorithm), plan.reason, read_bytes / 1e6,
      elements * static_cast<double>(shape.queries) / 1e6, gb_per_s, machine, read_bytes / (gb_per_s * 1e6));
}

std::string_view to_string(top_k_algorithm algorithm) {
  for (const auto& entry : kTopKAlgorithms) {
    if (entry.algorithm == algorithm) return entry.name;
  }
  return "unknown";
}

top_k_plan plan_top_k(device_kind, const top_k_shape& shape) {
  if (const auto forced = forced_by(kForceTopK, kTopKAlgorithms)) {
    return {*forced, fmt::format("forced by {}={}", kForceTopK, to_string(*forced))};
  }
  const top_k_rule& rule = top_k_rule_for(shape);
  return {rule.algorithm, std::string(rule.reason)};
}

top_k_algorithm choose_top_k_algorithm(device_kind, const top_k_shape& shape) {
  if (const auto forced = forced_by(kForceTopK, kTopKAlgorithms)) return *forced;
  return top_k_rule_for(shape).algorithm;
}

std::string explain_top_k(device_kind kind, std::string_view device_description, const top_k_shape& shape) {
  const top_k_plan plan = plan_top_k(kind, shape);
  const double rows = static_cast<double>(shape.rows);
  const double value_bytes = static_cast<double>(size_bytes(shape.type));
  const double read_bytes = rows * static_cast<double>(shape.cols) * value_bytes;
  const double written_bytes = rows * static_cast<double>(shape.k) * (value_bytes + 8.0);
  const auto [gb_per_s, machine] = example_bandwidth(kind);
  return fmt::format(
      "top k:      k {} of each of {} rows x {} {}{}\n"
      "device:     {}\n"
      "algorithm:  {}\n"
      "because:    {}\n"
      "moves:      reads {:.6g} MB, writes {:.6g} MB of values and 64-bit indices\n"
      "limit:      bytes over read bandwidth; at the {:g} GB/s of {} that is {:.4g} ms\n",
      shape.k, shape.rows, shape.cols, to_string(shape.type), shape.early_stop ? ", stopped early" : "",
      device_description, to_string(plan.algorithm), plan.reason, read_bytes / 1e6, written_bytes / 1e6, gb_per_s,
      machine, (read_bytes + written_bytes) / (gb_per_s * 1e6));
}

}  // namespace shortlist::core
