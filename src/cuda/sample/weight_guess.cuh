// Where the border of what top_p keeps is guessed to lie, from a sample of a row's logits that its blocks count in bins
// of exponents and send to each other. See weight_sample.cu.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/shared_memory.cuh"
#include "cuda/sample/weight_parts.cuh"

namespace shortlist::cuda::sampling::weighing {

/// 2^x for guesses: no two GPUs need agree on it.
__device__ __forceinline__ float near_power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

/// An exponent's bin, counted upwards, whatever the row's largest logit.
__device__ __forceinline__ std::int32_t octave_bin(float x, float steepness) {
  constexpr float kMost = 0x1p+29f;
  const float bin = core::multiply_once(core::multiply_once(x, steepness), static_cast<float>(kOctaveBins));
  return __float2int_rd(fminf(fmaxf(bin, -kMost), kMost));
}

/// Counts the threads' largest logits, which hold most of the weight, and a sample of the others in bins of exponents,
/// and tells the blocks. A sampled logit stands for several, none of them more likely than three quarters of the way
/// from the block's largest to the mean of the warp's threads' largest: more likely ones are few, and one of them,
/// taken for eight, would raise the row's guess by a third. @returns the row's largest logit's key. All threads of the
/// cluster come.
template <class Stored, class Form>
__device__ __forceinline__ std::uint32_t share_guess(const row_part_of_warp<Stored, Form>& part, float most,
                                                     const weight_place<Form>& place) {
  weight_state<Form>& state = place.state;
  weight_scratch<Form>& scratch = place.scratch;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t key = most != most ? kNanGroup : core::ascending_key(most);
  const std::uint32_t of_warp = __reduce_max_sync(kFullWarp, key);
  if (lane == 0) state.warp_best[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  const std::uint32_t best = __reduce_max_sync(kFullWarp, lane < Form::kWarps ? state.warp_best[lane] : 0);
  const float steepness = state.params.steepness;
  const std::int32_t first = octave_bin(core::from_ascending_key(best), steepness);
  std::uint32_t* own = place.guesses(place.rank);
  const std::uint32_t own_bins = held(shared_address(own));
  const std::uint32_t unused_bin = held(kCountedBins + lane);  // so that lanes do not wait for each other
  const auto bin_of = [&](float x) {
    return min(static_cast<std::uint32_t>(first - octave_bin(x, steepness)), unused_bin);
  };
  const auto count = [&](std::uint32_t bin, std::uint32_t tokens) { add_shared(own_bins + bin * 4, tokens); };
  const std::uint32_t own_bin = bin_of(most);
  count(own_bin, 1);
  const std::uint32_t sampled_from = __reduce_add_sync(kFullWarp, own_bin) * 3 / (4 * kWarp);
  const std::uint32_t each = part.sampled_each();
  part.look_at_some([&](const auto& some) {  // all bins, then all counts, so that none waits for another
    constexpr std::size_t kSome = std::extent_v<std::remove_cvref_t<decltype(some)>>;
    std::uint32_t bins[kSome];
#pragma unroll
    for (std::size_t i = 0; i < kSome; i++) bins[i] = max(bin_of(some[i]), sampled_from);
#pragma unroll
    for (std::size_t i = 0; i < kSome; i++) count(bins[i], some[i] < most ? each : 0);
  });
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

/// Where the border of what is kept should lie among exponents.
struct guessed_border {
  float ceiling;      // what reaches it is kept, and need not be listed; infinite if all that may be kept is listed
  float floor;        // what is kept reaches it
  bool tied = false;  // instead, what is more than this logit is kept, and tokens of this logit are listed
  float logit = 0.0f;

  static constexpr float kEvery = -0x1.fffffep127f;  // of finite numbers, the least

  static __device__ __forceinline__ guessed_border of_all_listed(float floor) {
    return {core::float_from_bits(0x7F800000u), floor};
  }
  static __device__ __forceinline__ guessed_border of_logit(float logit) { return {0.0f, 0.0f, true, logit}; }
  /// Of rows that min_p alone filters, or nothing. @param least may be -inf: then of all logits above that
  static __device__ __forceinline__ guessed_border of_least(float least) {
    const float bound = fmaxf(least, kEvery);
    return {bound, bound};
  }
  /// Whether more is kept than is listed.
  __device__ __forceinline__ bool flat() const { return core::is_finite(ceiling); }
  __device__ __forceinline__ bool everything() const { return ceiling == kEvery; }
  /// Whether what reaches the ceiling is all that is kept, since min_p drops the rest: then nothing is listed.
  __device__ __forceinline__ bool by_least() const { return floor >= ceiling && !tied; }
};

/// How much weight lies between a flat row's border and its ceiling, or its floor: as much as lists have room for,
/// within limits. @param floor an exponent not far from it. @param dropped by top_p, of the total
__device__ __forceinline__ float flat_margin(float floor, std::uint32_t room, float total, float dropped,
                                             bool crowded) {
  const float least_part = crowded ? 0.04f : 0.12f;  // of what is dropped
  constexpr float kMostPart = 0.6f;
  const float filled = crowded ? 0.1f : 0.25f;  // of the room
  constexpr float kLeastOfAll = 0x1p-20f;
  constexpr float kMostOfAll = 0.03f;
  const float for_room = 0.5f * filled * static_cast<float>(room) * core::power_of_two(fmaxf(floor, -60.0f));
  const float wide = fminf(fmaxf(for_room, least_part * dropped), kMostPart * dropped);
  return fminf(fmaxf(wide, kLeastOfAll * total), kMostOfAll * total);
}

/// The thread's bin of what all blocks have counted of a row's exponents: what it is guessed to hold.
struct guessed_bin {
  std::int32_t first;  // the bin of the row's largest logit, from which threads' bins count
  float base;          // of exponents: that of logit 0, negated
  std::uint32_t tokens;
  float weight;
  float before;  // weight of the bins before it
  float total;   // of all

  /// Where a thread's bin ends, in bins' widths.
  __device__ __forceinline__ float end_of(std::uint32_t thread) const {
    return static_cast<float>(first + 1 - static_cast<std::int32_t>(thread));
  }
  /// The exponent so far into the bin.
  __device__ __forceinline__ float exponent_at(float part) const {
    return (end_of(threadIdx.x) - part) / static_cast<float>(kOctaveBins) - base;
  }
};

/// What the blocks have counted, by the row's bins. Warps come as a whole.
template <class Form>
class counted_tokens {
 public:
  /// @param first the bin of the row's largest logit
  __device__ __forceinline__ counted_tokens(const row_filter& filter, std::int32_t first,
                                            const weight_place<Form>& place)
      : place_(place) {
    static_assert(kMostBlocks <= kWarp);
    const std::uint32_t lane = threadIdx.x % kWarp;
    const std::uint32_t best = place.scratch.block_best[lane < place.blocks ? lane : 0];
    behind_ = octave_bin(core::from_ascending_key(best), filter.steepness) - first;
  }
  /// In a bin of the row's.
  __device__ __forceinline__ std::uint32_t in_bin(std::uint32_t bin) const {
    std::uint32_t tokens = 0;
    for_blocks(place_.blocks, [&](std::uint32_t b) { tokens += in_bin_of(b, first_of(b), bin); });
    return tokens;
  }
  /// In the row's bins up to `last`, in the scratch for each block. A barrier must follow. All threads come.
  __device__ __forceinline__ void add_up(std::uint32_t last) const {
    const std::uint32_t lane = threadIdx.x % kWarp;
    for (std::uint32_t b = threadIdx.x / kWarp; b < place_.blocks; b += Form::kWarps) {
      const std::int32_t first = first_of(b);
      std::uint32_t tokens = 0;
#pragma unroll 4
      for (std::uint32_t bin = lane; bin <= last; bin += kWarp) tokens += in_bin_of(b, first, bin);
      tokens = __reduce_add_sync(kFullWarp, tokens);
      if (lane == 0) place_.scratch.guessed_tokens[b] = tokens;
    }
  }

 private:
  /// Where the row's first bin would be among a block's.
  __device__ __forceinline__ std::int32_t first_of(std::uint32_t block) const {
    return __shfl_sync(kFullWarp, behind_, static_cast<int>(block));
  }
  __device__ __forceinline__ std::uint32_t in_bin_of(std::uint32_t block, std::int32_t first, std::uint32_t bin) const {
    const auto of_block = static_cast<std::uint32_t>(static_cast<std::int32_t>(bin) + first);
    return of_block < kCountedBins ? place_.guesses(block)[of_block] : 0;
  }

  const weight_place<Form>& place_;
  std::int32_t behind_;  // of the lane's block
};

/// The first of the threads' bins that has enough lowers `first`.
__device__ __forceinline__ void find_first_bin(bool enough, std::uint32_t& first) {
  const unsigned those = __ballot_sync(kFullWarp, threadIdx.x < kGuessBins && enough);
  if (threadIdx.x % kWarp == 0 && those != 0)
    atomicMin(&first, threadIdx.x + static_cast<std::uint32_t>(__ffs(static_cast<int>(those))) - 1);
}

/// The last bin that what top_p keeps should reach; kGuessBins if there is none.
struct guessed_end {
  std::uint32_t last;
  std::uint32_t tokens;         // up to it
  std::uint32_t most_of_block;  // of these
};

/// All threads come.
template <class Form>
__device__ __forceinline__ guessed_end guess_end(const guessed_bin& bin, const counted_tokens<Form>& counted,
                                                 float most_lost, bool exact, const weight_place<Form>& place) {
  // Tokens: to list so many costs little, and what is guessed from fewer is often wrong. One warp may have them all.
  constexpr std::uint32_t kFew = Form::kBlocks == 4 ? 64 : 768;
  weight_scratch<Form>& scratch = place.scratch;
  find_first_bin(bin.total - bin.before - bin.weight <= most_lost, scratch.floor_bin);
  __syncthreads();
  guessed_end end{scratch.floor_bin, 0, 0};
  if (end.last == kGuessBins || exact) return end;
  counted.add_up(end.last);
  __syncthreads();
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t of_block = lane < place.blocks ? scratch.guessed_tokens[lane] : 0;
  end.tokens = __reduce_add_sync(kFullWarp, of_block);
  end.most_of_block = __reduce_max_sync(kFullWarp, of_block);
  if (end.tokens >= kFew) return end;
  const auto tokens = static_cast<float>(bin.tokens);
  float all = 0.0f;
  const float before = sum_before_in(tokens, scratch.warp_estimates, all);
  if (threadIdx.x == 0) scratch.floor_bin = kGuessBins;
  __syncthreads();
  find_first_bin(before + tokens >= fminf(static_cast<float>(kFew), all), scratch.floor_bin);
  __syncthreads();
  end.last = max(end.last, scratch.floor_bin);
  return end;
}

/// Guesses top_p's border from the counted bins: the same in all blocks. @param room tokens that a block's lists hold.
/// @returns whether there is one to be guessed. All threads come, after share_guess.
template <class Form>
__device__ __forceinline__ bool guess_border(const row_filter& filter, bool only_best, std::uint32_t room,
                                             const weight_place<Form>& place, guessed_border& guessed) {
  constexpr float kLost = 0.7f;            // of the weight that top_p drops may lie below the floor
  constexpr float kLeastWidth = 0x1p-10f;  // of an exponent
  // Tokens: of more, so many would lie in the border's bin that these have to be sorted.
  constexpr std::uint32_t kMostListed = 8192;
  const learned_border& learned = place.state.learned;
  const bool again = place.state.turns > 0;
  weight_scratch<Form>& scratch = place.scratch;
  guessed_bin bin{};
  bin.first = octave_bin(filter.largest, filter.steepness);
  bin.base = filter.largest * filter.steepness;
  const counted_tokens<Form> counted(filter, bin.first, place);
  bin.tokens = counted.in_bin(threadIdx.x);
  const float middle = -(static_cast<float>(threadIdx.x) + 0.5f) / static_cast<float>(kOctaveBins);
  bin.weight = static_cast<float>(bin.tokens) * near_power_of_two(middle);
  bin.before = sum_before_in(bin.weight, scratch.warp_estimates, bin.total);
  const float dropped = (1.0f - static_cast<float>(place.state.params.top_p) * 0x1p-32f) * bin.total;
  // In bins from the row's first one: the same in all threads, so that one bin has it, however coarse large numbers
  // are.
  const float known_at = bin.end_of(0) - (learned.exponent + bin.base) * static_cast<float>(kOctaveBins);
  const float known_bin = floorf(known_at);
  if (static_cast<float>(threadIdx.x) == known_bin) scratch.known = bin.before + (known_at - known_bin) * bin.weight;
  const guessed_end end = guess_end(bin, counted, only_best ? bin.total : kLost * dropped, only_best || again, place);
  if (end.last == kGuessBins) return false;
  const float least =
      static_cast<float>(bin.first - static_cast<std::int32_t>(end.last)) / static_cast<float>(kOctaveBins);
  guessed = guessed_border::of_all_listed(fminf(least - bin.base, -1.0f / kOctaveBins));
  const bool all_listed = end.most_of_block <= room / 2 && end.tokens <= kMostListed;
  if (only_best || (!again && all_listed)) return true;
  const float border = learned.stretched(bin.total - dropped, bin.total, scratch.known);
  // Sums are rounded, so that two bins may have it: then the larger exponent, in every block. Of numbers below 0 it has
  // the lesser bits.
  const auto place_at = [&](float wanted, float& to) {
    if (bin.before < wanted && bin.before + bin.weight >= wanted)
      atomicMin(reinterpret_cast<int*>(&to), __float_as_int(bin.exponent_at((wanted - bin.before) / bin.weight)));
  };
  const float margin = flat_margin(guessed.floor, room, bin.total, dropped, learned.crowded);
  place_at(border - margin, scratch.ceiling);
  place_at(border + margin, scratch.floor);
  __syncthreads();
  if (!(scratch.ceiling < 0.0f)) return true;
  const float least_kept = minimum_exponent(place.state.params);
  guessed = least_kept >= scratch.ceiling
                ? guessed_border::of_least(least_kept)  // which is all that is kept then
                : guessed_border{scratch.ceiling, fminf(scratch.floor, scratch.ceiling - kLeastWidth)};
  return true;
}

}  // namespace shortlist::cuda::sampling::weighing
