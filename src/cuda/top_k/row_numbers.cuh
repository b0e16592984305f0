// The values of a row as 16-bit numbers in the registers of a group, two a register, and the search for its border
// among them.
//
// fp16 and bf16 values are themselves the numbers. An fp32 value x becomes u = fp16(x * scale + offset), so that near
// the expected border one unit of u is about one value. The map keeps the order, so that a threshold of u that exactly
// k numbers reach proves the k best, whatever was rounded. A compare and an add serve two values. If no threshold has
// exactly k, the border is one number: of fp16 and bf16 values equal ones; of fp32 values whoever called looks at those
// that became it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/top_k/mark_bits.cuh"
#include "cuda/top_k/row_group.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {

constexpr int kPlainPasses = 11;     // counts that most rows end with
constexpr int kMapPasses = 6;        // more of them, with care, while the map is the row's
constexpr int kLastPasses = 24;      // and with the map of the bracket, where ties take a few
constexpr int kUnmappedPasses = 64;  // and without a map: every other one of the last 32 halves the numbers, of 16 bits
constexpr int kSameSide = 2;         // counts in a row on one side of k, after which brackets are halved
constexpr int kStalls = 3;           // counts that leave a bracket as full as it was, before the map is changed
constexpr float kManyTied = 8.0f;    // beyond k: so many are hardly ones that only the first map makes equal
constexpr float kBracket = 16.0f;    // width of the bracket in its own map: fp16 has 2,048 numbers of [4, 8) alone
constexpr float kSteep = 1.5f;       // growth of steps while the border is on one side
constexpr float kBolder = 2.0f;      // the same, of the first ones without a map
constexpr float kReach = 8.0f;    // times the square root of k, and as much more: further off the border hardly ever is
constexpr float kSpread = 1.8f;   // the same: further off it seldom is
constexpr float kBoldest = 0.9f;  // interpolation keeps away from the ends of its bracket
constexpr float kLeastGrid = 0x1p-24f;  // between numbers of fp16
constexpr std::uint32_t kNumberNan = 0x7FFF;

/// In how many words of marks so many values are: equal ones, of whole pairs, of mapped ones whole units of them.
template <class Stored>
constexpr int mark_words(int values) {
  constexpr int kPairsTogether = sizeof(Stored) == 4 ? 4 : 1;
  int words = (values + 31) / 32;
  while (values % (2 * kPairsTogether * words) != 0) words++;
  return words;
}

/// Marks of a thread's numbers in an order that takes few instructions: of 16 values, those at even places come first.
template <class Numbers>
struct number_marks {
  static constexpr int kWords = Numbers::kWords;
  std::uint32_t words[kWords];

  /// How many are not marked.
  __device__ __forceinline__ std::uint32_t others() const {
    std::uint32_t count = 0;
#pragma unroll
    for (const std::uint32_t word : words) count += __popc(~word);
    return count;
  }
  /// Marks of those that are not marked, in the order of reading.
  template <class Bits>
  __device__ __forceinline__ Bits others_in_order() const {
    std::uint32_t ordered[kWords];
#pragma unroll
    for (int w = 0; w < kWords; w++) {
      std::uint32_t x = ~words[w];
      x = (x & 0xF00FF00Fu) | (x & 0x00F000F0u) << 4 | (x >> 4 & 0x00F000F0u);
      x = (x & 0xC3C3C3C3u) | (x & 0x0C0C0C0Cu) << 2 | (x >> 2 & 0x0C0C0C0Cu);
      x = (x & 0x99999999u) | (x & 0x22222222u) << 1 | (x >> 1 & 0x22222222u);
      ordered[w] = x;
    }
    return joined_words<Bits>(ordered);
  }
};

/// `Values` of a thread: 8, 16, 24, 32, 48 or 64; of 16 bits 40, 80, 96, 112, 128, 160, 192 or 256, too.
template <class Stored, int Values>
struct thread_numbers {
  static constexpr bool kMapped = std::is_same_v<Stored, float>;
  static constexpr bool kWide = std::is_same_v<Stored, bfloat16>;  // of the exponent of fp32
  static constexpr int kWords = mark_words<Stored>(Values);
  static constexpr int kPairs = Values / kWords / 2;  // of a word of marks
  using pair = std::conditional_t<kWide, __nv_bfloat162, __half2>;

