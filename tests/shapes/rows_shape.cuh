// What the drivers of single kernel shapes share: data, times, and hashes of what was written.
//
//   DRIVER ROWS COLS K [normal|lognormal|uniform|ties_90|equal|nan|infinite|masked|ascending|scaled
//                       [max_iter N | eps X]]
//
// prints the median of 21 launches in ms, and the hashes of values and columns. Matrices that L2 could hold are as many
// as it could not. It checks nothing; two builds are compared by the hashes. What a record says is measured by
// shortlist_bench, which checks every answer.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "benchmarks/deep_like_row.hpp"
#include "core/backend.hpp"
#include "cuda/device/score.cuh"
#include "cuda/runtime/check.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::shapes {

using benchmark::deep_like_row::random_bits;
using stored = SHORTLIST_SHAPE_TYPE;
constexpr int kWarmUp = 3;
constexpr int kLaunches = 21;
constexpr std::int64_t kBeyondCache = std::int64_t{256} << 20;
constexpr unsigned kBlocks = 1056;
constexpr unsigned kThreads = 256;

/// What was compiled.
struct timed_shape {
  std::int64_t most_columns;
  bool whole_units;  // rows are multiples of 16 bytes
  bool exact;        // k is below the columns, and nothing stops early
  bool sorts;
  void (*launch)(const core::top_k_request& request, int multiprocessors);
};

/// nan: NaN in every tenth row; infinite: +inf and -inf in every row; masked: half of all values -inf; ascending: the
/// columns' numbers; scaled: normal, each row times another number.
enum class distribution : int { normal, lognormal, uniform, ties_90, equal, nan, infinite, masked, ascending, scaled };

inline distribution distribution_of(const std::string& name) {
  constexpr std::array kNames{"normal", "lognormal", "uniform", "ties_90",   "equal",
                              "nan",    "infinite",  "masked",  "ascending", "scaled"};
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<distribution>(i);
  throw std::invalid_argument("no distribution is called " + name);
}

static __global__ void fill(stored* values, std::int64_t count, std::int64_t cols, distribution of) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::uint64_t random = random_bits(static_cast<std::uint64_t>(i));
    const float one = (static_cast<float>(random >> 40) + 0.5f) * 0x1p-24f;
    const float other = static_cast<float>(random & 0xFFFFFFu) * 0x1p-24f;
    const float normal = sqrtf(-2.0f * logf(one)) * cospif(2.0f * other);
    float value = normal;
    if (of == distribution::lognormal) value = expf(normal);
    if (of == distribution::uniform) value = other;
    if (of == distribution::ties_90) value = other < 0.9f ? 0.5f : normal;
    if (of == distribution::equal) value = 1.25f;
    const std::int64_t row = i / cols;
    if (of == distribution::nan && row % 10 == 0 && i % cols == row % cols)
      value = core::float_from_bits(core::kCanonicalNan);
    if (of == distribution::infinite && i % cols == row % cols) value = INFINITY;
    if (of == distribution::infinite && i % cols == (row + cols / 2) % cols) value = -INFINITY;
    if (of == distribution::masked && other < 0.5f) value = -INFINITY;
    if (of == distribution::ascending) value = static_cast<float>(i % cols);
    if (of == distribution::scaled) value = normal * static_cast<float>(1 + row * 5 % 13);
    values[i] = cuda::narrowed<stored>(value);
  }
}

static __global__ void add_hashes(const std::uint32_t* words, std::int64_t count, unsigned long long* sum) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  unsigned long long mine = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    mine += random_bits(static_cast<std::uint64_t>(i) << 32 | words[i]);
  atomicAdd(sum, mine);
}

template <class T>
T* allocated(std::int64_t count) {
  void* memory = nullptr;
  cuda::check(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(T)), "allocating");
  return static_cast<T*>(memory);  // until the program ends
}

/// Whether the shape takes the request; the library chooses one that does.
inline void require_fitting(const timed_shape& shape, const core::top_k_request& request) {
  const std::int64_t cols = request.matrix.cols;
  const std::int64_t k = request.options.k;
  const bool stops = request.options.max_iter || request.options.eps;
  const auto require = [](bool holds, const char* name, std::int64_t value, const std::string& allowed) {
    if (!holds) throw std::invalid_argument(std::string(name) + " is " + std::to_string(value) + ", not " + allowed);
  };
  const std::int64_t most = cols - (shape.exact ? 1 : 0);
  require(request.matrix.rows >= 1, "ROWS", request.matrix.rows, "1 or more");
  require(cols >= 1 && cols <= shape.most_columns, "COLS", cols, "from 1 to " + std::to_string(shape.most_columns));
  require(!shape.whole_units || cols * sizeof(stored) % 16 == 0, "COLS", cols, "a multiple of 16 bytes");
  require(k >= 1 && k <= most, "K", k, "from 1 to " + std::to_string(most));
  if (stops && shape.exact) throw std::invalid_argument("this kind of kernel is exact: compile it with another KIND");
}

