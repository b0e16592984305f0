// Brings a row's logits onto the chip, changes them as penalties, bias and mask ask, and finds the best of disjoint
// groups of them. See sample_rows.cu.
#pragma once

#include <cstddef>

#include "cuda/device/row_stream.cuh"
#include "cuda/sample/sample_parts.cuh"

namespace shortlist::cuda::sampling {

/// A 16-byte vector of logits, widened.
template <class Stored>
struct wide_vector {
  static constexpr int kFours = 4 / sizeof(Stored);
  float4 four[kFours];

  __device__ __forceinline__ explicit wide_vector(uint4 raw) {
    if constexpr (sizeof(Stored) == 4) {
      four[0] = quad<element_type::f32>::widen(raw);
    } else {
      using half_vector = quad<element_type_of<Stored>()>;
      four[0] = half_vector::widen(make_uint2(raw.x, raw.y));
      four[1] = half_vector::widen(make_uint2(raw.z, raw.w));
    }
  }
};

template <class Stored>
__device__ __forceinline__ Stored minus_infinity() {
  if constexpr (sizeof(Stored) == 4)
    return core::float_from_bits(0xFF800000u);
  else if constexpr (element_type_of<Stored>() == element_type::f16)
    return {0xFC00u};
  else
    return {0xFF80u};
}

/// The vector at a position that is not wholly within the row: logits one by one, and -inf outside.
template <class Stored>
__device__ __forceinline__ uint4 border_vector(const Stored* row, std::uint32_t position, std::uint32_t shift,
                                               std::uint32_t vocab) {
  constexpr std::uint32_t kPerVector = 16 / sizeof(Stored);
  union {
    Stored values[kPerVector];
    uint4 raw;
  } made;
  for (std::uint32_t e = 0; e < kPerVector; e++) {
    const std::uint32_t token = position + e - shift;  // below 0: far beyond the vocabulary
    made.values[e] = token < vocab ? row[token] : minus_infinity<Stored>();
  }
  return made.raw;
}

/// Loads the block's part. `row` is the row's first logit. @returns the largest that this thread loaded, or NaN.
template <class Stored, class Held>
__device__ __forceinline__ float load_part(const row_part<Held>& part, const Stored* row) {
  constexpr std::uint32_t kPerVector = 16 / sizeof(Stored);
  constexpr int kFlight = 4;  // vectors under way in a thread
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t first = part.first_position(warp);
  const std::uint32_t end = part.filled(warp, kSegmentUnit);
  const std::uint32_t row_end = part.vocab + part.shift;
  const Stored* from = row - part.shift + first;  // 16-byte aligned
  Held* to = part.held + warp * part.segment;
  float most = minus_infinity<float>();
  for (std::uint32_t base = lane * kPerVector; base < end; base += kFlight * kWarp * kPerVector) {
    uint4 raw[kFlight];
#pragma unroll
    for (int v = 0; v < kFlight; v++) {
      const std::uint32_t i = base + v * kWarp * kPerVector;
      if (i >= end) break;
      const std::uint32_t position = first + i;
      if (position >= part.shift && position + kPerVector <= row_end)
        raw[v] = load_streaming(reinterpret_cast<const uint4*>(from + i));
      else
        raw[v] = border_vector(row, position, part.shift, part.vocab);
    }
#pragma unroll
    for (int v = 0; v < kFlight; v++) {
      const std::uint32_t i = base + v * kWarp * kPerVector;
      if (i >= end) break;
      const wide_vector<Stored> wide(raw[v]);
#pragma unroll
      for (int f = 0; f < wide_vector<Stored>::kFours; f++) {
        const float4 x = wide.four[f];
        most = larger_or_nan(most, larger_or_nan(larger_or_nan(x.x, x.y), larger_or_nan(x.z, x.w)));
        if constexpr (sizeof(Held) != sizeof(Stored)) *reinterpret_cast<float4*>(to + i + 4 * f) = x;
      }
      if constexpr (sizeof(Held) == sizeof(Stored)) *reinterpret_cast<uint4*>(to + i) = raw[v];
    }
  }
  return most;
}

/// The same for logits that lie apart. @pre part.shift is 0.
template <class Stored, class Held>
__device__ __forceinline__ float load_part_apart(const row_part<Held>& part, const Stored* row, std::int64_t stride) {
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t first = part.first_position(warp);
  const std::uint32_t end = part.filled(warp, kSegmentUnit);
  Held* to = part.held + warp * part.segment;
  float most = minus_infinity<float>();
  for (std::uint32_t i = threadIdx.x % kWarp; i < end; i += kWarp) {
    const std::uint32_t token = first + i;
    const Stored value = token < part.vocab ? row[token * stride] : minus_infinity<Stored>();
    most = larger_or_nan(most, core::widen(value));
    if constexpr (sizeof(Held) == sizeof(Stored))
      to[i] = value;
    else
      to[i] = core::widen(value);
  }
  return most;
}

/// Calls use(position in the block's part) for the tokens of a history that are in the part.
template <class Use>
__device__ __forceinline__ void for_each_of_history(const row_part<float>& part, const token_rows& history,
                                                    std::int64_t row, Use use) {
  if (!history.begins) return;
  const std::int64_t end = history.begins[row + 1];
  for (std::int64_t i = history.begins[row] + threadIdx.x; i < end; i += kThreads) {
    const std::int32_t token = history.tokens[i];
    if (token < 0 || token >= static_cast<std::int32_t>(part.vocab)) continue;
    const std::uint32_t position = static_cast<std::uint32_t>(token) + part.shift;
    const std::uint32_t segment = position / part.segment;
    if (segment % part.blocks == part.rank) use(segment / part.blocks * part.segment + position % part.segment);
  }
}

constexpr std::uint32_t kInPrompt = 0x80000000u;  // beside a count of generated tokens, or a position
constexpr std::uint32_t kFewTokens = 512;         // of a history in a block's part, to compare each with each

/// Memory of penalties, where lists and bins will be: tokens of the history, or counts of so many positions at a time.
constexpr std::uint32_t kCounted = 2 * kListed + 2 * kBins;
__device__ __forceinline__ std::uint32_t* counts_of(sample_scratch& scratch) {
  static_assert(offsetof(sample_scratch, bins) == offsetof(sample_scratch, list) + sizeof(scratch.list));
  static_assert(kCounted * sizeof(std::uint32_t) == sizeof(scratch.list) + sizeof(scratch.bins));
  return reinterpret_cast<std::uint32_t*>(scratch.list);
}

/// Penalties for a short history: each of its tokens looks for others of the same position, and the first of them acts.
/// @returns false, and does nothing, if the history is long. All threads come, after a barrier; they leave through one.
__device__ __forceinline__ bool penalize_few(const row_part<float>& part, const core::sample_request& request,
                                             std::int64_t row, sample_scratch& scratch) {
  std::uint32_t* tokens = counts_of(scratch);
  if (threadIdx.x == 0) scratch.border_bin = 0;  // counts the tokens
  __syncthreads();
  const auto note = [&](std::uint32_t token) {
    const std::uint32_t at = atomicAdd(&scratch.border_bin, 1u);
    if (at < kFewTokens) tokens[at] = token;
  };
  for_each_of_history(part, request.params.prompt, row, [&](std::uint32_t held) { note(held | kInPrompt); });
  for_each_of_history(part, request.params.generated, row, note);
  __syncthreads();
  const std::uint32_t n = scratch.border_bin;
  if (n > kFewTokens) return false;
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) {
    const std::uint32_t held = tokens[i] & ~kInPrompt;
    std::int32_t generated = 0;
    bool is_first = true;
    for (std::uint32_t j = 0; j < n; j++) {
      if ((tokens[j] & ~kInPrompt) != held) continue;
      is_first = is_first && j >= i;
      generated += (tokens[j] & kInPrompt) == 0 ? 1 : 0;
    }
    if (is_first) part.held[held] = core::penalized(part.held[held], generated, scratch.params.by);
  }
  __syncthreads();
  return true;
}

