// Flat search on the CPU: how rows and queries are spread over cores, and how the k best of all cores are found.
//
// Each slot (a thread's share) takes chunks of rows from a counter, in ascending order, and keeps candidates of its own
// for each query: a buffer of 64-bit keys that is cut back to the k best when it fills, after which only scores above
// the k-th are let in. With room for 2 k keys a cut costs a constant per key let in, whatever k is. In the end the
// slots' candidates are joined, cut and sorted. Keys order rows completely, so the list does not depend on the threads.
//
// scan: one query at a time, rows summed and filtered in blocks that stay in the first cache.
// tiles: a block of rows is packed once and meets a group of packed queries.
#include "cpu/flat/search.hpp"

#include <tbb/parallel_sort.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "core/order.hpp"
#include "core/score.hpp"
#include "cpu/flat/certified.hpp"
#include "cpu/flat/kernels.hpp"
#include "cpu/flat/scratch.hpp"
#include "cpu/parallel.hpp"

namespace shortlist::cpu {
namespace {

/// Rows whose sums are filtered together.
constexpr std::int64_t kScanRows = 128;
/// A chunk of rows is large enough to stream, small enough that all cores finish together.
constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMinChunkBytes = std::int64_t{64} << 10;
constexpr std::int64_t kChunksPerSlot = 16;
/// Room for candidates beyond k: fewer cuts for small k.
constexpr std::int64_t kMinExtraKeys = 256;
/// Lists longer than this are sorted by all cores.
constexpr std::int64_t kSerialSortKeys = std::int64_t{1} << 14;

/// Chunks of rows in tiles, counted in blocks.
constexpr std::int64_t kMaxChunkBlocks = 16;
/// Work items for each slot, so that all finish together.
constexpr std::int64_t kItemsPerSlot = 8;

/// Keys that one slot holds for one query: at least k, and a block on top.
std::int64_t key_capacity(std::int64_t k, std::int64_t rows) {
  k = std::min(k, rows);
  return round_up(std::min(k + std::max(k, kMinExtraKeys), rows) + kScanRows, kCacheLineBytes / 8);
}

/// Queries in a group, before it is limited by how many there are.
std::int64_t group_limit(std::int64_t capacity, std::int64_t dim) {
  const std::int64_t by_keys = kGroupKeysBytes / (capacity * 8);
  const std::int64_t by_queries = kGroupQueriesBytes / (padded_dim(dim) * 4);
  return std::max(std::min({kMaxGroup, by_keys, by_queries}) / kMaxTileQueries, std::int64_t{1}) * kMaxTileQueries;
}

scratch_sizes sizes_of(std::int64_t slots, std::int64_t group, std::int64_t capacity, std::int64_t dim, bool packed) {
  const std::int64_t padded_group = round_up(group, kMaxTileQueries);
  const std::int64_t vector_bytes = padded_dim(dim) * 4;
  return {.keys_bytes = group * slots * capacity * 8,
          .slots_bytes = slots * round_up(group * static_cast<std::int64_t>(sizeof(candidates)), kCacheLineBytes),
          .query_bytes = vector_bytes,
          .norms_bytes = padded_group * 4,
          .queries_bytes = packed ? padded_group * vector_bytes : 0,
          .rows_bytes = packed ? slots * kBlockRows * vector_bytes : 0};
}

/// Cuts candidates back to the k best, and lets in only what is better from now on.
void cut(candidates& found, std::int64_t k) {
  if (found.size < k) return;
  std::nth_element(found.keys, found.keys + k - 1, found.keys + found.size, std::greater<>());
  found.size = k;
  found.min_key = core::key_of(found.keys[k - 1]) + 1;
}

/// One search: what every step of it needs to know.
class searcher {
 public:
  searcher(flat_scratch& memory, const core::flat_corpus& corpus, const core::flat_request& request)
      : memory_(memory),
        corpus_(corpus),
        request_(request),
        kernels_(current_flat_kernels()),
        rows_{static_cast<const std::byte*>(corpus.rows), corpus.row_stride_bytes, corpus.count},
        k_(std::min(request.k, corpus.count)),
        capacity_(key_capacity(request.k, corpus.count)),
        type_(static_cast<std::size_t>(corpus.type)),
        kind_(static_cast<std::size_t>(corpus.metric == metric::l2 ? sum_kind::l2 : sum_kind::dot)),
        metric_(static_cast<std::size_t>(corpus.metric)) {}

  void scan();
  void tiles();

