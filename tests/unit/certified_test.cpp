// The intervals of core/certified.hpp against the reference's scores: not one score may lie outside of its interval.
//
// Pairs of query and row are built so that each term of the bound is nearly used up: the test fails if a term is left
// out. SHORTLIST_TEST_FULL=1 tries millions of pairs.
#include "core/certified.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/flat/quantise.hpp"
#include "reference/reference.hpp"

namespace shortlist::core {
namespace {

using numbers = std::vector<float>;
using generator = std::mt19937_64;

constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};
constexpr int kQueryCodes[] = {64, 127, 8191};
constexpr std::int64_t kDims[] = {1, 2, 3, 4, 5, 7, 16, 31, 64, 100, 127, 128, 129, 255, 384, 768, 1000, 1537, 4096};

bool is_full() {
  const char* full = std::getenv("SHORTLIST_TEST_FULL");
  return full && std::string_view(full) != "0";
}

float normal(generator& random) {
  std::normal_distribution<float> distribution;
  return distribution(random);
}

numbers normal_vector(std::int64_t dim, generator& random) {
  numbers out(static_cast<std::size_t>(dim));
  for (float& value : out) value = normal(random);
  return out;
}

numbers scaled(numbers values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

struct coded {
  std::vector<std::int16_t> codes;
  cpu::quantised sums;
};

coded quantise(const numbers& values, int max_code) {
  coded made{std::vector<std::int16_t>(values.size()), {}};
  made.sums = cpu::quantise(values.data(), static_cast<std::int64_t>(values.size()), max_code, made.codes.data());
  return made;
}

/// The codes of a plane's coarse copy.
coded quantise_coarsely(const numbers& values) {
  coded made = quantise(values, kMaxCoarseCode);
  for (std::int16_t& code : made.codes) code = static_cast<std::int16_t>(code * kCoarseStep);
  made.sums.scale /= kCoarseStep;
  made.sums.code_squares *= kCoarseStep * kCoarseStep;
  return made;
}

/// value - scale * code, element by element.
numbers residual_of(const numbers& values, const coded& from) {
  numbers out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    out[i] = static_cast<float>(double{values[i]} - double{from.sums.scale} * from.codes[i]);
  }
  return out;
}

struct vector_pair {
  numbers query;
  numbers row;
};

/// A number whose magnitude is about `magnitude`, with so many random bits.
float odd_number(float magnitude, int bits, generator& random) {
  const auto whole =
      static_cast<float>((random() % (std::uint64_t{1} << (bits - 1))) + (std::uint64_t{1} << (bits - 1)));
  return std::ldexp(whole, std::ilogb(magnitude) - bits + 1);
}

// Each fills a pair that is hard for one term of the bound.
using fill = vector_pair (*)(std::int64_t dim, int query_code, generator& random);

vector_pair ordinary(std::int64_t dim, int, generator& random) {
  return {normal_vector(dim, random), normal_vector(dim, random)};
}

/// The query points along the row's residual: |q| e is used up.
vector_pair along_row_residual(std::int64_t dim, int, generator& random) {
  const numbers row = normal_vector(dim, random);
  return {scaled(residual_of(row, quantise(row, kMaxRowCode)), random() % 2 ? 1e4f : -1e4f), row};
}

vector_pair along_coarse_residual(std::int64_t dim, int, generator& random) {
  const numbers row = normal_vector(dim, random);
  return {scaled(residual_of(row, quantise_coarsely(row)), random() % 2 ? 1e4f : -1e4f), row};
}

/// The row points along the query's residual: |u| n is used up.
vector_pair along_query_residual(std::int64_t dim, int query_code, generator& random) {
  const numbers query = normal_vector(dim, random);
  return {query, scaled(residual_of(query, quantise(query, query_code)), random() % 2 ? 1e3f : -1e3f)};
}

/// Codes are exact, every product is the same, and every step of a chain is rounded alike: the score's own rounding.
vector_pair constant(std::int64_t dim, int query_code, generator& random) {
  const float row = odd_number(1.0f, 17, random) * kMaxRowCode;
  const float query = odd_number(1.0f, 11, random) * static_cast<float>(query_code);
  const float sign = random() % 2 ? 1.0f : -1.0f;  // minus: far apart, where squared L2 rounds most
  return {numbers(static_cast<std::size_t>(dim), sign * query), numbers(static_cast<std::size_t>(dim), row)};
}
vector_pair constant_with_equal_norms(std::int64_t dim, int, generator& random) {
  const float value = odd_number(1.0f, 24, random);
  const float sign = random() % 2 ? 1.0f : -1.0f;
  return {numbers(static_cast<std::size_t>(dim), sign * value), numbers(static_cast<std::size_t>(dim), value)};
}

/// One code each, exact but for the scale's own rounding: what remains is the rounding of the estimate.
vector_pair single_elements(std::int64_t dim, int query_code, generator& random) {
  vector_pair made{numbers(static_cast<std::size_t>(dim)), numbers(static_cast<std::size_t>(dim))};
  const std::size_t at = random() % made.row.size();
  made.row[at] = odd_number(1.0f, 17, random) * kMaxRowCode;
  made.query[at] = odd_number(1.0f, 11, random) * static_cast<float>(query_code);
  return made;
}

vector_pair equal_vectors(std::int64_t dim, int, generator& random) {
  const numbers values = normal_vector(dim, random);
  numbers near = values;
  if (random() % 2) near[random() % near.size()] *= 1.0f + 0x1p-20f;
  return {near, values};
}

/// Products that underflow, each rounded the same way.
vector_pair underflowing(std::int64_t dim, int, generator& random) {
  const float factor = random() % 2 ? 0.6f : 0.45f;
  return {numbers(static_cast<std::size_t>(dim), 0x1p-75f), numbers(static_cast<std::size_t>(dim), factor * 0x1p-74f)};
}

vector_pair denormal(std::int64_t dim, int, generator& random) {
  vector_pair made = ordinary(dim, 0, random);
  made.row = scaled(made.row, 0x1p-140f);
  if (random() % 2) made.query = scaled(made.query, random() % 2 ? 0x1p60f / static_cast<float>(dim) : 0x1p-140f);
  return made;
}

/// Around the smallest vectors that have codes, beside a query as large as is certified.
vector_pair barely_quantised(std::int64_t dim, int, generator& random) {
  const float root = std::sqrt(static_cast<float>(dim));
  vector_pair made{scaled(normal_vector(dim, random), 0x1p59f / root), normal_vector(dim, random)};
  made.row = scaled(made.row, 0x1p-101f);
  if (random() % 2) std::swap(made.query, made.row);
  return made;
}

vector_pair huge(std::int64_t dim, int, generator& random) {
  const float root = std::sqrt(static_cast<float>(dim));
  return {scaled(normal_vector(dim, random), 0x1p60f / root), scaled(normal_vector(dim, random), 0x1p60f / root)};
}

vector_pair mixed_magnitudes(std::int64_t dim, int, generator& random) {
  vector_pair made = ordinary(dim, 0, random);
  for (numbers* values : {&made.query, &made.row}) {
    for (float& value : *values) value = std::ldexp(value, static_cast<int>(random() % 90) - 45);
  }
  return made;
}

vector_pair one_large_element(std::int64_t dim, int, generator& random) {
  vector_pair made = ordinary(dim, 0, random);
  made.row[random() % made.row.size()] = 3e4f;
  if (random() % 2) made.query[random() % made.query.size()] = 3e4f;
  return made;
}

vector_pair sparse(std::int64_t dim, int, generator& random) {
  vector_pair made = ordinary(dim, 0, random);
  for (numbers* values : {&made.query, &made.row}) {
    for (float& value : *values) value = random() % 8 ? 0.0f : value;
  }
  return made;
}

vector_pair heavy_tailed(std::int64_t dim, int, generator& random) {
  vector_pair made = ordinary(dim, 0, random);
  for (numbers* values : {&made.query, &made.row}) {
    for (float& value : *values) value = value * value * value * value * value;
  }
  return made;
}

vector_pair zeros(std::int64_t dim, int, generator& random) {
  vector_pair made = ordinary(dim, 0, random);
  numbers& which = random() % 2 ? made.query : made.row;
  std::fill(which.begin(), which.end(), random() % 2 ? 0.0f : -0.0f);
  return made;
}

struct named_fill {
  const char* name;
  fill make;
};
constexpr named_fill kFills[] = {
    {"ordinary", ordinary},
    {"along_row_residual", along_row_residual},
    {"along_coarse_residual", along_coarse_residual},
    {"along_query_residual", along_query_residual},
    {"constant", constant},
    {"constant_with_equal_norms", constant_with_equal_norms},
    {"single_elements", single_elements},
    {"equal_vectors", equal_vectors},
    {"underflowing", underflowing},
    {"denormal", denormal},
    {"barely_quantised", barely_quantised},
    {"huge", huge},
    {"mixed_magnitudes", mixed_magnitudes},
    {"one_large_element", one_large_element},
    {"sparse", sparse},
    {"heavy_tailed", heavy_tailed},
    {"zeros", zeros},
};

float reference_dot(const numbers& a) {
  const any_matrix_view view(a.data(), element_type::f32, 1, static_cast<std::int64_t>(a.size()),
                             static_cast<std::int64_t>(a.size()));
  return reference::score(view, 0, a.data(), metric::inner_product);
}

std::int32_t product_of(const coded& a, const coded& b) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < a.codes.size(); ++i) sum += std::int64_t{a.codes[i]} * b.codes[i];
  EXPECT_EQ(sum, static_cast<std::int32_t>(sum)) << "a product of codes does not fit 32 bits";
  return static_cast<std::int32_t>(sum);
}

