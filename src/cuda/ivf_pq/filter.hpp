// The filter of a batch on the matrix units: list by list, each with all queries that look at it. See filter_scan.cu,
// and docs/ivf_pq.md for why nothing is lost.
//
// What is estimated of a query and a row, here called its distance, is half the squared L2 score, or minus the dot
// product: smaller is better under every metric.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/ivf_pq.hpp"
#include "cuda/ivf_pq/page_layout.hpp"
#include "cuda/ivf_pq/prepared.hpp"

namespace shortlist::cuda {

inline constexpr int kGroupsOfList = 64;  // of rows of a list, whose least distances are a sample
inline constexpr int kSamplingWarps = 4;  // that share a list, each of which has every fourth page

/// Queries that look at some pages of one list: a block's work at a time.
struct alignas(16) scan_item {
  std::uint32_t first_pair;
  std::uint32_t pairs;
  std::uint32_t table_at;  ///< of the first page, in the table of all lists
  std::uint32_t pages;
};

/// A query that looks at a list. Where distances are written, base and limit are the distance at the centroid and the
/// unit of products, both times the query's scale.
struct alignas(16) scan_pair {
  std::uint32_t query = 0;  ///< in a sample, query * sampled lists + the list's rank
  float base = 0.0f;        ///< distance to the list's centroid, and what else all of its rows share
  float limit = 0.0f;       ///< of products, which rows of the answer do not exceed; finite, so that empty places do
  std::uint32_t place = 0;  ///< where distances or marks are written: place + p is that of the p-th page of the table
};

inline constexpr std::uint32_t kMarkedQueries = 16;  // that share the marks of a page
inline constexpr std::uint32_t kMarksOfPage = 32;    // 16 bits each

/// A query and a list whose rows are marked. Marks of a page's rows: mark 4 g + t has those of rows g, g + 8, g + 16
/// and g + 24 for queries 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, from its high bits on.
struct alignas(16) marked_pair {
  std::uint32_t query;
  std::uint32_t list;
  std::uint32_t place;  ///< of the list's first page, in pages
  std::uint32_t pages_and_column;

