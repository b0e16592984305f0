// Indexes with an int8 plane: what they refuse, how they grow, and when a search goes through the plane. That its lists
// are the right ones is what the conformance tests compare.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/certified.hpp"
#include "core_environment.hpp"
#include "index_heap_count.hpp"
#include "io_files.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist {
namespace {

using test::environment_value;
using test::expect_error;
using test::temporary_folder;

constexpr const char* kForce = "SHORTLIST_FORCE_FLAT_SEARCH";
constexpr const char* kSurvivors = "SHORTLIST_CERTIFIED_SURVIVORS";
constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};

struct matrix {
  std::int64_t rows;
  std::int64_t dim;
  std::vector<float> values = std::vector<float>(static_cast<std::size_t>(rows * dim));

  matrix_view<const float> part(std::int64_t first, std::int64_t count) const {
    return {values.data() + first * dim, count, dim};
  }
  matrix_view<const float> view() const { return part(0, rows); }
};

matrix normal(std::int64_t rows, std::int64_t dim, std::uint32_t seed) {
  matrix made{rows, dim};
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  for (float& value : made.values) value = distribution(random);
  return made;
}

/// Rows around one point, closer to each other than codes can tell.
matrix one_cluster(std::int64_t rows, std::int64_t dim) {
  matrix made = normal(rows, dim, 5);
  for (float& value : made.values) value = 1.0f + 1e-4f * value;
  return made;
}

matrix all_equal(std::int64_t rows, std::int64_t dim) {
  matrix made{rows, dim};
  std::fill(made.values.begin(), made.values.end(), 0.375f);
  return made;
}

flat_index index_of(const matrix& rows, metric by, storage kept = storage::int8_and_full) {
  flat_index index(device::cpu(), {.dim = rows.dim, .metric = by, .storage = kept});
  index.add(rows.view());
  return index;
}

void expect_same(const search_result& got, const search_result& expected, const std::string& what) {
  EXPECT_EQ(got.k_found, expected.k_found) << what;
  ASSERT_EQ(got.ids, expected.ids) << what;
  ASSERT_EQ(got.scores.size(), expected.scores.size()) << what;
  EXPECT_EQ(std::memcmp(got.scores.data(), expected.scores.data(), got.scores.size() * sizeof(float)), 0) << what;
}

/// The lists of the first and the last query, which the slow reference is asked for: what is between goes the same way.
search_result ends_of(const search_result& all) {
  search_result ends;
  ends.queries = 2;
  ends.k = all.k;
  ends.k_found = all.k_found;
  for (const std::int64_t query : {std::int64_t{0}, all.queries - 1}) {
    ends.scores.insert(ends.scores.end(), all.scores.begin() + query * all.k, all.scores.begin() + (query + 1) * all.k);
    ends.ids.insert(ends.ids.end(), all.ids.begin() + query * all.k, all.ids.begin() + (query + 1) * all.k);
  }
  return ends;
}
matrix ends_of(const matrix& queries, std::int64_t count) {
  matrix ends{2, queries.dim};
  std::copy_n(queries.values.begin(), queries.dim, ends.values.begin());
  std::copy_n(queries.values.begin() + (count - 1) * queries.dim, queries.dim, ends.values.begin() + queries.dim);
  return ends;
}

TEST(certified_index, storages_have_names) {
  for (const storage kept : {storage::full, storage::int8_and_full, storage::int8_and_host}) {
    EXPECT_EQ(parse_storage(to_string(kept)), kept);
    const flat_index index(device::cpu(), {.dim = 3, .storage = kept});
    EXPECT_EQ(index.storage(), kept);
  }
}

TEST(certified_index, a_plane_of_bytes_is_refused) {
  for (const element_type type : {element_type::i8, element_type::u8}) {
    const std::string name(to_string(type));
    expect_error<invalid_argument>(
        [&] { flat_index(device::cpu(), {.dim = 8, .type = type, .storage = storage::int8_and_full}); },
        "options.storage is int8_and_full; allowed is full for rows of " + name);
    expect_error<invalid_argument>(
        [&] { explain(device::cpu(), {.rows = 10, .dim = 4, .type = type, .storage = storage::int8_and_host}); },
        "options.storage is int8_and_host; allowed is full for rows of " + name);
  }
  expect_error<invalid_argument>([] { flat_index(device::cpu(), {.dim = 8, .storage = static_cast<storage>(3)}); },
                                 "options.storage is 3; allowed is a storage");
}

