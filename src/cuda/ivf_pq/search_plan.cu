// How a batch of an IVF-PQ search is answered: which way, how many queries at once, and where in one piece of memory
// everything of it lies. Shapes alone decide, so that launches can be captured.
#include <algorithm>
#include <optional>

#include "core/ivf_pq_plan.hpp"
#include "cuda/ivf_pq/coarse.hpp"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/filter_answer.cuh"
#include "cuda/ivf_pq/many_rows.cuh"
#include "cuda/ivf_pq/nearest_lists.hpp"
#include "cuda/ivf_pq/search_plan.cuh"

namespace shortlist::cuda {
namespace {

constexpr std::int64_t kBatchBytes = std::int64_t{3} << 29;    // of what grows with the queries of a batch
constexpr std::int64_t kManyBytes = std::int64_t{7} << 29;     // the same for many rows by code
constexpr std::int64_t kExactBytes = std::int64_t{128} << 20;  // of lists of keys
constexpr std::int64_t kSampledPerRow = 4;                     // groups of rows, for each row that is wanted by code
constexpr std::int64_t kLeastSampled = 2;                      // lists of a query
constexpr std::int64_t kSampledOfMany = 4;  // the same for queries with many lists, whose hits are many too
constexpr std::int64_t kManyProbes = 16;
constexpr std::int64_t kHitsForSample = 1024;    // of a query, which a sample is to leave room for
constexpr std::int64_t kMostSampled = 256;       // whose minima shared memory holds
constexpr std::uint32_t kSampledPages = 8;       // of a list
constexpr std::uint32_t kLeastSampledPages = 4;  // the same where looser thresholds cost less
constexpr std::uint32_t kFewByCode = 16;         // for so few rows by code
constexpr std::int64_t kLeastGuessed = 48;       // for so many
constexpr std::int64_t kMostGuessedLists = 32;   // sampled, if their groups are fewer than the rows by code
constexpr std::int64_t kMostRetryItems = std::int64_t{1} << 20;
constexpr std::int64_t kScoredCentroids = std::int64_t{1} << 23;  // by queries
constexpr std::int64_t kLeastOfWide = 64;   // queries of many elements: fewer are compared with all centroids
constexpr std::int64_t kFewRows = 400'000;  // by queries, and by what a warp reads of each: more are filtered
constexpr std::int64_t kFewPairs = 4096;    // of query and list: so few are cut finer, to be spread over the GPU
constexpr std::int64_t kLeastChunkPages = 64;
constexpr std::int64_t kMostChunkPages = 512;
constexpr std::int64_t kItemsPerMultiprocessor = 64;  // at least, as far as there are so many
// Rows by code that are many: those that are refined need few scores by code otherwise.
constexpr std::int64_t kLeastMany = 128;
constexpr std::int64_t kLeastManyOfNumbers = 240;
constexpr std::int64_t kLeastManyRefined = 320;
constexpr std::int64_t kLeastManyBatch = 1024;                    // queries: fewer of a larger search are not worth it
constexpr std::int64_t kMostRegionPages = std::int64_t{1} << 15;  // of a query's lists
constexpr std::uint32_t kSpreadStride = 8;                        // one page in so many is sampled
constexpr std::int32_t kMostChunks = 16;
constexpr std::int32_t kChunkPagesOfFew = 24;
constexpr std::int32_t kMostChunksOfFew = 64;

bool guesses_thresholds(std::int64_t by_code) { return by_code >= kLeastGuessed; }

std::int64_t sampled_lists(std::int64_t by_code, std::int64_t nprobe) {
  const std::int64_t least = nprobe > kManyProbes ? kSampledOfMany : kLeastSampled;
  const std::int64_t for_groups = (kSampledPerRow * by_code + kGroupsOfList - 1) / kGroupsOfList;
  const std::int64_t for_room = nprobe * by_code / kHitsForSample;  // if rows of far lists are as good
  const std::int64_t sampled = std::min({nprobe, kMostSampled, std::max({least, for_groups, for_room})});
  return sampled * kGroupsOfList < by_code ? std::min(sampled, kMostGuessedLists) : sampled;
}

bool can_filter(const core::ivf_pq_shape& shape, std::int64_t by_code, std::int64_t nprobe) {
  return has_filter(shape) && by_code <= kFilterMaxRows &&
         (guesses_thresholds(by_code) || sampled_lists(by_code, nprobe) * kGroupsOfList >= by_code);
}

/// Items of a pass, at most: a list's pairs make groups, of which all but one are full.
std::int64_t most_items(std::int64_t pairs, std::int64_t nlist, std::int64_t queries_of_item, std::int64_t chunks) {
  return (2 * pairs / queries_of_item + std::min(pairs, nlist)) * chunks;
}

/// Pages that the lists of a query have together, at most.
std::int64_t most_pages(const core::ivf_pq_lists& lists, std::int64_t nprobe) {
  const std::int64_t of_longest = (lists.longest + core::kPageRows - 1) / core::kPageRows;
  const std::int64_t of_all = std::min(nprobe * of_longest, lists.rows / core::kPageRows + nprobe);
  const bool is_known = lists.longest_pages != nullptr && nprobe <= core::kLongestLists;
  return is_known ? std::min(of_all, lists.longest_pages[nprobe]) : of_all;
}

/// The shape of a batch with many rows by code: rows are marked, or, if answers are refined, distances written. None if
/// that does not serve it.
std::optional<search_shape_of_batch> many_shape(const core::ivf_pq_shape& shape, const core::ivf_pq_lists& lists,
                                                const search_shape_of_batch& batch, bool refines) {
  search_shape_of_batch many = batch;
  many.region_pages = std::max<std::int64_t>(most_pages(lists, batch.nprobe), 1);
  if (!refines) many.all_pages = lists.rows / core::kPageRows + shape.nlist;
  const std::int64_t least = refines ? kLeastManyRefined : shape.uniform ? kLeastManyOfNumbers : kLeastMany;
  const bool serves = batch.by_code >= least && batch.by_code <= (refines ? kFilterMaxRows : kFilterMaxResults) &&
                      batch.nprobe <= core::kLongestLists && writes_distances(shape) && !core::forced_hits() &&
                      core::forced_ivf_pq_way() != core::ivf_pq_way::decode && many.region_pages <= kMostRegionPages;
  if (!serves) return std::nullopt;
  return many;
}

/// Pages of an item, of a long list: the more of them, the fewer ends of items to wait at.
std::uint32_t chunk_pages(const core::ivf_pq_lists& lists, std::int64_t nlist, const search_shape_of_batch& batch,
                          int multiprocessors) {
  const std::int64_t pages = lists.rows / nlist * std::min(batch.queries * batch.nprobe, nlist) / core::kPageRows;
  return static_cast<std::uint32_t>(
      std::clamp(pages / (kItemsPerMultiprocessor * multiprocessors), kLeastChunkPages, kMostChunkPages));
}

void carve_pass(carver& carve, scan_pass& pass, std::int64_t pairs, const core::ivf_pq_shape& shape, bool sample) {
  pass.queries_of_item = sample ? queries_of_item(shape, true) : queries_of_full_item(shape, pairs);
  pass.offsets = carve.take<std::uint32_t>(shape.nlist);
  pass.pairs = carve.take<scan_pair>(pairs);
  if (sample) {
    pass.items = carve.take<scan_item>(most_items(pairs, shape.nlist, pass.queries_of_item, 1));
    return;
  }
  // Of fewer pairs items may be smaller, and yet no search may take more than one of more pairs.
  const std::int64_t least = queries_of_full_item(shape, 0);
  const std::int64_t few = std::min(pairs, kFewPairs);
  pass.items = carve.take<scan_item>(std::max(most_items(few, shape.nlist, least, kMostChunksOfFew),
                                              most_items(pairs, shape.nlist, least, kMostChunks)));
}

/// What is zero before each search.
void carve_zeroed(carver& carve, search_memory& memory, std::int64_t nlist) {
  constexpr std::int64_t kNumbers = 3;  // beside the counts
  filter_batch& filter = memory.filter;
  constexpr std::int64_t kOfMarks = 4;
  const std::int64_t count = 2 * (nlist + kNumbers) + kOfMarks + kSearchCounts;
  filter.zeroed_count = static_cast<std::uint32_t>(count);
  auto* at = carve.take<std::uint32_t>(count);
  filter.zeroed = at;
  for (scan_pass* pass : {&filter.sample, &filter.all}) {
    pass->counts = at;
    pass->pair_count = at + nlist;
    pass->item_count = at + nlist + 1;
    pass->next_item = at + nlist + 2;
    at += nlist + kNumbers;
  }
  filter.marked_pages = at;
  filter.next_marked = at + 1;
  filter.spread.item_count = filter.marks ? at + 2 : filter.all.item_count;
  filter.spread.next_item = filter.marks ? at + 3 : filter.all.next_item;
  at += kOfMarks;
  memory.counts = at;
  retry_plan& retry = memory.retry;
  retry.which_count = at;
  retry.retried_count = at + 1;
  retry.left_count = at + 2;
  retry.item_count = at + 3;
  retry.next_item = at + 4;
}

/// What is known of queries, however their rows are found.
void carve_queries(carver& carve, filter_batch& filter, const core::ivf_pq_shape& shape,
                   const search_shape_of_batch& batch) {
  filter.columns = carve.take<__half>(batch.queries * page_layout(shape).padded_halves());
  filter.margins = carve.take<float>(batch.queries);
  filter.shares = carve.take<float>(batch.queries);
  filter.inverse_norms = carve.take<float>(batch.queries);
  filter.hit_counts = carve.take<std::uint32_t>(batch.queries);
  filter.places = carve.take<std::uint32_t>(batch.queries * batch.nprobe);
}

/// Pages that have marks, once for each 16 queries, at most: a list's pairs make groups of at least 40, each of which
/// may end with marks that it does not fill.
std::int64_t most_marked_pages(const search_shape_of_batch& batch) {
  constexpr std::int64_t kPairsOfMarks = 11;  // 1 / 16 + 1 / 40 of a pair's is less than one in so many
  const std::int64_t of_pairs = batch.queries * batch.region_pages;
  return of_pairs / kPairsOfMarks + std::min(batch.all_pages, of_pairs) + 1;
}

/// What a batch with many rows by code takes.
void carve_many(carver& carve, search_memory& memory, const core::ivf_pq_shape& shape,
                const search_shape_of_batch& batch) {
  filter_batch& filter = memory.filter;
  const std::int64_t pairs = batch.queries * batch.nprobe;
  const bool marks = batch.all_pages > 0;
  carve_queries(carve, filter, shape, batch);
  filter.starts = carve.take<std::uint32_t>(pairs);
  filter.pages = carve.take<std::uint32_t>(batch.queries);
  filter.rows = carve.take<std::uint32_t>(batch.queries);
  filter.scales = carve.take<float>(batch.queries);
  filter.order = carve.take<std::uint32_t>(batch.queries);
  filter.sample_places = carve.take<std::uint32_t>(batch.queries);
  filter.sample.offsets = carve.take<std::uint32_t>(shape.nlist);
  filter.sample.lists_of_query = 1;
  carve_pass(carve, filter.all, pairs, shape, false);
  filter.spread = filter.all;
  std::int64_t written = batch.region_pages;
  if (marks) {
    written = batch.region_pages / kSpreadStride + batch.nprobe;  // a list's may be one more
    filter.spread.stride = kSpreadStride;
    filter.spread.items = carve.take<scan_item>(most_items(pairs, shape.nlist, queries_of_full_item(shape, 0), 1));
    filter.marked = carve.take<marked_pair>(pairs);
    filter.first_marks = carve.take<std::uint32_t>(shape.nlist);
    filter.marks = carve.take<std::uint16_t>(most_marked_pages(batch) * kMarksOfPage);
    filter.thresholds = carve.take<float>(batch.queries);
    filter.guessed = carve.take<std::uint32_t>(batch.queries);
    memory.many_counts = filter.hit_counts;
  } else {
    memory.many_counts = carve.take<std::uint32_t>(batch.queries);
    memory.border_counts = carve.take<std::uint32_t>(batch.queries);
  }
  filter.region_pages = static_cast<std::uint32_t>(written);
  filter.distances = carve.take<__half>(batch.queries * written * core::kPageRows);
  carve_zeroed(carve, memory, shape.nlist);
  memory.many = carve.take<std::uint64_t>(batch.queries * many_rows_room(batch.by_code));
}

std::int64_t bytes_of_shape(const core::ivf_pq_model& model, const search_shape_of_batch& batch, int multiprocessors) {
  carver carve(nullptr);
  memory_of(carve, model.shape, model.rotation != nullptr, batch, multiprocessors);
  return carve.taken();
}

/// Bytes that suffice for all searches of no more than this, but those with many rows by code. Those of few are
/// filtered, others may not be.
std::int64_t bytes_of(const core::ivf_pq_model& model, const core::ivf_pq_limits& limits, std::int64_t queries,
                      int multiprocessors) {
  const search_shape_of_batch batch{queries, limits.max_nprobe, rows_by_code(limits.max_k, limits.max_refine_ratio)};
  search_shape_of_batch filtered = batch;
  filtered.by_code = std::min(batch.by_code, kFilterMaxRows);
  search_shape_of_batch proved = batch;  // more lists are sampled where no threshold need be guessed
  proved.by_code = std::min(filtered.by_code, batch.nprobe * kGroupsOfList);
  return std::max({bytes_of_shape(model, batch, multiprocessors), bytes_of_shape(model, filtered, multiprocessors),
                   bytes_of_shape(model, proved, multiprocessors)});
}

/// The largest even share of the queries that fits.
template <class Fits>
std::int64_t share_that_fits(std::int64_t queries, Fits fits) {
  for (std::int64_t parts = 1;; parts++) {
    const std::int64_t share = (queries + parts - 1) / parts;
    if (share <= 1 || fits(share)) return share;
  }
}

/// Bytes of the largest batches with many rows by code, of no more than `most` together; 0 if no search does.
std::int64_t many_bytes(const batch_memory& scratch, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                        std::int64_t most, int multiprocessors) {
  const core::ivf_pq_limits& limits = scratch.limits;
  const auto largest = [&](std::int64_t by_code, bool refines) -> std::int64_t {
    const search_shape_of_batch batch{scratch.most_queries, std::min(limits.max_nprobe, core::kLongestLists), by_code};
    auto many = many_shape(model.shape, lists, batch, refines);
    if (!many) return 0;
    const auto bytes = [&](std::int64_t share) {
      many->queries = share;
      return bytes_of_shape(model, *many, multiprocessors);
    };
    return bytes(share_that_fits(scratch.most_queries, [&](std::int64_t share) { return bytes(share) <= most; }));
  };
  const std::int64_t refined =
      limits.max_refine_ratio == 0
          ? 0
          : largest(std::min(rows_by_code(limits.max_k, limits.max_refine_ratio), kFilterMaxRows), true);
  return std::max(largest(std::min(limits.max_k, kFilterMaxResults), false), refined);
}

}  // namespace

std::int64_t rows_by_code(std::int64_t k, std::int64_t refine_ratio) {
  return k * std::max<std::int64_t>(refine_ratio, 1);
}

bool scores_centroids(const core::ivf_pq_shape& shape, std::int64_t queries, std::int64_t nprobe) {
  const auto forced = core::forced_ivf_pq_way();
  return (!forced || forced == core::ivf_pq_way::few) && queries <= most_nearest_queries(shape.dim) &&
         queries * shape.nlist <= kScoredCentroids && has_nearest_lists(shape.dim, shape.nlist, nprobe);
}

bool filters_centroids(const core::ivf_pq_shape& shape, std::int64_t queries, std::int64_t nprobe) {
  const std::int64_t least = shape.dim <= kRegisterHalves ? 1 : kLeastOfWide;
  return core::forced_ivf_pq_way() != core::ivf_pq_way::decode && has_coarse(shape.dim, nprobe) && queries >= least;
}

bool is_filtered(const core::ivf_pq_shape& shape, std::int64_t by_code, std::int64_t nprobe) {
  return core::forced_ivf_pq_way() != core::ivf_pq_way::decode && can_filter(shape, by_code, nprobe);
}

bool goes_by_few(const core::ivf_pq_shape& shape, const search_shape_of_batch& batch, const core::ivf_pq_lists& lists) {
  if (!scores_centroids(shape, batch.queries, batch.nprobe) ||
      !has_few_search(shape.dim, batch.queries, batch.by_code, batch.nprobe))
    return false;
  const std::int64_t chunks = (shape.dim + core::kPartialSums - 1) / core::kPartialSums;
  return core::forced_ivf_pq_way() || !is_filtered(shape, batch.by_code, batch.nprobe) ||
         chunks * batch.queries * (lists.longest + (batch.nprobe - 1) * (lists.rows / shape.nlist)) <= kFewRows;
}

search_memory memory_of(carver& carve, const core::ivf_pq_shape& shape, bool turns, const search_shape_of_batch& batch,
                        int multiprocessors) {
  search_memory memory;
  const std::int64_t pairs = batch.queries * batch.nprobe;
  memory.counters = carve.take<unsigned long long>(2);
  memory.few = carve.take<few_control>(kFewQueries);
  memory.exact_parts = carve.take<exact_part>(kExactBlocksPerMultiprocessor * multiprocessors);
  if (has_nearest_lists(shape.dim, shape.nlist, 1)) {
    const std::int64_t few = std::min(batch.queries, kFewQueries);
    const std::int64_t parts = few + few_search_parts(1, multiprocessors);  // of all queries, at most
    memory.few_keys =
        carve.take<std::uint64_t>(parts * (std::min<std::int64_t>(batch.by_code, kFewMaxRows) + kFewMoreRows));
    memory.nearest =
        carve.take<std::byte>(nearest_lists_bytes(shape.dim, std::min(batch.queries * shape.nlist, kScoredCentroids),
                                                  std::min(batch.queries, most_nearest_queries(shape.dim))));
  }
  if (has_coarse(shape.dim, batch.nprobe)) {
    memory.coarse = carve.take<std::byte>(
        coarse_search_bytes(shape.dim, shape.nlist, batch.queries, batch.nprobe, multiprocessors));
  }
  memory.unanswered = carve.take<std::uint32_t>(batch.queries);
  retry_plan& retry = memory.retry;
  retry.which = memory.unanswered;
  retry.retried = carve.take<std::uint32_t>(batch.queries);
  retry.left = carve.take<std::uint32_t>(batch.queries);
  memory.probes = carve.take<std::int64_t>(pairs);
  memory.probe_scores = carve.take<float>(pairs);
  if (turns) memory.turned = carve.take<float>(batch.queries * shape.dim);
  memory.exact_capacity = exact_search_capacity(batch.by_code);
  memory.exact_blocks = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(kExactBytes / (2 * 8 * memory.exact_capacity), 1,
                               std::min(batch.queries, kExactBlocksPerMultiprocessor * multiprocessors)));
  memory.exact_keys = carve.take<std::uint64_t>(2 * memory.exact_capacity * memory.exact_blocks);
  if (!can_filter(shape, batch.by_code, batch.nprobe)) return memory;

