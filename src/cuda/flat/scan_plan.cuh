// How the scans of one query lay out their workspace, and what they tell the merge.
#pragma once

#include <algorithm>

#include "core/backend.hpp"
#include "cuda/flat/joined_launches.hpp"
#include "cuda/flat/scan.hpp"
#include "cuda/flat/scan_search.cuh"

namespace shortlist::cuda {

inline constexpr std::uint32_t kLongScan = 65536;  // rows from which the threshold has been raised by the end

/// Offsets of a workspace's parts, in bytes; a scan_control comes first.
struct scan_workspace {
  std::int64_t published;
  std::int64_t slot_counts;
  std::int64_t slots;
  std::int64_t spill;

  /// What a workspace with a spill of so many keys takes.
  std::int64_t bytes_with_spill(std::int64_t keys) const { return spill + (keys * 8 + 255) / 256 * 256; }
};

/// Keys that a block publishes, the rows that each stands for, and the sets of its row slots that they are made from:
/// twice as many sets in all as results, or a threshold from them would be far from the k-th best; but few keys, since
/// a block's end may have to wait for whoever reads all of them. Where most sets have one of the best rows, two of
/// these share a set too often: with 32 sets instead of 16, keys of 132 blocks that stand for 1,000 rows are above the
/// 1,400th best row, not the 1,750th, as random rows go.
struct publishing {
  std::int32_t keys;
  std::int32_t sets;
  std::int32_t rows_per_key;
};
constexpr publishing publishing_of(std::int64_t k) {
  if (k <= 16) return {2, 2, 1};
  if (k <= 256) return {4, 4, 1};
  return k <= 512 ? publishing{4, 8, 2} : publishing{4, 32, 4};
}

inline std::int64_t slot_capacity_of(std::int64_t k) { return 2 * k + kScanThreads; }

inline scan_workspace layout_of(std::int64_t k, int blocks) {
  const auto aligned = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  scan_workspace at{};
  at.published = aligned(sizeof(scan_control));
  at.slot_counts = at.published + aligned(std::int64_t{8} * blocks * kMaxPublished);
  at.slots = at.slot_counts + aligned(std::int64_t{4} * blocks);
  at.spill = at.slots + aligned(8 * blocks * slot_capacity_of(std::min(k, kScanMaxK)));
  return at;
}

/// A search but for what a scan decides: spill_capacity, warps and warp_slots.
inline scan_search search_of(void* workspace, const core::flat_corpus& corpus, const core::flat_request& request,
                             int blocks) {
  auto* base = static_cast<unsigned char*>(workspace);
  const scan_workspace at = layout_of(request.k, blocks);
  scan_search search{};
  search.query = request.queries;
  search.control = reinterpret_cast<scan_control*>(base);
  search.published = reinterpret_cast<unsigned long long*>(base + at.published);
  search.slot_counts = reinterpret_cast<std::uint32_t*>(base + at.slot_counts);
  search.slots = reinterpret_cast<std::uint64_t*>(base + at.slots);
  search.spill = reinterpret_cast<std::uint64_t*>(base + at.spill);
  search.count = static_cast<std::uint32_t>(corpus.count);
  search.dim = static_cast<std::int32_t>(corpus.dim);
  search.k = static_cast<std::int32_t>(request.k);
  const publishing how = publishing_of(request.k);
  search.publish = how.keys;
  search.sets = how.sets;
  search.rows_per_key = how.rows_per_key;
  search.slot_capacity = static_cast<std::int32_t>(slot_capacity_of(request.k));
  search.by = corpus.metric;
  return search;
}

inline merge_args merge_of(const scan_search& search, const core::flat_corpus& corpus,
                           const core::flat_request& request, completion_flag done, int blocks) {
  return {.ids = corpus.ids,
          .scores = request.scores,
          .labels = request.ids,
          .control = search.control,
          .published = search.published,
          .slot_counts = search.slot_counts,
          .slots = search.slots,
          .done_word = done.word,
          .done_value = done.value,
          .blocks = blocks,
          .publish = search.publish,
          .rows_per_key = search.rows_per_key,
          .k = search.k,
          .slot_capacity = search.slot_capacity,
          .is_long = search.count >= kLongScan,
          .by = search.by};
}

/// A plan's scan as a graph's node. @param pointers to its parameters, which are read later.
template <class Plan>
cudaKernelNodeParams scan_node(const Plan& plan, void** pointers) {
  cudaKernelNodeParams node{};
  node.func = reinterpret_cast<void*>(plan.kernel);
  node.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  node.blockDim = dim3(kScanThreads);
  node.sharedMemBytes = kScanSharedBytes;
  node.kernelParams = pointers;
  return node;
}

}  // namespace shortlist::cuda
