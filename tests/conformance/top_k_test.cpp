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
  const auto start = std::chrono::steady_clock::now();
  std::int64_t ran = 0;
  std::int64_t runs = 0;
  for (const top_k_case& what : cases) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (spent.count() > settings.max_seconds || ran == settings.max_cases) break;
    const matrix_data data = make_data(what);
    const output_bytes expected = expected_bytes(what, data);
    for (const top_k_way& how : ways_for(what, where)) {
      const std::string failure = run_way(what, how, data, expected);
      EXPECT_TRUE(failure.empty()) << failure;
      ++runs;
    }
    ++ran;
  }
  fmt::print("{} of {} cases, {} runs\n", ran, cases.size(), runs);
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

/// Cases for the tests below: each type, both algorithms of section 9, whole and ragged rows. For a GPU also those that
/// take its other kernels, of more rows than it holds blocks where a block learns from a row what it does with the
/// next.
std::vector<top_k_case> some_cases(const device& where) {
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
  std::vector<top_k_case> cases = {plain, halves, brains, doubles, eps, max_iter, long_rows, many_of_long};
  if (where.kind() == device_kind::cpu) return cases;
  const auto packed = [](std::uint64_t seed) { return seed_that_begins_at(0, seed); };  // see there
  const top_k_case of_clusters{.rows = 5, .cols = 17'001, .k = 50, .sorted = true, .seed = 19};
  const top_k_case of_teams{.rows = 20, .cols = 30'001, .k = 128, .ragged = "lengths", .seed = 20};
  top_k_case resident{.type = value_type::bf16, .rows = 300, .cols = 17'003, .k = 300, .seed = 21};
  resident.outputs = "values+i32";
  const top_k_case filtered{.rows = 280, .cols = 28'000, .k = 50, .outputs = "i32", .seed = 22};
  const top_k_case held{.rows = 600, .cols = 5'000, .k = 40, .outputs = "values+i32", .seed = 23};
  top_k_case steps{.rows = 3'000, .cols = 256, .k = 32, .mode = "max_iter_8", .seed = packed(24)};
  top_k_case wide_eps{.rows = 3'000, .cols = 512, .k = 32, .mode = "eps_1e-2", .seed = packed(25)};
  top_k_case half_steps{.type = value_type::bf16, .rows = 3'000, .cols = 512, .k = 32, .seed = packed(26)};
  half_steps.mode = "max_iter_4";
  top_k_case long_half_eps{.type = value_type::f16, .rows = 4'100, .cols = 2'056, .k = 64, .seed = packed(27)};
  long_half_eps.mode = "eps_1e-2";
  // By stop_rows where that is forced; it would be planned from 16,384 rows on.
  const top_k_case long_steps{.rows = 3'000, .cols = 2'052, .k = 64, .mode = "max_iter_8", .seed = packed(28)};
  const top_k_case many_long_steps{.rows = 270, .cols = 33'000, .k = 50, .mode = "max_iter_4", .seed = 29};
  const top_k_case resident_steps{
      .type = value_type::bf16, .rows = 300, .cols = 17'003, .k = 50, .mode = "max_iter_8", .seed = 33};
  // Whose rows are looked at again.
  const top_k_case resident_few_steps{.rows = 280, .cols = 16'501, .k = 300, .mode = "max_iter_3", .seed = 34};
  const top_k_case resident_wide_eps{
      .type = value_type::f16, .rows = 280, .cols = 17'003, .k = 100, .mode = "eps_2^-7", .seed = 35};
  const top_k_case long_eps{.rows = 3, .cols = 40'000, .k = 100, .mode = "eps_1e-4", .seed = 30};
  const top_k_case long_list{.rows = 133, .cols = 33'000, .k = 3'500, .seed = 31};
  const top_k_case bracketed{.rows = 800, .cols = 17'003, .k = 12'000, .outputs = "values+i32", .seed = 36};
  // By teams of blocks.
  const top_k_case longest_steps{.rows = 3, .cols = 210'000, .k = 100, .mode = "max_iter_4", .seed = 32};
  for (const top_k_case& what : {of_clusters, of_teams, resident, filtered, held, steps, wide_eps, half_steps,
                                 long_half_eps, long_steps, many_long_steps, resident_steps, resident_few_steps,
                                 resident_wide_eps, long_eps, long_list, bracketed, longest_steps})
    cases.push_back(what);
  return cases;
}

void expect_run_after_run_is_the_same(const top_k_case& what, std::span<const top_k_way> ways) {
  const matrix_data data = make_data(what);
  for (const top_k_way& how : ways) {
    const forced_way forced(how);
    const output_bytes first = run_on_device(what, data, how.where);
    for (int again = 0; again < 3; ++again) {
      EXPECT_TRUE(run_on_device(what, data, how.where) == first) << describe(what, how);
    }
  }
}

TEST(TopKOnCpu, RunAfterRunIsTheSame) {
  const device cpu = device::cpu();
  for (const top_k_case& what : some_cases(cpu)) expect_run_after_run_is_the_same(what, ways_of(cpu));
}

/// By each way of a GPU, so that ./run sanitize can run them side by side.
class TopKOnGpu : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(By, TopKOnGpu, testing::ValuesIn(kGpuWays),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(TopKOnGpu, RunAfterRunIsTheSame) {
  const std::optional<device> gpu = first_device("cuda");
  if (!gpu) GTEST_SKIP() << "no GPU";
  const top_k_way how{*gpu, "-", GetParam()};
  int taken = 0;
  for (const top_k_case& what : some_cases(*gpu)) {
    if (!takes(how, what)) continue;
    expect_run_after_run_is_the_same(what, {&how, 1});
    ++taken;
  }
  EXPECT_GT(taken, 0);
}

/// One thread queues on two streams, so that both streams' work is on the device at a time; on a GPU in every way. The
/// CPU has finished before the second stream's is queued.
TEST_P(TopKOnDevice, TwoStreamsAtOnce) {
  constexpr int kRounds = 10;
  const std::vector<top_k_case> cases = some_cases(where_);
  const stream streams[] = {stream(where_), stream(where_)};
  std::vector<matrix_data> data;
  std::vector<output_bytes> expected;
  std::vector<std::unique_ptr<device_arrays>> arrays[2];
  for (const top_k_case& what : cases) {
    data.push_back(make_data(what));
    expected.push_back(expected_bytes(what, data.back()));
    for (int s = 0; s < 2; ++s) arrays[s].push_back(std::make_unique<device_arrays>(what, data.back(), streams[s]));
  }
  std::vector<top_k_way> ways = {{.where = where_}};
  if (where_.kind() == device_kind::cuda) ways = ways_of(where_);
  for (const top_k_way& how : ways) {
    const forced_way forced(how);
    for (int s = 0; s < 2; ++s) {
      for (std::size_t i = 0; i < cases.size(); ++i) arrays[s][i]->upload(data[i]);
    }
    queue_on_both(arrays, kRounds);
    for (int s = 0; s < 2; ++s) {
      streams[s].synchronize();
      for (std::size_t i = 0; i < cases.size(); ++i) {
        EXPECT_EQ(first_difference(cases[i], arrays[s][i]->download(), expected[i]), "") << describe(cases[i], how);
      }
    }
  }
}

/// Each thread has a stream of its own, and they meet in different cases all the time.
TEST_P(TopKOnDevice, TwoThreadsAtOnce) {
  const std::vector<top_k_case> cases = some_cases(where_);
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
  for (const top_k_case& what : some_cases(device::cpu())) {
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

/// Early stops of rows that the CPU filters, by one worker or by all: what fills up lies anywhere in the row.
TEST(TopKLongStops, OfFilteredRowsOnTheCpu) {
  constexpr std::int64_t kLongCols[] = {16'384, 20'001, 70'000, 33'000};
  constexpr std::int64_t kKs[] = {1, 50, 128};
  std::vector<top_k_case> cases;
  std::uint64_t turn = 0;
  for (const named_mode& mode : kModes) {
    if (mode.name == "exact") continue;
    for (const std::string_view distribution : row_distributions()) {
      turn++;
      top_k_case& what = cases.emplace_back(
          case_of_turn(turn, 2, kLongCols[turn % std::size(kLongCols)], kKs[turn % std::size(kKs)], distribution));
      what.mode = mode.name;
      if (turn % 7 == 0) what.outputs = "mask";
      if (turn % 4 == 0) what.ragged = "borders";
    }
  }
  run_cases(cases, device::cpu());
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
