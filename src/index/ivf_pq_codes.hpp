// Codes as a file has them: those of a row side by side, pq_bits each, the lowest bits first, rows padded to bytes.
#pragma once

#include <cstdint>

#include "core/ivf_pq.hpp"

namespace shortlist::index {

constexpr std::int64_t packed_bytes(const core::ivf_pq_shape& shape) { return (shape.pieces * shape.bits + 7) / 8; }

/// codes [n, pieces] <-> packed [n, packed_bytes].
void pack_codes(const core::ivf_pq_shape& shape, const std::uint8_t* codes, std::int64_t n, std::uint8_t* packed);
/// False if the bits that pad a row are not all 0.
[[nodiscard]] bool unpack_codes(const core::ivf_pq_shape& shape, const std::uint8_t* packed, std::int64_t n,
                                std::uint8_t* codes);

}  // namespace shortlist::index
