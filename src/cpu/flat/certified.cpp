// Certified flat search on the CPU: how a plane is filtered on all cores, and how survivors become the k best.
//
// Each slot (a thread's share) takes chunks of blocks from a counter and keeps a list of survivors for each query: rows
// whose interval of possible merits reaches the threshold, which is the k-th best lower end of any list so far. A list
// that fills is pruned by its own threshold. If most of it stays, scores of its rows are computed at once and the k
// best kept, so that it never drops a row that counts and never grows. Where almost every row survives, a filter is no
// use: the query is given up, early, and answered by reading all rows.
//
// In the end the lists of a query are joined and pruned, and scores are computed in the order of the upper ends until
// the k-th best score is above what is left.
#include "cpu/flat/certified.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <optional>

#include "core/certified.hpp"
#include "core/plan.hpp"
#include "cpu/flat/certified_kernels.hpp"
#include "cpu/flat/kernels.hpp"
#include "cpu/flat/quantise.hpp"
#include "cpu/flat/search.hpp"
#include "cpu/parallel.hpp"

namespace shortlist::cpu {
namespace {

/// Slots share the queries out where each takes so many at least, since a query's threshold is the better the fewer
/// slots look for it; with fewer queries a plane's bytes would come too often.
constexpr std::int64_t kQueriesOfShare = 128;
constexpr std::int64_t kMaxShares = kMaxGroup / kQueriesOfShare;
/// Blocks of a chunk: large enough to stream, small enough that all cores finish together.
constexpr std::int64_t kMaxChunkBlocks = 64;
constexpr std::int64_t kChunksPerSlot = 16;
/// Room for survivors: a list that is pruned to half of it or less is worth going on with.
constexpr std::int64_t kSurvivorsPerK = 8;
constexpr std::int64_t kMinSurvivors = 4096;
/// A list is pruned for the first time at so many: early, so that a threshold is there.
constexpr std::int64_t kFirstPrunePerK = 4;
constexpr std::int64_t kMinFirstPrune = 256;
/// A query is given up where so many rows survived, or so many for each result, and they are more than a quarter of
/// all: scoring them one by one, beside the filter, costs as much as reading all rows.
constexpr std::int64_t kJudgedRows = 1024;
constexpr std::int64_t kJudgedPerK = 4;
constexpr std::int64_t kGiveUpShare = 4;
/// Rows whose scores are computed at a time: as many as a vector's lanes.
constexpr std::int64_t kScoredTogether = 16;

constexpr std::int64_t kSurvivorBytes = sizeof(survivor);

/// Rows of the blocks that meet a tile of queries at a time.
std::int64_t tile_rows_of(const filter_kernels& kernels) { return kernels.tile_blocks * core::kPlaneRows; }

/// Survivors of one query in one slot. Beyond k there is room for a tile's rows even after a list was cut to k.
std::int64_t survivor_capacity(std::int64_t k, std::int64_t rows, std::int64_t tile_rows) {
  k = std::min(k, rows);
  const std::optional<std::int64_t> forced = core::forced_survivors();
  const std::int64_t wanted = forced ? k + *forced : std::min(std::max(kSurvivorsPerK * k, kMinSurvivors), rows);
  return round_up(wanted + tile_rows, core::kPlaneRows);
}

/// Queries of a group, before it is limited by how many there are.
std::int64_t certified_group_limit(std::int64_t capacity, std::int64_t dim) {
  const std::int64_t by_survivors = kGroupKeysBytes / (capacity * kSurvivorBytes);
  const std::int64_t by_codes =
      kGroupQueriesBytes / (padded_dim(dim) * static_cast<std::int64_t>(sizeof(std::int16_t)));
  return std::max(std::min({kMaxGroup, by_survivors, by_codes}), std::int64_t{1});
}

/// What slots share of a query.
struct shared_query {
  std::atomic<std::uint32_t> threshold{core::kNanKey};  ///< a key that at least k rows reach
  std::atomic<bool> given_up{false};
  std::atomic<std::int64_t> scored{0};  ///< rows
};

/// Queries [begin, end) of a group, which some slots begin with.
struct query_share {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::atomic<std::int64_t> next{0};  ///< chunk of rows
};

/// A slot's list of one query.
struct slot_list {
  survivor_list found;
  std::int64_t limit = 0;   ///< it is pruned when a block might take it beyond this
  std::int64_t seen = 0;    ///< rows that were filtered
  std::int64_t scored = 0;  ///< rows scored because the list was full
};

certified_sizes certified_sizes_of(std::int64_t slots, std::int64_t group, std::int64_t k, std::int64_t capacity,
                                   std::int64_t dim) {
  constexpr auto kCodeBytes = static_cast<std::int64_t>(sizeof(std::int16_t));
  const std::int64_t padded_group = round_up(group, kMaxFilterQueries);
  return {
      .survivors_bytes = group * slots * capacity * kSurvivorBytes,
      .codes_bytes = (padded_group + kMaxFilterQueries) * padded_dim(dim) * kCodeBytes,
      .filters_bytes = padded_group * static_cast<std::int64_t>(sizeof(filter_query) + sizeof(shared_query)),
      .lists_bytes = slots * padded_group * static_cast<std::int64_t>(sizeof(slot_list)),
      .keys_bytes = slots * k * static_cast<std::int64_t>(sizeof(std::uint64_t)),
      .query_bytes = slots * padded_dim(dim) * static_cast<std::int64_t>(sizeof(float)),
  };
}

/// 0 to count - 1 in an order that leaps by about 0.618 of them: rows that come ever better, or ever worse, are then as
/// good as shuffled, and thresholds are high early.
struct scattered_order {
  explicit scattered_order(std::int64_t of) : count(of), step(std::max<std::int64_t>(of * 618 / 1000, 1)) {
    while (std::gcd(step, count) != 1) ++step;
  }
  std::int64_t at(std::int64_t i) const { return i * step % count; }

