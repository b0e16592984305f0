// What the algorithms of flat search share: their scratch memory, bounds of it, and how a list is written.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/backend.hpp"
#include "core/order.hpp"
#include "core/score.hpp"
#include "cpu/memory.hpp"

namespace shortlist::cpu {

/// Up to this one core works alone. Two gain from 0.3 MiB on while the pool is awake, from 3 MiB on when it sleeps (it
/// takes 20 to 50 us to wake), and at 1 MiB either choice costs less than 10 us.
inline constexpr std::int64_t kSerialBytes = std::int64_t{1} << 20;
/// Queries that meet a packed block of rows; more would only enlarge the scratch.
inline constexpr std::int64_t kMaxGroup = 256;
/// Bounds of a group by its candidates in one slot, and by its packed queries (which the outer caches should hold).
inline constexpr std::int64_t kGroupKeysBytes = std::int64_t{16} << 20;
inline constexpr std::int64_t kGroupQueriesBytes = std::int64_t{8} << 20;
inline constexpr std::int64_t kMaxDim = 65536;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }
constexpr std::int64_t padded_dim(std::int64_t dim) { return round_up(dim, core::kPartialSums); }

/// Bytes of each part of the scratch.
struct scratch_sizes {
  std::int64_t keys_bytes = 0;     ///< [group, slots, capacity]
  std::int64_t slots_bytes = 0;    ///< candidates [slots, group]
  std::int64_t query_bytes = 0;    ///< one padded query
  std::int64_t norms_bytes = 0;    ///< inverse norms [group]
  std::int64_t queries_bytes = 0;  ///< packed queries [group, padded dim]
  std::int64_t rows_bytes = 0;     ///< packed rows [slots, kBlockRows, padded dim]
};

struct certified_sizes {
  std::int64_t survivors_bytes = 0;  ///< [group, slots, capacity]
  std::int64_t codes_bytes = 0;      ///< packed queries [group, padded dim], then codes of one query a slot
  std::int64_t filters_bytes = 0;    ///< filter_query [group], then what slots share of each query
  std::int64_t lists_bytes = 0;      ///< survivor lists [slots, group]
  std::int64_t keys_bytes = 0;       ///< the k best so far [slots, k]
  std::int64_t query_bytes = 0;      ///< padded queries [slots]
};

class flat_scratch final : public core::scratch {
 public:
  void reserve(const scratch_sizes& sizes) {
    allocations_ += keys.reserve(sizes.keys_bytes);
    allocations_ += slots.reserve(sizes.slots_bytes);
    allocations_ += query.reserve(sizes.query_bytes);
    allocations_ += norms.reserve(sizes.norms_bytes);
    allocations_ += queries.reserve(sizes.queries_bytes);
    allocations_ += rows.reserve(sizes.rows_bytes);
  }
  void reserve(const certified_sizes& sizes) {
    allocations_ += survivors.reserve(sizes.survivors_bytes);
    allocations_ += codes.reserve(sizes.codes_bytes);
    allocations_ += filters.reserve(sizes.filters_bytes);
    allocations_ += lists.reserve(sizes.lists_bytes);
    allocations_ += keys.reserve(sizes.keys_bytes);
    allocations_ += query.reserve(sizes.query_bytes);
  }
  std::int64_t bytes() const noexcept override {
    return keys.bytes() + slots.bytes() + query.bytes() + norms.bytes() + queries.bytes() + rows.bytes() +
           survivors.bytes() + codes.bytes() + filters.bytes() + lists.bytes();
  }
  std::int64_t device_allocations() const noexcept override { return allocations_; }

  growing_memory keys, slots, query, norms, queries, rows;  // of scan and tiles
  growing_memory survivors, codes, filters, lists;          // of certified

 private:
  std::int64_t allocations_ = 0;
};

/// Writes the `found` best rows of a query, best first, and the padding behind them.
inline void write_list(const core::flat_corpus& corpus, const core::flat_request& request, std::int64_t query,
                       const std::uint64_t* keys, std::int64_t found) {
  float* scores = request.scores + query * request.k;
  std::int64_t* ids = request.ids + query * request.k;
  for (std::int64_t i = 0; i < found; ++i) {
    const std::uint32_t position = core::position_of(keys[i]);
    scores[i] = core::score_from_key(core::key_of(keys[i]), corpus.metric);
    ids[i] = corpus.ids != nullptr ? corpus.ids[position] : position;
  }
  std::fill(scores + found, scores + request.k, core::worst_score(corpus.metric));
  std::fill(ids + found, ids + request.k, core::kNoId);
}

}  // namespace shortlist::cpu
