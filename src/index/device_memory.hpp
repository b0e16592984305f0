// A piece of a backend's memory, released with its owner.
#pragma once

#include <cstdint>
#include <utility>

#include "core/backend.hpp"

namespace shortlist::index {

class device_memory {
 public:
  device_memory() = default;
  /// Takes over memory that `owner` allocated.
  device_memory(core::backend& owner, void* data, std::int64_t bytes) : owner_(&owner), data_(data), bytes_(bytes) {}
  device_memory(device_memory&& other) noexcept { swap(other); }
  device_memory& operator=(device_memory&& other) noexcept {
    device_memory taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~device_memory() {
    if (data_) owner_->release(data_);
  }

  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  std::int64_t bytes() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  void swap(device_memory& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  core::backend* owner_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace shortlist::index
