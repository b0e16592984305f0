// Core: keys of scores, widening, the plan, names and messages.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "core/order.hpp"
#include "core/plan.hpp"
#include "core/score.hpp"
#include "core_environment.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist::core {
namespace {

using test::environment_value;

constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};
constexpr const char* kForceTopK = "SHORTLIST_FORCE_TOP_K";
constexpr const char* kForce = "SHORTLIST_FORCE_FLAT_SEARCH";

/// All numbers of 20 leading bits and a few trailing patterns, ascending, -0 left out: 8 million floats with every
/// exponent, both infinities, and denormals.
std::vector<float> ascending_floats() {
  constexpr std::uint32_t kInfinityBits = 0x7F800000u;
  constexpr std::uint32_t kTrailing[] = {0x000, 0x001, 0x7FF, 0xFFF};
  std::vector<float> magnitudes;
  for (std::uint32_t leading = 0; leading < (kInfinityBits >> 12); ++leading) {
    for (const std::uint32_t trailing : kTrailing) magnitudes.push_back(float_from_bits(leading << 12 | trailing));
  }
  magnitudes.push_back(float_from_bits(kInfinityBits));
  std::vector<float> all;
  all.reserve(2 * magnitudes.size());
  for (auto m = magnitudes.rbegin(); m != magnitudes.rend() - 1; ++m) all.push_back(-*m);
  all.insert(all.end(), magnitudes.begin(), magnitudes.end());
  return all;
}

TEST(order, keys_are_strictly_monotone_and_give_the_score_back) {
  const std::vector<float> floats = ascending_floats();
  ASSERT_EQ(floats.front(), -std::numeric_limits<float>::infinity());
  ASSERT_EQ(floats.back(), std::numeric_limits<float>::infinity());
  for (const metric by : kMetrics) {
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const std::uint32_t key = score_key(floats[i], by);
      ASSERT_EQ(float_bits(score_from_key(key, by)), float_bits(floats[i])) << to_string(by) << " " << floats[i];
      ASSERT_GT(key, kNanKey) << to_string(by) << " " << floats[i];
      if (i == 0) continue;
      const std::uint32_t before = score_key(floats[i - 1], by);
      ASSERT_TRUE(by == metric::l2 ? before > key : before < key) << to_string(by) << " " << floats[i];
    }
  }
}

TEST(order, zeros_share_a_key_and_come_back_as_plus_zero) {
  for (const metric by : kMetrics) {
    EXPECT_EQ(score_key(-0.0f, by), score_key(0.0f, by));
    EXPECT_EQ(float_bits(score_from_key(score_key(-0.0f, by), by)), 0u);
  }
}

TEST(order, every_nan_has_the_last_key_and_comes_back_canonical) {
  for (const metric by : kMetrics) {
    for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu, 0x7FFFFFFFu}) {
      EXPECT_EQ(score_key(float_from_bits(bits), by), kNanKey);
    }
    EXPECT_EQ(float_bits(score_from_key(kNanKey, by)), kCanonicalNan);
    EXPECT_GT(score_key(worst_score(by), by), kNanKey) << "the worst number still comes before NaN";
  }
}

TEST(order, row_keys_put_the_smaller_position_first_and_never_equal_no_row) {
  const auto last = static_cast<std::uint32_t>(kMaxRows - 1);
  for (const std::uint32_t key : {kNanKey, 1u, 0x80000000u, 0xFFFFFFFFu}) {
    EXPECT_GT(row_key(key, 0), row_key(key, 1));
    EXPECT_GT(row_key(key, last - 1), row_key(key, last));
    EXPECT_GT(row_key(key, last), kNoRow);
    EXPECT_EQ(key_of(row_key(key, last)), key);
    EXPECT_EQ(position_of(row_key(key, last)), last);
  }
  EXPECT_GT(row_key(2, last), row_key(1, 0)) << "the score decides before the position";
}

TEST(order, worst_scores) {
  EXPECT_EQ(worst_score(metric::inner_product), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(worst_score(metric::cosine), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(worst_score(metric::l2), std::numeric_limits<float>::infinity());
}

TEST(score, widen_float16_over_all_its_values) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bool negative = bits & 0x8000;
    const int exponent = static_cast<int>(bits >> 10 & 0x1F);
    const int fraction = static_cast<int>(bits & 0x3FF);
    const float got = widen(float16{static_cast<std::uint16_t>(bits)});
    if (exponent == 31 && fraction != 0) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      continue;
    }
    double value = exponent == 31  ? std::numeric_limits<double>::infinity()
                   : exponent == 0 ? std::ldexp(fraction, -24)
                                   : std::ldexp(1024 + fraction, exponent - 25);
    if (negative) value = -value;
    ASSERT_EQ(static_cast<double>(got), value) << bits;
    ASSERT_EQ(std::signbit(got), negative) << bits;
  }
}

