// Rows that were chosen by written distances: cut to the best by code, and scored by the rows themselves.
//
// A block a query. Rows that are among the best in any case need no score of their codes; of the others the best fill
// up what is missing. Then eight lanes a row, whose lines were sent for to the L2 cache a step before.
// Limit: memory: the bytes of all rows that are refined, which lie apart, at 2.6 of an H100's 3.2 TB/s for 400 rows by
// code, 2.7 for 4,000. History: docs/kernels.md.
#include "cuda/device/block_select.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/many_rows.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 3;  // of a multiprocessor

using scratch_memory = select_scratch<kThreads>;
constexpr std::int64_t kSharedHead = (static_cast<std::int64_t>(sizeof(scratch_memory)) + 15) / 16 * 16;

/// Words of shared memory that numbers of so many rows take; what follows is aligned for vectors.
SHORTLIST_HOST_DEVICE constexpr std::uint32_t numbers_room(std::uint32_t by_code) { return (by_code + 3) / 4 * 4; }

/// Lists the positions of a query's best rows by code, `kept` of them. All threads come, and leave through a barrier.
__device__ __forceinline__ void list_best(const many_plan& plan, const std::uint64_t* rows, std::uint32_t sure,
                                          const coded_rows& scored, std::uint32_t kept, std::uint32_t* positions,
                                          scratch_memory& scratch) {
  const auto position_of = [&](std::uint64_t row) { return plan.codes.position_of(static_cast<slot>(row)); };
  for (std::uint32_t i = threadIdx.x; i < sure; i += kThreads) positions[i] = position_of(rows[i]);
  if (scored.count == 0) {  // all are among the best
    for (std::uint32_t i = sure + threadIdx.x; i < kept; i += kThreads)
      positions[i] = position_of(rows[plan.room - kept + i]);
  } else if (kept > sure && scored.count <= kThreads) {
    rank_by_counting<kThreads>(scored.rows, scored.count, [&](std::uint32_t rank, std::uint64_t key) {
      if (rank < kept - sure) positions[sure + rank] = core::position_of(key);
    });
  } else if (kept > sure) {
    const auto visit = [&](auto f) {
      for (std::uint32_t i = threadIdx.x; i < scored.count; i += kThreads) f(scored.rows[i]);
    };
    const std::uint64_t cut = block_cut_radix<kThreads>(visit, kept - sure, scratch);
    __syncthreads();
    if (threadIdx.x == 0) scratch.counter = sure;
    __syncthreads();
    visit([&](std::uint64_t key) {
      if (key >= cut) positions[atomicAdd(&scratch.counter, 1u)] = core::position_of(key);
    });
  }
  __syncthreads();
}

template <bool L2>
__global__ void __launch_bounds__(kThreads, kBlocks) refine_rows_kernel(const __grid_constant__ many_plan plan) {
  join_chain();
  auto& scratch = *reinterpret_cast<scratch_memory*>(dynamic_shared());
  auto* positions = reinterpret_cast<std::uint32_t*>(dynamic_shared() + kSharedHead);
  auto* staged = reinterpret_cast<float*>(positions + numbers_room(plan.answer.by_code));
  const std::int64_t query = plan.batch.order[blockIdx.x];
  std::uint64_t* rows = plan.rows + query * plan.room;
  const std::uint32_t sure = plan.counts[query];
  const std::uint32_t kept = min(plan.answer.by_code, sure + plan.border_counts[query]);
  if (kept == 0) return;
  stage_query(plan.answer.queries + query * plan.answer.query_stride, plan.answer.dim, staged);
  list_best(plan, rows, sure, coded_rows_of(plan, query), kept, positions, scratch);
  if (threadIdx.x == 0) plan.counts[query] = kept;
  const int lane = threadIdx.x % kWarp;
  score_by_eights(
      threadIdx.x / kWarp * kScoredAtOnce, kept, kThreads / kWarp * kScoredAtOnce, lane,
      [&](std::uint32_t i) { return positions[i]; }, kept_row_scorer<L2>(plan.answer, staged, lane),
      [&](std::uint32_t i, std::uint64_t key) { rows[i] = key; });
}

}  // namespace

void launch_refine_rows(cudaStream_t stream, const many_plan& plan) {
  launch(plan.answer.results.by == metric::l2 ? refine_rows_kernel<true> : refine_rows_kernel<false>,
         {.grid = dim3(static_cast<unsigned>(plan.batch.count)),
          .threads = kThreads,
          .shared_bytes =
              kSharedHead + (numbers_room(plan.answer.by_code) + padded_dim(plan.answer.dim)) * std::int64_t{4},
          .overlaps = true},
         stream, plan, "launching the scores of refined rows");
}

}  // namespace shortlist::cuda
