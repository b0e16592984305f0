// The plan of row-wise top k. Each line: the first that holds wins; the reason stands beside it and is printed by
// `explain`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/plan_parts.hpp"

namespace shortlist::core {
namespace {

constexpr const char* kForceTopK = "SHORTLIST_FORCE_TOP_K";

struct top_k_algorithm_name {
  std::string_view name;
  top_k_algorithm algorithm;
};
constexpr top_k_algorithm_name kCpuTopKAlgorithms[] = {{"whole_rows", top_k_algorithm::whole_rows},
                                                       {"split_rows", top_k_algorithm::split_rows}};
constexpr top_k_algorithm_name kCudaTopKAlgorithms[] = {
    {"warp_rows", top_k_algorithm::warp_rows},       {"block_rows", top_k_algorithm::block_rows},
    {"stop_rows", top_k_algorithm::stop_rows},       {"resident_rows", top_k_algorithm::resident_rows},
    {"filter_rows", top_k_algorithm::filter_rows},   {"stream_rows", top_k_algorithm::stream_rows},
    {"cluster_rows", top_k_algorithm::cluster_rows}, {"bracket_rows", top_k_algorithm::bracket_rows},
    {"radix_rows", top_k_algorithm::radix_rows}};

std::optional<top_k_algorithm> forced_top_k_algorithm(device_kind kind) {
  using names = std::span<const top_k_algorithm_name>;
  return forced_by(kForceTopK, kind == device_kind::cpu ? names(kCpuTopKAlgorithms) : names(kCudaTopKAlgorithms));
}

struct cpu_top_k_rule {
  std::int64_t max_rows = kAny;
  std::int64_t min_cols = 0;
  std::int64_t min_cols_per_k = 0;
  top_k_algorithm algorithm;
  std::string_view reason;

