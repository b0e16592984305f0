// The pieces of a warp's rows on their way through shared memory, and which of their columns reach a filter. See
// filter_rows.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/device/value_pair.cuh"
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
  bool is_coarse;  // fp32 values are told apart by their upper halves

  __device__ __forceinline__ row_filter(std::uint64_t cut, const whole_row<Stored>& row) {
    const std::uint32_t key = max(core::key_of(cut), kMinusInfinityKey);
    least = at_least(key);
    above = at_least(key + 1);
    const std::uint32_t column = core::position_of(cut) - row.first_column;
    ties_end = column < row.head ? 0 : (column - row.head) / kPerVector<Stored> + 1;
    const bool all_ties = static_cast<std::uint32_t>(cut) == 0;
    if (all_ties) ties_end = ~0u;
    is_coarse = all_ties && key % kCoarseStep == 0 && key != kMinusInfinityKey;
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
  /// `least` of fp32 as two bf16: a value reaches it exactly if its upper half does, for of the value, all bits below
  /// are 0, or all are 1 where it is negative.
  __device__ __forceinline__ std::uint32_t coarse() const {
    const std::uint32_t bits = core::float_bits(least);
    return bits >> 16 | (bits & 0xFFFF0000u);
  }
  /// Whether a column's value reaches the filter, as one of a vector's.
  __device__ __forceinline__ bool reached_by(Stored value, std::uint32_t vector, bool negated) const {
    float wide = core::widen(value);
    if (negated) wide = -wide;
    if constexpr (sizeof(Stored) == 4)
      return wide >= of(vector);
    else
      return wide >= core::widen(Stored{static_cast<std::uint16_t>(of(vector))});
  }
};

/// A lane's first vector of a piece, and the distance to its next: so that a step of a quarter of a warp reads
/// neighbours, and lanes may exchange marks.
template <class Stored>
__device__ __forceinline__ std::uint32_t first_vector_of(std::uint32_t lane) {
  constexpr std::uint32_t kOfEight = 8 * kVectors<Stored>;  // lanes
  return lane / 8 * kOfEight + lane % 8;
}
constexpr std::uint32_t kVectorPitch = 8;

// The marks of a lane's vectors before the exchange: of fp32, bit 4 v + e is the column e of vector v; of the others,
// bits 4 v + w and 16 more are the columns of its word w.

/// Marks of a piece by 16-bit values, of fp32 the upper halves: of those, NaN may be marked, too. @param mine the
/// shared address of the lane's first vector.
template <class Stored, bool Negated>
__device__ __forceinline__ std::uint32_t coarse_marks(std::uint32_t mine, std::uint32_t least) {
  constexpr std::uint32_t kBoth = 0x00010001;
  if (Negated) least ^= 0x80008000u;
  uint4 raw[kVectors<Stored>];
#pragma unroll
  for (int v = 0; v < kVectors<Stored>; v++) raw[v] = load_shared<uint4>(mine + v * kVectorPitch * 16);
  std::uint32_t marks = 0;
  const auto mark = [&](std::uint32_t pair, int bit) {
    using compared = std::conditional_t<sizeof(Stored) == 4, bfloat16, Stored>;
    marks |= pair_mask<compared, Negated>(pair, least) & (kBoth << bit);
  };
#pragma unroll
  for (int v = 0; v < 4; v++) {
    if constexpr (sizeof(Stored) == 4) {
      mark(upper_halves(raw[v].x, raw[v + 4].x), 4 * v);
      mark(upper_halves(raw[v].y, raw[v + 4].y), 4 * v + 1);
      mark(upper_halves(raw[v].z, raw[v + 4].z), 4 * v + 2);
      mark(upper_halves(raw[v].w, raw[v + 4].w), 4 * v + 3);
    } else {
      mark(raw[v].x, 4 * v);
      mark(raw[v].y, 4 * v + 1);
      mark(raw[v].z, 4 * v + 2);
      mark(raw[v].w, 4 * v + 3);
    }
  }
  return marks;
}

