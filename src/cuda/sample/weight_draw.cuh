// The draw from a row that is weighed: the border found among what may be kept, and the token drawn. See
// weight_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/sample/weight_guess.cuh"
#include "cuda/sample/weight_list.cuh"
#include "cuda/sample/weight_parts.cuh"

namespace shortlist::cuda::sampling::weighing {

/// What bins the listed tokens belong to, the best first.
struct listed_bins {
  bool tied;    // they differ by their tokens alone
  float first;  // exponent
  float per_unit;
  std::uint32_t token_shift;

  __device__ __forceinline__ listed_bins(const guessed_border& border, std::uint32_t columns)
      : tied(border.tied),
        first(border.flat() ? border.ceiling : 0.0f),
        per_unit(core::divide_once(static_cast<float>(kBorderBins), first - border.floor)),
        token_shift(range_shift(columns)) {
    static_assert(kBorderBins == kRangeBins);
  }
  __device__ __forceinline__ std::uint32_t of(float exponent, std::uint32_t token) const {
    if (tied) return token >> token_shift;
    const float bin = core::multiply_once(core::add_once(first, -exponent), per_unit);
    return min(__float2uint_rd(bin), std::uint32_t{kBorderBins - 1});  // 0 of what is below it
  }
};

/// Adds the lists' weights up in bins, which join the listed tokens, and tells all blocks these, the weight of all and
/// of what is above the ceiling, and whether a list was too short. All threads of the cluster come.
template <class Form>
__device__ __forceinline__ void share_weights(const weighed_sums& sums, bool flat, const row_filter& filter,
                                              const listed_bins& bins, const token_list& list,
                                              const weight_place<Form>& place) {
  weight_state<Form>& state = place.state;
  weight_scratch<Form>& scratch = place.scratch;
  list.for_each([&](listed_token& listed) {
    const float exponent = filter.exponent(listed.x);
    const std::uint32_t bin = bins.of(exponent, listed.token);
    listed.token |= bin << kTokenBits;
    scratch.bins.add(bin, weight_of(exponent));
  });
  const std::uint64_t all = sum_of_warp(sums.all);
  if (threadIdx.x % kWarp == 0) scratch.total.add(all);
  if (flat) {
    const std::uint64_t above = sum_of_warp(sums.above);
    if (threadIdx.x % kWarp == 0) scratch.above.add(above);
  }
  const bool crowded = __syncthreads_or(list.crowded()) != 0;
  if (threadIdx.x < kBorderBins) {
    const std::uint64_t mine = scratch.bins.value(threadIdx.x);
    std::uint64_t* to = place.bins_of(place.rank) + threadIdx.x;
    *to = mine;
    for (std::uint32_t b = 1; b < place.blocks; b++)
      send_to_block(to, (place.rank + b) & (place.blocks - 1), mine, &state.weighed);
  }
  constexpr std::uint32_t kOfBlocks = Form::kThreads - kWarp;  // a thread for each
  static_assert(kMostBlocks <= kWarp);
  if (threadIdx.x >= kOfBlocks && threadIdx.x < kOfBlocks + place.blocks) {
    const std::uint32_t block = threadIdx.x - kOfBlocks;
    const std::uint64_t total = scratch.total.value() + (crowded ? kCrowded : 0);
    const std::uint64_t above = scratch.above.value();
    if (block == place.rank) {
      scratch.block_total[block] = total;
      scratch.block_above[block] = above;
    } else {
      send_to_block(scratch.block_total + place.rank, block, total, &state.weighed);
      send_to_block(scratch.block_above + place.rank, block, above, &state.weighed);
    }
  }
  __syncthreads();
  barrier_wait(&state.weighed, 0);
}

/// The bin in which the weights reach top_p's share.
struct listed_border {
  std::uint32_t bin;
  std::uint64_t before;  // the weight of what is better
  std::uint64_t target;
  std::uint64_t all;  // weight
};

/// Finds the border's bin; every block for itself. @returns whether the lists have it, or need not; else what was wrong
/// has been learned; the same for all blocks.
template <class Stored, class Form>
__device__ __forceinline__ bool find_border(const listing<Stored>& listed_by, bool only_best,
                                            const weight_place<Form>& place, listed_border& border) {
  const guessed_border& guessed = listed_by.border;
  weight_scratch<Form>& scratch = place.scratch;
  std::uint64_t weight = 0;
  std::uint64_t all = 0;
  std::uint64_t above = 0;
  bool crowded = false;
  for_blocks(place.blocks, [&](std::uint32_t b) {
    if (threadIdx.x < kBorderBins) weight += place.bins_of(b)[threadIdx.x];
    const std::uint64_t of_block = scratch.block_total[b];
    crowded = crowded || (of_block & kCrowded) != 0;
    all += of_block & ~kCrowded;
    above += scratch.block_above[b];
  });
  const auto learn = [&](std::uint64_t reaching, float exponent) {
    const float share = __ull2float_rn(reaching) / __ull2float_rn(all);
    if (threadIdx.x == 0) place.state.learned = {crowded, false, 0.0f, exponent, share};
    return false;
  };
  const bool knows_above = guessed.flat() && above > 0;
  if (crowded) return learn(above, knows_above ? listed_by.least_above() : 0.0f);
  // Of a share of nothing, the first token is kept.
  const core::row_params& params = place.state.params;
  const std::uint64_t share = only_best ? 0 : params.top_p_off ? all : core::share_of(all, params.top_p);
  const std::uint64_t target = max(share, std::uint64_t{1});
  border = {0, above, target, all};
  if (guessed.by_least()) return above <= target || learn(above, listed_by.least_above());
  std::uint64_t listed = 0;
  const std::uint64_t before = above + sum_before_in(weight, scratch.warp_sums, listed);
  if (above >= target) return learn(above, listed_by.least_above());
  if (above + listed < target) return learn(above + listed, listed_by.least_listed());
  if (before < target && before + weight >= target) {
    scratch.told_bin = threadIdx.x;
    scratch.told = before;
  }
  __syncthreads();
  border = {scratch.told_bin, scratch.told, target, all};
  return true;
}

/// Adds up what this block keeps before the border, by ranges of its columns, and tells all blocks how much that is,
/// and the border's tokens. What is above the ceiling is in the ranges already. @returns whether there is room for
/// them; the same for all blocks. All threads of the cluster come.
template <class Form>
__device__ __forceinline__ bool share_border(const weighed_sums& sums, const row_filter& filter, const token_list& list,
                                             const listed_border& border, const column_ranges& ranges,
                                             const weight_place<Form>& place) {
  weight_state<Form>& state = place.state;
  weight_scratch<Form>& scratch = place.scratch;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const float least_kept = minimum_exponent(state.params);
  std::uint64_t weight = sums.above;
  std::uint32_t kept = sums.count_above;
  list.for_each([&](const listed_token& listed) {
    const std::uint32_t bin = listed.token >> kTokenBits;
    const std::uint32_t token = listed.token & kTokenMask;
    const float exponent = filter.exponent(listed.x);
    const bool keeps = bin < border.bin && exponent >= least_kept;
    const std::uint64_t of_token = keeps ? weight_of(exponent) : 0;
    kept += keeps ? 1 : 0;
    weight += of_token;
    scratch.ranges.add(ranges.of(token), of_token);
    if (bin != border.bin) return;
    const std::uint32_t at = atomicAdd(&scratch.bordering, 1u);
    if (at >= place.share()) return;
    std::uint64_t* to = place.border + place.rank * place.share() + at;
    const std::uint64_t key = key_of_logit(listed.x, token);
    *to = key;
    for (std::uint32_t b = 1; b < place.blocks; b++)
      send_to_block(to, (place.rank + b) & (place.blocks - 1), key, &state.told);
  });
  weight = sum_of_warp(weight);
  kept = __reduce_add_sync(kFullWarp, kept);
  if (lane == 0) {
    scratch.kept.add(weight);
    if (kept != 0) atomicAdd(&scratch.kept_count, kept);
  }
  __syncthreads();
  if (threadIdx.x < place.blocks) {
    const std::uint32_t block = threadIdx.x;
    weight = scratch.kept.value();
    kept = scratch.kept_count;
    const std::uint32_t bordering = scratch.bordering;
    if (block == place.rank) {
      scratch.block_kept[block] = weight;
      scratch.block_kept_count[block] = kept;
      scratch.block_border[block] = bordering;
      expect_in_block(&state.told, block, 0);
    } else {
      expect_in_block(&state.told, block,
                      sizeof(std::uint64_t) * (1 + min(bordering, place.share())) + 2 * sizeof(std::uint32_t));
      send_to_block(scratch.block_kept + place.rank, block, weight, &state.told);
      send_to_block(scratch.block_kept_count + place.rank, block, kept, &state.told);
      send_to_block(scratch.block_border + place.rank, block, bordering, &state.told);
    }
  }
  __syncthreads();
  barrier_wait(&state.told, 0);
  return __all_sync(kFullWarp, lane >= place.blocks || scratch.block_border[lane] <= place.share()) != 0;
}

/// Whether all border tokens that there was room for have the same logit; the same for all blocks.
template <class Form>
__device__ __forceinline__ bool is_tied(const weight_place<Form>& place, float& logit) {
  weight_scratch<Form>& scratch = place.scratch;
  for (std::uint32_t b = 0; b < place.blocks; b++) {
    const std::uint32_t there = min(scratch.block_border[b], place.share());
    for (std::uint32_t i = threadIdx.x; i < there; i += Form::kThreads) {
      const std::uint32_t key = core::key_of(place.border[b * place.share() + i]);
      atomicMin(&scratch.least_tied, key);
      atomicMax(&scratch.most_tied, key);
    }
  }
  __syncthreads();
  logit = core::from_ascending_key(scratch.least_tied);
  return scratch.least_tied == scratch.most_tied;
}

/// Moves the border's tokens together.
template <class Form>
__device__ __forceinline__ void join_border(const weight_place<Form>& place) {
  const weight_scratch<Form>& scratch = place.scratch;
  std::uint32_t n = scratch.block_border[0];
  for (std::uint32_t b = 1; b < place.blocks; b++) {
    const std::uint32_t more = scratch.block_border[b];
    const std::uint64_t* from = place.border + b * place.share();
    for (std::uint32_t start = 0; start < more; start += Form::kThreads) {
      const std::uint32_t i = start + threadIdx.x;
      const std::uint64_t key = i < more ? from[i] : core::kNoRow;
      __syncthreads();  // these have been read
      if (i < more) place.border[n + i] = key;
    }
    n += more;
  }
  __syncthreads();
}

/// Decides one of the border's tokens. @param before the weight of all better ones. @returns whether it is kept.
template <class Stored, class Form>
__device__ __forceinline__ bool decide(const weighed_key& mine, float exponent, std::uint64_t before,
                                       const listed_border& border, const row_pieces<Stored, Form>& all,
                                       const column_ranges& ranges, const weight_place<Form>& place) {
  weight_scratch<Form>& scratch = place.scratch;
  if (before >= border.target) return false;
  if (before + mine.weight >= border.target) scratch.cut = mine.key;  // the last
  if (!(exponent >= minimum_exponent(place.state.params))) return false;
  const std::uint32_t token = core::position_of(mine.key);
  std::uint32_t block = 0;
  for (std::uint32_t more = place.blocks / 2; more > 0; more /= 2)
    if (token >= all.first_of(block + more)) block += more;
  auto* words = reinterpret_cast<std::uint32_t*>(scratch.block_kept + block);
  add_in_words(words[0], words[1], mine.weight);
  if (block == place.rank) scratch.ranges.add(ranges.of(token), mine.weight);
  return true;
}

/// Decides the border. @returns how many of its tokens are kept; every block finds the same.
template <class Stored, class Form>
__device__ __forceinline__ std::uint32_t settle_border(const row_pieces<Stored, Form>& all, const row_filter& filter,
                                                       const listed_border& border, const column_ranges& ranges,
                                                       const weight_place<Form>& place) {
  weight_scratch<Form>& scratch = place.scratch;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t of_block = lane < place.blocks ? scratch.block_border[lane] : 0;
  const std::uint32_t n = __reduce_add_sync(kFullWarp, of_block);
  if (n > Form::kThreads / 2) {
    join_border(place);
    std::uint32_t kept = 0;
    std::uint64_t ahead = border.before;
    const std::uint32_t padded = 1u << (32 - __clz(static_cast<int>(n - 1)));
    for (std::uint32_t i = n + threadIdx.x; i < padded; i += Form::kThreads) place.border[i] = core::kNoRow;
    block_sort<Form::kThreads>(place.border, padded);
    __syncthreads();
    for (std::uint32_t start = 0; start < n && ahead < border.target; start += Form::kThreads) {
      const std::uint32_t i = start + threadIdx.x;
      const std::uint64_t key = i < n ? place.border[i] : core::kNoRow;
      const float exponent = filter.exponent_of_key(key);
      const std::uint64_t weight = i < n ? weight_of(exponent) : 0;
      std::uint64_t total = 0;
      const std::uint64_t before = ahead + sum_before_in(weight, scratch.warp_sums, total);
      const bool keeps = i < n && decide({key, weight}, exponent, before, border, all, ranges, place);
      kept += static_cast<std::uint32_t>(__syncthreads_count(keeps));
      ahead += total;
    }
    return kept;
  }
  auto* pairs = reinterpret_cast<weighed_key*>(place.bins_told);
  const std::uint32_t up_to = running_sum(of_block);
  const std::uint32_t log_blocks = shift_of(place.blocks);
  const std::uint32_t block = threadIdx.x & (place.blocks - 1);  // blocks' tokens have as many threads each
  const std::uint32_t count = __shfl_sync(kFullWarp, of_block, static_cast<int>(block));
  const std::uint32_t ahead = __shfl_sync(kFullWarp, up_to, static_cast<int>(block)) - count;
  for (std::uint32_t i = threadIdx.x >> log_blocks; i < count; i += Form::kThreads >> log_blocks) {
    const std::uint64_t key = place.border[block * place.share() + i];
    pairs[ahead + i] = {key, weight_of(filter.exponent_of_key(key))};
  }
  __syncthreads();
  std::uint32_t shift = 1;  // 2^shift threads compare for one key
  while (shift < 5 && n << (shift + 1) <= Form::kThreads) shift++;
  const std::uint32_t helper = threadIdx.x & ((1u << shift) - 1);
  const std::uint32_t slot = threadIdx.x >> shift;
  const weighed_key mine = slot < n ? pairs[slot] : weighed_key{core::kNoRow, 0};
  std::uint64_t before = 0;
#pragma unroll 2
  for (std::uint32_t j = helper; j < n; j += 1u << shift) {
    const weighed_key other = pairs[j];
    before += other.key > mine.key ? other.weight : 0;
  }
#pragma unroll 1
  for (std::uint32_t apart = 1u << (shift - 1); apart > 0; apart /= 2)
    before += __shfl_xor_sync(kFullWarp, before, static_cast<int>(apart));
  const bool keeps = slot < n && helper == 0 &&
                     decide(mine, filter.exponent_of_key(mine.key), border.before + before, border, all, ranges, place);
  return static_cast<std::uint32_t>(__syncthreads_count(keeps));
}

/// The range of columns that the draw lies in. All threads of the block come. @param remainder then of the range's
/// weight, too
template <class Form>
__device__ __forceinline__ std::uint32_t drawn_range(std::uint64_t& remainder, const weight_place<Form>& place) {
  weight_scratch<Form>& scratch = place.scratch;
  const std::uint64_t weight = threadIdx.x < kRangeBins ? scratch.ranges.value(threadIdx.x) : 0;
  std::uint64_t total = 0;
  const std::uint64_t ahead = sum_before_in(weight, scratch.warp_sums, total);
  if (ahead <= remainder && remainder < ahead + weight) {
    scratch.told_bin = threadIdx.x;
    scratch.told = ahead;
  }
  __syncthreads();
  remainder -= scratch.told;
  return scratch.told_bin;
}

/// Draws the token from what the block keeps: the range of columns that it lies in, then the token. All threads of the
/// block come. @param remainder of the block's kept weight, the draw lies behind so much. @param kept of the row
template <class Form>
__device__ __forceinline__ void draw_token(const core::sample_request& request, std::int64_t index,
                                           const row_filter& filter, const token_list& list,
                                           const listed_border& border, const column_ranges& ranges,
                                           std::uint64_t remainder, std::uint32_t kept,
                                           const weight_place<Form>& place) {
  struct weighed_token {
    std::uint64_t weight;
    std::uint32_t token;
    float exponent;
  };
  weight_scratch<Form>& scratch = place.scratch;
  const float least_kept = minimum_exponent(place.state.params);
  const std::uint64_t cut = scratch.cut;
  const std::uint32_t range = drawn_range(remainder, place);
  auto* found = reinterpret_cast<weighed_token*>(place.border);
  list.for_each([&](const listed_token& listed) {
    const std::uint32_t token = listed.token & kTokenMask;
    const std::uint32_t bin = listed.token >> kTokenBits;
    if (ranges.of(token) != range || bin > border.bin) return;
    const float exponent = filter.exponent(listed.x);
    if (!(exponent >= least_kept) || (bin == border.bin && key_of_logit(listed.x, token) < cut)) return;
    found[atomicAdd(&scratch.in_range, 1u)] = {weight_of(exponent), token, exponent};
  });
  __syncthreads();
  const std::uint32_t n = scratch.in_range;
  for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads) {
    const weighed_token mine = found[i];
    std::uint64_t sum = 0;
    for (std::uint32_t other = 0; other < n; other++)
      if (found[other].token < mine.token) sum += found[other].weight;
    if (sum <= remainder && remainder < sum + mine.weight)
      write_draw(request.out, index, mine.token, mine.exponent, border.all, kept);
  }
}

