// core/sampling.hpp, which every backend computes with, against the oracle's arithmetic to the bit, and against double.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/sampling.hpp"
#include "reference/sample.hpp"

namespace shortlist {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::uint64_t kOne = std::uint64_t{1} << 40;  // the weight of the largest logit
constexpr std::uint64_t kMostTotal = static_cast<std::uint64_t>(kMaxVocab) * kOne;

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
float of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Calls with 0, -0, every `step`-th float from -2^-30 (whose power is 1) to -64, and the 64 floats on either side of
/// each half of an integer.
template <class Call>
void for_exponents(std::uint32_t step, Call call) {
  call(0.0f);
  call(-0.0f);
  for (std::uint32_t bits = bits_of(-0x1p-30f); bits <= bits_of(-64.0f); bits += step) call(of_bits(bits));
  constexpr std::uint32_t kNear = 64;
  for (int halves = 1; halves <= 128; ++halves) {
    const std::uint32_t center = bits_of(static_cast<float>(-halves) / 2.0f);
    for (std::uint32_t bits = center - kNear; bits <= center + kNear; ++bits) {
      if (of_bits(bits) >= -64.0f) call(of_bits(bits));
    }
  }
}

/// Calls with every `step`-th positive finite float, and the 64 on either side of each place where n changes.
template <class Call>
void for_positives(std::uint32_t step, Call call) {
  for (std::uint32_t bits = 1; bits < bits_of(kInf); bits += step) call(of_bits(bits));
  constexpr std::uint32_t kNear = 64;
  for (const float border : {0x1.6a09e6p-1f, 1.0f, 0x1p-126f, 0x1.6a09e6p-127f, 0x1p-148f, 0x1.6a09e6p+39f, 0x1p+63f,
                             std::numeric_limits<float>::max()}) {
    const std::uint32_t center = bits_of(border);
    for (std::uint32_t bits = center - std::min(center - 1, kNear); bits <= center + kNear; ++bits) {
      if (bits < bits_of(kInf)) call(of_bits(bits));
    }
  }
}

// --- To the bit
// -------------------------------------------------------------------------------------------------------

// Primes, so that all lower bits come up.
constexpr std::uint32_t kDense = 251;
constexpr std::uint32_t kSparse = 1009;  // of all exponents, or where double's functions are called

TEST(CoreSampling, HasThePowersAndWeightsOfTheOracle) {
  for_exponents(kDense, [](float t) {
    // One comparison of both, since so many assertions would take most of the time.
    const bool same =
        bits_of(core::power_of_two(t)) == bits_of(reference::exp2(t)) && core::weight_of(t) == reference::weight(t);
    if (!same) {
      FAIL() << std::hexfloat << "t " << t << ": " << core::power_of_two(t) << " and " << reference::exp2(t)
             << ", weights " << core::weight_of(t) << " and " << reference::weight(t);
    }
  });
  for (const float t : {std::nextafter(-64.0f, -kInf), -65.0f, -1e30f, -kInf}) {
    EXPECT_EQ(core::weight_of(t), 0u);
    EXPECT_EQ(reference::weight(t), 0u);
  }
}

TEST(CoreSampling, HasTheLogarithmsOfTheOracle) {
  for_positives(kSparse, [](float x) {
    if (bits_of(core::log_of_two(x)) != bits_of(reference::log2(x))) {
      FAIL() << std::hexfloat << "x " << x << ": " << core::log_of_two(x) << " and " << reference::log2(x);
    }
  });
}

/// Totals of weights, from one token of the largest logit to a whole vocabulary of them.
std::vector<std::uint64_t> totals() {
  std::vector<std::uint64_t> some = {kOne, kOne + 1, 2 * kOne - 1, 2 * kOne, 3 * kOne, kMostTotal - 1, kMostTotal};
  for (int bit = 16; bit < 40; ++bit) some.push_back(kOne + (std::uint64_t{1} << bit) + 1);
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) some.push_back(kOne + random() % (kMostTotal - kOne) / (std::uint64_t{1} << (i % 24)));
  return some;
}

