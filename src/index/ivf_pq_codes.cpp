// Codes as a file has them.
#include "index/ivf_pq_codes.hpp"

#include <algorithm>

namespace shortlist::index {
namespace {

constexpr int kByteBits = 8;

}  // namespace

void pack_codes(const core::ivf_pq_shape& shape, const std::uint8_t* codes, std::int64_t n, std::uint8_t* packed) {
  if (shape.bits == kByteBits) {
    std::copy_n(codes, n * shape.pieces, packed);
    return;
  }
  for (std::int64_t row = 0; row < n; ++row) {
    std::uint32_t bits = 0;
    int held = 0;
    for (std::int64_t piece = 0; piece < shape.pieces; ++piece) {
      bits |= std::uint32_t{*codes++} << held;
      held += shape.bits;
      if (held >= kByteBits) {
        *packed++ = static_cast<std::uint8_t>(bits);
        bits >>= kByteBits;
        held -= kByteBits;
      }
    }
    if (held > 0) *packed++ = static_cast<std::uint8_t>(bits);
  }
}

bool unpack_codes(const core::ivf_pq_shape& shape, const std::uint8_t* packed, std::int64_t n, std::uint8_t* codes) {
  if (shape.bits == kByteBits) {
    std::copy_n(packed, n * shape.pieces, codes);
    return true;
  }
  const std::uint32_t mask = (1u << shape.bits) - 1u;
  std::uint32_t padding = 0;
  for (std::int64_t row = 0; row < n; ++row) {
    std::uint32_t bits = 0;
    int held = 0;
    for (std::int64_t piece = 0; piece < shape.pieces; ++piece) {
      if (held < shape.bits) {
        bits |= std::uint32_t{*packed++} << held;
        held += kByteBits;
      }
      *codes++ = static_cast<std::uint8_t>(bits & mask);
      bits >>= shape.bits;
      held -= shape.bits;
    }
    padding |= bits;
  }
  return padding == 0;
}

}  // namespace shortlist::index
