// flat_index and what it is made of: growth, ids, reservations, files, and many threads at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/backend.hpp"
#include "core/certified.hpp"
#include "index/flat_store.hpp"
#include "index/labels.hpp"
#include "index/slot_pool.hpp"
#include "index_faulty_backend.hpp"
#include "index_heap_count.hpp"
#include "io_files.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist {
namespace {

using test::expect_error;
using test::faulty_backend;
using test::temporary_folder;

constexpr element_type kTypes[] = {element_type::f32, element_type::f16, element_type::bf16, element_type::i8,
                                   element_type::u8};
constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};

/// Rows of small numbers in any element type; many of them tie.
struct matrix {
  matrix(std::int64_t row_count, std::int64_t columns, element_type kind, std::uint32_t seed)
      : rows(row_count), dim(columns), type(kind), bytes(static_cast<std::size_t>(rows * dim * size_bytes(kind))) {
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < rows * dim; ++i) put(i, static_cast<int>(random() % 8));
  }
  any_matrix_view view() const { return {bytes.data(), type, rows, dim, dim}; }
  any_matrix_view part(std::int64_t first, std::int64_t count) const {
    return {bytes.data() + first * dim * size_bytes(type), type, count, dim, dim};
  }

  std::int64_t rows, dim;
  element_type type;
  std::vector<std::byte> bytes;

 private:
  void put(std::int64_t at, int value) {
    constexpr std::uint16_t kHalves[] = {0x0000, 0x3C00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700};  // 0 .. 7
    const auto store = [&](auto element) {
      std::memcpy(bytes.data() + at * size_bytes(type), &element, sizeof element);
    };
    switch (type) {
      case element_type::f32: return store(static_cast<float>(value) * 0.37f);
      case element_type::f16: return store(kHalves[value]);
      case element_type::bf16: {
        const auto wide = static_cast<float>(value);
        std::uint32_t bits = 0;
        std::memcpy(&bits, &wide, sizeof bits);
        return store(static_cast<std::uint16_t>(bits >> 16));
      }
      case element_type::i8: return store(static_cast<std::int8_t>(value - 4));
      case element_type::u8: return store(static_cast<std::uint8_t>(value));
    }
  }
};

void expect_same(const search_result& got, const search_result& expected, const std::string& what) {
  ASSERT_EQ(got.queries, expected.queries) << what;
  ASSERT_EQ(got.k, expected.k) << what;
  EXPECT_EQ(got.k_found, expected.k_found) << what;
  ASSERT_EQ(got.ids, expected.ids) << what;
  ASSERT_EQ(got.scores.size(), expected.scores.size()) << what;
  EXPECT_EQ(std::memcmp(got.scores.data(), expected.scores.data(), got.scores.size() * sizeof(float)), 0) << what;
}

std::string name_of(element_type type, metric by) {
  return std::string(to_string(type)) + " " + std::string(to_string(by));
}

flat_index index_of(const matrix& rows, metric by, std::span<const std::int64_t> ids = {}) {
  flat_index index(device::cpu(), {.dim = rows.dim, .metric = by, .type = rows.type});
  index.add(rows.view(), ids);
  return index;
}

TEST(flat_index, many_adds_equal_one_and_the_reference) {
  for (const element_type type : kTypes) {
    for (const metric by : kMetrics) {
      const matrix rows(257, 19, type, 1);
      const matrix queries(3, 19, element_type::f32, 2);
      const search_result expected = reference_search(rows.view(), queries.view(), by, {.k = 40});
      expect_same(index_of(rows, by).search(queries.view(), {.k = 40}), expected, "one add, " + name_of(type, by));

      flat_index grown(device::cpu(), {.dim = 19, .metric = by, .type = type});
      for (std::int64_t first = 0, count = 1; first < rows.rows; first += count, count = count * 3 / 2 + 1) {
        grown.add(rows.part(first, std::min(count, rows.rows - first)));
      }
      ASSERT_EQ(grown.rows(), rows.rows);
      expect_same(grown.search(queries.view(), {.k = 40}), expected, "many adds, " + name_of(type, by));
    }
  }
}

