// Bounds of scores: the constants' reasons are in docs/ivf_pq.md, section 5.
#include "cpu/ivf_pq/filter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/order.hpp"
#include "cpu/flat/scratch.hpp"
#include "cpu/ivf_pq/bounds.hpp"
#include "cpu/ivf_pq/layout.hpp"
#include "cpu/ivf_pq/parts.hpp"

namespace shortlist::cpu {
namespace {

/// Entries of two pieces are added in a byte.
constexpr float kMostSteps = 255.0f;
/// A page's sums are 16-bit numbers.
constexpr std::int64_t kMostSum = 32'767;

const float* centroid_of(const core::ivf_pq_model& model, std::int64_t list) {
  return reinterpret_cast<const float*>(static_cast<const std::byte*>(model.assigns.rows) +
                                        list * model.assigns.row_stride_bytes);
}

/// How many roundings lie between a score and its estimate, each of at most |q + c + w|^2 or |q| |c + w|: section 5.
double roundings(const core::ivf_pq_shape& shape) {
  return static_cast<double>(shape.dim) / 64.0 + 3.0 * static_cast<double>(shape.pieces) +
         2.0 * static_cast<double>(shape.piece_dim) + kOfTheRest;
}

}  // namespace

std::int64_t prepared_model::bytes(const core::ivf_pq_shape& shape) {
  return coarse_lists::bytes(shape.nlist, shape.dim) + shape.codebook_size() * 4;
}

void prepared_model::write(const core::ivf_pq_model& model, std::byte* to) {
  const core::ivf_pq_shape& shape = model.shape;
  coarse_lists::write(model.probes, to);
  transpose_codewords(shape, model.codebook,
                      reinterpret_cast<float*>(to + coarse_lists::bytes(shape.nlist, shape.dim)));
}

prepared_model::prepared_model(const core::ivf_pq_model& model)
    : lists(model.probes, model.prepared),
      words(reinterpret_cast<const float*>(model.prepared + coarse_lists::bytes(model.shape.nlist, model.shape.dim))) {}

float term_of(const core::ivf_pq_model& model, std::int64_t list, const std::uint8_t* codes, double& squares) {
  const core::ivf_pq_shape& shape = model.shape;
  const float* centroid = shape.encodes == encoded::residual ? centroid_of(model, list) : nullptr;
  double ww = 0.0;
  double cw = 0.0;
  for (std::int64_t piece = 0; piece < shape.pieces; ++piece) {
    const float* word = model.codebook + (piece * shape.codewords() + codes[piece]) * shape.piece_dim;
    const std::int64_t first = piece * shape.piece_dim;
    const std::int64_t count = std::min(shape.piece_dim, shape.dim - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto w = static_cast<double>(word[i]);
      ww += w * w;
      if (centroid != nullptr) cw += w * static_cast<double>(centroid[first + i]);
    }
  }
  squares = ww;
  if (shape.metric != metric::l2) return 0.0f;
  const double term = ww + 2.0 * cw;
  const bool is_number = std::abs(term) <= static_cast<double>(std::numeric_limits<float>::max());
  return is_number ? static_cast<float>(term) : std::numeric_limits<float>::quiet_NaN();
}

table_sizes::table_sizes(const core::ivf_pq_shape& shape)
    : table_bytes(round_up(shape.pieces * shape.codewords() * 4, kCacheLineBytes)),
      least_bytes(round_up(shape.pieces * 4, kCacheLineBytes)),
      steps_bytes(round_up(round_up(shape.pieces, 2) * shape.codewords(), kCacheLineBytes)) {}

query_filter::query_filter(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists, const float* query,
                           float inverse_norm, std::byte* memory)
    : shape_(model.shape) {
  const prepared_model prepared(model);
  squared_norm_ = squared_norm_of(query, shape_.dim);
  const double norm = std::sqrt(squared_norm_);
  const double centroid_norm = shape_.encodes == encoded::residual ? prepared.lists.largest : 0.0;
  const double row_norm = centroid_norm + static_cast<double>(*lists.largest);
  const double scale = shape_.metric == metric::l2 ? (norm + row_norm) * (norm + row_norm) : norm * row_norm;
  bound_ = kRounding * roundings(shape_) * scale +
           static_cast<double>(shape_.padded_dim() + kCacheLineBytes) * kUnderflow * (1.0 + norm);
  can_filter_ = scale <= kMostCertain && norm <= kMostCertain;  // false for NaN
  if (shape_.metric == metric::cosine) can_filter_ = can_filter_ && inverse_norm > 0.0f;
  if (!can_filter_) return;

  const table_sizes sizes(shape_);
  auto* table = reinterpret_cast<float*>(memory);
  auto* least = reinterpret_cast<float*>(memory + sizes.table_bytes);
  auto* steps = reinterpret_cast<std::uint8_t*>(memory + sizes.table_bytes + sizes.least_bytes);
  const ivf_pq_kernels& kernels = current_ivf_pq_kernels();
  const float factor = shape_.metric == metric::l2 ? -2.0f : -1.0f;
  const table_range range = kernels.make_table({prepared.words, shape_.piece_dim, shape_.codewords()}, shape_.pieces,
                                               query, factor, table, least);
  const std::int64_t most_of_pair = kMostSum / divide_up(shape_.pieces, 2);  // of two neighbouring pieces' entries
  const float most = std::min(kMostSteps, static_cast<float>(most_of_pair));
  // Where entries hardly differ, steps are of the bound's size: smaller ones would tell nothing more.
  step_ = std::max({range.widest / most, static_cast<float>(bound_), std::numeric_limits<float>::min()});
  inverse_step_ = 1.0f / step_;
  kernels.make_bytes(table, least, shape_.pieces, shape_.codewords(), inverse_step_, most, steps);
  if (shape_.pieces % 2 != 0)
    std::fill_n(steps + shape_.pieces * shape_.codewords(), shape_.codewords(), std::uint8_t{0});
  sum_of_least_ = range.sum_of_least;
  steps_bound_ = static_cast<double>(shape_.pieces) * static_cast<double>(step_) + 2.0 * bound_;
  table_ = table;
  steps_ = steps;
}

double query_filter::oriented(std::uint64_t key, float inverse_norm) const {
  const auto score = static_cast<double>(core::score_from_key(core::key_of(key), shape_.metric));
  switch (shape_.metric) {
    case metric::l2: return score;
    case metric::inner_product: return -score;
    case metric::cosine: return -score / static_cast<double>(inverse_norm);
  }
  return score;
}

list_filter query_filter::of_list(float base, float limit) const {
  return {.bytes = steps_,
          .bits = shape_.bits,
          .base = base,
          .offset = static_cast<float>(static_cast<double>(base) + sum_of_least_),
          .step = step_,
          .inverse_step = inverse_step_,
          .limit = limit};
}

float query_filter::estimate(float base, const std::byte* page, std::int64_t row) const {
  const std::uint8_t* codes = page_layout::codes(page) + page_layout::place_in_strip(row);
  const std::int64_t pieces = shape_.pieces;
  const float* entries = table_;
  float sums[4] = {};  // that do not wait for each other
  std::int64_t piece = 0;
  if (shape_.bits == 4) {
    for (; piece + 4 <= pieces; piece += 4, entries += 64, codes += 2 * core::kPageRows) {
      const int first = codes[0];
      const int second = codes[core::kPageRows];
      sums[0] += entries[first & 15];
      sums[1] += entries[16 + (first >> 4)];
      sums[2] += entries[32 + (second & 15)];
      sums[3] += entries[48 + (second >> 4)];
    }
    for (; piece < pieces; piece += 2, entries += 32, codes += core::kPageRows) {
      sums[0] += entries[*codes & 15];
      if (piece + 1 < pieces) sums[1] += entries[16 + (*codes >> 4)];
    }
  } else {
    const std::int64_t count = shape_.codewords();
    for (; piece + 4 <= pieces; piece += 4, entries += 4 * count, codes += 4 * core::kPageRows) {
      sums[0] += entries[codes[0]];
      sums[1] += entries[count + codes[core::kPageRows]];
      sums[2] += entries[2 * count + codes[2 * core::kPageRows]];
      sums[3] += entries[3 * count + codes[3 * core::kPageRows]];
    }
    for (; piece < pieces; ++piece, entries += count, codes += core::kPageRows) sums[0] += entries[*codes];
  }
  return base + page_layout::terms(page)[row] + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace shortlist::cpu
