// Aligned memory on huge pages.
#include "cpu/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "core/message.hpp"
#include "shortlist/error.hpp"

namespace shortlist::cpu {
namespace {

constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

std::int64_t pages_to_bytes(int pages_name) {
  return static_cast<std::int64_t>(sysconf(pages_name)) * static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

void* allocate_aligned(std::int64_t bytes) {
  const std::int64_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : kCacheLineBytes;
  // Linux grants more than there is and kills the process when it is touched: refuse what cannot fit.
  const bool fits = bytes <= pages_to_bytes(_SC_PHYS_PAGES);
  const std::int64_t rounded = fits ? (bytes + alignment - 1) / alignment * alignment : 0;
  void* memory = fits ? std::aligned_alloc(static_cast<std::size_t>(alignment),
                                           static_cast<std::size_t>(rounded > 0 ? rounded : alignment))
                      : nullptr;
  if (memory == nullptr) {
    throw out_of_memory("allocation of " + core::readable_bytes(bytes) + " of host memory failed; " +
                        core::readable_bytes(pages_to_bytes(_SC_AVPHYS_PAGES)) + " are free");
  }
  // Advice: a kernel without huge pages refuses it, and nothing but speed is lost.
  if (alignment == kHugePageBytes) madvise(memory, static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
  return memory;
}

void release_aligned(void* memory) noexcept { std::free(memory); }

bool growing_memory::reserve(std::int64_t bytes) {
  if (bytes <= bytes_) return false;
  data_.reset(allocate_aligned(bytes));
  bytes_ = bytes;
  return true;
}

}  // namespace shortlist::cpu