TEST(flat_index, rows_may_come_with_a_stride_and_from_device_memory) {
  const matrix wide(50, 24, element_type::f32, 3);
  const any_matrix_view narrow(wide.bytes.data(), element_type::f32, 50, 17, 24);
  const matrix queries(2, 17, element_type::f32, 4);
  const search_result expected = reference_search(narrow, queries.view(), metric::cosine, {.k = 9});
  flat_index from_host(device::cpu(), {.dim = 17, .metric = metric::cosine});
  from_host.add(narrow);
  expect_same(from_host.search(queries.view(), {.k = 9}), expected, "host");
  flat_index from_device(device::cpu(), {.dim = 17, .metric = metric::cosine});
  from_device.add(stream(device::cpu()), narrow);
  expect_same(from_device.search(queries.view(), {.k = 9}), expected, "device");
}

TEST(flat_index, queries_of_every_type_and_stride_widen_exactly) {
  const matrix rows(90, 21, element_type::f32, 5);
  const flat_index index = index_of(rows, metric::l2);
  for (const element_type type : kTypes) {
    const matrix queries(6, 30, type, 6);
    const any_matrix_view view(queries.bytes.data(), type, 6, 21, 30);
    expect_same(index.search(view, {.k = 12}), reference_search(rows.view(), view, metric::l2, {.k = 12}),
                std::string(to_string(type)));
  }
}

TEST(flat_index, more_queries_than_go_to_a_backend_at_once) {
  const matrix rows(40, 5, element_type::f32, 7);
  const matrix queries(9001, 5, element_type::u8, 8);
  expect_same(index_of(rows, metric::inner_product).search(queries.view(), {.k = 3}),
              reference_search(rows.view(), queries.view(), metric::inner_product, {.k = 3}), "9001 queries");
}

TEST(flat_index, every_way_to_search_gives_the_same_list) {
  const matrix rows(300, 32, element_type::f32, 9);
  const matrix queries(4, 32, element_type::f32, 10);
  const flat_index index = index_of(rows, metric::cosine);
  const search_result expected = index.search(queries.view(), {.k = 25});
  search_result got = expected;
  const search_output out = {got.scores.data(), got.ids.data()};
  const auto reset = [&] {
    std::fill(got.scores.begin(), got.scores.end(), 0.0f);
    std::fill(got.ids.begin(), got.ids.end(), 0);
  };
  const stream s(device::cpu());

  reset();
  got.k_found = index.search(queries.view(), {.k = 25}, out);
  expect_same(got, expected, "into arrays");
  reset();
  got.k_found = index.search(s, queries.view(), {.k = 25}, out);
  expect_same(got, expected, "on a stream");
  workspace scratch(device::cpu(), {.max_rows = 300, .max_queries = 4, .max_k = 25});
  for (int again = 0; again < 2; ++again) {
    reset();
    got.k_found = index.search(s, scratch, queries.view(), {.k = 25}, out);
    expect_same(got, expected, "with a workspace");
  }
  EXPECT_GT(scratch.bytes(), 0);
}

TEST(flat_index, lists_longer_than_the_index_are_padded) {
  const matrix rows(3, 8, element_type::f32, 11);
  const matrix queries(2, 8, element_type::f32, 12);
  for (const metric by : kMetrics) {
    const search_result got = index_of(rows, by).search(queries.view(), {.k = 5});
    EXPECT_EQ(got.k_found, 3);
    expect_same(got, reference_search(rows.view(), queries.view(), by, {.k = 5}), std::string(to_string(by)));
    for (std::int64_t query = 0; query < 2; ++query) {
      EXPECT_EQ(got.ids_of(query)[3], -1);
      EXPECT_EQ(got.ids_of(query)[4], -1);
      EXPECT_TRUE(std::isinf(got.scores_of(query)[4]));
      EXPECT_EQ(got.scores_of(query)[4] > 0, by == metric::l2);
    }
  }
}

TEST(flat_index, an_empty_index_finds_nothing_and_no_queries_cost_nothing) {
  const flat_index index(device::cpu(), {.dim = 8, .metric = metric::l2});
  const matrix queries(2, 8, element_type::f32, 12);
  const search_result got = index.search(queries.view(), {.k = 2});
  EXPECT_EQ(got.k_found, 0);
  EXPECT_EQ(got.ids, std::vector<std::int64_t>(4, -1));
  EXPECT_EQ(got.scores, std::vector<float>(4, std::numeric_limits<float>::infinity()));
  std::vector<float> scores(4);
  std::vector<std::int64_t> ids(4);
  EXPECT_EQ(index.search(stream(device::cpu()), queries.view(), {.k = 2}, {scores.data(), ids.data()}), 0);
  EXPECT_EQ(ids, got.ids);
  EXPECT_EQ(scores, got.scores);

  const search_result none =
      index_of(matrix(5, 8, element_type::f32, 1), metric::l2).search(queries.part(0, 0), {.k = 2});
  EXPECT_EQ(none.queries, 0);
  EXPECT_EQ(none.k_found, 2);
  EXPECT_TRUE(none.ids.empty());
}

