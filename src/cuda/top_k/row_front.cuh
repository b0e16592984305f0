// The first columns of a long row that reach something, found by one block where the row lies: it is read from its
// first column on until there are enough.
//
// Tiles of the row are on their way to shared memory ahead of what is looked at; the first ones may be asked for before
// it is known whether they are needed. A thread looks at neighbouring vectors, so that a tile takes one sum over the
// block.
#pragma once

#include <cstdint>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/top_k/long_row.cuh"

namespace shortlist::cuda {

template <class Stored, int Threads>
class row_front {
  static constexpr std::uint32_t kWarps = Threads / kWarp;
  static constexpr std::uint32_t kPer = kPerVector<Stored>;
  static constexpr std::uint32_t kEach = 4;    // vectors of a thread in a tile
  static constexpr std::uint32_t kStages = 3;  // of a tile each
  static constexpr std::uint32_t kTile = Threads * kEach;
  static_assert(kEach * kPer <= 32);

 public:
  static constexpr std::int64_t kVectors = kStages * kTile;  // of shared memory

  /// @param memory has room for kVectors.
  __device__ __forceinline__ row_front(const whole_row<Stored>& row, uint4* memory) : row_(row), memory_(memory) {}

  /// Asks for the first tiles. A thread's copies to where it has been itself alone must have come.
  __device__ __forceinline__ void ask() {
#pragma unroll 1
    for (std::uint32_t tile = 0; tile < kStages; tile++) ask_for(tile);
  }
  /// Finds the first `wanted` columns whose values reach, negated where the smallest are searched for; calls
  /// keep(place, value, column) for them, places in their order. @param totals of the warps. All threads come, and have
  /// asked; a barrier must follow.
  template <class Reaches, class Keep>
  __device__ __forceinline__ void find(bool negated, std::uint32_t wanted, std::uint32_t (&totals)[kWarps],
                                       Reaches reaches, Keep keep) {
    find_beside(0, row_.head, negated, wanted, reaches, keep);
    const std::uint32_t tiles = (row_.vectors + kTile - 1) / kTile;
#pragma unroll 1
    for (std::uint32_t tile = 0; tile < tiles && found_ < wanted; tile++) {
      async_wait<kStages - 2>();
      __syncthreads();  // all of the tile are there, and the one before has been looked at
      if (tile > 0) ask_for(tile - 1 + kStages);
      find_in_tile(tile, negated, wanted, totals, reaches, keep);
    }
    if (found_ < wanted) find_beside(row_.columns - row_.tail(), row_.tail(), negated, wanted, reaches, keep);
  }

 private:
  static __device__ __forceinline__ std::uint32_t lane() { return threadIdx.x % kWarp; }
  static __device__ __forceinline__ std::uint32_t warp() { return threadIdx.x / kWarp; }
  __device__ __forceinline__ uint4* stage_of(std::uint32_t tile) const { return memory_ + tile % kStages * kTile; }

  __device__ __forceinline__ void ask_for(std::uint32_t tile) const {
    const auto* vectors = reinterpret_cast<const uint4*>(row_.values + row_.head);
    const std::uint32_t to = shared_address(stage_of(tile) + threadIdx.x);
#pragma unroll
    for (std::uint32_t v = 0; v < kEach; v++) {
      const std::uint32_t at = tile * kTile + v * Threads + threadIdx.x;
      if (at < row_.vectors) async_copy_16(to + v * Threads * 16, vectors + at, true);
    }
    async_commit();
  }

  template <class Reaches, class Keep>
  __device__ __forceinline__ void find_beside(std::uint32_t first, std::uint32_t columns, bool negated,
                                              std::uint32_t wanted, Reaches reaches, Keep keep) {
    if (columns == 0) return;
    const bool is_there = lane() < columns;
    const Stored value = is_there ? row_.values[first + lane()] : Stored{};
    const float wide = core::widen(value);
    const bool found = is_there && reaches(negated ? -wide : wide);
    const unsigned marks = __ballot_sync(kFullWarp, found);
    const std::uint32_t place = found_ + __popc(marks & ((1u << lane()) - 1));
    if (found && warp() == 0 && place < wanted) keep(place, value, row_.first_column + first + lane());
    found_ += __popc(marks);
  }

  template <class Reaches, class Keep>
  __device__ __forceinline__ void find_in_tile(std::uint32_t tile, bool negated, std::uint32_t wanted,
                                               std::uint32_t (&totals)[kWarps], Reaches reaches, Keep keep) {
    constexpr std::uint32_t kLanesOfLine = 8 / kEach;  // that read their vectors from a line of all banks
    const std::uint32_t flip = negated ? kSigns<Stored> : 0;
    const uint4* mine = stage_of(tile) + threadIdx.x * kEach;
    std::uint32_t marks = 0;
#pragma unroll
    for (std::uint32_t i = 0; i < kEach; i++) {  // in turns of its own, so that lanes meet no bank twice
      const std::uint32_t v = (i + lane() / kLanesOfLine) % kEach;
      const uint4 raw = mine[v];
      float values[kPer];
      widen_vector<Stored>(make_uint4(raw.x ^ flip, raw.y ^ flip, raw.z ^ flip, raw.w ^ flip), values);
      std::uint32_t of_vector = 0;
#pragma unroll
      for (std::uint32_t e = 0; e < kPer; e++) of_vector |= reaches(values[e]) ? 1u << e : 0u;
      marks |= of_vector << (v * kPer);
    }
    const std::uint32_t first = tile * kTile + threadIdx.x * kEach;
    const std::uint32_t there = row_.vectors > first ? row_.vectors - first : 0;
    if (there < kEach) marks &= (1u << (there * kPer)) - 1;
    const auto count = static_cast<std::uint32_t>(__popc(marks));
    const std::uint32_t up_to = running_sum(count);
    if (lane() == kWarp - 1) totals[warp()] = up_to;
    __syncthreads();
    const std::uint32_t told = lane() < kWarps ? totals[lane()] : 0;
    std::uint32_t place = found_ + up_to - count + __reduce_add_sync(kFullWarp, lane() < warp() ? told : 0);
    found_ += __reduce_add_sync(kFullWarp, told);
    const auto* values = reinterpret_cast<const Stored*>(mine);
#pragma unroll 1
    for (; marks != 0 && place < wanted; marks &= marks - 1, place++) {
      const std::uint32_t at = __ffs(static_cast<int>(marks)) - 1;
      keep(place, values[at], row_.first_column + row_.head + first * kPer + at);
    }
  }

  const whole_row<Stored>& row_;
  uint4* memory_;
  std::uint32_t found_ = 0;
};

}  // namespace shortlist::cuda
