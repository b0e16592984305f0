// Of all distances of a query those that may belong to its best rows by code.
//
// A block a query. A sample of the distances says which of them some more than the wanted rows reach; those are picked
// by one pass over all, and the k'-th smallest of the picked is that of all. Where the sample misled, or too many are
// picked, it is found by bisection over all distances. Halves keep their order, so that k' rows have distances of at
// most the largest that rounds to the k'-th half; rows beyond that and the margin cannot be among the k' best. Rows
// nearer than a half that no more than k' reach, by more than the margin, are told apart: they are among the k' best in
// any case. Limit: half of the issue slots are used; distances are read once and a bit, at two thirds of the bandwidth
// of memory. History: docs/kernels.md.
#include <cuda_fp16.h>

#include "cuda/device/block_select.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/ivf_pq/half_ranks.cuh"
#include "cuda/ivf_pq/many_rows.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // distances that a thread loads at once
constexpr int kPageVectors = core::kPageRows / kVector;
constexpr int kSampledOfThread = 2;  // vectors
constexpr std::uint32_t kSampled = kThreads * kSampledOfThread;
constexpr int kBlocks = 6;                  // of a multiprocessor
constexpr std::uint32_t kMorePicked = 512;  // than once and a half the wanted there is room for
constexpr int kVectorsAtOnce = 4;           // under way, of a thread
constexpr float kDeviations = 3.0f;         // of what chance may do to a sample
constexpr std::uint32_t kSlack = 64;        // one row in so many may be chosen without need
constexpr std::uint32_t kBins = 1024;       // of ranks

__device__ __forceinline__ std::uint32_t both(std::uint32_t rank) { return half_of(rank) * 0x00010001u; }

