// What an instruction set provides for flat search: sums, packed tiles and the filter that selects.
//
// The drivers in search.cpp are written once over this table; simd_kernels.cpp fills it for each vector instruction
// set, scalar_kernels.cpp with plain loops. Sums are those of docs/ordering.md, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.hpp"
#include "shortlist/types.hpp"

namespace shortlist::cpu {

/// Rows that are packed together: a multiple of every tile height and of every vector's lanes.
inline constexpr std::int64_t kBlockRows = 48;
inline constexpr std::int64_t kMaxTileQueries = 8;
/// Kernels may write this many floats past the last sum, a whole vector at a time.
inline constexpr std::int64_t kSumsSlack = 16;

/// Rows of one element type in memory. Bytes past dim up to the stride are zero; the stride is a multiple of 64 bytes.
struct row_span {
  const std::byte* data = nullptr;
  std::int64_t stride_bytes = 0;
  std::int64_t count = 0;

  row_span part(std::int64_t first, std::int64_t part_count) const {
    return {data + first * stride_bytes, stride_bytes, part_count};
  }
};

/// Rows that lie anywhere: the sums of the first `count` are wanted; the others, up to `known`, are fetched meanwhile.
struct scattered_rows {
  const std::byte* const* rows = nullptr;
  std::int64_t count = 0;
  std::int64_t known = 0;
};

/// Scattered rows are fetched so many ahead of the one that is summed.
inline constexpr std::int64_t kScatteredAhead = 2;

/// Memory that will be read soon.
struct fetch_ahead {
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

/// Rows that may be among the k best of one query, as 64-bit keys; and the key that a score must reach to join them.
///
/// Rows come in ascending position, so a row that ties with the k-th of those already here loses against it: `min_key`
/// is one above the k-th key, and 0, which even NaN reaches, while there are fewer than k.
struct candidates {
  std::uint64_t* keys = nullptr;
  std::int64_t size = 0;
  std::uint32_t min_key = 0;
};

/// Sums that belong to the rows at positions first, first + 1, ...
struct scored_rows {
  const float* sums = nullptr;
  std::int64_t count = 0;
  std::uint32_t first = 0;
  const float* inverse_norms = nullptr;  ///< of these rows, under cosine
  float query_inverse_norm = 0.0f;       ///< under cosine
};

enum class sum_kind : std::uint8_t { dot, l2 };

struct flat_kernels {
  /// Queries in a packed tile, at most kMaxTileQueries.
  std::int64_t tile_queries;

  /// sums[i] of row i with one query, which is padded with -0 to a multiple of 128.
  using row_sums_fn = void (*)(const float* query, row_span rows, std::int64_t dim, float* sums);
  row_sums_fn row_sums[5][2];  // [element_type][sum_kind]

  /// The same of rows that lie anywhere; sixteen at once cost the least.
  using scattered_sums_fn = void (*)(const float* query, scattered_rows rows, std::int64_t dim, float* sums);
  scattered_sums_fn scattered_sums[5][2];  // [element_type][sum_kind]

  /// sums[i] = dot(row i, row i).
  using square_sums_fn = void (*)(row_span rows, std::int64_t dim, float* sums);
  square_sums_fn square_sums[5];  // [element_type]

  /// Widens up to kBlockRows rows into `packed`, [kBlockRows * padded dim], in the order in which tile_sums reads.
  using pack_rows_fn = void (*)(row_span rows, std::int64_t dim, float* packed);
  pack_rows_fn pack_rows[5];  // [element_type]

  /// The same for `count` <= tile_queries queries; missing ones are padding.
  void (*pack_queries)(const float* queries, std::int64_t stride, std::int64_t count, std::int64_t dim, float* packed);

  /// sums[q * kBlockRows + r] of the first `rows` packed rows with a packed tile of queries;
  /// fetches `ahead` into a cache meanwhile.
  using tile_sums_fn = void (*)(const float* packed_queries, const float* packed_rows, std::int64_t rows,
                                std::int64_t dim, fetch_ahead ahead, float* sums);
  tile_sums_fn tile_sums[2];  // [sum_kind]

  /// Turns sums into keys and appends those that reach min_key; there is room for all of them.
  using collect_fn = void (*)(const scored_rows& rows, candidates& found);
  collect_fn collect[3];  // [metric]
};

/// The table of the instruction set that is in use. @throws what current_isa does.
const flat_kernels& current_flat_kernels();

const flat_kernels& scalar_flat_kernels();
/// @pre `which` is available and not scalar.
const flat_kernels& simd_flat_kernels(isa which);

}  // namespace shortlist::cpu
