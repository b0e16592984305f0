// What the steps of filter_rows_kernel.cuh share: sizes, shared memory, sums over a block, and searching keys by
// counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/device/block_select.cuh"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/score.cuh"
#include "cuda/device/shared_memory.cuh"
#include "cuda/top_k/long_row.cuh"

namespace shortlist::cuda::filtering {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kValues = 32;  // of a lane in a piece of a row: as many as a word of marks has bits
constexpr int kBins = 1024;
constexpr int kBinBits = 10;
constexpr int kOrderBins = 4 * kThreads;

/// A value's bits, and what they stand for.
template <class Stored>
__device__ __forceinline__ std::uint32_t bits_of(Stored value) {
  if constexpr (sizeof(Stored) == 4)
    return __float_as_uint(value);
  else
    return value.bits;
}
template <class Stored>
__device__ __forceinline__ Stored of_bits(std::uint32_t bits) {
  if constexpr (sizeof(Stored) == 4)
    return __uint_as_float(bits);
  else
    return {static_cast<std::uint16_t>(bits)};
}
/// Whether bits of values are in order, none of whose numbers is below `least`: of positive ones.
template <class Stored>
__device__ __forceinline__ bool are_bits_in_order(std::uint32_t least) {
  constexpr std::uint32_t kZeroNumber = kZeroKey >> kSharedBits<Stored>;
  return !std::is_same_v<Stored, float16> && least > kZeroNumber;
}
/// What turns such bits into numbers; NaN is then beyond infinity's.
template <class Stored>
__device__ __forceinline__ std::uint32_t turn_of_bits(bool negated) {
  return negated ? 0 : 1u << (8 * sizeof(Stored) - 1);
}

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

constexpr std::uint32_t kMostRivals = 16;  // entries of a bin that are compared with each other

struct alignas(128) filter_scratch {
  std::uint32_t totals[2][kWarp];           // of the block's warps; zero behind them
  std::uint64_t full[kWarps][kMostStages];  // a stage's piece has come
  std::uint64_t posted;                     // all threads have posted a value
  std::uint32_t rival_count;                // zero between uses
  std::uint32_t rivals[kMostRivals];
  alignas(16) std::uint32_t bins[kBins];  // the best first; all zero between uses
  uint4 found;                            // a bin; x: whatever is counted behind the bins
};
constexpr std::int64_t kBinBytes = sizeof(filter_scratch::bins) + sizeof(filter_scratch::found);
static_assert(offsetof(filter_scratch, found) == offsetof(filter_scratch, bins) + sizeof(filter_scratch::bins));

/// What sorting entries takes beside.
struct alignas(128) order_scratch {
  sort_bins<kOrderBins> bins;
  select_scratch<kThreads> select;
  std::uint32_t best[kWarps];     // number of a warp's entries
  std::uint32_t fullest[kWarps];  // of a warp's bins: entries in it
};

/// A barrier must come before, where they are in use, and follow.
__device__ __forceinline__ void clear_bins(filter_scratch& scratch) {
  static_assert(kBins == 4 * kThreads);
  store_shared(shared_address(scratch.bins) + threadIdx.x * 16, make_uint4(0, 0, 0, 0));
}

/// A barrier follows.
__device__ __forceinline__ void clear_scratch(filter_scratch& scratch) {
  clear_bins(scratch);
  if (threadIdx.x == 0) scratch.rival_count = 0;
  if (threadIdx.x < 2 * kWarp) scratch.totals[threadIdx.x / kWarp][threadIdx.x % kWarp] = 0;
}

/// Inclusive sum over the lanes.
__device__ __forceinline__ std::uint32_t lanes_up_to(std::uint32_t value) {
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    asm volatile(
        "{\n"
        ".reg .pred from;\n"
        ".reg .u32 other;\n"
        "shfl.sync.up.b32 other|from, %0, %1, 0, 0xFFFFFFFF;\n"
        "@from add.u32 %0, %0, other;\n"
        "}"
        : "+r"(value)
        : "r"(offset));
  }
  return value;
}

/// A thread's place in its block, and sums over the block. Each sum takes one barrier: two arrays take turns, so that
/// none is written while it is read.
class block_sums {
 public:
  explicit __device__ __forceinline__ block_sums(filter_scratch& scratch)
      : lane_(held(threadIdx.x % kWarp)), warp_(held(threadIdx.x / kWarp)) {
    totals_ = held(shared_address(scratch.totals[0]));
    both_totals_ = held(totals_ + shared_address(scratch.totals[1]));
    posted_ = held(shared_address(&scratch.posted));
  }

