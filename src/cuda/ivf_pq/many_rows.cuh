// Answers of many rows by code.
//
// Not refined: rows that reach a threshold, from a sample of all distances, are marked by a scan, scored to the bit and
// sorted: sampled_thresholds.cu, score_marked.cu, sort_rows.cu. A row's distance by the matrix units is wrong by half
// of the query's margin at most, so that all rows whose scores are no further than the threshold less that are marked.
// So if as many as are wanted have such scores, all of the best are there. Refined: a scan writes all distances out,
// and the best are chosen from those, most of which need no score by code: choose_rows.cu, score_rows.cu,
// refine_rows.cu, sort_rows.cu.
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

struct many_plan {
  filter_batch batch;
  decoder codes;
  answer_plan answer;
  std::uint64_t* rows = nullptr;    ///< [count, room] of a query: lists and slots, then keys
  std::uint32_t* counts = nullptr;  ///< [count] of those; 0 of queries that are not answered
  /// If answers are refined, [count] rows of which only their codes' scores tell whether they are among the best, from
  /// the end of the room on; `counts` are of those that are in any case, and then of keys. Else null, and `counts` zero
  /// before, and perhaps more than the room.
  std::uint32_t* border_counts = nullptr;
  std::uint32_t room = 0;               ///< of a query
  std::uint32_t* unanswered = nullptr;  ///< queries that this does not serve
  std::uint32_t* unanswered_count = nullptr;
  unsigned long long* decoded = nullptr;  ///< counts rows
  std::uint32_t pick_room = 0;            ///< of a query, for distances that may be chosen
  std::uint32_t sort_room = 0;            ///< of a query, for keys that are sorted
};

/// Rows of a query whose codes' scores matter. None of refined answers if all that were chosen are refined.
__device__ __forceinline__ coded_rows coded_rows_of(const many_plan& plan, std::int64_t query) {
  std::uint64_t* rows = plan.rows + query * plan.room;
  const std::uint32_t count = min(plan.counts[query], plan.room);
  if (!plan.border_counts) return {rows, count};
  const std::uint32_t borders = plan.border_counts[query];
  return {rows + (plan.room - borders), count + borders > plan.answer.by_code ? borders : 0};
}

/// Leaves a query to others; one thread.
__device__ __forceinline__ void leave(const many_plan& plan, std::int64_t query) {
  plan.unanswered[atomicAdd(plan.unanswered_count, 1u)] = static_cast<std::uint32_t>(query);
}

/// Rows that may be scored of a query, at most, for answers of so many.
std::int64_t many_rows_room(std::int64_t by_code);
/// Answers all queries but those left unanswered, from marks, or, if answers are refined, distances.
void launch_many_answers(cudaStream_t stream, const many_plan& plan, int multiprocessors);

void launch_choose_rows(cudaStream_t stream, many_plan plan);
void launch_score_marked(cudaStream_t stream, const many_plan& plan, int multiprocessors);
/// Of rows by list and slot.
void launch_score_rows(cudaStream_t stream, const many_plan& plan);
void launch_refine_rows(cudaStream_t stream, const many_plan& plan);
void launch_sort_rows(cudaStream_t stream, many_plan plan);

}  // namespace shortlist::cuda
