// The oracle: scores by the definition and selection by a full sort, written from docs/ordering.md alone.
//
// It shares nothing with core or the backends, so that a mistake made there is not made here as well.
#pragma once

#include <cstdint>
#include <vector>

#include "shortlist/types.hpp"

namespace shortlist::reference {

struct hit {
  float score;
  std::int64_t position;
};

// The parts of a score, by name in docs/ordering.md.
float dot(const float* a, const float* b, std::int64_t dim);
float squared_distance(const float* a, const float* b, std::int64_t dim);
float inverse_norm(float squared_norm);
float as_returned(float score);
/// Whether score `a` comes before score `b`. Equal scores, and two NaN, come neither before nor after each other.
bool is_better(float a, float b, metric by);
/// Row `row`, each element as fp32.
std::vector<float> widened(any_matrix_view rows, std::int64_t row);

/// The score of one query and row `row`, as it is returned. `query` has rows.cols elements.
float score(any_matrix_view rows, std::int64_t row, const float* query, metric by);

/// The min(k, rows) best rows of one query, best first.
std::vector<hit> search(any_matrix_view rows, const float* query, metric by, std::int64_t k);

}  // namespace shortlist::reference