TEST(certified_index, memory_tells_what_the_plane_takes) {
  for (const metric by : kMetrics) {
    flat_index index(device::cpu(), {.dim = 30, .metric = by, .storage = storage::int8_and_full});
    EXPECT_EQ(index.memory().planes_bytes, 0);
    index.reserve({.max_rows = 100});
    const std::int64_t row_bytes = 32 + (by == metric::l2 ? 16 : 12);  // whole words of codes, and terms
    EXPECT_EQ(index.memory().planes_bytes, 112 * row_bytes);           // whole blocks
    const std::int64_t allocations = index.memory().device_allocations;
    const matrix rows = normal(100, 30, 1);
    for (std::int64_t row = 0; row < 100; row += 10) index.add(rows.part(row, 10));
    EXPECT_EQ(index.memory().device_allocations, allocations) << "within the reservation";
    index.add(rows.part(0, 13));
    EXPECT_GT(index.memory().planes_bytes, 112 * row_bytes);
    EXPECT_EQ(index.memory().host_rows_bytes, 0) << "a GPU's rows alone can lie elsewhere";
    EXPECT_EQ(index_of(rows, by, storage::full).memory().planes_bytes, 0);
  }
}

TEST(certified_index, slots_that_share_queries_out_find_what_one_does) {
  // From twice 128 queries on, cores begin with queries of their own; 300 are a group of 256 and one of 44. With a k of
  // 30 queries are filtered in byte codes where an instruction set has a way for them, with one of 250 nowhere.
  const matrix rows = normal(6000, 400, 21);
  const matrix queries = normal(300, 400, 22);
  for (const metric by : kMetrics) {
    const flat_index index = index_of(rows, by);
    for (const std::int64_t k : {std::int64_t{1}, std::int64_t{30}, std::int64_t{250}}) {
      search_result expected;
      {
        const environment_value forced(kForce, "scan");
        expected = index.search(queries.view(), {.k = k});
      }
      const environment_value forced(kForce, "certified");
      search_stats stats;
      expect_same(index.search(queries.view(), {.k = k, .stats = &stats}), expected, "k " + std::to_string(k));
      EXPECT_EQ(stats.certified_queries, 300);
      EXPECT_GE(stats.survivors, 300 * k);
    }
  }
}

TEST(certified_index, rows_added_in_any_number_of_calls_give_the_same_plane) {
  const environment_value forced(kForce, "certified");
  const matrix rows = normal(1000, 37, 2);
  const matrix queries = normal(9, 37, 3);
  for (const metric by : kMetrics) {
    search_stats expected_stats;
    const flat_index at_once = index_of(rows, by);
    const search_result expected = at_once.search(queries.view(), {.k = 20, .stats = &expected_stats});
    expect_same(expected, reference_search(rows.view(), queries.view(), by, {.k = 20}), "at once");
    for (const std::int64_t step : {1, 7, 16, 17, 333}) {
      flat_index grown(device::cpu(), {.dim = 37, .metric = by, .storage = storage::int8_and_full});
      for (std::int64_t row = 0; row < 1000; row += step) grown.add(rows.part(row, std::min(step, 1000 - row)));
      search_stats stats;
      const std::string what = std::string(to_string(by)) + " by " + std::to_string(step);
      expect_same(grown.search(queries.view(), {.k = 20, .stats = &stats}), expected, what);
      EXPECT_EQ(stats.survivors, expected_stats.survivors) << what << ": other bounds";
    }
  }
}

TEST(certified_index, a_refused_add_leaves_plane_and_rows_as_they_were) {
  const environment_value forced(kForce, "certified");
  const matrix rows = normal(200, 24, 4);
  flat_index index(device::cpu(), {.dim = 24, .storage = storage::int8_and_full});
  std::vector<std::int64_t> ids(100);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(1000 + i);
  index.add(rows.part(0, 100), ids);
  const search_result before = index.search(rows.part(0, 4), {.k = 7});
  expect_error<invalid_argument>([&] { index.add(rows.part(100, 100), ids); }, "ids[0] is 1000");
  EXPECT_EQ(index.rows(), 100);
  expect_same(index.search(rows.part(0, 4), {.k = 7}), before, "after the refusal");
}

TEST(certified_index, files_keep_the_storage_and_load_makes_the_plane_anew) {
  const environment_value forced(kForce, "certified");
  const temporary_folder folder;
  const matrix rows = normal(300, 40, 6);
  const matrix queries = normal(5, 40, 7);
  for (const storage kept : {storage::full, storage::int8_and_full, storage::int8_and_host}) {
    const flat_index saved = index_of(rows, metric::cosine, kept);
    saved.save(folder / "index");
    const flat_index loaded = flat_index::load(device::cpu(), folder / "index");
    EXPECT_EQ(loaded.storage(), kept);
    EXPECT_EQ(loaded.memory().planes_bytes, saved.memory().planes_bytes);
    search_stats stats;
    expect_same(loaded.search(queries.view(), {.k = 11, .stats = &stats}),
                reference_search(rows.view(), queries.view(), metric::cosine, {.k = 11}), std::string(to_string(kept)));
    EXPECT_EQ(stats.certified_queries, kept == storage::full ? 0 : 5);
  }
}

