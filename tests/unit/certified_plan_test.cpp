// When a plane is used: what its rows are summed up to, how many survivors that predicts, and that the prediction
// chooses the algorithm and nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "core/plan.hpp"
#include "core_environment.hpp"
#include "index/flat_store.hpp"
#include "io_files.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist {
namespace {

using core::expected_survivors;
using core::flat_algorithm;
using core::kLoosenessUnit;
using core::plane_summary;
using test::environment_value;

constexpr const char* kForce = "SHORTLIST_FORCE_FLAT_SEARCH";
constexpr const char* kCodes = "SHORTLIST_CERTIFIED_CODES";
constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};

struct matrix {
  std::int64_t rows;
  std::int64_t dim;
  std::vector<float> values = std::vector<float>(static_cast<std::size_t>(rows * dim));

  float& at(std::int64_t row, std::int64_t i) { return values[static_cast<std::size_t>(row * dim + i)]; }
  matrix_view<const float> part(std::int64_t first, std::int64_t count) const {
    return {values.data() + first * dim, count, dim};
  }
  matrix_view<const float> view() const { return part(0, rows); }
};

matrix normal(std::int64_t rows, std::int64_t dim, std::uint32_t seed, float deviation = 1.0f) {
  matrix made{rows, dim};
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(0.0f, deviation);
  for (float& value : made.values) value = distribution(random);
  return made;
}

/// Rows of one large element; all others are below half a step of its scale, and have code 0.
matrix spiked(std::int64_t rows, std::int64_t dim) {
  matrix made = normal(rows, dim, 31, 0.001f);
  for (std::int64_t row = 0; row < rows; ++row) made.at(row, row * 7 % dim) = row % 2 == 0 ? 1.0f : -1.0f;
  return made;
}

/// Rows whose codes know one element alone, which is the one that the queries ask for.
matrix one_element_counts(std::int64_t rows, std::int64_t dim) {
  matrix made = normal(rows, dim, 32, 0.001f);
  for (std::int64_t row = 0; row < rows; ++row) made.at(row, 0) = 0.5f + static_cast<float>(row * 37 % rows) / 1000.0f;
  return made;
}

flat_index index_of(const matrix& rows, metric by) {
  flat_index index(device::cpu(), {.dim = rows.dim, .metric = by, .storage = storage::int8_and_full});
  index.add(rows.view());
  return index;
}

plane_summary summary_of(const matrix& rows, std::int64_t step) {
  index::flat_store store(core::backend_of(device::cpu()), {.dim = rows.dim, .storage = storage::int8_and_full});
  for (std::int64_t row = 0; row < rows.rows; row += step) {
    store.append(nullptr, core::copy_kind::host_to_device, rows.part(row, std::min(step, rows.rows - row)), {});
  }
  return store.corpus().summary;
}

double mean(const plane_summary& summary) {
  return static_cast<double>(summary.looseness) / static_cast<double>(kLoosenessUnit * summary.certifiable);
}

TEST(plane_summary, counts_rows_and_adds_up_their_looseness) {
  matrix rows = normal(400, 256, 1);
  EXPECT_NEAR(mean(summary_of(rows, 400)), 0.0069, 0.0002);  // 3 deviations / 127 / sqrt(12)
  rows.at(3, 5) = std::numeric_limits<float>::quiet_NaN();
  rows.at(77, 0) = std::numeric_limits<float>::infinity();
  rows.at(399, 255) = 0x1p63f;
  const plane_summary with_unknown = summary_of(rows, 400);
  EXPECT_EQ(with_unknown.certifiable, 397);
  EXPECT_EQ(with_unknown.uncertifiable, 3);
  EXPECT_NEAR(mean(summary_of(spiked(100, 1024), 100)), 0.032, 0.001);  // 0.001 sqrt(1023)
}

TEST(plane_summary, does_not_depend_on_how_rows_are_added) {
  const matrix rows = normal(500, 31, 2);
  const plane_summary at_once = summary_of(rows, 500);
  for (const std::int64_t step : {1, 16, 37, 499}) {
    const plane_summary in_steps = summary_of(rows, step);
    EXPECT_EQ(in_steps.certifiable, at_once.certifiable);
    EXPECT_EQ(in_steps.uncertifiable, at_once.uncertifiable);
    EXPECT_EQ(in_steps.looseness, at_once.looseness) << "by " << step;
  }
}

TEST(plane_summary, of_zero_vectors_is_tight_and_of_what_codes_cannot_tell_is_loose) {
  EXPECT_EQ(summary_of(matrix{20, 8}, 20).looseness, 0);
  matrix denormal{20, 8};
  for (float& value : denormal.values) value = 0x1p-120f;
  EXPECT_EQ(mean(summary_of(denormal, 20)), 1.0);
}

