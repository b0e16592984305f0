// How to choose an IVF-PQ index: the guess, recall, and the measured choice.
#include "shortlist/ivf_pq_tuning.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "io_files.hpp"
#include "ivf_pq_data.hpp"

namespace shortlist {
namespace {

using test::clustered_rows;
using test::expect_error;

constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;

TEST(ivf_pq_suggest, fits_the_memory_and_predicts_by_bytes) {
  const ivf_pq_need need = {.rows = 1'000'000'000, .dim = 96, .memory_bytes = 80 * kGibibyte, .recall = 0.95};
  const ivf_pq_suggestion made = suggest(need);
  EXPECT_EQ(made.options.nlist, 65536);
  EXPECT_EQ(made.options.pq_dim, 48);
  EXPECT_EQ(made.options.rows, kept_rows::host);
  EXPECT_EQ(made.device_bytes, need.rows * 52);
  EXPECT_NEAR(static_cast<double>(made.bytes_per_query), static_cast<double>(made.search.nprobe) * 1e9 / 65536 * 52,
              1.0);
  EXPECT_DOUBLE_EQ(made.predicted_qps, 2e12 / static_cast<double>(made.bytes_per_query));

  ivf_pq_need less = need;
  less.memory_bytes = 30 * kGibibyte;
  const ivf_pq_suggestion tight = suggest(less);
  EXPECT_LE(tight.device_bytes, less.memory_bytes);
  EXPECT_LT(tight.options.pq_dim, 48);
  EXPECT_GT(tight.search.refine_ratio, made.search.refine_ratio) << "coarser codes want more candidates";

  const ivf_pq_suggestion small = suggest({.rows = 1'000'000, .dim = 96, .memory_bytes = kGibibyte, .recall = 0.99});
  EXPECT_EQ(small.options.rows, kept_rows::device);
  EXPECT_EQ(small.device_bytes, 1'000'000 * (52 + 96 * 4));
}

TEST(ivf_pq_suggest, more_recall_never_costs_less_and_options_are_allowed) {
  for (const std::int64_t rows : {1, 5, 1000, 3'000'000}) {
    for (const std::int64_t dim : {1, 3, 96, 1537}) {
      std::int64_t nprobe = 0, refine = 0;
      for (const double recall : {0.1, 0.75, 0.85, 0.92, 0.97, 0.985, 0.994, 0.999}) {
        const ivf_pq_suggestion made =
            suggest({.rows = rows, .dim = dim, .memory_bytes = 100 * kGibibyte, .recall = recall});
        EXPECT_GE(made.search.nprobe, nprobe);
        EXPECT_GE(made.search.refine_ratio, refine);
        EXPECT_LE(made.search.nprobe, made.options.nlist);
        EXPECT_LE(made.options.nlist, rows);
        nprobe = made.search.nprobe;
        refine = made.search.refine_ratio;
        if (rows < 10'000) {
          EXPECT_NO_THROW(ivf_pq_index(device::cpu(), made.options));
        }
      }
    }
  }
}

TEST(ivf_pq_suggest, refuses_what_cannot_be) {
  const ivf_pq_need good = {.rows = 1000, .dim = 96, .memory_bytes = kGibibyte};
  const auto refuse = [](const ivf_pq_need& need, std::string_view part) {
    expect_error<invalid_argument>([&] { suggest(need); }, part);
  };
  ivf_pq_need bad = good;
  bad.rows = 0;
  refuse(bad, "need.rows is 0");
  bad = good;
  bad.recall = 1.0;
  refuse(bad, "need.recall is 1; allowed is above 0 and below 1");
  bad = good;
  bad.memory_bytes = 9999;
  refuse(bad, "need.memory_bytes is 9999; allowed is 10000 or more, for the smallest codes of 1000 rows");
  bad = good;
  bad.read_bytes_per_second = 0;
  refuse(bad, "need.read_bytes_per_second is 0");
}

TEST(ivf_pq_recall, counts_true_ids_among_the_first_k) {
  const std::vector<std::int64_t> found = {1, 2, 3, 9, 8, -1}, truth = {3, 1, 7, 8, 5, 9};
  const matrix_view<const std::int64_t> f(found.data(), 2, 3), t(truth.data(), 2, 3);
  EXPECT_DOUBLE_EQ(recall_of(f, t, 3), 4.0 / 6);
  EXPECT_DOUBLE_EQ(recall_of(f, t, 2), 2.0 / 4);
  EXPECT_DOUBLE_EQ(recall_of(f, t, 1), 0.0);
  expect_error<invalid_argument>([&] { recall_of(f, t, 4); }, "found.cols is 3; allowed is 4 or more, k");
}

struct tuned {
  tuned() : index(device::cpu(), {.dim = 8, .nlist = 32, .pq_bits = 4, .rows = kept_rows::device}) {
    index.train(rows.view(), {.iterations = 4});
    index.add(rows.view());
  }
  clustered_rows rows{2000, 8, 1}, queries{30, 8, 2};
  ivf_pq_index index;
};

TEST(ivf_pq_tune, finds_the_fastest_that_reaches_the_recall) {
  const tuned of;
  for (const double recall : {0.5, 0.99}) {
    const tune_result found = tune(of.index, of.queries.view(), {.k = 10, .recall = recall});
    EXPECT_TRUE(found.reached);
    EXPECT_GE(found.best.recall, recall);
    for (const tune_point& point : found.points) {
      if (point.recall >= recall) {
        EXPECT_LE(point.queries_per_second, found.best.queries_per_second);
      }
    }
    const search_result truth = of.index.search_kept_rows(of.queries.view(), {.k = 10});
    const ivf_pq_result again = of.index.search(
        of.queries.view(), {.k = 10, .nprobe = found.best.nprobe, .refine_ratio = found.best.refine_ratio});
    EXPECT_DOUBLE_EQ(recall_of({again.ids.data(), 30, 10}, {truth.ids.data(), 30, 10}, 10), found.best.recall);
  }
}

TEST(ivf_pq_tune, says_when_no_search_reaches_the_recall) {
  const tuned of;
  const std::vector<std::int64_t> elsewhere(30 * 10, 5000);
  const tune_result found =
      tune(of.index, of.queries.view(), {.k = 10, .recall = 0.5, .truth = {elsewhere.data(), 30, 10}});
  EXPECT_FALSE(found.reached);
  EXPECT_EQ(found.best.recall, 0.0);
}

TEST(ivf_pq_tune, a_curve_rises_to_what_refining_everything_gives) {
  const tuned of;
  const std::vector<tune_point> curve = recall_curve(of.index, of.queries.view(), {.k = 5}, 400);
  ASSERT_EQ(curve.size(), 6u) << "1, 2, 4, 8, 16, 32";
  for (std::size_t i = 1; i < curve.size(); ++i) EXPECT_GE(curve[i].recall, curve[i - 1].recall);
  constexpr std::int64_t kListBytes = 375;        // 62.5 rows of 4 pieces of 4 bits and a position
  constexpr std::int64_t kRefinedBytes = 64'000;  // 400 x 5 rows of 8 fp32
  for (const tune_point& point : curve) EXPECT_EQ(point.bytes_per_query, point.nprobe * kListBytes + kRefinedBytes);
  EXPECT_EQ(curve.back().recall, 1.0);
  EXPECT_EQ(curve.back().nprobe, 32);
}

TEST(ivf_pq_tune, wrong_use) {
  const tuned of;
  const auto refuse = [&](const tune_options& options, std::string_view part) {
    expect_error<invalid_argument>([&] { tune(of.index, of.queries.view(), options); }, part);
  };
  const std::vector<std::int64_t> truth(30 * 3);
  refuse({.k = 0}, "options.k is 0");
  refuse({.recall = 1.5}, "options.recall is 1.5");
  refuse({.truth = {truth.data(), 30, 3}}, "options.truth.cols is 3; allowed is 10 or more");
  refuse({.truth = {truth.data(), 10, 9}}, "options.truth.rows is 10; allowed is 30");
  expect_error<cancelled>(
      [&] { tune(of.index, of.queries.view(), {.progress = [](const tune_point&) { return proceed::no; }}); },
      "cancelled");
  ivf_pq_index without(device::cpu(), {.dim = 8, .nlist = 32, .pq_bits = 4});
  without.train(of.rows.view(), {.iterations = 1});
  expect_error<invalid_argument>([&] { tune(without, of.queries.view(), {}); }, "one without rows");
  without.add(of.rows.view());
  expect_error<invalid_argument>([&] { tune(without, of.queries.view(), {}); }, "one that keeps no rows");
}

}  // namespace
}  // namespace shortlist
