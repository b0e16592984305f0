// The chunks of a block's rows on their way through shared memory, and which of their columns reach a filter. See
// filter_rows.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/top_k/filter_parts.cuh"

namespace shortlist::cuda::filtering {

constexpr std::uint32_t kCoarseStep = 1u << 16;  // between the keys of fp32 values that differ in their upper half

/// What reaches a cut, by vectors: of those before `ties_end`, what is at least `least`; of the others, what is above.
/// Looser than the cut by the ties within a vector, but as good: none that is left out is better than one that is let
/// through.
template <class Stored>
struct row_filter {
  using word = std::conditional_t<sizeof(Stored) == 4, float, std::uint32_t>;  // two 16-bit values
  word least;
  word above;
  std::uint32_t ties_end;
  std::uint32_t coarse;  // two 16-bit values that stand for `least`, if those of columns are enough; else 0
  bool negated;

  __device__ __forceinline__ row_filter(std::uint64_t cut, const whole_row<Stored>& row, bool smallest)
      : negated(smallest) {
    const std::uint32_t key = max(core::key_of(cut), kMinusInfinityKey);
    least = at_least(key);
    above = at_least(key + 1);
    const std::uint32_t column = core::position_of(cut) - row.first_column;
    ties_end = core::position_of(cut) < row.first_column + row.head ? 0 : (column - row.head) / kPerVector<Stored> + 1;
    const bool all_ties = static_cast<std::uint32_t>(cut) == 0;
    if constexpr (sizeof(Stored) == 4) {
      // A value reaches this one exactly if its upper half, a bf16, does: of the value, all bits below are 0, or
      // all are 1 where it is negative.
      const std::uint32_t bits = __float_as_uint(least);
      coarse = all_ties && key % kCoarseStep == 0 && key != kMinusInfinityKey ? bits >> 16 | (bits & 0xFFFF0000u) : 0;
    } else {
      coarse = all_ties ? least : 0;
    }
  }
  /// The least stored value whose key is no less.
  static __device__ __forceinline__ word at_least(std::uint32_t key) {
    const float value = core::from_ascending_key(key);
    if constexpr (sizeof(Stored) == 4) {
      return value;
    } else {
      std::uint32_t bits;
      if constexpr (std::is_same_v<Stored, float16>)
        bits = __half_as_ushort(__float2half_ru(value));
      else
        bits = __bfloat16_as_ushort(__float2bfloat16_ru(value));
      return bits << 16 | bits;
    }
  }
  __device__ __forceinline__ word of(std::uint32_t vector) const { return vector < ties_end ? least : above; }
  /// Whether a column's value reaches the filter, as one of a vector's.
  __device__ __forceinline__ bool reached_by(Stored value, std::uint32_t vector) const {
    float wide = core::widen(value);
    if (negated) wide = -wide;
    if constexpr (sizeof(Stored) == 4)
      return wide >= of(vector);
    else
      return wide >= core::widen(Stored{static_cast<std::uint16_t>(of(vector))});
  }
};

/// Words of two columns that a vector's marks have bits for.
template <class Stored>
constexpr int kMarkWords = kPerVector<Stored> / 2;

/// Marks of two columns, as bits 0 and 16: those whose 16-bit values reach the others.
template <class Stored>
__device__ __forceinline__ std::uint32_t marks_of_pair(std::uint32_t values, std::uint32_t least) {
  using pair = std::conditional_t<std::is_same_v<Stored, float16>, __half2, __nv_bfloat162>;
  return __hge2_mask(reinterpret_cast<const pair&>(values), reinterpret_cast<const pair&>(least)) & 0x00010001u;
}

/// Marks of a thread's vectors of a whole chunk: bits b and 16 + b are the columns of its word b of two. Of fp32, NaN
/// may be marked, too.
template <class Stored, bool Negated>
__device__ __forceinline__ std::uint32_t coarse_marks(const uint4* mine, std::uint32_t least) {
  constexpr std::uint32_t kUpperHalves = 0x7632;  // for __byte_perm
  constexpr std::uint32_t kSigns = Negated ? 0x80008000u : 0;
  uint4 raw[kVectors<Stored>];
#pragma unroll
  for (int v = 0; v < kVectors<Stored>; v++) raw[v] = mine[v * kThreads];
  std::uint32_t marks = 0;
#pragma unroll
  for (int v = 0; v < kVectors<Stored>; v++) {
    if constexpr (sizeof(Stored) == 4) {
      marks |= marks_of_pair<bfloat16>(__byte_perm(raw[v].x, raw[v].y, kUpperHalves) ^ kSigns, least) << (2 * v);
      marks |= marks_of_pair<bfloat16>(__byte_perm(raw[v].z, raw[v].w, kUpperHalves) ^ kSigns, least) << (2 * v + 1);
    } else {
      marks |= marks_of_pair<Stored>(raw[v].x ^ kSigns, least) << (4 * v);
      marks |= marks_of_pair<Stored>(raw[v].y ^ kSigns, least) << (4 * v + 1);
      marks |= marks_of_pair<Stored>(raw[v].z ^ kSigns, least) << (4 * v + 2);
      marks |= marks_of_pair<Stored>(raw[v].w ^ kSigns, least) << (4 * v + 3);
    }
  }
  return marks;
}

/// The same of any chunk and for any filter. @param there vectors of the chunk. @param vector of the thread's first in
/// the row.
template <class Stored>
__device__ __forceinline__ std::uint32_t careful_marks(const uint4* mine, std::uint32_t there, std::uint32_t vector,
                                                    const row_filter<Stored>& filter) {
  std::uint32_t marks = 0;
#pragma unroll 1
  for (int v = 0; v < kVectors<Stored> && threadIdx.x + v * kThreads < there; v++) {
    const uint4 raw = mine[v * kThreads];
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    const auto least = filter.of(vector + v * kThreads);
    std::uint32_t of_vector = 0;
    if constexpr (sizeof(Stored) == 4) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float value = __uint_as_float(words[e]);
        if ((filter.negated ? -value : value) >= least) of_vector |= 1u << (e / 2 + e % 2 * 16);
      }
    } else {
#pragma unroll
      for (int w = 0; w < 4; w++)
        of_vector |= marks_of_pair<Stored>(filter.negated ? words[w] ^ 0x80008000u : words[w], least) << w;
    }
    marks |= of_vector << (kMarkWords<Stored> * v);
  }
  return marks;
}
/// Which column of a thread's share of a chunk a mark stands for, counted from its first one's.
template <class Stored>
__device__ __forceinline__ std::uint32_t column_of_mark(std::uint32_t bit) {
  constexpr std::uint32_t kPitch = kThreads * kPerVector<Stored>;  // columns from a thread's vector to its next
  const std::uint32_t word = bit % 16;
  return word / kMarkWords<Stored> * kPitch + word % kMarkWords<Stored> * 2 + bit / 16;
}

