// The heap count: this program's operator new, the library's included. In a file of its own, so that no caller can see
// through it.
#include "index_heap_count.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<std::int64_t> allocations{0};

// No test has so much; asked for it, a sanitizer's allocator would end the program where others report failure.
constexpr std::size_t kMostBytes = std::size_t{1} << 39;

void* counted_allocation(std::size_t bytes, std::size_t alignment) noexcept {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  if (bytes > kMostBytes) return nullptr;
  return std::aligned_alloc(alignment, (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment);
}

void* or_throw(void* memory) {
  if (!memory) throw std::bad_alloc();
  return memory;
}

constexpr std::size_t kAlignment = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t bytes) { return or_throw(counted_allocation(bytes, kAlignment)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted_allocation(bytes, kAlignment); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return or_throw(counted_allocation(bytes, static_cast<std::size_t>(alignment)));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace shortlist::test {

void start_heap_count() noexcept {
  allocations = 0;
  counting = true;
}

std::int64_t end_heap_count() noexcept {
  counting = false;
  return allocations;
}

}  // namespace shortlist::test
