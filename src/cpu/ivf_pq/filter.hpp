// What surely bounds a row's score before it is computed: docs/ivf_pq.md, section 5.
//
// Estimates are oriented so that smaller is better: the squared distance, or less the dot product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ivf_pq.hpp"
#include "cpu/ivf_pq/kernels.hpp"
#include "cpu/ivf_pq/probe.hpp"

namespace shortlist::cpu {

/// What `prepare` makes of a model: the centroids as queries are compared with them, and the codewords.
struct prepared_model {
  coarse_lists lists;
  const float* words = nullptr;  ///< as lane_codewords has them

  static std::int64_t bytes(const core::ivf_pq_shape& shape);
  static void write(const core::ivf_pq_model& model, std::byte* to);
  explicit prepared_model(const core::ivf_pq_model& model);
};

/// What of a row's score does not depend on the query: |w|^2 + 2 c.w under squared L2, else 0; NaN if that is no fp32
/// number. Adds the square of w's norm to `squares`.
float term_of(const core::ivf_pq_model& model, std::int64_t list, const std::uint8_t* codes, double& squares);

/// Bytes that tables of one query take.
struct table_sizes {
  std::int64_t table_bytes = 0;  ///< fp32 [pieces][codewords]
  std::int64_t least_bytes = 0;  ///< fp32 [pieces]
  std::int64_t steps_bytes = 0;  ///< whole steps [pieces, rounded up to even][codewords]

  explicit table_sizes(const core::ivf_pq_shape& shape);
  std::int64_t bytes() const { return table_bytes + least_bytes + steps_bytes; }
};

/// A query as its lists are filtered.
class query_filter {
 public:
  /// `query` is padded to whole pieces; `inverse_norm` is its own under cosine.
  query_filter(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists, const float* query, float inverse_norm,
               std::byte* memory);

  /// Whether anything is known of its scores: else every row's must be computed.
  bool can_filter() const { return can_filter_; }
  /// The score's distance from the estimate is at most this.
  double bound() const { return bound_; }
  /// That from the estimate by steps: it is from below, by less than the first of two numbers.
  double steps_bound() const { return steps_bound_; }
  double squared_norm() const { return squared_norm_; }

  /// The score of a row's key, oriented as estimates are.
  double oriented(std::uint64_t key, float inverse_norm) const;

  /// The filter of a list, whose estimates begin at `base`.
  list_filter of_list(float base, float limit) const;
  /// `base` plus the rest of the estimate of a row.
  float estimate(float base, const std::byte* page, std::int64_t row) const;

 private:
  const core::ivf_pq_shape& shape_;
  const float* table_ = nullptr;
  const std::uint8_t* steps_ = nullptr;
  bool can_filter_ = false;
  double squared_norm_ = 0.0;
  double bound_ = 0.0;
  double steps_bound_ = 0.0;
  double sum_of_least_ = 0.0;
  float step_ = 0.0f;
  float inverse_step_ = 0.0f;
};

}  // namespace shortlist::cpu
