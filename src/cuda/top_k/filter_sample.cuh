// A sample of a long row, and the cut that it suggests: one that somewhat more than k of the row's columns reach,
// almost surely. See filter_rows_kernel.cuh.
#pragma once

#include <cstdint>

#include "core/plan.hpp"
#include "cuda/device/value_pair.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_pieces.cuh"

namespace shortlist::cuda::filtering {

constexpr int kSamplePairs = core::kFilterRowsSample / kThreads / 2;  // of a thread's values

/// Vectors spread over a row: a line of memory from each of as many equal parts, at a place of its own in it, so that
/// no period of the data is the sample's, too.
template <class Stored>
class row_sample {
  static constexpr std::uint32_t kNeighbours = kLineBytes / 16;  // parts of lines cost memory what whole ones do
  static constexpr int kTaken = core::kFilterRowsSample / kThreads / kPerVector<Stored>;  // vectors of a thread
  static_assert(kTaken * kThreads * kPerVector<Stored> == core::kFilterRowsSample);

 public:
  static constexpr std::uint32_t kParts = kTaken * kThreads / kNeighbours;  // of a row

  __device__ __forceinline__ void load(const whole_row<Stored>& row) {
    const auto* vectors = reinterpret_cast<const uint4*>(row.values + row.head);
    into_line_ = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(vectors) / 16) % kNeighbours;
#pragma unroll
    for (int v = 0; v < kTaken; v++) raw_[v] = __ldg(vectors + vector(v, row.vectors));
  }
  /// Waits for what was loaded.
  __device__ __forceinline__ void await() const {
#pragma unroll
    for (int v = 0; v < kTaken; v++)
      asm volatile(
          "{\n"
          ".reg .pred both;\n"
          "setp.eq.u32 both, %0, %1;\n"
          "@both nanosleep.u32 1;\n"
          "}" ::"r"(raw_[v].x),
          "r"(raw_[v].w));
  }
  /// Pairs of the thread's values as 16-bit ones, larger ones being better: of fp32 the upper halves.
  __device__ __forceinline__ void pack(std::uint32_t flip, std::uint32_t (&pairs)[kSamplePairs]) const {
#pragma unroll
    for (int v = 0; v < kTaken; v++) {
      if constexpr (sizeof(Stored) == 4) {
        pairs[2 * v] = upper_halves(raw_[v].x, raw_[v].y) ^ (flip | flip >> 16);
        pairs[2 * v + 1] = upper_halves(raw_[v].z, raw_[v].w) ^ (flip | flip >> 16);
      } else {
        const std::uint32_t words[4] = {raw_[v].x, raw_[v].y, raw_[v].z, raw_[v].w};
#pragma unroll
        for (int w = 0; w < 4; w++) pairs[4 * v + w] = words[w] ^ flip;
      }
    }
  }
  /// Calls f(value, column) for the thread's values, larger ones being better.
  template <class F>
  __device__ __forceinline__ void for_each(const whole_row<Stored>& row, std::uint32_t flip, F f) const {
#pragma unroll
    for (int v = 0; v < kTaken; v++) {
      float values[kPerVector<Stored>];
      widen_vector<Stored>(make_uint4(raw_[v].x ^ flip, raw_[v].y ^ flip, raw_[v].z ^ flip, raw_[v].w ^ flip), values);
      const std::uint32_t column = row.first_column + row.head + vector(v, row.vectors) * kPerVector<Stored>;
#pragma unroll
      for (int e = 0; e < kPerVector<Stored>; e++) f(values[e], column + e);
    }
  }

 private:
  /// Of a row that has more than a line.
  __device__ __forceinline__ std::uint32_t vector(int v, std::uint32_t vectors) const {
    constexpr std::uint32_t kGoldenRatio = 2654435769;  // 0.618 of 2^32
    const std::uint32_t part = (v * kThreads + threadIdx.x) / kNeighbours;
    const std::uint32_t place = part * (~0u / kParts + 1) + part * kGoldenRatio / kParts;
    const std::uint32_t first = __umulhi(place, vectors - (kNeighbours - 1));
    const std::uint32_t beyond_line = (into_line_ + first) % kNeighbours;
    return first - (first >= beyond_line ? beyond_line : 0) + threadIdx.x % kNeighbours;
  }

  uint4 raw_[kTaken];
  std::uint32_t into_line_;  // where the row's first vector lies in its line, in vectors
};