  std::int64_t count;
  std::int64_t step;
};

bool by_position(const survivor& a, const survivor& b) { return a.position < b.position; }
bool by_low(const survivor& a, const survivor& b) { return a.low > b.low; }
bool by_high(const survivor& a, const survivor& b) { return a.high > b.high; }
/// Of rows whose scores are known: the order of the list that is returned.
bool by_rank(const survivor& a, const survivor& b) {
  return core::row_key(a.low, a.position) > core::row_key(b.low, b.position);
}

/// Brings rows that are wanted to the front, without branches, which would be mispredicted. @returns how many are.
template <class Wanted>
std::int64_t bring_forward(survivor* rows, std::int64_t count, const Wanted& wanted) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const survivor row = rows[i];
    rows[i] = rows[found];
    rows[found] = row;
    found += wanted(row) ? 1 : 0;
  }
  return found;
}

/// One group of queries at a time over all rows.
class certified_searcher {
 public:
  certified_searcher(flat_scratch& memory, const core::flat_corpus& corpus, const core::flat_request& request)
      : memory_(memory),
        corpus_(corpus),
        request_(request),
        scores_(current_flat_kernels()),
        filter_(current_filter_kernels()),
        layout_(corpus.dim, corpus.metric),
        k_(std::min(request.k, corpus.count)),
        capacity_(survivor_capacity(request.k, corpus.count, tile_rows_of(filter_))),
        metric_(static_cast<std::size_t>(corpus.metric)) {}

  void search();

 private:
  const float* query_at(std::int64_t query) const { return request_.queries + query * request_.query_stride; }
  const std::byte* row_at(std::int64_t position) const {
    return static_cast<const std::byte*>(corpus_.rows) + position * corpus_.row_stride_bytes;
  }
  shared_query& shared_at(std::int64_t q) const { return shared_[q]; }
  slot_list& list_at(std::int64_t slot, std::int64_t q) const { return lists_[slot * group_ + q]; }
  float* padded_query_at(std::int64_t slot) const { return memory_.query.as<float>() + slot * padded_dim(corpus_.dim); }
  plane_span blocks(std::int64_t first, std::int64_t end) const;