/// The same by whole fp32 values.
template <bool Negated>
__device__ __forceinline__ std::uint32_t fine_marks(std::uint32_t mine, float least) {
  std::uint32_t marks = 0;
#pragma unroll
  for (int v = 0; v < kVectors<float>; v++) {
    const uint4 raw = load_shared<uint4>(mine + v * kVectorPitch * 16);
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float value = __uint_as_float(words[e]);
      marks |= (Negated ? value <= -least : value >= least) ? 1u << (4 * v + e) : 0;
    }
  }
  return marks;
}

/// The same of a piece that ends the ties. @param vector the lane's first in the row.
template <class Stored>
__device__ __forceinline__ std::uint32_t marks_around_ties(std::uint32_t mine, std::uint32_t vector,
                                                           const row_filter<Stored>& filter, bool negated) {
  std::uint32_t marks = 0;
#pragma unroll 1
  for (int v = 0; v < kVectors<Stored>; v++, vector += kVectorPitch, mine += kVectorPitch * 16) {
    const uint4 raw = load_shared<uint4>(mine);
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    const auto least = filter.of(vector);
#pragma unroll
    for (int w = 0; w < 4; w++) {
      const std::uint32_t word = negated ? words[w] ^ kSigns<Stored> : words[w];
      if constexpr (sizeof(Stored) == 4)
        marks |= (__uint_as_float(word) >= least ? 1u : 0u) << (4 * v + w);
      else
        marks |= (pair_mask<Stored, false>(word, least) & 0x00010001u) << (4 * v + w);
    }
  }
  return marks;
}

/// Marks of a lane's vectors of a piece. @param first the piece's first vector in the row.
template <class Stored, bool Negated>
__device__ __forceinline__ std::uint32_t marks_of_piece(std::uint32_t mine, std::uint32_t first, std::uint32_t lane,
                                                        const row_filter<Stored>& filter) {
  const bool has_ties = first < filter.ties_end;
  if (has_ties && filter.ties_end < first + kPiece<Stored>)
    return marks_around_ties(mine, first + first_vector_of<Stored>(lane), filter, Negated);
  if constexpr (sizeof(Stored) == 4) {
    if (filter.is_coarse) return coarse_marks<Stored, Negated>(mine, filter.coarse());
    return fine_marks<Negated>(mine, has_ties ? filter.least : filter.above);
  } else {
    return coarse_marks<Stored, Negated>(mine, has_ties ? filter.least : filter.above);
  }
}

/// Exchanges marks between the lanes of a warp. Each step swaps a bit of the lane's number with one of a mark's place.
template <class Stored>
class mark_exchange {
 public:
  explicit __device__ __forceinline__ mark_exchange(std::uint32_t lane)
      : kept_(held(lane & 1 ? 0xF0F0F0F0u : 0x0F0F0F0Fu)),
        turn_(held(lane & 1 ? 28u : 4u)),
        bytes_(held(lane & 2 ? 0x3715u : 0x6240u)) {
    if constexpr (sizeof(Stored) == 4)
      last_ = held(lane & 4 ? 0x3276u : 0x5410u);
    else
      last_ = held((lane & 24) | (lane & 1) << 2 | (lane >> 1 & 3));
  }
  /// Bit b of lane l becomes column 32 l + b of the piece. All lanes come.
  __device__ __forceinline__ std::uint32_t by_column(std::uint32_t marks) const {
    std::uint32_t other = __shfl_xor_sync(kFullWarp, marks, 1);
    marks = (marks & kept_) | (__funnelshift_l(other, other, turn_) & ~kept_);
    other = __shfl_xor_sync(kFullWarp, marks, 2);
    marks = __byte_perm(marks, other, bytes_);
    if constexpr (sizeof(Stored) == 4) {
      other = __shfl_xor_sync(kFullWarp, marks, 4);
      return __byte_perm(marks, other, last_);
    } else {
      marks = __shfl_sync(kFullWarp, marks, static_cast<int>(last_));
      const auto swap = [&](std::uint32_t mask, int by) {
        const std::uint32_t differ = (marks ^ marks >> by) & mask;
        marks ^= differ ^ differ << by;
      };
      marks = __byte_perm(marks, 0, 0x3120);  // from halves to pairs of neighbours
      swap(0x00F000F0u, 4);
      swap(0x0C0C0C0Cu, 2);
      swap(0x22222222u, 1);
      return marks;
    }
  }

