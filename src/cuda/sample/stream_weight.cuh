// The draw from a streamed row of which top_p alone decides what is kept. See stream_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/sample/row_choice.cuh"
#include "cuda/sample/row_load.cuh"
#include "cuda/sample/stream_parts.cuh"

namespace shortlist::cuda::sampling {

constexpr std::uint32_t kMostRange = kListed * kThreads;  // tokens of a block, for the draw

/// An exponent that hardly any but what top_p keeps should reach, and all of it should: from the threads' largest
/// logits, which hold most of the weight, and a sample of the rest. All threads of the cluster come; all blocks find
/// the same. @returns 0 if there is none, or too much reaches it.
template <class Stored>
__device__ __forceinline__ float guess_floor(const logit_stream<Stored>& stream, const whole_row_filter& filter,
                                             float most, const cluster_place& place, stream_scratch& scratch) {
  constexpr float kLost = 0.75f;  // of the weight that top_p drops may lie below
  constexpr std::uint32_t kOctaveBins = 8;
  constexpr int kSampled = sizeof(Stored) == 4 ? 2 : 1;
  constexpr std::uint32_t kUsed = kThreads;  // bins: 32 octaves
  sample_scratch& row = scratch.row;
  clear_bins(row);
  const auto count = [&](float x, std::uint32_t many) {
    const float bin = core::multiply_once(filter.exponent(x), -static_cast<float>(kOctaveBins));
    if (bin >= 0.0f && bin < static_cast<float>(kUsed)) atomicAdd(&row.bins.low[static_cast<std::uint32_t>(bin)], many);
  };
  count(most, 1);
  const std::uint32_t each = max(1u, stream.rounds / kSampled);
#pragma unroll
  for (int v = 0; v < kSampled; v++) {
    const std::uint32_t j = v * (stream.held_rounds() / kSampled);
    if (j * stream.step * kThreads + threadIdx.x >= stream.count) continue;
    float x[16 / sizeof(Stored)];
    widen_values<Stored>(stream.held[j * kThreads], x);
#pragma unroll
    for (std::uint32_t e = 0; e < 16 / sizeof(Stored); e++)
      if (x[e] < most) count(x[e], each);
  }
  cluster_sync();
  std::uint32_t tokens = 0;
#pragma unroll
  for (int b = 0; b < kMostBlocks; b++)
    if (b < static_cast<int>(place.blocks)) tokens += of_block(row.bins.low, b)[threadIdx.x];
  const float exponent = -(static_cast<float>(threadIdx.x) + 0.5f) / static_cast<float>(kOctaveBins);
  const std::uint64_t weight = tokens * weight_of(exponent);
  if (threadIdx.x == 0) row.border_bin = kUsed;
  two_sums total{};
  const two_sums before = sums_before({weight, tokens}, scratch, total);
  const float most_lost = kLost * static_cast<float>(total.weight - core::share_of(total.weight, row.params.top_p));
  const bool enough = static_cast<float>(total.weight - before.weight - weight) <= most_lost;
  // The first thread that has enough: others before it have not.
  const bool first = enough && (threadIdx.x == 0 || static_cast<float>(total.weight - before.weight) > most_lost);
  if (first) row.border_bin = before.count + tokens > place.capacity * place.blocks ? kUsed : threadIdx.x + 1;
  __syncthreads();
  const std::uint32_t end = row.border_bin;
  return end == kUsed ? 0.0f : -static_cast<float>(end) / static_cast<float>(kOctaveBins);
}

/// What the blocks list of a row: the tokens whose exponents reach a floor, in bins of exponents.
struct weighed_list {
  float floor;
  float per_unit;
  std::uint32_t own = 0;  // listed by this block

