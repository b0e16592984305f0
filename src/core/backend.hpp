// The backend interface: memory, streams and a table of ops on one device.
//
// An op is a function of views on the backend's device and a stream. Arguments were checked at the public border;
// backends trust them. On the CPU a stream is null and every call has finished when it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/certified.hpp"
#include "shortlist/device.hpp"
#include "shortlist/flat_index.hpp"
#include "shortlist/sample.hpp"
#include "shortlist/top_k.hpp"

namespace shortlist::core {

/// Rows that are resident on a device. Bytes past dim within a row's stride are zero.
struct flat_corpus {
  const void* rows = nullptr;         ///< [count, dim], aligned to backend::row_alignment_bytes()
  std::int64_t row_stride_bytes = 0;  ///< a multiple of backend::row_alignment_bytes()
  element_type type = element_type::f32;
  shortlist::metric metric = shortlist::metric::inner_product;
  std::int64_t count = 0;
  std::int64_t dim = 0;
  const float* inverse_norms = nullptr;  ///< [count] under cosine (kZeroVector where dot(x, x) == 0), else null
  const std::int64_t* ids = nullptr;     ///< [count] labels, or null: the position is the label
  shortlist::storage storage = shortlist::storage::full;
  const std::byte* plane = nullptr;  ///< of these rows, laid out as the backend has it, unless the storage is full
  plane_summary summary = {};        ///< of the plane
};

/// Queries, and where their answers go. Scores and ids are dense [queries, k]; entries from min(k, count) on are
/// padded with the metric's worst score and id -1.
struct flat_request {
  const float* queries = nullptr;  ///< [query_count, dim]
  std::int64_t query_stride = 0;   ///< in elements
  std::int64_t query_count = 0;
  std::int64_t k = 0;
  float* scores = nullptr;
  std::int64_t* ids = nullptr;
  search_stats* stats = nullptr;  ///< added to unless null
};

/// What decides the plan of a request.
constexpr search_shape shape_of(const flat_corpus& corpus, const flat_request& request) {
  return {.rows = corpus.count,
          .dim = corpus.dim,
          .queries = request.query_count,
          .k = request.k,
          .type = corpus.type,
          .metric = corpus.metric,
          .storage = corpus.storage};
}

/// A row-wise top k whose arguments were checked; see shortlist/top_k.hpp.
struct top_k_request {
  value_matrix matrix;
  ragged_rows ragged;
  top_k_options options;
  top_k_output out;
};

/// What decides the plan of a request.
constexpr top_k_shape shape_of(const top_k_request& request) {
  return {.rows = request.matrix.rows,
          .cols = request.matrix.cols,
          .k = request.options.k,
          .type = request.matrix.type,
          .early_stop = request.options.eps || request.options.max_iter,
          .sorted = request.options.sorted,
          .mask = request.out.mask != nullptr,
          .indices_as = request.out.indices_as,
          .col_stride = request.matrix.col_stride};
}

/// A sampling step whose arguments were checked; see shortlist/sample.hpp. Parameters in arrays were not.
struct sample_request {
  value_matrix logits;
  sample_params params;
  sample_output out;
};

/// A backend's scratch memory for one search at a time.
class scratch {
 public:
  virtual ~scratch() = default;
  virtual std::int64_t bytes() const noexcept = 0;
  virtual std::int64_t device_allocations() const noexcept = 0;
};

enum class copy_kind : std::uint8_t { host_to_device, device_to_host, device_to_device };

class ivf_pq_ops;

class backend {
 public:
  virtual ~backend() = default;

  virtual device where() const noexcept = 0;
  virtual std::string description() const = 0;
  virtual std::int64_t row_alignment_bytes() const noexcept = 0;

  // Memory. `allocate` throws out_of_memory, with the bytes asked for and the bytes free.
  virtual void* allocate(std::int64_t bytes) = 0;
  /// Host memory that the device reads and writes by the same address.
  virtual void* allocate_on_host(std::int64_t bytes) = 0;
  /// Of both kinds. Work that was queued on any stream may still use the memory: waits for it.
  virtual void release(void* memory) noexcept = 0;
  virtual void zero(void* stream, void* memory, std::int64_t bytes) = 0;
  /// Copies `rows` rows of `row_bytes`; asynchronous on `stream` where host memory is not involved, else complete
  /// on return.
  virtual void copy_rows(void* stream, copy_kind kind, void* to, std::int64_t to_stride_bytes, const void* from,
                         std::int64_t from_stride_bytes, std::int64_t row_bytes, std::int64_t rows) = 0;

  // Streams.
  virtual void* create_stream() = 0;
  virtual void destroy_stream(void* stream) noexcept = 0;
  virtual void synchronize(void* stream) = 0;
  /// Work queued on `later` from now on waits for what is queued on `earlier` now.
  virtual void order_after(void* later, void* earlier) = 0;

  // Flat search.
  /// Computes inverse_norms[first, first + count), of the rows at these positions; the array is that of all rows.
  virtual void inverse_norms(void* stream, const flat_corpus& corpus, std::int64_t first, std::int64_t count,
                             float* inverse_norms) = 0;
  /// Bytes of a plane's block of kPlaneRows rows, in an index that keeps `kept`.
  virtual std::int64_t plane_block_bytes(std::int64_t dim, metric by, storage kept) const noexcept = 0;
  /// Writes rows [first, first + count), which are in place with their inverse norms, into the plane, blocks of which
  /// are there and may hold rows before `first`. Adds them to `summary`, which lies in the backend's memory.
  virtual void write_plane(void* stream, const flat_corpus& corpus, std::int64_t first, std::int64_t count,
                           std::byte* plane, plane_summary* summary) = 0;
  /// `max_dim` bounds what staging of host queries needs; 0 if searches will be device to device only. `kept` is what
  /// the indexes that are searched have; any other storage than full serves all of them.
  virtual std::unique_ptr<scratch> make_scratch(const search_limits& limits, std::int64_t max_dim, storage kept) = 0;
  /// Device to device, asynchronous on `stream`, allocates nothing, can be captured.
  virtual void flat_search(void* stream, scratch& memory, const flat_corpus& corpus, const flat_request& request) = 0;
  /// Host to host: queries and outputs are host memory; complete on return. Allocates nothing.
  virtual void flat_search_host(void* stream, scratch& memory, const flat_corpus& corpus,
                                const flat_request& request) = 0;

  // Row-wise top k.
  /// Asynchronous on `stream`, can be captured. @throws unsupported where the backend does not have it.
  virtual void top_k(void* stream, const top_k_request& request) = 0;

  // Sampling.
  /// Asynchronous on `stream`, can be captured.
  virtual void sample(void* stream, const sample_request& request) = 0;

  /// What IVF-PQ indexes ask; see core/ivf_pq.hpp.
  virtual ivf_pq_ops& ivf_pq() = 0;
};

/// The backend of a device; one object per device for the life of the process.
/// @throws unsupported, invalid_argument as device::cuda does.
backend& backend_of(device where);

}  // namespace shortlist::core
