// A row of logits that stays on the chip: each warp of a cluster's blocks has a stretch of neighbouring columns. See
// weight_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/device/row_stream.cuh"
#include "cuda/sample/sample_parts.cuh"

namespace shortlist::cuda::sampling {

constexpr int kRowThreads = 512;
constexpr int kRowWarps = kRowThreads / kWarp;
constexpr std::uint32_t kInRegisters = 12;  // a lane's vectors: the first rounds of its warp
constexpr std::uint32_t kChunk = 8;         // rounds that arrive together
constexpr std::uint32_t kMostChunks = 4;
constexpr std::uint32_t kSpareSlots = 4;  // at least, before those of vectors: for the first tokens that are listed

/// A token that may be kept.
struct listed_token {
  float x;
  std::uint32_t token;
};

/// A lane's 16 bytes each of shared memory, of which the next is kWarp farther: vectors of the row, and from the first
/// one on, two each, the tokens listed of vectors that were looked at.
struct lane_slots {
  uint4* first;

  __device__ __forceinline__ uint4& vector(std::uint32_t slot) const { return first[slot * kWarp]; }
  __device__ __forceinline__ listed_token& token(std::uint32_t i) const {
    return reinterpret_cast<listed_token*>(&vector(i / 2))[i % 2];
  }
};

/// Where a row's columns are: whole vectors of 16 bytes in equal stretches, and a few columns before and behind them.
template <class Stored>
struct row_stretches {
  static constexpr std::uint32_t kPerVector = 16 / sizeof(Stored);
  std::uint32_t stretches;
  std::uint32_t rounds;  // of a stretch: vectors of each lane
  std::uint32_t head;    // columns before the first vector
  std::uint32_t behind;  // the first column behind the last one

  __device__ __forceinline__ row_stretches(const Stored* row, std::uint32_t columns, std::uint32_t blocks)
      : stretches(blocks * kRowWarps) {
    const auto past = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(Stored));
    head = min(columns, past == 0 ? 0 : kPerVector - past);
    const std::uint32_t vectors = (columns - head) / kPerVector;
    behind = head + vectors * kPerVector;
    rounds = (vectors + stretches * kWarp - 1) >> (shift_of(blocks) + kRoundShift);
  }
  __device__ __forceinline__ std::uint32_t vectors() const { return (behind - head) / kPerVector; }
  /// The first column of a block's stretches.
  __device__ __forceinline__ std::uint32_t first_of(std::uint32_t block) const {
    return block == 0 ? 0 : min(head + block * kRowThreads * rounds * kPerVector, behind);
  }

 private:
  static constexpr std::uint32_t kRoundShift = 9;  // of vectors in a round of a block
  static_assert(kRowThreads == 1 << kRoundShift);
};

/// A warp's stretch: the first rounds in registers, the next in shared memory, what has no room there where it lies.
template <class Stored>
struct row_stretch {
  static constexpr std::uint32_t kPerVector = 16 / sizeof(Stored);
  static constexpr std::uint32_t kBatch = 16 / kPerVector;  // rounds that are weighed together
  const uint4* vectors;
  std::uint32_t count;
  std::uint32_t rounds;
  std::uint32_t held;          // rounds in shared memory, a multiple of kBatch, in the last slots
  std::uint32_t first_column;  // of the vectors
  std::uint64_t* landed;       // a barrier for each chunk
  lane_slots slots;
  std::uint32_t slot_count;
  bool has_edge;
  float edge;
  std::uint32_t edge_column;
  uint4 in_registers[kInRegisters];

  __device__ __forceinline__ row_stretch(const Stored* row, std::uint32_t columns, const row_stretches<Stored>& all,
                                         std::uint32_t stretch, unsigned char* memory, std::uint32_t slots_each,
                                         std::uint64_t* barriers)
      : rounds(all.rounds), landed(barriers), slot_count(slots_each) {
    const std::uint32_t lane = threadIdx.x % kWarp;
    const std::uint32_t first = min(stretch * rounds * kWarp, all.vectors());
    count = min(rounds * kWarp, all.vectors() - first);
    vectors = reinterpret_cast<const uint4*>(row + all.head) + first;
    first_column = all.head + first * kPerVector;
    const std::uint32_t beyond = (rounds - min(rounds, kInRegisters) + kBatch - 1) / kBatch * kBatch;
    held = min(beyond, (slots_each - kSpareSlots) / kBatch * kBatch);
    slots.first = reinterpret_cast<uint4*>(memory) + lane;
    const bool in_head = stretch == 0 && lane < all.head;
    const bool in_tail = stretch == all.stretches - 1 && lane < columns - all.behind;
    has_edge = in_head || in_tail;
    edge_column = in_head ? lane : all.behind + lane;
    edge = has_edge ? core::widen(row[edge_column]) : core::float_from_bits(0xFF800000u);
  }

