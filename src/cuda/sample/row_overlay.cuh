// Rows under an overlay: vectors of logits without the tokens that do not count as they are stored, and the tokens that
// are penalized. See row_overlay.hpp.
#pragma once

#include <cstdint>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/row_stream.cuh"
#include "cuda/device/shared_list.cuh"
#include "cuda/sample/row_load.cuh"
#include "cuda/sample/row_overlay.hpp"
#include "cuda/sample/sample_parts.cuh"

namespace shortlist::cuda::sampling {

__device__ __forceinline__ bool has_bit(const std::uint32_t* words, std::uint32_t token) {
  return (words[token / 32] >> token % 32 & 1) != 0;
}

/// One row's overlay, and of what is listed the block's piece.
template <class Stored>
struct overlaid_row {
  const std::uint32_t* plain;
  const std::uint32_t* penalized;  // null: none
  std::uint32_t* times;
  const penalized_token* list;
  std::uint32_t listed = 0;  // tokens,
  bool lists_all = true;     // of the piece's penalized ones
  std::uint32_t first_word;  // of the piece
  std::uint32_t end_word;
  core::penalties by;
  const Stored* logits;

  __device__ __forceinline__ overlaid_row(const row_overlay& overlay, const core::sample_request& request,
                                          std::int64_t row, const cluster_place& place)
      : plain(overlay.plain + row * overlay.plain_stride), penalized(nullptr) {
    if (!overlay.penalized) return;
    const std::int64_t piece = row * place.blocks + place.rank;
    penalized = overlay.penalized + row * overlay.penalized_stride;
    times = overlay.times + row * overlay.times_stride;
    list = overlay.lists + piece * overlay.list_room;
    const std::uint32_t count = overlay.counts[piece];
    listed = min(count, overlay.list_room);
    lists_all = count == listed;
    first_word = place.rank * overlay.piece_words;
    end_word = min(first_word + overlay.piece_words, (static_cast<std::uint32_t>(request.logits.cols) + 31) / 32);
    by = core::penalties_of(request.params, row);
    logits = static_cast<const Stored*>(request.logits.data) + row * request.logits.row_stride;
  }

  __device__ __forceinline__ bool is_plain(std::uint32_t token) const { return has_bit(plain, token); }
  __device__ __forceinline__ float penalized_of(Stored x, std::uint32_t often) const {
    return core::penalized(core::widen(x), static_cast<std::int32_t>(often), by);
  }
  /// Calls look(x, token) for the piece's penalized tokens. All threads come.
  template <class Look>
  __device__ __forceinline__ void for_each_penalized(Look look) const {
    if (!lists_all) {
      place_times();
      __syncthreads();
      for (std::uint32_t w = first_word + threadIdx.x; w < end_word; w += kThreads) {
        for (std::uint32_t word = penalized[w]; word; word &= word - 1) {
          const std::uint32_t token = w * 32 + __ffs(static_cast<int>(word)) - 1;
          look(penalized_of(logits[token], times[token]), token);
        }
      }
      return;
    }
    constexpr std::uint32_t kFlight = 4;  // under way in a thread
    for (std::uint32_t i = threadIdx.x; i < listed; i += kFlight * kThreads) {
      penalized_token some[kFlight];
      Stored x[kFlight];
#pragma unroll
      for (std::uint32_t j = 0; j < kFlight; j++)
        if (i + j * kThreads < listed) some[j] = list[i + j * kThreads];
#pragma unroll
      for (std::uint32_t j = 0; j < kFlight; j++)
        if (i + j * kThreads < listed) x[j] = logits[some[j].token];
#pragma unroll
      for (std::uint32_t j = 0; j < kFlight; j++)
        if (i + j * kThreads < listed) look(penalized_of(x[j], some[j].times), some[j].token);
    }
  }
  /// Writes the times of listed tokens to where they belong. All threads come; a barrier shows them to the block, a
  /// meeting to the cluster.
  __device__ __forceinline__ void place_times() const {
    for (std::uint32_t i = threadIdx.x; i < listed; i += kThreads) times[list[i].token] = list[i].times;
  }
  /// The logit of a token that is stored as `x`. @pre all pieces' times have been placed
  __device__ __forceinline__ float of(float x, std::uint32_t token) const {
    if (is_plain(token)) return x;
    if (!penalized || !has_bit(penalized, token)) return minus_infinity<float>();
    return core::penalized(x, static_cast<std::int32_t>(times[token]), by);
  }
};

/// By which a vector's logits stay: a mask of words for each four bits. In the block's shared memory.
template <class Stored>
struct kept_words {
  static constexpr int kWords = sizeof(Stored) == 4 ? 4 : 2;  // that four logits take
  alignas(16) std::uint32_t of_bits[16][kWords];

