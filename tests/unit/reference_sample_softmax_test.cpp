// The oracle of sampling against plain softmax in double: which tokens are kept, their log-probabilities, and how often
// each is drawn.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "reference/sample.hpp"

namespace shortlist {
namespace {

using reference::candidate;
using reference::filtered_row;

// A sanitizer makes everything slower, and looks for other faults than a wrong bit.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kReduction = 10;
#else
constexpr int kReduction = 1;
#endif

// --- Rows -----------------------------------------------------------------------------------------------------------

double half_value(std::uint16_t bits) {
  const double magnitude = std::ldexp(1024 + (bits & 1023), ((bits >> 10) & 31) - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// Logits as they are stored, and as numbers.
struct stored_row {
  stored_row(value_type type, std::size_t vocab, std::mt19937_64& random) : type(type) {
    std::uniform_real_distribution<float> uniform(-3.0f, 3.0f);
    for (std::size_t i = 0; i < vocab; ++i) {
      const float x = uniform(random) + uniform(random) + uniform(random) + uniform(random);
      if (type == value_type::f32) {
        words.push_back(x);
        numbers.push_back(static_cast<double>(x));
      } else if (type == value_type::bf16) {
        const auto upper = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
        halves.push_back(upper);
        numbers.push_back(std::bit_cast<float>(std::uint32_t{upper} << 16));
      } else {
        // Normal numbers of magnitude 2^-3 to below 2^3.
        const auto bits = static_cast<std::uint16_t>((random() & 0x83FF) | ((12 + random() % 6) << 10));
        halves.push_back(bits);
        numbers.push_back(half_value(bits));
      }
    }
  }
  value_matrix view() const {
    const auto vocab = static_cast<std::int64_t>(numbers.size());
    return {type == value_type::f32 ? static_cast<const void*>(words.data()) : halves.data(), type, 1, vocab, vocab};
  }

  value_type type;
  std::vector<float> words;
  std::vector<std::uint16_t> halves;
  std::vector<double> numbers;
};

// --- Softmax in double
// ------------------------------------------------------------------------------------------------

/// A token's weight, the largest logit's being 1, and how far the oracle's may be from it:
///
///   t: x - m, log2e, log2e / T and the product are each off by at most 2^-24 of themselves: |t| 2^-22 in all, which
///      changes 2^t by a share of ln2 |t| 2^-22, below |t| 2^-22;
///   2^t: the polynomial 6e-9, its last step 2^-24, the steps before at most half of that: below 2^-23;
///   the integer: half of 2^-40.
///
/// Below t = -64 both are less than 2^-41 apart.
struct weighted {
  std::int64_t token;
  double x;
  double t;
  double weight;
  double error;
};

std::vector<weighted> best_first(const std::vector<double>& logits, double temperature) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<weighted> all;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    const double log_weight = (logits[token] - largest) / temperature;
    const double t = log_weight / std::log(2.0);
    const double weight = std::exp(log_weight);
    const double error = weight * (-t * 0x1p-22 + 0x1p-23) + 0x1p-41;
    all.push_back({static_cast<std::int64_t>(token), logits[token], t, weight, error});
  }
  std::stable_sort(all.begin(), all.end(), [](const weighted& a, const weighted& b) { return a.x > b.x; });
  return all;
}

/// How many tokens remain: at least and at most, where a border lies within the rounding.
struct range {
  std::size_t least;
  std::size_t most;
  bool is_sure() const { return least == most; }
};

range capped(range a, range b) { return {std::min(a.least, b.least), std::min(a.most, b.most)}; }

/// log2(min_p) is off by at most 2^-24 of itself and 2^-23, t by |t| 2^-22.
range min_p_range(const std::vector<weighted>& all, float min_p) {
  range r{0, 0};
  const double least = std::log2(static_cast<double>(min_p));
  for (const weighted& w : all) {
    const double band = -(w.t + least) * 0x1p-22 + 0x1p-23;
    r.least += w.t >= least + band ? 1 : 0;
    r.most += w.t >= least - band ? 1 : 0;
  }
  r.least = std::max<std::size_t>(r.least, 1);
  return r;
}

/// Of the first `count`. top_p is rounded to 2^-32 and its product to 2^-40.
range top_p_range(const std::vector<weighted>& all, std::size_t count, float top_p) {
  double sum = 0.0;
  double sum_error = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    sum += all[i].weight;
    sum_error += all[i].error;
  }
  const double share = static_cast<double>(top_p) * sum;
  const double share_error = static_cast<double>(top_p) * sum_error + sum * 0x1p-33 + 0x1p-40;
  range r{0, 0};
  double before = 0.0;
  double error = share_error;
  for (std::size_t i = 0; i < count; ++i) {
    r.least += i == 0 || before + error < share ? 1 : 0;
    r.most += i == 0 || before - error < share ? 1 : 0;
    before += all[i].weight;
    error += all[i].error;
  }
  return r;
}

/// How many of the first tokens the filters leave.
range kept_range(const std::vector<weighted>& all, const sample_params& params) {
  range r{all.size(), all.size()};
  const range by_min_p = params.min_p.common > 0.0f ? min_p_range(all, params.min_p.common) : r;
  const std::int32_t top_k = params.top_k.common;
  const range by_top_k = top_k >= 1 ? range{static_cast<std::size_t>(top_k), static_cast<std::size_t>(top_k)} : r;
  if (params.min_p_order == min_p_order::first) r = capped(r, by_min_p);
  r = capped(r, by_top_k);
  if (params.top_p.common < 1.0f) {
    const range of_least = top_p_range(all, r.least, params.top_p.common);
    const range of_most = top_p_range(all, r.most, params.top_p.common);
    r = {std::min(of_least.least, of_most.least), std::max(of_least.most, of_most.most)};
  }
  return params.min_p_order == min_p_order::last ? capped(r, by_min_p) : r;
}

// --- Kept tokens and log-probabilities
// --------------------------------------------------------------------------------

struct setting {
  float temperature;
  std::int32_t top_k;
  float top_p;
  float min_p;
  min_p_order order = min_p_order::last;