TEST(flat_index, adding_no_rows_changes_nothing) {
  flat_index index = index_of(matrix(5, 8, element_type::f32, 1), metric::l2);
  const memory_use before = index.memory();
  index.add(matrix(0, 8, element_type::f32, 1).view());
  EXPECT_EQ(index.rows(), 5);
  EXPECT_EQ(index.memory().device_allocations, before.device_allocations);
}

TEST(flat_index, rows_are_read_back_as_they_were_added) {
  for (const element_type type : kTypes) {
    const matrix rows(23, 7, type, 9);
    const flat_index index = index_of(rows, metric::cosine);
    const std::int64_t row_bytes = 7 * size_bytes(type);
    std::vector<std::byte> got(static_cast<std::size_t>(5 * row_bytes));
    index.read(11, 5, got.data());
    EXPECT_EQ(std::memcmp(got.data(), rows.bytes.data() + 11 * row_bytes, got.size()), 0) << to_string(type);
  }
  const flat_index index = index_of(matrix(4, 7, element_type::f32, 10), metric::l2);
  std::vector<float> got(7);
  index.read(4, 0, nullptr);
  expect_error<invalid_argument>([&] { index.read(-1, 1, got.data()); }, "first is -1; allowed is 0 to 4");
  expect_error<invalid_argument>([&] { index.read(5, 0, got.data()); }, "first is 5; allowed is 0 to 4");
  expect_error<invalid_argument>([&] { index.read(3, 2, got.data()); }, "count is 2; allowed is 0 to 1");
  expect_error<invalid_argument>([&] { index.read(3, -1, got.data()); }, "count is -1; allowed is 0 to 1");
  expect_error<invalid_argument>([&] { index.read(3, 1, nullptr); }, "out is null; allowed is memory of 1 rows");
}

TEST(flat_index, moves_with_everything_in_it) {
  const matrix rows(30, 8, element_type::f32, 1);
  flat_index first = index_of(rows, metric::l2);
  const search_result expected = first.search(rows.part(0, 2), {.k = 3});
  flat_index second = std::move(first);
  expect_same(second.search(rows.part(0, 2), {.k = 3}), expected, "moved");
  second = index_of(rows, metric::l2);
  expect_same(second.search(rows.part(0, 2), {.k = 3}), expected, "assigned");
}

TEST(flat_index, ids_in_any_order_and_in_any_add) {
  const matrix rows(60, 8, element_type::f32, 13);
  const matrix queries(3, 8, element_type::f32, 14);
  std::vector<std::int64_t> ids(60);
  for (std::int64_t i = 0; i < 60; ++i) ids[static_cast<std::size_t>(i)] = i < 20 ? i : 100 + (i * 37) % 60;
  const search_result expected = reference_search(rows.view(), queries.view(), metric::l2, {.k = 30}, ids);
  expect_same(index_of(rows, metric::l2, ids).search(queries.view(), {.k = 30}), expected, "one add");

  for (const bool reserved : {false, true}) {
    flat_index index(device::cpu(), {.dim = 8, .metric = metric::l2});
    if (reserved) index.reserve({.max_rows = 60});
    index.add(rows.part(0, 20));  // their positions are their ids
    for (std::int64_t first = 20; first < 60; first += 8) {
      index.add(rows.part(first, 8), std::span(ids).subspan(static_cast<std::size_t>(first), 8));
    }
    expect_same(index.search(queries.view(), {.k = 30}), expected, "many adds");
    EXPECT_GE(index.memory().ids_bytes, 2 * 60 * 8);
  }
}