/// The number of a sample's value, larger ones being better. NaN is as bad as -infinity.
template <class Stored>
__device__ __forceinline__ std::uint32_t sampled_number(float value) {
  return core::ascending_key(fmaxf(value, core::float_from_bits(0xFF800000u))) >> kSharedBits<Stored>;
}

/// How many of the sample must reach a cut for k of the row's columns to reach it, but for one row in 10,000: the
/// count of those that k columns would give spreads by its root.
__device__ __forceinline__ std::uint32_t sampled_rank(std::uint32_t k, std::uint32_t columns) {
  constexpr std::uint32_t kAll = core::kFilterRowsSample;
  const float expected = __fdividef(static_cast<float>(k) * core::kFilterRowsSample, static_cast<float>(columns));
  const float root = expected * rsqrtf(expected);
  const float spread = core::kFilterRowsDeviations * root + core::kFilterRowsLeast;
  return min(__float2uint_rd(expected + fmaxf(spread, core::kFilterRowsLine)), kAll);
}
/// So many more may reach it: a count less, mostly.
__device__ __forceinline__ std::uint32_t rank_slack(std::uint32_t rank) {
  return rank / core::kFilterRowsSlackShare + 1;
}

/// What is learned from a row for the next: rows of a matrix are mostly alike.
struct learned {
  std::uint32_t cut = 0;    // the number that the sample suggested; 0: none
  bool by_columns = false;  // the sample's ties were cut by their columns
  float spread = 0;         // what lies between the numbers of two columns near the border
  std::uint32_t least = 0;  // the least number of the k best; 0: not known
};

/// fp32 values are told apart by their upper halves, where that is enough.
template <class Stored>
constexpr std::uint32_t kCoarseShift = sizeof(Stored) == 4 ? 16 : 0;

/// A number that about `wanted` of the sample reach, guessed by the threads' best: of those as large a share is below
/// it as its share of all to the power of what a thread has. All threads come.
template <class Stored>
__device__ __forceinline__ std::uint32_t guess_cut(const row_sample<Stored>& sample, const whole_row<Stored>& row,
                                                   std::uint32_t flip, std::uint32_t wanted, block_sums& sums) {
  constexpr int kEach = core::kFilterRowsSample / kThreads;
  float best = core::float_from_bits(0xFF800000u);
  sample.for_each(row, flip, [&](float value, std::uint32_t) { best = fmaxf(best, value); });
  const std::uint32_t mine = core::ascending_key(best) >> kSharedBits<Stored>;
  std::uint32_t rank = 0;  // among the lanes
#pragma unroll 8
  for (int other = 0; other < kWarp; other++) {
    const std::uint32_t theirs = __shfl_sync(kFullWarp, mine, other);
    rank += theirs > mine || (theirs == mine && other < static_cast<int>(sums.lane())) ? 1 : 0;
  }
  const float below = 1.0f - static_cast<float>(wanted) * (1.0f / core::kFilterRowsSample);
  const float share_below = __powf(below, kEach);
  const auto picked = static_cast<std::uint32_t>((1.0f - share_below) * (kWarp - 1));
  const unsigned has_it = __ballot_sync(kFullWarp, rank == picked);
  const std::uint32_t of_warp = __shfl_sync(kFullWarp, mine, __ffs(static_cast<int>(has_it)) - 1);
  const std::uint32_t mean = sums.of_threads(of_warp / kThreads);
  return min(max(mean >> kCoarseShift<Stored>, 1u), kInfinityNumber<Stored> >> kCoarseShift<Stored>)
         << kCoarseShift<Stored>;
}

/// The last column, counted from the row's first, of a cut through values that are all one number.
/// @param sampled the last one by the sample, whose neighbours are taken together: it may be off by a part of the row.
/// @param even    the same if these values are spread evenly.
template <class Stored>
__device__ __forceinline__ std::uint32_t last_tied_column(const whole_row<Stored>& row, std::uint32_t sampled,
                                                          float even) {
  constexpr float kPartsBeyond = 2.0f;
  const float most =
      static_cast<float>(sampled) + kPartsBeyond / row_sample<Stored>::kParts * static_cast<float>(row.columns);
  return min(max(sampled, __float2uint_ru(fminf(even, most))), row.columns - 1);
}

