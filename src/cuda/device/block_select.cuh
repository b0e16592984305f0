// Selection by one block: the k largest of n distinct 64-bit keys, whatever the data.
//
// Keys are visited through `visit(f)`, which calls f(key) for this thread's share: the same code serves lists in
// shared memory, in global memory, or in both. Distinct keys make every cut exact: "exactly k keys are >= cut".
#pragma once

#include <cstdint>

#include "cuda/device/warp_sum.cuh"

namespace shortlist::cuda {

/// Shared memory that a selection works in.
template <int Threads>
struct select_scratch {
  std::uint32_t totals[2][Threads / kWarp];  // double-buffered: one barrier a sum
  uint3 ranges[Threads / kWarp];             // of each warp: smallest, largest, count
  unsigned long long smallest;
  unsigned long long largest;
  std::uint32_t histogram[256];
  std::uint32_t counter;
  std::uint32_t digit;
  std::uint32_t above;
};

template <int Threads>
__device__ std::uint32_t block_sum(std::uint32_t value, select_scratch<Threads>& scratch, int& phase) {
  value = __reduce_add_sync(kFullWarp, value);
  std::uint32_t* totals = scratch.totals[phase & 1];
  phase++;
  if (threadIdx.x % kWarp == 0) totals[threadIdx.x / kWarp] = value;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  return __reduce_add_sync(kFullWarp, lane < Threads / kWarp ? totals[lane] : 0u);
}

/// A cut that at least k and at most k + slack keys reach. `count(cut)` says how many do; all reach `low`, and only the
/// largest of all, `high`, is sure to reach itself. Interpolates between counts, and bisects every third time so that
/// no data is slow. Distinct keys: the exact count is always found. Rolled, as all code here: it runs once or a few
/// times a launch, and its instructions are in no cache when it does.
template <class Count>
__device__ __forceinline__ std::uint64_t search_cut(std::uint64_t low, std::uint32_t low_count, std::uint64_t high,
                                                    std::uint32_t k, std::uint32_t slack, Count count) {
  std::uint32_t high_count = 1;
  if (k == 1) return high;
#pragma unroll 1
  for (int turn = 0; low_count > k + slack; turn++) {
    const float wanted = static_cast<float>(low_count - k) - 0.5f * static_cast<float>(slack) + 0.5f;
    const float guess = wanted / static_cast<float>(low_count - high_count);
    const float fraction = turn % 3 == 2 ? 0.5f : fminf(0.95f, fmaxf(0.05f, guess));
    const std::uint64_t width = high - low;
    std::uint64_t step = static_cast<std::uint64_t>(static_cast<float>(width) * fraction);
    step = min(max(step, std::uint64_t{1}), width > 1 ? width - 1 : 1);
    const std::uint32_t reached = count(low + step);
    if (reached >= k) {
      low += step;
      low_count = reached;
    } else {
      high = low + step;
      high_count = reached;
    }
  }
  return low;
}

/// The smallest (x) and the largest (y) key of a score among keys[0, n), and how many keys there are (z). kNoRow is no
/// key. One barrier.
template <int Threads>
__device__ __forceinline__ uint3 block_range(const std::uint64_t* keys, std::uint32_t n,
                                             select_scratch<Threads>& scratch) {
  constexpr int kWarps = Threads / kWarp;
  const int lane = threadIdx.x % kWarp;
  std::uint32_t smallest = ~0u;
  std::uint32_t largest = 0;
  std::uint32_t there = 0;
#pragma unroll 2
  for (std::uint32_t i = threadIdx.x; i < n; i += Threads) {
    const std::uint64_t key = keys[i];
    if (key == core::kNoRow) continue;
    there++;
    smallest = min(smallest, core::key_of(key));
    largest = max(largest, core::key_of(key));
  }
  smallest = __reduce_min_sync(kFullWarp, smallest);
  largest = __reduce_max_sync(kFullWarp, largest);
  there = __reduce_add_sync(kFullWarp, there);
  if (lane == 0) scratch.ranges[threadIdx.x / kWarp] = make_uint3(smallest, largest, there);
  __syncthreads();
  const uint3 range = lane < kWarps ? scratch.ranges[lane] : make_uint3(~0u, 0, 0);
  return {__reduce_min_sync(kFullWarp, range.x), __reduce_max_sync(kFullWarp, range.y),
          __reduce_add_sync(kFullWarp, range.z)};
}

/// A cut that min(k, n) of keys[0, n) in shared memory reach at least, and few more where scores lie apart: the end of
/// one of 256 bins of their range. At least 1. `reached` is how many do. Two barriers.
template <int Threads>
__device__ std::uint64_t block_cut_by_bins(const std::uint64_t* keys, std::uint32_t n, std::uint32_t k,
                                           select_scratch<Threads>& scratch, std::uint32_t& reached) {
  constexpr std::uint32_t kBinBits = 8;
  constexpr std::uint32_t kBinsOfLane = (1 << kBinBits) / kWarp;
  const std::uint32_t lane = threadIdx.x % kWarp;
  for (std::uint32_t i = threadIdx.x; i < kBinsOfLane * kWarp; i += Threads) scratch.histogram[i] = 0;
  const uint3 range = block_range<Threads>(keys, n, scratch);
  reached = range.z;
  if (reached <= k) return 1;
  const int shift = max(0, static_cast<int>(32 - kBinBits) - __clz(static_cast<int>(range.y - range.x)));
#pragma unroll 2
  for (std::uint32_t i = threadIdx.x; i < n; i += Threads) {
    if (keys[i] == core::kNoRow) continue;
    const std::uint32_t bin = (range.y - core::key_of(keys[i])) >> shift;
    atomicAdd(&scratch.histogram[bin % kBinsOfLane * kWarp + bin / kBinsOfLane], 1u);  // a lane's lie a row apart
  }
  __syncthreads();
  std::uint32_t each[kBinsOfLane];
  std::uint32_t mine = 0;
#pragma unroll
  for (std::uint32_t i = 0; i < kBinsOfLane; i++) {
    each[i] = scratch.histogram[i * kWarp + lane];
    mine += each[i];
  }
  const std::uint32_t sum = running_sum(mine);
  std::uint32_t count = sum - mine;
  std::uint32_t bins = lane * kBinsOfLane;
#pragma unroll
  for (std::uint32_t i = 0; i < kBinsOfLane; i++) {
    bins += count < k;
    count += count < k ? each[i] : 0;
  }
  const int has_last = __ffs(static_cast<int>(__ballot_sync(kFullWarp, sum >= k))) - 1;
  reached = __shfl_sync(kFullWarp, count, has_last);
  const std::uint64_t width = static_cast<std::uint64_t>(__shfl_sync(kFullWarp, bins, has_last)) << shift;
  const std::uint64_t last = width > range.y ? 0 : range.y - width + 1;
  return max(last << 32, std::uint64_t{1});
}

/// A cut that min(k, n) .. k + slack of keys[0, n) in shared memory reach; at least 1. kNoRow is no key.
/// Every warp counts for a cut of its own, so that a round divides the range by their number; its cost is latency.
template <int Threads>
__device__ std::uint64_t block_cut(const std::uint64_t* keys, std::uint32_t n, std::uint32_t k, std::uint32_t slack,
                                   select_scratch<Threads>& scratch) {
  constexpr int kProbes = Threads / kWarp;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const uint3 range = block_range<Threads>(keys, n, scratch);
  const std::uint32_t there = range.z;
  if (there <= k) return 1;
  slack = min(slack, (there - k) / 2);
  std::uint64_t low = max(static_cast<std::uint64_t>(range.x) << 32, std::uint64_t{1});  // reached by all
  std::uint64_t high = (static_cast<std::uint64_t>(range.y) + 1) << 32;                  // reached by none
  int phase = 0;
  std::uint32_t reached = there;
#pragma unroll 1
  while (reached > k + slack) {  // distinct keys: the exact count is always found
    const std::uint64_t step = max((high - low) / (kProbes + 1), std::uint64_t{1});
    const std::uint64_t mine = low + (warp + 1) * step;
    std::uint32_t count = 0;
#pragma unroll 4
    for (std::uint32_t i = lane; i < n; i += kWarp) count += keys[i] >= mine;
    count = __reduce_add_sync(kFullWarp, count);
    std::uint32_t* counts = scratch.totals[phase++ & 1];
    if (lane == 0) counts[warp] = count;
    __syncthreads();
    // Counts fall from warp to warp: the last that still reaches k, and the next, close the range.
    const bool enough = lane < kProbes && counts[lane] >= k;
    const int probes = __popc(__ballot_sync(kFullWarp, enough));
    if (probes < kProbes) high = low + (probes + 1) * step;
    low += probes * step;
    if (probes > 0) reached = counts[probes - 1];
  }
  return low;
}

/// The same for keys that lie anywhere and are visited: a radix search by digits of eight bits, each a pass over the
/// keys.
template <int Threads, class Visit>
__device__ __noinline__ std::uint64_t block_cut_radix(Visit visit, std::uint32_t k, select_scratch<Threads>& scratch) {
  std::uint64_t prefix = 0;
  std::uint64_t prefix_mask = 0;
  std::uint32_t wanted = k;
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += Threads) scratch.histogram[i] = 0;
    __syncthreads();
    visit([&](std::uint64_t key) {
      if (key != core::kNoRow && (key & prefix_mask) == prefix)
        atomicAdd(&scratch.histogram[(key >> shift) & 255u], 1u);
    });
    __syncthreads();
    if (threadIdx.x < kWarp) {  // lane l owns the eight digits below 255 - 8 l
      std::uint32_t mine = 0;
      for (int i = 0; i < 8; i++) mine += scratch.histogram[255 - 8 * threadIdx.x - i];
      std::uint32_t before = mine;
      for (int offset = 1; offset < kWarp; offset <<= 1) {
        const std::uint32_t other = __shfl_up_sync(kFullWarp, before, offset);
        if (threadIdx.x >= static_cast<unsigned>(offset)) before += other;
      }
      before -= mine;
      if (threadIdx.x == 0) scratch.digit = 256;  // fewer than k keys: everything passes
      __syncwarp();
      for (int i = 0; i < 8; i++) {
        const std::uint32_t here = scratch.histogram[255 - 8 * threadIdx.x - i];
        if (before < wanted && before + here >= wanted) {
          scratch.digit = 255 - 8 * threadIdx.x - i;
          scratch.above = before;
          scratch.counter = here;
        }
        before += here;
      }
    }
    __syncthreads();
    const std::uint32_t digit = scratch.digit;
    if (digit == 256) return 1;
    wanted -= scratch.above;
    const bool exact = scratch.counter == wanted;
    prefix |= static_cast<std::uint64_t>(digit) << shift;
    prefix_mask |= std::uint64_t{255} << shift;
    __syncthreads();
    if (exact) break;
  }
  return prefix;
}

