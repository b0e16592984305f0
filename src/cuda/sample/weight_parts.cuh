// What the steps of a row that is weighed share: a block's memory, what it tells the others, and where the row's
// weights are guessed to lie. See weight_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/device/warp_sum.cuh"
#include "cuda/sample/row_choice.cuh"
#include "cuda/sample/weight_row.cuh"

namespace shortlist::cuda::sampling::weighing {

constexpr std::uint32_t kTokenBits = 23;  // of kMaxVocab
constexpr std::uint32_t kTokenMask = (1u << kTokenBits) - 1;
static_assert(kMaxVocab <= std::int64_t{1} << kTokenBits);
constexpr std::uint32_t kOctaveBins = 8;
constexpr std::uint32_t kGuessBins = 256;
constexpr std::uint32_t kCountedBins = kGuessBins - kWarp;  // the others hold what lies beyond
constexpr std::uint32_t kBorderBins = 256;                  // from the floor to the largest
constexpr std::uint32_t kRangeBins = 256;                   // of a block's columns, for the draw

/// By how much to shift a column's number in a block's piece for its bin.
__host__ __device__ inline std::uint32_t range_shift(std::uint32_t columns) {
  std::uint32_t shift = 0;
  while (columns >> shift >= kRangeBins) shift++;
  return shift;
}

/// What stays where it is while a row is searched in place.
struct alignas(16) weight_state {
  core::row_params params;
  std::uint32_t random;
  std::uint64_t landed[kRowWarps][kMostChunks];
  std::uint64_t guessed;
  std::uint64_t weighed;
  std::uint64_t told;
  std::uint32_t warp_best[kRowWarps];
};

/// A sum in two words, for additions by many threads.
struct word_pair {
  std::uint32_t low;
  std::uint32_t high;

  __device__ __forceinline__ void add(std::uint64_t weight) { add_in_words(low, high, weight); }
  __device__ __forceinline__ std::uint64_t value() const { return (static_cast<std::uint64_t>(high) << 32) + low; }
};

struct weighed_key {
  std::uint64_t key;
  std::uint64_t weight;
};

/// Sums of weights in two words each.
struct binned_weights {
  std::uint32_t low[kBorderBins];
  std::uint32_t high[kBorderBins];

  __device__ __forceinline__ void add(std::uint32_t bin, std::uint64_t weight) {
    add_in_words(low[bin], high[bin], weight);
  }
  __device__ __forceinline__ std::uint64_t value(std::uint32_t bin) const {
    return (static_cast<std::uint64_t>(high[bin]) << 32) + low[bin];
  }
};

/// The rest of a block's shared memory before its part of the row, with the border's keys behind it.
struct alignas(16) weight_scratch {
  binned_weights bins;                     // of exponents
  binned_weights ranges;                   // of the block's columns
  std::uint64_t block_total[kMostBlocks];  // of all weights; with kCrowded if not all could be listed
  word_pair total;
  word_pair kept;  // of this block, before the border
  std::uint32_t kept_count;
  std::uint64_t block_kept[kMostBlocks];  // then with what is kept of the border
  std::uint32_t block_kept_count[kMostBlocks];
  std::uint32_t block_best[kMostBlocks];
  std::uint32_t block_border[kMostBlocks];
  std::uint64_t warp_sums[kRowWarps];
  float warp_estimates[kRowWarps];
  std::uint64_t told;
  std::uint64_t cut;
  std::uint32_t told_bin;
  std::uint32_t floor_bin;
  std::uint32_t bordering;  // tokens of this block
  std::uint32_t in_range;
};
constexpr std::uint64_t kCrowded = std::uint64_t{1} << 63;

/// A block's columns in equal ranges.
struct column_ranges {
  std::uint32_t first;
  std::uint32_t shift;

