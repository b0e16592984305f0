// Cuts of a row by count or by weight, searched by all blocks of its cluster: every search is exact for any data.
//
// A pass puts what is left of the row into bins, best first, sums the bins over the blocks, and finds the bin in which
// the sum reaches the target; the next pass divides that bin. See sample_rows.cu.
#pragma once

#include <bit>

#include "cuda/sample/sample_parts.cuh"

namespace shortlist::cuda::sampling {

constexpr int kBinBits = std::bit_width(static_cast<unsigned>(kBins)) - 1;

__device__ __forceinline__ void clear_bins(sample_scratch& scratch) {
  for (int b = threadIdx.x; b < kBins; b += kThreads) {
    scratch.bins.low[b] = 0;
    scratch.bins.high[b] = 0;
  }
  __syncthreads();
}

/// Adds to a sum of two words in shared memory, which adds no longer ones by itself: whoever causes a carry sees it.
__device__ __forceinline__ void add_in_words(std::uint32_t& low_word, std::uint32_t& high_word, std::uint64_t measure) {
  const auto low = static_cast<std::uint32_t>(measure);
  auto high = static_cast<std::uint32_t>(measure >> 32);
  if (low != 0) high += atomicAdd(&low_word, low) + low < low ? 1 : 0;
  if (high != 0) atomicAdd(&high_word, high);
}
__device__ __forceinline__ void add_to_bin(sample_scratch& scratch, std::uint32_t bin, std::uint64_t measure) {
  add_in_words(scratch.bins.low[bin], scratch.bins.high[bin], measure);
}

/// The first bin with which the sum over the cluster's bins reaches target_of(total). All threads of the cluster come,
/// and the answer is the same for all.
template <class TargetOf>
__device__ __forceinline__ found_bin find_bin(sample_scratch& scratch, std::uint32_t rank, std::uint32_t blocks,
                                              TargetOf target_of) {
  constexpr int kMostMine = kBins / kThreads;
  cluster_sync();                             // all bins are there
  const std::uint32_t part = kBins / blocks;  // bins that this block sums
  const std::uint32_t each = max(part / kThreads, 1u);
  const std::uint32_t first = rank * part + threadIdx.x * each;
  const bool has_bins = threadIdx.x * each < part;
  std::uint64_t mine[kMostMine]{};
  std::uint64_t sum = 0;
#pragma unroll
  for (int i = 0; i < kMostMine; i++) {
    if (!has_bins || i >= static_cast<int>(each)) break;
#pragma unroll
    for (int b = 0; b < kMostBlocks; b++) {  // all of them under way together
      if (b >= static_cast<int>(blocks)) continue;
      const auto* there = of_block(&scratch, b);
      mine[i] += (static_cast<std::uint64_t>(there->bins.high[first + i]) << 32) + there->bins.low[first + i];
    }
    sum += mine[i];
  }
  std::uint64_t of_part = 0;
  const std::uint64_t in_part = sum_before(sum, scratch, of_part);
  if (threadIdx.x < blocks) of_block(scratch.part_totals, threadIdx.x)[rank] = of_part;
  cluster_sync();
  std::uint64_t before = in_part;
  found_bin found{};
  for (std::uint32_t b = 0; b < blocks; b++) {
    if (b < rank) before += scratch.part_totals[b];
    found.total += scratch.part_totals[b];
  }
  const std::uint64_t target = target_of(found.total);
  if (target == 0 || target > found.total) return found;
  if (before < target && before + sum >= target) {
    found.found = true;
#pragma unroll
    for (int i = 0; i < kMostMine; i++) {
      if (before < target && before + mine[i] >= target) {
        found.bin = first + i;
        found.before = before;
        found.inside = mine[i];
      }
      before += mine[i];
    }
    for (std::uint32_t b = 0; b < blocks; b++) *of_block(&scratch.found, b) = found;
  }
  cluster_sync();
  return scratch.found;
}

/// The greatest cut such that the measures of what passes the filter and reaches it sum up to the target; or any cut
/// with a sum in [target, enough], which ends the search earlier. The filter's own cut if all together fall short.
/// Passes divide the range of keys, so that eight end any search.
/// @param measure_of the measure of a logit that passes. @param target_of of the total.
template <class Part, class MeasureOf, class TargetOf>
__device__ __noinline__ std::uint64_t search_cut(const Part& part, const row_filter& filter, sample_scratch& scratch,
                                                 std::uint64_t enough, MeasureOf measure_of, TargetOf target_of) {
  std::uint64_t low = filter.cut;
  std::uint64_t high = core::row_key(core::ascending_key(filter.largest), 0);
  std::uint64_t before = 0;
  std::uint64_t target = 0;
  for (bool first = true;; first = false) {
    const int shift = max(0, 64 - __clzll(static_cast<long long>(high - low)) - kBinBits);
    clear_bins(scratch);
    for_each_logit(part, [&](float x, std::uint32_t token) {
      if (!filter.passes(x, token)) return;
      const std::uint64_t key = key_of_logit(x, token);
      if (key < low || key > high) return;
      add_to_bin(scratch, static_cast<std::uint32_t>((high - key) >> shift), measure_of(x));
    });
    const found_bin at = find_bin(scratch, part.rank, part.blocks, [&](std::uint64_t total) {
      if (first) target = target_of(total);
      return target - before;
    });
    if (!at.found) return filter.cut;
    before += at.before;
    high -= static_cast<std::uint64_t>(at.bin) << shift;
    const std::uint64_t width = (std::uint64_t{1} << shift) - 1;
    low = high - low > width ? high - width : low;
    if (shift == 0 || before + at.inside <= enough) return low;
  }
}

/// Bins that are linear in a weight's exponent, of a window of exponents; the first and the last are for what lies
/// outside.
struct exponent_bins {
  float start;
  float per_unit;

