// How a page of codes lies in the CPU's memory.
#pragma once

#include <cstdint>

#include "core/ivf_pq.hpp"
#include "cpu/flat/scratch.hpp"

namespace shortlist::cpu {

/// A page: positions[32], kNoPosition behind the list's last row; terms[32], see docs/ivf_pq.md, section 5; then
/// codes, in strips of one byte for each of the 32 rows, so that a vector holds one piece of all rows. Codes of 4 bits
/// come in twos, the earlier piece in the lower half of the byte; wider ones in an even number of strips, the last of
/// which may be empty. Rows r and r + 16 share 16 bits, so that the halves of sums of pairs of bytes are rows in order.
struct page_layout {
  std::int64_t pieces = 0;
  std::int64_t strips = 0;
  bool paired = false;

  explicit constexpr page_layout(const core::ivf_pq_shape& shape)
      : pieces(shape.pieces),
        strips(shape.bits == 4 ? divide_up(shape.pieces, 2) : round_up(shape.pieces, 2)),
        paired(shape.bits == 4) {}

  static constexpr std::int64_t kPositionsBytes = core::kPageRows * 4;
  static constexpr std::int64_t kTermsBytes = core::kPageRows * 4;
  static constexpr std::int64_t kCodesAt = kPositionsBytes + kTermsBytes;

  constexpr std::int64_t bytes() const { return round_up(kCodesAt + strips * core::kPageRows, kCacheLineBytes); }

  static constexpr std::int64_t place_in_strip(std::int64_t row) {
    constexpr std::int64_t kHalf = core::kPageRows / 2;
    return row % kHalf * 2 + row / kHalf;
  }

  static std::uint32_t* positions(std::byte* page) { return reinterpret_cast<std::uint32_t*>(page); }
  static const std::uint32_t* positions(const std::byte* page) { return reinterpret_cast<const std::uint32_t*>(page); }
  static float* terms(std::byte* page) { return reinterpret_cast<float*>(page + kPositionsBytes); }
  static const float* terms(const std::byte* page) { return reinterpret_cast<const float*>(page + kPositionsBytes); }
  static std::uint8_t* codes(std::byte* page) { return reinterpret_cast<std::uint8_t*>(page + kCodesAt); }
  static const std::uint8_t* codes(const std::byte* page) {
    return reinterpret_cast<const std::uint8_t*>(page + kCodesAt);
  }

  std::uint8_t code(const std::byte* page, std::int64_t row, std::int64_t piece) const {
    if (!paired) return codes(page)[piece * core::kPageRows + place_in_strip(row)];
    const int both = codes(page)[piece / 2 * core::kPageRows + place_in_strip(row)];
    return static_cast<std::uint8_t>(piece % 2 == 0 ? both & 15 : both >> 4);
  }
  /// Codes of one row; those of rows beside it may be written at the same time.
  void set_codes(std::byte* page, std::int64_t row, const std::uint8_t* from) const {
    std::uint8_t* to = codes(page) + place_in_strip(row);
    for (std::int64_t piece = 0; piece < pieces; ++piece) {
      if (!paired) {
        to[piece * core::kPageRows] = from[piece];
      } else if (piece % 2 == 0) {
        to[piece / 2 * core::kPageRows] = from[piece];
      } else {
        to[piece / 2 * core::kPageRows] |= static_cast<std::uint8_t>(from[piece] << 4);
      }
    }
  }
};

}  // namespace shortlist::cpu
