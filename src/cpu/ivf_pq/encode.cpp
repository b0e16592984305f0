// The nearest codewords of rows, over all cores.
#include <algorithm>

#include "cpu/ivf_pq/kernels.hpp"
#include "cpu/ivf_pq/parts.hpp"

namespace shortlist::cpu {
namespace {

/// Rows that meet a piece's codewords while those lie in the first cache.
constexpr std::int64_t kEncodedRows = 64;

}  // namespace

void transpose_codewords(const core::ivf_pq_shape& shape, const float* codebook, float* transposed) {
  const std::int64_t count = shape.codewords();
  for (std::int64_t piece = 0; piece < shape.pieces; ++piece) {
    for (std::int64_t word = 0; word < count; ++word) {
      for (std::int64_t i = 0; i < shape.piece_dim; ++i) transposed[i * count + word] = *codebook++;
    }
    transposed += count * shape.piece_dim;
  }
}

void encode(const core::ivf_pq_shape& shape, const float* codebook, const float* residuals, std::int64_t n,
            std::uint8_t* codes) {
  const std::int64_t count = shape.codewords();
  const std::int64_t piece_size = count * shape.piece_dim;
  growing_memory memory;
  memory.reserve(shape.codebook_size() * 4);
  float* transposed = memory.as<float>();
  transpose_codewords(shape, codebook, transposed);
  const ivf_pq_kernels& kernels = current_ivf_pq_kernels();
  for_each_range(n, kEncodedRows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t piece = 0; piece < shape.pieces; ++piece) {
      const float* pieces = residuals + first * shape.padded_dim() + piece * shape.piece_dim;
      kernels.encode({transposed + piece * piece_size, shape.piece_dim, count}, pieces, shape.padded_dim(),
                     last - first, codes + first * shape.pieces + piece, shape.pieces);
    }
  });
}

}  // namespace shortlist::cpu
