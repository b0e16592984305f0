// IVF-PQ in vector instructions: one source for AVX-512, AVX2 and NEON.
//
// encode: lanes are codewords, so that each distance is summed by itself, in the defined order; every lane keeps its
// nearest codeword and the nearest of the lanes is found at the end.
#include "cpu/targets.hpp"
// Highway compiles this file once for each target, each time in a namespace of its own.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ivf_pq/simd_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// Highway's headers come first: foreach_target includes this file again from here.
#include <limits>

#include "cpu/ivf_pq/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace shortlist::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON

namespace hn = hwy::HWY_NAMESPACE;

using float_tag = hn::ScalableTag<float>;
constexpr float_tag kFloats;
constexpr hn::RebindToSigned<float_tag> kInts;
using vector = hn::Vec<float_tag>;
using ints = hn::Vec<decltype(kInts)>;

constexpr int kLanes = HWY_LANES(float);

// ---- encoding

/// kDim is the elements of a piece where they are few, else 0.
template <int kDim>
void encode_pieces(const piece_codewords& codewords, const float* pieces, std::int64_t stride, std::int64_t rows,
                   std::uint8_t* codes, std::int64_t code_stride) {
  const std::int64_t dim = kDim > 0 ? kDim : codewords.piece_dim;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* piece = pieces + row * stride;
    vector best = hn::Set(kFloats, std::numeric_limits<float>::infinity());
    ints code = hn::Zero(kInts);
    ints numbers = hn::Iota(kInts, 0);
    for (std::int64_t n = 0; n < codewords.count; n += kLanes) {
      vector d = hn::Zero(kFloats);
      for (std::int64_t i = 0; i < dim; ++i) {
        const vector t =
            hn::Sub(hn::Set(kFloats, piece[i]), hn::LoadU(kFloats, codewords.words + i * codewords.count + n));
        d = hn::MulAdd(t, t, d);
      }
      const auto nearer = hn::Lt(d, best);  // never where distances are NaN, which all of a piece are or none
      best = hn::IfThenElse(nearer, d, best);
      code = hn::IfThenElse(hn::RebindMask(kInts, nearer), numbers, code);
      numbers = hn::Add(numbers, hn::Set(kInts, kLanes));
    }
    const vector least = hn::MinOfLanes(kFloats, best);
    const auto others = hn::RebindMask(kInts, hn::Gt(best, least));
    const ints smallest = hn::MinOfLanes(kInts, hn::IfThenElse(others, hn::Set(kInts, INT32_MAX), code));
    codes[row * code_stride] = static_cast<std::uint8_t>(hn::GetLane(smallest));
  }
}

void encode(const piece_codewords& codewords, const float* pieces, std::int64_t stride, std::int64_t rows,
            std::uint8_t* codes, std::int64_t code_stride) {
  const auto encode_with = [&] {
    switch (codewords.piece_dim) {
      case 1: return encode_pieces<1>;
      case 2: return encode_pieces<2>;
      case 3: return encode_pieces<3>;
      case 4: return encode_pieces<4>;
      case 8: return encode_pieces<8>;
      default: return encode_pieces<0>;
    }
  }();
  encode_with(codewords, pieces, stride, rows, codes, code_stride);
}

const ivf_pq_kernels kIvfPqKernels = {.encode = encode};

#endif
}  // namespace shortlist::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shortlist::cpu {

const ivf_pq_kernels& current_ivf_pq_kernels() {
  switch (current_isa()) {
#if HWY_TARGETS & HWY_AVX3
    case isa::avx512: return N_AVX3::kIvfPqKernels;
#endif
#if HWY_TARGETS & HWY_AVX2
    case isa::avx2: return N_AVX2::kIvfPqKernels;
#endif
#if HWY_TARGETS & HWY_NEON
    case isa::neon: return N_NEON::kIvfPqKernels;
#endif
    default: return scalar_ivf_pq_kernels();
  }
}

}  // namespace shortlist::cpu
#endif
