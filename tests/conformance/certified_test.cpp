// Indexes with a plane, on every device: the data that is worst for a filter at sizes at which it is given up, what a
// search counts, and where rows lie in host memory beside a GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "conformance/either_device.hpp"
#include "conformance/harness.hpp"

namespace shortlist::conformance {
namespace {

constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};
constexpr const char* kDeviceBudget = "SHORTLIST_DEVICE_BUDGET";

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t kHardRows = 4'000;
#else
constexpr std::int64_t kHardRows = 50'000;
#endif

matrix_view<const float> part_of(const dataset& data, std::int64_t first, std::int64_t count) {
  return {data.query(first), count, data.dim, data.query_stride};
}

/// The GPU of a test that is skipped without one.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const std::optional<device> gpu = first_device("cuda");
    if (!gpu) GTEST_SKIP() << "no GPU";
    where_ = *gpu;
  }
  device where_ = device::cpu();
};

struct hard_data {
  const char* distribution;
  element_type type = element_type::f32;
  std::int64_t dim = 96;
};

// Large enough that a search which watches its survivors has time to switch.
TEST(CertifiedSearch, EqualsTheFullOneOnTheHardestData) {
  constexpr std::int64_t kQueries = 20;
  constexpr hard_data kData[] = {{"all_equal"},
                                 {"one_cluster"},
                                 {"ascending"},
                                 {"descending"},
                                 {"query_duplicates"},
                                 {"ties_90"},
                                 {"heavy_tailed"},
                                 {"sparse"},
                                 {"nans"},
                                 {"infinities"},
                                 {"zero_vectors"},
                                 {"mixed_magnitudes"},
                                 {"one_cluster", element_type::bf16, 257},
                                 {"ascending", element_type::f16, 64}};
  for (const auto& [distribution, type, dim] : kData) {
    const dataset data = make_dataset(type, distribution, kHardRows, dim, kQueries, 41);
    for (const metric by : kMetrics) {
      for (const device& where : device::all()) {
        for (const storage kept : {storage::int8_and_full, storage::int8_and_host}) {
          if (kept == storage::int8_and_host && where.kind() == device_kind::cpu) continue;
          const bool has_coarse_copy = where.kind() != device_kind::cpu && kept == storage::int8_and_full;
          flat_index index(where, {.dim = dim, .metric = by, .type = type, .storage = kept});
          index.add(data.row_view());
          for (const std::int64_t queries : {std::int64_t{1}, kQueries}) {
            for (const std::int64_t k : {1, 10, 300}) {
              const auto search = [&](const char* algorithm) {
                const forced_algorithm forced(algorithm);
                return index.search(part_of(data, 0, queries), {.k = k});
              };
              const search_result full = search(queries == 1 ? "scan" : "tiles");
              std::vector<const char*> algorithms{"certified", "certified_overflow", "plan"};
              if (has_coarse_copy) algorithms.push_back("certified_coarse");
              for (const char* algorithm : algorithms) {
                EXPECT_EQ(first_difference(search(algorithm), full), "")
                    << fmt::format("{} {} {} {} on {}, {}, {} queries, k {}", distribution, to_string(type),
                                   to_string(by), algorithm, where.name(), to_string(kept), queries, k);
              }
            }
          }
        }
      }
    }
  }
}

TEST(CertifiedSearch, CountsWhatItScored) {
  constexpr std::int64_t kRows = 150'000;
  const dataset data = make_dataset(element_type::f32, "normal", kRows, 128, 24, 42);
  for (const device& where : device::all()) {
    flat_index index(where, {.dim = data.dim, .storage = storage::int8_and_full});
    index.add(data.row_view());
    for (const std::int64_t queries : {1, 3, 24}) {
      for (const std::int64_t k : {1, 10}) {
        const std::string what = fmt::format("{}, {} queries, k {}", where.name(), queries, k);
        const forced_algorithm forced("certified");
        search_stats stats;
        for (int run = 1; run <= 2; ++run) {
          (void)index.search(part_of(data, 0, queries), {.k = k, .stats = &stats});
          EXPECT_EQ(stats.certified_queries, run * queries) << what << ": a search adds to what is there";
        }
        EXPECT_GE(stats.survivors, 2 * queries * k) << what;
        EXPECT_LE(stats.survivors, 2 * queries * kRows / 20) << what << ": most rows are to be excluded";
        const search_stats before = stats;
        const forced_algorithm full("tiles");
        (void)index.search(part_of(data, 0, queries), {.k = k, .stats = &stats});
        EXPECT_EQ(stats.certified_queries, before.certified_queries) << what;
        EXPECT_EQ(stats.survivors, before.survivors) << what;
      }
    }
  }
}

