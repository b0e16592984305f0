// Scores of rows, to the bit: by their codes, and by the rows themselves.
#pragma once

#include <cstdint>

#include "core/ivf_pq.hpp"
#include "cpu/flat/kernels.hpp"
#include "cpu/ivf_pq/best_rows.hpp"
#include "cpu/ivf_pq/layout.hpp"

namespace shortlist::cpu {

/// A query in memory of its slot, padded as the score's kernels take it.
struct padded_query {
  const float* elements = nullptr;
  float inverse_norm = 0.0f;  ///< under cosine
};

class row_scorer {
 public:
  row_scorer(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists);

  /// Copies a query to `to`, which has query_capacity elements.
  padded_query pad(const float* query, float* to) const;
  /// dot(query, centroid).
  float dot_with_centroid(const padded_query& query, std::int64_t list) const;

  const std::byte* page_of(const candidate& row) const { return page(row.place / kPlaces); }
  std::uint32_t position(const candidate& row) const {
    return page_layout::positions(page_of(row))[row.place % kPlaces];
  }

  /// Fetches what is known of a row.
  void fetch(const candidate& row) const { fetch_bytes(page_of(row), page_bytes_); }

  /// Adds up to 32 rows, whose places are of any lists. `decoded` has room for them.
  void add(const padded_query& query, const candidate* rows, std::int64_t count, float* decoded,
           best_rows& found) const;
  /// Adds every row of a list; returns how many there are.
  std::int64_t add_list(const padded_query& query, std::int64_t list, float* decoded, best_rows& found) const;
  /// Fetches rows as they were added, so that `refine` need not wait for them some time later.
  void fetch_kept(const best_rows& found) const;
  /// Puts the scores of the rows as they were added in place of those found so far.
  /// `copied` has room for a page's decoded rows.
  void refine(const padded_query& query, float* copied, best_rows& found) const;

 private:
  static constexpr auto kPlaces = static_cast<std::uint32_t>(core::kPageRows);  // of a page

  const std::byte* page(std::uint32_t number) const { return lists_.pages + number * page_bytes_; }
  const float* centroid(std::int64_t list) const;
  /// Of a row as it was added, with what the score's kernels read behind it.
  std::int64_t kept_bytes() const { return round_up(shape_.dim * size_bytes(lists_.kept.type), kCacheLineBytes); }
  void fetch_kept_row(std::uint64_t key) const { fetch_bytes(kept_row(key), kept_bytes()); }
  const std::byte* kept_row(std::uint64_t key) const {
    return static_cast<const std::byte*>(lists_.kept.rows) + core::position_of(key) * lists_.kept.row_stride_bytes;
  }
  void decode(const std::byte* page, std::int64_t row, std::int64_t list, float* to) const;
  /// Keys of `count` rows that lie in `decoded`, added with their positions.
  void add_decoded(const padded_query& query, const float* decoded, const std::uint32_t* positions, std::int64_t count,
                   best_rows& found) const;

  const core::ivf_pq_model& model_;
  const core::ivf_pq_shape& shape_;
  const core::ivf_pq_lists& lists_;
  const flat_kernels& kernels_;
  const page_layout layout_;
  const std::int64_t page_bytes_;
  const std::size_t kind_;
};

}  // namespace shortlist::cpu
