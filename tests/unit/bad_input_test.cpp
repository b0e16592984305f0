// Bad input, without a GPU: every case gets one clear error that names the argument, and leaves everything as it was.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/order.hpp"
#include "core_environment.hpp"
#include "io/safetensors.hpp"
#include "io_files.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist {
namespace {

using test::expect_error;
using test::file_size_limit;
using test::temporary_folder;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};

// Two rows and one query of dim 4.
const float kRows[] = {1, 2, 3, 4, 4, 3, 2, 1};
const float kQuery[] = {1, 1, 1, 2};
constexpr any_matrix_view view_of(const float* data, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  return {data, element_type::f32, rows, cols, stride};
}
const any_matrix_view kTwoRows = view_of(kRows, 2, 4, 4);
const any_matrix_view kOneQuery = view_of(kQuery, 1, 4, 4);

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// An index of two rows with ids 10 and 20, and what it must still be after a call that failed.
class subject {
 public:
  explicit subject(metric by = metric::inner_product) : index(device::cpu(), {.dim = 4, .metric = by}) {
    index.add(kTwoRows, std::vector<std::int64_t>{10, 20});
    answer_ = index.search(kOneQuery, {.k = 3});
    memory_ = index.memory();
  }

  template <class Error, class Call>
  void refuses(const Call& call, std::string_view part) {
    SCOPED_TRACE(part);
    expect_error<Error>(call, part);
    const memory_use now = index.memory();
    EXPECT_EQ(now.rows_bytes, memory_.rows_bytes);
    EXPECT_EQ(now.norms_bytes, memory_.norms_bytes);
    EXPECT_EQ(now.device_allocations, memory_.device_allocations);
    EXPECT_EQ(index.rows(), 2);
    const search_result answer = index.search(kOneQuery, {.k = 3});
    EXPECT_EQ(answer.ids, answer_.ids);
    EXPECT_TRUE(same_bits(answer.scores, answer_.scores));
  }

  flat_index index;

 private:
  search_result answer_;
  memory_use memory_;
};

/// What is wrong with a matrix, and the message for it behind the argument's name.
struct bad_matrix {
  any_matrix_view view;
  const char* message;
};
const bad_matrix kBadMatrices[] = {
    {view_of(kRows, 1, 3, 3), ".cols is 3; allowed is 4"},
    {view_of(kRows, 1, 8, 8), ".cols is 8; allowed is 4"},
    {view_of(kRows, 0, 0, 0), ".cols is 0; allowed is 4"},
    {view_of(kRows, -1, 4, 4), ".rows is -1; allowed is 0 or more"},
    {view_of(kRows, 2, 4, 3), ".row_stride is 3; allowed is 4 or more"},
    {view_of(kRows, 2, 4, 0), ".row_stride is 0; allowed is 4 or more"},
    {view_of(kRows, 2, 4, -4), ".row_stride is -4; allowed is 4 or more"},
    {view_of(nullptr, 1, 4, 4), ".data is null; allowed is memory of 1 rows"},
    {view_of(kRows, 2, 4, kHuge), ".rows is 2 with a row_stride of 9223372036854775807; allowed is"},
    {view_of(kRows, kHuge, 4, 4), ".rows is 9223372036854775807"},
    {{kRows, static_cast<element_type>(99), 1, 4, 4}, ".type is 99; allowed is an element_type"},
};

TEST(bad_input, matrices) {
  subject it;
  float scores[3];
  std::int64_t ids[3];
  const stream s(device::cpu());
  workspace scratch(device::cpu(), {.max_rows = 2, .max_queries = 1, .max_k = 3});
  for (const auto& [view, message] : kBadMatrices) {
    const std::string vectors = std::string("vectors") + message;
    const std::string queries = std::string("queries") + message;
    it.refuses<invalid_argument>([&] { it.index.add(view); }, vectors);
    it.refuses<invalid_argument>([&] { it.index.add(s, view); }, vectors);
    it.refuses<invalid_argument>([&] { it.index.search(view, {.k = 3}); }, queries);
    it.refuses<invalid_argument>([&] { it.index.search(view, {.k = 3}, {scores, ids}); }, queries);
    it.refuses<invalid_argument>([&] { it.index.search(s, view, {.k = 3}, {scores, ids}); }, queries);
    it.refuses<invalid_argument>([&] { it.index.search(s, scratch, view, {.k = 3}, {scores, ids}); }, queries);
    it.refuses<invalid_argument>([&] { reference_search(kTwoRows, view, metric::l2, {.k = 3}); }, queries);
  }
}

