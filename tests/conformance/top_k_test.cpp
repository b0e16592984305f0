// Row-wise top k against the reference: types, shapes, options, strides, ragged rows and distributions, on every
// device, with every instruction set and algorithm. Every byte of every output is equal, and none beside it is touched.
#include "reference/top_k.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <tbb/global_control.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/either_device.hpp"
#include "conformance/top_k_harness.hpp"
#include "conformance/top_k_values.hpp"

namespace shortlist::conformance {
namespace {

// A sanitizer makes everything slower, and looks for other faults than a wrong bit: it gets each fourth case.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kReducedStep = 4;
#else
constexpr std::size_t kReducedStep = 1;
#endif

constexpr std::int64_t kReducedElements = 2'000'000;
constexpr std::int64_t kFullElements = 26'000'000;
constexpr std::uint64_t kReducedCoverings = 2;
constexpr std::uint64_t kFullCoverings = 4;

/// Some coverings of the whole product, of larger shapes in the full run.
std::vector<top_k_case> cases_of_this_run() {
  const settings& settings = run_settings();
  const std::int64_t max_elements = settings.full ? kFullElements : kReducedElements;
  const std::uint64_t coverings = settings.full ? kFullCoverings : kReducedCoverings;
  const std::size_t step = settings.full ? 1 : kReducedStep;
  std::vector<top_k_case> cases;
  for (std::uint64_t i = 0; i < coverings; ++i) {
    const std::vector<top_k_case> all = covering_top_k_cases(max_elements, settings.seed + i);
    for (std::size_t j = 0; j < all.size(); j += step) cases.push_back(all[j]);
  }
  return cases;
}

class TopKOnDevice : public EitherDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, TopKOnDevice, testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

/// Each case in every way, as many as the settings have time for.
void run_cases(const std::vector<top_k_case>& cases, device where) {
  const settings& settings = run_settings();
  const std::vector<top_k_way> ways = ways_of(where);
  const auto start = std::chrono::steady_clock::now();
  std::int64_t ran = 0;
  for (const top_k_case& what : cases) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (spent.count() > settings.max_seconds || ran == settings.max_cases) break;
    const matrix_data data = make_data(what);
    const output_bytes expected = expected_bytes(what, data);
    for (const top_k_way& how : ways) {
      const std::string failure = run_way(what, how, data, expected);
      EXPECT_TRUE(failure.empty()) << failure;
    }
    ++ran;
  }
  fmt::print("{} of {} cases, {} ways each\n", ran, cases.size(), ways.size());
}

TEST_P(TopKOnDevice, EqualsTheReferenceToTheBit) {
  if (const char* line = std::getenv(kReplayTopK)) {
    const auto [what, how] = parse_top_k_case(line);
    if (how.where != where_) GTEST_SKIP() << "the line is of another device";
    const matrix_data data = make_data(what);
    const std::string failure = run_way(what, how, data, expected_bytes(what, data));
    EXPECT_TRUE(failure.empty()) << failure;
    return;
  }
  run_cases(cases_of_this_run(), where_);
}

TEST_P(TopKOnDevice, EqualsTheReferenceAtEveryBorder) {
  const std::vector<top_k_case> all = border_top_k_cases();
  std::vector<top_k_case> cases;
  for (std::size_t i = 0; i < all.size(); i += kReducedStep) cases.push_back(all[i]);
  if (where_.kind() == device_kind::cuda) {
    for (const top_k_case& many : many_rows_top_k_cases()) cases.push_back(many);
  }
  if (run_settings().full) {
    for (const top_k_case& large : large_top_k_cases()) cases.push_back(large);
  }
  run_cases(cases, where_);
}

/// Cases for the tests below: each type, both algorithms of section 9, whole and ragged rows.
std::vector<top_k_case> some_cases() {
  top_k_case plain{.rows = 65, .cols = 1000, .k = 64, .seed = 11};
  top_k_case halves{.type = value_type::f16, .rows = 33, .cols = 8193, .k = 33, .sorted = true, .seed = 12};
  halves.distribution = "narrow_band";
  top_k_case brains{.type = value_type::bf16, .rows = 200, .cols = 257, .k = 128, .ragged = "borders", .seed = 13};
  brains.distribution = "nan_anywhere";
  top_k_case doubles{.type = value_type::f64, .rows = 7, .cols = 4096, .k = 31, .outputs = "mask", .seed = 14};
  doubles.order = order::smallest;
  top_k_case eps{.rows = 100, .cols = 512, .k = 32, .mode = "eps_1e-4", .outputs = "values+i32", .seed = 15};
  top_k_case max_iter{.rows = 100, .cols = 768, .k = 16, .mode = "max_iter_4", .ragged = "lengths", .seed = 16};
  top_k_case long_rows{.rows = 2, .cols = 300000, .k = 100, .distribution = "ties_90", .seed = 17};
  top_k_case many_of_long{.rows = 2, .cols = 300000, .k = 5000, .sorted = true, .seed = 18};
  return {plain, halves, brains, doubles, eps, max_iter, long_rows, many_of_long};
}

TEST_P(TopKOnDevice, RunAfterRunIsTheSame) {
  for (const top_k_way& how : ways_of(where_)) {
    const forced_way forced(how);
    for (const top_k_case& what : some_cases()) {
      const matrix_data data = make_data(what);
      const output_bytes first = run_on_device(what, data, where_);
      for (int again = 0; again < 3; ++again) {
        EXPECT_TRUE(run_on_device(what, data, where_) == first) << describe(what, how);
      }
    }
  }
}

/// One thread queues on two streams, so that both streams' work is on the device at a time.
TEST_P(TopKOnDevice, TwoStreamsAtOnce) {
  constexpr int kRounds = 10;
  const std::vector<top_k_case> cases = some_cases();
  const stream streams[] = {stream(where_), stream(where_)};
  std::vector<output_bytes> expected;
  std::vector<std::unique_ptr<device_arrays>> arrays[2];
  for (const top_k_case& what : cases) {
    const matrix_data data = make_data(what);
    expected.push_back(expected_bytes(what, data));
    for (int s = 0; s < 2; ++s) arrays[s].push_back(std::make_unique<device_arrays>(what, data, streams[s]));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      arrays[0][i]->queue();
      arrays[1][(i + static_cast<std::size_t>(round)) % cases.size()]->queue();
    }
  }
  for (int s = 0; s < 2; ++s) {
    streams[s].synchronize();
    for (std::size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(first_difference(cases[i], arrays[s][i]->download(), expected[i]), "")
          << describe(cases[i], {.where = where_});
    }
  }
}

