// How codes lie in the pages of lists: as the matrix units take rows, so that a scan decodes them in registers.
//
// A page holds 32 rows of one list, as two tiles of 16; then a term and the position of each row, and the list. Of a
// tile, lane 4 g + t of a warp holds the codes of rows g and g + 8 for pieces t * lane_pieces and following: whole
// 32-bit words of the one row, then as many of the other.
#pragma once

#include <cstdint>

#include "core/ivf_pq.hpp"

namespace shortlist::cuda {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kPageTiles = core::kPageRows / kTileRows;
inline constexpr std::int64_t kLanesOfRow = 4;  // that share one row's codes
inline constexpr std::int64_t kWarpLanes = 32;

struct page_layout {
  std::int64_t code_bits = 8;    ///< 4 or 8: codes of 5 to 8 bits take a byte
  std::int64_t halves = 1;       ///< that a decoded piece takes: 1, 2, 4, 8 or a multiple of 8
  std::int64_t lane_pieces = 0;  ///< pieces of a row that one lane holds; past shape.pieces, code 0
  std::int64_t lane_words = 0;   ///< 32-bit words of codes of a lane, in a tile
  std::int64_t plane_words = 0;  ///< of those, what it loads at once: 1, 2 or 4

  constexpr explicit page_layout(const core::ivf_pq_shape& shape) {
    code_bits = shape.bits == 4 ? 4 : 8;
    const std::int64_t per_word = 32 / code_bits;
    halves = shape.piece_dim <= 2 ? shape.piece_dim : shape.piece_dim <= 4 ? 4 : (shape.piece_dim + 7) / 8 * 8;
    // A lane has whole words, and pairs of products whole registers.
    const std::int64_t unit = halves * per_word % 8 == 0 ? per_word : 2 * per_word;
    lane_pieces = (shape.pieces + kLanesOfRow * unit - 1) / (kLanesOfRow * unit) * unit;
    lane_words = 2 * lane_pieces / per_word;
    plane_words = lane_words % 4 == 0 ? 4 : 2;
  }

  constexpr std::int64_t row_words() const { return lane_words / 2; }  ///< of codes that a lane holds of one row
  constexpr int plane_shift() const { return plane_words == 4 ? 2 : 1; }
  constexpr std::int64_t padded_pieces() const { return lane_pieces * kLanesOfRow; }
  constexpr std::int64_t padded_halves() const { return padded_pieces() * halves; }
  constexpr std::int64_t tile_bytes() const { return lane_words * kWarpLanes * 4; }
  constexpr std::int64_t codes_bytes() const { return kPageTiles * tile_bytes(); }
  constexpr std::int64_t terms_at() const { return codes_bytes(); }                            ///< fp32 [32]
  constexpr std::int64_t positions_at() const { return codes_bytes() + core::kPageRows * 4; }  ///< uint32 [32]
  constexpr std::int64_t list_at() const {
    return codes_bytes() + core::kPageRows * 8;
  }                                                                     ///< uint32, of any row written
  constexpr std::int64_t page_bytes() const { return list_at() + 32; }  ///< sectors of memory are 32 bytes

  /// Where the code of a piece of a row lies: the byte, and for codes of 4 bits the shift within it.
  struct place {
    std::int64_t byte;
    int shift;
  };
  constexpr place place_of(std::int64_t row, std::int64_t piece) const {
    const std::int64_t per_word = 32 / code_bits;
    const std::int64_t i = piece % lane_pieces;
    const std::int64_t at = word_at(row, piece / lane_pieces, i / per_word);
    if (code_bits == 8) return {at + i % 4, 0};
    // A word masked by 0x000F000F, after 4 j places to the right, is the codes of pieces 2 j and 2 j + 1.
    const std::int64_t nibble = i % 2 * 4 + i % 8 / 2;
    return {at + nibble / 2, static_cast<int>(nibble % 2 * 4)};
  }

  /// Where a word of codes lies: word `i` of those that lane `lane_of_row` of the row's lanes holds of the row.
  constexpr std::int64_t word_at(std::int64_t row, std::int64_t lane_of_row, std::int64_t i) const {
    const std::int64_t lane = row % 8 * kLanesOfRow + lane_of_row;
    const std::int64_t word = row % kTileRows / 8 * row_words() + i;
    const std::int64_t in_tile = (word / plane_words * kWarpLanes + lane) * plane_words + word % plane_words;
    return row / kTileRows * tile_bytes() + in_tile * 4;
  }
};

}  // namespace shortlist::cuda
