// Of all distances of a query those that may belong to its best rows by code.
//
// A block a query. A sample of the distances says which of them some more than the wanted rows reach; those are picked
// by one pass over all, each thread into a column of its own, and the k'-th smallest of the picked is that of all.
// Where the sample misled, or a column is full, it is found by bisection over all distances. Halves keep their order,
// so that k' rows have distances of at most the largest that rounds to the k'-th half; rows beyond that and the margin
// cannot be among the k' best.
// Limit: distances are read once, 2 bytes a row of the query's lists; instructions, some 5 of a warp for 32 distances.
// History: docs/kernels.md.
#include <cuda_fp16.h>

#include "cuda/device/block_select.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/written.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;                // distances that a thread loads at once
constexpr int kPageVectors = core::kPageRows / kVector;
constexpr int kSampledOfThread = 2;       // vectors
constexpr std::uint32_t kSampled = kThreads * kSampledOfThread;
constexpr std::uint32_t kColumn = 32;     // picked by a thread, at most
constexpr int kVectorsAtOnce = 4;         // under way, of a thread
constexpr float kDeviations = 3.0f;       // of what chance may do to a sample
constexpr std::uint32_t kSlack = 64;        // one row in so many may be chosen without need
constexpr std::uint32_t kSampleSlack = 16;  // the same of those that are picked

// Halves in order of their values, as 16-bit numbers.
constexpr std::uint32_t kMinusInfinity = 0x03FF;
constexpr std::uint32_t kLargest = 0xFBFF;
constexpr std::uint32_t kInfinity = 0xFC00;

__device__ __forceinline__ std::uint32_t rank_of(std::uint32_t half) {
  return half ^ (half & 0x8000u ? 0xFFFFu : 0x8000u);
}
__device__ __forceinline__ std::uint32_t half_of(std::uint32_t rank) {
  return rank ^ (rank & 0x8000u ? 0x8000u : 0xFFFFu);
}
__device__ __forceinline__ float value_of(std::uint32_t rank) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(half_of(rank))));
}
__device__ __forceinline__ std::uint32_t both(std::uint32_t rank) { return half_of(rank) * 0x00010001u; }

