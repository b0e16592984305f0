// IVF-PQ search on the CPU: lists by a flat search over the centroids, then each query's rows on one core.
//
// Keys of rows order them completely, so that neither the lists' order nor the split over cores can be seen.
#include "cpu/flat/search.hpp"

#include <algorithm>
#include <atomic>
#include <functional>

#include "core/order.hpp"
#include "core/plan.hpp"
#include "core/score.hpp"
#include "cpu/flat/kernels.hpp"
#include "cpu/ivf_pq/layout.hpp"
#include "cpu/ivf_pq/scratch.hpp"

namespace shortlist::cpu {
namespace {

constexpr auto kFloat = static_cast<std::size_t>(element_type::f32);

/// The best rows found so far: cut back to `wanted` when they fill their room, after which only better ones are let in.
class best_rows {
 public:
  best_rows(std::uint64_t* keys, std::int64_t wanted) : keys_(keys), wanted_(wanted), room_(key_capacity(wanted)) {}

  void add(std::uint64_t key) {
    keys_[size_] = key;
    size_ += key > least_ ? 1 : 0;
    if (size_ == room_) cut();
  }
  void cut() {
    if (size_ <= wanted_) return;
    std::nth_element(keys_, keys_ + wanted_ - 1, keys_ + size_, std::greater<>());
    size_ = wanted_;
    if (wanted_ > 0) least_ = keys_[wanted_ - 1];
  }
  std::uint64_t* keys() { return keys_; }
  std::int64_t size() const { return size_; }
  /// A key that `wanted` rows reach, or kNoRow.
  std::uint64_t least() const { return least_; }

 private:
  std::uint64_t* keys_;
  std::int64_t wanted_;
  std::int64_t room_;
  std::int64_t size_ = 0;
  std::uint64_t least_ = core::kNoRow;
};

/// Queries as given, and as lists and codes are compared with them.
struct query_rows {
  const float* data = nullptr;
  std::int64_t stride = 0;
  const float* at(std::int64_t query) const { return data + query * stride; }
};

class searcher {
 public:
  searcher(ivf_pq_scratch& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
           const core::ivf_pq_request& request)
      : memory_(memory),
        model_(model),
        shape_(model.shape),
        lists_(lists),
        request_(request),
        kernels_(current_flat_kernels()),
        layout_(model.shape),
        looked_for_(rows_by_code(request.k, request.refine_ratio, lists.rows)),
        kind_(static_cast<std::size_t>(model.shape.metric == metric::l2 ? sum_kind::l2 : sum_kind::dot)) {}

  void search();

 private:
  float* padded_at(int slot) const { return memory_.queries.as<float>() + slot * padded_dim(shape_.dim); }

  void turn_queries(std::int64_t first, std::int64_t count);
  void probe(std::int64_t first, std::int64_t count);
  float pad(const float* query, float* padded) const;
  void answer(int slot, std::int64_t first, std::int64_t q);
  void decode(const std::byte* page, std::int64_t rows, const float* centroid, float* out) const;
  void score_page(int slot, const std::byte* page, std::int64_t rows, std::int64_t list, float query_inverse_norm,
                  best_rows& found) const;
  void refine(int slot, std::int64_t query, best_rows& found) const;
  void write(std::int64_t query, best_rows& found) const;

