// Every row of a query's lists decoded and scored: for what the filter cannot serve.
//
// A block a query. Keys that beat the k-th best so far collect in a list in global memory, which the L2 cache holds; if
// another round might not fit, the list is cut to its k best. So any k is served, and nothing is lost, whatever the
// data. Limit: decoding, some 10 instructions an element.
#include <algorithm>

#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/exact_search.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / kWarp;
constexpr std::uint32_t kRoundRows = 32 * kWarps * kDecodedRows;  // between two looks at the list's length
constexpr std::int64_t kLeastCapacity = 4096;
static_assert(kLeastCapacity >= 2 * kRoundRows);

struct exact_shared {
  select_scratch<kThreads> select;
  std::uint32_t length;
};

/// Cuts keys[0, length) to the `kept` best, into `spare`. @returns the least key of those.
__device__ std::uint64_t prune(const std::uint64_t* keys, std::uint64_t* spare, std::uint32_t kept,
                               exact_shared& shared) {
  const std::uint32_t n = shared.length;
  const auto visit = [&](auto f) {
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) f(keys[i]);
  };
  const std::uint64_t cut = block_cut_radix<kThreads>(visit, kept, shared.select);
  __syncthreads();
  if (threadIdx.x == 0) shared.length = 0;
  __syncthreads();
  visit([&](std::uint64_t key) {
    if (key >= cut) spare[atomicAdd(&shared.length, 1u)] = key;
  });
  __syncthreads();
  return cut;
}

/// The keys of rows [0, n) of answer.rows, at positions from `first` on, instead of those of decoded rows.
__device__ void enter_plain(const answer_plan& answer, const float* staged, std::uint32_t first, std::uint32_t n,
                            std::uint64_t least, std::uint64_t* keys, std::uint64_t* spare, exact_shared& shared) {
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) spare[i] = core::row_key(0, first + i);
  __syncthreads();
  refine_keys<kThreads>(answer, staged, spare, n);
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads)
    if (spare[i] > least) keys[atomicAdd(&shared.length, 1u)] = spare[i];
}

template <bool L2>
__global__ void __launch_bounds__(kThreads) exact_search_kernel(const __grid_constant__ exact_search_plan plan) {
  join_chain();
  auto& shared = *reinterpret_cast<exact_shared*>(dynamic_shared());
  auto* staged = reinterpret_cast<float*>(dynamic_shared() + (sizeof(exact_shared) + 15) / 16 * 16);
  const int lane = threadIdx.x % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  const metric by = plan.answer.results.by;
  const std::uint32_t kept = plan.answer.by_code;
  const std::int64_t wanted = plan.which ? *plan.count : plan.query_count;
  for (std::int64_t turn = blockIdx.x; turn < wanted; turn += gridDim.x) {
    const std::int64_t query = plan.which ? plan.which[turn] : turn;
    std::uint64_t* keys = plan.keys + static_cast<std::int64_t>(blockIdx.x) * 2 * plan.capacity;
    std::uint64_t* spare = keys + plan.capacity;
    std::uint64_t least = core::kNoRow;
    unsigned long long decoded = 0;
    __syncthreads();
    stage_query(plan.queries + query * plan.query_stride, plan.codes.dim, staged);
    if (threadIdx.x == 0) shared.length = 0;
    __syncthreads();
    const float inverse_norm = by == metric::cosine ? inverse_norm_of_query(staged, plan.codes.dim, lane) : 0.0f;

    const bool plain = plan.plain_rows > 0;
    const std::int64_t lists_of_query = plain ? 1 : plan.nprobe;
    for (std::int64_t probe = 0; probe < lists_of_query; probe++) {
      const auto list = plain ? 0 : static_cast<std::uint32_t>(plan.probes[query * plan.nprobe + probe]);
      const std::uint32_t size = plain ? static_cast<std::uint32_t>(plan.plain_rows) : plan.sizes[list];
      const std::uint32_t* pages = plain ? nullptr : plan.table + plan.first[list];
      decoded += size;
      for (std::uint32_t round = 0; round < size; round += kRoundRows) {
        const bool is_full = shared.length + kRoundRows > plan.capacity;
        __syncthreads();  // before anybody adds to the length
        if (is_full) {
          least = prune(keys, spare, kept, shared);
          std::uint64_t* const cut = spare;
          spare = keys;
          keys = cut;
        }
        const std::uint32_t end = min(size, round + kRoundRows);
        if (plain) {
          enter_plain(plan.answer, staged, round, end - round, least, keys, spare, shared);
          __syncthreads();
          continue;
        }
        for (std::uint32_t first = round + warp * kDecodedRows; first < end; first += kWarps * kDecodedRows) {
          slot rows[kDecodedRows];
          std::uint32_t lists[kDecodedRows];
#pragma unroll
          for (int r = 0; r < kDecodedRows; r++) {
            const std::uint32_t at = min(first + r, size - 1);
            rows[r] = pages[at / core::kPageRows] * static_cast<std::uint32_t>(core::kPageRows) + at % core::kPageRows;
            lists[r] = list;
          }
          const float sum = sum_of_decoded<L2>(plan.codes, rows, lists, staged, lane);
          const int mine = finished_row<kWarp, kDecodedRows>(lane);
          if (leads_finished_row<kWarp, kDecodedRows>(lane) && first + mine < end) {
            slot row = rows[0];
#pragma unroll
            for (int r = 1; r < kDecodedRows; r++) row = mine == r ? rows[r] : row;
            const std::uint64_t key =
                core::row_key(core::score_key(code_score(sum, by, inverse_norm), by), plan.codes.position_of(row));
            if (key > least) keys[atomicAdd(&shared.length, 1u)] = key;
          }
        }
        __syncthreads();
      }
    }
    if (shared.length > kept) {
      prune(keys, spare, kept, shared);
      std::uint64_t* const cut = spare;
      spare = keys;
      keys = cut;
    }
    write_answer<kThreads>(plan.answer, query, keys, shared.length, spare, staged, shared.select);
    if (threadIdx.x == 0 && plan.decoded) {
      atomicAdd(plan.decoded, decoded);
      atomicAdd(plan.decoded + 1, 1ull);
    }
  }
}

}  // namespace

std::int64_t exact_search_capacity(std::int64_t by_code) {
  std::int64_t capacity = kLeastCapacity;
  while (capacity < 2 * by_code) capacity *= 2;
  return capacity;
}

void launch_exact_search(cudaStream_t stream, const exact_search_plan& plan) {
  const launch_shape shape{.grid = dim3(static_cast<unsigned>(std::min<std::int64_t>(plan.blocks, plan.query_count))),
                           .threads = kThreads,
                           .shared_bytes = (static_cast<std::int64_t>(sizeof(exact_shared)) + 15) / 16 * 16 +
                                           padded_dim(plan.codes.dim) * static_cast<std::int64_t>(sizeof(float)),
                           .overlaps = true};
  launch(plan.answer.results.by == metric::l2 ? exact_search_kernel<true> : exact_search_kernel<false>, shape, stream,
         plan, "launching the scores of all rows of lists");
}

}  // namespace shortlist::cuda
