// What the steps of filter_rows.cu share: sizes, shared memory, and counting keys in bins.
#pragma once

#include <cstdint>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/score.cuh"
#include "cuda/top_k/long_row.cuh"

namespace shortlist::cuda::filtering {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kValues = 32;  // of a thread in a chunk: as many as a word of marks has bits
constexpr int kBins = 1024;
constexpr int kBinBits = 10;
constexpr int kBinsPerThread = kBins / kThreads;
constexpr int kMapWords = 2048;  // of columns that a map tells apart at a time, a bit each
constexpr int kWordsPerThread = kMapWords / kThreads;
constexpr std::uint32_t kMapColumns = kMapWords * 32;
constexpr std::uint32_t kFew = 128;  // keys that are ranked by comparing each with each
static_assert(kBinsPerThread == 4 && (kWordsPerThread == 4 || kWordsPerThread == 8), "read in vectors of 16 bytes");

/// The row's chunks under way: as many bytes in flight for every type.
template <class Stored>
constexpr int kVectors = kValues / kPerVector<Stored>;  // of a thread in a chunk
template <class Stored>
constexpr std::uint32_t kChunk = kVectors<Stored>* kThreads;  // vectors
constexpr int kRingBytes = 64 * 1024;
template <class Stored>
constexpr int kStages = kRingBytes / (16 * static_cast<int>(kChunk<Stored>));
constexpr int kMostStages = kRingBytes / (kThreads * kValues * 2);

/// Where a count of bins, from the best on, reaches what is wanted.
struct found_bin {
  std::uint32_t bin;  // counted from the worst
  std::uint32_t before;
  std::uint32_t inside;
};

struct alignas(128) filter_scratch {
  union {
    std::uint32_t bins[kBins];     // the best first; all zero between uses, as
    std::uint32_t map[kMapWords];  // the columns that were chosen
  };
  std::uint16_t chosen_before[kMapWords];
  std::uint64_t few[kFew];
  std::uint64_t full[kMostStages];  // a stage's chunk has come
  std::uint32_t left[kMostStages];  // warps that have left a stage's chunks so far
  std::uint64_t cut;
  found_bin found;
  std::uint32_t totals[kWarps];
  std::uint32_t count;    // keys that reached the filter: more than the list's capacity where not all are in it
  std::uint32_t largest;  // high word of the best of them
  std::uint32_t few_count;
  std::uint32_t single;  // the one high word of a bin's keys
};

/// The sum of the values of the threads before this one; `total` is that of all. All threads come; two calls need a
/// barrier between them.
__device__ __forceinline__ std::uint32_t sum_before(std::uint32_t value, std::uint32_t& total,
                                                    filter_scratch& scratch) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  std::uint32_t sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const std::uint32_t other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) scratch.totals[threadIdx.x / kWarp] = sum;
  __syncthreads();
  std::uint32_t before = sum - value;
  total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    if (w < static_cast<int>(threadIdx.x / kWarp)) before += scratch.totals[w];
    total += scratch.totals[w];
  }
  return before;
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

/// Counts a number, if it is in a bin.
__device__ __forceinline__ void count_in(const number_bins& bins, std::uint32_t number, filter_scratch& scratch) {
  if (number < bins.low) return;
  std::uint32_t bin = (number - bins.low) >> bins.shift;
  if (bins.open) bin = min(bin, bins.count - 1);
  if (bin < bins.count) atomicAdd(&scratch.bins[kBins - 1 - bin], 1u);
}

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
  __syncthreads();  // all have counted
  auto& mine = reinterpret_cast<uint4*>(scratch.bins)[threadIdx.x];
  const uint4 counts = mine;
  mine = make_uint4(0, 0, 0, 0);
  std::uint32_t total = 0;
  std::uint32_t before = sum_before(counts.x + counts.y + counts.z + counts.w, total, scratch);
  const std::uint32_t of_bin[kBinsPerThread] = {counts.x, counts.y, counts.z, counts.w};
#pragma unroll
  for (int i = 0; i < kBinsPerThread; i++) {
    if (before < wanted && wanted <= before + of_bin[i])
      scratch.found = {kBins - 1 - (threadIdx.x * kBinsPerThread + i), before, of_bin[i]};
    before += of_bin[i];
  }
  __syncthreads();
  found = scratch.found;
  return wanted <= total;
}

/// The key that `wanted` of visited keys reach, exactly, by counting in bins of their values, then of their columns.
/// @param visit calls its argument with each of this thread's keys. @param low no key's value is below it.
/// @param columns [begin, end) of all keys. @pre at least `wanted` keys, of which there are `wanted` > 0.
template <class Visit>
__device__ __forceinline__ std::uint64_t exact_cut(Visit visit, std::uint32_t wanted, std::uint32_t low,
                                                   std::uint32_t largest, std::uint32_t finest_shift,
                                                   const uint2& columns, filter_scratch& scratch) {
  number_bins values{low, shift_for(largest - low)};
  found_bin found{};
  const auto gather = [&](auto inside) {  // and choose
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
    return scratch.cut;
  };
  for (;;) {
    visit([&](std::uint64_t key) { count_in(values, core::key_of(key), scratch); });
    find_bin(wanted, found, scratch);
    const std::uint32_t begin = values.begin(found.bin);
    wanted -= found.before;
    if (wanted == found.inside) return static_cast<std::uint64_t>(begin) << 32;
    const auto inside = [&](std::uint64_t key) { return (core::key_of(key) - begin) >> values.shift == 0; };
    if (found.inside <= kFew) return gather(inside);
    if (values.shift > finest_shift) {
      values = values.within(found.bin, finest_shift);
      continue;
    }
    // All that are left have one value: the first columns are wanted.
    number_bins places{~(columns.y - 1), shift_for(columns.y - columns.x)};
    for (;;) {
      bool has = false;
      std::uint32_t value = 0;
      visit([&](std::uint64_t key) {
        if (!inside(key)) return;
        count_in(places, static_cast<std::uint32_t>(key), scratch);
        has = true;
        value = core::key_of(key);
      });
      tell_single(has, value, scratch);
      find_bin(wanted, found, scratch);
      const std::uint32_t first = places.begin(found.bin);
      wanted -= found.before;
      if (wanted == found.inside) return static_cast<std::uint64_t>(scratch.single) << 32 | first;
      if (found.inside <= kFew)
        return gather([&](std::uint64_t key) {
          return inside(key) && (static_cast<std::uint32_t>(key) - first) >> places.shift == 0;
        });
      places = places.within(found.bin, 0);
    }
  }
}

}  // namespace shortlist::cuda::filtering
