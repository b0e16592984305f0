// IVF-PQ without vector instructions: the definitions, one row and codeword at a time.
#include <cmath>
#include <limits>

#include "cpu/ivf_pq/kernels.hpp"

namespace shortlist::cpu {
namespace {

void encode(const piece_codewords& codewords, const float* pieces, std::int64_t stride, std::int64_t rows,
            std::uint8_t* codes, std::int64_t code_stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* piece = pieces + row * stride;
    float best = std::numeric_limits<float>::infinity();
    std::int64_t code = 0;
    for (std::int64_t n = 0; n < codewords.count; ++n) {
      float d = 0.0f;
      for (std::int64_t i = 0; i < codewords.piece_dim; ++i) {
        const float t = piece[i] - codewords.words[i * codewords.count + n];
        d = std::fma(t, t, d);
      }
      if (d < best) {
        best = d;
        code = n;
      }
    }
    codes[row * code_stride] = static_cast<std::uint8_t>(code);
  }
}

}  // namespace

const ivf_pq_kernels& scalar_ivf_pq_kernels() {
  static constexpr ivf_pq_kernels kKernels = {.encode = encode};
  return kKernels;
}

}  // namespace shortlist::cpu