TEST(score, widen_bfloat16_over_all_its_values) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 7 & 0xFF);
    const int fraction = static_cast<int>(bits & 0x7F);
    const float got = widen(bfloat16{static_cast<std::uint16_t>(bits)});
    if (exponent == 255) {
      ASSERT_EQ(std::isnan(got), fraction != 0) << bits;
      continue;
    }
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134);
    ASSERT_EQ(std::fabs(static_cast<double>(got)), magnitude) << bits;
    ASSERT_EQ(std::signbit(got), (bits & 0x8000) != 0) << bits;
  }
}

TEST(score, widen_integers) {
  for (int value = -128; value < 128; ++value) {
    EXPECT_EQ(widen(static_cast<std::int8_t>(value)), static_cast<float>(value));
    EXPECT_EQ(widen(static_cast<std::uint8_t>(value + 128)), static_cast<float>(value + 128));
  }
}

TEST(score, padding_takes_no_step) {
  for (const float sum : {0.0f, -0.0f, 1.5f, -3e38f, 1e-45f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(float_bits(step_dot(kQueryPadding, kRowPadding, sum)), float_bits(sum));
  }
}

TEST(score, cosine_of_a_zero_vector_comes_last_whatever_the_other_side_is) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(inverse_norm(0.0f), kZeroVector);
  EXPECT_EQ(inverse_norm(4.0f), 0.5f);
  EXPECT_EQ(cosine_score(nan, kZeroVector, 1.0f), worst_score(metric::cosine));
  EXPECT_EQ(cosine_score(nan, nan, kZeroVector), worst_score(metric::cosine));
  EXPECT_TRUE(std::isnan(cosine_score(1.0f, nan, 1.0f)));
  EXPECT_EQ(cosine_score(3.0f, 0.5f, 0.25f), 0.375f);
}

constexpr search_shape kOneQuery = {.rows = 1000, .dim = 64, .queries = 1, .k = 10};
constexpr search_shape kBatch = {.rows = 1000, .dim = 64, .queries = 2, .k = 10};
constexpr search_shape kLargeK = {.rows = 100'000, .dim = 64, .queries = 1, .k = 2049};

TEST(plan, follows_its_tables) {
  const environment_value unset(kForce, nullptr);
  for (const device_kind kind : {device_kind::cpu, device_kind::cuda}) {
    EXPECT_EQ(plan_flat_search(kind, kOneQuery).algorithm, flat_algorithm::scan);
    EXPECT_EQ(plan_flat_search(kind, kBatch).algorithm, flat_algorithm::tiles);
  }
  EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, kLargeK), flat_algorithm::scan);
  EXPECT_EQ(choose_flat_algorithm(device_kind::cuda, kLargeK), flat_algorithm::tiles);
  search_shape seam = kLargeK;
  seam.k = 2048;
  EXPECT_EQ(choose_flat_algorithm(device_kind::cuda, seam), flat_algorithm::scan);
}

TEST(plan, the_short_form_chooses_as_the_long_one_does) {
  const environment_value unset(kForce, nullptr);
  std::mt19937 random(5);
  for (int i = 0; i < 1000; ++i) {
    const search_shape shape = {.rows = static_cast<std::int64_t>(random() % 100'000),
                                .dim = static_cast<std::int64_t>(1 + random() % 4096),
                                .queries = static_cast<std::int64_t>(1 + random() % 3),
                                .k = static_cast<std::int64_t>(1 + random() % 4096)};
    for (const device_kind kind : {device_kind::cpu, device_kind::cuda}) {
      EXPECT_EQ(choose_flat_algorithm(kind, shape), plan_flat_search(kind, shape).algorithm);
    }
  }
}

TEST(plan, certifies_where_there_is_a_plane_and_k_is_small_beside_the_rows) {
  const environment_value unset(kForce, nullptr);
  for (const std::int64_t queries : {1, 2, 300}) {
    search_shape shape = {.rows = 640, .dim = 64, .queries = queries, .k = 10, .storage = storage::int8_and_full};
    const auto plain = queries == 1 ? flat_algorithm::scan : flat_algorithm::tiles;
    EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, shape), flat_algorithm::certified);
    EXPECT_EQ(choose_flat_algorithm(device_kind::cuda, shape), plain) << "the rows lie in the L2 cache";
    shape.k = 11;
    EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, shape), plain);
    shape = {.rows = 640, .dim = 64, .queries = queries};
    EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, shape), plain);
  }
}

