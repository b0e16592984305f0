// An IVF-PQ index as the reference sees it: what was trained and coded, read from the index's file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/ivf_pq.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist::conformance {

struct ivf_pq_oracle {
  reference::ivf_pq_model model;
  std::vector<reference::ivf_pq_row> rows;  ///< by position

  /// What a search of the index must return; `kept` are the rows as they were added.
  ivf_pq_result expected(any_matrix_view kept, matrix_view<const float> queries,
                         const ivf_pq_search_options& options) const;
};

/// Saves the index to a file that vanishes again, and reads that.
ivf_pq_oracle oracle_of(const ivf_pq_index& index);

/// Empty if both are equal to the bit, else the first difference.
std::string first_difference(const ivf_pq_result& found, const ivf_pq_result& expected);

}  // namespace shortlist::conformance
