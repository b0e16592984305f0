// The chunks of a block's rows on their way through shared memory, and which of their columns reach a filter. See
// filter_rows.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/top_k/filter_parts.cuh"

namespace shortlist::cuda::filtering {

/// What reaches a cut, by vectors: of those before `ties_end`, what is at least `least`; of the others, what is above.
/// Looser than the cut by the ties within a vector, but as good: none that is left out is better than one that is let
/// through.
template <class Stored>
struct row_filter {
  using word = std::conditional_t<sizeof(Stored) == 4, float, std::uint32_t>;  // two 16-bit values
  word least;
  word above;
  std::uint32_t ties_end;

  __device__ __forceinline__ row_filter(std::uint64_t cut, const whole_row<Stored>& row) {
    const std::uint32_t key = max(core::key_of(cut), kMinusInfinityKey);
    least = at_least(key);
    above = at_least(key + 1);
    const std::uint32_t column = core::position_of(cut) - row.first_column;
    ties_end = core::position_of(cut) < row.first_column + row.head ? 0 : (column - row.head) / kPerVector<Stored> + 1;
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
  /// A key of a vector, or of columns beside the whole ones.
  __device__ __forceinline__ bool reached_by(std::uint64_t key, std::uint32_t vector) const {
    return core::key_of(key) >= key_of(of(vector));
  }
  static __device__ __forceinline__ std::uint32_t key_of(word least) {
    if constexpr (sizeof(Stored) == 4)
      return core::ascending_key(least);
    else
      return core::ascending_key(core::widen(Stored{static_cast<std::uint16_t>(least)}));
  }
};

/// Marks of a vector's columns: bit e of fp32's column e; of two 16-bit columns a word, bits w and 16 + w of word w.
template <class Stored, bool Negated>
__device__ __forceinline__ std::uint32_t marks_of(uint4 raw, typename row_filter<Stored>::word least) {
  const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  std::uint32_t marks = 0;
#pragma unroll
  for (int w = 0; w < 4; w++) {
    if constexpr (sizeof(Stored) == 4) {
      const float value = __uint_as_float(words[w]);
      if ((Negated ? -value : value) >= least) marks |= 1u << w;
    } else {
      using pair = std::conditional_t<std::is_same_v<Stored, float16>, __half2, __nv_bfloat162>;
      const std::uint32_t values = Negated ? words[w] ^ 0x80008000u : words[w];
      marks |=
          __hge2_mask(reinterpret_cast<const pair&>(values), reinterpret_cast<const pair&>(least)) & (0x00010001u << w);
    }
  }
  return marks;
}
/// Which column of a thread's share of a chunk a mark stands for, counted from its first one's.
template <class Stored>
__device__ __forceinline__ std::uint32_t column_of_mark(std::uint32_t bit) {
  constexpr std::uint32_t kPitch = kThreads * kPerVector<Stored>;  // columns from a thread's vector to its next
  if constexpr (sizeof(Stored) == 4) {
    return bit / 4 * kPitch + bit % 4;
  } else {
    const std::uint32_t word = bit % 16;
    return word / 4 * kPitch + word % 4 * 2 + bit / 16;
  }
}

/// A thread's marks of a chunk that lies in shared memory. @param there the chunk's vectors. @param vector of the
/// thread's first in the row.
template <class Stored, bool Negated, bool Whole>
__device__ __forceinline__ std::uint32_t marks_of_chunk(const uint4* mine, std::uint32_t there, std::uint32_t vector,
                                                        const row_filter<Stored>& filter) {
  constexpr int kMarkBits = 4;  // of a vector, in a word or in each half of it
  std::uint32_t marks = 0;
#pragma unroll
  for (int v = 0; v < kVectors<Stored>; v++) {
    if (!Whole && threadIdx.x + v * kThreads >= there) break;
    marks |= marks_of<Stored, Negated>(mine[v * kThreads], filter.of(vector + v * kThreads)) << (kMarkBits * v);
  }
  return marks;
}
template <class Stored>
__device__ __forceinline__ std::uint32_t marks_of_chunk(const uint4* mine, std::uint32_t there, std::uint32_t vector,
                                                        const row_filter<Stored>& filter, bool negated) {
  if (there == kChunk<Stored>) {
    return negated ? marks_of_chunk<Stored, true, true>(mine, there, vector, filter)
                   : marks_of_chunk<Stored, false, true>(mine, there, vector, filter);
  }
  return negated ? marks_of_chunk<Stored, true, false>(mine, there, vector, filter)
                 : marks_of_chunk<Stored, false, false>(mine, there, vector, filter);
}

/// Brings the chunks of rows blockIdx.x, blockIdx.x + gridDim.x, .. into the stages of a ring, in order. All threads
/// hold the same.
template <class Stored>
class chunk_feed {
 public:
  __device__ __forceinline__ chunk_feed(const core::top_k_request& request, std::uint32_t least_columns)
      : request_(request), least_columns_(least_columns), row_(blockIdx.x) {
    open();
  }
  /// Copies the next chunk to a stage, if there is one; `leads` says whether by this thread.
  __device__ __forceinline__ void feed(uint4* stage, std::uint64_t* full, bool leads) {
    if (row_ >= request_.matrix.rows) return;
    if (leads) {
      const std::uint32_t bytes = min(kChunk<Stored>, vectors_ - next_) * 16;
      barrier_expect(full, bytes);
      bulk_copy(stage, from_ + next_, bytes, full);
    }
    next_ += kChunk<Stored>;
    if (next_ < vectors_) return;
    row_ += gridDim.x;
    open();
  }

 private:
  /// The first row from here on that goes through the ring.
  __device__ __forceinline__ void open() {
    for (; row_ < request_.matrix.rows; row_ += gridDim.x) {
      const whole_row<Stored> row = open_row<Stored>(request_, row_);
      if (row.columns <= least_columns_) continue;
      from_ = reinterpret_cast<const uint4*>(row.values + row.head);
      vectors_ = row.vectors;
      next_ = 0;
      return;
    }
  }

  const core::top_k_request& request_;
  std::uint32_t least_columns_;
  std::int64_t row_;
  const uint4* from_ = nullptr;
  std::uint32_t vectors_ = 0;
  std::uint32_t next_ = 0;
};

}  // namespace shortlist::cuda::filtering
