// Rows on their way into an IVF-PQ index: taken in, assigned to lists, encoded, in slices of bounded memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/ivf_pq.hpp"
#include "index/device_memory.hpp"
#include "index/ivf_pq_store.hpp"

namespace shortlist::index {

/// Memory of one kind of temporary arrays.
inline constexpr std::int64_t kSliceBytes = std::int64_t{256} << 20;

/// Rows [first, first + count) of a matrix.
any_matrix_view slice_of(const any_matrix_view& rows, std::int64_t first, std::int64_t count);

/// @throws invalid_argument that lists the first rows that have an element that is not finite, by their `numbers` if
/// they are given.
void check_finite(core::backend& backend, void* stream, core::copy_kind kind, const any_matrix_view& rows,
                  std::span<const std::int64_t> numbers = {});

/// Takes rows of any type, from the host or the device, as fp32 rows of the device.
class row_intake {
 public:
  row_intake(core::backend& backend, core::copy_kind kind, element_type type, std::int64_t dim, std::int64_t max_rows);
  /// `out` [rows.rows, dim], dense.
  void take(void* stream, metric by, const float* rotation, const any_matrix_view& rows, float* out);

  static std::int64_t row_bytes(core::backend& backend, core::copy_kind kind, element_type type, std::int64_t dim);

 private:
  core::backend& backend_;
  std::int64_t dim_;
  device_memory uploaded_;
};

/// Finds the lists of fp32 rows on the device.
class list_assigner {
 public:
  list_assigner(core::backend& backend, const core::flat_corpus& centroids, std::int64_t max_rows);
  /// `rows` [n, dim] and `lists` [n], dense. `centroids` are any with the shape and storage given above.
  void assign(void* stream, const core::flat_corpus& centroids, const float* rows, std::int64_t n, std::int64_t* lists);

 private:
  core::ivf_pq_ops& ops_;
  std::unique_ptr<core::scratch> scratch_;
};

/// Encodes rows of one origin and type.
class row_encoder {
 public:
  /// Slices are made for at most `max_rows`.
  row_encoder(core::backend& backend, const core::ivf_pq_model& model, core::copy_kind kind, element_type type,
              std::int64_t max_rows);
  /// Any number of rows: `lists` [n] and `codes` [n, pieces] on the device. Errors count rows from `first_row` on.
  void encode(void* stream, const any_matrix_view& rows, std::int64_t first_row, std::int64_t* lists,
              std::uint8_t* codes);

 private:
  core::backend& backend_;
  core::ivf_pq_model model_;
  std::int64_t slice_rows_;
  row_intake intake_;
  list_assigner assigner_;
  device_memory taken_;
  device_memory residuals_;
};

/// Encodes rows, in rounds of bounded memory, into `to`; the first has position `first_position`.
void add_encoded(core::backend& backend, void* stream, const core::ivf_pq_model& model, core::copy_kind kind,
                 const any_matrix_view& rows, std::int64_t first_position, ivf_pq_store::addition& to);

}  // namespace shortlist::index