/// The same as below by counting in bins, for samples that nothing is known of, and for ties. All threads leave through
/// a barrier.
template <class Stored>
__device__ __forceinline__ std::uint64_t sample_cut_by_bins(const row_sample<Stored>& sample,
                                                            const whole_row<Stored>& row, std::uint32_t flip,
                                                            std::uint32_t wanted, const learned& from_before,
                                                            block_sums& sums, filter_scratch& scratch) {
  const std::uint32_t slack = rank_slack(wanted);
  const auto as_cut = [](std::uint32_t number, std::uint32_t columns) {
    return static_cast<std::uint64_t>(number << kSharedBits<Stored>) << 32 | columns;
  };
  std::uint32_t single = from_before.cut;  // a number that so many have, and that must be cut by columns
  std::uint32_t ties = 0;
  found_bin found{};
  if (from_before.by_columns) {  // most rows tie where the one before did
    constexpr std::uint32_t kTie = 1u << 16;
    std::uint32_t counts = 0;
    sample.for_each(row, flip, [&](float value, std::uint32_t) {
      const std::uint32_t of_value = sampled_number<Stored>(value);
      counts += (of_value > single ? 1 : 0) + (of_value == single ? kTie : 0);
    });
    counts = sums.of_threads(counts);
    const std::uint32_t above = counts % kTie;
    if (above < wanted && above + counts / kTie > wanted + slack) {
      wanted -= above;
      ties = counts / kTie;
    }
  }
  if (ties == 0) {
    number_bins bins = all_numbers<Stored>();
#pragma unroll 1
    for (;;) {
      const bin_counter counter(bins, scratch);
      sample.for_each(row, flip, [&](float value, std::uint32_t) { counter.count(sampled_number<Stored>(value)); });
      find_bin(wanted, found, sums);
      if (found.inside <= slack) return as_cut(bins.begin(found.bin), 0);
      wanted -= found.before;
      if (bins.shift == 0) break;
      bins = bins.within(found.bin, bins.shift > kCoarseShift<Stored> ? kCoarseShift<Stored> : 0);
    }
    single = bins.begin(found.bin);
    ties = found.inside;
  }
  const number_bins places{~(row.first_column + row.columns - 1), shift_for(row.columns)};
  const bin_counter of_places(places, scratch);
  sample.for_each(row, flip, [&](float value, std::uint32_t column) {
    if (sampled_number<Stored>(value) == single) of_places.count(~column);
  });
  find_bin(wanted, found, sums);
  const std::uint32_t sampled = ~places.begin(found.bin) - row.first_column;
  const float even = __fdividef(static_cast<float>(row.columns) * static_cast<float>(wanted), static_cast<float>(ties));
  return as_cut(single, ~(row.first_column + last_tied_column(row, sampled, even)));
}

/// A cut that about `wanted` of the sample reach: a key, and in the lower half the column that ties must reach. All
/// threads come.
template <class Stored>
__device__ __forceinline__ std::uint64_t sample_cut(const row_sample<Stored>& sample, const whole_row<Stored>& row,
                                                    std::uint32_t flip, std::uint32_t wanted,
                                                    const learned& from_before, block_sums& sums,
                                                    filter_scratch& scratch) {
  if (!from_before.by_columns) {
    using compared = std::conditional_t<sizeof(Stored) == 4, bfloat16, Stored>;
    static_assert(kSamplePairs <= 16);
    std::uint32_t pairs[kSamplePairs];
    sample.pack(flip, pairs);
    const std::uint32_t slack = rank_slack(wanted);
    const std::uint32_t guess = from_before.cut != 0 ? from_before.cut : guess_cut(sample, row, flip, wanted, sums);
    const float columns_each = static_cast<float>(row.columns) * (1.0f / core::kFilterRowsSample);
    constexpr std::uint32_t kShift = kCoarseShift<Stored>;
    constexpr std::uint32_t kBest = kInfinityNumber<Stored>;
    number_search search{.low = {0, core::kFilterRowsSample},
                         .high = {((kBest >> kShift) + 1) << kShift, 0},
                         .spread = from_before.spread * columns_each,
                         .low_is_near = false,
                         .high_is_near = false};
    const reached_number found = search.run(guess, wanted, slack, kShift, [&](std::uint32_t number) {
      const std::uint32_t least = least_pair<Stored>(number << kSharedBits<Stored>);
      std::uint32_t reaching = 0;
#pragma unroll
      for (int p = 0; p < kSamplePairs; p++)
        reaching |= pair_mask<compared, false>(pairs[p], least) & (0x00010001u << p);
      return sums.of_threads(__popc(reaching));
    });
    if (found.count - wanted <= slack) return static_cast<std::uint64_t>(found.number << kSharedBits<Stored>) << 32;
  }
  return sample_cut_by_bins(sample, row, flip, wanted, from_before, sums, scratch);
}

}  // namespace shortlist::cuda::filtering
