// A search captured in a CUDA graph and replayed with other queries; captured while other threads are at work.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "conformance/cuda/captured_graph.hpp"
#include "conformance/either_device.hpp"
#include "conformance/harness.hpp"

namespace shortlist::conformance {
namespace {

constexpr metric kMetrics[] = {metric::inner_product, metric::cosine, metric::l2};

struct graph_case {
  element_type type;
  std::int64_t rows, dim, queries, k;
};

void capture_and_replay(const device& gpu, const graph_case& shape, metric by, const std::string& algorithm) {
  SCOPED_TRACE(gpu.name() + " type=" + std::string(to_string(shape.type)) + " metric=" + std::string(to_string(by)) +
               " rows=" + std::to_string(shape.rows) + " dim=" + std::to_string(shape.dim) +
               " queries=" + std::to_string(shape.queries) + " k=" + std::to_string(shape.k) + " " + algorithm);
  const forced_algorithm forced(algorithm);
  ASSERT_EQ(cudaSetDevice(gpu.ordinal()), cudaSuccess);
  constexpr std::int64_t kReplays = 4;
  dataset data = make_dataset(shape.type, "ties_90", shape.rows, shape.dim, shape.queries * kReplays, 31);
  flat_index index(gpu, {.dim = shape.dim, .metric = by, .type = shape.type, .storage = storage_for(algorithm)});
  index.add(data.row_view());
  workspace scratch(gpu, {.max_rows = shape.rows, .max_queries = shape.queries, .max_k = shape.k});
  const std::int64_t query_bytes = shape.queries * data.query_stride * static_cast<std::int64_t>(sizeof(float));
  buffer queries(gpu, query_bytes);
  buffer scores(gpu, shape.queries * shape.k * static_cast<std::int64_t>(sizeof(float)));
  buffer ids(gpu, shape.queries * shape.k * static_cast<std::int64_t>(sizeof(std::int64_t)));
  const matrix_view<const float> view(static_cast<const float*>(queries.data()), shape.queries, shape.dim,
                                      data.query_stride);

  captured_graph captured;
  ASSERT_EQ(cudaStreamCreateWithFlags(&captured.native, cudaStreamNonBlocking), cudaSuccess);
  const stream s = stream::wrap(gpu, captured.native);
  queries.upload(s, data.query_data.data());
  s.synchronize();

  // The strictest mode: a call that could wait or allocate, on any thread, makes the capture fail.
  ASSERT_EQ(cudaStreamBeginCapture(captured.native, cudaStreamCaptureModeGlobal), cudaSuccess);
  const std::int64_t k_found = index.search(
      s, scratch, view, {.k = shape.k}, {static_cast<float*>(scores.data()), static_cast<std::int64_t*>(ids.data())});
  ASSERT_EQ(cudaStreamEndCapture(captured.native, &captured.graph), cudaSuccess);
  EXPECT_EQ(k_found, std::min(shape.k, shape.rows));
  ASSERT_EQ(cudaGraphInstantiateWithFlags(&captured.executable, captured.graph, 0), cudaSuccess);

  for (std::int64_t replay = 0; replay < kReplays; ++replay) {
    dataset part = data;
    part.queries = shape.queries;
    const auto first = data.query_data.begin() + replay * shape.queries * data.query_stride;
    part.query_data.assign(first, first + shape.queries * data.query_stride);
    queries.upload(s, part.query_data.data());
    // Twice, so that the first launch must leave the scratch as it found it.
    ASSERT_EQ(cudaGraphLaunch(captured.executable, captured.native), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(captured.executable, captured.native), cudaSuccess);
    s.synchronize();
    search_result found = expected_result(part, by, shape.k);
    const search_result expected = found;
    std::fill(found.ids.begin(), found.ids.end(), -2);
    scores.download(s, found.scores.data());
    ids.download(s, found.ids.data());
    EXPECT_EQ(first_difference(found, expected), "") << "replay " << replay;
  }
}

TEST(CudaGraph, ReplayedWithOtherQueries) {
  constexpr graph_case kCases[] = {
      {element_type::f32, 20000, 384, 1, 8},    {element_type::f32, 20000, 384, 1, 100},
      {element_type::f32, 20000, 100, 16, 100}, {element_type::f16, 5000, 257, 3, 1000},
      {element_type::u8, 4097, 128, 64, 10},    {element_type::f32, 31, 3, 2, 40},
      {element_type::bf16, 3000, 64, 5, 3000},
  };
  bool found_gpu = false;
  for (const device& gpu : device::all()) {
    if (gpu.kind() != device_kind::cuda) continue;
    found_gpu = true;
    for (const graph_case& shape : kCases) {
      for (const metric by : kMetrics) {
        for (const char* algorithm : {"scan", "tiles", "plan"}) capture_and_replay(gpu, shape, by, algorithm);
        if (!has_planes(shape.type)) continue;
        for (const char* algorithm : {"certified", "certified_overflow", "certified_host"}) {
          capture_and_replay(gpu, shape, by, algorithm);
        }
      }
    }
  }
  if (!found_gpu) GTEST_SKIP() << "no GPU";
}

/// Captures and searches by one thread while others make indexes and search them for the first time, which allocates
/// and clears memory and makes graphs: neither spoils the other.
TEST(CudaGraph, CapturedWhileOtherThreadsBegin) {
  const std::optional<device> found = first_device("cuda");
  if (!found) GTEST_SKIP() << "no GPU";
  constexpr int kCaptures = 300;
  constexpr int kThreads = 6;
  const device gpu = *found;
  const dataset data = make_dataset(element_type::f32, "normal", 2000, 64, 8, 32);
  const search_result expected = expected_result(data, metric::l2, 10);
  flat_index index(gpu, {.dim = data.dim, .metric = metric::l2});
  index.add(data.row_view());
  workspace scratch(gpu, {.max_rows = data.rows, .max_queries = data.queries, .max_k = 10});
  buffer queries(gpu, data.queries * data.query_stride * static_cast<std::int64_t>(sizeof(float)));
  buffer scores(gpu, data.queries * 10 * static_cast<std::int64_t>(sizeof(float)));
  buffer ids(gpu, data.queries * 10 * static_cast<std::int64_t>(sizeof(std::int64_t)));
  std::atomic<bool> ends = false;
  std::vector<std::string> failures(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      while (!ends) {
        try {
          flat_index other(gpu, {.dim = data.dim,
                                 .metric = metric::l2,
                                 .storage = thread % 2 == 0 ? storage::full : storage::int8_and_full});
          other.add(data.row_view());
          const std::string difference = first_difference(other.search(data.query_view(), {.k = 10}), expected);
          if (!difference.empty()) throw std::runtime_error(difference);
        } catch (const std::exception& failure) {
          failures[static_cast<std::size_t>(thread)] = failure.what();
        }
      }
    });
  }
  const matrix_view<const float> view(static_cast<const float*>(queries.data()), data.queries, data.dim,
                                      data.query_stride);
  std::string first_failure;
  for (int i = 0; i < kCaptures && first_failure.empty(); ++i) {
    captured_graph captured;
    cudaError_t code = cudaStreamCreateWithFlags(&captured.native, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaStreamBeginCapture(captured.native, cudaStreamCaptureModeThreadLocal);
    try {
      index.search(stream::wrap(gpu, captured.native), scratch, view, {.k = 10},
                   {static_cast<float*>(scores.data()), static_cast<std::int64_t*>(ids.data())});
    } catch (const std::exception& failure) {
      first_failure = failure.what();
    }
    if (code == cudaSuccess) code = cudaStreamEndCapture(captured.native, &captured.graph);
    if (code != cudaSuccess && first_failure.empty()) first_failure = cudaGetErrorString(code);
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first_failure, "");
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace shortlist::conformance
