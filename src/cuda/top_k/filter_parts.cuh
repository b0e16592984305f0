// What the steps of filter_rows.cu share: sizes, shared memory, and counting keys in bins.
#pragma once

#include <cstdint>

#include "cuda/device/block_select.cuh"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/score.cuh"
#include "cuda/top_k/long_row.cuh"

namespace shortlist::cuda::filtering {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kValues = 32;  // of a lane in a piece of a row: as many as a word of marks has bits
constexpr int kBins = 1024;
constexpr int kBinBits = 10;
constexpr int kBinsPerThread = kBins / kThreads;
constexpr int kMapWords = 2048;  // of columns that a map tells apart at a time, a bit each
constexpr int kWordsPerThread = kMapWords / kThreads;
constexpr std::uint32_t kMapColumns = kMapWords * 32;
constexpr std::uint32_t kFew = 128;  // keys that are ranked by comparing each with each
static_assert(kBinsPerThread == 4 && (kWordsPerThread == 4 || kWordsPerThread == 8), "read in vectors of 16 bytes");

/// A warp's pieces of rows under way, each in a stage of its own: as many bytes in flight for every type.
template <class Stored>
constexpr int kVectors = kValues / kPerVector<Stored>;  // of a lane in a piece
template <class Stored>
constexpr std::uint32_t kPiece = kVectors<Stored>* kWarp;  // vectors
constexpr int kRingBytes = 8 * 1024;                       // of a warp
template <class Stored>
constexpr int kStages = kRingBytes / (16 * static_cast<int>(kPiece<Stored>));
constexpr int kMostStages = kRingBytes / (kWarp * kValues * 2);

/// Where a count of bins, from the best on, reaches what is wanted.
struct found_bin {
  std::uint32_t bin;  // counted from the worst
  std::uint32_t before;
  std::uint32_t inside;
};

struct alignas(128) filter_scratch {
  union {
    std::uint32_t bins[kBins];  // the best first; all zero between uses, as
    struct {
      std::uint32_t map[kMapWords];  // the columns that were chosen
      std::uint16_t chosen_before[kMapWords];
    };
    sort_bins<kBins> order;
  };
  union {
    std::uint64_t few[kFew];
    select_scratch<kThreads> select;
  };
  std::uint64_t full[kWarps][kMostStages];  // a stage's piece has come
  std::uint64_t cut;
  found_bin found;
  std::uint32_t totals[kWarps];
  std::uint32_t count;  // columns that reached the filter: more than the list's capacity where not all are in it
  std::uint32_t few_count;
  std::uint32_t single;  // the one high word of a bin's keys
};

/// A barrier follows.
__device__ __forceinline__ void clear_map(filter_scratch& scratch) {
#pragma unroll
  for (int i = 0; i < kWordsPerThread; i++) scratch.map[i * kThreads + threadIdx.x] = 0;
}

/// Exclusive sum over the lanes.
__device__ __forceinline__ std::uint32_t lanes_before(std::uint32_t value) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  std::uint32_t sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const std::uint32_t other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  return sum - value;
}

/// The sum of the values of the threads before this one; `total` is that of all. All threads come; two calls need a
/// barrier between them.
__device__ __forceinline__ std::uint32_t sum_before(std::uint32_t value, std::uint32_t& total,
                                                    filter_scratch& scratch) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t before = lanes_before(value);
  if (lane == kWarp - 1) scratch.totals[warp] = before + value;
  __syncthreads();
  const std::uint32_t of_warp = lane < kWarps ? scratch.totals[lane] : 0;
  total = __reduce_add_sync(kFullWarp, of_warp);
  return before + __reduce_add_sync(kFullWarp, lane < warp ? of_warp : 0);
}

/// Bins of 32-bit numbers: bin b has those from low + (b << shift) on.
struct number_bins {
  std::uint32_t low;
  std::uint32_t shift;
  std::uint32_t count = kBins;
  bool open = false;  // the last bin has all that are larger, too

  __device__ __forceinline__ std::uint32_t begin(std::uint32_t bin) const { return low + (bin << shift); }
  /// Bins of one bin; no finer than asked for.
  __device__ __forceinline__ number_bins within(std::uint32_t bin, std::uint32_t finest_shift) const {
    const std::uint32_t finer = max(shift, finest_shift + kBinBits) - kBinBits;
    return {begin(bin), finer, 1u << (shift - finer)};
  }
};

/// Counts numbers in bins; others are passed over. Without a branch, and with addresses that are computed once.
class bin_counter {
 public:
  __device__ __forceinline__ bin_counter(const number_bins& bins, filter_scratch& scratch)
      : low_(bins.low), shift_(bins.shift), last_bin_(bins.count - 1) {
    farthest_ = ~bins.low;
    if (!bins.open) farthest_ = min(farthest_, (bins.count << bins.shift) - 1);
    best_ = shared_address(&scratch.bins[kBins - 1]);
    asm volatile("mov.u32 %0, %0;" : "+r"(best_));  // it would be computed anew at every use
  }
  __device__ __forceinline__ void count(std::uint32_t number) const {
    const std::uint32_t beyond = number - low_;
    const std::uint32_t bin = min(beyond >> shift_, last_bin_);
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "setp.le.u32 there, %1, %2;\n"
        "@there red.shared.add.u32 [%0], 1;\n"
        "}" ::"r"(best_ - bin * 4),
        "r"(beyond), "r"(farthest_)
        : "memory");
  }

 private:
  std::uint32_t low_;
  std::uint32_t shift_;
  std::uint32_t last_bin_;
  std::uint32_t farthest_;
  std::uint32_t best_;
};

