// What must hold between searches: one query and a batch, any number of threads, again and again, after a file, on two
// streams, from many threads, with ids.
#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "conformance/either_device.hpp"
#include "conformance/harness.hpp"

namespace shortlist::conformance {
namespace {

constexpr element_type kTypes[] = {element_type::f32, element_type::f16, element_type::bf16, element_type::i8,
                                   element_type::u8};
constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};
constexpr const char* kAlgorithms[] = {"scan", "tiles", "certified"};  // the last where there is a plane

std::string name_of(element_type type, metric by) {
  return std::string(to_string(type)) + " " + std::string(to_string(by));
}

flat_index index_of(device where, const dataset& data, metric by, const std::vector<std::int64_t>& ids = {}) {
  const storage kept = has_planes(data.type) ? storage::int8_and_full : storage::full;
  flat_index index(where, {.dim = data.dim, .metric = by, .type = data.type, .storage = kept});
  index.add(data.row_view(), ids);
  return index;
}

std::vector<std::pair<metric, storage>> metrics_and_storages() {
  std::vector<std::pair<metric, storage>> all;
  for (const metric by : kMetrics) {
    for (const storage kept : {storage::full, storage::int8_and_full, storage::int8_and_host}) {
      all.emplace_back(by, kept);
    }
  }
  return all;
}

/// Labels in no order: 3 * (a permutation of 0 .. rows-1) + 2.
std::vector<std::int64_t> shuffled_ids(std::int64_t rows) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(rows));
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937_64 random(7);
  for (std::size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random() % i]);
  for (std::int64_t& id : ids) id = 3 * id + 2;
  return ids;
}

class OnDevice : public EitherDevice {};