/// Where a block's rows are on their way into the ring: rows blockIdx.x, blockIdx.x + gridDim.x, .., chunk by chunk.
/// One for the block; the warp that leaves a stage last fills it again.
template <class Stored>
struct chunk_feed {
  std::int64_t row;
  const uint4* from;
  std::uint32_t vectors;
  std::uint32_t next;

  /// Goes to the first row from `row` on that takes this way: one of more columns than these.
  __device__ __forceinline__ void open(const core::top_k_request& request, std::uint32_t columns) {
    for (; row < request.matrix.rows; row += gridDim.x) {
      const whole_row<Stored> data = open_row<Stored>(request, row);
      if (data.columns <= columns) continue;
      from = reinterpret_cast<const uint4*>(data.values + data.head);
      vectors = data.vectors;
      next = 0;
      return;
    }
  }
  /// Begins to copy the next chunk, if there is one. One thread comes.
  __device__ __forceinline__ void fill(uint4* stage, std::uint64_t* full, const core::top_k_request& request,
                                       std::uint32_t columns) {
    if (row >= request.matrix.rows) return;
    const std::uint32_t bytes = min(kChunk<Stored>, vectors - next) * 16;
    barrier_expect(full, bytes);
    bulk_copy(stage, from + next, bytes, full);
    next += kChunk<Stored>;
    if (next < vectors) return;
    row += gridDim.x;
    open(request, columns);
  }
};

}  // namespace shortlist::cuda::filtering
