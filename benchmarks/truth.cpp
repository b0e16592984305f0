// The right answer, from reference_search over row ranges, merged. See truth.hpp.
#include "truth.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>

#include "parallel.hpp"

namespace shortlist::benchmark {
namespace {

struct scored_row {
  float score = 0;
  std::int64_t id = 0;
};

/// The one order under an inner product: larger first, NaN after everything else, ties by position.
bool comes_before(const scored_row& a, const scored_row& b) {
  const bool a_is_nan = std::isnan(a.score);
  const bool b_is_nan = std::isnan(b.score);
  if (a_is_nan != b_is_nan) return b_is_nan;
  if (!a_is_nan && a.score != b.score) return a.score > b.score;
  return a.id < b.id;
}

}  // namespace

std::optional<std::string> first_difference(const answer& found, std::int64_t query, const answer& expected,
                                            std::int64_t expected_query) {
  for (std::int64_t i = 0; i < found.k; ++i) {
    const auto at = static_cast<std::size_t>(query * found.k + i);
    const auto expected_at = static_cast<std::size_t>(expected_query * expected.k + i);
    const auto bits = std::bit_cast<std::uint32_t>(found.scores[at]);
    const auto expected_bits = std::bit_cast<std::uint32_t>(expected.scores[expected_at]);
    if (found.ids[at] == expected.ids[expected_at] && bits == expected_bits) continue;
    return fmt::format(
        "query {}, place {}: id {} score {:.9g} (bits {:08x}), expected id {} score {:.9g} (bits {:08x})", query, i,
        found.ids[at], found.scores[at], bits, expected.ids[expected_at], expected.scores[expected_at], expected_bits);
  }
  return std::nullopt;
}

const answer& truth::of(std::int64_t index) {
  if (const auto known = known_.find(index); known != known_.end()) return known->second;

  std::vector<scored_row> best;
  std::mutex guard;
  over_cores(rows_.rows(), [&](std::int64_t first, std::int64_t last) {
    const search_result part = reference_search(rows_.view(first, last - first), queries_.view(index, 1),
                                                metric::inner_product, {.k = max_k_});
    const std::scoped_lock lock(guard);
    for (std::int64_t i = 0; i < part.k_found; ++i) {
      best.push_back({part.scores[static_cast<std::size_t>(i)], part.ids[static_cast<std::size_t>(i)] + first});
    }
  });
  std::sort(best.begin(), best.end(), comes_before);

  answer right(1, max_k_);
  for (std::size_t i = 0; i < right.ids.size(); ++i) {
    right.scores[i] = best[i].score;
    right.ids[i] = best[i].id;
  }
  return known_.emplace(index, std::move(right)).first->second;
}

}  // namespace shortlist::benchmark