TEST(bad_input, a_single_row_or_none_has_no_stride) {
  subject it;
  EXPECT_EQ(it.index.search(view_of(kQuery, 1, 4, 0), {.k = 3}).ids, it.index.search(kOneQuery, {.k = 3}).ids);
  EXPECT_EQ(it.index.search(view_of(nullptr, 0, 4, 0), {.k = 3}).queries, 0);
  it.index.add(view_of(kRows, 1, 4, -5), std::vector<std::int64_t>{30});
  EXPECT_EQ(it.index.rows(), 3);
}

TEST(bad_input, rows_of_another_type) {
  subject it;
  it.refuses<invalid_argument>(
      [&] {
        it.index.add({kRows, element_type::f16, 1, 4, 4});
      },
      "vectors.type is f16; allowed is f32");
}

TEST(bad_input, device_queries_of_another_type) {
  subject it;
  float scores[1];
  std::int64_t ids[1];
  const any_matrix_view halves(kRows, element_type::f16, 1, 4, 4);
  const stream s(device::cpu());
  workspace scratch(device::cpu(), {.max_rows = 2, .max_queries = 1, .max_k = 1});
  it.refuses<invalid_argument>(
      [&] {
        it.index.search(s, halves, {.k = 1}, {scores, ids});
      },
      "queries.type is f16; allowed is f32");
  it.refuses<invalid_argument>(
      [&] {
        it.index.search(s, scratch, halves, {.k = 1}, {scores, ids});
      },
      "queries.type is f16; allowed is f32");
}

TEST(bad_input, k) {
  subject it;
  float scores[3];
  std::int64_t ids[3];
  const search_output out = {scores, ids};
  const stream s(device::cpu());
  for (const std::int64_t k : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    const std::string message = "k is " + std::to_string(k) + "; allowed is 1 or more";
    it.refuses<invalid_argument>([&] { it.index.search(kOneQuery, {.k = k}); }, message);
    it.refuses<invalid_argument>([&] { it.index.search(kOneQuery, {.k = k}, out); }, message);
    it.refuses<invalid_argument>([&] { it.index.search(s, kOneQuery, {.k = k}, out); }, message);
    it.refuses<invalid_argument>([&] { reference_search(kTwoRows, kOneQuery, metric::l2, {.k = k}); }, message);
    it.refuses<invalid_argument>([&] { it.index.explain(1, {.k = k}); }, message);
  }
  it.refuses<invalid_argument>([&] { it.index.search(kOneQuery, {.k = kHuge}, out); },
                               "k is 9223372036854775807 with 1 queries");
  it.refuses<invalid_argument>([&] { it.index.search(view_of(kRows, 2, 4, 4), {.k = kHuge / 9}, out); },
                               "with 2 queries");
  it.refuses<out_of_memory>([&] { it.index.search(kOneQuery, {.k = kHuge / 8}); }, "host memory ran out");
}

TEST(bad_input, nowhere_to_write) {
  subject it;
  float scores[3];
  std::int64_t ids[3];
  const stream s(device::cpu());
  it.refuses<invalid_argument>([&] { it.index.search(kOneQuery, {.k = 3}, {nullptr, ids}); }, "out.scores is null");
  it.refuses<invalid_argument>([&] { it.index.search(kOneQuery, {.k = 3}, {scores, nullptr}); }, "out.ids is null");
  it.refuses<invalid_argument>([&] { it.index.search(s, kOneQuery, {.k = 3}, {nullptr, ids}); }, "out.scores is null");
  EXPECT_EQ(it.index.search(view_of(kQuery, 0, 4, 4), {.k = 1}, {}), 1) << "nothing is written for no queries";
}

