// First parts of a row's tokens in the one order: the k best as a list, or a border that a sum of weights reaches.
#pragma once

#include <span>

#include "cpu/sample/kernels.hpp"
#include "cpu/sample/open.hpp"
#include "cpu/sample/scratch.hpp"

namespace shortlist::cpu {

/// A row whose logits were looked at once. Blocks whose largest logit does not reach a threshold are not read again.
struct scanned_row {
  const sample_kernels& kernels;
  open_row values;
  std::int64_t block;  ///< logits in each block
  std::int64_t blocks;
  const float* maxima;  ///< [blocks]
  float largest;
  bool has_nan;

  const void* block_data(std::int64_t which) const { return values.from(which * block); }
  std::int64_t block_count(std::int64_t which) const { return std::min(block, values.vocab - which * block); }
  auto of_type(const auto& of_each_type) const { return of_each_type[static_cast<std::size_t>(values.type)]; }
};

scanned_row scan(const open_row& values, const sample_kernels& kernels, sample_scratch& memory);

/// A first part of the row: the logits >= `from` of ids below `tie_end`, and the logits > `from` of the others.
struct row_part {
  float from;
  std::int64_t tie_end;
};

/// All candidates.
inline row_part all_candidates(const scanned_row& row) { return {kLeastLogit, row.values.vocab}; }

/// The shorter of two first parts.
row_part shorter(const row_part& a, const row_part& b);

/// The scale of a row's weights. @pre the largest logit is above -inf.
weight_scale scale_of(const scanned_row& row, float steepness);

/// The least logit whose t reaches `least`, which is at most 0: what min_p keeps.
float least_logit_from(float least, const weight_scale& scale);

/// The first id among the largest logits.
std::int64_t best_token(const scanned_row& row);

/// The k best candidates, or all if there are fewer, as logit_and_id in no order. They lie in memory.tokens().
std::span<std::uint64_t> best_tokens(const scanned_row& row, std::int64_t k, sample_scratch& memory);

/// How many tokens `part` has.
std::int64_t count_of(const scanned_row& row, const row_part& part);

/// The sum of the weights of a part.
std::uint64_t weigh(const scanned_row& row, const row_part& part, const weight_scale& scale);

/// The token with which the sum of a part's weights, by ascending id, exceeds its share random >> 8 of all of it.
std::int64_t draw(const scanned_row& row, const row_part& part, const weight_scale& scale, std::uint32_t random,
                  sample_scratch& memory);

/// Sums of the row's weights by bins of t, to find the border of top_p. Tokens that are too light to be there are
/// summed up by themselves.
class weight_bins {
 public:
  weight_bins(const scanned_row& row, const weight_scale& scale, std::uint32_t top_p, sample_scratch& memory);

  std::uint64_t total() const { return total_; }  ///< of all candidates

  /// The tokens before which, in the one order, the sum of weights is less than `limit`; at least the first.
  /// @pre limit is at most top_p's share of total().
  row_part part_below(std::uint64_t limit) const;

 private:
  const scanned_row& row_;
  const weight_scale& scale_;
  sample_scratch& memory_;
  std::uint64_t* sums_;  // [kBins]
  std::uint64_t total_ = 0;
};

}  // namespace shortlist::cpu
