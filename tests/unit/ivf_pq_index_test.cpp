// ivf_pq_index: training, adding, searching, and what it refuses.
#include "shortlist/ivf_pq_index.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "index/ivf_pq_model.hpp"
#include "index/ivf_pq_train.hpp"
#include "io_files.hpp"
#include "ivf_pq_data.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist {
namespace {

using test::clustered_rows;
using test::expect_error;

constexpr std::int64_t kDim = 19;  // no multiple of anything
constexpr std::int64_t kRows = 700;
constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};
const train_options kFewSteps = {.iterations = 3};

ivf_pq_options options_of(metric by, code_kind code = code_kind::pq) {
  return {.dim = kDim,
          .metric = by,
          .nlist = 8,
          .code = code,
          .pq_dim = code == code_kind::pq ? 7 : 0,
          .pq_bits = 5,
          .rows = kept_rows::device};
}

ivf_pq_index index_of(const ivf_pq_options& options, const clustered_rows& rows,
                      std::span<const std::int64_t> ids = {}) {
  ivf_pq_index index(device::cpu(), options);
  index.train(rows.view(), kFewSteps);
  index.add(rows.view(), ids);
  return index;
}

template <class Result, class Other>
void expect_same(const Result& got, const Other& expected, const std::string& what) {
  ASSERT_EQ(got.ids, expected.ids) << what;
  ASSERT_EQ(got.scores.size(), expected.scores.size()) << what;
  EXPECT_EQ(std::memcmp(got.scores.data(), expected.scores.data(), got.scores.size() * sizeof(float)), 0) << what;
}

std::string name_of(const ivf_pq_options& options) {
  std::string name;
  for (const std::string_view part : {to_string(options.metric), to_string(options.code), to_string(options.encodes),
                                      to_string(options.rotation), to_string(options.rows)}) {
    name += std::string(part) + " ";
  }
  return name;
}

/// Every kind of index that is made of few rows.
std::vector<ivf_pq_options> all_kinds() {
  std::vector<ivf_pq_options> all;
  for (const metric by : kMetrics) {
    for (const code_kind code : {code_kind::pq, code_kind::sq4, code_kind::sq8}) {
      all.push_back(options_of(by, code));
    }
    all.push_back(options_of(by));
    all.back().encodes = encoded::row;
    all.push_back(options_of(by));
    all.back().rotation = rotation::random;
  }
  return all;
}

TEST(ivf_pq_index, every_list_and_every_row_refined_is_a_flat_index) {
  const clustered_rows rows(kRows, kDim, 1), queries(9, kDim, 2);
  for (const ivf_pq_options& options : all_kinds()) {
    flat_index flat(device::cpu(), {.dim = kDim, .metric = options.metric});
    flat.add(rows.view());
    const ivf_pq_index index = index_of(options, rows);
    for (const std::int64_t k : {std::int64_t{1}, std::int64_t{10}, kRows + 5}) {
      const ivf_pq_result got = index.search(queries.view(), {.k = k, .nprobe = 8, .refine_ratio = kRows});
      expect_same(got, flat.search(queries.view(), {.k = k}), name_of(options) + std::to_string(k));
      EXPECT_EQ(got.k_found, std::vector<std::int64_t>(9, std::min(k, kRows)));
    }
  }
}

TEST(ivf_pq_index, codes_find_most_of_what_is_near) {
  const clustered_rows rows(3000, 16, 3), queries(40, 16, 4);
  flat_index flat(device::cpu(), {.dim = 16, .metric = metric::l2});
  flat.add(rows.view());
  const search_result truth = flat.search(queries.view(), {.k = 10});
  for (const code_kind code : {code_kind::pq, code_kind::sq4, code_kind::sq8}) {
    ivf_pq_index index(device::cpu(), {.dim = 16, .nlist = 16, .code = code});
    index.train(rows.view(), {});
    index.add(rows.view());
    const ivf_pq_result got = index.search(queries.view(), {.k = 10, .nprobe = 8});
    std::int64_t found = 0;
    for (std::int64_t query = 0; query < 40; ++query) {
      const auto ids = got.ids_of(query), true_ids = truth.ids_of(query);
      found += std::count_if(ids.begin(), ids.end(), [&](std::int64_t id) {
        return std::find(true_ids.begin(), true_ids.end(), id) != true_ids.end();
      });
    }
    EXPECT_GE(found, code == code_kind::sq8 ? 390 : 300) << to_string(code);
  }
}