  __device__ __forceinline__ explicit weighed_list(float least)
      : floor(least), per_unit(core::divide_once(static_cast<float>(kBins), least)) {}
  __device__ __forceinline__ std::uint32_t bin_of(float exponent) const {
    return min(static_cast<std::uint32_t>(core::multiply_once(exponent, per_unit)), std::uint32_t{kBins - 1});
  }
};

/// Weighs all that the block has, lists what reaches the floor, and adds its weights up in bins. All blocks' sums are
/// there after it. All threads of the cluster come.
template <class Stored>
__device__ __forceinline__ void weigh_and_list(const logit_stream<Stored>& stream, const whole_row_filter& filter,
                                               weighed_list& list, const cluster_place& place,
                                               stream_scratch& scratch) {
  sample_scratch& row = scratch.row;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  std::uint64_t sum = 0;
  const auto mark = [&](uint4 raw) {
    float x[16 / sizeof(Stored)];
    widen_values<Stored>(raw, x);
    std::uint32_t marks = 0;
#pragma unroll
    for (std::uint32_t e = 0; e < 16 / sizeof(Stored); e++) {
      const float exponent = filter.exponent(x[e]);
      sum += weight_of(exponent);
      marks |= exponent >= list.floor ? 1u << e : 0u;
    }
    return marks;
  };
  const auto room = [&](std::uint32_t count) { return atomicAdd(&row.appended, count); };
  const auto take = [&](std::uint32_t at, float x, std::uint32_t token) {
    if (at < place.capacity) place.own[at] = key_of_logit(x, token);
  };
  if (stream.has_edge) {
    const float exponent = filter.exponent(stream.edge);
    sum += weight_of(exponent);
    if (exponent >= list.floor) take(room(1), stream.edge, stream.edge_column);
  }
  stream.template for_each_vector<true>(mark, room, take);
  if (stream.step > 1) stream.template for_each_vector<false>(mark, room, take);
  cluster_sync();  // all have read the bins of the guess
  clear_bins(row);
  sum = sum_of_warp(sum);
  if (lane < place.blocks) of_block(row.segment_weight, lane)[place.rank * kWarps + warp] = sum;
  const std::uint32_t appended = row.appended;
  list.own = min(appended, place.capacity);
  for (std::uint32_t i = threadIdx.x; i < list.own; i += kThreads) {
    const float exponent = filter.exponent_of_key(place.own[i]);
    add_to_bin(row, list.bin_of(exponent), weight_of(exponent));
  }
  tell_blocks(scratch.block_own, place, appended);
  cluster_sync();
}

/// The bin in which the weights reach top_p's share.
struct listed_border {
  std::uint32_t bin;
  std::uint64_t before;  // the weight of the bins before it
  std::uint64_t target;
};

/// Finds the border's bin; every block for itself. @returns whether the lists have it; the same for all blocks.
__device__ __forceinline__ bool find_border(const cluster_place& place, stream_scratch& scratch,
                                            listed_border& border) {
  sample_scratch& row = scratch.row;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const bool fits = __all_sync(kFullWarp, lane >= place.blocks || scratch.block_own[lane] <= place.capacity);
  if (!fits) return false;
  const std::uint32_t segments = place.blocks * kWarps;
  const std::uint64_t total = sum_of_warp((lane < segments ? row.segment_weight[lane] : 0) +
                                          (lane + kWarp < segments ? row.segment_weight[lane + kWarp] : 0));
  std::uint64_t weights[2]{};
#pragma unroll
  for (int b = 0; b < kMostBlocks; b++) {
    if (b >= static_cast<int>(place.blocks)) continue;
    const auto* there = of_block(&row, b);
    const uint2 low = *reinterpret_cast<const uint2*>(there->bins.low + 2 * threadIdx.x);
    const uint2 high = *reinterpret_cast<const uint2*>(there->bins.high + 2 * threadIdx.x);
    weights[0] += (static_cast<std::uint64_t>(high.x) << 32) + low.x;
    weights[1] += (static_cast<std::uint64_t>(high.y) << 32) + low.y;
  }
  const std::uint64_t target = core::share_of(total, row.params.top_p);
  std::uint64_t listed = 0;
  const std::uint64_t before = sum_before(weights[0] + weights[1], row, listed);
  if (target == 0 || listed < target) return false;
  if (before < target && before + weights[0] + weights[1] >= target) {
    const bool second = before + weights[0] < target;
    row.border_bin = 2 * threadIdx.x + (second ? 1 : 0);
    row.told = before + (second ? weights[0] : 0);
  }
  if (threadIdx.x == 0) row.listed = 0;
  __syncthreads();
  border = {row.border_bin, row.told, target};
  return true;
}

/// Where the first block collects the border's tokens, of which equal logits may make many: memory that held the row.
struct border_room {
  std::uint64_t* keys;
  std::uint32_t capacity;  // a power of two

