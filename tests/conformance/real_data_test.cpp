// Real data with its own ground truth: help_wiki and bigann10k from this repository, Fashion-MNIST where it is.
#include "conformance/real_data.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "conformance/harness.hpp"

namespace shortlist::conformance {
namespace {

namespace fs = std::filesystem;

/// Squared distance of bytes, exact.
std::int64_t squared_distance(const std::uint8_t* a, const std::uint8_t* b, std::int64_t dim) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < dim; ++i) {
    const std::int64_t difference = std::int64_t{a[i]} - std::int64_t{b[i]};
    sum += difference * difference;
  }
  return sum;
}

/// Rows as fp32, which may have a plane where bytes have none.
std::vector<float> widened(const vectors& bytes) {
  std::vector<float> wide(static_cast<std::size_t>(bytes.rows * bytes.dim));
  std::transform(bytes.data.begin(), bytes.data.begin() + static_cast<std::ptrdiff_t>(wide.size()), wide.begin(),
                 [](std::byte value) { return static_cast<float>(std::to_integer<int>(value)); });
  return wide;
}

/// Every list has the distances of the ground truth, place by place: integers, and exact in fp32 below 2^24. The ids
/// are distinct and have the distances that they claim.
void check_bytes(const byte_set& set, std::int64_t query_count) {
  // Integers are exact in fp32, and so are their distances: the plane's answer must be that of the bytes.
  const std::vector<float> wide = widened(set.base);
  const std::int64_t dim = set.base.dim;
  const auto* base = reinterpret_cast<const std::uint8_t*>(set.base.data.data());
  const auto* queries = reinterpret_cast<const std::uint8_t*>(set.queries.data.data());
  const any_matrix_view some(set.queries.data.data(), set.queries.type, query_count, dim, dim);
  const std::int64_t k = set.truth.dim;
  for (const device& where : device::all()) {
    flat_index index(where, {.dim = dim, .metric = metric::l2, .type = element_type::u8});
    index.add(set.base.view());
    std::vector<flat_index> with_plane;
    for (const storage kept : {storage::int8_and_full, storage::int8_and_host}) {
      with_plane.emplace_back(where, flat_index_options{.dim = dim, .metric = metric::l2, .storage = kept});
      with_plane.back().add(matrix_view<const float>(wide.data(), set.base.rows, dim));
    }
    for (const char* algorithm : {"scan", "tiles"}) {
      const forced_algorithm forced(algorithm);
      const search_result found = index.search(some, {.k = k});
      for (const flat_index& certified : with_plane) {
        const forced_algorithm by_plane("certified");
        search_stats stats;
        EXPECT_EQ(first_difference(certified.search(some, {.k = k, .stats = &stats}), found), "") << where.name();
        EXPECT_EQ(stats.certified_queries, query_count) << where.name() << ": real data of which a query is given up";
      }
      for (std::int64_t query = 0; query < query_count; ++query) {
        const auto ids = found.ids_of(query);
        EXPECT_EQ(std::set<std::int64_t>(ids.begin(), ids.end()).size(), static_cast<std::size_t>(k));
        for (std::int64_t i = 0; i < k; ++i) {
          const auto place = static_cast<std::size_t>(i);
          const std::int64_t truth = set.truth.data[static_cast<std::size_t>(query * k + i)];
          const std::int64_t distance = squared_distance(queries + query * dim, base + truth * dim, dim);
          ASSERT_LT(distance, 1 << 24) << "not exact in fp32";
          ASSERT_EQ(found.scores_of(query)[place], static_cast<float>(distance))
              << where.name() << " " << algorithm << " query " << query << " position " << i;
          ASSERT_EQ(squared_distance(queries + query * dim, base + ids[place] * dim, dim), distance)
              << where.name() << " " << algorithm << " query " << query << " position " << i;
        }
      }
    }
  }
}

TEST(RealData, HelpWikiIdsEqualTheGroundTruth) {
  const std::optional<fs::path> folder = repository_data("help_wiki");
  if (!folder) GTEST_SKIP() << "no data/help_wiki; name its parent with SHORTLIST_REPOSITORY_DATA";
  const vectors base = read_vectors(*folder / "base.fbin");
  const vectors queries = read_vectors(*folder / "more_queries.fbin");
  const id_table truth = read_ids(*folder / "more_queries_gt100_ip.ibin");
  ASSERT_EQ(truth.rows, queries.rows);
  const search_result expected = reference_search(base.view(), queries.view(), metric::inner_product, {.k = truth.dim});
  EXPECT_EQ(expected.ids, truth.data) << "reference";
  for (const device& where : device::all()) {
    for (const char* algorithm : {"scan", "tiles", "certified", "certified_overflow", "certified_host"}) {
      flat_index index(where, {.dim = base.dim, .storage = storage_for(algorithm)});
      index.add(base.view());
      const forced_algorithm forced(algorithm);
      const search_result found = index.search(queries.view(), {.k = truth.dim});
      EXPECT_EQ(found.ids, truth.data) << where.name() << " " << algorithm;
      EXPECT_EQ(first_difference(found, expected), "") << where.name() << " " << algorithm;
    }
  }
}

TEST(RealData, Bigann10kDistancesEqualTheGroundTruth) {
  const std::optional<byte_set> set = bigann10k();
  if (!set) GTEST_SKIP() << kNoBigann10k;
  check_bytes(*set, set->queries.rows);
}

TEST(RealData, FashionMnistDistancesEqualTheGroundTruth) {
  const std::optional<byte_set> set = fashion_mnist();
  if (!set) GTEST_SKIP() << kNoFashionMnist;
  ASSERT_EQ(set->base.data.size(), static_cast<std::size_t>(set->base.rows * set->base.dim));
  ASSERT_EQ(set->queries.data.size(), static_cast<std::size_t>(set->queries.rows * set->queries.dim));
  check_bytes(*set, run_settings().full ? set->queries.rows : 200);
}

}  // namespace
}  // namespace shortlist::conformance
