// A few queries: every row of their lists decoded and scored, by all of the GPU. See few_search.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/ivf_pq/answer.cuh"
#include "cuda/ivf_pq/decode.cuh"
#include "cuda/ivf_pq/inline_query.cuh"
#include "cuda/runtime/completion.hpp"

namespace shortlist::cuda {

inline constexpr std::int64_t kFewQueries = 64;
inline constexpr std::uint32_t kFewMaxRows = 1024;  ///< by code, of one answer
inline constexpr std::uint32_t kFewMoreRows = 16;   ///< that a part may hand in, so that its cut need not be exact

/// Of a query; zero between searches.
struct few_control {
  unsigned long long cut;  ///< a key that as many rows reach as are wanted
  std::uint32_t done;      ///< parts
};

struct few_search_plan {
  decoder codes;
  answer_plan answer;                            ///< queries: null if one travels with the parameters
  query_source queries;                          ///< as rows are: turned, if there is a rotation
  const std::uint32_t* centroid_keys = nullptr;  ///< of all centroids, for each query: blocks choose their lists
  const std::int64_t* probes = nullptr;          ///< else [queries, nprobe] numbers of lists
  const std::uint32_t* table = nullptr;
  const std::uint32_t* first = nullptr;
  const std::uint32_t* sizes = nullptr;
  std::int32_t query_count = 0;
  std::int32_t nprobe = 0;
  std::int32_t nlist = 0;
  std::int32_t parts = 0;                 ///< that a query's rows are cut into, a block each
  std::uint64_t* keys = nullptr;          ///< [queries, parts, rows by code + kFewMoreRows]
  few_control* control = nullptr;         ///< [queries]
  unsigned long long* decoded = nullptr;  ///< counts rows that were decoded, and, behind it, queries
  completion_flag done;                   ///< of a single query
};

std::int32_t few_search_parts(std::int64_t queries, int multiprocessors);
bool has_few_search(std::int64_t dim, std::int64_t queries, std::int64_t by_code, std::int64_t nprobe);
void launch_few_search(cudaStream_t stream, const few_search_plan& plan);

}  // namespace shortlist::cuda