/// The same of a flat row, of which the range is read again.
template <class Stored, class Form>
__device__ __forceinline__ void draw_token_again(const core::sample_request& request, std::int64_t index,
                                                 const row_pieces<Stored, Form>& all, const row_filter& filter,
                                                 const listed_border& border, const column_ranges& ranges,
                                                 std::uint64_t remainder, std::uint32_t kept,
                                                 const weight_place<Form>& place) {
  weight_scratch<Form>& scratch = place.scratch;
  const row_filter keeps{filter.largest, filter.steepness, scratch.cut, minimum_exponent(place.state.params)};
  const std::uint32_t range = drawn_range(remainder, place);
  const auto* values = static_cast<const Stored*>(request.logits.data) + index * request.logits.row_stride;
  const std::uint32_t first = range == 0 ? all.first_of(place.rank) : ranges.first + (range << ranges.shift);
  const std::uint32_t behind = min(ranges.first + ((range + 1) << ranges.shift), all.first_of(place.rank + 1));
  const std::uint32_t each = (behind - first + Form::kThreads - 1) / Form::kThreads;
  const std::uint32_t begin = min(first + threadIdx.x * each, behind);
  const std::uint32_t end = min(begin + each, behind);
  std::uint64_t weight = 0;
#pragma unroll 4
  for (std::uint32_t token = begin; token < end; token++) {
    const float x = core::widen(values[token]);
    weight += keeps.passes(x, token) ? weight_of(keeps.exponent(x)) : 0;
  }
  std::uint64_t total = 0;
  std::uint64_t sum = sum_before_in(weight, scratch.warp_sums, total);
  if (sum > remainder || remainder >= sum + weight) return;
  for (std::uint32_t token = begin; token < end; token++) {
    const float x = core::widen(values[token]);
    const float exponent = keeps.exponent(x);
    sum += keeps.passes(x, token) ? weight_of(exponent) : 0;
    if (sum <= remainder) continue;
    write_draw(request.out, index, token, exponent, border.all, kept);
    return;
  }
}

