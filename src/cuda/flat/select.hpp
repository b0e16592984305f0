// Candidate lists, one a query: pruned to their exact k best, and at last sorted and written out. See select.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/backend.hpp"

namespace shortlist::cuda {

/// A number on the device that decides whether launches do anything: only if `*count` is above `least`. Without one,
/// they do.
struct launch_gate {
  const std::uint32_t* count = nullptr;
  std::uint32_t least = 0;
#ifdef __CUDACC__
  __device__ bool closed() const { return count != nullptr && *count <= least; }
#endif
};

/// The candidates of a batch of queries. A list has room for its k best and every row of a phase: none is dropped.
struct candidate_lists {
  std::uint64_t* keys = nullptr;        ///< [queries, capacity] of core::row_key, the first `counts[q]` in no order
  std::uint64_t* spare = nullptr;       ///< [queries, kept]
  std::uint32_t* counts = nullptr;      ///< [queries]
  std::uint32_t* least_keys = nullptr;  ///< [queries] the 32-bit key that a row of a later phase must reach
  std::uint32_t* cursors = nullptr;     ///< [queries, 2]
  std::int64_t capacity = 0;
  std::int32_t queries = 0;
  std::int32_t kept = 0;  ///< min(k, rows of the corpus)
  launch_gate gate;
};

/// Cuts every list that holds `kept` or more to its `kept` best, and raises its least key accordingly.
/// `likely_length` only chooses how many blocks work on a list.
void launch_prune(cudaStream_t stream, const candidate_lists& lists, std::int64_t likely_length);

/// Writes scores and labels of lists that hold exactly `kept`, best first, and pads up to k. Leaves the lists in
/// disorder. `scores` and `labels` are dense [queries, k].
void launch_results(cudaStream_t stream, const candidate_lists& lists, const core::flat_corpus& corpus, std::int64_t k,
                    float* scores, std::int64_t* labels);

}  // namespace shortlist::cuda
