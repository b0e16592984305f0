// A row of logits spread over the warps of a cluster's blocks, and what the steps of sampling share. See
// sample_rows.cu.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "core/backend.hpp"
#include "core/order.hpp"
#include "core/sampling.hpp"
#include "cuda/device/cluster.cuh"
#include "cuda/device/element.cuh"
#include "cuda/device/row_groups.cuh"
#include "cuda/device/score.cuh"
#include "cuda/device/shared_list.cuh"
#include "cuda/device/warp_sum.cuh"

namespace shortlist::cuda::sampling {

constexpr std::int64_t kMostGrid = std::int64_t{1} << 30;  // blocks of a launch
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostSegments = kMostBlocks * kWarps;
constexpr std::uint32_t kSegmentUnit = 256;  // positions that a warp loads at a time, of 16-bit logits
constexpr std::uint32_t kStep = 4 * kWarp;   // positions that a warp looks at a time
constexpr std::uint32_t kListed = 512;       // candidates that a list holds
constexpr int kBins = 512;  // as few, so that clusters of 64 rows of 128,256 16-bit logits fit an H200 at a time
static_assert(kListed * sizeof(std::uint64_t) == kBins * 2 * sizeof(std::uint32_t),
              "a list and the bins change places");

constexpr std::uint32_t kNanGroup = ~0u;              // above every logit's key
constexpr std::uint32_t kLeastKey = 0x007FFFFFu + 1;  // of a candidate: above -inf
constexpr std::uint64_t kEveryCandidate = static_cast<std::uint64_t>(kLeastKey) << 32;

/// Where a search's measure reaches its target.
struct found_bin {
  std::uint32_t bin;
  bool found;
  std::uint64_t before;  // of the bins before it
  std::uint64_t inside;
  std::uint64_t total;  // of all bins
};

/// Which segment the draw falls into.
struct drawn_segment {
  std::uint64_t cut;        // what is kept reaches it
  std::uint64_t remainder;  // of the kept weight in the segment, the draw lies behind so much
  std::uint64_t full;       // the weight of all candidates, if asked for
  bool found;
  std::uint32_t segment;
  std::uint32_t kept;  // tokens of the row
};

/// Shared memory of a block, without its part of the row.
struct sample_scratch {
  row_groups<kThreads> groups;
  alignas(16) std::uint32_t block_listed[kMostBlocks];  // keys that each block has appended to its share of the list
  core::row_params params;
  alignas(16) std::uint64_t list[kListed];  // of the first block: candidates
  union alignas(16) {
    struct {
      std::uint32_t low[kBins];  // a bin's measure, in two words: shared memory adds no longer ones by itself
      std::uint32_t high[kBins];
    } bins;
    std::uint64_t ordered[kListed];
  };
  std::uint64_t segment_kept_weight[kMostSegments];  // of the first block
  std::uint64_t segment_weight[kMostSegments];       // of all candidates
  std::uint64_t segment_passing[kMostSegments];      // of those that the filter passes, and
  std::uint64_t segment_before[kMostSegments];       // of those before the border that was guessed
  std::uint32_t segment_kept[kMostSegments];
  std::uint64_t part_totals[kMostBlocks];
  std::uint64_t warp_sums[kWarps];
  std::uint64_t told;  // by one thread to the others of its block
  std::uint64_t told_key;
  found_bin found;
  drawn_segment drawn;
  std::uint32_t listed;    // of the first block: how many were to be appended
  std::uint32_t appended;  // by this block, to its share of the first block's list
  std::uint32_t border_bin;
};

template <class Held>
__device__ __forceinline__ float4 load_four(const Held* from) {
  using four = quad<element_type_of<Held>()>;
  return four::widen(*reinterpret_cast<const typename four::raw*>(from));
}

/// Logits of a row that each warp has to itself where the row is spread over so many blocks.
inline std::uint32_t segment_of(const core::sample_request& request, int blocks) {
  const std::int64_t most_shift = 16 / size_bytes(request.logits.type) - 1;
  const std::int64_t segments = std::int64_t{blocks} * kWarps;
  const std::int64_t least = (request.logits.cols + most_shift + segments - 1) / segments;
  return static_cast<std::uint32_t>((least + kSegmentUnit - 1) / kSegmentUnit * kSegmentUnit);
}

/// Which part of a row a block has: segment j of the row belongs to block j % blocks, and there to warp j / blocks.
/// Position p is token p - shift; positions outside of the row hold -inf.
struct row_segments {
  std::uint32_t segment;  // positions, a multiple of kSegmentUnit
  std::uint32_t blocks;
  std::uint32_t rank;
  std::uint32_t shift;  // logits that stand before the row in its first 16 bytes
  std::uint32_t vocab;