/// How a turn ended.
enum class turn_end : std::uint8_t {
  drawn,
  wrong,    // a guess was, or a list was too short: another knows more
  hopeless  // another would be no better
};

/// Filters by top_p and min_p, and draws. @param least of the lane's logits in vectors. @returns the same for all
/// blocks. All threads of the cluster come.
template <class Stored, class Form>
__device__ __forceinline__ turn_end draw_by_weight(const core::sample_request& request, std::int64_t index,
                                                   const row_pieces<Stored, Form>& all,
                                                   const row_part_of_warp<Stored, Form>& part, float least,
                                                   const row_filter& filter, const weight_place<Form>& place) {
  const core::row_params& params = place.state.params;
  const learned_border& learned = place.state.learned;
  const bool only_best = wanted_by_count(params) == 1;
  token_list list(part.slots, part.slot_count);
  const float least_kept = minimum_exponent(params);
  const bool tied = learned.tied && filter.exponent(learned.logit) >= least_kept;  // else what min_p keeps is all
  guessed_border guessed = tied ? guessed_border::of_logit(learned.logit) : guessed_border::of_least(least_kept);
  const bool guesses = (only_best || !params.top_p_off) && !learned.tied;
  const bool knows = !guesses || guess_border(filter, only_best, Form::kWarps * list.room(), place, guessed);
  if (!knows) return turn_end::hopeless;
  const bool flat = guessed.flat();
  const whole_row_filter whole{filter};
  const listing<Stored> listed(whole, guessed, !params.min_p_off);
  const column_ranges ranges = ranges_of(all, place.rank, flat);
  const weighed_sums sums = weigh_and_list(part, whole, listed, ranges, place, least, list);
  share_weights(sums, flat, filter, listed_bins(guessed, all.columns), list, place);

  listed_border border{};
  const turn_end if_wrong = only_best || guessed.tied ? turn_end::hopeless : turn_end::wrong;
  if (!find_border(listed, only_best, place, border)) return if_wrong;
  if (!share_border(sums, filter, list, border, ranges, place)) {
    float logit;
    if (!is_tied(place, logit)) return turn_end::hopeless;
    if (threadIdx.x == 0) place.state.learned = {false, true, logit, 0.0f, 0.0f};
    return if_wrong;
  }
  std::uint32_t kept = settle_border(all, filter, border, ranges, place);
  const weight_scratch<Form>& scratch = place.scratch;
  std::uint64_t weight = 0;
  for (std::uint32_t b = 0; b < place.blocks; b++) {
    weight += scratch.block_kept[b];
    kept += scratch.block_kept_count[b];
  }
  std::uint64_t remainder = core::drawn_of(weight, place.state.random);
  std::uint32_t drawn = 0;
  for (; drawn + 1 < place.blocks && scratch.block_kept[drawn] <= remainder; drawn++)
    remainder -= scratch.block_kept[drawn];
  if (drawn != place.rank) return turn_end::drawn;
  if (flat)
    draw_token_again(request, index, all, filter, border, ranges, remainder, kept, place);
  else
    draw_token(request, index, filter, list, border, ranges, remainder, kept, place);
  return turn_end::drawn;
}

}  // namespace shortlist::cuda::sampling::weighing