 private:
  std::uint32_t kept_;
  std::uint32_t turn_;
  std::uint32_t bytes_;
  std::uint32_t last_;
};

/// A warp's share of a row, from its next piece on: every kWarps-th piece of its vectors.
template <class Stored>
struct row_share {
  static constexpr std::uint32_t kPitch = kPiece<Stored> * kWarps;  // vectors from a warp's piece to its next

  const uint4* from = nullptr;
  std::int32_t left = 0;  // vectors of the row from there on

  row_share() = default;
  __device__ __forceinline__ row_share(const whole_row<Stored>& row, std::uint32_t warp)
      : from(reinterpret_cast<const uint4*>(row.values + row.head) + warp * kPiece<Stored>),
        left(static_cast<std::int32_t>(row.vectors - warp * kPiece<Stored>)) {}
  /// Of the piece.
  __device__ __forceinline__ std::uint32_t vectors() const {
    return min(static_cast<std::uint32_t>(left), kPiece<Stored>);
  }
  __device__ __forceinline__ void advance() {
    from += kPitch;
    left -= static_cast<std::int32_t>(kPitch);
  }
};

/// A warp's stages: filled in order with the pieces of the row at hand and of the next one, and used in that order.
template <class Stored>
class piece_ring {
 public:
  /// @param full a barrier for each stage, one behind the other. @param leads whether the lane is the one that copies.
  /// @param used pieces that the stages have held before.
  __device__ __forceinline__ piece_ring(const uint4* stages, const std::uint64_t* full, bool leads, std::uint32_t used)
      : stages_(held(shared_address(stages))),
        full_(held(shared_address(full))),
        leads_(leads),
        filled_(used),
        used_(used) {}

  /// Has the next row's pieces follow those that are to be copied. @pre all of the row before are under way or used.
  __device__ __forceinline__ void append(const row_share<Stored>& row) { following_ = row; }
  /// Begins to copy what there is room for. All lanes come; the stages that are free are so for the copy engine.
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    while (filled_ - used_ < kStages<Stored> && fill_one()) {
    }
  }
  /// The shared address of the next piece, which has come.
  __device__ __forceinline__ std::uint32_t wait() const {
    const std::uint32_t s = used_ % kStages<Stored>;
    barrier_wait_at(full_ + s * 8, used_ / kStages<Stored> & 1);
    return stages_ + s * (kPiece<Stored> * 16);
  }
  /// Waits for all that is under way. @returns how many pieces the stages have held.
  __device__ __forceinline__ std::uint32_t drain() {
#pragma unroll 1
    for (; used_ != filled_; used_++) wait();
    return used_;
  }
  /// All lanes have left the stage: the next piece may take its place.
  __device__ __forceinline__ void leave() {
    if (leads_) async_fence();
    used_++;
    fill_one();
  }

 private:
  __device__ __forceinline__ bool fill_one() {
    if (filling_.left <= 0) {
      filling_ = following_;
      following_.left = 0;
      if (filling_.left <= 0) return false;
    }
    if (leads_) {
      const std::uint32_t s = filled_ % kStages<Stored>;
      const std::uint32_t bytes = filling_.vectors() * 16;
      barrier_expect_at(full_ + s * 8, bytes);
      bulk_copy_to(stages_ + s * (kPiece<Stored> * 16), filling_.from, bytes, full_ + s * 8);
    }
    filling_.advance();
    filled_++;
    return true;
  }

  std::uint32_t stages_;  // shared addresses, as
  std::uint32_t full_;
  bool leads_;
  row_share<Stored> filling_;
  row_share<Stored> following_;
  std::uint32_t filled_;
  std::uint32_t used_;
};

}  // namespace shortlist::cuda::filtering