INSTANTIATE_TEST_SUITE_P(Devices, OnDevice, testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(OnDevice, AQueryAloneEqualsTheQueryInABatch) {
  for (const element_type type : kTypes) {
    for (const metric by : kMetrics) {
      const dataset data = make_dataset(type, "ties_90", 1000, 65, 70, 11);
      const flat_index index = index_of(where_, data, by);
      for (const char* algorithm : kAlgorithms) {
        const forced_algorithm forced(algorithm);
        const search_result batch = index.search(data.query_view(), {.k = 40});
        for (std::int64_t query = 0; query < data.queries; ++query) {
          const search_result alone = index.search(matrix_view<const float>(data.query(query), 1, data.dim), {.k = 40});
          search_result same = alone;
          std::copy_n(batch.scores_of(query).begin(), 40, same.scores.begin());
          std::copy_n(batch.ids_of(query).begin(), 40, same.ids.begin());
          EXPECT_EQ(first_difference(alone, same), "") << name_of(type, by) << " " << algorithm << " query " << query;
        }
      }
    }
  }
}

TEST_P(OnDevice, EveryKIsAPrefixOfTheWholeList) {
  const dataset data = make_dataset(element_type::f32, "ties_90", 700, 3, 2, 12);
  for (const metric by : kMetrics) {
    const flat_index index = index_of(where_, data, by);
    const search_result all = expected_result(data, by, data.rows + 3);
    for (const char* algorithm : kAlgorithms) {
      const forced_algorithm forced(algorithm);
      for (std::int64_t k = 1; k <= data.rows + 3; ++k) {
        const search_result found = index.search(data.query_view(), {.k = k});
        search_result prefix = found;
        prefix.k_found = std::min(k, data.rows);
        for (std::int64_t query = 0; query < data.queries; ++query) {
          std::copy_n(all.scores_of(query).begin(), k, prefix.scores.begin() + query * k);
          std::copy_n(all.ids_of(query).begin(), k, prefix.ids.begin() + query * k);
        }
        ASSERT_EQ(first_difference(found, prefix), "") << to_string(by) << " " << algorithm << " k " << k;
      }
    }
  }
}

TEST_P(OnDevice, RunAfterRunIsTheSame) {
  const dataset data = make_dataset(element_type::f16, "normal", 20000, 96, 20, 13);
  const flat_index index = index_of(where_, data, metric::cosine);
  for (const char* algorithm : kAlgorithms) {
    const forced_algorithm forced(algorithm);
    const search_result first = index.search(data.query_view(), {.k = 300});
    for (int run = 0; run < 3; ++run) {
      EXPECT_EQ(first_difference(index.search(data.query_view(), {.k = 300}), first), "") << algorithm;
    }
  }
}

TEST_P(OnDevice, RowsAddedInAnyNumberOfCallsAreTheSame) {
  const dataset data = make_dataset(element_type::bf16, "ties_90", 3000, 33, 9, 14);
  const std::vector<std::int64_t> ids = shuffled_ids(data.rows);
  for (const auto& [by, kept] : metrics_and_storages()) {
    const forced_algorithm forced(kept == storage::full ? "plan" : "certified");
    const search_result expected = expected_result(data, by, 50, ids);
    for (const std::int64_t calls : {1, 2, 7, 60}) {
      flat_index index(where_, {.dim = data.dim, .metric = by, .type = data.type, .storage = kept});
      for (std::int64_t call = 0; call < calls; ++call) {
        const std::int64_t first = data.rows * call / calls;
        const std::int64_t count = data.rows * (call + 1) / calls - first;
        const std::byte* rows = data.row_data.data() + first * data.row_stride * size_bytes(data.type);
        index.add(any_matrix_view(rows, data.type, count, data.dim, data.row_stride),
                  std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
        // A search in between must leave nothing behind that the next add makes wrong.
        (void)index.search(data.query_view(), {.k = 50});
      }
      EXPECT_EQ(first_difference(index.search(data.query_view(), {.k = 50}), expected), "")
          << to_string(by) << " " << to_string(kept) << " in " << calls << " calls";
    }
  }
}

TEST_P(OnDevice, QueriesOfAnyTypeEqualTheirWidenedValues) {
  const dataset data = make_dataset(element_type::f32, "normal", 500, 70, 20, 15);
  const flat_index index = index_of(where_, data, metric::l2);
  for (const element_type type : kTypes) {
    const dataset queries = make_dataset(type, "uniform", 20, 70, 1, 16);
    dataset widened = data;
    widened.query_stride = data.dim;
    widened.query_data.clear();
    // The oracle widens: an inner product with a unit vector is the element.
    for (std::int64_t query = 0; query < queries.rows; ++query) {
      for (std::int64_t i = 0; i < data.dim; ++i) {
        std::vector<float> unit(static_cast<std::size_t>(data.dim), 0.0f);
        unit[static_cast<std::size_t>(i)] = 1.0f;
        widened.query_data.push_back(reference::score(queries.row_view(), query, unit.data(), metric::inner_product));
      }
    }
    EXPECT_EQ(first_difference(index.search(queries.row_view(), {.k = 25}), expected_result(widened, metric::l2, 25)),
              "")
        << to_string(type);
  }
}

TEST_P(OnDevice, ExplicitIdsDoNotBreakTies) {
  for (const metric by : kMetrics) {
    for (const char* distribution : {"all_equal", "ties_90", "nans", "zero_vectors"}) {
      const dataset data = make_dataset(element_type::f32, distribution, 2000, 20, 6, 17);
      std::vector<std::int64_t> falling(static_cast<std::size_t>(data.rows));
      for (std::int64_t i = 0; i < data.rows; ++i) falling[static_cast<std::size_t>(i)] = (data.rows - i) << 33;
      for (const std::vector<std::int64_t>& ids : {falling, shuffled_ids(data.rows)}) {
        const flat_index index = index_of(where_, data, by, ids);
        const search_result expected = expected_result(data, by, 2005, ids);
        for (const char* algorithm : kAlgorithms) {
          const forced_algorithm forced(algorithm);
          EXPECT_EQ(first_difference(index.search(data.query_view(), {.k = 2005}), expected), "")
              << to_string(by) << " " << distribution << " " << algorithm;
        }
        EXPECT_EQ(
            first_difference(reference_search(data.row_view(), data.query_view(), by, {.k = 2005}, ids), expected), "")
            << "reference_search, " << to_string(by) << " " << distribution;
      }
    }
  }
}

/// A file that is gone when the test is.
class temporary_file {
 public:
  temporary_file()
      : path_(std::filesystem::temp_directory_path() /
              ("shortlist_conformance_" + std::to_string(getpid()) + ".safetensors")) {}
  ~temporary_file() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST_P(OnDevice, ALoadedIndexAnswersTheSameOnEveryDevice) {
  const temporary_file file;
  for (const element_type type : kTypes) {
    for (const metric by : kMetrics) {
      for (const std::vector<std::int64_t>& ids : {std::vector<std::int64_t>{}, shuffled_ids(600)}) {
        const dataset data = make_dataset(type, "normal", 600, 45, 7, 18);
        const search_result expected = expected_result(data, by, 60, ids);
        const storage kept = !has_planes(type) ? storage::full
                             : ids.empty()     ? storage::int8_and_full
                                               : storage::int8_and_host;
        flat_index saved(where_, {.dim = data.dim, .metric = by, .type = type, .storage = kept});
        saved.add(data.row_view(), ids);
        saved.save(file.path());
        for (const device& other : device::all()) {
          for (const verify checks : {verify::full, verify::header_only}) {
            flat_index loaded = flat_index::load(other, file.path(), checks);
            EXPECT_EQ(loaded.storage(), kept);
            for (const char* algorithm : {"plan", "certified"}) {
              const forced_algorithm forced(algorithm);
              EXPECT_EQ(first_difference(loaded.search(data.query_view(), {.k = 60}), expected), "")
                  << name_of(type, by) << " saved on " << where_.name() << ", loaded on " << other.name() << " "
                  << algorithm;
            }
          }
        }
      }
    }
  }
}

TEST_P(OnDevice, TwoStreamsAtOnce) {
  constexpr std::int64_t kK = 64;
  constexpr std::int64_t kQueries = 8;
  constexpr int kRounds = 20;
  const dataset data = make_dataset(element_type::f32, "normal", 30000, 128, kQueries, 19);
  const flat_index index = index_of(where_, data, metric::inner_product);
  const search_result expected = expected_result(data, metric::inner_product, kK);
  struct lane {
    stream s;
    workspace scratch;
    buffer queries, scores, ids;
  };
  std::vector<lane> lanes;
  for (int i = 0; i < 2; ++i) {
    lanes.push_back({stream(where_), workspace(where_, {.max_rows = data.rows, .max_queries = kQueries, .max_k = kK}),
                     buffer(where_, kQueries * data.query_stride * 4), buffer(where_, kQueries * kK * 4),
                     buffer(where_, kQueries * kK * 8)});
    lanes.back().queries.upload(lanes.back().s, data.query_data.data());
  }
  for (const char* algorithm : kAlgorithms) {
    const forced_algorithm forced(algorithm);
    for (int round = 0; round < kRounds; ++round) {
      for (lane& at : lanes) {
        const matrix_view<const float> view(static_cast<const float*>(at.queries.data()), kQueries, data.dim,
                                            data.query_stride);
        index.search(at.s, at.scratch, view, {.k = kK},
                     {static_cast<float*>(at.scores.data()), static_cast<std::int64_t*>(at.ids.data())});
      }
    }
    for (lane& at : lanes) {
      search_result found = expected;
      std::fill(found.ids.begin(), found.ids.end(), -2);
      at.s.synchronize();
      at.scores.download(at.s, found.scores.data());
      at.ids.download(at.s, found.ids.data());
      EXPECT_EQ(first_difference(found, expected), "") << algorithm;
    }
  }
}

TEST_P(OnDevice, SixteenThreadsAtOnce) {
  constexpr int kThreads = 16;
  constexpr int kSearches = 12;
  const dataset data = make_dataset(element_type::f32, "ties_90", 4000, 64, 33, 20);
  const flat_index index = index_of(where_, data, metric::l2);
  const std::int64_t ks[] = {1, 10, 100, 1000};
  std::vector<search_result> expected;
  for (const std::int64_t k : ks) expected.push_back(expected_result(data, metric::l2, k));
  std::vector<std::string> failures(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kSearches; ++i) {
        const auto which = static_cast<std::size_t>((thread + i) % 4);
        const std::int64_t k = ks[which];
        // By turns the whole batch and one query of it.
        const std::int64_t first = (i % 2 == 0) ? 0 : (thread + i) % data.queries;
        const std::int64_t count = (i % 2 == 0) ? data.queries : 1;
        try {
          const search_result found =
              index.search(matrix_view<const float>(data.query(first), count, data.dim, data.query_stride), {.k = k});
          search_result part = found;
          part.k_found = expected[which].k_found;
          std::copy_n(expected[which].scores.begin() + first * k, count * k, part.scores.begin());
          std::copy_n(expected[which].ids.begin() + first * k, count * k, part.ids.begin());
          const std::string difference = first_difference(found, part);
          if (!difference.empty()) failures[static_cast<std::size_t>(thread)] = difference;
        } catch (const std::exception& failure) {
          failures[static_cast<std::size_t>(thread)] = failure.what();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int thread = 0; thread < kThreads; ++thread) {
    EXPECT_EQ(failures[static_cast<std::size_t>(thread)], "") << "thread " << thread;
  }
}

TEST_P(OnDevice, ReservedSearchesAllocateNothing) {
  const dataset data = make_dataset(element_type::f32, "normal", 5000, 100, 16, 21);
  flat_index index(where_, {.dim = data.dim, .metric = metric::cosine, .storage = storage::int8_and_full});
  index.reserve({.max_rows = data.rows, .max_queries = data.queries, .max_k = 200});
  index.add(data.row_view());
  const search_result expected = expected_result(data, metric::cosine, 200);
  const std::int64_t before = index.memory().device_allocations;
  for (const char* algorithm : kAlgorithms) {
    const forced_algorithm forced(algorithm);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(first_difference(index.search(data.query_view(), {.k = 200}), expected), "") << algorithm;
    }
  }
  EXPECT_EQ(index.memory().device_allocations, before);
}

TEST_P(OnDevice, AnIndexThatRanOutOfMemoryIsAsItWas) {
  if (where_.kind() == device_kind::cpu) GTEST_SKIP() << "a host may promise more memory than it has";
  const dataset data = make_dataset(element_type::f32, "normal", 300, 256, 4, 22);
  flat_index index = index_of(where_, data, metric::inner_product);
  // 2^40 bytes of rows.
  EXPECT_THROW(index.reserve({.max_rows = std::int64_t{1} << 30, .max_queries = 1, .max_k = 10}), out_of_memory);
  EXPECT_EQ(index.rows(), data.rows);
  EXPECT_EQ(
      first_difference(index.search(data.query_view(), {.k = 20}), expected_result(data, metric::inner_product, 20)),
      "");
  index.add(data.row_view());
  EXPECT_EQ(index.rows(), 2 * data.rows);
}

TEST(Threads, AnyNumberGivesTheSame) {
  for (const element_type type : {element_type::f32, element_type::u8}) {
    const dataset data = make_dataset(type, "ties_90", 20000, 96, 24, 23);
    for (const metric by : kMetrics) {
      const flat_index index = index_of(device::cpu(), data, by);
      const search_result expected = expected_result(data, by, 150);
      for (const std::size_t threads : {1, 2, 3, 5, 16}) {
        const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
        for (const char* algorithm : kAlgorithms) {
          const forced_algorithm forced(algorithm);
          EXPECT_EQ(first_difference(index.search(data.query_view(), {.k = 150}), expected), "")
              << name_of(type, by) << " " << algorithm << " threads " << threads;
          const search_result one = index.search(matrix_view<const float>(data.query(0), 1, data.dim), {.k = 150});
          search_result first = one;
          std::copy_n(expected.scores.begin(), 150, first.scores.begin());
          std::copy_n(expected.ids.begin(), 150, first.ids.begin());
          EXPECT_EQ(first_difference(one, first), "")
              << name_of(type, by) << " " << algorithm << " threads " << threads;
        }
      }
    }
  }
}

}  // namespace
}  // namespace shortlist::conformance
