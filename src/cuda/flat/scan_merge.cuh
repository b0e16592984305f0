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
  std::int32_t publish;  ///< keys a block publishes
  std::int32_t k;
  std::int32_t slot_capacity;
  metric by;
};

/// Once per GPU, before its first merge.
void prepare_scan_merge();
/// Launches the merge behind a scan on the same stream: it may begin at once, and waits for the scan by itself.
void launch_scan_merge(cudaStream_t stream, const merge_args& args);

/// How far beyond k a cut may reach where it only shortens lists: it is found in a few steps then.
__device__ __forceinline__ std::uint32_t slack_of(std::uint32_t k) { return k / 8 + 2; }

__device__ __forceinline__ std::uint64_t published_key(const unsigned long long* published, int publish, int i) {
  return __ldcg(published + i / publish * kMaxPublished + i % publish);
}

__device__ __forceinline__ unsigned long long common_threshold(const scan_control* control) {
  return *reinterpret_cast<const volatile unsigned long long*>(&control->threshold);
}

}  // namespace shortlist::cuda
