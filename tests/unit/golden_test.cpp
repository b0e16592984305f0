// The golden vectors: scores whose bits come from exact arithmetic, against the oracle and every way to search.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/isa.hpp"
#include "reference/reference.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist {
namespace {

struct golden_vector {
  std::string_view what;
  element_type type;
  metric by;
  std::int64_t dim;
  std::string_view query;  // hexadecimal digits, eight for each element
  std::string_view row;    // hexadecimal digits, two for each byte of an element
  std::uint32_t score;
};

constexpr golden_vector kGoldenVectors[] = {
#include "golden_vectors.inc"
};

unsigned hex_value(std::string_view digits) {
  return static_cast<unsigned>(std::stoul(std::string(digits), nullptr, 16));
}

std::vector<float> query_of(const golden_vector& golden) {
  std::vector<float> query;
  for (std::size_t i = 0; i < golden.query.size(); i += 8) {
    query.push_back(std::bit_cast<float>(hex_value(golden.query.substr(i, 8))));
  }
  return query;
}

/// The row `copies` times over, as bytes.
std::vector<std::byte> rows_of(const golden_vector& golden, std::int64_t copies) {
  const auto digits = static_cast<std::size_t>(2 * size_bytes(golden.type));
  std::vector<std::byte> row;
  for (std::size_t i = 0; i < golden.row.size(); i += digits) {
    const unsigned bits = hex_value(golden.row.substr(i, digits));
    for (unsigned byte = 0; byte < digits / 2; ++byte) row.push_back(static_cast<std::byte>(bits >> (8 * byte)));
  }
  std::vector<std::byte> rows;
  for (std::int64_t copy = 0; copy < copies; ++copy) rows.insert(rows.end(), row.begin(), row.end());
  return rows;
}

std::string describe(const golden_vector& golden) {
  return std::string(golden.what) + ", type=" + std::string(to_string(golden.type)) +
         " metric=" + std::string(to_string(golden.by)) + " dim=" + std::to_string(golden.dim);
}

TEST(GoldenVectors, AreWellFormed) {
  for (const golden_vector& golden : kGoldenVectors) {
    EXPECT_EQ(golden.query.size(), static_cast<std::size_t>(8 * golden.dim)) << describe(golden);
    EXPECT_EQ(golden.row.size(), static_cast<std::size_t>(2 * size_bytes(golden.type) * golden.dim))
        << describe(golden);
  }
}

TEST(GoldenVectors, Reference) {
  for (const golden_vector& golden : kGoldenVectors) {
    const std::vector<float> query = query_of(golden);
    const std::vector<std::byte> row = rows_of(golden, 1);
    const any_matrix_view view(row.data(), golden.type, 1, golden.dim, golden.dim);
    const float score = reference::score(view, 0, query.data(), golden.by);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(score), golden.score) << describe(golden);
  }
}

// Many copies of the row and of the query, so that every place of a tile, block or vector register is used.
constexpr std::int64_t kCopies = 37;
constexpr std::int64_t kQueryCopies = 9;

void check_golden_vectors(device where, std::string_view how) {
  for (const golden_vector& golden : kGoldenVectors) {
    const std::vector<std::byte> rows = rows_of(golden, kCopies);
    std::vector<float> queries;
    for (std::int64_t copy = 0; copy < kQueryCopies; ++copy) {
      const std::vector<float> query = query_of(golden);
      queries.insert(queries.end(), query.begin(), query.end());
    }
    flat_index index(where, {.dim = golden.dim, .metric = golden.by, .type = golden.type});
    index.add(any_matrix_view(rows.data(), golden.type, kCopies, golden.dim, golden.dim));
    const matrix_view<const float> views[] = {{queries.data(), 1, golden.dim},
                                              {queries.data(), kQueryCopies, golden.dim}};
    for (const matrix_view<const float>& view : views) {
      const search_result found = index.search(view, {.k = kCopies});
      for (std::int64_t i = 0; i < view.rows * kCopies; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(found.scores[at]), golden.score)
            << describe(golden) << " device=" << where.name() << " " << how << " queries=" << view.rows
            << " query=" << i / kCopies << " position=" << i % kCopies;
        ASSERT_EQ(found.ids[at], i % kCopies) << describe(golden) << " device=" << where.name() << " " << how;
      }
    }
  }
}

constexpr const char* kForceVariable = "SHORTLIST_FORCE_FLAT_SEARCH";

/// Calls `check(device, how)` with every device, instruction set and algorithm forced in turn.
template <class Check>
void for_every_way(Check check) {
  const std::string_view usual = cpu::to_string(cpu::current_isa());
  for (const char* algorithm : {"scan", "tiles"}) {
    setenv(kForceVariable, algorithm, 1);
    for (const device& where : device::all()) {
      if (where.kind() == device_kind::cuda) {
        check(where, std::string("algorithm=") + algorithm);
        continue;
      }
      for (const std::string_view isa : cpu::available_isas()) {
        cpu::force_isa(isa);
        check(where, std::string("algorithm=") + algorithm + " isa=" + std::string(isa));
      }
      cpu::force_isa(usual);
    }
    unsetenv(kForceVariable);
  }
}

TEST(GoldenVectors, EveryWayToSearch) { for_every_way(check_golden_vectors); }

// The order, written out by hand: twelve rows and their places under each metric.
TEST(GoldenOrder, EveryWayToSearch) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
  // position            0    1     2     3      4      5    6    7      8           9          10     11
  const float rows[12] = {1.f, kNan, -0.f, kInf, -kInf, 0.f, 1.f, -kNan, -kDenormal, kDenormal, -kInf, -1.f};
  const float one = 1.0f;
  const float zero = 0.0f;
  struct expected {
    metric by;
    const float* query;
    std::vector<std::int64_t> positions;
  };
  const expected table[] = {
      {metric::inner_product, &one, {3, 0, 6, 9, 2, 5, 8, 11, 4, 10, 1, 7}},
      // Squares of denormals are 0 in fp32, and so are those of the zeros.
      {metric::l2, &zero, {2, 5, 8, 9, 0, 6, 11, 3, 4, 10, 1, 7}},
      // 2, 5, 8 and 9 are zero vectors; the infinite rows give inf * 0, a NaN.
      {metric::cosine, &one, {0, 6, 11, 2, 5, 8, 9, 1, 3, 4, 7, 10}},
  };
  for (const expected& line : table) {
    const matrix_view<const float> view(rows, 12, 1);
    const std::vector<reference::hit> hits = reference::search(view, line.query, line.by, 12);
    std::vector<std::int64_t> positions;
    for (const reference::hit& hit : hits) positions.push_back(hit.position);
    EXPECT_EQ(positions, line.positions) << "reference, " << to_string(line.by);

    for_every_way([&](device where, const std::string& how) {
      flat_index index(where, {.dim = 1, .metric = line.by});
      index.add(view);
      for (std::int64_t k = 1; k <= 12; ++k) {
        const search_result found = index.search(matrix_view<const float>(line.query, 1, 1), {.k = k});
        EXPECT_EQ(found.ids, std::vector<std::int64_t>(line.positions.begin(), line.positions.begin() + k))
            << where.name() << " " << how << " metric=" << to_string(line.by) << " k=" << k;
      }
    });
  }
}

}  // namespace
}  // namespace shortlist
