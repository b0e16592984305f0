// What passed the filter: cut once more by its distances, scored to the bit, and answered from.
//
// A block a query. Its hits' distances are known within a margin: those beyond the k-th and the margin cannot be among
// the k best. The others are decoded; with refining, the best of them are scored by their rows. A query that nothing
// was known of, or whose hits do not fit, is left to a search of all rows of its lists.
#include <algorithm>

#include "core/ivf_pq_plan.hpp"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/filter_answer.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 128;       // of blocks whose warps have a query each
constexpr int kBlockThreads = 512;  // of blocks that have one
constexpr std::uint32_t kWarps = kThreads / kWarp;
constexpr std::uint32_t kBlockWarps = kBlockThreads / kWarp;
constexpr std::int64_t kLeastCapacity = 1024;
constexpr std::int64_t kMostCapacity = 16'384;  // so that batches stay large
constexpr std::int64_t kHitsPerRow = 16;

struct answer_shared {
  select_scratch<kBlockThreads> select;
  std::uint32_t length;
};
constexpr std::int64_t kSharedHead = (static_cast<std::int64_t>(sizeof(answer_shared)) + 15) / 16 * 16;

/// Moves those of keys[0, n) that reach `least` to `to`. @returns how many do; no more than `room` are moved.
__device__ std::uint32_t move_best(const std::uint64_t* keys, std::uint32_t n, std::uint64_t least, std::uint64_t* to,
                                   std::uint32_t room, answer_shared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared.length = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < n; i += kBlockThreads) {
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
  for (std::uint32_t first = threadIdx.x / kWarp * kDecodedRows; first < n; first += kBlockWarps * kDecodedRows) {
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
__global__ void __launch_bounds__(kBlockThreads) filter_answer_kernel(const __grid_constant__ filter_answer_plan plan) {
  auto& shared = *reinterpret_cast<answer_shared*>(dynamic_shared());
  auto* keys = reinterpret_cast<std::uint64_t*>(dynamic_shared() + kSharedHead);
  std::uint64_t* chosen = keys + plan.room;
  auto* staged = reinterpret_cast<float*>(chosen + plan.room);
  if (plan.which && blockIdx.x >= *plan.which_count) return;
  const std::int64_t query = plan.which ? plan.which[blockIdx.x] : blockIdx.x;
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
  if (!plain) stage_query(plan.batch.queries + query * plan.batch.query_stride, plan.codes.dim, staged);
  __syncthreads();
  std::uint64_t least = 1;
  if (found > kept) {
    const auto visit = [&](auto f) {
#pragma unroll 4
      for (std::uint32_t i = threadIdx.x; i < found; i += kBlockThreads) f(hits[i]);
    };
    const std::uint64_t cut = block_cut_radix<kBlockThreads>(visit, kept, shared.select);
    const float farthest = distance_of_key(core::key_of(cut)) + margin;
    least = static_cast<std::uint64_t>(distance_key(farthest)) << 32;
  }
  std::uint32_t n = move_best(hits, found, least, chosen, plan.room, shared);
  if (n > plan.room) return leave();
  if (plain) {
    for (std::uint32_t i = threadIdx.x; i < n; i += kBlockThreads)
      chosen[i] = core::row_key(0, static_cast<std::uint32_t>(chosen[i]));
    __syncthreads();
    return write_answer<kBlockThreads>(plan.answer, query, chosen, n, keys, staged, shared.select);
  }
  score_slots<L2>(plan, staged, chosen, n);
  if (threadIdx.x == 0 && plan.decoded) atomicAdd(plan.decoded, static_cast<unsigned long long>(n));
  if (n > kept) {
    const std::uint64_t cut = block_cut<kBlockThreads>(chosen, n, kept, 0, shared.select);
    n = move_best(chosen, n, cut, keys, plan.room, shared);
    write_answer<kBlockThreads>(plan.answer, query, keys, n, chosen, staged, shared.select);
  } else {
    write_answer<kBlockThreads>(plan.answer, query, chosen, n, keys, staged, shared.select);
  }
}

// ---- few rows a query: a warp each

constexpr int kWarpRows = 128;        // of an answer by code
constexpr int kWarpAnswerBlocks = 6;  // of a multiprocessor: loads of rows are what takes time
constexpr int kHitsOfLane = 8;        // whose distances stay in registers
constexpr int kLanesOfScore = 8;      // of a row that is scored
constexpr int kScoredOfLanes = 2;     // rows of those lanes at once
constexpr int kScoredAtOnce = kWarp / kLanesOfScore * kScoredOfLanes;

/// What a warp works in, one behind the other: keys [room], keys [by_code], a query.
struct warp_memory {
  std::uint64_t* keys;
  std::uint64_t* best;
  float* staged;
};

/// Rows of a query that are scored, at most: those asked for, and what a margin adds of ordinary data.
constexpr std::uint32_t warp_room(std::uint32_t by_code) { return by_code + by_code / 2 + 32; }

/// The sum of row finished_row<8, 2>(lane) of a lane's two rows. `four(r, at)` is elements [at, at + 4) of row r.
template <bool L2, class Four>
__device__ __forceinline__ float sum_by_eights(std::int32_t dim, const float* staged, int lane, Four four) {
  float sums[kScoredOfLanes][kQuadsPerLane<kLanesOfScore>][4] = {};
#pragma unroll 1
  for (std::int32_t chunk = lane % kLanesOfScore * 4; chunk < dim; chunk += core::kPartialSums) {
#pragma unroll
    for (int v = 0; v < kQuadsPerLane<kLanesOfScore>; v++) {
      const std::int32_t at = chunk + v * kLanesOfScore * 4;
      if (at >= dim) continue;
      const float4 q = *reinterpret_cast<const float4*>(staged + at);
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) step4<L2>(q, four(r, at), sums[r][v]);
    }
  }
  __syncwarp();
  return finish_sums<kLanesOfScore, kScoredOfLanes>(sums, lane);
}

/// Answers one query; a warp.
template <bool L2>
class warp_answer {
 public:
  __device__ warp_answer(const filter_answer_plan& plan, const warp_memory& memory, std::int64_t query)
      : plan_(plan), memory_(memory), query_(query), lane_(static_cast<int>(threadIdx.x % kWarp)) {}

  /// @returns false if the filter does not serve the query.
  __device__ bool run() {
    const bool plain = plan_.codes.pages == nullptr;  // slots are positions, and all rows are looked at
    const std::uint32_t found = plan_.batch.hit_counts[query_];
    const float margin = plan_.batch.margins[query_];
    const std::uint32_t kept = plan_.answer.by_code;
    if (found > plan_.batch.capacity || !(margin < __uint_as_float(0x7F800000u)) || (plain && found < kept))
      return false;
    hits_ = plan_.batch.hits + query_ * plan_.batch.capacity;
    std::uint32_t n = choose(found, kept, margin);
    if (n > plan_.room) return false;
    const metric by = plan_.answer.results.by;
    if (!plain) {
      stage(plan_.batch.queries + query_ * plan_.batch.query_stride);
      const float inverse_norm =
          by == metric::cosine ? inverse_norm_of_query(memory_.staged, plan_.codes.dim, lane_) : 0.0f;
      score_codes(n, inverse_norm);
      if (lane_ == 0 && plan_.decoded) atomicAdd(plan_.decoded, static_cast<unsigned long long>(n));
    }
    if (plan_.answer.rows != nullptr && n > 0) {
      if (!plain) n = keep_best(n, kept);
      stage(plan_.answer.queries + query_ * plan_.answer.query_stride);
      const float inverse_norm =
          by == metric::cosine ? inverse_norm_of_query(memory_.staged, plan_.answer.dim, lane_) : 0.0f;
      score_rows(n, inverse_norm);
    }
    write(n);
    return true;
  }

 private:
  __device__ void stage(const float* query) {
    const std::int32_t dim = plan_.answer.dim;
    const std::int32_t padded = (dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
    __syncwarp();
    for (std::int32_t i = lane_; i < padded; i += kWarp) memory_.staged[i] = i < dim ? query[i] : core::kQueryPadding;
    __syncwarp();
  }

  /// Slots of hits that may be among the `kept` best go to the list, as keys of no score. @returns how many; no more
  /// than fit are there.
  __device__ std::uint32_t choose(std::uint32_t found, std::uint32_t kept, float margin) {
    std::uint32_t near[kHitsOfLane];
    std::uint32_t low = ~0u;
    std::uint32_t high = 0;
#pragma unroll
    for (int i = 0; i < kHitsOfLane; i++) {
      const std::uint32_t at = i * kWarp + lane_;
      near[i] = at < found ? static_cast<std::uint32_t>(hits_[at] >> 32) : 0;
      low = at < found ? min(low, near[i]) : low;
      high = max(high, near[i]);
    }
    const auto beyond = [&](auto f) {
      for (std::uint32_t at = kHitsOfLane * kWarp + lane_; at < found; at += kWarp)
        f(at, static_cast<std::uint32_t>(hits_[at] >> 32));
    };
    beyond([&](std::uint32_t, std::uint32_t key) {
      low = min(low, key);
      high = max(high, key);
    });
    low = __reduce_min_sync(kFullWarp, low);
    high = __reduce_max_sync(kFullWarp, high);
    std::uint32_t least = 1;
    if (found > kept) {
      while (low < high) {  // the largest that `kept` reach, or one that not many more do
        const std::uint32_t middle = high - (high - low) / 2;
        std::uint32_t count = 0;
#pragma unroll
        for (int i = 0; i < kHitsOfLane; i++) count += near[i] >= middle;
        beyond([&](std::uint32_t, std::uint32_t key) { count += key >= middle; });
        count = __reduce_add_sync(kFullWarp, count);
        if (count >= kept) {
          low = middle;
          if (count <= kept + kept / kWarp) break;
        } else {
          high = middle - 1;
        }
      }
      least = distance_key(distance_of_key(low) + margin);
    }
    std::uint32_t n = 0;
    const auto enter = [&](std::uint32_t at, bool is_near) {
      const unsigned who = __ballot_sync(kFullWarp, is_near);
      const std::uint32_t place = n + __popc(who & ((1u << lane_) - 1));
      if (is_near && place < plan_.room) memory_.keys[place] = core::row_key(0, static_cast<slot>(hits_[at]));
      n += __popc(who);
    };
#pragma unroll
    for (int i = 0; i < kHitsOfLane; i++) {
      if (i * kWarp >= found) break;
      enter(i * kWarp + lane_, near[i] >= least);
    }
    for (std::uint32_t first = kHitsOfLane * kWarp; first < found; first += kWarp) {
      const std::uint32_t at = first + lane_;
      enter(at, at < found && static_cast<std::uint32_t>(hits_[at] >> 32) >= least);
    }
    __syncwarp();
    return n;
  }

  __device__ void score_codes(std::uint32_t n, float inverse_norm) {
    const metric by = plan_.answer.results.by;
    for_rows(n, [&](const std::uint32_t(&slots)[kScoredOfLanes], int mine) {
      std::uint32_t lists[kScoredOfLanes];
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) lists[r] = plan_.codes.centroids ? plan_.codes.list_of(slots[r]) : 0;
      const float sum = sum_by_eights<L2>(plan_.codes.dim, memory_.staged, lane_, [&](int r, std::int32_t at) {
        return decoded_four(plan_.codes, slots[r], lists[r], at);
      });
      return core::row_key(core::score_key(code_score(sum, by, inverse_norm), by),
                           plan_.codes.position_of(mine == 0 ? slots[0] : slots[1]));
    });
  }

  __device__ void score_rows(std::uint32_t n, float inverse_norm) {
    const answer_plan& answer = plan_.answer;
    const metric by = answer.results.by;
    for_rows(n, [&](const std::uint32_t(&positions)[kScoredOfLanes], int mine) {
      const float sum = sum_by_eights<L2>(answer.dim, memory_.staged, lane_, [&](int r, std::int32_t at) {
        return load_four(answer.type, answer.rows + positions[r] * answer.row_stride_bytes, at);
      });
      const std::uint32_t position = mine == 0 ? positions[0] : positions[1];
      const float row_inverse_norm = by == metric::cosine ? answer.inverse_norms[position] : 0.0f;
      return core::row_key(core::score_key(score_of(sum, by, inverse_norm, row_inverse_norm), by), position);
    });
  }

  /// Replaces keys[0, n) by key_of(numbers of the lane's rows, which of them is its).
  template <class KeyOf>
  __device__ __forceinline__ void for_rows(std::uint32_t n, KeyOf key_of) {
    const int mine = finished_row<kLanesOfScore, kScoredOfLanes>(lane_);
    for (std::uint32_t first = 0; first < n; first += kScoredAtOnce) {
      const std::uint32_t at = first + lane_ / kLanesOfScore * kScoredOfLanes;
      std::uint32_t numbers[kScoredOfLanes];
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) numbers[r] = core::position_of(memory_.keys[min(at + r, n - 1)]);
      __syncwarp();
      const std::uint64_t key = key_of(numbers, mine);
      if (leads_finished_row<kLanesOfScore, kScoredOfLanes>(lane_) && at + mine < n) memory_.keys[at + mine] = key;
      __syncwarp();
    }
  }

  /// Calls f(rank, key) for each of keys[0, n).
  template <class F>
  __device__ __forceinline__ void rank(std::uint32_t n, F f) const {
    for (std::uint32_t i = lane_; i < n; i += kWarp) {
      const std::uint64_t key = memory_.keys[i];
      std::uint32_t better = 0;
#pragma unroll 4
      for (std::uint32_t j = 0; j < n; j++) better += memory_.keys[j] > key;
      f(better, key);
    }
    __syncwarp();
  }

  __device__ std::uint32_t keep_best(std::uint32_t n, std::uint32_t kept) {
    if (n <= kept) return n;
    rank(n, [&](std::uint32_t place, std::uint64_t key) {
      if (place < kept) memory_.best[place] = key;
    });
    for (std::uint32_t i = lane_; i < kept; i += kWarp) memory_.keys[i] = memory_.best[i];
    __syncwarp();
    return kept;
  }

  __device__ void write(std::uint32_t n) const {
    const result_lists& results = plan_.answer.results;
    rank(n, [&](std::uint32_t place, std::uint64_t key) {
      if (place < results.k) results.write(query_, place, key);
    });
    for (std::int64_t i = n + lane_; i < results.k; i += kWarp) results.pad(query_, i);
  }

  const filter_answer_plan& plan_;
  warp_memory memory_;
  std::int64_t query_;
  int lane_;
  const std::uint64_t* hits_ = nullptr;
};

