// What the scan and its merge share: the workspace's common parts, and how published keys are read.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/order.hpp"

namespace shortlist::cuda {

inline constexpr int kMaxPublished = 16;            ///< keys a block may publish: 132 x 16 > kScanMaxK
inline constexpr int kMaxBlocks = 148;              ///< of a scan: one per multiprocessor; Hopper has 132
inline constexpr std::uint32_t kSortedSlots = 128;  ///< a block that keeps no more writes them best first

/// Zero between searches.
struct scan_control {
  unsigned long long threshold;  ///< a key that k published rows reach
  std::uint32_t reads_rows;      ///< a block of a certified scan has given up its filter
};

struct merge_args {
  const std::int64_t* ids;
  float* scores;
  std::int64_t* labels;
  scan_control* control;
  unsigned long long* published;     ///< [blocks, kMaxPublished]
  const std::uint32_t* slot_counts;  ///< [blocks]
  const std::uint64_t* slots;        ///< [blocks, slot_capacity]
  std::uint32_t* done_word;
  std::uint32_t done_value;
  std::int32_t blocks;
  std::int32_t publish;       ///< keys a block publishes
  std::int32_t rows_per_key;  ///< that each of them stands for
  std::int32_t k;
  std::int32_t slot_capacity;
  bool is_long;  ///< a scan of so many rows that its threshold is nearly the last cut
  metric by;
};

/// Once per GPU, before its first merge.
void prepare_scan_merge();
/// A merge that is ready to be launched, or to be set into a graph.
struct merge_launch {
  void (*kernel)(merge_args, std::uint32_t, std::uint32_t);
  int threads;
  merge_args args;
  std::uint32_t best_keys;  ///< of shared memory, as `capacity`
  std::uint32_t capacity;
  std::int64_t shared_bytes;
  void* pointers[3];

  explicit merge_launch(const merge_args& merged);
  merge_launch(const merge_launch&) = delete;
  merge_launch& operator=(const merge_launch&) = delete;
  cudaKernelNodeParams node() const;
  /// Behind a scan on the same stream: the merge may begin at once, and waits for the scan by itself.
  void run(cudaStream_t stream) const;
};

/// How far beyond k a cut may reach where it only shortens lists: it is found in a few steps then.
__device__ __forceinline__ std::uint32_t slack_of(std::uint32_t k) { return k / 8 + 2; }

/// How many keys, each of which stands for so many rows, stand for k.
__device__ __forceinline__ std::uint32_t published_keys_of(std::uint32_t k, std::uint32_t rows_per_key) {
  return (k + rows_per_key - 1) / rows_per_key;
}

__device__ __forceinline__ std::uint64_t published_key(const unsigned long long* published, int publish, int i) {
  const int block = i >> (31 - __clz(publish));  // publish is a power of two
  return __ldcg(published + block * kMaxPublished + (i & (publish - 1)));
}

__device__ __forceinline__ unsigned long long common_threshold(const scan_control* control) {
  return *reinterpret_cast<const volatile unsigned long long*>(&control->threshold);
}

}  // namespace shortlist::cuda
