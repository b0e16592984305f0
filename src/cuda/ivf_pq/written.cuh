// Answers of many rows by code, from distances that a scan wrote out: chosen, scored to the bit, refined if asked for,
// sorted. See choose_rows.cu for why nothing is lost, score_rows.cu, refine_rows.cu and sort_rows.cu.
#pragma once

#include "cuda/ivf_pq/answer.cuh"
#include "cuda/ivf_pq/decode.cuh"
#include "cuda/ivf_pq/filter.hpp"

namespace shortlist::cuda {

/// Rows of a query to be scored by their codes.
struct coded_rows {
  std::uint64_t* rows;
  std::uint32_t count;
};

struct written_plan {
  filter_batch batch;
  decoder codes;
  answer_plan answer;
  std::uint64_t* chosen = nullptr;  ///< [count, room] rows of a query: list and slot, then keys
  std::uint32_t* counts = nullptr;  ///< [count] of those; 0 of queries that are not answered
  /// If answers are refined, [count] rows of which only their codes' scores tell whether they are among the best, from
  /// the end of the room on; `counts` are of those that are in any case, and then of keys. Else null.
  std::uint32_t* border_counts = nullptr;
  std::uint32_t room = 0;               ///< of a query
  std::uint32_t* unanswered = nullptr;  ///< queries that distances do not serve
  std::uint32_t* unanswered_count = nullptr;
  unsigned long long* decoded = nullptr;  ///< counts rows
  std::uint32_t pick_room = 0;            ///< of a query, for distances that may be chosen
  std::uint32_t parts = 1;                ///< that a query is scored in
  std::uint32_t sort_room = 0;            ///< of a query, for keys that are sorted
};

/// Rows of a query whose codes' scores matter. None of refined answers if all that were chosen are refined.
__device__ __forceinline__ coded_rows coded_rows_of(const written_plan& plan, std::int64_t query) {
  std::uint64_t* rows = plan.chosen + query * plan.room;
  const std::uint32_t count = plan.counts[query];
  if (!plan.border_counts) return {rows, count};
  const std::uint32_t borders = plan.border_counts[query];
  return {rows + (plan.room - borders), count + borders > plan.answer.by_code ? borders : 0};
}

/// Rows that may be chosen of a query, at most, for answers of so many.
std::int64_t written_room(std::int64_t by_code);
/// Answers all queries but those left unanswered. Three launches, or four.
void launch_written_answers(cudaStream_t stream, const written_plan& plan, int multiprocessors);

void launch_choose_rows(cudaStream_t stream, written_plan plan);
void launch_score_rows(cudaStream_t stream, written_plan plan, int multiprocessors);
void launch_refine_rows(cudaStream_t stream, const written_plan& plan);
void launch_sort_rows(cudaStream_t stream, written_plan plan);

}  // namespace shortlist::cuda
