// The plan tables. Each line: the first that holds wins; the reason stands beside it and is printed by `explain`.
#include "core/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <system_error>

#include "core/certified.hpp"
#include "core/message.hpp"
#include "core/normal.hpp"
#include "shortlist/flat_index.hpp"

namespace shortlist::core {
namespace {

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr const char* kForceFlatSearch = "SHORTLIST_FORCE_FLAT_SEARCH";
constexpr const char* kForceTopK = "SHORTLIST_FORCE_TOP_K";
constexpr const char* kForceSample = "SHORTLIST_FORCE_SAMPLE";

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

/// Residuals over norms, on average; of normal rows where nothing is known.
double mean_looseness(const plane_summary& summary) {
  constexpr double kOfNormalRows = 0.0075;  // 768 elements: the largest is 3.2 deviations, of 127 steps
  if (summary.certifiable == 0) return kOfNormalRows;
  return static_cast<double>(summary.looseness) / static_cast<double>(kLoosenessUnit) /
         static_cast<double>(summary.certifiable);
}

/// The algorithm of a table that an environment variable asks for; an empty value counts as unset.
template <class Named>
auto forced_by(const char* variable, std::span<const Named> table) -> std::optional<decltype(Named::algorithm)> {
  const char* wanted = std::getenv(variable);
  if (!wanted || !*wanted) return std::nullopt;
  for (const auto& [name, algorithm] : table) {
    if (name == wanted) return algorithm;
  }
  std::string known;
  for (const auto& entry : table) known += (known.empty() ? "" : " or ") + std::string(entry.name);
  throw_invalid(variable, wanted, known);
}

std::optional<flat_algorithm> forced_flat_algorithm() {
  return forced_by(kForceFlatSearch, std::span<const flat_algorithm_name>(kFlatAlgorithms));
}

// Row-wise top k.

struct top_k_algorithm_name {
  std::string_view name;
  top_k_algorithm algorithm;
};
constexpr top_k_algorithm_name kCpuTopKAlgorithms[] = {{"whole_rows", top_k_algorithm::whole_rows},
                                                       {"split_rows", top_k_algorithm::split_rows}};
constexpr top_k_algorithm_name kCudaTopKAlgorithms[] = {
    {"warp_rows", top_k_algorithm::warp_rows},       {"block_rows", top_k_algorithm::block_rows},
    {"filter_rows", top_k_algorithm::filter_rows},   {"stream_rows", top_k_algorithm::stream_rows},
    {"cluster_rows", top_k_algorithm::cluster_rows}, {"radix_rows", top_k_algorithm::radix_rows}};

std::optional<top_k_algorithm> forced_top_k_algorithm(device_kind kind) {
  using names = std::span<const top_k_algorithm_name>;
  return forced_by(kForceTopK, kind == device_kind::cpu ? names(kCpuTopKAlgorithms) : names(kCudaTopKAlgorithms));
}

struct cpu_top_k_rule {
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
constexpr cpu_top_k_rule kCpuTopKRules[] = {
    {.max_rows = 8,
     .min_cols = 1 << 17,
     .min_cols_per_k = 64,
     .serves_early_stop = false,
     .algorithm = top_k_algorithm::split_rows,
     .reason = "few long rows: all workers share a row, and the best of their parts are few"},
    {.algorithm = top_k_algorithm::whole_rows,
     .reason = "a row fits a worker: it is read once, and the threshold search touches its keys only"},
};

// What block_rows holds in shared memory: 227 KB are a block's, of which 1 KB is for more than the row and its entries.
constexpr std::int64_t kBlockRowsBytes = std::int64_t{226} * 1024;
constexpr std::int64_t kBlockRowsMinCols = 2048;  // its smallest kernel has room for so many

constexpr std::int64_t power_of_two_from(std::int64_t least) {
  std::int64_t power = 1;
  while (power < least) power *= 2;
  return power;
}

/// Shared memory of a row, and of its entries on their way out: columns, or keys to sort. A row may bring what stands
/// before it in its first 16 bytes.
constexpr std::int64_t block_rows_bytes(const top_k_shape& shape) {
  const std::int64_t value_bytes = size_bytes(shape.type);
  const std::int64_t brought = 16 / value_bytes - 1;
  const std::int64_t held = std::clamp(power_of_two_from(shape.cols + brought), kBlockRowsMinCols, kBlockRowsMaxCols);
  const std::int64_t entries = shape.mask ? 0 : shape.sorted ? 8 * power_of_two_from(shape.k) : 4 * shape.k;
  return held * value_bytes + entries;
}

}  // namespace

std::int64_t filter_rows_capacity(std::int64_t cols, std::int64_t k) {
  constexpr double kSample = kFilterRowsSample;
  constexpr double kSlack = 9.0 / 8;  // of the rank: see sample_cut
  constexpr double kDeviations = 6;
  constexpr std::int64_t kLeast = 512;
  constexpr std::int64_t kSortedRoom = 2;  // a power of two that holds k
  const double expected = std::min(kSample, static_cast<double>(k) * kSample / static_cast<double>(cols));
  const double rank =
      kSlack * (expected + double{kFilterRowsDeviations} * std::sqrt(expected) + double{kFilterRowsLeast}) + 1;
  const double reaching = (rank + kDeviations * std::sqrt(rank)) * static_cast<double>(cols) / kSample;
  return std::max({kLeast, kSortedRoom * k, static_cast<std::int64_t>(std::min(reaching, 0x1p40)) + 1});
}

namespace {

// The first that can take a shape is its algorithm.
struct cuda_top_k_rule {
  std::int64_t min_cols = 0;
  std::int64_t max_cols = kAny;
  std::int64_t max_rows = kAny;
  std::int64_t min_rows = 0;       // of those that it is chosen for, as
  std::int64_t below_rows = kAny;  // this; it takes others, too
  std::int64_t max_k = kAny;
  std::int64_t max_block_rows_bytes = kAny;
  std::int64_t max_filter_rows_capacity = kAny;
  bool only_exact_lists = false;  // no mask, no early stop
  bool only_neighbours = true;    // of 16 or 32 bits, one behind the other: no fp64, no stride of columns
  top_k_algorithm algorithm;
  std::string_view reason;

