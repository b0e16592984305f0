// Inverse norms of rows, one warp a row; each row is read once, at add time.
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
constexpr std::int64_t kMaxBlocks = 65536;  // each strides over the rows beyond

template <element_type E>
__global__ void __launch_bounds__(kThreads)
    inverse_norms_kernel(const unsigned char* rows, std::int64_t stride_bytes, std::int64_t count, float* out) {
  using raw = typename quad<E>::raw;
  const int lane = threadIdx.x % kWarp;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; row < count;
       row += static_cast<std::int64_t>(gridDim.x) * kWarps) {
    float sums[4] = {};
    const unsigned char* from = rows + row * stride_bytes;
    for (std::int64_t at = lane * static_cast<std::int64_t>(sizeof(raw)); at < stride_bytes;
         at += kWarp * static_cast<std::int64_t>(sizeof(raw))) {
      const float4 x = quad<E>::widen(load_streaming(reinterpret_cast<const raw*>(from + at)));
      step4<false>(x, x, sums);
    }
    __syncwarp();
    const float sum = finish_sums<1>(sums, lane);
    if (lane == 0) out[row] = core::inverse_norm(sum);
  }
}

}  // namespace

void launch_inverse_norms(cudaStream_t stream, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                          float* inverse_norms) {
  if (count == 0) return;
  const auto* rows = static_cast<const unsigned char*>(corpus.rows) + first * corpus.row_stride_bytes;
  const auto blocks = static_cast<unsigned>(std::min((count + kWarps - 1) / kWarps, kMaxBlocks));
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
