// What passed the filter: cut once more by its distances, scored to the bit, and answered from.
//
// A block or a warp a query. Its hits' distances are known within a margin: those beyond the k-th and the margin cannot
// be among the k best. The others are decoded; with refining, only those within the margin of the k-th, which may or
// may not be among the best, and those that are get the scores of their rows. A query that nothing was known of, or
// whose hits do not fit, is left to a search of all rows of its lists.
#include <algorithm>
#include <limits>

#include "core/ivf_pq_plan.hpp"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/last_reached.cuh"
#include "cuda/ivf_pq/code_scorer.cuh"
#include "cuda/ivf_pq/filter_answer.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 128;            // of blocks whose warps have a query each
constexpr int kBlockThreads = 512;       // of blocks that have one
constexpr int kSmallBlockThreads = 128;  // of those for few rows by code
constexpr std::uint32_t kWarps = kThreads / kWarp;
constexpr int kAnswerBlocks = 2;  // of a multiprocessor
constexpr int kSmallAnswerBlocks = 5;
constexpr std::uint32_t kLeastRoom = 1024;    // of a block's rows
constexpr std::uint32_t kCountedKeys = 2048;  // cut by counts of all of them, of which each warp makes one
constexpr std::int64_t kLeastCapacity = 2048;
constexpr std::int64_t kMostCapacity = 16'384;  // so that batches stay large
constexpr std::int64_t kHitsPerRow = 24;

template <int Threads>
struct answer_shared {
  select_scratch<Threads> select;
  std::uint32_t length;
};
constexpr std::uint64_t kNoKey = ~std::uint64_t{0};  // beyond all keys
template <int Threads>
constexpr std::int64_t kSharedHead = (static_cast<std::int64_t>(sizeof(answer_shared<Threads>)) + 15) / 16 * 16;

__device__ __forceinline__ slot slot_of_hit(std::uint64_t hit) { return static_cast<slot>(hit); }

/// What names a row in a hit that its score's key replaces.
struct number_of_hit {
  __device__ __forceinline__ std::uint32_t operator()(std::uint64_t hit) const { return slot_of_hit(hit); }
};

/// Moves those of keys[0, n) in [least, end) to `to`. @returns how many there are; no more than `room` are moved.
template <int Threads>
__device__ std::uint32_t move_between(const std::uint64_t* keys, std::uint32_t n, std::uint64_t least,
                                      std::uint64_t end, std::uint64_t* to, std::uint32_t room,
                                      answer_shared<Threads>& shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared.length = 0;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < n; i += Threads) {
    if (keys[i] < least || keys[i] >= end) continue;
    const std::uint32_t place = atomicAdd(&shared.length, 1u);
    if (place < room) to[place] = keys[i];
  }
  __syncthreads();
  return shared.length;
}

/// Replaces slots by keys of their rows' positions, without a score.
template <int Threads>
__device__ void place_slots(const filter_answer_plan& plan, std::uint64_t* keys, std::uint32_t n) {
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < n; i += Threads)
    keys[i] = core::row_key(0, plan.codes.position_of(slot_of_hit(keys[i])));
  __syncthreads();
}

/// Replaces slots by the keys of their rows' scores.
template <int Threads, row_form Form, bool L2>
__device__ void score_slots(const filter_answer_plan& plan, const float* staged, std::uint64_t* keys, std::uint32_t n) {
  const int lane = threadIdx.x % kWarp;
  const code_scorer<Form, L2> scorer(plan.codes, plan.answer.results.by, staged, lane);
  replace_keys(keys, threadIdx.x / kWarp * kScoredAtOnce, n, (Threads / kWarp) * kScoredAtOnce, lane, number_of_hit{},
               scorer);
  __syncthreads();
}

/// Whether so many results are sorted by bins rather than by counting.
constexpr bool sorts_by_bins(std::int64_t k) { return k > kBlockThreads / 2; }