/// The row's terms, in long double: x^2, the residual and the codes may not be larger than they say.
testing::AssertionResult row_terms_hold(const numbers& row, const coded& from, const plane_row& terms) {
  long double residual = 0, norm = 0, squares = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const long double code = static_cast<long double>(terms.scale) * from.codes[i];
    residual += (row[i] - code) * (row[i] - code);
    norm += code * code;
    squares += static_cast<long double>(row[i]) * row[i];
  }
  constexpr long double kHalfUlp = 0x1.0001p-24L;  // and what summing in double adds
  if (terms.residual < std::sqrt(residual)) return testing::AssertionFailure() << "residual " << terms.residual;
  if (terms.norm < std::sqrt(norm)) return testing::AssertionFailure() << "norm " << terms.norm;
  if (std::fabs(terms.square - squares) > kHalfUlp * squares + 0x1p-149L) {
    return testing::AssertionFailure() << "square " << terms.square;
  }
  return testing::AssertionSuccess();
}

/// How much of its bound a pair used, 0 to 1, where the middle of the interval is its estimate.
struct outcome {
  std::int64_t pairs = 0;
  std::int64_t certified = 0;
  double most_used = 0;
};

void check_pair(const vector_pair& pair, const coded& row, int wanted_code, const std::string& what, outcome& seen) {
  const auto dim = static_cast<std::int64_t>(pair.row.size());
  const coded query = quantise(pair.query, max_query_code(dim, wanted_code));
  const plane_row terms = row_terms(row.sums.scale, row.sums.squares, row.sums.residual_squares, row.sums.code_squares);
  const float query_inverse_norm = inverse_norm(reference_dot(pair.query));
  const float row_inverse_norm = inverse_norm(reference_dot(pair.row));
  const bool certified_row = !std::isinf(terms.residual);
  ASSERT_TRUE(!certified_row || row_terms_hold(pair.row, row, terms)) << what;
  const any_matrix_view view(pair.row.data(), element_type::f32, 1, dim, dim);
  for (const metric by : kMetrics) {
    ++seen.pairs;
    if (!is_certifiable(query.sums.squares, by == metric::cosine ? query_inverse_norm : 1.0f)) continue;
    const query_terms asked =
        terms_of_query(by, dim, query.sums.scale, query.sums.squares, query.sums.residual_squares, query_inverse_norm);
    const merit_interval found = interval_of(by, asked, terms, row_inverse_norm, product_of(query, row));
    if (!certified_row) {
      ASSERT_FALSE(found.high < std::numeric_limits<float>::infinity()) << what;
      ASSERT_FALSE(found.low > -std::numeric_limits<float>::infinity()) << what;
      continue;
    }
    ++seen.certified;
    const float merit = merit_of(reference::score(view, 0, pair.query.data(), by), by);
    ASSERT_TRUE(found.low <= merit && merit <= found.high)
        << what << " " << to_string(by) << ": merit " << merit << " outside of " << found.low << " to " << found.high;
    const double middle = (double{found.low} + found.high) / 2;
    const double half = (double{found.high} - found.low) / 2;
    if (std::isfinite(half) && half > 1e-30)
      seen.most_used = std::max(seen.most_used, std::fabs(merit - middle) / half);
  }
}

