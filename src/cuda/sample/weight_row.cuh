// A row of logits that stays on the chip: each block of a cluster has a piece of neighbouring columns, and its warps
// take turns in it. See weight_sample.cu.
#pragma once

#include <cstdint>

#include "cuda/device/row_stream.cuh"
#include "cuda/device/shared_memory.cuh"
#include "cuda/sample/sample_parts.cuh"

namespace shortlist::cuda::sampling {

/// How many blocks share a multiprocessor: one, where all rows run at a time or are long; more, so that some load while
/// others weigh or wait for each other.
template <int Blocks>
struct block_form {
  static_assert(Blocks == 1 || Blocks == 2 || Blocks == 4);
  static constexpr int kBlocks = Blocks;
  static constexpr int kThreads = Blocks == 1 ? 512 : 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr std::uint32_t kInRegisters = Blocks == 4 ? 4 : 12;  // a lane's vectors: its warp's first rounds
  static constexpr std::int64_t kHeldBytes = Blocks == 1 ? 260'000 : Blocks == 2 ? 131'072 : 32'768;  // of a row
};

constexpr std::uint32_t kMostChunks = 4;  // no more than lanes
constexpr std::uint32_t kSpareSlots = 4;  // at least, before those of vectors: for the first tokens that are listed

/// A token that may be kept.
struct listed_token {
  float x;
  std::uint32_t token;
};

/// A logit as it is stored, of the row's vectors in shared memory.
template <class Stored>
__device__ __forceinline__ Stored logit_at(std::uint32_t address) {
  if constexpr (sizeof(Stored) == 4)
    return core::float_from_bits(load_shared<std::uint32_t>(address));
  else
    return {load_shared<std::uint16_t>(address)};
}

/// A lane's 16 bytes of each of the warp's slots of shared memory: a vector of the row. Slots whose vectors all lanes
/// have looked at become room for listed tokens, kTokensEach of every lane.
struct lane_slots {
  static constexpr std::uint32_t kTokensEach = 2;
  uint4* first;

  __device__ __forceinline__ uint4& vector(std::uint32_t slot) const { return first[slot * kWarp]; }
  /// The shared address of the lane's first token; the next is a warp's worth farther.
  __device__ __forceinline__ std::uint32_t tokens() const {
    const std::uint32_t lane = threadIdx.x % kWarp;
    return shared_address(first) - lane * static_cast<std::uint32_t>(sizeof(uint4) - sizeof(listed_token));
  }
};
constexpr std::uint32_t kTokenPitch = kWarp * sizeof(listed_token);  // bytes from a lane's token to its next
static_assert(lane_slots::kTokensEach * kTokenPitch == kWarp * sizeof(uint4));

/// Rounds of a warp that are weighed together: 16 logits of a lane.
template <class Stored>
constexpr std::uint32_t batch_rounds = sizeof(Stored);

/// Where a row's columns are: whole vectors of 16 bytes in equal pieces, one of each block, and a few columns before
/// and behind them. A block's warps take turns in a piece, a unit of rounds at a time, so that none has only the best.
template <class Stored, class Form>
struct row_pieces {
  static constexpr std::uint32_t kPerVector = 16 / sizeof(Stored);
  static constexpr std::uint32_t kThreads = Form::kThreads;
  std::uint32_t blocks;
  std::uint32_t rounds;   // of a piece: vectors of each thread, if all have as many
  std::uint32_t columns;  // of the row
  std::uint32_t head;     // columns before the first vector
  std::uint32_t behind;   // the first column behind the last one

  __device__ __forceinline__ row_pieces(const Stored* row, std::uint32_t of_row, std::uint32_t blocks_of_row)
      : blocks(blocks_of_row), columns(of_row) {
    const auto past = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(Stored));
    head = min(columns, past == 0 ? 0 : kPerVector - past);
    const std::uint32_t vectors = (columns - head) / kPerVector;
    behind = head + vectors * kPerVector;
    rounds = ((vectors + blocks * kThreads - 1) >> shift_of(blocks)) / kThreads;
  }
  __device__ __forceinline__ std::uint32_t vectors() const { return (behind - head) / kPerVector; }
  /// The first column of a block's vectors.
  __device__ __forceinline__ std::uint32_t first_vector_of(std::uint32_t block) const {
    return min(head + block * kThreads * rounds * kPerVector, behind);
  }
  /// The first column of a block's piece; `blocks` for the end of the last one.
  __device__ __forceinline__ std::uint32_t first_of(std::uint32_t block) const {
    if (block == 0) return 0;
    return block == blocks ? columns : first_vector_of(block);
  }
};

