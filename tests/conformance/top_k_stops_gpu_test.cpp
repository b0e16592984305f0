// Early stops of row-wise top k on the first GPU: so many rows, or so long ones, that its kernels take each of their
// ways, in every mode; equal to the reference in every byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "conformance/top_k_gpu.hpp"

namespace shortlist::conformance {
namespace {

/// Each mode by itself, so that the modes can be tested side by side.
class TopKManyStopsOfMode : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Modes, TopKManyStopsOfMode, testing::Range(std::size_t{0}, std::size(kModes)));

/// A turn's early stop of a shape.
top_k_case stop_of_turn(std::uint64_t turn, const many_rows& of, std::string_view mode, std::string_view distribution) {
  top_k_case what = case_of_turn(turn, of.rows, of.cols, of.k, distribution);
  what.sorted = of.sorted;
  what.mode = mode;
  what.row_gap = turn % 5 == 0 ? 3 : 0;
  what.ragged = of.ragged;
  return what;
}

/// All distributions, and values that meet a bisection's midpoints or lie an eps apart.
std::vector<std::string_view> distributions_of_stops() {
  std::vector<std::string_view> all = row_distributions();
  all.insert(all.end(), {"near_midpoints", "apart_by_eps"});
  return all;
}

/// Early stops of so many rows that a group guesses their borders from those before: every distribution.
TEST_P(TopKManyStopsOfMode, EqualTheReferenceToTheBit) {
  constexpr many_rows kShapes[] = {{9'000, 64, 20},    {9'000, 100, 1},    {8'000, 201, 150}, {9'000, 256, 32},
                                   {4'000, 500, 499},  {4'000, 512, 64},   {3'000, 768, 128}, {3'000, 640, 200},
                                   {3'000, 1'000, 7},  {2'500, 1'536, 64}, {2'000, 2'001, 9}, {1'500, 4'096, 64},
                                   {1'000, 9'000, 700}};
  constexpr std::uint64_t kShapesEach = 3;
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = GetParam() * row_distributions().size() * kShapesEach;
  for (const std::string_view distribution : row_distributions()) {
    for (std::uint64_t i = 0; i < kShapesEach; ++i, ++turn) {
      const many_rows& of = kShapes[turn % std::size(kShapes)];
      const top_k_case what{.type = kAnyType[turn / kShapesEach % std::size(kAnyType)],
                            .rows = of.rows,
                            .cols = of.cols,
                            .k = of.k,
                            .order = turn % 5 == 0 ? order::smallest : order::largest,
                            .sorted = turn % 7 == 0,
                            .mode = kModes[GetParam()].name,
                            .outputs = "values+i32",
                            .ragged = turn % 11 == 0 ? "borders" : "no",
                            .distribution = distribution,
                            .seed = turn};
      expect_equal_on(*gpu, what);
    }
  }
}

/// Early stops of ragged rows: of every shape of the kernel of short rows, of blocks, and of the most general kernel.
TEST_P(TopKManyStopsOfMode, OfRaggedRows) {
  constexpr std::int64_t kCols[] = {60, 128, 250, 512, 1'000, 1'536, 2'001, 5'000, 40'000};
  constexpr std::string_view kKinds[] = {"borders", "lengths", "begins"};
  constexpr std::int64_t kMostRows = 3'000;
  constexpr std::int64_t kValues = 2'000'000;
  constexpr std::uint64_t kTurnsEach = 29;  // a mode's, and a prime: all that goes by turns meets
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = GetParam() * kTurnsEach;
  for (const std::string_view kind : kKinds) {
    for (const std::int64_t cols : kCols) {
      const std::int64_t kKs[] = {cols / 8, cols / 3, 1, cols - 1};
      const std::int64_t rows = std::min(kMostRows, kValues / cols);
      top_k_case what = case_of_turn(turn, rows, cols, kKs[turn % std::size(kKs)],
                                     row_distributions()[(turn + GetParam()) % row_distributions().size()]);
      what.sorted = turn % 7 == 0;
      what.mode = kModes[GetParam()].name;
      what.ragged = kind;
      if (turn % 5 == 2) what.outputs = "mask";
      expect_equal_on(*gpu, what);
      ++turn;
    }
  }
}

/// Early stops of rows that are streamed, so many that a block takes several: a path's end that the list reaches, and
/// one for which the row is read once more; lists that the threads hold, and longer ones.
TEST_P(TopKManyStopsOfMode, OfStreamedRows) {
  constexpr many_rows kShapes[] = {{300, 17'003, 300},
                                   {290, 16'500, 50, true},
                                   {280, 34'000, 64},
                                   {270, 33'000, 4'096},
                                   {300, 20'000, 2'100, false, "borders"},
                                   {280, 40'001, 2'000},
                                   {3, 150'001, 1},
                                   {275, 16'385, 1, false, "lengths"},
                                   {280, 33'000, 900, true, "begins"}};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  constexpr std::uint64_t kTurnsEach = 31;  // a mode's, and a prime: all that goes by turns meets
  std::uint64_t turn = GetParam() * kTurnsEach;
  for (const std::string_view distribution : distributions_of_stops()) {
    const many_rows& of = kShapes[turn % std::size(kShapes)];
    expect_equal_by("filter_rows", *gpu, stop_of_turn(turn, of, kModes[GetParam()].name, distribution));
    ++turn;
  }
}

/// Early stops of rows of which a multiprocessor holds two or three, so many that a block takes several: a path's end
/// that the list reaches, and one for which the row is read once more. Of fp32, the first of the shapes.
TEST_P(TopKManyStopsOfMode, OfResidentRows) {
  constexpr many_rows kShapes[] = {{600, 16'500, 50},
                                   {290, 24'000, 500},
                                   {280, 20'000, 2'100},
                                   {300, 17'003, 300, false, "borders"},
                                   {600, 17'000, 1, false, "lengths"},
                                   {300, 50'000, 2'048},
                                   {450, 20'001, 90, false, "begins"},
                                   {280, 40'001, 2'000},
                                   {850, 16'392, 5}};
  constexpr std::size_t kOfFp32 = 5;
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  constexpr std::uint64_t kTurnsEach = 31;  // a mode's, and a prime: all that goes by turns meets
  std::uint64_t turn = GetParam() * kTurnsEach;
  for (const std::string_view distribution : distributions_of_stops()) {
    const auto of_first = [&](std::size_t shapes) {
      return stop_of_turn(turn, kShapes[turn % shapes], kModes[GetParam()].name, distribution);
    };
    top_k_case what = of_first(std::size(kShapes));
    if (what.type == value_type::f32) what = of_first(kOfFp32);
    expect_equal_by("resident_rows", *gpu, what);
    ++turn;
  }
}

/// Early stops of few long rows, by clusters of every size: a path's end that the list reaches, and one for which the
/// row's first columns are looked at once more; few columns that reach it, and many.
TEST_P(TopKManyStopsOfMode, OfClusters) {
  constexpr many_rows kShapes[] = {{1, 128'256, 50},
                                   {66, 17'001, 50},
                                   {5, 40'000, 64, true},
                                   {3, 17'003, 1},
                                   {9, 50'001, 50, true, "borders"},
                                   {1, 200'000, 64},
                                   {33, 16'385, 60, false, "lengths"},
                                   {17, 33'000, 2},
                                   {40, 20'000, 33, true, "begins"},
                                   {4, 128'000, 20},
                                   {64, 50'000, 64}};
  constexpr std::uint64_t kShapesEach = 3;
  constexpr std::uint64_t kTurnsEach = 37;  // a mode's, and a prime: all that goes by turns meets
  constexpr std::string_view kWritten[] = {"values+i32", "i64", "values", "values+i64", "i32"};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = GetParam() * kTurnsEach;
  for (const std::string_view distribution : row_distributions()) {
    for (std::uint64_t i = 0; i < kShapesEach; ++i, ++turn) {
      const many_rows& of = kShapes[turn % std::size(kShapes)];
      top_k_case what = stop_of_turn(turn, of, kModes[GetParam()].name, distribution);
      what.outputs = kWritten[turn / 3 % std::size(kWritten)];
      expect_equal_by("cluster_rows", *gpu, what);
    }
  }
}

/// Early stops of rows longer than a block holds: streamed, or behind another kernel's exact search, of one block for
/// each row, and of several; and from the border's digits.
TEST_P(TopKManyStopsOfMode, OfLongRows) {
  constexpr many_rows kShapes[] = {{280, 32'776, 64},
                                   {5, 150'001, 1'000},
                                   {70, 60'000, 50},
                                   {2, 300'000, 2'048, true},
                                   {3, 33'001, 128, false, "borders"},
                                   {9, 40'000, 4'000},
                                   {270, 33'000, 3'000, false, "lengths"},
                                   {4, 50'000, 1},
                                   {12, 100'000, 500},
                                   {3, 70'000, 69'000},
                                   {40, 210'000, 700},
                                   {9, 250'001, 60, true}};
  constexpr std::string_view kWritten[] = {"values+i32", "i64", "values", "i32"};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  constexpr std::uint64_t kTurnsEach = 29;  // a mode's, and a prime: all that goes by turns meets
  std::uint64_t turn = GetParam() * kTurnsEach;
  for (const std::string_view distribution : row_distributions()) {
    const many_rows& of = kShapes[turn % std::size(kShapes)];
    top_k_case what = stop_of_turn(turn, of, kModes[GetParam()].name, distribution);
    what.outputs = kWritten[turn / 2 % std::size(kWritten)];
    expect_equal_on(*gpu, what);
    if (turn % 4 == 0) expect_equal_by("radix_rows", *gpu, what);
    ++turn;
  }
}

/// Early stops of rows that blocks share, by teams of two blocks and of all: a path's end that the list reaches, and
/// one for which pieces of the row are read once more.
TEST_P(TopKManyStopsOfMode, OfSharedRows) {
  constexpr many_rows kShapes[] = {{1, 300'001, 100},
                                   {2, 90'001, 1},
                                   {7, 250'003, 500, true},
                                   {40, 30'000, 64},
                                   {1, 2'000'000, 512},
                                   {140, 9'345, 400},
                                   {3, 250'001, 128, false, "borders"},
                                   {270, 5'000, 50},
                                   {1, 1'000'001, 300},
                                   {12, 110'000, 512, true, "lengths"},
                                   {5, 3'000, 512, false, "begins"}};
  constexpr std::string_view kWritten[] = {"values+i32", "i64", "values", "i32"};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  constexpr std::uint64_t kTurnsEach = 53;  // a mode's, and a prime: all that goes by turns meets
  std::uint64_t turn = GetParam() * kTurnsEach;
  for (const std::string_view distribution : distributions_of_stops()) {
    for (int i = 0; i < 2; ++i, ++turn) {
      const many_rows& of = kShapes[turn % std::size(kShapes)];
      top_k_case what = stop_of_turn(turn, of, kModes[GetParam()].name, distribution);
      what.outputs = kWritten[turn / 2 % std::size(kWritten)];
      expect_equal_by("stream_rows", *gpu, what);
    }
  }
}

/// An early stop of a row so long that all of the GPU shares it by larger blocks.
TEST(TopKLongStops, OfARowThatLargerBlocksShare) {
  struct stopped {
    std::string_view mode;
    std::string_view distribution;
    std::int64_t k;
  };
  constexpr std::int64_t kLongRow = 1 << 25;
  constexpr stopped kStopped[] = {{"max_iter_4", "normal", 100},    {"eps_1e-4", "normal", 512},
                                  {"max_iter_3", "ascending", 400}, {"eps_1e-2", "normal", 1},
                                  {"max_iter_8", "ties_90", 50},    {"eps_0.5", "ascending", 300},
                                  {"max_iter_7", "normal", 500},    {"max_iter_64", "descending", 100}};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const stopped& of : kStopped) {
    top_k_case what = case_of_turn(turn++, 1, kLongRow + 11, of.k, of.distribution);
    what.mode = of.mode;
    expect_equal_by("stream_rows", *gpu, what);
  }
}

/// Values that a bisection's midpoints equal, or miss by a last bit, and values whose gaps are as wide as an eps: in
/// most shapes of the kernels of short rows.
TEST_P(TopKManyStopsOfMode, OfValuesBesideMidpoints) {
  constexpr std::int64_t kCols[] = {40, 64, 128, 192, 250, 256, 512, 768, 1'024, 1'500, 2'048};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = GetParam() * std::size(kCols);
  for (const std::int64_t cols : kCols) {
    for (const std::string_view distribution : {"near_midpoints", "apart_by_eps"}) {
      const top_k_case what{.type = kAnyType[turn % std::size(kAnyType)],
                            .rows = 3'000,
                            .cols = cols,
                            .k = turn % 3 == 0 ? cols / 3 : cols / 8,
                            .order = turn % 5 == 0 ? order::smallest : order::largest,
                            .mode = kModes[GetParam()].name,
                            .outputs = "values+i32",
                            .ragged = turn % 11 == 5 ? "borders" : "no",
                            .distribution = distribution,
                            .seed = turn};
      expect_equal_on(*gpu, what);
    }
    ++turn;
  }
}

/// So many short rows of bf16 that counts and levels tell what a few steps end with, and not cells.
TEST_P(TopKManyStopsOfMode, OfSoManyShortRowsOf16Bits) {
  constexpr many_rows kShapes[] = {{131'072, 136, 40}, {132'000, 200, 1}, {140'000, 256, 32}, {132'000, 192, 191}};
  constexpr std::uint64_t kCasesEach = 5;  // of seven modes: more than there are distributions
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  for (std::uint64_t turn = GetParam() * kCasesEach; turn < (GetParam() + 1) * kCasesEach; ++turn) {
    const many_rows& of = kShapes[turn % std::size(kShapes)];
    const top_k_case what{.type = value_type::bf16,
                          .rows = of.rows,
                          .cols = of.cols,
                          .k = of.k,
                          .order = turn % 3 == 0 ? order::smallest : order::largest,
                          .mode = kModes[GetParam()].name,
                          .outputs = "values+i32",
                          .distribution = row_distributions()[turn % row_distributions().size()],
                          .seed = seed_that_begins_at(0, turn)};
    expect_equal_on(*gpu, what);
  }
}

/// An early stop's mode and a type of 16 bits, so that these can be tested side by side.
class TopKHalfStopsOfMode : public testing::TestWithParam<std::tuple<std::size_t, value_type>> {};
INSTANTIATE_TEST_SUITE_P(Modes, TopKHalfStopsOfMode,
                         testing::Combine(testing::Range(std::size_t{1}, std::size(kModes)),  // all but "exact"
                                          testing::Values(value_type::bf16, value_type::f16)));

/// A turn's early stop of rows of whole 16 bytes behind each other: levels tell those of no others.
top_k_case half_stop_of_turn(std::uint64_t turn, value_type type, std::string_view mode, const many_rows& of,
                             std::string_view distribution) {
  constexpr std::string_view kWritten[] = {"values+i32", "values+i64", "i32", "values"};
  return {.type = type,
          .rows = of.rows,
          .cols = of.cols,
          .k = of.k,
          .order = turn % 3 == 0 ? order::smallest : order::largest,
          .mode = mode,
          .outputs = kWritten[turn % std::size(kWritten)],
          .distribution = distribution,
          .seed = seed_that_begins_at(0, turn)};
}

/// Lanes that hold 64, 96 or 128 values, 4 to 32 of them a row, full and partly filled; so many rows that a warp takes
/// several, one after the other. Every distribution. Forced, for the plan gives fewer than 4,096 of the longest to
/// blocks.
TEST_P(TopKHalfStopsOfMode, EqualTheReferenceToTheBit) {
  constexpr many_rows kShapes[] = {{24'000, 256},  {24'000, 136},  {24'000, 200},  {24'000, 248},  {12'000, 264},
                                   {12'000, 504},  {12'000, 512},  {7'000, 760},   {7'000, 768},   {6'000, 1'000},
                                   {6'000, 1'024}, {3'000, 2'000}, {3'000, 2'048}, {2'000, 2'056}, {2'000, 2'496},
                                   {2'000, 3'000}, {1'800, 4'096}};
  constexpr std::uint64_t kShapesEach = 2;
  constexpr std::int64_t kAnyKCols = 2'048;     // warps take a larger k
  constexpr std::int64_t kMostKOfLong = 1'024;  // than this of rows up to here alone
  constexpr std::uint64_t kTurnsOfMode = 4;     // modes, and types, have the same distributions in other shapes
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  const auto& [mode, type] = GetParam();
  std::uint64_t turn = mode * kTurnsOfMode + (type == value_type::f16 ? kTurnsOfMode / 2 : 0);
  for (const std::string_view distribution : row_distributions()) {
    for (std::uint64_t i = 0; i < kShapesEach; ++i, ++turn) {
      many_rows of = kShapes[turn % std::size(kShapes)];
      const std::int64_t kKs[] = {1, of.cols / 16, of.cols / 3, of.cols - 1};
      of.k = kKs[turn / std::size(kShapes) % std::size(kKs)];
      if (of.cols > kAnyKCols) of.k = std::min(of.k, kMostKOfLong);
      top_k_case what = half_stop_of_turn(turn, type, kModes[mode].name, of, distribution);
      what.order = (turn + mode) % 2 == 0 ? order::smallest : order::largest;
      expect_equal_by("warp_rows", *gpu, what);
    }
  }
}

/// As they are planned: on both sides of the borders beyond which blocks take them.
TEST(TopKHalfStops, AtTheBordersOfTheirKernel) {
  struct planned {
    many_rows of;
    std::string_view algorithm;
  };
  constexpr planned kPlanned[] = {{{4'200, 2'056, 64}, "warp_rows"},     {{4'096, 4'096, 1'024}, "warp_rows"},
                                  {{4'200, 3'000, 1}, "warp_rows"},      {{4'095, 4'096, 64}, "block_rows"},
                                  {{4'096, 4'096, 1'025}, "block_rows"}, {{4'096, 4'104, 64}, "block_rows"},
                                  {{4'096, 4'092, 64}, "block_rows"}};
  constexpr std::string_view kSearched[] = {"max_iter_4", "eps_1e-2", "eps_0", "max_iter_8"};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::string_view distribution : {"normal", "ties_90"}) {
    for (const auto& [of, algorithm] : kPlanned) {
      const top_k_case what = half_stop_of_turn(turn, turn % 2 == 0 ? value_type::bf16 : value_type::f16,
                                                kSearched[turn % std::size(kSearched)], of, distribution);
      EXPECT_EQ(algorithm_of(what, *gpu), algorithm) << describe(what, {.where = *gpu});
      expect_equal_on(*gpu, what);
      ++turn;
    }
  }
}

/// An eps of few halvings: every distribution in shapes of all kernels of short rows; widths that a bracket has, too.
TEST(TopKManyStops, OfAWideEps) {
  constexpr std::int64_t kCols[] = {40,  64,  128, 192, 200,   256,   260,   384,
                                    500, 512, 764, 768, 1'024, 1'300, 1'536, 2'048};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::string_view mode : {"eps_1e-2", "eps_2^-7", "eps_0.5", "eps_1e-2"}) {
    for (const std::string_view distribution : row_distributions()) {
      const std::int64_t cols = kCols[turn % std::size(kCols)];
      const std::int64_t kKs[] = {cols / 8, 1, cols / 3, 2, cols - 1};
      const top_k_case what{.rows = turn % 7 == 0 ? 20'003 : 3'000,
                            .cols = cols,
                            .k = kKs[turn / 3 % std::size(kKs)],
                            .order = turn % 2 == 0 ? order::smallest : order::largest,
                            .mode = mode,
                            .outputs = "values+i32",
                            .distribution = distribution,
                            .seed = turn++};
      expect_equal_by("warp_rows", *gpu, what);
    }
  }
}

/// So many rows that a warp searches several of them in step.
TEST(TopKManyStops, OfSeveralRowsInStep) {
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  constexpr std::string_view kSearched[] = {"eps_0",    "eps_1e-4", "max_iter_4", "max_iter_8",
                                            "eps_1e-4", "eps_1e-4", "eps_1e-2"};
  constexpr std::string_view kDistributions[] = {"normal",       "ties_90",      "changing", "nan_in_tenth_row",
                                                 "apart_by_eps", "apart_by_eps", "changing"};
  for (std::size_t i = 0; i < std::size(kSearched); ++i) {
    const top_k_case what{.type = value_type::f32,
                          .rows = 270'000,
                          .cols = i < 5 ? 160 : 256,
                          .k = 20,
                          .order = i % 2 == 0 ? order::smallest : order::largest,
                          .mode = kSearched[i],
                          .outputs = "values+i32",
                          .distribution = kDistributions[i],
                          .seed = i};
    expect_equal_on(*gpu, what);
  }
}

/// Early stops of long rows, so many that a block lists candidates of most of its rows: what the bisection ends with is
/// in the list, or is not; with lists of every length.
TEST(TopKManyStops, OfLongRows) {
  constexpr std::int64_t kCols[] = {4'096, 2'057, 5'000, 2'056};
  constexpr std::int64_t kKs[] = {64, 20, 128, 250};
  constexpr std::string_view kDistributions[] = {"normal",    "near_midpoints",   "apart_by_eps",
                                                 "ties_90",   "changing",         "signed_zeros",
                                                 "lognormal", "nan_in_tenth_row", "overflowing"};
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const named_mode& mode : kModes) {
    if (mode.name == "exact") continue;
    for (int i = 0; i < 3; ++i, ++turn) {
      const std::int64_t cols = kCols[turn % std::size(kCols)];
      const std::int64_t k = std::min(kKs[turn / 4 % std::size(kKs)], cols / 16);
      top_k_case what = case_of_turn(turn, 5'000, cols, k, kDistributions[turn % std::size(kDistributions)]);
      what.sorted = false;
      what.mode = mode.name;
      expect_equal_by("stop_rows", *gpu, what);
    }
  }
}

/// Few steps of long rows, which a block guesses from those before: by blocks of every size, of data that lead astray.
TEST(TopKManyStops, OfFewStepsOfLongRows) {
  constexpr std::int64_t kCols[] = {4'096, 4'099, 8'200, 12'001, 24'576, 32'760};
  constexpr std::int64_t kKs[] = {64, 1, 250};
  constexpr std::int64_t kValues = 12'000'000;
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::string_view mode : {"max_iter_1", "max_iter_4"}) {
    for (const std::string_view distribution : row_distributions()) {
      const std::int64_t cols = kCols[turn % std::size(kCols)];
      const std::int64_t k = kKs[turn / std::size(kCols) % std::size(kKs)];
      top_k_case what = case_of_turn(turn, kValues / cols, cols, k, distribution);
      what.sorted = false;
      what.mode = mode;
      expect_equal_by("stop_rows", *gpu, what);
      ++turn;
    }
  }
}

/// Values of so few bits that more than k columns of many rows have the largest: what such a row writes too much is its
/// neighbour's, or behind the output.
TEST(TopKManyStops, OfMoreThanKLargest) {
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t seed = 900;
  for (int turn = 0; turn < 4; ++turn) {
    for (const std::string_view mode : {"eps_0", "eps_1e-4", "max_iter_64"}) {
      for (const std::int64_t k : {1, 2}) {
        top_k_case what{.type = value_type::bf16, .rows = 3000, .cols = 4096, .k = k, .seed = ++seed};
        what.outputs = "values+i32";
        what.mode = mode;
        expect_equal_by("stop_rows", *gpu, what);
      }
    }
  }
}

}  // namespace
}  // namespace shortlist::conformance