TEST(expected_survivors, are_those_of_normal_rows_within_a_factor) {
  const environment_value forced(kForce, "certified");
  for (const std::int64_t dim : {64, 256, 768}) {
    const matrix rows = normal(20'000, dim, 3);
    const matrix queries = normal(16, dim, 4);
    const flat_index index = index_of(rows, metric::cosine);
    for (const std::int64_t k : {10, 100}) {
      search_stats stats;
      index.search(queries.view(), {.k = k, .stats = &stats});
      const double found = static_cast<double>(stats.survivors) / 16;
      const double expected = expected_survivors({.rows = 20'000, .dim = dim, .k = k}, summary_of(rows, 20'000));
      EXPECT_GE(expected, found / 2) << "dim " << dim << " k " << k;
      EXPECT_LE(expected, found * 3) << "dim " << dim << " k " << k;
    }
  }
}

TEST(expected_survivors, grow_with_looseness_k_and_uncertifiable_rows) {
  const search_shape shape = {.rows = 1'000'000, .dim = 768, .k = 10};
  const auto of = [&](double looseness, std::int64_t uncertifiable) {
    return expected_survivors(shape,
                              {.certifiable = 1000 - uncertifiable,
                               .uncertifiable = uncertifiable,
                               .looseness = static_cast<std::int64_t>(looseness * static_cast<double>(kLoosenessUnit)) *
                                            (1000 - uncertifiable)});
  };
  EXPECT_NEAR(of(0, 0), 10, 0.01);
  EXPECT_GT(of(0.0075, 0), 30);
  EXPECT_LT(of(0.0075, 0), 90);
  EXPECT_NEAR(of(0.0075, 500), 500'000, 100);
  EXPECT_GT(of(0.5, 0), 999'000);
  EXPECT_EQ(of(1, 0), 1'000'000);
  EXPECT_EQ(expected_survivors({.rows = 0, .dim = 768, .k = 10}, {}), 0);
  EXPECT_EQ(expected_survivors({.rows = 5, .dim = 768, .k = 10}, {}), 5);
}

TEST(certified_plan, leaves_loose_planes_alone_and_says_so) {
  const environment_value unset(kForce, nullptr);
  for (const std::int64_t queries : {1, 20}) {
    const search_shape shape = {.rows = 100'000, .dim = 768, .queries = queries, .storage = storage::int8_and_full};
    const plane_summary tight = {.certifiable = 100'000, .looseness = 100'000 * kLoosenessUnit / 100};
    const plane_summary loose = {.certifiable = 100'000, .looseness = 100'000 * kLoosenessUnit / 10};
    const plane_summary unknown = {.certifiable = 70'000, .uncertifiable = 30'000};
    const auto plain = queries == 1 ? flat_algorithm::scan : flat_algorithm::tiles;
    EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, shape, tight), flat_algorithm::certified);
    EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, shape, loose), plain);
    EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, shape, unknown), plain);
    EXPECT_NE(plan_flat_search(device_kind::cpu, shape, loose).reason.find("the int8 plane would leave 96.6 % of them"),
              std::string::npos)
        << plan_flat_search(device_kind::cpu, shape, loose).reason;
    EXPECT_NE(plan_flat_search(device_kind::cpu, shape, unknown).reason.find("would leave 30 % of them"),
              std::string::npos);
  }
}

TEST(certified_plan, sixteen_bit_rows_pay_for_fewer_survivors) {
  const environment_value unset(kForce, nullptr);
  const plane_summary fifth = {.certifiable = 80, .uncertifiable = 20};
  search_shape shape = {.rows = 100'000, .dim = 768, .storage = storage::int8_and_full};
  EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, shape, fifth), flat_algorithm::certified);
  shape.type = element_type::bf16;
  EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, shape, fifth), flat_algorithm::scan);
}