  void prepare(std::int64_t slots, std::int64_t group);
  void encode_queries(std::int64_t first);
  void pad_query(std::int64_t query, float* padded) const;
  void filter_all(std::int64_t first);
  void filter_chunk(std::int64_t slot, std::int64_t first, const query_share& share, std::int64_t first_row,
                    std::int64_t end_row);
  void filter_chunk_of_one(std::int64_t slot, std::int64_t first, std::int64_t first_row, std::int64_t end_row);
  void raise_threshold(slot_list& list, shared_query& shared) const;
  void make_room(std::int64_t slot, std::int64_t first, std::int64_t q);
  void score_list(std::int64_t slot, std::int64_t query, std::int64_t q, slot_list& list) const;
  std::int64_t score_rows(const float* padded, float query_inverse_norm, survivor* rows, std::int64_t count,
                          std::int64_t known) const;
  void finish(std::int64_t slot, std::int64_t first, std::int64_t q);
  void answer_given_up(std::int64_t first);

  flat_scratch& memory_;
  const core::flat_corpus& corpus_;
  const core::flat_request& request_;
  const flat_kernels& scores_;
  const filter_kernels& filter_;
  const core::plane_layout layout_;
  const std::int64_t k_;         // of rows that are there
  const std::int64_t capacity_;  // survivors of one slot and query
  const std::size_t metric_;

  std::int64_t slots_ = 1;
  std::int64_t group_ = 1;
  std::int64_t width_ = 1;      // queries that are packed side by side
  std::int64_t tile_rows_ = 1;  // that these meet at a time
  bool by_bytes_ = false;       // which codes the queries have
  filter_query* filters_ = nullptr;
  shared_query* shared_ = nullptr;
  slot_list* lists_ = nullptr;
};

void certified_searcher::prepare(std::int64_t slots, std::int64_t group) {
  memory_.reserve(certified_sizes_of(slots, group, k_, capacity_, corpus_.dim));
  slots_ = slots;
  group_ = group;
  width_ = group == 1 ? 1 : filter_.tile_queries;
  tile_rows_ = group == 1 ? core::kPlaneRows : tile_rows_of(filter_);
  by_bytes_ = group > 1 && k_ * corpus_.dim <= filter_.byte_codes_max_work &&
              filter_.filter_blocks_by_bytes[metric_] != nullptr;
  const std::int64_t padded_group = round_up(group, kMaxFilterQueries);
  filters_ = memory_.filters.as<filter_query>();
  std::uninitialized_default_construct_n(filters_, padded_group);
  shared_ = reinterpret_cast<shared_query*>(filters_ + padded_group);
  std::uninitialized_default_construct_n(shared_, group);
  lists_ = memory_.lists.as<slot_list>();
  const std::int64_t first_prune =
      std::clamp(std::max(kFirstPrunePerK * k_, kMinFirstPrune) + tile_rows_, std::int64_t{0}, capacity_);
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    for (std::int64_t q = 0; q < group; ++q) {
      survivor* rows = memory_.survivors.as<survivor>() + (q * slots + slot) * capacity_;
      new (&list_at(slot, q)) slot_list{.found = {.rows = rows, .threshold = -std::numeric_limits<float>::infinity()},
                                        .limit = first_prune};
    }
  }
}

/// Rows [first, end) of the plane; first is a block's.
plane_span certified_searcher::blocks(std::int64_t first, std::int64_t end) const {
  return {.blocks = corpus_.plane + first / core::kPlaneRows * layout_.block_bytes(),
          .layout = layout_,
          .rows = end - first,
          .first = static_cast<std::uint32_t>(first),
          .inverse_norms = corpus_.inverse_norms != nullptr ? corpus_.inverse_norms + first : nullptr};
}

void certified_searcher::pad_query(std::int64_t query, float* padded) const {
  std::copy_n(query_at(query), corpus_.dim, padded);
  std::fill(padded + corpus_.dim, padded + padded_dim(corpus_.dim), core::kQueryPadding);
}

