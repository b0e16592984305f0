// IVF-PQ: rows in lists around centroids, each kept as a short code; approximate search over the lists nearest a query.
//
// What a code decodes to, which lists a query probes and what a search returns are defined to the last bit in
// docs/ivf_pq.md, so that every device returns the same lists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shortlist/flat_index.hpp"

namespace shortlist {

/// How a row, or what its centroid leaves of it, is kept.
enum class code_kind : std::uint8_t {
  pq,   ///< product quantiser: pq_dim pieces, each the number of one of 2^pq_bits codewords
  sq4,  ///< scalar: 4 bits an element, equal steps
  sq8,  ///< scalar: 8 bits an element, equal steps
};

enum class encoded : std::uint8_t {
  residual,  ///< the row less its list's centroid
  row,       ///< the row itself
};

/// An orthogonal turn of rows and queries before anything else, so that no element matters more than another.
enum class rotation : std::uint8_t { none, random };

/// Whether the rows themselves are kept too, for searches that refine.
enum class kept_rows : std::uint8_t {
  none,
  device,
  host,  ///< in pinned host memory, which a GPU reads by the same address; on the CPU the same as device
};

/// "pq", "sq4", "sq8"; "residual", "row"; "none", "random"; "none", "device", "host".
std::string_view to_string(code_kind value);
std::string_view to_string(encoded value);
std::string_view to_string(rotation value);
std::string_view to_string(kept_rows value);
/// The inverses of to_string. @throws invalid_argument that lists the known names.
code_kind parse_code_kind(std::string_view name);
encoded parse_encoded(std::string_view name);
rotation parse_rotation(std::string_view name);
kept_rows parse_kept_rows(std::string_view name);

struct ivf_pq_options {
  std::int64_t dim = 0;
  shortlist::metric metric = shortlist::metric::l2;
  element_type type = element_type::f32;  ///< rows of this type only may be added
  std::int64_t nlist = 1024;
  code_kind code = code_kind::pq;
  /// Of product codes: pieces, each of ceil(dim / pq_dim) elements, the last padded with 0; 0: ceil(dim / 2).
  std::int64_t pq_dim = 0;
  int pq_bits = 8;  ///< of product codes: 4 to 8
  encoded encodes = encoded::residual;
  shortlist::rotation rotation = shortlist::rotation::none;
  kept_rows rows = kept_rows::none;
  std::uint64_t seed = 0;
};

/// What a training is doing.
struct train_progress {
  std::string_view stage;  ///< "centroids", "codebook"
  std::int64_t step = 0;   ///< iterations done
  std::int64_t steps = 0;
};

enum class proceed : std::uint8_t { yes, no };

struct train_options {
  std::int64_t iterations = 10;     ///< of k-means, for the centroids; twice as many for the codebook
  std::int64_t rows_per_list = 64;  ///< at most so many rows a list are trained with, a spread over those given
  /// Called after every step; `no` ends the training with `cancelled`.
  std::function<proceed(const train_progress&)> progress = nullptr;
};

/// What searches did. A search adds to it, so that several can share one; it begins at zero.
struct ivf_pq_stats {
  std::int64_t decoded_rows = 0;        ///< whose score was computed to the bit, for want of being excluded
  std::int64_t unfiltered_queries = 0;  ///< for which every probed row was decoded
};

struct ivf_pq_search_options {
  std::int64_t k = 10;
  std::int64_t nprobe = 32;       ///< lists looked at, at most nlist
  std::int64_t refine_ratio = 0;  ///< refine_ratio x k best by code are scored by their rows; 0: scores are the codes'
  ivf_pq_stats* stats = nullptr;  ///< filled by host-to-host searches unless null
};

/// As search_result, but each query finds what its lists hold.
struct ivf_pq_result {
  std::int64_t queries = 0;
  std::int64_t k = 0;
  std::vector<std::int64_t> k_found;  ///< [queries] entries from there on are padding (id -1, the worst score)
  std::vector<float> scores;          ///< [queries, k]
  std::vector<std::int64_t> ids;      ///< [queries, k]

