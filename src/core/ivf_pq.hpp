// What an IVF-PQ index asks of a backend: the parts of training and adding, and the search. docs/ivf_pq.md defines what
// they compute, to the bit; how codes lie in memory is each backend's own.
//
// All arrays lie in the backend's memory unless said otherwise, row-major and dense. Arguments were checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/backend.hpp"
#include "shortlist/ivf_pq_index.hpp"

namespace shortlist::core {

inline constexpr std::int64_t kPageRows = 32;      ///< rows of one list that lie together
inline constexpr std::uint32_t kNoPosition = ~0u;  ///< of the places behind a list's last row
inline constexpr std::int64_t kMaxCodewords = 256;

/// The numbers that decide how codes are laid out and read.
struct ivf_pq_shape {
  std::int64_t dim = 0;
  std::int64_t nlist = 0;
  std::int64_t pieces = 0;     ///< codes of a row
  std::int64_t piece_dim = 0;  ///< elements that a code stands for; pieces * piece_dim >= dim
  int bits = 8;                ///< of a code
  bool uniform = false;        ///< scalar codes: codeword n of element i is (n - (2^bits - 1) / 2) * steps[i]
  encoded encodes = encoded::residual;
  shortlist::metric metric = shortlist::metric::l2;

  constexpr std::int64_t codewords() const { return std::int64_t{1} << bits; }
  constexpr std::int64_t padded_dim() const { return pieces * piece_dim; }
  constexpr std::int64_t codebook_size() const { return pieces * codewords() * piece_dim; }
};

/// What was trained.
struct ivf_pq_model {
  ivf_pq_shape shape;
  flat_corpus probes;   ///< the centroids [nlist, dim] f32 under the index's metric: what queries are compared with
  flat_corpus assigns;  ///< the same under squared L2: what rows are compared with
  const float* codebook = nullptr;      ///< [pieces, codewords, piece_dim]; of product codes, halves times 2^exponent
  const float* steps = nullptr;         ///< [dim] of uniform codes, else null
  int exponent = 0;                     ///< of the codebook of product codes
  const float* rotation = nullptr;      ///< [dim, dim], or null
  const std::byte* prepared = nullptr;  ///< what `prepare` made of the others
};

/// Of so many of the longest lists it is known how many pages they have together.
inline constexpr std::int64_t kLongestLists = 256;

/// The rows of all lists, in pages of kPageRows rows of one list each; only a list's last page may have room.
struct ivf_pq_lists {
  std::byte* pages = nullptr;                   ///< [pages, page_bytes]
  const std::uint32_t* table = nullptr;         ///< numbers of pages, list after list
  const std::uint32_t* first = nullptr;         ///< [nlist + 1] where a list's part of the table begins
  const std::uint32_t* sizes = nullptr;         ///< [nlist] rows
  float* largest = nullptr;                     ///< one number a backend keeps of all rows written so far; begins at 0
  std::int64_t rows = 0;                        ///< of all lists
  std::int64_t longest = 0;                     ///< rows of the longest list
  const std::int64_t* longest_pages = nullptr;  ///< [kLongestLists + 1] of the i longest lists together, or null
  flat_corpus kept;                             ///< the rows by position, for refining; count is 0 if none are kept
  const std::int64_t* ids = nullptr;            ///< [rows] labels by position, or null
};

struct ivf_pq_request {
  const float* queries = nullptr;  ///< [query_count, dim]
  std::int64_t query_stride = 0;   ///< in elements
  std::int64_t query_count = 0;
  std::int64_t k = 0;
  std::int64_t nprobe = 0;
  std::int64_t refine_ratio = 0;
  float* scores = nullptr;      ///< [query_count, k]
  std::int64_t* ids = nullptr;  ///< [query_count, k]
  ivf_pq_stats* stats = nullptr;
};

struct ivf_pq_limits {
  std::int64_t max_queries = 0;  ///< of one call
  std::int64_t max_k = 0;
  std::int64_t max_nprobe = 0;
  std::int64_t max_refine_ratio = 0;
};

class ivf_pq_ops {
 public:
  virtual ~ivf_pq_ops() = default;

  // The model.
  virtual std::int64_t prepared_bytes(const ivf_pq_shape& shape) const noexcept = 0;
  /// Writes model.prepared, from everything else of it.
  virtual void prepare(void* stream, const ivf_pq_model& model, std::byte* prepared) = 0;