TEST(bad_input, ids) {
  using list = std::vector<std::int64_t>;
  const struct {
    list ids;
    const char* message;
  } cases[] = {
      {{30, -1}, "ids[1] is -1; allowed is 0 or more"},
      {{30, 30}, "ids[1] is 30; allowed is an id that no other row has"},
      {{30, 10}, "ids[1] is 10; allowed is an id that no other row has"},
      {{20, 30}, "ids[0] is 20; allowed is an id that no other row has"},
      {{30}, "ids.size() is 1; allowed is 0, or 2"},
      {{30, 31, 32}, "ids.size() is 3; allowed is 0, or 2"},
  };
  subject it;
  for (const auto& [ids, message] : cases) {
    it.refuses<invalid_argument>([&] { it.index.add(kTwoRows, ids); }, message);
    it.refuses<invalid_argument>([&] { it.index.add(stream(device::cpu()), kTwoRows, ids); }, message);
  }
  it.refuses<invalid_argument>([&] { it.index.add(view_of(kRows, 0, 4, 4), list{1}); }, "ids.size() is 1");
  it.refuses<invalid_argument>(
      [&] {
        reference_search(kTwoRows, kOneQuery, metric::l2, {.k = 1}, list{4, 4});
      },
      "ids[1] is 4");
  it.index.add(kTwoRows, list{30, 5});  // what the refused adds named is still free
  EXPECT_EQ(it.index.rows(), 4);
}

TEST(bad_input, options) {
  const auto make = [](const flat_index_options& options) { flat_index(device::cpu(), options); };
  for (const std::int64_t dim : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{65537}, kHuge}) {
    expect_error<invalid_argument>([&] { make({.dim = dim}); },
                                   "options.dim is " + std::to_string(dim) + "; allowed is 1 to 65536");
  }
  expect_error<invalid_argument>([&] { make({.dim = 4, .metric = static_cast<metric>(9)}); }, "options.metric is 9");
  expect_error<invalid_argument>([&] { make({.dim = 4, .type = static_cast<element_type>(9)}); }, "options.type is 9");
  make({.dim = 65536});
  const any_matrix_view no_columns = view_of(kRows, 2, 0, 0);
  expect_error<invalid_argument>([&] { reference_search(no_columns, no_columns, metric::l2, {}); }, "dim is 0");
}

TEST(bad_input, shapes_to_explain) {
  const search_shape good = {.rows = 10, .dim = 4};
  const auto refuses = [&](auto change, std::string_view part) {
    search_shape shape = good;
    change(shape);
    expect_error<invalid_argument>([&] { explain(device::cpu(), shape); }, part);
  };
  explain(device::cpu(), good);
  refuses([](search_shape& s) { s.rows = -1; }, "shape.rows is -1");
  refuses([](search_shape& s) { s.rows = std::int64_t{1} << 33; }, "shape.rows is 8589934592");
  refuses([](search_shape& s) { s.dim = 0; }, "dim is 0");
  refuses([](search_shape& s) { s.queries = 0; }, "shape.queries is 0");
  refuses([](search_shape& s) { s.k = 0; }, "shape.k is 0");
}

TEST(bad_input, reservations) {
  subject it;
  const auto refuses = [&](const search_limits& limits, int concurrency, std::string_view part) {
    it.refuses<invalid_argument>([&] { it.index.reserve(limits, concurrency); }, part);
  };
  refuses({.max_rows = -1}, 1, "limits.max_rows is -1");
  refuses({.max_rows = std::int64_t{1} << 32}, 1, "limits.max_rows is 4294967296");
  refuses({.max_rows = 2, .max_queries = 0}, 1, "limits.max_queries is 0");
  refuses({.max_rows = 2, .max_k = 0}, 1, "limits.max_k is 0");
  refuses({.max_rows = 2, .max_queries = kHuge / 2, .max_k = 3}, 1, "limits.max_k is 3 with");
  refuses({.max_rows = 2}, 0, "concurrency is 0");
}

