// The 45 configurations: N x D x K of the article CUDA-TopK-Retrieval.
#pragma once

#include <algorithm>
#include <cstdint>

#include "results.hpp"

namespace shortlist::benchmark {

inline constexpr std::int64_t kSeedRows[] = {10'000, 50'000, 100'000, 500'000, 1'000'000};
inline constexpr std::int64_t kSeedDims[] = {384, 768, 1024};
inline constexpr std::int64_t kSeedKs[] = {8, 32, 100};
inline constexpr std::int64_t kSeedMaxK = 100;
inline constexpr std::int64_t kQuerySets = 8;  // timed runs of one query take turns among so many

/// Whether any work on these rows, one query and a k of the list, is wanted in any place.
inline bool wants_any_k(const results& out, search_shape shape) {
  return std::ranges::any_of(kSeedKs, [&](std::int64_t k) {
    shape.k = k;
    return out.wants(work_name(shape, "host", "cpu")) || out.wants(work_name(shape, "device", "round_trip"));
  });
}

}  // namespace shortlist::benchmark
