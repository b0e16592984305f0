// One way to launch a kernel: grid, block, shared memory, stream, blocks per cluster, all blocks at once, or while the
// kernel before still runs.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <type_traits>

#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {

constexpr std::int64_t kMaxSharedBytes = 227 * 1024;  // of a Hopper multiprocessor, for one block

struct launch_shape {
  dim3 grid{};
  int threads = 0;
  int teams = 1;  // of so many threads, in a block: threadIdx.y
  std::int64_t shared_bytes = 0;
  int cluster = 1;
  bool cooperative = false;  // all blocks are resident together and may wait for each other
  bool overlaps = false;     // begins while the kernel before runs, and waits for it by itself
};

/// A kernel, and what of a launch the runtime's answer depends on.
struct launch_question {
  const void* kernel;
  int device;
  int threads = 0;
  std::int64_t shared_bytes = 0;

  friend auto operator<=>(const launch_question&, const launch_question&) = default;
};
template <class Args>
launch_question question_of(void (*kernel)(Args), const char* what) {
  int device = 0;
  check(cudaGetDevice(&device), what);
  return {.kernel = reinterpret_cast<const void*>(kernel), .device = device};
}

/// Answers of the runtime about kernels. Asking takes microseconds, which every launch would spend.
class known_launches {
 public:
  static known_launches& of_process() {
    static auto& known = *new known_launches;  // outlives whatever launches
    return known;
  }

  /// @param ask ask() answers what is not known and is no less than `least`.
  template <class Ask>
  std::int64_t answer(const launch_question& question, std::int64_t least, Ask ask) {
    const std::lock_guard lock(mutex_);
    const auto known = answers_.find(question);
    if (known != answers_.end() && known->second >= least) return known->second;
    return answers_[question] = ask();
  }

 private:
  std::mutex mutex_;
  std::map<launch_question, std::int64_t> answers_;
};

/// Lets a kernel have that much dynamic shared memory, or as much as it was ever let.
template <class Args>
void allow_shared_bytes(void (*kernel)(Args), std::int64_t bytes, const char* what) {
  constexpr std::int64_t kWithoutAsking = 48 * 1024;
  if (bytes <= kWithoutAsking) return;
  known_launches::of_process().answer(question_of(kernel, what), bytes, [&] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), what);
    return bytes;
  });
}

/// How many blocks of this shape a multiprocessor holds at a time.
template <class Args>
int blocks_per_multiprocessor(void (*kernel)(Args), int threads, std::int64_t shared_bytes, const char* what) {
  allow_shared_bytes(kernel, shared_bytes, what);
  launch_question question = question_of(kernel, what);
  question.threads = threads;
  question.shared_bytes = shared_bytes;
  return static_cast<int>(known_launches::of_process().answer(question, 0, [&] {
    int blocks = 0;
    check(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, static_cast<std::size_t>(shared_bytes)),
        what);
    return blocks;
  }));
}

template <class Args>
void launch(void (*kernel)(Args), const launch_shape& shape, cudaStream_t stream,
            const std::type_identity_t<Args>& args, const char* what) {
  allow_shared_bytes(kernel, shape.shared_bytes, what);
  cudaLaunchAttribute attributes[3]{};
  unsigned count = 0;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[count++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  if (shape.cooperative) {
    cudaLaunchAttribute& attribute = attributes[count++];
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  if (shape.overlaps) {
    cudaLaunchAttribute& attribute = attributes[count++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads), static_cast<unsigned>(shape.teams));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kernel, args), what);
}

/// Launches all blocks that the multiprocessors hold at a time, but no more than there are items; the shape's grid is
/// chosen here.
template <class Args>
void launch_over(std::int64_t items, int multiprocessors, void (*kernel)(Args), launch_shape shape, cudaStream_t stream,
                 const std::type_identity_t<Args>& args, const char* what) {
  const int fitting = blocks_per_multiprocessor(kernel, shape.threads, shape.shared_bytes, what);
  shape.grid =
      dim3(static_cast<unsigned>(std::min(items, static_cast<std::int64_t>(std::max(fitting, 1)) * multiprocessors)));
  launch(kernel, shape, stream, args, what);
}

}  // namespace shortlist::cuda
