// The oracle on its own: widening of every 16-bit pattern, strides, and the length and order of its lists.
#include "reference/reference.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/score.hpp"

namespace shortlist {
namespace {

/// Two independent ways to widen, the oracle's formula and core's shifts, agree on every pattern of bits.
template <class T>
void expect_same_widening(element_type type) {
  const float one = 1.0f;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const T element{static_cast<std::uint16_t>(bits)};
    const any_matrix_view view(&element, type, 1, 1, 1);
    const float by_formula = reference::score(view, 0, &one, metric::inner_product);
    const float by_shifts = core::widen(element);
    if (std::isnan(by_formula)) {
      ASSERT_TRUE(std::isnan(by_shifts)) << bits;
    } else {
      // + 0: a score of -0 is returned as +0.
      ASSERT_EQ(std::bit_cast<std::uint32_t>(by_formula), std::bit_cast<std::uint32_t>(by_shifts + 0.0f)) << bits;
    }
  }
}

TEST(Reference, WidensEveryHalf) { expect_same_widening<float16>(element_type::f16); }
TEST(Reference, WidensEveryBrainFloat) { expect_same_widening<bfloat16>(element_type::bf16); }

TEST(Reference, ReadsRowsAtTheirStride) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float rows[] = {1, 2, kNan, 3, 4, kNan, 5, 6};
  const float query[] = {10, 1};
  const any_matrix_view view(rows, element_type::f32, 3, 2, 3);
  EXPECT_EQ(reference::score(view, 2, query, metric::inner_product), 56.0f);
  const std::vector<reference::hit> hits = reference::search(view, query, metric::l2, 3);
  ASSERT_EQ(hits.size(), 3u);
  EXPECT_EQ(hits[0].position, 2);
  EXPECT_EQ(hits[0].score, 50.0f);
  EXPECT_EQ(hits[2].position, 0);
  EXPECT_EQ(hits[2].score, 82.0f);
}

TEST(Reference, ListsHoldWhatIsThere) {
  const std::int8_t rows[] = {3, -1, 3, 7};
  const float query = -1.0f;
  const any_matrix_view view(rows, element_type::i8, 4, 1, 1);
  const any_matrix_view none(nullptr, element_type::i8, 0, 1, 1);
  EXPECT_TRUE(reference::search(none, &query, metric::cosine, 3).empty());
  EXPECT_EQ(reference::search(view, &query, metric::inner_product, 3).size(), 3u);
  const std::vector<reference::hit> hits = reference::search(view, &query, metric::inner_product, 9);
  ASSERT_EQ(hits.size(), 4u);
  EXPECT_EQ(hits[0].position, 1);
  EXPECT_EQ(hits[1].position, 0);  // the tie of -3: the earlier row first
  EXPECT_EQ(hits[2].position, 2);
  EXPECT_EQ(hits[3].position, 3);
}

}  // namespace
}  // namespace shortlist