  constexpr bool holds(const top_k_shape& shape) const {
    return shape.rows <= max_rows && shape.cols >= min_cols && shape.cols / shape.k >= min_cols_per_k;
  }
};

// A part of a row keeps its own k best, so a part much longer than k is what makes splitting pay.
constexpr cpu_top_k_rule kCpuTopKRules[] = {
    {.max_rows = 8,
     .min_cols = 1 << 17,
     .min_cols_per_k = 64,
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

/// Shared memory of a row, and of its entries on their way out: columns, and keys that sort them. A row may bring what
/// stands before it in its first 16 bytes.
constexpr std::int64_t block_rows_bytes(const top_k_shape& shape) {
  const std::int64_t value_bytes = size_bytes(shape.type);
  const std::int64_t brought = 16 / value_bytes - 1;
  const std::int64_t held = std::clamp(power_of_two_from(shape.cols + brought), kBlockRowsMinCols, kBlockRowsMaxCols);
  const std::int64_t entries = shape.mask ? 0 : shape.sorted ? 8 * power_of_two_from(shape.k) : 4 * shape.k;
  return held * value_bytes + entries;
}

/// Columns of a row that reach a cut which so many of the sample reach, and by so many deviations more.
double columns_reaching(double of_sample, double deviations, std::int64_t cols) {
  return (of_sample + deviations * std::sqrt(of_sample)) * static_cast<double>(cols) / double{kFilterRowsSample};
}
/// How many of the sample must reach a cut for k columns to reach it, almost surely.
double rank_in_sample(std::int64_t cols, std::int64_t k) {
  constexpr double kSample = kFilterRowsSample;
  const double expected = std::min(kSample, static_cast<double>(k) * kSample / static_cast<double>(cols));
  const double spread = double{kFilterRowsDeviations} * std::sqrt(expected) + double{kFilterRowsLeast};
  return expected + std::max(spread, double{kFilterRowsLine});
}

}  // namespace

std::int64_t filter_rows_capacity(std::int64_t cols, std::int64_t k, bool sorted) {
  constexpr double kDeviations = 4.5;
  constexpr std::int64_t kLeast = 2048;
  constexpr std::int64_t kSortedRoom = 2;  // of k: what bins order, and beside
  const double rank = rank_in_sample(cols, k);
  const double reaching = columns_reaching(rank + rank / kFilterRowsSlackShare + 1, kDeviations, cols);
  const std::int64_t listed = std::max({kLeast, k, static_cast<std::int64_t>(std::min(reaching, 0x1p40)) + 1});
  return sorted ? power_of_two_from(std::max(listed, kSortedRoom * k)) : listed;
}

bool resident_rows_list_holds(std::int64_t cols, std::int64_t k, std::int64_t capacity) {
  constexpr double kDeviations = 4.0;
  const double rank = rank_in_sample(cols, k);
  return columns_reaching(rank + rank / (2 * kFilterRowsSlackShare), kDeviations, cols) <=
         static_cast<double>(capacity);
}

std::int64_t resident_rows_bytes(const top_k_shape& shape) {
  constexpr std::int64_t kWord = 32;          // marks, of a column each
  constexpr std::int64_t kFixed = 1024;       // barriers, sums, and what alignment takes
  constexpr std::int64_t kLeastMarks = 4112;  // bins take their place
  const std::int64_t value_bytes = size_bytes(shape.type);
  const std::int64_t words = (shape.cols + kWord - 1) / kWord;
  const std::int64_t marks = std::max({words * 4, kLeastMarks, shape.sorted ? 0 : shape.k * value_bytes});
  const std::int64_t list = 2 * kResidentRowsMaxCapacity + 256;
  const std::int64_t row = (shape.cols + 3 * kWord) * value_bytes;
  return kFixed + marks + list + (shape.sorted ? std::max(row, kResidentRowsSortBytes) : row);
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
  std::int64_t max_sorted_k = kAny;
  std::int64_t max_block_rows_bytes = kAny;
  std::int64_t max_filter_rows_capacity = kAny;
  std::int64_t min_filter_rows_capacity = 0;  // as min_rows
  std::int64_t max_resident_rows_bytes = kAny;
  std::int64_t min_cols_per_k = 0;
  std::int64_t max_cols_per_k = kAny;
  bool only_exact_lists = false;  // no mask, no early stop
  bool only_halves = false;       // of 16 bits, by ascending column
  bool only_stopped = false;      // an early stop, no mask
  bool only_by_column = false;    // not sorted
  bool only_held_lists = false;   // of rows that block_rows would take, too: lists that registers of a block hold
  bool only_whole_units = false;  // rows are multiples of 16 bytes
  bool only_parts = false;        // k below the columns
  bool only_neighbours = true;    // of 16 or 32 bits, one behind the other: no fp64, no stride of columns
  top_k_algorithm algorithm;
  std::string_view reason;

  constexpr bool holds(const top_k_shape& shape) const {
    return shape.rows >= min_rows && (below_rows == kAny || shape.rows < below_rows) && can_take(shape) &&
           (min_filter_rows_capacity == 0 ||
            filter_rows_capacity(shape.cols, shape.k, shape.sorted) >= min_filter_rows_capacity);
  }
  constexpr bool can_take(const top_k_shape& shape) const {
    return shape.cols >= min_cols && shape.cols <= max_cols && shape.rows <= max_rows && shape.k <= max_k &&
           (!shape.sorted || shape.k <= max_sorted_k) && shape.cols / shape.k >= min_cols_per_k &&
           (max_cols_per_k == kAny || shape.cols / shape.k <= max_cols_per_k) &&
           (!only_exact_lists || (!shape.mask && !shape.early_stop)) &&
           (!only_halves || (size_bytes(shape.type) == 2 && !shape.sorted)) &&
           (!only_stopped || (shape.early_stop && !shape.mask)) && (!only_by_column || !shape.sorted) &&
           (!only_whole_units || shape.cols * size_bytes(shape.type) % 16 == 0) &&
           (!only_parts || shape.k < shape.cols) &&
           (!only_neighbours || (shape.col_stride == 1 && shape.type != value_type::f64)) &&
           (max_block_rows_bytes == kAny || block_rows_bytes(shape) <= max_block_rows_bytes) &&
           (max_filter_rows_capacity == kAny ||
            filter_rows_capacity(shape.cols, shape.k, shape.sorted) <= max_filter_rows_capacity) &&
           (!only_held_lists || shape.cols > kBlockRowsMaxCols ||
            filter_rows_capacity(shape.cols, shape.k, false) <= kFilterRowsHeld) &&
           (max_resident_rows_bytes == kAny ||
            (resident_rows_list_holds(shape.cols, shape.k, kResidentRowsMaxCapacity) &&
             resident_rows_bytes(shape) <= max_resident_rows_bytes));
  }
};

constexpr std::int64_t kBracketRowsMinRows = 1024;   // some four rows a block, where filter_rows takes a shape, too
constexpr std::int64_t kMostClusterBlocks = 8;       // of a row in cluster_rows
constexpr std::int64_t kClusterRowsBelowRows = 67;   // of which a GPU of 132 multiprocessors has two blocks each
constexpr std::int64_t kClusterRowsBelowLone = 133;  // and a block each

constexpr cuda_top_k_rule kCudaTopKRules[] = {
    {.max_cols = kWarpRowsMaxCols,
     .algorithm = top_k_algorithm::warp_rows,
     .reason = "a row fits the registers of a warp's lanes: it is read once, while the row before it is searched"},
    // 65,536 x 2048, k 128: 0.151 ms (bf16 0.091), block_rows 0.163 (0.151).
    {.max_cols = kWarpRowsMaxWholeCols,
     .only_exact_lists = true,
     .only_parts = true,
     .algorithm = top_k_algorithm::warp_rows,
     .reason = "an exact row fits the registers of a warp: it is read once, while the row before it is searched"},
    // 65,536 x 2048, k 64, four steps and eps 1e-4: 0.142 and 0.209 ms, block_rows 0.192 and 0.254.
    {.max_cols = kWarpRowsMaxWholeCols,
     .only_stopped = true,
     .only_by_column = true,
     .only_whole_units = true,
     .algorithm = top_k_algorithm::warp_rows,
     .reason = "a row fits the registers of a warp: it is read once, while the row before it is searched"},
    // bf16, 65,536 x 4096, k 64, four steps and an eps of 1e-2: 0.194 and 0.220 ms, stop_rows 0.242 and 0.261.
    {.max_cols = kWarpRowsMaxStoppedHalfCols,
     .min_rows = 4096,
     .max_k = 1024,
     .only_halves = true,
     .only_stopped = true,
     .only_by_column = true,
     .only_whole_units = true,
     .algorithm = top_k_algorithm::warp_rows,
     .reason = "an early stop of many rows of 16 bits, which fit the registers of a warp: levels tell it"},
    // bf16, k of a sixteenth: 65,536 x 5120 0.194 ms, block_rows 0.300; 6144 0.230 and 0.298; 4224 rows 0.023 and
    // 0.031, 0.028 and 0.034; 1056 rows 0.014 and 0.017, 0.016 and 0.016.
    {.max_cols = 6144,
     .min_rows = 4096,
     .only_exact_lists = true,
     .only_halves = true,
     .algorithm = top_k_algorithm::warp_rows,
     .reason = "many rows of 16 bits that fit the registers of a warp: each is read once, while others are searched"},
    // 65,536 x 8192 of bf16, k 512: 0.343 ms, block_rows 0.378; k 2048 where 90 % tie 0.71 and 0.64.
    {.max_cols = kWarpRowsMaxHalfCols,
     .min_rows = 4096,
     .max_k = 1024,
     .only_exact_lists = true,
     .only_halves = true,
     .algorithm = top_k_algorithm::warp_rows,
     .reason = "many rows of 16 bits that fit the registers of a warp: each is read once, while others are searched"},
    // k 50, ms, stream_rows, filter_rows: 1 x 128,256 fp32 0.010, 0.015, 0.020; 64 rows 0.022, 0.033, 0.028 (bf16
    // 0.016, 0.024, 0.024); 128 rows, as cluster_rows was before, 0.034, 0.039, 0.031.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kFilterRowsMaxCols,
     .max_rows = std::numeric_limits<std::int32_t>::max() / kMostClusterBlocks,
     .below_rows = kClusterRowsBelowRows,
     .max_k = kClusterRowsMaxK,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::cluster_rows,
     .reason = "few long rows, k within 112: a cluster of blocks reads a row and lists what its k best surely reach"},
    // k 50, ms, filter_rows or resident_rows: 67, 100, 132 rows of 128,256 fp32 0.023, 0.027, 0.031 and 0.029, 0.029,
    // 0.032; bf16 0.019, 0.020, 0.022 and 0.026; 100 of 17,000 0.013 and 0.018. Of 131,072, k 64 0.092: lists overflow.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = 131'072,
     .max_rows = std::numeric_limits<std::int32_t>::max() / kMostClusterBlocks,
     .below_rows = kClusterRowsBelowLone,
     .max_k = 50,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::cluster_rows,
     .reason = "no more long rows than multiprocessors, k within 50: a block reads a row and lists what its k best "
               "surely reach"},
    // Eps 1e-4, four and two steps, ms, filter_rows: 64 x 128,256 fp32, k 50 0.024, 0.028 and 0.023, 0.030, 0.029 and
    // 0.032 (bf16 0.019, 0.026, 0.027 and 0.027); 1 row 0.016, 0.019 and 0.017, 0.030, 0.028 and 0.029; 64 rows, k 112
    // 0.029, 0.054 and 0.044, 0.031, 0.031 and 0.033.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kFilterRowsMaxCols,
     .max_rows = std::numeric_limits<std::int32_t>::max() / kMostClusterBlocks,
     .below_rows = kClusterRowsBelowRows,
     .max_k = 64,
     .only_stopped = true,
     .algorithm = top_k_algorithm::cluster_rows,
     .reason = "an early stop of few long rows, k within 64: a cluster of blocks reads a row, and its border and "
               "extremes tell the path"},
    // 16 x 128,256 fp32, k 50: 0.016 ms, filter_rows 0.025; 64 rows: 0.030 and 0.027.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kStreamRowsMaxCols,
     .below_rows = kFilterRowsMinRows,
     .max_k = 128,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::stream_rows,
     .reason = "few long rows, k within 128: teams of blocks stream a row past a cut that its k best surely reach"},
    // 1024 x 50,000 of bf16, k 2048, in a graph: 0.042 ms, filter_rows 0.056; 4096 x 32,000, k 50: 0.078 and 0.120.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kResidentRowsMaxPlaces - 96,
     .max_resident_rows_bytes = kResidentRowsMaxBytes,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::resident_rows,
     .reason = "long rows, two of which fit a multiprocessor: a block marks what reaches a filter while its row comes"},
    // bf16, 1024 x 50,000, k 4,500, 6,144, 8,192 and 11,740: 0.094, 0.095, 0.098 and 0.105 ms, filter_rows 0.099,
    // 0.110, 0.124 and 0.165; 2000 x 33,000, k 5,000: 0.129 and 0.170. 600 x 80,000, k 6,000: 0.131 and 0.080.
    {.min_cols = kBlockRowsMaxCols + 1,
     .max_cols = 65'536,
     .min_rows = kBracketRowsMinRows,
     .max_cols_per_k = 10,
     .only_exact_lists = true,
     .only_halves = true,
     .algorithm = top_k_algorithm::bracket_rows,
     .reason =
         "many long rows of 16 bits, a tenth of the columns or more: a block streams a row past two numbers around "
         "its border, and lists what is between"},
    // 1024 x 50,000, k 11,200: 0.160 ms, filter_rows 0.151; 11,740, where its threads do not hold all lists, 0.155 and
    // 0.201.
    {.min_cols = kBlockRowsMaxCols + 1,
     .max_cols = kFilterRowsMaxCols,
     .min_rows = kBracketRowsMinRows,
     .min_filter_rows_capacity = 15'801,
     .only_exact_lists = true,
     .only_by_column = true,
     .algorithm = top_k_algorithm::bracket_rows,
     .reason = "many long rows, a k whose list threads do not hold: a block streams a row past two numbers around its "
               "border, and lists what is between"},
    // 2000 x 20,000, k 50: 0.065 ms (bf16 0.056), block_rows 0.097 (0.194); 64 x 400,000, k 1024: stream_rows wins.
    // 4096 x 32,000, k 2048 and 4096: 0.162 and 0.639 ms, block_rows 0.212 and 0.232; 1024 x 50,000, k 8192: 0.128,
    // radix_rows 0.409.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kFilterRowsMaxCols,
     .max_sorted_k = kFilterRowsMaxSortedK,
     .max_filter_rows_capacity = kFilterRowsMaxCapacity,
     .only_exact_lists = true,
     .only_held_lists = true,
     .algorithm = top_k_algorithm::filter_rows,
     .reason = "long rows: a block streams a row once past a filter that a sample of it suggests"},
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kResidentRowsMaxPlaces - 96,
     .max_resident_rows_bytes = kResidentRowsMaxBytes,
     .only_stopped = true,
     .only_by_column = true,
     .algorithm = top_k_algorithm::resident_rows,
     .reason = "an early stop of long rows, two of which fit a multiprocessor: a block marks a row while it comes"},
    // 2000 x 20,000, k 50, four and eight steps and eps 1e-4: 0.082, 0.072 and 0.077 ms, block_rows 0.075, 0.091 and
    // 0.097; 2048 x 32,000, k 64, four steps and the eps: 0.097 and 0.094, block_rows 0.125 and 0.162.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kFilterRowsMaxCols,
     .max_sorted_k = kFilterRowsMaxSortedK,
     .max_filter_rows_capacity = kFilterRowsMaxCapacity,
     .only_stopped = true,
     .only_held_lists = true,
     .algorithm = top_k_algorithm::filter_rows,
     .reason = "an early stop of long rows: a block streams a row once, and its border and extremes tell the path"},
    {.min_cols = kFilterRowsMinCols,
     .max_cols = std::numeric_limits<std::int32_t>::max(),
     .min_rows = kFilterRowsMinRows,
     .max_sorted_k = kFilterRowsMaxSortedK,
     .max_filter_rows_capacity = kFilterRowsMaxCapacity,
     .only_stopped = true,
     .algorithm = top_k_algorithm::filter_rows,
     .reason = "an early stop of many of the longest rows: a block streams a row once, and its border and extremes "
               "tell the path"},
    // 65,536 x 4096, k 64, four steps and eps 1e-4: 0.32 and 0.35 ms, block_rows 0.42 and 0.56; 5000 rows: 0.06 and
    // 0.04 ms, for a block's first row is searched in full.
    {.min_cols = 2049,
     .max_cols = kBlockRowsMaxCols,
     .min_rows = 16'384,
     .max_k = 256,
     .min_cols_per_k = 16,
     .only_stopped = true,
     .only_by_column = true,
     .algorithm = top_k_algorithm::stop_rows,
     .reason = "an early stop of many rows, k within 256: its path follows from a row's extremes and its border"},
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
    // 1 x 10^7, k 100 and 500, an eps of 1e-4 and four steps, in a graph: 0.024, 0.030 and 0.029, 0.054 ms, radix_rows
    // behind the exact search 0.055, 0.068 and 0.064, 0.077; four steps of k 2048 0.140 and 0.092.
    {.min_cols = kStreamRowsMinCols,
     .max_cols = std::numeric_limits<std::int32_t>::max(),
     .max_rows = std::numeric_limits<std::int32_t>::max(),
     .max_k = 512,
     .only_stopped = true,
     .algorithm = top_k_algorithm::stream_rows,
     .reason = "an early stop of the longest rows, k within 512: blocks stream a row once, and its border and extremes "
               "tell the path"},
    {.min_cols = kStreamRowsMinCols,
     .max_cols = std::numeric_limits<std::int32_t>::max(),
     .min_rows = kFilterRowsMinRows,
     .max_sorted_k = kFilterRowsMaxSortedK,
     .max_filter_rows_capacity = kFilterRowsMaxCapacity,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::filter_rows,
     .reason = "many long rows, k above 2048: a block streams a row once past a filter that a sample of it suggests"},
    // 1024 x 50,000, k 25,000: 0.202 ms (bf16 0.149), radix_rows 0.456; 128 x 500,000, k 100,000: 0.264 and 0.516.
    {.min_cols = kFilterRowsMinCols,
     .max_cols = kBracketRowsMaxCols,
     .min_rows = kFilterRowsMinRows,
     .only_exact_lists = true,
     .algorithm = top_k_algorithm::bracket_rows,
     .reason =
         "many long rows, a k that no list has room for: a block streams a row past two numbers around its border, and "
         "lists what is between"},
    {.only_neighbours = false,
     .algorithm = top_k_algorithm::radix_rows,
     .reason = "no other kernel takes fp64, columns that lie apart, outputs beyond a block's memory, or of long rows a "
               "mask, a large k or, of the longest, an early stop with k above 512"},
};

