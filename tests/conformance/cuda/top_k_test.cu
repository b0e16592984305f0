// Row-wise top k captured in a CUDA graph and replayed with other data, and matrices of more than 2^31 elements.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/cuda/captured_graph.hpp"
#include "conformance/top_k_harness.hpp"

namespace shortlist::conformance {
namespace {

std::vector<device> gpus() {
  std::vector<device> found;
  for (const device& one : device::all()) {
    if (one.kind() == device_kind::cuda) found.push_back(one);
  }
  return found;
}

/// A case, and the algorithm that it is run by.
struct case_by {
  std::string_view algorithm;
  top_k_case what;
};

/// Other data for a case, which a captured call finds at the same addresses.
matrix_data next_data(top_k_case& what, const matrix_data& captured) {
  what.seed = seed_that_begins_at(captured.first, what.seed + 1);
  return make_data(what);
}

void capture_and_replay(const device& gpu, std::string_view algorithm, top_k_case what) {
  const top_k_way how{gpu, "-", std::string(algorithm)};
  SCOPED_TRACE(describe(what, how));
  const forced_way forced(how);
  EXPECT_EQ(algorithm_of(what, gpu), algorithm);
  ASSERT_EQ(cudaSetDevice(gpu.ordinal()), cudaSuccess);
  captured_graph captured;
  ASSERT_EQ(cudaStreamCreateWithFlags(&captured.native, cudaStreamNonBlocking), cudaSuccess);
  const stream s = stream::wrap(gpu, captured.native);
  const matrix_data first = make_data(what);
  device_arrays arrays(what, first, s);
  s.synchronize();

  // The strictest mode: a call that could wait or allocate, on any thread, makes the capture fail.
  ASSERT_EQ(cudaStreamBeginCapture(captured.native, cudaStreamCaptureModeGlobal), cudaSuccess);
  arrays.queue();
  ASSERT_EQ(cudaStreamEndCapture(captured.native, &captured.graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&captured.executable, captured.graph, 0), cudaSuccess);

  constexpr int kReplays = 3;
  for (int replay = 0; replay < kReplays; ++replay) {
    const matrix_data data = replay == 0 ? first : next_data(what, first);
    arrays.upload(data);
    // Twice, so that the first launch must leave the scratch as it found it.
    ASSERT_EQ(cudaGraphLaunch(captured.executable, captured.native), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(captured.executable, captured.native), cudaSuccess);
    s.synchronize();
    EXPECT_EQ(first_difference(what, arrays.download(), expected_bytes(what, data)), "") << "replay " << replay;
  }
}

TEST(TopKCudaGraph, ReplayedWithOtherData) {
  const auto packed = [](std::uint64_t seed) { return seed_that_begins_at(0, seed); };  // see there
  constexpr auto kF16 = value_type::f16;
  constexpr auto kBf16 = value_type::bf16;
  const case_by cases[] = {
      {"warp_rows", {.rows = 3000, .cols = 256, .k = 32, .outputs = "values+i32", .seed = 1}},
      {"warp_rows", {.type = kF16, .rows = 500, .cols = 1000, .k = 100, .ragged = "borders", .seed = 2}},
      {"warp_rows", {.rows = 3000, .cols = 256, .k = 32, .mode = "eps_1e-4", .seed = packed(10)}},
      {"warp_rows", {.rows = 3000, .cols = 512, .k = 64, .mode = "eps_1e-2", .seed = packed(11)}},
      {"warp_rows", {.rows = 3000, .cols = 768, .k = 64, .mode = "max_iter_8", .seed = packed(12)}},
      {"warp_rows", {.type = kBf16, .rows = 4200, .cols = 256, .k = 32, .mode = "eps_1e-4", .seed = packed(13)}},
      {"warp_rows", {.type = kF16, .rows = 4200, .cols = 200, .k = 20, .mode = "eps_1e-2", .seed = packed(14)}},
      {"warp_rows", {.type = kBf16, .rows = 3000, .cols = 768, .k = 64, .mode = "max_iter_4", .seed = packed(15)}},
      {"warp_rows", {.type = kF16, .rows = 3000, .cols = 1000, .k = 64, .mode = "max_iter_8", .seed = packed(16)}},
      {"warp_rows", {.type = kBf16, .rows = 4200, .cols = 2056, .k = 100, .mode = "max_iter_4", .seed = packed(17)}},
      {"warp_rows", {.type = kBf16, .rows = 2500, .cols = 4096, .k = 64, .mode = "max_iter_8", .seed = packed(18)}},
      {"warp_rows", {.type = kF16, .rows = 2500, .cols = 3000, .k = 300, .mode = "eps_1e-2", .seed = packed(34)}},
      {"block_rows", {.rows = 300, .cols = 8192, .k = 64, .sorted = true, .distribution = "ties_90", .seed = 3}},
      {"block_rows", {.rows = 2000, .cols = 5000, .k = 64, .outputs = "values+i32", .seed = packed(19)}},
      {"block_rows", {.type = kBf16, .rows = 1200, .cols = 8192, .k = 300, .outputs = "i32", .seed = 20}},
      {"block_rows", {.type = kBf16, .rows = 100, .cols = 20'000, .k = 500, .mode = "max_iter_4", .seed = 4}},
      {"stop_rows", {.rows = 16'384, .cols = 2052, .k = 64, .mode = "max_iter_4", .seed = packed(21)}},
      {"stop_rows", {.rows = 2000, .cols = 4096, .k = 64, .mode = "max_iter_8", .seed = 22}},
      {"stop_rows", {.type = kF16, .rows = 4000, .cols = 2049, .k = 100, .mode = "eps_1e-4", .seed = 23}},
      {"resident_rows", {.type = kBf16, .rows = 300, .cols = 50'000, .k = 2048, .outputs = "values+i32", .seed = 24}},
      {"resident_rows", {.type = kF16, .rows = 500, .cols = 20'000, .k = 50, .seed = packed(25)}},
      {"resident_rows", {.rows = 300, .cols = 17'003, .k = 300, .sorted = true, .ragged = "lengths", .seed = 26}},
      {"filter_rows", {.rows = 300, .cols = 40'000, .k = 50, .sorted = true, .seed = 6}},
      {"filter_rows", {.rows = 300, .cols = 40'000, .k = 1000, .outputs = "values+i32", .seed = 27}},
      {"filter_rows", {.type = kBf16, .rows = 280, .cols = 33'000, .k = 50, .ragged = "borders", .seed = 28}},
      {"stream_rows", {.rows = 1, .cols = 1'000'000, .k = 100, .seed = 5}},
      {"stream_rows", {.type = kF16, .rows = 20, .cols = 90'001, .k = 128, .ragged = "begins", .seed = 29}},
      {"cluster_rows", {.rows = 64, .cols = 128'256, .k = 50, .outputs = "values+i32", .seed = packed(30)}},
      {"cluster_rows", {.type = kBf16, .rows = 1, .cols = 128'256, .k = 50, .sorted = true, .seed = packed(31)}},
      {"cluster_rows", {.rows = 1, .cols = 128'256, .k = 50, .distribution = "ties_90", .seed = 32}},
      {"radix_rows", {.type = kBf16, .rows = 100, .cols = 20'000, .k = 500, .mode = "max_iter_4", .seed = 33}},
      {"radix_rows", {.rows = 2, .cols = 300'000, .k = 5000, .sorted = true, .seed = 7}},
      {"radix_rows", {.rows = 3, .cols = 100'000, .k = 3000, .outputs = "mask", .ragged = "lengths", .seed = 8}},
      {"radix_rows",
       {.type = value_type::f64, .rows = 50, .cols = 3000, .k = 31, .sorted = true, .col_stride = 2, .seed = 9}},
  };
  const std::vector<device> all = gpus();
  if (all.empty()) GTEST_SKIP() << "no GPU";
  for (const device& gpu : all) {
    for (const auto& [algorithm, what] : cases) capture_and_replay(gpu, algorithm, what);
  }
}

struct large_case {
  std::int64_t rows, cols, col_stride;
};

/// A matrix of zeros but for the last three values of the last row: of the other rows the first four columns are best.
void select_of_zeros(const device& gpu, const large_case& shape) {
  SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.cols) + " x " +
               std::to_string(shape.col_stride));
  constexpr std::int64_t kK = 4;
  constexpr std::int64_t kLast = 3;
  constexpr std::int64_t kSpare = std::int64_t{1} << 30;
  ASSERT_EQ(cudaSetDevice(gpu.ordinal()), cudaSuccess);
  const std::int64_t row_stride = shape.cols * shape.col_stride;
  const std::int64_t bytes = shape.rows * row_stride * size_bytes(value_type::f16);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (static_cast<std::int64_t>(free_bytes) < bytes + kSpare) GTEST_SKIP() << "the GPU has too little memory";

  const stream s(gpu);
  const auto native = static_cast<cudaStream_t>(s.native());
  buffer matrix(gpu, bytes);
  std::vector<std::int32_t> columns(static_cast<std::size_t>(shape.rows * kK), -2);
  buffer indices(gpu, static_cast<std::int64_t>(columns.size() * sizeof(std::int32_t)));
  ASSERT_EQ(cudaMemsetAsync(matrix.data(), 0, static_cast<std::size_t>(bytes), native), cudaSuccess);
  auto* last_row = static_cast<float16*>(matrix.data()) + (shape.rows - 1) * row_stride;
  for (std::int64_t c = shape.cols - kLast; c < shape.cols; ++c) {
    constexpr int kSomeByte = 0x3C;  // twice: a little more than 1
    ASSERT_EQ(cudaMemsetAsync(last_row + c * shape.col_stride, kSomeByte, sizeof(float16), native), cudaSuccess);
  }
  indices.upload(s, columns.data());
  top_k(s, value_matrix(matrix.data(), value_type::f16, shape.rows, shape.cols, row_stride, shape.col_stride),
        {.k = kK}, {.indices = indices.data(), .indices_as = index_type::i32});
  indices.download(s, columns.data());

  const auto first_wrong = [&] {
    for (std::int64_t i = 0; i < shape.rows * kK; ++i) {
      const std::int64_t place = i % kK;
      const bool in_last_row = i / kK == shape.rows - 1 && place >= kK - kLast;
      if (columns[static_cast<std::size_t>(i)] != (in_last_row ? shape.cols - kK + place : place)) return i;
    }
    return std::int64_t{-1};
  }();
  EXPECT_EQ(first_wrong, -1) << "the first wrong entry, of " << kK << " a row";
}

TEST(TopKCuda, MatricesOfMoreThan2To31Elements) {
  constexpr large_case kCases[] = {{9'000'000, 256, 1}, {300'000, 8192, 1},    {70'000, 32'768, 1},
                                   {50'000, 50'000, 1}, {2, 1'200'000'000, 1}, {40'000, 32'768, 2}};
  const std::vector<device> all = gpus();
  if (all.empty()) GTEST_SKIP() << "no GPU";
  for (const large_case& shape : kCases) select_of_zeros(all.front(), shape);
}

}  // namespace
}  // namespace shortlist::conformance
