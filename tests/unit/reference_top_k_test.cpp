// The oracle of row-wise top k on its own: rows that were worked out by hand from docs/ordering.md, sections 8 and 9.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "core/score.hpp"
#include "reference/top_k.hpp"

namespace shortlist {
namespace {

using columns = std::vector<std::int64_t>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();

value_matrix one_row(const std::vector<float>& row) {
  const auto cols = static_cast<std::int64_t>(row.size());
  return {row.data(), value_type::f32, 1, cols, cols};
}

columns chosen(const std::vector<float>& row, const top_k_options& options) {
  return reference::top_k_columns(one_row(row), 0, 0, static_cast<std::int64_t>(row.size()), options);
}

int steps(const std::vector<float>& row, const top_k_options& options) {
  return reference::bisection_steps(one_row(row), 0, 0, static_cast<std::int64_t>(row.size()), options);
}

/// Options: best first, or by ascending column.
top_k_options best(std::int64_t k, order by = order::largest) {
  top_k_options options;
  options.k = k;
  options.order = by;
  options.sorted = true;
  return options;
}
top_k_options by_column(std::int64_t k, order by = order::largest) {
  top_k_options options = best(k, by);
  options.sorted = false;
  return options;
}
top_k_options stopped_at(std::int64_t k, float eps, order by = order::largest) {
  top_k_options options = by_column(k, by);
  options.eps = eps;
  return options;
}
top_k_options stopped_after(std::int64_t k, int max_iter, order by = order::largest) {
  top_k_options options = by_column(k, by);
  options.max_iter = max_iter;
  return options;
}
top_k_options sorted(top_k_options options) {
  options.sorted = true;
  return options;
}

/// Values and 64-bit indices of a whole matrix.
struct lists {
  std::vector<float> values;
  columns indices;
};
lists lists_of(const value_matrix& matrix, const top_k_options& options, const ragged_rows& ragged = {}) {
  const auto entries = static_cast<std::size_t>(matrix.rows * options.k);
  lists found{std::vector<float>(entries, 12345.0f), columns(entries, -2)};
  reference::top_k(matrix, ragged, options, {.values = found.values.data(), .indices = found.indices.data()});
  return found;
}

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

// --- Section 8 ----------------------------------------------------------------------------------------------------

TEST(ReferenceTopK, ReturnsColumnsInOrderOrBestFirst) {
  const std::vector<float> row = {2, 9, -4, 7, 5};
  EXPECT_EQ(chosen(row, by_column(3)), (columns{1, 3, 4}));
  EXPECT_EQ(chosen(row, best(3)), (columns{1, 3, 4}));
  EXPECT_EQ(chosen(row, by_column(3, order::smallest)), (columns{0, 2, 4}));
  EXPECT_EQ(chosen(row, best(3, order::smallest)), (columns{2, 0, 4}));
  EXPECT_EQ(chosen(row, by_column(5)), (columns{0, 1, 2, 3, 4}));
  EXPECT_EQ(chosen(row, best(5)), (columns{1, 3, 4, 0, 2}));
  EXPECT_EQ(chosen({-3.0f}, best(1)), (columns{0}));
}

TEST(ReferenceTopK, GivesATieToTheSmallerColumn) {
  EXPECT_EQ(chosen({3, 3, 3, 3}, best(2)), (columns{0, 1}));
  EXPECT_EQ(chosen({1, 3, 2, 3, 2, 3}, best(4)), (columns{1, 3, 5, 2}));
  EXPECT_EQ(chosen({1, 3, 2, 3, 2, 3}, by_column(4)), (columns{1, 2, 3, 5}));
  EXPECT_EQ(chosen({5, 3, 4, 3, 4, 3}, best(4, order::smallest)), (columns{1, 3, 5, 2}));
}

TEST(ReferenceTopK, HasOneZeroInTheOrderAndKeepsBothSigns) {
  const std::vector<float> row = {-0.0f, 0.0f, -0.0f, 0.0f};
  for (const order by : {order::largest, order::smallest}) {
    const lists found = lists_of(one_row(row), best(3, by));
    EXPECT_EQ(found.indices, (columns{0, 1, 2}));
    EXPECT_EQ(bits_of(found.values[0]), 0x80000000u);
    EXPECT_EQ(bits_of(found.values[1]), 0x00000000u);
    EXPECT_EQ(bits_of(found.values[2]), 0x80000000u);
  }
}

TEST(ReferenceTopK, HasInfinitiesAsNumbersAndNanLastInBothOrders) {
  const std::vector<float> row = {kNan, -kInf, 1, -kNan, kInf};
  EXPECT_EQ(chosen(row, best(5)), (columns{4, 2, 1, 0, 3}));
  EXPECT_EQ(chosen(row, best(5, order::smallest)), (columns{1, 2, 4, 0, 3}));
  EXPECT_EQ(chosen(row, by_column(4)), (columns{0, 1, 2, 4}));
  EXPECT_EQ(chosen({kNan, kNan, kNan}, best(2, order::smallest)), (columns{0, 1}));
}

TEST(ReferenceTopK, KeepsThePayloadsOfNan) {
  const std::uint32_t bits[] = {0xFFC12345u, 0x7F800001u, 0x3F800000u, 0x7FFFFFFFu};
  std::uint32_t values[4] = {};
  reference::top_k({bits, value_type::f32, 1, 4, 4}, {}, best(4), {.values = values});
  EXPECT_EQ(values[0], 0x3F800000u);
  EXPECT_EQ(values[1], 0xFFC12345u);
  EXPECT_EQ(values[2], 0x7F800001u);
  EXPECT_EQ(values[3], 0x7FFFFFFFu);
}

TEST(ReferenceTopK, ComparesDenormals) {
  EXPECT_EQ(chosen({kDenormal, 2 * kDenormal, -kDenormal, 0}, best(4)), (columns{1, 0, 3, 2}));
}

TEST(ReferenceTopK, ReadsOnlyTheColumnsOfARaggedRowAndPadsItsEnd) {
  const float rows[] = {9, 1, 2, 9,   //
                        9, 9, 9, 9,   //
                        4, 9, 9, 9};  // borders [1, 3), [2, 2), [0, 1)
  const std::int64_t begins[] = {1, 2, 0};
  const std::int64_t ends[] = {3, 2, 1};
  const value_matrix matrix(rows, value_type::f32, 3, 4, 4);
  const lists largest = lists_of(matrix, best(3), {begins, ends});
  EXPECT_EQ(largest.indices, (columns{2, 1, -1, -1, -1, -1, 0, -1, -1}));
  EXPECT_EQ(largest.values, (std::vector<float>{2, 1, -kInf, -kInf, -kInf, -kInf, 4, -kInf, -kInf}));
  const lists smallest = lists_of(matrix, by_column(3, order::smallest), {begins, ends});
  EXPECT_EQ(smallest.indices, (columns{1, 2, -1, -1, -1, -1, 0, -1, -1}));
  EXPECT_EQ(smallest.values, (std::vector<float>{1, 2, kInf, kInf, kInf, kInf, 4, kInf, kInf}));
  // Null begins are zeros, null ends are whole rows.
  EXPECT_EQ(lists_of(matrix, best(2), {nullptr, ends}).indices, (columns{0, 2, 0, 1, 0, -1}));
  EXPECT_EQ(lists_of(matrix, best(2), {begins, nullptr}).indices, (columns{3, 2, 2, 3, 1, 2}));
}

TEST(ReferenceTopK, WritesMasksAndEachTypeOfIndex) {
  const float rows[] = {5, 7, 6, 1, 2, 2};
  const value_matrix matrix(rows, value_type::f32, 2, 3, 3);
  std::vector<std::uint8_t> mask(6, 77);
  reference::top_k(matrix, {}, by_column(2), {.mask = mask.data()});
  EXPECT_EQ(mask, (std::vector<std::uint8_t>{0, 1, 1, 0, 1, 1}));
  const std::int64_t ends[] = {1, 0};
  reference::top_k(matrix, {nullptr, ends}, by_column(2), {.mask = mask.data()});
  EXPECT_EQ(mask, (std::vector<std::uint8_t>{1, 0, 0, 0, 0, 0}));
  std::vector<std::int32_t> indices(4, 77);
  reference::top_k(matrix, {nullptr, ends}, by_column(2), {.indices = indices.data(), .indices_as = index_type::i32});
  EXPECT_EQ(indices, (std::vector<std::int32_t>{0, -1, -1, -1}));
}

TEST(ReferenceTopK, ReadsAtBothStrides) {
  const float rows[] = {1, kNan, 2, kNan, 3, kInf, kInf, 6, kNan, 5, kNan, 4};
  EXPECT_EQ(lists_of({rows, value_type::f32, 2, 3, 7, 2}, best(2)).values, (std::vector<float>{3, 2, 6, 5}));
  EXPECT_EQ(lists_of({rows, value_type::f32, 2, 3, 7, 2}, best(2)).indices, (columns{2, 1, 0, 1}));
}

TEST(ReferenceTopK, ComparesDoublesAsDoubles) {
  const double row[] = {1.0, 1.0 + 0x1p-52, 1e300, 1.0 - 0x1p-53};
  double values[5] = {};
  std::int64_t indices[5] = {};
  const std::int64_t ends[] = {4};
  const value_matrix matrix(row, value_type::f64, 1, 5, 5);
  reference::top_k(matrix, {nullptr, ends}, best(5), {.values = values, .indices = indices});
  EXPECT_EQ(columns(indices, indices + 5), (columns{2, 1, 0, 3, -1}));
  EXPECT_EQ(values[1], 1.0 + 0x1p-52);
  EXPECT_EQ(values[4], -std::numeric_limits<double>::infinity());
}

/// All patterns of a 16-bit type, best first, fall strictly by what core's shifts widen them to; only the two zeros are
/// equal. NaN follow by column.
template <class T>
void expect_order_of_all_patterns(value_type type) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  const columns order = reference::top_k_columns({patterns.data(), type, 1, 65536, 65536}, 0, 0, 65536, best(65536));
  ASSERT_EQ(order.size(), patterns.size());
  for (std::size_t i = 1; i < order.size(); ++i) {
    const float before = core::widen(T{static_cast<std::uint16_t>(order[i - 1])});
    const float after = core::widen(T{static_cast<std::uint16_t>(order[i])});
    const bool falls = before > after || (!std::isnan(before) && std::isnan(after));
    const bool tied = (before == 0.0f && after == 0.0f) || (std::isnan(before) && std::isnan(after));
    ASSERT_TRUE(falls || (tied && order[i - 1] < order[i])) << order[i - 1] << " before " << order[i];
  }
}

TEST(ReferenceTopK, OrdersEveryHalf) { expect_order_of_all_patterns<float16>(value_type::f16); }
TEST(ReferenceTopK, OrdersEveryBrainFloat) { expect_order_of_all_patterns<bfloat16>(value_type::bf16); }

TEST(ReferenceTopK, PadsEachTypeWithItsInfinity) {
  const std::uint64_t row = 0;
  const std::int64_t ends[] = {0};
  struct padding {
    value_type type;
    std::uint64_t largest, smallest;
  };
  const padding paddings[] = {{value_type::f32, 0xFF800000u, 0x7F800000u},
                              {value_type::f16, 0xFC00u, 0x7C00u},
                              {value_type::bf16, 0xFF80u, 0x7F80u},
                              {value_type::f64, 0xFFF0000000000000u, 0x7FF0000000000000u}};
  for (const padding& expected : paddings) {
    for (const order by : {order::largest, order::smallest}) {
      std::uint64_t value = 0;
      reference::top_k({&row, expected.type, 1, 1, 1}, {nullptr, ends}, by_column(1, by), {.values = &value});
      EXPECT_EQ(value, by == order::largest ? expected.largest : expected.smallest) << to_string(expected.type);
    }
  }
}

// --- Section 9: Algorithm 1 -----------------------------------------------------------------------------------------

TEST(ReferenceBisection, EndsWhereExactlyKValuesReachTheMidpoint) {
  const std::vector<float> row = {1, 5, 3, 9, 7, 3};
  // [1, 9]: 5 is reached by 3 -> [5, 9]: 7 is reached by 2.
  EXPECT_EQ(chosen(row, stopped_at(2, 0)), (columns{3, 4}));
  EXPECT_EQ(steps(row, stopped_at(2, 0)), 2);
  EXPECT_EQ(chosen(row, sorted(stopped_at(2, 0))), (columns{3, 4}));
}

TEST(ReferenceBisection, StopsAtANarrowBracketAndFillsUpFromBelow) {
  const std::vector<float> row = {1, 5, 3, 9, 7, 3};
  // Width 4.5: [1, 9] -> [5, 9]. One value reaches 9; the first of [5, 9) is the 5.
  EXPECT_EQ(chosen(row, stopped_at(2, 0.5f)), (columns{1, 3}));
  EXPECT_EQ(steps(row, stopped_at(2, 0.5f)), 1);
  EXPECT_EQ(chosen(row, sorted(stopped_at(2, 0.5f))), (columns{3, 1}));
  // Width 9: no step at all.
  EXPECT_EQ(chosen(row, stopped_at(2, 1)), (columns{0, 3}));
  EXPECT_EQ(chosen(row, stopped_at(3, 1)), (columns{0, 1, 3}));
  EXPECT_EQ(steps(row, stopped_at(2, 1)), 0);
}

TEST(ReferenceBisection, HasItsWidthFromTheRowsMaximumThroughout) {
  const std::vector<float> row = {1, 2, 10, 3};
  // [1, 10]: 5.5 by 1 -> [1, 5.5]: 3.25 by 1 -> [1, 3.25]: 2.125 by 2.
  EXPECT_EQ(chosen(row, stopped_at(2, 0)), (columns{2, 3}));
  EXPECT_EQ(steps(row, stopped_at(2, 0)), 3);
  // Width 0.25 x 10 is above 3.25 - 1, but 0.25 x 5.5 would not be.
  EXPECT_EQ(chosen(row, stopped_at(2, 0.25f)), (columns{0, 2}));
  EXPECT_EQ(steps(row, stopped_at(2, 0.25f)), 2);
}

TEST(ReferenceBisection, TakesTheFirstOfTooManyMaxima) {
  EXPECT_EQ(chosen({9, 1, 9, 9}, stopped_at(2, 0.5f)), (columns{0, 2}));
  EXPECT_EQ(chosen({4, 4, 4}, stopped_at(2, 0)), (columns{0, 1}));
  EXPECT_EQ(steps({4, 4, 4}, stopped_at(2, 0)), 0);
  // lo goes 1, 1.5, ... to the number below 2, in 24 steps; the midpoint then rounds to 2.
  EXPECT_EQ(chosen({0, 2, 1, 2, 2}, stopped_at(2, 0)), (columns{1, 3}));
  EXPECT_EQ(steps({0, 2, 1, 2, 2}, stopped_at(2, 0)), 24);
}

TEST(ReferenceBisection, OfTheSmallestIsThatOfTheNegatedValues) {
  const std::vector<float> row = {1, 5, 3, 9, 7, 3};
  // [-9, -1]: -5 by 4 -> [-5, -1]: -3 by 3 -> [-3, -1]: -2 by 1 -> [-3, -2].
  EXPECT_EQ(chosen(row, stopped_at(2, 1, order::smallest)), (columns{0, 2}));
  EXPECT_EQ(steps(row, stopped_at(2, 1, order::smallest)), 3);
  // Width 4 x |-1|: [-5, -1] is no wider. The 1, then the first of [-5, -1), the 5.
  EXPECT_EQ(chosen(row, stopped_at(2, 4, order::smallest)), (columns{0, 1}));
  EXPECT_EQ(steps(row, stopped_at(2, 4, order::smallest)), 1);
  EXPECT_EQ(chosen(row, stopped_at(2, 0, order::smallest)), (columns{0, 2}));
}

TEST(ReferenceBisection, HasMidpointsThatDoNotOverflow) {
  const std::vector<float> positive = {0x1p127f, 0x1.cp127f, 0x1.4p127f, 0x1.8p127f};
  EXPECT_EQ(chosen(positive, stopped_at(2, 0)), (columns{1, 3}));  // 1.375 x 2^127 by 2
  EXPECT_EQ(steps(positive, stopped_at(2, 0)), 1);
  EXPECT_EQ(chosen(positive, stopped_after(2, 1)), (columns{1, 3}));
  const std::vector<float> both = {-kMax, kMax, 1};
  EXPECT_EQ(chosen(both, stopped_at(1, 0.5f)), (columns{1}));  // 0 by 2, then half of the largest by 1
  EXPECT_EQ(steps(both, stopped_at(1, 0.5f)), 2);
  // hi - lo is infinity, and larger than any finite width; an infinite width is not smaller.
  EXPECT_EQ(chosen(both, stopped_at(2, 1)), (columns{1, 2}));
  EXPECT_EQ(steps(both, stopped_at(2, 1)), 1);
  EXPECT_EQ(chosen(both, stopped_at(2, kMax)), (columns{0, 1}));
  EXPECT_EQ(steps(both, stopped_at(2, kMax)), 0);
}

TEST(ReferenceBisection, KeepsDenormals) {
  const std::vector<float> row = {3 * kDenormal, kDenormal, 2 * kDenormal, 0};
  // Half of 3 units is 1.5, which rounds to the even 2.
  EXPECT_EQ(chosen(row, stopped_at(2, 0)), (columns{0, 2}));
  EXPECT_EQ(steps(row, stopped_at(2, 0)), 1);
  // From [2, 3] units the midpoint 2.5 rounds to 2, which ends the loop.
  EXPECT_EQ(chosen(row, stopped_at(1, 0)), (columns{0}));
  EXPECT_EQ(steps(row, stopped_at(1, 0)), 1);
  // Half of -1 unit is -0, which reaches the maximum, 0.
  EXPECT_EQ(chosen({-kDenormal, 0.0f, -0.0f}, stopped_at(2, 0)), (columns{1, 2}));
  EXPECT_EQ(steps({-kDenormal, 0.0f, -0.0f}, stopped_at(2, 0)), 0);
  EXPECT_EQ(chosen({-kDenormal, -0.0f, 0.0f}, stopped_after(2, 1)), (columns{1, 2}));
}

TEST(ReferenceBisection, WithEpsZeroFindsTheExactSet) {
  const float scales[] = {1.0f, kDenormal, 0x1.fp120f, 0x1p-126f};
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> row(1 + random() % 40);
    const unsigned range = 1 + random() % 256;  // a small one makes ties
    for (float& value : row) {
      const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
      value = sign * static_cast<float>(random() % range) * scales[round % 4];
    }
    const auto k = static_cast<std::int64_t>(1 + random() % row.size());
    for (const order by : {order::largest, order::smallest}) {
      EXPECT_EQ(chosen(row, stopped_at(k, 0, by)), chosen(row, by_column(k, by))) << testing::PrintToString(row);
      EXPECT_EQ(chosen(row, sorted(stopped_at(k, 0, by))), chosen(row, best(k, by))) << testing::PrintToString(row);
    }
  }
}