TEST(flat_index, rows_without_ids_after_rows_with_ids_are_named_by_their_positions) {
  const matrix rows(6, 8, element_type::f32, 13);
  flat_index index(device::cpu(), {.dim = 8, .metric = metric::l2});
  index.add(rows.part(0, 2), std::vector<std::int64_t>{40, 7});
  index.add(rows.part(2, 2));
  const std::vector<std::int64_t> expected_ids = {40, 7, 2, 3};
  expect_same(index.search(rows.view(), {.k = 4}),
              reference_search(rows.part(0, 4), rows.view(), metric::l2, {.k = 4}, expected_ids), "mixed");
  index.add(rows.part(4, 1), std::vector<std::int64_t>{5});
  expect_error<invalid_argument>([&] { index.add(rows.part(5, 1)); }, "the position 5 is an id already");
  EXPECT_EQ(index.rows(), 5);
}

TEST(labels, a_refused_append_leaves_no_trace) {
  index::labels ids;
  const auto append = [&](std::int64_t first, std::vector<std::int64_t> values) {
    ids.append(first, static_cast<std::int64_t>(values.size()), values).keep();
  };
  const auto expect_refused = [&](std::vector<std::int64_t> values, std::string_view part) {
    const std::vector<std::int64_t> before(ids.all().begin(), ids.all().end());
    expect_error<invalid_argument>([&] { append(static_cast<std::int64_t>(before.size()), values); }, part);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), ids.all().begin(), ids.all().end()));
  };
  expect_refused({3, 3}, "ids[1] is 3; allowed is an id that no other row has");
  expect_refused({1, 2, -7}, "ids[2] is -7; allowed is 0 or more");
  EXPECT_FALSE(ids.given());
  append(0, {10, 20, 30});  // ascending: nothing to look up
  expect_refused({40, 50, 20}, "ids[2] is 20");
  append(3, {40, 25});  // what was refused is free again
  expect_refused({60, 61, 60}, "ids[2] is 60");
  expect_refused({70, 25}, "ids[1] is 25");
  append(5, {60, 61, 70});
  expect_refused({61}, "ids[0] is 61");
  {
    const index::labels::pending dropped = ids.append(8, 2, std::vector<std::int64_t>{80, 5});
    EXPECT_EQ(ids.all().size(), 10u);
  }
  append(8, {5, 80});
  EXPECT_EQ(ids.all().size(), 10u);
}

TEST(labels, an_append_that_is_not_kept_takes_the_positions_with_it) {
  index::labels ids;
  ids.append(0, 4, {}).keep();
  EXPECT_FALSE(ids.given());
  { const index::labels::pending dropped = ids.append(4, 1, std::vector<std::int64_t>{2000}); }
  EXPECT_FALSE(ids.given());
  expect_error<invalid_argument>([&] { ids.append(4, 1, std::vector<std::int64_t>{2}).keep(); }, "ids[0] is 2;");
  EXPECT_FALSE(ids.given());
  ids.append(4, 1, std::vector<std::int64_t>{4}).keep();
  EXPECT_EQ(ids.all().size(), 5u);
}

TEST(flat_index, within_a_reservation_rows_stay_where_they_are) {
  const matrix rows(1000, 33, element_type::f16, 15);
  flat_index index(device::cpu(), {.dim = 33, .metric = metric::cosine, .type = element_type::f16});
  index.reserve({.max_rows = 1000, .max_queries = 2, .max_k = 5});
  const memory_use before = index.memory();
  for (std::int64_t first = 0; first < 1000; first += 50) index.add(rows.part(first, 50));
  const memory_use after = index.memory();
  EXPECT_EQ(after.device_allocations, before.device_allocations);
  EXPECT_EQ(after.rows_bytes, before.rows_bytes);
  EXPECT_GE(after.rows_bytes, 1000 * 33 * 2);
  EXPECT_EQ(after.norms_bytes, 1000 * 4);
  EXPECT_EQ(after.ids_bytes, 0);
  EXPECT_GT(after.workspaces_bytes, 0);
  index.add(rows.part(0, 1));
  EXPECT_GT(index.memory().rows_bytes, after.rows_bytes);
}