 private:
  const float* query_at(std::int64_t query) const { return request_.queries + query * request_.query_stride; }
  candidates* slot_at(std::int64_t slot) const {
    return reinterpret_cast<candidates*>(memory_.slots.as<std::byte>() + slot * slot_stride_bytes_);
  }
  const float* inverse_norms_at(std::int64_t row) const {
    return corpus_.inverse_norms != nullptr ? corpus_.inverse_norms + row : nullptr;
  }

  void prepare(std::int64_t slots, std::int64_t group, bool packed);
  float pad_query(std::int64_t query);
  void scan_rows(const float* query, float query_inverse_norm, row_span rows, std::int64_t first, candidates& found);
  void collect(const scored_rows& rows, candidates& found);
  void scan_query(std::int64_t query, std::int64_t chunk);
  void tile_group(std::int64_t first, std::int64_t count);
  void tile_blocks(std::int64_t slot, row_span rows, std::int64_t first, std::int64_t block, std::int64_t block_end,
                   std::int64_t group);
  void finish(std::int64_t query, std::int64_t in_group);

  flat_scratch& memory_;
  const core::flat_corpus& corpus_;
  const core::flat_request& request_;
  const flat_kernels& kernels_;
  const row_span rows_;
  const std::int64_t k_;         // of rows that are there
  const std::int64_t capacity_;  // keys of one slot and query
  const std::size_t type_, kind_, metric_;

