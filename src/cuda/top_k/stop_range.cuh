// What an early stop selects of a long row, which follows from the row's extremes and its k-th best (row_path.cuh), and
// how the worst value is looked for while the row comes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/device/value_pair.cuh"
#include "cuda/top_k/long_row.cuh"
#include "cuda/top_k/row_path.cuh"

namespace shortlist::cuda {

/// The worst value that a thread has seen; NaN if one was.
template <class Stored, bool Negated>
class worst_seen {
 public:
  static constexpr bool kSees = true;

  __device__ __forceinline__ void add(const uint4& raw) {
    add_word(raw.x);
    add_word(raw.y);
    add_word(raw.z);
    add_word(raw.w);
  }
  /// Its key; NaN's, which none is below, if NaN was seen.
  __device__ __forceinline__ std::uint32_t key() const {
    if constexpr (sizeof(Stored) == 4) {
      return key_of_value(worst_, Negated);
    } else {
      const auto half = [](std::uint32_t bits) { return Stored{static_cast<std::uint16_t>(bits)}; };
      return min(key_of_value(half(worst_ & 0xFFFFu), Negated), key_of_value(half(worst_ >> 16), Negated));
    }
  }

 private:
  using word = std::conditional_t<sizeof(Stored) == 4, float, std::uint32_t>;
  static constexpr std::uint32_t kInfinity = sizeof(Stored) == 4               ? 0x7F800000u
                                             : std::is_same_v<Stored, float16> ? 0x7C007C00u
                                                                               : 0x7F807F80u;

  __device__ __forceinline__ void add_word(std::uint32_t values) {
    if constexpr (sizeof(Stored) == 4) {
      if (Negated)
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(worst_) : "f"(__uint_as_float(values)));
      else
        asm("min.NaN.f32 %0, %0, %1;" : "+f"(worst_) : "f"(__uint_as_float(values)));
    } else {
      const auto& these = reinterpret_cast<const pair_of<Stored>&>(values);
      auto& worst = reinterpret_cast<pair_of<Stored>&>(worst_);
      worst = Negated ? __hmax2_nan(worst, these) : __hmin2_nan(worst, these);
    }
  }

  word worst_ = [] {
    const std::uint32_t none = Negated ? kInfinity | kSigns<Stored> : kInfinity;
    word best;
    memcpy(&best, &none, sizeof none);
    return best;
  }();
};

/// What an early stop selects of a row: the first k of the columns whose numbers are at least `high`, and if those are
/// fewer, the first of those that are at least `low`.
struct stop_range {
  static constexpr std::uint32_t kNoneAbove = ~0u;  // a `high` that no number reaches
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  std::uint32_t k = 0;  // 0: it is not known yet
  float width = 0.0f;   // of the bracket that the bisection ended with

  __device__ __forceinline__ bool none_above() const { return high == kNoneAbove; }
  __device__ __forceinline__ bool is_above(std::uint32_t number) const { return number >= high; }
  __device__ __forceinline__ bool is_tie(std::uint32_t number) const { return number >= low && number < high; }
  /// How many ties are chosen. @param above how many numbers of the row are.
  __device__ __forceinline__ std::uint32_t ties_beside(std::uint32_t above) const { return k - min(above, k); }
};

/// The same where it is known how many are above.
struct counted_range : stop_range {
  std::uint32_t ties = 0;

  counted_range() = default;
  __device__ __forceinline__ counted_range(const stop_range& range, std::uint32_t above)
      : stop_range(range), ties(range.ties_beside(above)) {}
  __device__ __forceinline__ std::uint32_t ties_beside(std::uint32_t /*of_round*/) const { return ties; }
};

/// The value that a number stands for.
template <class Stored>
__device__ __forceinline__ float value_of_number(std::uint32_t number) {
  const std::uint32_t key = number << kSharedBits<Stored>;
  constexpr std::uint32_t kRest = (std::uint32_t{1} << kSharedBits<Stored>)-1;
  return core::from_ascending_key(key < kZeroKey ? key | kRest : key);
}
/// The least number whose value is no less.
template <class Stored>
__device__ __forceinline__ std::uint32_t least_number_from(float value) {
  const std::uint32_t key = core::ascending_key(value);
  constexpr std::uint32_t kRest = (std::uint32_t{1} << kSharedBits<Stored>)-1;
  return (key < kZeroKey ? key : key + kRest) >> kSharedBits<Stored>;
}

/// Numbers of a row: its extremes, and its k-th best.
struct row_numbers {
  std::uint32_t worst;
  std::uint32_t best;
  std::uint32_t border;
};

/// Moves a range to where the bisection of a row ends. @returns whether there is one: a row that is not finite keeps
/// its exact choice.
template <class Stored>
__device__ __forceinline__ bool find_stop(const early_stop& stop, const row_numbers& row, stop_range& range) {
  constexpr std::uint32_t kMinusInfinity = kMinusInfinityKey >> kSharedBits<Stored>;
  if (row.worst <= kMinusInfinity || row.best >= kInfinityNumber<Stored>) return false;
  const float lower = value_of_number<Stored>(row.worst);
  const float upper = value_of_number<Stored>(row.best);
  const bool fits = isfinite(__fadd_rn(lower, lower)) && isfinite(__fadd_rn(upper, upper));
  const stop_path path{lower, upper, __fmul_rn(stop.eps, fabsf(upper)), fits};
  const stop_bracket end = follow(stop, path, value_of_number<Stored>(row.border), INFINITY, -INFINITY, 0.0f);
  range.width = end.high - end.low;
  range.low = least_number_from<Stored>(end.low);
  range.high = stop.by_count ? stop_range::kNoneAbove : least_number_from<Stored>(end.high);
  return true;
}

}  // namespace shortlist::cuda
