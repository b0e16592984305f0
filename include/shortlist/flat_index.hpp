// Exact search: every row is scored, the k best are returned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shortlist/device.hpp"
#include "shortlist/types.hpp"

namespace shortlist {

struct flat_index_options {
  std::int64_t dim = 0;
  shortlist::metric metric = shortlist::metric::inner_product;
  element_type type = element_type::f32;  ///< how rows are stored; rows of this type only may be added
  /// Whether an int8 plane is kept beside the rows, for rows of f32, f16 and bf16; and where the rows lie.
  shortlist::storage storage = shortlist::storage::full;
};

/// What a search did with an int8 plane. A search adds to it, so that several can share one; it begins at zero.
struct search_stats {
  std::int64_t certified_queries = 0;  ///< answered through the plane; the others, if any, by reading all rows
  std::int64_t survivors = 0;          ///< rows of those queries that were scored; on a GPU perhaps of others too
};

struct search_options {
  std::int64_t k = 10;
  search_stats* stats = nullptr;  ///< filled by host-to-host searches unless null
};

/// The answer to a search, on the host. Row q of `scores` and `ids` is query q's list, best first.
struct search_result {
  std::int64_t queries = 0;
  std::int64_t k = 0;
  std::int64_t k_found = 0;       ///< min(k, rows): entries from here on are padding (id -1, the metric's worst score)
  std::vector<float> scores;      ///< [queries, k]
  std::vector<std::int64_t> ids;  ///< [queries, k]

  std::span<const float> scores_of(std::int64_t query) const;
  std::span<const std::int64_t> ids_of(std::int64_t query) const;
};

/// Where a search writes: two dense arrays of [queries, k], both on the device of the call (or both on the host).
struct search_output {
  float* scores = nullptr;
  std::int64_t* ids = nullptr;
};

/// The largest search that a workspace or a reservation must serve without allocating.
struct search_limits {
  std::int64_t max_rows = 0;
  std::int64_t max_queries = 1;
  std::int64_t max_k = 10;
};

/// Scratch memory of one device, for one search at a time. A captured CUDA graph owns the workspace it captured.
class workspace {
 public:
  /// @throws invalid_argument if a limit is < 1, out_of_memory.
  workspace(device where, const search_limits& limits);
  ~workspace();
  workspace(workspace&&) noexcept;
  workspace& operator=(workspace&&) noexcept;

  device where() const noexcept;
  const search_limits& limits() const noexcept;
  std::int64_t bytes() const noexcept;

 private:
  friend class flat_index;
  struct impl;
  std::unique_ptr<impl> impl_;
};

/// Bytes that an index holds, by purpose and place.
struct memory_use {
  std::int64_t rows_bytes = 0;          ///< rows, reserved space included
  std::int64_t host_rows_bytes = 0;     ///< of those, what lies in the host's memory beside a GPU: all or nothing
  std::int64_t planes_bytes = 0;        ///< the int8 plane, on GPUs its coarse copy too, reserved space included
  std::int64_t norms_bytes = 0;         ///< one fp32 a row under cosine
  std::int64_t ids_bytes = 0;           ///< on host and device, only if ids were given
  std::int64_t workspaces_bytes = 0;    ///< scratch of pooled searches, staging included
  std::int64_t device_allocations = 0;  ///< device and pinned allocations made so far by this index
};

enum class verify { full, header_only };  ///< what `load` checks: header and data checksums, or the header alone

/// Exact nearest neighbours over rows that stay resident on one device.
///
/// Searches are const and may run from any number of threads at once; `add` and `reserve` need exclusive access.
/// Order and score are defined to the last bit in docs/ordering.md and equal on every device.
class flat_index {
 public:
  /// @throws invalid_argument if options.dim is outside of [1, 65536], or a plane is asked for over i8 or u8 rows.
  flat_index(device where, const flat_index_options& options);
  ~flat_index();
  flat_index(flat_index&&) noexcept;
  flat_index& operator=(flat_index&&) noexcept;

  device where() const noexcept;
  std::int64_t rows() const noexcept;
  std::int64_t dim() const noexcept;
  shortlist::metric metric() const noexcept;
  element_type type() const noexcept;
  shortlist::storage storage() const noexcept;
  memory_use memory() const;

  /// Appends rows from host memory. The label of a row is its position unless `ids` gives one.
  ///
  /// @param vectors [n, dim] of the index's element type, any row stride >= dim.
  /// @param ids     empty, or n labels, each >= 0 and not in use.
  /// @throws invalid_argument, out_of_memory; the index then is as it was.
  void add(any_matrix_view vectors, std::span<const std::int64_t> ids = {});
  /// The same from memory of the index's device, ordered on `s`; returns when the rows are in place.
  void add(const stream& s, any_matrix_view vectors, std::span<const std::int64_t> ids = {});

  /// The k best rows of each query, host to host.
  /// @param queries [n, dim], any element type, any row stride >= dim.
  search_result search(any_matrix_view queries, const search_options& options) const;
  /// The same into the caller's arrays; returns k_found. Allocates nothing within what `reserve` has set aside.
  std::int64_t search(any_matrix_view queries, const search_options& options, search_output out) const;

  /// Asynchronous on the index's device: fp32 queries and `out` lie in its memory. Returns k_found.
  std::int64_t search(const stream& s, any_matrix_view queries, const search_options& options, search_output out) const;
  /// The same with the caller's scratch: never allocates, and may be captured in a CUDA graph. Any `add` makes the
  /// graph stale.
  std::int64_t search(const stream& s, workspace& scratch, any_matrix_view queries, const search_options& options,
                      search_output out) const;

  /// Sets memory aside: rows up to max_rows keep their addresses, and `concurrency` searches at once allocate nothing.
  /// A max_rows below rows() asks for none beyond those that are there.
  /// @throws invalid_argument if a limit is out of range or concurrency < 1, out_of_memory; nothing has changed then.
  void reserve(const search_limits& limits, int concurrency = 1);

  /// Copies rows [first, first + count) back, dense, into host memory of count x dim elements of the index's type.
  /// @throws invalid_argument if the range is not in the index, or `out` is null.
  void read(std::int64_t first, std::int64_t count, void* out) const;

  /// Writes a safetensors file beside `path` and renames it when it is on disk. @throws io_error.
  void save(const std::filesystem::path& path) const;
  /// Reads an index, from whichever device it was saved, onto `where`, with the storage that it had; a plane is made
  /// anew. @throws io_error, corrupt_file, out_of_memory, and what the constructor does.
  static flat_index load(device where, const std::filesystem::path& path, verify checks = verify::full);

  /// The plan of a search with this many queries and this k: algorithm, why, bytes moved.
  std::string explain(std::int64_t queries, const search_options& options) const;

 private:
  struct impl;
  explicit flat_index(std::unique_ptr<impl> p);
  std::unique_ptr<impl> impl_;
};

/// The slow, obvious answer, computed on the host from the definition: for tests and for checking a deployment.
/// @throws invalid_argument as flat_index does.
search_result reference_search(any_matrix_view vectors, any_matrix_view queries, metric by,
                               const search_options& options, std::span<const std::int64_t> ids = {});

/// The plan for a shape on a device. See flat_index::explain.
std::string explain(device where, const search_shape& shape);

}  // namespace shortlist
