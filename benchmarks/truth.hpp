// What the right answer is, by the library's reference, and whether an answer is it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "corpus.hpp"
#include "shortlist/flat_index.hpp"

namespace shortlist::benchmark {

/// One answer: `queries` lists of k, best first.
struct answer {
  std::int64_t k = 0;
  std::vector<float> scores;
  std::vector<std::int64_t> ids;

  answer(std::int64_t queries, std::int64_t k)
      : k(k), scores(static_cast<std::size_t>(queries * k)), ids(static_cast<std::size_t>(queries * k)) {}
  search_output output() { return {scores.data(), ids.data()}; }
};

/// Where list `query` of `found` first differs from list `expected_query` of `expected`, in words; nothing if every id
/// and every bit of every score is the same. `expected` may hold longer lists.
std::optional<std::string> first_difference(const answer& found, std::int64_t query, const answer& expected,
                                            std::int64_t expected_query);

/// The reference's answers for one corpus, each computed when first asked for.
class truth {
 public:
  truth(const corpus& rows, const query_pool& queries, std::int64_t max_k)
      : rows_(rows), queries_(queries), max_k_(std::min(max_k, rows.rows())) {}

  /// Query `index` of the pool: [1, max_k].
  const answer& of(std::int64_t index);

 private:
  const corpus& rows_;
  const query_pool& queries_;
  std::int64_t max_k_;
  std::map<std::int64_t, answer> known_;
};

}  // namespace shortlist::benchmark