TEST(plan, certifies_on_a_gpu_where_the_plane_is_worth_its_scan) {
  const environment_value unset(kForce, nullptr);
  const auto on_cuda = [](const search_shape& shape) { return choose_flat_algorithm(device_kind::cuda, shape); };
  search_shape shape = {.rows = 1'000'000, .dim = 768, .queries = 1, .k = 100, .storage = storage::int8_and_full};
  EXPECT_EQ(on_cuda(shape), flat_algorithm::certified);
  shape.k = kCertifiedScanMaxK;
  EXPECT_EQ(on_cuda(shape), flat_algorithm::certified);
  shape.k = kCertifiedScanMaxK + 1;
  EXPECT_EQ(on_cuda(shape), flat_algorithm::tiles);
  shape = {.rows = 100'000, .dim = kCertifiedScanMaxDim + 1, .storage = storage::int8_and_full};
  EXPECT_EQ(on_cuda(shape), flat_algorithm::scan);
  shape = {.rows = 8192, .dim = 768, .queries = 8, .k = 100, .storage = storage::int8_and_full};
  EXPECT_EQ(on_cuda(shape), flat_algorithm::certified) << "a batch";
  shape.queries = 7;
  EXPECT_EQ(on_cuda(shape), flat_algorithm::tiles);
  shape = {.rows = 1'000'000, .dim = kCertifiedBatchMaxDim, .queries = 1000, .k = 1, .storage = storage::int8_and_full};
  EXPECT_EQ(on_cuda(shape), flat_algorithm::certified);
  shape.dim++;
  EXPECT_EQ(on_cuda(shape), flat_algorithm::tiles);
  shape.queries = 256;
  EXPECT_EQ(on_cuda(shape), flat_algorithm::tiles);
  shape.storage = storage::int8_and_host;
  EXPECT_EQ(on_cuda(shape), flat_algorithm::certified) << "tiles would read all rows across the bus";
  shape.queries = 257;
  EXPECT_EQ(on_cuda(shape), flat_algorithm::tiles);
  shape = {.rows = 1000, .dim = 64, .queries = 1, .k = 10, .storage = storage::int8_and_host};
  EXPECT_EQ(on_cuda(shape), flat_algorithm::certified) << "however few rows they are";
  const plane_summary loose = {.certifiable = 10, .looseness = 9 * kLoosenessUnit};
  EXPECT_EQ(choose_flat_algorithm(device_kind::cuda, shape, loose), flat_algorithm::scan);
}

TEST(plan, certified_is_forced_only_where_there_is_a_plane) {
  const environment_value forced(kForce, "certified");
  search_shape shape = {.rows = 20, .dim = 64, .queries = 2, .k = 10, .storage = storage::int8_and_host};
  EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, shape), flat_algorithm::certified);
  EXPECT_EQ(plan_flat_search(device_kind::cpu, shape).reason, std::string("forced by ") + kForce + "=certified");
  EXPECT_EQ(choose_flat_algorithm(device_kind::cuda, shape), flat_algorithm::certified);
  shape.k = kCertifiedScanMaxK + 1;
  EXPECT_EQ(choose_flat_algorithm(device_kind::cuda, shape), flat_algorithm::tiles);
  shape.k = 10;
  shape.storage = storage::full;
  const flat_plan plan = plan_flat_search(device_kind::cpu, shape);
  EXPECT_EQ(plan.algorithm, flat_algorithm::tiles);
  EXPECT_NE(plan.reason.find("(SHORTLIST_FORCE_FLAT_SEARCH=certified cannot take the shape)"), std::string::npos);
}

TEST(plan, the_environment_forces_an_algorithm_by_name) {
  for (const auto& [name, algorithm] :
       {std::pair("scan", flat_algorithm::scan), std::pair("tiles", flat_algorithm::tiles)}) {
    const environment_value forced(kForce, name);
    for (const search_shape& shape : {kOneQuery, kBatch, kLargeK}) {
      EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, shape), algorithm);
      EXPECT_EQ(choose_flat_algorithm(device_kind::cuda, shape), algorithm);
      EXPECT_EQ(plan_flat_search(device_kind::cuda, shape).reason, std::string("forced by ") + kForce + "=" + name);
    }
  }
}