  __device__ __forceinline__ std::uint32_t of(std::uint32_t column) const { return (column - first) >> shift; }
};

/// A block among its cluster's, of which there are several, and its shared memory.
struct weight_place {
  std::uint32_t rank;
  std::uint32_t blocks;
  std::uint32_t capacity;  // border keys
  weight_state& state;
  weight_scratch& scratch;
  std::uint64_t* border;     // keys, each block's in a share of its own; before, the bins of all blocks' guesses
  std::uint64_t* bins_told;  // of exponents, of all blocks; then the border's keys with their weights

  __device__ __forceinline__ std::uint32_t share() const { return capacity >> shift_of(blocks); }
  __device__ __forceinline__ std::uint64_t* bins_of(std::uint32_t block) const {
    return bins_told + block * kBorderBins;
  }
  __device__ __forceinline__ std::uint32_t* guesses(std::uint32_t block) const {
    return reinterpret_cast<std::uint32_t*>(border) + block * kGuessBins;
  }
};

/// The sum of a value of the block's threads before this one; `total` is that of all. All threads come.
template <class Value>
__device__ __forceinline__ Value sum_before_in(Value value, Value* warp_sums, Value& total) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  const Value sum = running_sum(value);
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  Value before = sum - value;
  total = 0;
#pragma unroll
  for (std::uint32_t w = 0; w < kRowWarps; w++) {
    const Value of_warp = warp_sums[w];
    if (w < warp) before += of_warp;
    total += of_warp;
  }
  return before;
}

/// By all threads, before the blocks are told that this one has begun.
__device__ __forceinline__ void clear_scratch(const weight_place& place) {
  weight_scratch& scratch = place.scratch;
  static_assert(kBorderBins == kGuessBins && kRangeBins == kBorderBins);
  if (threadIdx.x < kBorderBins) {
    scratch.bins.low[threadIdx.x] = 0;
    scratch.bins.high[threadIdx.x] = 0;
    scratch.ranges.low[threadIdx.x] = 0;
    scratch.ranges.high[threadIdx.x] = 0;
    place.guesses(place.rank)[threadIdx.x] = 0;
  }
  if (threadIdx.x != 0) return;
  scratch.total = {};
  scratch.kept = {};
  scratch.kept_count = 0;
  scratch.floor_bin = kGuessBins;
  scratch.bordering = 0;
  scratch.in_range = 0;
  weight_state& state = place.state;
  barrier_init(&state.guessed, 1);
  barrier_init(&state.weighed, 1);
  barrier_init(&state.told, place.blocks);
  barrier_expect(&state.guessed, (place.blocks - 1) * (kGuessBins + 1) * sizeof(std::uint32_t));
  barrier_expect(&state.weighed, (place.blocks - 1) * (kBorderBins + 1) * sizeof(std::uint64_t));
  cluster_barriers_ready();
}

/// An exponent's bin, counted upwards, whatever the row's largest logit.
__device__ __forceinline__ std::int32_t octave_bin(float x, float steepness) {
  constexpr float kMost = 0x1p+29f;
  const float bin = core::multiply_once(core::multiply_once(x, steepness), static_cast<float>(kOctaveBins));
  return __float2int_rd(fminf(fmaxf(bin, -kMost), kMost));
}

