// Every row of a query's lists decoded and scored: for what the filter cannot serve.
//
// A block a query, or, of fewer queries, several, of which the last to finish has all their keys. Keys that beat the
// k-th best so far collect in a list in global memory, which the L2 cache holds; if another round might not fit, the
// list is cut to its k best. So any k is served, and nothing is lost, whatever the data. Limit: decoding, some 10
// instructions an element.
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
constexpr std::int64_t kMostParts = 64;  // of a query
static_assert(kLeastCapacity >= 2 * kRoundRows);

struct exact_shared {
  select_scratch<kThreads> select;
  std::uint32_t length;
  bool is_last;
};

/// A list of keys, and room for another.
struct key_lists {
  std::uint64_t* keys;
  std::uint64_t* spare;

  __device__ void swap() {
    std::uint64_t* const other = spare;
    spare = keys;
    keys = other;
  }
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

__device__ std::uint64_t* keys_of_block(const exact_search_plan& plan, std::uint32_t block) {
  return plan.keys + static_cast<std::int64_t>(block) * 2 * plan.capacity;
}

/// Hands in what the block has of its part of a query, whose first part is that of `first_block`. @returns whether all
/// parts are there; then they are the block's, cut to the `kept` best.
__device__ bool join_parts(const exact_search_plan& plan, std::uint32_t first_block, std::uint32_t parts,
                           std::uint32_t kept, key_lists& lists, exact_shared& shared) {
  std::uint64_t* const of_block = keys_of_block(plan, blockIdx.x);
  const std::uint32_t mine = shared.length;
  for (std::uint32_t i = threadIdx.x; lists.keys != of_block && i < mine; i += kThreads) of_block[i] = lists.keys[i];
  if (threadIdx.x == 0) plan.parts[blockIdx.x].keys = mine;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) shared.is_last = atomicAdd(&plan.parts[first_block].done, 1u) + 1 == parts;
  __syncthreads();
  if (!shared.is_last) return false;
  __threadfence();
  const auto visit = [&](auto f) {  // a part is visited by a warp
    for (std::uint32_t part = threadIdx.x / kWarp; part < parts; part += kWarps) {
      const std::uint64_t* keys = keys_of_block(plan, first_block + part);
      const std::uint32_t n = __ldcg(&plan.parts[first_block + part].keys);
#pragma unroll 8
      for (std::uint32_t i = threadIdx.x % kWarp; i < n; i += kWarp) f(__ldcg(keys + i));
    }
  };
  const std::uint64_t cut = block_cut_radix<kThreads>(visit, kept, shared.select);
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.length = 0;
    plan.parts[first_block].done = 0;
  }
  lists = {of_block + plan.capacity, of_block};
  __syncthreads();
  visit([&](std::uint64_t key) {
    if (key >= cut) lists.keys[atomicAdd(&shared.length, 1u)] = key;
  });
  __syncthreads();
  return true;
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
  if (wanted == 0) return;
  const std::int64_t parts_that_fit = plan.parts ? static_cast<std::int64_t>(gridDim.x) / wanted : 1;
  const auto parts = static_cast<std::uint32_t>(max(min(parts_that_fit, kMostParts), std::int64_t{1}));
  for (std::int64_t item = blockIdx.x; item < wanted * parts; item += gridDim.x) {
    const std::int64_t turn = item / parts;
    const auto part = static_cast<std::uint32_t>(item % parts);
    const std::int64_t query = plan.which ? plan.which[turn] : turn;
    key_lists lists_of_keys{keys_of_block(plan, blockIdx.x), keys_of_block(plan, blockIdx.x) + plan.capacity};
    std::uint64_t*& keys = lists_of_keys.keys;
    std::uint64_t*& spare = lists_of_keys.spare;
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
      const auto begin = static_cast<std::uint32_t>(static_cast<std::uint64_t>(size) * part / parts);
      const auto end_of_part = static_cast<std::uint32_t>(static_cast<std::uint64_t>(size) * (part + 1) / parts);
      decoded += end_of_part - begin;
      for (std::uint32_t round = begin; round < end_of_part; round += kRoundRows) {
        const bool is_full = shared.length + kRoundRows > plan.capacity;
        __syncthreads();  // before anybody adds to the length
        if (is_full) {
          least = prune(keys, spare, kept, shared);
          lists_of_keys.swap();
        }
        const std::uint32_t end = min(end_of_part, round + kRoundRows);
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
      lists_of_keys.swap();
    }
    if (threadIdx.x == 0 && plan.decoded) atomicAdd(plan.decoded, decoded);
    if (parts > 1 && !join_parts(plan, blockIdx.x - part, parts, kept, lists_of_keys, shared)) return;
    write_answer<kThreads>(plan.answer, query, keys, shared.length, spare, staged, shared.select);
    if (threadIdx.x == 0 && plan.decoded) atomicAdd(plan.decoded + 1, 1ull);
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
