#include "conformance/covering.hpp"

#include <algorithm>
#include <array>
#include <random>
#include <set>

namespace shortlist::conformance {
namespace {

constexpr std::int64_t kTypes[] = {0, 1, 2, 3, 4};
constexpr std::int64_t kMetrics[] = {0, 1, 2};
constexpr std::int64_t kDims[] = {1, 2, 3, 100, 127, 128, 129, 257, 384, 768, 1024, 1537, 4096};
constexpr std::int64_t kRows[] = {0, 1, 31, 32, 33, 255, 256, 257, 1000, 4097, 100000};
constexpr std::int64_t kAllRows = -1;       // k = rows
constexpr std::int64_t kMoreThanRows = -2;  // k = rows + 5
constexpr std::int64_t kKs[] = {1, 2, 10, 100, 1000, kAllRows, kMoreThanRows};
constexpr std::int64_t kQueries[] = {1, 2, 5, 16, 17, 33, 64, 200};

enum factor : std::size_t { type_, metric_, dim_, rows_, k_, queries_, distribution_, kFactors };
using choice = std::array<std::size_t, kFactors>;  // an index of each factor's values

constexpr std::array<std::size_t, kFactors> counts() {
  return {std::size(kTypes),
          std::size(kMetrics),
          std::size(kDims),
          std::size(kRows),
          std::size(kKs),
          std::size(kQueries),
          0};
}

test_case case_of(const choice& at) {
  test_case what{.type = static_cast<element_type>(kTypes[at[type_]]),
                 .by = static_cast<metric>(kMetrics[at[metric_]]),
                 .rows = kRows[at[rows_]],
                 .dim = kDims[at[dim_]],
                 .k = kKs[at[k_]],
                 .queries = kQueries[at[queries_]],
                 .distribution = std::string(distributions()[at[distribution_]])};
  if (what.k == kAllRows) what.k = std::max<std::int64_t>(what.rows, 1);
  if (what.k == kMoreThanRows) what.k = what.rows + 5;
  return what;
}

bool is_allowed(const test_case& what, const case_limits& limits) {
  const std::int64_t elements = what.rows * what.dim;
  return is_meaningful(what.distribution, what.type) && elements <= limits.max_elements &&
         elements * what.queries <= limits.max_steps && what.rows * what.queries <= limits.max_scores &&
         what.k * what.queries <= limits.max_scores;
}

struct pair_of_values {
  std::size_t factor_a, value_a, factor_b, value_b;
  auto operator<=>(const pair_of_values&) const = default;
};

std::vector<pair_of_values> pairs_of(const choice& at) {
  std::vector<pair_of_values> pairs;
  for (std::size_t a = 0; a < kFactors; ++a) {
    for (std::size_t b = a + 1; b < kFactors; ++b) pairs.push_back({a, at[a], b, at[b]});
  }
  return pairs;
}

class chooser {
 public:
  chooser(const case_limits& limits, std::uint64_t seed, const pinned& only) : limits_(limits), random_(seed) {
    sizes_ = counts();
    sizes_[distribution_] = distributions().size();
    if (only.is_pinned) {
      fixed_[type_] = static_cast<std::int64_t>(only.type);
      fixed_[metric_] = static_cast<std::int64_t>(only.by);
    }
    for (std::size_t a = 0; a < kFactors; ++a) {
      for (std::size_t b = a + 1; b < kFactors; ++b) {
        for (std::size_t i = 0; i < sizes_[a]; ++i) {
          for (std::size_t j = 0; j < sizes_[b]; ++j) {
            if (is_free(a, i) && is_free(b, j)) open_.insert({a, i, b, j});
          }
        }
      }
    }
  }

  std::vector<test_case> choose() {
    std::vector<test_case> cases;
    while (!open_.empty()) {
      // A random open pair, so that the first cases are no simpler than the last.
      const auto pair = std::next(open_.begin(), static_cast<std::ptrdiff_t>(random_() % open_.size()));
      choice best{};
      if (!best_choice(*pair, best)) {
        open_.erase(pair);  // no case within the limits has this pair
        continue;
      }
      for (const pair_of_values& covered : pairs_of(best)) open_.erase(covered);
      test_case what = case_of(best);
      what.seed = random_() % 1000000;
      cases.push_back(what);
    }
    return cases;
  }

 private:
  bool is_free(std::size_t factor, std::size_t value) const {
    return fixed_[factor] < 0 || static_cast<std::size_t>(fixed_[factor]) == value;
  }

  /// Of some random cases that have the pair, the one with the most open pairs, and of those the cheapest.
  bool best_choice(const pair_of_values& pair, choice& best) {
    constexpr int kTries = 300;
    constexpr int kCandidates = 40;
    std::size_t best_count = 0;
    std::int64_t best_steps = 0;
    int candidates = 0;
    for (int attempt = 0; attempt < kTries && candidates < kCandidates; ++attempt) {
      choice at{};
      for (std::size_t f = 0; f < kFactors; ++f) {
        at[f] = fixed_[f] >= 0 ? static_cast<std::size_t>(fixed_[f]) : random_() % sizes_[f];
      }
      at[pair.factor_a] = pair.value_a;
      at[pair.factor_b] = pair.value_b;
      const test_case what = case_of(at);
      if (!is_allowed(what, limits_)) continue;
      ++candidates;
      std::size_t count = 0;
      for (const pair_of_values& covered : pairs_of(at)) count += open_.count(covered);
      const std::int64_t steps = what.rows * what.dim * what.queries;
      if (count < best_count || (count == best_count && steps >= best_steps)) continue;
      best = at;
      best_count = count;
      best_steps = steps;
    }
    return candidates > 0;
  }

  case_limits limits_;
  std::mt19937_64 random_;
  std::array<std::size_t, kFactors> sizes_{};
  std::array<std::int64_t, kFactors> fixed_{-1, -1, -1, -1, -1, -1, -1};
  std::set<pair_of_values> open_;
};

}  // namespace

std::vector<test_case> covering_cases(const case_limits& limits, std::uint64_t seed, const pinned& only) {
  return chooser(limits, seed, only).choose();
}

}  // namespace shortlist::conformance