/// What Algorithm 1 selects of a row of finite values, without a count: a midpoint is reached by k values where it does
/// not exceed the k-th best.
columns followed_from_border(const std::vector<float>& row, std::int64_t k, float eps, int& halvings) {
  std::vector<float> falling = row;
  std::sort(falling.begin(), falling.end(), std::greater<>());
  const float border = falling[static_cast<std::size_t>(k - 1)];
  float low = falling.back();
  float high = falling.front();
  const float width = eps * std::fabs(high);
  halvings = 0;
  while (high - low > width) {
    const float middle = (low + high) * 0.5f;
    if (middle <= low || middle >= high) break;
    (border >= middle ? low : high) = middle;
    ++halvings;
  }
  const auto reach_high = std::count_if(row.begin(), row.end(), [&](float value) { return value >= high; });
  auto sure = std::min<std::int64_t>(reach_high, k);
  std::int64_t fill = k - sure;
  columns selected;
  for (std::size_t i = 0; i < row.size(); ++i) {
    std::int64_t& left = row[i] >= high ? sure : fill;
    if (row[i] < low || left == 0) continue;
    --left;
    selected.push_back(static_cast<std::int64_t>(i));
  }
  return selected;
}

/// Rows of normal, equal, lognormal, far and tied values, and of such below 0.
std::vector<float> row_of_kind(int kind, std::size_t cols, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> row(cols);
  for (float& value : row) {
    const float x = normal(random);
    switch (kind % 6) {
      case 0: value = x; break;
      case 1: value = std::round(x * 2.0f) * 0.5f; break;
      case 2: value = std::exp(x); break;
      case 3: value = 5.0f + x * 1e-3f; break;
      case 4: value = std::fabs(x) < 1.6f ? 0.5f : x; break;
      default: value = -std::exp(x); break;
    }
  }
  return row;
}

