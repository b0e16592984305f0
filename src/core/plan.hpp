// The plan: a pure function from shape, type and device to an algorithm, driven by committed measurements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/certified.hpp"
#include "shortlist/device.hpp"
#include "shortlist/sample.hpp"
#include "shortlist/top_k.hpp"

namespace shortlist::core {

/// How a flat search walks the rows; both backends have all of them.
enum class flat_algorithm : std::uint8_t {
  scan,       ///< one query at a time; the rows stream past it once, selection is fused into the scan
  tiles,      ///< tiles of rows x queries; a row that is read serves many queries
  certified,  ///< a filter over the int8 plane, then scores of the rows that it cannot exclude; see docs/certified.md
};

std::string_view to_string(flat_algorithm algorithm);

struct flat_plan {
  flat_algorithm algorithm = flat_algorithm::scan;
  std::string reason;  ///< one sentence: the rule that held, or the environment variable that forced it
};

// What certified search on CUDA devices takes, which the plan and its kernels agree on.
inline constexpr std::int64_t kCertifiedScanMaxK = 2048;
inline constexpr std::int64_t kCertifiedScanMaxDim = 16'384;
inline constexpr std::int64_t kCertifiedBatchMinQueries = 2;  // fewer go through the scan, one after the other
inline constexpr std::int64_t kCertifiedBatchMaxK = 2048;
inline constexpr std::int64_t kCertifiedBatchMaxDim = 12'288;

/// Whether a certified search of this shape goes in batches, which read the plane once for many queries.
constexpr bool goes_in_batches(const search_shape& shape) {
  return shape.queries >= kCertifiedBatchMinQueries && shape.k <= kCertifiedBatchMaxK &&
         shape.dim <= kCertifiedBatchMaxDim;
}

/// Rows, of those of the shape, whose score a certified search is expected to compute for each query: docs/certified.md
/// has the model. Of an empty summary nothing is known, and codes as good as those of normal rows are assumed.
double expected_survivors(const search_shape& shape, const plane_summary& summary);

/// Whether a search of one query on a CUDA device reads the plane's coarse copy: where there is one, and it saves more
/// bytes than the further survivors cost. SHORTLIST_CERTIFIED_CODES=coarse or whole overrides it, for tests.
/// @throws invalid_argument if that variable is anything else.
bool scans_coarse_copy(const search_shape& shape, const plane_summary& summary);

/// The plan of a flat search. SHORTLIST_FORCE_FLAT_SEARCH overrides it by name, where the algorithm can take the shape.
/// @throws invalid_argument if that variable names no algorithm; the message lists the known ones.
flat_plan plan_flat_search(device_kind kind, const search_shape& shape, const plane_summary& summary = {});
/// The same without the sentence, for the hot path: allocates nothing.
flat_algorithm choose_flat_algorithm(device_kind kind, const search_shape& shape, const plane_summary& summary = {});

/// For tests: how many survivors beyond k a list of a certified search holds, from SHORTLIST_CERTIFIED_SURVIVORS.
/// @throws invalid_argument if that is not a number from 1 to 1,000,000.
std::optional<std::int64_t> forced_survivors();

/// Whether the CPU answers a host-to-host search of this shape before a GPU does.
bool cpu_wins(const search_shape& shape) noexcept;

/// For people: the plan, the bytes that the search reads, and the limit that follows.
std::string explain_flat_search(device_kind kind, std::string_view device_description, const search_shape& shape,
                                const plane_summary& summary = {});

/// How a row-wise top k works; each backend has its own.
enum class top_k_algorithm : std::uint8_t {
  whole_rows,     ///< CPU: each row by one worker, which holds it as keys and searches the threshold
  split_rows,     ///< CPU: a row over all workers: the best of every part, then the best of those
  warp_rows,      ///< CUDA: a row in the registers of a warp's lanes
  block_rows,     ///< CUDA: a row in the shared memory of a block
  stop_rows,      ///< CUDA: an early stop of rows in the shared memory of blocks, from their borders
  resident_rows,  ///< CUDA: a long row in the shared memory of a block, of which a multiprocessor has two
  filter_rows,    ///< CUDA: a row streamed once by a block, past a filter that a sample of it suggests
  stream_rows,    ///< CUDA: a row streamed once by a team of blocks, past a cut that the k best surely reach
  cluster_rows,   ///< CUDA: a row by a cluster of blocks, which list what reaches a cut that the k best surely reach
  radix_rows,     ///< CUDA: the border's key, digit by digit; serves everything
  bracket_rows,   ///< CUDA: a long row streamed past two numbers around its border, for a k that no list has room for
};

std::string_view to_string(top_k_algorithm algorithm);

// What the CUDA kernels of row-wise top k hold, which the plan and they agree on.
inline constexpr std::int64_t kWarpRowsMaxCols = 1536;
inline constexpr std::int64_t kWarpRowsMaxWholeCols = 2048;  // without a mask; an early stop by ascending column alone
inline constexpr std::int64_t kWarpRowsMaxHalfCols = 8192;   // exact ones of 16 bits, by ascending column
inline constexpr std::int64_t kWarpRowsMaxStoppedHalfCols = 4096;  // early stops of 16 bits, whole units each
inline constexpr std::int64_t kBlockRowsMaxCols = 32'768;
inline constexpr std::int64_t kStreamRowsMinCols = 1025;                         // shorter rows fit a warp
inline constexpr std::int64_t kStreamRowsMaxCols = (std::int64_t{1} << 32) - 2;  // a column is half of a key
inline constexpr std::int64_t kStreamRowsMaxK = 2048;  // lists of it let two blocks share a multiprocessor

inline constexpr std::int64_t kClusterRowsMaxK = 112;  // of the best of 128 groups

inline constexpr std::int64_t kFilterRowsMinCols = 16'385;  // shorter rows fit a block that does not stream
inline constexpr std::int64_t kFilterRowsMaxCols = 200'000;
inline constexpr std::int64_t kFilterRowsMinRows = 64;  // fewer, or longer, are better shared among blocks
inline constexpr std::int64_t kFilterRowsMaxSortedK = 4096;
inline constexpr std::int64_t kFilterRowsMaxCapacity = 16'384;  // keys of a row's list in shared memory
inline constexpr std::int64_t kFilterRowsHeld = 3840;           // of which registers of one of two blocks have room
inline constexpr int kFilterRowsSample = 4096;                  // columns
// So many more of a sample than k columns give on average, in roots of that number and a few beside, must reach a cut,
// so that fewer than k columns reach it in less than one row of 10,000. A sample is of lines of memory: so many more,
// at least, that the best line of a row in order is not all that reaches it.
inline constexpr float kFilterRowsDeviations = 3.5f;
inline constexpr float kFilterRowsLeast = 8.0f;
inline constexpr float kFilterRowsLine = 32.0f;
inline constexpr int kFilterRowsSlackShare = 10;  // of what must reach it; so many more may
/// Columns that filter_rows makes room for: what a cut of its sample may let through, but in one row of 100,000.
std::int64_t filter_rows_capacity(std::int64_t cols, std::int64_t k, bool sorted);

inline constexpr std::int64_t kBracketRowsMaxCols = 1 << 19;  // of which marks fit shared memory, two each

inline constexpr std::int64_t kResidentRowsMaxPlaces = 65'536;  // of a row's columns: 16-bit numbers
inline constexpr std::int64_t kResidentRowsMaxCapacity = 3584;  // columns that may reach a row's filter
// Bytes that take the place of a row, where its entries are sorted.
inline constexpr std::int64_t kResidentRowsSortBytes = std::int64_t{72} * 1024;
// Of shared memory: two blocks share a multiprocessor.
inline constexpr std::int64_t kResidentRowsMaxBytes = std::int64_t{113} * 1024;
/// Whether a list has room for what a cut of a row's sample lets through, but in one row of 30,000.
bool resident_rows_list_holds(std::int64_t cols, std::int64_t k, std::int64_t capacity);
/// Shared memory of a block of resident_rows: a row, its marks, and a list.
std::int64_t resident_rows_bytes(const top_k_shape& shape);

struct top_k_plan {
  top_k_algorithm algorithm = top_k_algorithm::whole_rows;
  std::string reason;  ///< one sentence: the rule that held, or the environment variable that forced it
};

/// The plan of a row-wise top k. SHORTLIST_FORCE_TOP_K overrides it by name, where the algorithm can take the shape.
/// @throws invalid_argument if that variable names no algorithm of this kind of device; the message lists those.
top_k_plan plan_top_k(device_kind kind, const top_k_shape& shape);
/// The same without the sentence, for the hot path: allocates nothing.
top_k_algorithm choose_top_k_algorithm(device_kind kind, const top_k_shape& shape);

/// Whether an early stop that radix_rows serves on a GPU begins with the exact search of another kernel, from which it
/// follows in half as many passes over a row. ms, before and then: docs/kernels.md, "Early stops of long rows".
bool follows_exact_search(const top_k_shape& shape);

/// For people: the plan, the bytes that the op reads and writes, and the limit that follows.
std::string explain_top_k(device_kind kind, std::string_view device_description, const top_k_shape& shape);

/// How a sampling step works; each backend has its own.
enum class sample_algorithm : std::uint8_t {
  cpu_rows,     ///< CPU: each row by one worker
  stream_rows,  ///< CUDA: a row streamed by a cluster of blocks, which list what its filters may keep
  chip_rows,    ///< CUDA: a row in the shared memory of a cluster of blocks
  memory_rows,  ///< CUDA: the same, a row in global memory; serves everything
};

std::string_view to_string(sample_algorithm algorithm);

/// What a sampling step asks of a row.
enum class sample_work : std::uint8_t {
  filtered,  ///< what stream_rows serves: a token alone and filters that leave few, or rows that are weighed on the
             ///< chip
  whole,     ///< all else: the best tokens' log-probabilities, say
};

inline constexpr std::int64_t kChipRowsMaxVocab = 262'144;  // fp32 logits that a cluster of eight blocks holds

struct sample_plan {
  sample_algorithm algorithm = sample_algorithm::cpu_rows;
  std::string reason;  ///< one sentence: the rule that held, or the environment variable that forced it
};

/// The plan of a sampling step. SHORTLIST_FORCE_SAMPLE overrides it by name, where the algorithm can take the shape.
/// @throws invalid_argument if that variable names no algorithm of this kind of device; the message lists those.
sample_plan plan_sample(device_kind kind, const sample_shape& shape, sample_work work = sample_work::filtered);
/// The same without the sentence, for the hot path: allocates nothing.
sample_algorithm choose_sample_algorithm(device_kind kind, const sample_shape& shape, sample_work work);

/// Whether SHORTLIST_FORCE_SAMPLE names an algorithm, which then serves all that it can.
bool forces_sample_algorithm(device_kind kind);

/// For people: the plan, the bytes that the op reads, and the limit that follows.
std::string explain_sample(device_kind kind, std::string_view device_description, const sample_shape& shape);

}  // namespace shortlist::core