constexpr top_k_shape kHardestShape = {
    .rows = kAny, .cols = kAny, .k = 1, .type = value_type::f64, .early_stop = true, .mask = true, .col_stride = 2};
static_assert(std::end(kCpuTopKRules)[-1].holds(kHardestShape) && std::end(kCudaTopKRules)[-1].holds(kHardestShape));

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

/// How often a row is read at most where radix_rows serves it: once for each 11 bits of a key, once to write, and twice
/// for an early stop; once for the exact search that an early stop begins with, if another kernel takes that.
std::int64_t radix_passes(const top_k_shape& shape) {
  constexpr std::int64_t kAfterExact = 3;
  if (follows_exact_search(shape)) return 1 + kAfterExact;
  constexpr std::int64_t kDigitBits = 11;
  const std::int64_t bits = 8 * size_bytes(shape.type);
  return (bits + kDigitBits - 1) / kDigitBits + 1 + (shape.early_stop ? 2 : 0);
}

/// What is read more than once, as `explain` says it.
std::string reads_again(top_k_algorithm algorithm, const top_k_shape& shape) {
  switch (algorithm) {
    case top_k_algorithm::radix_rows: return fmt::format(" up to {} times", radix_passes(shape));
    case top_k_algorithm::bracket_rows: return ", lines of the k best again";
    default: return "";
  }
}

