// The deep-like set: vectors of 96 elements of length 1 around 4,000 clusters of very different sizes in 24 dimensions,
// bent and blurred, as embeddings of images are. Any of them at any time, from a counter-based generator.
//
// A latent vector is 1.2 x the centre of a cluster, chosen by weights u^3 + 0.02, + 0.7 x a normal one; a vector is
// tanh(0.25 x latent A) + 0.15 x a normal one, scaled to length 1, with a fixed normal matrix A [24, 96].
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "deep_like_row.hpp"

namespace shortlist::benchmark {

class deep_like {
 public:
  static constexpr std::int64_t kDim = deep_like_row::kDim;

  deep_like();
  /// Rows [first, first + count), dense, on all cores.
  void write_rows(std::int64_t first, std::int64_t count, float* to) const { write(first, count, to); }
  /// Queries: vectors of the same kind that are no rows.
  void write_queries(std::int64_t first, std::int64_t count, float* to) const;
  std::vector<float> queries(std::int64_t count) const;
  /// `count` queries that all lie near one row.
  std::vector<float> queries_near_row(std::int64_t row, std::int64_t count) const;

  const std::vector<float>& centres() const { return centres_; }
  const std::vector<float>& matrix() const { return matrix_; }
  const std::vector<std::uint32_t>& thresholds() const { return thresholds_; }

 private:
  void write(std::int64_t first, std::int64_t count, float* to) const;

  std::vector<float> centres_;
  std::vector<float> matrix_;
  std::vector<std::uint32_t> thresholds_;
};

/// Makes rows in GPU 0's memory: the same bits as on the host.
class deep_like_on_gpu {
 public:
  /// @throws std::runtime_error on failure, and where this build has no CUDA.
  explicit deep_like_on_gpu(const deep_like& set);
  ~deep_like_on_gpu();
  /// Queues rows [first, first + count), dense, on a `cudaStream_t`.
  void write_rows(void* stream, std::int64_t first, std::int64_t count, float* to) const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace shortlist::benchmark