/// The shift that gives numbers of a range so wide no more bins than there are.
__device__ __forceinline__ std::uint32_t shift_for(std::uint32_t width) {
  return max(32 - __clz(static_cast<int>(width)), kBinBits) - kBinBits;
}

/// Tells the block the one number of those of its threads that have it. All lanes of a warp come; a barrier follows.
__device__ __forceinline__ void tell_single(bool has, std::uint32_t number, filter_scratch& scratch) {
  const unsigned having = __ballot_sync(kFullWarp, has);
  if (having != 0 && threadIdx.x % kWarp == __ffs(static_cast<int>(having)) - 1) atomicExch(&scratch.single, number);
}

/// The bin, from the best on, in which the count reaches `wanted`; leaves the bins empty. @returns whether there is
/// one. All threads come.
__device__ __forceinline__ bool find_bin(std::uint32_t wanted, found_bin& found, filter_scratch& scratch) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  __syncthreads();  // all have counted
  auto& mine = reinterpret_cast<uint4*>(scratch.bins)[threadIdx.x];
  const uint4 counts = mine;
  mine = make_uint4(0, 0, 0, 0);
  const std::uint32_t sum = counts.x + counts.y + counts.z + counts.w;
  const std::uint32_t of_warp = __reduce_add_sync(kFullWarp, sum);
  if (lane == 0) scratch.totals[warp] = of_warp;
  __syncthreads();
  const std::uint32_t total = lane < kWarps ? scratch.totals[lane] : 0;
  const std::uint32_t all = __reduce_add_sync(kFullWarp, total);
  const std::uint32_t before_warp = __reduce_add_sync(kFullWarp, lane < warp ? total : 0);
  if (before_warp < wanted && wanted <= before_warp + of_warp) {  // one warp
    std::uint32_t before = before_warp + lanes_before(sum);
    const std::uint32_t of_bin[kBinsPerThread] = {counts.x, counts.y, counts.z, counts.w};
#pragma unroll
    for (int i = 0; i < kBinsPerThread; i++) {
      if (before < wanted && wanted <= before + of_bin[i])
        scratch.found = {kBins - 1 - (threadIdx.x * kBinsPerThread + i), before, of_bin[i]};
      before += of_bin[i];
    }
  }
  __syncthreads();
  found = scratch.found;
  return wanted <= all;
}

/// Finds the key that exactly `wanted` of the visited keys reach, by counting in bins of their values, then of their
/// columns. @param first_visit and, from the second time on, `visit` call their argument with each of this thread's
/// keys. @param values bins that the search begins with. @param columns [begin, end) of all keys.
/// @returns false if fewer keys than wanted lie in the bins. All threads come; they leave through a barrier.
template <class FirstVisit, class Visit>
__device__ __forceinline__ bool find_cut(FirstVisit first_visit, Visit visit, std::uint32_t wanted, number_bins values,
                                         std::uint32_t finest_shift, const uint2& columns, std::uint64_t& cut,
                                         filter_scratch& scratch) {
  found_bin found{};
  const auto choose_of_few = [&](auto inside) {
    if (threadIdx.x == 0) scratch.few_count = 0;
    __syncthreads();
    visit([&](std::uint64_t key) {
      if (inside(key)) scratch.few[atomicAdd(&scratch.few_count, 1u)] = key;
    });
    __syncthreads();
    const std::uint32_t n = scratch.few_count;
    if (threadIdx.x < n) {
      const std::uint64_t mine = scratch.few[threadIdx.x];
      std::uint32_t rank = 1;
#pragma unroll 4
      for (std::uint32_t i = 0; i < n; i++) rank += scratch.few[i] > mine;
      if (rank == wanted) scratch.cut = mine;
    }
    __syncthreads();
    cut = scratch.cut;
    return true;
  };
  const auto count = [&](const auto& visit_by) {
    const bin_counter counter(values, scratch);
    visit_by([&](std::uint64_t key) { counter.count(core::key_of(key)); });
  };
  count(first_visit);
  if (!find_bin(wanted, found, scratch)) return false;
  for (;;) {
    const std::uint32_t begin = values.begin(found.bin);
    wanted -= found.before;
    cut = static_cast<std::uint64_t>(begin) << 32;
    if (wanted == found.inside) return true;
    const bool all_above = values.open && found.bin == values.count - 1;
    const auto inside = [&](std::uint64_t key) { return (core::key_of(key) - begin) >> values.shift == 0; };
    if (!all_above && found.inside <= kFew) return choose_of_few(inside);
    if (!all_above && values.shift <= finest_shift) {
      // All that are left have one value: the first columns are wanted.
      number_bins places{~(columns.y - 1), shift_for(columns.y - columns.x)};
      for (;;) {
        bool has = false;
        std::uint32_t value = 0;
        const bin_counter counter(places, scratch);
        visit([&](std::uint64_t key) {
          if (!inside(key)) return;
          counter.count(static_cast<std::uint32_t>(key));
          has = true;
          value = core::key_of(key);
        });
        tell_single(has, value, scratch);
        find_bin(wanted, found, scratch);
        const std::uint32_t first = places.begin(found.bin);
        wanted -= found.before;
        cut = static_cast<std::uint64_t>(scratch.single) << 32 | first;
        if (wanted == found.inside) return true;
        if (found.inside <= kFew) {
          return choose_of_few([&](std::uint64_t key) {
            return inside(key) && (static_cast<std::uint32_t>(key) - first) >> places.shift == 0;
          });
        }
        places = places.within(found.bin, 0);
      }
    }
    values = all_above ? number_bins{begin, 32 - kBinBits} : values.within(found.bin, finest_shift);
    count(visit);
    find_bin(wanted, found, scratch);
  }
}

}  // namespace shortlist::cuda::filtering