TEST(ivf_pq_index, many_adds_equal_one) {
  const clustered_rows rows(kRows, kDim, 5), queries(7, kDim, 6);
  for (const ivf_pq_options& options : all_kinds()) {
    const ivf_pq_result expected = index_of(options, rows).search(queries.view(), {.k = 30, .nprobe = 3});
    ivf_pq_index grown(device::cpu(), options);
    grown.train(rows.view(), kFewSteps);
    for (std::int64_t first = 0, count = 1; first < kRows; first += count, count = count * 3 / 2 + 1) {
      grown.add(rows.part(first, std::min(count, kRows - first)));
    }
    EXPECT_EQ(grown.rows(), kRows);
    expect_same(grown.search(queries.view(), {.k = 30, .nprobe = 3}), expected, name_of(options));
    grown.clear();
    EXPECT_EQ(grown.rows(), 0);
    EXPECT_EQ(grown.search(queries.view(), {.k = 3, .nprobe = 3}).k_found, std::vector<std::int64_t>(7, 0));
    std::vector<float> scores(7 * 3, 1.0f);
    std::vector<std::int64_t> found(7 * 3, 5);
    grown.search(stream(device::cpu()), queries.view(), {.k = 3, .nprobe = 3}, {scores.data(), found.data()});
    EXPECT_EQ(found, std::vector<std::int64_t>(7 * 3, -1)) << "an index without rows, on a stream";
    grown.reserve(kRows);
    grown.add(stream(device::cpu()), rows.view());
    expect_same(grown.search(queries.view(), {.k = 30, .nprobe = 3}), expected, "again, " + name_of(options));
  }
}

TEST(ivf_pq_index, rows_and_queries_of_any_type_and_stride) {
  constexpr std::int64_t kStride = 23;
  std::vector<std::int8_t> bytes(static_cast<std::size_t>(300 * kStride));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::int8_t>(i * i % 201 - 100);
  std::vector<float> wide(300 * kDim);
  for (std::int64_t row = 0; row < 300; ++row) {
    for (std::int64_t i = 0; i < kDim; ++i) wide[row * kDim + i] = bytes[row * kStride + i];
  }
  const matrix_view<const std::int8_t> narrow_view(bytes.data(), 300, kDim, kStride);
  const matrix_view<const float> wide_view(wide.data(), 300, kDim);
  ivf_pq_options options = options_of(metric::l2);
  ivf_pq_index from_wide(device::cpu(), options);
  from_wide.train(wide_view, kFewSteps);
  from_wide.add(wide_view);
  options.type = element_type::i8;
  ivf_pq_index from_bytes(device::cpu(), options);
  from_bytes.train(narrow_view, kFewSteps);
  from_bytes.add(narrow_view);
  const ivf_pq_search_options search = {.k = 20, .nprobe = 4, .refine_ratio = 2};
  expect_same(from_bytes.search(narrow_view, search), from_wide.search(wide_view, search), "i8 and f32");
}

TEST(ivf_pq_index, a_search_on_a_stream_writes_what_one_on_the_host_returns) {
  const clustered_rows rows(kRows, kDim, 7), queries(5, kDim, 8);
  std::vector<std::int64_t> ids(kRows);
  std::iota(ids.rbegin(), ids.rend(), 1000);
  const ivf_pq_index index = index_of(options_of(metric::cosine), rows, ids);
  const ivf_pq_search_options search = {.k = 200, .nprobe = 1, .refine_ratio = 1};
  const ivf_pq_result expected = index.search(queries.view(), search);
  ivf_pq_result got = expected;
  std::fill(got.ids.begin(), got.ids.end(), 7);
  index.search(stream(device::cpu()), queries.view(), search, {got.scores.data(), got.ids.data()});
  expect_same(got, expected, "on a stream");
  for (std::int64_t query = 0; query < 5; ++query) {
    const auto found = static_cast<std::size_t>(expected.k_found[query]);
    EXPECT_GT(found, 0u);
    EXPECT_LT(found, 200u) << "one list holds fewer";
    for (std::size_t i = 0; i < 200; ++i) EXPECT_EQ(expected.ids_of(query)[i] == -1, i >= found);
    EXPECT_EQ(expected.scores_of(query).back(), -std::numeric_limits<float>::infinity());
  }
}