/// Codes and terms of the group's queries. One that cannot be certified is given up before it begins.
void certified_searcher::encode_queries(std::int64_t first) {
  std::int16_t* packed = memory_.codes.as<std::int16_t>();
  const std::int64_t code_places = padded_dim(corpus_.dim);
  std::int16_t* tile = packed + round_up(group_, kMaxFilterQueries) * code_places;
  const int max_code = core::max_query_code(corpus_.dim, by_bytes_ ? filter_.max_byte_code : kMaxQueryCode);
  const auto pack = group_ == 1 ? pack_query_codes : by_bytes_ ? filter_.pack_bytes : filter_.pack;
  float* padded = padded_query_at(0);
  float sums[1 + kSumsSlack];
  for (std::int64_t begin = 0; begin < group_; begin += width_) {
    const std::int64_t count = std::min(width_, group_ - begin);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t q = begin + i;
      std::int16_t* codes = tile + i * corpus_.dim;
      const quantised made = quantise(query_at(first + q), corpus_.dim, max_code, codes);
      float inverse_norm = 0.0f;
      if (corpus_.metric == metric::cosine) {
        pad_query(first + q, padded);
        const row_span one = {reinterpret_cast<const std::byte*>(padded), padded_dim(corpus_.dim) * 4, 1};
        scores_.square_sums[static_cast<std::size_t>(element_type::f32)](one, corpus_.dim, sums);
        inverse_norm = core::inverse_norm(sums[0]);
      }
      if (!core::is_certifiable(made.squares, inverse_norm)) {
        shared_at(q).given_up = true;
        std::fill_n(codes, corpus_.dim, std::int16_t{0});
        continue;
      }
      std::int32_t sum = 0;
      for (std::int64_t j = 0; j < corpus_.dim; ++j) sum += codes[j];
      filters_[q] = {.terms = core::terms_of_query(corpus_.metric, corpus_.dim, made.scale, made.squares,
                                                   made.residual_squares, inverse_norm),
                     .offset = 0u - static_cast<std::uint32_t>(sum) * core::kCodeOffset};
    }
    pack(tile, count, corpus_.dim, width_, packed + begin * code_places);
  }
}

/// Takes the k-th best lower end of the list as its threshold, or a better one that another slot has found.
void certified_searcher::raise_threshold(slot_list& list, shared_query& shared) const {
  std::uint32_t threshold = shared.threshold.load(std::memory_order_relaxed);
  // Only rows with a lower end of at least what is known can raise it: those of the k that it was made from, and new
  // ones.
  survivor* rows = list.found.rows;
  const std::int64_t certain =
      bring_forward(rows, list.found.size, [&](const survivor& row) { return row.low >= threshold; });
  if (certain >= k_) {
    survivor* kth = rows + k_ - 1;
    std::nth_element(rows, kth, rows + certain, by_low);
    while (threshold < kth->low &&
           !shared.threshold.compare_exchange_weak(threshold, kth->low, std::memory_order_relaxed)) {
    }
    threshold = std::max(threshold, kth->low);
  }
  if (threshold == core::kNanKey) return;  // no k rows are known to have a number for a score
  list.found.threshold = core::merit_of(core::score_from_key(threshold, corpus_.metric), corpus_.metric);
  list.found.size = bring_forward(rows, list.found.size, [&](const survivor& row) { return row.high >= threshold; });
}

/// Prunes the list of query q of the group; if that does not help, scores it or gives the query up.
void certified_searcher::make_room(std::int64_t slot, std::int64_t first, std::int64_t q) {
  slot_list& list = list_at(slot, q);
  shared_query& shared = shared_at(q);
  if (!shared.given_up.load(std::memory_order_relaxed)) {
    raise_threshold(list, shared);
    const bool is_judged = list.found.size > std::min(capacity_ / 2, std::max(kJudgedPerK * k_, kJudgedRows));
    if (is_judged && list.seen >= kJudgedRows && (list.scored + list.found.size) * kGiveUpShare > list.seen) {
      shared.given_up.store(true, std::memory_order_relaxed);
    } else if (list.found.size > std::min(capacity_ / 2, capacity_ - tile_rows_)) {  // a tile's rows must find room
      score_list(slot, first + q, q, list);
    }
  }
  if (shared.given_up.load(std::memory_order_relaxed)) {
    list.found.size = 0;
    list.found.threshold = std::numeric_limits<float>::infinity();
  }
  list.limit = std::clamp(2 * list.found.size + tile_rows_, std::min(list.limit, capacity_), capacity_);
}

