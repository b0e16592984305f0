// Brings a row's logits onto the chip, and finds the best of disjoint groups of them. See sample_rows.cu.
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
template <class Stored>
__device__ __forceinline__ float load_part(const row_part<Stored>& part, const Stored* row) {
  constexpr std::uint32_t kPerVector = 16 / sizeof(Stored);
  constexpr int kFlight = 4;  // vectors under way in a thread
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t first = part.first_position(warp);
  const std::uint32_t end = part.filled(warp, kSegmentUnit);
  const std::uint32_t row_end = part.vocab + part.shift;
  const Stored* from = row - part.shift + first;  // 16-byte aligned
  Stored* to = part.held + warp * part.segment;
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
      }
      *reinterpret_cast<uint4*>(to + i) = raw[v];
    }
  }
  return most;
}

/// The largest of a thread's logits of a part that is read where it lies, or NaN.
template <class Stored>
__device__ __forceinline__ float largest_of_part(const row_in_place<Stored>& part) {
  float most = minus_infinity<float>();
  for_each_logit(part, [&](float x, std::uint32_t) { most = larger_or_nan(most, x); });
  return most;
}

/// Shares the threads' largest logits as groups of the row. All threads of the cluster come, for the `time`-th time.
__device__ __forceinline__ void share_logits(std::uint32_t blocks, std::uint32_t rank, float most,
                                             sample_scratch& scratch, std::uint32_t time = 0) {
  share_groups(blocks, rank, most != most ? kNanGroup : core::ascending_key(most), scratch.groups, time);
}

}  // namespace shortlist::cuda::sampling
