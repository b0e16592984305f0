// Generated rows and queries. See corpus.hpp.
#include "corpus.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <new>

#include "parallel.hpp"
#include "random.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::uint64_t kRowsSeed = 1;
constexpr std::uint64_t kQueriesSeed = 2;
constexpr std::uint64_t kCommonSeed = 3;
constexpr std::uint64_t kDirectionsSeed = 4;
constexpr float kQueryNoise = 0.3f;     // queries around the common vector differ, and still score it about 0.96
constexpr float kInt8Deviations = 4;    // an int8 row spans this many standard deviations of its elements
constexpr std::int64_t kTieEvery = 10;  // of ten rows, nine are ties
constexpr float kLastBits = 0x1p-18f;   // of a row of one_cluster, what makes it another one
constexpr std::int64_t kClusters = 1000;
constexpr float kClusterNoise = 0.7f;  // a row is as far from its direction as sentences of one topic are

void scale_to_unit_length(float* row, std::int64_t dim) {
  double squares = 0;
  for (std::int64_t i = 0; i < dim; ++i) squares += static_cast<double>(row[i]) * row[i];
  const auto factor = static_cast<float>(1.0 / std::sqrt(std::max(squares, 1e-30)));
  for (std::int64_t i = 0; i < dim; ++i) row[i] *= factor;
}

void unit_normal_row(std::uint64_t seed, std::int64_t index, float* row, std::int64_t dim) {
  random_row(seed, index).normal(row, dim);
  scale_to_unit_length(row, dim);
}

std::vector<float> cluster_directions(std::int64_t dim) {
  std::vector<float> directions(static_cast<std::size_t>(kClusters * dim));
  for (std::int64_t i = 0; i < kClusters; ++i) unit_normal_row(kDirectionsSeed, i, directions.data() + i * dim, dim);
  return directions;
}

/// A row near one of the directions.
void clustered_row(std::uint64_t seed, std::int64_t index, const std::vector<float>& directions, float* row,
                   std::int64_t dim) {
  const float* direction = directions.data() + index * 7919 % kClusters * dim;
  unit_normal_row(seed, index, row, dim);
  for (std::int64_t i = 0; i < dim; ++i) row[i] = direction[i] + kClusterNoise * row[i];
  scale_to_unit_length(row, dim);
}

/// Round to nearest, ties to even; the values here are below 1, so that nothing overflows.
float16 to_float16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14f) {  // a denormal: a multiple of 2^-24
    return {static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(magnitude * 0x1p24f)))};
  }
  const std::uint32_t rounded = (bits & 0x7FFFFFFFu) + 0xFFFu + ((bits >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>((rounded - 0x38000000u) >> 13))};
}

void store_row(const float* row, std::int64_t dim, element_type type, std::byte* to) {
  switch (type) {
    case element_type::f32: std::copy_n(row, dim, reinterpret_cast<float*>(to)); return;
    case element_type::f16: std::transform(row, row + dim, reinterpret_cast<float16*>(to), to_float16); return;
    case element_type::bf16:
      std::transform(row, row + dim, reinterpret_cast<bfloat16*>(to), [](float v) {
        const auto bits = std::bit_cast<std::uint32_t>(v);
        return bfloat16{static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
      });
      return;
    case element_type::i8:
    case element_type::u8: {
      const float scale = 127.0f * std::sqrt(static_cast<float>(dim)) / kInt8Deviations;
      const float zero = type == element_type::u8 ? 128.0f : 0.0f;
      std::transform(row, row + dim, reinterpret_cast<std::uint8_t*>(to), [=](float v) {
        return static_cast<std::uint8_t>(
            static_cast<int>(std::clamp(std::nearbyint(v * scale), -127.0f, 127.0f) + zero));
      });
      return;
    }
  }
}

/// The vector that the unusual corpora are made of.
std::vector<float> common_vector(std::int64_t dim) {
  std::vector<float> common(static_cast<std::size_t>(dim));
  unit_normal_row(kCommonSeed, 0, common.data(), dim);
  return common;
}

}  // namespace

std::string_view to_string(distribution value) {
  switch (value) {
    case distribution::normal: return "normal";
    case distribution::all_equal: return "all_equal";
    case distribution::ascending: return "ascending";
    case distribution::ties90: return "ties90";
    case distribution::one_cluster: return "one_cluster";
    case distribution::clustered: return "clustered";
  }
  return "";
}

void corpus::unmap::operator()(std::byte* memory) const noexcept { munmap(memory, static_cast<std::size_t>(bytes)); }

corpus::corpus(std::int64_t rows, std::int64_t dim, element_type type, distribution values)
    : rows_(rows), dim_(dim), type_(type), values_(values) {
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(bytes()), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = {static_cast<std::byte*>(memory), unmap{bytes()}};
  madvise(memory, static_cast<std::size_t>(bytes()), MADV_HUGEPAGE);

  row_source(rows, dim, type, values).write(0, rows, data_.get());
}

row_source::row_source(std::int64_t rows, std::int64_t dim, element_type type, distribution values)
    : rows_(rows), dim_(dim), type_(type), values_(values), common_(common_vector(dim)) {
  if (values == distribution::clustered) directions_ = cluster_directions(dim);
}

void row_source::make(std::int64_t row, float* to) const {
  switch (values_) {
    case distribution::normal: unit_normal_row(kRowsSeed, row, to, dim_); break;
    case distribution::all_equal: std::ranges::copy(common_, to); break;
    case distribution::ascending: {
      const float factor = static_cast<float>(row + 1) / static_cast<float>(rows_);
      std::ranges::transform(common_, to, [=](float v) { return v * factor; });
      break;
    }
    case distribution::ties90:
      if (row % kTieEvery == 0) {
        unit_normal_row(kRowsSeed, row, to, dim_);
      } else {
        std::ranges::copy(common_, to);
      }
      break;
    case distribution::one_cluster:
      unit_normal_row(kRowsSeed, row, to, dim_);
      std::transform(common_.begin(), common_.end(), to, to,
                     [](float v, float noise) { return v + kLastBits * noise; });
      break;
    case distribution::clustered: clustered_row(kRowsSeed, row, directions_, to, dim_); break;
  }
}

void row_source::write(std::int64_t first, std::int64_t count, std::byte* to) const {
  over_cores(count, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> row(static_cast<std::size_t>(dim_));
    for (std::int64_t r = begin; r < end; ++r) {
      make(first + r, row.data());
      store_row(row.data(), dim_, type_, to + r * dim_ * size_bytes(type_));
    }
  });
}

query_pool::query_pool(std::int64_t count, std::int64_t dim, distribution of_corpus)
    : count_(count), dim_(dim), values_(static_cast<std::size_t>(count * dim)) {
  const std::vector<float> common = common_vector(dim);
  const bool clustered = of_corpus == distribution::clustered;
  const std::vector<float> directions = clustered ? cluster_directions(dim) : std::vector<float>();
  for (std::int64_t q = 0; q < count; ++q) {
    float* query = values_.data() + q * dim;
    unit_normal_row(kQueriesSeed, q, query, dim);
    if (of_corpus == distribution::normal) continue;
    if (clustered) {
      clustered_row(kQueriesSeed, q, directions, query, dim);
      continue;
    }
    for (std::int64_t i = 0; i < dim; ++i) query[i] = common[static_cast<std::size_t>(i)] + kQueryNoise * query[i];
    scale_to_unit_length(query, dim);
  }
}

}  // namespace shortlist::benchmark
