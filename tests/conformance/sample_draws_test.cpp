// Sampling: very many draws. Every way of every device draws the same tokens, and each as often as its probability
// says.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "conformance/sample_harness.hpp"
#include "conformance/sample_on_device.hpp"
#include "conformance/sample_values.hpp"
#include "reference/sample.hpp"

namespace shortlist::conformance {
namespace {

constexpr auto kSlowdown = static_cast<std::int64_t>(kSampleStep);

// --- the same everywhere --------------------------------------------------------------------------------------------

/// Rows that overlap: each starts one logit after the one before, so that many need little memory.
struct overlapping_rows {
  value_type type;
  std::int64_t rows;
  std::int64_t vocab;
};

std::vector<std::byte> logits_of(const overlapping_rows& shape) {
  random_numbers random(static_cast<std::uint64_t>(shape.vocab));
  row_numbers row;
  row.type = shape.type;
  row.values.resize(static_cast<std::size_t>(shape.rows + shape.vocab - 1));
  fill_logits("normal_3", row, random);
  const auto size = static_cast<std::size_t>(size_bytes(shape.type));
  std::vector<std::byte> bytes(row.values.size() * size);
  for (std::size_t i = 0; i < row.values.size(); ++i) {
    const std::uint64_t bits = bits_of(row.values[i], shape.type, random);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

/// A token of every row, drawn by the device with a seed of the row's own.
std::vector<std::int32_t> tokens_of(const overlapping_rows& shape, sample_params params, device where) {
  const stream s(where);
  random_numbers random(5);
  std::vector<std::uint64_t> seeds(static_cast<std::size_t>(shape.rows));
  for (std::uint64_t& seed : seeds) seed = random.bits();
  std::vector<std::int32_t> tokens(seeds.size(), -2);
  device_copy<std::byte> logits(s, logits_of(shape));
  device_copy<std::uint64_t> device_seeds(s, seeds);
  device_copy<std::int32_t> device_tokens(s, tokens);
  params.seed = device_seeds.data();
  sample(s, value_matrix(logits.data(), shape.type, shape.rows, shape.vocab, 1), params,
         {.tokens = device_tokens.data()});
  device_tokens.download(s, tokens);
  return tokens;
}

TEST(SampleDraws, EveryWayDrawsTheSameTokens) {
  constexpr overlapping_rows kShapes[] = {{value_type::f32, 70'000, 50},    {value_type::bf16, 25'000, 1000},
                                          {value_type::f16, 5'000, 4097},   {value_type::bf16, 500, 50'257},
                                          {value_type::f32, 140, 128'256},  {value_type::f16, 60, 200'001},
                                          {value_type::bf16, 40, 1'000'000}};
  const sample_params kinds[] = {{.offset = 1},
                                 {.temperature = 0.7f, .top_k = 40, .top_p = 0.9f, .offset = 2},
                                 {.temperature = 0.7f, .top_p = 0.9f, .offset = 3}};
  std::vector<sample_way> ways;
  for (const device& where : device::all()) {
    for (const sample_way& how : sample_ways_of(where)) ways.push_back(how);
  }
  if (ways.size() < 2) GTEST_SKIP() << "one way alone";
  for (const overlapping_rows& full : kShapes) {
    const overlapping_rows shape{full.type, full.rows / kSlowdown, full.vocab};
    for (const sample_params& params : kinds) {
      std::vector<std::int32_t> first;
      for (const sample_way& how : ways) {
        const forced_sample_way forced(how);
        const std::vector<std::int32_t> found = tokens_of(shape, params, how.where);
        if (first.empty()) first = found;
        const std::int64_t row = std::mismatch(found.begin(), found.end(), first.begin()).first - found.begin();
        ASSERT_EQ(row, shape.rows) << fmt::format("{} {} {}: the first row of {} x {} {} with another token than {} {}",
                                                  how.where.name(), how.isa, how.algorithm, shape.rows, shape.vocab,
                                                  to_string(shape.type), ways[0].where.name(), ways[0].isa);
      }
    }
  }
}

// --- exactly at the border ------------------------------------------------------------------------------------------

/// Three tokens, the last at 0: the logits of the others and the row's seed are such that floor(u * S / 2^24) is the
/// sum of the others' weights, or the integer before.
struct border_row {
  float logits[3];
  std::uint64_t seed;
  std::int32_t token;    ///< that is drawn
  bool is_rounded_down;  ///< with the nearest integer it would be the last
};

/// A weight at temperature 1 beside a token at 0.
std::uint64_t weight_of(float logit) {
  constexpr float kLog2e = 0x1.715476p+0f;
  return reference::weight(logit * kLog2e);
}
float logit_near(std::uint64_t weight) { return static_cast<float>(std::log(static_cast<double>(weight) * 0x1p-40)); }

std::optional<float> logit_of(std::uint64_t weight) {
  constexpr int kNeighbours = 8;
  float logit = logit_near(weight);
  for (int i = 0; i < kNeighbours; ++i) logit = std::nextafter(logit, -HUGE_VALF);
  for (int i = 0; i < 2 * kNeighbours; ++i) {
    if (weight_of(logit) == weight) return logit;
    logit = std::nextafter(logit, 0.0f);
  }
  return {};
}

/// A row with this sum of the first two weights: what the first one's logit leaves is so small that a logit has it.
std::optional<border_row> border_row_of(std::uint64_t sum, std::uint64_t seed) {
  constexpr std::uint64_t kLeft = 1 << 17;
  if (sum < 2 * kLeft) return {};
  const float first = logit_near(sum - kLeft);
  if (weight_of(first) >= sum) return {};
  const std::optional<float> second = logit_of(sum - weight_of(first));
  if (!second) return {};
  return border_row{.logits = {first, *second, 0.0f}, .seed = seed, .token = 0, .is_rounded_down = false};
}

/// Of seeds whose u is small enough that products fit 64 bits, and weights what logits can have.
std::vector<border_row> border_rows() {
  constexpr std::uint64_t kSeeds = 20'000;
  constexpr std::uint32_t kMostU = 1 << 18;
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 40;  // the weight of the last token
  std::vector<border_row> rows;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::uint32_t u = reference::philox({0, 0, 0, 0}, {static_cast<std::uint32_t>(seed), 0})[0] >> 8;
    if (u > kMostU) continue;
    // Where the others' share of S is u / 2^24.
    const auto near = static_cast<std::uint64_t>(static_cast<double>(u) * 0x1p40 / (0x1p24 - u));
    for (std::uint64_t sum = near; sum <= near + 2; ++sum) {
      const std::uint64_t product = u * (sum + kLargest);
      const std::uint64_t r = product >> 24;
      if (r != sum && r + 1 != sum) continue;
      if (std::optional<border_row> row = border_row_of(sum, seed)) {
        row->token = r < sum ? 1 : 2;
        row->is_rounded_down = r < sum && (product >> 23) % 2 == 1;
        rows.push_back(*row);
      }
    }
  }
  return rows;
}

TEST_P(SampleOnDevice, DrawsAreRoundedDown) {
  constexpr std::int64_t kEnough = 50;
  const std::vector<border_row> rows = border_rows();
  const auto count = [&](auto&& holds) { return std::count_if(rows.begin(), rows.end(), holds); };
  ASSERT_GE(count([](const border_row& row) { return row.is_rounded_down; }), kEnough);
  ASSERT_GE(count([](const border_row& row) { return row.token == 2; }), kEnough);
  std::vector<float> logits;
  std::vector<std::uint64_t> seeds;
  for (const border_row& row : rows) {
    logits.insert(logits.end(), std::begin(row.logits), std::end(row.logits));
    seeds.push_back(row.seed);
  }
  for (const sample_way& how : sample_ways_of(where_)) {
    const forced_sample_way forced(how);
    const stream s(where_);
    device_copy<float> device_logits(s, logits);
    device_copy<std::uint64_t> device_seeds(s, seeds);
    std::vector<std::int32_t> tokens(rows.size(), -2);
    device_copy<std::int32_t> device_tokens(s, tokens);
    sample(s, value_matrix(device_logits.data(), value_type::f32, std::ssize(rows), 3, 3),
           {.seed = device_seeds.data()}, {.tokens = device_tokens.data()});
    device_tokens.download(s, tokens);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(tokens[i], rows[i].token)
          << fmt::format("{} {} {}: logits {:a}, {:a} and 0, seed {}", how.where.name(), how.isa, how.algorithm,
                         rows[i].logits[0], rows[i].logits[1], rows[i].seed);
    }
  }
}

// --- as often as they should ----------------------------------------------------------------------------------------

/// What a correct sampler exceeds once in 10^7 tests: Wilson and Hilferty's approximation of the chi-square's quantile.
double chi_square_limit(double degrees) {
  constexpr double kNormalQuantile = 5.199;
  const double spread = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1.0 - spread + kNormalQuantile * std::sqrt(spread), 3.0);
}

/// Tokens in the one order.
std::vector<std::size_t> best_first(const std::vector<float>& logits) {
  std::vector<std::size_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  return order;
}

/// The probabilities of tokens of which the first `kept` in the one order remain.
std::vector<double> probabilities_of(const std::vector<float>& logits, double temperature, std::int64_t kept) {
  std::vector<std::size_t> order = best_first(logits);
  order.resize(static_cast<std::size_t>(kept));
  std::vector<double> probabilities(logits.size(), 0.0);
  double sum = 0.0;
  for (const std::size_t token : order) {
    probabilities[token] = std::exp((logits[token] - logits[order[0]]) / temperature);
    sum += probabilities[token];
  }
  for (double& p : probabilities) p /= sum;
  return probabilities;
}

struct draw_test {
  value_type type = value_type::f32;  ///< or bf16
  std::int64_t vocab;
  std::int64_t rows = 1000;  ///< of the same logits, each with a seed of its own
  std::int64_t calls;        ///< with ascending offsets
  float temperature = 1.0f;
  std::int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  min_p_order order = min_p_order::last;
};

class draws {
 public:
  draws(const draw_test& test, device where)
      : test_(test), where_(where), logits_(static_cast<std::size_t>(test.vocab)) {
    constexpr std::uint32_t kUpperHalf = 0xFFFF0000u;  // of fp32: what bf16 stores
    random_numbers random(31);
    for (float& logit : logits_) logit = static_cast<float>(1.5 * random.normal());
    if (test.type != value_type::bf16) return;
    // In a loop of its own: in one with the above, g++ 12 left some as they were in code for the thread sanitizer.
    for (float& logit : logits_) logit = std::bit_cast<float>(std::bit_cast<std::uint32_t>(logit) & kUpperHalf);
  }

