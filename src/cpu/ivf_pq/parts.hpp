// The parts of IVF-PQ on the CPU that ops.cpp puts behind core::ivf_pq_ops, which says what each computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/ivf_pq.hpp"
#include "cpu/flat/scratch.hpp"
#include "cpu/parallel.hpp"

namespace shortlist::cpu {

/// Calls body(first, last) for parts of [0, count) that no other worker has, until all were done.
template <class Body>
void for_each_range(std::int64_t count, std::int64_t part, const Body& body) {
  const default_float_environment environment;
  std::atomic<std::int64_t> next{0};
  const std::int64_t parts = divide_up(count, part);
  if (parts == 0) return;
  for_each_slot(static_cast<int>(std::min<std::int64_t>(thread_count(), parts)), [&](int) {
    for (;;) {
      const std::int64_t first = next.fetch_add(part, std::memory_order_relaxed);
      if (first >= count) break;
      body(first, std::min(first + part, count));
    }
  });
}

/// Rows of a part, where work on them is cheap enough that handing them out one by one would show.
inline constexpr std::int64_t kPartRows = 256;

// rows.cpp
std::vector<std::int64_t> rows_not_finite(const any_matrix_view& rows, std::int64_t limit);
void take_rows(metric by, const float* rotation, const any_matrix_view& rows, float* out);
void residuals(const core::ivf_pq_shape& shape, const float* rows, std::int64_t n, const std::int64_t* lists,
               const float* centroids, std::int64_t centroid_stride, float* out);

/// A rotation as rows whose padding the score's kernels can read, and what it takes from 128 partial sums.
class turner {
 public:
  /// @throws out_of_memory.
  turner(const float* rotation, std::int64_t dim);
  /// out[dim] = the rotation times a row, which is padded with -0 as queries are.
  void turn(const float* padded_row, float* out) const;

 private:
  const float* rotation_;
  std::int64_t dim_;
  std::int64_t stride_;  ///< elements
  growing_memory padded_;
};

// encode.cpp
/// [pieces][codewords][piece_dim] as [pieces][piece_dim][codewords].
void transpose_codewords(const core::ivf_pq_shape& shape, const float* codebook, float* transposed);
void encode(const core::ivf_pq_shape& shape, const float* codebook, const float* residuals, std::int64_t n,
            std::uint8_t* codes);

// means.cpp
void add_to_means(const float* rows, std::int64_t n, std::int64_t dim, const std::int64_t* group_of, int scale,
                  std::int64_t* sums, std::int64_t* counts);
void add_to_codewords(const core::ivf_pq_shape& shape, const float* residuals, std::int64_t n,
                      const std::uint8_t* codes, int scale, std::int64_t* sums, std::int64_t* counts);

// pages.cpp
void clear_pages(const core::ivf_pq_shape& shape, std::byte* pages, std::int64_t first, std::int64_t count);
void place_rows(const std::int64_t* lists, std::int64_t n, std::int64_t nlist, std::uint32_t* counts,
                std::uint32_t* places);
void write_rows(const core::ivf_pq_model& model, const core::ivf_pq_lists& to, const std::uint32_t* sizes_before,
                const std::int64_t* lists, const std::uint32_t* places, const std::uint8_t* codes, std::int64_t n,
                std::int64_t first_position, const std::uint32_t* positions);
void read_rows(const core::ivf_pq_shape& shape, const core::ivf_pq_lists& lists, const std::int64_t* list_starts,
               std::int64_t first, std::int64_t n, std::uint8_t* codes, std::uint32_t* positions);

// search.cpp
std::unique_ptr<core::scratch> make_ivf_pq_scratch(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                                                   const core::ivf_pq_limits& limits);
void ivf_pq_search(core::scratch& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                   const core::ivf_pq_request& request);

/// See core::ivf_pq_ops.
std::unique_ptr<core::scratch> make_assign_scratch(const core::flat_corpus& centroids, std::int64_t max_rows);
void assign(core::scratch& memory, const core::flat_corpus& centroids, const float* rows, std::int64_t n,
            std::int64_t* lists);

}  // namespace shortlist::cpu