  SHORTLIST_HOST_DEVICE std::uint32_t pages() const { return pages_and_column / kMarkedQueries; }
  /// Of the query, among those that share marks.
  SHORTLIST_HOST_DEVICE std::uint32_t column() const { return pages_and_column % kMarkedQueries; }
};

/// The pairs of one pass, grouped by list.
struct scan_pass {
  std::uint32_t* counts = nullptr;      ///< [nlist] pairs, zero before each search
  std::uint32_t* pair_count = nullptr;  ///< zero before each search, as the next two
  std::uint32_t* offsets = nullptr;     ///< [nlist]
  scan_pair* pairs = nullptr;
  scan_item* items = nullptr;
  std::uint32_t* item_count = nullptr;
  std::uint32_t* next_item = nullptr;
  std::uint32_t item_room = ~0u;
  std::int32_t lists_of_query = 0;  ///< of a sample: the first so many of its probes
  std::int32_t queries_of_item = 0;
  std::uint32_t chunk_pages = 0;  ///< of a list, at least
  std::uint32_t most_chunks = 0;
  std::uint32_t sampled_pages = 0;  ///< of a list, at least, and a share of long ones; 0: all
  std::uint32_t stride = 1;         ///< every so many-th page of a list
};

struct filter_batch {
  // What was given.
  core::ivf_pq_shape shape;
  core::ivf_pq_lists lists;
  std::int64_t page_bytes = 0;
  const prepared_header* header = nullptr;
  const __half* table = nullptr;  ///< null if pages hold rows as halves: see coarse.hpp
  const float* steps = nullptr;
  const float* centroid_inverse_norms = nullptr;  ///< under cosine
  const float* queries = nullptr;                 ///< [count, dim], turned
  std::int64_t query_stride = 0;
  std::int32_t count = 0;
  std::int32_t nprobe = 0;
  std::uint32_t wanted = 0;              ///< rows by code that a query needs
  const std::int64_t* probes = nullptr;  ///< [count, nprobe]
  const float* probe_scores = nullptr;   ///< [count, nprobe]
  // What is made.
  __half* columns = nullptr;         ///< [count, padded halves] minus the query, scaled
  bool by_chunks = false;            ///< they are as place_in_chunks has them: see wide_scan.cuh
  float* margins = nullptr;          ///< [count] twice what a distance may be wrong by; infinity if nothing is known
  float* shares = nullptr;           ///< [count] of a distance that all rows have in common, besides the centroid's
  float* inverse_norms = nullptr;    ///< [count] of queries, under cosine
  float* thresholds = nullptr;       ///< [count] no row of the answer has a larger distance, unless it is guessed
  std::uint32_t* guessed = nullptr;  ///< [count] whether a threshold is; null: none
  std::uint32_t* places = nullptr;   ///< [count, nprobe] of a pair among those of its list
  std::uint32_t* sample_places = nullptr;  ///< [count, sample.lists_of_query]
  float* minima = nullptr;                 ///< [count, sample.lists_of_query, kGroupsOfList]
  std::uint64_t* hits = nullptr;           ///< [count, capacity] keys of distances, with slots below
  std::uint32_t* hit_counts = nullptr;     ///< [count] may exceed the capacity; zero before each search
  std::uint32_t capacity = 0;
  // Of many rows by code instead: see many_rows.cuh. Where rows are marked, else null:
  std::uint16_t* marks = nullptr;         ///< [pages of lists and 16 of their queries, kMarksOfPage]
  marked_pair* marked = nullptr;          ///< [pairs]
  std::uint32_t* first_marks = nullptr;   ///< [nlist] where those of a list begin, in pages
  std::uint32_t* marked_pages = nullptr;  ///< of all lists; zero before each search, as is the next
  std::uint32_t* next_marked = nullptr;   ///< of pairs whose marked rows are scored
  // In any case:
  __half* distances = nullptr;      ///< [count, region_pages, 32] times the query's scale, by page as lanes have them
  std::uint32_t region_pages = 0;   ///< of a query, at most
  std::uint32_t* starts = nullptr;  ///< [count, nprobe] where a list's pages begin, in the query's region
  std::uint32_t* pages = nullptr;   ///< [count] of the query's lists that `spread` looks at
  std::uint32_t* rows = nullptr;    ///< [count] of the query's lists
  std::uint32_t* order = nullptr;   ///< [count] of queries, by their nearest lists: those in turn look at the same rows
  float* scales = nullptr;          ///< [count] powers of two
  scan_pass spread;  ///< whose distances are written: all, or every eighth page of each list, for all of its pairs
  scan_pass sample;
  scan_pass all;
  bool pairs_by_query = false;      ///< all.pairs are the queries, in order, and there before thresholds are
  std::uint32_t* zeroed = nullptr;  ///< what is zero before each search, in one piece
  std::uint32_t zeroed_count = 0;
};

/// Whether matrix units serve this shape.
bool has_filter(const core::ivf_pq_shape& shape);
/// And can mark rows and write distances.
bool writes_distances(const core::ivf_pq_shape& shape);
/// Pairs of an item, at most, so that its queries fit shared memory.
std::int32_t queries_of_item(const core::ivf_pq_shape& shape, bool sample);
/// The same where pages hold so many halves of a row: see coarse.hpp.
std::int32_t queries_of_halves(std::int64_t halves, bool sample);
/// The same of a full pass over so many pairs: fewer, of which there is room for three items, where lists have few.
std::int32_t queries_of_full_item(const core::ivf_pq_shape& shape, std::int64_t pairs);
/// Teams of threads that scan at once, an item each.
int filter_scan_teams(int multiprocessors);

/// And makes zero what is to be. Of `next` too, if it is given, which has as many queries.
void launch_prepare_queries(cudaStream_t stream, const filter_batch& batch, const filter_batch* next = nullptr);
/// Items of both passes, and the pairs of the sample; of many rows by code, items, and places in the order.
void launch_group_pairs(cudaStream_t stream, const filter_batch& batch);
/// Of many rows by code: pairs whose distances are written, and what else names what they are.
void launch_fill_regions(cudaStream_t stream, const filter_batch& batch);
void launch_distance_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors);
/// Thresholds that enough rows reach if those sampled are like the others, and the pairs of the full pass.
void launch_sampled_thresholds(cudaStream_t stream, const filter_batch& batch);
/// Rows that reach the threshold, marked.
void launch_mark_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors);
/// Least distances of groups of rows, into `minima`.
void launch_sample_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors);
/// And the pairs of the full pass, which have the thresholds' limits.
void launch_thresholds(cudaStream_t stream, const filter_batch& batch);
/// Rows that reach the threshold, into `hits`.
void launch_filter_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors);

/// Queries whose hits did not fit, and what becomes of them.
struct retry_plan {
  const std::uint32_t* which = nullptr;
  const std::uint32_t* which_count = nullptr;
  std::uint32_t* retried = nullptr;  ///< those that have a lower threshold now, and no hits
  std::uint32_t* retried_count = nullptr;
  std::uint32_t* left = nullptr;  ///< the others
  std::uint32_t* left_count = nullptr;
  scan_item* items = nullptr;
  std::uint32_t* item_count = nullptr;  ///< may exceed the room
  std::uint32_t* next_item = nullptr;
  std::uint32_t item_room = 0;
};

/// Whether the threshold of a query is one that rows of the answer may exceed, as long as nobody has looked.
SHORTLIST_HOST_DEVICE bool is_guessed(const filter_batch& batch, std::int64_t query) {
  return batch.guessed != nullptr && batch.guessed[query] != 0;
}

/// Lowers the thresholds of `which` to what the best of the hits that they have say, or raises those that were guessed
/// too low to what the sample proves, and scans their lists again.
void launch_retry_scan(cudaStream_t stream, const filter_batch& batch, const retry_plan& plan, int multiprocessors);

/// Orders distances: a larger key is a smaller distance.
SHORTLIST_HOST_DEVICE std::uint32_t distance_key(float distance) { return ~core::ascending_key(distance); }
SHORTLIST_HOST_DEVICE float distance_of_key(std::uint32_t key) { return core::from_ascending_key(~key); }

}  // namespace shortlist::cuda