  std::int64_t slots_ = 1;
  std::int64_t slot_stride_bytes_ = 0;
};

/// Empty candidates for `group` queries in each of `slots`.
void searcher::prepare(std::int64_t slots, std::int64_t group, bool packed) {
  const scratch_sizes sizes = sizes_of(slots, group, capacity_, corpus_.dim, packed);
  memory_.reserve(sizes);
  slots_ = slots;
  slot_stride_bytes_ = sizes.slots_bytes / slots;
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    for (std::int64_t q = 0; q < group; ++q) {
      slot_at(slot)[q] = {.keys = memory_.keys.as<std::uint64_t>() + (q * slots + slot) * capacity_};
    }
  }
}

/// Copies a query into the scratch, padded; returns its inverse norm under cosine.
float searcher::pad_query(std::int64_t query) {
  float* padded = memory_.query.as<float>();
  std::copy_n(query_at(query), corpus_.dim, padded);
  std::fill(padded + corpus_.dim, padded + padded_dim(corpus_.dim), core::kQueryPadding);
  if (corpus_.metric != metric::cosine) return 0.0f;
  float sums[1 + kSumsSlack];
  const row_span one = {reinterpret_cast<const std::byte*>(padded), padded_dim(corpus_.dim) * 4, 1};
  kernels_.square_sums[static_cast<std::size_t>(element_type::f32)](one, corpus_.dim, sums);
  return core::inverse_norm(sums[0]);
}

void searcher::collect(const scored_rows& rows, candidates& found) {
  if (found.size + rows.count > capacity_) cut(found, k_);
  kernels_.collect[metric_](rows, found);
}

// ---- scan

void searcher::scan_rows(const float* query, float query_inverse_norm, row_span rows, std::int64_t first,
                         candidates& found) {
  alignas(kCacheLineBytes) float sums[kScanRows + kSumsSlack];
  for (std::int64_t done = 0; done < rows.count; done += kScanRows) {
    const std::int64_t count = std::min(kScanRows, rows.count - done);
    kernels_.row_sums[type_][kind_](query, rows.part(done, count), corpus_.dim, sums);
    collect({.sums = sums,
             .count = count,
             .first = static_cast<std::uint32_t>(first + done),
             .inverse_norms = inverse_norms_at(first + done),
             .query_inverse_norm = query_inverse_norm},
            found);
  }
}

void searcher::scan_query(std::int64_t query, std::int64_t chunk) {
  const float query_inverse_norm = pad_query(query);
  std::atomic<std::int64_t> next{0};
  for_each_slot(static_cast<int>(slots_), [&](int slot) {
    candidates found = *slot_at(slot);
    for (;;) {
      const std::int64_t first = next.fetch_add(chunk, std::memory_order_relaxed);
      if (first >= rows_.count) break;
      const std::int64_t count = std::min(chunk, rows_.count - first);
      scan_rows(memory_.query.as<float>(), query_inverse_norm, rows_.part(first, count), first, found);
    }
    cut(found, k_);
    *slot_at(slot) = found;
  });
  finish(query, 0);
}

void searcher::scan() {
  const std::int64_t bytes = rows_.count * rows_.stride_bytes;
  const std::int64_t threads = bytes <= kSerialBytes ? 1 : thread_count();
  const std::int64_t chunk_bytes = std::clamp(bytes / (threads * kChunksPerSlot), kMinChunkBytes, kMaxChunkBytes);
  const std::int64_t chunk = round_up(divide_up(chunk_bytes, rows_.stride_bytes), kSumsSlack);
  const std::int64_t slots = std::min(threads, divide_up(rows_.count, chunk));
  for (std::int64_t query = 0; query < request_.query_count; ++query) {
    prepare(slots, 1, false);
    scan_query(query, chunk);
  }
}

// ---- tiles

/// Rows [first, first + rows.count), at most a block, against the tiles of queries [block, block_end) of the group.
void searcher::tile_blocks(std::int64_t slot, row_span rows, std::int64_t first, std::int64_t block,
                           std::int64_t block_end, std::int64_t group) {
  const std::int64_t padded = padded_dim(corpus_.dim);
  float* packed_rows = memory_.rows.as<float>() + slot * kBlockRows * padded;
  kernels_.pack_rows[type_](rows, corpus_.dim, packed_rows);
  // The next block travels closer meanwhile, a share of it during each tile.
  const std::int64_t block_bytes = rows.count * rows.stride_bytes;
  const std::int64_t share_bytes = round_up(divide_up(block_bytes, block_end - block), kCacheLineBytes);
  fetch_ahead ahead = {rows.data + block_bytes, share_bytes};
  alignas(kCacheLineBytes) float sums[kMaxTileQueries * kBlockRows + kSumsSlack];
  for (; block < block_end; ++block) {
    const std::int64_t first_query = block * kernels_.tile_queries;
    kernels_.tile_sums[kind_](memory_.queries.as<float>() + first_query * padded, packed_rows, rows.count, corpus_.dim,
                              ahead, sums);
    ahead.data += share_bytes;
    const std::int64_t end = std::min(kernels_.tile_queries, group - first_query);
    for (std::int64_t q = 0; q < end; ++q) {
      collect({.sums = sums + q * kBlockRows,
               .count = rows.count,
               .first = static_cast<std::uint32_t>(first),
               .inverse_norms = inverse_norms_at(first),
               .query_inverse_norm = memory_.norms.as<float>()[first_query + q]},
              slot_at(slot)[first_query + q]);
    }
  }
}

/// Queries [first, first + group) against all rows.
void searcher::tile_group(std::int64_t first, std::int64_t group) {
  const std::int64_t tile = kernels_.tile_queries;
  const std::int64_t query_blocks = divide_up(group, tile);
  for (std::int64_t q = 0; q < group; ++q) {
    if (corpus_.metric == metric::cosine) memory_.norms.as<float>()[q] = pad_query(first + q);
    if (q % tile == 0) {
      kernels_.pack_queries(query_at(first + q), request_.query_stride, std::min(tile, group - q), corpus_.dim,
                            memory_.queries.as<float>() + q * padded_dim(corpus_.dim));
    }
  }

  // Where rows are few, the queries are divided too.
  const std::int64_t row_blocks = divide_up(rows_.count, kBlockRows);
  const std::int64_t wanted_items = slots_ == 1 ? 1 : slots_ * kItemsPerSlot;
  const std::int64_t chunk = std::clamp(row_blocks / wanted_items, std::int64_t{1}, kMaxChunkBlocks) * kBlockRows;
  const std::int64_t parts = std::clamp(wanted_items / row_blocks, std::int64_t{1}, query_blocks);
  const std::int64_t items = divide_up(rows_.count, chunk) * parts;
  std::atomic<std::int64_t> next{0};
  for_each_slot(static_cast<int>(slots_), [&](int slot) {
    for (;;) {
      const std::int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= items) break;
      const std::int64_t part = item % parts;
      const std::int64_t end = std::min((item / parts + 1) * chunk, rows_.count);
      for (std::int64_t row = item / parts * chunk; row < end; row += kBlockRows) {
        tile_blocks(slot, rows_.part(row, std::min(kBlockRows, end - row)), row, query_blocks * part / parts,
                    query_blocks * (part + 1) / parts, group);
      }
    }
  });

  std::atomic<std::int64_t> unfinished{0};
  for_each_slot(static_cast<int>(std::min(slots_, group)), [&](int) {
    for (;;) {
      const std::int64_t q = unfinished.fetch_add(1, std::memory_order_relaxed);
      if (q >= group) break;
      finish(first + q, q);
    }
  });
}

void searcher::tiles() {
  const std::int64_t bytes = rows_.count * rows_.stride_bytes;
  const bool serial = bytes * request_.query_count <= kSerialBytes;
  const std::int64_t items =
      divide_up(rows_.count, kBlockRows) * divide_up(request_.query_count, kernels_.tile_queries);
  const std::int64_t slots = serial ? 1 : std::min<std::int64_t>(thread_count(), items);
  const std::int64_t group = std::min(request_.query_count, group_limit(capacity_, corpus_.dim));
  for (std::int64_t first = 0; first < request_.query_count; first += group) {
    const std::int64_t count = std::min(group, request_.query_count - first);
    prepare(slots, count, true);
    tile_group(first, count);
  }
}

