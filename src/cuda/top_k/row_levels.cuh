// The border of a row of 16-bit values among neighbouring numbers, by planes of bits.
//
// Where rows are alike, the border is near that of the rows before. Each value becomes a level: which of the numbers
// around that border it is, 0 if it is less, the last if it is more. A thread's levels are turned into planes that hold
// a bit of each; from the uppermost plane on, a count of those that may still be the border tells a bit of it. Nothing
// is guessed, the same few instructions serve all rows of a warp, and equal values need no search of their own: what is
// left are the values at the border, of which the first in the order of columns are taken. Rows whose border lies
// elsewhere are searched by row_search.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/plan.hpp"
#include "cuda/top_k/row_search.cuh"

namespace shortlist::cuda {

/// Neighbouring numbers of fp16 or bf16: so many that half of them are an octave, of fp16 half of one.
template <class Stored>
struct number_window {
  static constexpr int kBits = std::is_same_v<Stored, bfloat16> ? 8 : 10;
  static constexpr std::uint32_t kLast = (1u << kBits) - 1;
  static constexpr std::uint32_t kInfinity = std::is_same_v<Stored, bfloat16> ? 0x7F80 : 0x7C00;
  std::uint32_t first;  // as it is stored

  /// So that `at` is in the middle.
  static __device__ __forceinline__ number_window around(float at) {
    return {static_cast<std::uint32_t>(stored_bits(narrowed<Stored>(at))) - kLast / 2};
  }
  /// Whether its numbers are above 0 and finite: then more bits are more.
  __device__ __forceinline__ bool usable() const { return first - 1 < kInfinity - kLast - 1; }
  /// Whether a level is neither that of all that is less nor that of all that is more.
  __device__ __forceinline__ bool holds(std::uint32_t level) const { return level - 1 < kLast - 1; }
  __device__ __forceinline__ float number(std::uint32_t level) const {
    return core::widen(of_stored_bits(static_cast<std::uint16_t>(first + level)));
  }
  /// The levels of two values whose bits are `two`, none below the first number.
  __device__ __forceinline__ std::uint32_t levels(std::uint32_t two) const {
    return __viaddmin_u16x2(two, (0x10000u - first) * 0x10001u, kLast * 0x10001u);
  }