/// 0xFFFF for each of two halves that is at most the other's.
__device__ __forceinline__ std::uint32_t reach(std::uint32_t halves, std::uint32_t limits) {
  std::uint32_t mask;
  asm("set.le.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(halves), "r"(limits));
  return mask;
}

/// A vector of NaN, beyond all ranks, which reach nothing.
__device__ __forceinline__ uint4 no_distances() {
  constexpr std::uint32_t kNone = 0x7FFF7FFF;
  return make_uint4(kNone, kNone, kNone, kNone);
}

/// Bits of a vector's distances that reach a limit: bit j of its j-th word's first, bit 16 + j of its second.
__device__ __forceinline__ std::uint32_t reaching(const uint4& x, std::uint32_t limits) {
  return (reach(x.x, limits) & 0x00010001u) | (reach(x.y, limits) & 0x00020002u) | (reach(x.z, limits) & 0x00040004u) |
         (reach(x.w, limits) & 0x00080008u);
}

/// The distance that such a bit stands for, and its place in the vector.
__device__ __forceinline__ std::uint32_t half_at(const uint4& x, std::uint32_t bit) {
  const std::uint32_t low = bit & 1 ? x.y : x.x;
  const std::uint32_t high = bit & 1 ? x.w : x.z;
  return __byte_perm(bit & 2 ? high : low, 0, bit & 16 ? 0x4432 : 0x4410);
}
__device__ __forceinline__ std::uint32_t element_at(std::uint32_t bit) { return bit % 4 * 2 + bit / 16; }

/// A list, as a query has it.
struct probed_list {
  std::uint32_t start;  // its first page in the query's region
  std::uint32_t number;
  std::uint32_t table_at;  // of its first page
};

static_assert(core::kLongestLists <= kThreads, "a thread brings a list");

struct alignas(16) choose_shared {
  select_scratch<kThreads> select;
  std::uint32_t bins[kBins];
  probed_list lists[core::kLongestLists];
  std::uint32_t smallest;  // rank in the sample
  std::uint32_t largest;   // beyond which it is not looked further
  std::uint32_t found;
  std::uint32_t below;
  std::uint32_t picked;
  std::uint32_t length;
  std::uint32_t borders;
};

/// A query's distances; a block.
class written_query {
 public:
  __device__ written_query(const many_plan& plan, choose_shared& shared, std::int64_t query)
      : plan_(plan),
        shared_(shared),
        query_(query),
        vectors_(
            reinterpret_cast<const uint4*>(plan.batch.distances + query * plan.batch.region_pages * core::kPageRows)),
        count_(plan.batch.pages[query] * kPageVectors),
        lanes_below_((1u << threadIdx.x % kWarp) - 1),
        places_(reinterpret_cast<std::uint32_t*>(dynamic_shared() + sizeof(choose_shared))),
        halves_(reinterpret_cast<std::uint16_t*>(places_ + plan.pick_room)) {}

  /// @returns false if rows that may be among the best do not fit.
  __device__ bool run() {
    if (threadIdx.x == 0) {
      shared_.smallest = kLargestRank;
      shared_.largest = 0;
      shared_.length = 0;
      shared_.borders = 0;
    }
    if (threadIdx.x < static_cast<unsigned>(plan_.batch.nprobe)) {
      const std::int64_t at = query_ * plan_.batch.nprobe + threadIdx.x;
      const auto list = static_cast<std::uint32_t>(plan_.batch.probes[at]);
      shared_.lists[threadIdx.x] = {plan_.batch.starts[at], list, plan_.batch.lists.first[list]};
    }
    __syncthreads();
    const std::uint32_t kept = plan_.answer.by_code;
    const std::uint32_t rows = plan_.batch.rows[query_];
    std::uint32_t picked_to = rows <= kept ? kInfinityRank : sampled_limit(kept);
    std::uint32_t n = pick(picked_to);
    std::uint32_t limit = kInfinityRank;
    std::uint32_t sure_end = kInfinityRank + 1;
    if (rows > kept) {
      const bool is_served = n >= kept && n != kTooMany;
      const rank_range border = is_served ? last_of_picked(picked_to, kept) : last_of_all(kept);
      limit = with_margin(border.last);
      sure_end = without_margin(border.below);
      if (!is_served || limit > picked_to) n = pick(picked_to = limit);
    }
    if (n == kTooMany) return false;
    return write(sure_end, limit);
  }

 private:
  static constexpr std::uint32_t kTooMany = ~0u;

  /// Where the last of the wanted distances is: no more ranks than wanted are up to `below`, at least as many up to
  /// `last`.
  struct rank_range {
    std::uint32_t below;  // kMinusInfinityRank if nothing is known
    std::uint32_t last;
  };

  __device__ std::uint32_t total(std::uint32_t value) { return block_sum<kThreads>(value, shared_.select, phase_); }

  /// Of all distances, the smallest rank that `wanted` do not exceed, or one slightly larger.
  __device__ rank_range last_of_all(std::uint32_t wanted) {
    std::uint32_t low = kMinusInfinityRank + 1;  // whose value is a number
    std::uint32_t high = kInfinityRank;
    while (low < high) {
      const std::uint32_t middle = low + (high - low) / 2;
      const std::uint32_t count = all_within(middle);
      if (count >= wanted) {
        high = middle;
        if (count <= wanted + wanted / kSlack) break;
      } else {
        low = middle + 1;
      }
    }
    return {low - 1, high};
  }

  /// A rank that `wanted` of some do not exceed, or slightly more; `high` if there are fewer. visit(add) calls
  /// add(rank) for those of this thread; those below `low` count as `low`.
  template <class Visit>
  __device__ rank_range last_by_bins(std::uint32_t low, std::uint32_t high, std::uint32_t wanted, Visit visit) {
    constexpr int kOfThread = kBins / kThreads;
    const int shift = max(0, 32 - __clz((high - low) / kBins));
    reinterpret_cast<uint4*>(shared_.bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x == 0) {
      shared_.found = high;
      shared_.below = kMinusInfinityRank;
    }
    __syncthreads();
    visit([&](std::uint32_t rank) {
      if (rank <= high) atomicAdd(&shared_.bins[(max(rank, low) - low) >> shift], 1u);
    });
    __syncthreads();
    const uint4 counts = reinterpret_cast<const uint4*>(shared_.bins)[threadIdx.x];
    const std::uint32_t each[kOfThread] = {counts.x, counts.y, counts.z, counts.w};
    const std::uint32_t mine = counts.x + counts.y + counts.z + counts.w;
    const std::uint32_t sum = running_sum(mine);
    std::uint32_t* totals = shared_.select.totals[phase_++ & 1];
    const std::uint32_t warp = threadIdx.x / kWarp;
    const std::uint32_t lane = threadIdx.x % kWarp;
    if (lane == kWarp - 1) totals[warp] = sum;
    __syncthreads();
    std::uint32_t before = sum - mine + __reduce_add_sync(kFullWarp, lane < warp ? totals[lane] : 0u);
    if (before < wanted && before + mine >= wanted) {
      std::uint32_t bin = threadIdx.x * kOfThread;
      for (int i = 0; i < kOfThread && (before += each[i]) < wanted; i++) bin++;
      shared_.found = min(high, low + ((bin + 1) << shift) - 1);
      if (bin > 0) shared_.below = low + (bin << shift) - 1;
    }
    __syncthreads();
    return {shared_.below, shared_.found};
  }

  /// A rank that some more than `kept` rows probably reach. Whole pages are looked at, since memory brings no less.
  __device__ std::uint32_t sampled_limit(std::uint32_t kept) {
    uint4 sample[kSampledOfThread];
    const std::uint32_t there = min(count_, kSampled);
#pragma unroll
    for (int i = 0; i < kSampledOfThread; i++) {
      const std::uint32_t j = i * kThreads + threadIdx.x;
      const std::uint64_t page = j / kPageVectors;
      const auto at = static_cast<std::uint32_t>(page * (count_ / kPageVectors) / (kSampled / kPageVectors));
      sample[i] = j >= there ? no_distances() : vectors_[count_ <= kSampled ? j : at * kPageVectors + j % kPageVectors];
    }
    const auto visit = [&](auto add) {
#pragma unroll
      for (int i = 0; i < kSampledOfThread; i++) {
        const std::uint32_t words[4] = {sample[i].x, sample[i].y, sample[i].z, sample[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
          add(rank_of(words[j] & 0xFFFFu));
          add(rank_of(words[j] >> 16));
        }
      }
    };
    const float share = __fdividef(static_cast<float>(there), static_cast<float>(count_));
    const float expected = share * static_cast<float>(kept);
    const float chance = kDeviations * sqrtf(expected * (1.0f - share));
    const auto wanted = static_cast<std::uint32_t>(ceilf(expected + chance));
    // As many as threads are up to the largest of what each has least.
    const bool is_among_least = wanted <= kThreads && there == kSampled;
    std::uint32_t least = kInfinityRank;
    std::uint32_t most = 0;
    visit([&](std::uint32_t rank) { least = min(least, rank); });
    if (!is_among_least) visit([&](std::uint32_t rank) { most = max(most, rank <= kLargestRank ? rank : 0); });
    const std::uint32_t smallest = __reduce_min_sync(kFullWarp, least);
    const std::uint32_t largest = __reduce_max_sync(kFullWarp, is_among_least ? least : most);
    if (threadIdx.x % kWarp == 0) {
      atomicMin(&shared_.smallest, smallest);
      atomicMax(&shared_.largest, largest);
    }
    __syncthreads();
    return last_by_bins(shared_.smallest, max(shared_.smallest, shared_.largest), wanted, visit).last;
  }

  using vectors_at_once = uint4[kVectorsAtOnce];

  /// Calls visit(number of the first, vectors) for the thread's vectors, of which the next is kWarp further on: a warp
  /// has neighbours, so that rows of a list stay together. All threads come each time, beyond the last with vectors
  /// that reach nothing.
  template <class Visit>
  __device__ __forceinline__ void for_each_vector(Visit visit) const {
    const std::uint32_t of_block = threadIdx.x / kWarp * kVectorsAtOnce * kWarp + threadIdx.x % kWarp;
    for (std::uint32_t begin = 0; begin < count_; begin += kVectorsAtOnce * kThreads) {
      const std::uint32_t first = begin + of_block;
      vectors_at_once x;
#pragma unroll
      for (int i = 0; i < kVectorsAtOnce; i++)
        x[i] = first + i * kWarp < count_ ? vectors_[first + i * kWarp] : no_distances();
      visit(first, x);
    }
  }

  __device__ std::uint32_t all_within(std::uint32_t rank) {
    const std::uint32_t limits = both(rank);
    std::uint32_t count = 0;
    for_each_vector([&](std::uint32_t, const vectors_at_once& x) {
#pragma unroll
      for (int i = 0; i < kVectorsAtOnce; i++) count += __popc(reaching(x[i], limits));
    });
    return total(count);
  }

  /// Places for so many of the warp's, of those that `counter` counts. All lanes come.
  static __device__ __forceinline__ std::uint32_t take(std::uint32_t& counter, std::uint32_t count) {
    std::uint32_t first = 0;
    if (threadIdx.x % kWarp == 0) first = atomicAdd(&counter, count);
    return __shfl_sync(kFullWarp, first, 0);
  }

  /// Picks what reaches the rank. @returns how many, or kTooMany if they do not fit.
  __device__ std::uint32_t pick(std::uint32_t rank) {
    const std::uint32_t limits = both(rank);
    const std::uint32_t room = plan_.pick_room;
    __syncthreads();
    if (threadIdx.x == 0) shared_.picked = 0;
    __syncthreads();
    for_each_vector([&](std::uint32_t number, const vectors_at_once& x) {
      std::uint32_t bits[kVectorsAtOnce];
      std::uint32_t count = 0;
#pragma unroll
      for (int i = 0; i < kVectorsAtOnce; i++) {
        bits[i] = reaching(x[i], limits);
        count += __popc(bits[i]);
      }
      count = __reduce_add_sync(kFullWarp, count);
      if (count == 0) return;
      std::uint32_t place = take(shared_.picked, count);
#pragma unroll
      for (int i = 0; i < kVectorsAtOnce; i++) {
        for (std::uint32_t ballot; (ballot = __ballot_sync(kFullWarp, bits[i] != 0)) != 0; place += __popc(ballot)) {
          const std::uint32_t mine = place + __popc(ballot & lanes_below_);
          const std::uint32_t bit = __ffs(bits[i]) - 1;
          if (bits[i] != 0 && mine < room) {
            places_[mine] = (number + i * kWarp) * kWarp | bit;
            halves_[mine] = static_cast<std::uint16_t>(half_at(x[i], bit));
          }
          bits[i] &= bits[i] - 1;
        }
      }
    });
    __syncthreads();
    return shared_.picked > room ? kTooMany : shared_.picked;
  }

  /// The same of what is picked, up to a rank.
  __device__ rank_range last_of_picked(std::uint32_t picked_to, std::uint32_t wanted) {
    return last_by_bins(min(shared_.smallest, picked_to), picked_to, wanted, [&](auto add) {
      for (std::uint32_t i = threadIdx.x; i < shared_.picked; i += kThreads) add(rank_of(halves_[i]));
    });
  }

  /// The rank that rows of the answer do not exceed, if enough rows have distances that round to no more than `last`.
  __device__ std::uint32_t with_margin(std::uint32_t last) const {
    if (last >= kLargestRank) return kInfinityRank;
    const float most = 0.5f * value_of(last) + 0.5f * value_of(last + 1);
    const float limit = __fadd_ru(most, __fmul_ru(plan_.batch.margins[query_], plan_.batch.scales[query_]));
    return min(rank_of(__half_as_ushort(__float2half_rn(limit))), kInfinityRank);
  }

  /// The rank from which on rows may be beyond the best, if no more rows than wanted have distances that round to
  /// `below` or less.
  __device__ std::uint32_t without_margin(std::uint32_t below) const {
    if (below <= kMinusInfinityRank) return 0;
    const std::uint32_t finite = min(below, kLargestRank - 1);
    const float least = 0.5f * value_of(finite) + 0.5f * value_of(finite + 1);
    const float limit = __fsub_rd(least, __fmul_ru(plan_.batch.margins[query_], plan_.batch.scales[query_]));
    return rank_of(__half_as_ushort(__float2half_rd(limit)));
  }

  /// The rows picked, up to `limit`, by list and slot: those below `sure_end` from the query's room's begin on, the
  /// others from its end on. @returns false if they do not fit.
  __device__ bool write(std::uint32_t sure_end, std::uint32_t limit) {
    const filter_batch& batch = plan_.batch;
    std::uint64_t* to = plan_.rows + query_ * plan_.room;
    const std::uint32_t picked = shared_.picked;
    for (std::uint32_t at = threadIdx.x; at < (picked + kWarp - 1) / kWarp * kWarp; at += kThreads) {
      const std::uint32_t rank = at < picked ? rank_of(halves_[at]) : kInfinityRank + 1;
      bool is_chosen = rank <= limit;
      std::uint64_t row = 0;
      if (is_chosen) {
        constexpr std::uint32_t kRows = core::kPageRows;
        const std::uint32_t vector = places_[at] / kWarp;
        const std::uint32_t element = vector % kPageVectors * kVector + element_at(places_[at] % kWarp);
        const std::uint32_t page = vector / kPageVectors;
        const probed_list list = list_with(page);
        const std::uint32_t in_page = element / 4 + element % 4 * 8;
        const std::uint32_t of_list = page - list.start;
        is_chosen = rank < kInfinityRank || of_list * kRows + in_page < batch.lists.sizes[list.number];  // a row
        row = static_cast<std::uint64_t>(list.number) << 32 |
              (batch.lists.table[list.table_at + of_list] * kRows + in_page);
      }
      const auto place_of = [&](bool is_one, std::uint32_t& counter) {
        const std::uint32_t ballot = __ballot_sync(kFullWarp, is_one);
        return take(counter, static_cast<std::uint32_t>(__popc(ballot))) + __popc(ballot & lanes_below_);
      };
      const bool is_sure = is_chosen && rank < sure_end;
      const std::uint32_t place = place_of(is_sure, shared_.length);
      if (is_sure && place < plan_.room) to[place] = row;
      const bool is_border = is_chosen && !is_sure;
      const std::uint32_t from_end = place_of(is_border, shared_.borders);
      if (is_border && from_end < plan_.room) to[plan_.room - 1 - from_end] = row;
    }
    __syncthreads();
    if (shared_.length + shared_.borders > plan_.room) return false;
    if (threadIdx.x == 0) {
      plan_.counts[query_] = shared_.length;
      plan_.border_counts[query_] = shared_.borders;
      if (plan_.decoded) atomicAdd(plan_.decoded, static_cast<unsigned long long>(shared_.borders));
    }
    return true;
  }

  __device__ __forceinline__ probed_list list_with(std::uint32_t page) const {
    return shared_
        .lists[list_with_page(page, plan_.batch.nprobe, [&](std::uint32_t rank) { return shared_.lists[rank].start; })];
  }

  const many_plan& plan_;
  choose_shared& shared_;
  std::int64_t query_;
  const uint4* vectors_;
  std::uint32_t count_;
  std::uint32_t lanes_below_;
  std::uint32_t* places_;  // [pick_room] of what is picked: the vector, and its bit
  std::uint16_t* halves_;  // [pick_room] of what is picked
  int phase_ = 0;
};

__global__ void __launch_bounds__(kThreads, kBlocks) choose_kernel(const __grid_constant__ many_plan plan) {
  join_chain();
  auto& shared = *reinterpret_cast<choose_shared*>(dynamic_shared());
  const std::int64_t query = blockIdx.x;
  const bool is_known = plan.batch.margins[query] < __uint_as_float(0x7F800000u);
  if (is_known && written_query(plan, shared, query).run()) return;
  if (threadIdx.x != 0) return;
  plan.counts[query] = 0;
  plan.border_counts[query] = 0;
  leave(plan, query);
}

}  // namespace

void launch_choose_rows(cudaStream_t stream, many_plan plan) {
  plan.pick_room = plan.answer.by_code + plan.answer.by_code / 2 + kMorePicked;
  launch(choose_kernel,
         {.grid = dim3(static_cast<unsigned>(plan.batch.count)),
          .threads = kThreads,
          .shared_bytes = static_cast<std::int64_t>(sizeof(choose_shared) +
                                                    plan.pick_room * (sizeof(std::uint32_t) + sizeof(std::uint16_t))),
          .overlaps = true},
         stream, plan, "launching the choice of rows");
}

}  // namespace shortlist::cuda