TEST(ivf_pq_index, batches_of_several_groups_equal_their_parts) {
  constexpr std::int64_t kLists = 300, kMany = 16'500, kPart = 1500;
  const clustered_rows rows(1500, kDim, 31), queries(kMany, kDim, 32);
  ivf_pq_options options = options_of(metric::l2);
  options.nlist = kLists;
  options.pq_bits = 4;
  const ivf_pq_index index = index_of(options, rows);
  // Groups are of 16,384 queries, or of 4,096 that look at many lists.
  const std::pair<std::int64_t, std::int64_t> batches[] = {{kMany, 2}, {3 * kPart, kLists - 1}};
  for (const auto& [count, nprobe] : batches) {
    const ivf_pq_search_options search = {.k = 3, .nprobe = nprobe, .refine_ratio = 2};
    const ivf_pq_result all = index.search(queries.part(0, count), search);
    for (std::int64_t first = 0; first < count; first += kPart) {
      const ivf_pq_result part = index.search(queries.part(first, kPart), search);
      const auto begin = static_cast<std::ptrdiff_t>(first * search.k), end = begin + kPart * search.k;
      ivf_pq_result same = part;
      same.scores.assign(all.scores.begin() + begin, all.scores.begin() + end);
      same.ids.assign(all.ids.begin() + begin, all.ids.begin() + end);
      expect_same(same, part, std::to_string(first));
    }
  }
}

TEST(ivf_pq_index, any_number_of_threads_search_at_once) {
  const clustered_rows rows(kRows, kDim, 9), queries(40, kDim, 10);
  const ivf_pq_index index = index_of(options_of(metric::l2), rows);
  const ivf_pq_result expected = index.search(queries.view(), {.k = 5, .nprobe = 2});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::int64_t query = thread; query < 40; query += 4) {
        const ivf_pq_result got = index.search(queries.part(query, 1), {.k = 5 - thread, .nprobe = 2});
        for (std::int64_t i = 0; i < got.k; ++i) EXPECT_EQ(got.ids[i], expected.ids_of(query)[i]);
      }
    });
  }
  for (std::thread& one : threads) one.join();
  EXPECT_GT(index.memory().workspaces_bytes, 0);
}

TEST(ivf_pq_index, counts_what_it_holds) {
  const clustered_rows rows(kRows, kDim, 11);
  ivf_pq_index index = index_of(options_of(metric::cosine), rows);
  const list_statistics lists = index.lists();
  EXPECT_EQ(lists.lists, 8);
  EXPECT_LE(lists.smallest, lists.median);
  EXPECT_LE(lists.median, lists.largest);
  EXPECT_GE(lists.imbalance, 1.0);
  EXPECT_LT(lists.imbalance, 3.0);
  const ivf_pq_memory memory = index.memory();
  EXPECT_GE(memory.model_bytes, (8 * 2 * kDim + 7 * 32 * 3) * 4);
  EXPECT_GE(memory.codes_bytes, kRows * 7);
  EXPECT_GE(memory.rows_bytes, kRows * (kDim + 1) * 4);
  EXPECT_EQ(memory.host_rows_bytes, 0);
  EXPECT_EQ(memory.ids_bytes, 0);
  EXPECT_EQ(index.options().pq_bits, 5);
  ivf_pq_index scalar(device::cpu(), options_of(metric::l2, code_kind::sq4));
  EXPECT_EQ(scalar.options().pq_dim, kDim);
  EXPECT_EQ(scalar.options().pq_bits, 4);
}

// ---- training

TEST(ivf_pq_index, the_same_rows_and_seed_train_the_same) {
  const clustered_rows rows(kRows, kDim, 12);
  core::backend& cpu = core::backend_of(device::cpu());
  for (ivf_pq_options options : all_kinds()) {
    options = index::completed(options);
    const auto train = [&] { return index::train_ivf_pq(cpu, nullptr, options, rows.view(), kFewSteps); };
    const index::ivf_pq_arrays first = train();
    EXPECT_TRUE(first == train()) << name_of(options);
    options.seed = 1;
    EXPECT_FALSE(first == train()) << name_of(options);
  }
}

