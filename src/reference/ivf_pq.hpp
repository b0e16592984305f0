// The oracle of IVF-PQ: plain loops over docs/ivf_pq.md, whose numbered steps stand beside what follows them.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/reference.hpp"
#include "shortlist/ivf_pq_index.hpp"

namespace shortlist::reference {

/// What was trained, and how rows are kept.
struct ivf_pq_model {
  std::int64_t dim = 0;
  metric by = metric::l2;
  encoded encodes = encoded::residual;
  std::int64_t nlist = 0;
  std::int64_t pieces = 0;
  std::int64_t piece_dim = 0;
  int bits = 8;
  std::vector<float> centroids = {};  ///< [nlist, dim]
  std::vector<float> codebook = {};   ///< [pieces, 2^bits, piece_dim], as scalar_codebook makes it for scalar codes
  std::vector<float> rotation = {};   ///< [dim, dim], or empty
};

struct ivf_pq_row {
  std::int64_t list = 0;
  std::vector<std::uint8_t> codes;  ///< [pieces]
};

/// The codewords of scalar codes: [dim, 2^bits].
std::vector<float> scalar_codebook(const std::vector<float>& steps, int bits);

/// Step 1: row `row` as the index takes it in.
std::vector<float> take_row(const ivf_pq_model& model, any_matrix_view rows, std::int64_t row);
/// Step 2, of a row taken in.
std::int64_t assign(const ivf_pq_model& model, const std::vector<float>& taken);
/// Step 3, padded to whole pieces.
std::vector<float> to_encode(const ivf_pq_model& model, const std::vector<float>& taken, std::int64_t list);
/// Step 4, of what step 3 gives.
std::vector<std::uint8_t> encode(const ivf_pq_model& model, const std::vector<float>& padded);
/// Step 5.
std::vector<float> decode(const ivf_pq_model& model, const ivf_pq_row& row);
/// Step 6: the query as lists and codes are compared with it, and its lists, best first.
std::vector<float> turn_query(const ivf_pq_model& model, const float* query);
std::vector<std::int64_t> probe(const ivf_pq_model& model, const std::vector<float>& turned, std::int64_t nprobe);
/// Step 7.
float score_by_code(const ivf_pq_model& model, const std::vector<float>& turned, const ivf_pq_row& row);

/// Step 8: the best rows of one query, at most k. `rows` has the list and codes of every row by position; `kept` the
/// rows as they were added, which are looked at if refine_ratio > 0.
std::vector<hit> ivf_pq_search(const ivf_pq_model& model, const std::vector<ivf_pq_row>& rows, any_matrix_view kept,
                               const float* query, std::int64_t k, std::int64_t nprobe, std::int64_t refine_ratio);

/// Section 2: the mean of `count` rows [count, dim], of m rows trained with, all elements of which are below 2^a.
std::vector<float> mean(const float* rows, std::int64_t count, std::int64_t dim, int a, std::int64_t m);

}  // namespace shortlist::reference
