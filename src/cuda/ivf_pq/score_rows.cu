// Rows by list and slot, scored to the bit by their codes: a block a query, eight lanes a row.
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/code_scorer.cuh"
#include "cuda/ivf_pq/many_rows.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kThreadsOfBorders = 64;  // of refined whole numbers some 20 rows a query are scored

/// The slot of a row.
struct number_of_slot {
  __device__ __forceinline__ std::uint32_t operator()(std::uint64_t row) const { return static_cast<slot>(row); }
};

template <row_form Form, bool L2>
__global__ void __launch_bounds__(kThreads) score_kernel(const __grid_constant__ many_plan plan) {
  join_chain();
  auto* staged = reinterpret_cast<float*>(dynamic_shared());
  const std::uint32_t query = plan.batch.order[blockIdx.x];
  const auto [rows, n] = coded_rows_of(plan, query);
  if (n == 0) return;
  stage_query(plan.batch.queries + query * plan.batch.query_stride, plan.codes.dim, staged);
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const code_scorer<Form, L2> scorer(plan.codes, plan.answer.results.by, staged, lane);
  replace_keys(rows, threadIdx.x / kWarp * kScoredAtOnce, n, blockDim.x / kWarp * kScoredAtOnce, lane, number_of_slot{},
               scorer);
}

using kernel_pointer = void (*)(many_plan);

template <bool L2>
kernel_pointer kernel_of(row_form form) {
  switch (form) {
    case row_form::pairs: return score_kernel<row_form::pairs, L2>;
    case row_form::numbers4: return score_kernel<row_form::numbers4, L2>;
    case row_form::numbers8: return score_kernel<row_form::numbers8, L2>;
    case row_form::wide_numbers: return score_kernel<row_form::wide_numbers, L2>;
    case row_form::wide_pieces: return score_kernel<row_form::wide_pieces, L2>;
    default: return score_kernel<row_form::any, L2>;
  }
}

}  // namespace

void launch_score_rows(cudaStream_t stream, const many_plan& plan) {
  const row_form form = row_form_of(plan.codes);
  launch(plan.answer.results.by == metric::l2 ? kernel_of<true>(form) : kernel_of<false>(form),
         {.grid = dim3(static_cast<unsigned>(plan.batch.count)),
          .threads = plan.border_counts && plan.codes.steps ? kThreadsOfBorders : kThreads,
          .shared_bytes = padded_dim(plan.codes.dim) * static_cast<std::int64_t>(sizeof(float)),
          .overlaps = true},
         stream, plan, "launching the scores of rows");
}

}  // namespace shortlist::cuda