TEST(ivf_pq_index, training_reports_and_can_be_cancelled) {
  const clustered_rows rows(kRows, kDim, 13);
  std::vector<std::string> heard;
  train_options training = kFewSteps;
  training.progress = [&](const train_progress& now) {
    heard.push_back(std::string(now.stage) + " " + std::to_string(now.step) + "/" + std::to_string(now.steps));
    return heard.size() == 9 + 5 ? proceed::no : proceed::yes;
  };
  ivf_pq_index index(device::cpu(), options_of(metric::l2));
  index.train(rows.view(), training);
  ASSERT_EQ(heard.size(), 9u);
  EXPECT_EQ(heard[0], "centroids 1/3");
  EXPECT_EQ(heard[8], "codebook 6/6");
  index.add(rows.view());
  const ivf_pq_result before = index.search(rows.part(0, 3), {.k = 5, .nprobe = 4});
  index.clear();
  expect_error<cancelled>([&] { index.train(rows.part(100, 500), training); }, "after 2 of 6 steps of the codebook");
  index.add(rows.view());
  expect_same(index.search(rows.part(0, 3), {.k = 5, .nprobe = 4}), before, "what was trained before stays");
}

TEST(ivf_pq_train, balance_gives_small_groups_half_of_large_ones) {
  std::vector<float> centres = {1, 2, 10, 20, 0, 0, 5, 6};
  std::vector<std::int64_t> counts = {0, 41, 12, 0};
  index::balance(centres.data(), counts.data(), 4, 2);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{20, 11, 12, 10})) << "first 0 of 1, then 3 of the 21 that 1 has left";
  constexpr float kUp = 1.0f + 0x1p-10f, kDown = 1.0f - 0x1p-10f;
  EXPECT_EQ(centres[0], 10 * kUp);
  EXPECT_EQ(centres[1], 20 * kDown);
  EXPECT_EQ(centres[2], 10 * kDown * kDown);
  EXPECT_EQ(centres[6], 10 * kDown * kUp);
  const std::vector<float> even = centres;
  index::balance(centres.data(), counts.data(), 4, 2);
  EXPECT_EQ(centres, even) << "nothing is below an eighth of the mean";
}

TEST(ivf_pq_train, a_random_rotation_is_orthogonal) {
  constexpr std::int64_t kSize = 65;
  const std::vector<float> turn = index::random_rotation(5, kSize);
  for (std::int64_t i = 0; i < kSize; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (std::int64_t at = 0; at < kSize; ++at) sum += double{turn[i * kSize + at]} * turn[j * kSize + at];
      EXPECT_NEAR(sum, i == j ? 1.0 : 0.0, 1e-6) << i << ", " << j;
    }
  }
  EXPECT_NE(turn, index::random_rotation(6, kSize));
}

TEST(ivf_pq_train, codewords_become_halves_times_a_power_of_two) {
  std::vector<float> codebook = {3.0f, -1.00001f, 0x1.ffffp-30f, 0.0f, 5e-11f};
  const int exponent = index::round_codebook(codebook);
  EXPECT_EQ(exponent, 1 - 13) << "3 lies in [2^13, 2^14) halves";
  EXPECT_TRUE(index::is_rounded(codebook, exponent));
  EXPECT_EQ(codebook[0], 3.0f);
  EXPECT_EQ(codebook[1], -1.0f);
  EXPECT_EQ(codebook[2], 0x1p-29f);
  EXPECT_EQ(codebook[4], 0x3p-36f) << "denormal halves have few bits";
  codebook[1] = -1.00001f;
  EXPECT_FALSE(index::is_rounded(codebook, exponent));
  std::vector<float> nothing(3), tiny = {0x1p-149f, 0x1.8p-140f};
  EXPECT_EQ(index::round_codebook(nothing), 0);
  const std::vector<float> same = tiny;
  index::round_codebook(tiny);
  EXPECT_EQ(tiny, same);
}

TEST(ivf_pq_train, balance_leaves_groups_empty_where_rows_are_fewer) {
  std::vector<float> centres = {1, 2, 3, 4};
  std::vector<std::int64_t> counts = {0, 2, 0, 0};
  index::balance(centres.data(), counts.data(), 4, 1);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{1, 1, 0, 0}));
  EXPECT_EQ(centres[2], 3);
  EXPECT_EQ(centres[3], 4);
}

// ---- data that is hard