  /// The first slot that holds a vector.
  __device__ __forceinline__ std::uint32_t first_held() const { return slot_count - held; }
  /// Begins to bring what stays on the chip.
  __device__ __forceinline__ void begin() {
    const std::uint32_t lane = threadIdx.x % kWarp;
    if (lane == 0) {
      for (std::uint32_t chunk = 0; chunk * kChunk < held; chunk++) barrier_init(landed + chunk, 1);
      barrier_init_fence();
      for (std::uint32_t chunk = 0; chunk * kChunk < held; chunk++) {
        const std::uint32_t from = (kInRegisters + chunk * kChunk) * kWarp;
        const std::uint32_t to = min((kInRegisters + min((chunk + 1) * kChunk, held)) * kWarp, count);
        const std::uint32_t bytes = from < to ? (to - from) * 16 : 0;
        barrier_expect(landed + chunk, bytes);
        if (bytes > 0)
          bulk_copy(slots.first + (first_held() + chunk * kChunk) * kWarp, vectors + from, bytes, landed + chunk);
      }
    }
    for (std::uint32_t round = kInRegisters + held; round-- > kInRegisters;) {  // there may be fewer
      if ((round + 1) * kWarp <= count) break;
      if (round * kWarp + lane >= count) slots.vector(first_held() + round - kInRegisters) = absent();
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kInRegisters; r++) in_registers[r] = load(r);
  }

  /// Calls look(raw) for all of the lane's vectors, those that are not there as -inf, and waits for them.
  template <class Look>
  __device__ __forceinline__ void look_at_all(Look look) const {
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (std::uint32_t r = kInRegisters + held; r < rounds; r += kAtOnce) {
      uint4 raw[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) raw[i] = load(r + i);
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) look(raw[i]);
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kInRegisters; r++) look(in_registers[r]);
    __syncwarp();  // barriers are ready
#pragma unroll 1
    for (std::uint32_t r = 0; r < held; r += kBatch) {
      if (r % kChunk == 0) barrier_wait(landed + r / kChunk, 0);
      uint4 raw[kBatch];
#pragma unroll
      for (std::uint32_t i = 0; i < kBatch; i++) raw[i] = slots.vector(first_held() + r + i);
#pragma unroll
      for (std::uint32_t i = 0; i < kBatch; i++) look(raw[i]);
    }
  }

  /// Calls weigh(raw, slot, column) for the lane's vectors, kBatch rounds at a time: they lie in so many slots, too,
  /// and `column` is that of the lane's first; the next is kWarp vectors farther. What lies in slots before them may
  /// be overwritten. Calls vacate(slot) before vectors are put to that slot and the next ones.
  template <class Vacate, class Weigh>
  __device__ __forceinline__ void for_each_batch(Vacate vacate, Weigh weigh) const {
    const std::uint32_t lane = threadIdx.x % kWarp;
    const std::uint32_t in_slots = held;
    const std::uint32_t on_chip = held + kInRegisters;  // slots, then registers, then what lies elsewhere
    const std::uint32_t all = max(rounds, on_chip);
#pragma unroll 1
    for (std::uint32_t i = 0; i < all; i += kBatch) {
      std::uint32_t slot = first_held() + i;
      std::uint32_t round = kInRegisters + i;
      if (i >= in_slots && i < on_chip) {
        round = i - in_slots;
        slot = slot_count - kInRegisters + round;
        if (round == 0) {
          vacate(slot);
#pragma unroll
          for (std::uint32_t r = 0; r < kInRegisters; r++) slots.vector(slot + r) = in_registers[r];
        }
      } else if (i >= on_chip) {
        round = i;
        slot = slot_count - kBatch;
        vacate(slot);
#pragma unroll
        for (std::uint32_t v = 0; v < kBatch; v++) slots.vector(slot + v) = load(round + v);
      }
      uint4 raw[kBatch];
#pragma unroll
      for (std::uint32_t v = 0; v < kBatch; v++) raw[v] = slots.vector(slot + v);
      weigh(raw, slot, first_column + (round * kWarp + lane) * kPerVector);
    }
  }

 private:
  static __device__ __forceinline__ uint4 absent() {
    constexpr std::uint32_t kWord = kLeastWord<Stored>;
    return make_uint4(kWord, kWord, kWord, kWord);
  }
  __device__ __forceinline__ uint4 load(std::uint32_t round) const {
    const std::uint32_t at = round * kWarp + threadIdx.x % kWarp;
    return at < count ? load_streaming(vectors + at) : absent();
  }
};

}  // namespace shortlist::cuda::sampling