/// Ranks up to `Threads` keys by counting the better ones, and calls write(rank, key) for each: several threads a key,
/// no barrier between steps. AtOnce loads are in flight together.
template <int Threads, int AtOnce = 1, class Write>
__device__ __forceinline__ void rank_by_counting(const std::uint64_t* keys, std::uint32_t found, Write write) {
  int helpers = 1;
  while (helpers < kWarp && found * helpers * 2 <= Threads) helpers *= 2;
  const std::uint32_t i = threadIdx.x / helpers;
  const std::uint64_t mine = i < found ? keys[i] : core::kNoRow;
  std::uint32_t rank = 0;
#pragma unroll(AtOnce == 1 ? 4 : 1)
  for (std::uint32_t first = threadIdx.x % helpers; first < found; first += AtOnce * helpers) {
    std::uint64_t others[AtOnce];
#pragma unroll
    for (int j = 0; j < AtOnce; j++) {
      const std::uint32_t at = first + j * helpers;
      others[j] = j == 0 || at < found ? keys[at] : core::kNoRow;
    }
#pragma unroll
    for (int j = 0; j < AtOnce; j++) rank += others[j] > mine;
  }
#pragma unroll 1
  for (int offset = helpers / 2; offset > 0; offset /= 2) rank += __shfl_xor_sync(kFullWarp, rank, offset);
  if (i < found && threadIdx.x % helpers == 0) write(rank, mine);
}

