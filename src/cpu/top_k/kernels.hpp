// What an instruction set provides for row-wise top k: keys, counts, and selection by a border.
//
// A key is a signed 32-bit number whose order is that of the values, larger = better: NaN is the least, -0 is +0. Keys
// lie in arrays that are padded with kNanOrPadding up to a whole vector (kKeySlack), which no count reaches.
#pragma once

#include <cstdint>
#include <limits>

#include "cpu/isa.hpp"
#include "shortlist/top_k.hpp"

namespace shortlist::cpu {

using row_order_key = std::int32_t;
inline constexpr row_order_key kNanOrPadding = std::numeric_limits<row_order_key>::min();
/// Places that kernels may write past the last key or column, a whole vector at a time.
inline constexpr std::int64_t kKeySlack = 16;

/// The least and the largest of some keys; of none, what any key changes.
struct key_range {
  row_order_key least = std::numeric_limits<row_order_key>::max();
  row_order_key most = kNanOrPadding;
};

/// What is known of a row once its keys are made.
struct row_summary : key_range {
  float sum = 0.0f;      ///< of the values, negated where the smallest are best; any value if some are not finite
  float squares = 0.0f;  ///< of their squares
};

/// The best of a row: every key above `key`, and the first `ties` of those equal to it.
struct row_border {
  row_order_key key;
  std::int64_t ties;
};

struct top_k_kernels {
  /// Keys of `count` >= 1 neighbouring values.
  using make_keys_fn = row_summary (*)(const void* values, std::int64_t count, order best, row_order_key* keys);
  make_keys_fn make_keys[3];  // [value_type] of f32, f16, bf16

  /// How many keys are >= `from`, which is above kNanOrPadding.
  std::int64_t (*count_from)(const row_order_key* keys, std::int64_t count, row_order_key from);

  /// The least of the keys >= `from`, which is above kNanOrPadding. @pre there is one.
  row_order_key (*least_from)(const row_order_key* keys, std::int64_t count, row_order_key from);

  /// The keys in [from, to), in any place of `out`; returns how many. `from` is above kNanOrPadding.
  std::int64_t (*keep_between)(const row_order_key* keys, std::int64_t count, row_order_key from, row_order_key to,
                               row_order_key* out);

  /// The columns of the best, ascending; returns how many. `columns` has room for all keys and kKeySlack more.
  std::int64_t (*best_columns)(const row_order_key* keys, std::int64_t count, row_border border,
                               std::uint32_t* columns);

  /// 1 where a key is among the best, else 0.
  void (*best_mask)(const row_order_key* keys, std::int64_t count, row_border border, std::uint8_t* mask);

  /// ranks[i] = how many keys come before key i: the larger, and of equal ones those with a smaller i. The keys are
  /// padded.
  void (*rank)(const row_order_key* keys, std::int64_t count, std::uint32_t* ranks);

  /// Appends key and column (from first_column on) of every key >= `from` as order_and_column; returns how many.
  std::int64_t (*collect)(const row_order_key* keys, std::int64_t count, row_order_key from, std::uint32_t first_column,
                          std::uint64_t* out);
};

/// Key and column as one number: larger is better, and among equal keys the smaller column.
inline std::uint64_t order_and_column(row_order_key key, std::uint32_t column) {
  const std::uint32_t unsigned_order = static_cast<std::uint32_t>(key) ^ 0x80000000u;
  return (static_cast<std::uint64_t>(unsigned_order) << 32) | static_cast<std::uint32_t>(~column);
}
inline row_order_key key_part(std::uint64_t both) {
  return static_cast<row_order_key>(static_cast<std::uint32_t>(both >> 32) ^ 0x80000000u);
}
inline std::uint32_t column_part(std::uint64_t both) { return ~static_cast<std::uint32_t>(both); }

/// The table of the instruction set that is in use. @throws what current_isa does.
const top_k_kernels& current_top_k_kernels();

const top_k_kernels& scalar_top_k_kernels();
/// @pre `which` is available and not scalar.
const top_k_kernels& simd_top_k_kernels(isa which);

}  // namespace shortlist::cpu
