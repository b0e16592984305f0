// The oracle of sampling on its own: rows that were worked out by hand from docs/sampling.md.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/sample.hpp"

namespace shortlist {
namespace {

using ids = std::vector<std::int32_t>;
using reference::candidate;
using reference::filtered_row;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr float kBelowOne = 0x1.fffffep-1f;
constexpr float kLn2 = 0x1.62e430p-1f;
constexpr std::uint64_t kOne = std::uint64_t{1} << 40;  // the weight of the largest logit

// With this temperature log2e / T is 1, so that logits are logarithms to base two, and integers have exact weights.
constexpr float kBaseTwo = 0x1.715476p+0f;

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

value_matrix one_row(const std::vector<float>& row) {
  const auto vocab = static_cast<std::int64_t>(row.size());
  return {row.data(), value_type::f32, 1, vocab, vocab};
}

sample_params base_two() {
  sample_params params;
  params.temperature = kBaseTwo;
  return params;
}
sample_params with_top_k(std::int32_t top_k) {
  sample_params params = base_two();
  params.top_k = top_k;
  return params;
}
sample_params with_top_p(float top_p) {
  sample_params params = base_two();
  params.top_p = top_p;
  return params;
}
sample_params with_min_p(float min_p) {
  sample_params params = base_two();
  params.min_p = min_p;
  return params;
}
sample_params with_temperature(float temperature) {
  sample_params params;
  params.temperature = temperature;
  return params;
}

/// The ids that the filters leave, ascending.
ids kept(const std::vector<float>& row, const sample_params& params) {
  ids found;
  for (const candidate& c : reference::filter(one_row(row), 0, params).kept) {
    found.push_back(static_cast<std::int32_t>(c.token));
  }
  return found;
}

/// Everything that is written for a matrix.
struct answer {
  std::vector<std::int64_t> tokens;
  std::vector<sample_status> status;
  std::vector<float> logprobs;
  ids kept;
  ids top_tokens;
  std::vector<float> top_logprobs;
};
answer sampled(const value_matrix& logits, const sample_params& params, std::int32_t top_n = 0) {
  const auto rows = static_cast<std::size_t>(logits.rows);
  const auto top = rows * static_cast<std::size_t>(top_n);
  answer a{.tokens = std::vector<std::int64_t>(rows, -2),
           .status = std::vector<sample_status>(rows, static_cast<sample_status>(99)),
           .logprobs = std::vector<float>(rows, 12345.0f),
           .kept = ids(rows, -2),
           .top_tokens = ids(top, -2),
           .top_logprobs = std::vector<float>(top, 12345.0f)};
  sample_output out;
  out.tokens = a.tokens.data();
  out.tokens_as = index_type::i64;
  out.status = a.status.data();
  out.logprobs = a.logprobs.data();
  out.kept = a.kept.data();
  out.top_n = top_n;
  out.top_tokens = top_n > 0 ? a.top_tokens.data() : nullptr;
  out.top_logprobs = top_n > 0 ? a.top_logprobs.data() : nullptr;
  reference::sample(logits, params, out);
  return a;
}
answer sampled(const std::vector<float>& row, const sample_params& params, std::int32_t top_n = 0) {
  return sampled(one_row(row), params, top_n);
}

/// The logits after penalties, bias and mask, by id; -inf where a token is no candidate.
std::vector<float> changed(const std::vector<float>& row, const sample_params& params) {
  std::vector<float> x(row.size(), -kInf);
  for (const candidate& c : reference::filter(one_row(row), 0, params).candidates) {
    x[static_cast<std::size_t>(c.token)] = c.x;
  }
  return x;
}

void is_refused(const std::vector<float>& row, const sample_params& params, sample_status why) {
  const answer a = sampled(row, params, 2);
  EXPECT_EQ(a.status[0], why);
  EXPECT_EQ(a.tokens[0], -1);
  EXPECT_EQ(a.kept[0], 0);
  EXPECT_EQ(bits_of(a.logprobs[0]), 0x7FC00000u);
  EXPECT_EQ(a.top_tokens, (ids{-1, -1}));
  for (const float logprob : a.top_logprobs) EXPECT_EQ(bits_of(logprob), 0x7FC00000u);
}

/// The 24 bits that a draw takes, by the known answers of the generator below.
std::uint32_t random_bits(std::uint32_t offset) { return reference::philox({offset, 0, 0, 0}, {0, 0})[0] >> 8; }

// --- Section 4 ------------------------------------------------------------------------------------------------------

TEST(ReferenceSample, HasTheKnownAnswersOfPhilox) {
  using words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t kAll = 0xFFFFFFFFu;
  EXPECT_EQ(reference::philox({0, 0, 0, 0}, {0, 0}), (words{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}));
  EXPECT_EQ(reference::philox({kAll, kAll, kAll, kAll}, {kAll, kAll}),
            (words{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}));
  EXPECT_EQ(reference::philox({0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}, {0xA4093822u, 0x299F31D0u}),
            (words{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}));
}

TEST(ReferenceSample, DrawsWithSeedAsKeyAndOffsetAsCounter) {
  const std::vector<float> equal(1 << 16, 3.0f);  // the token is the upper 16 bits of the word
  const filtered_row row = reference::filter(one_row(equal), 0, {});
  EXPECT_EQ(reference::draw(row, 0, 0).token, 0x6627);
  constexpr std::uint64_t kSeed = 0x0123456789ABCDEFu;
  constexpr std::uint64_t kOffset = 0xFEDCBA9876543210u;
  const std::uint32_t word = reference::philox({0x76543210u, 0xFEDCBA98u, 0, 0}, {0x89ABCDEFu, 0x01234567u})[0];
  EXPECT_EQ(reference::draw(row, kSeed, kOffset).token, word >> 16);
}

// --- Sections 2 and 3
// -------------------------------------------------------------------------------------------------

TEST(ReferenceSample, HasExactWeightsAndLogarithmsOfPowersOfTwo) {
  for (int n = 0; n <= 40; ++n) EXPECT_EQ(reference::weight(static_cast<float>(-n)), kOne >> n) << n;
  EXPECT_EQ(reference::weight(-0.0f), kOne);
  EXPECT_EQ(reference::weight(-41.0f), 0u) << "a tie goes to the even 0";
  EXPECT_EQ(reference::weight(-40.5f), 1u);
  EXPECT_EQ(reference::weight(-64.0f), 0u);
  EXPECT_EQ(reference::weight(-64.5f), 0u);
  EXPECT_EQ(reference::weight(-kInf), 0u);
  for (int n = -149; n <= 127; ++n) {
    EXPECT_EQ(reference::log2(std::ldexp(1.0f, n)), static_cast<float>(n)) << n;
  }
}

// Computed from the definition in exact rational arithmetic, rounded where it says so. A change of the last bit of any
// of the first five coefficients changes one of these.
TEST(ReferenceSample, HasTheGoldenBitsOfPowersAndLogarithms) {
  EXPECT_EQ(bits_of(reference::exp2(-0x1.41819ap+1f)), 0x3E338C80u);
  EXPECT_EQ(bits_of(reference::exp2(-0x1.921652p+0f)), 0x3EAC5E2Bu);
  EXPECT_EQ(bits_of(reference::log2(0x1.5de3dcp+1f)), 0x3FB9B270u);
  EXPECT_EQ(bits_of(reference::log2(0x1.5a05d6p+0f)), 0x3EDE940Cu);
  EXPECT_EQ(bits_of(reference::log2(0x1.8p-148f)), 0xC3136A40u);
  EXPECT_EQ(bits_of(reference::log2(0x1.e241p-133f)), 0xC304161Bu);
  EXPECT_EQ(bits_of(reference::log2(0x1.c363ccp+127f)), 0x42FFA2EFu);
}

TEST(ReferenceSample, TakesProductsIn128Bits) {
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 63) - kOne;  // (2^23 - 1) 2^40
  EXPECT_EQ(reference::top_p_share(0.5f, kMost), kMost / 2);
  EXPECT_EQ(reference::top_p_share(kBelowOne, kMost), kMost - (kMost >> 24));
  EXPECT_EQ(reference::top_p_share(0x1p-32f, kMost), kMost >> 32);
  EXPECT_EQ(reference::top_p_share(0x1.8p-33f, kMost), kMost >> 32) << "0.75 rounds to 1";
  EXPECT_EQ(reference::top_p_share(0x1.8p-32f, kMost), kMost >> 31) << "1.5 rounds to 2";
  EXPECT_EQ(reference::top_p_share(0x1.4p-31f, kMost), kMost >> 31) << "2.5 rounds to 2";
  EXPECT_EQ(reference::top_p_share(0x1p-34f, kMost), 0u);
  EXPECT_EQ(reference::top_p_share(0.0f, kMost), 0u);
  EXPECT_EQ(reference::top_p_share(-kInf, kMost), 0u);
  EXPECT_EQ(reference::drawn_share(0, kMost), 0u);
  EXPECT_EQ(reference::drawn_share(1, kMost), kMost >> 24);
  EXPECT_EQ(reference::drawn_share(0x800000u, kMost), kMost / 2);
  EXPECT_EQ(reference::drawn_share(0xFFFFFFu, kMost), kMost - (kMost >> 24));
  EXPECT_EQ(reference::drawn_share(0xFFFFFFu, kOne + 1), kOne - (kOne >> 24)) << "2^-24 below 1 more";
}

TEST(ReferenceSample, HasExactLogProbabilitiesOfPowersOfTwo) {
  EXPECT_EQ(reference::log_probability(0.0f, kOne), 0.0f);
  EXPECT_EQ(reference::log_probability(0.0f, 4 * kOne), -2.0f * kLn2);
  EXPECT_EQ(reference::log_probability(-3.0f, 2 * kOne), -4.0f * kLn2);
  EXPECT_EQ(reference::log_probability(-kInf, kOne), -kInf);
}

// --- Step 12: the draw
// --------------------------------------------------------------------------------------------------

TEST(ReferenceSample, DrawsEqualTokensByTheLeadingBits) {
  const answer a = sampled({3, 3, 3, 3}, {}, 4);
  EXPECT_EQ(a.tokens[0], 0x6627E8D5u >> 30);
  EXPECT_EQ(a.kept[0], 4);
  EXPECT_EQ(a.status[0], sample_status::ok);
  EXPECT_EQ(a.logprobs[0], -2.0f * kLn2);
  EXPECT_EQ(a.top_tokens, (ids{0, 1, 2, 3}));
  EXPECT_EQ(a.top_logprobs, (std::vector<float>(4, -2.0f * kLn2)));
}

TEST(ReferenceSample, DrawsTheTokenAfterASumThatIsJustReached) {
  constexpr int kVocabBits = 16;
  const std::vector<float> equal(1 << kVocabBits, 3.0f);
  const filtered_row row = reference::filter(one_row(equal), 0, {});
  int reached = 0;
  for (std::uint32_t offset = 0; offset < 1000; ++offset) {
    const std::uint32_t u = random_bits(offset);
    ASSERT_EQ(reference::draw(row, 0, offset).token, u >> (24 - kVocabBits)) << offset;
    reached += u % (1 << (24 - kVocabBits)) == 0 ? 1 : 0;
  }
  EXPECT_GT(reached, 0) << "no draw came to the border of two tokens";
}

TEST(ReferenceSample, DrawsByAscendingIdAndNotBestFirst) {
  // Weights 1/2 and 1: token 0 if r = u * 3/2 * 2^16 is below 2^39.
  const filtered_row row = reference::filter(one_row({-1, 0}), 0, base_two());
  for (std::uint32_t offset = 0; offset < 1000; ++offset) {
    const int expected = random_bits(offset) * 3 < (1u << 24) ? 0 : 1;
    ASSERT_EQ(reference::draw(row, 0, offset).token, expected) << offset;
  }
}

TEST(ReferenceSample, NeverDrawsWhatWeighsNothing) {
  // 1000 below the largest logit the weight is 0, but without filters these tokens are kept.
  const filtered_row row = reference::filter(one_row({0, 1000, 0}), 0, {});
  ASSERT_EQ(row.kept.size(), 3u);
  for (std::uint32_t offset = 0; offset < 1000; ++offset) ASSERT_EQ(reference::draw(row, 0, offset).token, 1);
  const answer a = sampled({0, 1000, 0}, base_two(), 3);
  EXPECT_EQ(a.logprobs[0], 0.0f);
  EXPECT_EQ(a.top_tokens, (ids{1, 0, 2}));
  EXPECT_EQ(a.top_logprobs, (std::vector<float>{0.0f, -1000.0f * kLn2, -1000.0f * kLn2}));
}

// --- Step 4: status
// -------------------------------------------------------------------------------------------------------

TEST(ReferenceSample, RefusesRowsOfNanOrOfNothing) {
  is_refused({1, kNan, 2}, {}, sample_status::nan_logit);
  is_refused({-kInf, kNan}, {}, sample_status::nan_logit);
  is_refused({-kInf, -kInf, -kInf}, {}, sample_status::nothing_allowed);
  is_refused({-kInf}, with_temperature(0.0f), sample_status::nothing_allowed);
  const std::uint8_t none[] = {0, 0, 0};
  sample_params masked;
  masked.allowed.data = none;
  is_refused({1, 2, 3}, masked, sample_status::nothing_allowed);
}

TEST(ReferenceSample, TakesARowWhoseNanAreMaskedAway) {
  const std::uint8_t allowed[] = {0, 1, 0, 1};
  sample_params params;
  params.allowed.data = allowed;
  EXPECT_EQ(kept({kNan, 1, kInf, 2}, params), (ids{1, 3}));
}

TEST(ReferenceSample, CallsARowNanThatBecameNan) {
  const float bias[] = {0, -kInf};
  sample_params params;
  params.bias.values = bias;
  is_refused({1, kInf}, params, sample_status::nan_logit);
}

TEST(ReferenceSample, TakesTheOnlyCandidate) {
  const answer a = sampled({-kInf, -kInf, -7, -kInf}, {}, 3);
  EXPECT_EQ(a.tokens[0], 2);
  EXPECT_EQ(a.kept[0], 1);
  EXPECT_EQ(a.logprobs[0], 0.0f);
  EXPECT_EQ(a.top_tokens, (ids{2, -1, -1}));
  EXPECT_EQ(a.top_logprobs, (std::vector<float>{0.0f, -kInf, -kInf}));
}

TEST(ReferenceSample, SharesTheWeightAmongInfinities) {
  const answer a = sampled({1, kInf, kInf}, {}, 3);
  EXPECT_EQ(a.tokens[0], 1) << "the leading bit of the generator's word is 0";
  EXPECT_EQ(a.kept[0], 3);
  EXPECT_EQ(a.logprobs[0], -kLn2);
  EXPECT_EQ(a.top_tokens, (ids{1, 2, 0}));
  EXPECT_EQ(a.top_logprobs, (std::vector<float>{-kLn2, -kLn2, -kInf}));
}

TEST(ReferenceSample, SetsTheStatusOfARowWithABadParameterAlone) {
  const std::vector<float> logits(6 * 4, 1.0f);
  const value_matrix matrix(logits.data(), value_type::f32, 6, 4, 4);
  struct wrong {
    per_row<float> sample_params::*parameter;
    std::vector<float> values;  // of rows 1, 3 and 5; others stay at the default
  };
  const wrong cases[] = {{&sample_params::temperature, {-1, kNan, kInf}},
                         {&sample_params::top_p, {kNan, kNan, -kNan}},
                         {&sample_params::min_p, {-kDenormal, 0x1.000002p+0f, kNan}},
                         {&sample_params::repetition_penalty, {0, -1, kInf}},
                         {&sample_params::presence_penalty, {kInf, -kInf, kNan}},
                         {&sample_params::frequency_penalty, {kInf, -kInf, kNan}}};
  const answer alone = sampled(matrix, {});
  for (const wrong& bad : cases) {
    sample_params params;
    const float fine = (params.*bad.parameter).common;
    const float values[] = {fine, bad.values[0], fine, bad.values[1], fine, bad.values[2]};
    params.*bad.parameter = per_row<float>(values);
    const answer a = sampled(matrix, params);
    for (std::size_t row = 0; row < 6; ++row) {
      SCOPED_TRACE(testing::Message() << "case " << &bad - cases << ", row " << row);
      const bool ok = row % 2 == 0;
      EXPECT_EQ(a.status[row], ok ? sample_status::ok : sample_status::bad_parameter);
      EXPECT_EQ(a.tokens[row], ok ? alone.tokens[row] : -1);
      EXPECT_EQ(a.kept[row], ok ? 4 : 0);
      EXPECT_EQ(bits_of(a.logprobs[row]), ok ? bits_of(alone.logprobs[row]) : 0x7FC00000u);
    }
  }
}

TEST(ReferenceSample, NamesABadParameterBeforeABadLogit) {
  const float temperature[] = {-1.0f};
  sample_params params;
  params.temperature = per_row<float>(temperature);
  is_refused({kNan, 1}, params, sample_status::bad_parameter);
  is_refused({-kInf, -kInf}, params, sample_status::bad_parameter);
}

// --- Step 5: temperature
// --------------------------------------------------------------------------------------------------

TEST(ReferenceSample, TakesTheBestAtTemperature0) {
  for (const float zero : {0.0f, -0.0f}) {
    sample_params params = with_temperature(zero);
    params.top_k = 3;
    params.offset = 12345;
    const answer a = sampled({3, 5, 5, 1}, params, 4);
    EXPECT_EQ(a.tokens[0], 1);
    EXPECT_EQ(a.kept[0], 1);
    const answer at_one = sampled({3, 5, 5, 1}, {}, 4);
    EXPECT_EQ(a.top_tokens, (ids{1, 2, 0, 3}));
    EXPECT_EQ(a.top_logprobs, at_one.top_logprobs) << "those of temperature 1";
    EXPECT_EQ(a.logprobs[0], at_one.top_logprobs[0]);
  }
}

TEST(ReferenceSample, DrawsOnlyTheBestAtALowTemperature) {
  const filtered_row row = reference::filter(one_row({3, 5, 5, 1}), 0, with_temperature(1e-6f));
  ASSERT_EQ(row.kept.size(), 4u);
  for (std::uint32_t offset = 0; offset < 1000; ++offset) {
    ASSERT_EQ(reference::draw(row, 0, offset).token, random_bits(offset) >> 23 == 0 ? 1 : 2);
  }
}

TEST(ReferenceSample, HasASteepestTemperature) {
  // log2e / T overflows; 2^100 stands for it.
  const filtered_row row = reference::filter(one_row({-kDenormal, 0, -1}), 0, with_temperature(kDenormal));
  ASSERT_EQ(row.candidates.size(), 3u);
  EXPECT_EQ(row.candidates[1].t, -0x1p-49f);
  EXPECT_EQ(row.candidates[1].weight, kOne);
  EXPECT_EQ(row.candidates[2].t, -0x1p+100f);
  EXPECT_EQ(row.candidates[2].weight, 0u);
}

TEST(ReferenceSample, HasLogitsFurtherApartThanFp32Holds) {
  constexpr float kMax = std::numeric_limits<float>::max();
  const answer a = sampled({-kMax, kMax}, with_temperature(kMax), 2);
  EXPECT_EQ(a.tokens[0], 1);
  EXPECT_EQ(a.kept[0], 2);
  EXPECT_EQ(a.top_logprobs, (std::vector<float>{0.0f, -kInf}));
}

// --- Steps 6 to 10: candidates and filters
// --------------------------------------------------------------------------------

TEST(ReferenceSample, KeepsTheFirstTopKOfTies) {
  EXPECT_EQ(kept({7, 9, 7, 7, 9}, with_top_k(1)), (ids{1}));
  EXPECT_EQ(kept({7, 9, 7, 7, 9}, with_top_k(3)), (ids{0, 1, 4}));
  EXPECT_EQ(kept({7, 9, 7, 7, 9}, with_top_k(4)), (ids{0, 1, 2, 4}));
  EXPECT_EQ(kept({-0.0f, 0.0f, -0.0f}, with_top_k(2)), (ids{0, 1}));
  EXPECT_EQ(kept({0.0f, -0.0f, 0.0f}, with_top_k(2)), (ids{0, 1}));
}

TEST(ReferenceSample, KeepsAllWhereTopKIsOff) {
  for (const std::int32_t off : {0, -5, std::numeric_limits<std::int32_t>::min(), 4, 5, 1 << 30}) {
    EXPECT_EQ(kept({1, 2, 3, 4}, with_top_k(off)).size(), 4u) << off;
  }
  EXPECT_EQ(kept({1, -kInf, 3, -kInf}, with_top_k(3)), (ids{0, 2}));
}

TEST(ReferenceSample, KeepsTheTokenThatReachesTopP) {
  // Weights 1, 1/2, 1/4, 1/4 of a sum of 2, in the order 2, 0, 1, 3.
  const std::vector<float> row = {-1, -2, 0, -2};
  EXPECT_EQ(kept(row, with_top_p(0.5f)), (ids{2}));
  EXPECT_EQ(kept(row, with_top_p(0x1.000002p-1f)), (ids{0, 2}));
  EXPECT_EQ(kept(row, with_top_p(0.75f)), (ids{0, 2}));
  EXPECT_EQ(kept(row, with_top_p(0x1.800002p-1f)), (ids{0, 1, 2}));
  EXPECT_EQ(kept(row, with_top_p(0.875f)), (ids{0, 1, 2}));
  EXPECT_EQ(kept(row, with_top_p(kBelowOne)), (ids{0, 1, 2, 3}));
}

TEST(ReferenceSample, KeepsTheFirstAtATopPOfNothing) {
  for (const float nothing : {0.0f, -0.0f, -1.0f, -kInf, kDenormal, 1e-30f, 0x1p-40f}) {
    EXPECT_EQ(kept({1, 1, 2, 2}, with_top_p(nothing)), (ids{2})) << nothing;
  }
}

TEST(ReferenceSample, KeepsTheWeightlessOnlyWhereTopPIsOff) {
  for (const float off : {1.0f, 1.5f, kInf}) EXPECT_EQ(kept({0, -1000}, with_top_p(off)), (ids{0, 1})) << off;
  EXPECT_EQ(kept({0, -1000}, with_top_p(kBelowOne)), (ids{0}));
}

TEST(ReferenceSample, GivesATieAtTopPToTheSmallerId) {
  EXPECT_EQ(kept({2, 2, 2, 2}, with_top_p(0.5f)), (ids{0, 1}));
  EXPECT_EQ(kept({2, 2, 2, 2}, with_top_p(0.51f)), (ids{0, 1, 2}));
  EXPECT_EQ(kept({-2, 5, -2, 5, 5}, with_top_p(0.3f)), (ids{1}));
  EXPECT_EQ(kept({-2, 5, -2, 5, 5}, with_top_p(0.4f)), (ids{1, 3}));
}

TEST(ReferenceSample, TakesTopPOfWhatTopKLeaves) {
  sample_params params = with_top_k(2);
  params.top_p = 0.6f;  // of 1 + 1/2, the first has 0.67; of all four, 0.53
  EXPECT_EQ(kept({0, -1, -2, -3}, params), (ids{0}));
  EXPECT_EQ(kept({0, -1, -2, -3}, with_top_p(0.6f)), (ids{0, 1}));
}

TEST(ReferenceSample, KeepsWhatReachesMinP) {
  const std::vector<float> row = {-3, -1, 0, -2};
  EXPECT_EQ(kept(row, with_min_p(0.0f)), (ids{0, 1, 2, 3}));
  EXPECT_EQ(kept(row, with_min_p(kDenormal)), (ids{0, 1, 2, 3}));
  EXPECT_EQ(kept(row, with_min_p(0.125f)), (ids{0, 1, 2, 3}));
  EXPECT_EQ(kept(row, with_min_p(0.1251f)), (ids{1, 2, 3}));
  EXPECT_EQ(kept(row, with_min_p(0.25f)), (ids{1, 2, 3}));
  EXPECT_EQ(kept(row, with_min_p(0.6f)), (ids{2}));
  EXPECT_EQ(kept(row, with_min_p(1.0f)), (ids{2}));
  EXPECT_EQ(kept({5, -9, 5}, with_min_p(1.0f)), (ids{0, 2}));
}

TEST(ReferenceSample, AppliesMinPBeforeOrAfterTheOthers) {
  // First: of 1 + 1/2 + 1/4, 0.82 is 1.435. Last: of 1.875 it is 1.5375, and the third reaches it.
  sample_params params = with_min_p(0.25f);
  params.top_p = 0.82f;
  params.min_p_order = min_p_order::first;
  EXPECT_EQ(kept({0, -1, -2, -3}, params), (ids{0, 1}));
  params.min_p_order = min_p_order::last;
  EXPECT_EQ(kept({0, -1, -2, -3}, params), (ids{0, 1, 2}));
  params.min_p = 0.5f;
  EXPECT_EQ(kept({0, -1, -2, -3}, params), (ids{0, 1}));
}

// --- Steps 1 to 3: penalties, bias, mask
// --------------------------------------------------------------------------------------

/// Token rows of a single row.
struct history {
  explicit history(std::vector<std::int32_t> some) : tokens(std::move(some)) {
    begins[1] = static_cast<std::int64_t>(tokens.size());
  }
  token_rows rows() const { return {begins, tokens.data()}; }
  std::vector<std::int32_t> tokens;
  std::int64_t begins[2] = {0, 0};
};

TEST(ReferenceSample, PenalizesPromptAndGeneratedTokensByTheirRules) {
  const history prompt({1, 2, 1, 4, -1, 99});
  const history generated({3, 2, 3, 3, -7, 6});
  sample_params params;
  params.repetition_penalty = 2.0f;
  params.frequency_penalty = 0.5f;
  params.presence_penalty = 0.25f;
  params.prompt = prompt.rows();
  params.generated = generated.rows();
  EXPECT_EQ(changed({4, 4, 4, 4, -4, -4}, params), (std::vector<float>{4, 2, 1.25f, 0.25f, -8, -4}));
  params.prompt = {};
  EXPECT_EQ(changed({4, 4, 4, 4, -4, -4}, params), (std::vector<float>{4, 4, 1.25f, 0.25f, -4, -4}));
  EXPECT_EQ(changed({4, 4, -4, 0, -4, -4}, params), (std::vector<float>{4, 4, -8.75f, -1.75f, -4, -4}));
}

TEST(ReferenceSample, RoundsEveryStepOfAPenaltyByItself) {
  const history generated({0, 0, 0});
  sample_params params;
  params.generated = generated.rows();
  // 3 (1 + 2^-23) rounds to 3 + 2^-21 before it is taken away.
  params.frequency_penalty = 0x1.000002p+0f;
  EXPECT_EQ(changed({4}, params), (std::vector<float>{1.0f - 0x1p-21f}));
  // 1 - 2^-25 rounds to 1, twice.
  params.frequency_penalty = 0x1p-25f / 3.0f;
  params.presence_penalty = 0x1p-25f;
  EXPECT_EQ(changed({1}, params), (std::vector<float>{1}));
}

TEST(ReferenceSample, AddsABiasAfterPenaltiesAndBeforeTheMask) {
  const history prompt({0, 1});
  const float bias[] = {1, kInf, -2};
  const std::uint8_t allowed[] = {1, 0, 255};
  sample_params params;
  params.repetition_penalty = 2.0f;
  params.prompt = prompt.rows();
  params.bias.values = bias;
  params.allowed.data = allowed;
  EXPECT_EQ(changed({4, 4, 4}, params), (std::vector<float>{3, -kInf, 2}));
}

TEST(ReferenceSample, TakesHistoryBiasAndMasksOfEachRow) {
  const std::vector<float> logits(3 * 2, 0.0f);
  const value_matrix matrix(logits.data(), value_type::f32, 3, 2, 2);
  const float bias[] = {1, 0, 9, 0, 1, 9, 1, 0, 9};  // 9: padding
  const std::int64_t begins[] = {2, 3, 3, 4};
  const std::int32_t tokens[] = {1, 1, 0, 0};
  const std::uint8_t allowed[] = {1, 1, 7, 1, 0, 7, 1, 1, 7};
  sample_params params = with_temperature(0.0f);
  params.bias = {bias, 3};
  EXPECT_EQ(sampled(matrix, params).tokens, (std::vector<std::int64_t>{0, 1, 0}));
  params.bias.row_stride = 0;
  EXPECT_EQ(sampled(matrix, params).tokens, (std::vector<std::int64_t>{0, 0, 0}));
  params.bias.row_stride = 3;
  params.presence_penalty = 2.0f;
  params.generated = {begins, tokens};
  EXPECT_EQ(sampled(matrix, params).tokens, (std::vector<std::int64_t>{1, 1, 1}));
  params.allowed = {allowed, mask_kind::bytes, 3};
  EXPECT_EQ(sampled(matrix, params).tokens, (std::vector<std::int64_t>{1, 0, 1}));
}

TEST(ReferenceSample, ReadsMasksOfBits) {
  const std::vector<float> logits(2 * 40, 0.0f);
  const value_matrix matrix(logits.data(), value_type::f32, 2, 40, 40);
  constexpr std::uint32_t kPadding = 0xFFFFFFFFu;
  const std::uint32_t words[] = {1u << 31, 1u << 7, kPadding, 1u, 0xFFFFFFC0u, kPadding};  // bits 8 on: beyond 40
  sample_params params;
  params.allowed = {words, mask_kind::bits, 3};
  const answer own = sampled(matrix, params, 3);
  EXPECT_EQ(own.kept, (ids{2, 3}));
  EXPECT_EQ(own.top_tokens, (ids{31, 39, -1, 0, 38, 39}));
  params.allowed.row_stride = 0;
  EXPECT_EQ(sampled(matrix, params, 2).top_tokens, (ids{31, 39, 31, 39}));
}

// --- Elements, parameters and outputs
// -----------------------------------------------------------------------------------------

TEST(ReferenceSample, WidensEachTypeWithAnyStrides) {
  // 1, -2, the smallest denormal, 0.5
  const std::uint16_t half[] = {0x3C00, 0xFFFF, 0xC000, 0xFFFF, 0x0001, 0xFFFF, 0x3800, 0xFFFF};
  const std::uint16_t bfloat[] = {0x3F80, 0xFFFF, 0xC000, 0xFFFF, 0x0001, 0xFFFF, 0x3F00, 0xFFFF};
  const auto values = [](const void* data, value_type type) {
    std::vector<float> x;
    for (const candidate& c : reference::filter({data, type, 1, 4, 8, 2}, 0, {}).candidates) x.push_back(c.x);
    return x;
  };
  EXPECT_EQ(values(half, value_type::f16), (std::vector<float>{1, 0.5f, 0x1p-24f, -2}));
  EXPECT_EQ(values(bfloat, value_type::bf16), (std::vector<float>{1, 0.5f, 0x1p-133f, -2}));
  const std::uint16_t infinities[] = {0x7C00, 0xFC00};
  EXPECT_EQ(reference::filter({infinities, value_type::f16, 1, 2, 2}, 0, {}).candidates.size(), 1u);
  const std::uint16_t nan[] = {0x7C01, 0x0000};
  EXPECT_EQ(reference::filter({nan, value_type::f16, 1, 2, 2}, 0, {}).status, sample_status::nan_logit);
}

TEST(ReferenceSample, TakesEachParameterOfItsRow) {
  const std::vector<float> logits = {0, -1, -2, -3, 0, -1, -2, -3, 0, -1, -2, -3};
  const value_matrix matrix(logits.data(), value_type::f32, 3, 4, 4);
  const std::int32_t top_k[] = {3, 0, 1};
  sample_params params = base_two();
  params.top_k = per_row<std::int32_t>(top_k);
  EXPECT_EQ(sampled(matrix, params).kept, (ids{3, 4, 1}));
  const float shares[] = {0.9f, 0.0f, 0.5f};
  params = base_two();
  params.top_p = per_row<float>(shares);
  EXPECT_EQ(sampled(matrix, params).kept, (ids{3, 1, 1}));
  params = base_two();
  params.min_p = per_row<float>(shares);
  EXPECT_EQ(sampled(matrix, params).kept, (ids{1, 4, 2}));
  const float temperatures[] = {0.0f, kBaseTwo, 2 * kBaseTwo};
  params = {};
  params.temperature = per_row<float>(temperatures);
  EXPECT_EQ(sampled(matrix, params).kept, (ids{1, 4, 4}));
  EXPECT_EQ(reference::filter(matrix, 1, params).candidates[2].t, -2.0f);
  EXPECT_EQ(reference::filter(matrix, 2, params).candidates[2].t, -1.0f);
}

TEST(ReferenceSample, TakesSeedAndOffsetOfEachRow) {
  constexpr std::int64_t kVocab = 1 << 12;
  const std::vector<float> equal(kVocab, 0.0f);
  const value_matrix matrix(equal.data(), value_type::f32, 4, kVocab, 0);  // four times the same row
  const std::uint64_t some[] = {0, 1, std::uint64_t{1} << 32, 0};
  sample_params params;
  params.offset = per_row<std::uint64_t>(some);
  const auto leading = [](std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
    return static_cast<std::int64_t>(reference::philox(counter, key)[0] >> 20);
  };
  EXPECT_EQ(sampled(matrix, params).tokens,
            (std::vector<std::int64_t>{0x662, leading({1, 0, 0, 0}, {}), leading({0, 1, 0, 0}, {}), 0x662}));
  params.offset = std::uint64_t{0};
  params.seed = per_row<std::uint64_t>(some);
  EXPECT_EQ(sampled(matrix, params).tokens,
            (std::vector<std::int64_t>{0x662, leading({}, {1, 0}), leading({}, {0, 1}), 0x662}));
}

TEST(ReferenceSample, WritesTokensOf32BitsAndOnlyTheArraysThatAreGiven) {
  const float logits[] = {1, 9, 3, 9, 1, 3};
  std::int32_t tokens[] = {-2, -2, -2};
  sample_output out;
  out.tokens = tokens;
  reference::sample({logits, value_type::f32, 2, 3, 3}, with_temperature(0.0f), out);
  EXPECT_EQ(ids(tokens, tokens + 3), (ids{1, 0, -2}));
  std::int32_t top[] = {-2, -2, -2, -2, -2};
  out.top_n = 2;
  out.top_tokens = top;
  reference::sample({logits, value_type::f32, 2, 3, 3}, {}, out);
  EXPECT_EQ(ids(top, top + 5), (ids{1, 2, 0, 2, -2}));
}

}  // namespace
}  // namespace shortlist
