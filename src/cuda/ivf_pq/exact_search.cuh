// Every row of a query's lists decoded and scored: for what the filter cannot serve. See exact_search.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/flat/select.hpp"
#include "cuda/ivf_pq/answer.cuh"
#include "cuda/ivf_pq/decode.cuh"

namespace shortlist::cuda {

inline constexpr std::int64_t kExactBlocksPerMultiprocessor = 2;  ///< that exact searches have, at most

/// What a block says of its part of a query.
struct exact_part {
  std::uint32_t keys;  ///< how many it has
  std::uint32_t done;  ///< parts of the query, for the block of its first
};

struct exact_search_plan {
  decoder codes;
  answer_plan answer;
  const float* queries = nullptr;  ///< as rows are: turned, if there is a rotation
  std::int64_t query_stride = 0;
  const std::int64_t* probes = nullptr;  ///< [queries, nprobe] numbers of lists
  std::int64_t nprobe = 0;
  std::int64_t plain_rows = 0;  ///< if not 0, answer.rows are all looked at instead of lists
  const std::uint32_t* table = nullptr;
  const std::uint32_t* first = nullptr;
  const std::uint32_t* sizes = nullptr;
  const std::uint32_t* which = nullptr;  ///< the queries to search, or null: all
  const std::uint32_t* count = nullptr;  ///< how many of them, if `which` is given
  std::int64_t query_count = 0;          ///< otherwise, and at most
  std::uint64_t* keys = nullptr;         ///< [blocks, 2, capacity]
  exact_part* parts = nullptr;           ///< [blocks] zero between searches; null: a query has one block
  std::int64_t capacity = 0;
  std::int32_t blocks = 0;
  unsigned long long* decoded = nullptr;  ///< counts rows that were decoded, and, behind it, queries
};

/// Keys that a block works with, for answers of so many rows by code.
std::int64_t exact_search_capacity(std::int64_t by_code);
void launch_exact_search(cudaStream_t stream, const exact_search_plan& plan);

}  // namespace shortlist::cuda