/// Each thread has a stream of its own, and they meet in different cases all the time.
TEST_P(TopKOnDevice, TwoThreadsAtOnce) {
  const std::vector<top_k_case> cases = some_cases();
  std::vector<matrix_data> data;
  std::vector<output_bytes> expected;
  for (const top_k_case& what : cases) {
    data.push_back(make_data(what));
    expected.push_back(expected_bytes(what, data.back()));
  }
  for (const top_k_way& how : ways_of(where_)) {
    const forced_way forced(how);
    std::array<std::string, 2> failures;
    const auto work = [&](std::size_t thread) {
      for (std::size_t round = 0; round < 3 * cases.size(); ++round) {
        const std::size_t i = (round * (thread + 1) + thread) % cases.size();
        try {
          const std::string difference =
              first_difference(cases[i], run_on_device(cases[i], data[i], where_), expected[i]);
          if (!difference.empty()) failures[thread] = difference + " " + describe(cases[i], how);
        } catch (const std::exception& failure) {
          failures[thread] = std::string("threw: ") + failure.what() + " " + describe(cases[i], how);
        }
      }
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    for (const std::string& failure : failures) EXPECT_TRUE(failure.empty()) << failure;
  }
}

TEST(TopKThreads, AnyNumberGivesTheSame) {
  for (const top_k_case& what : some_cases()) {
    const matrix_data data = make_data(what);
    const output_bytes expected = expected_bytes(what, data);
    for (const std::size_t threads : {1, 2, 3, 8}) {
      const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
      for (const top_k_way& how : ways_of(device::cpu())) {
        const std::string failure = run_way(what, how, data, expected);
        EXPECT_TRUE(failure.empty()) << threads << " threads: " << failure;
      }
    }
  }
}

/// One ragged row whose neighbours to both sides are pages that must not even be read.
class fenced_row {
 public:
  static constexpr std::int64_t kPages = 3;  // the middle one is the row's

  fenced_row() : page_bytes_(sysconf(_SC_PAGESIZE)) {
    memory_ =
        mmap(nullptr, static_cast<std::size_t>(kPages * page_bytes_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED || mprotect(row(), static_cast<std::size_t>(page_bytes_), PROT_READ | PROT_WRITE) != 0) {
      throw std::runtime_error("no memory for a fenced row");
    }
  }
  ~fenced_row() { munmap(memory_, static_cast<std::size_t>(kPages * page_bytes_)); }
  fenced_row(const fenced_row&) = delete;
  fenced_row& operator=(const fenced_row&) = delete;

  std::int64_t page_bytes() const { return page_bytes_; }
  std::byte* all() { return static_cast<std::byte*>(memory_); }
  std::byte* row() { return all() + page_bytes_; }

 private:
  std::int64_t page_bytes_;
  void* memory_ = nullptr;
};

TEST(TopKRaggedRows, ReadNothingOutsideTheirBorders) {
  fenced_row fence;
  for (const value_type type : kTypes) {
    for (const named_mode& mode : kModes) {
      top_k_case what{.type = type, .cols = fenced_row::kPages * fence.page_bytes() / size_bytes(type)};
      what.k = what.cols / 8;
      what.mode = mode.name;
      if (!is_allowed(what, what.cols)) continue;
      // At the start of the page, at its end, and all of it.
      const std::int64_t page = what.cols / fenced_row::kPages;
      const std::pair<std::int64_t, std::int64_t> borders[] = {
          {page, page + what.k + 3}, {2 * page - what.k - 5, 2 * page}, {page, 2 * page}};
      for (const auto& [begin, end] : borders) {
        random_numbers random(static_cast<std::uint64_t>(begin));
        for (std::int64_t i = 0; i < page; ++i) {
          const std::uint64_t bits = bits_of(random.normal(), type, random);
          std::memcpy(fence.row() + i * size_bytes(type), &bits, static_cast<std::size_t>(size_bytes(type)));
        }
        const value_matrix matrix(fence.all(), type, 1, what.cols, what.cols);
        std::vector<std::int64_t> expected(static_cast<std::size_t>(what.k), -2);
        reference::top_k(matrix, {&begin, &end}, what.options(), {.indices = expected.data()});
        for (const top_k_way& how : ways_of(device::cpu())) {
          const forced_way forced(how);
          std::vector<std::int64_t> found(static_cast<std::size_t>(what.k), -2);
          top_k(stream(device::cpu()), matrix, what.options(), {.indices = found.data()}, {&begin, &end});
          EXPECT_EQ(found, expected) << begin << " to " << end << " of " << describe(what, how);
        }
      }
    }
  }
}

std::optional<device> first_gpu() {
  for (const device& where : device::all())
    if (where.kind() == device_kind::cuda && where.ordinal() == 0) return where;
  return std::nullopt;
}

/// By what the plan chooses there.
void expect_equal_on(const device& where, const top_k_case& what) {
  const matrix_data data = make_data(what);
  EXPECT_TRUE(run_on_device(what, data, where) == expected_bytes(what, data))
      << describe(what, {.where = where, .algorithm = "plan"});
}

/// So many rows that a group of threads takes several, and learns from them.
TEST(TopKManyRows, EqualTheReferenceToTheBit) {
  struct shape {
    value_type type;
    std::int64_t rows;
    std::int64_t cols;
    std::string_view mode = "exact";
    bool sorted = false;
    std::string_view ragged = "no";
  };
  constexpr shape kShapes[] = {{value_type::f32, 60'000, 64},
                               {value_type::f32, 60'000, 256},
                               {value_type::f32, 263'000, 256},
                               {value_type::f32, 263'000, 201},
                               {value_type::f32, 40'000, 255},
                               {value_type::f32, 20'000, 300},
                               {value_type::f32, 20'000, 1024},
                               {value_type::f32, 20'000, 768},
                               {value_type::f32, 6'000, 4096},
                               {value_type::f16, 70'000, 128},
                               {value_type::bf16, 80'000, 256},
                               {value_type::f16, 80'000, 256},
                               {value_type::bf16, 60'000, 96},
                               {value_type::f16, 60'000, 64},
                               {value_type::bf16, 40'000, 512},
                               {value_type::f16, 40'000, 511},
                               {value_type::bf16, 30'000, 768},
                               {value_type::f16, 20'000, 1'024, "exact", true},
                               {value_type::bf16, 20'000, 1'500},
                               {value_type::bf16, 5'000, 4096},
                               {value_type::f32, 40'000, 256, "max_iter_4"},
                               {value_type::f32, 263'000, 256, "max_iter_8"},
                               {value_type::f32, 40'000, 256, "eps_1e-4"},
                               {value_type::f32, 263'000, 256, "eps_1e-4"},
                               {value_type::f32, 60'000, 512, "eps_1e-4"},
                               {value_type::bf16, 80'000, 256, "eps_1e-4"},
                               {value_type::f16, 60'000, 300, "eps_0"},
                               {value_type::f32, 150'000, 64, "max_iter_8"},
                               {value_type::f32, 100'000, 100, "exact", true},
                               {value_type::bf16, 30'000, 700, "exact", true},
                               {value_type::f16, 60'000, 250, "exact", false, "borders"},
                               {value_type::f32, 20'000, 1'500}};
  const std::optional<device> gpu = first_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  for (const shape& of : kShapes) {
    const top_k_case what{.type = of.type,
                          .rows = of.rows,
                          .cols = of.cols,
                          .k = of.cols / 8,
                          .order = of.cols % 3 == 0 ? order::smallest : order::largest,
                          .sorted = of.sorted,
                          .mode = of.mode,
                          .outputs = "values+i32",
                          .ragged = of.ragged,
                          .distribution = "changing",
                          .seed = 19};
    expect_equal_on(*gpu, what);
  }
}

struct many_rows {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t k;
  bool sorted = false;
  std::string_view ragged = "no";
};

constexpr value_type kAnyType[] = {value_type::f32, value_type::bf16, value_type::f32, value_type::f16};
constexpr value_type kOfFloats[] = {value_type::f32};
constexpr value_type kOf16Bits[] = {value_type::bf16, value_type::bf16, value_type::f16, value_type::f16};

/// Every distribution in two of the shapes, or so many, on the first GPU, by an algorithm where it can take the shape.
void expect_equal_for_every_distribution(std::span<const many_rows> shapes, std::string_view algorithm,
                                         std::span<const value_type> types = kAnyType, int shapes_each = 2) {
  constexpr std::string_view kWritten[] = {"values+i32", "values+i64", "i32", "values"};
  const std::optional<device> gpu = first_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::string_view distribution : row_distributions()) {
    for (int i = 0; i < shapes_each; ++i) {
      const many_rows& of = shapes[turn % shapes.size()];
      const top_k_case what{.type = types[turn % types.size()],
                            .rows = of.rows,
                            .cols = of.cols,
                            .k = of.k,
                            .order = turn % 3 == 0 ? order::smallest : order::largest,
                            .sorted = of.sorted,
                            .outputs = kWritten[turn / 2 % std::size(kWritten)],
                            .row_gap = turn % 5 == 0 ? 3 : 0,
                            .ragged = of.ragged,
                            .distribution = distribution,
                            .seed = turn++};
      const matrix_data data = make_data(what);
      const std::string failure = run_way(what, {*gpu, "-", std::string(algorithm)}, data, expected_bytes(what, data));
      EXPECT_TRUE(failure.empty()) << failure;
    }
  }
}

/// So many rows that a group lists the candidates of all but its first: rows alike, and rows that a list does not
/// serve.
TEST(TopKLists, EqualTheReferenceToTheBit) {
  constexpr many_rows kShapes[] = {{8'000, 1'300, 64},  {6'000, 2'048, 100}, {3'000, 4'999, 1},   {4'000, 4'096, 17},
                                   {2'500, 8'192, 300}, {8'000, 1'536, 128}, {2'500, 9'001, 900}, {3'000, 4'104, 60}};
  expect_equal_for_every_distribution(kShapes, "plan");
}

/// So many rows of 16 bits that groups look for the borders of all but their first ones among levels: warps, blocks of
/// two to eight of them, and warps that sort.
TEST(TopKLevels, EqualTheReferenceToTheBit) {
  constexpr many_rows kShapes[] = {
      {60'000, 150, 20},         {9'000, 1'300, 70},       {9'000, 2'048, 100},   {17'000, 2'056, 128},
      {5'000, 3'001, 200},       {17'000, 4'095, 90},      {4'000, 4'096, 1'000}, {5'000, 4'200, 300},
      {2'000, 8'190, 500},       {1'500, 16'000, 700},     {25'000, 700, 50},     {900, 30'000, 5'000},
      {9'000, 1'900, 400, true}, {9'000, 1'700, 50, true}, {33'000, 300, 24},     {17'000, 640, 40},
      {9'000, 1'280, 80},        {5'000, 2'500, 64},       {5'000, 3'301, 200}};
  expect_equal_for_every_distribution(kShapes, "plan", kOf16Bits);
}

/// The same of fp32, whose levels hold values that differ: several shares for each warp of every kernel.
TEST(TopKValueLevels, EqualTheReferenceToTheBit) {
  constexpr many_rows kShapes[] = {{80'000, 64, 9},           {80'000, 120, 40},        {65'000, 190, 32},
                                   {33'000, 256, 32},         {33'000, 255, 60},        {33'000, 256, 128, true},
                                   {27'000, 384, 40},         {27'000, 510, 50},        {17'000, 512, 130},
                                   {14'000, 768, 32, true},   {9'000, 765, 128},        {9'000, 1'024, 64},
                                   {9'000, 1'000, 300, true}, {300'000, 250, 20, true}, {140'000, 256, 1}};
  constexpr int kShapesEach = 4;
  expect_equal_for_every_distribution(kShapes, "plan", kOfFloats, kShapesEach);
}

/// Long rows, more of them than there are blocks: lists that the threads hold and longer ones, in both orders.
TEST(TopKLongRows, EqualTheReferenceToTheBit) {
  constexpr many_rows kShapes[] = {{300, 17'003, 300},
                                   {280, 20'000, 2'500, true},
                                   {290, 16'500, 50},
                                   {270, 33'000, 4'096},
                                   {300, 24'001, 1'000, true},
                                   {280, 18'000, 64, true},
                                   {400, 20'000, 700, false, "borders"}};
  expect_equal_for_every_distribution(kShapes, "filter_rows");
}

/// Rows that a block holds, so many that it takes several, and learns from them.
TEST(TopKResidentRows, EqualTheReferenceToTheBit) {
  constexpr many_rows kShapes[] = {{800, 17'003, 300},   {600, 20'000, 1'500, true},          {900, 16'500, 50},
                                   {560, 24'001, 2'000}, {600, 24'001, 1'000, true},          {900, 18'000, 1, true},
                                   {900, 32'000, 200},   {800, 20'000, 700, false, "borders"}};
  expect_equal_for_every_distribution(kShapes, "resident_rows");
}

/// The same of 16 bits and best first, so many that three blocks share a multiprocessor.
TEST(TopKManyResidentRows, EqualTheReferenceToTheBit) {
  constexpr many_rows kShapes[] = {{1'700, 17'003, 60, true}, {1'700, 20'000, 250, true}};
  expect_equal_for_every_distribution(kShapes, "resident_rows", kOf16Bits);
}

/// Early stops of so many rows that a group guesses their borders from those before: every distribution in every mode.
TEST(TopKManyStops, EqualTheReferenceToTheBit) {
  struct shape {
    std::int64_t rows;
    std::int64_t cols;
    std::int64_t k;
  };
  constexpr shape kShapes[] = {{9'000, 64, 20},    {9'000, 100, 1},    {8'000, 201, 150}, {9'000, 256, 32},
                               {4'000, 500, 499},  {4'000, 512, 64},   {3'000, 768, 128}, {3'000, 640, 200},
                               {3'000, 1'000, 7},  {2'500, 1'536, 64}, {2'000, 2'001, 9}, {1'500, 4'096, 64},
                               {1'000, 9'000, 700}};
  constexpr value_type kStored[] = {value_type::f32, value_type::bf16, value_type::f32, value_type::f16};
  const std::optional<device> gpu = first_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const named_mode& mode : kModes) {
    for (const std::string_view distribution : row_distributions()) {
      for (int i = 0; i < 3; ++i, ++turn) {
        const shape& of = kShapes[turn % std::size(kShapes)];
        const top_k_case what{.type = kStored[turn / 3 % std::size(kStored)],
                              .rows = of.rows,
                              .cols = of.cols,
                              .k = of.k,
                              .order = turn % 5 == 0 ? order::smallest : order::largest,
                              .sorted = turn % 7 == 0,
                              .mode = mode.name,
                              .outputs = "values+i32",
                              .ragged = turn % 11 == 0 ? "borders" : "no",
                              .distribution = distribution,
                              .seed = turn};
        expect_equal_on(*gpu, what);
      }
    }
  }
}

/// Values that a bisection's midpoints equal, or miss by a last bit, and values whose gaps are as wide as an eps: every
/// mode, in most shapes of the kernels of short rows.
TEST(TopKManyStops, OfValuesBesideMidpoints) {
  const std::optional<device> gpu = first_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  constexpr value_type kStored[] = {value_type::f32, value_type::bf16, value_type::f32, value_type::f16};
  std::uint64_t turn = 0;
  for (const named_mode& mode : kModes) {
    for (const std::int64_t cols : {40, 64, 128, 192, 250, 256, 512, 768, 1'024, 1'500, 2'048}) {
      for (const std::string_view distribution : {"near_midpoints", "apart_by_eps"}) {
        const top_k_case what{.type = kStored[turn % std::size(kStored)],
                              .rows = 3'000,
                              .cols = cols,
                              .k = turn % 3 == 0 ? cols / 3 : cols / 8,
                              .order = turn % 5 == 0 ? order::smallest : order::largest,
                              .mode = mode.name,
                              .outputs = "values+i32",
                              .ragged = turn % 11 == 5 ? "borders" : "no",
                              .distribution = distribution,
                              .seed = turn};
        expect_equal_on(*gpu, what);
      }
      ++turn;
    }
  }
}

/// So many rows that a warp searches several of them in step.
TEST(TopKManyStops, OfSeveralRowsInStep) {
  const std::optional<device> gpu = first_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  constexpr std::string_view kSearched[] = {"eps_0", "eps_1e-4", "max_iter_4", "max_iter_8", "eps_1e-4", "eps_1e-4"};
  constexpr std::string_view kDistributions[] = {"normal",           "ties_90",      "changing",
                                                 "nan_in_tenth_row", "apart_by_eps", "apart_by_eps"};
  for (std::size_t i = 0; i < std::size(kSearched); ++i) {
    const top_k_case what{.type = value_type::f32,
                          .rows = 270'000,
                          .cols = i < 5 ? 160 : 256,
                          .k = 20,
                          .order = i % 2 == 0 ? order::smallest : order::largest,
                          .mode = kSearched[i],
                          .outputs = "values+i32",
                          .distribution = kDistributions[i],
                          .seed = i};
    expect_equal_on(*gpu, what);
  }
}

/// Cases by turns: another type each, every few of them in the other order, every other one sorted.
top_k_case case_of_turn(std::uint64_t turn, std::int64_t rows, std::int64_t cols, std::int64_t k,
                        std::string_view distribution) {
  constexpr value_type kStored[] = {value_type::f32, value_type::bf16, value_type::f16};
  return {.type = kStored[turn % 3],
          .rows = rows,
          .cols = cols,
          .k = k,
          .order = turn % 5 == 0 ? order::smallest : order::largest,
          .sorted = turn % 2 == 0,
          .outputs = "values+i32",
          .distribution = distribution,
          .seed = turn};
}

void expect_equal_by(std::string_view algorithm, const device& where, const top_k_case& what) {
  const matrix_data data = make_data(what);
  const std::string failure = run_way(what, {where, "-", std::string(algorithm)}, data, expected_bytes(what, data));
  EXPECT_TRUE(failure.empty()) << failure;
}

/// Few long rows, which blocks share: teams of one block, of several, of two sizes; ties that only columns decide.
TEST(TopKTeams, EqualTheReferenceToTheBit) {
  constexpr std::int64_t kRows[] = {1, 2, 90, 131, 180, 263, 300};
  constexpr std::int64_t kKs[] = {1, 50, 400, 2048};
  const std::optional<device> gpu = first_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::int64_t rows : kRows) {
    for (const std::int64_t k : kKs) {
      for (const std::string_view distribution : row_distributions()) {
        turn++;
        if (rows > 10 && turn % 7 != 0) continue;
        expect_equal_by("stream_rows", *gpu, case_of_turn(turn, rows, rows < 10 ? 90'001 : 9'345, k, distribution));
      }
    }
  }
}

/// Early stops of long rows, so many that a block lists candidates of most of its rows: what the bisection ends with is
/// in the list, or is not; with lists of every length.
TEST(TopKManyStops, OfLongRows) {
  constexpr std::int64_t kCols[] = {4'096, 2'057, 5'000, 2'056};
  constexpr std::int64_t kKs[] = {64, 20, 128, 250};
  constexpr std::string_view kDistributions[] = {"normal",    "near_midpoints",   "apart_by_eps",
                                                 "ties_90",   "changing",         "signed_zeros",
                                                 "lognormal", "nan_in_tenth_row", "overflowing"};
  const std::optional<device> gpu = first_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const named_mode& mode : kModes) {
    if (mode.name == "exact") continue;
    for (int i = 0; i < 3; ++i, ++turn) {
      const std::int64_t cols = kCols[turn % std::size(kCols)];
      const std::int64_t k = std::min(kKs[turn / 4 % std::size(kKs)], cols / 16);
      top_k_case what = case_of_turn(turn, 5'000, cols, k, kDistributions[turn % std::size(kDistributions)]);
      what.sorted = false;
      what.mode = mode.name;
      expect_equal_by("stop_rows", *gpu, what);
    }
  }
}

/// Early stops of rows that the CPU filters, by one worker or by all: what fills up lies anywhere in the row.
TEST(TopKLongStops, OfFilteredRowsOnTheCpu) {
  constexpr std::int64_t kCols[] = {16'384, 20'001, 70'000, 33'000};
  constexpr std::int64_t kKs[] = {1, 50, 128};
  std::uint64_t turn = 0;
  for (const named_mode& mode : kModes) {
    if (mode.name == "exact") continue;
    for (const std::string_view distribution : row_distributions()) {
      turn++;
      top_k_case what = case_of_turn(turn, 2, kCols[turn % std::size(kCols)], kKs[turn % std::size(kKs)], distribution);
      what.mode = mode.name;
      if (turn % 7 == 0) what.outputs = "mask";
      if (turn % 4 == 0) what.ragged = "borders";
      const matrix_data data = make_data(what);
      const output_bytes expected = expected_bytes(what, data);
      for (const top_k_way& way : ways_of(device::cpu())) {
        const std::string failure = run_way(what, way, data, expected);
        EXPECT_TRUE(failure.empty()) << failure;
      }
    }
  }
}

/// Rows that blocks share in portions, so that most rows are ended by a block that begins the next one: of three blocks
/// each or of two, and of two or of one.
TEST(TopKTeams, EqualTheReferenceInPortions) {
  constexpr std::int64_t kKs[] = {1, 100, 700, 2048};
  constexpr std::string_view kDistributions[] = {"normal", "ties_90", "ascending", "all_equal", "nan_in_tenth_row"};
  const std::optional<device> gpu = first_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::int64_t rows : {100, 150}) {
    for (const std::int64_t k : kKs) {
      turn++;
      top_k_case what = case_of_turn(turn, rows, 600'011, k, kDistributions[turn % std::size(kDistributions)]);
      if (what.type == value_type::f32) what.cols /= 2;
      expect_equal_by("stream_rows", *gpu, what);
    }
  }
}

/// Few rows by clusters of every size: rows of which all is on its way at once, and longer ones; lists that overflow.
TEST(TopKClusters, EqualTheReferenceToTheBit) {
  constexpr std::int64_t kRows[] = {1, 5, 17, 40, 66};
  constexpr std::int64_t kCols[] = {17'001, 128'256, 200'000};
  constexpr std::int64_t kKs[] = {1, 50, 112};
  constexpr std::int64_t kFewElements = 1'000'000;  // of cases that are all run, the others by turns
  const std::optional<device> gpu = first_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (const std::int64_t rows : kRows) {
    for (const std::int64_t cols : kCols) {
      for (const std::int64_t k : kKs) {
        for (const std::string_view distribution : row_distributions()) {
          turn++;
          if (rows * cols > kFewElements && turn % 13 != 0) continue;
          expect_equal_by("cluster_rows", *gpu, case_of_turn(turn, rows, cols, k, distribution));
        }
      }
    }
  }
}

/// Rows of every number of rounds of vectors of a block of eight, from 4 to 36 (16-bit types: 2 to 18): which are
/// looked at first, and which are held where, changes with it. With ties at the border and without; every other case is
/// unsorted. Of 4 rounds there are several cases, of other data.
TEST(TopKClusters, EqualTheReferenceForEveryNumberOfRounds) {
  constexpr std::int64_t kRound = 16'384;  // columns of fp32; of 16-bit types, half a round
  constexpr std::int64_t kMost = 36;
  constexpr std::int64_t kBeside = 77;
  constexpr std::string_view kDistributions[] = {"normal", "ties_90", "uniform"};
  const std::optional<device> gpu = first_gpu();
  if (!gpu) GTEST_SKIP() << "no GPU";
  std::uint64_t turn = 0;
  for (std::int64_t rounds = 0; rounds <= kMost; rounds++) {
    for (const std::string_view distribution : kDistributions) {
      for (int types = 0; types < 3; types++) {
        turn++;
        const std::int64_t cols = std::max<std::int64_t>(rounds, 4) * kRound + kBeside * (rounds % 3);
        expect_equal_by("cluster_rows", *gpu, case_of_turn(turn + rounds, 1, cols, 50, distribution));
      }
    }
  }
}

// The choice of cases is part of the promise: nothing that the tables name may be missing.
TEST(TopKCases, HaveEveryPairThatTheLimitsAllow) {
  const std::vector<top_k_case> cases = covering_top_k_cases(kReducedElements, run_settings().seed);
  const auto holds = [&](auto&& condition) { return std::any_of(cases.begin(), cases.end(), condition); };
  for (const value_type type : kTypes) {
    for (const std::string_view distribution : row_distributions()) {
      EXPECT_TRUE(holds([&](const top_k_case& it) { return it.type == type && it.distribution == distribution; }))
          << to_string(type) << " " << distribution;
    }
    for (const std::int64_t cols : kCols) {
      EXPECT_TRUE(holds([&](const top_k_case& it) { return it.type == type && it.cols == cols; }))
          << to_string(type) << " " << cols;
    }
  }
  for (const named_mode& mode : kModes) {
    for (const std::int64_t cols : kCols) {
      EXPECT_TRUE(holds([&](const top_k_case& it) { return it.mode == mode.name && it.cols == cols; }))
          << mode.name << " " << cols;
    }
    for (const named_outputs& outputs : kOutputs) {
      EXPECT_TRUE(holds([&](const top_k_case& it) { return it.mode == mode.name && it.outputs == outputs.name; }))
          << mode.name << " " << outputs.name;
    }
  }
  for (const std::int64_t rows : kRows) {
    EXPECT_TRUE(holds([&](const top_k_case& it) { return it.rows == rows; })) << rows;
  }
  for (const std::int64_t k : {1, 2, 16, 31, 32, 33, 64, 128, 4096, 8191, 8192, 1000000}) {
    EXPECT_TRUE(holds([&](const top_k_case& it) { return it.k == k; })) << k;
  }
}

}  // namespace
}  // namespace shortlist::conformance
