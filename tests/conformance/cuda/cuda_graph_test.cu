// A search captured in a CUDA graph and replayed with other queries.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "conformance/cuda/captured_graph.hpp"
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

}  // namespace
}  // namespace shortlist::conformance