  std::span<const float> scores_of(std::int64_t query) const;
  std::span<const std::int64_t> ids_of(std::int64_t query) const;
};

/// Bytes that an index holds.
struct ivf_pq_memory {
  std::int64_t model_bytes = 0;        ///< centroids, codebook and what is made of them
  std::int64_t codes_bytes = 0;        ///< codes with what a scan reads beside them, reserved space included
  std::int64_t rows_bytes = 0;         ///< kept rows, reserved space included
  std::int64_t host_rows_bytes = 0;    ///< of those, what lies in the host's memory beside a GPU
  std::int64_t mapped_rows_bytes = 0;  ///< of those, what is mapped from a file: all or nothing
  std::int64_t ids_bytes = 0;
  std::int64_t workspaces_bytes = 0;
};

/// What `load` leaves in the file, to be read when searches look at it.
enum class mapped : std::uint8_t { nothing, rows };

/// How evenly rows spread over the lists.
struct list_statistics {
  std::int64_t lists = 0;
  std::int64_t empty = 0;
  std::int64_t smallest = 0;
  std::int64_t median = 0;
  std::int64_t largest = 0;
  double imbalance = 1.0;  ///< nlist x sum of squared sizes / rows^2: rows scanned, over those of equal lists
};

/// Approximate nearest neighbours among rows kept as codes.
///
/// Searches are const and may run from any number of threads at once; `train`, `add` and `reserve` need exclusive
/// access. After an error the index is as it was before the call.
class ivf_pq_index {
 public:
  /// @throws invalid_argument that names the option, its value and what is allowed.
  ivf_pq_index(device where, const ivf_pq_options& options);
  ~ivf_pq_index();
  ivf_pq_index(ivf_pq_index&&) noexcept;
  ivf_pq_index& operator=(ivf_pq_index&&) noexcept;

  device where() const noexcept;
  const ivf_pq_options& options() const noexcept;  ///< with pq_dim and pq_bits as chosen
  std::int64_t rows() const noexcept;
  bool is_trained() const noexcept;
  ivf_pq_memory memory() const;
  list_statistics lists() const;

  /// Finds centroids and codebook. The same rows and seed give the same bits on every device.
  /// @param vectors [n, dim] in host memory, of any element type; n >= nlist, and >= 2^pq_bits for product codes.
  /// @throws invalid_argument if rows are too few; if one that is looked at is not finite, or so large that differences
  ///         may not be; or if the index holds rows. cancelled, out_of_memory.
  void train(any_matrix_view vectors, const train_options& options = {});

  /// Appends rows from host memory. The label of a row is its position unless `ids` gives one.
  /// @throws invalid_argument if the index is not trained, or a row is not finite; out_of_memory.
  void add(any_matrix_view vectors, std::span<const std::int64_t> ids = {});
  /// The same from memory of the index's device, ordered on `s`; returns when the rows are in place.
  void add(const stream& s, any_matrix_view vectors, std::span<const std::int64_t> ids = {});

  /// The k best of each query, host to host.
  /// @param queries [n, dim], any element type, any row stride >= dim.
  ivf_pq_result search(any_matrix_view queries, const ivf_pq_search_options& options) const;
  /// The same into the caller's arrays; lists shorter than k are padded.
  void search(any_matrix_view queries, const ivf_pq_search_options& options, search_output out) const;
  /// Asynchronous on the index's device: fp32 queries and `out` lie in its memory.
  void search(const stream& s, any_matrix_view queries, const ivf_pq_search_options& options, search_output out) const;

  /// The k best of all kept rows, each of them scored: what a flat_index of the same rows returns.
  /// @throws invalid_argument if the index keeps none.
  search_result search_kept_rows(any_matrix_view queries, const search_options& options) const;

  /// Sets memory aside for rows up to max_rows, however they spread over the lists.
  /// @throws invalid_argument if max_rows is below 0 or 2^32 or more, out_of_memory.
  void reserve(std::int64_t max_rows);
  /// Drops all rows; what was trained and the memory for codes and rows stay.
  void clear();

  /// Writes a safetensors file beside `path` and renames it when it is on disk.
  /// @throws invalid_argument if the index is not trained, io_error.
  void save(const std::filesystem::path& path) const;
  /// Adds this index's rows behind those of the index file at `path`, which must have been trained as this one was: by
  /// a file beside it that `path` then names. What is there is not written again, and a crash leaves it as it was. A
  /// row without an id of its own is labelled by its position in the whole. One writer at a time.
  /// @throws invalid_argument if the two differ in what was trained or how rows are kept, or an id is in use there;
  ///         io_error, corrupt_file.
  void append_to(const std::filesystem::path& path) const;
  /// Reads an index, from whichever device it was saved, onto `where`.
  /// @param in_file mapped::rows leaves kept rows in the file, which must not be shortened or written into meanwhile;
  ///                it may be replaced or removed. Only verify::full looks at them then, and cosine, for their norms.
  ///                Adding rows copies all of them into memory.
  /// @throws io_error, corrupt_file, out_of_memory; unsupported if rows cannot be mapped: on a GPU, of an index of
  ///         several files, or if a row's bytes are no multiple of 64.
  static ivf_pq_index load(device where, const std::filesystem::path& path, verify checks = verify::full,
                           mapped in_file = mapped::nothing);
  /// The same without the rows: what was trained, ready for others.
  static ivf_pq_index load_trained(device where, const std::filesystem::path& path, verify checks = verify::full);

 private:
  struct impl;
  explicit ivf_pq_index(std::unique_ptr<impl> p);
  std::unique_ptr<impl> impl_;
};

}  // namespace shortlist
