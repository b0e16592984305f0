// What an instruction set provides for IVF-PQ.
#pragma once

#include <cstdint>

#include "cpu/isa.hpp"

namespace shortlist::cpu {

/// One piece's codewords, transposed: [piece_dim][codewords], so that lanes are codewords.
struct piece_codewords {
  const float* words = nullptr;
  std::int64_t piece_dim = 0;
  std::int64_t count = 0;  ///< a multiple of 16
};

struct ivf_pq_kernels {
  /// codes[i * code_stride] of the piece of row i, which begins at pieces + i * stride: the nearest codeword.
  void (*encode)(const piece_codewords& codewords, const float* pieces, std::int64_t stride, std::int64_t rows,
                 std::uint8_t* codes, std::int64_t code_stride);
};

/// The table of the instruction set that is in use. @throws what current_isa does.
const ivf_pq_kernels& current_ivf_pq_kernels();

const ivf_pq_kernels& scalar_ivf_pq_kernels();

}  // namespace shortlist::cpu