/// A warp's part of a piece: the first rounds in registers, the next in shared memory, what has no room there where it
/// lies.
template <class Stored, class Form>
struct row_part_of_warp {
  static constexpr std::uint32_t kPerVector = 16 / sizeof(Stored);
  static constexpr std::uint32_t kBatch = batch_rounds<Stored>;
  static constexpr std::uint32_t kThreads = Form::kThreads;
  static constexpr std::uint32_t kInRegisters = Form::kInRegisters;
  /// Rounds of neighbouring vectors: copies of less take longer, but of short rows one warp would have the best.
  static constexpr std::uint32_t kUnit = Form::kBlocks == 4 ? kBatch : 4;
  static constexpr std::uint32_t kChunk = 2 * kUnit;  // rounds that arrive together
  const uint4* vectors;                               // of the piece
  std::uint32_t count;
  std::uint32_t rounds;         // in whole units: of the last, some warps have none
  std::uint32_t sample_rounds;  // if a thousand threads had the row: its sample need not grow with them
  std::uint32_t rounds_of_two;  // of no more rounds, the sample has two logits of each vector
  std::uint32_t held;           // rounds in shared memory, a multiple of kBatch, in the last slots
  std::uint32_t first_column;   // of the vectors
  std::uint64_t* landed;        // a barrier for each chunk
  lane_slots slots;
  std::uint32_t slot_count;
  bool has_edge;
  float edge;
  std::uint32_t edge_column;
  std::uint32_t phase = 0;  // of the barriers
  uint4 in_registers[kInRegisters];

  __device__ __forceinline__ row_part_of_warp(const Stored* row, const row_pieces<Stored, Form>& all,
                                              std::uint32_t block, unsigned char* memory, std::uint32_t slots_each,
                                              std::uint64_t* barriers)
      : rounds((all.rounds + kUnit - 1) / kUnit * kUnit),
        sample_rounds(all.rounds * (all.blocks * kThreads) / kThreadsOfSample),
        rounds_of_two(Form::kBlocks < 4 && all.blocks * kThreads < kThreadsOfSample ? kRoundsOfTwoOfFew : kRoundsOfTwo),
        landed(barriers),
        slot_count(slots_each) {
    const std::uint32_t lane = threadIdx.x % kWarp;
    const std::uint32_t first = min(block * all.rounds * kThreads, all.vectors());
    count = min(all.rounds * kThreads, all.vectors() - first);
    vectors = reinterpret_cast<const uint4*>(row + all.head) + first;
    first_column = all.head + first * kPerVector;
    const std::uint32_t beyond = (rounds - min(rounds, kInRegisters) + kBatch - 1) / kBatch * kBatch;
    held = min(beyond, (slots_each - kSpareSlots) / kBatch * kBatch);
    slots.first = reinterpret_cast<uint4*>(memory) + lane;
    const bool in_head = block == 0 && threadIdx.x < all.head;
    const bool in_tail = block == all.blocks - 1 && threadIdx.x >= kThreads - kWarp && lane < all.columns - all.behind;
    has_edge = in_head || in_tail;
    edge_column = in_head ? lane : all.behind + lane;
    edge = has_edge ? core::widen(row[edge_column]) : core::float_from_bits(0xFF800000u);
  }

  /// The first slot that holds a vector.
  __device__ __forceinline__ std::uint32_t first_held() const { return slot_count - held; }
  /// Begins to bring what stays on the chip: first into registers, since those loads would wait behind the copies.
  __device__ __forceinline__ void begin() {
    const std::uint32_t lane = threadIdx.x % kWarp;
    const std::uint32_t first = lane * kUnit;  // a lane for each unit
    const bool brings = first < held;
    std::uint64_t* barrier = landed + first / kChunk;
    if (brings && phase == 0 && first % kChunk == 0) {
      barrier_init(barrier, first + kUnit < held ? 2 : 1);
      barrier_init_fence();
    }
    for (std::uint32_t round = kInRegisters + held; round-- > kInRegisters;) {  // there may be fewer
      if (vector_of(round) - lane + kWarp <= count) break;
      if (vector_of(round) >= count) slots.vector(first_held() + round - kInRegisters) = absent();
    }
#pragma unroll
    for (std::uint32_t r = 0; r < kInRegisters; r++) in_registers[r] = load(r);
    __syncwarp();  // barriers are ready
    if (!brings) return;
    const std::uint32_t from = vector_of(kInRegisters + first) - lane;
    const std::uint32_t bytes = from < count ? min(min(kUnit, held - first) * kWarp, count - from) * 16 : 0;
    barrier_expect(barrier, bytes);
    if (bytes > 0) bulk_copy(slots.first - lane + (first_held() + first) * kWarp, vectors + from, bytes, barrier);
  }