// 1,000 searches within the limits, on `threads` threads: nothing from the heap and nothing from the device.
void expect_no_allocations(flat_index& index, const std::vector<any_matrix_view>& queries, std::int64_t k,
                           int thread_count) {
  const std::int64_t device_before = index.memory().device_allocations;
  const std::int64_t bytes_before = index.memory().workspaces_bytes;
  std::int64_t most_queries = 0;
  for (const any_matrix_view& one : queries) most_queries = std::max(most_queries, one.rows);
  std::atomic<int> waiting{thread_count};
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < thread_count; ++t) {
    threads.emplace_back([&] {
      std::vector<float> scores(static_cast<std::size_t>(most_queries * k));
      std::vector<std::int64_t> ids(scores.size());
      waiting.fetch_sub(1);
      while (!go.load()) std::this_thread::yield();
      for (int i = 0; i < 1000 / thread_count; ++i) {
        index.search(queries[static_cast<std::size_t>(i) % queries.size()], {.k = k}, {scores.data(), ids.data()});
      }
      waiting.fetch_add(1);
      while (go.load()) std::this_thread::yield();
    });
  }
  while (waiting.load() > 0) std::this_thread::yield();
  test::start_heap_count();
  go = true;
  while (waiting.load() < thread_count) std::this_thread::yield();
  const std::int64_t heap_allocations = test::end_heap_count();
  go = false;
  for (std::thread& one : threads) one.join();
  EXPECT_EQ(heap_allocations, 0);
  EXPECT_EQ(index.memory().device_allocations, device_before);
  EXPECT_EQ(index.memory().workspaces_bytes, bytes_before);
}

TEST(heap_count, sees_the_allocations_that_there_are) {
  test::start_heap_count();
  const std::string long_text(1000, 'x');
  EXPECT_EQ(test::end_heap_count(), 1);
  test::start_heap_count();
  EXPECT_EQ(long_text.size(), 1000u);
  EXPECT_EQ(test::end_heap_count(), 0);
}

TEST(flat_index, a_thousand_searches_after_reserve_allocate_nothing) {
  const matrix rows(2000, 24, element_type::f32, 16);
  const matrix floats(5, 24, element_type::f32, 17);
  const matrix halves(5, 24, element_type::f16, 18);
  flat_index index(device::cpu(), {.dim = 24, .metric = metric::cosine});
  index.reserve({.max_rows = 2000, .max_queries = 5, .max_k = 50}, 4);
  index.add(rows.view());
  for (const int threads : {1, 4}) {
    expect_no_allocations(index, {floats.view(), halves.view(), floats.part(1, 1), halves.part(2, 3)}, 50, threads);
    expect_no_allocations(index, {floats.view(), halves.view(), floats.part(1, 1)}, 1, threads);
  }
}

TEST(flat_index, searches_beyond_the_reservation_still_work_and_leave_it_in_place) {
  const matrix rows(3000, 8, element_type::f32, 19);
  const matrix queries(4, 8, element_type::f32, 20);
  flat_index index(device::cpu(), {.dim = 8, .metric = metric::l2});
  index.reserve({.max_rows = 3000, .max_queries = 2, .max_k = 3}, 2);
  index.add(rows.view());
  expect_same(index.search(queries.view(), {.k = 3000}),
              reference_search(rows.view(), queries.view(), metric::l2, {.k = 3000}), "large k");
  expect_no_allocations(index, {queries.part(0, 2)}, 3, 2);
}