TEST(certified_search, scores_few_rows_of_ordinary_data_and_says_how_many) {
  const environment_value unset(kForce, nullptr);
  const matrix rows = normal(20'000, 256, 8);
  const matrix queries = normal(12, 256, 9);
  for (const metric by : kMetrics) {
    const flat_index index = index_of(rows, by);
    for (const std::int64_t count : {1, 12}) {
      search_stats stats;
      expect_same(ends_of(index.search(queries.part(0, count), {.k = 10, .stats = &stats})),
                  reference_search(rows.view(), ends_of(queries, count).view(), by, {.k = 10}),
                  std::string(to_string(by)));
      EXPECT_EQ(stats.certified_queries, count) << to_string(by);
      EXPECT_GE(stats.survivors, 10 * count) << to_string(by);
      EXPECT_LE(stats.survivors, 100 * count) << to_string(by);
      const search_stats once = stats;
      index.search(queries.part(0, count), {.k = 10, .stats = &stats});
      EXPECT_EQ(stats.certified_queries, 2 * count) << "a search adds to what is there";
      EXPECT_GE(stats.survivors, once.survivors + 10 * count);
    }
  }
}

TEST(certified_search, without_a_plane_or_where_it_is_forbidden_counts_nothing) {
  const matrix rows = normal(2000, 64, 8);
  search_stats stats;
  index_of(rows, metric::l2, storage::full).search(rows.part(0, 3), {.k = 5, .stats = &stats});
  {
    const environment_value forced(kForce, "tiles");
    index_of(rows, metric::l2).search(rows.part(0, 3), {.k = 5, .stats = &stats});
  }
  EXPECT_EQ(stats.certified_queries, 0);
  EXPECT_EQ(stats.survivors, 0);
}

TEST(certified_search, gives_up_where_nearly_every_row_survives) {
  const environment_value unset(kForce, nullptr);
  const matrix queries = normal(20, 48, 10);
  for (const matrix& rows : {all_equal(20'000, 48), one_cluster(20'000, 48)}) {
    for (const metric by : kMetrics) {
      const flat_index index = index_of(rows, by);
      for (const std::int64_t count : {1, 20}) {
        search_stats stats;
        expect_same(ends_of(index.search(queries.part(0, count), {.k = 10, .stats = &stats})),
                    reference_search(rows.view(), ends_of(queries, count).view(), by, {.k = 10}),
                    std::string(to_string(by)));
        EXPECT_EQ(stats.certified_queries, 0);
        EXPECT_EQ(stats.survivors, 0) << "counted for certified queries alone";
      }
    }
  }
}

TEST(certified_search, gives_up_single_queries_of_a_batch) {
  const environment_value unset(kForce, nullptr);
  const matrix rows = normal(20'000, 48, 11);
  matrix queries = normal(30, 48, 12);
  const auto row_of = [&](std::int64_t query) { return queries.values.begin() + query * 48; };
  std::fill_n(row_of(3), 48, 0.0f);  // every score ties
  std::fill_n(row_of(4), 48, 0.0f);
  *row_of(9) = std::numeric_limits<float>::quiet_NaN();
  *row_of(17) = std::numeric_limits<float>::infinity();
  *row_of(29) = 0x1p63f;
  const flat_index index = index_of(rows, metric::inner_product);
  search_stats stats;
  expect_same(index.search(queries.view(), {.k = 10, .stats = &stats}),
              reference_search(rows.view(), queries.view(), metric::inner_product, {.k = 10}), "batch");
  EXPECT_EQ(stats.certified_queries, 25);
}

TEST(certified_search, thousands_of_near_duplicates_are_scored_and_not_given_up) {
  const environment_value unset(kForce, nullptr);
  matrix rows = normal(60'000, 64, 13);
  const matrix center = normal(1, 64, 14);
  std::mt19937 random(15);
  for (std::int64_t i = 0; i < 10'000; ++i) {  // more than a list holds, so that full lists are scored
    for (std::int64_t j = 0; j < 64; ++j) {
      const float noise = 1e-5f * static_cast<float>(random() % 1000);
      rows.values[static_cast<std::size_t>((i * 6 + 1) * 64 + j)] =
          3.0f * center.values[static_cast<std::size_t>(j)] + noise;
    }
  }
  const flat_index index = index_of(rows, metric::inner_product);
  search_stats stats;
  expect_same(index.search(center.view(), {.k = 10, .stats = &stats}),
              reference_search(rows.view(), center.view(), metric::inner_product, {.k = 10}), "near duplicates");
  EXPECT_EQ(stats.certified_queries, 1);
  EXPECT_GE(stats.survivors, 1000);
}

TEST(certified_search, lists_that_fill_all_the_time_lose_nothing) {
  const environment_value forced(kForce, "certified");
  const matrix rows = normal(900, 33, 16);  // too few rows to be judged by
  const matrix queries = normal(7, 33, 17);
  for (const metric by : kMetrics) {
    const flat_index index = index_of(rows, by);
    const search_result expected = reference_search(rows.view(), queries.view(), by, {.k = 12});
    for (const char* room : {"1", "5", "40"}) {
      const environment_value tiny(kSurvivors, room);
      search_stats stats;
      expect_same(index.search(queries.view(), {.k = 12, .stats = &stats}), expected, room);
      EXPECT_EQ(stats.certified_queries, 7) << room;
    }
  }
  for (const char* wrong : {"0", "-1", "many", "2000000", "1x"}) {
    const environment_value bad(kSurvivors, wrong);
    expect_error<invalid_argument>(
        [&] { index_of(rows, metric::l2).search(queries.view(), {.k = 12}); },
        "SHORTLIST_CERTIFIED_SURVIVORS is " + std::string(wrong) + "; allowed is 1 to 1000000");
  }
}

// Products of bytes are added in 16 bits. The largest codes everywhere must not saturate: rows whose pairs of products
// are the largest that there are stand beside rows of the same scores whose pairs are half as large.
TEST(certified_search, the_largest_codes_do_not_saturate) {
  const environment_value forced(kForce, "certified");
  constexpr std::int64_t kDim = 64;
  matrix rows{4000, kDim};
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    const float value = 1.0f + 1e-3f * static_cast<float>((i * 37) % 4000) * (i % 3 == 0 ? -1.0f : 1.0f);
    for (std::int64_t j = 0; j < kDim; ++j) {
      rows.values[static_cast<std::size_t>(i * kDim + j)] = i % 2 == 0 ? value : j % 2 == 0 ? 1.99f * value : 0.0f;
    }
  }
  matrix queries{8, kDim};
  for (std::int64_t i = 0; i < 8; ++i) std::fill_n(queries.values.begin() + i * kDim, kDim, i < 4 ? 3.0f : -0.5f);
  for (const metric by : kMetrics) {
    expect_same(index_of(rows, by).search(queries.view(), {.k = 5}),
                reference_search(rows.view(), queries.view(), by, {.k = 5}), std::string(to_string(by)));
  }
}

TEST(certified_search, rows_that_cannot_be_certified_are_always_scored) {
  const environment_value forced(kForce, "certified");
  matrix rows = normal(3000, 20, 18);
  const float infinity = std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < 3000; i += 50) {
    const float bad[] = {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 0x1p70f};
    rows.values[static_cast<std::size_t>(i * 20 + i % 20)] = bad[i / 50 % 4];
  }
  for (std::int64_t i = 25; i < 3000; i += 10) std::fill_n(rows.values.begin() + i * 20, 20, 0.0f);
  const matrix queries = normal(5, 20, 19);
  for (const metric by : kMetrics) {
    const flat_index index = index_of(rows, by);
    // The larger k goes past the middle, where scores are negative and those of overflown norms, which are zero, count.
    for (const std::int64_t k : {40, 2000, 2980}) {
      search_stats stats;
      expect_same(index.search(queries.view(), {.k = k, .stats = &stats}),
                  reference_search(rows.view(), queries.view(), by, {.k = k}), std::string(to_string(by)));
      EXPECT_EQ(stats.certified_queries, 5) << "k " << k;
    }
  }
}

TEST(certified_search, within_a_reservation_allocates_nothing) {
  const environment_value unset(kForce, nullptr);
  const matrix rows = normal(4000, 96, 20);
  const matrix queries = normal(40, 96, 21);
  flat_index index(device::cpu(), {.dim = 96, .metric = metric::cosine, .storage = storage::int8_and_full});
  index.reserve({.max_rows = 4000, .max_queries = 40, .max_k = 30});
  index.add(rows.view());
  std::vector<float> scores(40 * 30);
  std::vector<std::int64_t> ids(40 * 30);
  search_stats stats;
  const auto search = [&](std::int64_t count, std::int64_t k) {
    index.search(queries.part(0, count), {.k = k, .stats = &stats}, {scores.data(), ids.data()});
  };
  search(40, 30);
  const std::int64_t device_before = index.memory().device_allocations;
  const std::int64_t bytes_before = index.memory().workspaces_bytes;
  test::start_heap_count();
  for (int run = 0; run < 100; ++run) {
    search(1, 30);
    search(40, 3);
    search(7, 30);
  }
  EXPECT_EQ(test::end_heap_count(), 0);
  EXPECT_EQ(index.memory().device_allocations, device_before);
  EXPECT_EQ(index.memory().workspaces_bytes, bytes_before);
  EXPECT_EQ(stats.certified_queries, 40 + 100 * 48);
}

}  // namespace
}  // namespace shortlist
