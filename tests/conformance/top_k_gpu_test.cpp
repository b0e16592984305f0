// Row-wise top k on the first GPU: so many rows, or so long ones, that its kernels take each of their ways; equal to
// the reference in every byte. Early stops: top_k_stops_gpu_test.cpp.
#include "conformance/top_k_gpu.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shortlist::conformance {
namespace {

/// So many rows that a group of threads takes several, and learns from them.
TEST(TopKManyRows, EqualTheReferenceToTheBit) {
  struct shape {
    value_type type;
    std::int64_t rows;
    std::int64_t cols;
    std::string_view mode = "exact";
    bool sorted = false;
    std::string_view ragged = "no";
  };
  constexpr shape kShapes[] = {{value_type::f32, 60'000, 64},
                               {value_type::f32, 60'000, 256},
                               {value_type::f32, 263'000, 256},
                               {value_type::f32, 263'000, 201},
                               {value_type::f32, 40'000, 255},
                               {value_type::f32, 20'000, 300},
                               {value_type::f32, 20'000, 1024},
                               {value_type::f32, 20'000, 768},
                               {value_type::f32, 6'000, 4096},
                               {value_type::f16, 70'000, 128},
                               {value_type::bf16, 80'000, 256},
                               {value_type::f16, 80'000, 256},
                               {value_type::bf16, 60'000, 96},
                               {value_type::f16, 60'000, 64},
                               {value_type::bf16, 40'000, 512},
                               {value_type::f16, 40'000, 511},
                               {value_type::bf16, 30'000, 768},
                               {value_type::f16, 20'000, 1'024, "exact", true},
                               {value_type::bf16, 20'000, 1'500},
                               {value_type::bf16, 5'000, 4096},
                               {value_type::f32, 40'000, 256, "max_iter_4"},
                               {value_type::f32, 263'000, 256, "max_iter_8"},
                               {value_type::f32, 40'000, 256, "eps_1e-4"},
                               {value_type::f32, 263'000, 256, "eps_1e-4"},
                               {value_type::f32, 60'000, 512, "eps_1e-4"},
                               {value_type::bf16, 80'000, 256, "eps_1e-4"},
                               {value_type::f16, 60'000, 300, "eps_0"},
                               {value_type::f32, 150'000, 64, "max_iter_8"},
                               {value_type::f32, 100'000, 100, "exact", true},
                               {value_type::bf16, 30'000, 700, "exact", true},
                               {value_type::f16, 60'000, 250, "exact", false, "borders"},
                               {value_type::f32, 20'000, 1'500}};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  for (const shape& of : kShapes) {
    const top_k_case what{.type = of.type,
                          .rows = of.rows,
                          .cols = of.cols,
                          .k = of.cols / 8,
                          .order = of.cols % 3 == 0 ? order::smallest : order::largest,
                          .sorted = of.sorted,
                          .mode = of.mode,
                          .outputs = "values+i32",
                          .ragged = of.ragged,
                          .distribution = "changing",
                          .seed = 19};
    expect_equal_on(*gpu, what);
  }
}

constexpr value_type kOfFloats[] = {value_type::f32};
constexpr value_type kOf16Bits[] = {value_type::bf16, value_type::bf16, value_type::f16, value_type::f16};

/// Every so-manieth distribution by itself, so that they can be tested side by side.
constexpr int kParts = 3;
class TopKOfDistributions : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Parts, TopKOfDistributions, testing::Range(0, kParts));

/// A part of the distributions, each in two of the shapes, or so many, on the first GPU, by an algorithm.
void expect_equal_for_distributions(int part, std::span<const many_rows> shapes, std::string_view algorithm,
                                    std::span<const value_type> types = kAnyType, int shapes_each = 2) {
  constexpr std::string_view kWritten[] = {"values+i32", "values+i64", "i32", "values"};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  for (std::size_t d = static_cast<std::size_t>(part); d < row_distributions().size(); d += kParts) {
    std::uint64_t turn = d * static_cast<std::uint64_t>(shapes_each);
    for (int i = 0; i < shapes_each; ++i) {
      const many_rows& of = shapes[turn % shapes.size()];
      const top_k_case what{.type = types[turn % types.size()],
                            .rows = of.rows,
                            .cols = of.cols,
                            .k = of.k,
                            .order = turn % 3 == 0 ? order::smallest : order::largest,
                            .sorted = of.sorted,
                            .outputs = kWritten[turn / 2 % std::size(kWritten)],
                            .row_gap = turn % 5 == 0 ? 3 : 0,
                            .ragged = of.ragged,
                            .distribution = row_distributions()[d],
                            .seed = turn++};
      expect_equal_by(algorithm, *gpu, what);
    }
  }
}

/// So many rows that a group lists the candidates of all but its first: rows alike, and rows that a list does not
/// serve.
TEST_P(TopKOfDistributions, ByLists) {
  constexpr many_rows kShapes[] = {{8'000, 1'300, 64},  {6'000, 2'048, 100}, {3'000, 4'999, 1},   {4'000, 4'096, 17},
                                   {2'500, 8'192, 300}, {8'000, 1'536, 128}, {2'500, 9'001, 900}, {3'000, 4'104, 60}};
  expect_equal_for_distributions(GetParam(), kShapes, "plan");
}

/// So many rows of 16 bits that groups look for the borders of all but their first ones among levels: warps, blocks of
/// two to eight of them, and warps that sort.
TEST_P(TopKOfDistributions, ByLevels) {
  constexpr many_rows kShapes[] = {
      {60'000, 150, 20},         {9'000, 1'300, 70},       {9'000, 2'048, 100},   {5'000, 2'056, 128},
      {5'000, 3'001, 200},       {5'000, 4'095, 90},       {4'000, 4'096, 1'000}, {5'000, 4'200, 300},
      {2'000, 8'190, 500},       {1'500, 16'000, 700},     {25'000, 700, 50},     {900, 30'000, 5'000},
      {9'000, 1'900, 400, true}, {9'000, 1'700, 50, true}, {33'000, 300, 24},     {17'000, 640, 40},
      {9'000, 1'280, 80},        {5'000, 2'500, 64},       {5'000, 3'301, 200},   {5'000, 5'120, 320},
      {5'000, 5'003, 1'500},     {5'000, 6'144, 64},       {5'000, 6'001, 400},   {5'000, 8'192, 500},
      {5'000, 8'101, 60},        {1'000, 2'500, 64},       {600, 7'000, 3}};
  constexpr int kShapesEach = 3;
  expect_equal_for_distributions(GetParam(), kShapes, "plan", kOf16Bits, kShapesEach);
}

/// Rows unlike those before, whose borders are guessed from themselves: in most kernels that look among levels.
TEST(TopKLevels, OfUnlikeRows) {
  struct shapes_of {
    std::span<const value_type> types;
    std::span<const many_rows> shapes;
  };
  constexpr many_rows kFloats[] = {{80'000, 64, 9},         {33'000, 256, 32},  {33'000, 250, 64},
                                   {33'000, 256, 32, true}, {27'000, 512, 50},  {14'000, 768, 32},
                                   {14'000, 768, 128},      {9'000, 1'024, 64}, {9'000, 1'000, 64, true}};
  constexpr many_rows kHalves[] = {{60'000, 256, 32},   {17'000, 768, 48},   {9'000, 1'024, 64},  {9'000, 2'001, 128},
                                   {5'000, 4'096, 256}, {5'000, 5'120, 320}, {5'000, 6'143, 384}, {5'000, 8'192, 512},
                                   {2'000, 3'000, 50},  {1'000, 8'192, 300}, {700, 16'000, 700},  {400, 30'000, 500}};
  const shapes_of kAll[] = {{kOfFloats, kFloats}, {kOf16Bits, kHalves}};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const auto& [types, shapes] : kAll) {
    for (const std::string_view distribution : {"scaled", "changing", "scaled"}) {
      for (const many_rows& of : shapes) {
        expect_equal_by("plan", *gpu,
                        {.type = types[turn % types.size()],
                         .rows = of.rows,
                         .cols = of.cols,
                         .k = of.k,
                         .order = turn % 3 == 0 ? order::smallest : order::largest,
                         .sorted = of.sorted,
                         .outputs = "values+i32",
                         .row_gap = turn % 5 == 0 ? 3 : 0,
                         .distribution = distribution,
                         .seed = turn});
        ++turn;
      }
    }
  }
}

/// The same of fp32, whose levels hold values that differ: several shares for each warp of every kernel.
TEST_P(TopKOfDistributions, ByLevelsOfValues) {
  constexpr many_rows kShapes[] = {{80'000, 64, 9},           {80'000, 120, 40},        {65'000, 190, 32},
                                   {33'000, 256, 32},         {33'000, 255, 60},        {33'000, 256, 128, true},
                                   {27'000, 384, 40},         {27'000, 510, 50},        {17'000, 512, 130},
                                   {14'000, 768, 32, true},   {9'000, 765, 128},        {9'000, 1'024, 64},
                                   {9'000, 1'000, 300, true}, {300'000, 250, 20, true}, {140'000, 256, 1}};
  constexpr int kShapesEach = 4;
  expect_equal_for_distributions(GetParam(), kShapes, "plan", kOfFloats, kShapesEach);
}

/// Long rows, more of them than there are blocks: lists that the threads hold and longer ones, in both orders.
TEST_P(TopKOfDistributions, OfLongRows) {
  constexpr many_rows kShapes[] = {{300, 17'003, 300},
                                   {280, 20'000, 2'500, true},
                                   {290, 16'500, 50},
                                   {270, 33'000, 4'096},
                                   {300, 24'001, 1'000, true},
                                   {280, 18'000, 64, true},
                                   {400, 20'000, 700, false, "borders"}};
  expect_equal_for_distributions(GetParam(), kShapes, "filter_rows");
}

/// Long rows of which many are asked for: lists that the threads of a block hold that is alone on its multiprocessor,
/// and a longer one.
TEST_P(TopKOfDistributions, OfLongListsOfLongRows) {
  constexpr many_rows kShapes[] = {{140, 40'000, 3'500}, {135, 50'000, 8'000}, {20, 60'000, 11'000},
                                   {140, 33'001, 6'000}, {12, 190'000, 4'097}, {140, 45'000, 4'000, false, "borders"},
                                   {140, 34'000, 2'800}, {9, 33'000, 10'500}};
  expect_equal_for_distributions(GetParam(), kShapes, "filter_rows");
}

/// Rows that a block holds, so many that it takes several, and learns from them.
TEST_P(TopKOfDistributions, OfResidentRows) {
  constexpr many_rows kShapes[] = {{800, 17'003, 300},   {600, 20'000, 1'500, true},          {900, 16'500, 50},
                                   {560, 24'001, 2'000}, {600, 24'001, 1'000, true},          {900, 18'000, 1, true},
                                   {900, 25'000, 200},   {800, 20'000, 700, false, "borders"}};
  expect_equal_for_distributions(GetParam(), kShapes, "resident_rows");
}

/// The same of 16 bits and best first, so many that three blocks share a multiprocessor.
TEST_P(TopKOfDistributions, OfManyResidentRows) {
  constexpr many_rows kShapes[] = {{1'700, 17'003, 60, true}, {1'700, 20'000, 250, true}};
  expect_equal_for_distributions(GetParam(), kShapes, "resident_rows", kOf16Bits);
}

/// A k that no list has room for, of rows alike and of rows that a sample does not serve.
TEST_P(TopKOfDistributions, OfBrackets) {
  constexpr many_rows kShapes[] = {{900, 16'500, 9'000},       {70, 50'000, 11'741},
                                   {600, 17'003, 4'000},       {7, 500'001, 250'000},
                                   {80, 40'000, 39'999},       {90, 20'000, 19'000, false, "borders"},
                                   {300, 33'000, 200},         {100, 30'011, 15'000, false, "lengths"},
                                   {70, 130'000, 12'000},      {140, 20'001, 1},
                                   {80, 17'000, 12'000, true}, {67, 50'000, 25'000, false, "begins"}};
  expect_equal_for_distributions(GetParam(), kShapes, "bracket_rows");
}

/// NaN whose upper half is infinity's reaches a filter that compares upper halves: lists have k entries of which fewer
/// are numbers.
TEST(TopKResident, NanThatIsTakenForInfinity) {
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  constexpr std::uint64_t kFirstSeed = 165;  // of which row 448 is such a row
  constexpr std::uint64_t kSeeds = 3;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
    for (const std::string_view mode : {"exact", "eps_0.5"}) {
      top_k_case what{.rows = 600, .cols = 16'500, .k = 50, .mode = mode, .outputs = "values+i32", .seed = seed};
      what.order = seed == kFirstSeed + 1 ? order::largest : order::smallest;
      what.row_gap = 3;
      what.distribution = "nan_anywhere";
      expect_equal_by("resident_rows", *gpu, what);
    }
  }
}

/// Few long rows, which blocks share: teams of one block, of several, of two sizes; ties that only columns decide.
TEST(TopKTeams, EqualTheReferenceToTheBit) {
  constexpr std::int64_t kRows[] = {1, 2, 90, 131, 180, 263, 300};
  constexpr std::int64_t kKs[] = {1, 50, 400, 2048};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::int64_t rows : kRows) {
    for (const std::int64_t k : kKs) {
      for (const std::string_view distribution : row_distributions()) {
        turn++;
        if (rows > 10 && turn % 7 != 0) continue;
        expect_equal_by("stream_rows", *gpu, case_of_turn(turn, rows, rows < 10 ? 90'001 : 9'345, k, distribution));
      }
    }
  }
}

/// A row so long that all of the GPU shares it by larger blocks, where these have room for the list of k.
TEST(TopKTeams, EqualTheReferenceOverALongRow) {
  constexpr std::int64_t kLongRow = 1 << 25;
  constexpr std::string_view kDistributions[] = {"normal", "ties_90", "ascending", "nan_in_tenth_row"};
  constexpr std::int64_t kKs[] = {100, 1, 700, 2048};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::string_view distribution : kDistributions) {
    const std::int64_t k = kKs[turn++];
    expect_equal_by("stream_rows", *gpu, case_of_turn(turn, 1, kLongRow + 11, k, distribution));
  }
}

/// Rows that blocks share in portions, so that most rows are ended by a block that begins the next one: of three blocks
/// each or of two, and of two or of one.
TEST(TopKTeams, EqualTheReferenceInPortions) {
  constexpr std::int64_t kKs[] = {1, 100, 700, 2048};
  constexpr std::string_view kDistributions[] = {"normal", "ties_90", "ascending", "all_equal", "nan_in_tenth_row"};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::int64_t rows : {100, 150}) {
    for (const std::int64_t k : kKs) {
      turn++;
      top_k_case what = case_of_turn(turn, rows, 600'011, k, kDistributions[turn % std::size(kDistributions)]);
      if (what.type == value_type::f32) what.cols /= 2;
      expect_equal_by("stream_rows", *gpu, what);
    }
  }
}

/// Each call reads what the one before writes, or writes where that one reads, and begins while it ends: as if every
/// call waited.
TEST(TopKChains, AsIfEachCallWaited) {
  struct chain {
    value_type type;
    std::int64_t rows;
    std::int64_t cols;
    std::int64_t k[4];  // of its calls
    std::string_view algorithm;
    std::optional<int> max_iter = std::nullopt;
  };
  constexpr chain kChains[] = {{value_type::f32, 60'000, 256, {64, 32, 16, 8}, "warp_rows"},
                               {value_type::f16, 40'000, 512, {128, 100, 30, 9}, "warp_rows"},
                               {value_type::f32, 40'000, 512, {64, 32, 16, 8}, "warp_rows", 4},
                               {value_type::f32, 3'000, 8'192, {2'048, 512, 256, 40}, "block_rows"},
                               {value_type::bf16, 3'000, 8'192, {1'024, 512, 256, 40}, "block_rows"},
                               {value_type::f32, 3'000, 4'096, {64, 32, 16, 8}, "stop_rows", 8},
                               {value_type::f32, 600, 50'000, {4'096, 1'024, 100, 10}, "filter_rows"},
                               {value_type::bf16, 600, 32'000, {2'048, 512, 64, 10}, "resident_rows"},
                               {value_type::f32, 16, 128'256, {50, 20, 10, 5}, "cluster_rows"}};
  constexpr int kRounds = 20;
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  const stream s(*gpu);
  for (const chain& of : kChains) {
    SCOPED_TRACE(std::string(of.algorithm) + " of " + std::to_string(of.cols));
    const matrix_data data = make_data({.type = of.type,
                                        .rows = of.rows,
                                        .cols = of.cols,
                                        .k = of.k[0],
                                        .outputs = "values",
                                        .distribution = "changing",
                                        .seed = 23});
    const std::int64_t value_bytes = size_bytes(of.type);
    std::vector<std::byte> rows(static_cast<std::size_t>(of.rows * of.cols * value_bytes));
    std::memcpy(rows.data(), data.bytes.data() + data.first * value_bytes, rows.size());
    buffer matrix(*gpu, static_cast<std::int64_t>(rows.size()));
    buffer some(*gpu, of.rows * of.k[0] * value_bytes);
    buffer fewer(*gpu, of.rows * of.k[1] * value_bytes);
    const auto run = [&](bool waits) {
      const auto select = [&](const buffer& from, std::int64_t cols, std::int64_t k, buffer& to) {
        top_k_options options{.k = k};
        if (cols == of.cols) options.max_iter = of.max_iter;
        top_k(s, value_matrix(from.data(), of.type, of.rows, cols, cols), options, {.values = to.data()});
        if (waits) s.synchronize();
      };
      matrix.upload(s, rows.data());
      for (int round = 0; round < kRounds; ++round) {
        select(matrix, of.cols, of.k[0], some);
        select(some, of.k[0], of.k[1], fewer);
        select(fewer, of.k[1], of.k[2], some);
        select(some, of.k[2], of.k[3], matrix);  // its first rows: the next round has other ones
      }
      std::vector<std::byte> found(rows.size());
      matrix.download(s, found.data());
      return found;
    };
    const forced_way forced({*gpu, "-", std::string(of.algorithm)});
    const std::vector<std::byte> expected = run(true);
    EXPECT_TRUE(run(false) == expected);
  }
}

/// Few rows by clusters of every size: rows of which all is on its way at once, and longer ones; lists that overflow.
TEST(TopKClusters, EqualTheReferenceToTheBit) {
  constexpr std::int64_t kRows[] = {1, 5, 17, 40, 66, 101};  // the last by blocks alone
  constexpr std::int64_t kCols[] = {17'001, 128'256, 200'000};
  constexpr std::int64_t kKs[] = {1, 50, 112};
  constexpr std::int64_t kFewElements = 1'000'000;  // of cases that are all run, the others by turns
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::int64_t rows : kRows) {
    for (const std::int64_t cols : kCols) {
      for (const std::int64_t k : kKs) {
        for (const std::string_view distribution : row_distributions()) {
          turn++;
          if (rows * cols > kFewElements && turn % 13 != 0) continue;
          expect_equal_by("cluster_rows", *gpu, case_of_turn(turn, rows, cols, k, distribution));
        }
      }
    }
  }
}

/// Rows of every number of rounds of vectors of a block of eight, from 4 to 36 (16-bit types: 2 to 18): which are
/// looked at first, and which are held where, changes with it. With ties at the border and without; every other case is
/// unsorted. Of 4 rounds there are several cases, of other data. Beyond 12 a row is too long for a cluster, and a team
/// of blocks has it.
TEST(TopKClusters, EqualTheReferenceForEveryNumberOfRounds) {
  constexpr std::int64_t kRound = 16'384;  // columns of fp32; of 16-bit types, half a round
  constexpr std::int64_t kMostOfClusters = 12;
  constexpr std::int64_t kMost = 36;
  constexpr std::int64_t kBeside = 77;
  constexpr std::string_view kDistributions[] = {"normal", "ties_90", "uniform"};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (std::int64_t rounds = 0; rounds <= kMost; rounds++) {
    for (const std::string_view distribution : kDistributions) {
      for (int types = 0; types < 3; types++) {
        turn++;
        const std::int64_t cols = std::max<std::int64_t>(rounds, 4) * kRound + kBeside * (rounds % 3);
        expect_equal_by(rounds <= kMostOfClusters ? "cluster_rows" : "stream_rows", *gpu,
                        case_of_turn(turn + rounds, 1, cols, 50, distribution));
      }
    }
  }
}

/// Long ragged rows by each kernel of them; some are empty, and some are shorter than k.
struct ragged_long_rows {
  std::string_view algorithm;
  std::span<const many_rows> shapes;
};
constexpr many_rows kOfClusters[] = {{5, 17'001, 50},         {1, 128'256, 50, true}, {17, 40'000, 112, true},
                                     {40, 17'001, 1},         {66, 50'001, 112},      {66, 128'256, 50, true},
                                     {9, 200'000, 100, true}, {1, 200'000, 1},        {132, 40'000, 50, true}};
constexpr many_rows kOfTeams[] = {{2, 90'001, 50},         {1, 300'000, 2'048, true}, {90, 9'345, 400, true},
                                  {263, 9'345, 2'048},     {300, 9'344, 1, true},     {131, 20'001, 128},
                                  {40, 17'001, 700, true}, {2, 1'000'003, 100, true}};
constexpr many_rows kOfResident[] = {
    {400, 17'003, 300}, {400, 20'000, 1'500, true}, {500, 16'500, 50}, {400, 18'001, 2'000}, {1'600, 16'392, 60, true}};
constexpr many_rows kOfFilters[] = {{300, 17'003, 300},   {280, 20'000, 2'500, true}, {400, 16'500, 50, true},
                                    {270, 33'000, 4'096}, {300, 24'001, 1'000, true}, {135, 40'000, 9'000}};
constexpr many_rows kOfBrackets[] = {
    {300, 17'003, 9'000}, {280, 20'000, 15'000, true}, {270, 33'000, 4'096}, {135, 40'000, 20'000}};
constexpr ragged_long_rows kRaggedLongRows[] = {{"cluster_rows", kOfClusters},
                                                {"stream_rows", kOfTeams},
                                                {"resident_rows", kOfResident},
                                                {"filter_rows", kOfFilters},
                                                {"bracket_rows", kOfBrackets}};

class TopKRaggedLongRows : public testing::TestWithParam<ragged_long_rows> {};
INSTANTIATE_TEST_SUITE_P(By, TopKRaggedLongRows, testing::ValuesIn(kRaggedLongRows),
                         [](const auto& test) { return std::string(test.param.algorithm); });

TEST_P(TopKRaggedLongRows, EqualTheReferenceToTheBit) {
  constexpr std::string_view kKinds[] = {"borders", "lengths", "begins", "borders"};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  const auto& [algorithm, shapes] = GetParam();
  std::uint64_t turn = 0;
  for (const std::string_view distribution : row_distributions()) {
    const many_rows& of = shapes[turn % shapes.size()];
    top_k_case what = case_of_turn(turn, of.rows, of.cols, of.k, distribution);
    what.sorted = of.sorted;
    what.row_gap = turn % 7 == 0 ? 3 : 0;
    what.ragged = kKinds[turn / shapes.size() % std::size(kKinds)];
    expect_equal_by(algorithm, *gpu, what);
    ++turn;
  }
}

}  // namespace
}  // namespace shortlist::conformance
