// How the codewords of a codebook lie in shared memory, as halves, so that the lanes of a look-up read different banks.
//
// The four lanes that share a row (page_layout.hpp) take their pieces in groups of four. A group is [code][piece][lane]
// codewords: piece and lane say which bank a codeword is in, or, where codewords are two halves, which of two.
#pragma once

#include <cstdint>

#include "cuda/ivf_pq/page_layout.hpp"

namespace shortlist::cuda {

inline constexpr std::int64_t kTableCodes = 256;  ///< of a piece, whatever its bits: those past its codewords are 0
inline constexpr std::int64_t kGroupPieces = 4;   ///< of a lane; page_layout::lane_pieces is a multiple of it

/// What lies at place `at` of the table, counted in codewords.
struct code_table_place {
  std::int64_t piece;
  std::int64_t code;

  constexpr code_table_place(const page_layout& layout, std::int64_t at)
      : piece(at % kLanesOfRow * layout.lane_pieces + at / (kLanesOfRow * kGroupPieces * kTableCodes) * kGroupPieces +
              at / kLanesOfRow % kGroupPieces),
        code(at / (kLanesOfRow * kGroupPieces) % kTableCodes) {}
};

}  // namespace shortlist::cuda