  constexpr bool holds(const top_k_shape& shape) const {
    return shape.rows >= min_rows && (below_rows == kAny || shape.rows < below_rows) && can_take(shape);
  }
  constexpr bool can_take(const top_k_shape& shape) const {
    return shape.cols >= min_cols && shape.cols <= max_cols && shape.rows <= max_rows && shape.k <= max_k &&
           (!only_exact_lists || (!shape.mask && !shape.early_stop)) &&
           (!only_neighbours || (shape.col_stride == 1 && shape.type != value_type::f64)) &&
           (max_block_rows_bytes == kAny || block_rows_bytes(shape) <= max_block_rows_bytes) &&
           (max_filter_rows_capacity == kAny || filter_rows_capacity(shape.cols, shape.k) <= max_filter_rows_capacity);
  }
};

constexpr std::int64_t kMostClusterBlocks = 8;      // of a row in cluster_rows
constexpr std::int64_t kClusterRowsBelowRows = 67;  // of which a GPU of 132 multiprocessors has two blocks each

constexpr cuda_top_k_rule kCudaTopKRules[] = {
    {.max_cols = kWarpRowsMaxCols,
     .algorithm = top_k_algorithm::warp_rows,
     .reason = "a row fits the registers of a warp's lanes: it is read once, while the row before it is searched"},
    // k 50, ms, stream_rows, filter_rows: 1 x 128,256 fp32 0.010, 0.015, 0.020; 64 rows 0.023, 0.033, 0.028 (bf16
    // 0.017, 0.024, 0.024); 128 rows 0.034, 0.039, 0.031.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kFilterRowsMaxCols,
     .max_rows = std::numeric_limits<std::int32_t>::max() / kMostClusterBlocks,
     .below_rows = kClusterRowsBelowRows,
     .max_k = kClusterRowsMaxK,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::cluster_rows,
     .reason = "few long rows, k within 112: a cluster of blocks holds a row and lists what its k best surely reach"},
    // 16 x 128,256 fp32, k 50: 0.016 ms, filter_rows 0.025; 64 rows: 0.030 and 0.027.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kStreamRowsMaxCols,
     .below_rows = kFilterRowsMinRows,
     .max_k = 128,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::stream_rows,
     .reason = "few long rows, k within 128: teams of blocks stream a row past a cut that its k best surely reach"},
    // 2000 x 20,000, k 50: 0.065 ms (bf16 0.056), block_rows 0.097 (0.194); 64 x 400,000, k 1024: stream_rows wins.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kFilterRowsMaxCols,
     .max_k = kFilterRowsMaxK,
     .max_filter_rows_capacity = kFilterRowsMaxCapacity,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::filter_rows,
     .reason = "long rows: a block streams a row once past a filter that a sample of it suggests"},
    {.max_cols = kBlockRowsMaxCols,
     .max_block_rows_bytes = kBlockRowsBytes,
     .algorithm = top_k_algorithm::block_rows,
     .reason = "a row and its entries fit the shared memory of a block: it is read once, while other blocks search"},
    {.min_cols = kStreamRowsMinCols,
     .max_cols = kStreamRowsMaxCols,
     .max_rows = std::numeric_limits<std::int32_t>::max(),  // a block or more for each
     .max_k = kStreamRowsMaxK,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::stream_rows,
     .reason = "the longest rows, k within 2048: blocks stream a row once past a cut that its k best surely reach"},
    {.min_cols = kStreamRowsMinCols,
     .max_cols = std::numeric_limits<std::int32_t>::max(),
     .min_rows = kFilterRowsMinRows,
     .max_k = kFilterRowsMaxK,
     .max_filter_rows_capacity = kFilterRowsMaxCapacity,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::filter_rows,
     .reason = "many long rows, k above 2048: a block streams a row once past a filter that a sample of it suggests"},
    {.only_neighbours = false,
     .algorithm = top_k_algorithm::radix_rows,
     .reason = "no other kernel takes fp64, columns that lie apart, outputs beyond a block's memory, or of long rows a "
               "mask, an early stop or k above 2048"},
};

