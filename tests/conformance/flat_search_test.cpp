// Flat search against the reference: types, metrics, shapes and distributions, on every device, with every instruction
// set and algorithm. Scores are equal to the bit, ids are equal.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "conformance/covering.hpp"
#include "conformance/harness.hpp"

namespace shortlist::conformance {
namespace {

constexpr case_limits kReduced{.max_elements = 40'000'000, .max_steps = 150'000'000, .max_scores = 2'000'000};
constexpr case_limits kFull{.max_elements = 110'000'000, .max_steps = 1'000'000'000, .max_scores = 20'000'000};

constexpr element_type kTypes[] = {element_type::f32, element_type::f16, element_type::bf16, element_type::i8,
                                   element_type::u8};
constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};

// A sanitizer makes a search five to ten times slower, and looks for other faults than a wrong bit.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kReducedCoverings = 1;
#else
constexpr std::uint64_t kReducedCoverings = 4;
#endif

/// A few coverings of the whole product by default; one for each type and metric in the full run.
std::vector<test_case> cases_of(element_type type, metric by) {
  const settings& settings = run_settings();
  if (settings.full) return covering_cases(kFull, settings.seed, {.is_pinned = true, .type = type, .by = by});
  std::vector<test_case> cases;
  for (std::uint64_t i = 0; i < kReducedCoverings; ++i) {
    for (test_case& what : covering_cases(kReduced, settings.seed + i)) {
      if (what.type == type && what.by == by) cases.push_back(std::move(what));
    }
  }
  return cases;
}

class FlatSearch : public testing::TestWithParam<std::tuple<element_type, metric>> {};

TEST_P(FlatSearch, EqualsTheReferenceToTheBit) {
  const auto [type, by] = GetParam();
  const settings& settings = run_settings();
  const std::vector<test_case> cases = cases_of(type, by);
  ASSERT_FALSE(cases.empty());
  const double share = settings.max_seconds / static_cast<double>(std::size(kTypes) * std::size(kMetrics));
  const auto start = std::chrono::steady_clock::now();
  std::int64_t searched = 0;
  std::int64_t ways = 0;
  for (const test_case& what : cases) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (spent.count() > share || searched == settings.max_cases) break;
    ways += run_case(what);
    ++searched;
  }
  fmt::print("{} of {} cases, {} searches\n", searched, cases.size(), ways);
}

INSTANTIATE_TEST_SUITE_P(All, FlatSearch, testing::Combine(testing::ValuesIn(kTypes), testing::ValuesIn(kMetrics)),
                         [](const auto& test) {
                           return std::string(to_string(std::get<0>(test.param))) + "_" +
                                  std::string(to_string(std::get<1>(test.param)));
                         });

// The choice of cases is part of the promise: nothing that the tables name may be missing.
TEST(CoveringCases, HaveEveryTypeMetricShapeAndDistribution) {
  const std::vector<test_case> cases = covering_cases(kReduced, run_settings().seed);
  std::set<std::tuple<element_type, metric>> types_and_metrics;
  std::set<std::int64_t> dims, rows, ks, queries;
  std::set<std::tuple<std::string, metric>> distributions_and_metrics;
  for (const test_case& what : cases) {
    types_and_metrics.insert({what.type, what.by});
    dims.insert(what.dim);
    rows.insert(what.rows);
    ks.insert(what.k);
    queries.insert(what.queries);
    distributions_and_metrics.insert({what.distribution, what.by});
  }
  EXPECT_EQ(types_and_metrics.size(), std::size(kTypes) * std::size(kMetrics));
  EXPECT_EQ(distributions_and_metrics.size(), distributions().size() * std::size(kMetrics));
  for (const std::int64_t dim : {1, 2, 127, 128, 129, 384, 768, 1024, 4096, 3, 100, 257, 1537}) {
    EXPECT_TRUE(dims.contains(dim)) << dim;
  }
  for (const std::int64_t n : {0, 1, 31, 32, 33, 255, 256, 257, 1000, 4097, 100000}) EXPECT_TRUE(rows.contains(n)) << n;
  for (const std::int64_t k : {1, 2, 10, 100, 1000, 4097, 4102}) EXPECT_TRUE(ks.contains(k)) << k;
  for (const std::int64_t n : {1, 2, 5, 16, 17, 33, 64, 200}) EXPECT_TRUE(queries.contains(n)) << n;
}

// A batch on the GPU goes over the rows in phases, and only the first few thousand rows are the first: these cases
// reach the later ones, with stages used again and again, query tiles that are full and not, and left-over blocks.
TEST(FlatSearchBatches, EqualTheReferenceToTheBitBeyondTheFirstPhase) {
  const test_case cases[] = {
      {element_type::f32, metric::inner_product, 20000, 384, 10, 9, "normal", 1},
      {element_type::f32, metric::cosine, 20000, 100, 100, 33, "ascending", 2},
      {element_type::f32, metric::l2, 18000, 768, 100, 17, "normal", 3},
      {element_type::f32, metric::inner_product, 17000, 1000, 1, 16, "ties_90", 4},
      {element_type::f16, metric::inner_product, 20000, 256, 10, 24, "normal", 5},
      {element_type::bf16, metric::cosine, 20000, 130, 1000, 12, "normal", 6},
      {element_type::i8, metric::l2, 20000, 128, 100, 48, "normal", 7},
      {element_type::u8, metric::inner_product, 20000, 384, 10, 16, "ascending", 8},
      {element_type::f32, metric::inner_product, 40000, 32, 10, 100, "normal", 9},
  };
  const bool sanitized = kReducedCoverings == 1;
  for (const test_case& what : cases) {
    if (!sanitized || what.rows * what.dim * what.queries < 100'000'000) run_case(what);
  }
}

}  // namespace
}  // namespace shortlist::conformance