  __device__ __forceinline__ std::uint32_t lane() const { return lane_; }
  __device__ __forceinline__ std::uint32_t warp() const { return warp_; }
  /// Shared addresses of what else the block has there.
  __device__ __forceinline__ std::uint32_t bins() const { return at(offsetof(filter_scratch, bins)); }
  __device__ __forceinline__ std::uint32_t found() const { return at(offsetof(filter_scratch, found)); }
  __device__ __forceinline__ std::uint32_t rivals() const { return at(offsetof(filter_scratch, rivals)); }
  __device__ __forceinline__ std::uint32_t rival_count() const { return at(offsetof(filter_scratch, rival_count)); }

  /// All threads come.
  __device__ __forceinline__ std::uint32_t of_threads(std::uint32_t value) {
    tell(__reduce_add_sync(kFullWarp, value));
    __syncthreads();
    return __reduce_add_sync(kFullWarp, told());
  }
  /// @param value of the warp, the last lane's. @param before becomes the sum of the warps before this one.
  __device__ __forceinline__ std::uint32_t of_warps(std::uint32_t value, std::uint32_t& before) {
    tell(value);
    __syncthreads();
    return sum_of_told(before);
  }
  /// The same in two steps, for work in between, without waiting for those that have told theirs but are behind with
  /// that work. What threads have written to shared memory before is not seen behind it. Other sums must not come
  /// between the two.
  __device__ __forceinline__ void post(std::uint32_t value) const {
    tell(value);
    barrier_arrive_at(posted_);
  }
  __device__ __forceinline__ std::uint32_t of_posted(std::uint32_t& before) {
    barrier_wait_at(posted_, phase_);
    phase_ ^= 1;
    return sum_of_told(before);
  }

 private:
  __device__ __forceinline__ std::uint32_t at(std::size_t offset) const {
    return posted_ + static_cast<std::uint32_t>(offset) - static_cast<std::uint32_t>(offsetof(filter_scratch, posted));
  }
  __device__ __forceinline__ void tell(std::uint32_t value) const {
    if (lane_ == kWarp - 1) store_shared(totals_ + warp_ * 4, value);
  }
  /// By the warp that has this lane's number.
  __device__ __forceinline__ std::uint32_t told() {
    const std::uint32_t value = load_shared<std::uint32_t>(totals_ + lane_ * 4);
    totals_ = both_totals_ - totals_;
    return value;
  }
  __device__ __forceinline__ std::uint32_t sum_of_told(std::uint32_t& before) {
    const std::uint32_t value = told();
    before = __reduce_add_sync(kFullWarp, lane_ < warp_ ? value : 0);
    return __reduce_add_sync(kFullWarp, value);
  }

  std::uint32_t lane_;
  std::uint32_t warp_;
  std::uint32_t totals_;  // the array whose turn it is
  std::uint32_t both_totals_;
  std::uint32_t posted_;
  std::uint32_t phase_ = 0;
};

/// Bins of 32-bit numbers: bin b has those from low + (b << shift) on.
struct number_bins {
  std::uint32_t low;
  std::uint32_t shift;
  std::uint32_t count = kBins;
  bool open = false;  // the last bin has all that are larger, too

  __device__ __forceinline__ std::uint32_t begin(std::uint32_t bin) const { return low + (bin << shift); }
  /// Bins of one bin; no finer than asked for.
  __device__ __forceinline__ number_bins within(std::uint32_t bin, std::uint32_t finest_shift = 0) const {
    const std::uint32_t finer = max(shift, finest_shift + kBinBits) - kBinBits;
    return {begin(bin), finer, 1u << (shift - finer)};
  }
};
template <class Stored>
__device__ __forceinline__ number_bins all_numbers() {
  return {0, 32 - kSharedBits<Stored> - kBinBits};
}

/// Counts numbers in bins; others are passed over. With addresses that are computed once.
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
    count_up_to(beyond, farthest_, best_ - bin * 4);
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