TEST(CoreSampling, HasTheLogProbabilitiesOfTheOracle) {
  std::vector<float> exponents = {0.0f, -0.0f, -kInf, -64.0f, -1e30f, -0x1p-149f};
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) exponents.push_back(-std::ldexp(static_cast<float>(random()), -26 - i % 16));
  for (const std::uint64_t total : totals()) {
    for (const float t : exponents) {
      ASSERT_EQ(bits_of(core::log_probability(t, total)), bits_of(reference::log_probability(t, total)))
          << std::hexfloat << "t " << t << ", total " << total;
    }
  }
}

TEST(CoreSampling, HasTheSharesOfTheOracle) {
  std::vector<float> shares = {0.5f,     0x1.fffffep-1f, 0x1p-32f, 0x1p-33f, 0x1.8p-33f,
                               0x1p-34f, 0x1.8p-32f,     1e-30f,   0.0f};
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) shares.push_back(std::ldexp(static_cast<float>(random() >> 8), -24 - i % 12));
  for (const float top_p : shares) {
    sample_params params;
    params.top_p = top_p;
    const std::uint32_t units = core::params_of(params, 0, 100).top_p;
    for (const std::uint64_t total : totals()) {
      ASSERT_EQ(core::share_of(total, units), reference::top_p_share(top_p, total))
          << std::hexfloat << "top_p " << top_p << ", total " << total;
    }
  }
}

TEST(CoreSampling, HasTheDrawsOfTheOracle) {
  std::vector<std::uint32_t> words = {0, 0xFF, 0x100, 0x80000000u, 0xFFFFFFFFu, 0xFFFFFF00u, 0xFFFFFEFFu};
  std::mt19937 random(4);
  for (int i = 0; i < 300; ++i) words.push_back(static_cast<std::uint32_t>(random()));
  for (const std::uint32_t word : words) {
    for (const std::uint64_t total : totals()) {
      ASSERT_EQ(core::drawn_of(total, word), reference::drawn_share(word >> 8, total)) << word << ", total " << total;
    }
  }
}

TEST(CoreSampling, HasTheGeneratorOfTheOracle) {
  std::vector<std::uint64_t> numbers = {0, 1, 0xFFFFFFFFu, std::uint64_t{1} << 32, ~std::uint64_t{0}};
  std::mt19937_64 random(5);
  for (int i = 0; i < 100; ++i) numbers.push_back(random());
  const auto halves = [](std::uint64_t x) {
    return std::array<std::uint32_t, 2>{static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32)};
  };
  EXPECT_EQ(core::philox(0, 0), 0x6627E8D5u);
  for (const std::uint64_t seed : numbers) {
    for (const std::uint64_t offset : numbers) {
      const auto [low, high] = halves(offset);
      ASSERT_EQ(core::philox(seed, offset), reference::philox({low, high, 0, 0}, halves(seed))[0])
          << "seed " << seed << ", offset " << offset;
    }
  }
}

// --- Accuracy
// -----------------------------------------------------------------------------------------------------------

TEST(CoreSampling, HasPowersOfTwoWithin2ToTheMinus23) {
  double worst = 0.0;
  for_exponents(kSparse, [&](float t) {
    const double exact = std::exp2(static_cast<double>(t));
    worst = std::max(worst, std::fabs(static_cast<double>(core::power_of_two(t)) / exact - 1.0));
  });
  EXPECT_LT(worst, 0x1p-23);
}

/// The result's own rounding, and that of log2(1 + g), at most 1/2, before the integer is added.
TEST(CoreSampling, HasLogarithmsWithin2ToTheMinus24OfThemselvesAnd2ToTheMinus25) {
  double worst = 0.0;
  for_positives(kSparse, [&](float x) {
    const double exact = std::log2(static_cast<double>(x));
    const double error = std::fabs(static_cast<double>(core::log_of_two(x)) - exact);
    worst = std::max(worst, error / (std::fabs(exact) * 0x1p-24 + 0x1p-25));
  });
  EXPECT_LT(worst, 1.0);
}

