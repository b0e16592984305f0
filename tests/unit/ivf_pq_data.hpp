// Small sets of rows for tests of IVF-PQ indexes.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "shortlist/types.hpp"

namespace shortlist::test {

/// fp32 rows around a few centres, so that lists have something to find.
struct clustered_rows {
  clustered_rows(std::int64_t row_count, std::int64_t columns, std::uint32_t seed)
      : rows(row_count), dim(columns), data(static_cast<std::size_t>(row_count * columns)) {
    constexpr int kCentres = 12;
    constexpr float kSpread = 0.3f;
    std::mt19937 centre_bits(99);  // of every set of this dim, so that queries lie where rows do
    std::normal_distribution<float> normal;
    std::vector<float> centres(static_cast<std::size_t>(kCentres * dim));
    for (float& value : centres) value = normal(centre_bits);
    std::mt19937 random(seed);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t centre = static_cast<std::int64_t>(random() % kCentres) * dim;
      for (std::int64_t i = 0; i < dim; ++i) data[row * dim + i] = centres[centre + i] + kSpread * normal(random);
    }
  }

  matrix_view<const float> view() const { return {data.data(), rows, dim}; }
  matrix_view<const float> part(std::int64_t first, std::int64_t count) const {
    return {data.data() + first * dim, count, dim};
  }

  std::int64_t rows, dim;
  std::vector<float> data;
};

}  // namespace shortlist::test
