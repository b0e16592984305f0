// Scores of rows, to the bit.
#include "cpu/ivf_pq/row_scores.hpp"

#include <algorithm>
#include <cstring>

#include "core/score.hpp"

namespace shortlist::cpu {
namespace {

constexpr auto kFloat = static_cast<std::size_t>(element_type::f32);
constexpr auto kDot = static_cast<std::size_t>(sum_kind::dot);
/// Kept rows lie scattered: so many are fetched ahead, and so many copied to be scored together.
constexpr std::int64_t kRowsAhead = 6;
constexpr std::int64_t kRefinedRows = 16;
/// Of rows that are fetched long before: more would push each other out of the inner cache.
constexpr std::int64_t kFetchedBytes = 24 << 10;

}  // namespace

row_scorer::row_scorer(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists)
    : model_(model),
      shape_(model.shape),
      lists_(lists),
      kernels_(current_flat_kernels()),
      layout_(model.shape),
      page_bytes_(layout_.bytes()),
      kind_(static_cast<std::size_t>(model.shape.metric == metric::l2 ? sum_kind::l2 : sum_kind::dot)) {}

padded_query row_scorer::pad(const float* query, float* to) const {
  const std::int64_t dim = shape_.dim;
  std::copy_n(query, dim, to);
  std::fill(to + dim, to + query_capacity(shape_), core::kQueryPadding);
  if (shape_.metric != metric::cosine) return {to, 0.0f};
  float sums[1 + kSumsSlack];
  kernels_.square_sums[kFloat]({reinterpret_cast<const std::byte*>(to), padded_dim(dim) * 4, 1}, dim, sums);
  return {to, core::inverse_norm(sums[0])};
}

float row_scorer::dot_with_centroid(const padded_query& query, std::int64_t list) const {
  const core::flat_corpus& centroids = model_.assigns;
  float sums[1 + kSumsSlack];
  const row_span row = {reinterpret_cast<const std::byte*>(centroid(list)), centroids.row_stride_bytes, 1};
  kernels_.row_sums[kFloat][kDot](query.elements, row, shape_.dim, sums);
  return sums[0];
}

const float* row_scorer::centroid(std::int64_t list) const {
  return reinterpret_cast<const float*>(static_cast<const std::byte*>(model_.assigns.rows) +
                                        list * model_.assigns.row_stride_bytes);
}

/// What a row's codes stand for, padded as the score's kernels read rows.
void row_scorer::decode(const std::byte* page, std::int64_t row, std::int64_t list, float* to) const {
  const std::int64_t piece_dim = shape_.piece_dim;
  const float* words = model_.codebook;
  for (std::int64_t piece = 0; piece < shape_.pieces; ++piece, words += shape_.codewords() * piece_dim) {
    const float* word = words + layout_.code(page, row, piece) * piece_dim;
    const std::int64_t first = piece * piece_dim;
    const std::int64_t count = std::min(piece_dim, shape_.dim - first);
    for (std::int64_t i = 0; i < count; ++i) to[first + i] = word[i];
  }
  if (shape_.encodes == encoded::residual) {
    const float* from = centroid(list);
    for (std::int64_t i = 0; i < shape_.dim; ++i) to[i] = from[i] + to[i];
  }
  std::fill(to + shape_.dim, to + ivf_pq_scratch::decoded_stride(shape_.dim), core::kRowPadding);
}

void row_scorer::add_decoded(const padded_query& query, const float* decoded, const std::uint32_t* positions,
                             std::int64_t count, best_rows& found) const {
  float sums[core::kPageRows + kSumsSlack];
  const row_span rows = {reinterpret_cast<const std::byte*>(decoded), ivf_pq_scratch::decoded_stride(shape_.dim) * 4,
                         count};
  kernels_.row_sums[kFloat][kind_](query.elements, rows, shape_.dim, sums);
  for (std::int64_t i = 0; i < count; ++i) {
    float score = sums[i];
    // Rows were divided by their norms before they were encoded: theirs counts as 1.
    if (shape_.metric == metric::cosine) score = core::cosine_score(score, query.inverse_norm, 1.0f);
    found.add(core::row_key(core::score_key(score, shape_.metric), positions[i]));
  }
}

void row_scorer::add(const padded_query& query, const candidate* rows, std::int64_t count, float* decoded,
                     best_rows& found) const {
  std::uint32_t positions[core::kPageRows];
  for (std::int64_t i = 0; i < count; ++i) {
    decode(page_of(rows[i]), rows[i].place % kPlaces, rows[i].list,
           decoded + i * ivf_pq_scratch::decoded_stride(shape_.dim));
    positions[i] = position(rows[i]);
  }
  add_decoded(query, decoded, positions, count, found);
}

std::int64_t row_scorer::add_list(const padded_query& query, std::int64_t list, float* decoded,
                                  best_rows& found) const {
  const std::int64_t stride = ivf_pq_scratch::decoded_stride(shape_.dim);
  const std::int64_t rows = lists_.sizes[list];
  for (std::int64_t first = 0; first < rows; first += core::kPageRows) {
    const std::byte* of_rows = page(lists_.table[lists_.first[list] + first / core::kPageRows]);
    const std::int64_t count = std::min(core::kPageRows, rows - first);
    for (std::int64_t row = 0; row < count; ++row) decode(of_rows, row, list, decoded + row * stride);
    add_decoded(query, decoded, page_layout::positions(of_rows), count, found);
  }
  return rows;
}

void row_scorer::fetch_kept(const best_rows& found) const {
  const std::int64_t rows = std::min(found.size(), kFetchedBytes / kept_bytes());
  for (std::int64_t i = 0; i < rows; ++i) fetch_kept_row(found.keys()[i]);
}

void row_scorer::refine(const padded_query& query, float* copied, best_rows& found) const {
  const core::flat_corpus& kept = lists_.kept;
  const auto row_sums = kernels_.row_sums[static_cast<std::size_t>(kept.type)][kind_];
  const std::int64_t stride = kept_bytes();
  for (std::int64_t i = 0; i < std::min(kRowsAhead, found.size()); ++i) fetch_kept_row(found.keys()[i]);
  auto* to = reinterpret_cast<std::byte*>(copied);
  for (std::int64_t first = 0; first < found.size(); first += kRefinedRows) {
    const std::int64_t count = std::min(kRefinedRows, found.size() - first);
    for (std::int64_t i = first; i < first + count; ++i) {
      if (i + kRowsAhead < found.size()) fetch_kept_row(found.keys()[i + kRowsAhead]);
      std::memcpy(to + (i - first) * stride, kept_row(found.keys()[i]), static_cast<std::size_t>(stride));
    }
    float sums[kRefinedRows + kSumsSlack];
    row_sums(query.elements, {to, stride, count}, shape_.dim, sums);
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint64_t& key = found.keys()[first + i];
      const std::uint32_t position = core::position_of(key);
      float score = sums[i];
      if (shape_.metric == metric::cosine) {
        score = core::cosine_score(score, query.inverse_norm, kept.inverse_norms[position]);
      }
      key = core::row_key(core::score_key(score, shape_.metric), position);
    }
  }
}

}  // namespace shortlist::cpu
