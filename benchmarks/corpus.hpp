// The rows and queries of the benchmarks: generated on the host with all cores, the same for the same seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "shortlist/types.hpp"

namespace shortlist::benchmark {

/// What the scores of the rows look like to a query of `make_queries`.
enum class distribution : std::uint8_t {
  normal,       ///< independent standard normal elements, each row scaled to length 1
  all_equal,    ///< every row is the same vector
  ascending,    ///< each row scores higher than the one before it, as far as fp32 can tell them apart
  ties90,       ///< 90 % of the rows are one vector, near the queries, so that the best k are all ties
  one_cluster,  ///< every row is one vector but for its last bits
  clustered,    ///< rows around a thousand directions, as embeddings of texts are
};

std::string_view to_string(distribution value);

/// Makes the rows of a corpus, any of them at any time, on all cores.
class row_source {
 public:
  row_source(std::int64_t rows, std::int64_t dim, element_type type, distribution values);
  /// Rows [first, first + count), dense.
  void write(std::int64_t first, std::int64_t count, std::byte* to) const;

 private:
  void make(std::int64_t row, float* to) const;

  std::int64_t rows_;
  std::int64_t dim_;
  element_type type_;
  distribution values_;
  std::vector<float> common_;      ///< what the unusual corpora are made of
  std::vector<float> directions_;  ///< of clustered ones
};

/// [rows, dim] of one element type in host memory, on huge pages where the system has them.
class corpus {
 public:
  corpus(std::int64_t rows, std::int64_t dim, element_type type, distribution values);

  std::int64_t rows() const { return rows_; }
  std::int64_t dim() const { return dim_; }
  element_type type() const { return type_; }
  distribution values() const { return values_; }
  std::int64_t bytes() const { return rows_ * dim_ * size_bytes(type_); }
  const std::byte* data() const { return data_.get(); }
  any_matrix_view view() const { return view(0, rows_); }
  any_matrix_view view(std::int64_t first, std::int64_t count) const {
    return {data() + first * dim_ * size_bytes(type_), type_, count, dim_, dim_};
  }

 private:
  struct unmap {
    std::int64_t bytes;
    void operator()(std::byte* memory) const noexcept;
  };
  std::int64_t rows_;
  std::int64_t dim_;
  element_type type_;
  distribution values_;
  std::unique_ptr<std::byte, unmap> data_;
};

/// [count, dim] of fp32 vectors of length 1. For `normal` corpora they are normal too, for `clustered` ones they lie
/// around the same directions, and for the others around the vector that those corpora are made of.
class query_pool {
 public:
  query_pool(std::int64_t count, std::int64_t dim, distribution of_corpus);

  std::int64_t count() const { return count_; }
  std::int64_t dim() const { return dim_; }
  matrix_view<const float> view(std::int64_t first, std::int64_t count) const {
    return {values_.data() + first * dim_, count, dim_};
  }

 private:
  std::int64_t count_;
  std::int64_t dim_;
  std::vector<float> values_;
};

}  // namespace shortlist::benchmark
