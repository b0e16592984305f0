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

/// The score of one query and row `row`, as it is returned. `query` has rows.cols elements.
float score(any_matrix_view rows, std::int64_t row, const float* query, metric by);

/// The min(k, rows) best rows of one query, best first.
std::vector<hit> search(any_matrix_view rows, const float* query, metric by, std::int64_t k);

}  // namespace shortlist::reference
