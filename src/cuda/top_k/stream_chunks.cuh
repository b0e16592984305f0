// A long row in chunks that are copied into shared memory while others are looked at, and which of them a warp has.
// See stream_rows_kernel.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/plan.hpp"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/score.cuh"
#include "cuda/top_k/long_row.cuh"

namespace shortlist::cuda::streaming {

constexpr int kVectors = 4;                         // of a chunk, in a lane
constexpr int kStages = 2;                          // chunks under way in a warp
constexpr int kSampled = kStages * kVectors;        // vectors of a thread whose maxima make the first cut
constexpr std::uint32_t kChunk = kVectors * kWarp;  // vectors that a warp loads at a time
constexpr std::uint32_t kNoChunk = ~0u;
constexpr std::uint32_t kSectorVectors = 2;         // 32 bytes: chunks begin where sectors do, if the row does
constexpr std::uint32_t kMostEven = 8;              // slices of more chunks take them whole, others divide evenly
constexpr std::uint32_t kGoldenRatio = 2654435769;  // 0.618 of 2^32

/// A block, two of which share a multiprocessor. Copies under way: every thread's own vectors, read by itself alone.
template <int Threads>
struct block_form {
  static constexpr int kThreads = Threads;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr std::uint32_t kVectorPitch = kThreads * 16;  // bytes from a thread's vector to its next
  static constexpr std::uint32_t kStagePitch = kVectors * kVectorPitch;
  static constexpr std::int64_t kRingBytes = std::int64_t{kStages} * kStagePitch;
  static_assert(kRingBytes >= core::kStreamRowsMaxK * std::int64_t{sizeof(std::uint64_t)},
                "k keys beside as many maxima as a list holds");
};
using usual_form = block_form<384>;     // 96 KB on their way to a multiprocessor; about 40 KB hide the latency
using long_row_form = block_form<512>;  // 128 KB

/// A row's vectors of 16 bytes, counted from its first whole one.
template <class Stored>
struct row_vectors {
  using stored = Stored;
  static constexpr int kPerVector = cuda::kPerVector<Stored>;
  const uint4* vectors;
  std::uint32_t first_column;  // of vector 0
  std::uint32_t end;           // vectors of the row

  __device__ __forceinline__ std::uint32_t column_of(std::uint32_t vector) const {
    return first_column + vector * kPerVector;
  }
};
template <class Stored>
__device__ __forceinline__ row_vectors<Stored> vectors_of(const whole_row<Stored>& row) {
  return {reinterpret_cast<const uint4*>(row.values + row.head), row.first_column + row.head, row.vectors};
}

__device__ __forceinline__ std::uint32_t shares_of(std::uint32_t all, std::uint32_t most) {
  return (all + most - 1) / most;
}

/// A warp's part of a row whose team shares it evenly: every `slots`-th of its chunks, so that each warp has some from
/// everywhere in the row.
template <class Stored>
struct row_slice : row_vectors<Stored> {
  std::uint32_t chunk;  // vectors, at most kChunk
  std::uint32_t slot;   // the warp's place among those that share the row
  std::uint32_t slots;
  std::uint32_t rounds;  // of a chunk for each slot

  __device__ __forceinline__ std::uint32_t chunk_end(std::uint32_t first) const {
    return min(first + chunk, this->end);
  }
  /// The first vector of the warp's chunk of a round, or kNoChunk.
  __device__ __forceinline__ std::uint32_t first_of(std::uint32_t round) const {
    const std::uint32_t first = (round * slots + slot) * chunk;
    return round < rounds && first < this->end ? first : kNoChunk;
  }
};

template <class Stored>
__device__ __forceinline__ row_slice<Stored> slice_of(const whole_row<Stored>& row, std::uint32_t slot,
                                                      std::uint32_t slots) {
  row_slice<Stored> slice{vectors_of(row), kChunk, slot, slots, 0};
  const std::uint32_t each = shares_of(row.vectors, slots);
  const std::uint32_t rounds = shares_of(each, kChunk);
  if (rounds > 0 && rounds <= kMostEven)
    slice.chunk = min(kChunk, shares_of(shares_of(each, rounds), kSectorVectors) * kSectorVectors);
  slice.rounds = shares_of(row.vectors, slots * slice.chunk);
  return slice;
}

/// A row whose chunks are in another order: of groups of `apart` chunks one after the other's first, then their second,
/// .. , so that any range of that order has chunks from everywhere in the row.
template <class Stored>
struct scattered_row : row_vectors<Stored> {
  std::uint32_t chunks;
  std::uint32_t apart;
  std::uint32_t log_groups;
  std::uint32_t step;    // from group to group
  std::uint32_t larger;  // of the first groups, which have one chunk more: the last ones of the order