template <bool L2>
__global__ void __launch_bounds__(kThreads, kWarpAnswerBlocks)
    warp_answer_kernel(const __grid_constant__ filter_answer_plan plan) {
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::int64_t turn = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (turn >= (plan.which ? *plan.which_count : plan.batch.count)) return;
  const std::int64_t query = plan.which ? plan.which[turn] : turn;
  const std::int32_t padded = (plan.answer.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  const std::uint32_t keys = plan.room + plan.answer.by_code;
  auto* begin = reinterpret_cast<std::uint64_t*>(dynamic_shared()) + warp * keys;
  const warp_memory memory{begin, begin + plan.room,
                           reinterpret_cast<float*>(dynamic_shared() + (kWarps * keys + 1) / 2 * 16) + warp * padded};
  if (!warp_answer<L2>(plan, memory, query).run() && threadIdx.x % kWarp == 0)
    plan.unanswered[atomicAdd(plan.unanswered_count, 1u)] = static_cast<std::uint32_t>(query);
}

}  // namespace

std::int64_t hits_capacity(std::int64_t by_code) {
  if (const auto forced = core::forced_hits()) return *forced;
  std::int64_t capacity = kLeastCapacity;
  while (capacity < kHitsPerRow * by_code && capacity < kMostCapacity) capacity *= 2;
  return capacity;
}