constexpr top_k_shape kHardestShape = {
    .rows = kAny, .cols = kAny, .k = 1, .type = value_type::f64, .early_stop = true, .mask = true, .col_stride = 2};
static_assert(std::end(kCpuTopKRules)[-1].holds(kHardestShape) && std::end(kCudaTopKRules)[-1].holds(kHardestShape));

template <class Rule, std::size_t Count, class Shape>
const Rule& first_that_holds(const Rule (&rules)[Count], const Shape& shape) {
  for (const Rule& rule : rules) {
    if (rule.holds(shape)) return rule;
  }
  return rules[Count - 1];  // holds for every shape
}

/// An algorithm and its reason, without allocating.
struct top_k_choice {
  top_k_algorithm algorithm;
  std::string_view reason;
};

top_k_choice top_k_by_rules(device_kind kind, const top_k_shape& shape) {
  if (kind == device_kind::cpu) {
    const cpu_top_k_rule& rule = first_that_holds(kCpuTopKRules, shape);
    return {rule.algorithm, rule.reason};
  }
  const cuda_top_k_rule& rule = first_that_holds(kCudaTopKRules, shape);
  return {rule.algorithm, rule.reason};
}

/// Whether an algorithm that was forced can take the shape. The CPU's take all.
bool takes(device_kind kind, top_k_algorithm algorithm, const top_k_shape& shape) {
  if (kind == device_kind::cpu) return true;
  return std::ranges::any_of(kCudaTopKRules,
                             [&](const cuda_top_k_rule& r) { return r.algorithm == algorithm && r.can_take(shape); });
}

/// How often radix_rows reads a row at most: once for each 11 bits of a key, once to write, and twice for an early
/// stop.
std::int64_t radix_passes(const top_k_shape& shape) {
  constexpr std::int64_t kDigitBits = 11;
  const std::int64_t bits = 8 * size_bytes(shape.type);
  return (bits + kDigitBits - 1) / kDigitBits + 1 + (shape.early_stop ? 2 : 0);
}