// --- Parameters
// -----------------------------------------------------------------------------------------------------------

constexpr std::int64_t kVocab = 100;

core::row_params made_of(const sample_params& params) { return core::params_of(params, 0, kVocab); }

/// The defaults with one parameter of a row, which the border does not look at.
core::row_params made_with(per_row<float> sample_params::*parameter, float value) {
  sample_params params;
  params.*parameter = per_row<float>(&value);
  return made_of(params);
}

TEST(CoreSampling, MakesDefaultsThatFilterNothing) {
  const core::row_params made = made_of({});
  EXPECT_TRUE(made.valid);
  EXPECT_FALSE(made.greedy);
  EXPECT_EQ(made.top_k, 0);
  EXPECT_TRUE(made.top_p_off);
  EXPECT_TRUE(made.min_p_off);
  EXPECT_EQ(made.steepness, 0x1.715476p+0f);
}

TEST(CoreSampling, TellsParametersThatAreOutOfRange) {
  using field = per_row<float> sample_params::*;
  struct rule {
    field parameter;
    std::vector<float> good;
    std::vector<float> bad;
  };
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  const rule rules[] = {
      {&sample_params::temperature, {0.0f, -0.0f, kLeast, 1.0f, kMax}, {-kLeast, -1.0f, kInf, -kInf, kNan, -kNan}},
      {&sample_params::top_p, {-kInf, -1.0f, 0.0f, 0.5f, 1.0f, 2.0f, kInf}, {kNan, -kNan}},
      {&sample_params::min_p, {0.0f, -0.0f, kLeast, 1.0f}, {-kLeast, std::nextafter(1.0f, 2.0f), kInf, kNan}},
      {&sample_params::repetition_penalty, {kLeast, 1.0f, kMax}, {0.0f, -0.0f, -1.0f, kInf, kNan}},
      {&sample_params::presence_penalty, {-kMax, 0.0f, kMax}, {kInf, -kInf, kNan}},
      {&sample_params::frequency_penalty, {-kMax, 0.0f, kMax}, {kInf, -kInf, kNan}},
  };
  const float logit = 1.0f;
  for (const rule& r : rules) {
    for (const auto* values : {&r.good, &r.bad}) {
      for (const float value : *values) {
        SCOPED_TRACE(testing::Message() << "rule " << &r - rules << ", value " << value);
        EXPECT_EQ(made_with(r.parameter, value).valid, values == &r.good);
        sample_params params;
        params.*r.parameter = per_row<float>(&value);
        const sample_status oracle = reference::filter({&logit, value_type::f32, 1, 1, 1}, 0, params).status;
        EXPECT_EQ(oracle, values == &r.good ? sample_status::ok : sample_status::bad_parameter);
      }
    }
  }
}

TEST(CoreSampling, MakesParametersReady) {
  EXPECT_TRUE(made_with(&sample_params::temperature, -0.0f).greedy);
  EXPECT_EQ(made_with(&sample_params::temperature, 0.0f).steepness, 0x1.715476p+0f);
  EXPECT_EQ(made_with(&sample_params::temperature, 2.0f).steepness, 0x1.715476p-1f);
  EXPECT_EQ(made_with(&sample_params::temperature, 1e-42f).steepness, 0x1p+100f);
  EXPECT_TRUE(made_with(&sample_params::top_p, kInf).top_p_off);
  EXPECT_FALSE(made_with(&sample_params::top_p, 0x1.fffffep-1f).top_p_off);
  EXPECT_EQ(made_with(&sample_params::top_p, 0x1.fffffep-1f).top_p, 0xFFFFFF00u);
  EXPECT_FALSE(made_with(&sample_params::top_p, -kInf).top_p_off);
  EXPECT_EQ(made_with(&sample_params::top_p, -kInf).top_p, 0u);
  EXPECT_EQ(made_with(&sample_params::top_p, 0x1.8p-32f).top_p, 2u);
  EXPECT_EQ(made_with(&sample_params::top_p, 0x1.4p-30f).top_p, 5u);
  EXPECT_FALSE(made_with(&sample_params::min_p, 0.25f).min_p_off);
  EXPECT_EQ(made_with(&sample_params::min_p, 0.25f).least_exponent, -2.0f);
  EXPECT_EQ(made_with(&sample_params::min_p, 1.0f).least_exponent, 0.0f);
  const auto top_k_made_of = [](std::int32_t top_k) {
    sample_params params;
    params.top_k = top_k;
    return made_of(params).top_k;
  };
  for (const std::int32_t top_k : {1, 50, 99}) EXPECT_EQ(top_k_made_of(top_k), top_k);
  for (const std::int32_t off : {0, -1, std::numeric_limits<std::int32_t>::min(), 100, 101}) {
    EXPECT_EQ(top_k_made_of(off), 0) << off;
  }
}