  __device__ __forceinline__ std::uint32_t chunk_end(std::uint32_t first) const {
    return min(first + kChunk, this->end);
  }
  /// The first vector of a chunk, by its place in the order.
  __device__ __forceinline__ std::uint32_t first_of(std::uint32_t place) const {
    const std::uint32_t in_group = place >> log_groups;
    const std::uint32_t turn = place & ((1u << log_groups) - 1);
    const std::uint32_t group = in_group < apart ? turn * step & ((1u << log_groups) - 1) : turn;
    return (group * apart + min(group, larger) + in_group) * kChunk;
  }
};

template <class Stored>
__device__ __forceinline__ scattered_row<Stored> scattered(const whole_row<Stored>& row) {
  constexpr std::uint32_t kLeastApart = 16;
  const std::uint32_t chunks = shares_of(row.vectors, kChunk);
  const std::uint32_t log_groups = chunks < 2 * kLeastApart ? 0 : 31 - __clz(static_cast<int>(chunks / kLeastApart));
  const std::uint32_t apart = chunks >> log_groups;
  return {vectors_of(row),
          chunks,
          apart,
          log_groups,
          kGoldenRatio >> (32 - max(log_groups, 1u)) | 1u,
          chunks - (apart << log_groups)};
}

/// A warp's chunks of such a row: of a range of that order, every kWarps-th.
template <class Form>
struct scattered_walk {
  std::uint32_t place;
  std::uint32_t end;

  /// @returns the next chunk's first vector, or kNoChunk.
  template <class Stored>
  __device__ __forceinline__ std::uint32_t next(const scattered_row<Stored>& row) {
    if (place >= end) return kNoChunk;
    const std::uint32_t first = row.first_of(place);
    place += Form::kWarps;
    return first;
  }
};

/// The chunks of a part, out of order and each warp's in its own, so that those that warps have first are a sample of
/// the row, and no order of the data makes each chunk better than those before.
struct chunk_walk {
  std::uint32_t turns;  // a power of two; those that stand for no chunk are passed over
  std::uint32_t step;
  std::uint32_t round;
  std::uint32_t turn = 0;

  /// @returns the next chunk's first vector, or kNoChunk.
  template <class Part>
  __device__ __forceinline__ std::uint32_t next(const Part& part) {
    while (turn < turns) {
      const std::uint32_t here = round;
      turn++;
      round = (round + step) & (turns - 1);
      const std::uint32_t first = part.first_of(here);
      if (first != kNoChunk) return first;
    }
    return kNoChunk;
  }
};

/// @param slot of warps that have the same order.
template <class Part>
__device__ __forceinline__ chunk_walk walk_of(const Part& part, std::uint32_t slot) {
  const std::uint32_t turns = part.rounds == 0 ? 0 : 1u << (32 - __clz(static_cast<int>(part.rounds - 1)));
  const auto share = [&](std::uint32_t of_all) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(turns) * of_all >> 32);
  };
  return {turns, share(kGoldenRatio) | 1u, share(slot * kGoldenRatio)};
}

