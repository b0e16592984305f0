// The rows of a flat index, resident on one device, with their plane, inverse norms and ids.
#pragma once

#include <cstdint>
#include <span>

#include "core/backend.hpp"
#include "index/device_memory.hpp"
#include "index/labels.hpp"
#include "io/file.hpp"
#include "shortlist/flat_index.hpp"

namespace shortlist::index {

/// Where a store keeps its rows; one that keeps none counts them and has their ids.
enum class row_place : std::uint8_t { device, host, nowhere };

constexpr row_place row_place_of(storage kept) {
  return kept == storage::int8_and_host ? row_place::host : row_place::device;
}

/// Grows geometrically and on the device: what is there is never uploaded again. `append` and `reserve` leave
/// everything as it was if they throw: they allocate first, write behind the rows that count, and commit last.
class flat_store {
 public:
  /// @throws out_of_memory.
  flat_store(core::backend& backend, const flat_index_options& options)
      : flat_store(backend, options, row_place_of(options.storage)) {}
  flat_store(core::backend& backend, const flat_index_options& options, row_place place);

  std::int64_t rows() const noexcept { return rows_; }
  std::int64_t capacity() const noexcept { return arrays_.capacity; }
  core::flat_corpus corpus() const noexcept { return corpus_of(arrays_, rows_); }
  const labels& ids() const noexcept { return ids_; }
  /// rows_bytes, of a file or not, host_rows_bytes, planes_bytes, norms_bytes, ids_bytes and the allocations made here.
  memory_use memory() const noexcept;
  /// Of rows_bytes, what is mapped from a file: all or nothing.
  std::int64_t mapped_bytes() const noexcept { return arrays_.mapped.bytes(); }

  /// Room for `max_rows` rows at addresses that stay.
  void reserve(void* stream, std::int64_t max_rows);
  /// Whether rows may stay in a file: those of a store in the host's memory, where a row ends where the next begins.
  bool can_map() const noexcept;
  /// Rows of an empty store, from a file: read when they are looked at, and copied when others join them.
  void map(void* stream, io::file_mapping rows, std::int64_t count, std::span<const std::int64_t> ids);
  /// Copies rows in from host memory (host_to_device) or the device's (device_to_device); in place on return.
  void append(void* stream, core::copy_kind kind, const any_matrix_view& vectors, std::span<const std::int64_t> ids);
  /// Drops all rows and ids; memory for rows stays.
  void clear() noexcept;
  /// Rows [first, first + count), dense, into host memory.
  void read(void* stream, std::int64_t first, std::int64_t count, void* out) const;

 private:
  struct arrays {
    device_memory rows;
    io::file_mapping mapped;      ///< in place of them
    device_memory plane;          ///< unless the storage is full
    device_memory inverse_norms;  ///< under cosine
    device_memory ids;            ///< if ids were given
    std::int64_t capacity = 0;

    const std::byte* row_data() const noexcept { return mapped ? mapped.data() : rows.as<const std::byte>(); }
  };

  bool keeps_rows() const noexcept { return place_ != row_place::nowhere; }
  bool has_plane() const noexcept { return options_.storage != storage::full; }
  std::int64_t blocks_of(std::int64_t rows) const noexcept;
  core::flat_corpus corpus_of(const arrays& from, std::int64_t count) const noexcept;
  device_memory allocate(std::int64_t bytes);
  device_memory allocate_rows(std::int64_t bytes);
  /// Larger arrays that hold what is there.
  arrays moved_to(void* stream, std::int64_t capacity, bool with_ids);
  /// The same for `needed` rows and some more, or just for `needed` if memory is short.
  arrays grown_to(void* stream, std::int64_t needed, bool with_ids);
  void write_rows(void* stream, core::copy_kind kind, const arrays& to, const any_matrix_view& vectors) const;
  /// Labels of rows [first, end) to the device.
  void write_ids(void* stream, const device_memory& to, std::int64_t first, std::int64_t end) const;
  /// Of `count` rows behind those that count; returns what they add to the summary.
  core::plane_summary write_plane(void* stream, const arrays& to, std::int64_t count);

  core::backend& backend_;
  flat_index_options options_;
  row_place place_;
  std::int64_t row_bytes_;     ///< dim elements
  std::int64_t stride_bytes_;  ///< the same, rounded up to the backend's alignment
  std::int64_t block_bytes_;   ///< of the plane
  arrays arrays_;
  device_memory new_summary_;  ///< what an append adds to the summary, if there is a plane
  core::plane_summary summary_;
  labels ids_;
  std::int64_t rows_ = 0;
  std::int64_t allocations_ = 0;
};

}  // namespace shortlist::index
