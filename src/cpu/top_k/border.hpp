// The border of a row's k best, by counting until exactly k keys are above a threshold, and what RTop-K's bisections
// select.
#pragma once

#include <cstdint>

#include "cpu/top_k/kernels.hpp"

namespace shortlist::cpu {

/// Keys of a row, and room to keep some of them twice; all three arrays have places for count + kKeySlack keys.
struct row_keys {
  const row_order_key* keys;
  std::int64_t count;
  row_summary summary;
  row_order_key* room[2];
};

/// Where the next row's border is first looked for: learned from the rows before it, in standard deviations above the
/// mean. Wrong guesses cost passes, never the result.
class border_guess {
 public:
  border_guess(std::int64_t k, std::int64_t count);
  double deviations() const { return deviations_; }
  /// Values around `deviations` per unit of it, relative to the row's count, for normal data.
  double density() const { return density_; }
  void learn(double deviations) { deviations_ += (deviations - deviations_) / 8.0; }

 private:
  double deviations_;
  double density_;
};

/// The exact border. @pre 1 <= k < row.count.
row_border find_border(const top_k_kernels& kernels, const row_keys& row, std::int64_t k, border_guess& guess);
/// The least key of the best. @pre these are numbers.
row_order_key last_of_best(const top_k_kernels& kernels, const row_keys& row, row_border border);

/// What a bisection of docs/ordering.md, section 9, selects: every key >= `from`, and of those in [fill_from, from) as
/// many as are missing to k, the smaller columns first. Where keys >= from are more than k, the first k of them.
struct bisected {
  row_order_key from;
  row_order_key fill_from;
};

/// Whether all values of a row are finite, so that bisections apply.
bool is_finite(key_range range);

/// By a count for each midpoint. @pre the row is finite, 1 <= k <= row.count.
bisected count_bisection(const top_k_kernels& kernels, const row_keys& row, const top_k_options& options);
/// Without a count: a midpoint is reached by k values where it does not exceed the k-th best.
/// @param range of the row, which is finite. @param last the k-th best key.
bisected follow_bisection(key_range range, row_order_key last, const top_k_options& options);

}  // namespace shortlist::cpu