/// Computes the scores of a whole list and keeps the k best.
void certified_searcher::score_list(std::int64_t slot, std::int64_t query, std::int64_t q, slot_list& list) const {
  float* padded = padded_query_at(slot);
  pad_query(query, padded);
  survivor* rows = list.found.rows;
  std::sort(rows, rows + list.found.size, by_position);
  for (std::int64_t i = 0; i < list.found.size; i += kScoredTogether) {
    const std::int64_t count = std::min(kScoredTogether, list.found.size - i);
    list.scored += score_rows(padded, filters_[q].terms.inverse_norm, rows + i, count, list.found.size - i);
  }
  if (list.found.size > k_) {
    std::nth_element(rows, rows + k_ - 1, rows + list.found.size, by_rank);
    list.found.size = k_;
  }
  raise_threshold(list, shared_at(q));
}

/// The keys of the first `count` rows, at most kScoredTogether. Those whose ends are equal have theirs; of the others,
/// it returns how many there were. Rows behind them, of `known` in all, are fetched.
std::int64_t certified_searcher::score_rows(const float* padded, float query_inverse_norm, survivor* rows,
                                            std::int64_t count, std::int64_t known) const {
  const std::byte* at[kScoredTogether + kScatteredAhead];
  std::int64_t which[kScoredTogether];
  std::int64_t scored = 0;
  std::int64_t fetched = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (rows[i].low == rows[i].high) continue;
    which[scored] = i;
    at[scored++] = row_at(rows[i].position);
  }
  if (scored == 0) return 0;
  for (std::int64_t i = count; i < std::min(known, count + kScatteredAhead); ++i) {
    if (rows[i].low != rows[i].high) at[scored + fetched++] = row_at(rows[i].position);
  }
  const auto kind = corpus_.metric == metric::l2 ? sum_kind::l2 : sum_kind::dot;
  float sums[kScoredTogether + kSumsSlack];
  scores_.scattered_sums[static_cast<std::size_t>(corpus_.type)][static_cast<std::size_t>(kind)](
      padded, {at, scored, scored + fetched}, corpus_.dim, sums);
  for (std::int64_t i = 0; i < scored; ++i) {
    survivor& row = rows[which[i]];
    float score = sums[i];
    if (corpus_.metric == metric::cosine) {
      score = core::cosine_score(score, query_inverse_norm, corpus_.inverse_norms[row.position]);
    }
    row.low = row.high = core::score_key(score, corpus_.metric);
  }
  return scored;
}

// ---- the filter

void certified_searcher::filter_chunk_of_one(std::int64_t slot, std::int64_t first, std::int64_t first_row,
                                             std::int64_t end_row) {
  slot_list& list = list_at(slot, 0);
  while (first_row < end_row) {
    if (shared_at(0).given_up.load(std::memory_order_relaxed)) return;
    const std::int64_t done = filter_.filter_rows[metric_](memory_.codes.as<std::int16_t>(), filters_[0],
                                                           blocks(first_row, end_row), list.limit, list.found);
    first_row += done;
    list.seen += done;
    if (list.found.size + tile_rows_ > list.limit) make_room(slot, first, 0);
  }
}

