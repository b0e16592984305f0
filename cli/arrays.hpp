// Arrays of an op between host memory and its device. On the CPU nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "shortlist/device.hpp"

namespace shortlist::program {

/// What the op reads: host memory, which outlives this, or a copy of it on a device other than the CPU.
class input_array {
 public:
  input_array(const stream& s, const void* host, std::int64_t bytes);
  template <class T>
  input_array(const stream& s, const std::vector<T>& host)
      : input_array(s, host.data(), std::ssize(host) * static_cast<std::int64_t>(sizeof(T))) {}

  /// On the stream's device.
  const void* data() const { return copy_ ? copy_->data() : host_; }

 private:
  const void* host_;
  std::optional<buffer> copy_;
};

/// What the op writes to: host memory, for which a buffer stands in on a device other than the CPU.
class output_array {
 public:
  void allocate(const stream& s, std::int64_t bytes);
  void download(const stream& s);

  /// On the stream's device; null if it was not allocated.
  void* data() { return copy_ ? copy_->data() : host_.data(); }
  const std::byte* host() const { return host_.data(); }

 private:
  std::vector<std::byte> host_;
  std::optional<buffer> copy_;
};

template <class T>
T load(const std::byte* data, std::int64_t element) {
  T value;
  std::memcpy(&value, data + element * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace shortlist::program