// ---- the end of a search

/// Joins the slots' candidates of a query, and writes its list.
void searcher::finish(std::int64_t query, std::int64_t in_group) {
  // A query's buffers lie one behind the other, each slot's at its capacity: close the gaps.
  candidates all = slot_at(0)[in_group];
  for (std::int64_t slot = 1; slot < slots_; ++slot) {
    const candidates& other = slot_at(slot)[in_group];
    std::memmove(all.keys + all.size, other.keys, static_cast<std::size_t>(other.size) * sizeof(std::uint64_t));
    all.size += other.size;
  }
  cut(all, k_);
  if (k_ <= kSerialSortKeys) {
    std::sort(all.keys, all.keys + k_, std::greater<>());
  } else {
    tbb::this_task_arena::isolate([&] { tbb::parallel_sort(all.keys, all.keys + k_, std::greater<>()); });
  }
  write_list(corpus_, request_, query, all.keys, k_);
}

}  // namespace

std::unique_ptr<core::scratch> make_flat_scratch(const search_limits& limits, std::int64_t max_dim, storage kept) {
  const std::int64_t dim = max_dim > 0 ? max_dim : kMaxDim;
  const std::int64_t slots = core_count();
  const std::int64_t capacity = key_capacity(limits.max_k, limits.max_rows);
  // A smaller k or dim allows larger groups, which fill the same bounds: reserve up to those.
  const std::int64_t group = std::min(limits.max_queries, kMaxGroup);
  const core::flat_algorithm algorithm = core::choose_flat_algorithm(
      device_kind::cpu, {.rows = limits.max_rows, .dim = dim, .queries = limits.max_queries, .k = limits.max_k});
  const bool packed = limits.max_queries > 1 || algorithm == core::flat_algorithm::tiles;
  scratch_sizes sizes = sizes_of(slots, group, capacity, dim, packed);
  const scratch_sizes least = sizes_of(slots, std::min(group, kMaxTileQueries), capacity, dim, packed);
  sizes.keys_bytes = std::min(sizes.keys_bytes, std::max(least.keys_bytes, kGroupKeysBytes * slots));
  sizes.queries_bytes = std::min(sizes.queries_bytes, std::max(least.queries_bytes, kGroupQueriesBytes));
  auto memory = std::make_unique<flat_scratch>();
  memory->reserve(sizes);
  if (kept != storage::full) reserve_certified(limits, dim, *memory);
  return memory;
}

void flat_search(core::flat_algorithm algorithm, core::scratch& memory, const core::flat_corpus& corpus,
                 const core::flat_request& request) {
  if (request.query_count == 0 || request.k == 0) return;
  if (corpus.count == 0) {
    std::fill_n(request.scores, request.query_count * request.k, core::worst_score(corpus.metric));
    std::fill_n(request.ids, request.query_count * request.k, core::kNoId);
    return;
  }
  const default_float_environment environment;
  searcher search(static_cast<flat_scratch&>(memory), corpus, request);
  switch (algorithm) {
    case core::flat_algorithm::scan: search.scan(); break;
    case core::flat_algorithm::tiles: search.tiles(); break;
    case core::flat_algorithm::certified: certified_search(static_cast<flat_scratch&>(memory), corpus, request); break;
  }
}

void inverse_norms(const core::flat_corpus& corpus, std::int64_t first, std::int64_t count, float* inverse_norms) {
  const flat_kernels& kernels = current_flat_kernels();
  const row_span rows = {static_cast<const std::byte*>(corpus.rows), corpus.row_stride_bytes, corpus.count};
  const bool serial = count * rows.stride_bytes <= kSerialBytes;
  std::atomic<std::int64_t> next{0};
  const default_float_environment environment;
  for_each_slot(serial ? 1 : thread_count(), [&](int) {
    float sums[kScanRows + kSumsSlack];
    for (;;) {
      const std::int64_t begin = next.fetch_add(kScanRows, std::memory_order_relaxed);
      if (begin >= count) break;
      const std::int64_t part = std::min(kScanRows, count - begin);
      kernels.square_sums[static_cast<std::size_t>(corpus.type)](rows.part(first + begin, part), corpus.dim, sums);
      for (std::int64_t i = 0; i < part; ++i) inverse_norms[first + begin + i] = core::inverse_norm(sums[i]);
    }
  });
}

}  // namespace shortlist::cpu