TEST(ivf_pq_index, trained_with_fewer_rows_than_codewords) {
  constexpr std::int64_t kMany = 300;  // of which one list is trained with 64
  const clustered_rows rows(kMany, kDim, 16);
  ivf_pq_options options = options_of(metric::l2);
  options.nlist = 1;
  options.pq_bits = 8;
  const ivf_pq_index index = index_of(options, rows);
  const ivf_pq_result got = index.search(rows.view(), {.k = 1, .nprobe = 1, .refine_ratio = kMany});
  std::vector<std::int64_t> own(kMany);
  std::iota(own.begin(), own.end(), std::int64_t{0});
  EXPECT_EQ(got.ids, own);
}

TEST(ivf_pq_index, duplicates_and_constant_rows) {
  for (const metric by : kMetrics) {
    for (const float value : {0.0f, 3.25f}) {
      for (const code_kind code : {code_kind::pq, code_kind::sq8}) {
        clustered_rows rows(kRows, kDim, 14);
        std::fill(rows.data.begin(), rows.data.end(), value);
        const ivf_pq_index index = index_of(options_of(by, code), rows);
        const ivf_pq_result got = index.search(rows.part(0, 2), {.k = kRows, .nprobe = 8});
        EXPECT_EQ(got.k_found, std::vector<std::int64_t>(2, kRows));
        for (std::int64_t i = 0; i < kRows; ++i) EXPECT_EQ(got.ids[i], i) << "all tie: added earlier, found earlier";
        EXPECT_EQ(got.scores.front(), got.scores.back());
      }
    }
  }
}

TEST(ivf_pq_index, a_few_different_rows_among_many) {
  clustered_rows rows(kRows, kDim, 15);
  for (std::size_t i = 0; i < rows.data.size(); ++i) rows.data[i] = static_cast<float>(i / kDim % 3 * (i % kDim));
  ivf_pq_options options = options_of(metric::l2);
  options.nlist = 64;
  const ivf_pq_index index = index_of(options, rows);
  const ivf_pq_result got = index.search(rows.part(0, 3), {.k = 1, .nprobe = 1});
  EXPECT_EQ(got.ids, (std::vector<std::int64_t>{0, 1, 2}));
}

TEST(ivf_pq_index, rows_that_are_not_finite_are_named) {
  const clustered_rows good(kRows, kDim, 16);
  clustered_rows bad = good;
  for (const std::int64_t row : {3, 17, 200, 201, 202, 600}) bad.data[row * kDim + 5] = NAN;
  ivf_pq_index index(device::cpu(), options_of(metric::l2));
  expect_error<invalid_argument>([&] { index.train(bad.view(), {.rows_per_list = 100}); },
                                 "not finite in rows 3, 17, 200, 201, 202, ...");
  expect_error<invalid_argument>([&] { index.train(bad.view(), {.rows_per_list = 50}); }, "not finite in rows 3, 17");
  EXPECT_FALSE(index.is_trained());
  index.train(good.view(), kFewSteps);
  index.add(good.view());
  expect_error<invalid_argument>([&] { index.add(bad.part(100, 101)); }, "not finite in row 100;");
  bad.data[17 * kDim + 5] = -INFINITY;
  expect_error<invalid_argument>([&] { index.add(bad.part(17, 1)); }, "not finite in row 0;");
  EXPECT_EQ(index.rows(), kRows);

  ivf_pq_options turned = options_of(metric::l2);
  turned.rotation = rotation::random;
  ivf_pq_index with_rotation = index_of(turned, good);
  clustered_rows huge = good;
  std::fill_n(huge.data.begin() + 9 * kDim, kDim, std::numeric_limits<float>::max());
  expect_error<invalid_argument>([&] { with_rotation.add(huge.view()); }, "not finite in row 9;");
  EXPECT_EQ(with_rotation.rows(), kRows);
  expect_error<invalid_argument>([&] { ivf_pq_index(device::cpu(), turned).train(huge.view()); },
                                 "differences of rows must be finite");
}

// ---- wrong use

