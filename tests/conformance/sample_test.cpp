// Sampling against the reference: types, shapes, parameters, histories, biases, masks and distributions, on every
// device, with every instruction set and algorithm. Every byte of every output is equal, and none beside it is touched.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/sample_harness.hpp"
#include "conformance/sample_on_device.hpp"
#include "conformance/sample_values.hpp"

namespace shortlist::conformance {
namespace {

constexpr std::int64_t kReducedElements = 300'000;
constexpr std::int64_t kFullElements = 5'000'000;
constexpr std::uint64_t kReducedCoverings = 2;
constexpr std::uint64_t kFullCoverings = 6;

INSTANTIATE_TEST_SUITE_P(Devices, SampleOnDevice, testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

/// Some coverings of the whole product, of larger shapes in the full run.
std::vector<sample_case> cases_of_this_run() {
  const settings& settings = run_settings();
  const std::int64_t max_elements = settings.full ? kFullElements : kReducedElements;
  const std::uint64_t coverings = settings.full ? kFullCoverings : kReducedCoverings;
  std::vector<sample_case> cases;
  for (std::uint64_t i = 0; i < coverings; ++i) {
    const std::vector<sample_case> all = covering_sample_cases(max_elements, settings.seed + i);
    for (std::size_t j = 0; j < all.size(); j += kSampleStep) cases.push_back(all[j]);
  }
  return cases;
}

/// Each case in every way, as many as the settings have time for.
void run_cases(const std::vector<sample_case>& cases, device where) {
  const settings& settings = run_settings();
  const std::vector<sample_way> ways = sample_ways_of(where);
  const auto start = std::chrono::steady_clock::now();
  std::int64_t ran = 0;
  for (const sample_case& what : cases) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (spent.count() > settings.max_seconds || ran == settings.max_cases) break;
    const sample_data data = make_data(what);
    const sample_answer expected = expected_answer(what, data);
    for (const sample_way& how : ways) {
      const std::string failure = run_way(what, how, data, expected);
      EXPECT_TRUE(failure.empty()) << failure;
    }
    ++ran;
  }
  fmt::print("{} of {} cases, {} ways each\n", ran, cases.size(), ways.size());
}

TEST_P(SampleOnDevice, EqualsTheReferenceToTheBit) {
  if (const char* line = std::getenv(kReplaySample)) {
    const auto [what, how] = parse_sample_case(line);
    if (how.where != where_) GTEST_SKIP() << "the line is of another device";
    const sample_data data = make_data(what);
    const std::string failure = run_way(what, how, data, expected_answer(what, data));
    EXPECT_TRUE(failure.empty()) << failure;
    return;
  }
  run_cases(cases_of_this_run(), where_);
}

TEST_P(SampleOnDevice, EqualsTheReferenceAtEveryBorder) {
  std::vector<sample_case> all = filter_sample_cases();
  for (const sample_case& border : border_sample_cases()) all.push_back(border);
  std::vector<sample_case> cases;
  for (std::size_t i = 0; i < all.size(); i += kSampleStep) cases.push_back(all[i]);
  if (run_settings().full) {
    for (const sample_case& large : large_sample_cases()) cases.push_back(large);
  }
  run_cases(cases, where_);
}

TEST_P(SampleOnDevice, EqualsTheReferenceOnChangedRows) {
  const std::vector<sample_case> all = changed_sample_cases();
  // A step that shares no factor with the tables' sizes, so that every value comes.
  const std::size_t step = run_settings().full || kSampleStep == 1 ? 1 : 13;
  std::vector<sample_case> cases;
  for (std::size_t i = 0; i < all.size(); i += step) cases.push_back(all[i]);
  run_cases(cases, where_);
}

TEST_P(SampleOnDevice, EqualsTheReferenceOnRowsOfArrays) {
  const std::vector<sample_case> all = array_sample_cases();
  constexpr std::size_t kReducedStep = kSampleStep == 1 ? 13 : 37;  // shares no factor with the tables' sizes
  const bool all_of_them = run_settings().full || where_.kind() == device_kind::cuda;  // which has kernels for them
  const std::size_t step = all_of_them ? 1 : kReducedStep;
  std::vector<sample_case> cases;
  for (std::size_t i = 0; i < all.size(); i += step) cases.push_back(all[i]);
  run_cases(cases, where_);
}

TEST_P(SampleOnDevice, EqualsTheReferenceOnFlatRows) {
  const std::vector<sample_case> all = flat_sample_cases();
  constexpr std::size_t kReducedStep = kSampleStep == 1 ? 17 : 67;  // shares no factor with the tables' sizes
  const std::size_t step = run_settings().full ? 1 : kReducedStep;
  std::vector<sample_case> cases;
  for (std::size_t i = 0; i < all.size(); i += step) cases.push_back(all[i]);
  run_cases(cases, where_);
}

// The choice of cases is part of the promise: nothing that the tables name may be missing.
TEST(SampleCases, HaveEveryPairThatTheLimitsAllow) {
  const std::vector<sample_case> cases = covering_sample_cases(kReducedElements, run_settings().seed);
  const auto holds = [&](auto&& condition) { return std::any_of(cases.begin(), cases.end(), condition); };
  for (const std::string_view distribution : logit_distributions()) {
    for (const value_type type : kLogitTypes) {
      EXPECT_TRUE(holds([&](const sample_case& it) { return it.type == type && it.distribution == distribution; }))
          << to_string(type) << " " << distribution;
    }
    for (const std::int64_t vocab : kVocabs) {
      EXPECT_TRUE(holds([&](const sample_case& it) { return it.vocab == vocab && it.distribution == distribution; }))
          << vocab << " " << distribution;
    }
    for (const float top_p : kTopPs) {
      EXPECT_TRUE(holds([&](const sample_case& it) { return it.top_p == top_p && it.distribution == distribution; }))
          << top_p << " " << distribution;
    }
  }
  for (const float temperature : kTemperatures) {
    for (const named_parameters& parameters : kParameters) {
      EXPECT_TRUE(holds([&](const sample_case& it) {
        return it.temperature == temperature && it.parameters == parameters.name;
      })) << temperature
          << " " << parameters.name;
    }
  }
  for (const named_penalties& penalties : kPenalties) {
    for (const named_history& history : kHistories) {
      EXPECT_TRUE(holds([&](const sample_case& it) {
        return it.penalties == penalties.name && it.history == history.name;
      })) << penalties.name
          << " " << history.name;
    }
  }
  for (const named_bias& bias : kBiases) {
    for (const named_mask& mask : kMasks) {
      EXPECT_TRUE(holds([&](const sample_case& it) { return it.bias == bias.name && it.mask == mask.name; }))
          << bias.name << " " << mask.name;
    }
  }
  for (const float min_p : kMinPs) {
    for (const std::string_view order : kMinPOrders) {
      EXPECT_TRUE(holds([&](const sample_case& it) { return it.min_p == min_p && it.min_p_order == order; }))
          << min_p << " " << order;
    }
  }
  for (const named_answer& answer : kAnswers) {
    for (const std::int32_t top_n : kTopNs) {
      EXPECT_TRUE(holds([&](const sample_case& it) { return it.answer == answer.name && it.top_n == top_n; }))
          << answer.name << " " << top_n;
    }
  }
}

// A batch of one kind alone would not tell whether rows take the ways that they should.
TEST(SampleCases, BatchesOfArraysHaveRowsOfEveryKind) {
  constexpr std::int32_t kMostCounted = 112;  // kMostByGroups of the CUDA backend
  constexpr std::int64_t kEnoughRows = 64;
  constexpr std::int64_t kFewLogits = 600'000;  // all of them would take long to make
  int batches = 0;
  for (const sample_case& what : array_sample_cases()) {
    if (what.rows < kEnoughRows || what.rows * what.vocab > kFewLogits || what.parameters != "all_rows") continue;
    const std::vector<sample_row> rows = make_rows(what);
    const auto holds = [&](auto&& condition) { return std::any_of(rows.begin(), rows.end(), condition); };
    const auto is_off = [&](const sample_row& row) { return row.top_k < 1 || row.top_k >= what.vocab; };
    const auto is_open = [&](const sample_row& row) { return row.temperature != 0.0f && is_off(row); };
    EXPECT_TRUE(holds([&](const sample_row& row) { return !is_off(row) && row.top_k <= kMostCounted; }));
    EXPECT_TRUE(holds([&](const sample_row& row) { return !is_off(row) && row.top_k > kMostCounted; }));
    EXPECT_TRUE(holds([&](const sample_row& row) { return row.temperature == 0.0f && is_off(row); }));
    EXPECT_TRUE(holds([&](const sample_row& row) { return is_open(row) && row.top_p > 0.0f && row.top_p < 1.0f; }));
    EXPECT_TRUE(holds([&](const sample_row& row) { return is_open(row) && row.top_p >= 1.0f; }));
    ++batches;
  }
  EXPECT_GE(batches, 10);
}

TEST(SampleCases, AreReadBackFromTheirLines) {
  for (const sample_case& what : covering_sample_cases(kReducedElements, run_settings().seed)) {
    const sample_way how{.isa = "scalar"};
    const std::string line = describe(what, how);
    const auto [read, read_how] = parse_sample_case(line);
    ASSERT_EQ(describe(read, read_how), line);
    if (what.rows * what.vocab > 5000) continue;
    ASSERT_EQ(make_data(read).arrays, make_data(what).arrays) << line;
  }
}

}  // namespace
}  // namespace shortlist::conformance
