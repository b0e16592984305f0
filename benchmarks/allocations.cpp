// operator new, replaced by one that counts. See allocations.hpp.
#include "allocations.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> count{0};

void* counted(std::size_t bytes, std::size_t alignment) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  const std::size_t wanted = bytes ? bytes : 1;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(wanted);
  return std::aligned_alloc(alignment, (wanted + alignment - 1) / alignment * alignment);
}

void* counted_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* memory = counted(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

constexpr std::size_t kDefault = alignof(std::max_align_t);
std::size_t number(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

void* operator new(std::size_t n) { return counted_or_throw(n, kDefault); }
void* operator new[](std::size_t n) { return counted_or_throw(n, kDefault); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return counted(n, kDefault); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return counted(n, kDefault); }
void* operator new(std::size_t n, std::align_val_t a) { return counted_or_throw(n, number(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return counted_or_throw(n, number(a)); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept { return counted(n, number(a)); }
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted(n, number(a));
}

void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }

namespace shortlist::benchmark {

std::int64_t heap_allocations() noexcept { return count.load(std::memory_order_relaxed); }

}  // namespace shortlist::benchmark