TEST(CoreSampling, TakesTheParametersOfTheRow) {
  const float floats[] = {1.0f, 0.5f};
  const std::int32_t top_k[] = {1, 2};
  const std::uint64_t numbers[] = {10, std::uint64_t{1} << 40};
  sample_params params;
  params.temperature = params.top_p = params.min_p = per_row<float>(floats);
  params.repetition_penalty = params.presence_penalty = params.frequency_penalty = per_row<float>(floats);
  params.top_k = per_row<std::int32_t>(top_k);
  params.seed = params.offset = per_row<std::uint64_t>(numbers);
  const core::row_params made = core::params_of(params, 1, kVocab);
  EXPECT_EQ(made.steepness, 0x1.715476p+1f);
  EXPECT_EQ(made.top_p, 0x80000000u);
  EXPECT_EQ(made.least_exponent, -1.0f);
  EXPECT_EQ(made.top_k, 2);
  EXPECT_EQ(made.seed, numbers[1]);
  EXPECT_EQ(made.offset, numbers[1]);
  EXPECT_EQ(made.by.repetition, 0.5f);
  EXPECT_EQ(made.by.presence, 0.5f);
  EXPECT_EQ(made.by.frequency, 0.5f);
}

// --- Logits
// ---------------------------------------------------------------------------------------------------------------

TEST(CoreSampling, PenalizesAndScalesAsTheOracleDoes) {
  std::mt19937 random(6);
  const auto number = [&](float scale) { return (static_cast<float>(random()) * 0x1p-31f - 1.0f) * scale; };
  for (int i = 0; i < 5000; ++i) {
    const float logits[] = {number(10.0f), number(10.0f), number(10.0f)};
    const core::penalties by{0.5f + std::fabs(number(2.0f)), number(1.0f), number(1.0f)};
    const auto times = static_cast<std::int32_t>(random() % 4);
    const std::int32_t tokens[] = {0, 0, 0, 0};
    const std::int64_t one[] = {0, 1};
    const std::int64_t many[] = {0, times};
    sample_params params;
    params.temperature = 0.01f + std::fabs(number(3.0f));
    params.repetition_penalty = by.repetition;
    params.presence_penalty = by.presence;
    params.frequency_penalty = by.frequency;
    params.prompt = {one, tokens};
    params.generated = {many, tokens};
    const auto row = reference::filter({logits, value_type::f32, 1, 3, 3}, 0, params);
    const float changed = core::penalized(logits[0], times, by);
    const float largest = std::max({changed, logits[1], logits[2]});
    const float steepness = made_of(params).steepness;
    for (const reference::candidate& c : row.candidates) {
      const float x = c.token == 0 ? changed : logits[c.token];
      ASSERT_EQ(bits_of(c.x), bits_of(x)) << "case " << i << ", token " << c.token;
      ASSERT_EQ(bits_of(c.t), bits_of(core::exponent_of(x, largest, steepness))) << "case " << i;
    }
  }
  EXPECT_EQ(core::exponent_of(kInf, kInf, 1.0f), 0.0f);
  EXPECT_EQ(core::exponent_of(-kInf, 1.0f, 1.0f), -kInf);
  EXPECT_EQ(core::exponent_of(1.0f, kInf, 1.0f), -kInf);
}

}  // namespace
}  // namespace shortlist
