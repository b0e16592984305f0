// Rows that were chosen and scored: the k best of a query, sorted and written.
//
// A block a query, by bins of scores; where ties fill a bin, by a radix search and a sorting network.
// Limit: instructions and barriers, some 60 of a warp for 32 rows; ids are read at random. History: docs/kernels.md.
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/written.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 4;  // of a multiprocessor

struct sort_shared {
  select_scratch<kThreads> select;
  sort_bins<> bins;
};
constexpr std::int64_t kSharedHead = (static_cast<std::int64_t>(sizeof(sort_shared)) + 15) / 16 * 16;

__global__ void __launch_bounds__(kThreads, kBlocks) sort_kernel(const __grid_constant__ written_plan plan) {
  join_chain();
  auto& shared = *reinterpret_cast<sort_shared*>(dynamic_shared());
  auto* spare = reinterpret_cast<std::uint64_t*>(dynamic_shared() + kSharedHead);
  const std::int64_t query = blockIdx.x;
  const std::uint32_t n = plan.counts[query];
  if (n == 0 && plan.batch.rows[query] > 0) return;       // left to others
  std::uint64_t* keys = plan.chosen + query * plan.room;  // read a few times, from the L1 cache
  if (write_sorted<kThreads>(plan.answer.results, query, keys, n, spare, plan.sort_room, shared.bins, shared.select))
    return;
  answer_plan as_scored = plan.answer;
  as_scored.rows = nullptr;  // refined already; said here, it leaves more than half of the code out
  write_answer<kThreads>(as_scored, query, keys, n, spare, nullptr, shared.select);
}

}  // namespace

void launch_sort_rows(cudaStream_t stream, written_plan plan) {
  plan.sort_room = static_cast<std::uint32_t>(written_room(plan.answer.results.k));
  launch(sort_kernel,
         {.grid = dim3(static_cast<unsigned>(plan.batch.count)),
          .threads = kThreads,
          .shared_bytes = kSharedHead + static_cast<std::int64_t>(plan.sort_room) * 8,
          .overlaps = true},
         stream, plan, "launching the order of results");
}

std::int64_t written_room(std::int64_t by_code) {
  constexpr std::int64_t kLeast = 1024;
  std::int64_t room = kLeast;
  while (room < 2 * by_code) room *= 2;
  return room;
}

void launch_written_answers(cudaStream_t stream, const written_plan& plan, int multiprocessors) {
  launch_choose_rows(stream, plan);
  launch_score_rows(stream, plan, multiprocessors);
  if (plan.border_counts) launch_refine_rows(stream, plan);
  launch_sort_rows(stream, plan);
}

}  // namespace shortlist::cuda