void launch_filter_answers(cudaStream_t stream, filter_answer_plan plan) {
  const bool l2 = plan.answer.results.by == metric::l2;
  const std::int64_t query_bytes =
      (plan.answer.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums * 4;
  if (plan.answer.by_code <= kWarpRows) {
    plan.room = warp_room(plan.answer.by_code);
    const launch_shape shape{
        .grid = dim3((static_cast<unsigned>(plan.batch.count) + kWarps - 1) / kWarps),
        .threads = kThreads,
        .shared_bytes = (kWarps * (plan.room + plan.answer.by_code) + 1) / 2 * 16 + kWarps * query_bytes};
    return launch(l2 ? warp_answer_kernel<true> : warp_answer_kernel<false>, shape, stream, plan,
                  "launching the answers of a batch");
  }
  plan.room = 256;
  while (plan.room < 2 * plan.answer.by_code) plan.room *= 2;
  const launch_shape shape{.grid = dim3(static_cast<unsigned>(plan.batch.count)),
                           .threads = kBlockThreads,
                           .shared_bytes = kSharedHead + 2 * static_cast<std::int64_t>(plan.room) * 8 + query_bytes};
  launch(l2 ? filter_answer_kernel<true> : filter_answer_kernel<false>, shape, stream, plan,
         "launching the answers of a batch");
}

}  // namespace shortlist::cuda