/// Counts the threads' largest logits, which hold most of the weight, and a sample of the others in bins of exponents,
/// and tells the blocks. @returns the row's largest logit's key. All threads of the cluster come.
template <class Stored>
__device__ __forceinline__ std::uint32_t share_guess(const row_stretch<Stored>& stretch, float most,
                                                     const weight_place& place) {
  constexpr std::uint32_t kMostSampled = sizeof(Stored) == 4 ? 4 : 2;  // vectors of each lane
  constexpr std::uint32_t kManyLogits = 160;
  weight_state& state = place.state;
  weight_scratch& scratch = place.scratch;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t key = most != most ? kNanGroup : core::ascending_key(most);
  const std::uint32_t of_warp = __reduce_max_sync(kFullWarp, key);
  if (lane == 0) state.warp_best[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  const std::uint32_t best = __reduce_max_sync(kFullWarp, lane < kRowWarps ? state.warp_best[lane] : 0);
  const float steepness = state.params.steepness;
  const std::int32_t first = octave_bin(core::from_ascending_key(best), steepness);
  std::uint32_t* own = place.guesses(place.rank);
  const std::uint32_t own_bins = held(shared_address(own));
  const std::uint32_t unused_bin = held(kCountedBins + lane);  // so that lanes do not wait for each other
  const auto count = [&](float x, std::uint32_t many) {        // without a branch
    const std::uint32_t bin = min(static_cast<std::uint32_t>(first - octave_bin(x, steepness)), unused_bin);
    asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(own_bins + bin * 4), "r"(many) : "memory");
  };
  count(most, 1);
  const std::uint32_t sampled = stretch.rounds * stretch.kPerVector > kManyLogits ? kMostSampled : kMostSampled / 2;
  const std::uint32_t each = max(1u, stretch.rounds / sampled);
#pragma unroll
  for (std::uint32_t v = 0; v < kMostSampled; v++) {
    if (v >= sampled) break;
    float x[stretch.kPerVector];
    widen_values<Stored>(stretch.in_registers[v * (kInRegisters / kMostSampled)], x);
#pragma unroll
    for (std::uint32_t e = 0; e < stretch.kPerVector; e++) count(x[e], x[e] < most ? each : 0);
  }
  if (threadIdx.x == 0) scratch.block_best[place.rank] = best;
  __syncthreads();
  for (std::uint32_t i = 1; i < place.blocks; i++) {
    const std::uint32_t other = (place.rank + i) & (place.blocks - 1);
    if (threadIdx.x < kGuessBins) send_to_block(own + threadIdx.x, other, own[threadIdx.x], &state.guessed);
    if (threadIdx.x == 0) send_to_block(scratch.block_best + place.rank, other, best, &state.guessed);
  }
  barrier_wait(&state.guessed, 0);
  const std::uint32_t of_block = lane < place.blocks && lane != place.rank ? scratch.block_best[lane] : best;
  return __reduce_max_sync(kFullWarp, of_block);
}

/// An exponent that hardly any but what top_p keeps should reach, and all of it should: the same in all blocks.
/// @returns 0 if there is none. All threads come, after share_guess.
__device__ __forceinline__ float guess_floor(const row_filter& filter, bool only_best, const weight_place& place) {
  constexpr float kLost = 0.7f;  // of the weight that top_p drops may lie below
  weight_scratch& scratch = place.scratch;
  const std::int32_t first = octave_bin(filter.largest, filter.steepness);
  std::uint32_t tokens = 0;
  for (std::uint32_t b = 0; b < place.blocks; b++) {
    const auto bin =
        static_cast<std::uint32_t>(static_cast<std::int32_t>(threadIdx.x) - first +
                                   octave_bin(core::from_ascending_key(scratch.block_best[b]), filter.steepness));
    if (bin < kCountedBins) tokens += place.guesses(b)[bin];
  }
  const float exponent = -(static_cast<float>(threadIdx.x) + 0.5f) / static_cast<float>(kOctaveBins);
  const float weight = static_cast<float>(tokens) * core::power_of_two(exponent);
  float total = 0.0f;
  const float before = sum_before_in(weight, scratch.warp_estimates, total);
  const float top_p = static_cast<float>(place.state.params.top_p) * 0x1p-32f;
  const float most_lost = only_best ? total : kLost * (1.0f - top_p) * total;
  const bool enough = threadIdx.x < kGuessBins && total - before - weight <= most_lost;
  const unsigned those = __ballot_sync(kFullWarp, enough);
  if (threadIdx.x % kWarp == 0 && those != 0)
    atomicMin(&scratch.floor_bin, threadIdx.x + static_cast<std::uint32_t>(__ffs(static_cast<int>(those))) - 1);
  __syncthreads();
  const std::uint32_t end = scratch.floor_bin;
  if (end == kGuessBins) return 0.0f;
  const float least = static_cast<float>(first - static_cast<std::int32_t>(end)) / static_cast<float>(kOctaveBins);
  return fminf(least - filter.largest * filter.steepness, -1.0f / kOctaveBins);
}

}  // namespace shortlist::cuda::sampling::weighing
