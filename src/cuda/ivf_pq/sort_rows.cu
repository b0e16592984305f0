// Rows that were scored: the k best of a query, sorted and written.
//
// A block a query, by bins of scores, its keys in registers; where ties fill a bin, by a radix search and a sorting
// network. Limit: three quarters of the issue slots; barriers. History: docs/kernels.md.
#include <bit>

#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/many_rows.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 4;                  // of a multiprocessor
constexpr int kHeld = 4;                    // keys of a thread in registers, at most
constexpr std::uint32_t kMoreSorted = 256;  // keys of the last one's bin, for which there is room

struct sort_shared {
  select_scratch<kThreads> select;
  sort_bins<> bins;
};
constexpr std::int64_t kSharedHead = (static_cast<std::int64_t>(sizeof(sort_shared)) + 15) / 16 * 16;

/// Writes the best of keys[0, n) as a query's answer. @returns false, and writes nothing, if bins do not serve them.
__device__ __forceinline__ bool write_by_bins(const many_plan& plan, std::int64_t query, const std::uint64_t* keys,
                                              std::uint32_t n, std::uint64_t* spare, sort_shared& shared) {
  const auto write = [&](auto kept) {
    return write_sorted<kThreads>(plan.answer.results, query, kept, n, spare, plan.sort_room, shared.bins,
                                  shared.select);
  };
  if (n > kHeld * kThreads) return write(keys_in_turn<kThreads>{keys, n});
  return write(held_keys<kThreads, kHeld>(keys, n));
}

/// Whether all rows that were marked of a query are there, and as many as are wanted.
__device__ bool has_enough(const many_plan& plan, std::int64_t query, std::uint32_t found) {
  const bool is_known = plan.batch.margins[query] < __uint_as_float(0x7F800000u);
  return is_known && found <= plan.room && (!is_guessed(plan.batch, query) || found >= plan.batch.wanted);
}

/// Whether no row that was not marked is better by code than one of this score.
__device__ bool is_marked_beyond(const many_plan& plan, std::int64_t query, float score) {
  const filter_batch& batch = plan.batch;
  if (!is_guessed(batch, query)) return true;  // all rows are marked
  const metric by = plan.answer.results.by;
  float distance = by == metric::l2 ? 0.5f * score : -score;
  if (by == metric::cosine) distance /= batch.inverse_norms[query];
  return __fadd_ru(distance, batch.margins[query]) <= batch.thresholds[query];
}

__global__ void __launch_bounds__(kThreads, kBlocks) sort_kernel(const __grid_constant__ many_plan plan) {
  join_chain();
  auto& shared = *reinterpret_cast<sort_shared*>(dynamic_shared());
  auto* spare = reinterpret_cast<std::uint64_t*>(dynamic_shared() + kSharedHead);
  const std::int64_t query = blockIdx.x;
  const std::uint32_t n = plan.counts[query];
  const bool refined = plan.answer.rows != nullptr;
  if (n == 0 && plan.batch.rows[query] > 0 && refined) return;  // left to others
  if (!refined) {
    if (threadIdx.x == 0 && plan.decoded) atomicAdd(plan.decoded, static_cast<unsigned long long>(n));
    if (!has_enough(plan, query, n)) {
      if (threadIdx.x == 0) leave(plan, query);
      return;
    }
  }
  std::uint64_t* keys = plan.rows + query * plan.room;
  const result_lists& results = plan.answer.results;
  if (!write_by_bins(plan, query, keys, n, spare, shared)) {
    answer_plan as_scored = plan.answer;
    as_scored.rows = nullptr;  // refined already; said here, it leaves more than half of the code out
    write_answer<kThreads>(as_scored, query, keys, n, spare, nullptr, shared.select);
  }
  if (refined || n < results.k) return;
  __syncthreads();
  if (threadIdx.x == 0 && !is_marked_beyond(plan, query, results.scores[query * results.k + results.k - 1]))
    leave(plan, query);
}

}  // namespace

void launch_sort_rows(cudaStream_t stream, many_plan plan) {
  plan.sort_room = std::bit_ceil(static_cast<std::uint32_t>(plan.answer.results.k)) + kMoreSorted;
  launch(sort_kernel,
         {.grid = dim3(static_cast<unsigned>(plan.batch.count)),
          .threads = kThreads,
          .shared_bytes = kSharedHead + static_cast<std::int64_t>(plan.sort_room) * 8,
          .overlaps = true},
         stream, plan, "launching the order of results");
}

std::int64_t many_rows_room(std::int64_t by_code) { return 2 * by_code + 1024; }

void launch_many_answers(cudaStream_t stream, const many_plan& plan, int multiprocessors) {
  if (plan.answer.rows) {
    launch_choose_rows(stream, plan);
    launch_score_rows(stream, plan);
    launch_refine_rows(stream, plan);
  } else {
    launch_score_marked(stream, plan, multiprocessors);
  }
  launch_sort_rows(stream, plan);
}

}  // namespace shortlist::cuda
