// Inverse norms of rows, four rows a warp at once; each row is read once, at add time.
#include <algorithm>

#include "core/score.hpp"
#include "cuda/device/element.cuh"
#include "cuda/device/score.cuh"
#include "cuda/flat/norms.hpp"
#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kLanesPerRow = 8;
constexpr int kRowsPerPass = kWarp / kLanesPerRow;
constexpr std::int64_t kRowsPerBlock = kWarps * kRowsPerPass;
constexpr std::int64_t kMaxBlocks = 65536;  // each strides over the rows beyond

template <element_type E>
__global__ void __launch_bounds__(kThreads)
    inverse_norms_kernel(const unsigned char* rows, std::int64_t stride_bytes, std::int64_t count, float* out) {
  using raw = typename quad<E>::raw;
  constexpr std::int64_t kQuadBytes = sizeof(raw);
  const int lane = threadIdx.x % kWarp;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kRowsPerBlock;
  for (std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp) * kRowsPerPass;
       first < count; first += step) {
    const std::int64_t row = first + lane / kLanesPerRow;
    float sums[1][kQuadsPerLane<kLanesPerRow>][4] = {};
    const unsigned char* from = rows + min(row, count - 1) * stride_bytes;
    for (std::int64_t chunk = 0; chunk < stride_bytes; chunk += kWarp * kQuadBytes) {
#pragma unroll
      for (int v = 0; v < kQuadsPerLane<kLanesPerRow>; v++) {
        const std::int64_t at = chunk + (kLanesPerRow * v + lane % kLanesPerRow) * kQuadBytes;
        if (at >= stride_bytes) continue;
        const float4 x = quad<E>::widen(load_streaming(reinterpret_cast<const raw*>(from + at)));
        step4<false>(x, x, sums[0][v]);
      }
    }
    const float sum = finish_sums<kLanesPerRow, 1>(sums, lane);
    if (lane % kLanesPerRow == 0 && row < count) out[row] = core::inverse_norm(sum);
  }
}

}  // namespace

void launch_inverse_norms(cudaStream_t stream, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                          float* inverse_norms) {
  if (count == 0) return;
  const auto* rows = static_cast<const unsigned char*>(corpus.rows) + first * corpus.row_stride_bytes;
  const auto blocks = static_cast<unsigned>(std::min((count + kRowsPerBlock - 1) / kRowsPerBlock, kMaxBlocks));
  const auto launch = [&](auto kernel) {
    kernel<<<blocks, kThreads, 0, stream>>>(rows, corpus.row_stride_bytes, count, inverse_norms + first);
  };
  switch (corpus.type) {
    case element_type::f32: launch(inverse_norms_kernel<element_type::f32>); break;
    case element_type::f16: launch(inverse_norms_kernel<element_type::f16>); break;
    case element_type::bf16: launch(inverse_norms_kernel<element_type::bf16>); break;
    case element_type::i8: launch(inverse_norms_kernel<element_type::i8>); break;
    case element_type::u8: launch(inverse_norms_kernel<element_type::u8>); break;
  }
  check(cudaGetLastError(), "launching the inverse norms");
}

}  // namespace shortlist::cuda
