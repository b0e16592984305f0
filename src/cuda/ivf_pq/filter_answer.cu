// What passed the filter: cut once more by its distances, scored to the bit, and answered from.
//
// A block a query. Its hits' distances are known within a margin: those beyond the k-th and the margin cannot be among
// the k best. The others are decoded; with refining, the best of them are scored by their rows. A query that nothing
// was known of, or whose hits do not fit, is left to a search of all rows of its lists.
#include <algorithm>

#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/filter_answer.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 128;
constexpr std::uint32_t kWarps = kThreads / kWarp;
constexpr std::int64_t kLeastCapacity = 1024;
constexpr std::int64_t kHitsPerRow = 8;

struct answer_shared {
  select_scratch<kThreads> select;
  std::uint32_t length;
};
constexpr std::int64_t kSharedHead = (static_cast<std::int64_t>(sizeof(answer_shared)) + 15) / 16 * 16;

/// Moves those of keys[0, n) that reach `least` to `to`. @returns how many do; no more than `room` are moved.
__device__ std::uint32_t move_best(const std::uint64_t* keys, std::uint32_t n, std::uint64_t least, std::uint64_t* to,
                                   std::uint32_t room, answer_shared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared.length = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) {
    if (keys[i] < least) continue;
    const std::uint32_t place = atomicAdd(&shared.length, 1u);
    if (place < room) to[place] = keys[i];
  }
  __syncthreads();
  return shared.length;
}

/// Replaces slots by the keys of their rows' scores.
template <bool L2>
__device__ void score_slots(const filter_answer_plan& plan, const float* staged, std::uint64_t* keys, std::uint32_t n) {
  const int lane = threadIdx.x % kWarp;
  const metric by = plan.answer.results.by;
  const float inverse_norm = by == metric::cosine ? inverse_norm_of_query(staged, plan.codes.dim, lane) : 0.0f;
  for (std::uint32_t first = threadIdx.x / kWarp * kDecodedRows; first < n; first += kWarps * kDecodedRows) {
    slot rows[kDecodedRows];
    std::uint32_t lists[kDecodedRows];
#pragma unroll
    for (int r = 0; r < kDecodedRows; r++) {
      rows[r] = static_cast<slot>(keys[min(first + r, n - 1)]);
      lists[r] = plan.codes.centroids ? plan.codes.list_of(rows[r]) : 0;
    }
    __syncwarp();
    const float sum = sum_of_decoded<L2>(plan.codes, rows, lists, staged, lane);
    const int mine = finished_row<kWarp, kDecodedRows>(lane);
    if (leads_finished_row<kWarp, kDecodedRows>(lane) && first + mine < n) {
      slot row = rows[0];
#pragma unroll
      for (int r = 1; r < kDecodedRows; r++) row = mine == r ? rows[r] : row;
      keys[first + mine] =
          core::row_key(core::score_key(code_score(sum, by, inverse_norm), by), plan.codes.position_of(row));
    }
  }
  __syncthreads();
}

template <bool L2>
__global__ void __launch_bounds__(kThreads) filter_answer_kernel(const __grid_constant__ filter_answer_plan plan) {
  auto& shared = *reinterpret_cast<answer_shared*>(dynamic_shared());
  auto* keys = reinterpret_cast<std::uint64_t*>(dynamic_shared() + kSharedHead);
  std::uint64_t* chosen = keys + plan.batch.capacity;
  auto* staged = reinterpret_cast<float*>(chosen + plan.room);
  const std::int64_t query = blockIdx.x;
  const std::uint32_t found = plan.batch.hit_counts[query];
  const float margin = plan.batch.margins[query];
  const std::uint32_t kept = plan.answer.by_code;
  const auto leave = [&] {
    if (threadIdx.x == 0) plan.unanswered[atomicAdd(plan.unanswered_count, 1u)] = static_cast<std::uint32_t>(query);
  };
  const bool plain = plan.codes.pages == nullptr;  // slots are positions, and all rows are looked at
  if (found > plan.batch.capacity || !(margin < __uint_as_float(0x7F800000u)) || (plain && found < kept))
    return leave();

  const std::uint64_t* hits = plan.batch.hits + query * plan.batch.capacity;
  for (std::uint32_t i = threadIdx.x; i < found; i += kThreads) keys[i] = hits[i];
  if (!plain) stage_query(plan.batch.queries + query * plan.batch.query_stride, plan.codes.dim, staged);
  __syncthreads();
  std::uint64_t least = 1;
  if (found > kept) {
    const std::uint64_t cut = block_cut<kThreads>(keys, found, kept, 0, shared.select);
    const float farthest = distance_of_key(core::key_of(cut)) + margin;
    least = static_cast<std::uint64_t>(distance_key(farthest)) << 32;
  }
  std::uint32_t n = move_best(keys, found, least, chosen, plan.room, shared);
  if (n > plan.room) return leave();
  if (plain) {
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads)
      chosen[i] = core::row_key(0, static_cast<std::uint32_t>(chosen[i]));
    __syncthreads();
    return write_answer<kThreads>(plan.answer, query, chosen, n, keys, staged, shared.select);
  }
  score_slots<L2>(plan, staged, chosen, n);
  if (threadIdx.x == 0 && plan.decoded) atomicAdd(plan.decoded, static_cast<unsigned long long>(n));
  if (n > kept) {
    const std::uint64_t cut = block_cut<kThreads>(chosen, n, kept, 0, shared.select);
    n = move_best(chosen, n, cut, keys, plan.batch.capacity, shared);
    write_answer<kThreads>(plan.answer, query, keys, n, chosen, staged, shared.select);
  } else {
    write_answer<kThreads>(plan.answer, query, chosen, n, keys, staged, shared.select);
  }
}

}  // namespace

std::int64_t hits_capacity(std::int64_t by_code) {
  std::int64_t capacity = kLeastCapacity;
  while (capacity < kHitsPerRow * by_code) capacity *= 2;
  return capacity;
}

void launch_filter_answers(cudaStream_t stream, filter_answer_plan plan) {
  plan.room = 256;
  while (plan.room < 2 * plan.answer.by_code) plan.room *= 2;
  const std::int64_t padded = (plan.codes.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  const launch_shape shape{.grid = dim3(static_cast<unsigned>(plan.batch.count)),
                           .threads = kThreads,
                           .shared_bytes = kSharedHead +
                                           (static_cast<std::int64_t>(plan.batch.capacity) + plan.room) * 8 +
                                           padded * static_cast<std::int64_t>(sizeof(float))};
  launch(plan.answer.results.by == metric::l2 ? filter_answer_kernel<true> : filter_answer_kernel<false>, shape, stream,
         plan, "launching the answers of a batch");
}

}  // namespace shortlist::cuda