/// What an early stop is worth on a GPU, as a line of `explain`; measured by the campaign `rows`.
std::string_view worth_of_early_stop(top_k_algorithm algorithm, const top_k_shape& shape) {
  constexpr std::int64_t kDenseShare = 3;  // a k of cols / 3 or more: the exact search has more to do than memory has
  const bool halves_on_chip = size_bytes(shape.type) == 2 &&
                              (algorithm == top_k_algorithm::warp_rows || algorithm == top_k_algorithm::stop_rows);
  if (halves_on_chip)
    return "early stop: gains nothing: an exact search moves the same bytes, and takes three fifths of the time or "
           "more\n";
  switch (algorithm) {
    case top_k_algorithm::warp_rows:
      if (shape.k * kDenseShare >= shape.cols)
        return "early stop: gains a twentieth at most: the exact search of so large a k has somewhat more to do\n";
      return "early stop: gains nothing: an exact search moves the same bytes; up to six steps take about as long, "
             "more steps and eps longer\n";
    case top_k_algorithm::block_rows:
      return "early stop: gains nothing: an exact search moves the same bytes, and takes less time: it lists what may "
             "be among the best\n";
    case top_k_algorithm::stop_rows:
      return "early stop: gains nothing: an exact search moves the same bytes, and takes as long\n";
    case top_k_algorithm::stream_rows:
      return "early stop: gains nothing: an exact search moves the same bytes, and takes a tenth to a quarter less "
             "time; up to half less than few steps, which read pieces of a row again\n";
    case top_k_algorithm::cluster_rows:
      return "early stop: gains nothing: an exact search moves the same bytes, and takes seven to nine tenths of "
             "the time; of few steps half or more, whose rows are looked at again for what no list holds\n";
    case top_k_algorithm::resident_rows:
      return "early stop: gains nothing: an exact search moves the same bytes, and takes two thirds of the time or "
             "more; of few steps less, whose rows are looked at again for what no list holds\n";
    case top_k_algorithm::filter_rows:
      return "early stop: gains nothing: an exact search moves the same bytes, and takes as long; of few steps less, "
             "whose rows are read again for what no list holds\n";
    default:
      return "early stop: gains nothing: it follows the bisection from the exact border, two or three passes more\n";
  }
}

}  // namespace

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

bool follows_exact_search(const top_k_shape& shape) {
  if (!shape.early_stop || shape.mask) return false;
  top_k_shape exact = shape;
  exact.early_stop = exact.sorted = false;
  return choose_top_k_algorithm(device_kind::cuda, exact) != top_k_algorithm::radix_rows;
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
  const bool sorts_apart = by_radix || plan.algorithm == top_k_algorithm::bracket_rows ||
                           (plan.algorithm == top_k_algorithm::filter_rows && shape.early_stop);
  const std::string output = shape.mask ? "a mask" : fmt::format("values and {:g}-bit indices", 8 * index_bytes);
  const std::string order = !shape.sorted || shape.mask ? ""
                            : sorts_apart               ? ", sorted by a radix sort of all rows' entries"
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
      read_bytes / 1e6, reads_again(plan.algorithm, shape), written_bytes / 1e6, output, gb_per_s, machine,
      (read_bytes + written_bytes) / (gb_per_s * 1e6),
      kind == device_kind::cuda && shape.early_stop ? worth_of_early_stop(plan.algorithm, shape) : "");
}

}  // namespace shortlist::core