inline constexpr int kSortBins = 2048;          // usually
inline constexpr std::uint32_t kMaxInBin = 32;  // more in one bin than this, and counting within bins would be slow

/// What sort_by_bins works in: shared memory.
template <int Bins = kSortBins>
struct sort_bins {
  std::uint32_t start[Bins + 1];  // how many keys lie in the bins above
  std::uint32_t next[Bins];       // counts, then where a bin's next key goes
  std::uint32_t fullest;
};

/// Keys [0, n) in memory for sort_by_bins, a key of a thread at a time.
template <int Threads>
struct keys_in_turn {
  static constexpr bool kKeepsPlaces = false;
  const std::uint64_t* keys;
  std::uint32_t n;

  template <class Visit>
  __device__ __forceinline__ void visit(Visit f) {
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < n; i += Threads) {
      std::uint32_t place = 0;
      f(keys[i], place);
    }
  }
};

/// The same of at most Held keys a thread, which stay in registers, as do their places in their bins.
template <int Threads, int Held>
class held_keys {
 public:
  static constexpr bool kKeepsPlaces = true;
  static_assert(Threads * Held <= 1 << 16, "numbers within a bin have 16 bits");

  __device__ __forceinline__ held_keys(const std::uint64_t* keys, std::uint32_t n) : n_(n) {
#pragma unroll
    for (int j = 0; j < Held; j++) {
      const std::uint32_t i = j * Threads + threadIdx.x;
      keys_[j] = i < n ? keys[i] : core::kNoRow;
    }
  }
  template <class Visit>
  __device__ __forceinline__ void visit(Visit f) {
#pragma unroll
    for (int j = 0; j < Held; j++)
      if (j * Threads + threadIdx.x < n_) f(keys_[j], places_[j]);
  }