TEST(bad_input, workspaces) {
  const auto make = [](const search_limits& limits) { workspace(device::cpu(), limits); };
  expect_error<invalid_argument>([&] { make({.max_rows = 0}); }, "limits.max_rows is 0");
  expect_error<invalid_argument>([&] { make({.max_rows = 1, .max_queries = 0}); }, "limits.max_queries is 0");
  expect_error<invalid_argument>([&] { make({.max_rows = 1, .max_k = -3}); }, "limits.max_k is -3");

  subject it;
  const stream s(device::cpu());
  float scores[8];
  std::int64_t ids[8];
  const auto refuses = [&](const search_limits& limits, std::string_view part) {
    workspace scratch(device::cpu(), limits);
    it.refuses<invalid_argument>([&] { it.index.search(s, scratch, kTwoRows, {.k = 3}, {scores, ids}); }, part);
  };
  refuses({.max_rows = 1, .max_queries = 2, .max_k = 3}, "rows is 2; allowed is up to 1, the workspace's max_rows");
  refuses({.max_rows = 2, .max_queries = 1, .max_k = 3}, "queries.rows is 2; allowed is up to 1");
  refuses({.max_rows = 2, .max_queries = 2, .max_k = 2}, "k is 3; allowed is up to 2");
  workspace first(device::cpu(), {.max_rows = 2, .max_queries = 2, .max_k = 3});
  const workspace second = std::move(first);
  it.refuses<invalid_argument>(
      [&] {
        it.index.search(s, first, kTwoRows, {.k = 3}, {scores, ids});
      },
      "workspace is moved from");
}

TEST(bad_input, more_rows_than_there_can_be) {
  subject it;
  // As i8 the bytes fit an int64; the rows do not fit the 32 bits of a position.
  flat_index bytes(device::cpu(), {.dim = 4, .type = element_type::i8});
  const any_matrix_view many(kRows, element_type::i8, std::int64_t{1} << 32, 4, 4);
  expect_error<invalid_argument>([&] { bytes.add(many); }, "vectors.rows is 4294967296; allowed is up to 4294967295");
  EXPECT_EQ(bytes.rows(), 0);
  EXPECT_EQ(bytes.memory().rows_bytes, 0);
  it.refuses<invalid_argument>([&] { it.index.add(view_of(kRows, core::kMaxRows - 1, 4, 4)); },
                               "vectors.rows is 4294967294; allowed is up to 4294967293 beside the 2 rows");
  expect_error<invalid_argument>([&] { reference_search(many, many, metric::l2, {.k = 1}); },
                                 "vectors.rows is 4294967296");
}

// 2^24 rows of 65,536 fp32: 4 TiB, whose elements no 32-bit and no 40-bit number counts.
TEST(bad_input, two_to_the_40_elements_are_more_than_the_memory) {
  constexpr std::int64_t kRowCount = std::int64_t{1} << 24;
  constexpr std::int64_t kDim = 65536;
  if (sysconf(_SC_PHYS_PAGES) >= kRowCount * kDim * 4 / sysconf(_SC_PAGESIZE)) GTEST_SKIP() << "4 TiB are there";
  flat_index index(device::cpu(), {.dim = kDim});
  const std::vector<float> row(kDim, 1.0f);
  index.add(matrix_view(row.data(), 1, kDim));
  const memory_use before = index.memory();
  expect_error<out_of_memory>([&] { index.reserve({.max_rows = kRowCount}); }, "4.0 TiB");
  expect_error<out_of_memory>([&] { index.add(view_of(row.data(), kRowCount, kDim, kDim)); }, "4.0 TiB");
  EXPECT_EQ(index.rows(), 1);
  EXPECT_EQ(index.memory().rows_bytes, before.rows_bytes);
  EXPECT_EQ(index.memory().device_allocations, before.device_allocations);
  EXPECT_EQ(index.search(matrix_view(row.data(), 1, kDim), {.k = 1}).scores, std::vector<float>{65536.0f});
}

