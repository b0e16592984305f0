// Answers of many rows by code, from distances that a scan wrote out: chosen, scored to the bit, sorted. See
// choose_rows.cu for why nothing is lost, score_rows.cu and sort_rows.cu.
#pragma once

#include "cuda/ivf_pq/answer.cuh"
#include "cuda/ivf_pq/decode.cuh"
#include "cuda/ivf_pq/filter.hpp"

namespace shortlist::cuda {

struct written_plan {
  filter_batch batch;
  decoder codes;
  answer_plan answer;
  std::uint64_t* chosen = nullptr;      ///< [count, room] rows of a query: list and slot, then keys
  std::uint32_t* counts = nullptr;      ///< [count] of those; 0 of queries that are not answered
  std::uint32_t room = 0;               ///< of a query
  std::uint32_t* unanswered = nullptr;  ///< queries that distances do not serve
  std::uint32_t* unanswered_count = nullptr;
  unsigned long long* decoded = nullptr;  ///< counts rows
  std::uint32_t pick_room = 0;            ///< of a query, for distances that may be chosen
  std::uint32_t parts = 1;                ///< that a query is scored in
};

/// Rows that may be chosen of a query, at most, for answers of so many.
std::int64_t written_room(std::int64_t by_code);
/// Answers all queries but those left unanswered. Three launches.
void launch_written_answers(cudaStream_t stream, const written_plan& plan, int multiprocessors);

void launch_choose_rows(cudaStream_t stream, written_plan plan);
void launch_score_rows(cudaStream_t stream, written_plan plan, int multiprocessors);
void launch_sort_rows(cudaStream_t stream, const written_plan& plan);

}  // namespace shortlist::cuda
