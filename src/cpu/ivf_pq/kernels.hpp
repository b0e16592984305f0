// What an instruction set provides for IVF-PQ. See docs/ivf_pq.md, section 5, for the filter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.hpp"

namespace shortlist::cpu {

/// Codewords, transposed: [pieces][piece_dim][count], so that lanes are codewords.
struct lane_codewords {
  const float* words = nullptr;
  std::int64_t piece_dim = 0;
  std::int64_t count = 0;  ///< of a piece, a multiple of 16
};

/// What a query's table is like, which decides how it becomes bytes.
struct table_range {
  double sum_of_least = 0.0;  ///< of each piece's least entry
  float widest = 0.0f;  ///< largest less least entry, of the pieces 2 i and 2 i + 1 together, where that is largest
};

/// The rows of one list.
struct list_span {
  const std::byte* pages = nullptr;
  const std::uint32_t* table = nullptr;  ///< numbers of the list's pages
  std::int64_t page_bytes = 0;
  std::int64_t strips = 0;
  std::int64_t rows = 0;
  std::uint32_t list = 0;
};

/// A query against one list: rows are left out whose estimate from below, offset + term + step * sum of bytes, is
/// surely above `limit`.
struct list_filter {
  const std::uint8_t* bytes = nullptr;  ///< the query's table, [pieces rounded up to even][codewords]
  int bits = 4;                         ///< of a code
  float base = 0.0f;                    ///< goes along with candidates
  float offset = 0.0f;
  float step = 0.0f;
  float inverse_step = 0.0f;
  float limit = 0.0f;
};

/// A row that may be among the best.
struct candidate {
  float estimate;       ///< of its score, smaller is better
  float base;           ///< what its estimate began at
  std::uint32_t place;  ///< number of its page times 32, plus its row there
  std::uint32_t list;
};

struct candidate_list {
  candidate* rows = nullptr;
  std::int64_t size = 0;
  std::int64_t room = 0;
};

/// Centroids, transposed: [blocks][dim][kCentroidBlock], so that lanes are centroids.
inline constexpr std::int64_t kCentroidBlock = 16;
struct lane_centroids {
  const float* elements = nullptr;
  const float* offsets = nullptr;  ///< [blocks * kCentroidBlock]; infinity behind the last centroid
  std::int64_t blocks = 0;
  std::int64_t dim = 0;
};

inline constexpr std::int64_t kCoarseQueries = 6;  ///< that meet a block of centroids at a time

/// What values may take beyond their end, where kernels put padding of their own.
inline constexpr std::int64_t kValuesSlack = 16;

struct ivf_pq_kernels {
  /// out[q * out_stride + c] = offset c + factor * dot(query q, centroid c), for one block and up to kCoarseQueries.
  void (*coarse_estimates)(const lane_centroids& centroids, std::int64_t block, const float* queries,
                           std::int64_t stride, std::int64_t count, float factor, float* out, std::int64_t out_stride);
  /// least[g] of values[g], values[g + groups], ...; both are multiples of kCentroidBlock.
  void (*least_of_groups)(const float* values, std::int64_t count, std::int64_t groups, float* least);
  /// Numbers of the values that are at most `limit`; returns how many.
  std::int64_t (*numbers_below)(const float* values, std::int64_t count, float limit, std::uint32_t* numbers);

  /// codes[i * code_stride] of the piece of row i, which begins at pieces + i * stride: the nearest of one piece's
  /// codewords.
  void (*encode)(const lane_codewords& codewords, const float* pieces, std::int64_t stride, std::int64_t rows,
                 std::uint8_t* codes, std::int64_t code_stride);

  /// table[piece][n] = factor * dot(the query's piece, codeword n), and each piece's least[piece]. The query is padded
  /// to whole pieces.
  table_range (*make_table)(const lane_codewords& codewords, std::int64_t pieces, const float* query, float factor,
                            float* table, float* least);
  /// bytes[piece][n] = (table[piece][n] - least[piece]) * inverse_step, rounded down, at most `largest`.
  void (*make_bytes)(const float* table, const float* least, std::int64_t pieces, std::int64_t count,
                     float inverse_step, float largest, std::uint8_t* bytes);
  /// A number that is not below `rank` of the values, and below nearly all others: by bisection, since no more than
  /// that is needed. @pre 1 <= rank <= count; values are finite, and kValuesSlack may be written behind them.
  float (*limit_of_rank)(float* values, std::int64_t count, std::int64_t rank);
  /// Appends the rows, from page `first_page` on, that cannot be left out, for each of the queries, while all have room
  /// for a whole page. Returns the first page that it is not done with.
  std::int64_t (*scan_list)(const list_filter* filters, std::int64_t queries, const list_span& list,
                            std::int64_t first_page, candidate_list* const* found);
};

/// The table of the instruction set that is in use. @throws what current_isa does.
const ivf_pq_kernels& current_ivf_pq_kernels();

const ivf_pq_kernels& scalar_ivf_pq_kernels();

}  // namespace shortlist::cpu
