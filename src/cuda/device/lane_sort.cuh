// Sorting 32-bit keys by bitonic networks, the least first: in the registers of a warp's lanes, and in shared memory by
// threads that each sort a piece in their registers.
//
// Groups of a power of two of lanes sort side by side, and run in step. What a lane holds is one piece of the order:
// key r of lane l has place l * Each + r, so that most comparisons are between a lane's own keys, two instructions
// each, and of `lanes` lanes only log2(lanes) * (log2(lanes) + 1) / 2 steps need another's.
#pragma once

#include <cstdint>

#include "cuda/device/score.cuh"

namespace shortlist::cuda {

__device__ __forceinline__ void order_two(std::uint32_t& first, std::uint32_t& second) {
  const std::uint32_t larger = max(first, second);
  first = min(first, second);
  second = larger;
}

/// Makes each run of a lane's keys ascend that rises and then falls, or falls and then rises.
template <int Each>
__device__ __forceinline__ void merge_registers(std::uint32_t (&keys)[Each], int run = Each) {
#pragma unroll
  for (int apart = run / 2; apart > 0; apart /= 2) {
#pragma unroll
    for (int i = 0; i < Each; i++)
      if ((i & apart) == 0) order_two(keys[i], keys[i + apart]);
  }
}

/// Makes a lane's keys ascend.
template <int Each>
__device__ __forceinline__ void sort_registers(std::uint32_t (&keys)[Each]) {
#pragma unroll
  for (int run = 2; run <= Each; run *= 2) {  // two ascending halves: the second is read backwards
#pragma unroll
    for (int i = 0; i < Each; i++)
      if ((i & (run / 2)) == 0) order_two(keys[i], keys[i ^ (run - 1)]);
    merge_registers(keys, run / 2);
  }
}

/// Merges what neighbouring lanes hold: keys that rise and then fall over `Lanes` lanes ascend over them.
template <int Lanes, int Each>
__device__ __forceinline__ void merge_lanes(std::uint32_t (&keys)[Each]) {
#pragma unroll
  for (int apart = Lanes / 2; apart > 0; apart /= 2) {
    const bool keeps_less = (threadIdx.x & apart) == 0;
#pragma unroll
    for (int i = 0; i < Each; i++) {
      const std::uint32_t other = __shfl_xor_sync(kFullWarp, keys[i], apart);
      keys[i] = keeps_less ? min(keys[i], other) : max(keys[i], other);
    }
  }
  merge_registers(keys);
}

/// Sorts the keys of each group of `Lanes` lanes.
template <int Lanes, int Each>
__device__ __forceinline__ void sort_lanes(std::uint32_t (&keys)[Each]) {
  if constexpr (Lanes == 1) {
    sort_registers(keys);
  } else {
    sort_lanes<Lanes / 2>(keys);  // two ascending halves, as above
    const bool keeps_less = (threadIdx.x & (Lanes / 2)) == 0;
    const auto kept = [&](std::uint32_t key, std::uint32_t other) {
      return keeps_less ? min(key, other) : max(key, other);
    };
#pragma unroll
    for (int i = 0; i < (Each + 1) / 2; i++) {
      const std::uint32_t last = __shfl_xor_sync(kFullWarp, keys[Each - 1 - i], Lanes - 1);
      if constexpr (Each > 1) {
        const std::uint32_t first = __shfl_xor_sync(kFullWarp, keys[i], Lanes - 1);
        keys[Each - 1 - i] = kept(keys[Each - 1 - i], first);
      }
      keys[i] = kept(keys[i], last);
    }
    merge_lanes<Lanes / 2>(keys);
  }
}

constexpr int kPieceEach = 8;  // keys of a lane, of what sort_in_shared sorts in registers at once

/// Keys that each set of a group's lanes, of one warp, sorts at once in sort_in_shared.
template <class Group>
constexpr int kSortedPiece = Group::kLanes* kPieceEach;

/// Sorts keys[0, size) in shared memory. All that run in step call it, after they met; they meet at its end.
/// @param size a power of two, a piece or more. @param keys at a multiple of 16 bytes.
template <class Group>
__device__ __forceinline__ void sort_in_shared(Group& group, std::uint32_t* keys, int size) {
  constexpr int kPiece = kSortedPiece<Group>;
  constexpr int kLanes = Group::kLanes;
  const int rank = group.rank();
  const auto each_piece = [&](auto in_registers) {
#pragma unroll 1
    for (int at = rank * kPieceEach; at < size; at += group.threads() * kPieceEach) {
      auto* words = reinterpret_cast<uint4*>(keys + at);
      const uint4 low = words[0];
      const uint4 high = words[1];
      std::uint32_t mine[kPieceEach] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      in_registers(mine);
      words[0] = make_uint4(mine[0], mine[1], mine[2], mine[3]);
      words[1] = make_uint4(mine[4], mine[5], mine[6], mine[7]);
    }
    group.sync();
  };
  const auto each_pair = [&](int apart, int mirror) {
#pragma unroll 1
    for (int i = rank; i < size / 2; i += group.threads()) {
      const int first = 2 * i - (i & (apart - 1));
      order_two(keys[first], keys[(first + apart) ^ mirror]);
    }
    group.sync();
  };
  each_piece([&](auto& mine) { sort_lanes<kLanes>(mine); });
#pragma unroll 1
  for (int run = 2 * kPiece; run <= size; run *= 2) {  // two ascending halves, as above
    each_pair(run / 2, run / 2 - 1);
#pragma unroll 1
    for (int apart = run / 4; apart >= kPiece; apart /= 2) each_pair(apart, 0);
    each_piece([&](auto& mine) { merge_lanes<kLanes>(mine); });
  }
}

}  // namespace shortlist::cuda