TEST(CertifiedSearch, ThePlanUsesThePlaneOfTightRowsAlone) {
  constexpr std::int64_t kRows = 60'000;  // not in the L2 cache of a GPU
  constexpr std::int64_t kQueries = 2;
  for (const auto& [distribution, certifies] : {std::pair("normal", true), std::pair("nans", false)}) {
    const dataset data = make_dataset(element_type::f32, distribution, kRows, 512, kQueries, 43);
    const search_result expected = expected_result(data, metric::inner_product, 10);
    for (const device& where : device::all()) {
      flat_index index(where, {.dim = data.dim, .storage = storage::int8_and_full});
      index.add(data.row_view());
      const forced_algorithm plan("plan");
      search_stats stats;
      EXPECT_EQ(first_difference(index.search(data.query_view(), {.k = 10, .stats = &stats}), expected), "")
          << distribution << " on " << where.name();
      EXPECT_EQ(stats.certified_queries > 0, certifies) << distribution << " on " << where.name() << "\n"
                                                        << index.explain(kQueries, {.k = 10});
    }
  }
}

// Of so many rows every block of a batch's filter has tiles left when it has given up the queries whose best rows tie.
TEST_F(OnGpu, ABatchGoesOnForTheQueriesThatAreNotGivenUp) {
  constexpr std::int64_t kQueries = 20;
  dataset data = make_dataset(element_type::f32, "ties_90", 400'000, 64, kQueries, 44);
  const auto* rows = reinterpret_cast<const float*>(data.row_data.data());
  const float* common = rows;  // nine rows of ten
  while (!std::equal(common, common + data.dim, common + data.row_stride)) common += data.row_stride;
  flat_index index(where_, {.dim = data.dim, .storage = storage::int8_and_full});
  index.add(data.row_view());
  for (const std::int64_t given_up : {kQueries / 2, kQueries}) {
    for (std::int64_t q = kQueries - given_up; q < kQueries; ++q)
      std::copy_n(common, data.dim, data.query_data.data() + q * data.query_stride);
    search_stats stats;
    const auto search = [&](const char* algorithm) {
      const forced_algorithm forced(algorithm);
      return index.search(data.query_view(), {.k = 100, .stats = &stats});
    };
    EXPECT_EQ(first_difference(search("certified"), search("tiles")), "") << given_up << " given up";
    EXPECT_EQ(stats.certified_queries, kQueries - given_up);
  }
}

// So many rows that the threshold of coarse codes is raised by scores a few times; their bounds are loose enough for
// many results, and tight for few.
TEST_F(OnGpu, ALongScanOfCoarseCodesLosesNothing) {
  constexpr std::int64_t kRows = 220'000;
  constexpr std::int64_t kQueries = 3;
  struct corpus {
    element_type type;
    const char* distribution;
  };
  // Of f32 rows a warp scores four at a time, so that other warps help it; of f16 rows all that there are.
  for (const auto& [type, distribution] : {corpus{element_type::f16, "normal"}, corpus{element_type::f16, "ascending"},
                                           corpus{element_type::f32, "normal"}}) {
    const dataset data = make_dataset(type, distribution, kRows, 512, kQueries, 47);
    for (const metric by : kMetrics) {
      flat_index index(where_, {.dim = data.dim, .metric = by, .type = data.type, .storage = storage::int8_and_full});
      index.add(data.row_view());
      for (const std::int64_t k : {1, 10, 300, 1000, 2000}) {
        for (std::int64_t q = 0; q < kQueries; ++q) {
          const auto search = [&](const char* algorithm) {
            const forced_algorithm forced(algorithm);
            return index.search(part_of(data, q, 1), {.k = k});
          };
          const search_result full = search("scan");
          for (const char* algorithm : {"certified_coarse", "plan"}) {
            EXPECT_EQ(first_difference(search(algorithm), full), "")
                << fmt::format("{} {} {} query {}, k {}", distribution, to_string(by), algorithm, q, k);
          }
        }
      }
    }
  }
}

// Rows in host memory: added from both sides, grown, read back, and told apart in memory().
TEST_F(OnGpu, RowsInHostMemoryAreThoseThatWereAdded) {
  for (const element_type type : {element_type::f32, element_type::f16, element_type::bf16}) {
    for (const metric by : kMetrics) {
      const dataset data = make_dataset(type, "normal", 3000, 77, 9, 44);
      flat_index index(where_, {.dim = data.dim, .metric = by, .type = type, .storage = storage::int8_and_host});
      const std::int64_t stride_bytes = data.row_stride * size_bytes(type);
      const auto rows = [&](std::int64_t first, std::int64_t count) {
        return any_matrix_view(data.row_data.data() + first * stride_bytes, type, count, data.dim, data.row_stride);
      };
      const stream s(where_);
      index.add(rows(0, 1000));
      add_from_device(index, s, rows(1000, 500));
      index.reserve({.max_rows = 2000});
      index.add(rows(1500, 501));
      add_from_device(index, s, rows(2001, 999));

      std::vector<std::byte> back(static_cast<std::size_t>(data.rows * data.dim * size_bytes(type)));
      index.read(0, data.rows, back.data());
      const std::int64_t row_bytes = data.dim * size_bytes(type);
      for (std::int64_t row = 0; row < data.rows; ++row) {
        ASSERT_EQ(std::memcmp(back.data() + row * row_bytes, data.row_data.data() + row * stride_bytes,
                              static_cast<std::size_t>(row_bytes)),
                  0)
            << "row " << row;
      }
      const memory_use use = index.memory();
      EXPECT_GT(use.rows_bytes, data.rows * row_bytes);
      EXPECT_EQ(use.host_rows_bytes, use.rows_bytes);
      EXPECT_GT(use.planes_bytes, data.rows * data.dim);
      const search_result expected = expected_result(data, by, 30);
      for (const char* algorithm : {"plan", "certified", "scan", "tiles"}) {
        const forced_algorithm forced(algorithm);
        EXPECT_EQ(first_difference(index.search(data.query_view(), {.k = 30}), expected), "") << algorithm;
      }
    }
  }
}

class device_budget {
 public:
  explicit device_budget(const std::string& bytes) { setenv(kDeviceBudget, bytes.c_str(), 1); }
  ~device_budget() { unsetenv(kDeviceBudget); }
};

TEST_F(OnGpu, TheBudgetRefusesWhatIsBeyondIt) {
  const dataset data = make_dataset(element_type::f32, "normal", 4000, 1024, 3, 45);  // 16 MB
  flat_index index(where_, {.dim = data.dim, .storage = storage::int8_and_full});
  index.add(data.row_view());
  const search_result expected = index.search(data.query_view(), {.k = 10});
  {
    const device_budget no_more("1MiB");
    try {
      index.add(data.row_view());
      ADD_FAILURE() << "rows beyond the budget were added";
    } catch (const out_of_memory& failure) {
      const std::string text = failure.what();
      EXPECT_NE(text.find("SHORTLIST_DEVICE_BUDGET allows 1.0 MiB"), std::string::npos) << text;
    }
    EXPECT_EQ(index.rows(), data.rows);
    EXPECT_EQ(first_difference(index.search(data.query_view(), {.k = 10}), expected), "");
    EXPECT_THROW(buffer(where_, 1 << 20), out_of_memory);
  }
  const device_budget no_number("plenty");
  EXPECT_THROW(buffer(where_, 16), invalid_argument);
}

TEST_F(OnGpu, HostRowsDoNotCountAgainstTheBudget) {
  const dataset data = make_dataset(element_type::f32, "normal", 20'000, 1024, 2, 46);  // 82 MB, its plane 21
  flat_index before(where_, {.dim = data.dim});
  const std::int64_t limit = std::int64_t{75} << 20;
  const device_budget budget(std::to_string(limit));
  EXPECT_THROW(before.add(data.row_view()), out_of_memory);
  flat_index index(where_, {.dim = data.dim, .storage = storage::int8_and_host});
  index.reserve({.max_rows = data.rows, .max_queries = 2, .max_k = 10});
  index.add(data.row_view());
  EXPECT_EQ(
      first_difference(index.search(data.query_view(), {.k = 10}), expected_result(data, metric::inner_product, 10)),
      "");
}

TEST_F(OnGpu, HostMemoryThatRunsOutIsNamed) {
  constexpr std::int64_t kDim = 65'536;
  flat_index index(where_, {.dim = kDim, .storage = storage::int8_and_host});
  try {
    index.reserve({.max_rows = std::int64_t{1} << 30});  // 2^48 bytes: beyond what a process can address
    ADD_FAILURE() << "256 TiB of pinned memory";
  } catch (const out_of_memory& failure) {
    const std::string text = failure.what();
    EXPECT_NE(text.find("memory: "), std::string::npos) << text;
    EXPECT_NE(text.find("asked for; free are "), std::string::npos) << text;
  }
  const std::vector<float> row(kDim, 1.0f);
  index.add(matrix_view<const float>(row.data(), 1, kDim));
  EXPECT_EQ(index.rows(), 1);
}

}  // namespace
}  // namespace shortlist::conformance