  /// Mapped: values v and v + kPairs of word w share register w x kPairs + v. Else neighbours share one.
  pair u[kWords * kPairs];

  static __device__ __forceinline__ pair twice(float value) {
    if constexpr (kWide) {
      return __float2bfloat162_rn(value);
    } else {
      return __float2half2_rn(value);
    }
  }
  /// A byte of its sign for each of four numbers.
  static __device__ __forceinline__ std::uint32_t signs(pair front, pair back) {
    std::uint32_t two[2];
    memcpy(&two[0], &front, sizeof front);
    memcpy(&two[1], &back, sizeof back);
    std::uint32_t four;
    asm("prmt.b32 %0, %1, %2, 0xFDB9;" : "=r"(four) : "r"(two[0]), "r"(two[1]));
    return four;
  }
  /// The number that `value` is rounded to.
  static __device__ __forceinline__ float rounded(float value) { return __low2float(twice(value)); }
  /// The 16 bits of the number that `value` is rounded to, and the other way round.
  static __device__ __forceinline__ std::uint32_t bits_of(float value) {
    std::uint32_t word;
    const pair two = twice(value);
    memcpy(&word, &two, sizeof word);
    return word & 0xFFFFu;
  }
  static __device__ __forceinline__ float of_bits(std::uint32_t word) {
    pair number;
    memcpy(&number, &word, sizeof number);
    return __low2float(number);
  }
  /// The number after `value`, which is one and not NaN.
  static __device__ __forceinline__ float next_above(float value) {
    std::uint32_t word = bits_of(value);
    word = word == 0 || word == 0x8000u ? 1u : word & 0x8000u ? word - 1 : word + 1;
    return of_bits(word);
  }
  /// The bits of the least number that is no less than `value`, which is finite.
  static __device__ __forceinline__ std::uint32_t bits_no_less(float value) {
    if constexpr (kWide) {
      const std::uint32_t bits = __float_as_uint(value);
      return (bits + (static_cast<std::int32_t>(bits) < 0 ? 0u : 0xFFFFu)) >> 16;
    } else {
      return __half_as_ushort(__float2half_ru(value));
    }
  }
  /// The number in the middle of those from `low` to `high`.
  static __device__ __forceinline__ float middle_number(float low, float high) {
    constexpr std::uint32_t kSign = 0x8000u;
    constexpr std::uint32_t kAll = 0xFFFFu;
    const auto order_of = [](float value) {
      const std::uint32_t word = bits_of(value);
      return word & kSign ? word ^ kAll : word | kSign;
    };
    const std::uint32_t order = (order_of(low) + order_of(high)) / 2;
    return of_bits(order & kSign ? order ^ kSign : order ^ kAll);
  }
  /// at + beyond * step; without a map at least a number away.
  static __device__ __forceinline__ float stepped(float at, float beyond, float step) {
    if constexpr (kMapped) return __fmaf_rn(beyond, step, at);
    return at + copysignf(fmaxf(fabsf(beyond * step), grid_at(at)), beyond);
  }
  /// A step from one number to the next, and more, where `value` is.
  static __device__ __forceinline__ float grid_at(float value) { return fabsf(value) * (kWide ? 0x1p-7f : 0x1p-10f); }

  __device__ __forceinline__ void set(int at, float low, float high) {
    if constexpr (kMapped) u[at] = __floats2half2_rn(low, high);
  }
  __device__ __forceinline__ void set(int at, std::uint32_t word) { memcpy(&u[at], &word, sizeof word); }
  __device__ __forceinline__ void set_bits(int at, std::uint32_t bits) {
    std::uint32_t word;
    memcpy(&word, &u[at], sizeof word);
    set(at, word | bits);
  }

