// The plan of flat search. Each line: the first that holds wins; the reason stands beside it and is printed by
// `explain`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/certified.hpp"
#include "core/message.hpp"
#include "core/normal.hpp"
#include "core/plan_parts.hpp"
#include "shortlist/flat_index.hpp"

namespace shortlist::core {
namespace {

constexpr const char* kForceFlatSearch = "SHORTLIST_FORCE_FLAT_SEARCH";
constexpr const char* kForceCodes = "SHORTLIST_CERTIFIED_CODES";

struct flat_algorithm_name {
  std::string_view name;
  flat_algorithm algorithm;
};
constexpr flat_algorithm_name kFlatAlgorithms[] = {
    {"scan", flat_algorithm::scan}, {"tiles", flat_algorithm::tiles}, {"certified", flat_algorithm::certified}};

struct flat_rule {
  std::int64_t min_queries = 0;
  std::int64_t max_queries = kAny;
  std::int64_t max_k = kAny;
  std::int64_t max_dim = kAny;
  std::int64_t min_rows = 0;
  double min_rows_bytes = 0;
  std::int64_t min_rows_per_k = 0;
  bool needs_plane = false;
  bool needs_host_rows = false;
  double max_survivors = 1.0;  ///< as a share of the rows
  flat_algorithm algorithm;
  std::string_view reason;

