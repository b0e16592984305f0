// Memory that frees itself: a GPU's, within the budget, and pinned host memory that every GPU reads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace shortlist::cuda {

inline constexpr std::int64_t kAllocationSlack = 256;  // kernels may read, never write, up to here past an array's end

/// Memory of the GPU that is current. What a process has of it counts against SHORTLIST_DEVICE_BUDGET; the scratch of
/// single calls of row-wise top k and sampling (stream_memory.cuh) does not.
class device_memory {
 public:
  device_memory() = default;
  /// @throws out_of_memory, cuda_error, and invalid_argument if the budget is no number of bytes.
  explicit device_memory(std::int64_t bytes);
  device_memory(device_memory&& other) noexcept { swap(other); }
  device_memory& operator=(device_memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~device_memory();

  void* get() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  void swap(device_memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(ordinal_, other.ordinal_);
  }
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  int ordinal_ = 0;
};

/// Zeroes memory of the current GPU before it returns. Neither the default stream nor the device is waited for, which
/// would fail while another thread captures a stream, and spoil its capture. @throws cuda_error.
void clear_now(void* memory, std::int64_t bytes);

/// Pinned host memory that GPUs see too, at an address of their own that is the same on 64-bit systems.
class mapped_memory {
 public:
  mapped_memory() = default;
  /// @throws out_of_memory, cuda_error.
  explicit mapped_memory(std::int64_t bytes);
  mapped_memory(mapped_memory&& other) noexcept { swap(other); }
  mapped_memory& operator=(mapped_memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~mapped_memory();

  void* get() const { return device_; }
  template <class T>
  T* host(std::int64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(host_) + offset_bytes);
  }
  template <class T>
  T* device(std::int64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(device_) + offset_bytes);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  void swap(mapped_memory& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(device_, other.device_);
    std::swap(bytes_, other.bytes_);
  }
  void* host_ = nullptr;
  void* device_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace shortlist::cuda
