// The k best of a list of keys, ranked and written as a row of the result.
#pragma once

#include <cstdint>

#include "cuda/device/block_select.cuh"
#include "cuda/device/count_from.cuh"
#include "cuda/top_k/long_row.cuh"

namespace shortlist::cuda {

/// Shared memory that write_counted works in.
template <int Threads>
struct alignas(16) count_room {
  static constexpr int kAtOnce = 2;  // loads of four keys each
  std::uint32_t keys[Threads + 8 * 4 * kAtOnce];
};

/// A thread's two of up to Threads keys, and how many of all reach each. A key that a warp reads from shared memory
/// takes as long as 32 different ones, so it is compared with two.
template <int Threads>
class counted_pairs {
 public:
  std::uint32_t mine[2];  // places of keys; not there from n on
  std::uint32_t reached[2];

  __device__ __forceinline__ explicit counted_pairs(std::uint32_t n) {
    const std::uint32_t half = (n + 1) / 2;
    while (shift_ < 3 && half << (shift_ + 1) <= Threads) shift_++;
    const std::uint32_t first = threadIdx.x >> shift_;
    mine[0] = first < half ? first : n;
    mine[1] = first < half ? first + half : n;
    const std::uint32_t step = 4u * kAtOnce << shift_;
    padded_ = (n + step - 1) / step * step;
  }
  /// One thread of those that have the same keys.
  __device__ __forceinline__ bool is_first() const { return (threadIdx.x & ((1u << shift_) - 1)) == 0; }

  /// Counts how many of the threads' keys, n in all, reach each that this one has. All threads come.
  __device__ __forceinline__ void count(std::uint32_t n, const std::uint32_t (&own)[2], count_room<Threads>& room) {
#pragma unroll
    for (int o = 0; o < 2; o++)
      if (is_first() && mine[o] < n) room.keys[mine[o]] = own[o];
    for (std::uint32_t i = n + threadIdx.x; i < padded_; i += Threads) room.keys[i] = 0;
    __syncthreads();
    const std::uint32_t helpers = 1u << shift_;
    const auto* fours = reinterpret_cast<const uint4*>(room.keys) + (threadIdx.x & (helpers - 1));
    const std::uint32_t end = __any_sync(kFullWarp, mine[0] < n) ? padded_ / 4 : 0;
    std::uint32_t sums[2][2 * kAtOnce]{};  // which do not wait for each other
#pragma unroll 1
    for (std::uint32_t i = 0; i < end; i += kAtOnce * helpers) {
      uint4 others[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) others[j] = fours[i + (j << shift_)];
#pragma unroll
      for (int j = 0; j < kAtOnce; j++) {
#pragma unroll
        for (int o = 0; o < 2; o++) {
          count_from(others[j].x, own[o], sums[o][2 * j]);
          count_from(others[j].y, own[o], sums[o][2 * j + 1]);
          count_from(others[j].z, own[o], sums[o][2 * j]);
          count_from(others[j].w, own[o], sums[o][2 * j + 1]);
        }
      }
    }
#pragma unroll
    for (int o = 0; o < 2; o++) {
      reached[o] = 0;
#pragma unroll
      for (int j = 0; j < 2 * kAtOnce; j++) reached[o] += sums[o][j];
#pragma unroll 1
      for (std::uint32_t apart = helpers / 2; apart > 0; apart /= 2)
        reached[o] += __shfl_xor_sync(kFullWarp, reached[o], static_cast<int>(apart));
    }
  }

 private:
  static constexpr int kAtOnce = count_room<Threads>::kAtOnce;
  std::uint32_t shift_ = 0;  // 2^shift threads have the same keys
  std::uint32_t padded_;
};

/// Writes what reaches the cut of list[0, n), n no more than Threads, in the order that the request asks for, padded:
/// each key is compared with each. All threads of a block come, after a barrier.
/// @param cut that exactly min(n, k) keys reach; only for results by column.
template <int Threads, class Stored>
__device__ __forceinline__ void write_counted(const core::top_k_request& request, std::int64_t index,
                                              const whole_row<Stored>& row, const std::uint64_t* list, std::uint32_t n,
                                              std::uint64_t cut, count_room<Threads>& room) {
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const row_writer<Stored> write(request, index, row);
  for (std::uint32_t i = n + threadIdx.x; i < k; i += Threads) write.pad(i);
  if (request.options.sorted) {
    rank_by_counting<Threads>(list, n, [&](std::uint32_t rank, std::uint64_t key) {
      if (rank < k) write(rank, key);
    });
    return;
  }
  counted_pairs<Threads> pairs(n);
  std::uint64_t keys[2];
  std::uint32_t columns[2];  // the smaller, the larger; 0 of what is not written
#pragma unroll
  for (int o = 0; o < 2; o++) {
    keys[o] = pairs.mine[o] < n ? list[pairs.mine[o]] : core::kNoRow;
    columns[o] = keys[o] >= cut ? static_cast<std::uint32_t>(keys[o]) : 0;
  }
  pairs.count(n, columns, room);
#pragma unroll
  for (int o = 0; o < 2; o++)
    if (columns[o] != 0 && pairs.is_first()) write(pairs.reached[o] - 1, keys[o]);
}

}  // namespace shortlist::cuda
