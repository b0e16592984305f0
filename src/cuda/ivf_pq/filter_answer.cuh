// The scores of what passed the filter, and the answers. See filter_answer.cu.
#pragma once

#include "cuda/ivf_pq/answer.cuh"
#include "cuda/ivf_pq/decode.cuh"
#include "cuda/ivf_pq/filter.hpp"

namespace shortlist::cuda {

/// Rows by code that one answer may need, and results that it may have; and the room for hits that so many rows ask
/// for.
inline constexpr std::int64_t kFilterMaxRows = 4096;
inline constexpr std::int64_t kFilterMaxResults = 2048;
std::int64_t hits_capacity(std::int64_t by_code);

struct filter_answer_plan {
  filter_batch batch;
  decoder codes;
  answer_plan answer;
  const std::uint32_t* which = nullptr;        ///< the queries to answer, or null: all
  const std::uint32_t* which_count = nullptr;  ///< how many, if they are given
  std::uint32_t* unanswered = nullptr;         ///< queries that the filter could not serve
  std::uint32_t* unanswered_count = nullptr;
  unsigned long long* decoded = nullptr;  ///< counts rows
  std::uint32_t room = 0;                 ///< of rows that are scored
};

void launch_filter_answers(cudaStream_t stream, filter_answer_plan plan);

}  // namespace shortlist::cuda