  /// How often each token was drawn.
  std::vector<std::int64_t> count() {
    const stream s(where_);
    const std::vector<std::byte> one = stored_row();
    std::vector<std::byte> all;
    std::vector<std::uint64_t> seeds;
    for (std::int64_t row = 0; row < test_.rows; ++row) {
      all.insert(all.end(), one.begin(), one.end());
      seeds.push_back(static_cast<std::uint64_t>(row));
    }
    device_copy<std::byte> device_logits(s, all);
    device_copy<std::uint64_t> device_seeds(s, seeds);
    std::vector<std::int32_t> tokens(seeds.size(), -2);
    std::vector<std::int32_t> kept = tokens;
    device_copy<std::int32_t> device_tokens(s, tokens);
    device_copy<std::int32_t> device_kept(s, kept);
    std::vector<std::int64_t> counts(logits_.size(), 0);
    for (std::int64_t call = 0; call < test_.calls; ++call) {
      sample(s, value_matrix(device_logits.data(), test_.type, test_.rows, test_.vocab, test_.vocab),
             {.temperature = test_.temperature,
              .top_k = test_.top_k,
              .top_p = test_.top_p,
              .min_p = test_.min_p,
              .seed = device_seeds.data(),
              .offset = static_cast<std::uint64_t>(call),
              .min_p_order = test_.order},
             {.tokens = device_tokens.data(), .kept = device_kept.data()});
      device_tokens.download(s, tokens);
      for (const std::int32_t token : tokens) ++counts.at(static_cast<std::size_t>(token));
    }
    device_kept.download(s, kept);
    kept_ = kept[0];
    return counts;
  }