 private:
  static __device__ __forceinline__ std::uint16_t stored_bits(Stored value) {
    std::uint16_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  static __device__ __forceinline__ Stored of_stored_bits(std::uint16_t bits) {
    Stored value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
};

/// Of every 2 Shift bits, the lower ones of `a` and of `b` go to `a`, the upper ones to `b`.
template <int Shift>
__device__ __forceinline__ void exchange_bits(std::uint32_t& a, std::uint32_t& b) {
  constexpr std::uint32_t kLower = Shift == 4 ? 0x0F0F0F0Fu : Shift == 2 ? 0x33333333u : 0x55555555u;
  const std::uint32_t lower = (a & kLower) | (b << Shift & ~kLower);
  b = (a >> Shift & kLower) | (b & ~kLower);
  a = lower;
}
/// Bit i of byte b of word j becomes bit j of byte b of word i.
__device__ __forceinline__ void transpose_bits(std::uint32_t (&words)[8]) {
#pragma unroll
  for (int j = 0; j < 4; j++) exchange_bits<4>(words[j], words[j + 4]);
#pragma unroll
  for (int j = 0; j < 8; j++)
    if (j % 4 < 2) exchange_bits<2>(words[j], words[j + 2]);
#pragma unroll
  for (int j = 0; j < 8; j += 2) exchange_bits<1>(words[j], words[j + 1]);
}

/// The levels of a thread's values, a plane for each of their bits: bit v of word w is of value 32 w + v.
template <int Values, int Bits>
struct level_planes {
  static constexpr int kWords = (Values + 31) / 32;
  std::uint32_t planes[kWords][Bits];

  /// @param levels two a word, in the order of values
  __device__ __forceinline__ explicit level_planes(const std::uint32_t (&levels)[Values / 2]) {
#pragma unroll
    for (int w = 0; w < kWords; w++) {
#pragma unroll
      for (int first = 0; first < Bits; first += 8) {
        std::uint32_t words[8];
        gather_bytes(levels, w, first / 8, words);
        transpose_bits(words);
#pragma unroll
        for (int b = first; b < Bits && b < first + 8; b++) planes[w][b] = words[b - first];
      }
    }
  }

 private:
  /// Word j gets a byte of each of the levels of values j, j + 8, j + 16 and j + 24.
  static __device__ __forceinline__ void gather_bytes(const std::uint32_t (&levels)[Values / 2], int w, int byte,
                                                      std::uint32_t (&words)[8]) {
    const auto two_at = [&](int v) { return 32 * w + v < Values ? levels[16 * w + v / 2] : 0u; };
    const unsigned of_both = byte == 0 ? 0x6240u : 0x7351u;  // of value v, v + 8, v + 1 and v + 9
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const std::uint32_t front = __byte_perm(two_at(j), two_at(j + 8), of_both);
      const std::uint32_t back = __byte_perm(two_at(j + 16), two_at(j + 24), of_both);
      words[j] = __byte_perm(front, back, 0x5410);
      words[j + 1] = __byte_perm(front, back, 0x7632);
    }
  }
};

/// Where the border is among levels, and a thread's values around it, a bit each.
template <class Bits>
struct level_border {
  std::uint32_t level;
  int missing;  // of those at the border: so many make k with those above
  Bits above;
  Bits at;
};

/// All that run in step call it. @param k no more than there are values.
template <class Marks, class Group, int Values, int Bits>
__device__ __forceinline__ level_border<Marks> find_level(Group& group, const level_planes<Values, Bits>& levels,
                                                          int k) {
  constexpr int kWords = level_planes<Values, Bits>::kWords;
  std::uint32_t at[kWords];
  std::uint32_t above[kWords];
#pragma unroll
  for (int w = 0; w < kWords; w++) {
    at[w] = ~0u;
    above[w] = 0;
  }
  level_border<Marks> border{0, k, 0, 0};
#pragma unroll
  for (int b = Bits - 1; b >= 0; b--) {
    std::uint32_t upper[kWords];
    std::uint32_t count = 0;
#pragma unroll
    for (int w = 0; w < kWords; w++) {
      upper[w] = at[w] & levels.planes[w][b];
      count += __popc(upper[w]);
    }
    const int reach = static_cast<int>(group.sum(count));
    const bool is_set = reach >= border.missing;
    const std::uint32_t mask = is_set ? ~0u : 0u;
#pragma unroll
    for (int w = 0; w < kWords; w++) {
      above[w] |= upper[w] & ~mask;
      at[w] &= ~(upper[w] ^ mask);
    }
    if (!is_set) border.missing -= reach;
    border.level |= mask & 1u << b;
  }
  border.above = joined_words<Marks>(above);
  border.at = joined_words<Marks>(at);
  return border;
}

/// Kernels that look for borders among levels. Of fp32, a level would hold values that differ.
template <class Stored, bool Plain>
constexpr bool kHasLevels = Plain && sizeof(Stored) == 2;

/// Chooses the k best of rows like those before, in the order of columns. All that run in step call it.
/// @pre k is below the count. @param place where the thread's first one goes among the row's. @returns whether the
/// borders of all their rows were found; else nothing has changed.
template <class Share, class Group>
__device__ __forceinline__ bool choose_by_level(Group& group, const search_plan& plan, const Share& share,
                                                row_shape& shape, typename Share::bits& chosen, int& place) {
  using stored = typename Share::stored;
  using bits = typename Share::bits;
  using window_type = number_window<stored>;
  const auto window = window_type::around(shape.at);
  const float reach = (shape.at - window.number(0)) * shape.scale;  // in values; on the other side it is more
  if (!group.all(window.usable() && reach >= plan.spread)) return false;
  thread_numbers<stored, Share::kValues> numbers;
  share.read(numbers, 1.0f, 0.0f);
  const auto first = numbers.twice(window.number(0));
  std::uint32_t levels[Share::kValues / 2];
#pragma unroll
  for (int i = 0; i < Share::kValues / 2; i++) {
    const auto two = __hmax2(numbers.u[i], first);  // `first` where there is NaN
    std::uint32_t word;
    memcpy(&word, &two, sizeof word);
    levels[i] = window.levels(word);
  }
  const level_planes<Share::kValues, window_type::kBits> planes(levels);
  const auto border = find_level<bits>(group, planes, plan.k);
  if (!group.all(window.holds(border.level))) return false;
  shape.at = __fmaf_rn(kLearning, window.number(border.level) - shape.at, shape.at);
  const bits above = share.ascending(border.above);
  const bits at = share.ascending(border.at);
  constexpr int kShift = 16;  // two counts in a word, of no more columns than a row has
  static_assert(core::kBlockRowsMaxCols <= 1 << (kShift - 1));
  const int before = group.before(count_marks(above) << kShift | count_marks(at));
  const int at_before = before & ((1 << kShift) - 1);
  chosen = above | keep_first(at, border.missing - at_before);
  place = (before >> kShift) + min(at_before, border.missing);
  return true;
}

/// When a group looks for borders among levels: where they lie too far apart for a window, not each time.
class level_trials {
 public:
  /// choose_by_level, if the rows are like those before and it is tried.
  template <class Share, class Group>
  __device__ __forceinline__ bool choose(Group& group, const search_plan& plan, const Share& share, row_shape& shape,
                                         typename Share::bits& chosen, int& place) {
    if (!shape.steady || !tries()) return false;
    const bool found = choose_by_level(group, plan, share, shape, chosen, place);
    waits_ = found ? 0 : min(2 * waits_ + 1, kMostWaits);
    left_ = waits_;
    return found;
  }

 private:
  __device__ __forceinline__ bool tries() {
    if (left_ == 0) return true;
    left_--;
    return false;
  }

  static constexpr int kMostWaits = 15;
  int waits_ = 0;  // the group's turns
  int left_ = 0;
};

}  // namespace shortlist::cuda
