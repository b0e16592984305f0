// Sums for the means of k-means, in whole numbers: the order of adding does not matter, so any split over cores will
// do.
#include <cmath>

#include "cpu/ivf_pq/parts.hpp"

namespace shortlist::cpu {
namespace {

/// Fewer are added before another core has woken up.
constexpr std::int64_t kSerialElements = 16'384;

/// `element` times 2^scale, which is exact in fp64, rounded to nearest, ties to even.
std::int64_t whole(float element, double power) { return std::llrint(static_cast<double>(element) * power); }

}  // namespace

void add_to_means(const float* rows, std::int64_t n, std::int64_t dim, const std::int64_t* group_of, int scale,
                  std::int64_t* sums, std::int64_t* counts) {
  const double power = std::ldexp(1.0, scale);
  // Every worker looks at all rows and adds those of its own groups.
  const std::int64_t workers = n * dim <= kSerialElements ? 1 : thread_count();
  for_each_range(workers, 1, [&](std::int64_t worker, std::int64_t) {
    for (std::int64_t row = 0; row < n; ++row) {
      const std::int64_t group = group_of[row];
      if (group % workers != worker) continue;
      std::int64_t* sum = sums + group * dim;
      for (std::int64_t i = 0; i < dim; ++i) sum[i] += whole(rows[row * dim + i], power);
      ++counts[group];
    }
  });
}

void add_to_codewords(const core::ivf_pq_shape& shape, const float* residuals, std::int64_t n,
                      const std::uint8_t* codes, int scale, std::int64_t* sums, std::int64_t* counts) {
  const double power = std::ldexp(1.0, scale);
  // A worker has pieces of its own, a cache line of a row's elements or more.
  const std::int64_t part = divide_up(kCacheLineBytes / 4, shape.piece_dim);
  for_each_range(shape.pieces, part, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = 0; row < n; ++row) {
      for (std::int64_t piece = first; piece < last; ++piece) {
        const std::int64_t word = piece * shape.codewords() + codes[row * shape.pieces + piece];
        const float* from = residuals + row * shape.padded_dim() + piece * shape.piece_dim;
        for (std::int64_t i = 0; i < shape.piece_dim; ++i) sums[word * shape.piece_dim + i] += whole(from[i], power);
        ++counts[word];
      }
    }
  });
}

}  // namespace shortlist::cpu
