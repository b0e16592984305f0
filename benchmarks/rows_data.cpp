// Generated matrices. See rows_data.hpp.
#include "rows_data.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>
#include <vector>

#include "cli/convert.hpp"
#include "parallel.hpp"
#include "random.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::uint64_t kValuesSeed = 4;
constexpr float kTie = 0.5f;  // fewer than 4 % of all values lie above it: the k-th best is a tie from k = cols / 25
constexpr float kTieShare = 0.9f;
constexpr float kEqualValue = 0.75f;
constexpr std::int64_t kNanEvery = 10;
constexpr std::int64_t kScales = 13;
constexpr std::uint64_t kBinSteps = 1024;
constexpr float kInfShare = 0.5f;
constexpr float kLogitsDeviation = 3;
constexpr std::int64_t kChunkCols = 1 << 16;  // a long row is generated in pieces, so that one row too uses all cores

void generate(row_values values, std::int64_t row, std::int64_t cols, std::int64_t piece, float* to,
              std::int64_t count) {
  random_row random(kValuesSeed, row * 4096 + piece);
  switch (values) {
    case row_values::normal: random.normal(to, count); return;
    case row_values::lognormal:
      random.normal(to, count);
      std::transform(to, to + count, to, [](float v) { return std::exp(v); });
      return;
    case row_values::uniform: std::generate_n(to, count, [&] { return random.uniform(); }); return;
    case row_values::ties90:
      random.normal(to, count);
      std::transform(to, to + count, to, [&](float v) { return random.uniform() < kTieShare ? kTie : v; });
      return;
    case row_values::scaled: {
      random.normal(to, count);
      const auto scale = static_cast<float>(1 + row * 5 % kScales);
      std::transform(to, to + count, to, [&](float v) { return v * scale; });
      return;
    }
    case row_values::all_equal: std::fill_n(to, count, kEqualValue); return;
    case row_values::nan10:
      random.normal(to, count);
      if (row % kNanEvery == 0 && piece == 0) {
        to[random.next() % static_cast<std::uint64_t>(count)] = std::numeric_limits<float>::quiet_NaN();
      }
      return;
    case row_values::ascending:
      for (std::int64_t i = 0; i < count; ++i) {
        to[i] = static_cast<float>(static_cast<double>(piece * kChunkCols + i) / static_cast<double>(cols));
      }
      return;
    case row_values::one_bin:
      std::generate_n(to, count, [&] { return 1 + static_cast<float>(random.next() % kBinSteps) * 0x1p-20f; });
      return;
    case row_values::half_inf:
      random.normal(to, count);
      std::transform(to, to + count, to, [&](float v) {
        return random.uniform() < kInfShare ? -std::numeric_limits<float>::infinity() : v;
      });
      return;
    case row_values::logits:
      random.normal(to, count);
      std::transform(to, to + count, to, [](float v) { return v * kLogitsDeviation; });
      return;
  }
}

void store(const float* values, std::int64_t count, value_type type, std::byte* to) {
  switch (type) {
    case value_type::f32: std::copy_n(values, count, reinterpret_cast<float*>(to)); return;
    case value_type::f16:
      std::transform(values, values + count, reinterpret_cast<float16*>(to), program::to_float16);
      return;
    case value_type::bf16:
      std::transform(values, values + count, reinterpret_cast<bfloat16*>(to), program::to_bfloat16);
      return;
    case value_type::f64: std::copy_n(values, count, reinterpret_cast<double*>(to)); return;
  }
}

}  // namespace

std::string_view to_string(row_values values) {
  switch (values) {
    case row_values::normal: return "normal";
    case row_values::lognormal: return "lognormal";
    case row_values::uniform: return "uniform";
    case row_values::ties90: return "ties90";
    case row_values::all_equal: return "all_equal";
    case row_values::scaled: return "scaled";
    case row_values::nan10: return "nan10";
    case row_values::ascending: return "ascending";
    case row_values::one_bin: return "one_bin";
    case row_values::half_inf: return "half_inf";
    case row_values::logits: return "logits";
  }
  return "";
}

void row_matrix::unmap::operator()(std::byte* memory) const noexcept {
  munmap(memory, static_cast<std::size_t>(bytes));
}

row_matrix::row_matrix(std::int64_t rows, std::int64_t cols, value_type type, row_values values,
                       std::int64_t room_bytes)
    : rows_(rows), cols_(cols), type_(type), room_bytes_(room_bytes) {
  const std::int64_t all_bytes = room_at() + room_bytes;
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(all_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = {static_cast<std::byte*>(memory), unmap{all_bytes}};
  madvise(memory, static_cast<std::size_t>(all_bytes), MADV_HUGEPAGE);

  const std::int64_t pieces = (cols + kChunkCols - 1) / kChunkCols;
  over_cores(rows * pieces, [&](std::int64_t first, std::int64_t last) {
    std::vector<float> some(static_cast<std::size_t>(std::min(cols, kChunkCols)));
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t row = i / pieces;
      const std::int64_t piece = i % pieces;
      const std::int64_t count = std::min(kChunkCols, cols - piece * kChunkCols);
      generate(values, row, cols, piece, some.data(), count);
      store(some.data(), count, type, memory_.get() + (row * cols + piece * kChunkCols) * size_bytes(type));
    }
  });
}

}  // namespace shortlist::benchmark
