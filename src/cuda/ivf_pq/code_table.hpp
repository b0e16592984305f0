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

constexpr std::int64_t table_codes(const core::ivf_pq_shape& shape) {
  return fits_registers(shape) ? kTableCodes : shape.codewords();
}

/// What lies at place `at` of the table, counted in codewords.
struct code_table_place {
  std::int64_t piece;
  std::int64_t code;

  constexpr code_table_place(const page_layout& layout, std::int64_t at)
      : piece(at % kLanesOfRow * layout.lane_pieces + at / (kLanesOfRow * kGroupPieces * kTableCodes) * kGroupPieces +
              at / kLanesOfRow % kGroupPieces),
        code(at / (kLanesOfRow * kGroupPieces) % kTableCodes) {}
};

/// What lies at place `at` of a table of chunks, counted in halves.
struct chunk_table_place {
  std::int64_t piece;
  std::int64_t code;
  std::int64_t half;  ///< of the codeword

  constexpr chunk_table_place(const page_layout& layout, std::int64_t codes, std::int64_t at)
      : code(at / kChunk % codes) {
    const std::int64_t together = layout.halves < kChunkHalves ? layout.halves : kChunkHalves;
    const std::int64_t in_chunk = at % kChunk;
    const std::int64_t of_lane =
        at / (kChunk * codes) * kChunkHalves + in_chunk / (kLanesOfRow * together) * together + in_chunk % together;
    piece = in_chunk / together % kLanesOfRow * layout.lane_pieces + of_lane / layout.halves;
    half = of_lane % layout.halves;
  }
};

}  // namespace shortlist::cuda