void certified_searcher::filter_chunk(std::int64_t slot, std::int64_t first, const query_share& share,
                                      std::int64_t first_row, std::int64_t end_row) {
  const std::int64_t tiles = divide_up(share.end - share.begin, width_);
  const auto filter_blocks = by_bytes_ ? filter_.filter_blocks_by_bytes[metric_] : filter_.filter_blocks[metric_];
  survivor_list found[kMaxFilterQueries];
  for (std::int64_t row = first_row; row < end_row; row += tile_rows_) {
    const plane_span span = blocks(row, std::min(row + tile_rows_, end_row));
    const std::int64_t span_bytes = layout_.bytes(span.rows);
    const std::int64_t ahead_bytes = round_up(divide_up(span_bytes, tiles), kCacheLineBytes);
    const std::byte* ahead = span.blocks + span_bytes;
    for (std::int64_t begin = share.begin; begin < share.end; begin += width_) {
      const std::int64_t count = std::min(width_, share.end - begin);
      for (std::int64_t i = 0; i < count; ++i) found[i] = list_at(slot, begin + i).found;
      filter_blocks(memory_.codes.as<std::int16_t>() + begin * padded_dim(corpus_.dim), filters_ + begin, count, span,
                    ahead, ahead_bytes, found);
      ahead += ahead_bytes;
      for (std::int64_t i = 0; i < count; ++i) {
        slot_list& list = list_at(slot, begin + i);
        list.found.size = found[i].size;
        list.seen += span.rows;
        if (list.found.size + tile_rows_ > list.limit) make_room(slot, first, begin + i);
      }
    }
  }
}

/// Queries [first, first + group) past all rows. Each slot begins with the queries of its share and goes on with those
/// of others.
void certified_searcher::filter_all(std::int64_t first) {
  const std::int64_t row_blocks = divide_up(corpus_.count, core::kPlaneRows);
  const std::int64_t chunk =
      std::clamp(row_blocks / (slots_ * kChunksPerSlot), std::int64_t{1}, kMaxChunkBlocks) * core::kPlaneRows;
  const scattered_order chunks(divide_up(corpus_.count, chunk));
  std::array<query_share, kMaxShares> shares;
  const std::int64_t count = std::clamp(group_ / kQueriesOfShare, std::int64_t{1}, std::min(slots_, kMaxShares));
  const std::int64_t width = round_up(divide_up(group_, count), width_);
  for (std::int64_t i = 0; i < count; ++i) {
    shares[i].begin = std::min(i * width, group_);
    shares[i].end = std::min(shares[i].begin + width, group_);
  }
  const auto all_given_up = [&](const query_share& share) {
    return std::all_of(shared_ + share.begin, shared_ + share.end,
                       [](const shared_query& one) { return one.given_up.load(std::memory_order_relaxed); });
  };
  for_each_slot(static_cast<int>(slots_), [&](int slot) {
    for (std::int64_t i = 0; i < count; ++i) {
      query_share& share = shares[(slot + i) % count];
      while (!all_given_up(share)) {
        const std::int64_t number = share.next.fetch_add(1, std::memory_order_relaxed);
        if (number >= chunks.count) break;
        const std::int64_t row = chunks.at(number) * chunk;
        const std::int64_t end = std::min(row + chunk, corpus_.count);
        if (group_ == 1) {
          filter_chunk_of_one(slot, first, row, end);
        } else {
          filter_chunk(slot, first, share, row, end);
        }
      }
    }
  });
}

// ---- the end of a search

/// Joins the slots' lists of a query, scores what may be among the k best, and writes its list.
void certified_searcher::finish(std::int64_t slot, std::int64_t first, std::int64_t q) {
  // A query's lists lie one behind the other, each slot's at its capacity: close the gaps.
  slot_list all = list_at(0, q);
  for (std::int64_t other = 1; other < slots_; ++other) {
    const slot_list& more = list_at(other, q);
    std::copy_n(more.found.rows, more.found.size, all.found.rows + all.found.size);
    all.found.size += more.found.size;
    all.scored += more.scored;
  }
  raise_threshold(all, shared_at(q));
  survivor* rows = all.found.rows;
  std::sort(rows, rows + all.found.size, by_high);

  float* padded = padded_query_at(slot);
  pad_query(first + q, padded);
  std::uint64_t* best = memory_.keys.as<std::uint64_t>() + slot * k_;  // a heap whose top is the worst of the k
  std::int64_t size = 0;
  for (std::int64_t i = 0; i < std::min(kScatteredAhead, all.found.size); ++i) {
    fetch_bytes(row_at(rows[i].position), corpus_.row_stride_bytes);
  }
  for (std::int64_t begin = 0; begin < all.found.size;) {
    std::int64_t end = begin;
    const std::uint32_t least = size == k_ ? core::key_of(best[0]) : 0;
    while (end < std::min(begin + kScoredTogether, all.found.size) && rows[end].high >= least) ++end;
    if (end == begin) break;  // and so it is for all that follow
    all.scored += score_rows(padded, filters_[q].terms.inverse_norm, rows + begin, end - begin, all.found.size - begin);
    for (; begin < end; ++begin) {
      const std::uint64_t key = core::row_key(rows[begin].low, rows[begin].position);
      if (size < k_) {
        best[size++] = key;
        std::push_heap(best, best + size, std::greater<>());
      } else if (key > best[0]) {
        std::pop_heap(best, best + size, std::greater<>());
        best[size - 1] = key;
        std::push_heap(best, best + size, std::greater<>());
      }
    }
  }
  std::sort_heap(best, best + size, std::greater<>());
  write_list(corpus_, request_, first + q, best, size);
  shared_at(q).scored = all.scored;
}

