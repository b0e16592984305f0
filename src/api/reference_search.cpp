// The oracle behind the public border: arguments are checked as a search's are, labels and padding are added.
#include <algorithm>

#include "core/message.hpp"
#include "core/order.hpp"
#include "index/checks.hpp"
#include "index/labels.hpp"
#include "index/widen.hpp"
#include "reference/reference.hpp"
#include "shortlist/flat_index.hpp"

namespace shortlist {

search_result reference_search(any_matrix_view vectors, any_matrix_view queries, metric by,
                               const search_options& options, std::span<const std::int64_t> ids) {
  index::check_options({.dim = vectors.cols, .metric = by, .type = vectors.type});
  index::check_matrix("vectors", vectors, vectors.cols);
  index::check_row_count("vectors", vectors.rows, 0);
  index::check_matrix("queries", queries, vectors.cols);
  index::check_search(queries.rows, options);
  return index::with_host_memory([&] {
    index::labels names;
    names.append(0, vectors.rows, ids).keep();

    search_result result;
    result.queries = queries.rows;
    result.k = options.k;
    result.k_found = std::min(options.k, vectors.rows);
    const auto entries = static_cast<std::size_t>(queries.rows * options.k);
    result.scores.assign(entries, core::worst_score(by));
    result.ids.assign(entries, core::kNoId);

    std::vector<float> query(static_cast<std::size_t>(queries.cols));
    for (std::int64_t row = 0; row < queries.rows; ++row) {
      index::widen_rows(queries, row, 1, query.data());
      auto entry = static_cast<std::size_t>(row * options.k);
      for (const reference::hit& found : reference::search(vectors, query.data(), by, options.k)) {
        result.scores[entry] = found.score;
        result.ids[entry] = names.given() ? names.all()[static_cast<std::size_t>(found.position)] : found.position;
        ++entry;
      }
    }
    return result;
  });
}

}  // namespace shortlist
