// Random vectors for the benchmark. See samples.hpp.
#include "samples.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <thread>
#include <vector>

#include "convert.hpp"

namespace shortlist::program {
namespace {

/// SplitMix64: one multiply-and-shift chain a number, and any start is a good start.
class generator {
 public:
  generator(std::uint64_t seed, std::int64_t row) : state_(seed ^ (static_cast<std::uint64_t>(row) << 20)) {
    state_ = next();  // rows start far apart
  }
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

/// Box-Muller: two uniform numbers make two normal ones.
void fill_normal(generator& random, std::vector<float>& row) {
  constexpr float kUnit = 0x1p-24f;
  for (std::size_t i = 0; i < row.size(); i += 2) {
    const std::uint64_t bits = random.next();
    const float above_zero = static_cast<float>((bits >> 40) + 1) * kUnit;
    const float turn = static_cast<float>(bits & 0xFFFFFFu) * kUnit;
    const float radius = std::sqrt(-2.0f * std::log(above_zero));
    const float angle = 2.0f * std::numbers::pi_v<float> * turn;
    row[i] = radius * std::cos(angle);
    if (i + 1 < row.size()) row[i + 1] = radius * std::sin(angle);
  }
}

template <class Integer>
Integer quantize(float value, float zero) {
  constexpr float kUnitsPerDeviation = 32.0f;
  using limits = std::numeric_limits<Integer>;
  return static_cast<Integer>(
      std::clamp(std::round(value * kUnitsPerDeviation + zero), float{limits::min()}, float{limits::max()}));
}

void store(const std::vector<float>& row, element_type type, std::byte* to) {
  const auto put = [&]<class T>(T* out, auto convert) { std::transform(row.begin(), row.end(), out, convert); };
  switch (type) {
    case element_type::f32: return put(reinterpret_cast<float*>(to), [](float v) { return v; });
    case element_type::f16: return put(reinterpret_cast<float16*>(to), to_float16);
    case element_type::bf16: return put(reinterpret_cast<bfloat16*>(to), to_bfloat16);
    case element_type::i8:
      return put(reinterpret_cast<std::int8_t*>(to), [](float v) { return quantize<std::int8_t>(v, 0.0f); });
    case element_type::u8:
      return put(reinterpret_cast<std::uint8_t*>(to), [](float v) { return quantize<std::uint8_t>(v, 128.0f); });
  }
}

}  // namespace

vectors normal_vectors(std::int64_t rows, std::int64_t dim, element_type type, std::uint64_t seed) {
  const std::int64_t row_bytes = dim * size_bytes(type);
  vectors all{.rows = rows, .dim = dim, .type = type, .data = {}};
  all.data.resize(static_cast<std::size_t>(rows * row_bytes));
  const auto fill = [&](std::int64_t first, std::int64_t last) {
    std::vector<float> row(static_cast<std::size_t>(dim));
    for (std::int64_t r = first; r < last; ++r) {
      generator random(seed, r);
      fill_normal(random, row);
      store(row, type, all.data.data() + r * row_bytes);
    }
  };
  const std::int64_t workers =
      std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, std::max<std::int64_t>(1, rows));
  std::vector<std::jthread> threads;
  for (std::int64_t w = 0; w < workers; ++w) {
    threads.emplace_back(fill, rows * w / workers, rows * (w + 1) / workers);
  }
  threads.clear();  // joins
  return all;
}

}  // namespace shortlist::program
