// The CPU's ops of IVF-PQ, each against the reference, on every instruction set that this machine runs.
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/ivf_pq.hpp"
#include "unit/ivf_pq_ops_problem.hpp"

namespace shortlist::unit {
namespace {

core::ivf_pq_ops& ops() { return cpu::cpu_backend().ivf_pq(); }

class IvfPqOps : public testing::Test {
 protected:
  void TearDown() override { cpu::force_isa(usual_); }
  const std::string usual_{cpu::to_string(cpu::current_isa())};
};

/// Shapes with every number of elements in a piece that has code of its own, and padded last pieces.
std::vector<ivf_pq_case> shapes() {
  std::vector<ivf_pq_case> cases;
  const std::int64_t dims_and_pieces[][2] = {{1, 1},    {2, 1},     {3, 2},   {9, 3},   {16, 4},   {31, 8},
                                             {33, 5},   {64, 8},    {96, 48}, {97, 49}, {127, 64}, {128, 32},
                                             {129, 43}, {200, 100}, {255, 7}, {300, 75}};
  std::uint32_t seed = 0;
  for (const auto& [dim, pieces] : dims_and_pieces) {
    ivf_pq_case one{.dim = dim, .pieces = pieces, .bits = 4 + static_cast<int>(seed % 5), .rows = 70, .seed = ++seed};
    one.data = kIvfPqData[seed % std::size(kIvfPqData)];
    one.by = seed % 3 == 0 ? metric::cosine : metric::l2;
    one.rotated = seed % 2 == 0;
    cases.push_back(one);
    one.bits = 12 - one.bits;
    one.encodes = encoded::row;
    one.data = kIvfPqData[(seed + 3) % std::size(kIvfPqData)];
    cases.push_back(one);
  }
  for (const std::int64_t dim : {1, 31, 96, 300}) {
    for (const int bits : {4, 8}) {
      cases.push_back({.dim = dim, .bits = bits, .uniform = true, .rows = 70, .seed = ++seed});
    }
  }
  return cases;
}

TEST_F(IvfPqOps, TakenRowsEqualTheReference) {
  for (const ivf_pq_case& of : shapes()) {
    const ivf_pq_problem problem(of);
    for (const std::string_view isa : cpu::available_isas()) {
      cpu::force_isa(isa);
      std::vector<float> taken(static_cast<std::size_t>(of.rows * of.dim));
      ops().take_rows(nullptr, of.by, problem.model().rotation, problem.rows(), taken.data());
      for (std::int64_t row = 0; row < of.rows; ++row) {
        const std::vector<float> expected = reference::take_row(problem.oracle(), problem.rows(), row);
        for (std::int64_t i = 0; i < of.dim; ++i) {
          ASSERT_EQ(bits_of(taken[static_cast<std::size_t>(row * of.dim + i)]),
                    bits_of(expected[static_cast<std::size_t>(i)]))
              << describe(of) << " row " << row << " element " << i;
        }
      }
    }
  }
}

TEST_F(IvfPqOps, RowsOfEveryTypeAreTaken) {
  std::vector<std::byte> bytes(7 * 40 * 4);
  std::mt19937 random(5);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 120);  // no exponent is all ones
  for (const element_type type :
       {element_type::f32, element_type::f16, element_type::bf16, element_type::i8, element_type::u8}) {
    for (const metric by : {metric::l2, metric::cosine}) {
      const any_matrix_view rows(bytes.data(), type, 7, 37, 40);
      const reference::ivf_pq_model oracle{.dim = 37, .by = by};
      std::vector<float> taken(7 * 37);
      ops().take_rows(nullptr, by, nullptr, rows, taken.data());
      for (std::size_t row = 0; row < 7; ++row) {
        const std::vector<float> expected = reference::take_row(oracle, rows, static_cast<std::int64_t>(row));
        for (std::size_t i = 0; i < 37; ++i) {
          ASSERT_EQ(bits_of(taken[row * 37 + i]), bits_of(expected[i])) << to_string(type) << " " << to_string(by);
        }
      }
    }
  }
}

TEST_F(IvfPqOps, RowsThatAreNotFiniteAreNamedInOrder) {
  constexpr std::int64_t kRows = 5000;
  std::vector<float> rows(kRows * 3, std::numeric_limits<float>::max());
  const auto find = [&](std::int64_t limit) {
    return ops().rows_not_finite(nullptr, matrix_view<const float>(rows.data(), kRows, 3), limit);
  };
  EXPECT_TRUE(find(5).empty());
  rows[3 * 4999 + 2] = -std::numeric_limits<float>::infinity();
  rows[3 * 17 + 1] = std::numeric_limits<float>::quiet_NaN();
  rows[3 * 2048] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(find(5), (std::vector<std::int64_t>{17, 2048, 4999}));
  EXPECT_EQ(find(2), (std::vector<std::int64_t>{17, 2048}));
  std::fill(rows.begin() + 3 * 100, rows.end(), std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(find(4), (std::vector<std::int64_t>{17, 100, 101, 102}));
  const std::vector<std::uint16_t> halves = {0x7BFF, 0xFC00, 0x0001, 0x7C01};
  EXPECT_EQ(ops().rows_not_finite(nullptr, any_matrix_view(halves.data(), element_type::f16, 4, 1, 1), 9),
            (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(ops().rows_not_finite(nullptr, any_matrix_view(halves.data(), element_type::bf16, 4, 1, 1), 9),
            (std::vector<std::int64_t>{}));
}

TEST_F(IvfPqOps, AssignedListsEqualTheReference) {
  std::uint32_t seed = 0;
  for (const ivf_pq_data data : kIvfPqData) {
    for (const std::int64_t nlist : {1, 127, 203}) {  // few, and as many as are worth estimating
      const ivf_pq_problem problem({.dim = 21, .pieces = 7, .nlist = nlist, .rows = 300, .data = data, .seed = ++seed});
      std::vector<float> taken;
      std::vector<std::int64_t> expected;
      for (std::int64_t row = 0; row < 300; ++row) {
        std::vector<float> one = reference::take_row(problem.oracle(), problem.rows(), row);
        if (row == 200) one[0] = 3e38f;  // nothing is known of its distances
        taken.insert(taken.end(), one.begin(), one.end());
        expected.push_back(reference::assign(problem.oracle(), one));
      }
      const auto memory = ops().make_assign_scratch(problem.model().assigns, 300);
      for (const std::string_view isa : cpu::available_isas()) {
        cpu::force_isa(isa);
        for (const std::int64_t n : {300, 9}) {
          std::vector<std::int64_t> lists(static_cast<std::size_t>(n), -1);
          ops().assign(nullptr, *memory, problem.model().assigns, taken.data(), n, lists.data());
          ASSERT_TRUE(std::equal(lists.begin(), lists.end(), expected.begin()))
              << describe(problem.what()) << " n=" << n;
        }
      }
    }
  }
}

TEST_F(IvfPqOps, ResidualsAndCodesEqualTheReference) {
  for (const ivf_pq_case& of : shapes()) {
    const ivf_pq_problem problem(of);
    const core::ivf_pq_shape& shape = problem.model().shape;
    std::vector<float> taken, expected;
    std::vector<std::int64_t> lists;
    std::vector<std::uint8_t> expected_codes;
    for (std::int64_t row = 0; row < of.rows; ++row) {
      const std::vector<float> one = reference::take_row(problem.oracle(), problem.rows(), row);
      const reference::ivf_pq_row& coded = problem.coded()[static_cast<std::size_t>(row)];
      const std::vector<float> rest = reference::to_encode(problem.oracle(), one, coded.list);
      taken.insert(taken.end(), one.begin(), one.end());
      expected.insert(expected.end(), rest.begin(), rest.end());
      expected_codes.insert(expected_codes.end(), coded.codes.begin(), coded.codes.end());
      lists.push_back(coded.list);
    }
    for (const std::string_view isa : cpu::available_isas()) {
      cpu::force_isa(isa);
      std::vector<float> residuals(expected.size(), 99.0f);
      const core::flat_corpus& centroids = problem.model().assigns;
      ops().residuals(nullptr, shape, taken.data(), of.rows, lists.data(), static_cast<const float*>(centroids.rows),
                      centroids.row_stride_bytes / 4, residuals.data());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(bits_of(residuals[i]), bits_of(expected[i])) << describe(of) << " at " << i;
      }
      std::vector<std::uint8_t> codes(expected_codes.size(), 255);
      ops().encode(nullptr, shape, problem.model().codebook, residuals.data(), of.rows, codes.data());
      ASSERT_EQ(codes, expected_codes) << describe(of);
    }
  }
}

TEST_F(IvfPqOps, NearestCodewordsOfNothingFiniteAreTheFirst) {
  const core::ivf_pq_shape shape{.dim = 2, .nlist = 1, .pieces = 1, .piece_dim = 2, .bits = 4};
  std::vector<float> codebook(32, 1.0f);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float residuals[] = {kInf, 0, std::nanf(""), 0, 3e38f, -3e38f, 1.0f, 1.0f};
  for (const std::string_view isa : cpu::available_isas()) {
    cpu::force_isa(isa);
    std::vector<std::uint8_t> codes(4, 9);
    ops().encode(nullptr, shape, codebook.data(), residuals, 4, codes.data());
    EXPECT_EQ(codes, (std::vector<std::uint8_t>{0, 0, 0, 0})) << isa;
  }
}

TEST_F(IvfPqOps, MeansEqualTheReference) {
  constexpr std::int64_t kDim = 5, kGroups = 4;
  std::mt19937 random(8);
  for (const float magnitude : {1.0f, 1e-42f, 1e30f}) {
    for (const std::int64_t n : {4, 100, 9000}) {
      std::vector<float> rows(static_cast<std::size_t>(n * kDim));
      std::normal_distribution<float> normal(0.0f, magnitude);
      float largest = 0.0f;
      for (float& value : rows) largest = std::max(largest, std::fabs(value = normal(random)));
      std::vector<std::int64_t> group_of(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < group_of.size(); ++i) group_of[i] = i < kGroups ? i : random() % kGroups;
      int a = 0, b = 0;
      std::frexp(largest, &a);  // below 2^a
      while ((std::int64_t{1} << b) < n) ++b;
      const int scale = 61 - a - b;

      std::vector<std::int64_t> sums(kGroups * kDim), counts(kGroups);
      ASSERT_EQ(std::fesetround(FE_UPWARD), 0);  // the caller's rounding mode does not matter
      ops().add_to_means(nullptr, rows.data(), n / 2, kDim, group_of.data(), scale, sums.data(), counts.data());
      std::fesetround(FE_TONEAREST);
      ops().add_to_means(nullptr, rows.data() + n / 2 * kDim, n - n / 2, kDim, group_of.data() + n / 2, scale,
                         sums.data(), counts.data());
      for (std::int64_t group = 0; group < kGroups; ++group) {
        std::vector<float> of_group;
        for (std::int64_t row = 0; row < n; ++row) {
          if (group_of[static_cast<std::size_t>(row)] != group) continue;
          of_group.insert(of_group.end(), rows.begin() + row * kDim, rows.begin() + (row + 1) * kDim);
        }
        const std::int64_t count = counts[static_cast<std::size_t>(group)];
        ASSERT_EQ(count * kDim, static_cast<std::int64_t>(of_group.size()));
        const std::vector<float> expected = reference::mean(of_group.data(), count, kDim, a, n);
        for (std::int64_t i = 0; i < kDim; ++i) {
          const auto sum = static_cast<double>(sums[static_cast<std::size_t>(group * kDim + i)]);
          ASSERT_EQ(bits_of(static_cast<float>(std::ldexp(sum / static_cast<double>(count), -scale))),
                    bits_of(expected[static_cast<std::size_t>(i)]))
              << "n=" << n << " magnitude=" << magnitude << " group " << group << " element " << i;
        }
      }
    }
  }
}

TEST_F(IvfPqOps, SumsOfCodewordsAreThoseOfTheirRows) {
  for (const std::int64_t piece_dim : {1, 3, 40}) {
    const core::ivf_pq_shape shape{.dim = 3 * piece_dim, .nlist = 1, .pieces = 3, .piece_dim = piece_dim, .bits = 5};
    std::mt19937 random(9);
    constexpr std::int64_t kRows = 300;
    std::vector<float> residuals(static_cast<std::size_t>(kRows * shape.padded_dim()));
    std::vector<std::uint8_t> codes(kRows * 3);
    for (float& value : residuals) value = static_cast<float>(random() % 1000) / 8.0f;
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(random() % 32);
    std::vector<std::int64_t> sums(static_cast<std::size_t>(shape.codebook_size()), 1), counts(3 * 32, 2);
    ops().add_to_codewords(nullptr, shape, residuals.data(), kRows, codes.data(), 3, sums.data(), counts.data());
    for (std::int64_t piece = 0; piece < 3; ++piece) {
      for (std::int64_t code = 0; code < 32; ++code) {
        std::int64_t count = 2;
        std::vector<std::int64_t> expected(static_cast<std::size_t>(piece_dim), 1);
        for (std::int64_t row = 0; row < kRows; ++row) {
          if (codes[static_cast<std::size_t>(row * 3 + piece)] != code) continue;
          ++count;
          for (std::int64_t i = 0; i < piece_dim; ++i) {
            const float value = residuals[static_cast<std::size_t>((row * 3 + piece) * piece_dim + i)];
            expected[static_cast<std::size_t>(i)] += static_cast<std::int64_t>(value * 8.0f);
          }
        }
        const std::int64_t word = piece * 32 + code;
        ASSERT_EQ(counts[static_cast<std::size_t>(word)], count);
        for (std::int64_t i = 0; i < piece_dim; ++i) {
          ASSERT_EQ(sums[static_cast<std::size_t>(word * piece_dim + i)], expected[static_cast<std::size_t>(i)]);
        }
      }
    }
  }
}

// Three rows by hand: lists, codes, decoded rows and scores, in exact arithmetic rounded where docs/ivf_pq.md rounds.
TEST_F(IvfPqOps, AnExampleWithBits) {
  reference::ivf_pq_model model{.dim = 3, .nlist = 2, .pieces = 2, .piece_dim = 2, .bits = 4};
  model.centroids = {0, 0, 0, 0.3f, 2, -1.7f};
  for (int n = 0; n < 16; ++n) {
    model.codebook.push_back(static_cast<float>(n) / 8 - 0.75f);
    model.codebook.push_back(static_cast<float>(5 * n % 16) / 16 - 0.5f);
  }
  for (int n = 0; n < 16; ++n) {
    model.codebook.push_back(static_cast<float>(3 * n % 16) / 8 - 1);
    model.codebook.push_back(0);
  }
  const float rows[] = {0.1f, 0.2f, 0.3f, 0.8f, 1.1f, -1.4f, 0.35f, 2.3f, -1.75f};
  const std::vector<float> query = {0.7f, 1.9f, -1.3f};
  struct expected {
    std::int64_t list;
    std::vector<std::uint8_t> codes;
    std::vector<std::uint32_t> decoded;
    std::uint32_t l2, inner_product;
  };
  const expected table[] = {{0, {6, 14}, {0x00000000, 0x3EC00000, 0x3E800000}, 0x40A6FAE1, 0x3EC66666},
                            {1, {10, 14}, {0x3F4CCCCD, 0x3FD00000, 0xBFB9999A}, 0x3DDD70A6, 0x40B10A3D},
                            {1, {6, 8}, {0x3E99999A, 0x40180000, 0xBFD9999A}, 0x3F0BAE16, 0x40DDD70A}};
  for (std::int64_t row = 0; row < 3; ++row) {
    const expected& line = table[row];
    model.by = metric::l2;
    const std::vector<float> taken = reference::take_row(model, matrix_view<const float>(rows, 3, 3), row);
    reference::ivf_pq_row coded{.list = reference::assign(model, taken), .codes = {}};
    coded.codes = reference::encode(model, reference::to_encode(model, taken, coded.list));
    EXPECT_EQ(coded.list, line.list) << row;
    EXPECT_EQ(coded.codes, line.codes) << row;
    const std::vector<float> decoded = reference::decode(model, coded);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(bits_of(decoded[i]), line.decoded[i]) << row << " " << i;
    EXPECT_EQ(bits_of(reference::score_by_code(model, query, coded)), line.l2) << row;
    model.by = metric::inner_product;
    EXPECT_EQ(bits_of(reference::score_by_code(model, query, coded)), line.inner_product) << row;
  }
}

TEST_F(IvfPqOps, RowsComeOutOfTheListsAsTheyWentIn) {
  for (ivf_pq_case of : shapes()) {
    of.rows = 333;
    const ivf_pq_problem problem(of);
    // The sequence of all lists, rows of each in the order in which they were added.
    std::vector<std::uint32_t> expected_positions;
    std::vector<std::uint8_t> expected_codes;
    for (std::int64_t list = 0; list < of.nlist; ++list) {
      for (std::size_t row = 0; row < problem.coded().size(); ++row) {
        const reference::ivf_pq_row& coded = problem.coded()[row];
        if (coded.list != list) continue;
        expected_positions.push_back(static_cast<std::uint32_t>(row));
        expected_codes.insert(expected_codes.end(), coded.codes.begin(), coded.codes.end());
      }
    }
    const std::int64_t pieces = problem.model().shape.pieces;
    for (const auto& [first, n] :
         {std::pair<std::int64_t, std::int64_t>{0, 333}, {0, 1}, {31, 100}, {332, 1}, {5, 0}}) {
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(n * pieces));
      std::vector<std::uint32_t> positions(static_cast<std::size_t>(n));
      ops().read_rows(nullptr, problem.model().shape, problem.lists(), problem.list_starts().data(), first, n,
                      codes.data(), positions.data());
      ASSERT_TRUE(std::equal(positions.begin(), positions.end(), expected_positions.begin() + first)) << describe(of);
      ASSERT_TRUE(std::equal(codes.begin(), codes.end(), expected_codes.begin() + first * pieces)) << describe(of);
    }
  }
}

}  // namespace
}  // namespace shortlist::unit
