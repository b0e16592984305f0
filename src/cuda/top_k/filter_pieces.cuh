// The pieces of a warp's rows on their way through shared memory, and which of their columns reach a filter. See
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

/// Marks of a lane's vectors of a whole piece: bits b and 16 + b are the columns of its word b of two. Of fp32, NaN
/// may be marked, too.
template <class Stored, bool Negated>
__device__ __forceinline__ std::uint32_t coarse_marks(const uint4* mine, std::uint32_t least) {
  constexpr std::uint32_t kUpperHalves = 0x7632;  // for __byte_perm
  constexpr std::uint32_t kSigns = Negated ? 0x80008000u : 0;
  uint4 raw[kVectors<Stored>];
#pragma unroll
  for (int v = 0; v < kVectors<Stored>; v++) raw[v] = mine[v * kWarp];
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

/// The same of any piece and for any filter. @param there vectors of the piece. @param vector of the lane's first in
/// the row.
template <class Stored>
__device__ __forceinline__ std::uint32_t careful_marks(const uint4* mine, std::uint32_t there, std::uint32_t vector,
                                                       const row_filter<Stored>& filter) {
  std::uint32_t marks = 0;
#pragma unroll 1
  for (int v = 0; v < kVectors<Stored> && threadIdx.x % kWarp + v * kWarp < there; v++) {
    const uint4 raw = mine[v * kWarp];
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    const auto least = filter.of(vector + v * kWarp);
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
/// Which column of a lane's share of a piece a mark stands for, counted from its first one's.
template <class Stored>
__device__ __forceinline__ std::uint32_t column_of_mark(std::uint32_t bit) {
  constexpr std::uint32_t kPitch = kWarp * kPerVector<Stored>;  // columns from a lane's vector to its next
  const std::uint32_t word = bit % 16;
  return word / kMarkWords<Stored> * kPitch + word % kMarkWords<Stored> * 2 + bit / 16;
}

/// A warp's share of a row: every kWarps-th piece of its vectors, and a part of those behind the last whole round.
template <class Stored>
struct row_pieces {
  const uint4* from = nullptr;
  std::uint32_t rounds = 0;     // of whole pieces, one for each warp
  std::uint32_t rest_from = 0;  // the vectors of the last piece
  std::uint32_t rest = 0;

  row_pieces() = default;
  __device__ __forceinline__ explicit row_pieces(const whole_row<Stored>& row)
      : from(reinterpret_cast<const uint4*>(row.values + row.head)) {
    constexpr std::uint32_t kRound = kPiece<Stored> * kWarps;
    rounds = row.vectors / kRound;
    const std::uint32_t behind = row.vectors % kRound;
    const std::uint32_t share = (behind + kThreads - 1) / kThreads * kWarp;
    const std::uint32_t mine = min(threadIdx.x / kWarp * share, behind);
    rest_from = rounds * kRound + mine;
    rest = min(share, behind - mine);
  }
  __device__ __forceinline__ std::uint32_t count() const { return rounds + (rest > 0 ? 1 : 0); }
  __device__ __forceinline__ std::uint32_t first_vector(std::uint32_t piece) const {
    return piece < rounds ? (piece * kWarps + threadIdx.x / kWarp) * kPiece<Stored> : rest_from;
  }
  __device__ __forceinline__ std::uint32_t vectors_of(std::uint32_t piece) const {
    return piece < rounds ? kPiece<Stored> : rest;
  }
};

/// A warp's stages: filled in order with the pieces of the row at hand and of the next one, and used in that order.
template <class Stored>
class piece_ring {
 public:
  __device__ __forceinline__ piece_ring(uint4* stages, std::uint64_t* full) : stages_(stages), full_(full) {}

  /// Begins to copy what there is room for. All lanes come, and have left the stages that are free.
  __device__ __forceinline__ void fill(const row_pieces<Stored>& row, const row_pieces<Stored>& next) {
    while (filled_ - used_ < kStages<Stored> && fill_one(row, next)) {
    }
  }
  __device__ __forceinline__ bool fill_one(const row_pieces<Stored>& row, const row_pieces<Stored>& next) {
    const bool is_next = piece_ >= row.count();
    const std::uint32_t piece = piece_ - (is_next ? row.count() : 0);
    if (is_next && piece >= next.count()) return false;
    if (threadIdx.x % kWarp == 0) {
      const std::uint32_t s = filled_ % kStages<Stored>;
      const uint4* from = is_next ? next.from + next.first_vector(piece) : row.from + row.first_vector(piece);
      const std::uint32_t bytes = (is_next ? next.vectors_of(piece) : row.vectors_of(piece)) * 16;
      async_fence();
      barrier_expect(full_ + s, bytes);
      bulk_copy(stages_ + s * kPiece<Stored>, from, bytes, full_ + s);
    }
    filled_++;
    piece_++;
    return true;
  }
  /// The stage of the next piece, which has come.
  __device__ __forceinline__ const uint4* wait() const {
    const std::uint32_t s = used_ % kStages<Stored>;
    barrier_wait(full_ + s, used_ / kStages<Stored> & 1);
    return stages_ + s * kPiece<Stored>;
  }
  /// All lanes have left the stage.
  __device__ __forceinline__ void leave() { used_++; }
  /// The next row becomes the one at hand.
  __device__ __forceinline__ void end_row(const row_pieces<Stored>& row) { piece_ -= row.count(); }

 private:
  uint4* stages_;
  std::uint64_t* full_;
  std::uint32_t filled_ = 0;
  std::uint32_t used_ = 0;
  std::uint32_t piece_ = 0;  // the next to be copied, counted from the first of the row at hand
};

}  // namespace shortlist::cuda::filtering