template <int Threads, row_form Form, bool L2>
__global__ void __launch_bounds__(Threads, Threads == kBlockThreads ? kAnswerBlocks : kSmallAnswerBlocks)
    filter_answer_kernel(const __grid_constant__ filter_answer_plan plan) {
  join_chain();
  auto& shared = *reinterpret_cast<answer_shared<Threads>*>(dynamic_shared());
  auto* keys = reinterpret_cast<std::uint64_t*>(dynamic_shared() + kSharedHead<Threads>);
  std::uint64_t* chosen = keys + plan.room;
  auto* staged = reinterpret_cast<float*>(chosen + plan.room);
  if (plan.which && blockIdx.x >= *plan.which_count) return;
  const std::int64_t query = plan.which ? plan.which[blockIdx.x] : blockIdx.x;
  const std::uint32_t found = plan.batch.hit_counts[query];
  const float margin = plan.batch.margins[query];
  const std::uint32_t kept = plan.answer.by_code;
  const bool guessed = is_guessed(plan.batch, query);
  const auto leave = [&] {
    if (threadIdx.x == 0) plan.unanswered[atomicAdd(plan.unanswered_count, 1u)] = static_cast<std::uint32_t>(query);
  };
  constexpr bool kPlain = Form == row_form::none;  // all rows are looked at
  if (found > plan.batch.capacity || !(margin < __uint_as_float(0x7F800000u)) || (kPlain && found < kept) ||
      (guessed && found <= kept))
    return leave();

  const std::uint64_t* hits = plan.batch.hits + query * plan.batch.capacity;
  if (!kPlain) stage_query(plan.batch.queries + query * plan.batch.query_stride, plan.codes.dim, staged);
  __syncthreads();
  const bool refines = plan.answer.rows != nullptr && !kPlain;
  std::uint64_t least = 1;
  std::uint64_t surely = refines ? 1 : kNoKey;  // reached by rows that are among the best by code in any case
  if (found > kept) {
    const bool fits = found <= plan.room;
    for (std::uint32_t i = threadIdx.x; fits && i < found; i += Threads) keys[i] = hits[i];
    __syncthreads();
    std::uint64_t cut = 0;
    if (found <= kCountedKeys && fits) {
      cut = block_cut<Threads>(keys, found, kept, refines ? 0 : kept / kWarp, shared.select);
    } else {
      const std::uint64_t* from = fits ? keys : hits;
      const auto visit = [&](auto f) {
#pragma unroll 4
        for (std::uint32_t i = threadIdx.x; i < found; i += Threads) f(from[i]);
      };
      cut = block_cut_radix<Threads>(visit, kept, shared.select);
    }
    const float distance = distance_of_key(core::key_of(cut));
    if (guessed && distance + margin > plan.batch.thresholds[query]) return leave();
    least = static_cast<std::uint64_t>(distance_key(distance + margin)) << 32;
    if (refines) surely = (static_cast<std::uint64_t>(distance_key(distance - margin)) + 1) << 32;
  }
  std::uint32_t n = move_between(hits, found, least, surely, chosen, plan.room, shared);
  if (n > plan.room) return leave();
  if constexpr (kPlain) {
    for (std::uint32_t i = threadIdx.x; i < n; i += Threads) chosen[i] = core::row_key(0, slot_of_hit(chosen[i]));
    __syncthreads();
    return write_answer<Threads>(plan.answer, query, chosen, n, keys, staged, shared.select);
  } else {
    const std::uint32_t sure = refines ? move_between(hits, found, surely, kNoKey, keys, plan.room, shared) : 0;
    if (!refines || sure + n > kept) {
      score_slots<Threads, Form, L2>(plan, staged, chosen, n);
      if (threadIdx.x == 0 && plan.decoded) atomicAdd(plan.decoded, static_cast<unsigned long long>(n));
      if constexpr (Threads == kBlockThreads) {
        if (!refines && sorts_by_bins(plan.answer.results.k)) {
          auto& bins = *reinterpret_cast<sort_bins<>*>(staged + padded_dim(plan.codes.dim));
          if (write_sorted<Threads>(plan.answer.results, query, keys_in_turn<Threads>{chosen, n}, n, keys, plan.room,
                                    bins, shared.select))
            return;
        }
      }
    } else {
      place_slots<Threads>(plan, chosen, n);
    }
    place_slots<Threads>(plan, keys, sure);
    std::uint64_t cut = 0;
    if (sure + n > kept) cut = block_cut<Threads>(chosen, n, kept - sure, 0, shared.select);
    n = sure + move_between(chosen, n, cut, kNoKey, keys + sure, plan.room - sure, shared);
    write_answer<Threads>(plan.answer, query, keys, n, chosen, staged, shared.select);
  }
}

