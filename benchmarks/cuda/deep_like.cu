// The deep-like set on a GPU, a warp a vector. See deep_like.hpp.
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "deep_like.hpp"

namespace shortlist::benchmark {
namespace {

using namespace deep_like_row;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kLanes;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr std::int64_t kMaxBlocks = 132 * 8;  // each strides over many vectors, so that it loads the matrix once

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

__global__ void __launch_bounds__(kThreads)
    deep_like_kernel(tables from, std::int64_t first, std::int64_t count, float* to) {
  __shared__ float matrix[kLatent * kDim];
  for (int i = threadIdx.x; i < kLatent * kDim; i += kThreads) matrix[i] = from.matrix[i];
  __syncthreads();
  const int lane = threadIdx.x % kLanes;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes; row < count;
       row += step) {
    const auto index = static_cast<std::uint64_t>(first + row);
    const lane_numbers numbers = numbers_of_lane(index, lane);
    const float* centre = from.centres + cluster_of(from.thresholds, index) * kLatent;
    const float own = lane < kLatent ? centre[lane] + kNormalShare * numbers.latent : 0.0f;
    float sums[kOfLane] = {};
#pragma unroll
    for (int j = 0; j < kLatent; j++) {
      const float latent = __shfl_sync(kAllLanes, own, j);
#pragma unroll
      for (int e = 0; e < kOfLane; e++) sums[e] = sums[e] + latent * matrix[j * kDim + e * kLanes + lane];
    }
    float x[kOfLane];
#pragma unroll
    for (int e = 0; e < kOfLane; e++) x[e] = element(sums[e], numbers.noise[e]);
    float squares = sum_of_squares(x);
#pragma unroll
    for (int apart = kLanes / 2; apart > 0; apart /= 2) squares += __shfl_xor_sync(kAllLanes, squares, apart);
    const float length = std::sqrt(squares);
#pragma unroll
    for (int e = 0; e < kOfLane; e++) to[row * kDim + e * kLanes + lane] = x[e] / length;
  }
}

template <class T>
T* on_gpu(const std::vector<T>& values) {
  T* there = nullptr;
  check(cudaMalloc(&there, values.size() * sizeof(T)), "allocating a table of the deep-like set");
  check(cudaMemcpy(there, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
        "sending a table of the deep-like set");
  return there;
}

}  // namespace

struct deep_like_on_gpu::impl {
  float* centres = nullptr;
  float* matrix = nullptr;
  std::uint32_t* thresholds = nullptr;
  ~impl() {
    cudaFree(centres);
    cudaFree(matrix);
    cudaFree(thresholds);
  }
};

deep_like_on_gpu::deep_like_on_gpu(const deep_like& set) : impl_(std::make_unique<impl>()) {
  check(cudaSetDevice(0), "choosing GPU 0");
  impl_->centres = on_gpu(set.centres());
  impl_->matrix = on_gpu(set.matrix());
  impl_->thresholds = on_gpu(set.thresholds());
}

deep_like_on_gpu::~deep_like_on_gpu() = default;

void deep_like_on_gpu::write_rows(void* stream, std::int64_t first, std::int64_t count, float* to) const {
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(std::min((count + kWarps - 1) / kWarps, kMaxBlocks));
  deep_like_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      {impl_->centres, impl_->matrix, impl_->thresholds}, first, count, to);
  check(cudaGetLastError(), "making the deep-like set");
}

}  // namespace shortlist::benchmark