class CertifiedIntervals : public testing::TestWithParam<named_fill> {};

TEST_P(CertifiedIntervals, HoldTheScoreOfEveryPair) {
  const std::int64_t elements = is_full() ? 60'000'000 : 2'000'000;  // of each dim and width of codes
  const std::int64_t most_pairs = is_full() ? 5000 : 150;
  outcome seen;
  for (const std::int64_t dim : kDims) {
    for (const int query_code : kQueryCodes) {
      generator random(static_cast<std::uint64_t>(dim * 10'000 + query_code));
      const std::int64_t pairs = std::clamp<std::int64_t>(elements / dim / 20, 4, most_pairs);
      for (std::int64_t i = 0; i < pairs; ++i) {
        const std::string what = std::string(GetParam().name) + " dim " + std::to_string(dim) + " query codes to " +
                                 std::to_string(query_code) + " pair " + std::to_string(i);
        const vector_pair pair = GetParam().make(dim, query_code, random);
        check_pair(pair, quantise(pair.row, kMaxRowCode), query_code, what, seen);
        check_pair(pair, quantise_coarsely(pair.row), query_code, what + " coarse", seen);
        if (HasFatalFailure()) return;
      }
    }
  }
  RecordProperty("pairs", std::to_string(seen.pairs));
  RecordProperty("most_used", std::to_string(seen.most_used));
  EXPECT_GT(seen.certified, 0);
}

INSTANTIATE_TEST_SUITE_P(All, CertifiedIntervals, testing::ValuesIn(kFills),
                         [](const auto& test) { return std::string(test.param.name); });

// Rows of 16-bit elements are rows of fp32 once they are widened: all of their bit patterns, a few dozen to a row.
TEST(CertifiedRows, OfSixteenBitElementsHoldTheirScores) {
  constexpr std::int64_t kDim = 64;
  generator random(3);
  for (const element_type type : {element_type::f16, element_type::bf16}) {
    for (std::uint32_t first = 0; first < 0x10000; first += kDim) {
      std::vector<std::uint16_t> bits(kDim);
      for (std::size_t i = 0; i < kDim; ++i) bits[i] = static_cast<std::uint16_t>(first + i);
      numbers wide(kDim);
      for (std::size_t i = 0; i < kDim; ++i) {
        wide[i] = type == element_type::f16 ? widen(float16{bits[i]}) : widen(bfloat16{bits[i]});
      }
      outcome seen;
      const vector_pair pair{normal_vector(kDim, random), wide};
      const std::string what = std::string(to_string(type)) + " " + std::to_string(first);
      check_pair(pair, quantise(wide, kMaxRowCode), 8191, what, seen);
      check_pair(pair, quantise_coarsely(wide), 8191, what + " coarse", seen);
      const any_matrix_view narrow(bits.data(), type, 1, kDim, kDim);
      const any_matrix_view widened(wide.data(), element_type::f32, 1, kDim, kDim);
      const float a = reference::score(narrow, 0, wide.data(), metric::l2);
      const float b = reference::score(widened, 0, wide.data(), metric::l2);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b));
    }
  }
}