  /// Values whose bit of `there` is not set become NaN, which reaches no threshold.
  template <class Bits>
  __device__ __forceinline__ void keep_only(Bits there) {
#pragma unroll
    for (int w = 0; w < kWords; w++) {
      auto absent = static_cast<std::uint32_t>(~there >> (2 * w * kPairs));
      asm volatile("" : "+r"(absent));  // else the masks below are made of every row, whether it needs them or not
      // Of pair i, or of pairs i and i + 8 in turn, both bits are 16 apart, so that one mask serves a pair.
      const auto spread = [](std::uint32_t bits) { return (bits & 0x5555u) | (bits & 0xAAAAu) << 15; };
      const std::uint32_t halves[2] = {
          kMapped ? (absent & ((1u << kPairs) - 1u)) | absent >> kPairs << 16 : spread(absent), spread(absent >> 16)};
#pragma unroll
      for (int i = 0; i < kPairs; i++) {
        const std::uint32_t two = kMapped ? halves[0] >> i : halves[i / 8] >> (2 * (i % 8));
        set_bits(w * kPairs + i, (two & 0x00010001u) * kNumberNan);
      }
    }
  }
  /// The same where has_unit(i) says whether the unit of 16 bytes that was read as the i-th is there, all of it.
  template <class HasUnit>
  __device__ __forceinline__ void keep_units(HasUnit has_unit) {
    constexpr std::uint32_t kTwoNans = kNumberNan | kNumberNan << 16;
    if constexpr (kMapped) {
#pragma unroll
      for (int at = 0; at < kWords * kPairs; at += 4) {
        const unsigned low = static_cast<unsigned>(at / kPairs * 2 * kPairs + at % kPairs) / 4;
        const std::uint32_t absent =
            (has_unit(low) ? 0 : kNumberNan) | (has_unit(low + kPairs / 4) ? 0 : kNumberNan << 16);
#pragma unroll
        for (int c = 0; c < 4; c++) set_bits(at + c, absent);
      }
    } else {
#pragma unroll
      for (int at = 0; at < kWords * kPairs; at += 4) {
        const std::uint32_t absent = has_unit(static_cast<unsigned>(at) / 4) ? 0 : kTwoNans;
#pragma unroll
        for (int c = 0; c < 4; c++) set_bits(at + c, absent);
      }
    }
  }
  /// Numbers of units that are not there become -inf. @param has_unit as above
  template <class HasUnit>
  __device__ __forceinline__ void sink_units(HasUnit has_unit) {
    static_assert(!kMapped);
    constexpr std::uint32_t kLowest = kWide ? 0xFF80FF80u : 0xFC00FC00u;
#pragma unroll
    for (int at = 0; at < kWords * kPairs; at++) {
      std::uint32_t word;
      memcpy(&word, &u[at], sizeof word);
      set(at, has_unit(static_cast<unsigned>(at) / 4) ? word : kLowest);
    }
  }
  /// The same of one unit of 16 bytes, the unit-th that was read: bit i of `absent` is of its i-th value.
  __device__ __forceinline__ void set_absent(unsigned unit, std::uint32_t absent) {
    constexpr int kUnit = 16 / sizeof(Stored);
    asm volatile("" : "+r"(absent));
    const std::uint32_t both = (absent & 0x5555u) | (absent & 0xAAAAu) << 15;  // neighbours' bits, 16 apart
#pragma unroll
    for (int c = 0; c < kUnit; c += kMapped ? 1 : 2) {
      const int v = static_cast<int>(unit) * kUnit + c;
      const int at = kMapped ? v / (2 * kPairs) * kPairs + v % kPairs : v / 2;
      const std::uint32_t bits = kMapped ? (absent >> c & 1) << (v / kPairs % 2 * 16) : both >> c & 0x00010001u;
      set_bits(at, bits * kNumberNan);
    }
  }
  __device__ __forceinline__ void negate() {
#pragma unroll
    for (int i = 0; i < kWords * kPairs; i++) u[i] = __hneg2(u[i]);
  }
  /// How many reach `from`.
  __device__ __forceinline__ float count_from(float from) const {
    const pair threshold = twice(from);
    pair even = __hge2(u[0], threshold);
    pair odd = __hge2(u[1], threshold);
#pragma unroll
    for (int i = 2; i < kWords * kPairs; i += 2) {
      even = __hadd2(even, __hge2(u[i], threshold));
      odd = __hadd2(odd, __hge2(u[i + 1], threshold));
    }
    const pair both = __hadd2(even, odd);
    return __low2float(both) + __high2float(both);
  }
  /// Bit v of word w: whether value 2 w kPairs + v reaches `from`.
  __device__ __forceinline__ std::uint32_t marks_from(pair from, int word) const {
    if constexpr (kMapped) {
      std::uint32_t marks = 0;
#pragma unroll
      for (int i = 0; i < kPairs; i++) marks |= __hge2_mask(u[word * kPairs + i], from) & (0x00010001u << i);
      if constexpr (kPairs < 16) marks = (marks & 0xFFFFu) | (marks >> 16 << kPairs);
      return marks;
    } else {
      std::uint32_t halves[2] = {0, 0};  // of 16 values: the even ones in the low half, the odd ones in the high half
#pragma unroll
      for (int i = 0; i < kPairs; i++)
        halves[i / 8] |= __hge2_mask(u[word * kPairs + i], from) & (0x00020001u << (2 * (i % 8)));
      return ((halves[0] | halves[0] >> 16) & 0xFFFFu) | (halves[1] | halves[1] >> 16) << 16;
    }
  }
  /// Those below `from`, which is finite. @pre no number is NaN
  __device__ __forceinline__ number_marks<thread_numbers> below(float from) const {
    static_assert(!kMapped && kPairs == 16);
    std::uint32_t threshold = bits_no_less(from);
    if (threshold == 0) threshold = 0x8000u;  // -0 less +0 is -0
    threshold *= 0x10001u;
    pair two;
    memcpy(&two, &threshold, sizeof two);
    number_marks<thread_numbers> marks;
#pragma unroll
    for (int w = 0; w < kWords; w++) {
      std::uint32_t word = 0;
#pragma unroll
      for (int i = 0; i < kPairs / 2; i++) {
        const pair front = __hsub2(u[w * kPairs + i], two);
        const pair back = __hsub2(u[w * kPairs + i + kPairs / 2], two);
        word |= signs(front, back) & 0x01010101u << i;
      }
      marks.words[w] = word;
    }
    return marks;
  }
  /// The largest number.
  __device__ __forceinline__ float most() const {
    pair even = u[0];
    pair odd = u[1];
#pragma unroll
    for (int i = 2; i < kWords * kPairs; i += 2) {
      even = __hmax2(even, u[i]);
      odd = __hmax2(odd, u[i + 1]);
    }
    const pair both = __hmax2(even, odd);
    return fmaxf(__low2float(both), __high2float(both));
  }
  /// The largest number below `limit`, or -inf.
  __device__ __forceinline__ float most_below(float limit) const {
    constexpr std::uint32_t kLowest = kWide ? 0xFF80FF80u : 0xFC00FC00u;  // -inf, twice
    const pair bound = twice(limit);
    pair most;
    memcpy(&most, &kLowest, sizeof most);
#pragma unroll
    for (int i = 0; i < kWords * kPairs; i++) {
      const std::uint32_t below = __hlt2_mask(u[i], bound);
      std::uint32_t bits;
      memcpy(&bits, &u[i], sizeof bits);
      bits = (bits & below) | (kLowest & ~below);
      pair candidate;
      memcpy(&candidate, &bits, sizeof bits);
      most = __hmax2(most, candidate);
    }
    return fmaxf(__low2float(most), __high2float(most));
  }
};