// ---- few rows a query: a warp each

constexpr int kWarpRows = 256;                  // of an answer by code
constexpr std::uint32_t kSmallBlockRows = 512;  // of an answer by code
constexpr int kFewAnswers = 128;                // so few are faster with a block each
constexpr int kWarpAnswerBlocks = 5;            // of a multiprocessor: loads of rows are what takes time
constexpr int kHitsOfLane = 16;                 // whose distances stay in registers
constexpr int kFewHitsOfLane = 4;               // the same where that is all
constexpr int kRankedAtOnce = 4;                // keys of a lane
constexpr int kCutOfLane = 8;                   // keys, in registers, when they are cut before they are ranked
constexpr int kPlacedAtOnce = 4;                // rows of a lane, whose positions are under way

/// What a warp works in, one behind the other: keys [room], keys [by_code], a query.
struct warp_memory {
  std::uint64_t* keys;
  std::uint64_t* best;
  float* staged;
};

/// Rows of a query that are scored, at most: those asked for, and what a margin adds of ordinary data.
constexpr std::uint32_t warp_room(std::uint32_t by_code) { return by_code + by_code / 2 + 32; }

/// Answers one query; a warp.
template <row_form Form, bool L2>
class warp_answer {
 public:
  __device__ warp_answer(const filter_answer_plan& plan, const warp_memory& memory, std::int64_t query)
      : plan_(plan), memory_(memory), query_(query), lane_(static_cast<int>(threadIdx.x % kWarp)) {}

  /// @returns false if the filter does not serve the query.
  __device__ bool run() {
    constexpr bool kPlain = Form == row_form::none;  // all rows are looked at
    const std::uint32_t found = plan_.batch.hit_counts[query_];
    const float margin = plan_.batch.margins[query_];
    const std::uint32_t kept = plan_.answer.by_code;
    if (found > plan_.batch.capacity || !(margin < __uint_as_float(0x7F800000u)) || (kPlain && found < kept))
      return false;
    hits_ = plan_.batch.hits + query_ * plan_.batch.capacity;
    const bool refines = plan_.answer.rows != nullptr;
    if (is_guessed(plan_.batch, query_)) {
      if (found < kept) return false;
      most_ = plan_.batch.thresholds[query_];
    }
    std::uint32_t sure = 0;
    const bool splits = refines && !kPlain;
    std::uint32_t n = found <= kFewHitsOfLane * kWarp ? choose<kFewHitsOfLane>(found, kept, margin, splits, sure)
                                                      : choose<kHitsOfLane>(found, kept, margin, splits, sure);
    if (n > plan_.room) return false;
    if constexpr (!kPlain) {
      if (!refines || sure + n > kept) {
        stage(plan_.batch.queries + query_ * plan_.batch.query_stride);
        const code_scorer<Form, L2> scorer(plan_.codes, plan_.answer.results.by, memory_.staged, lane_);
        replace_keys(memory_.keys, 0, n, kScoredAtOnce, lane_, number_of_key{}, scorer);
        if (lane_ == 0 && plan_.decoded) atomicAdd(plan_.decoded, static_cast<unsigned long long>(n));
        if (refines) n = keep_best(n, kept - sure, memory_.best + sure);
      } else {
        place_slots(memory_.keys, n);
      }
    }
    if (refines && sure + n > 0) {
      place_slots(memory_.best, sure);
      for (std::uint32_t i = lane_; i < sure; i += kWarp) memory_.keys[n + i] = memory_.best[i];
      n += sure;
      stage(plan_.answer.queries + query_ * plan_.answer.query_stride);
      replace_keys(memory_.keys, 0, n, kScoredAtOnce, lane_, number_of_key{},
                   kept_row_scorer<L2>(plan_.answer, memory_.staged, lane_));
    }
    write(n);
    return true;
  }

 private:
  __device__ void stage(const float* query) {
    const std::int32_t dim = plan_.answer.dim;
    const std::int32_t padded = padded_dim(dim);
    __syncwarp();
    for (std::int32_t i = lane_; i < padded; i += kWarp) memory_.staged[i] = i < dim ? query[i] : core::kQueryPadding;
    __syncwarp();
  }