/// Answers the queries of the group that were given up by reading all rows.
void certified_searcher::answer_given_up(std::int64_t first) {
  for (std::int64_t q = 0; q < group_;) {
    std::int64_t end = q;
    while (end < group_ && shared_at(end).given_up) ++end;
    if (end == q) {
      ++q;
      continue;
    }
    core::flat_request run = request_;
    run.queries = query_at(first + q);
    run.query_count = end - q;
    run.scores += (first + q) * request_.k;
    run.ids += (first + q) * request_.k;
    flat_search(end - q == 1 ? core::flat_algorithm::scan : core::flat_algorithm::tiles, memory_, corpus_, run);
    q = end;
  }
}

void certified_searcher::search() {
  const std::int64_t bytes = layout_.bytes(corpus_.count);
  const std::int64_t limit = certified_group_limit(capacity_, corpus_.dim);
  for (std::int64_t first = 0; first < request_.query_count; first += limit) {
    const std::int64_t group = std::min(limit, request_.query_count - first);
    const std::int64_t threads = bytes * group <= kSerialBytes ? 1 : thread_count();
    prepare(std::min(threads, divide_up(corpus_.count, core::kPlaneRows)), group);
    encode_queries(first);
    filter_all(first);
    std::atomic<std::int64_t> unfinished{0};
    for_each_slot(static_cast<int>(std::min(slots_, group)), [&](int slot) {
      for (;;) {
        const std::int64_t q = unfinished.fetch_add(1, std::memory_order_relaxed);
        if (q >= group) break;
        if (!shared_at(q).given_up) finish(slot, first, q);
      }
    });
    if (request_.stats != nullptr) {
      for (std::int64_t q = 0; q < group; ++q) {
        if (shared_at(q).given_up) continue;
        ++request_.stats->certified_queries;
        request_.stats->survivors += shared_at(q).scored;
      }
    }
    answer_given_up(first);
  }
}

}  // namespace

void certified_search(flat_scratch& memory, const core::flat_corpus& corpus, const core::flat_request& request) {
  certified_searcher(memory, corpus, request).search();
}

void reserve_certified(const search_limits& limits, std::int64_t dim, flat_scratch& memory) {
  const std::int64_t slots = core_count();
  const std::int64_t k = std::min(limits.max_k, limits.max_rows);
  const std::int64_t capacity = survivor_capacity(k, limits.max_rows, tile_rows_of(current_filter_kernels()));
  // A smaller k or dim allows larger groups, which fill the same bounds: reserve up to those.
  const std::int64_t group = std::min(limits.max_queries, kMaxGroup);
  certified_sizes sizes = certified_sizes_of(slots, group, k, capacity, dim);
  const certified_sizes least = certified_sizes_of(slots, 1, k, capacity, dim);
  sizes.survivors_bytes = std::min(sizes.survivors_bytes, std::max(least.survivors_bytes, kGroupKeysBytes * slots));
  sizes.codes_bytes = std::min(sizes.codes_bytes, least.codes_bytes + kGroupQueriesBytes);
  memory.reserve(sizes);
}

}  // namespace shortlist::cpu