TEST(ReferenceBisection, FollowsFromTheExtremesAndTheBorderAlone) {
  constexpr float kEps[] = {0.0f, 1e-6f, 1e-4f, 1e-3f, 1e-2f, 0.1f, 0.5f};
  std::mt19937 random(7);
  for (int turn = 0; turn < 6'000; ++turn) {
    const std::size_t cols = 2 + random() % 300;
    const std::vector<float> row = row_of_kind(turn, cols, random);
    const auto k = static_cast<std::int64_t>(1 + random() % (cols - 1));
    const float eps = kEps[static_cast<std::size_t>(turn / 6) % std::size(kEps)];
    int halvings = 0;
    ASSERT_EQ(followed_from_border(row, k, eps, halvings), chosen(row, stopped_at(k, eps)))
        << "row " << turn << ", k " << k << ", eps " << eps;
  }
}

TEST(ReferenceBisection, EndsAfterAsManyHalvingsAsTheExtremesSay) {
  std::mt19937 random(8);
  for (int turn = 0; turn < 1'000; ++turn) {
    const std::vector<float> row = row_of_kind(0, 256, random);
    int halvings = 0;
    followed_from_border(row, 32, 1e-2f, halvings);
    EXPECT_TRUE(halvings == 8 || halvings == 9) << halvings;
    followed_from_border(row, 32, 1e-3f, halvings);
    EXPECT_TRUE(halvings == 11 || halvings == 12) << halvings;
  }
}

