// Allocations, their budget, and what is said when there is no room. See memory.cuh.
#include <unistd.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/device_budget.hpp"
#include "core/message.hpp"
#include "cuda/runtime/check.cuh"
#include "cuda/runtime/memory.cuh"
#include "shortlist/error.hpp"

namespace shortlist::cuda {
namespace {

/// What this process holds of each GPU.
class ledger {
 public:
  /// @throws out_of_memory if the budget does not allow so much more.
  void take(int ordinal, std::int64_t bytes) {
    const std::optional<std::int64_t> budget = core::device_budget_bytes();
    const std::lock_guard lock(mutex_);
    if (held_.size() <= static_cast<std::size_t>(ordinal)) held_.resize(static_cast<std::size_t>(ordinal) + 1);
    std::int64_t& held = held_[static_cast<std::size_t>(ordinal)];
    if (budget && bytes > *budget - held) {
      throw out_of_memory("GPU memory: " + core::readable_bytes(bytes) + " asked for; " + core::kDeviceBudget +
                          " allows " + core::readable_bytes(*budget) + ", of which " + core::readable_bytes(held) +
                          " are in use");
    }
    held += bytes;
  }
  void give_back(int ordinal, std::int64_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    held_[static_cast<std::size_t>(ordinal)] -= bytes;
  }

 private:
  std::mutex mutex_;
  std::vector<std::int64_t> held_;
};

/// Never destroyed: memory may be freed after the end of main.
ledger& the_ledger() {
  static ledger& one = *new ledger;
  return one;
}

[[noreturn]] void throw_no_device_memory(std::int64_t bytes) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  throw out_of_memory("GPU memory: " + core::readable_bytes(bytes) + " asked for; free are " +
                      core::readable_bytes(static_cast<std::int64_t>(free_bytes)) + " of " +
                      core::readable_bytes(static_cast<std::int64_t>(total_bytes)));
}

[[noreturn]] void throw_no_host_memory(std::int64_t bytes) {
  const std::int64_t page_bytes = sysconf(_SC_PAGESIZE);
  throw out_of_memory("pinned host memory: " + core::readable_bytes(bytes) + " asked for; free are " +
                      core::readable_bytes(sysconf(_SC_AVPHYS_PAGES) * page_bytes) + " of the host's " +
                      core::readable_bytes(sysconf(_SC_PHYS_PAGES) * page_bytes));
}

}  // namespace

device_memory::device_memory(std::int64_t bytes) : bytes_(bytes + kAllocationSlack) {
  check(cudaGetDevice(&ordinal_), "reading the current GPU");
  the_ledger().take(ordinal_, bytes_);
  const cudaError_t code = cudaMalloc(&data_, static_cast<std::size_t>(bytes_));
  if (code == cudaSuccess) return;
  the_ledger().give_back(ordinal_, bytes_);
  cudaGetLastError();  // not sticky: clear it, so that the next call starts clean
  if (code == cudaErrorMemoryAllocation) throw_no_device_memory(bytes);
  throw_cuda(code, "allocating GPU memory");
}

device_memory::~device_memory() {
  if (!data_) return;
  cudaFree(data_);
  the_ledger().give_back(ordinal_, bytes_);
}

void clear_now(void* memory, std::int64_t bytes) {
  constexpr const char* kWhat = "clearing GPU memory";
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), kWhat);
  cudaError_t code = cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), stream);
  if (code == cudaSuccess) code = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  check(code, kWhat);
}

mapped_memory::mapped_memory(std::int64_t bytes) : bytes_(bytes) {
  const cudaError_t code =
      cudaHostAlloc(&host_, static_cast<std::size_t>(bytes), cudaHostAllocMapped | cudaHostAllocPortable);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw_no_host_memory(bytes);
  }
  check(code, "allocating pinned host memory");
  check(cudaHostGetDevicePointer(&device_, host_, 0), "mapping pinned host memory");
}

mapped_memory::~mapped_memory() {
  if (host_) cudaFreeHost(host_);
}

}  // namespace shortlist::cuda
