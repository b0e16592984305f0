// Aligned memory on huge pages, and the scratch buffer made of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace shortlist::cpu {

inline constexpr std::int64_t kCacheLineBytes = 64;

/// Fetches memory that will be read soon.
inline void fetch_bytes(const void* from, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += kCacheLineBytes) __builtin_prefetch(static_cast<const char*>(from) + at);
}

/// At least cache-line aligned; large blocks lie on huge pages, whose fewer TLB misses a scan of them needs.
/// @throws out_of_memory, with the bytes asked for and the bytes free.
void* allocate_aligned(std::int64_t bytes);
void release_aligned(void* memory) noexcept;

/// Memory that grows on demand and forgets its contents when it does.
class growing_memory {
 public:
  /// At least `bytes`; true if that took an allocation. @throws out_of_memory; what was there stays.
  bool reserve(std::int64_t bytes);
  std::int64_t bytes() const noexcept { return bytes_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_.get());
  }

 private:
  struct releaser {
    void operator()(void* memory) const noexcept { release_aligned(memory); }
  };
  std::unique_ptr<void, releaser> data_;
  std::int64_t bytes_ = 0;
};

}  // namespace shortlist::cpu
