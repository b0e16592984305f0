// The pieces of a warp's rows on their way through shared memory, and which of their columns reach a filter. See
// filter_rows_kernel.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/device/value_pair.cuh"
#include "cuda/top_k/filter_parts.cuh"

namespace shortlist::cuda::filtering {

constexpr std::uint32_t kCoarseStep = 1u << 16;  // between the keys of fp32 values that differ in their upper half

/// The least stored value whose key is no less: of 16 bits, twice.
template <class Stored>
__device__ __forceinline__ auto least_value(std::uint32_t key) {
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
/// An fp32 value whose key is a multiple of kCoarseStep as two bf16: a value reaches it exactly if its upper half does,
/// for of it, all bits below are 0, or all are 1 where it is negative.
__device__ __forceinline__ std::uint32_t both_upper_halves(float value) {
  const std::uint32_t bits = core::float_bits(value);
  return bits >> 16 | (bits & 0xFFFF0000u);
}
/// What pairs of 16-bit values, of fp32 the upper halves, must reach to have a key, of fp32 a multiple of kCoarseStep.
template <class Stored>
__device__ __forceinline__ std::uint32_t least_pair(std::uint32_t key) {
  if constexpr (sizeof(Stored) == 4)
    return both_upper_halves(least_value<float>(key));
  else
    return least_value<Stored>(key);
}

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
    least = least_value<Stored>(key);
    above = least_value<Stored>(key + 1);
    const std::uint32_t column = core::position_of(cut) - row.first_column;
    ties_end = column < row.head ? 0 : (column - row.head) / kPerVector<Stored> + 1;
    const bool all_ties = static_cast<std::uint32_t>(cut) == 0;
    if (all_ties) ties_end = ~0u;
    is_coarse = all_ties && key % kCoarseStep == 0 && key != kMinusInfinityKey;
  }
  __device__ __forceinline__ word of(std::uint32_t vector) const { return vector < ties_end ? least : above; }
  /// `least` of fp32 as two bf16, where it is coarse.
  __device__ __forceinline__ std::uint32_t coarse() const { return both_upper_halves(least); }
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

// A lane has kValues neighbouring columns of a piece. It reads their vectors in turns of its own, so that lanes meet no
// bank of shared memory twice: the i-th that it reads is vector (i + turn) % kVectors.
template <class Stored>
__device__ __forceinline__ std::uint32_t first_turn(std::uint32_t lane) {
  constexpr std::uint32_t kLanesOfLine = 8 / kVectors<Stored>;  // that read their vectors from a line of all banks
  return lane / kLanesOfLine % kVectors<Stored>;
}

/// The number of the only mark that is set, in one instruction; any number where none is.
__device__ __forceinline__ std::uint32_t only_mark(std::uint32_t mark) {
  std::uint32_t bit;
  asm("bfind.u32 %0, %1;" : "=r"(bit) : "r"(mark));
  return bit;
}
/// Bits of the lane's columns of a piece that are there. @param columns of the row from the piece's first one on
__device__ __forceinline__ std::uint32_t bits_there(std::uint32_t columns, std::uint32_t lane) {
  const std::uint32_t there = columns > lane * kValues ? columns - lane * kValues : 0;
  return there < kValues ? (1u << there) - 1 : ~0u;
}

/// What looks at the vectors that are marked: nothing does.
struct sees_nothing {
  static constexpr bool kSees = false;
  __device__ __forceinline__ void add(const uint4& /*raw*/) const {}
};

/// Marks of a lane's columns, and what it takes to bring them into the columns' order.
template <class Stored, bool Negated>
class piece_marker {
 public:
  explicit __device__ __forceinline__ piece_marker(std::uint32_t lane)
      : turn_(held(first_turn<Stored>(lane))), first_(held(lane * (kVectors<Stored> * 16))) {}

