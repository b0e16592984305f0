// IVF-PQ indexes on every device against the reference: the same lists, codes and results, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "conformance/either_device.hpp"
#include "conformance/harness.hpp"
#include "conformance/ivf_pq_oracle.hpp"
#include "cpu/isa.hpp"
#include "unit/core_environment.hpp"

namespace shortlist::conformance {
namespace {

class IvfPqOnDevice : public EitherDevice {};

INSTANTIATE_TEST_SUITE_P(Devices, IvfPqOnDevice, testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

const train_options kShortTraining = {.iterations = 4};

/// An index and what it is filled with.
struct ivf_pq_case {
  ivf_pq_options options;
  std::int64_t rows = 1200;
  std::string distribution = "normal";
  std::uint64_t seed = 1;
};

std::string describe(const ivf_pq_case& of, device where) {
  const ivf_pq_options& o = of.options;
  return where.name() + " " + std::string(to_string(o.type)) + " " + std::string(to_string(o.metric)) +
         " dim=" + std::to_string(o.dim) + " nlist=" + std::to_string(o.nlist) + " " + std::string(to_string(o.code)) +
         " pq_dim=" + std::to_string(o.pq_dim) + " pq_bits=" + std::to_string(o.pq_bits) +
         " encodes=" + std::string(to_string(o.encodes)) + " rotation=" + std::string(to_string(o.rotation)) +
         " rows=" + std::to_string(of.rows) + " " + of.distribution + " seed=" + std::to_string(of.seed);
}

/// Every metric with every kind of code, and among them every number of bits, type and option.
std::vector<ivf_pq_case> cases() {
  std::vector<ivf_pq_case> all;
  const char* distributions[] = {"normal", "ties_90", "zero_vectors", "mixed_magnitudes", "sparse", "narrow_band"};
  constexpr element_type kTypes[] = {element_type::f32, element_type::f16, element_type::u8, element_type::i8,
                                     element_type::bf16};
  constexpr std::int64_t kDims[] = {24, 33, 8, 65};
  constexpr std::int64_t kPieceDims[] = {2, 3, 1, 4, 8};
  std::uint64_t seed = 0;
  for (const metric by : {metric::l2, metric::inner_product, metric::cosine}) {
    for (const code_kind code : {code_kind::pq, code_kind::sq4, code_kind::pq, code_kind::sq8, code_kind::pq}) {
      ivf_pq_case one;
      one.options = {.dim = kDims[seed % 4], .metric = by, .type = kTypes[seed % 5], .nlist = 20, .code = code};
      if (code == code_kind::pq) {
        one.options.pq_dim = (one.options.dim + kPieceDims[seed % 5] - 1) / kPieceDims[seed % 5];
        one.options.pq_bits = 4 + static_cast<int>(seed % 5);
      }
      one.options.encodes = seed % 3 == 2 ? encoded::row : encoded::residual;
      one.options.rotation = seed % 4 == 1 ? rotation::random : rotation::none;
      one.options.rows = seed % 2 == 0 ? kept_rows::device : kept_rows::host;
      one.options.seed = seed;
      one.distribution = distributions[seed % 6];
      one.seed = ++seed;
      all.push_back(one);
    }
  }
  return all;
}

/// Rows and queries, two of which are not finite.
dataset data_of(const ivf_pq_case& of) {
  dataset data = make_dataset(of.options.type, of.distribution, of.rows, of.options.dim, 7, of.seed);
  data.query_data[static_cast<std::size_t>(5 * data.query_stride)] = std::numeric_limits<float>::infinity();
  data.query_data[static_cast<std::size_t>(6 * data.query_stride)] = std::numeric_limits<float>::quiet_NaN();
  return data;
}

ivf_pq_index index_of(device where, const ivf_pq_case& of, const dataset& data) {
  ivf_pq_index index(where, of.options);
  index.train(data.row_view(), kShortTraining);
  index.add(data.row_view());
  return index;
}

/// Searches on every instruction set of a CPU, and in every way of a GPU.
template <class Check>
void for_every_way(device where, const Check& check) {
  if (where.kind() != device_kind::cpu) {
    for (const char* way : {static_cast<const char*>(nullptr), "few", "filter", "decode"}) {
      const test::environment_value forced("SHORTLIST_FORCE_IVF_PQ", way);
      check(way ? way : "plan");
    }
    return;
  }
  for (const std::string_view isa : cpu::available_isas()) {
    const forced_isa forced{std::string(isa)};
    check(std::string(isa));
  }
}

TEST_P(IvfPqOnDevice, ListsCodesAndResultsEqualTheReference) {
  for (const ivf_pq_case& of : cases()) {
    const dataset data = data_of(of);
    const ivf_pq_index index = index_of(where_, of, data);
    const ivf_pq_oracle oracle = oracle_of(index);
    ASSERT_EQ(oracle.rows.size(), static_cast<std::size_t>(of.rows)) << describe(of, where_);
    for (std::int64_t row = 0; row < of.rows; ++row) {
      const std::vector<float> taken = reference::take_row(oracle.model, data.row_view(), row);
      const reference::ivf_pq_row& coded = oracle.rows[static_cast<std::size_t>(row)];
      ASSERT_EQ(coded.list, reference::assign(oracle.model, taken)) << describe(of, where_) << " row " << row;
      ASSERT_EQ(coded.codes, reference::encode(oracle.model, reference::to_encode(oracle.model, taken, coded.list)))
          << describe(of, where_) << " row " << row;
    }
    for (const ivf_pq_search_options& options :
         {ivf_pq_search_options{.k = 10, .nprobe = 4}, ivf_pq_search_options{.k = 1, .nprobe = 1, .refine_ratio = 1},
          ivf_pq_search_options{.k = 20, .nprobe = 20, .refine_ratio = 3},
          ivf_pq_search_options{.k = 300, .nprobe = 7}}) {
      const ivf_pq_result expected = oracle.expected(data.row_view(), data.query_view(), options);
      for_every_way(where_, [&](const std::string& way) {
        ASSERT_EQ(first_difference(index.search(data.query_view(), options), expected), "")
            << describe(of, where_) << " way=" << way << " k=" << options.k << " nprobe=" << options.nprobe
            << " refine_ratio=" << options.refine_ratio;
      });
    }
  }
}

TEST_P(IvfPqOnDevice, RefiningEverythingIsExactSearchOverTheProbedLists) {
  for (const ivf_pq_case& of : cases()) {
    const dataset data = data_of(of);
    const ivf_pq_index index = index_of(where_, of, data);
    const ivf_pq_oracle oracle = oracle_of(index);
    const ivf_pq_result found = index.search(data.query_view(), {.k = 10, .nprobe = 6, .refine_ratio = of.rows});
    for (std::int64_t q = 0; q < data.queries; ++q) {
      const std::vector<float> turned = reference::turn_query(oracle.model, data.query(q));
      std::vector<bool> is_probed(static_cast<std::size_t>(of.options.nlist));
      for (const std::int64_t list : reference::probe(oracle.model, turned, 6)) {
        is_probed[static_cast<std::size_t>(list)] = true;
      }
      std::size_t place = 0;
      for (const reference::hit& hit : reference::search(data.row_view(), data.query(q), of.options.metric, of.rows)) {
        const auto row = static_cast<std::size_t>(hit.position);
        if (place == 10 || !is_probed[static_cast<std::size_t>(oracle.rows[row].list)]) continue;
        ASSERT_EQ(found.ids_of(q)[place], hit.position) << describe(of, where_) << " query " << q;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(found.scores_of(q)[place]), std::bit_cast<std::uint32_t>(hit.score));
        ++place;
      }
      EXPECT_EQ(found.k_found[static_cast<std::size_t>(q)], static_cast<std::int64_t>(place));
    }
  }
}

TEST_P(IvfPqOnDevice, EveryListAndEveryRowRefinedIsAFlatIndex) {
  for (const ivf_pq_case& of : cases()) {
    const dataset data = data_of(of);
    const ivf_pq_index index = index_of(where_, of, data);
    flat_index flat(where_, {.dim = of.options.dim, .metric = of.options.metric, .type = of.options.type});
    flat.add(data.row_view());
    for (const std::int64_t k : {std::int64_t{10}, of.rows + 3}) {
      const search_result exact = flat.search(data.query_view(), {.k = k});
      const ivf_pq_result found =
          index.search(data.query_view(), {.k = k, .nprobe = of.options.nlist, .refine_ratio = of.rows});
      ivf_pq_result expected;
      expected.queries = data.queries;
      expected.k = k;
      expected.scores = exact.scores;
      expected.ids = exact.ids;
      expected.k_found.assign(static_cast<std::size_t>(data.queries), std::min(k, of.rows));
      ASSERT_EQ(first_difference(found, expected), "") << describe(of, where_) << " k=" << k;
    }
  }
}

TEST_P(IvfPqOnDevice, ListsThatHoldFewerThanKArePadded) {
  const ivf_pq_case of{.options = {.dim = 6, .nlist = 40, .pq_dim = 3, .pq_bits = 4, .rows = kept_rows::device},
                       .rows = 60,
                       .distribution = "one_cluster"};
  const dataset data = data_of(of);
  const ivf_pq_index index = index_of(where_, of, data);
  const ivf_pq_oracle oracle = oracle_of(index);
  for (const std::int64_t ratio : {0, 1, 5}) {
    for (const std::int64_t nprobe : {1, 2, 40}) {
      const ivf_pq_search_options options{.k = 70, .nprobe = nprobe, .refine_ratio = ratio};
      const ivf_pq_result expected = oracle.expected(data.row_view(), data.query_view(), options);
      for_every_way(where_, [&](const std::string& way) {
        EXPECT_EQ(first_difference(index.search(data.query_view(), options), expected), "")
            << way << " " << nprobe << " " << ratio;
      });
    }
  }
}

TEST_P(IvfPqOnDevice, BatchesAndSingleQueriesAreTheSame) {
  // Enough lists and queries for the ways that batches take.
  ivf_pq_case of{.options = {.dim = 24, .nlist = 300, .pq_dim = 12, .pq_bits = 4, .rows = kept_rows::device},
                 .rows = 6000};
  for (const metric by : {metric::l2, metric::inner_product, metric::cosine}) {
    of.options.metric = by;
    dataset data = make_dataset(element_type::f32, "uniform", of.rows, of.options.dim, 90, 5);
    data.query_data[static_cast<std::size_t>(40 * data.query_stride)] = std::numeric_limits<float>::quiet_NaN();
    const ivf_pq_index index = index_of(where_, of, data);
    for (const std::int64_t ratio : {0, 4}) {
      const ivf_pq_search_options options{.k = 10, .nprobe = 12, .refine_ratio = ratio};
      const ivf_pq_result batch = index.search(data.query_view(), options);
      for_every_way(where_, [&](const std::string& way) {
        ASSERT_EQ(first_difference(index.search(data.query_view(), options), batch), "") << where_.name() << " " << way;
      });
      for (std::int64_t q = 0; q < data.queries; ++q) {
        const ivf_pq_result alone = index.search(matrix_view<const float>(data.query(q), 1, data.dim), options);
        ivf_pq_result same = alone;
        std::copy_n(batch.scores_of(q).begin(), 10, same.scores.begin());
        std::copy_n(batch.ids_of(q).begin(), 10, same.ids.begin());
        ASSERT_EQ(first_difference(alone, same), "") << where_.name() << " " << to_string(by) << " query " << q;
      }
      const ivf_pq_oracle oracle = oracle_of(index);
      const matrix_view<const float> some(data.query(38), 4, data.dim, data.query_stride);
      const ivf_pq_result expected = oracle.expected(data.row_view(), some, options);
      ivf_pq_result same = expected;
      std::copy_n(batch.scores.begin() + 380, 40, same.scores.begin());
      std::copy_n(batch.ids.begin() + 380, 40, same.ids.begin());
      ASSERT_EQ(first_difference(same, expected), "") << where_.name() << " " << to_string(by);
    }
  }
}

/// What answers a query of a GPU's batch depends on how many rows by code there are, and for how many queries.
TEST_P(IvfPqOnDevice, ManyRowsByCodeForManyQueries) {
  for (const element_type type : {element_type::f32, element_type::f16}) {
    const ivf_pq_case of{
        .options = {.dim = 40, .type = type, .nlist = 12, .pq_dim = 20, .pq_bits = 8, .rows = kept_rows::device},
        .rows = 9000};
    const dataset data = make_dataset(type, "uniform", of.rows, of.options.dim, 140, 13);
    const ivf_pq_index index = index_of(where_, of, data);
    const ivf_pq_oracle oracle = oracle_of(index);
    const matrix_view<const float> some(data.query(0), 3, data.dim, data.query_stride);
    for (const ivf_pq_search_options& options :
         {ivf_pq_search_options{.k = 10, .nprobe = 6, .refine_ratio = 2},
          ivf_pq_search_options{.k = 60, .nprobe = 6, .refine_ratio = 4},
          ivf_pq_search_options{.k = 100, .nprobe = 12, .refine_ratio = 4},
          ivf_pq_search_options{.k = 300, .nprobe = 12, .refine_ratio = 2},
          ivf_pq_search_options{.k = 200, .nprobe = 6}, ivf_pq_search_options{.k = 100, .nprobe = 1},
          ivf_pq_search_options{.k = 1000, .nprobe = 12, .refine_ratio = 3}}) {
      const ivf_pq_result expected = oracle.expected(data.row_view(), some, options);
      const ivf_pq_result one_way = index.search(data.query_view(), options);
      ivf_pq_result begin = expected;
      std::copy_n(one_way.scores.begin(), begin.scores.size(), begin.scores.begin());
      std::copy_n(one_way.ids.begin(), begin.ids.size(), begin.ids.begin());
      const std::string what = where_.name() + " " + std::string(to_string(type)) + " k=" + std::to_string(options.k) +
                               " refine_ratio=" + std::to_string(options.refine_ratio);
      ASSERT_EQ(first_difference(begin, expected), "") << what;
      for_every_way(where_, [&](const std::string& way) {
        ASSERT_EQ(first_difference(index.search(data.query_view(), options), one_way), "") << what << " way=" << way;
      });
    }
  }
}

struct code_case {
  code_kind code;
  std::int64_t dim;
  std::int64_t piece_dim;
  encoded encodes = encoded::residual;
  int bits = 8;
};

/// Options of a case and its data, by turns.
ivf_pq_case case_of(const code_case& code, std::int64_t nlist, std::int64_t rows, std::string distribution,
                    std::uint64_t turn) {
  constexpr metric kMetrics[] = {metric::l2, metric::inner_product, metric::cosine};
  ivf_pq_case of{.options = {.dim = code.dim, .nlist = nlist, .code = code.code, .encodes = code.encodes},
                 .rows = rows,
                 .distribution = std::move(distribution),
                 .seed = turn + 1};
  if (code.code == code_kind::pq) {
    of.options.pq_dim = (code.dim + code.piece_dim - 1) / code.piece_dim;
    of.options.pq_bits = code.bits;
  }
  of.options.metric = kMetrics[turn % 3];
  of.options.rotation = turn % 4 == 3 ? rotation::random : rotation::none;
  return of;
}

/// Queries [kFirst, kFirst + kSome) of a batch are as the oracle has them, and both those alone and the batch the same
/// every way. One of the batch is NaN.
constexpr std::int64_t kNanQuery = 5;
void expect_every_way(device where, const ivf_pq_index& index, const ivf_pq_oracle& oracle, const dataset& data,
                      const ivf_pq_search_options& options, const std::string& what) {
  constexpr std::int64_t kFirst = 4;
  constexpr std::int64_t kSome = 3;
  const matrix_view<const float> some(data.query(kFirst), kSome, data.dim, data.query_stride);
  const ivf_pq_result expected = oracle.expected(data.row_view(), some, options);
  const ivf_pq_result found = index.search(data.query_view(), options);
  ivf_pq_result same = expected;
  std::copy_n(found.scores.begin() + kFirst * options.k, same.scores.size(), same.scores.begin());
  std::copy_n(found.ids.begin() + kFirst * options.k, same.ids.size(), same.ids.begin());
  ASSERT_EQ(first_difference(same, expected), "") << what;
  for_every_way(where, [&](const std::string& way) {
    ASSERT_EQ(first_difference(index.search(some, options), expected), "") << what << " way=" << way << " alone";
    ASSERT_EQ(first_difference(index.search(data.query_view(), options), found), "") << what << " way=" << way;
  });
}

/// From 128 rows by code on, or 240 of whole numbers, a GPU marks the rows that are scored; from 320 on that are
/// refined it writes all distances out and chooses among them: rows of every form of code, of fewer bits, too, ties,
/// distances that halves hardly tell apart or cannot hold, and lists with fewer rows than that; refined by rows on the
/// GPU or in host memory.
TEST_P(IvfPqOnDevice, RowsMarkedOrDistancesWrittenOut) {
  constexpr code_case kCodes[] = {
      {code_kind::pq, 96, 2},
      {code_kind::pq, 33, 2},
      {code_kind::pq, 128, 2},
      {code_kind::pq, 20, 2, encoded::row},
      {code_kind::pq, 64, 4},
      {code_kind::sq4, 40, 1},
      {code_kind::sq4, 70, 1},
      {code_kind::sq8, 100, 1},
      {code_kind::sq8, 30, 1},
      {code_kind::pq, 48, 2, encoded::residual, 6},
      {code_kind::pq, 96, 2, encoded::residual, 5},
      {code_kind::pq, 36, 4, encoded::residual, 7},
      {code_kind::sq4, 128, 1},
      {code_kind::sq4, 25, 1},
      {code_kind::sq8, 96, 1},
      {code_kind::sq8, 62, 1},
  };
  const char* distributions[] = {"normal", "ties_90", "narrow_band", "mixed_magnitudes", "all_equal"};
  std::uint64_t turn = 0;
  for (const code_case& code : kCodes) {
    ivf_pq_case of = case_of(code, 9, 5000, distributions[turn % 5], turn);
    of.options.type = turn % 3 == 2 ? element_type::f16 : element_type::f32;
    of.options.rows = turn % 4 == 1 ? kept_rows::host : kept_rows::device;
    turn++;
    dataset data = make_dataset(of.options.type, of.distribution, of.rows, of.options.dim, 70, of.seed);
    data.query_data[static_cast<std::size_t>(kNanQuery * data.query_stride)] = std::numeric_limits<float>::quiet_NaN();
    const ivf_pq_index index = index_of(where_, of, data);
    const ivf_pq_oracle oracle = oracle_of(index);
    for (const ivf_pq_search_options& options :
         {ivf_pq_search_options{.k = 128, .nprobe = 4}, ivf_pq_search_options{.k = 320, .nprobe = 9},
          ivf_pq_search_options{.k = 1000, .nprobe = 2}, ivf_pq_search_options{.k = 2048, .nprobe = 9},
          ivf_pq_search_options{.k = 40, .nprobe = 2, .refine_ratio = 10},
          ivf_pq_search_options{.k = 320, .nprobe = 9, .refine_ratio = 1},
          ivf_pq_search_options{.k = 1000, .nprobe = 9, .refine_ratio = 3},
          ivf_pq_search_options{.k = 2048, .nprobe = 8, .refine_ratio = 2}}) {
      expect_every_way(where_, index, oracle, data, options,
                       describe(of, where_) + " k=" + std::to_string(options.k) +
                           " refine_ratio=" + std::to_string(options.refine_ratio));
      if (HasFatalFailure()) return;
    }
  }
}

/// A GPU scans rows of more elements than registers hold, and codes of other pieces than shared memory has a table of,
/// in another way: pieces of one to many elements, codes of half a byte, rows that end within a piece.
TEST_P(IvfPqOnDevice, RowsOfManyElementsAndPiecesOfAnySize) {
  constexpr code_case kCodes[] = {
      {code_kind::pq, 200, 2},
      {code_kind::pq, 264, 8},
      {code_kind::pq, 150, 4, encoded::row},
      {code_kind::pq, 129, 3, encoded::residual, 5},
      {code_kind::sq8, 260, 1},
      {code_kind::sq4, 515, 1},
      {code_kind::sq8, 1030, 1, encoded::row},
      {code_kind::pq, 96, 8},
      {code_kind::pq, 130, 16, encoded::residual, 7},
      {code_kind::pq, 48, 2, encoded::residual, 4},
      {code_kind::pq, 90, 5, encoded::residual, 4},
      {code_kind::pq, 170, 24, encoded::residual, 4},
      {code_kind::pq, 140, 1},
  };
  const char* distributions[] = {"normal", "ties_90", "narrow_band", "normal", "mixed_magnitudes", "all_equal"};
  std::uint64_t turn = 0;
  for (const code_case& code : kCodes) {
    ivf_pq_case of = case_of(code, 5, 1500, distributions[turn % 6], turn);
    of.options.rows = turn % 2 == 0 ? kept_rows::device : kept_rows::host;
    turn++;
    dataset data = make_dataset(element_type::f32, of.distribution, of.rows, of.options.dim, 90, of.seed);
    data.query_data[static_cast<std::size_t>(kNanQuery * data.query_stride)] = std::numeric_limits<float>::quiet_NaN();
    const ivf_pq_index index = index_of(where_, of, data);
    const ivf_pq_oracle oracle = oracle_of(index);
    for (const ivf_pq_search_options& options :
         {ivf_pq_search_options{.k = 10, .nprobe = 2}, ivf_pq_search_options{.k = 10, .nprobe = 3, .refine_ratio = 4},
          ivf_pq_search_options{.k = 70, .nprobe = 5}, ivf_pq_search_options{.k = 400, .nprobe = 4},
          ivf_pq_search_options{.k = 300, .nprobe = 5, .refine_ratio = 2}}) {
      const std::string what = describe(of, where_) + " k=" + std::to_string(options.k) +
                               " refine_ratio=" + std::to_string(options.refine_ratio);
      expect_every_way(where_, index, oracle, data, options, what);
      if (HasFatalFailure()) return;
      const bool is_decoded = code.code == code_kind::pq && code.piece_dim == 1;
      if (where_.kind() == device_kind::cpu || of.distribution != "normal" || is_decoded) continue;
      const test::environment_value forced("SHORTLIST_FORCE_IVF_PQ", "filter");
      ivf_pq_stats stats;
      ivf_pq_search_options counted = options;
      counted.stats = &stats;
      index.search(data.query_view(), counted);
      EXPECT_EQ(stats.unfiltered_queries, 1) << what;
    }
  }
}

TEST_P(IvfPqOnDevice, MoreEqualCentroidsThanAChoiceHolds) {
  const ivf_pq_case of{.options = {.dim = 4, .nlist = 4200, .pq_dim = 2, .pq_bits = 4, .rows = kept_rows::device},
                       .rows = 4200,
                       .distribution = "all_equal"};
  const dataset data = make_dataset(element_type::f32, of.distribution, of.rows, of.options.dim, 20, 3);
  ivf_pq_index index(where_, of.options);
  index.train(data.row_view(), {.iterations = 1});  // there is nothing to learn
  index.add(data.row_view());
  const ivf_pq_search_options options{.k = 5, .nprobe = 3};
  for (const std::int64_t queries : {data.queries, std::int64_t{3}}) {  // of few, each block of a GPU chooses
    const matrix_view<const float> some(data.query(0), queries, data.dim, data.query_stride);
    const ivf_pq_result expected = oracle_of(index).expected(data.row_view(), some, options);
    for_every_way(where_, [&](const std::string& way) {
      EXPECT_EQ(first_difference(index.search(some, options), expected), "")
          << where_.name() << " " << way << " queries=" << queries;
    });
  }
}

/// Eight lists of 2,000 rows around as many axes; those that is_near(place in the list) names are what queries near the
/// origin look for.
template <class IsNear>
dataset lists_with_near_rows(IsNear is_near) {
  constexpr std::int64_t kLists = 8;
  constexpr std::int64_t kRowsOfList = 2000;
  dataset data = make_dataset(element_type::f32, "uniform", kLists * kRowsOfList, 32, 24, 11);
  for (std::int64_t row = 0; row < data.rows; ++row) {
    float* at = reinterpret_cast<float*>(data.row_data.data()) + row * data.row_stride;
    for (std::int64_t i = 0; i < data.dim; ++i) at[i] *= 0.01f;
    at[row % kLists] += is_near(row / kLists) ? 0.6f : 1.0f;
  }
  for (float& element : data.query_data) element *= 0.01f;
  return data;
}

/// The first 256 rows hold all that queries look for, 32 each, spread over the groups of rows that a sample keeps the
/// best of: a sample of the first pages finds them all.
TEST_P(IvfPqOnDevice, RowsThatALookAtAPartOfAListMisleadsAbout) {
  const dataset data = lists_with_near_rows([](std::int64_t place) { return place < 256 && place % 32 < 4; });
  for (const code_kind code : {code_kind::sq8, code_kind::pq}) {
    ivf_pq_case of{.options = {.dim = data.dim, .nlist = 8, .code = code, .rows = kept_rows::device},
                   .rows = data.rows};
    if (code == code_kind::pq) of.options.pq_dim = 16;
    const ivf_pq_index index = index_of(where_, of, data);
    const ivf_pq_oracle oracle = oracle_of(index);
    for (const ivf_pq_search_options& options :
         {ivf_pq_search_options{.k = 100, .nprobe = 8}, ivf_pq_search_options{.k = 200, .nprobe = 8},
          ivf_pq_search_options{.k = 50, .nprobe = 8, .refine_ratio = 2},
          ivf_pq_search_options{.k = 300, .nprobe = 8, .refine_ratio = 4}}) {
      const ivf_pq_result expected = oracle.expected(data.row_view(), data.query_view(), options);
      for_every_way(where_, [&](const std::string& way) {
        ASSERT_EQ(first_difference(index.search(data.query_view(), options), expected), "")
            << where_.name() << " " << to_string(code) << " way=" << way << " k=" << options.k;
      });
    }
  }
}

/// All near rows lie in pages of lists that a sample of every eighth looks at, or in none of those: thresholds are far
/// too low, or more rows reach them than there is room for. Neither may lose a row.
TEST_P(IvfPqOnDevice, RowsThatEveryEighthPageMisleadsAbout) {
  for (const std::int64_t page : {0, 1}) {
    const dataset data = lists_with_near_rows([&](std::int64_t place) { return place / 32 % 8 == page; });
    for (const code_kind code : {code_kind::sq8, code_kind::pq}) {
      ivf_pq_case of{.options = {.dim = data.dim, .nlist = 8, .code = code}, .rows = data.rows};
      if (code == code_kind::pq) of.options.pq_dim = 16;
      const ivf_pq_index index = index_of(where_, of, data);
      const ivf_pq_search_options options{.k = 300, .nprobe = 8};
      const ivf_pq_result expected = oracle_of(index).expected(data.row_view(), data.query_view(), options);
      for_every_way(where_, [&](const std::string& way) {
        const std::string what = where_.name() + " " + std::string(to_string(code)) + " page=" + std::to_string(page);
        ivf_pq_stats stats;
        ivf_pq_search_options counted = options;
        counted.stats = &stats;
        ASSERT_EQ(first_difference(index.search(data.query_view(), counted), expected), "") << what << " way=" << way;
        if (way == "filter") {
          ASSERT_EQ(stats.unfiltered_queries, expected.queries) << what << ": no query was misled";
        }
      });
    }
  }
}

TEST(IvfPqOnBothDevices, TrainTheSameIndex) {
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  for (const ivf_pq_case& of : cases()) {
    const dataset data = data_of(of);
    const ivf_pq_oracle here = oracle_of(index_of(device::cpu(), of, data));
    const ivf_pq_oracle there = oracle_of(index_of(*gpu, of, data));
    const auto bits = [](const std::vector<float>& values) {
      std::vector<std::uint32_t> all;
      for (const float value : values) all.push_back(std::bit_cast<std::uint32_t>(value));
      return all;
    };
    EXPECT_EQ(bits(here.model.centroids), bits(there.model.centroids)) << describe(of, *gpu);
    EXPECT_EQ(bits(here.model.codebook), bits(there.model.codebook)) << describe(of, *gpu);
    EXPECT_EQ(bits(here.model.rotation), bits(there.model.rotation)) << describe(of, *gpu);
    for (std::size_t row = 0; row < here.rows.size(); ++row) {
      ASSERT_EQ(here.rows[row].list, there.rows[row].list) << describe(of, *gpu) << " row " << row;
      ASSERT_EQ(here.rows[row].codes, there.rows[row].codes) << describe(of, *gpu) << " row " << row;
    }
  }
}

TEST(IvfPqOnBothDevices, AFileFromOneSearchesTheSameOnTheOther) {
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "shortlist_ivf_pq_either_device";
  for (const ivf_pq_case& of : cases()) {
    const dataset data = data_of(of);
    for (const auto& [from, to] : {std::pair{device::cpu(), *gpu}, std::pair{*gpu, device::cpu()}}) {
      const ivf_pq_index index = index_of(from, of, data);
      index.save(path);
      const ivf_pq_index loaded = ivf_pq_index::load(to, path);
      const ivf_pq_search_options options{.k = 30, .nprobe = 5, .refine_ratio = 2};
      EXPECT_EQ(first_difference(loaded.search(data.query_view(), options), index.search(data.query_view(), options)),
                "")
          << describe(of, from) << " on " << to.name();
    }
  }
  std::filesystem::remove(path);
}

/// A list so long that the warps of a scan have more than 32 of its pages each.
TEST(IvfPqOnBothDevices, AListOfHundredsOfThousandsOfRows) {
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  for (const code_kind code : {code_kind::sq4, code_kind::sq8, code_kind::pq}) {
    ivf_pq_case of{.options = {.dim = 16, .nlist = 1, .code = code}, .rows = 600'000};
    if (code == code_kind::pq) of.options.pq_dim = 8;
    const dataset data = make_dataset(element_type::f32, of.distribution, of.rows, of.options.dim, 70, of.seed);
    any_matrix_view some = data.row_view();
    some.rows = 5000;
    const auto filled = [&](device where) {
      ivf_pq_index index(where, of.options);
      index.train(some, kShortTraining);
      index.add(data.row_view());
      return index;
    };
    const ivf_pq_index here = filled(device::cpu());
    const ivf_pq_index there = filled(*gpu);
    for (const std::int64_t k : {10, 400}) {
      const ivf_pq_search_options options{.k = k, .nprobe = 1};
      const ivf_pq_result expected = here.search(data.query_view(), options);
      for_every_way(*gpu, [&](const std::string& way) {
        EXPECT_EQ(first_difference(there.search(data.query_view(), options), expected), "")
            << describe(of, *gpu) << " way=" << way << " k=" << k;
      });
    }
  }
}

/// Lists found for so many queries, or rows, that a GPU filters all centroids for them: as few of both as go that way,
/// every count of lists asked for that changes it, and queries for clusters of one, two and four of its blocks.
TEST(IvfPqOnBothDevices, ManyListsForManyQueries) {
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  struct list_case {
    std::int64_t dim;
    std::int64_t nlist;
    metric by;
    const char* distribution;
    std::int64_t rows;
    std::int64_t queries = 1100;
  };
  constexpr list_case kCases[] = {
      {16, 512, metric::l2, "normal", 21'000},
      {50, 1000, metric::inner_product, "ties_90", 9000},
      {96, 4197, metric::cosine, "normal", 12'000},
      {128, 600, metric::l2, "narrow_band", 9000},
      {32, 700, metric::l2, "mixed_magnitudes", 9000, 6000},
      {24, 513, metric::cosine, "zero_vectors", 5000},
      {64, 511, metric::inner_product, "sparse", 5000},
      {200, 520, metric::l2, "normal", 3000, 300},
      {330, 300, metric::cosine, "ties_90", 2000, 70},
  };
  std::uint64_t seed = 100;
  for (const list_case& lists : kCases) {
    const ivf_pq_case of{
        .options = {.dim = lists.dim, .metric = lists.by, .nlist = lists.nlist, .code = code_kind::sq8},
        .rows = lists.rows,
        .distribution = lists.distribution,
        .seed = ++seed};
    dataset data = make_dataset(element_type::f32, of.distribution, of.rows, lists.dim, lists.queries, of.seed);
    data.query_data[static_cast<std::size_t>(5 * data.query_stride)] = std::numeric_limits<float>::infinity();
    const std::int64_t of_nan = std::min<std::int64_t>(170, lists.queries - 1);
    data.query_data[static_cast<std::size_t>(of_nan * data.query_stride)] = std::numeric_limits<float>::quiet_NaN();
    const ivf_pq_index here = index_of(device::cpu(), of, data);
    const ivf_pq_index there = index_of(*gpu, of, data);
    for (const std::int64_t nprobe : {1, 2, 10, 11, 65, 128, 256, 257}) {
      const ivf_pq_search_options options{.k = 5, .nprobe = nprobe};
      EXPECT_EQ(first_difference(there.search(data.query_view(), options), here.search(data.query_view(), options)), "")
          << describe(of, *gpu) << " nprobe=" << nprobe;
    }
  }
}

}  // namespace
}  // namespace shortlist::conformance