TEST(CertifiedRows, ThatAreNotFiniteOrTooLargeAreNeverDropped) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 0x1p63f}) {
    const numbers row = {1.0f, bad, 2.0f};
    const coded made = quantise(row, kMaxRowCode);
    const plane_row terms = row_terms(made.sums.scale, made.sums.squares, made.sums.residual_squares, 0);
    EXPECT_EQ(terms.residual, infinity) << bad;
    EXPECT_EQ(terms.scale, 0.0f) << bad;
    EXPECT_EQ(made.codes, std::vector<std::int16_t>(3, 0)) << bad;
    EXPECT_FALSE(is_certifiable(made.sums.squares, 1.0f)) << "as a query: " << bad;
  }
  EXPECT_FALSE(is_certifiable(1.0, kZeroVector));
}

TEST(CertifiedRoundings, AreTheStepsOfAChainAndTheLevelsOfTheTree) {
  EXPECT_EQ(roundings_of_sum(1), 1);
  EXPECT_EQ(roundings_of_sum(2), 2);
  EXPECT_EQ(roundings_of_sum(3), 3);
  EXPECT_EQ(roundings_of_sum(128), 8);
  EXPECT_EQ(roundings_of_sum(129), 9);
  EXPECT_EQ(roundings_of_sum(65536), 519);
}

TEST(CertifiedLayout, OfACoarseCopyHasAPlaceForEveryWord) {
  for (const std::int64_t dim : {1, 64, 65, 96, 200, 768}) {
    const fragment_layout layout(dim, metric::inner_product, storage::int8_and_full);
    std::set<std::int64_t> places;
    for (std::int64_t row = 0; row < kPlaneRows; ++row) {
      for (std::int64_t i = 0; i < layout.pairs * fragment_layout::kPair; i += 4) {
        const std::int64_t word = i % fragment_layout::kPair / 16;
        if (word < 3) places.insert(fragment_layout::coarse_at(row, i));
      }
    }
    EXPECT_EQ(static_cast<std::int64_t>(places.size()) * 4, layout.coarse_codes_bytes()) << dim;
    EXPECT_EQ(*places.begin(), 0) << dim;
    EXPECT_EQ(*places.rbegin() + 4, layout.coarse_codes_bytes()) << dim;
    EXPECT_EQ(fragment_layout(dim, metric::inner_product, storage::int8_and_host).block_bytes(), layout.whole_bytes());
  }
}

TEST(CertifiedProducts, FitThirtyTwoBitsAtEveryDim) {
  for (const std::int64_t dim : {1, 128, 2064, 2065, 4096, 65536}) {
    for (const int wanted : kQueryCodes) {
      const int code = max_query_code(dim, wanted);
      EXPECT_GE(code, 64) << dim;
      EXPECT_LE(code, wanted) << dim;
      EXPECT_LE(dim * kMaxRowCode * code, std::int64_t{INT32_MAX}) << dim;
    }
  }
}

}  // namespace
}  // namespace shortlist::core
