// What scans on the matrix units take from a model: scales, and the codebook as halves. Once a training.
#include <cuda_fp16.h>

#include "cuda/device/score.cuh"
#include "cuda/ivf_pq/coarse.hpp"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/prepared.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kTopExponent = 7;  // of the largest element of a query that is like the rows, as a half

struct largest_of_block {
  double totals[kThreads / kWarp];

  /// Known to all threads.
  __device__ double operator()(double value) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      value = fmax(value, __shfl_xor_sync(kFullWarp, value, offset));
    __syncthreads();
    if (threadIdx.x % kWarp == 0) totals[threadIdx.x / kWarp] = value;
    __syncthreads();
    for (int w = 0; w < kThreads / kWarp; w++) value = fmax(value, totals[w]);
    return value;
  }
};

/// One block.
__global__ void __launch_bounds__(kThreads) header_kernel(core::ivf_pq_model model, prepared_header* header) {
  __shared__ largest_of_block largest;
  const core::ivf_pq_shape& shape = model.shape;
  const bool has_centroids = shape.encodes == encoded::residual;
  double element = 0.0;
  double norm = 0.0;
  const auto* centroids = static_cast<const float*>(model.probes.rows);
  for (std::int64_t list = threadIdx.x; has_centroids && list < shape.nlist; list += kThreads) {
    const float* centroid = centroids + list * (model.probes.row_stride_bytes / 4);
    double squares = 0.0;
    for (std::int64_t i = 0; i < shape.dim; i++) {
      element = fmax(element, fabs(static_cast<double>(centroid[i])));
      squares += static_cast<double>(centroid[i]) * centroid[i];
    }
    norm = fmax(norm, squares);
  }
  double codeword = 0.0;
  double step = 0.0;
  for (std::int64_t i = threadIdx.x; i < shape.codebook_size(); i += kThreads)
    codeword = fmax(codeword, fabs(static_cast<double>(model.codebook[i])));
  for (std::int64_t i = threadIdx.x; shape.uniform && i < shape.dim; i += kThreads)
    step = fmax(step, static_cast<double>(model.steps[i]));
  element = largest(element);
  norm = largest(norm);
  codeword = largest(codeword);
  step = largest(step);
  if (threadIdx.x != 0) return;
  // As large as a query like the rows may have it, in what it is multiplied with.
  const double query = (element + codeword) * (shape.uniform ? step : 1.0);
  const int exponent = query > 0.0 ? ilogb(query) : 0;
  prepared_header made{};
  made.query_scale = static_cast<float>(scalbn(1.0, kTopExponent - exponent));
  const double unit = scalbn(1.0, (shape.uniform ? 0 : model.exponent) - kTopExponent + exponent);
  made.unit = static_cast<float>(unit);
  made.inverse_unit = static_cast<float>(1.0 / unit);
  made.largest_centroid = static_cast<float>(sqrt(norm) * (1.0 + 0x1p-20));
  made.largest_step = static_cast<float>(step);
  *header = made;
}

/// A thread a half.
__global__ void __launch_bounds__(kThreads)
    table_kernel(core::ivf_pq_shape shape, page_layout layout, const float* codebook, int exponent, __half* table) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= layout.padded_halves() * table_codes(shape)) return;
  const auto [piece, code, half] =
      fits_registers(shape) ? place_in_table(layout, at) : place_in_chunks_table(layout, table_codes(shape), at);
  const bool is_real = half < shape.piece_dim && code < shape.codewords() && piece < shape.pieces;
  const std::int64_t from = (piece * shape.codewords() + code) * shape.piece_dim + half;
  table[at] = __float2half_rn(is_real ? scalbnf(codebook[from], -exponent) : 0.0f);
}

}  // namespace

std::int64_t prepared_table_end(const core::ivf_pq_shape& shape) {
  if (shape.uniform) return kPreparedTableAt;
  return kPreparedTableAt +
         page_layout(shape).padded_halves() * table_codes(shape) * static_cast<std::int64_t>(sizeof(__half));
}

std::int64_t prepared_model_bytes(const core::ivf_pq_shape& shape) {
  return prepared_table_end(shape) + (shape.dim <= kCoarseMaxDim ? coarse_pages_bytes(shape.dim, shape.nlist) : 0);
}

void launch_prepare_model(cudaStream_t stream, const core::ivf_pq_model& model, std::byte* prepared) {
  header_kernel<<<1, kThreads, 0, stream>>>(model, reinterpret_cast<prepared_header*>(prepared));
  if (!model.shape.uniform) {
    const page_layout layout(model.shape);
    const std::int64_t halves = layout.padded_halves() * table_codes(model.shape);
    table_kernel<<<static_cast<unsigned>((halves + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        model.shape, layout, model.codebook, model.exponent, reinterpret_cast<__half*>(prepared + kPreparedTableAt));
  }
  check(cudaGetLastError(), "launching the preparation of a model");
  if (model.shape.dim <= kCoarseMaxDim)
    launch_coarse_pages(stream, model.probes, prepared + prepared_table_end(model.shape));
}

}  // namespace shortlist::cuda