  sample_params params() const {
    sample_params p;
    p.temperature = temperature;
    p.top_k = top_k;
    p.top_p = top_p;
    p.min_p = min_p;
    p.min_p_order = order;
    return p;
  }
};

constexpr setting kSettings[] = {
    {1.0f, 0, 1.0f, 0.0f},     {0.7f, 50, 0.9f, 0.0f},
    {1.0f, 0, 0.95f, 0.0f},    {1.3f, 0, 0.5f, 0.0f},
    {0.2f, 20, 1.0f, 0.0f},    {1.0f, 0, 1.0f, 0.05f},
    {2.5f, 40, 0.8f, 0.1f},    {0.9f, 0, 0.7f, 0.02f, min_p_order::first},
    {0.05f, 0, 0.999f, 1e-6f}, {1.0f, 0, 0.01f, 0.0f},
};

/// log2(S) is at most 63, so its own rounding is 2^-19; what t and the sum are off by is derived above.
double logprob_error(double sum_error, double t, double logprob) {
  return 0x1p-19 + sum_error + (std::fabs(t) + std::fabs(logprob)) * 0x1p-22;
}

/// One row: the kept set, all log-probabilities. Returns between how many tokens the double sees the kept set's end.
range check_row(const stored_row& row, const sample_params& params) {
  const std::vector<weighted> all = best_first(row.numbers, static_cast<double>(params.temperature.common));
  const filtered_row found = reference::filter(row.view(), 0, params);
  const range expected = kept_range(all, params);
  EXPECT_GE(found.kept.size(), expected.least);
  EXPECT_LE(found.kept.size(), expected.most);

  std::vector<std::int64_t> best;
  for (std::size_t i = 0; i < found.kept.size() && i < all.size(); ++i) best.push_back(all[i].token);
  std::sort(best.begin(), best.end());
  std::vector<std::int64_t> kept;
  for (const candidate& c : found.kept) kept.push_back(c.token);
  EXPECT_EQ(kept, best);

  double sum = 0.0;
  double sum_error = 0.0;
  for (const weighted& w : all) {
    sum += w.weight;
    sum_error += w.error;
  }
  std::uint64_t integer_sum = 0;
  for (const candidate& c : found.candidates) integer_sum += c.weight;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double logprob = all[i].t * std::log(2.0) - std::log(sum);
    EXPECT_EQ(found.candidates[i].token, all[i].token);
    EXPECT_NEAR(reference::log_probability(found.candidates[i].t, integer_sum), logprob,
                logprob_error(sum_error / sum, all[i].t, logprob));
  }
  return expected;
}

