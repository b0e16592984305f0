// Row-wise top k kernels in plain loops.
#include <algorithm>
#include <bit>

#include "core/score.hpp"
#include "cpu/top_k/kernels.hpp"

namespace shortlist::cpu {
namespace {

row_order_key key_of_value(float value) {
  if (value != value) return kNanOrPadding;
  const auto bits = std::bit_cast<std::int32_t>(value + 0.0f);  // -0 + 0 == +0
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

template <class Stored>
row_summary make_keys(const void* values, std::int64_t count, order best, row_order_key* keys) {
  const auto* from = static_cast<const Stored*>(values);
  row_summary made;
  for (std::int64_t i = 0; i < count; ++i) {
    float value = core::widen(from[i]);
    if (best == order::smallest) value = -value;
    keys[i] = key_of_value(value);
    made.least = std::min(made.least, keys[i]);
    made.most = std::max(made.most, keys[i]);
    made.sum += value;
    made.squares += value * value;
  }
  std::fill_n(keys + count, kKeySlack, kNanOrPadding);
  return made;
}

std::int64_t count_from(const row_order_key* keys, std::int64_t count, row_order_key from) {
  return std::count_if(keys, keys + count, [=](row_order_key key) { return key >= from; });
}

row_order_key least_from(const row_order_key* keys, std::int64_t count, row_order_key from) {
  row_order_key least = std::numeric_limits<row_order_key>::max();
  for (std::int64_t i = 0; i < count; ++i) {
    if (keys[i] >= from) least = std::min(least, keys[i]);
  }
  return least;
}

std::int64_t keep_between(const row_order_key* keys, std::int64_t count, row_order_key from, row_order_key to,
                          row_order_key* out) {
  const row_order_key* end =
      std::copy_if(keys, keys + count, out, [=](row_order_key key) { return key >= from && key < to; });
  const std::int64_t kept = end - out;
  std::fill_n(out + kept, kKeySlack, kNanOrPadding);
  return kept;
}

std::int64_t best_columns(const row_order_key* keys, std::int64_t count, row_border border, std::uint32_t* columns) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const bool ties = keys[i] == border.key && border.ties > 0;
    if (ties) --border.ties;
    if (ties || keys[i] > border.key) columns[found++] = static_cast<std::uint32_t>(i);
  }
  return found;
}

void best_mask(const row_order_key* keys, std::int64_t count, row_border border, std::uint8_t* mask) {
  for (std::int64_t i = 0; i < count; ++i) {
    const bool ties = keys[i] == border.key && border.ties > 0;
    if (ties) --border.ties;
    mask[i] = ties || keys[i] > border.key ? 1 : 0;
  }
}

void rank(const row_order_key* keys, std::int64_t count, std::uint32_t* ranks) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t before = 0;
    for (std::int64_t j = 0; j < count; ++j) before += keys[j] > keys[i] || (keys[j] == keys[i] && j < i) ? 1u : 0u;
    ranks[i] = before;
  }
}

std::int64_t collect(const row_order_key* keys, std::int64_t count, row_order_key from, std::uint32_t first_column,
                     std::uint64_t* out) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (keys[i] >= from) out[found++] = order_and_column(keys[i], first_column + static_cast<std::uint32_t>(i));
  }
  return found;
}

constexpr top_k_kernels kScalarKernels = {{make_keys<float>, make_keys<float16>, make_keys<bfloat16>},
                                          count_from,
                                          least_from,
                                          keep_between,
                                          best_columns,
                                          best_mask,
                                          rank,
                                          collect};

}  // namespace

const top_k_kernels& scalar_top_k_kernels() { return kScalarKernels; }

const top_k_kernels& current_top_k_kernels() {
  const isa which = current_isa();
  return which == isa::scalar ? scalar_top_k_kernels() : simd_top_k_kernels(which);
}

}  // namespace shortlist::cpu