  __device__ __forceinline__ std::uint32_t of(float exponent) const {
    const int bin = __float2int_rd(core::multiply_once(core::add_once(start, -exponent), per_unit));
    return static_cast<std::uint32_t>(min(max(bin, -1), kBins - 2) + 1);
  }
};
constexpr std::uint32_t kFirstBin = 0;
constexpr std::uint32_t kLastBin = kBins - 1;

/// The border bin of the weights that pass, where their sum reaches the target.
template <class Part, class TargetOf>
__device__ __forceinline__ found_bin weigh_bins(const Part& part, const row_filter& filter, const exponent_bins& bins,
                                                sample_scratch& scratch, TargetOf target_of) {
  clear_bins(scratch);
  for_each_logit(part, [&](float x, std::uint32_t token) {
    if (!filter.reaches_cut(x, token)) return;
    const float exponent = filter.exponent(x);
    if (!(exponent >= filter.floor)) return;
    const std::uint64_t weight = weight_of(exponent);
    if (weight != 0) add_to_bin(scratch, bins.of(exponent), weight);
  });
  return find_bin(scratch, part.rank, part.blocks, target_of);
}

// A border of weights, guessed by counting: a count costs a third of a weight, and what the guess leaves open is small.

/// Bins of exponents around the border of top_p: tokens of the bins before `first` are kept, those after `last` are
/// not, as far as the guess is right. Bin b begins at exponent start - b / per_unit.
struct weight_bracket {
  float start = 0.0f;
  float per_unit = 16.0f;  // a power of two
  bool found = false;
  std::uint32_t first = 0;
  std::uint32_t last = 0;

