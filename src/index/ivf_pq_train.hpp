// Training of an IVF-PQ index: docs/ivf_pq.md, section 2.
#pragma once

#include <cstdint>
#include <vector>

#include "core/backend.hpp"
#include "index/ivf_pq_model.hpp"
#include "shortlist/ivf_pq_index.hpp"

namespace shortlist::index {

/// `options` are completed, `vectors` lie in host memory and are enough. @throws invalid_argument if a row that is
/// looked at is not finite, or too large; cancelled; out_of_memory.
ivf_pq_arrays train_ivf_pq(core::backend& backend, void* stream, const ivf_pq_options& options,
                           const any_matrix_view& vectors, const train_options& training);

// The host's part, step by step.

/// Numbers by a seed, one after the other; each use has a stream of its own.
enum class random_use : std::uint64_t { centroids = 1, codebook = 2, rotation = 3 };
class random_numbers {
 public:
  random_numbers(std::uint64_t seed, random_use use);
  /// In [0, bound).
  std::int64_t below(std::int64_t bound);
  /// The sum of twelve numbers in [0, 1), less 6: mean 0, variance 1, and exact in fp64.
  double about_normal();

 private:
  std::uint32_t next();
  std::uint64_t seed_;
  std::uint64_t at_;
};

/// `count` of the numbers below `n`, without replacement.
std::vector<std::int64_t> chosen_numbers(random_numbers& random, std::int64_t n, std::int64_t count);

/// While the smallest group has less than an eighth of the mean it takes half of the largest; see docs/ivf_pq.md.
/// `centres` is [groups, dim], `counts` [groups].
void balance(float* centres, std::int64_t* counts, std::int64_t groups, std::int64_t dim);

/// An orthogonal matrix [dim, dim].
std::vector<float> random_rotation(std::uint64_t seed, std::int64_t dim);

/// The step of each element's scalar code: `residuals` is [n, stride], the first dim elements of each count.
std::vector<float> scalar_steps(const core::ivf_pq_shape& shape, const std::vector<float>& residuals, std::int64_t n);

}  // namespace shortlist::index
