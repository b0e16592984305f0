// One piece of memory for many arrays.
#pragma once

#include <cstdint>

namespace shortlist::cuda {

/// Cuts a workspace into arrays; with a null base, says how long it is.
class carver {
 public:
  explicit carver(void* base) : base_(static_cast<unsigned char*>(base)) {}
  template <class T>
  T* take(std::int64_t count) {
    auto* taken = reinterpret_cast<T*>(base_ + at_);
    at_ = (at_ + count * static_cast<std::int64_t>(sizeof(T)) + kAligned - 1) / kAligned * kAligned;
    return taken;
  }
  std::int64_t taken() const { return at_; }

 private:
  static constexpr std::int64_t kAligned = 1024;  // columns of the matrix units ask for it

  unsigned char* base_;
  std::int64_t at_ = 0;
};

}  // namespace shortlist::cuda
