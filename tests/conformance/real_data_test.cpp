// Real data with its own ground truth: help_wiki and bigann10k from this repository, Fashion-MNIST where it is.
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

/// A folder of this repository's data/: named by the environment, below the working folder, or beside the program as it
/// was built or installed.
std::optional<fs::path> repository_data(const std::string& folder) {
  std::vector<fs::path> candidates;
  if (const char* named = std::getenv("SHORTLIST_REPOSITORY_DATA")) candidates.emplace_back(named);
  candidates.emplace_back("data");
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* up : {"../data", "../../data", "../../../data", "../share/shortlist/data"}) {
    candidates.push_back(here / up);
  }
  for (const fs::path& candidate : candidates) {
    if (fs::exists(candidate / folder, ignored)) return candidate / folder;
  }
  return std::nullopt;
}

/// Squared distance of bytes, exact.
std::int64_t squared_distance(const std::uint8_t* a, const std::uint8_t* b, std::int64_t dim) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < dim; ++i) {
    const std::int64_t difference = std::int64_t{a[i]} - std::int64_t{b[i]};
    sum += difference * difference;
  }
  return sum;
}

/// Rows, queries and ground truth of bytes under squared L2.
struct byte_set {
  vectors base, queries;
  id_table truth;
};

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
  const std::optional<fs::path> folder = repository_data("bigann10k");
  if (!folder) GTEST_SKIP() << "no data/bigann10k; name its parent with SHORTLIST_REPOSITORY_DATA";
  const byte_set set{read_vectors(*folder / "base.u8bin"), read_vectors(*folder / "query.u8bin"),
                     read_ids(*folder / "gt100.ibin")};
  check_bytes(set, set.queries.rows);
}

struct close_pipe {
  void operator()(std::FILE* pipe) const { pclose(pipe); }
};

/// A file's contents, through `xz -dc` if it ends in .xz; empty if it is not there or does not unpack.
std::vector<std::byte> unpacked(const fs::path& path) {
  std::vector<std::byte> bytes;
  if (!fs::exists(path)) return bytes;
  const std::unique_ptr<std::FILE, close_pipe> pipe(popen(("xz -dc '" + path.string() + "'").c_str(), "r"));
  if (!pipe) return bytes;
  std::array<std::byte, 65536> piece;
  for (std::size_t n; (n = std::fread(piece.data(), 1, piece.size(), pipe.get())) > 0;) {
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n));
  }
  return bytes;
}

/// The uint32 rows and uint32 dim at the head of a .u8bin or .ibin file.
std::array<std::uint32_t, 2> header_of(const std::vector<std::byte>& file) {
  std::array<std::uint32_t, 2> header{};
  if (file.size() >= sizeof header) std::memcpy(header.data(), file.data(), sizeof header);
  return header;
}

vectors bytes_of(const std::vector<std::byte>& file) {
  const auto [rows, dim] = header_of(file);
  return {rows, dim, element_type::u8, std::vector<std::byte>(file.begin() + 8, file.end())};
}

TEST(RealData, FashionMnistDistancesEqualTheGroundTruth) {
  const char* root = std::getenv("SHORTLIST_DATA");
  if (!root) GTEST_SKIP() << "SHORTLIST_DATA is not set";
  const fs::path folder = fs::path(root) / "fashion_mnist";
  const std::vector<std::byte> train = unpacked(folder / "train.u8bin.xz");
  const std::vector<std::byte> test = unpacked(folder / "test.u8bin.xz");
  const std::vector<std::byte> truth = unpacked(folder / "gt100_l2.ibin.xz");
  if (train.empty() || test.empty() || truth.empty()) GTEST_SKIP() << "nothing to unpack in " << folder;
  byte_set set{bytes_of(train), bytes_of(test), {}};
  const auto [rows, k] = header_of(truth);
  set.truth = {rows, k, {}};
  std::vector<std::int32_t> ids(std::size_t{rows} * k);
  ASSERT_EQ(truth.size(), 8 + ids.size() * sizeof(std::int32_t));
  std::memcpy(ids.data(), truth.data() + 8, ids.size() * sizeof(std::int32_t));
  set.truth.data.assign(ids.begin(), ids.end());
  ASSERT_EQ(set.base.data.size(), static_cast<std::size_t>(set.base.rows * set.base.dim));
  ASSERT_EQ(set.queries.data.size(), static_cast<std::size_t>(set.queries.rows * set.queries.dim));
  check_bytes(set, run_settings().full ? set.queries.rows : 200);
}

}  // namespace
}  // namespace shortlist::conformance