TEST(ReferenceSampleSoftmax, KeepsTheSameTokensWithTheSameLogProbabilities) {
  constexpr std::size_t kVocabs[] = {1, 2, 3, 7, 32, 100, 1000};
  constexpr int kRows = 40 / kReduction;
  constexpr int kUnsurePermille = 2;  // a border within its band is rare
  std::mt19937_64 random(20'260'101);
  int rows = 0;
  int sure = 0;
  for (const value_type type : {value_type::f32, value_type::f16, value_type::bf16}) {
    for (const std::size_t vocab : kVocabs) {
      for (int i = 0; i < kRows; ++i) {
        const stored_row row(type, vocab, random);
        for (const setting& s : kSettings) {
          SCOPED_TRACE(testing::Message()
                       << to_string(type) << ", vocab " << vocab << ", row " << i << ", setting " << &s - kSettings);
          sure += check_row(row, s.params()).is_sure() ? 1 : 0;
          ++rows;
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
  EXPECT_LE(rows - sure, rows * kUnsurePermille / 1000) << "of " << rows;
}

/// A token of so many weighs little beside what their sum may be off by: a border may lie within that of a few of them.
TEST(ReferenceSampleSoftmax, KeepsTheSameTokensOfLargeVocabularies) {
  constexpr std::size_t kVocabs[] = {32'000, 128'256};
  constexpr std::size_t kMostUnsure = 2;  // tokens of a row
  std::vector<setting> settings(std::begin(kSettings), std::end(kSettings));
  settings.push_back({3.0f, 0, 0.95f, 0.0f});
  settings.push_back({1.5f, 0, 0.9f, 1e-4f, min_p_order::first});
  std::mt19937_64 random(20'260'102);
  for (const value_type type : {value_type::f32, value_type::f16, value_type::bf16}) {
    for (const std::size_t vocab : kVocabs) {
      const stored_row row(type, vocab, random);
      for (const setting& s : settings) {
        SCOPED_TRACE(testing::Message() << to_string(type) << ", vocab " << vocab << ", setting "
                                        << &s - settings.data());
        const range expected = check_row(row, s.params());
        EXPECT_LE(expected.most - expected.least, kMostUnsure);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// --- How often each token is drawn
// ----------------------------------------------------------------------------------------

constexpr int kDraws = 1'000'000 / kReduction;
constexpr double kFewestExpected = 20.0;  // cells of fewer draws are counted as one

/// The value that chi-square of so many degrees of freedom exceeds with a probability of 1e-6: Wilson and Hilferty.
double chi_square_bound(int degrees) {
  constexpr double kNormalQuantile = 4.753424;
  const double spread = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1.0 - spread + kNormalQuantile * std::sqrt(spread), 3);
}

/// `counts` of all tokens against the double's probabilities of the kept ones.
void fits(const std::vector<std::int64_t>& counts, const stored_row& row, const filtered_row& filtered,
          double temperature) {
  std::vector<double> weights(counts.size(), 0.0);
  double sum = 0.0;
  const std::vector<weighted> all = best_first(row.numbers, temperature);
  for (std::size_t i = 0; i < filtered.kept.size(); ++i) {
    weights[static_cast<std::size_t>(all[i].token)] = all[i].weight;
    sum += all[i].weight;
  }
  double chi_square = 0.0;
  int cells = 0;
  const auto add_cell = [&](double expected, double drawn) {
    chi_square += (drawn - expected) * (drawn - expected) / expected;
    ++cells;
  };
  double rare_expected = 0.0;
  double rare_drawn = 0.0;
  for (std::size_t token = 0; token < counts.size(); ++token) {
    const double expected = weights[token] / sum * kDraws;
    const auto drawn = static_cast<double>(counts[token]);
    if (weights[token] == 0.0) {
      EXPECT_EQ(counts[token], 0) << "token " << token << " was not kept";
    } else if (expected < kFewestExpected) {
      rare_expected += expected;
      rare_drawn += drawn;
    } else {
      add_cell(expected, drawn);
    }
  }
  if (rare_expected >= kFewestExpected) add_cell(rare_expected, rare_drawn);
  ASSERT_GE(cells, 2);
  EXPECT_LT(chi_square, chi_square_bound(cells - 1)) << cells << " cells";
}

struct drawing {
  std::size_t vocab;
  value_type type;
  setting filters;
};

constexpr drawing kDrawings[] = {
    {10, value_type::f32, {1.0f, 0, 1.0f, 0.0f}},  {20, value_type::bf16, {1.5f, 7, 1.0f, 0.0f}},
    {50, value_type::f32, {2.0f, 0, 0.9f, 0.0f}},  {30, value_type::f16, {3.0f, 0, 1.0f, 0.1f}},
    {50, value_type::f32, {2.5f, 30, 0.9f, 0.1f}},
};

TEST(ReferenceSampleSoftmax, DrawsEachTokenAsOftenAsItsProbabilitySays) {
  std::mt19937_64 random(7);
  for (const drawing& d : kDrawings) {
    SCOPED_TRACE(testing::Message() << "drawing " << &d - kDrawings);
    const stored_row row(d.type, d.vocab, random);
    const filtered_row filtered = reference::filter(row.view(), 0, d.filters.params());
    for (const bool by_seed : {false, true}) {
      SCOPED_TRACE(by_seed ? "a seed a draw" : "an offset a draw");
      std::vector<std::int64_t> counts(d.vocab, 0);
      for (int i = 0; i < kDraws; ++i) {
        const auto number = static_cast<std::uint64_t>(i);
        const candidate drawn = reference::draw(filtered, by_seed ? number : 1, by_seed ? 1 : number);
        ++counts[static_cast<std::size_t>(drawn.token)];
      }
      fits(counts, row, filtered, static_cast<double>(d.filters.temperature));
    }
  }
}

}  // namespace
}  // namespace shortlist