TEST(ivf_pq_index, options_that_are_out_of_range) {
  const auto refuse = [](ivf_pq_options options, std::string_view part) {
    expect_error<invalid_argument>([&] { ivf_pq_index(device::cpu(), options); }, part);
  };
  const ivf_pq_options good = options_of(metric::l2);
  ivf_pq_options bad = good;
  bad.dim = 0;
  refuse(bad, "options.dim is 0");
  bad = good;
  bad.nlist = 0;
  refuse(bad, "options.nlist is 0; allowed is 1 to 1048576");
  bad = good;
  bad.pq_bits = 3;
  refuse(bad, "options.pq_bits is 3; allowed is 4 to 8");
  bad = good;
  bad.pq_dim = 20;
  refuse(bad, "options.pq_dim is 20; allowed is 1 to 19");
  bad.pq_dim = 12;  // pieces of 2: ten are enough
  refuse(bad, "options.pq_dim is 12; allowed is a number of pieces that are not empty: pieces of 2 elements make 10");
  bad = good;
  bad.dim = 5000;
  bad.rotation = rotation::random;
  refuse(bad, "options.rotation is random; allowed is none for rows of more than 4096 elements");
  bad = good;
  bad.code = static_cast<code_kind>(9);
  refuse(bad, "options.code is 9");
  expect_error<invalid_argument>([] { parse_code_kind("sq5"); }, "code is sq5; allowed is pq, sq4 or sq8");
  for (const kept_rows kept : {kept_rows::none, kept_rows::device, kept_rows::host}) {
    EXPECT_EQ(parse_kept_rows(to_string(kept)), kept);
  }
}

TEST(ivf_pq_index, calls_that_are_wrong_change_nothing) {
  const clustered_rows rows(kRows, kDim, 17);
  ivf_pq_index index(device::cpu(), options_of(metric::l2));
  const auto refuse = [](const auto& call, std::string_view part) { expect_error<invalid_argument>(call, part); };
  refuse([&] { index.add(rows.view()); }, "index is not trained; allowed is add after train");
  refuse([&] { index.search(rows.view(), {.k = 1, .nprobe = 1}); }, "index is not trained; allowed is search after");
  refuse([&] { index.save("/nowhere/x"); }, "index is not trained; allowed is save after");
  refuse([&] { index.train(rows.part(0, 7)); }, "vectors.rows is 7; allowed is 8 or more, the lists");
  refuse([&] { index.train(rows.part(0, 31)); }, "vectors.rows is 31; allowed is 32 or more, the codewords of a piece");
  refuse([&] { index.train(rows.view(), {.iterations = 0}); }, "training.iterations is 0");
  refuse([&] { index.train(rows.view(), {.rows_per_list = 0}); }, "training.rows_per_list is 0");
  index.train(rows.view(), kFewSteps);
  index.add(rows.part(0, 100));
  refuse([&] { index.train(rows.view()); }, "index is one of 100 rows");
  const std::vector<std::int64_t> taken = {500, 7};
  refuse([&] { index.add(rows.part(0, 2), taken); }, "ids[1] is 7; allowed is an id that no other row has");
  refuse([&] { index.add(rows.part(0, 3), taken); }, "ids.size() is 2");
  const std::vector<std::int8_t> bytes(kDim);
  refuse([&] { index.add(matrix_view<const std::int8_t>(bytes.data(), 1, kDim)); }, "vectors.type is i8");
  refuse([&] { index.add(matrix_view<const float>(rows.data.data(), 1, kDim - 1)); }, "vectors.cols is 18");
  refuse([&] { index.search(rows.view(), {.k = 0, .nprobe = 1}); }, "k is 0; allowed is 1 or more");
  refuse([&] { index.search(rows.view(), {.nprobe = 9}); }, "nprobe is 9; allowed is 1 to 8, the lists");
  refuse([&] { index.search(rows.view(), {.nprobe = 0}); }, "nprobe is 0");
  refuse([&] { index.search(rows.view(), {.nprobe = 1, .refine_ratio = -1}); }, "refine_ratio is -1");
  refuse([&] { index.reserve(-1); }, "max_rows is -1");
  refuse([&] { index.search(stream(device::cpu()), rows.view(), {.nprobe = 1}, {}); }, "out.scores is null");
  EXPECT_EQ(index.rows(), 100);
  EXPECT_EQ(index.search(rows.part(0, 1), {.k = 1, .nprobe = 8, .refine_ratio = 10}).ids[0], 0);

  ivf_pq_options without = options_of(metric::l2);
  without.rows = kept_rows::none;
  const ivf_pq_index no_rows = index_of(without, rows);
  refuse([&] { no_rows.search(rows.view(), {.nprobe = 1, .refine_ratio = 1}); }, "0 for an index that keeps no rows");
  EXPECT_EQ(no_rows.memory().rows_bytes, 0);
}

}  // namespace
}  // namespace shortlist
