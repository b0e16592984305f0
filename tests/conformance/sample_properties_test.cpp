// Sampling: again and again, two streams and two threads at once, any number of threads, and a row wherever it stands.
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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
      // Without log-probabilities: what GPUs draw from by count, under an overlay, by weight, and by arrays of
      // parameters.
      {.type = value_type::bf16,
       .rows = 12,
       .vocab = 32'771,
       .temperature = 0.8f,
       .top_k = 50,
       .top_p = 0.95f,
       .parameters = "seed_rows",
       .answer = "i32+kept",
       .seed = 31},
      {.type = value_type::bf16,
       .rows = 13,
       .vocab = 16'385,
       .distribution = "falling",
       .temperature = 0.8f,
       .top_k = 50,
       .penalties = "all",
       .history = "long_both",
       .mask = "bytes",
       .answer = "i32+status",
       .seed = 32},
      {.rows = 21, .vocab = 4097, .top_k = 20, .mask = "bits", .parameters = "seed_rows", .answer = "i64", .seed = 33},
      {.rows = 10, .vocab = 33'001, .top_p = 0.9f, .parameters = "seed_rows", .answer = "i32+kept", .seed = 34},
      {.type = value_type::f16, .rows = 40, .vocab = 8193, .min_p = 0.02f, .answer = "i32+kept", .seed = 35},
      {.type = value_type::bf16, .rows = 33, .vocab = 9001, .parameters = "all_rows", .answer = "i32+kept", .seed = 36},
      {.rows = 9,
       .vocab = 32'771,
       .distribution = "ties_90",
       .penalties = "all",
       .history = "short_both",
       .parameters = "all_rows",
       .answer = "i32+status",
       .seed = 37},
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
  queue_on_both(arrays, kRounds);
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

/// A row, the only one of its case, and the reference's answer.
struct known_row {
  sample_case own;
  sample_row row;
  sample_answer expected;
};

/// Rows that may be of one batch, for parameters that are no arrays are equal; without log-probabilities: what GPUs
/// draw from by count, under an overlay, by weight, and by arrays of parameters.
std::vector<std::vector<known_row>> rows_of_batches() {
  std::vector<std::vector<known_row>> all;
  std::uint64_t seed = 71;
  const auto add = [&](std::vector<sample_case> cases) {
    all.emplace_back();
    for (sample_case& what : cases) {
      what.answer = "i32+kept";
      what.seed = seed++;
      const std::vector<sample_row> rows = make_rows(what);
      all.back().push_back({what, rows.front(), expected_answer(what, lay_out(what, rows))});
      EXPECT_NE(row_bytes(what, all.back().back().expected, output::kept, 0), std::vector<std::byte>(4))
          << "a row without a token tells nothing: " << describe(what, {});
    }
  };
  const auto add_alike = [&](const sample_case& what, std::initializer_list<std::string_view> distributions) {
    std::vector<sample_case> cases(distributions.size(), what);
    for (std::size_t i = 0; i < cases.size(); ++i) cases[i].distribution = distributions.begin()[i];
    add(cases);
  };
  add_alike({.type = value_type::bf16,
             .vocab = 32'771,
             .temperature = 0.8f,
             .top_k = 50,
             .top_p = 0.95f,
             .parameters = "seed_rows"},
            {"normal_3", "coarse", "falling"});
  add_alike({.type = value_type::bf16,
             .vocab = 32'771,
             .temperature = 0.8f,
             .top_k = 50,
             .penalties = "all",
             .history = "long_both",
             .mask = "bytes",
             .parameters = "seed_rows"},
            {"normal_3", "ties_90", "peaked"});
  add_alike({.vocab = 33'001, .top_k = 20, .mask = "bits", .parameters = "seed_rows"}, {"normal", "runs", "coarse"});
  add_alike({.vocab = 33'001, .top_p = 0.9f, .parameters = "seed_rows"}, {"normal_3", "runs", "ties_90"});
  add_alike({.type = value_type::f16, .vocab = 16'383, .temperature = 1.5f, .top_p = 0.95f, .parameters = "seed_rows"},
            {"normal_3", "falling", "all_equal"});
  add_alike({.type = value_type::bf16, .vocab = 70'001, .min_p = 0.02f, .parameters = "seed_rows"},
            {"normal", "peaked", "coarse"});
  for (const std::string_view history : {"no", "long_both"}) {
    std::vector<sample_case> kinds(
        5, {.type = value_type::f16, .vocab = 32'771, .history = history, .parameters = "all_rows"});
    kinds[0].temperature = 0.8f;
    kinds[0].top_k = 50;
    kinds[0].top_p = 0.95f;
    kinds[1].top_p = 0.9f;
    kinds[1].penalties = "all";
    kinds[2].temperature = 0.0f;
    kinds[3].min_p = 0.05f;
    add(kinds);  // the last is not filtered
  }
  return all;
}

/// Puts rows among the others of a batch, evenly, the first at its begin: each is drawn from as if it were alone.
void expect_the_same_answers(const sample_case& batch, std::vector<sample_row> among, std::span<const known_row> rows,
                             device where) {
  const auto place_of = [&](std::size_t i) {
    return rows.size() == 1 ? 0 : i * (among.size() - 1) / (rows.size() - 1);
  };
  for (std::size_t i = 0; i < rows.size(); ++i) among[place_of(i)] = rows[i].row;
  const sample_data data = lay_out(batch, among);
  for (const sample_way& how : sample_ways_of(where)) {
    const forced_sample_way forced(how);
    const sample_answer found = run_on_device(batch, data, where);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (const output::array array : {output::tokens, output::kept}) {
        EXPECT_EQ(row_bytes(batch, found, array, static_cast<std::int64_t>(place_of(i))),
                  row_bytes(rows[i].own, rows[i].expected, array, 0))
            << output::kNames[array] << " of row " << place_of(i) << " of " << describe(batch, how)
            << ", which is that of " << describe(rows[i].own, how);
      }
    }
  }
}

/// Batches of which GPUs spread a row over eight blocks, four, two or one, alone on a multiprocessor or beside others,
/// and have one launch or more for arrays of parameters.
TEST_P(SampleOnDevice, ARowIsTheSameAmongFewAndMany) {
  constexpr std::int64_t kFew[] = {1, 3, 20};  // a CPU has a worker for each row in any case
  constexpr std::int64_t kMany[] = {1, 3, 20, 50, 100, 150, 200, 300};
  constexpr std::int64_t kOthers = 7;
  using counts = std::span<const std::int64_t>;
  for (const std::vector<known_row>& rows : rows_of_batches()) {
    sample_case batch = rows.front().own;
    batch.rows = kOthers;
    batch.distribution = "nan_in_some_rows";
    const std::vector<sample_row> others = make_rows(batch);
    for (const std::int64_t count : where_.kind() == device_kind::cpu ? counts(kFew) : counts(kMany)) {
      batch.rows = count;
      batch.seed += 1;  // lays the rows out at another alignment
      std::vector<sample_row> among;
      for (std::int64_t i = 0; i < count; ++i) among.push_back(others[static_cast<std::size_t>(i % kOthers)]);
      if (count >= std::ssize(rows)) {
        expect_the_same_answers(batch, among, rows, where_);
      } else {
        for (const known_row& row : rows) expect_the_same_answers(batch, among, {&row, 1}, where_);
      }
    }
  }
}

}  // namespace
}  // namespace shortlist::conformance
