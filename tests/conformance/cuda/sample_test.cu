// Sampling captured in a CUDA graph and replayed with other logits, parameters and offsets; matrices of more than 2^31
// elements.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/cuda/captured_graph.hpp"
#include "conformance/sample_harness.hpp"

namespace shortlist::conformance {
namespace {

std::vector<device> gpus() {
  std::vector<device> found;
  for (const device& one : device::all()) {
    if (one.kind() == device_kind::cuda) found.push_back(one);
  }
  return found;
}

/// Other rows for a case, laid out at the same addresses: histories may be shorter than the captured ones, with -1 at
/// their ends.
sample_data next_data(const sample_case& what, std::vector<sample_row> captured, std::uint64_t seed) {
  sample_case other = what;
  other.seed = seed;
  const std::vector<sample_row> rows = make_rows(other);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::int32_t> prompt = rows[i].prompt;
    std::vector<std::int32_t> generated = rows[i].generated;
    prompt.resize(captured[i].prompt.size(), -1);
    generated.resize(captured[i].generated.size(), -1);
    captured[i] = rows[i];
    captured[i].prompt = prompt;
    captured[i].generated = generated;
  }
  return lay_out(what, captured);
}

void capture_and_replay(const sample_case& what, const sample_way& how) {
  SCOPED_TRACE(describe(what, how));
  const forced_sample_way forced(how);
  ASSERT_EQ(cudaSetDevice(how.where.ordinal()), cudaSuccess);
  captured_graph captured;
  ASSERT_EQ(cudaStreamCreateWithFlags(&captured.native, cudaStreamNonBlocking), cudaSuccess);
  const stream s = stream::wrap(how.where, captured.native);
  const std::vector<sample_row> rows = make_rows(what);
  const sample_data first = lay_out(what, rows);
  sample_on_device arrays(what, first, s);
  s.synchronize();

  // The strictest mode: a call that could wait or allocate, on any thread, makes the capture fail.
  ASSERT_EQ(cudaStreamBeginCapture(captured.native, cudaStreamCaptureModeGlobal), cudaSuccess);
  arrays.queue();
  ASSERT_EQ(cudaStreamEndCapture(captured.native, &captured.graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&captured.executable, captured.graph, 0), cudaSuccess);

  constexpr std::uint64_t kReplays = 3;
  for (std::uint64_t replay = 0; replay < kReplays; ++replay) {
    const sample_data data = replay == 0 ? first : next_data(what, rows, what.seed + replay);
    arrays.upload(data);
    // Twice, so that the first launch must leave the scratch as it found it.
    ASSERT_EQ(cudaGraphLaunch(captured.executable, captured.native), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(captured.executable, captured.native), cudaSuccess);
    s.synchronize();
    // The captured call has the first data's common parameters.
    sample_data seen = data;
    seen.common = first.common;
    EXPECT_EQ(first_difference(what, arrays.download(), expected_answer(what, seen)), "") << "replay " << replay;
    EXPECT_EQ(arrays.changed_input(), "") << "replay " << replay;
  }
}

/// Without log-probabilities: rows drawn from by count, plain and under an overlay, by weight, and by arrays of
/// parameters.
std::vector<sample_case> fast_cases() {
  return {
      {.type = value_type::bf16,
       .rows = 20,
       .vocab = 32'000,
       .temperature = 0.8f,
       .top_k = 50,
       .top_p = 0.95f,
       .parameters = "seed_rows",
       .answer = "i32+kept",
       .seed = 6},
      {.rows = 33, .vocab = 1000, .temperature = 0.0f, .answer = "i32+status", .seed = 7},
      {.rows = 20, .vocab = 33'001, .top_p = 0.9f, .parameters = "seed_rows", .answer = "i32+kept", .seed = 8},
      {.type = value_type::f16,
       .rows = 70,
       .vocab = 8193,
       .temperature = 1.5f,
       .min_p = 0.02f,
       .parameters = "seed_rows",
       .answer = "i64",
       .seed = 9},
      {.rows = 5, .vocab = 50'257, .answer = "i32+kept", .seed = 10},
      // Bits that are given are an overlay in any case, others where so many bf16 logits are changed.
      {.rows = 9,
       .vocab = 4097,
       .top_k = 20,
       .mask = "bits",
       .parameters = "seed_rows",
       .answer = "i32+kept",
       .seed = 11},
      {.type = value_type::bf16,
       .rows = 13,
       .vocab = 128'256,
       .temperature = 0.8f,
       .top_k = 50,
       .top_p = 0.95f,
       .penalties = "all",
       .history = "long_both",
       .parameters = "seed_rows",
       .answer = "i32+kept",
       .seed = 12},
      {.type = value_type::bf16,
       .rows = 13,
       .vocab = 128'256,
       .top_k = 50,
       .mask = "bytes",
       .answer = "i32+status",
       .seed = 13},
      // Arrays of few logits: as planned one launch, forced two.
      {.type = value_type::bf16,
       .rows = 33,
       .vocab = 32'000,
       .parameters = "all_rows",
       .answer = "i32+kept",
       .seed = 14},
      {.rows = 150, .vocab = 1000, .parameters = "bad_rows", .answer = "i32+status", .seed = 15},
      {.type = value_type::bf16,
       .rows = 20,
       .vocab = 16'385,
       .penalties = "all",
       .history = "long_both",
       .mask = "bytes",
       .parameters = "all_rows",
       .answer = "i32+kept",
       .seed = 16},
      {.rows = 9, .vocab = 4097, .bias = "rows", .parameters = "all_rows", .answer = "i64", .seed = 17},
  };
}

TEST(SampleCudaGraph, ReplayedWithOtherData) {
  std::vector<sample_case> cases = {
      {.rows = 33, .vocab = 1000, .temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .parameters = "seed_rows"},
      {.type = value_type::bf16,
       .rows = 5,
       .vocab = 32'000,
       .history = "long_both",
       .parameters = "all_rows",
       .answer = "i64+all",
       .top_n = 20,
       .seed = 2},
      {.type = value_type::f16, .rows = 9, .vocab = 4097, .mask = "bits", .parameters = "bad_rows", .seed = 3},
      {.rows = 2, .vocab = 128'256, .bias = "rows", .mask = "shared_bytes", .parameters = "seed_rows", .seed = 4},
      {.vocab = 300'001, .distribution = "peaked", .top_p = 0.99f, .parameters = "all_rows", .seed = 5},
  };
  for (const sample_case& fast : fast_cases()) cases.push_back(fast);
  const std::vector<device> all = gpus();
  if (all.empty()) GTEST_SKIP() << "no GPU";
  for (const device& gpu : all) {
    for (const sample_way& how : sample_ways_of(gpu)) {
      for (const sample_case& what : cases) capture_and_replay(what, how);
    }
  }
}

/// More than 3 << 21 logits: of arrays of parameters, rows of either kind are planned a launch of their own; and where
/// they are changed, another before each.
TEST(SampleCudaGraph, ManyRowsOfArraysReplayedWithOtherData) {
  const sample_case plain{.type = value_type::bf16,
                          .rows = 50,
                          .vocab = 128'256,
                          .parameters = "all_rows",
                          .answer = "i32+kept",
                          .seed = 21};
  sample_case penalized = plain;
  penalized.penalties = "all";
  penalized.history = "long_both";
  penalized.mask = "bits";
  sample_case biased = plain;
  biased.bias = "shared";
  const std::vector<device> all = gpus();
  if (all.empty()) GTEST_SKIP() << "no GPU";
  for (const sample_case& what : {plain, penalized, biased}) capture_and_replay(what, {all.front(), "-", "plan"});
}

struct large_case {
  std::int64_t rows, vocab, col_stride;
};

/// Logits of zeros but for the last of the last row: of the other rows the best token is 0.
void sample_of_zeros(const sample_way& how, const large_case& shape) {
  SCOPED_TRACE(how.algorithm + " " + std::to_string(shape.rows) + " x " + std::to_string(shape.vocab) + " x " +
               std::to_string(shape.col_stride));
  constexpr std::int64_t kSpare = std::int64_t{1} << 30;
  const forced_sample_way forced(how);
  ASSERT_EQ(cudaSetDevice(how.where.ordinal()), cudaSuccess);
  const std::int64_t row_stride = shape.vocab * shape.col_stride;
  const std::int64_t bytes = shape.rows * row_stride * size_bytes(value_type::f16);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (static_cast<std::int64_t>(free_bytes) < bytes + kSpare) GTEST_SKIP() << "the GPU has too little memory";

  const stream s(how.where);
  const auto native = static_cast<cudaStream_t>(s.native());
  buffer logits(how.where, bytes);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(shape.rows), -2);
  device_copy<std::int32_t> device_tokens(s, tokens);
  ASSERT_EQ(cudaMemsetAsync(logits.data(), 0, static_cast<std::size_t>(bytes), native), cudaSuccess);
  constexpr int kSomeByte = 0x3C;  // twice: a little more than 1
  auto* last =
      static_cast<float16*>(logits.data()) + (shape.rows - 1) * row_stride + (shape.vocab - 1) * shape.col_stride;
  ASSERT_EQ(cudaMemsetAsync(last, kSomeByte, sizeof(float16), native), cudaSuccess);
  sample(s, value_matrix(logits.data(), value_type::f16, shape.rows, shape.vocab, row_stride, shape.col_stride),
         {.temperature = 0.0f}, {.tokens = device_tokens.data()});
  device_tokens.download(s, tokens);

  const auto first_wrong = [&] {
    for (std::int64_t row = 0; row < shape.rows; ++row) {
      const std::int64_t best = row == shape.rows - 1 ? shape.vocab - 1 : 0;
      if (tokens[static_cast<std::size_t>(row)] != best) return row;
    }
    return std::int64_t{-1};
  }();
  EXPECT_EQ(first_wrong, -1) << "the first row with a wrong token";
}

TEST(SampleCuda, MatricesOfMoreThan2To31Elements) {
  constexpr large_case kCases[] = {
      {2'300'000, 1000, 1}, {17'000, 128'256, 1}, {300, 8'000'000, 1}, {9'000, 128'256, 2}};
  const std::vector<device> all = gpus();
  if (all.empty()) GTEST_SKIP() << "no GPU";
  for (const sample_way& how : sample_ways_of(all.front())) {
    for (const large_case& shape : kCases) sample_of_zeros(how, shape);
  }
}

}  // namespace
}  // namespace shortlist::conformance