  constexpr bool holds(const search_shape& shape) const {
    return shape.queries >= min_queries && shape.queries <= max_queries && shape.k <= max_k && shape.dim <= max_dim &&
           shape.rows >= min_rows && shape.rows / shape.k >= min_rows_per_k &&
           (!needs_plane || shape.storage != storage::full) &&
           (!needs_host_rows || shape.storage == storage::int8_and_host) && rows_bytes(shape) >= min_rows_bytes;
  }
  /// In double: a shape is any numbers, and their product need not fit.
  static constexpr double rows_bytes(const search_shape& shape) {
    return static_cast<double>(shape.rows) * static_cast<double>(shape.dim) *
           static_cast<double>(size_bytes(shape.type));
  }
};

// Of the rows, what a filter may leave and still pay: the plane's bytes are a quarter of fp32 rows' and half of
// others', and a row that is scored alone costs some three times what it costs in a stream.
constexpr double kMaxSurvivors = 0.25;
constexpr double kMaxSurvivorsOf16Bits = 1.0 / 6;

constexpr std::string_view kCertifiedReason =
    "an int8 plane is there: it proves for most rows that they are not among the k best, and only the others are read";

constexpr flat_rule kCpuFlatRules[] = {
    // Survivors are scored one by one: at 100,000 x 768 and k 1500, one query takes a quarter of the time that it takes
    // without the plane, sixteen take the same.
    {.min_rows_per_k = 64,
     .needs_plane = true,
     .max_survivors = kMaxSurvivors,
     .algorithm = flat_algorithm::certified,
     .reason = kCertifiedReason},
    {.max_queries = 1,
     .algorithm = flat_algorithm::scan,
     .reason = "one query: the rows stream past it once, spread over all cores, at the speed of memory"},
    {.algorithm = flat_algorithm::tiles,
     .reason = "several queries: a row that was read serves all of them while it lies in the cache"},
};

// What the fused selection of the CUDA scan holds in shared memory; above it the tiles' selection takes over, which has
// no bound on k.
constexpr std::int64_t kCudaScanMaxK = 2048;

// Through the plane, k 100: 100,000 x 384 fp32 takes 0.047 ms, in full 0.059; 30,000 x 384, which the L2 cache holds,
// 0.065 and 0.044.
constexpr double kCudaCertifiedMinBytes = 100e6;
// Batches through the plane, k 10: 8 queries of 100,000 x 384 take 0.09 ms, tiles 0.10; 1,024 of 10,000 x 768 0.22,
// tiles 0.59; 2 of 1M x 768 0.32, tiles 0.72.
constexpr std::int64_t kCudaCertifiedBatch = 8;
constexpr std::int64_t kCudaCertifiedBatchMinRows = 8192;
// Of longer rows than batches take, queries go through the plane one after the other, each at a quarter of the bytes.
constexpr std::int64_t kCudaCertifiedMaxQueries = kCudaCertifiedBatch - 1;
// Tiles read rows in host memory once for all queries: 64 GB in 1250 ms, of which a query through the plane takes 4.
constexpr std::int64_t kCudaCertifiedMaxHostQueries = 256;

constexpr std::string_view kHostRowsReason =
    "an int8 plane is on the GPU and the rows are not: only those that it cannot exclude cross the bus";

constexpr flat_rule kCudaFlatRules[] = {
    {.min_queries = kCertifiedBatchMinQueries,
     .max_k = kCertifiedBatchMaxK,
     .max_dim = kCertifiedBatchMaxDim,
     .min_rows_per_k = 16,
     .needs_plane = true,
     .needs_host_rows = true,
     .max_survivors = kMaxSurvivors,
     .algorithm = flat_algorithm::certified,
     .reason = kHostRowsReason},
    {.max_queries = kCudaCertifiedMaxHostQueries,
     .max_k = kCertifiedScanMaxK,
     .max_dim = kCertifiedScanMaxDim,
     .min_rows_per_k = 16,
     .needs_plane = true,
     .needs_host_rows = true,
     .max_survivors = kMaxSurvivors,
     .algorithm = flat_algorithm::certified,
     .reason = kHostRowsReason},
    {.min_queries = kCudaCertifiedBatch,
     .max_k = kCertifiedBatchMaxK,
     .max_dim = kCertifiedBatchMaxDim,
     .min_rows = kCudaCertifiedBatchMinRows,
     .min_rows_per_k = 64,
     .needs_plane = true,
     .max_survivors = kMaxSurvivors,
     .algorithm = flat_algorithm::certified,
     .reason = kCertifiedReason},
    {.max_queries = kCudaCertifiedMaxQueries,
     .max_k = kCertifiedScanMaxK,
     .max_dim = kCertifiedScanMaxDim,
     .min_rows_bytes = kCudaCertifiedMinBytes,
     .min_rows_per_k = 64,
     .needs_plane = true,
     .max_survivors = kMaxSurvivors,
     .algorithm = flat_algorithm::certified,
     .reason = kCertifiedReason},
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
  return last.max_queries == kAny && last.max_k == kAny && last.min_rows_per_k == 0 && !last.needs_plane &&
         last.max_survivors == 1.0;
}
static_assert(ends_with_a_rule_for_all(device_kind::cpu) && ends_with_a_rule_for_all(device_kind::cuda));

struct flat_choice {
  const flat_rule& rule;
  bool loose_plane = false;  ///< it would have been certified if fewer rows were expected to survive
};

flat_choice flat_by_rules(device_kind kind, const search_shape& shape, const plane_summary& summary) {
  const auto rules = rules_of(kind);
  bool loose_plane = false;
  for (const flat_rule& rule : rules) {
    if (!rule.holds(shape)) continue;
    if (rule.max_survivors == 1.0) return {rule, loose_plane};
    const double most =
        size_bytes(shape.type) == 2 ? std::min(rule.max_survivors, kMaxSurvivorsOf16Bits) : rule.max_survivors;
    if (expected_survivors(shape, summary) <= most * static_cast<double>(shape.rows)) return {rule, loose_plane};
    loose_plane = true;
  }
  return {rules.back(), loose_plane};
}

/// Whether an algorithm that was forced can take the shape.
constexpr bool takes(device_kind kind, flat_algorithm algorithm, const search_shape& shape) {
  if (algorithm != flat_algorithm::certified) return true;
  const bool fits = kind == device_kind::cpu || (shape.k <= kCertifiedScanMaxK && shape.dim <= kCertifiedScanMaxDim);
  return fits && shape.storage != storage::full;
}

constexpr double kOfNormalRows = 0.0075;  // 768 elements: the largest is 3.2 deviations, of 127 steps

double mean_of(std::int64_t looseness, const plane_summary& summary, double unknown) {
  if (summary.certifiable == 0) return unknown;
  return static_cast<double>(looseness) / static_cast<double>(kLoosenessUnit) /
         static_cast<double>(summary.certifiable);
}

/// Residuals over norms, on average; of normal rows where nothing is known.
double mean_looseness(const plane_summary& summary) { return mean_of(summary.looseness, summary, kOfNormalRows); }
double mean_coarse_looseness(const plane_summary& summary) {
  return mean_of(summary.coarse_looseness, summary, 4.0 * kOfNormalRows);
}

/// Rows whose interval reaches a threshold that lies `reach` deviations of the scores below the k-th best.
double survivors_within(const search_shape& shape, const plane_summary& summary, double reach) {
  const auto rows = static_cast<double>(shape.rows);
  const auto known = static_cast<double>(summary.certifiable + summary.uncertifiable);
  const double uncertifiable = known == 0 ? 0 : rows * static_cast<double>(summary.uncertifiable) / known;
  const auto k = static_cast<double>(std::min(shape.k, shape.rows));
  const double border = upper_quantile(k / std::max(rows, 1.0));
  const double share = 0.5 * std::erfc((border - reach) * 0.7071067811865476);  // of a normal distribution above it
  return std::min(rows, uncertifiable + std::max(k, share * (rows - uncertifiable)));
}

/// Of a scan of the coarse copy, whose threshold comes from scores.
double expected_coarse_survivors(const search_shape& shape, const plane_summary& summary) {
  return survivors_within(shape, summary, mean_coarse_looseness(summary) * std::sqrt(static_cast<double>(shape.dim)));
}

enum class code_copy : std::uint8_t { whole, coarse };
struct code_copy_name {
  std::string_view name;
  code_copy algorithm;
};
constexpr code_copy_name kCodeCopies[] = {{"whole", code_copy::whole}, {"coarse", code_copy::coarse}};

std::optional<flat_algorithm> forced_flat_algorithm() {
  return forced_by(kForceFlatSearch, std::span<const flat_algorithm_name>(kFlatAlgorithms));
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

// The coarse copy, k 10, one query: 140,000 x 768 take 63 us, of whole codes 61; 300,000 x 768 98 and 125; 3M x 128 170
// and 147, 2M x 256 148 and 154. 1M x 768, k 1000: 220 and 236; k 1500: 263 and 249.
constexpr std::int64_t kCoarseMinRows = 150'000;
constexpr std::int64_t kCoarseMinDim = 256;
constexpr std::int64_t kCoarseMaxK = 1024;
constexpr double kCostOfScoredRow = 3.0;  // in rows of a stream

constexpr double kBusGbPerS = 51.0;  // rows in host memory, read by the GPU: all_rows_ms of flat_host_rows.json

constexpr bandwidth bandwidth_of_search(device_kind kind, storage kept, flat_algorithm algorithm) {
  const bool crosses_bus =
      kind == device_kind::cuda && kept == storage::int8_and_host && algorithm != flat_algorithm::certified;
  return crosses_bus ? bandwidth{kBusGbPerS, "an H200's bus to host memory"} : example_bandwidth(kind);
}

}  // namespace

std::string_view to_string(flat_algorithm algorithm) {
  for (const auto& entry : kFlatAlgorithms) {
    if (entry.algorithm == algorithm) return entry.name;
  }
  return "unknown";
}

double expected_survivors(const search_shape& shape, const plane_summary& summary) {
  const double reach = 2.0 * mean_looseness(summary) * std::sqrt(static_cast<double>(shape.dim));
  return survivors_within(shape, summary, reach);
}

bool scans_coarse_copy(const search_shape& shape, const plane_summary& summary) {
  const fragment_layout layout(shape.dim, shape.metric, shape.storage);
  if (layout.pairs == 0) return false;
  const auto forced = forced_by(kForceCodes, std::span<const code_copy_name>(kCodeCopies));
  if (forced) return *forced == code_copy::coarse;
  if (shape.rows < kCoarseMinRows || shape.dim < kCoarseMinDim || shape.k > kCoarseMaxK) return false;
  const double saved =
      static_cast<double>(shape.rows) / kPlaneRows * static_cast<double>(layout.whole_bytes() - layout.coarse_bytes());
  const double more = expected_coarse_survivors(shape, summary) - expected_survivors(shape, summary);
  return more * kCostOfScoredRow * static_cast<double>(shape.dim) * static_cast<double>(size_bytes(shape.type)) < saved;
}

flat_plan plan_flat_search(device_kind kind, const search_shape& shape, const plane_summary& summary) {
  const auto forced = forced_flat_algorithm();
  if (forced && takes(kind, *forced, shape)) {
    return {*forced, fmt::format("forced by {}={}", kForceFlatSearch, to_string(*forced))};
  }
  const auto [rule, loose_plane] = flat_by_rules(kind, shape, summary);
  std::string reason(rule.reason);
  if (loose_plane) {
    reason += fmt::format("; the int8 plane would leave {:.3g} % of them to be scored beside it",
                          100 * expected_survivors(shape, summary) / static_cast<double>(shape.rows));
  }
  if (forced) reason += fmt::format(" ({}={} cannot take the shape)", kForceFlatSearch, to_string(*forced));
  return {rule.algorithm, reason};
}

flat_algorithm choose_flat_algorithm(device_kind kind, const search_shape& shape, const plane_summary& summary) {
  const auto forced = forced_flat_algorithm();
  if (forced && takes(kind, *forced, shape)) return *forced;
  return flat_by_rules(kind, shape, summary).rule.algorithm;
}

std::optional<std::int64_t> forced_survivors() { return number_from("SHORTLIST_CERTIFIED_SURVIVORS", 1, 1'000'000); }

bool cpu_wins(const search_shape& shape) noexcept {
  const double work =
      static_cast<double>(shape.rows) * static_cast<double>(shape.dim) * static_cast<double>(shape.queries);
  for (const cpu_rule& rule : kCpuWins) {
    if (shape.queries <= rule.max_queries) return work <= rule.max_work;
  }
  return false;
}

namespace {

/// What is expected of a plane, as a line of `explain`.
std::string survivors_line(const search_shape& shape, const plane_summary& summary, bool is_coarse) {
  const double survivors = is_coarse ? expected_coarse_survivors(shape, summary) : expected_survivors(shape, summary);
  const double looseness = 100 * (is_coarse ? mean_coarse_looseness(summary) : mean_looseness(summary));
  if (summary.certifiable + summary.uncertifiable == 0) {
    return fmt::format("survivors:  about {:.3g} rows a query, if residuals are {:.3g} % of norms, as of normal rows\n",
                       survivors, looseness);
  }
  return fmt::format(
      "survivors:  about {:.3g} rows a query: residuals are {:.3g} % of norms, and {} rows cannot be certified\n",
      survivors, looseness, summary.uncertifiable);
}

/// What a search reads of 16 rows of a plane.
std::int64_t bytes_of_block(device_kind kind, const search_shape& shape, bool is_coarse) {
  if (kind == device_kind::cpu) return plane_layout(shape.dim, shape.metric).block_bytes();
  const fragment_layout layout(shape.dim, shape.metric, shape.storage);
  return is_coarse ? layout.coarse_bytes() : layout.whole_bytes();
}

}  // namespace

std::string explain_flat_search(device_kind kind, std::string_view device_description, const search_shape& shape,
                                const plane_summary& summary) {
  const flat_plan plan = plan_flat_search(kind, shape, summary);
  // In double: a shape is any four numbers, and their product need not fit.
  const double elements = static_cast<double>(shape.rows) * static_cast<double>(shape.dim);
  const bool one_by_one =
      plan.algorithm == flat_algorithm::scan ||
      (plan.algorithm == flat_algorithm::certified && kind == device_kind::cuda && !goes_in_batches(shape));
  const double passes = one_by_one ? static_cast<double>(shape.queries) : 1.0;
  const bool reads_plane = plan.algorithm == flat_algorithm::certified;
  const bool plane_has_norms = reads_plane && kind == device_kind::cuda;
  const double norms_bytes =
      shape.metric == metric::cosine && !plane_has_norms ? 4.0 * static_cast<double>(shape.rows) : 0.0;
  const bool is_coarse = reads_plane && kind == device_kind::cuda && one_by_one && scans_coarse_copy(shape, summary);
  const double rows_bytes = reads_plane ? static_cast<double>(shape.rows) / kPlaneRows *
                                              static_cast<double>(bytes_of_block(kind, shape, is_coarse))
                                        : elements * static_cast<double>(size_bytes(shape.type));
  const double read_bytes = passes * (rows_bytes + norms_bytes);
  const auto [gb_per_s, machine] = bandwidth_of_search(kind, shape.storage, plan.algorithm);
  const std::string survivors = reads_plane ? survivors_line(shape, summary, is_coarse) : "";
  return fmt::format(
      "search:     {} {} over {} rows x {} {}, {}, k {}\n"
      "device:     {}\n"
      "algorithm:  {}\n"
      "because:    {}\n"
      "reads:      {:.6g} MB{} at least, {:.6g} million multiply-adds\n"
      "limit:      bytes over read bandwidth; at the {:g} GB/s of {} that is {:.4g} ms\n"
      "{}",
      shape.queries, shape.queries == 1 ? "query" : "queries", shape.rows, shape.dim, to_string(shape.type),
      to_string(shape.metric), shape.k, device_description, to_string(plan.algorithm), plan.reason, read_bytes / 1e6,
      is_coarse     ? " of the plane's coarse copy"
      : reads_plane ? " of the plane"
                    : "",
      elements * static_cast<double>(shape.queries) / 1e6, gb_per_s, machine, read_bytes / (gb_per_s * 1e6), survivors);
}

}  // namespace shortlist::core