  // Lists of rows.
  /// Scratch for `assign` of at most `max_rows` rows at once to the lists of such centroids.
  virtual std::unique_ptr<scratch> make_assign_scratch(const flat_corpus& centroids, std::int64_t max_rows) = 0;
  /// The list of each of rows [n, dim]: the nearest of the centroids, which are there under squared L2. `lists` [n].
  /// Centroids may have changed since the scratch was made, but not in shape.
  virtual void assign(void* stream, scratch& memory, const flat_corpus& centroids, const float* rows, std::int64_t n,
                      std::int64_t* lists) = 0;

  // Rows.
  /// Numbers of the first rows, at most `limit`, that have an element that is not finite. Complete on return.
  virtual std::vector<std::int64_t> rows_not_finite(void* stream, const any_matrix_view& rows, std::int64_t limit) = 0;
  /// fp32 rows as the index takes them: widened, divided by their norm under cosine, then turned. `out` [n, dim].
  virtual void take_rows(void* stream, metric by, const float* rotation, const any_matrix_view& rows, float* out) = 0;
  /// What codes stand for: rows [n, dim] less the centroids of their lists, or the rows themselves. `out` is
  /// [n, padded_dim], with 0 past dim. `centroids` is [nlist, dim] with rows `centroid_stride` elements apart.
  virtual void residuals(void* stream, const ivf_pq_shape& shape, const float* rows, std::int64_t n,
                         const std::int64_t* lists, const float* centroids, std::int64_t centroid_stride,
                         float* out) = 0;
  /// The nearest codeword of each piece. `residuals` [n, padded_dim], `codes` [n, pieces].
  virtual void encode(void* stream, const ivf_pq_shape& shape, const float* codebook, const float* residuals,
                      std::int64_t n, std::uint8_t* codes) = 0;

  // k-means, whose sums are whole numbers, so that their order does not matter: docs/ivf_pq.md.
  /// Adds rows [n, dim], each element times 2^scale and rounded, to sums [groups, dim], and 1 to counts [groups].
  virtual void add_to_means(void* stream, const float* rows, std::int64_t n, std::int64_t dim,
                            const std::int64_t* group_of, int scale, std::int64_t* sums, std::int64_t* counts) = 0;
  /// The same for the codebook: sums is [pieces, codewords, piece_dim], counts [pieces, codewords].
  virtual void add_to_codewords(void* stream, const ivf_pq_shape& shape, const float* residuals, std::int64_t n,
                                const std::uint8_t* codes, int scale, std::int64_t* sums, std::int64_t* counts) = 0;

  // Lists.
  virtual std::int64_t page_bytes(const ivf_pq_shape& shape) const noexcept = 0;
  /// Marks pages [first, first + count) as empty.
  virtual void clear_pages(void* stream, const ivf_pq_shape& shape, std::byte* pages, std::int64_t first,
                           std::int64_t count) = 0;
  /// Counts rows by list, counts[nlist], and the place of each row among those of its list, by row: places[n].
  virtual void place_rows(void* stream, const std::int64_t* lists, std::int64_t n, std::int64_t nlist,
                          std::uint32_t* counts, std::uint32_t* places) = 0;
  /// Writes row r, of position positions[r] or first_position + r, into place sizes_before[list] + places[r] of its
  /// list. The table covers those places; `to.sizes` is not looked at.
  virtual void write_rows(void* stream, const ivf_pq_model& model, const ivf_pq_lists& to,
                          const std::uint32_t* sizes_before, const std::int64_t* lists, const std::uint32_t* places,
                          const std::uint8_t* codes, std::int64_t n, std::int64_t first_position,
                          const std::uint32_t* positions) = 0;
  /// Copies the rows in `n` places of the sequence of all lists, from `first` on, out again: codes [n, pieces] and
  /// positions [n]. `list_starts` [nlist + 1] are sums of sizes.
  virtual void read_rows(void* stream, const ivf_pq_shape& shape, const ivf_pq_lists& lists,
                         const std::int64_t* list_starts, std::int64_t first, std::int64_t n, std::uint8_t* codes,
                         std::uint32_t* positions) = 0;

  // Search.
  virtual std::unique_ptr<scratch> make_scratch(const ivf_pq_model& model, const ivf_pq_lists& lists,
                                                const ivf_pq_limits& limits) = 0;
  /// Device to device, asynchronous on `stream`, allocates nothing. The scratch is of this model, and of lists that
  /// had at least these `rows` and this `longest`.
  virtual void search(void* stream, scratch& memory, const ivf_pq_model& model, const ivf_pq_lists& lists,
                      const ivf_pq_request& request) = 0;
  /// Host to host, complete on return.
  virtual void search_host(void* stream, scratch& memory, const ivf_pq_model& model, const ivf_pq_lists& lists,
                           const ivf_pq_request& request) = 0;
};

}  // namespace shortlist::core
