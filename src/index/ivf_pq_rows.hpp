// The rows of an IVF-PQ index: their codes in lists, and beside them ids and the rows themselves where they are kept.
#pragma once

#include <cstdint>
#include <span>

#include "core/ivf_pq.hpp"
#include "index/flat_store.hpp"
#include "index/ivf_pq_store.hpp"
#include "shortlist/ivf_pq_index.hpp"

namespace shortlist::index {

class ivf_pq_rows {
 public:
  /// `options` are completed. @throws out_of_memory.
  ivf_pq_rows(core::backend& backend, void* stream, const ivf_pq_options& options);

  std::int64_t count() const noexcept { return codes.rows(); }
  std::int64_t capacity() const noexcept { return kept.capacity(); }
  /// What a search reads.
  core::ivf_pq_lists lists() const noexcept;

  void reserve(void* stream, std::int64_t max_rows);
  void clear(void* stream);
  /// Rows from host memory (host_to_device) or the device's (device_to_device). If it throws, nothing has changed.
  /// @throws invalid_argument if a row is not finite or an id in use, out_of_memory.
  void append(void* stream, core::copy_kind kind, const core::ivf_pq_model& model, const any_matrix_view& vectors,
              std::span<const std::int64_t> ids);

  core::backend& backend;
  ivf_pq_store codes;
  flat_store kept;  ///< with the ids
  bool keeps_rows;
};

}  // namespace shortlist::index