/// 0xFFFF for each of two halves that is at most the other's.
__device__ __forceinline__ std::uint32_t reach(std::uint32_t halves, std::uint32_t limits) {
  std::uint32_t mask;
  asm("set.le.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(halves), "r"(limits));
  return mask;
}

/// Bits of a vector's distances that reach a limit: bit j of its j-th word's first, bit 16 + j of its second.
__device__ __forceinline__ std::uint32_t reaching(const uint4& x, std::uint32_t limits) {
  return (reach(x.x, limits) & 0x00010001u) | (reach(x.y, limits) & 0x00020002u) | (reach(x.z, limits) & 0x00040004u) |
         (reach(x.w, limits) & 0x00080008u);
}

struct choose_shared {
  select_scratch<kThreads> select;
  std::uint32_t picked[kColumn][kThreads];
  std::uint32_t length;
};

/// A query's distances; a block.
class written_query {
 public:
  __device__ written_query(const written_plan& plan, choose_shared& shared, std::int64_t query)
      : plan_(plan),
        shared_(shared),
        query_(query),
        vectors_(reinterpret_cast<const uint4*>(plan.batch.distances +
                                                query * plan.batch.region_pages * core::kPageRows)),
        count_(plan.batch.pages[query] * kPageVectors) {}

  /// @returns false if rows that may be among the best do not fit.
  __device__ bool run() {
    const std::uint32_t kept = plan_.answer.by_code;
    const std::uint32_t rows = plan_.batch.rows[query_];
    std::uint32_t picked_to = rows <= kept ? kInfinity : sampled_limit(kept);
    std::uint32_t n = pick(picked_to);
    std::uint32_t limit = kInfinity;
    if (rows > kept) {
      const bool is_served = n >= kept && n != kTooMany;
      const std::uint32_t last =
          is_served ? last_of(picked_to, kept, kSlack, [&](std::uint32_t rank) { return picked_within(rank); })
                    : last_of(kInfinity, kept, kSlack, [&](std::uint32_t rank) { return all_within(rank); });
      limit = with_margin(last);
      if (!is_served || limit > picked_to) n = pick(picked_to = limit);
    }
    if (n == kTooMany) return false;
    return write(limit);
  }

 private:
  static constexpr std::uint32_t kTooMany = ~0u;

  __device__ std::uint32_t total(std::uint32_t value) { return block_sum<kThreads>(value, shared_.select, phase_); }

  /// The smallest rank up to `high`, or one slightly larger, that `wanted` of what `within` counts do not exceed; `high`
  /// if there are fewer. One more in `slack` are not too many.
  template <class Within>
  __device__ std::uint32_t last_of(std::uint32_t high, std::uint32_t wanted, std::uint32_t slack, Within within) {
    std::uint32_t low = kMinusInfinity + 1;  // whose value is a number
    while (low < high) {
      const std::uint32_t middle = low + (high - low) / 2;
      const std::uint32_t count = within(middle);
      if (count >= wanted) {
        high = middle;
        if (count <= wanted + wanted / slack) break;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

  /// A rank that some more than `kept` rows probably reach.
  __device__ std::uint32_t sampled_limit(std::uint32_t kept) {
    uint4 sample[kSampledOfThread];
    const std::uint32_t there = min(count_, kSampled);
#pragma unroll
    for (int i = 0; i < kSampledOfThread; i++) {
      const std::uint32_t j = i * kThreads + threadIdx.x;
      const auto at = count_ <= kSampled ? j : static_cast<std::uint32_t>(static_cast<std::uint64_t>(j) * count_ / kSampled);
      sample[i] = j < there ? vectors_[at] : make_uint4(~0u, ~0u, ~0u, ~0u);  // no numbers: they reach nothing
    }
    const float share = static_cast<float>(there) / static_cast<float>(count_);
    const float expected = share * static_cast<float>(kept);
    const float chance = kDeviations * sqrtf(expected * (1.0f - share));
    const auto wanted = static_cast<std::uint32_t>(ceilf(expected + chance));
    return last_of(kLargest, wanted, kSampleSlack, [&](std::uint32_t rank) {
      const std::uint32_t limits = both(rank);
      std::uint32_t count = 0;
#pragma unroll
      for (int i = 0; i < kSampledOfThread; i++) count += __popc(reaching(sample[i], limits));
      return total(count);
    });
  }

  /// Calls visit(turn, vector) for the thread's vectors.
  template <class Visit>
  __device__ __forceinline__ void for_each_vector(Visit visit) const {
    std::uint32_t turn = 0;
    std::uint32_t at = threadIdx.x;
    for (; at + (kVectorsAtOnce - 1) * kThreads < count_; at += kVectorsAtOnce * kThreads) {
      uint4 x[kVectorsAtOnce];
#pragma unroll
      for (int i = 0; i < kVectorsAtOnce; i++) x[i] = vectors_[at + i * kThreads];
#pragma unroll
      for (int i = 0; i < kVectorsAtOnce; i++) visit(turn++, x[i]);
    }
    for (; at < count_; at += kThreads) visit(turn++, vectors_[at]);
  }

  __device__ std::uint32_t all_within(std::uint32_t rank) {
    const std::uint32_t limits = both(rank);
    std::uint32_t count = 0;
    for_each_vector([&](std::uint32_t, const uint4& x) { count += __popc(reaching(x, limits)); });
    return total(count);
  }

  /// Picks what reaches the rank. @returns how many, or kTooMany if a column is full.
  __device__ std::uint32_t pick(std::uint32_t rank) {
    const std::uint32_t limits = both(rank);
    picked_ = 0;
    for_each_vector([&](std::uint32_t turn, const uint4& x) {
      for (std::uint32_t bits = reaching(x, limits); bits != 0; bits &= bits - 1) {
        const std::uint32_t bit = __ffs(bits) - 1;
        const std::uint32_t j = bit % 16;
        const std::uint32_t word = j < 2 ? (j == 0 ? x.x : x.y) : (j == 2 ? x.z : x.w);
        const std::uint32_t half = __byte_perm(word, 0, bit < 16 ? 0x4410 : 0x4432);
        if (picked_ < kColumn)
          shared_.picked[picked_][threadIdx.x] = rank_of(half) << 16 | turn * kVector | (j * 2 + bit / 16);
        picked_++;
      }
    });
    const bool is_full = __syncthreads_or(picked_ > kColumn);
    return is_full ? kTooMany : total(picked_);
  }

  __device__ std::uint32_t picked_within(std::uint32_t rank) {
    const std::uint32_t most = rank << 16 | 0xFFFFu;
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < picked_; i++) count += shared_.picked[i][threadIdx.x] <= most;
    return total(count);
  }

  /// The rank that rows of the answer do not exceed, if enough rows have distances that round to no more than `last`.
  __device__ std::uint32_t with_margin(std::uint32_t last) const {
    if (last >= kLargest) return kInfinity;
    const float most = 0.5f * value_of(last) + 0.5f * value_of(last + 1);
    const float limit = __fadd_ru(most, __fmul_ru(plan_.batch.margins[query_], plan_.batch.scales[query_]));
    return min(rank_of(__half_as_ushort(__float2half_rn(limit))), kInfinity);
  }

  /// The rows picked, up to `limit`, by list and slot. @returns false if they do not fit.
  __device__ bool write(std::uint32_t limit) {
    const filter_batch& batch = plan_.batch;
    if (threadIdx.x == 0) shared_.length = 0;
    __syncthreads();
    std::uint64_t* to = plan_.chosen + query_ * plan_.room;
    const std::int64_t first = query_ * batch.nprobe;
    for (std::uint32_t i = 0; i < picked_; i++) {
      const std::uint32_t pick = shared_.picked[i][threadIdx.x];
      if (pick >> 16 > limit) continue;
      const std::uint32_t vector = (pick & 0xFFFFu) / kVector * kThreads + threadIdx.x;
      const std::uint32_t element = vector % kPageVectors * kVector + pick % kVector;
      const std::uint32_t page = vector / kPageVectors;
      const std::uint32_t probe = probe_of(page);
      const auto list = static_cast<std::uint32_t>(batch.probes[first + probe]);
      const std::uint32_t of_list = page - batch.starts[first + probe];
      const std::uint32_t row = element / 4 + element % 4 * 8;
      const std::uint32_t rows = core::kPageRows;
      if (of_list * rows + row >= batch.lists.sizes[list]) continue;  // no row
      const slot at = batch.lists.table[batch.lists.first[list] + of_list] * rows + row;
      const std::uint32_t place = atomicAdd(&shared_.length, 1u);
      if (place < plan_.room) to[place] = static_cast<std::uint64_t>(list) << 32 | at;
    }
    __syncthreads();
    if (shared_.length > plan_.room) return false;
    if (threadIdx.x == 0) {
      plan_.counts[query_] = shared_.length;
      if (plan_.decoded) atomicAdd(plan_.decoded, static_cast<unsigned long long>(shared_.length));
    }
    return true;
  }

  /// The last of the query's lists that begins at or before the page: those without pages begin where the next does.
  __device__ std::uint32_t probe_of(std::uint32_t page) const {
    const std::uint32_t* starts = plan_.batch.starts + query_ * plan_.batch.nprobe;
    std::uint32_t probe = 0;
    std::uint32_t end = plan_.batch.nprobe;
    while (probe + 1 < end) {
      const std::uint32_t middle = (probe + end) / 2;
      if (starts[middle] <= page)
        probe = middle;
      else
        end = middle;
    }
    return probe;
  }

  const written_plan& plan_;
  choose_shared& shared_;
  std::int64_t query_;
  const uint4* vectors_;
  std::uint32_t count_;
  std::uint32_t picked_ = 0;  // by this thread
  int phase_ = 0;
};

__global__ void __launch_bounds__(kThreads) choose_kernel(const __grid_constant__ written_plan plan) {
  join_chain();
  auto& shared = *reinterpret_cast<choose_shared*>(dynamic_shared());
  const std::int64_t query = blockIdx.x;
  const bool is_known = plan.batch.margins[query] < __uint_as_float(0x7F800000u);
  if (is_known && written_query(plan, shared, query).run()) return;
  if (threadIdx.x != 0) return;
  plan.counts[query] = 0;
  plan.unanswered[atomicAdd(plan.unanswered_count, 1u)] = static_cast<std::uint32_t>(query);
}

}  // namespace

void launch_choose_rows(cudaStream_t stream, const written_plan& plan) {
  launch(choose_kernel,
         {.grid = dim3(static_cast<unsigned>(plan.batch.count)),
          .threads = kThreads,
          .shared_bytes = static_cast<std::int64_t>(sizeof(choose_shared)),
          .overlaps = true},
         stream, plan, "launching the choice of rows");
}

}  // namespace shortlist::cuda