 private:
  std::uint64_t keys_[Held];
  std::uint32_t places_[Held];
  std::uint32_t n_;
};

/// Orders the best of n keys, largest first: calls write(rank, key) for every rank below k, each once. Bins over
/// the score's key, then counting within a bin: no barrier a step, as a sorting network would need.
/// @returns false, and writes nothing, if a bin is too full (ties, or a range that one key stretches), or `room` too
/// small.
template <int Threads, int Bins, class Keys, class Write>
__device__ bool sort_by_bins(Keys keys, std::uint32_t n, std::uint32_t k, std::uint64_t* room, std::uint32_t room_keys,
                             sort_bins<Bins>& bins, select_scratch<Threads>& scratch, Write write) {
  constexpr int kPerThread = Bins / Threads;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) {
    scratch.smallest = ~0ull;
    scratch.largest = 0;
    bins.fullest = 0;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < Bins; i += Threads) bins.next[i] = 0;
  __syncthreads();
  std::uint32_t smallest = ~0u;
  std::uint32_t largest = 0;
  keys.visit([&](std::uint64_t key, std::uint32_t&) {
    smallest = min(smallest, core::key_of(key));
    largest = max(largest, core::key_of(key));
  });
  smallest = __reduce_min_sync(kFullWarp, smallest);
  largest = __reduce_max_sync(kFullWarp, largest);
  if (lane == 0) {
    atomicMin(&scratch.smallest, static_cast<unsigned long long>(smallest));
    atomicMax(&scratch.largest, static_cast<unsigned long long>(largest));
  }
  __syncthreads();
  smallest = static_cast<std::uint32_t>(scratch.smallest);
  largest = static_cast<std::uint32_t>(scratch.largest);
  const float scale = static_cast<float>(Bins - 1) / (static_cast<float>(largest - smallest) + 1.0f);
  // Bin 0 holds the best: the scale is monotone, and so is the rounding.
  const auto bin_of = [&](std::uint64_t key) {
    return min(Bins - 1, static_cast<int>(static_cast<float>(largest - core::key_of(key)) * scale));
  };
  constexpr int kPlaceShift = 16;  // a key's place: its number in its bin above, the bin below
  static_assert(Bins <= 1 << kPlaceShift);
  keys.visit([&](std::uint64_t key, std::uint32_t& place) {
    const int bin = bin_of(key);
    const std::uint32_t in_bin = atomicAdd(&bins.next[bin], 1u);
    if constexpr (Keys::kKeepsPlaces) place = in_bin << kPlaceShift | static_cast<std::uint32_t>(bin);
  });
  __syncthreads();

  // Exclusive sum over the bins.
  std::uint32_t counts[kPerThread];
  std::uint32_t mine = 0;
  std::uint32_t fullest = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; i++) {
    counts[i] = bins.next[threadIdx.x * kPerThread + i];
    mine += counts[i];
  }
  std::uint32_t sum = mine;