  filter_batch& filter = memory.filter;
  if (batch.region_pages > 0) {
    carve_many(carve, memory, shape, batch);
    return memory;
  }
  const std::int64_t sampled = sampled_lists(batch.by_code, batch.nprobe);
  retry.item_room = static_cast<std::uint32_t>(std::min(pairs, kMostRetryItems));
  retry.items = carve.take<scan_item>(retry.item_room);
  filter.capacity = static_cast<std::uint32_t>(hits_capacity(batch.by_code));
  carve_queries(carve, filter, shape, batch);
  filter.thresholds = carve.take<float>(batch.queries);
  filter.guessed = carve.take<std::uint32_t>(batch.queries);
  filter.sample_places = carve.take<std::uint32_t>(batch.queries * sampled);
  filter.minima = carve.take<float>(batch.queries * sampled * kGroupsOfList);
  filter.hits = carve.take<std::uint64_t>(batch.queries * filter.capacity);
  filter.sample.lists_of_query = static_cast<std::int32_t>(sampled);
  carve_pass(carve, filter.sample, batch.queries * sampled, shape, true);
  carve_pass(carve, filter.all, pairs, shape, false);
  carve_zeroed(carve, memory, shape.nlist);
  return memory;
}

void set_filter(search_memory& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                const search_shape_of_batch& batch, const float* queries, std::int64_t query_stride,
                int multiprocessors) {
  filter_batch& filter = memory.filter;
  filter.shape = model.shape;
  filter.lists = lists;
  filter.page_bytes = page_layout(model.shape).page_bytes();
  filter.header = reinterpret_cast<const prepared_header*>(model.prepared);
  filter.by_chunks = !fits_registers(model.shape);
  if (!model.shape.uniform) filter.table = reinterpret_cast<const __half*>(model.prepared + kPreparedTableAt);
  filter.steps = model.steps;
  filter.centroid_inverse_norms = model.probes.inverse_norms;
  filter.queries = queries;
  filter.query_stride = query_stride;
  filter.count = static_cast<std::int32_t>(batch.queries);
  filter.nprobe = static_cast<std::int32_t>(batch.nprobe);
  filter.wanted = static_cast<std::uint32_t>(batch.by_code);
  filter.probes = memory.probes;
  filter.probe_scores = memory.probe_scores;
  const bool few = batch.queries * batch.nprobe <= kFewPairs;
  const bool guesses = guesses_thresholds(batch.by_code);
  if (!guesses) filter.guessed = nullptr;
  filter.sample.sampled_pages = batch.by_code <= kFewByCode ? kLeastSampledPages : kSampledPages;
  filter.sample.chunk_pages = ~0u;  // one chunk
  filter.sample.most_chunks = 1;
  filter.all.chunk_pages = few ? kChunkPagesOfFew : chunk_pages(lists, model.shape.nlist, batch, multiprocessors);
  filter.all.most_chunks = few ? kMostChunksOfFew : kMostChunks;
}

