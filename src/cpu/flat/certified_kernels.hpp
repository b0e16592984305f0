// What an instruction set provides for certified search: the filter over an int8 plane. See docs/certified.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/certified.hpp"
#include "cpu/isa.hpp"

namespace shortlist::cpu {

inline constexpr std::int64_t kMaxFilterQueries = 32;
/// Codes of queries: an error 64 times smaller than a row's, and a product still fits 32 bits to dim 2,064.
inline constexpr int kMaxQueryCode = 8191;
/// The same in bytes, for which the filter is faster and intervals are three times as wide: the products of a row's
/// bytes with two of these are added in 16 bits, 2 x 255 x 64 < 2^15. And where sums are of 32 bits at once.
inline constexpr int kMaxByteCode = 64;
inline constexpr int kMaxDotCode = 127;

/// A row that may be among the k best of a query, with the keys of the scores that bound its own; both are the score's
/// own key once that is known.
struct survivor {
  std::uint32_t low;
  std::uint32_t high;
  std::uint32_t position;
};

/// Survivors of one query. A row joins unless its merit is surely below `threshold`.
struct survivor_list {
  survivor* rows = nullptr;
  std::int64_t size = 0;
  float threshold = 0.0f;  ///< a merit
};

/// Whole blocks of a plane. In the last one there may be fewer rows than places.
struct plane_span {
  const std::byte* blocks = nullptr;
  core::plane_layout layout;
  std::int64_t rows = 0;
  std::uint32_t first = 0;               ///< position of the first row
  const float* inverse_norms = nullptr;  ///< of these rows, under cosine

  /// What follows the first block.
  constexpr plane_span next() const {
    return {.blocks = blocks + layout.block_bytes(),
            .layout = layout,
            .rows = rows - core::kPlaneRows,
            .first = first + static_cast<std::uint32_t>(core::kPlaneRows),
            .inverse_norms = inverse_norms != nullptr ? inverse_norms + core::kPlaneRows : nullptr};
  }
};

/// A query as the filter takes it.
struct filter_query {
  core::query_terms terms;
  std::uint32_t offset = 0;  ///< what the product starts from, as bytes are codes + 128: -128 x the sum of its codes
};

/// Filters up to tile_blocks blocks for up to tile_queries queries, whose lists have room for all of their rows;
/// fetches `ahead_bytes` of what follows the blocks at `ahead` into a cache meanwhile. `packed` has a width of
/// tile_queries.
using filter_blocks_fn = void (*)(const std::int16_t* packed, const filter_query* queries, std::int64_t count,
                                  const plane_span& blocks, const std::byte* ahead, std::int64_t ahead_bytes,
                                  survivor_list* lists);
/// Filters blocks for one query while the list has room for all rows of a block up to `limit`; returns how many rows
/// it is done with. `packed` is what pack_query_codes makes, with a width of 1.
using filter_rows_fn = std::int64_t (*)(const std::int16_t* packed, const filter_query& query, const plane_span& span,
                                        std::int64_t limit, survivor_list& list);
/// Packs up to `width` queries' codes [count][dim] for the filter that takes so many at once, in at most
/// width x padded_dim(dim) numbers. Missing ones are 0.
using pack_fn = void (*)(const std::int16_t* codes, std::int64_t count, std::int64_t dim, std::int64_t width,
                         std::int16_t* packed);

struct filter_kernels {
  std::int64_t tile_queries;  ///< of a tile of queries, at most kMaxFilterQueries
  std::int64_t tile_blocks;   ///< that meet a tile of queries at a time
  pack_fn pack;
  pack_fn pack_bytes;
  std::array<filter_rows_fn, 3> filter_rows;      // [metric]
  std::array<filter_blocks_fn, 3> filter_blocks;  // [metric]
  /// The same for byte codes; null where an instruction set has no faster way for them.
  std::array<filter_blocks_fn, 3> filter_blocks_by_bytes;  // [metric]
  int max_byte_code;                                       ///< of a query
  std::int64_t byte_codes_max_work;                        ///< byte codes pay for batches and a k times dim up to this
};

/// The table of the instruction set that is in use. @throws what current_isa does.
const filter_kernels& current_filter_kernels();

const filter_kernels& scalar_filter_kernels();

/// Where code `i` of query `query` lies among those packed `width` wide: pairs (0, 2) and (1, 3) of every four, since
/// the filter multiplies the even bytes of a word and the odd ones by themselves.
constexpr std::int64_t packed_code_at(std::int64_t query, std::int64_t i, std::int64_t width) {
  constexpr std::int64_t kPlaces[] = {0, 2, 1, 3};
  return (i / core::kPlaneWord * width + query) * core::kPlaneWord + kPlaces[i % core::kPlaneWord];
}

/// Packs [words][width] groups of four codes: for vector instructions, and for filter_rows.
void pack_query_codes(const std::int16_t* codes, std::int64_t count, std::int64_t dim, std::int64_t width,
                      std::int16_t* packed);

/// The same for byte codes.
void pack_byte_codes(const std::int16_t* codes, std::int64_t count, std::int64_t dim, std::int64_t width,
                     std::int16_t* packed);

/// Appends a row with what is known of its merit. An end that is NaN is that of everything, and so is a lower end of
/// -infinity unless the upper one is as well: the score itself may be NaN, which comes after every number.
inline void append_survivor(core::merit_interval found, metric by, std::uint32_t position, survivor_list& list) {
  constexpr std::uint32_t kHighestKey = 0xFFFFFFFFu;
  const bool has_low = found.low > -std::numeric_limits<float>::infinity() || found.low == found.high;
  const bool has_high = found.high == found.high;
  list.rows[list.size++] = {
      .low = has_low ? core::score_key(core::merit_of(found.low, by), by) : core::kNanKey,
      .high = has_high ? core::score_key(core::merit_of(found.high, by), by) : kHighestKey,
      .position = position,
  };
}

}  // namespace shortlist::cpu
