// The oracle of row-wise top k: a full sort and plain bisections, written from docs/ordering.md, sections 5, 8 and 9.
//
// It shares nothing with core or the backends, so that a mistake made there is not made here as well.
#pragma once

#include <cstdint>
#include <vector>

#include "shortlist/top_k.hpp"

namespace shortlist::reference {

/// The columns of one row in the order in which they are returned: at most k, and fewer where [begin, end) is shorter.
std::vector<std::int64_t> top_k_columns(const value_matrix& matrix, std::int64_t row, std::int64_t begin,
                                        std::int64_t end, const top_k_options& options);

/// How many midpoints Algorithm 1 counts in one row before it ends, with an absent eps as 0; none in a row that takes
/// the exact path.
int bisection_steps(const value_matrix& matrix, std::int64_t row, std::int64_t begin, std::int64_t end,
                    const top_k_options& options);

/// Every byte that shortlist::top_k writes, for host memory. Arguments are trusted.
void top_k(const value_matrix& matrix, const ragged_rows& ragged, const top_k_options& options,
           const top_k_output& out);

}  // namespace shortlist::reference
