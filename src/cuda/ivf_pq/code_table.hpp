// How the codewords of a codebook lie in shared memory, as halves, so that the lanes of a look-up read different banks.
//
// The four lanes that share a row (page_layout.hpp) take their pieces in groups of four. A group is [code][piece][lane]
// codewords: piece and lane say which bank a codeword is in, or, where codewords are two halves, which of two.
//
// Of rows that registers do not hold, or tables that shared memory does not, chunks of 32 halves come one after
// another: of each, eight halves of each lane, [code][piece][lane][halves], half as many banks as there are.
#pragma once

#include <cstdint>

#include "cuda/ivf_pq/page_layout.hpp"

namespace shortlist::cuda {

inline constexpr std::int64_t kTableCodes = 256;  ///< of a piece, whatever its bits: those past its codewords are 0
inline constexpr std::int64_t kGroupPieces = 4;   ///< of a lane; page_layout::lane_pieces is a multiple of it

inline constexpr std::int64_t kRegisterHalves = 128;  ///< of a row, that registers hold, for two tiles of a page
inline constexpr std::int64_t kMaxWideHalves = 4096;  ///< of a row, that goes through registers by chunks
inline constexpr std::int64_t kMaxSharedTable = 64 * 1024;
inline constexpr std::int64_t kChunkHalves = 8;  ///< of a lane
inline constexpr std::int64_t kChunk = kChunkHalves * kLanesOfRow;

/// Whether registers hold a page's decoded rows, and shared memory the table.
constexpr bool fits_registers(const core::ivf_pq_shape& shape) {
  const page_layout layout(shape);
  const std::int64_t halves = layout.padded_halves();
  if (halves > kRegisterHalves || halves % 32 != 0) return false;
  if (shape.uniform) return true;
  return layout.code_bits == 8 && (layout.halves == 2 || (layout.halves == 4 && halves % 64 == 0)) &&
         halves * kTableCodes * 2 <= kMaxSharedTable;
}

/// Where half `at` of a row lies among those of its chunks: there, two halves of each of the four lanes are neighbours,
/// as matrix units take them.
constexpr std::uint32_t place_in_chunks(std::uint32_t halves, std::uint32_t at) {
  constexpr std::uint32_t kOfLane = kChunkHalves;
  constexpr std::uint32_t kLanes = kLanesOfRow;
  const std::uint32_t lane = at / (halves / kLanes);
  const std::uint32_t of_lane = at - lane * (halves / kLanes);
  return of_lane / kOfLane * kChunk + of_lane % kOfLane / 2 * (2 * kLanes) + lane * 2 + of_lane % 2;
}

/// That the table has of a piece.
constexpr std::int64_t table_codes(const core::ivf_pq_shape& shape) {
  return fits_registers(shape) ? kTableCodes : shape.codewords();
}

/// What a half of the table is of.
struct table_place {
  std::int64_t piece;
  std::int64_t code;
  std::int64_t half;  ///< of the codeword
};

/// Half `at` of a table that shared memory has as a whole.
constexpr table_place place_in_table(const page_layout& layout, std::int64_t at) {
  const std::int64_t codeword = at / layout.halves;
  return {.piece = codeword % kLanesOfRow * layout.lane_pieces +
                   codeword / (kLanesOfRow * kGroupPieces * kTableCodes) * kGroupPieces +
                   codeword / kLanesOfRow % kGroupPieces,
          .code = codeword / (kLanesOfRow * kGroupPieces) % kTableCodes,
          .half = at % layout.halves};
}

/// Half `at` of a table of chunks, of so many codes of a piece.
constexpr table_place place_in_chunks_table(const page_layout& layout, std::int64_t codes, std::int64_t at) {
  const std::int64_t together = layout.halves < kChunkHalves ? layout.halves : kChunkHalves;
  const std::int64_t in_chunk = at % kChunk;
  const std::int64_t of_lane =
      at / (kChunk * codes) * kChunkHalves + in_chunk / (kLanesOfRow * together) * together + in_chunk % together;
  return {.piece = in_chunk / together % kLanesOfRow * layout.lane_pieces + of_lane / layout.halves,
          .code = at / kChunk % codes,
          .half = of_lane % layout.halves};
}

}  // namespace shortlist::cuda