TEST(plan, an_empty_value_counts_as_unset) {
  const environment_value empty(kForce, "");
  EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, kOneQuery), flat_algorithm::scan);
  EXPECT_EQ(choose_flat_algorithm(device_kind::cpu, kBatch), flat_algorithm::tiles);
}

TEST(plan, an_unknown_name_is_an_error_that_lists_the_known_ones) {
  const environment_value unknown(kForce, "fastest");
  for (const auto& ask : {+[] { static_cast<void>(plan_flat_search(device_kind::cpu, kOneQuery)); },
                          +[] { static_cast<void>(choose_flat_algorithm(device_kind::cuda, kBatch)); }}) {
    try {
      ask();
      ADD_FAILURE() << "an unknown algorithm was accepted";
    } catch (const invalid_argument& failure) {
      EXPECT_STREQ(failure.what(), "SHORTLIST_FORCE_FLAT_SEARCH is fastest; allowed is scan or tiles or certified");
    }
  }
}

TEST(plan, explain_says_what_why_and_how_many_bytes) {
  const environment_value unset(kForce, nullptr);
  const search_shape shape = {.rows = 1'000'000, .dim = 384, .queries = 1, .k = 100, .type = element_type::f16};
  const std::string text = explain_flat_search(device_kind::cuda, "a GPU", shape);
  const std::string reason = plan_flat_search(device_kind::cuda, shape).reason;
  for (const char* part : {"1 query", "1000000 rows", "384", "f16", "inner_product", "k 100", "a GPU", "scan",
                           reason.c_str(), "768 MB", "384 million"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in:\n" << text;
  }
}

TEST(plan, explain_counts_the_plane_where_it_is_what_is_read) {
  const environment_value unset(kForce, nullptr);
  const std::string text =
      explain_flat_search(device_kind::cpu, "a CPU",
                          {.rows = 1'000'000, .dim = 766, .queries = 3, .k = 100, .storage = storage::int8_and_full});
  for (const char* part : {"3 queries", "certified", "int8 plane", "780 MB"}) {  // 768 codes and three terms a row
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in:\n" << text;
  }
  search_shape shape = {.rows = 1'000'000, .dim = 750, .queries = 2, .k = 100, .metric = metric::cosine};
  shape.storage = storage::int8_and_full;
  const std::string on_a_gpu = explain_flat_search(device_kind::cuda, "a GPU", shape);
  for (const char* part : {"certified", "int8 plane", "784 MB of the plane"}) {  // 768 codes and four terms
    EXPECT_NE(on_a_gpu.find(part), std::string::npos) << part << " is missing in:\n" << on_a_gpu;
  }
  shape.storage = storage::int8_and_host;
  shape.queries = 1000;
  shape.dim = kCertifiedBatchMaxDim + 1;
  EXPECT_NE(explain_flat_search(device_kind::cuda, "a GPU", shape).find("an H200's bus to host memory"),
            std::string::npos);
}

top_k_algorithm on_cuda(const top_k_shape& shape) { return choose_top_k_algorithm(device_kind::cuda, shape); }

TEST(plan, of_rows_on_a_gpu_follows_its_table) {
  const environment_value unset(kForceTopK, nullptr);
  using enum top_k_algorithm;
  EXPECT_EQ(on_cuda({.rows = 1 << 20, .cols = 256, .k = 32}), warp_rows);
  EXPECT_EQ(on_cuda({.rows = 1, .cols = kWarpRowsMaxCols, .k = kWarpRowsMaxCols, .early_stop = true, .mask = true}),
            warp_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = kWarpRowsMaxWholeCols, .k = 9, .type = value_type::bf16}), warp_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = kWarpRowsMaxWholeCols, .k = 9, .early_stop = true}), warp_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = kWarpRowsMaxWholeCols + 1, .k = 9, .early_stop = true}), block_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = kWarpRowsMaxCols + 1, .k = 9, .early_stop = true, .sorted = true}), block_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = kWarpRowsMaxCols + 1, .k = 9, .mask = true}), block_rows);
  EXPECT_EQ(on_cuda({.rows = 65'536, .cols = kWarpRowsMaxWholeCols + 1, .k = 64}), block_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = kWarpRowsMaxWholeCols, .k = kWarpRowsMaxWholeCols}), block_rows) << "all of it";
  EXPECT_EQ(on_cuda({.rows = 9, .cols = kWarpRowsMaxWholeCols - 1, .k = 9, .early_stop = true}), block_rows)
      << "rows that begin anywhere";
  const top_k_shape many{.rows = 4096, .cols = kWarpRowsMaxHalfCols, .k = 64, .type = value_type::f16};
  const auto with = [&](auto change) {
    top_k_shape shape = many;
    change(shape);
    return on_cuda(shape);
  };
  EXPECT_EQ(on_cuda(many), warp_rows);
  EXPECT_EQ(with([](top_k_shape& s) { s.rows--; }), block_rows);
  EXPECT_EQ(with([](top_k_shape& s) { s.cols++; }), block_rows);
  EXPECT_EQ(with([](top_k_shape& s) { s.type = value_type::f32; }), block_rows);
  EXPECT_EQ(with([](top_k_shape& s) { s.sorted = true; }), block_rows);
  EXPECT_EQ(with([](top_k_shape& s) { s.k = 1024; }), warp_rows);
  EXPECT_EQ(with([](top_k_shape& s) { s.k = 1025; }), block_rows);
  EXPECT_EQ(on_cuda({.rows = 4096, .cols = 6144, .k = 2048, .type = value_type::bf16}), warp_rows);
  const auto stopped_with = [&](auto change) {
    return with([&](top_k_shape& s) {
      s.early_stop = true;
      s.cols = kWarpRowsMaxStoppedHalfCols;
      change(s);
    });
  };
  EXPECT_EQ(stopped_with([](top_k_shape&) {}), warp_rows);
  EXPECT_EQ(stopped_with([](top_k_shape& s) { s.rows--; }), block_rows);
  EXPECT_EQ(stopped_with([](top_k_shape& s) { s.cols += 8; }), block_rows);
  EXPECT_EQ(stopped_with([](top_k_shape& s) { s.cols--; }), block_rows) << "rows that begin anywhere";
  EXPECT_EQ(stopped_with([](top_k_shape& s) { s.k = 1025; }), block_rows);
  EXPECT_EQ(stopped_with([](top_k_shape& s) { s.type = value_type::f32; }), block_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = 32'768, .k = 8192, .early_stop = true, .sorted = true}), block_rows);
  EXPECT_EQ(on_cuda({.rows = 16'384, .cols = 4096, .k = 256, .early_stop = true}), stop_rows);
  EXPECT_EQ(on_cuda({.rows = 16'383, .cols = 4096, .k = 256, .early_stop = true}), block_rows) << "few rows";
  EXPECT_EQ(on_cuda({.rows = 1 << 20, .cols = 2048, .k = 64, .early_stop = true}), warp_rows) << "short rows";
  EXPECT_EQ(on_cuda({.rows = 1 << 16, .cols = 2100, .k = 256, .early_stop = true}), block_rows) << "a large k";
  EXPECT_EQ(on_cuda({.rows = 1 << 16, .cols = 8192, .k = 64, .early_stop = true, .sorted = true}), block_rows);
  EXPECT_EQ(on_cuda({.rows = 1 << 16, .cols = 8192, .k = 64, .early_stop = true, .mask = true}), block_rows);
  EXPECT_EQ(on_cuda({.rows = 67, .cols = kFilterRowsMinCols, .k = 64, .early_stop = true}), resident_rows);
  EXPECT_EQ(on_cuda({.rows = 67, .cols = kFilterRowsMinCols, .k = 64, .early_stop = true, .sorted = true}),
            filter_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'000, .k = 2048, .type = value_type::bf16, .early_stop = true}),
            resident_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'000, .k = 2048, .early_stop = true}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = 50'000, .k = 65, .early_stop = true}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = kFilterRowsMaxCols, .k = 113, .early_stop = true, .sorted = true}),
            filter_rows);
  EXPECT_EQ(on_cuda({.rows = 66, .cols = kFilterRowsMinCols, .k = 64, .early_stop = true}), cluster_rows);
  EXPECT_EQ(on_cuda({.rows = 1, .cols = kFilterRowsMaxCols, .k = 64, .early_stop = true, .sorted = true}),
            cluster_rows);
  EXPECT_EQ(on_cuda({.rows = 64, .cols = 1'000'000, .k = 64, .early_stop = true}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 63, .cols = 1'000'000, .k = 64, .early_stop = true}), stream_rows);
  EXPECT_EQ(on_cuda({.rows = 100, .cols = 10'000'000, .k = 64, .early_stop = true}), stream_rows) << "a longer list";
  EXPECT_EQ(on_cuda({.rows = 1, .cols = kFilterRowsMaxCols + 1, .k = 512, .early_stop = true}), stream_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = 32'768, .k = 3'000, .early_stop = true}), block_rows) << "a longer list";
  EXPECT_EQ(on_cuda({.rows = 4'096, .cols = 32'768, .k = 3'000}), block_rows) << "a longer list";
  EXPECT_EQ(on_cuda({.rows = 4'096, .cols = 32'769, .k = 3'000}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 1, .cols = kFilterRowsMinCols, .k = kClusterRowsMaxK}), cluster_rows);
  EXPECT_EQ(on_cuda({.rows = 66, .cols = kFilterRowsMaxCols, .k = 1}), cluster_rows);
  EXPECT_EQ(on_cuda({.rows = 132, .cols = 131'072, .k = 50}), cluster_rows);
  EXPECT_EQ(on_cuda({.rows = 67, .cols = 131'073, .k = 50}), filter_rows) << "a longer list of one block";
  EXPECT_EQ(on_cuda({.rows = 67, .cols = 50'000, .k = 51}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 133, .cols = 50'000, .k = 1}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = kFilterRowsMaxCols + 1, .k = 1}), stream_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = 50'000, .k = kClusterRowsMaxK + 1}), stream_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = 50'000, .k = 128}), stream_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = 50'000, .k = 129}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = kFilterRowsMaxCols + 1, .k = kStreamRowsMaxK}), stream_rows);
  EXPECT_EQ(on_cuda({.rows = 1, .cols = 1'000'000'000, .k = 100, .type = value_type::bf16}), stream_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'000, .k = 2048}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'257, .k = 2048, .type = value_type::bf16}), resident_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'257, .k = 2048, .type = value_type::f16, .sorted = true}), resident_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 51'000, .k = 2048, .type = value_type::bf16}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'000, .k = 3000, .type = value_type::bf16}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 133, .cols = 24'000, .k = 1}), resident_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 25'600, .k = 1000}), resident_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 25'800, .k = 1000}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = kFilterRowsMinRows, .cols = 50'000, .k = 128}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 3'000'000'000, .cols = 50'000, .k = 8192}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 9, .cols = 50'000, .k = kFilterRowsMaxSortedK, .sorted = true}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = kFilterRowsMinRows, .cols = 300'000, .k = kStreamRowsMaxK + 1}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'000, .k = 11'269}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'000, .k = 11'270}), bracket_rows) << "a longer list";
  EXPECT_EQ(on_cuda({.rows = 1023, .cols = 50'000, .k = 11'740}), filter_rows) << "few rows";
  EXPECT_EQ(on_cuda({.rows = 1023, .cols = 50'000, .k = 11'741}), bracket_rows) << "a longer list";
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'000, .k = 4'545, .type = value_type::bf16}), filter_rows);
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'000, .k = 4'546, .type = value_type::bf16}), bracket_rows);
  EXPECT_EQ(on_cuda({.rows = 3'000'000'000, .cols = kBracketRowsMaxCols, .k = 20'000}), bracket_rows);
  EXPECT_EQ(on_cuda({.rows = 64, .cols = 50'000, .k = 4'097, .sorted = true}), bracket_rows) << "sorted by sort_rows";
  EXPECT_EQ(on_cuda({.rows = kFilterRowsMinRows, .cols = 50'000, .k = 50'000, .sorted = true}), bracket_rows);
  EXPECT_EQ(on_cuda({.rows = kFilterRowsMinRows - 1, .cols = 50'000, .k = 11'741}), radix_rows) << "few rows";
  EXPECT_EQ(on_cuda({.rows = 1024, .cols = 50'000, .k = 11'741, .mask = true}), radix_rows);
}

