// See pairwise.hpp. For each pair that is still open: of some random points that have it, the one that closes most
// other pairs, and of those the cheapest.
#include "conformance/pairwise.hpp"

#include <algorithm>

#include "conformance/top_k_values.hpp"

namespace shortlist::conformance {
namespace {

constexpr int kTries = 400;      // of finding an allowed point with a pair
constexpr int kCandidates = 40;  // of allowed points, of which the best is taken

struct value_pair {
  std::size_t a, i, b, j;
};

class chooser {
 public:
  chooser(const pairwise_rules& rules, std::uint64_t seed) : rules_(rules), random_(seed) {
    for (const std::size_t count : rules.counts) {
      start_.push_back(values_);
      values_ += count;
    }
    is_open_.assign(values_ * values_, 1);
  }

  std::vector<choice> choose() {
    std::vector<choice> chosen;
    for (const value_pair& pair : shuffled_pairs()) {
      if (!is_open(pair)) continue;
      const choice best = best_point(pair);
      if (best.empty()) continue;
      for_pairs(best, [&](const value_pair& covered) { is_open(covered) = 0; });
      chosen.push_back(best);
    }
    return chosen;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(n))); }
  char& is_open(const value_pair& pair) {
    return is_open_[(start_[pair.a] + pair.i) * values_ + start_[pair.b] + pair.j];
  }

  template <class Visit>
  void for_pairs(const choice& at, Visit visit) {
    for (std::size_t a = 0; a < at.size(); ++a) {
      for (std::size_t b = a + 1; b < at.size(); ++b) visit(value_pair{a, at[a], b, at[b]});
    }
  }

  /// In a random order, so that the first points are no simpler than the last.
  std::vector<value_pair> shuffled_pairs() {
    std::vector<value_pair> pairs;
    const choice& counts = rules_.counts;
    for (std::size_t a = 0; a < counts.size(); ++a) {
      for (std::size_t b = a + 1; b < counts.size(); ++b) {
        for (std::size_t i = 0; i < counts[a]; ++i) {
          for (std::size_t j = 0; j < counts[b]; ++j) pairs.push_back({a, i, b, j});
        }
      }
    }
    for (std::size_t i = pairs.size(); i > 1; --i) std::swap(pairs[i - 1], pairs[below(i)]);
    return pairs;
  }

  /// Empty if no point that has the pair was allowed.
  choice best_point(const value_pair& pair) {
    choice best;
    std::int64_t best_count = -1;
    std::int64_t best_cost = 0;
    int candidates = 0;
    choice at(rules_.counts.size());
    for (int attempt = 0; attempt < kTries && candidates < kCandidates; ++attempt) {
      for (std::size_t f = 0; f < at.size(); ++f) at[f] = below(rules_.counts[f]);
      at[pair.a] = pair.i;
      at[pair.b] = pair.j;
      const std::int64_t cost = rules_.cost(at);
      if (cost < 0) continue;
      ++candidates;
      std::int64_t count = 0;
      for_pairs(at, [&](const value_pair& covered) { count += is_open(covered); });
      if (count < best_count || (count == best_count && cost >= best_cost)) continue;
      best = at;
      best_count = count;
      best_cost = cost;
    }
    return best;
  }

  const pairwise_rules& rules_;
  random_numbers random_;
  std::vector<std::size_t> start_;
  std::size_t values_ = 0;
  std::vector<char> is_open_;
};

}  // namespace

std::vector<choice> pairwise_choices(const pairwise_rules& rules, std::uint64_t seed) {
  return chooser(rules, seed).choose();
}

}  // namespace shortlist::conformance