  /// Of the counts against the probabilities. Tokens that are expected too seldom are taken together, neighbours by
  /// their ids, then by their weights; first as few as may be, then so many that a slope stands out of what chance
  /// does.
  void expect_probable(const std::vector<std::int64_t>& counts) const {
    const std::vector<double> probabilities = probabilities_of(logits_, test_.temperature, kept_);
    std::vector<std::size_t> by_id(logits_.size());
    for (std::size_t token = 0; token < by_id.size(); ++token) {
      by_id[token] = token;
      EXPECT_TRUE(probabilities[token] > 0.0 || counts[token] == 0) << "token " << token << " was filtered out";
    }
    constexpr double kLeastExpected = 10.0;
    constexpr double kFewCells = 50.0;
    for (const std::vector<std::size_t>& order : {by_id, best_first(logits_)}) {
      expect_probable_cells(counts, probabilities, order, kLeastExpected);
      expect_probable_cells(counts, probabilities, order, std::max(kLeastExpected, total() / kFewCells));
    }
  }

 private:
  std::vector<std::byte> stored_row() const {
    const auto size = static_cast<std::size_t>(size_bytes(test_.type));
    std::vector<std::byte> bytes(logits_.size() * size);
    for (std::size_t i = 0; i < logits_.size(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(logits_[i]) >> (32 - 8 * size);
      std::memcpy(bytes.data() + i * size, &bits, size);
    }
    return bytes;
  }

  double total() const { return static_cast<double>(test_.rows * test_.calls); }

  void expect_probable_cells(const std::vector<std::int64_t>& counts, const std::vector<double>& probabilities,
                             const std::vector<std::size_t>& order, double least_expected) const {
    double statistic = 0.0;
    double degrees = -1.0;
    const auto add = [&](double expected, double count) {
      statistic += (count - expected) * (count - expected) / expected;
      degrees += 1.0;
    };
    double rare_expected = 0.0;
    double rare_count = 0.0;
    for (const std::size_t token : order) {
      const double expected = total() * probabilities[token];
      const auto count = static_cast<double>(counts[token]);
      if (expected >= least_expected) {
        add(expected, count);
        continue;
      }
      rare_expected += expected;
      rare_count += count;
      if (rare_expected < least_expected) continue;
      add(rare_expected, rare_count);
      rare_expected = rare_count = 0.0;
    }
    ASSERT_GT(degrees, 1.0);
    EXPECT_LT(statistic, chi_square_limit(degrees)) << "at " << degrees << " degrees of freedom";
  }

  draw_test test_;
  device where_;
  std::vector<float> logits_;
  std::int64_t kept_ = 0;
};

TEST_P(SampleOnDevice, DrawsAsOftenAsProbabilitiesSay) {
  // A million draws from small vocabularies and from what filters leave; from large ones fewer where they take long.
  const bool is_gpu = where_.kind() == device_kind::cuda;
  const bool many = run_settings().full || is_gpu;
  const std::int64_t calls_of_large = many ? 1000 : 200;
  const std::int64_t calls_of_huge = is_gpu ? 5000 : many ? 1000 : 150;
  constexpr min_p_order kFirst = min_p_order::first;
  const draw_test tests[] = {
      {.vocab = 50, .calls = 1000},
      {.vocab = 50, .calls = 1000, .temperature = 0.7f, .top_k = 20, .top_p = 0.9f},
      {.vocab = 1000, .calls = calls_of_large, .temperature = 1.3f},
      {.vocab = 60, .calls = 1000, .top_p = 0.9f},
      {.vocab = 60, .calls = 1000, .temperature = 1.2f, .min_p = 0.05f},
      {.vocab = 70, .calls = 1000, .top_k = 30, .min_p = 0.05f, .order = kFirst},
      {.vocab = 70, .calls = 1000, .top_k = 30, .top_p = 0.9f, .min_p = 0.1f, .order = kFirst},
      {.type = value_type::bf16, .vocab = 500, .calls = calls_of_large, .temperature = 1.5f, .top_p = 0.95f},
      {.vocab = 32'000, .rows = 100, .calls = calls_of_huge, .temperature = 1.3f},
      {.vocab = 32'000, .rows = 100, .calls = calls_of_huge, .top_p = 0.9f},
      {.type = value_type::bf16,
       .vocab = 50'257,
       .rows = 100,
       .calls = 5 * calls_of_large,
       .top_k = 50,
       .top_p = 0.95f},
      {.type = value_type::bf16, .vocab = 128'256, .rows = 20, .calls = calls_of_huge, .min_p = 0.02f},
  };
  for (draw_test test : tests) {
    test.calls = std::max<std::int64_t>(test.calls / (kSlowdown * kSlowdown), 1);
    SCOPED_TRACE(fmt::format("{} vocab {} rows {} calls {} temperature {} top_k {} top_p {} min_p {}",
                             to_string(test.type), test.vocab, test.rows, test.calls, test.temperature, test.top_k,
                             test.top_p, test.min_p));
    draws drawn(test, where_);
    drawn.expect_probable(drawn.count());
  }
}

}  // namespace
}  // namespace shortlist::conformance