// Just beyond 2^31 elements and bytes: no error, and the last row is found where it is.
TEST(bad_input, more_than_two_to_the_31_elements_are_none) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's own memory for 2 GiB of rows is beyond a test machine's";
#endif
  constexpr std::int64_t kDim = 4096;
  constexpr std::int64_t kRowCount = (std::int64_t{1} << 19) + 3;
  constexpr auto kBytes = static_cast<std::size_t>(kDim * kRowCount);
  const std::int64_t free_bytes = sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
  if (free_bytes < 3 * static_cast<std::int64_t>(kBytes) / 2) GTEST_SKIP() << "3 GiB of free memory are wanted";
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* rows = static_cast<std::uint8_t*>(mapped);  // zero pages, but for the last two rows
  std::memset(rows + (kRowCount - 2) * kDim, 1, kDim);
  std::memset(rows + (kRowCount - 1) * kDim, 2, kDim);
  flat_index index(device::cpu(), {.dim = kDim, .metric = metric::inner_product, .type = element_type::u8});
  index.add({rows, element_type::u8, kRowCount, kDim, kDim});
  munmap(mapped, kBytes);
  const std::vector<float> query(kDim, 1.0f);
  const search_result got = index.search(matrix_view(query.data(), 1, kDim), {.k = 3});
  EXPECT_EQ(got.ids, (std::vector<std::int64_t>{kRowCount - 1, kRowCount - 2, 0}));
  EXPECT_EQ(got.scores, (std::vector<float>{2 * kDim, kDim, 0}));
}

// Rows and queries whose scores are NaN, infinite, denormal or zero: no error, and the order decides.
TEST(bad_input, numbers_that_are_none_and_vectors_without_a_direction) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  constexpr float kMax = std::numeric_limits<float>::max();
  const std::vector<float> rows = {
      0,      0,     0,     0,      // no direction
      1,      2,     3,     4,      //
      kNan,   0,     0,     0,      //
      kInf,   1,     1,     1,      //
      -kInf,  1,     1,     1,      //
      kInf,   -kInf, 0,     0,      //
      kTiny,  kTiny, kTiny, kTiny,  // dot(x, x) underflows to 0
      -0.0f,  0,     -0.0f, 0,      //
      kMax,   kMax,  kMax,  kMax,   // dot(x, x) overflows
      1e-20f, 0,     0,     0,      //
      1,      2,     3,     4,      // a tie
      -1,     -2,    -3,    -4,     //
      kNan,   kNan,  kNan,  kNan,
  };
  const auto count = static_cast<std::int64_t>(rows.size() / 4);
  const any_matrix_view view = view_of(rows.data(), count, 4, 4);
  for (const char* algorithm : {"scan", "tiles"}) {
    const test::environment_value forced("SHORTLIST_FORCE_FLAT_SEARCH", algorithm);
    for (const metric by : kMetrics) {
      SCOPED_TRACE(std::string(algorithm) + " " + std::string(to_string(by)));
      flat_index index(device::cpu(), {.dim = 4, .metric = by});
      index.add(view);
      const search_result got = index.search(view, {.k = count});
      const search_result expected = reference_search(view, view, by, {.k = count});
      EXPECT_EQ(got.ids, expected.ids);
      EXPECT_TRUE(same_bits(got.scores, expected.scores));
      for (std::int64_t query = 0; query < count; ++query) {
        const auto scores = got.scores_of(query);
        const auto ids = got.ids_of(query);
        for (std::size_t i = 1; i < scores.size(); ++i) {
          if (std::isnan(scores[i - 1])) {
            EXPECT_TRUE(std::isnan(scores[i]) && ids[i - 1] < ids[i]) << "NaN comes last, by position";
          }
          if (scores[i - 1] == scores[i]) {
            EXPECT_LT(ids[i - 1], ids[i]) << "the earlier row first";
          }
        }
        if (by != metric::cosine) continue;
        for (std::size_t i = 0; i < ids.size(); ++i) {
          const bool no_direction = ids[i] == 0 || ids[i] == 6 || ids[i] == 7 || query == 0 || query == 6 || query == 7;
          if (no_direction) {
            EXPECT_EQ(scores[i], -kInf) << "query " << query << ", row " << ids[i];
          }
        }
      }
    }
  }
}