inline void run_shape(const timed_shape& shape, const std::vector<std::string>& arguments) {
  if (arguments.size() < 3 || arguments.size() == 5 || arguments.size() > 6)
    throw std::invalid_argument("usage: ROWS COLS K [DISTRIBUTION [max_iter N | eps X]]");
  core::top_k_request request{};
  request.matrix.type = sizeof(stored) == 4               ? value_type::f32
                        : std::is_same_v<stored, float16> ? value_type::f16
                                                          : value_type::bf16;
  request.matrix.rows = std::stoll(arguments[0]);
  request.matrix.cols = request.matrix.row_stride = std::stoll(arguments[1]);
  request.matrix.col_stride = 1;
  request.options.k = std::stoll(arguments[2]);
  request.options.sorted = shape.sorts;
  if (arguments.size() == 6) {
    if (arguments[4] == "max_iter") {
      request.options.max_iter = std::stoi(arguments[5]);
    } else if (arguments[4] == "eps") {
      request.options.eps = std::stof(arguments[5]);
    } else {
      throw std::invalid_argument("no early stop is called " + arguments[4]);
    }
  }
  require_fitting(shape, request);
  const std::int64_t values = request.matrix.rows * request.matrix.cols;
  const std::int64_t entries = request.matrix.rows * request.options.k;
  const auto bytes = values * static_cast<std::int64_t>(sizeof(stored));
  const std::int64_t copies = kBeyondCache / bytes + 1;
  auto* data = allocated<stored>(copies * values);
  request.out.values = allocated<stored>(entries + 1);
  request.out.indices = allocated<std::int32_t>(entries);
  request.out.indices_as = index_type::i32;
  fill<<<kBlocks, kThreads>>>(data, copies * values, request.matrix.cols,
                              distribution_of(arguments.size() > 3 ? arguments[3] : "normal"));
  cuda::check(cudaDeviceSynchronize(), "filling the matrix");

  int multiprocessors = 0;
  cuda::check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "asking the device");
  cudaEvent_t begin;
  cudaEvent_t end;
  cuda::check(cudaEventCreate(&begin), "creating an event");
  cuda::check(cudaEventCreate(&end), "creating an event");
  auto* sums = allocated<unsigned long long>(2);
  std::vector<float> times;
  for (int i = 0; i < kWarmUp + kLaunches; ++i) {
    request.matrix.data = data + i % copies * values;
    cuda::check(cudaEventRecord(begin), "recording");
    shape.launch(request, multiprocessors);
    cuda::check(cudaEventRecord(end), "recording");
    cuda::check(cudaDeviceSynchronize(), "running the kernel");
    float ms = 0.0f;
    cuda::check(cudaEventElapsedTime(&ms, begin, end), "reading the time");
    if (i >= kWarmUp) times.push_back(ms);
    if (i > 0) continue;
    cuda::check(cudaMemset(sums, 0, 2 * sizeof *sums), "clearing");
    add_hashes<<<kBlocks, kThreads>>>(static_cast<const std::uint32_t*>(request.out.values),
                                      entries * static_cast<std::int64_t>(sizeof(stored)) / 4, sums);
    add_hashes<<<kBlocks, kThreads>>>(static_cast<const std::uint32_t*>(request.out.indices), entries, sums + 1);
  }
  unsigned long long hashes[2];
  cuda::check(cudaMemcpy(hashes, sums, sizeof hashes, cudaMemcpyDeviceToHost), "reading the hashes");
  std::nth_element(times.begin(), times.begin() + kLaunches / 2, times.end());
  std::printf("%.4f ms  %016llx %016llx\n", static_cast<double>(times[kLaunches / 2]), hashes[0], hashes[1]);
}

inline int shape_main(const timed_shape& shape, int count, char** arguments) {
  try {
    run_shape(shape, {arguments + 1, arguments + count});
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", arguments[0], error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace shortlist::shapes