/// Penalties for any history, by counting for some positions at a time. As penalize_few.
__device__ __forceinline__ void penalize_many(const row_part<float>& part, const core::sample_request& request,
                                              std::int64_t row, sample_scratch& scratch) {
  std::uint32_t* counts = counts_of(scratch);
  const std::uint32_t held = kWarps * part.segment;
  for (std::uint32_t first = 0; first < held; first += kCounted) {
    for (std::uint32_t i = threadIdx.x; i < kCounted; i += kThreads) counts[i] = 0;
    __syncthreads();
    for_each_of_history(part, request.params.prompt, row, [&](std::uint32_t at) {
      if (at - first < kCounted) atomicOr(&counts[at - first], kInPrompt);
    });
    for_each_of_history(part, request.params.generated, row, [&](std::uint32_t at) {
      if (at - first < kCounted) atomicAdd(&counts[at - first], 1u);
    });
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < min(kCounted, held - first); i += kThreads) {
      if (counts[i] == 0) continue;
      const auto generated = static_cast<std::int32_t>(counts[i] & ~kInPrompt);
      part.held[first + i] = core::penalized(part.held[first + i], generated, scratch.params.by);
    }
    __syncthreads();
  }
}

__device__ __forceinline__ bool is_allowed(const token_mask& mask, std::int64_t row, std::uint32_t token) {
  if (mask.kind == mask_kind::bytes)
    return static_cast<const std::uint8_t*>(mask.data)[row * mask.row_stride + token] != 0;
  const std::uint32_t word = static_cast<const std::uint32_t*>(mask.data)[row * mask.row_stride + token / 32];
  return (word >> token % 32 & 1u) != 0;
}

/// Adds the bias and applies the mask. @returns the largest of the thread's logits, or NaN. All threads come, after a
/// barrier.
__device__ __forceinline__ float change_part(const row_part<float>& part, const core::sample_request& request,
                                             std::int64_t row) {
  const logit_bias& bias = request.params.bias;
  const token_mask& mask = request.params.allowed;
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t first_token = part.first_position(warp) - part.shift;
  const std::uint32_t end = part.filled(warp, kSegmentUnit);
  float* held = part.held + warp * part.segment;
  float most = minus_infinity<float>();
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x % kWarp; i < end; i += kWarp) {
    const std::uint32_t token = first_token + i;
    if (token >= part.vocab) continue;
    float x = held[i];
    if (bias.values) x = core::add_once(x, bias.values[row * bias.row_stride + token]);
    if (mask.data && !is_allowed(mask, row, token)) x = minus_infinity<float>();
    held[i] = x;
    most = larger_or_nan(most, x);
  }
  return most;
}

/// Shares the threads' largest logits as groups of the row. All threads of the cluster come, for the `time`-th time.
__device__ __forceinline__ void share_logits(std::uint32_t blocks, std::uint32_t rank, float most,
                                             sample_scratch& scratch, std::uint32_t time = 0) {
  share_groups(blocks, rank, most != most ? kNanGroup : core::ascending_key(most), scratch.groups, time);
}

}  // namespace shortlist::cuda::sampling