/// Where the border is among the numbers.
struct number_border {
  bool found = false;  // else another search must find it
  bool tied = false;   // more than k reach `from`, fewer than k reach `above`, and no number lies between
  float from = 0.0f;   // if not tied, exactly k reach it
  float above = 0.0f;
  float plain = 0.0f;  // the border, or where it must be near, in numbers of the first map
};

/// 1 / value, nearly; of no denormal.
__device__ __forceinline__ float near_reciprocal(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

/// at + term, and farther to that side by what four roundings and a reciprocal may do to either, where a value became a
/// number by its distance from `at`.
__device__ __forceinline__ float beyond_rounding(float at, float term, float side) {
  constexpr float kRounding = 0x1p-20f;
  return at + term + side * kRounding * (fabsf(at) + fabsf(term));
}

/// What is known of the border: `low` is reached by more than k numbers, by `over` more; `high` by `under` (< 0) more.
struct number_bracket {
  float low = -INFINITY;
  float high = INFINITY;
  float over = -INFINITY;  // an end that is not known
  float under = INFINITY;

  __device__ __forceinline__ float width() const { return high - low; }
  __device__ __forceinline__ bool has_ends() const { return width() < INFINITY; }
  /// How many numbers lie between the ends; -inf as long as one is not known.
  __device__ __forceinline__ float held() const { return over - under; }
  __device__ __forceinline__ float inside() const {  // over >= 1 and under <= -1 keep it inside
    return __fmaf_rn(width(), (over + 0.5f) * near_reciprocal(held() + 1.0f), low);
  }
  __device__ __forceinline__ float well_inside() const {
    const float share = over * near_reciprocal(held());
    return __fmaf_rn(width(), fminf(kBoldest, fmaxf(1.0f - kBoldest, share)), low);
  }
  __device__ __forceinline__ float middle() const { return __fmaf_rn(0.5f, width(), low); }
  __device__ __forceinline__ void narrow(float at, float beyond) {
    const bool too_many = beyond > 0.0f;
    low = too_many ? at : low;
    over = too_many ? beyond : over;
    high = too_many ? high : at;
    under = too_many ? under : beyond;
  }
};

/// Ends the search of rows that plain interpolation did not end: ties, and rows unlike the ones before.
/// @param zoom zoom(center, factor) maps this thread's values anew: u becomes (u - center) * factor.
template <class Group, class Stored, int Values, class Zoom>
__device__ __forceinline__ void find_hard_border(Group& group, const thread_numbers<Stored, Values>& numbers,
                                                 float wanted, bool open, number_bracket bracket, float at, float step,
                                                 Zoom zoom, number_border& border) {
  using kind = thread_numbers<Stored, Values>;
  constexpr int kAtLast = kind::kMapped ? kLastPasses : kUnmappedPasses;
  float steep = 1.0f;
  int same_side = 0;
  int stalls = 1;
  bool was_too_many = false;
  bool top_counted = bracket.high < INFINITY;  // with this map
  bool walk = open && top_counted;             // from the top to the next number below: ties end there
#pragma unroll 1
  for (int round = kind::kMapped ? 0 : 1; round < 2; round++) {
#pragma unroll 1
    for (int pass = round == 0 ? kMapPasses : kAtLast; pass > 0; pass--) {
      if (!group.all(!walk)) {
        const float next = group.largest(numbers.most_below(bracket.high));
        if (walk) at = next;
      }
      at = kind::rounded(at);
      open = open && at == at;  // no NaN, which a step beyond all numbers may make
      const float beyond = group.sum_count(numbers.count_from(at)) - wanted;
      const bool too_many = beyond > 0.0f;
      if (open) {
        border.from = at;
        border.tied = walk && (round == 0 ? beyond > kManyTied : too_many);
        border.found = beyond == 0.0f || border.tied;
        border.above = bracket.high;
        open = !border.found;
        if (bracket.has_ends() && beyond == (too_many ? bracket.over : bracket.under)) stalls++;
      }
      if (group.all(!open || (round == 0 && stalls >= kStalls))) break;
      bracket.narrow(at, beyond);
      top_counted = top_counted || !too_many;
      same_side = too_many == was_too_many ? same_side + 1 : 0;
      was_too_many = too_many;
      const bool halves = same_side >= kSameSide || (!kind::kMapped && pass <= kAtLast / 2);
      if (!kind::kMapped && at == (too_many ? INFINITY : -INFINITY)) open = false;  // no number is the border
      if (!kind::kMapped && halves) {
        at = kind::middle_number(bracket.low, bracket.high);
      } else if (bracket.has_ends()) {
        at = halves ? bracket.middle() : bracket.well_inside();
      } else {
        at = kind::stepped(at + (too_many ? 0.5f : -0.5f) * step, step * beyond, steep);
        steep *= kSteep;
      }
      walk = open && stalls > 0 && !walk;
      if (walk && !top_counted) {
        at = bracket.high < INFINITY ? bracket.high : at;
        walk = false;
      }
    }
    if (round == 0) {
      if (border.found) border.plain = border.from;
      if (group.all(!open)) return;
      if (open && bracket.has_ends()) {
        bracket.low = kind::rounded(bracket.low);
        bracket.high = kind::rounded(bracket.high);
        const float apart = fmaxf(kind::grid_at(fmaxf(fabsf(bracket.low), fabsf(bracket.high))), kLeastGrid);
        const float center = bracket.middle();
        zoom(center, kBracket / (bracket.width() + apart));
        border.plain = center;
        bracket.low = -0.5f * kBracket;
        bracket.high = 0.5f * kBracket;
        at = 0.0f;
        top_counted = false;  // rounding is another now: what reached the end may be more, or fewer
        stalls = 0;
        walk = false;
      }
    } else if (!kind::kMapped && border.found) {
      border.plain = border.from;
    }
  }
}

/// For all groups that run in step; only those that are `usable` are searched. @param k in [1, the values there are).
/// @param at where the search begins; `beyond` more than k numbers reach it. @param step so far apart neighbours are.
/// @param reach further than so many numbers off the border hardly ever is: a bracket that holds more holds equal ones.
template <class Group, class Stored, int Values, class Zoom>
__device__ __forceinline__ number_border find_border(Group& group, const thread_numbers<Stored, Values>& numbers, int k,
                                                     float at, float beyond, float step, float reach, bool usable,
                                                     Zoom zoom) {
  using kind = thread_numbers<Stored, Values>;
  number_bracket bracket;
  number_border border;
  // A row that needs no more counts has 0 beyond what it wants, and its threshold stays.
  float wanted = static_cast<float>(k);
  if (!usable) {
    wanted += beyond;
    beyond = 0.0f;
  }
#pragma unroll 1
  for (int pass = kPlainPasses;; pass--) {
    bracket.narrow(at, beyond);
    if (group.all(beyond == 0.0f || bracket.held() >= reach) || pass == 0) break;
    float next = bracket.has_ends() ? bracket.inside() : kind::stepped(at, beyond, step);
    if (!kind::kMapped && pass < kPlainPasses) step *= kBolder;  // the border is on one side still
    if constexpr (!kind::kMapped) {
      next = kind::rounded(next);
      const auto is_inside = [&](float x) { return x > bracket.low && x < bracket.high; };
      if (!group.all(beyond == 0.0f || is_inside(next))) {  // neighbours have the border between them
        if (!is_inside(next)) next = bracket.has_ends() ? kind::rounded(bracket.middle()) : at;
        if (beyond != 0.0f && bracket.has_ends() && !is_inside(next)) {
          border.tied = true;
          border.above = bracket.high;
          next = bracket.low;
          wanted += bracket.over;
        }
      }
    }
    at = beyond == 0.0f ? at : next;
    beyond = group.sum_count(numbers.count_from(at)) - wanted;
  }
  const bool open = beyond != 0.0f;
  border.found = !open && usable;
  border.from = border.plain = at;
  if (group.all(!open)) return border;
  if (open) at = bracket.has_ends() ? bracket.inside() : kind::stepped(at, beyond, step);
  find_hard_border(group, numbers, wanted, open, bracket, at, step, zoom, border);
  return border;
}

}  // namespace shortlist::cuda