  /// All threads come; a barrier shows it.
  __device__ __forceinline__ void fill() {
    if (threadIdx.x >= 16) return;
#pragma unroll
    for (int w = 0; w < kWords; w++) {
      if constexpr (kWords == 4)
        of_bits[threadIdx.x][w] = threadIdx.x >> w & 1 ? ~0u : 0u;
      else
        of_bits[threadIdx.x][w] = (threadIdx.x >> 2 * w & 1) * 0xFFFFu | (threadIdx.x >> (2 * w + 1) & 1) * 0xFFFF0000u;
    }
  }
  /// The vector, of which logits whose bit is 0 are -inf.
  __device__ __forceinline__ uint4 applied(uint4 raw, std::uint32_t bits) const {
    uint4 keep;
    if constexpr (kWords == 4) {
      keep = *reinterpret_cast<const uint4*>(of_bits[bits & 15]);
    } else {
      const uint2 low = *reinterpret_cast<const uint2*>(of_bits[bits & 15]);
      const uint2 high = *reinterpret_cast<const uint2*>(of_bits[bits >> 4 & 15]);
      keep = make_uint4(low.x, low.y, high.x, high.y);
    }
    const auto one = [](std::uint32_t word, std::uint32_t mask) {
      return (word & mask) | (kLeastWord<Stored> & ~mask);
    };
    return make_uint4(one(raw.x, keep.x), one(raw.y, keep.y), one(raw.z, keep.z), one(raw.w, keep.w));
  }
};

/// Words that the bits of so many vectors take, wherever they begin; a multiple of 16 bytes.
constexpr std::uint32_t bit_words_of(std::uint32_t vectors, std::uint32_t per_vector) {
  return (31 + vectors * per_vector + 127) / 128 * 4;
}

/// Which of a block's vectors' logits count as they are stored.
template <class Stored>
class plain_vectors {
 public:
  static constexpr std::uint32_t kPerVector = 16 / sizeof(Stored);

  /// Begins to copy the bits. All threads come. @param first_token of the block's vectors, of which there are `count`
  /// @param memory of bit_words_of(most vectors of a block)
  __device__ __forceinline__ plain_vectors(const std::uint32_t* plain, std::uint32_t first_token, std::uint32_t count,
                                           std::uint32_t* memory, kept_words<Stored>& kept)
      : bytes_(reinterpret_cast<const std::uint8_t*>(memory)), kept_(kept), first_bit_(first_token % 32) {
    const std::uint32_t words = count == 0 ? 0 : (first_bit_ + count * kPerVector + 31) / 32;
    for (std::uint32_t w = threadIdx.x; w < words; w += kThreads)
      async_copy_4(shared_address(memory + w), plain + first_token / 32 + w);
    kept.fill();
  }
  // From here on @pre all threads' copies have come, which a barrier has shown.

  /// Of a vector's logits, those that count as they are stored.
  __device__ __forceinline__ std::uint32_t bits(std::uint32_t vector) const {
    const std::uint32_t first = first_bit_ + vector * kPerVector;
    const std::uint8_t* at = bytes_ + first / 8;
    std::uint32_t bits = at[0];
    if (first_bit_ % kPerVector != 0) bits |= static_cast<std::uint32_t>(at[1]) << 8;
    // A byte of bits for each 16-bit vector: where they begin in it is the same for all.
    return bits >> (kPerVector == 8 ? first_bit_ : first) % 8 & ((1u << kPerVector) - 1);
  }
  /// The vector, of which the other logits are -inf.
  __device__ __forceinline__ uint4 of(uint4 raw, std::uint32_t vector) const {
    return kept_.applied(raw, bits(vector));
  }

 private:
  const std::uint8_t* bytes_;
  const kept_words<Stored>& kept_;
  std::uint32_t first_bit_;
};

/// A part of a row that is read where it lies, under an overlay.
template <class Stored>
struct overlaid_part : row_in_place<Stored> {
  const overlaid_row<Stored>& row;

  __device__ __forceinline__ overlaid_part(const row_in_place<Stored>& part, const overlaid_row<Stored>& over)
      : row_in_place<Stored>(part), row(over) {}
  __device__ __forceinline__ float value(std::uint32_t warp, std::uint32_t i) const {
    const float x = row_in_place<Stored>::value(warp, i);
    const std::uint32_t token = this->first_position(warp) + i - this->shift;  // before the row: beyond the vocabulary
    return token < this->vocab ? row.of(x, token) : x;
  }
  __device__ __forceinline__ float4 four(std::uint32_t warp, std::uint32_t i) const {
    return make_float4(value(warp, i), value(warp, i + 1), value(warp, i + 2), value(warp, i + 3));
  }
};

}  // namespace shortlist::cuda::sampling
