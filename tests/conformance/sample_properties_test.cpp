// Sampling: again and again, two streams and two threads at once, any number of threads, and a row wherever it stands.
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conformance/sample_harness.hpp"
#include "conformance/sample_on_device.hpp"

namespace shortlist::conformance {
namespace {

/// Each type, each filter, and everything that a row can have beside its logits.
std::vector<sample_case> some_cases() {
  return {
      {.rows = 33, .vocab = 1000, .temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .seed = 11},
      {.type = value_type::bf16,
       .rows = 5,
       .vocab = 32'000,
       .distribution = "ties_90",
       .top_p = 0.9f,
       .history = "long_both",
       .parameters = "all_rows",
       .answer = "i64+all",
       .top_n = 20,
       .seed = 12},
      {.type = value_type::f16,
       .rows = 9,
       .vocab = 4097,
       .row_gap = 3,
       .distribution = "nan_in_some_rows",
       .mask = "bits",
       .parameters = "bad_rows",
       .top_n = 5,
       .seed = 13},
      {.rows = 7, .vocab = 257, .col_stride = 2, .min_p = 0.05f, .bias = "rows", .mask = "bytes", .seed = 14},
      {.rows = 100, .vocab = 129, .temperature = 0.0f, .penalties = "all", .history = "short_both", .seed = 15},
      {.rows = 2, .vocab = 50'257, .distribution = "narrow_band", .parameters = "seed_rows", .top_n = 500, .seed = 16},
  };
}

/// A vocabulary beyond what a GPU holds on the chip.
sample_case longest_case() {
  return {.vocab = 300'001, .distribution = "peaked", .top_p = 0.99f, .bias = "shared", .seed = 17};
}

TEST_P(SampleOnDevice, RunAfterRunIsTheSame) {
  for (const sample_way& how : sample_ways_of(where_)) {
    const forced_sample_way forced(how);
    for (const sample_case& what : some_cases()) {
      const sample_data data = make_data(what);
      const sample_answer first = run_on_device(what, data, where_);
      for (int again = 0; again < 3; ++again) {
        EXPECT_EQ(first_difference(what, run_on_device(what, data, where_), first), "") << describe(what, how);
      }
    }
  }
}

/// One thread queues on two streams, so that both streams' work is on the device at a time.
TEST_P(SampleOnDevice, TwoStreamsAtOnce) {
  constexpr int kRounds = 6;
  std::vector<sample_case> cases = some_cases();
  cases.push_back(longest_case());
  const stream streams[] = {stream(where_), stream(where_)};
  std::vector<sample_answer> expected;
  std::vector<std::unique_ptr<sample_on_device>> arrays[2];
  for (const sample_case& what : cases) {
    const sample_data data = make_data(what);
    expected.push_back(expected_answer(what, data));
    for (int s = 0; s < 2; ++s) arrays[s].push_back(std::make_unique<sample_on_device>(what, data, streams[s]));
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
      EXPECT_EQ(arrays[s][i]->changed_input(), "") << describe(cases[i], {.where = where_});
    }
  }
}

/// Each thread has a stream of its own, and they meet in different cases all the time.
TEST_P(SampleOnDevice, TwoThreadsAtOnce) {
  const std::vector<sample_case> cases = some_cases();
  std::vector<sample_data> data;
  std::vector<sample_answer> expected;
  for (const sample_case& what : cases) {
    data.push_back(make_data(what));
    expected.push_back(expected_answer(what, data.back()));
  }
  for (const sample_way& how : sample_ways_of(where_)) {
    const forced_sample_way forced(how);
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

TEST(SampleThreads, AnyNumberGivesTheSame) {
  for (const sample_case& what : some_cases()) {
    const sample_data data = make_data(what);
    const sample_answer expected = expected_answer(what, data);
    for (const std::size_t threads : {1, 2, 3, 8}) {
      const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, threads);
      for (const sample_way& how : sample_ways_of(device::cpu())) {
        const std::string failure = run_way(what, how, data, expected);
        EXPECT_TRUE(failure.empty()) << threads << " threads: " << failure;
      }
    }
  }
}

/// The rows of a batch, each put among the rows of another, at another place and with other strides.
TEST_P(SampleOnDevice, ARowIsTheSameInEveryBatch) {
  const sample_case base{.rows = 9,
                         .vocab = 3001,
                         .penalties = "all",
                         .history = "short_both",
                         .bias = "rows",
                         .mask = "bytes",
                         .parameters = "all_rows",
                         .top_n = 5};
  for (const value_type type : kLogitTypes) {
    sample_case own = base;
    own.type = type;
    own.seed = 21;
    sample_case other = own;
    other.rows = 4;
    other.row_gap = 37;
    other.col_stride = 3;
    other.mask = "bits";
    other.distribution = "nan_in_some_rows";
    other.seed = 22;
    const std::vector<sample_row> rows = make_rows(own);
    const sample_data data = lay_out(own, rows);
    for (const sample_way& how : sample_ways_of(where_)) {
      const forced_sample_way forced(how);
      const sample_answer together = run_on_device(own, data, where_);
      for (std::int64_t row = 0; row < own.rows; ++row) {
        const std::int64_t place = row % other.rows;
        std::vector<sample_row> among = make_rows(other);
        among[static_cast<std::size_t>(place)] = rows[static_cast<std::size_t>(row)];
        const sample_answer apart = run_on_device(other, lay_out(other, among), where_);
        for (std::size_t i = 0; i < output::kCount; ++i) {
          const auto array = static_cast<output::array>(i);
          EXPECT_EQ(row_bytes(own, together, array, row), row_bytes(other, apart, array, place))
              << output::kNames[i] << " of row " << row << " as row " << place << " of " << describe(other, how);
        }
      }
    }
  }
}

}  // namespace
}  // namespace shortlist::conformance
