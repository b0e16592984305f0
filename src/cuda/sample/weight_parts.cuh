// What the steps of a row that is weighed share: a block's memory, and what it tells the others. See weight_sample.cu.
#pragma once

#include <bit>
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
  const auto bits = static_cast<std::uint32_t>(std::bit_width(columns));
  constexpr auto kBinBits = static_cast<std::uint32_t>(std::bit_width(kRangeBins) - 1);
  return bits > kBinBits ? bits - kBinBits : 0;
}

/// What a wrong guess of the border has told about it.
struct learned_border {
  bool crowded;    // a list was too short
  bool tied;       // it is among more tokens of one logit than there is room for
  float logit;     // of these
  float exponent;  // so much of all weight reaches it, exactly; 0 if that is not known
  float share;

  /// Where the border is among guessed weights, if these are stretched to what is known. @param border where it was
  /// @param known of the guessed weights, how much reaches the exponent
  __device__ __forceinline__ float stretched(float border, float total, float known) const {
    if (!(exponent < 0.0f)) return border;
    const float wanted = border / total;
    return wanted <= share ? known * wanted / share : known + (total - known) * (wanted - share) / (1.0f - share);
  }
};

/// Calls f(block) for each, more than two without waiting for one another.
template <class F>
__device__ __forceinline__ void for_blocks(std::uint32_t blocks, F f) {
  f(0u);
  if (blocks == 1) return;
  f(1u);
  if (blocks == 2) return;
#pragma unroll
  for (std::uint32_t b = 2; b < kMostBlocks; b++)
    if (b < blocks) f(b);
}

/// What stays where it is while a row is searched in place.
template <class Form>
struct alignas(16) weight_state {
  core::row_params params;
  learned_border learned;
  std::uint32_t turns;  // that were wrong
  std::uint32_t random;
  std::uint64_t landed[Form::kWarps][kMostChunks];
  std::uint64_t guessed;
  std::uint64_t weighed;
  std::uint64_t told;
  std::uint32_t warp_best[Form::kWarps];
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
template <class Form>
struct alignas(16) weight_scratch {
  binned_weights bins;                     // of exponents
  binned_weights ranges;                   // of the block's columns
  std::uint64_t block_total[kMostBlocks];  // of all weights; with kCrowded if not all could be listed
  std::uint64_t block_above[kMostBlocks];  // of those above the ceiling
  word_pair total;
  word_pair above;
  word_pair kept;  // of this block, before the border
  std::uint32_t kept_count;
  std::uint64_t block_kept[kMostBlocks];  // then with what is kept of the border
  std::uint32_t block_kept_count[kMostBlocks];
  std::uint32_t block_best[kMostBlocks];
  std::uint32_t block_border[kMostBlocks];
  std::uint64_t warp_sums[Form::kWarps];
  float warp_estimates[Form::kWarps];
  std::uint64_t told;
  std::uint64_t cut;
  std::uint32_t told_bin;
  std::uint32_t floor_bin;
  std::uint32_t guessed_tokens[kMostBlocks];  // that reach the floor
  std::uint32_t least_tied;                   // keys of logits at the border
  std::uint32_t most_tied;
  float ceiling;
  float floor;
  float known;              // of the guessed weights, how much reaches an exponent
  std::uint32_t bordering;  // tokens of this block
  std::uint32_t in_range;
};
constexpr std::uint64_t kCrowded = std::uint64_t{1} << 63;

/// A block's columns in equal ranges.
struct column_ranges {
  std::uint32_t first;  // those before it are in the first one
  std::uint32_t shift;

  __device__ __forceinline__ std::uint32_t of(std::uint32_t column) const {
    return (max(column, first) - first) >> shift;
  }
};
/// Of a flat row, what a warp weighs at a time is within one.
template <class Stored, class Form>
__device__ __forceinline__ column_ranges ranges_of(const row_pieces<Stored, Form>& all, std::uint32_t block,
                                                   bool flat) {
  constexpr std::uint32_t kTogether = batch_rounds<Stored> * kWarp * all.kPerVector;
  static_assert((kTogether & (kTogether - 1)) == 0);
  const std::uint32_t shift = range_shift(Form::kThreads * all.rounds * all.kPerVector + 2 * all.kPerVector);
  if (flat) return {all.first_vector_of(block), max(shift, 31 - static_cast<std::uint32_t>(__clz(kTogether)))};
  return {all.first_of(block), shift};
}

/// A block among its cluster's, which may be the only one, and its shared memory.
template <class Form>
struct weight_place {
  std::uint32_t rank;
  std::uint32_t blocks;
  std::uint32_t capacity;  // border keys
  weight_state<Form>& state;
  weight_scratch<Form>& scratch;
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
template <int Warps, class Value>
__device__ __forceinline__ Value sum_before_in(Value value, Value (&warp_sums)[Warps], Value& total) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  const Value sum = running_sum(value);
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  const Value up_to = running_sum(lane < Warps ? warp_sums[lane] : Value{});
  total = __shfl_sync(kFullWarp, up_to, Warps - 1);
  const Value of_warps = __shfl_sync(kFullWarp, up_to, warp == 0 ? 0 : warp - 1);
  return (warp == 0 ? Value{} : of_warps) + (sum - value);
}

/// By all threads, before the blocks are told that this one has begun, or begins again: then what was guessed stays.
template <class Form>
__device__ __forceinline__ void clear_scratch(const weight_place<Form>& place, bool again = false) {
  weight_scratch<Form>& scratch = place.scratch;
  static_assert(kBorderBins == kGuessBins && kRangeBins == kBorderBins);
  if (threadIdx.x < kBorderBins) {
    scratch.bins.low[threadIdx.x] = 0;
    scratch.bins.high[threadIdx.x] = 0;
    scratch.ranges.low[threadIdx.x] = 0;
    scratch.ranges.high[threadIdx.x] = 0;
    if (!again) place.guesses(place.rank)[threadIdx.x] = 0;
  }
  if (threadIdx.x != 0) return;
  scratch.total = {};
  scratch.above = {};
  scratch.kept = {};
  scratch.cut = kEveryCandidate;
  scratch.ceiling = 0.0f;
  scratch.floor = 2 * core::kLeastExponent;
  scratch.known = 0.0f;
  scratch.kept_count = 0;
  scratch.floor_bin = kGuessBins;
  scratch.least_tied = ~0u;
  scratch.most_tied = 0;
  scratch.bordering = 0;
  scratch.in_range = 0;
  weight_state<Form>& state = place.state;
  if (again) {
    barrier_forget(&state.guessed);
    barrier_forget(&state.weighed);
    barrier_forget(&state.told);
  } else {
    state.learned = {};
    state.turns = 0;
  }
  barrier_init(&state.guessed, 1);
  barrier_init(&state.weighed, 1);
  barrier_init(&state.told, place.blocks);
  barrier_expect(&state.guessed, (place.blocks - 1) * (kGuessBins + 1) * sizeof(std::uint32_t));
  barrier_expect(&state.weighed, (place.blocks - 1) * (kBorderBins + 2) * sizeof(std::uint64_t));
  cluster_barriers_ready();
}

}  // namespace shortlist::cuda::sampling::weighing