/// The bin, from the best on, in which the count reaches `wanted`; leaves the bins empty. @returns whether there is
/// one. All threads come.
__device__ __forceinline__ bool find_bin(std::uint32_t wanted, found_bin& found, block_sums& sums) {
  static_assert(kBins == 4 * kThreads);
  const std::uint32_t bins = sums.bins() + threadIdx.x * 16;
  __syncthreads();  // all have counted
  const auto counts = load_shared<uint4>(bins);
  store_shared(bins, make_uint4(0, 0, 0, 0));
  const std::uint32_t sum = counts.x + counts.y + counts.z + counts.w;
  const std::uint32_t up_to = lanes_up_to(sum);
  std::uint32_t before = 0;
  const std::uint32_t all = sums.of_warps(up_to, before);
  before += up_to - sum;
  if (before < wanted && wanted <= before + sum) {  // one thread
    std::uint32_t bin = kBins - 1 - threadIdx.x * 4;
    std::uint32_t inside = counts.x;
    const auto pass = [&](std::uint32_t next) {
      if (wanted <= before + inside) return;
      before += inside;
      inside = next;
      bin--;
    };
    pass(counts.y);
    pass(counts.z);
    pass(counts.w);
    store_shared(sums.found(), make_uint4(0, bin, before, inside));
  }
  __syncthreads();
  const auto of_bin = load_shared<uint4>(sums.found());
  found = {of_bin.y, of_bin.z, of_bin.w};
  return wanted <= all;
}

/// The k best of a row: all columns whose numbers are above `number`, and the first `ties` of those that have it.
struct row_border {
  std::uint32_t number;
  std::uint32_t ties;

  __device__ __forceinline__ bool is_above(std::uint32_t other) const { return other > number; }
  __device__ __forceinline__ bool is_tie(std::uint32_t other) const { return other == number; }
  /// How many ties are chosen. @param above how many numbers of the round are.
  __device__ __forceinline__ std::uint32_t ties_beside(std::uint32_t /*above*/) const { return ties; }
};

/// Finds the border of the `wanted` best of the visited numbers, by counting in bins. @param visit calls its argument
/// with each of this thread's numbers. @param bins that the search begins with. @param all bins of all numbers.
/// @returns false if fewer than wanted lie in the bins. All threads come.
template <class Visit>
__device__ __forceinline__ bool border_by_bins(Visit visit, std::uint32_t wanted, number_bins bins,
                                               const number_bins& all, row_border& border, block_sums& sums,
                                               filter_scratch& scratch) {
  found_bin found{};
#pragma unroll 1
  for (;;) {
    const bin_counter counter(bins, scratch);
    visit([&](std::uint32_t number) { counter.count(number); });
    if (!find_bin(wanted, found, sums)) return false;
    if (bins.open && found.bin == bins.count - 1) {  // what the last bin holds has no end
      bins = all;
      continue;
    }
    wanted -= found.before;
    if (bins.shift == 0) break;
    bins = bins.within(found.bin);
  }
  border = {bins.begin(found.bin), wanted};
  return true;
}

/// A number, and how many of a set are no less.
struct reached_number {
  std::uint32_t number;
  std::uint32_t count;
};

/// Searches a number that at least as many as are wanted reach, and at most `slack` more, by counting how many do.
struct number_search {
  reached_number low;   // more than that reach it
  reached_number high;  // fewer than wanted do
  float spread;         // what lies between one of the set and the next, about
  bool low_is_near;     // and not a bound of all numbers
  bool high_is_near;

  /// @param guess a multiple of the step away from low, as high is. @param shift of the step. @returns the number, or
  /// the last one that too many reach, where fewer than wanted reach the next.
  template <class Count>
  __device__ __forceinline__ reached_number run(std::uint32_t guess, std::uint32_t wanted, std::uint32_t slack,
                                                std::uint32_t shift, Count count) {
    const float aim = static_cast<float>(wanted) + 0.3f * static_cast<float>(slack);
    const std::uint32_t step = 1u << shift;
#pragma unroll 1
    for (std::uint32_t turn = 1;; turn++) {
      const std::uint32_t n = count(guess);
      if (n - wanted <= slack) return {guess, n};
      if (n > wanted) {
        low = {guess, n};
        low_is_near = true;
      } else {
        high = {guess, n};
        high_is_near = true;
      }
      const std::uint32_t width = high.number - low.number;
      if (width <= step) return low;
      const float above = static_cast<float>(low.count) - aim;
      float farther;  // than low
      if (low_is_near && high_is_near) {
        const float share = turn % 3 == 0 ? 0.5f : __fdividef(above, static_cast<float>(low.count - high.count));
        farther = share * static_cast<float>(width);
      } else {
        const float below = aim - static_cast<float>(high.count);
        farther = low_is_near ? above * spread : static_cast<float>(width) - below * spread;
        spread *= 2.0f;
      }
      const std::uint32_t most = (width - 1) >> shift << shift;
      guess = low.number + min(max(__float2uint_rn(fmaxf(farther, 0.0f)) >> shift << shift, step), most);
    }
  }
};

}  // namespace shortlist::cuda::filtering