  ivf_pq_scratch& memory_;
  const core::ivf_pq_model& model_;
  const core::ivf_pq_shape& shape_;
  const core::ivf_pq_lists& lists_;
  const core::ivf_pq_request& request_;
  const flat_kernels& kernels_;
  const page_layout layout_;
  const std::int64_t looked_for_;
  const std::size_t kind_;
  query_rows turned_;  // of the group
  std::atomic<std::int64_t> decoded_rows_{0};
};

/// The group's queries as rows are: with a rotation, turned.
void searcher::turn_queries(std::int64_t first, std::int64_t count) {
  turned_ = {request_.queries + first * request_.query_stride, request_.query_stride};
  if (model_.rotation == nullptr) return;
  const std::int64_t dim = shape_.dim;
  float* to = memory_.turned.as<float>();
  std::atomic<std::int64_t> next{0};
  for_each_slot(static_cast<int>(std::min<std::int64_t>(thread_count(), count)), [&](int slot) {
    float* padded = padded_at(slot);
    std::fill(padded + dim, padded + padded_dim(dim), core::kQueryPadding);
    for (std::int64_t q = next++; q < count; q = next++) {
      std::copy_n(turned_.at(q), dim, padded);
      memory_.rotation().turn(padded, to + q * dim);
    }
  });
  turned_ = {to, dim};
}

/// The lists of the group's queries, best first.
void searcher::probe(std::int64_t first, std::int64_t count) {
  turn_queries(first, count);
  const core::flat_request request = {.queries = turned_.data,
                                      .query_stride = turned_.stride,
                                      .query_count = count,
                                      .k = request_.nprobe,
                                      .scores = memory_.probe_scores.as<float>(),
                                      .ids = memory_.probes.as<std::int64_t>()};
  flat_search(core::choose_flat_algorithm(device_kind::cpu, core::shape_of(model_.probes, request)), memory_.coarse(),
              model_.probes, request);
}

/// Copies a query, padded; returns its inverse norm under cosine.
float searcher::pad(const float* query, float* padded) const {
  const std::int64_t dim = shape_.dim;
  std::copy_n(query, dim, padded);
  std::fill(padded + dim, padded + padded_dim(dim), core::kQueryPadding);
  if (shape_.metric != metric::cosine) return 0.0f;
  float sums[1 + kSumsSlack];
  kernels_.square_sums[kFloat]({reinterpret_cast<const std::byte*>(padded), padded_dim(dim) * 4, 1}, dim, sums);
  return core::inverse_norm(sums[0]);
}

/// What the codes of a page's rows stand for, padded as the score's kernels read rows.
void searcher::decode(const std::byte* page, std::int64_t rows, const float* centroid, float* out) const {
  const std::int64_t stride = ivf_pq_scratch::decoded_stride(shape_.dim);
  for (std::int64_t row = 0; row < rows; ++row) {
    float* to = out + row * stride;
    for (std::int64_t piece = 0; piece < shape_.pieces; ++piece) {
      const float* word =
          model_.codebook + (piece * shape_.codewords() + layout_.code(page, row, piece)) * shape_.piece_dim;
      const std::int64_t begin = piece * shape_.piece_dim;
      const std::int64_t end = std::min(begin + shape_.piece_dim, shape_.dim);
      for (std::int64_t i = begin; i < end; ++i)
        to[i] = centroid != nullptr ? centroid[i] + word[i - begin] : word[i - begin];
    }
    std::fill(to + shape_.dim, to + stride, core::kRowPadding);
  }
}

void searcher::score_page(int slot, const std::byte* page, std::int64_t rows, std::int64_t list,
                          float query_inverse_norm, best_rows& found) const {
  const std::int64_t stride = ivf_pq_scratch::decoded_stride(shape_.dim);
  float* decoded = memory_.decoded.as<float>() + slot * core::kPageRows * stride;
  const float* centroid = nullptr;
  if (shape_.encodes == encoded::residual) {
    centroid = reinterpret_cast<const float*>(static_cast<const std::byte*>(model_.assigns.rows) +
                                              list * model_.assigns.row_stride_bytes);
  }
  decode(page, rows, centroid, decoded);
  float sums[core::kPageRows + kSumsSlack];
  const row_span span = {reinterpret_cast<const std::byte*>(decoded), stride * 4, rows};
  kernels_.row_sums[kFloat][kind_](padded_at(slot), span, shape_.dim, sums);
  for (std::int64_t row = 0; row < rows; ++row) {
    float score = sums[row];
    // Rows were divided by their norms before they were encoded: theirs counts as 1.
    if (shape_.metric == metric::cosine) score = core::cosine_score(score, query_inverse_norm, 1.0f);
    found.add(core::row_key(core::score_key(score, shape_.metric), page_layout::positions(page)[row]));
  }
}

/// Puts the scores of the rows as they were added in place of those of their codes.
void searcher::refine(int slot, std::int64_t query, best_rows& found) const {
  const core::flat_corpus& kept = lists_.kept;
  float* padded = padded_at(slot);
  const float query_inverse_norm = pad(request_.queries + query * request_.query_stride, padded);
  const auto row_sums = kernels_.row_sums[static_cast<std::size_t>(kept.type)][kind_];
  for (std::int64_t i = 0; i < found.size(); ++i) {
    const std::int64_t position = core::position_of(found.keys()[i]);
    const row_span row = {static_cast<const std::byte*>(kept.rows) + position * kept.row_stride_bytes,
                          kept.row_stride_bytes, 1};
    float sums[1 + kSumsSlack];
    row_sums(padded, row, shape_.dim, sums);
    float score = sums[0];
    if (shape_.metric == metric::cosine) {
      score = core::cosine_score(score, query_inverse_norm, kept.inverse_norms[position]);
    }
    found.keys()[i] = core::row_key(core::score_key(score, shape_.metric), static_cast<std::uint32_t>(position));
  }
}

/// Sorts what was found and writes the k best.
void searcher::write(std::int64_t query, best_rows& found) const {
  const std::int64_t count = std::min(found.size(), request_.k);
  std::partial_sort(found.keys(), found.keys() + count, found.keys() + found.size(), std::greater<>());
  float* scores = request_.scores + query * request_.k;
  std::int64_t* ids = request_.ids + query * request_.k;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t position = core::position_of(found.keys()[i]);
    scores[i] = core::score_from_key(core::key_of(found.keys()[i]), shape_.metric);
    ids[i] = lists_.ids != nullptr ? lists_.ids[position] : position;
  }
  std::fill(scores + count, scores + request_.k, core::worst_score(shape_.metric));
  std::fill(ids + count, ids + request_.k, core::kNoId);
}

/// Query q of the group that begins at `first`.
void searcher::answer(int slot, std::int64_t first, std::int64_t q) {
  best_rows found(memory_.keys.as<std::uint64_t>() + slot * key_capacity(looked_for_), looked_for_);
  const float query_inverse_norm = pad(turned_.at(q), padded_at(slot));
  std::int64_t decoded = 0;
  for (std::int64_t n = 0; n < request_.nprobe; ++n) {
    const std::int64_t list = memory_.probes.as<std::int64_t>()[q * request_.nprobe + n];
    const std::uint32_t* table = lists_.table + lists_.first[list];
    const std::int64_t rows = lists_.sizes[list];
    for (std::int64_t row = 0; row < rows; row += core::kPageRows) {
      const std::byte* page = lists_.pages + table[row / core::kPageRows] * layout_.bytes();
      score_page(slot, page, std::min(core::kPageRows, rows - row), list, query_inverse_norm, found);
    }
    decoded += rows;
  }
  found.cut();
  if (request_.refine_ratio > 0) refine(slot, first + q, found);
  write(first + q, found);
  decoded_rows_ += decoded;
}

void searcher::search() {
  memory_.reserve(std::min(request_.query_count, kMaxQueryGroup), request_.nprobe, looked_for_, shape_.dim);
  for (std::int64_t first = 0; first < request_.query_count; first += kMaxQueryGroup) {
    const std::int64_t count = std::min(kMaxQueryGroup, request_.query_count - first);
    probe(first, count);
    std::atomic<std::int64_t> next{0};
    for_each_slot(static_cast<int>(std::min<std::int64_t>(thread_count(), count)), [&](int slot) {
      for (std::int64_t q = next++; q < count; q = next++) answer(slot, first, q);
    });
  }
  if (request_.stats != nullptr) {
    request_.stats->decoded_rows += decoded_rows_;
    request_.stats->unfiltered_queries += request_.query_count;
  }
}

}  // namespace

std::unique_ptr<core::scratch> make_ivf_pq_scratch(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                                                   const core::ivf_pq_limits& limits) {
  return std::make_unique<ivf_pq_scratch>(model, lists, limits);
}

void ivf_pq_search(core::scratch& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                   const core::ivf_pq_request& request) {
  if (request.query_count == 0 || request.k == 0) return;
  const default_float_environment environment;
  searcher(static_cast<ivf_pq_scratch&>(memory), model, lists, request).search();
}

}  // namespace shortlist::cpu