  __device__ __forceinline__ float place(float exponent) const {
    return core::multiply_once(core::add_once(start, -exponent), per_unit);
  }
};

/// Counts what passes the filter in the bracket's bins, guesses the bins' weights from their middles, and narrows the
/// bracket to those around the border: no more tokens than are ranked at once, or than a list holds. @param before the
/// weight before all bins. @param target so much is wanted; 0: top_p's share of all. Both are set to those of the
/// border's bin where its tokens are too many. All threads of the cluster come; all blocks find the same.
template <class Part, class Filter>
__device__ __forceinline__ void guess_border(const Part& part, const Filter& filter, weight_bracket& bracket,
                                             std::uint64_t& before, std::uint64_t& target, sample_scratch& scratch) {
  constexpr std::uint32_t kEach = kBins / kThreads;
  constexpr std::uint32_t kMostMargin = 8;  // bins
  static_assert(kEach == 2);
  clear_bins(scratch);
  for_each_logit(part, [&](float x, std::uint32_t token) {
    const float bin = bracket.place(filter.exponent(x));
    if (bin >= 0.0f && bin < static_cast<float>(kBins) && filter.passes(x, token))
      atomicAdd(&scratch.bins.low[static_cast<std::uint32_t>(bin)], 1u);
  });
  cluster_sync();
  std::uint32_t counts[kEach]{};
#pragma unroll
  for (int b = 0; b < kMostBlocks; b++) {  // all of them under way together
    if (b >= static_cast<int>(part.blocks)) continue;
    const uint2 two = *reinterpret_cast<const uint2*>(of_block(scratch.bins.low, b) + threadIdx.x * kEach);
    counts[0] += two.x;
    counts[1] += two.y;
  }
  std::uint64_t weights[kEach];
#pragma unroll
  for (std::uint32_t i = 0; i < kEach; i++) {
    const float middle = static_cast<float>(threadIdx.x * kEach + i) + 0.5f;
    weights[i] = counts[i] * weight_of(bracket.start - middle / bracket.per_unit);
  }
  std::uint64_t total = 0;
  std::uint64_t weight_before = before + sum_before(weights[0] + weights[1], scratch, total);
  std::uint64_t counted = 0;
  std::uint64_t counted_before = sum_before(counts[0] + counts[1], scratch, counted);
  if (target == 0) target = core::share_of(total, scratch.params.top_p);
  std::uint32_t* up_to = scratch.bins.high;  // how many tokens lie in a bin and those before it
  if (threadIdx.x == 0) scratch.border_bin = kBins;
  __syncthreads();
#pragma unroll
  for (std::uint32_t i = 0; i < kEach; i++) {
    counted_before += counts[i];
    up_to[threadIdx.x * kEach + i] = static_cast<std::uint32_t>(counted_before);
    if (weight_before < target && weight_before + weights[i] >= target) {
      scratch.border_bin = threadIdx.x * kEach + i;
      scratch.told = weight_before;
    }
    weight_before += weights[i];
  }
  __syncthreads();
  const std::uint32_t border = scratch.border_bin;
  bracket.found = false;
  if (border == kBins) return;
  before = scratch.told;
  for (std::uint32_t margin = kMostMargin;; margin /= 2) {  // as wide as there is room: the weights are guesses
    bracket.first = border - min(border, margin);
    bracket.last = min(border + margin, std::uint32_t{kBins - 1});
    const std::uint32_t inside = up_to[bracket.last] - (bracket.first > 0 ? up_to[bracket.first - 1] : 0);
    bracket.found = inside <= (margin > 0 ? std::uint32_t{kThreads} : kListed);
    if (bracket.found || margin == 0) return;
  }
}

/// The same, twice if the border's bin has too many tokens: then its own bins.
template <class Part, class Filter>
__device__ __forceinline__ weight_bracket guess_bracket(const Part& part, const Filter& filter,
                                                        sample_scratch& scratch) {
  constexpr float kZoom = 256.0f;
  weight_bracket bracket;
  std::uint64_t before = 0;
  std::uint64_t target = 0;
#pragma unroll 1
  for (int i = 0; i < 2; i++) {
    guess_border(part, filter, bracket, before, target, scratch);
    if (bracket.found || scratch.border_bin == kBins || i > 0) break;
    bracket.start -= static_cast<float>(bracket.first) / bracket.per_unit;
    bracket.per_unit *= kZoom;
    cluster_sync();  // all have read the bins
  }
  return bracket;
}

}  // namespace shortlist::cuda::sampling
