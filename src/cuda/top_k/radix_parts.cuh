// What a block of a radix selection works with: a row's pieces in segments, digits of keys in bins, and masks. See
// radix_rows.cu.
#pragma once

#include <cstdint>
#include <limits>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/score.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda::radix {

constexpr int kDigitBits = 11;  // 8 KB of bins a block; 10 bits would take a fourth pass for fp32
constexpr std::uint32_t kBins = 1u << kDigitBits;
constexpr int kLoads = 4;  // 16-byte loads in flight a thread, 48 KB a multiprocessor: 35 bytes a ns for 1.4 us
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kHistograms = 3;  // a team's, in turn: one is read, one filled, one cleared

/// Of a part of a row: how many keys reach the selection's `from`, and how many more reach its `fill_from`.
struct tally {
  std::int64_t sure;
  std::int64_t fill;
};

/// Of a part of a row: the ends of its keys, and the keys on both sides of a border.
struct key_extremes {
  std::uint32_t least = ~0u;
  std::uint32_t most = 0;
  std::uint32_t border = ~0u;  // the least that reaches it
  std::uint32_t next = 0;      // the most that does not
  std::uint32_t reach = 0;     // how many reach it; a row has fewer than 2^32

  __device__ __forceinline__ void add(const key_extremes& other) {
    least = min(least, other.least);
    most = max(most, other.most);
    border = min(border, other.border);
    next = max(next, other.next);
    reach += other.reach;
  }
};

struct radix_args {
  core::top_k_request request;
  early_stop stop;
  int teams;
  int team_blocks;
  int digit_bits;
  bool exact_is_written;  // an early stop, to replace the exact result in the output
  // Where a team's blocks meet; nothing if a team is one block.
  unsigned long long* histograms;  // [teams, kHistograms, kBins]
  tally* tallies;                  // [teams, 2, team_blocks]
  key_extremes* extremes;          // [teams, team_blocks]
};

struct found_digit {
  std::uint32_t digit;
  std::int64_t above;  // keys with larger digits
  std::int64_t here;   // keys with this digit
};

struct radix_shared {
  std::uint32_t histogram[kBins];
  std::int64_t sums[kWarps];
  uint2 counts[kWarps];
  std::uint32_t tiles[2][kWarps];
  key_extremes extremes[kWarps];
  found_digit found;
};

/// What one lane holds of a segment, the part of a row that a warp takes at once: value (u, c) is that of the column
/// (u x 32 + lane) x kUnit + c.
template <class Stored>
struct segment {
  static constexpr int kUnit = 16 / static_cast<int>(sizeof(Stored));
  static constexpr int kPerLane = kLoads * kUnit;
  static constexpr int kColumns = kWarp * kPerLane;
  static_assert(kPerLane <= 32, "a bit each in a word");
};

/// The columns of a row that one block works on.
template <class Stored>
struct row_piece {
  const Stored* values;  // of the row's column 0
  std::int64_t stride;
  std::int64_t first;
  std::int64_t end;
  std::int64_t origin;  // where segments begin: at `first`, or before it at a multiple of 16 bytes

  __device__ __forceinline__ bool contiguous() const { return stride == 1; }
  __device__ __forceinline__ const Stored* at(std::int64_t column) const { return values + column * stride; }
};

/// A key as key_of_value has it. `sign` is -1 where the smallest are sought, else 1: one multiply-add turns a value
/// around and makes -0 a +0, and five instructions an element are all that a key costs.
template <class Stored>
__device__ __forceinline__ key_for<Stored> key_of_stored(Stored value, float sign) {
  if constexpr (sizeof(Stored) == 8) {
    const double turned = __fma_rn(value, static_cast<double>(sign), 0.0);
    const std::int64_t bits = __double_as_longlong(turned);
    const auto key = static_cast<std::uint64_t>(bits ^ (bits >> 63 | std::numeric_limits<std::int64_t>::min()));
    return turned != turned ? 0 : key;
  } else {
    float wide;
    if constexpr (std::is_same_v<Stored, float16>)
      wide = __half2float(__ushort_as_half(value.bits));
    else
      wide = core::widen(value);
    const float turned = __fmaf_rn(wide, sign, 0.0f);
    const auto bits = static_cast<std::int32_t>(core::float_bits(turned));
    const auto key = static_cast<std::uint32_t>(bits ^ (bits >> 31 | std::numeric_limits<std::int32_t>::min()));
    return turned != turned ? core::kNanKey : key;
  }
}