TEST(flat_index, sixteen_threads_get_the_lists_that_one_gets) {
  const matrix rows(1500, 40, element_type::bf16, 21);
  const flat_index index = index_of(rows, metric::cosine);
  constexpr int kThreads = 16;
  struct job {
    matrix queries;
    std::int64_t k;
    search_result expected;
  };
  std::vector<job> jobs;
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    matrix queries(1 + i % 5, 40, kTypes[i % 5], 100 + i);
    const std::int64_t k = 1 + 13 * i;
    search_result expected = reference_search(rows.view(), queries.view(), metric::cosine, {.k = k});
    jobs.push_back({std::move(queries), k, std::move(expected)});
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2 * kThreads; ++i) {
        const job& mine = jobs[static_cast<std::size_t>((t + i) % kThreads)];
        const search_result got = index.search(mine.queries.view(), {.k = mine.k});
        const bool same = got.ids == mine.expected.ids &&
                          std::memcmp(got.scores.data(), mine.expected.scores.data(), got.scores.size() * 4) == 0;
        if (!same || index.memory().workspaces_bytes <= 0) ++wrong;
      }
    });
  }
  for (std::thread& one : threads) one.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(flat_index, what_was_saved_is_loaded) {
  const temporary_folder folder;
  const auto path = folder / "index.safetensors";
  for (const element_type type : kTypes) {
    for (const metric by : kMetrics) {
      for (const std::int64_t row_count : {0, 1, 123}) {
        const matrix rows(row_count, 21, type, 22);
        const matrix queries(3, 21, element_type::f32, 23);
        std::vector<std::int64_t> ids(static_cast<std::size_t>(row_count));
        for (std::size_t i = 0; i < ids.size(); ++i)
          ids[i] = static_cast<std::int64_t>((i * 71) % 123 + 1'000'000'000'000);
        for (const bool with_ids : {false, true}) {
          const flat_index saved = index_of(rows, by, with_ids ? ids : std::vector<std::int64_t>());
          saved.save(path);
          for (const verify checks : {verify::full, verify::header_only}) {
            const flat_index loaded = flat_index::load(device::cpu(), path, checks);
            EXPECT_EQ(loaded.rows(), row_count);
            EXPECT_EQ(loaded.dim(), 21);
            EXPECT_EQ(loaded.metric(), by);
            EXPECT_EQ(loaded.type(), type);
            expect_same(loaded.search(queries.view(), {.k = 20}), saved.search(queries.view(), {.k = 20}),
                        name_of(type, by));
          }
        }
      }
    }
  }
  EXPECT_EQ(folder.files(), 1);
}

TEST(flat_index, a_loaded_index_grows_and_saves_the_same_file_again) {
  const temporary_folder folder;
  const matrix rows(100, 21, element_type::f32, 24);
  std::vector<std::int64_t> ids(100);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(1000 - i);
  index_of(rows, metric::cosine, ids).save(folder / "whole");
  flat_index half(device::cpu(), {.dim = 21, .metric = metric::cosine});
  half.add(rows.part(0, 50), std::span(ids).first(50));
  half.save(folder / "half");
  flat_index loaded = flat_index::load(device::cpu(), folder / "half");
  expect_error<invalid_argument>([&] { loaded.add(rows.part(50, 1), std::span(ids).first(1)); }, "ids[0] is 1000");
  loaded.add(rows.part(50, 50), std::span(ids).last(50));
  loaded.save(folder / "half");
  EXPECT_EQ(test::read_bytes(folder / "half"), test::read_bytes(folder / "whole"));
}

