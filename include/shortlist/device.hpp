// Devices, streams and device memory, without any CUDA header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shortlist/types.hpp"

namespace shortlist {

enum class device_kind : std::uint8_t { cpu, cuda };

/// The shape of a search, for choosing a device or an algorithm before any data is there.
struct search_shape {
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  std::int64_t queries = 1;
  std::int64_t k = 10;
  element_type type = element_type::f32;
  shortlist::metric metric = shortlist::metric::inner_product;
  shortlist::storage storage = shortlist::storage::full;
};

/// Where rows live and searches run: the host's CPU, or one CUDA GPU. A small value; copy it freely.
class device {
 public:
  /// The CPU; every core of the process is used.
  static device cpu() noexcept;
  /// GPU `ordinal`. @throws unsupported if no CUDA backend or driver is there, invalid_argument if the ordinal is not.
  static device cuda(int ordinal = 0);
  /// The first GPU if a usable one is there, else the CPU.
  static device best() noexcept;
  /// The device that answers a host-to-host search of this shape soonest, from committed measurements.
  static device best_for(const search_shape& shape) noexcept;
  /// "cpu", "cuda", "cuda:1" or "best". @throws invalid_argument on any other name, and what `cuda` throws.
  static device parse(std::string_view name);
  /// Every usable device, the CPU first.
  static std::vector<device> all();

  device_kind kind() const noexcept { return kind_; }
  int ordinal() const noexcept { return ordinal_; }
  /// "cpu" or "cuda:0".
  std::string name() const;
  /// For people: the processor's or GPU's name, cores or memory, and the instruction set in use.
  std::string description() const;

  friend bool operator==(const device&, const device&) = default;

 private:
  device(device_kind kind, int ordinal) noexcept : kind_(kind), ordinal_(ordinal) {}
  device_kind kind_;
  int ordinal_;
};

/// An order of work on one device. On the CPU work is done when the call returns.
class stream {
 public:
  /// A new stream of the device, destroyed with the last copy of this handle.
  explicit stream(device where);
  /// A caller's `cudaStream_t`, not owned; it must outlive this handle. Null is the default stream.
  static stream wrap(device where, void* cuda_stream);

  device where() const noexcept { return where_; }
  /// The `cudaStream_t`, or null on the CPU.
  void* native() const noexcept { return native_.get(); }
  /// Waits until all work queued so far is done. @throws cuda_error if any of it failed.
  void synchronize() const;

 private:
  stream(device where, std::shared_ptr<void> native) : where_(where), native_(std::move(native)) {}
  device where_;
  std::shared_ptr<void> native_;
};

/// A piece of one device's memory, for programs that have no allocator of their own.
class buffer {
 public:
  /// @throws out_of_memory, invalid_argument if bytes < 0.
  buffer(device where, std::int64_t bytes);
  device where() const noexcept { return where_; }
  std::int64_t bytes() const noexcept { return bytes_; }
  void* data() noexcept { return data_.get(); }
  const void* data() const noexcept { return data_.get(); }

  /// Copies `bytes()` bytes between host memory and this buffer, ordered on `s`; waits until the host side may be
  /// reused. @throws invalid_argument if `s` belongs to another device.
  void upload(const stream& s, const void* host);
  void download(const stream& s, void* host) const;

 private:
  device where_;
  std::int64_t bytes_;
  std::shared_ptr<void> data_;
};

}  // namespace shortlist