/// Some of a lane's values of a segment, from value `first` on. Keys are made where they are used: until then the
/// values wait, in half the registers or fewer.
template <class Stored, int Count, bool Whole>
struct lane_values {
  static constexpr int kCount = Count;
  alignas(16) Stored values[Count];
  float sign;
  int first;
  std::uint32_t there;  // a bit each, unless Whole

  __device__ __forceinline__ key_for<Stored> key(int e) const { return key_of_stored(values[e], sign); }
  __device__ __forceinline__ bool is_there(int e) const { return Whole || (there >> e & 1u) != 0; }
};

/// Calls visit(lane_values) for the segment that begins at `start`: once with all if it lies in the piece and its
/// columns are neighbours, else with one unit after another. All lanes of the warp together.
template <class Stored, class Visit>
__device__ __forceinline__ void visit_segment(const row_piece<Stored>& piece, std::int64_t start, float sign,
                                              Visit visit) {
  using cut = segment<Stored>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (piece.contiguous() && start >= piece.first && start + cut::kColumns <= piece.end) {
    lane_values<Stored, cut::kPerLane, true> batch;
    const auto* units = reinterpret_cast<const uint4*>(piece.values + start) + lane;
#pragma unroll
    for (int u = 0; u < kLoads; u++) reinterpret_cast<uint4*>(batch.values)[u] = __ldg(units + u * kWarp);
    batch.sign = sign;
    batch.first = 0;
    visit(batch);
  } else {
#pragma unroll 1
    for (int u = 0; u < kLoads; u++) {
      lane_values<Stored, cut::kUnit, false> batch;
      batch.sign = sign;
      batch.first = u * cut::kUnit;
      batch.there = 0;
      const std::int64_t column = start + (u * kWarp + lane) * cut::kUnit;
      const Stored* from = piece.at(column);
#pragma unroll
      for (int c = 0; c < cut::kUnit; c++) {
        const bool is_there = column + c >= piece.first && column + c < piece.end;
        batch.values[c] = is_there ? from[c * piece.stride] : Stored{};
        batch.there |= is_there ? 1u << c : 0u;
      }
      visit(batch);
    }
  }
}

/// Counts a digit: among the common ones in a register, or in its bin if it is below `digits`. In PTX, as the compiler
/// makes three instructions of the one that counts in a register, and computes the bins' address for each digit anew.
__device__ __forceinline__ void count_digit(std::uint32_t bins_address, std::uint32_t digit, std::uint32_t common,
                                            std::uint32_t digits, std::uint32_t& of_common) {
  asm volatile(
      "{\n"
      ".reg .pred is_common, is_counted;\n"
      ".reg .u32 bin;\n"
      "setp.eq.u32 is_common, %1, %2;\n"
      "@is_common add.u32 %0, %0, 1;\n"
      "setp.lt.and.u32 is_counted, %1, %3, !is_common;\n"
      "mad.lo.u32 bin, %1, 4, %4;\n"
      "@is_counted red.shared.add.u32 [bin], 1;\n"
      "}"
      : "+r"(of_common)
      : "r"(digit), "r"(common), "r"(digits), "r"(bins_address)
      : "memory");
}

