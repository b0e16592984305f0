// The draw from a whole row, where more is kept than a list holds: weights of segments, and then one segment. And what
// a row's result is. See sample_rows.cu.
#pragma once

#include <type_traits>

#include "cuda/sample/row_list.cuh"

namespace shortlist::cuda::sampling {

__device__ __forceinline__ void write_token(const sample_output& out, std::int64_t row, std::int64_t token) {
  if (out.tokens_as == index_type::i32)
    static_cast<std::int32_t*>(out.tokens)[row] = static_cast<std::int32_t>(token);
  else
    static_cast<std::int64_t*>(out.tokens)[row] = token;
}

/// A row that has no token. All threads of a block come.
__device__ __forceinline__ void write_failure(const sample_output& out, std::int64_t row, sample_status status) {
  const float none = core::float_from_bits(core::kCanonicalNan);
  if (threadIdx.x == 0) {
    write_token(out, row, -1);
    if (out.status) out.status[row] = status;
    if (out.logprobs) out.logprobs[row] = none;
    if (out.kept) out.kept[row] = 0;
  }
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < out.top_n; i += kThreads) {
    if (out.top_tokens) out.top_tokens[row * out.top_n + i] = -1;
    if (out.top_logprobs) out.top_logprobs[row * out.top_n + i] = none;
  }
}

/// A row's token. One thread comes.
__device__ __forceinline__ void write_draw(const sample_output& out, std::int64_t row, std::uint32_t token,
                                           float exponent, std::uint64_t full, std::uint32_t kept) {
  write_token(out, row, token);
  if (out.status) out.status[row] = sample_status::ok;
  if (out.logprobs) out.logprobs[row] = core::log_probability(exponent, full);
  if (out.kept) out.kept[row] = static_cast<std::int32_t>(kept);
}

/// The best tokens, of keys[0, n) in order. All threads of a block come.
__device__ __forceinline__ void write_best(const sample_output& out, std::int64_t row, const std::uint64_t* keys,
                                           std::uint32_t n, const row_filter& filter, std::uint64_t full) {
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < out.top_n; i += kThreads) {
    const bool there = i < static_cast<std::int32_t>(n);
    const std::int64_t to = row * out.top_n + i;
    if (out.top_tokens) out.top_tokens[to] = there ? static_cast<std::int32_t>(core::position_of(keys[i])) : -1;
    if (out.top_logprobs)
      out.top_logprobs[to] =
          there ? core::log_probability(filter.exponent_of_key(keys[i]), full) : core::float_from_bits(0xFF800000u);
  }
}

/// Gives the first block the weight of all the row's logits, by segments. It is seen after the cluster's next meeting.
template <class Part>
__device__ __forceinline__ void weigh_row(const Part& part, const row_filter& filter, sample_scratch& scratch) {
  std::uint64_t sum = 0;
  for_each_logit(part, [&](float x, std::uint32_t) { sum += weight_of(filter.exponent(x)); });
  sum = sum_of_warp(sum);
  if (threadIdx.x % kWarp == 0)
    of_block(&scratch, 0)->segment_weight[threadIdx.x / kWarp * part.blocks + part.rank] = sum;
}

/// The sum of a value of each segment. All threads of the first block come.
template <class Value>
__device__ __forceinline__ std::uint64_t sum_of_segments(const Value* values, std::uint32_t blocks,
                                                         sample_scratch& scratch) {
  std::uint64_t total = 0;
  sum_before(threadIdx.x < blocks * kWarps ? values[threadIdx.x] : 0, scratch, total);
  return total;
}

/// Where a token of the row stands: surely kept, in the border that the list will decide, or out.
enum class standing : std::uint8_t { out, border, kept };

/// Gives the first block the weight and number of the kept tokens, by segments, and lists the border's. Seen after the
/// cluster's next meeting. The list is empty.
template <class Part, class Judge>
__device__ __forceinline__ void weigh_kept(const Part& part, const row_filter& filter, sample_scratch& scratch,
                                           Judge judge) {
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t end = part.filled(warp, kStep);
  const std::uint32_t first_token = part.first_position(warp) - part.shift;
  sample_scratch* first_block = of_block(&scratch, 0);
  std::uint64_t sum = 0;
  std::uint32_t count = 0;
  for (std::uint32_t i = threadIdx.x % kWarp * 4; i < end; i += kStep) {
    const float4 four = part.four(warp, i);
    const float x[4] = {four.x, four.y, four.z, four.w};
    std::uint32_t borders = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const std::uint32_t token = first_token + i + e;
      const float exponent = filter.exponent(x[e]);
      const standing of_token = judge(x[e], token, exponent);
      if (of_token == standing::kept) {
        sum += weight_of(exponent);
        count++;
      }
      borders |= of_token == standing::border ? 1u << e : 0u;
    }
    if (!__any_sync(kFullWarp, borders != 0)) continue;
#pragma unroll
    for (int e = 0; e < 4; e++) append(first_block, (borders >> e & 1u) != 0, key_of_logit(x[e], first_token + i + e));
  }
  sum = sum_of_warp(sum);
  count = __reduce_add_sync(kFullWarp, count);
  if (threadIdx.x % kWarp == 0) {
    const std::uint32_t segment = warp * part.blocks + part.rank;
    first_block->segment_kept_weight[segment] = sum;
    first_block->segment_kept[segment] = count;
  }
}