/// What an early stop is worth on a GPU, as a line of `explain`.
std::string_view worth_of_early_stop(top_k_algorithm algorithm) {
  switch (algorithm) {
    case top_k_algorithm::warp_rows:
    case top_k_algorithm::block_rows:
      return "early stop: gains nothing: an exact search moves the same bytes, and takes as long as two to four "
             "steps\n";
    default: return "early stop: gains nothing: it follows the bisection from the exact border, two passes more\n";
  }
}

// Sampling.

struct sample_algorithm_name {
  std::string_view name;
  sample_algorithm algorithm;
};
constexpr sample_algorithm_name kCpuSampleAlgorithms[] = {{"cpu_rows", sample_algorithm::cpu_rows}};
constexpr sample_algorithm_name kCudaSampleAlgorithms[] = {{"stream_rows", sample_algorithm::stream_rows},
                                                           {"chip_rows", sample_algorithm::chip_rows},
                                                           {"memory_rows", sample_algorithm::memory_rows}};

std::span<const sample_algorithm_name> sample_algorithms_of(device_kind kind) {
  using names = std::span<const sample_algorithm_name>;
  return kind == device_kind::cpu ? names(kCpuSampleAlgorithms) : names(kCudaSampleAlgorithms);
}

struct sample_step {
  const sample_shape& shape;
  sample_work work;
};

struct sample_rule {
  std::int64_t max_vocab = kAny;
  bool only_filtered = false;
  sample_algorithm algorithm;
  std::string_view reason;

  constexpr bool holds(const sample_step& step) const {
    return step.shape.vocab <= max_vocab && (!only_filtered || step.work == sample_work::filtered);
  }
};

constexpr sample_rule kCpuSampleRules[] = {
    {.algorithm = sample_algorithm::cpu_rows,
     .reason = "a row by one worker: its logits are read once, and what the filters leave is small"},
};
constexpr sample_rule kCudaSampleRules[] = {
    {.only_filtered = true,
     .algorithm = sample_algorithm::stream_rows,
     .reason = "plain logits and filters that leave few: a cluster of blocks streams a row and lists what may be kept "
               "(with penalties, a bias, a mask or log-probabilities: chip_rows, or memory_rows from 262,145 tokens)"},
    {.max_vocab = kChipRowsMaxVocab,
     .algorithm = sample_algorithm::chip_rows,
     .reason = "a row fits the shared memory of a cluster of blocks: it is read once, and filtered on the chip"},
    {.algorithm = sample_algorithm::memory_rows,
     .reason = "a longer row: it is kept in global memory with penalties and mask applied, and read a few times"},
};

const sample_rule& sample_rule_for(device_kind kind, const sample_step& step) {
  return kind == device_kind::cpu ? first_that_holds(kCpuSampleRules, step) : first_that_holds(kCudaSampleRules, step);
}