/// Adds the lane's keys to a histogram of the digits (key - floor) >> shift, those below `digits`. The lanes' keys with
/// the digit of lane 0's first are counted in registers and added at once, so that ties do not queue for one bin.
template <class Key, class Values>
__device__ __forceinline__ void add_digits(std::uint32_t* histogram, const Values& values, Key floor, int shift,
                                           std::uint32_t digits) {
  const auto digit_of = [&](int e) {
    const Key digit = (values.key(e) - floor) >> shift;
    if constexpr (sizeof(Key) == 8)
      return values.is_there(e) ? static_cast<std::uint32_t>(min(digit, Key{kBins})) : kBins;
    return values.is_there(e) ? static_cast<std::uint32_t>(digit) : kBins;
  };
  const std::uint32_t bins = kept(shared_address(histogram));
  const std::uint32_t common = __shfl_sync(kFullWarp, digit_of(0), 0);
  std::uint32_t of_common = 0;
#pragma unroll
  for (int e = 0; e < Values::kCount; e++) count_digit(bins, digit_of(e), common, digits, of_common);
  of_common = __reduce_add_sync(kFullWarp, of_common);
  if (threadIdx.x % kWarp == 0 && common < digits) atomicAdd(&histogram[common], of_common);
}

/// The digit of the `missing`-th largest key, from counts of digits. All threads of the block; there are as many keys.
template <class CountOf>
__device__ __forceinline__ found_digit find_digit(radix_shared& shared, std::uint32_t bins, std::int64_t missing,
                                                  CountOf count_of) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  // A warp's bins lie together, and every 32nd of them is a lane's: a team's are read from L2 by whole lines.
  const std::uint32_t per_warp = bins / (blockDim.x / kWarp);
  const std::uint32_t top = bins - 1 - warp * per_warp - lane;
  std::int64_t of_warp = 0;
#pragma unroll 4
  for (std::uint32_t i = 0; i < per_warp; i += kWarp) of_warp += count_of(top - i);
#pragma unroll
  for (int o = kWarp / 2; o > 0; o >>= 1) of_warp += __shfl_xor_sync(kFullWarp, of_warp, o);
  if (lane == 0) shared.sums[warp] = of_warp;
  __syncthreads();
  std::int64_t above = 0;
  for (int w = 0; w < warp; w++) above += shared.sums[w];
  if (above < missing && above + of_warp >= missing) {  // it is one of this warp's
    unsigned reach = 0;
#pragma unroll 1
    for (std::uint32_t i = 0; reach == 0; i += kWarp) {
      const std::int64_t here = count_of(top - i);
      std::int64_t reached = above + here;
#pragma unroll
      for (int o = 1; o < kWarp; o <<= 1) {
        const std::int64_t other = __shfl_up_sync(kFullWarp, reached - above, o);
        if (lane >= o) reached += other;
      }
      reach = __ballot_sync(kFullWarp, reached >= missing);
      if (lane == __ffs(static_cast<int>(reach)) - 1) shared.found = {top - i, reached - here, here};
      above = __shfl_sync(kFullWarp, reached, kWarp - 1);
    }
  }
  __syncthreads();
  return shared.found;
}

/// Writes the mask of `Columns` neighbouring columns, a bit each of `selected`.
template <int Columns>
__device__ __forceinline__ void write_mask(std::uint8_t* mask, std::uint32_t selected, bool whole, std::int64_t skipped,
                                           std::int64_t there) {
  constexpr int kWord = Columns < 4 ? Columns : 4;
  using word = std::conditional_t<kWord == 4, std::uint32_t, std::uint16_t>;
  if (whole && reinterpret_cast<std::uintptr_t>(mask) % kWord == 0) {
#pragma unroll
    for (int c = 0; c < Columns; c += kWord) {
      // Four bits spread to the lowest of four bytes: the factor's bits are 7 apart, so that bit i lands at 8 i.
      const std::uint32_t bytes = ((selected >> c & 0xFu) * 0x00204081u) & 0x01010101u;
      *reinterpret_cast<word*>(mask + c) = static_cast<word>(bytes);
    }
  } else {
    for (int c = 0; c < Columns; c++)
      if (c >= skipped && c < there) mask[c] = static_cast<std::uint8_t>(selected >> c & 1u);
  }
}

}  // namespace shortlist::cuda::radix