  __device__ __forceinline__ std::uint32_t share(std::uint32_t blocks) const { return capacity >> shift_of(blocks); }
};

/// Sums up what the block keeps before the border, and gives the border's tokens and the sums to the first block.
/// @returns whether it has room for them; the same for all blocks.
__device__ __forceinline__ bool hand_border(const row_filter& filter, const weighed_list& list,
                                            const listed_border& border, const border_room& room, float least_kept,
                                            const cluster_place& place, stream_scratch& scratch) {
  sample_scratch& row = scratch.row;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  std::uint64_t kept_weight = 0;
  std::uint32_t kept = 0;
  const std::uint32_t share = room.share(place.blocks);
  std::uint64_t* to = of_block(room.keys, 0) + place.rank * share;
  for (std::uint32_t i = threadIdx.x; i < list.own; i += kThreads) {
    const std::uint64_t key = place.own[i];
    const float exponent = filter.exponent_of_key(key);
    const std::uint32_t bin = list.bin_of(exponent);
    if (bin < border.bin && exponent >= least_kept) {
      kept_weight += weight_of(exponent);
      kept++;
    } else if (bin == border.bin) {
      const std::uint32_t at = atomicAdd(&row.listed, 1u);
      if (at < share) to[at] = key;
    }
  }
  kept_weight = sum_of_warp(kept_weight);
  kept = __reduce_add_sync(kFullWarp, kept);
  if (lane == 0) {
    of_block(row.segment_kept_weight, 0)[place.rank * kWarps + warp] = kept_weight;
    of_block(row.segment_kept, 0)[place.rank * kWarps + warp] = kept;
  }
  __syncthreads();  // all of the border's are counted
  tell_blocks(row.block_listed, place, row.listed);
  cluster_sync();
  std::uint32_t ends[kMostBlocks];
  return shares_of(place.blocks, share, row, ends);
}

/// Moves the border's tokens together. @returns how many there are. The first block comes.
__device__ __forceinline__ std::uint32_t join_border(const border_room& room, std::uint32_t blocks,
                                                     const sample_scratch& row) {
  const std::uint32_t share = room.share(blocks);
  std::uint32_t ends[kMostBlocks];
  shares_of(blocks, share, row, ends);
  const std::uint32_t n = ends[kMostBlocks - 1];
  for (std::uint32_t start = 0; start < n; start += kThreads) {
    const std::uint32_t place = start + threadIdx.x;
    std::uint32_t from = place;  // never before it
#pragma unroll
    for (int b = 0; b < kMostBlocks - 1; b++)
      if (place >= ends[b]) from = (b + 1) * share + place - ends[b];
    const std::uint64_t key = place < n ? room.keys[from] : core::kNoRow;
    __syncthreads();  // these have been read
    if (place < n) room.keys[place] = key;
    __syncthreads();
  }
  return n;
}

/// Decides the border, and draws the block that has the token: all blocks are told. The first block comes.
template <class Stored>
__device__ __forceinline__ void draw_block(const logit_stream<Stored>& stream, const row_filter& filter,
                                           const listed_border& border, const border_room& room, float least_kept,
                                           const cluster_place& place, stream_scratch& scratch) {
  sample_scratch& row = scratch.row;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t n = join_border(room, place.blocks, row);
  const std::uint64_t* keys = in_order(room.keys, row.ordered, n);
  const std::uint32_t by_weight = count_by_weight(keys, n, border.before, border.target, filter, row);
  const std::uint32_t of_border =
      count_first(keys, by_weight, [&](std::uint64_t key) { return filter.exponent_of_key(key) >= least_kept; });
  for (std::uint32_t i = threadIdx.x; i < of_border; i += kThreads) {
    const std::uint32_t block = stream.block_of(core::position_of(keys[i]), place.blocks);
    auto* words = reinterpret_cast<std::uint32_t*>(&row.segment_kept_weight[block * kWarps]);
    add_in_words(words[0], words[1], weight_of(filter.exponent_of_key(keys[i])));
  }
  __syncthreads();
  if (warp == 0) {  // the block that the draw falls into: a lane for two warps' sums
    drawn_segment drawn{.cut = keys[by_weight - 1], .found = true};
    const bool two = lane * 2 < place.blocks * kWarps;
    const std::uint64_t mine = two ? row.segment_kept_weight[2 * lane] + row.segment_kept_weight[2 * lane + 1] : 0;
    drawn.kept =
        of_border + __reduce_add_sync(kFullWarp, two ? row.segment_kept[2 * lane] + row.segment_kept[2 * lane + 1] : 0);
    const std::uint64_t of_blocks = running_sum(mine);
    const std::uint64_t all_kept = __shfl_sync(kFullWarp, of_blocks, kWarp - 1);
    const std::uint64_t drawn_weight = core::drawn_of(all_kept, core::philox(row.params.seed, row.params.offset));
    const std::uint32_t reached = __popc(__ballot_sync(kFullWarp, of_blocks <= drawn_weight));  // lanes before it
    drawn.segment = reached * 2 / kWarps;
    const std::uint32_t first_lane = drawn.segment * kWarps / 2;
    const std::uint64_t ahead = __shfl_sync(kFullWarp, of_blocks - mine, first_lane);
    drawn.remainder = drawn_weight - ahead;
    if (lane < place.blocks) *of_block(&row.drawn, lane) = drawn;
  }
}

/// Draws the token from the block's list: the range of tokens that it lies in, then the token. The drawn block comes.
template <class Stored>
__device__ __forceinline__ void draw_from_block(const core::sample_request& request, std::int64_t index,
                                                const logit_stream<Stored>& stream, const row_filter& filter,
                                                std::uint32_t own, float least_kept, const cluster_place& place,
                                                stream_scratch& scratch) {
  sample_scratch& row = scratch.row;
  const drawn_segment drawn = row.drawn;
  const std::uint32_t first = place.rank == 0 ? 0 : stream.first_column;
  const std::uint32_t tokens = stream.head + (stream.piece + 1) * logit_stream<Stored>::kPerVector;  // or fewer
  const std::uint32_t shift = max(32 - __clz(static_cast<int>(tokens)), 8) - 8;
  static_assert(kThreads == 256);
  const auto is_kept = [&](std::uint64_t key) { return key >= drawn.cut && filter.exponent_of_key(key) >= least_kept; };
  clear_bins(row);
  if (threadIdx.x == 0) scratch.in_range = 0;
  for (std::uint32_t i = threadIdx.x; i < own; i += kThreads) {
    const std::uint64_t key = place.own[i];
    if (is_kept(key))
      add_to_bin(row, (core::position_of(key) - first) >> shift, weight_of(filter.exponent_of_key(key)));
  }
  __syncthreads();
  const std::uint64_t mine = (static_cast<std::uint64_t>(row.bins.high[threadIdx.x]) << 32) + row.bins.low[threadIdx.x];
  std::uint64_t of_all = 0;
  const std::uint64_t ahead = sum_before(mine, row, of_all);
  if (ahead <= drawn.remainder && drawn.remainder < ahead + mine) {
    row.border_bin = threadIdx.x;
    row.told = drawn.remainder - ahead;
  }
  __syncthreads();
  const std::uint32_t range = row.border_bin;
  const std::uint64_t remainder = row.told;
  for (std::uint32_t i = threadIdx.x; i < own; i += kThreads) {
    const std::uint64_t key = place.own[i];
    if ((core::position_of(key) - first) >> shift == range && is_kept(key))
      row.list[atomicAdd(&scratch.in_range, 1u)] = key;
  }
  __syncthreads();
  const std::uint32_t n = scratch.in_range;
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) {
    const std::uint32_t token = core::position_of(row.list[i]);
    std::uint64_t up_to = 0;
    for (std::uint32_t other = 0; other < n; other++) {
      const std::uint64_t key = row.list[other];
      if (core::position_of(key) < token) up_to += weight_of(filter.exponent_of_key(key));
    }
    const float exponent = filter.exponent_of_key(row.list[i]);
    if (up_to <= remainder && remainder < up_to + weight_of(exponent))
      write_draw(request.out, index, token, exponent, 0, drawn.kept);
  }
}

/// Filters by top_p and draws: one weighing of all logits, and lists of what may be kept. @returns false if the guess
/// was wrong or a list too short; the same for all blocks. All threads of the cluster come.
template <class Stored>
__device__ __forceinline__ bool draw_by_weight(const core::sample_request& request, std::int64_t index,
                                               const logit_stream<Stored>& stream, const whole_row_filter& filter,
                                               float most, const border_room& room, const cluster_place& place,
                                               stream_scratch& scratch) {
  const float floor = guess_floor(stream, filter, most, place, scratch);
  if (!(floor < 0.0f)) return false;
  weighed_list list(floor);
  weigh_and_list(stream, filter, list, place, scratch);
  listed_border border{};
  if (!find_border(place, scratch, border)) return false;
  const float least_kept = minimum_exponent(scratch.row.params);
  if (!hand_border(filter, list, border, room, least_kept, place, scratch)) return false;
  if (place.rank == 0) draw_block(stream, filter, border, room, least_kept, place, scratch);
  cluster_sync();
  if (scratch.row.drawn.segment == place.rank)
    draw_from_block(request, index, stream, filter, list.own, least_kept, place, scratch);
  return true;
}

}  // namespace shortlist::cuda::sampling