// --- Section 9: Algorithm 2 -----------------------------------------------------------------------------------------

TEST(ReferenceBisection, TakesTheFirstThatReachTheLowerEndAfterSoManySteps) {
  const std::vector<float> row = {1, 5, 3, 9, 7, 3};
  EXPECT_EQ(chosen(row, stopped_after(2, 1)), (columns{1, 3}));  // lo 5
  EXPECT_EQ(chosen(row, stopped_after(2, 2)), (columns{3, 4}));  // lo 7
  EXPECT_EQ(chosen(row, stopped_after(2, 3)), (columns{3, 4}));  // 8 by 1: lo stays
  EXPECT_EQ(chosen(row, sorted(stopped_after(2, 1))), (columns{3, 1}));
  const std::vector<float> late = {1, 2, 10, 3};
  EXPECT_EQ(chosen(late, stopped_after(2, 1)), (columns{0, 1}));  // lo 1: the maximum is missed
  EXPECT_EQ(chosen(late, stopped_after(2, 2)), (columns{0, 1}));
  EXPECT_EQ(chosen(late, stopped_after(2, 3)), (columns{2, 3}));  // lo 2.125
  EXPECT_EQ(chosen(late, stopped_after(2, 64)), (columns{2, 3}));
  EXPECT_EQ(chosen({-1, -2, -10, -3}, stopped_after(2, 1, order::smallest)), (columns{0, 1}));
  EXPECT_EQ(chosen({-1, -2, -10, -3}, stopped_after(2, 3, order::smallest)), (columns{2, 3}));
}