  /// Slots of hits that may be among the `kept` best go to the list, as keys of no score. @returns how many; no more
  /// than fit are there, and too many if other rows may be among them. With `splits`, those that are in any case,
  /// `sure` of them, go to memory_.best instead.
  template <int HitsOfLane>
  __device__ std::uint32_t choose(std::uint32_t found, std::uint32_t kept, float margin, bool splits,
                                  std::uint32_t& sure) {
    std::uint32_t near[HitsOfLane];
    std::uint32_t low = ~0u;
    std::uint32_t high = 0;
#pragma unroll
    for (int i = 0; i < HitsOfLane; i++) {
      const std::uint32_t at = i * kWarp + lane_;
      near[i] = at < found ? static_cast<std::uint32_t>(hits_[at] >> 32) : 0;
      low = at < found ? min(low, near[i]) : low;
      high = max(high, near[i]);
    }
    const auto beyond = [&](auto f) {
      for (std::uint32_t at = HitsOfLane * kWarp + lane_; at < found; at += kWarp)
        f(at, static_cast<std::uint32_t>(hits_[at] >> 32));
    };
    beyond([&](std::uint32_t, std::uint32_t key) {
      low = min(low, key);
      high = max(high, key);
    });
    low = __reduce_min_sync(kFullWarp, low);
    high = __reduce_max_sync(kFullWarp, high);
    std::uint32_t least = 1;
    std::uint32_t surely = splits ? 0 : ~0u;
    if (found > kept) {
      const auto hits_with = [&](std::uint32_t least_key) {
        std::uint32_t count = 0;
#pragma unroll
        for (int i = 0; i < HitsOfLane; i++) count += near[i] >= least_key;
        beyond([&](std::uint32_t, std::uint32_t key) { count += key >= least_key; });
        return __reduce_add_sync(kFullWarp, count);
      };
      const reached_range last = last_reached({low, high}, kept, kept / kWarp, hits_with);
      low = last.low;
      least = distance_key(distance_of_key(low) + margin);
      if (splits) surely = last.high < ~0u ? distance_key(distance_of_key(last.high + 1) - margin) : ~0u;
    }
    if (distance_of_key(low) + margin > most_) return ~0u;
    std::uint32_t n = 0;
    const unsigned before = (1u << lane_) - 1;
    const auto enter = [&](std::uint32_t at, std::uint32_t key) {
      const unsigned who = __ballot_sync(kFullWarp, key >= least && key < surely);
      const unsigned those = __ballot_sync(kFullWarp, key >= least && key >= surely);
      const bool is_sure = those >> lane_ & 1;
      const std::uint32_t place = is_sure ? sure + __popc(those & before) : n + __popc(who & before);
      if (key >= least && place < plan_.room)
        (is_sure ? memory_.best : memory_.keys)[place] = core::row_key(0, slot_of_hit(hits_[at]));
      n += __popc(who);
      sure += __popc(those);
    };
#pragma unroll
    for (int i = 0; i < HitsOfLane; i++) {
      if (i * kWarp >= found) break;
      enter(i * kWarp + lane_, near[i]);
    }
    for (std::uint32_t first = HitsOfLane * kWarp; first < found; first += kWarp) {
      const std::uint32_t at = first + lane_;
      enter(at, at < found ? static_cast<std::uint32_t>(hits_[at] >> 32) : 0);
    }
    __syncwarp();
    return n;
  }

  /// Calls f(rank, key) for each of keys[0, n).
  template <class F>
  __device__ __forceinline__ void rank(std::uint32_t n, F f) const {
    std::uint32_t first = 0;
    for (; first + kWarp < n; first += kRankedAtOnce * kWarp) rank_from<kRankedAtOnce>(first, n, f);
    if (first < n) rank_from<1>(first, n, f);
    __syncwarp();
  }

  /// The same for AtOnce keys of each lane, from the first on.
  template <int AtOnce, class F>
  __device__ __forceinline__ void rank_from(std::uint32_t first, std::uint32_t n, F f) const {
    std::uint64_t mine[AtOnce];
    std::uint32_t better[AtOnce] = {};
#pragma unroll
    for (int i = 0; i < AtOnce; i++) mine[i] = memory_.keys[min(first + i * kWarp + lane_, n - 1)];
#pragma unroll 4
    for (std::uint32_t j = 0; j < n; j++) {
      const std::uint64_t other = memory_.keys[j];
#pragma unroll
      for (int i = 0; i < AtOnce; i++) better[i] += other > mine[i];
    }
#pragma unroll
    for (int i = 0; i < AtOnce; i++)
      if (first + i * kWarp + lane_ < n) f(better[i], mine[i]);
  }