// On GPUs, of one query: where there is a coarse copy, and it saves more than further survivors cost.
TEST(certified_plan, scans_a_coarse_copy_where_that_pays) {
  const environment_value unset(kCodes, nullptr);
  const search_shape shape = {.rows = 1'000'000, .dim = 768, .k = 100, .storage = storage::int8_and_full};
  const auto with = [&](auto&& change) {
    search_shape changed = shape;
    change(changed);
    return core::scans_coarse_copy(changed, {});
  };
  EXPECT_TRUE(core::scans_coarse_copy(shape, {}));
  EXPECT_FALSE(with([](search_shape& s) { s.storage = storage::int8_and_host; }));
  EXPECT_FALSE(with([](search_shape& s) { s.storage = storage::full; }));
  EXPECT_FALSE(with([](search_shape& s) { s.rows = 100'000; }));
  EXPECT_FALSE(with([](search_shape& s) { s.dim = 128; }));
  EXPECT_FALSE(with([](search_shape& s) { s.k = 1025; }));
  EXPECT_TRUE(with([](search_shape& s) { s.k = 1024; }));
  const plane_summary loose = {
      .certifiable = 10, .looseness = kLoosenessUnit / 10, .coarse_looseness = kLoosenessUnit};  // 1 % and 10 %
  EXPECT_FALSE(core::scans_coarse_copy(shape, loose));

  const std::string text = core::explain_flat_search(device_kind::cuda, "a GPU", shape);
  EXPECT_NE(text.find("588 MB of the plane's coarse copy at least"), std::string::npos)
      << text;  // 9408 bytes for 16 rows
  search_shape batch = shape;
  batch.queries = 16;
  const std::string of_batch = core::explain_flat_search(device_kind::cuda, "a GPU", batch);
  EXPECT_NE(of_batch.find("780 MB of the plane at least"), std::string::npos) << of_batch;
}

TEST(certified_plan, the_copy_to_scan_can_be_forced) {
  const search_shape shape = {.rows = 1000, .dim = 64, .k = 1, .storage = storage::int8_and_full};
  for (const auto& [name, coarse] : {std::pair("coarse", true), std::pair("whole", false)}) {
    const environment_value forced(kCodes, name);
    EXPECT_EQ(core::scans_coarse_copy(shape, {}), coarse) << name;
  }
  const environment_value wrong(kCodes, "fine");
  test::expect_error<invalid_argument>([&] { (void)core::scans_coarse_copy(shape, {}); },
                                       "SHORTLIST_CERTIFIED_CODES is fine; allowed is whole or coarse");
}

TEST(certified_plan, explain_tells_what_the_summary_says) {
  const environment_value unset(kForce, nullptr);
  const flat_index tight = index_of(normal(2000, 64, 5), metric::inner_product);
  const std::string text = tight.explain(1, {.k = 5});
  EXPECT_NE(text.find("survivors:  about "), std::string::npos) << text;
  EXPECT_NE(text.find(", and 0 rows cannot be certified"), std::string::npos) << text;
  const std::string of_no_rows =
      explain(device::cpu(), {.rows = 2000, .dim = 64, .k = 5, .storage = storage::int8_and_full});
  EXPECT_NE(of_no_rows.find("rows a query, if residuals are 0.75 % of norms"), std::string::npos) << of_no_rows;
  const std::string loose = index_of(spiked(2000, 2048), metric::inner_product).explain(1, {.k = 5});
  EXPECT_EQ(loose.find("survivors:"), std::string::npos) << loose;
  EXPECT_NE(loose.find("the int8 plane would leave"), std::string::npos) << loose;
}

// Both sides of the prediction: the same bits, whichever algorithm it chooses.
TEST(certified_plan, changes_no_bit) {
  const matrix tight = normal(2000, 2048, 6);
  const matrix loose = one_element_counts(2000, 2048);
  const matrix any_queries = normal(12, 2048, 7);
  matrix queries_for_one = any_queries;
  for (std::int64_t query = 0; query < 12; ++query) queries_for_one.at(query, 0) = 100.0f;
  for (const metric by : kMetrics) {
    for (const matrix* rows : {&tight, &loose}) {
      const matrix& queries = rows == &tight ? any_queries : queries_for_one;
      const flat_index index = index_of(*rows, by);
      const search_result expected = reference_search(rows->view(), queries.view(), by, {.k = 10});
      for (const char* forced : {static_cast<const char*>(nullptr), "certified", "scan"}) {
        const environment_value algorithm(kForce, forced);
        search_stats stats;
        const search_result found = index.search(queries.view(), {.k = 10, .stats = &stats});
        EXPECT_EQ(found.ids, expected.ids) << to_string(by);
        EXPECT_EQ(std::memcmp(found.scores.data(), expected.scores.data(), found.scores.size() * sizeof(float)), 0);
        const std::string algorithm_name = forced ? forced : "plan";
        if (algorithm_name == "plan") {
          EXPECT_EQ(stats.certified_queries, rows == &tight ? 12 : 0) << to_string(by);
        }
        if (algorithm_name == "certified" && by == metric::inner_product) {
          EXPECT_EQ(stats.certified_queries, 12) << "it was the prediction, not the search, that gave the plane up";
        }
      }
    }
  }
}

}  // namespace
}  // namespace shortlist