  __device__ __forceinline__ std::uint32_t first_position(std::uint32_t warp) const {
    return (warp * blocks + rank) * segment;
  }
  /// How many positions of a warp's segment to look at: those up to the row's end, rounded up.
  __device__ __forceinline__ std::uint32_t filled(std::uint32_t warp, std::uint32_t unit) const {
    const std::uint32_t first = first_position(warp);
    const std::uint32_t end = vocab + shift;
    return first >= end ? 0 : min(segment, (end - first + unit - 1) / unit * unit);
  }
  __device__ __forceinline__ std::uint32_t segment_of(std::uint32_t token) const { return (token + shift) / segment; }
};

/// A part that is held, in shared memory or a copy in global memory: the segments of the block's warps one after
/// another.
template <class Held>
struct row_part : row_segments {
  Held* held;

  __device__ __forceinline__ float4 four(std::uint32_t warp, std::uint32_t i) const {
    return load_four(held + warp * segment + i);
  }
  __device__ __forceinline__ float value(std::uint32_t warp, std::uint32_t i) const {
    return core::widen(held[warp * segment + i]);
  }
};

/// A part that is read where the logits lie. @pre they are neighbours.
template <class Stored>
struct row_in_place : row_segments {
  const Stored* begin;  // of position 0: 16-byte aligned; what stands before the row is not read

  __device__ __forceinline__ float value(std::uint32_t warp, std::uint32_t i) const {
    const std::uint32_t position = first_position(warp) + i;
    const bool there = position >= shift && position < vocab + shift;
    return there ? core::widen(begin[position]) : core::float_from_bits(0xFF800000u);
  }
  __device__ __forceinline__ float4 four(std::uint32_t warp, std::uint32_t i) const {
    const std::uint32_t position = first_position(warp) + i;
    if (position >= shift && position + 4 <= vocab + shift) return load_four(begin + position);
    return make_float4(value(warp, i), value(warp, i + 1), value(warp, i + 2), value(warp, i + 3));
  }
};

/// Calls look(x, token) for each of the block's logits, warp by warp its own segment; all lanes of a warp come
/// together.
template <class Part, class Look>
__device__ __forceinline__ void for_each_logit(const Part& part, Look look) {
  const std::uint32_t warp = threadIdx.x / kWarp;
  const std::uint32_t end = part.filled(warp, kStep);
  const std::uint32_t first_token = part.first_position(warp) - part.shift;
  for (std::uint32_t i = threadIdx.x % kWarp * 4; i < end; i += kStep) {
    const float4 x = part.four(warp, i);
    const std::uint32_t token = first_token + i;
    look(x.x, token);
    look(x.y, token + 1);
    look(x.z, token + 2);
    look(x.w, token + 3);
  }
}

/// What remains of a row: the tokens that reach a cut in the one order, and whose weight's exponent reaches a floor.
struct row_filter {
  float largest;
  float steepness;
  std::uint64_t cut;
  float floor;

  __device__ __forceinline__ float exponent(float x) const { return core::exponent_of(x, largest, steepness); }
  __device__ __forceinline__ bool reaches_cut(float x, std::uint32_t token) const {
    const float border = core::from_ascending_key(core::key_of(cut));
    return x > border || (x == border && token <= core::position_of(cut));
  }
  __device__ __forceinline__ bool passes(float x, std::uint32_t token) const {
    return reaches_cut(x, token) && exponent(x) >= floor;
  }
  __device__ __forceinline__ float exponent_of_key(std::uint64_t key) const {
    return exponent(core::from_ascending_key(core::key_of(key)));
  }
};

/// The filter of a row of which nothing is cut, with a finite largest logit: everything but -inf passes, whose weight
/// is 0 and whose exponent lies in no bin.
struct whole_row_filter : row_filter {
  __device__ __forceinline__ float exponent(float x) const {
    return core::multiply_once(core::add_once(x, -largest), steepness);
  }
  __device__ __forceinline__ bool passes(float, std::uint32_t) const { return true; }
};

/// core::weight_of without a branch, so that the powers of several logits overlap, of an exponent that is no less than
/// core::kLeastExponent.
__device__ __forceinline__ std::uint64_t weight_of_near(float exponent) {
  return __float2ull_rn(core::power_of_two<core::kWeightBits>(exponent));
}
/// The same of any exponent: what is below 2^-41 rounds to 0.
__device__ __forceinline__ std::uint64_t weight_of(float exponent) {
  return weight_of_near(fmaxf(exponent, core::kLeastExponent));
}

__device__ __forceinline__ std::uint64_t key_of_logit(float x, std::uint32_t token) {
  return core::row_key(core::ascending_key(x), token);
}

__device__ __forceinline__ std::uint64_t sum_of_warp(std::uint64_t value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}

/// The sum of the values of the threads before this one; `total` is that of all. All threads come.
__device__ __forceinline__ std::uint64_t sum_before(std::uint64_t value, sample_scratch& scratch,
                                                    std::uint64_t& total) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint64_t sum = running_sum(value);
  if (lane == kWarp - 1) scratch.warp_sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  std::uint64_t before = sum - value;
  total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w++) {
    const std::uint64_t of_warp = scratch.warp_sums[w];
    if (w < static_cast<int>(threadIdx.x / kWarp)) before += of_warp;
    total += of_warp;
  }
  __syncthreads();  // the sums have been read
  return before;
}

}  // namespace shortlist::cuda::sampling
