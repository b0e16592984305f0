// Row-wise top k captured in a CUDA graph and replayed with other data, and matrices of more than 2^31 elements.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/cuda/captured_graph.hpp"
#include "conformance/top_k_harness.hpp"
#include "conformance/top_k_values.hpp"

namespace shortlist::conformance {
namespace {

std::vector<device> gpus() {
  std::vector<device> found;
  for (const device& one : device::all()) {
    if (one.kind() == device_kind::cuda) found.push_back(one);
  }
  return found;
}

/// A case, and the algorithm that it is run by, or "plan".
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
  if (algorithm != "plan") {
    EXPECT_EQ(algorithm_of(what, gpu), algorithm);
  }
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
      {"resident_rows", {.type = kBf16, .rows = 300, .cols = 50'000, .k = 900, .mode = "max_iter_8", .seed = 40}},
      {"resident_rows",
       {.rows = 600, .cols = 17'000, .k = 50, .mode = "eps_1e-4", .outputs = "i32", .seed = packed(41)}},
      {"filter_rows", {.rows = 300, .cols = 40'000, .k = 50, .sorted = true, .seed = 6}},
      {"filter_rows", {.rows = 300, .cols = 40'000, .k = 1000, .outputs = "values+i32", .seed = 27}},
      {"filter_rows", {.type = kBf16, .rows = 280, .cols = 33'000, .k = 50, .ragged = "borders", .seed = 28}},
      {"filter_rows", {.rows = 140, .cols = 40'000, .k = 5000, .outputs = "values+i32", .seed = 37}},
      {"filter_rows", {.rows = 280, .cols = 40'000, .k = 500, .mode = "max_iter_4", .seed = 38}},
      {"filter_rows", {.type = kBf16, .rows = 280, .cols = 33'000, .k = 50, .mode = "eps_1e-4", .seed = 39}},
      {"filter_rows", {.type = kF16, .rows = 70, .cols = 33'000, .k = 50, .sorted = true, .mode = "max_iter_8"}},
      {"stream_rows", {.rows = 1, .cols = 1'000'000, .k = 100, .seed = 5}},
      {"stream_rows", {.type = kF16, .rows = 20, .cols = 90'001, .k = 128, .ragged = "begins", .seed = 29}},
      {"cluster_rows", {.rows = 64, .cols = 128'256, .k = 50, .outputs = "values+i32", .seed = packed(30)}},
      {"cluster_rows", {.type = kBf16, .rows = 1, .cols = 128'256, .k = 50, .sorted = true, .seed = packed(31)}},
      {"cluster_rows", {.rows = 1, .cols = 128'256, .k = 50, .distribution = "ties_90", .seed = 32}},
      {"cluster_rows", {.rows = 64, .cols = 128'256, .k = 50, .mode = "max_iter_4", .seed = packed(41)}},
      {"cluster_rows", {.type = kBf16, .rows = 16, .cols = 50'001, .k = 50, .sorted = true, .mode = "eps_1e-4"}},
      {"radix_rows", {.type = kBf16, .rows = 100, .cols = 20'000, .k = 500, .mode = "max_iter_4", .seed = 33}},
      {"radix_rows", {.rows = 2, .cols = 300'000, .k = 5000, .sorted = true, .seed = 7}},
      {"radix_rows", {.rows = 3, .cols = 100'000, .k = 3000, .outputs = "mask", .ragged = "lengths", .seed = 8}},
      {"radix_rows",
       {.type = value_type::f64, .rows = 50, .cols = 3000, .k = 31, .sorted = true, .col_stride = 2, .seed = 9}},
      {"stream_rows",
       {.rows = 60, .cols = 210'000, .k = 50, .mode = "max_iter_4", .outputs = "values+i32", .seed = 35}},
      {"stream_rows", {.rows = 3, .cols = 300'000, .k = 100, .sorted = true, .mode = "eps_1e-4", .seed = 36}},
      // Behind another kernel's exact search: a block for each row, and several.
      {"plan", {.rows = 60, .cols = 210'000, .k = 600, .mode = "max_iter_4", .outputs = "values+i32", .seed = 40}},
      {"plan", {.rows = 3, .cols = 300'000, .k = 1000, .sorted = true, .mode = "eps_1e-4", .seed = 41}},
  };
  const std::vector<device> all = gpus();
  if (all.empty()) GTEST_SKIP() << "no GPU";
  for (const device& gpu : all) {
    for (const auto& [algorithm, what] : cases) capture_and_replay(gpu, algorithm, what);
  }
}

constexpr std::int64_t kMany = std::int64_t{1} << 31;
constexpr int kMarks = 3;
constexpr std::int64_t kBeside = 8;  // more columns than a ragged row lacks at either end

/// Rows of zeros but for three marks each, towards their ends, at columns that change from row to row. What lies
/// outside a ragged row is better than the marks.
struct marked_rows {
  std::int64_t rows, cols, row_stride, col_stride;
  std::int64_t span;  // of columns that a mark may have
  bool has_begins, has_ends;
  int value_bytes;
  std::uint64_t marks[kMarks];  // bits, the worst mark first
  std::uint64_t outside;

  __host__ __device__ std::int64_t begin(std::int64_t row) const { return has_begins ? row % kBeside : 0; }
  __host__ __device__ std::int64_t end(std::int64_t row) const { return has_ends ? cols - row % kBeside : cols; }
  __host__ __device__ std::int64_t column(std::int64_t row, int mark) const {
    constexpr std::int64_t kStep = 7;
    return cols - kBeside - (kMarks - mark) * span + (row * kStep + mark) % span;
  }
};

marked_rows marked_rows_of(const top_k_case& what) {
  constexpr double kMarkValues[] = {2.0, 3.0, 3.5};
  constexpr double kOutside = 9.0;
  constexpr std::int64_t kSpans = 16;  // of a row
  const double sign = what.order == order::largest ? 1.0 : -1.0;
  random_numbers random(what.seed);
  const named_ragged& ragged = named(kRagged, what.ragged);
  marked_rows of{what.rows,
                 what.cols,
                 what.row_stride(),
                 what.col_stride,
                 what.cols / kSpans,
                 ragged.begins,
                 ragged.ends,
                 static_cast<int>(size_bytes(what.type)),
                 {},
                 bits_of(sign * kOutside, what.type, random)};
  for (int i = 0; i < kMarks; ++i) of.marks[i] = bits_of(sign * kMarkValues[i], what.type, random);
  return of;
}

/// What is selected of each row: some marks, and the first of the other columns.
struct marked_answer {
  int marks[kMarks];  // in the order of the output
  int count;          // of those
  std::int64_t others;
  bool best_first;

  /// Which mark an entry is; negative or `count` and more: one of the others.
  __host__ __device__ std::int64_t mark_at(std::int64_t place) const { return best_first ? place : place - others; }
  __host__ __device__ std::int64_t other_at(std::int64_t place) const { return best_first ? place - count : place; }
};

/// By docs/ordering.md, section 9. Of 2, 3 and 3.5 and zeros the first midpoint is 1.75, which more than k = 2 columns
/// reach: one step ends there, with the first two marks; an eps of 0.5 ends with 3.5 above its bracket, and the first
/// mark in it; a small one goes on to 2.625, which k reach.
marked_answer answer_of(const top_k_case& what) {
  if (what.mode == "max_iter_1") return {{0, 1}, 2, 0, false};
  if (what.mode == "eps_0.5") return {{0, 2}, 2, 0, false};
  if (what.mode == "eps_1e-4") return {{1, 2}, 2, 0, false};
  if (what.sorted) return {{2, 1, 0}, kMarks, what.k - kMarks, true};
  return {{0, 1, 2}, kMarks, what.k - kMarks, false};
}

/// Whether the answer is that of the rows: as many as k, and the other columns before the marks.
bool is_answer_of(const top_k_case& what, const marked_rows& of, const marked_answer& answer) {
  return answer.count + answer.others == what.k && of.span > 0 &&
         kBeside + answer.others <= what.cols - kBeside - kMarks * of.span;
}

__device__ void store(std::byte* to, std::uint64_t bits, int bytes) {
  for (int i = 0; i < bytes; i++) to[i] = static_cast<std::byte>(bits >> (8 * i) & 0xFF);
}
__device__ std::uint64_t load(const std::byte* from, int bytes) {
  std::uint64_t bits = 0;
  for (int i = 0; i < bytes; i++) bits |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
  return bits;
}
__device__ std::int64_t first_of_thread() { return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ std::int64_t threads() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

/// @param data zeros. @param begins,ends [rows], or null.
__global__ void mark_rows(marked_rows of, std::byte* data, std::int64_t* begins, std::int64_t* ends) {
  for (std::int64_t row = first_of_thread(); row < of.rows; row += threads()) {
    const auto set = [&](std::int64_t column, std::uint64_t bits) {
      store(data + (row * of.row_stride + column * of.col_stride) * of.value_bytes, bits, of.value_bytes);
    };
    for (int i = 0; i < kMarks; i++) set(of.column(row, i), of.marks[i]);
    for (std::int64_t column = 0; column < of.begin(row); column++) set(column, of.outside);
    for (std::int64_t column = of.end(row); column < of.cols; column++) set(column, of.outside);
    if (begins) begins[row] = of.begin(row);
    if (ends) ends[row] = of.end(row);
  }
}

/// @param values,indices [rows, k], or null. @param first_wrong an entry; not below it before.
__global__ void find_wrong_entry(marked_rows of, marked_answer answer, std::int64_t k, const std::byte* values,
                                 const std::byte* indices, int index_bytes, unsigned long long* first_wrong) {
  for (std::int64_t i = first_of_thread(); i < of.rows * k; i += threads()) {
    const std::int64_t row = i / k;
    const std::int64_t place = i - row * k;
    const std::int64_t mark = answer.mark_at(place);
    const bool is_mark = mark >= 0 && mark < answer.count;
    const std::int64_t column = is_mark ? of.column(row, answer.marks[mark]) : of.begin(row) + answer.other_at(place);
    const std::uint64_t bits = is_mark ? of.marks[answer.marks[mark]] : 0;
    if ((indices && load(indices + i * index_bytes, index_bytes) != static_cast<std::uint64_t>(column)) ||
        (values && load(values + i * of.value_bytes, of.value_bytes) != bits))
      atomicMin(first_wrong, static_cast<unsigned long long>(i));
  }
}

/// The same of a mask, [rows, cols].
__global__ void find_wrong_byte(marked_rows of, marked_answer answer, const std::byte* mask,
                                unsigned long long* first_wrong) {
  for (std::int64_t i = first_of_thread(); i < of.rows * of.cols; i += threads()) {
    const std::int64_t row = i / of.cols;
    const std::int64_t column = i - row * of.cols;
    bool chosen = column >= of.begin(row) && column < of.begin(row) + answer.others;
    for (int j = 0; j < answer.count; j++) chosen = chosen || column == of.column(row, answer.marks[j]);
    if (mask[i] != std::byte{chosen}) atomicMin(first_wrong, static_cast<unsigned long long>(i));
  }
}

/// Of marked rows, made and looked at on the device.
void select_marks(const device& gpu, std::string_view algorithm, const top_k_case& what) {
  constexpr std::int64_t kSpare = std::int64_t{2} << 30;
  constexpr int kBlocks = 4096;
  constexpr int kThreads = 256;
  constexpr int kUnwritten = 0xA5;
  const top_k_way how{gpu, "-", std::string(algorithm)};
  SCOPED_TRACE(describe(what, how));
  const forced_way forced(how);
  EXPECT_EQ(algorithm_of(what, gpu), algorithm);
  ASSERT_EQ(cudaSetDevice(gpu.ordinal()), cudaSuccess);

  const marked_rows of = marked_rows_of(what);
  const marked_answer answer = answer_of(what);
  ASSERT_TRUE(is_answer_of(what, of, answer));
  const named_outputs& wanted = named(kOutputs, what.outputs);
  const bool has_mask = !wanted.values && !wanted.indices;
  const int index_bytes = wanted.indices_as == index_type::i32 ? 4 : 8;
  const std::int64_t matrix_bytes = what.rows * of.row_stride * of.value_bytes;
  const std::int64_t values_bytes = wanted.values ? what.rows * what.k * of.value_bytes : 0;
  const std::int64_t indices_bytes = wanted.indices ? what.rows * what.k * index_bytes : 0;
  const std::int64_t mask_bytes = has_mask ? what.rows * what.cols : 0;
  const std::int64_t borders_bytes = what.rows * static_cast<std::int64_t>(sizeof(std::int64_t));
  const std::int64_t begins_bytes = of.has_begins ? borders_bytes : 0;
  const std::int64_t ends_bytes = of.has_ends ? borders_bytes : 0;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (static_cast<std::int64_t>(free_bytes) <
      matrix_bytes + values_bytes + indices_bytes + mask_bytes + begins_bytes + ends_bytes + kSpare)
    GTEST_SKIP() << "the GPU has too little memory";

  const stream s(gpu);
  const auto native = static_cast<cudaStream_t>(s.native());
  const auto filled = [&](std::int64_t bytes, int byte) {
    buffer array(gpu, bytes);
    if (bytes > 0) EXPECT_EQ(cudaMemsetAsync(array.data(), byte, static_cast<std::size_t>(bytes), native), cudaSuccess);
    return array;
  };
  buffer matrix = filled(matrix_bytes, 0);
  buffer values = filled(values_bytes, kUnwritten);
  buffer indices = filled(indices_bytes, kUnwritten);
  buffer mask = filled(mask_bytes, kUnwritten);
  buffer begins = filled(begins_bytes, 0);
  buffer ends = filled(ends_bytes, 0);
  buffer first_wrong = filled(sizeof(unsigned long long), 0xFF);
  const auto bytes_of = [](buffer& array) {
    return array.bytes() > 0 ? static_cast<std::byte*>(array.data()) : nullptr;
  };
  auto* const begin_of = reinterpret_cast<std::int64_t*>(bytes_of(begins));
  auto* const end_of = reinterpret_cast<std::int64_t*>(bytes_of(ends));
  mark_rows<<<kBlocks, kThreads, 0, native>>>(of, bytes_of(matrix), begin_of, end_of);

  top_k(s, value_matrix(matrix.data(), what.type, what.rows, what.cols, of.row_stride, of.col_stride), what.options(),
        {.values = bytes_of(values),
         .indices = bytes_of(indices),
         .indices_as = wanted.indices_as,
         .mask = reinterpret_cast<std::uint8_t*>(bytes_of(mask))},
        {begin_of, end_of});

  auto* const wrong = static_cast<unsigned long long*>(first_wrong.data());
  if (has_mask) {
    find_wrong_byte<<<kBlocks, kThreads, 0, native>>>(of, answer, bytes_of(mask), wrong);
  } else {
    find_wrong_entry<<<kBlocks, kThreads, 0, native>>>(of, answer, what.k, bytes_of(values), bytes_of(indices),
                                                       index_bytes, wrong);
  }
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  unsigned long long first = 0;
  first_wrong.download(s, &first);
  const auto entries = static_cast<unsigned long long>(has_mask ? what.cols : what.k);
  EXPECT_EQ(first, std::numeric_limits<unsigned long long>::max())
      << "row " << first / entries << " position " << first % entries << " is wrong";
}

TEST(TopKCuda, MatricesOfMoreThan2To31Elements) {
  constexpr auto kF16 = value_type::f16;
  constexpr auto kBf16 = value_type::bf16;
  constexpr auto kSmallest = order::smallest;
  const case_by cases[] = {
      {"warp_rows", {.rows = 9'000'000, .cols = 256, .k = 4, .outputs = "values+i32"}},
      {"warp_rows", {.type = kF16, .rows = 9'000'000, .cols = 256, .k = 4, .outputs = "values"}},
      {"warp_rows", {.type = kBf16, .rows = 9'000'000, .cols = 256, .k = 4, .sorted = true}},
      {"warp_rows", {.rows = 9'000'000, .cols = 255, .k = 4, .order = kSmallest, .outputs = "i32"}},
      {"warp_rows", {.rows = 9'000'000, .cols = 256, .k = 4, .outputs = "i32", .ragged = "borders"}},
      {"warp_rows", {.rows = 9'000'000, .cols = 256, .k = 2, .mode = "max_iter_1", .outputs = "i32"}},
      {"warp_rows", {.rows = 9'000'000, .cols = 256, .k = 2, .mode = "eps_0.5", .outputs = "values+i32"}},
      {"warp_rows", {.rows = 9'000'000, .cols = 256, .k = 2, .mode = "eps_1e-4", .outputs = "values+i32"}},
      {"warp_rows", {.type = kBf16, .rows = 9'000'000, .cols = 256, .k = 2, .mode = "max_iter_1", .outputs = "i32"}},
      {"warp_rows", {.type = kF16, .rows = 600'000, .cols = 4096, .k = 2, .mode = "eps_0.5", .outputs = "i32"}},
      {"warp_rows", {.rows = 1'200'000, .cols = 2000, .k = 4, .order = kSmallest, .outputs = "values+i32"}},
      {"warp_rows", {.type = kBf16, .rows = 300'000, .cols = 8192, .k = 4, .outputs = "values+i32"}},
      {"block_rows", {.rows = 270'000, .cols = 8192, .k = 4, .outputs = "values+i32"}},
      {"block_rows", {.type = kF16, .rows = 270'000, .cols = 8192, .k = 4, .outputs = "values+i32"}},
      {"block_rows", {.type = kBf16, .rows = 90'000, .cols = 32'000, .k = 4, .sorted = true, .outputs = "i32"}},
      {"block_rows", {.type = kF16, .rows = 270'000, .cols = 8192, .k = 4, .order = kSmallest, .ragged = "borders"}},
      {"block_rows", {.type = kBf16, .rows = 270'000, .cols = 8200, .k = 2, .mode = "eps_0.5", .outputs = "i32"}},
      {"stop_rows", {.rows = 540'000, .cols = 4096, .k = 2, .mode = "max_iter_1", .outputs = "values+i32"}},
      {"stop_rows", {.type = kBf16, .rows = 540'000, .cols = 4104, .k = 2, .mode = "eps_0.5", .outputs = "i32"}},
      {"resident_rows", {.rows = 130'000, .cols = 17'000, .k = 4, .outputs = "values+i32"}},
      {"resident_rows", {.type = kF16, .rows = 50'000, .cols = 50'000, .k = 4, .outputs = "values+i32"}},
      {"resident_rows", {.type = kBf16, .rows = 130'000, .cols = 17'003, .k = 4, .sorted = true, .outputs = "i32"}},
      {"resident_rows", {.type = kBf16, .rows = 130'000, .cols = 17'000, .k = 4, .ragged = "borders"}},
      {"filter_rows", {.rows = 60'000, .cols = 40'000, .k = 4, .outputs = "values+i32"}},
      {"filter_rows", {.type = kF16, .rows = 60'000, .cols = 40'001, .k = 4, .sorted = true, .outputs = "i32"}},
      {"filter_rows", {.type = kBf16, .rows = 25'000, .cols = 100'000, .k = 4, .ragged = "lengths"}},
      {"filter_rows", {.rows = 60'000, .cols = 40'000, .k = 2, .mode = "eps_0.5", .outputs = "i32"}},
      {"filter_rows",
       {.type = kBf16, .rows = 60'000, .cols = 40'001, .k = 2, .mode = "max_iter_1", .ragged = "borders"}},
      {"stream_rows", {.type = kF16, .rows = 2, .cols = 1'200'000'000, .k = 4, .outputs = "values+i32"}},
      {"stream_rows", {.rows = 66, .cols = 35'000'000, .k = 4, .sorted = true, .outputs = "i32"}},
      {"stream_rows", {.type = kBf16, .rows = 1, .cols = 3'000'000'000, .k = 4}},
      {"stream_rows", {.type = kF16, .rows = 300, .cols = 8'000'000, .k = 4, .order = kSmallest, .ragged = "borders"}},
      {"cluster_rows", {.rows = 11'000, .cols = 200'000, .k = 4, .outputs = "values+i32"}},
      {"cluster_rows", {.type = kF16, .rows = 11'000, .cols = 199'999, .k = 4, .sorted = true, .outputs = "i32"}},
      {"cluster_rows", {.type = kBf16, .rows = 11'000, .cols = 200'000, .k = 4, .ragged = "begins"}},
      {"radix_rows", {.type = kF16, .rows = 40'000, .cols = 60'000, .k = 4, .outputs = "i32", .col_stride = 2}},
      {"radix_rows", {.type = value_type::f64, .rows = 9'000'000, .cols = 256, .k = 4, .sorted = true}},
      {"radix_rows", {.rows = 50'000, .cols = 50'000, .k = 2, .mode = "eps_0.5", .outputs = "i32"}},
      {"radix_rows",
       {.type = kBf16, .rows = 50'000, .cols = 50'000, .k = 2, .mode = "max_iter_1", .ragged = "borders"}},
      {"radix_rows", {.type = kF16, .rows = 1, .cols = 3'000'000'000, .k = 5000}},
  };
  const std::vector<device> all = gpus();
  if (all.empty()) GTEST_SKIP() << "no GPU";
  for (const auto& [algorithm, what] : cases) {
    EXPECT_GT(what.rows * what.cols, kMany);
    select_marks(all.front(), algorithm, what);
  }
}

TEST(TopKCuda, OutputsOfMoreThan2To31Elements) {
  constexpr auto kF16 = value_type::f16;
  const case_by cases[] = {
      {"warp_rows", {.type = kF16, .rows = 21'000'000, .cols = 144, .k = 104, .outputs = "values+i32"}},
      {"warp_rows", {.type = kF16, .rows = 21'000'000, .cols = 144, .k = 104, .outputs = "i32", .ragged = "lengths"}},
      {"block_rows", {.type = kF16, .rows = 700'000, .cols = 4096, .k = 3200, .outputs = "values+i32"}},
      {"resident_rows", {.type = kF16, .rows = 1'100'000, .cols = 17'000, .k = 2000, .outputs = "values"}},
      {"filter_rows", {.type = kF16, .rows = 530'000, .cols = 17'000, .k = 4096, .outputs = "values+i32"}},
      {"stream_rows", {.type = kF16, .rows = 1'100'000, .cols = 2600, .k = 2000, .outputs = "i32"}},
      {"radix_rows", {.type = kF16, .rows = 700'000, .cols = 4096, .k = 3200, .outputs = "values+i32"}},
      {"warp_rows", {.type = kF16, .rows = 9'000'000, .cols = 256, .k = 4, .outputs = "mask"}},
      {"block_rows", {.type = kF16, .rows = 270'000, .cols = 8192, .k = 4, .outputs = "mask", .ragged = "borders"}},
      {"radix_rows", {.type = kF16, .rows = 60'000, .cols = 40'000, .k = 4, .outputs = "mask"}},
  };
  const std::vector<device> all = gpus();
  if (all.empty()) GTEST_SKIP() << "no GPU";
  for (const auto& [algorithm, what] : cases) {
    const bool has_mask = what.outputs == "mask";
    EXPECT_GT(what.rows * (has_mask ? what.cols : what.k), kMany);
    select_marks(all.front(), algorithm, what);
  }
}

}  // namespace
}  // namespace shortlist::conformance