TEST(bad_input, an_unknown_algorithm_in_the_environment) {
  subject it;
  const auto search = [&] {
    const test::environment_value forced("SHORTLIST_FORCE_FLAT_SEARCH", "magic");
    it.index.search(kOneQuery, {.k = 1});
  };
  it.refuses<invalid_argument>(search, "SHORTLIST_FORCE_FLAT_SEARCH is magic; allowed is scan or tiles or certified");
}

TEST(bad_input, devices) {
  for (const char* name : {"", "gpu", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda: 1",
                           "cuda:99999999999", "cuda:0x1"}) {
    SCOPED_TRACE(name);
    expect_error<invalid_argument>([&] { device::parse(name); }, "allowed is cpu, cuda, cuda:N or best");
  }
  const bool gpu = device::best() != device::cpu();
  if (gpu) {
    expect_error<invalid_argument>([] { device::cuda(99); }, "CUDA ordinal is 99");
    expect_error<invalid_argument>([] { device::parse("cuda:99"); }, "CUDA ordinal is 99");
  } else {
    expect_error<unsupported>([] { device::cuda(99); }, "device cuda:99 is not there: ");
    expect_error<unsupported>([] { device::cuda(); }, "device cuda:0 is not there: ");
    expect_error<unsupported>([] { device::parse("cuda"); }, "device cuda:0 is not there: ");
    EXPECT_EQ(device::all(), std::vector<device>{device::cpu()});
  }
  expect_error<invalid_argument>([] { device::cuda(-1); }, "CUDA ordinal is -1; allowed is 0 or more");
}

TEST(bad_input, streams_and_buffers) {
  int something = 0;
  expect_error<invalid_argument>([&] { stream::wrap(device::cpu(), &something); }, "cuda_stream is not null");
  expect_error<invalid_argument>([] { buffer(device::cpu(), -1); }, "bytes is -1; allowed is 0 or more");
  expect_error<out_of_memory>([] { buffer(device::cpu(), std::int64_t{1} << 60); }, "1.0 EiB");
  buffer memory(device::cpu(), 4);
  const stream s(device::cpu());
  expect_error<invalid_argument>([&] { memory.upload(s, nullptr); }, "host is null");
  expect_error<invalid_argument>([&] { memory.download(s, nullptr); }, "host is null");
}

TEST(bad_input, names) {
  expect_error<invalid_argument>([] { parse_element_type("float"); },
                                 "element type is float; allowed is f32, f16, bf16, i8 or u8");
  expect_error<invalid_argument>([] { parse_metric("manhattan"); },
                                 "metric is manhattan; allowed is inner_product (ip), cosine (cos) or l2");
  expect_error<invalid_argument>([] { parse_storage("int8"); },
                                 "storage is int8; allowed is full, int8_and_full or int8_and_host");
}

// ---- files of indexes

using metadata = std::map<std::string, std::string>;

/// A file that is right in all that the container checks, with whatever metadata and tensors.
class forgery {
 public:
  metadata fields = {{"format", "shortlist.flat_index"},
                     {"format_version", "1"},
                     {"metric", "l2"},
                     {"element_type", "f32"},
                     {"rows", "2"},
                     {"dim", "4"}};
  std::vector<io::tensor_description> tensors = {{"vectors", "F32", {2, 4}}};
  std::vector<std::int64_t> ids;

  void write(const std::filesystem::path& path) const {
    io::safetensors_writer out(path, fields, tensors);
    for (const io::tensor_description& one : tensors) {
      std::int64_t bytes = one.dtype == "I64" ? 8 : one.dtype == "F32" ? 4 : one.dtype == "F16" ? 2 : 1;
      for (const std::int64_t size : one.shape) bytes *= size;
      std::vector<std::byte> data(static_cast<std::size_t>(bytes));
      if (one.name == "ids" && !ids.empty()) std::memcpy(data.data(), ids.data(), data.size());
      out.write(one.name, data.data(), bytes);
    }
    out.commit();
  }
};