  /// By 16-bit values, of fp32 the upper halves: of those, NaN may be marked, too. @param piece its shared address.
  /// @param seen looks at the lane's vectors.
  template <class Seen>
  __device__ __forceinline__ std::uint32_t coarse(std::uint32_t piece, std::uint32_t least, Seen& seen) const {
    using compared = std::conditional_t<sizeof(Stored) == 4, bfloat16, Stored>;
    if (Negated) least ^= 0x80008000u;
    uint4 raw[kVectors<Stored>];
    load(piece, raw);
#pragma unroll
    for (int v = 0; v < kVectors<Stored>; v++) seen.add(raw[v]);
    std::uint32_t marks = 0;
    const auto mark = [&](std::uint32_t pair, int bit) {
      marks |= pair_mask<compared, Negated>(pair, least) & (0x00010001u << bit);
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
    return in_order(marks);
  }
  /// By whole values. @param least of a vector, by its number in the row. @param vector the lane's first.
  template <class Least, class Seen>
  __device__ __forceinline__ std::uint32_t fine(std::uint32_t piece, std::uint32_t vector, Least least,
                                                Seen& seen) const {
    std::uint32_t marks = 0;
#pragma unroll
    for (int i = 0; i < kVectors<Stored>; i++) {
      const std::uint32_t v = (i + turn_) % kVectors<Stored>;
      const uint4 raw = load_shared<uint4>(piece + first_ + v * 16);
      seen.add(raw);
      const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
      const auto reached = least(vector + v);
#pragma unroll
      for (int w = 0; w < 4; w++) {
        const std::uint32_t word = Negated ? words[w] ^ kSigns<Stored> : words[w];
        if constexpr (sizeof(Stored) == 4)
          marks |= (__uint_as_float(word) >= reached ? 1u : 0u) << (4 * i + w);
        else
          marks |= pair_mask<Stored, false>(word, reached) & (0x00010001u << (4 * i + w));
      }
    }
    return in_order(marks);
  }

 private:
  __device__ __forceinline__ void load(std::uint32_t piece, uint4 (&raw)[kVectors<Stored>]) const {
#pragma unroll
    for (int v = 0; v < kVectors<Stored>; v++)
      raw[v] = load_shared<uint4>(piece + first_ + (v + turn_) % kVectors<Stored> * 16);
  }
  /// Bit b becomes the lane's column b.
  __device__ __forceinline__ std::uint32_t in_order(std::uint32_t marks) const {
    if constexpr (sizeof(Stored) == 2) {  // from even columns, and odd ones 16 bits above
      const auto swap = [&](std::uint32_t mask, int by) {
        const std::uint32_t differ = (marks ^ marks >> by) & mask;
        marks ^= differ ^ differ << by;
      };
      marks = __byte_perm(marks, 0, 0x3120);
      swap(0x00F000F0u, 4);
      swap(0x0C0C0C0Cu, 2);
      swap(0x22222222u, 1);
    }
    return __funnelshift_l(marks, marks, turn_ * kPerVector<Stored>);
  }

  std::uint32_t turn_;
  std::uint32_t first_;
};

/// Marks of a lane's columns of a piece. @param first the piece's first vector in the row. @param seen looks at them.
template <class Stored, bool Negated, class Seen>
__device__ __forceinline__ std::uint32_t marks_of_piece(const piece_marker<Stored, Negated>& marker,
                                                        std::uint32_t piece, std::uint32_t first, std::uint32_t lane,
                                                        const row_filter<Stored>& filter, Seen& seen) {
  const bool has_ties = first < filter.ties_end;
  const bool ends_ties = has_ties && filter.ties_end < first + kPiece<Stored>;
  const std::uint32_t vector = first + lane * kVectors<Stored>;
  if (ends_ties)
    return marker.fine(
        piece, vector, [&](std::uint32_t v) { return filter.of(v); }, seen);
  const auto least = has_ties ? filter.least : filter.above;
  if constexpr (sizeof(Stored) == 4) {
    if (filter.is_coarse) return marker.coarse(piece, filter.coarse(), seen);
    return marker.fine(
        piece, vector, [&](std::uint32_t) { return least; }, seen);
  } else {
    return marker.coarse(piece, least, seen);
  }
}

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