/// The same with a guessed border, whose bins are listed, and with the weights of all that passes and of what lies
/// before the border. @param least_kept of the exponents of what is kept; of a whole row that is all before the border.
template <class Part, class Filter>
__device__ __forceinline__ void weigh_bracket(const Part& part, const Filter& filter, const weight_bracket& bracket,
                                              float least_kept, sample_scratch& scratch) {
  constexpr bool kWhole = std::is_same_v<Filter, whole_row_filter>;
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t end = part.filled(warp, kStep);
  const std::uint32_t first_token = part.first_position(warp) - part.shift;
  const float border_begin = static_cast<float>(bracket.first);
  const float border_end = static_cast<float>(bracket.last + 1);
  sample_scratch* first_block = of_block(&scratch, 0);
  std::uint64_t passing = 0;
  std::uint64_t before = 0;
  std::uint64_t kept = 0;
  std::uint32_t count = 0;
  for (std::uint32_t i = threadIdx.x % kWarp * 4; i < end; i += kStep) {
    const float4 four = part.four(warp, i);
    const float x[4] = {four.x, four.y, four.z, four.w};
    std::uint32_t borders = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float exponent = filter.exponent(x[e]);
      const float bin = bracket.place(exponent);
      const bool passes = filter.passes(x[e], first_token + i + e);
      const std::uint64_t weight = passes ? weight_of(exponent) : 0;
      const bool is_before = passes && bin < border_begin;
      const bool is_kept = is_before && (kWhole || exponent >= least_kept);
      passing += weight;
      if constexpr (!kWhole) before += is_before ? weight : 0;
      kept += is_kept ? weight : 0;
      count += is_kept ? 1 : 0;
      borders |= passes && bin >= border_begin && bin < border_end ? 1u << e : 0u;
    }
    if (!__any_sync(kFullWarp, borders != 0)) continue;
#pragma unroll
    for (int e = 0; e < 4; e++) append(first_block, (borders >> e & 1u) != 0, key_of_logit(x[e], first_token + i + e));
  }
  passing = sum_of_warp(passing);
  kept = sum_of_warp(kept);
  before = kWhole ? kept : sum_of_warp(before);
  count = __reduce_add_sync(kFullWarp, count);
  if (threadIdx.x % kWarp == 0) {
    const std::uint32_t segment = warp * part.blocks + part.rank;
    first_block->segment_passing[segment] = passing;
    first_block->segment_before[segment] = before;
    first_block->segment_kept_weight[segment] = kept;
    first_block->segment_kept[segment] = count;
  }
}

/// Draws the segment, and tells all blocks. All threads of the first block come.
__device__ __forceinline__ void draw_segment(std::uint32_t blocks, drawn_segment drawn, sample_scratch& scratch) {
  const std::uint64_t mine = threadIdx.x < blocks * kWarps ? scratch.segment_kept_weight[threadIdx.x] : 0;
  std::uint64_t total = 0;
  const std::uint64_t before = sum_before(mine, scratch, total);
  const std::uint64_t place = core::drawn_of(total, core::philox(scratch.params.seed, scratch.params.offset));
  if (before > place || place >= before + mine) return;
  drawn.found = true;
  drawn.segment = threadIdx.x;
  drawn.remainder = place - before;
  for (std::uint32_t b = 0; b < blocks; b++) *of_block(&scratch.drawn, b) = drawn;
}

/// Finds the drawn token in its segment, of which each thread has some neighbours: calls write(x, token) once. The
/// segment's block comes.
template <class Part, class Write>
__device__ __forceinline__ void draw_from_segment(const Part& part, const row_filter& filter,
                                                  const drawn_segment& drawn, sample_scratch& scratch, Write write) {
  static_assert(kSegmentUnit % kThreads == 0);
  const std::uint32_t warp = drawn.segment / part.blocks;
  const std::uint32_t each = part.segment / kThreads;
  const std::uint32_t end = part.filled(warp, kStep);
  const std::uint32_t first = min(threadIdx.x * each, end);
  const std::uint32_t last = min(first + each, end);
  const std::uint32_t first_token = part.first_position(warp) - part.shift;
  const auto weight_at = [&](std::uint32_t i, float& x) -> std::uint64_t {
    x = part.value(warp, i);
    return filter.passes(x, first_token + i) ? weight_of(filter.exponent(x)) : 0;
  };
  float x = 0.0f;
  std::uint64_t mine = 0;
  for (std::uint32_t i = first; i < last; i++) mine += weight_at(i, x);
  std::uint64_t total = 0;
  std::uint64_t ahead = sum_before(mine, scratch, total);
  if (ahead > drawn.remainder || drawn.remainder >= ahead + mine) return;
  for (std::uint32_t i = first; i < last; i++) {
    ahead += weight_at(i, x);
    if (drawn.remainder < ahead) return write(x, first_token + i);
  }
}

}  // namespace shortlist::cuda::sampling