template <class Error = corrupt_file, class Change>
void expect_forgery_refused(Change change, std::string_view part) {
  SCOPED_TRACE(part);
  const temporary_folder folder;
  forgery one;
  change(one);
  one.write(folder / "index");
  for (const verify checks : {verify::full, verify::header_only}) {
    expect_error<Error>([&] { flat_index::load(device::cpu(), folder / "index", checks); }, part);
  }
}

TEST(bad_index_file, the_forger_can_write_a_good_one) {
  const temporary_folder folder;
  forgery one;
  one.tensors.push_back({"ids", "I64", {2}});
  one.ids = {7, 3};
  one.write(folder / "index");
  EXPECT_EQ(flat_index::load(device::cpu(), folder / "index").search(kOneQuery, {.k = 2}).ids,
            (std::vector<std::int64_t>{7, 3}));
}

TEST(bad_index_file, fields) {
  for (const auto& [key, value, part] : {
           std::tuple("format", "shortlist.other", "format is 'shortlist.other'; allowed is 'shortlist.flat_index'"),
           std::tuple("format_version", "2", "format_version is '2'; allowed is '1'"),
           std::tuple("metric", "hamming", "metric is hamming"),
           std::tuple("element_type", "f64", "element type is f64"),
           std::tuple("element_type", "f16", "vectors"),
           std::tuple("rows", "-1", "rows"),
           std::tuple("rows", "1152921504606846976", "rows"),
           std::tuple("rows", "99999999999999999999999", "rows"),
           std::tuple("rows", "3", "vectors"),
           std::tuple("rows", "2.0", "rows"),
           std::tuple("rows", "", "rows"),
           std::tuple("dim", "0", "dim"),
           std::tuple("dim", "5", "vectors"),
           std::tuple("dim", "65537", "dim"),
       }) {
    expect_forgery_refused([&](forgery& one) { one.fields[key] = value; }, part);
    expect_forgery_refused([&](forgery& one) { one.fields.erase(key); }, key);
  }
}

TEST(bad_index_file, storage) {
  const auto stored = [](const char* type, const char* dtype, const char* name) {
    return [=](forgery& one) {
      one.fields["element_type"] = type;
      one.fields["storage"] = name;
      one.tensors = {{"vectors", dtype, {2, 4}}};
    };
  };
  expect_forgery_refused(stored("f32", "F32", "int8"), "storage is int8; allowed is full, int8_and_full");
  expect_forgery_refused(stored("u8", "U8", "int8_and_full"),
                         "storage is 'int8_and_full' with an element_type of 'u8'; allowed is 'full'");
  const temporary_folder folder;
  forgery older;  // it knows nothing of storages
  older.write(folder / "index");
  EXPECT_EQ(flat_index::load(device::cpu(), folder / "index").storage(), storage::full);
}

TEST(bad_index_file, tensors) {
  const auto set = [](std::vector<io::tensor_description> tensors) {
    return [tensors](forgery& one) { one.tensors = tensors; };
  };
  expect_forgery_refused(set({}), "vectors");
  expect_forgery_refused(set({{"vectors", "F16", {2, 4}}}), "vectors");
  expect_forgery_refused(set({{"vectors", "F32", {4, 2}}}), "vectors");
  expect_forgery_refused(set({{"vectors", "F32", {8}}}), "vectors");
  expect_forgery_refused(set({{"vectors", "F32", {2, 4}}, {"ids", "I64", {3}}}), "ids");
  expect_forgery_refused(set({{"vectors", "F32", {2, 4}}, {"ids", "F32", {2}}}), "ids");
  expect_forgery_refused(set({{"vectors", "F32", {2, 4}}, {"norms", "F32", {2}}}), "tensor 'norms' does not belong");
}