  /// The same once more, of what has come before. All threads have called async_fence since they wrote to slots, and
  /// met.
  __device__ __forceinline__ void begin_again() {
    phase ^= 1;
    begin();
  }
  __device__ __forceinline__ void await() const {
    for (std::uint32_t r = 0; r < held; r += kChunk) barrier_wait(landed + r / kChunk, phase);
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
#pragma unroll 1
    for (std::uint32_t r = 0; r < held; r += kBatch) {
      if (r % kChunk == 0) barrier_wait(landed + r / kChunk, phase);
      uint4 raw[kBatch];
#pragma unroll
      for (std::uint32_t i = 0; i < kBatch; i++) raw[i] = slots.vector(first_held() + r + i);
#pragma unroll
      for (std::uint32_t i = 0; i < kBatch; i++) look(raw[i]);
    }
  }

  /// How many of the lane's logits each stands for that look_at_some looks at.
  __device__ __forceinline__ std::uint32_t sampled_each() const {
    const std::uint32_t here = kInRegisters + held;
    const std::uint32_t elsewhere = rounds <= here ? 1 : max(1u, (rounds + here / 2) / here);  // divides rarely
    return (kPerVector >> shift_of(sampled_of_vector())) * (skips_rounds() ? 2 : 1) * elsewhere;
  }
  /// Calls look(some) for arrays of some of the lane's logits, from all over the piece: all of few; -inf where there is
  /// none.
  template <class Look>
  __device__ __forceinline__ void look_at_some(Look look) const {
    if (sampled_of_vector() == 1) return look_at_first_ones(look);
#pragma unroll
    for (std::uint32_t r = 0; r < kInRegisters; r += kTogether) {
      if (r >= rounds) break;
      look_at_vectors([&](std::uint32_t i) { return in_registers[r + i]; }, look);
    }
#pragma unroll 1
    for (std::uint32_t r = 0; r < held; r += kTogether)
      look_at_vectors([&](std::uint32_t i) { return r + i < held ? slots.vector(first_held() + r + i) : absent(); },
                      look);
  }

  /// Calls weigh(raw, address, column) for the lane's vectors, kBatch rounds at a time: they lie from that shared
  /// address on, too, and `column` is that of the lane's first; the next is kWarp vectors farther in both, so that the
  /// warp's are neighbours. What lies in slots before them may be overwritten, by any lane. Calls vacate(slot) before
  /// vectors are put to that slot and the next ones. All lanes of the warp come.
  template <class Vacate, class Weigh>
  __device__ __forceinline__ void for_each_batch(Vacate vacate, Weigh weigh) const {
    // Those in slots come first, then those in registers, then what lies elsewhere.
    std::uint32_t address = shared_address(&slots.vector(first_held()));
    std::uint32_t round = kInRegisters;
    std::uint32_t batches = held / kBatch;
    std::uint32_t next = 0;  // round
#pragma unroll 1
    for (;;) {
      if (batches == 0) {
        std::uint32_t slot = slot_count - kBatch;
        if (next == 0) {
          slot = slot_count - kInRegisters;
          vacate(slot);
#pragma unroll
          for (std::uint32_t r = 0; r < kInRegisters; r++) slots.vector(slot + r) = in_registers[r];
          batches = (min(rounds, kInRegisters) + kBatch - 1) / kBatch;
        } else if (next < rounds) {
          vacate(slot);
#pragma unroll
          for (std::uint32_t v = 0; v < kBatch; v++) slots.vector(slot + v) = load(next + v);
          batches = 1;
        } else {
          break;
        }
        address = shared_address(&slots.vector(slot));
        round = next;
        next = next == 0 ? kInRegisters + held : next + kBatch;
        if (batches == 0) continue;
      }
      uint4 raw[kBatch];
#pragma unroll
      for (std::uint32_t v = 0; v < kBatch; v++) raw[v] = load_shared<uint4>(address + v * kWarp * 16);
      weigh(raw, address, first_column + vector_of(round) * kPerVector);
      __syncwarp();  // none reads these vectors any more
      batches--;
      address += kBatch * kWarp * 16;
      round += kBatch;
    }
  }

 private:
  // The sample: of no more rounds than these all of a vector's logits, four, two, or one; of more, one in every other
  // round. That is 12 to 24 logits of each of a thousand threads, 16 to 32 where the row has fewer.
  static constexpr std::uint32_t kRoundsOfAll = 2;
  static constexpr std::uint32_t kRoundsOfFour = 6;
  static constexpr std::uint32_t kRoundsOfTwo = 12;
  static constexpr std::uint32_t kRoundsOfTwoOfFew = 16;
  static constexpr std::uint32_t kRoundsOfOne = 24;
  static constexpr std::uint32_t kThreadsOfSample = 1024;