void take_memory(batch_memory& scratch, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                 int multiprocessors) {
  for (std::int64_t part = 1;; part *= 2) {
    const std::int64_t most = (kBatchBytes + kExactBytes) / part;
    scratch.batch = share_that_fits(scratch.most_queries, [&](std::int64_t share) {
      return bytes_of(model, scratch.limits, share, multiprocessors) <= most;
    });
    const bool is_cut = scratch.batch < scratch.most_queries;  // then smaller searches have use for all of it
    const std::int64_t many = many_bytes(scratch, model, lists, (kManyBytes + kExactBytes) / part, multiprocessors);
    try {
      scratch.memory = device_memory(
          std::max({bytes_of(model, scratch.limits, scratch.batch, multiprocessors), is_cut ? most : 0, many}));
      return;
    } catch (const out_of_memory&) {
      if (scratch.batch == 1) throw;
    }
  }
}

search_shape_of_batch batch_of(const batch_memory& scratch, const core::ivf_pq_model& model,
                               const core::ivf_pq_lists& lists, const core::ivf_pq_request& request,
                               std::int64_t results, int multiprocessors) {
  search_shape_of_batch batch{std::min(scratch.most_queries, request.query_count), request.nprobe,
                              rows_by_code(request.k, request.refine_ratio)};
  const auto has_room = [&](std::int64_t share) {
    return share <= scratch.batch ||  // or flat searches, which have memory for that, are not needed
           (filters_centroids(model.shape, share, request.nprobe) && share * request.k <= results);
  };
  const auto bytes = [&](search_shape_of_batch shape, std::int64_t share) {
    shape.queries = share;
    return bytes_of_shape(model, shape, multiprocessors);
  };
  if (auto many = many_shape(model.shape, lists, batch, request.refine_ratio > 0)) {
    const auto fits = [&](std::int64_t share) {
      return has_room(share) && bytes(*many, share) <= scratch.memory.bytes();
    };
    many->queries = share_that_fits(batch.queries, fits);
    if (many->queries >= std::min(batch.queries, kLeastManyBatch) && fits(many->queries)) return *many;
  }
  const std::int64_t most = std::min(scratch.memory.bytes(), kBatchBytes + kExactBytes);
  batch.queries = share_that_fits(batch.queries, [&](std::int64_t share) {
    return share <= scratch.batch || (has_room(share) && bytes(batch, share) <= most);
  });
  return batch;
}

}  // namespace shortlist::cuda
