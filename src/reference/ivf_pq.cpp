// See docs/ivf_pq.md, sections 1 and 2.
#include "reference/ivf_pq.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace shortlist::reference {
namespace {

/// The rotation times a vector.
std::vector<float> turned(const ivf_pq_model& model, const std::vector<float>& x) {
  if (model.rotation.empty()) return x;
  std::vector<float> y;
  for (std::int64_t i = 0; i < model.dim; ++i) {
    y.push_back(dot(model.rotation.data() + i * model.dim, x.data(), model.dim));
  }
  return y;
}

const float* centroid(const ivf_pq_model& model, std::int64_t list) {
  return model.centroids.data() + list * model.dim;
}

const float* codeword(const ivf_pq_model& model, std::int64_t piece, std::int64_t code) {
  return model.codebook.data() + ((piece << model.bits) + code) * model.piece_dim;
}

/// Best first; of equals the one that stood first.
void sort_by_score(std::vector<hit>& hits, metric by) {
  std::stable_sort(hits.begin(), hits.end(),
                   [by](const hit& a, const hit& b) { return is_better(a.score, b.score, by); });
}

void keep_first(std::vector<hit>& hits, std::int64_t count) {
  if (static_cast<std::int64_t>(hits.size()) > count) hits.resize(static_cast<std::size_t>(count));
}

}  // namespace

std::vector<float> scalar_codebook(const std::vector<float>& steps, int bits) {
  std::vector<float> codebook;
  const int codes = 1 << bits;
  for (const float step : steps) {
    for (int n = 0; n < codes; ++n) {
      const float m = static_cast<float>(n) - static_cast<float>(codes - 1) / 2.0f;
      codebook.push_back(m * step);
    }
  }
  return codebook;
}

std::vector<float> take_row(const ivf_pq_model& model, any_matrix_view rows, std::int64_t row) {
  std::vector<float> x = widened(rows, row);
  if (model.by == metric::cosine) {
    const float squared_norm = dot(x.data(), x.data(), model.dim);
    if (squared_norm != 0.0f) {
      const float factor = inverse_norm(squared_norm);
      for (float& element : x) element *= factor;
    }
  }
  return turned(model, x);
}

std::int64_t assign(const ivf_pq_model& model, const std::vector<float>& taken) {
  const matrix_view<const float> centroids(model.centroids.data(), model.nlist, model.dim);
  return search(centroids, taken.data(), metric::l2, 1).front().position;
}

std::vector<float> to_encode(const ivf_pq_model& model, const std::vector<float>& taken, std::int64_t list) {
  std::vector<float> padded(static_cast<std::size_t>(model.pieces * model.piece_dim), 0.0f);
  for (std::size_t i = 0; i < taken.size(); ++i) {
    padded[i] = model.encodes == encoded::residual ? taken[i] - centroid(model, list)[i] : taken[i];
  }
  return padded;
}

std::vector<std::uint8_t> encode(const ivf_pq_model& model, const std::vector<float>& padded) {
  std::vector<std::uint8_t> codes;
  for (std::int64_t piece = 0; piece < model.pieces; ++piece) {
    hit nearest{std::numeric_limits<float>::quiet_NaN(), 0};
    for (std::int64_t code = 0; code < std::int64_t{1} << model.bits; ++code) {
      float d = 0.0f;
      for (std::int64_t i = 0; i < model.piece_dim; ++i) {
        const float t = padded[static_cast<std::size_t>(piece * model.piece_dim + i)] - codeword(model, piece, code)[i];
        d = std::fma(t, t, d);
      }
      if (is_better(d, nearest.score, metric::l2)) nearest = {d, code};
    }
    codes.push_back(static_cast<std::uint8_t>(nearest.position));
  }
  return codes;
}

std::vector<float> decode(const ivf_pq_model& model, const ivf_pq_row& row) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < model.dim; ++i) {
    const std::int64_t piece = i / model.piece_dim;
    const float w = codeword(model, piece, row.codes[static_cast<std::size_t>(piece)])[i % model.piece_dim];
    x.push_back(model.encodes == encoded::residual ? centroid(model, row.list)[i] + w : w);
  }
  return x;
}

std::vector<float> turn_query(const ivf_pq_model& model, const float* query) {
  return turned(model, std::vector<float>(query, query + model.dim));
}

std::vector<std::int64_t> probe(const ivf_pq_model& model, const std::vector<float>& turned, std::int64_t nprobe) {
  const matrix_view<const float> centroids(model.centroids.data(), model.nlist, model.dim);
  std::vector<std::int64_t> lists;
  for (const hit& found : search(centroids, turned.data(), model.by, nprobe)) lists.push_back(found.position);
  return lists;
}

float score_by_code(const ivf_pq_model& model, const std::vector<float>& turned, const ivf_pq_row& row) {
  const std::vector<float> x = decode(model, row);
  if (model.by == metric::l2) return as_returned(squared_distance(turned.data(), x.data(), model.dim));
  const float product = dot(turned.data(), x.data(), model.dim);
  if (model.by == metric::inner_product) return as_returned(product);
  const float squared_norm = dot(turned.data(), turned.data(), model.dim);
  if (squared_norm == 0.0f) return -std::numeric_limits<float>::infinity();
  return as_returned(product * inverse_norm(squared_norm));
}

std::vector<hit> ivf_pq_search(const ivf_pq_model& model, const std::vector<ivf_pq_row>& rows, any_matrix_view kept,
                               const float* query, std::int64_t k, std::int64_t nprobe, std::int64_t refine_ratio) {
  const std::vector<float> turned = turn_query(model, query);
  std::vector<bool> is_probed(static_cast<std::size_t>(model.nlist));
  for (const std::int64_t list : probe(model, turned, nprobe)) is_probed[static_cast<std::size_t>(list)] = true;
  std::vector<hit> hits;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!is_probed[static_cast<std::size_t>(rows[i].list)]) continue;
    hits.push_back({score_by_code(model, turned, rows[i]), static_cast<std::int64_t>(i)});
  }
  sort_by_score(hits, model.by);
  if (refine_ratio > 0) {
    keep_first(hits, refine_ratio * k);
    std::sort(hits.begin(), hits.end(), [](const hit& a, const hit& b) { return a.position < b.position; });
    for (hit& found : hits) found.score = score(kept, found.position, query, model.by);
    sort_by_score(hits, model.by);
  }
  keep_first(hits, k);
  return hits;
}

std::vector<float> mean(const float* rows, std::int64_t count, std::int64_t dim, int a, std::int64_t m) {
  int b = 0;
  while ((std::int64_t{1} << b) < m) ++b;
  const int scale = 61 - a - b;
  std::vector<float> result;
  for (std::int64_t i = 0; i < dim; ++i) {
    std::int64_t sum = 0;
    for (std::int64_t row = 0; row < count; ++row) {
      sum += static_cast<std::int64_t>(std::nearbyint(std::ldexp(static_cast<double>(rows[row * dim + i]), scale)));
    }
    result.push_back(static_cast<float>(std::ldexp(static_cast<double>(sum) / static_cast<double>(count), -scale)));
  }
  return result;
}

}  // namespace shortlist::reference