// --- Section 9: the exact path
// ----------------------------------------------------------------------------------------

TEST(ReferenceBisection, LeavesNanInfinitiesAndShortRowsToTheExactPath) {
  for (const top_k_options& options : {stopped_after(2, 1), stopped_at(2, 1)}) {
    EXPECT_NE(chosen({1, 2, 10, 3}, options), (columns{2, 3}));
    EXPECT_EQ(chosen({1, 2, 10, kNan}, options), (columns{1, 2}));
    EXPECT_EQ(chosen({1, 2, 10, 3, -kInf}, options), (columns{2, 3}));
    EXPECT_EQ(chosen({1, 2, kInf, 3}, options), (columns{2, 3}));
    EXPECT_EQ(chosen({kNan}, options), (columns{0}));
    EXPECT_EQ(chosen({}, options), (columns{}));
  }
  EXPECT_EQ(steps({1, 2, 10, kNan}, stopped_at(2, 0)), 0);
  EXPECT_EQ(steps({1, 2, 10}, stopped_at(4, 0)), 0);
}

TEST(ReferenceBisection, CountsOnlyTheColumnsOfARaggedRow) {
  const std::vector<float> row = {kNan, 1, 5, 3, 9, 7, 3, kInf};
  EXPECT_EQ(reference::top_k_columns(one_row(row), 0, 1, 7, stopped_at(2, 0.5f)), (columns{2, 4}));
  EXPECT_EQ(reference::bisection_steps(one_row(row), 0, 1, 7, stopped_at(2, 0.5f)), 1);
}

TEST(ReferenceBisection, WidensTheNarrowTypes) {
  // 1, 2, 10, 3 in fp16 and in bf16; after one step the first two are taken, after three the right ones.
  const std::uint16_t halves[] = {0x3C00, 0x4000, 0x4900, 0x4200};
  const std::uint16_t brains[] = {0x3F80, 0x4000, 0x4120, 0x4040};
  const value_matrix matrices[] = {{halves, value_type::f16, 1, 4, 4}, {brains, value_type::bf16, 1, 4, 4}};
  for (const value_matrix& matrix : matrices) {
    EXPECT_EQ(reference::top_k_columns(matrix, 0, 0, 4, stopped_after(2, 1)), (columns{0, 1}));
    EXPECT_EQ(reference::top_k_columns(matrix, 0, 0, 4, stopped_after(2, 3)), (columns{2, 3}));
    EXPECT_EQ(reference::bisection_steps(matrix, 0, 0, 4, stopped_at(2, 0.25f)), 2);
  }
}

}  // namespace
}  // namespace shortlist
