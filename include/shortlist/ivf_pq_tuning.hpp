// How to choose an IVF-PQ index: a guess from sizes alone, and a measurement on an index that is there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shortlist/ivf_pq_index.hpp"

namespace shortlist {

/// What an index is for.
struct ivf_pq_need {
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  element_type type = element_type::f32;
  std::int64_t memory_bytes = 0;        ///< of the device, for codes and, if they fit too, rows
  double recall = 0.95;                 ///< of the ten nearest, below 1
  double read_bytes_per_second = 2e12;  ///< at which the device reads the codes; 2 TB/s is a GPU of 2022
};

/// A first guess, to be measured by `tune`: the shares of lists that a recall takes are rules of thumb.
struct ivf_pq_suggestion {
  ivf_pq_options options;            ///< dim, type, nlist, pq_dim and whether rows are kept
  ivf_pq_search_options search;      ///< nprobe, refine_ratio
  std::int64_t device_bytes = 0;     ///< of codes with positions, and of rows kept on the device
  std::int64_t bytes_per_query = 0;  ///< of codes, with the mean list
  double predicted_qps = 0.0;        ///< read_bytes_per_second / bytes_per_query: codes read once a query, nothing else
};

/// A pure function. @throws invalid_argument that names the value, also if the codes would not fit.
ivf_pq_suggestion suggest(const ivf_pq_need& need);

/// A measured choice.
struct tune_point {
  std::int64_t nprobe = 0;
  std::int64_t refine_ratio = 0;
  double recall = 0.0;
  double queries_per_second = 0.0;  ///< host to host, all queries in one call
  /// What the bandwidth model of IVF-PQ has a query read: codes and positions of nprobe mean lists, and rows refined.
  std::int64_t bytes_per_query = 0;
};

struct tune_options {
  std::int64_t k = 10;
  double recall = 0.95;  ///< that is to be reached, up to 1
  /// The ids of the true nearest, [queries, k or more]; without them the kept rows are searched.
  matrix_view<const std::int64_t> truth = {};
  std::function<proceed(const tune_point&)> progress = nullptr;  ///< after every point; `no` ends with `cancelled`
};

struct tune_result {
  tune_point best;  ///< the fastest that reaches the recall; if none does, the one that comes nearest
  bool reached = false;
  std::vector<tune_point> points;  ///< all that were measured, in that order
};

/// Finds, for several refine_ratio, the least nprobe that reaches the recall, and takes the fastest of these.
/// @throws invalid_argument if there is neither truth nor rows, or the index is empty.
tune_result tune(const ivf_pq_index& index, any_matrix_view queries, const tune_options& options);

/// The share of the first k true ids of each query that are among the first k found. Both [queries, k or more].
double recall_of(matrix_view<const std::int64_t> found, matrix_view<const std::int64_t> truth, std::int64_t k);

/// Recall and speed at nprobe 1, 2, 4, ... and nlist, of one refine_ratio; options.recall does not matter.
std::vector<tune_point> recall_curve(const ivf_pq_index& index, any_matrix_view queries, const tune_options& options,
                                     std::int64_t refine_ratio);

}  // namespace shortlist