TEST(flat_index, explain_speaks_of_this_index) {
  const flat_index index = index_of(matrix(100, 21, element_type::f16, 24), metric::cosine);
  const std::string text = index.explain(3, {.k = 7});
  for (const char* part : {"3 queries", "100 rows", "21", "f16", "cosine", "k 7"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in:\n" << text;
  }
  EXPECT_EQ(
      text,
      explain(device::cpu(),
              {.rows = 100, .dim = 21, .queries = 3, .k = 7, .type = element_type::f16, .metric = metric::cosine}));
}

/// Everything of a store that a search can see.
std::vector<std::byte> contents(faulty_backend& backend, const index::flat_store& store) {
  const core::flat_corpus corpus = store.corpus();
  std::vector<std::byte> all;
  const auto append = [&](const void* from, std::int64_t bytes) {
    const auto* begin = static_cast<const std::byte*>(from);
    if (from) all.insert(all.end(), begin, begin + bytes);
  };
  append(corpus.rows, corpus.count * corpus.row_stride_bytes);
  if (corpus.plane) {  // of a block that is not full, the places of rows alone
    const core::plane_layout layout(corpus.dim, corpus.metric);
    for (std::int64_t row = 0; row < corpus.count; ++row) {
      const std::byte* block = corpus.plane + row / core::kPlaneRows * layout.block_bytes();
      for (std::int64_t i = 0; i < layout.words * core::kPlaneWord; ++i) {
        append(block + core::plane_layout::code_at(row % core::kPlaneRows, i), 1);
      }
      const std::byte* terms = block + layout.codes_bytes() + row % core::kPlaneRows * 4;
      for (std::int64_t term = 0; term < layout.terms; ++term) append(terms + term * core::kPlaneRows * 4, 4);
    }
  }
  append(&corpus.summary, sizeof corpus.summary);
  append(corpus.inverse_norms, corpus.count * 4);
  append(corpus.ids, corpus.count * 8);
  append(store.ids().all().data(), static_cast<std::int64_t>(store.ids().all().size_bytes()));
  EXPECT_EQ(corpus.row_stride_bytes % backend.row_alignment_bytes(), 0);
  return all;
}

TEST(flat_store, an_append_that_fails_at_any_step_changes_nothing) {
  const matrix rows(40, 19, element_type::f32, 25);
  const std::vector<std::int64_t> out_of_order = {900, 4, 901, 902, 903, 904, 905, 906, 907, 908};
  const flat_index_options options = {.dim = 19, .metric = metric::cosine, .storage = storage::int8_and_full};
  for (const bool with_ids : {false, true}) {
    for (const bool room : {false, true}) {
      faulty_backend backend;
      {
        index::flat_store store(backend, options);
        if (room) store.reserve(nullptr, 40);
        store.append(nullptr, core::copy_kind::host_to_device, rows.part(0, 3), {});
        const auto before = contents(backend, store);
        const int live = backend.live_allocations;
        const auto append_to = [&](index::flat_store& target) {
          target.append(nullptr, core::copy_kind::host_to_device, rows.part(20, 10),
                        with_ids ? std::span<const std::int64_t>(out_of_order) : std::span<const std::int64_t>());
        };
        int failures = 0;
        for (int step = 0;; ++step, ++failures) {
          backend.calls_before_failure = step;
          try {
            append_to(store);
            break;
          } catch (const out_of_memory&) {
          }
          ASSERT_EQ(store.rows(), 3) << "step " << step;
          ASSERT_EQ(contents(backend, store), before) << "step " << step;
          ASSERT_EQ(backend.live_allocations, live) << "step " << step;
        }
        backend.calls_before_failure = std::numeric_limits<int>::max();
        EXPECT_GE(failures, 5) << "zero, copy, norms, plane, synchronize at least";
        EXPECT_EQ(store.rows(), 13);
        index::flat_store untroubled(backend, options);
        untroubled.append(nullptr, core::copy_kind::host_to_device, rows.part(0, 3), {});
        append_to(untroubled);
        EXPECT_EQ(contents(backend, store), contents(backend, untroubled));
      }
      EXPECT_EQ(backend.live_allocations, 0);
    }
  }
}

TEST(flat_store, grows_to_just_what_is_needed_where_memory_is_short) {
  faulty_backend backend;
  const matrix rows(100, 16, element_type::f32, 26);
  index::flat_store store(backend, {.dim = 16, .metric = metric::l2});
  store.append(nullptr, core::copy_kind::host_to_device, rows.part(0, 80), {});
  backend.largest_allocation = 100 * 64;
  store.append(nullptr, core::copy_kind::host_to_device, rows.part(80, 10), {});
  EXPECT_EQ(store.capacity(), 90);
  expect_error<out_of_memory>([&] { store.append(nullptr, core::copy_kind::host_to_device, rows.part(0, 11), {}); },
                              "larger than");
  EXPECT_EQ(store.rows(), 90);
  store.append(nullptr, core::copy_kind::host_to_device, rows.part(90, 10), {});
  EXPECT_EQ(store.rows(), 100);
}

TEST(flat_store, many_small_appends_make_few_allocations) {
  faulty_backend backend;
  const matrix rows(1000, 16, element_type::f32, 26);
  index::flat_store store(backend, {.dim = 16, .metric = metric::l2});
  for (std::int64_t row = 0; row < 1000; ++row) {
    store.append(nullptr, core::copy_kind::host_to_device, rows.part(row, 1), {});
  }
  EXPECT_LE(store.memory().device_allocations, 20);
  EXPECT_LE(store.capacity(), 1500);
}

TEST(slot_pool, gives_a_slot_of_its_own_to_each_and_takes_it_back) {
  faulty_backend backend;
  index::slot_pool pool(backend, 16, storage::full);
  const search_limits small = {.max_rows = 100, .max_queries = 1, .max_k = 10};
  const core::scratch* seen = nullptr;
  {
    const auto first = pool.take(small, 200);
    const auto second = pool.take(small, 200);
    EXPECT_NE(first->scratch, second->scratch);
    EXPECT_EQ(first->limits.max_rows, 200);
    seen = first->scratch.get();
  }
  const auto again = pool.take(small, 200);
  EXPECT_EQ(again->scratch.get(), seen) << "the one that was used last";
}

TEST(slot_pool, replaces_what_is_too_small_and_keeps_it_if_that_fails) {
  faulty_backend backend;
  index::slot_pool pool(backend, 16, storage::full);
  static_cast<void>(pool.take({.max_rows = 100, .max_queries = 8, .max_k = 10}, 100));
  backend.calls_before_failure = 0;
  expect_error<out_of_memory>(
      [&] { static_cast<void>(pool.take({.max_rows = 100, .max_queries = 1, .max_k = 90}, 100)); }, "was to fail");
  {
    const auto kept = pool.take({.max_rows = 100, .max_queries = 8, .max_k = 10}, 100);
    EXPECT_EQ(kept->limits.max_k, 10);
  }
  backend.calls_before_failure = std::numeric_limits<int>::max();
  const auto larger = pool.take({.max_rows = 100, .max_queries = 1, .max_k = 90}, 100);
  EXPECT_EQ(larger->limits.max_k, 90);
  EXPECT_EQ(larger->limits.max_queries, 8) << "serves what the old one served";
}

TEST(slot_pool, batches_stay_within_a_budget_of_memory) {
  faulty_backend backend;
  index::slot_pool pool(backend, 16, storage::full);
  const auto many = pool.take({.max_rows = 100, .max_queries = 1'000'000, .max_k = 10}, 100);
  EXPECT_EQ(many->limits.max_queries, 4096);
  const auto long_lists = pool.take({.max_rows = 100, .max_queries = 1'000'000, .max_k = 1'000'000}, 100);
  EXPECT_GE(long_lists->limits.max_queries, 1);
  EXPECT_LE(long_lists->limits.max_queries * 12'000'000, std::int64_t{256} << 20);
}

TEST(slot_pool, a_reservation_is_made_once_and_survives_larger_searches) {
  faulty_backend backend;
  index::slot_pool pool(backend, 16, storage::full);
  const search_limits limits = {.max_rows = 100, .max_queries = 4000, .max_k = 10};
  pool.put_in(pool.make_reserved(limits, 2));
  pool.put_in(pool.make_reserved(limits, 2));
  memory_use use;
  pool.add_to(use);
  const std::int64_t bytes = use.workspaces_bytes;
  // One query of a million results: together with 4,000 queries that would be beyond a slot's budget.
  static_cast<void>(pool.take({.max_rows = 100, .max_queries = 1, .max_k = 1'000'000}, 100));
  backend.calls_before_failure = 0;
  const auto first = pool.take(limits, 100);
  const auto second = pool.take(limits, 100);
  EXPECT_EQ(first->limits.max_queries, 4000);
  EXPECT_EQ(second->limits.max_queries, 4000);
  memory_use later;
  pool.add_to(later);
  EXPECT_GT(later.workspaces_bytes, bytes);
}

TEST(devices, streams_and_buffers_of_the_cpu) {
  const stream s(device::cpu());
  EXPECT_EQ(s.native(), nullptr);
  EXPECT_EQ(s.where(), device::cpu());
  s.synchronize();
  stream::wrap(device::cpu(), nullptr).synchronize();
  buffer memory(device::cpu(), 12);
  EXPECT_EQ(memory.bytes(), 12);
  const char text[] = "eleven char";
  char back[12] = {};
  memory.upload(s, text);
  memory.download(s, back);
  EXPECT_STREQ(back, text);
  buffer empty(device::cpu(), 0);
  empty.upload(s, nullptr);
  EXPECT_EQ(empty.data(), nullptr);
}

TEST(devices, names_read_back) {
  EXPECT_EQ(device::parse("cpu"), device::cpu());
  EXPECT_EQ(device::parse("best"), device::best());
  EXPECT_EQ(device::cpu().name(), "cpu");
  EXPECT_FALSE(device::cpu().description().empty());
  const std::vector<device> all = device::all();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.front(), device::cpu());
  for (const device& one : all) EXPECT_EQ(device::parse(one.name()), one);
  EXPECT_EQ(device::best() == device::cpu(), all.size() == 1);
}

TEST(devices, the_version_is_three_numbers) {
  int numbers[3] = {};
  EXPECT_EQ(std::sscanf(version(), "%d.%d.%d", &numbers[0], &numbers[1], &numbers[2]), 3);
}

}  // namespace
}  // namespace shortlist
