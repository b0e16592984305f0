// Device memory for the length of one call, in the order of a stream. A captured graph gets its own.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {

/// The process's pool on the current GPU; it keeps what is given back, up to a bound.
inline cudaMemPool_t stream_pool() {
  constexpr std::uint64_t kKeptBytes = std::uint64_t{256} << 20;
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;
  int ordinal = 0;
  check(cudaGetDevice(&ordinal), "reading the current GPU");
  const std::lock_guard lock(mutex);
  cudaMemPool_t& pool = pools[ordinal];
  if (!pool) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = ordinal;
    cudaMemPool_t made = nullptr;
    check(cudaMemPoolCreate(&made, &properties), "making a pool of device memory");
    std::uint64_t kept = kKeptBytes;
    check(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &kept), "bounding a pool of device memory");
    pool = made;
  }
  return pool;
}

/// Bytes that work on `stream` may use from now until the object dies; uninitialised.
class stream_memory {
 public:
  stream_memory(cudaStream_t stream, std::int64_t bytes) : stream_(stream) {
    check(cudaMallocFromPoolAsync(&data_, static_cast<std::size_t>(bytes), stream_pool(), stream),
          "taking device memory for a call");
  }
  ~stream_memory() { cudaFreeAsync(data_, stream_); }
  stream_memory(const stream_memory&) = delete;
  stream_memory& operator=(const stream_memory&) = delete;

  void* data() const noexcept { return data_; }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

}  // namespace shortlist::cuda