#pragma unroll 1
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const std::uint32_t other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == kWarp - 1) scratch.totals[0][warp] = sum;
  __syncthreads();
  std::uint32_t before = sum - mine + __reduce_add_sync(kFullWarp, lane < warp ? scratch.totals[0][lane] : 0u);
#pragma unroll
  for (int i = 0; i < kPerThread; i++) {
    bins.start[threadIdx.x * kPerThread + i] = before;
    if constexpr (!Keys::kKeepsPlaces) bins.next[threadIdx.x * kPerThread + i] = before;
    if (before < k) {
      fullest = max(fullest, counts[i]);
      if (before + counts[i] > room_keys) fullest = ~0u;
    }
    before += counts[i];
  }
  if (threadIdx.x == Threads - 1) bins.start[Bins] = before;
  fullest = __reduce_max_sync(kFullWarp, fullest);
  if (lane == 0) atomicMax(&bins.fullest, fullest);
  __syncthreads();
  if (bins.fullest > kMaxInBin) return false;

  // The keys of all bins that begin before k, bin by bin; then each finds its rank among its bin's few.
  keys.visit([&](std::uint64_t key, std::uint32_t& place) {
    const auto bin = Keys::kKeepsPlaces ? place % (1u << kPlaceShift) : static_cast<std::uint32_t>(bin_of(key));
    const std::uint32_t start = bins.start[bin];
    if (start < k) room[Keys::kKeepsPlaces ? start + (place >> kPlaceShift) : atomicAdd(&bins.next[bin], 1u)] = key;
  });
  __syncthreads();
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < min(n, room_keys); i += Threads) {
    const std::uint64_t key = room[i];
    const int bin = bin_of(key);
    const std::uint32_t first = bins.start[bin];
    const std::uint32_t last = bins.start[bin + 1];
    if (i < first || i >= last || first >= k) break;  // beyond the placed keys
    std::uint32_t rank = first;
#pragma unroll 1
    for (std::uint32_t j = first; j < last; j++) rank += room[j] > key;
    if (rank < k) write(rank, key);
  }
  return true;
}

/// Sorts `keys[0, n)` in shared memory, largest first; n is a power of two. For data that sort_by_bins cannot take.
template <int Threads>
__device__ void block_sort(std::uint64_t* keys, std::uint32_t n) {
  for (std::uint32_t size = 2; size <= n; size <<= 1) {
    for (std::uint32_t stride = size >> 1; stride > 0; stride >>= 1) {
      __syncthreads();
      for (std::uint32_t t = threadIdx.x; t < n / 2; t += Threads) {
        const std::uint32_t low = ((t & ~(stride - 1)) << 1) | (t & (stride - 1));
        const std::uint64_t a = keys[low];
        const std::uint64_t b = keys[low + stride];
        const bool descending = (low & size) == 0;
        if (descending ? a < b : a > b) {
          keys[low] = b;
          keys[low + stride] = a;
        }
      }
    }
  }
  __syncthreads();
}

}  // namespace shortlist::cuda