TEST(plan, of_rows_on_a_gpu_has_one_algorithm_for_all_else) {
  const environment_value unset(kForceTopK, nullptr);
  const top_k_shape shapes[] = {
      {.rows = 9, .cols = 256, .k = 32, .type = value_type::f64},
      {.rows = 9, .cols = 256, .k = 32, .col_stride = 2},
      {.rows = 9, .cols = 32'768, .k = 8193, .sorted = true},  // 128 KB of keys beside a row of 128 KB
      {.rows = 9, .cols = 32'768, .k = 32'768},
      {.rows = 9, .cols = 50'000, .k = kFilterRowsMaxSortedK + 1, .sorted = true},
      {.rows = 9, .cols = 50'000, .k = 20'000},
      {.rows = 9, .cols = kFilterRowsMaxCols + 1, .k = 513, .early_stop = true},
      {.rows = 1, .cols = std::int64_t{1} << 31, .k = 1, .early_stop = true},
      {.rows = 9, .cols = 50'000, .k = 100, .mask = true},
      {.rows = 1, .cols = kMaxRows, .k = 1},
      {.rows = 99, .cols = kBracketRowsMaxCols + 1, .k = 20'000},
  };
  for (const top_k_shape& shape : shapes) {
    EXPECT_EQ(on_cuda(shape), top_k_algorithm::radix_rows) << explain_top_k(device_kind::cuda, "a GPU", shape);
  }
}

TEST(plan, of_rows_in_short_is_the_plan_in_words) {
  const environment_value unset(kForceTopK, nullptr);
  std::mt19937 random(6);
  for (int i = 0; i < 2000; ++i) {
    top_k_shape shape = {.rows = static_cast<std::int64_t>(1 + random() % 100'000),
                         .cols = static_cast<std::int64_t>(1 + random() % (i % 2 == 0 ? 2000 : 300'000)),
                         .type = static_cast<value_type>(random() % 4),
                         .early_stop = random() % 4 == 0,
                         .sorted = random() % 2 == 0,
                         .mask = random() % 4 == 0,
                         .col_stride = random() % 8 == 0 ? 3 : 1};
    shape.k = static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(shape.cols));
    for (const device_kind kind : {device_kind::cpu, device_kind::cuda}) {
      EXPECT_EQ(choose_top_k_algorithm(kind, shape), plan_top_k(kind, shape).algorithm);
    }
  }
}

TEST(plan, of_rows_is_forced_where_the_algorithm_can_take_the_shape) {
  const top_k_shape short_rows = {.rows = 9, .cols = 256, .k = 32};
  const top_k_shape long_rows = {.rows = 9, .cols = 50'000, .k = 32};
  {
    const environment_value forced(kForceTopK, "radix_rows");
    for (const top_k_shape& shape : {short_rows, long_rows}) {
      EXPECT_EQ(on_cuda(shape), top_k_algorithm::radix_rows);
      EXPECT_EQ(plan_top_k(device_kind::cuda, shape).reason, "forced by SHORTLIST_FORCE_TOP_K=radix_rows");
    }
  }
  const environment_value forced(kForceTopK, "block_rows");
  EXPECT_EQ(on_cuda(short_rows), top_k_algorithm::block_rows);
  EXPECT_EQ(on_cuda(long_rows), top_k_algorithm::cluster_rows);
  EXPECT_NE(plan_top_k(device_kind::cuda, long_rows).reason.find("=block_rows cannot take the shape"),
            std::string::npos);
}

TEST(plan, of_rows_refuses_the_names_of_another_kind_of_device) {
  const std::tuple<device_kind, const char*, const char*> wrong[] = {
      {device_kind::cpu, "radix_rows", "SHORTLIST_FORCE_TOP_K is radix_rows; allowed is whole_rows or split_rows"},
      {device_kind::cuda, "whole_rows",
       "SHORTLIST_FORCE_TOP_K is whole_rows; allowed is warp_rows or block_rows or stop_rows or resident_rows or "
       "filter_rows or stream_rows or cluster_rows or bracket_rows or radix_rows"}};
  for (const auto& [kind, name, message] : wrong) {
    const environment_value forced(kForceTopK, name);
    try {
      choose_top_k_algorithm(kind, {.rows = 1, .cols = 4, .k = 1});
      ADD_FAILURE() << name << " was accepted";
    } catch (const invalid_argument& failure) {
      EXPECT_STREQ(failure.what(), message);
    }
  }
}

TEST(plan, explains_rows_on_a_gpu) {
  const environment_value unset(kForceTopK, nullptr);
  const auto has = [](const top_k_shape& shape, std::initializer_list<const char*> parts) {
    const std::string text = explain_top_k(device_kind::cuda, "a GPU", shape);
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in:\n" << text;
  };
  has({.rows = 1 << 20, .cols = 256, .k = 32, .early_stop = true, .indices_as = index_type::i32},
      {"k 32 of each of 1048576 rows x 256 f32, stopped early", "a GPU", "algorithm:  warp_rows", "reads 1073.74 MB,",
       "writes 268.435 MB of values and 32-bit indices", "early stop: gains nothing: an exact search"});
  has({.rows = 1 << 20, .cols = 256, .k = 128, .early_stop = true}, {"early stop: gains a twentieth at most"});
  has({.rows = 1 << 16, .cols = 4096, .k = 64, .early_stop = true},
      {"algorithm:  stop_rows", "early stop: gains nothing: an exact search moves the same bytes, and takes as long"});
  has({.rows = 1 << 16, .cols = 2048, .k = 64, .early_stop = true},
      {"algorithm:  warp_rows", "up to six steps take about as long, more steps and eps longer"});
  has({.rows = 1 << 13, .cols = 4096, .k = 64, .early_stop = true},
      {"algorithm:  block_rows",
       "early stop: gains nothing: an exact search moves the same bytes, and takes less time"});
  has({.rows = 1 << 16, .cols = 4096, .k = 64, .type = value_type::bf16, .early_stop = true},
      {"algorithm:  warp_rows", "levels tell it", "takes three fifths of the time or more"});
  has({.rows = 3, .cols = 100'000, .k = 50, .early_stop = true, .sorted = true},
      {"algorithm:  cluster_rows", "f32, sorted, stopped early",
       "early stop: gains nothing: an exact search moves the same bytes, and takes seven to nine tenths"});
  has({.rows = 3, .cols = 100'000, .k = 200, .early_stop = true, .sorted = true},
      {"algorithm:  filter_rows", "sorted by a radix sort of all rows' entries", "reads 1.2 MB, writes",
       "early stop: gains nothing: an exact search moves the same bytes, and takes as long; of few steps less"});
  has({.rows = 3, .cols = 300'000, .k = 100, .early_stop = true, .sorted = true},
      {"algorithm:  stream_rows", ", sorted, stopped early", "reads 3.6 MB, writes",
       "early stop: gains nothing: an exact"});
  has({.rows = 3, .cols = 300'000, .k = 1000, .early_stop = true},
      {"algorithm:  radix_rows", "reads 3.6 MB up to 4 times", "two or three passes more"});
  has({.rows = 3, .cols = 100'000, .k = 5000, .sorted = true},
      {"algorithm:  radix_rows", "reads 1.2 MB up to 4 times", "sorted by a radix sort", "64-bit indices"});
  has({.rows = 100, .cols = 50'000, .k = 20'000, .sorted = true},
      {"algorithm:  bracket_rows", "sorted by a radix sort", "reads 20 MB, lines of the k best again, writes 24 MB"});
  has({.rows = 3, .cols = 100'000, .k = 3000, .early_stop = true, .mask = true},
      {"up to 6 times", "writes 0.3 MB of a mask", "early stop: gains nothing: it follows"});
  EXPECT_EQ(
      explain_top_k(device_kind::cpu, "a CPU", {.rows = 1, .cols = 8, .k = 1, .early_stop = true}).find("early stop:"),
      std::string::npos);
}

TEST(plan, the_cpu_wins_small_searches_only) {
  EXPECT_TRUE(cpu_wins({.rows = 100, .dim = 384}));
  EXPECT_FALSE(cpu_wins({.rows = 10'000, .dim = 384}));
  EXPECT_FALSE(cpu_wins({.rows = 1'000'000, .dim = 384}));
  EXPECT_FALSE(cpu_wins({.rows = 1000, .dim = 384, .queries = 64}));
  EXPECT_FALSE(cpu_wins({.rows = kMaxRows, .dim = 65536, .queries = kMaxRows})) << "no product may overflow";
  EXPECT_EQ(device::best_for({.rows = 100, .dim = 384}), device::cpu());
  EXPECT_EQ(device::best_for({.rows = 1'000'000, .dim = 384}), device::best());
}

TEST(names, element_types_and_metrics_read_back) {
  for (const element_type type :
       {element_type::f32, element_type::f16, element_type::bf16, element_type::i8, element_type::u8}) {
    EXPECT_EQ(parse_element_type(to_string(type)), type);
  }
  for (const metric by : kMetrics) EXPECT_EQ(parse_metric(to_string(by)), by);
  EXPECT_EQ(parse_metric("ip"), metric::inner_product);
  EXPECT_EQ(parse_metric("cos"), metric::cosine);
}

TEST(messages, name_argument_value_and_what_is_allowed) {
  EXPECT_EQ(wrong_value("k", std::int64_t{0}, "1 or more"), "k is 0; allowed is 1 or more");
  EXPECT_EQ(wrong_value("device", "gpu", "cpu"), "device is gpu; allowed is cpu");
  EXPECT_EQ(wrong_value("device", "", "cpu"), "device is empty; allowed is cpu");
}

TEST(messages, readable_bytes) {
  EXPECT_EQ(readable_bytes(0), "0 bytes");
  EXPECT_EQ(readable_bytes(1), "1 byte");
  EXPECT_EQ(readable_bytes(1023), "1023 bytes");
  EXPECT_EQ(readable_bytes(1024), "1.0 KiB");
  EXPECT_EQ(readable_bytes(1'610'612'736), "1.5 GiB");
  EXPECT_EQ(readable_bytes(std::numeric_limits<std::int64_t>::max()), "8.0 EiB");
}

}  // namespace
}  // namespace shortlist::core