  /// Cuts keys[0, n) to the `kept` best; `spare` has room for those.
  __device__ std::uint32_t keep_best(std::uint32_t n, std::uint32_t kept, std::uint64_t* spare) {
    if (n <= kept) return n;
    rank(n, [&](std::uint32_t place, std::uint64_t key) {
      if (place < kept) spare[place] = key;
    });
    for (std::uint32_t i = lane_; i < kept; i += kWarp) memory_.keys[i] = spare[i];
    __syncwarp();
    return kept;
  }

  /// Replaces slots by keys of their rows' positions, without a score.
  __device__ void place_slots(std::uint64_t* keys, std::uint32_t n) const {
    for (std::uint32_t first = lane_; first < n; first += kPlacedAtOnce * kWarp) {
      std::uint32_t positions[kPlacedAtOnce];
#pragma unroll
      for (int i = 0; i < kPlacedAtOnce; i++) {
        const std::uint32_t at = first + i * kWarp;
        positions[i] = at < n ? plan_.codes.position_of(core::position_of(keys[at])) : 0;
      }
#pragma unroll
      for (int i = 0; i < kPlacedAtOnce; i++)
        if (first + i * kWarp < n) keys[first + i * kWarp] = core::row_key(0, positions[i]);
    }
    __syncwarp();
  }

  /// Leaves the k best of n keys, and what has the score of the last; no more than registers hold. @returns how many.
  __device__ std::uint32_t cut(std::uint32_t n, std::uint32_t k) const {
    std::uint64_t mine[kCutOfLane];
    std::uint32_t low = ~0u;
    std::uint32_t high = 0;
#pragma unroll
    for (int i = 0; i < kCutOfLane; i++) {
      const std::uint32_t at = i * kWarp + lane_;
      mine[i] = at < n ? memory_.keys[at] : core::kNoRow;
      low = at < n ? min(low, core::key_of(mine[i])) : low;
      high = max(high, core::key_of(mine[i]));
    }
    const auto keys_with = [&](std::uint32_t least) {
      std::uint32_t count = 0;
#pragma unroll
      for (int i = 0; i < kCutOfLane; i++) count += core::key_of(mine[i]) >= least;
      return __reduce_add_sync(kFullWarp, count);
    };
    const reached_range all{__reduce_min_sync(kFullWarp, low), __reduce_max_sync(kFullWarp, high)};
    const std::uint32_t least = last_reached(all, k, k / kWarp, keys_with).low;
    __syncwarp();  // all have read their keys
    std::uint32_t left = 0;
#pragma unroll
    for (int i = 0; i < kCutOfLane; i++) {
      const bool stays = mine[i] != core::kNoRow && core::key_of(mine[i]) >= least;
      const unsigned those = __ballot_sync(kFullWarp, stays);
      if (stays) memory_.keys[left + __popc(those & ((1u << lane_) - 1))] = mine[i];
      left += __popc(those);
    }
    __syncwarp();
    return left;
  }