/// Whether an algorithm that was forced can take the shape.
bool takes(device_kind kind, sample_algorithm algorithm, const sample_step& step) {
  const auto rules = kind == device_kind::cpu ? std::span<const sample_rule>(kCpuSampleRules)
                                              : std::span<const sample_rule>(kCudaSampleRules);
  return std::ranges::any_of(rules, [&](const sample_rule& r) { return r.algorithm == algorithm && r.holds(step); });
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
constexpr double kBusGbPerS = 51.0;  // rows in host memory, read by the GPU: all_rows_ms of flat_host_rows.json

struct bandwidth {
  double gb_per_s;
  std::string_view machine;
};

constexpr bandwidth example_bandwidth(device_kind kind) {
  return kind == device_kind::cpu ? bandwidth{kTwoCoresGbPerS, "two cores of an EPYC"}
                                  : bandwidth{kH200GbPerS, "an H200"};
}

constexpr bandwidth example_bandwidth(device_kind kind, storage kept, flat_algorithm algorithm) {
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
  const auto rows = static_cast<double>(shape.rows);
  const auto known = static_cast<double>(summary.certifiable + summary.uncertifiable);
  const double uncertifiable = known == 0 ? 0 : rows * static_cast<double>(summary.uncertifiable) / known;
  const auto k = static_cast<double>(std::min(shape.k, shape.rows));
  const double border = upper_quantile(k / std::max(rows, 1.0));
  const double reach = 2.0 * mean_looseness(summary) * std::sqrt(static_cast<double>(shape.dim));
  const double share = 0.5 * std::erfc((border - reach) * 0.7071067811865476);  // of a normal distribution above it
  return std::min(rows, uncertifiable + std::max(k, share * (rows - uncertifiable)));
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

std::optional<std::int64_t> forced_survivors() {
  constexpr const char* kVariable = "SHORTLIST_CERTIFIED_SURVIVORS";
  constexpr std::int64_t kMost = 1'000'000;
  const char* given = std::getenv(kVariable);
  if (!given || !*given) return std::nullopt;
  std::int64_t value = 0;
  const char* end = given + std::strlen(given);
  const auto [parsed, error] = std::from_chars(given, end, value);
  if (error != std::errc() || parsed != end || value < 1 || value > kMost) {
    throw_invalid(kVariable, given, "1 to 1000000");
  }
  return value;
}

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
std::string survivors_line(const search_shape& shape, const plane_summary& summary) {
  const double survivors = expected_survivors(shape, summary);
  const double looseness = 100 * mean_looseness(summary);
  if (summary.certifiable + summary.uncertifiable == 0) {
    return fmt::format("survivors:  about {:.3g} rows a query, if residuals are {:.3g} % of norms, as of normal rows\n",
                       survivors, looseness);
  }
  return fmt::format(
      "survivors:  about {:.3g} rows a query: residuals are {:.3g} % of norms, and {} rows cannot be certified\n",
      survivors, looseness, summary.uncertifiable);
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
  const std::int64_t block_bytes = kind == device_kind::cpu ? plane_layout(shape.dim, shape.metric).block_bytes()
                                                            : fragment_layout(shape.dim, shape.metric).block_bytes();
  const double rows_bytes = reads_plane
                                ? static_cast<double>(shape.rows) / kPlaneRows * static_cast<double>(block_bytes)
                                : elements * static_cast<double>(size_bytes(shape.type));
  const double read_bytes = passes * (rows_bytes + norms_bytes);
  const auto [gb_per_s, machine] = example_bandwidth(kind, shape.storage, plan.algorithm);
  const std::string survivors = reads_plane ? survivors_line(shape, summary) : "";
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
      reads_plane ? " of the plane" : "", elements * static_cast<double>(shape.queries) / 1e6, gb_per_s, machine,
      read_bytes / (gb_per_s * 1e6), survivors);
}

std::string_view to_string(top_k_algorithm algorithm) {
  for (const auto names : {std::span<const top_k_algorithm_name>(kCpuTopKAlgorithms),
                           std::span<const top_k_algorithm_name>(kCudaTopKAlgorithms)}) {
    for (const auto& entry : names) {
      if (entry.algorithm == algorithm) return entry.name;
    }
  }
  return "unknown";
}

top_k_plan plan_top_k(device_kind kind, const top_k_shape& shape) {
  const auto forced = forced_top_k_algorithm(kind);
  if (forced && takes(kind, *forced, shape)) {
    return {*forced, fmt::format("forced by {}={}", kForceTopK, to_string(*forced))};
  }
  const auto [algorithm, reason] = top_k_by_rules(kind, shape);
  if (!forced) return {algorithm, std::string(reason)};
  return {algorithm, fmt::format("{} ({}={} cannot take the shape)", reason, kForceTopK, to_string(*forced))};
}

top_k_algorithm choose_top_k_algorithm(device_kind kind, const top_k_shape& shape) {
  const auto forced = forced_top_k_algorithm(kind);
  if (forced && takes(kind, *forced, shape)) return *forced;
  return top_k_by_rules(kind, shape).algorithm;
}

std::string explain_top_k(device_kind kind, std::string_view device_description, const top_k_shape& shape) {
  const top_k_plan plan = plan_top_k(kind, shape);
  // In double: a shape is any numbers, and their product need not fit.
  const double rows = static_cast<double>(shape.rows);
  const double value_bytes = static_cast<double>(size_bytes(shape.type));
  const double index_bytes = shape.indices_as == index_type::i32 ? 4.0 : 8.0;
  const double read_bytes = rows * static_cast<double>(shape.cols) * value_bytes;
  const double written_bytes = shape.mask ? rows * static_cast<double>(shape.cols)
                                          : rows * static_cast<double>(shape.k) * (value_bytes + index_bytes);
  const bool by_radix = plan.algorithm == top_k_algorithm::radix_rows;
  const std::string passes = by_radix ? fmt::format(" up to {} times", radix_passes(shape)) : "";
  const std::string output = shape.mask ? "a mask" : fmt::format("values and {:g}-bit indices", 8 * index_bytes);
  const std::string order = !shape.sorted || shape.mask ? ""
                            : by_radix                  ? ", sorted by a radix sort of all rows' entries"
                                                        : ", sorted";
  const auto [gb_per_s, machine] = example_bandwidth(kind);
  return fmt::format(
      "top k:      k {} of each of {} rows x {} {}{}{}{}\n"
      "device:     {}\n"
      "algorithm:  {}\n"
      "because:    {}\n"
      "moves:      reads {:.6g} MB{}, writes {:.6g} MB of {}\n"
      "limit:      bytes over read bandwidth; at the {:g} GB/s of {} that is {:.4g} ms\n"
      "{}",
      shape.k, shape.rows, shape.cols, to_string(shape.type),
      shape.col_stride == 1 ? "" : fmt::format(", columns {} apart", shape.col_stride), order,
      shape.early_stop ? ", stopped early" : "", device_description, to_string(plan.algorithm), plan.reason,
      read_bytes / 1e6, passes, written_bytes / 1e6, output, gb_per_s, machine,
      (read_bytes + written_bytes) / (gb_per_s * 1e6),
      kind == device_kind::cuda && shape.early_stop ? worth_of_early_stop(plan.algorithm) : "");
}

std::string_view to_string(sample_algorithm algorithm) {
  for (const device_kind kind : {device_kind::cpu, device_kind::cuda}) {
    for (const auto& entry : sample_algorithms_of(kind)) {
      if (entry.algorithm == algorithm) return entry.name;
    }
  }
  return "unknown";
}

sample_plan plan_sample(device_kind kind, const sample_shape& shape, sample_work work) {
  const sample_step step{shape, work};
  const auto forced = forced_by(kForceSample, sample_algorithms_of(kind));
  if (forced && takes(kind, *forced, step)) {
    return {*forced, fmt::format("forced by {}={}", kForceSample, to_string(*forced))};
  }
  const sample_rule& rule = sample_rule_for(kind, step);
  if (!forced) return {rule.algorithm, std::string(rule.reason)};
  return {rule.algorithm,
          fmt::format("{} ({}={} cannot take the shape)", rule.reason, kForceSample, to_string(*forced))};
}

sample_algorithm choose_sample_algorithm(device_kind kind, const sample_shape& shape, sample_work work) {
  const sample_step step{shape, work};
  const auto forced = forced_by(kForceSample, sample_algorithms_of(kind));
  if (forced && takes(kind, *forced, step)) return *forced;
  return sample_rule_for(kind, step).algorithm;
}

std::string explain_sample(device_kind kind, std::string_view device_description, const sample_shape& shape) {
  const sample_plan plan = plan_sample(kind, shape);
  const double read_bytes =
      static_cast<double>(shape.rows) * static_cast<double>(shape.vocab) * static_cast<double>(size_bytes(shape.type));
  const auto [gb_per_s, machine] = example_bandwidth(kind);
  return fmt::format(
      "sample:     a token of each of {} rows of {} {} logits\n"
      "device:     {}\n"
      "algorithm:  {}\n"
      "because:    {}\n"
      "reads:      {:.6g} MB\n"
      "limit:      bytes over read bandwidth; at the {:g} GB/s of {} that is {:.4g} ms\n",
      shape.rows, shape.vocab, to_string(shape.type), device_description, to_string(plan.algorithm), plan.reason,
      read_bytes / 1e6, gb_per_s, machine, read_bytes / (gb_per_s * 1e6));
}

}  // namespace shortlist::core