/// Begins to copy a chunk to a stage: lane l has the vectors l, l + 32, ..; those past the chunk's end are copies of
/// its last. Without a chunk, only counts as a group of copies.
template <class Form, class Part>
__device__ __forceinline__ void copy_chunk(const Part& part, std::uint32_t first, std::uint32_t stage_address) {
  if (first != kNoChunk) {
    const std::uint32_t mine = first + threadIdx.x % kWarp;
    const std::uint32_t end = part.chunk_end(first);
    if (end - first == kChunk) {
      const uint4* from = part.vectors + mine;
#pragma unroll
      for (int v = 0; v < kVectors; v++) async_copy_16(stage_address + v * Form::kVectorPitch, from + v * kWarp, true);
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; v++)
        async_copy_16(stage_address + v * Form::kVectorPitch, part.vectors + min(mine + v * kWarp, end - 1), true);
    }
  }
  async_commit();
}

/// A thread's vectors of a stage, which must have come.
template <class Form>
__device__ __forceinline__ void read_stage(const unsigned char* stage, std::uint32_t flip, uint4 (&raw)[kVectors]) {
#pragma unroll
  for (int v = 0; v < kVectors; v++) raw[v] = *reinterpret_cast<const uint4*>(stage + v * Form::kVectorPitch);
#pragma unroll
  for (int v = 0; v < kVectors; v++)
    raw[v] = make_uint4(raw[v].x ^ flip, raw[v].y ^ flip, raw[v].z ^ flip, raw[v].w ^ flip);
}

/// The larger of two words of stored values, each with each; NaN only against NaN. Of zeros, either.
template <class Stored>
__device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  if constexpr (sizeof(Stored) == 4) {
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  } else {
    using pair = std::conditional_t<std::is_same_v<Stored, float16>, __half2, __nv_bfloat162>;
    const pair most = __hmax2(reinterpret_cast<const pair&>(a), reinterpret_cast<const pair&>(b));
    return reinterpret_cast<const std::uint32_t&>(most);
  }
}

template <class Stored>
__device__ __forceinline__ std::uint32_t most_of(uint4 raw) {
  return larger<Stored>(larger<Stored>(raw.x, raw.y), larger<Stored>(raw.z, raw.w));
}
/// The best of a word's values, of a vector's, and of a chunk's: NaN if all are.
template <class Stored>
__device__ __forceinline__ float best_of(std::uint32_t word) {
  if constexpr (sizeof(Stored) == 4) {
    return __uint_as_float(word);
  } else {
    float values[8];
    widen_vector<Stored>(make_uint4(word, word, word, word), values);
    return fmaxf(values[0], values[1]);
  }
}
template <class Stored>
__device__ __forceinline__ float best_of(uint4 raw) {
  return best_of<Stored>(most_of<Stored>(raw));
}
template <class Stored>
__device__ __forceinline__ float best_of(const uint4 (&raw)[kVectors]) {
  std::uint32_t most[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; v++) most[v] = most_of<Stored>(raw[v]);
#pragma unroll
  for (int half = kVectors / 2; half > 0; half /= 2)
#pragma unroll
    for (int v = 0; v < half; v++) most[v] = larger<Stored>(most[v], most[v + half]);
  return best_of<Stored>(most[0]);
}

/// For every vector of a chunk, a key that its best column reaches: the best value, as if its last column had it.
template <class Part>
__device__ __forceinline__ void chunk_maxima(const Part& part, std::uint32_t first, const uint4 (&raw)[kVectors],
                                             std::uint64_t* best) {
  const std::uint32_t mine = first + threadIdx.x % kWarp;
  const std::uint32_t end = part.chunk_end(first);
#pragma unroll
  for (int v = 0; v < kVectors; v++) {
    const std::uint32_t vector = mine + v * kWarp;
    const std::uint32_t last_column = part.column_of(vector) + Part::kPerVector - 1;
    best[v] =
        vector < end ? core::row_key(key_of_wide(best_of<typename Part::stored>(raw[v])), last_column) : core::kNoRow;
  }
}

}  // namespace shortlist::cuda::streaming