  __device__ void write(std::uint32_t n) const {
    const result_lists& results = plan_.answer.results;
    if (n > kRankedAtOnce * kWarp && n <= kCutOfLane * kWarp && results.k < n)
      n = cut(n, static_cast<std::uint32_t>(results.k));
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
  float most_ = std::numeric_limits<float>::infinity();  // distance of what is among the hits in any case
};

template <row_form Form, bool L2>
__global__ void __launch_bounds__(kThreads, kWarpAnswerBlocks)
    warp_answer_kernel(const __grid_constant__ filter_answer_plan plan) {
  join_chain();
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::int64_t turn = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (turn >= (plan.which ? *plan.which_count : plan.batch.count)) return;
  const std::int64_t query = plan.which ? plan.which[turn] : turn;
  const std::int32_t padded = padded_dim(plan.answer.dim);
  const std::uint32_t keys = plan.room + plan.answer.by_code;
  auto* begin = reinterpret_cast<std::uint64_t*>(dynamic_shared()) + warp * keys;
  const warp_memory memory{begin, begin + plan.room,
                           reinterpret_cast<float*>(dynamic_shared() + (kWarps * keys + 1) / 2 * 16) + warp * padded};
  if (!warp_answer<Form, L2>(plan, memory, query).run() && threadIdx.x % kWarp == 0)
    plan.unanswered[atomicAdd(plan.unanswered_count, 1u)] = static_cast<std::uint32_t>(query);
}

using kernel_pointer = void (*)(filter_answer_plan);

/// Who answers a query.
enum class answerer : std::uint8_t { warp, small_block, block };

template <row_form Form, bool L2>
kernel_pointer kernel_of(answerer who) {
  switch (who) {
    case answerer::warp: return warp_answer_kernel<Form, L2>;
    case answerer::small_block: return filter_answer_kernel<kSmallBlockThreads, Form, L2>;
    default: return filter_answer_kernel<kBlockThreads, Form, L2>;
  }
}

template <row_form Form>
kernel_pointer kernel_of(answerer who, bool l2) {
  return l2 ? kernel_of<Form, true>(who) : kernel_of<Form, false>(who);
}

kernel_pointer kernel_of(row_form form, answerer who, bool l2) {
  switch (form) {
    case row_form::numbers8: return kernel_of<row_form::numbers8>(who, l2);
    case row_form::numbers4: return kernel_of<row_form::numbers4>(who, l2);
    case row_form::pairs: return kernel_of<row_form::pairs>(who, l2);
    case row_form::wide_numbers: return kernel_of<row_form::wide_numbers>(who, l2);
    case row_form::wide_pieces: return kernel_of<row_form::wide_pieces>(who, l2);
    case row_form::none: return kernel_of<row_form::none>(who, l2);
    default: return kernel_of<row_form::any>(who, l2);
  }
}

}  // namespace

std::int64_t hits_capacity(std::int64_t by_code) {
  if (const auto forced = core::forced_hits()) return *forced;
  const std::int64_t capacity = (kHitsPerRow * by_code + kLeastCapacity - 1) / kLeastCapacity * kLeastCapacity;
  return std::clamp(capacity, kLeastCapacity, kMostCapacity);
}

void launch_filter_answers(cudaStream_t stream, filter_answer_plan plan) {
  // Codewords are read from the L1 cache, which has little room where blocks of a scan hold shared memory: who reads
  // many of them begins when the scan has ended. Of refined rows few are looked up.
  const row_form form = row_form_of(plan.codes);
  const bool of_codewords = form == row_form::pairs || form == row_form::wide_pieces;
  const bool looks_up = of_codewords && plan.answer.rows == nullptr;
  const bool l2 = plan.answer.results.by == metric::l2;
  const std::int64_t query_bytes = padded_dim(plan.answer.dim) * static_cast<std::int64_t>(sizeof(float));
  if (plan.answer.by_code <= kWarpRows && plan.batch.count > kFewAnswers) {
    plan.room = warp_room(plan.answer.by_code);
    const launch_shape shape{
        .grid = dim3((static_cast<unsigned>(plan.batch.count) + kWarps - 1) / kWarps),
        .threads = kThreads,
        .shared_bytes = (kWarps * (plan.room + plan.answer.by_code) + 1) / 2 * 16 + kWarps * query_bytes,
        .overlaps = !looks_up};
    return launch(kernel_of(form, answerer::warp, l2), shape, stream, plan, "launching the answers of a batch");
  }
  const bool is_small = plan.answer.by_code <= kSmallBlockRows && plan.answer.results.k <= kSmallBlockThreads &&
                        plan.batch.count > kFewAnswers;
  plan.room = kLeastRoom;
  while (plan.room < 2 * plan.answer.by_code) plan.room *= 2;
  const launch_shape shape{
      .grid = dim3(static_cast<unsigned>(plan.batch.count)),
      .threads = is_small ? kSmallBlockThreads : kBlockThreads,
      .shared_bytes = (is_small ? kSharedHead<kSmallBlockThreads> : kSharedHead<kBlockThreads>)+2 *
                          static_cast<std::int64_t>(plan.room) * 8 +
                      query_bytes +
                      (sorts_by_bins(plan.answer.results.k) ? static_cast<std::int64_t>(sizeof(sort_bins<>)) : 0),
      .overlaps = !looks_up};
  launch(kernel_of(form, is_small ? answerer::small_block : answerer::block, l2), shape, stream, plan,
         "launching the answers of a batch");
}

}  // namespace shortlist::cuda