  /// Whether lanes look at every other round, for the sample.
  __device__ __forceinline__ bool skips_rounds() const { return sample_rounds > kRoundsOfOne; }
  __device__ __forceinline__ std::uint32_t sampled_of_vector() const {
    const std::uint32_t most = max(rounds, sample_rounds);
    if (most <= kRoundsOfAll) return kPerVector;
    return most <= kRoundsOfFour ? 4 : most <= rounds_of_two ? 2 : 1;
  }
  static constexpr std::uint32_t kTogether = 4;  // vectors, of which some are looked at
  static __device__ __forceinline__ float first_of(std::uint32_t word) {
    if constexpr (sizeof(Stored) == 4)
      return core::float_from_bits(word);
    else
      return core::widen(Stored{static_cast<std::uint16_t>(word)});
  }
  /// The first logit of each vector, or of every other one: of odd ones or of even ones, by the lane.
  template <class Look>
  __device__ __forceinline__ void look_at_first_ones(Look look) const {
    constexpr std::uint32_t kSome = 12;
    const bool skips = skips_rounds();
    const bool odd = skips && threadIdx.x % 2 != 0;
    if (skips) {
      constexpr std::uint32_t kHalf = kInRegisters / 2;
      float some[kHalf];
#pragma unroll
      for (std::uint32_t i = 0; i < kHalf; i++)
        some[i] = first_of(odd ? in_registers[2 * i + 1].x : in_registers[2 * i].x);
      look(some);
    } else {
      float some[kInRegisters];
#pragma unroll
      for (std::uint32_t i = 0; i < kInRegisters; i++) some[i] = first_of(in_registers[i].x);
      look(some);
    }
    const std::uint32_t step = skips ? 2 : 1;
    const uint4* from = &slots.vector(first_held() + (odd ? 1 : 0));
#pragma unroll 1
    for (std::uint32_t r = 0; r < held; r += kSome * step) {
      float some[kSome];
#pragma unroll
      for (std::uint32_t i = 0; i < kSome; i++) {
        const std::uint32_t round = r + i * step;
        some[i] = first_of(round < held ? from[round * kWarp].x : kLeastWord<Stored>);
      }
      look(some);
    }
  }
  /// Some of a few vectors' logits. @param vector vector(i) is the i-th
  template <class Vector, class Look>
  __device__ __forceinline__ void look_at_vectors(Vector vector, Look look) const {
    const auto look_at = [&](auto words) {  // the first logit of so many words of each
      constexpr std::uint32_t kWords = decltype(words)::value;
      float some[kTogether * kWords];
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; i++) {
        const uint4 raw = vector(i);
        const std::uint32_t of_vector[] = {raw.x, raw.z, raw.y, raw.w};
#pragma unroll
        for (std::uint32_t w = 0; w < kWords; w++) some[i * kWords + w] = first_of(of_vector[w]);
      }
      look(some);
    };
    const std::uint32_t of_vector = sampled_of_vector();
    if (of_vector == 2) return look_at(std::integral_constant<std::uint32_t, 2>{});
    look_at(std::integral_constant<std::uint32_t, 4>{});
    if constexpr (sizeof(Stored) == 2) {
      if (of_vector == 4) return;
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; i++) {
        const uint4 raw = vector(i);
        const float others[] = {first_of(raw.x >> 16), first_of(raw.y >> 16), first_of(raw.z >> 16),
                                first_of(raw.w >> 16)};
        look(others);
      }
    }
  }
  /// The number of the lane's vector of a round, in the piece.
  static __device__ __forceinline__ std::uint32_t vector_of(std::uint32_t round) {
    static_assert(kInRegisters % kUnit == 0 && kUnit % kBatch == 0);
    const std::uint32_t unit = round / kUnit * Form::kWarps + threadIdx.x / kWarp;
    return (unit * kUnit + round % kUnit) * kWarp + threadIdx.x % kWarp;
  }
  static __device__ __forceinline__ uint4 absent() {
    constexpr std::uint32_t kWord = kLeastWord<Stored>;
    return make_uint4(kWord, kWord, kWord, kWord);
  }
  __device__ __forceinline__ uint4 load(std::uint32_t round) const {
    const std::uint32_t at = vector_of(round);
    return at < count ? load_streaming(vectors + at) : absent();
  }
};

}  // namespace shortlist::cuda::sampling