TEST(bad_index_file, ids) {
  const auto set = [](std::vector<std::int64_t> ids) {
    return [ids](forgery& one) {
      one.tensors.push_back({"ids", "I64", {2}});
      one.ids = ids;
    };
  };
  expect_forgery_refused(set({5, -2}), "ids[1] is -2; allowed is 0 or more");
  expect_forgery_refused(set({5, 5}), "ids[1] is 5; allowed is an id that no other row has");
}

// Whatever single byte changes and wherever the file ends: an error, or (where the byte pads) the same answers.
TEST(bad_index_file, changed_and_truncated_anywhere) {
  const temporary_folder folder;
  subject it;
  it.index.save(folder / "index");
  const std::string good = test::read_bytes(folder / "index");
  const search_result expected = it.index.search(kOneQuery, {.k = 2});
  const auto path = folder / "bad";
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    test::write_bytes(path, bad);
    try {
      const flat_index loaded = flat_index::load(device::cpu(), path);
      const search_result got = loaded.search(kOneQuery, {.k = 2});
      EXPECT_EQ(got.ids, expected.ids) << "byte " << at;
      EXPECT_TRUE(same_bits(got.scores, expected.scores)) << "byte " << at;
    } catch (const corrupt_file& failure) {
      ++refused;
      EXPECT_NE(std::string(failure.what()).find(path.string()), std::string::npos) << failure.what();
    }
  }
  EXPECT_GT(refused, static_cast<int>(good.size() / 2));
  // Every length near the end, where only data is missing, and some of the header's.
  for (std::size_t size = 0; size < good.size(); size += size + 200 < good.size() ? 13 : 1) {
    test::write_bytes(path, good.substr(0, size));
    for (const verify checks : {verify::full, verify::header_only}) {
      EXPECT_THROW(flat_index::load(device::cpu(), path, checks), corrupt_file) << size << " bytes";
    }
  }
}

TEST(bad_index_file, wrong_endian_and_other_formats) {
  const temporary_folder folder;
  subject it;
  it.index.save(folder / "index");
  std::string swapped = test::read_bytes(folder / "index");
  std::reverse(swapped.begin(), swapped.begin() + 8);
  test::write_bytes(folder / "swapped", swapped);
  write_fbin(folder / "rows.fbin", matrix_view(kRows, 2, 4));
  for (const char* name : {"swapped", "rows.fbin"}) {
    expect_error<corrupt_file>([&] { flat_index::load(device::cpu(), folder / name); }, name);
  }
  expect_error<io_error>([&] { flat_index::load(device::cpu(), folder / "none"); }, "none");
  expect_error<io_error>([&] { flat_index::load(device::cpu(), folder / ""); }, "");
}

TEST(bad_index_file, a_full_disk_leaves_the_old_file_and_the_index) {
  const temporary_folder folder;
  subject it;
  it.index.save(folder / "index");
  const std::string before = test::read_bytes(folder / "index");
  flat_index larger(device::cpu(), {.dim = 4});
  const std::vector<float> rows(4 * 50'000, 1.0f);
  larger.add(matrix_view(rows.data(), 50'000, 4));
  {
    const file_size_limit limit(100'000);
    expect_error<io_error>([&] { larger.save(folder / "index"); }, (folder / "index").string());
    it.refuses<io_error>([&] { larger.save(folder / "new"); }, "new");
  }
  EXPECT_EQ(test::read_bytes(folder / "index"), before);
  EXPECT_EQ(folder.files(), 1);
  EXPECT_EQ(larger.rows(), 50'000);
  larger.save(folder / "index");
  EXPECT_EQ(flat_index::load(device::cpu(), folder / "index").rows(), 50'000);
}

TEST(bad_index_file, nowhere_to_save) {
  const temporary_folder folder;
  subject it;
  it.refuses<io_error>([&] { it.index.save(folder / "no/such/folder/index"); }, "no/such/folder");
  it.refuses<io_error>([&] { it.index.save(folder / ""); }, "");
}

}  // namespace
}  // namespace shortlist
