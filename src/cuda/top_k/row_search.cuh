// The search for the k best of a row that lies in shared memory, by a group of threads; each marks those of its
// columns.
//
// Steps: a guess of the border -> 16-bit numbers in registers, counted until k reach a threshold (row_numbers.cuh) ->
// marks. The guess is the border of the rows before, or comes from mean and deviation. Rows that this does not settle
// (NaN or infinities among the best, values that fp16 cannot tell apart) are searched by their 32-bit keys, counted in
// shared memory. Either way the result is two sets, told apart by bits: those that are sure, and those that fill up
// what is missing, in the order of columns.
//
// A thread has `Values` neighbouring columns, so that the order of threads is the order of columns. It reads them in
// units of 16 bytes, each thread beginning elsewhere where all would read the same banks.
#pragma once

#include <cstdint>
#include <numeric>
#include <type_traits>

#include "core/normal.hpp"
#include "cuda/top_k/row_numbers.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {

/// Whether the turn-th of a group's rows tells it how close values lie.
__device__ __forceinline__ bool learns_from(int turn) { return turn < 8 || turn % 4 == 0; }

/// A row in shared memory. Bytes past its columns may be read, and mean nothing.
template <class Stored>
struct staged_row {
  const unsigned char* bytes;
  int count;
  bool negated;  // the smallest are best
  int lead;      // columns' worth of bytes between the last multiple of 16 bytes and the first column

  __device__ __forceinline__ float value(int column) const {
    const float value = core::widen(reinterpret_cast<const Stored*>(bytes)[column]);
    return negated ? -value : value;
  }
  /// Calls f(value) for each of a thread's columns, all threads of the group together for all columns.
  template <class Group, class F>
  __device__ __forceinline__ void visit(const Group& group, F f) const {
#pragma unroll 4
    for (int c = group.rank(); c < count; c += Group::kThreads) f(value(c));
  }
};

/// The values of 16 bytes.
template <class Stored>
__device__ __forceinline__ void widen_unit(const uint4& words, float (&values)[16 / sizeof(Stored)]) {
  const std::uint32_t all[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int w = 0; w < 4; w++) {
    if constexpr (std::is_same_v<Stored, float>) {
      values[w] = __uint_as_float(all[w]);
    } else if constexpr (std::is_same_v<Stored, bfloat16>) {
      values[2 * w] = __uint_as_float(all[w] << 16);
      values[2 * w + 1] = __uint_as_float(all[w] & 0xFFFF0000u);
    } else {
      __half2 two;
      memcpy(&two, &all[w], sizeof two);
      values[2 * w] = __low2float(two);
      values[2 * w + 1] = __high2float(two);
    }
  }
}

/// Two sets of a thread's columns, a bit for each, in the order that the thread reads them.
template <class Bits>
struct row_marks {
  Bits sure = 0;
  Bits fill = 0;
  bool chosen = false;  // `sure` is the result, and there is no `fill`
};

/// The keys that are sure are >= from; those in [fill_from, from) fill up.
struct key_border {
  std::uint32_t from;
  std::uint32_t fill_from;
};

/// Extremes of a row's columns, for an early stop.
struct row_facts {
  float least = INFINITY;
  float most = -INFINITY;
  float kth = INFINITY;    // the least of the k best
  float next = -INFINITY;  // the best of the others
  float odd = 0.0f;        // NaN if any column holds NaN or an infinity
};

/// Where a thread reads its units of any row: bytes from its first column.
template <class Stored, int Values>
class unit_places {
 public:
  static constexpr unsigned kUnit = 16 / sizeof(Stored);  // values
  static constexpr unsigned kUnits = Values / kUnit;
  static constexpr unsigned kApart = 128 / std::gcd(Values * static_cast<unsigned>(sizeof(Stored)), 128u);
  static constexpr bool kKept = kUnits == 4 || kUnits == 8;  // in registers, half of them: the others differ in one bit

  __device__ __forceinline__ explicit unit_places(int rank)
      : turn_(static_cast<unsigned>(rank) / kApart % kUnits) {  // after so many threads come the same banks again
    if constexpr (kKept) {
#pragma unroll
      for (unsigned i = 0; i < kUnits / 2; i++) {
        bytes_[i] = static_cast<int>(number(i) * 16);
        asm("" : "+r"(bytes_[i]));  // else they are worked out anew for every row
      }
    }
  }
  __device__ __forceinline__ unsigned turn() const { return turn_; }
  /// Which of a thread's units, in the order of columns, it reads as its i-th.
  __device__ __forceinline__ unsigned number(unsigned i) const { return number_from(turn_, i); }
  __device__ __forceinline__ int bytes(unsigned i) const {
    if constexpr (kKept) {
      return bytes_[i % (kUnits / 2)] ^ static_cast<int>(i / (kUnits / 2) * (kUnits / 2) * 16);
    } else {
      unsigned turn = turn_;
      asm volatile("" : "+r"(turn));  // else all of them are kept, in local memory
      return static_cast<int>(number_from(turn, i) * 16);
    }
  }

 private:
  static __device__ __forceinline__ unsigned number_from(unsigned turn, unsigned i) {
    const unsigned at = i + turn;
    if constexpr ((kUnits & (kUnits - 1)) == 0) return at & (kUnits - 1);
    return at < kUnits ? at : at - kUnits;
  }

  unsigned turn_;
  int bytes_[kKept ? kUnits / 2 : 1];
};

/// A thread's columns of a row.
template <class Stored, int Values>
class row_share {
 public:
  using bits = std::conditional_t<(Values > 32), std::uint64_t, std::uint32_t>;
  using places = unit_places<Stored, Values>;
  static constexpr unsigned kUnit = places::kUnit;
  static constexpr unsigned kUnits = places::kUnits;
  static constexpr bits kEvery = ~bits{0} >> (sizeof(bits) * 8 - Values);
  static constexpr unsigned kSampled = Values < 32 ? 1 : Values / 16;  // one unit of so many tells the row's shape

  __device__ __forceinline__ row_share(const staged_row<Stored>& row, int rank, const places& units)
      : row_(row), units_(units), first_(rank * Values - row.lead) {}

  /// May be negative: the columns that are not there, before or behind the row, are never marked.
  __device__ __forceinline__ int first_column() const { return first_; }

  /// Mean and variance, from a sample; columns that are not there, NaN and infinities count as 0.
  template <class Group>
  __device__ __forceinline__ void moments(Group& group, float& mean, float& variance) const {
    float sums[2] = {0.0f, 0.0f};
    float squares[2] = {0.0f, 0.0f};
    const bool all = whole();
#pragma unroll
    for (unsigned i = 0; i < kUnits; i += kSampled) {
      float values[kUnit];
      widen_unit<Stored>(unit(i), values);
#pragma unroll
      for (unsigned c = 0; c < kUnit; c++) {
        const bool counts = (all || has(kUnit * i + c)) && fabsf(values[c]) < INFINITY;
        const float value = counts ? values[c] : 0.0f;
        sums[c % 2] += value;
        squares[c % 2] = __fmaf_rn(value, value, squares[c % 2]);
      }
    }
    const float each = kSampled * near_reciprocal(static_cast<float>(row_.count));
    mean = group.sum(sums[0] + sums[1]) * each;
    variance = group.sum(squares[0] + squares[1]) * each - mean * mean;
  }

  /// fp32: numbers x * scale + offset. Else the values, negated where the smallest are best.
  __device__ __forceinline__ void read(thread_numbers<Stored, Values>& numbers, float scale, float offset) const {
    if constexpr (thread_numbers<Stored, Values>::kMapped) {
      constexpr int kPairs = thread_numbers<Stored, Values>::kPairs;
#pragma unroll
      for (int at = 0; at < Values / 2; at += 4) {
        const int v = at / kPairs * 2 * kPairs + at % kPairs;
        float low[4];
        float high[4];
        widen_unit<Stored>(unit(v / 4), low);
        widen_unit<Stored>(unit((v + kPairs) / 4), high);
#pragma unroll
        for (int c = 0; c < 4; c++)
          numbers.set(at + c, __fmaf_rn(low[c], scale, offset), __fmaf_rn(high[c], scale, offset));
      }
    } else {
#pragma unroll
      for (unsigned i = 0; i < kUnits; i++) {
        const uint4 words = unit(i);
        numbers.set(4 * i, words.x);
        numbers.set(4 * i + 1, words.y);
        numbers.set(4 * i + 2, words.z);
        numbers.set(4 * i + 3, words.w);
      }
      if (row_.negated) numbers.negate();
    }
    if (!whole()) numbers.keep_only(present());
  }

  __device__ __forceinline__ bits marks_from(const thread_numbers<Stored, Values>& numbers, float from) const {
    const auto threshold = numbers.twice(from);
    bits marks = numbers.marks_from(threshold, 0);
    if constexpr (Values > 32) marks |= static_cast<bits>(numbers.marks_from(threshold, 1)) << (Values / 2);
    return marks;
  }
  __device__ __forceinline__ row_marks<bits> marks_of(const key_border& border) const {
    row_marks<bits> marks;
    const bits there = present();
    visit([&](unsigned v, float value) {
      const std::uint32_t key = core::score_key(value, metric::inner_product);
      if (key >= border.from) {
        marks.sure |= bits{1} << v;
      } else if (key >= border.fill_from) {
        marks.fill |= bits{1} << v;
      }
    });
    return {marks.sure & there, marks.fill & there};
  }
  /// Those that equal `value`.
  __device__ __forceinline__ bits marks_equal(float value) const {
    bits marks = 0;
    const float own = row_.negated ? -value : value;
#pragma unroll
    for (unsigned i = 0; i < kUnits; i++) {
      float values[kUnit];
      widen_unit<Stored>(unit(i), values);
#pragma unroll
      for (unsigned c = 0; c < kUnit; c++) marks |= values[c] == own ? bits{1} << (kUnit * i + c) : bits{0};
    }
    return marks;
  }
  /// The first of the marked values in the order of reading. @pre marks != 0
  __device__ __forceinline__ float first_of(bits marks) const {
    int v;
    if constexpr (sizeof(bits) == 8) {
      v = __ffsll(static_cast<long long>(marks)) - 1;
    } else {
      v = __ffs(static_cast<int>(marks)) - 1;
    }
    return row_.value(first_ + static_cast<int>(units_.number(static_cast<unsigned>(v) / kUnit) * kUnit) +
                      v % static_cast<int>(kUnit));
  }
  /// What an early stop needs to know of a thread's columns, of which `sure` are among the k best.
  __device__ __forceinline__ row_facts facts(bits sure) const {
    row_facts all;
    visit_all([&](unsigned v, float value) {
      all.least = fminf(all.least, value);
      all.most = fmaxf(all.most, value);
      if (sure >> v & 1) {
        all.kth = fminf(all.kth, value);
      } else {
        all.next = fmaxf(all.next, value);
      }
      all.odd = __fmaf_rn(value, 0.0f, all.odd);
    });
    if (!whole()) all.odd = odd();
    return all;
  }
  /// Calls f(v, value) for all of a thread's columns: NaN, which reaches nothing and is no extreme, where none is.
  template <class F>
  __device__ __forceinline__ void visit_all(F f) const {
    if (whole()) return visit(f);
    const bits there = present();
    visit([&](unsigned v, float value) { f(v, there >> v & 1 ? value : core::float_from_bits(core::kCanonicalNan)); });
  }
  /// NaN if any column holds NaN or an infinity.
  __device__ __forceinline__ float odd() const {
    float found = 0.0f;
    const bits there = present();
    visit([&](unsigned v, float value) { found = there >> v & 1 ? __fmaf_rn(value, 0.0f, found) : found; });
    return found;
  }
  /// Those >= from are sure, those in [fill_from, from) fill up. @pre all columns hold finite numbers.
  __device__ __forceinline__ row_marks<bits> marks_between(float fill_from, float from) const {
    row_marks<bits> marks;
    const bits there = present();
    visit([&](unsigned v, float value) { marks.sure |= value >= from ? bits{1} << v : bits{0}; });
    marks.sure &= there;
    if (fill_from == from) return marks;
    visit([&](unsigned v, float value) { marks.fill |= value >= fill_from ? bits{1} << v : bits{0}; });
    marks.fill &= ~marks.sure & there;
    return marks;
  }
  /// The columns that are there.
  __device__ __forceinline__ bits present() const {
    const auto below = [](int column) { return column >= Values ? kEvery : (bits{1} << max(column, 0)) - 1; };
    return turned(below(row_.count - first_) & ~below(-first_), units_.turn() == 0 ? 0 : kUnits - units_.turn());
  }
  /// Bit i then stands for column first_column() + i.
  __device__ __forceinline__ bits ascending(bits marks) const { return turned(marks, units_.turn()); }

 private:
  static __device__ __forceinline__ bits turned(bits marks, unsigned units) {
    if constexpr (Values == 32) {
      return __funnelshift_l(marks, marks, kUnit * units);
    } else {
      if (units == 0) return marks;
      return (marks << (kUnit * units) | marks >> (Values - kUnit * units)) & kEvery;
    }
  }
  __device__ __forceinline__ bool whole() const { return first_ >= 0 && first_ + Values <= row_.count; }
  __device__ __forceinline__ bool has(unsigned v) const {
    const unsigned column = static_cast<unsigned>(first_) + units_.number(v / kUnit) * kUnit + v % kUnit;
    return column < static_cast<unsigned>(row_.count);
  }
  __device__ __forceinline__ uint4 unit(unsigned i) const {
    constexpr int kSize = static_cast<int>(sizeof(Stored));
    return *reinterpret_cast<const uint4*>(row_.bytes + first_ * kSize + units_.bytes(i));
  }
  template <class F>
  __device__ __forceinline__ void visit(F f) const {
    const std::uint32_t sign = row_.negated ? 0x80000000u : 0u;
#pragma unroll
    for (unsigned i = 0; i < kUnits; i++) {
      float values[kUnit];
      widen_unit<Stored>(unit(i), values);
#pragma unroll
      for (unsigned c = 0; c < kUnit; c++) f(kUnit * i + c, __uint_as_float(__float_as_uint(values[c]) ^ sign));
    }
  }

  const staged_row<Stored>& row_;
  const places& units_;
  int first_;
};

__device__ __forceinline__ int count_marks(std::uint32_t marks) { return __popc(marks); }
__device__ __forceinline__ int count_marks(std::uint64_t marks) { return __popcll(marks); }

// What few rows need is not inlined, and is given copies: what the search of other rows holds stays in registers.

template <class Stored, int Values>
__device__ __noinline__ row_marks<typename row_share<Stored, Values>::bits> marks_by_key(staged_row<Stored> row,
                                                                                         int rank, key_border border) {
  const unit_places<Stored, Values> units(rank);
  return row_share<Stored, Values>(row, rank, units).marks_of(border);
}
/// Mean and variance, as row_share has them. The caller synchronises the group afterwards.
template <class Stored, int Values, class Group>
__device__ __noinline__ float2 moments_of(Group group, staged_row<Stored> row, int rank) {
  const unit_places<Stored, Values> units(rank);
  float2 moments;
  row_share<Stored, Values>(row, rank, units).moments(group, moments.x, moments.y);
  return moments;
}

/// The first `quota` of the marked columns; marks are ascending.
template <class Bits>
__device__ __forceinline__ Bits keep_first(Bits marks, int quota) {
  if (quota <= 0) return 0;
  if (count_marks(marks) <= quota) return marks;
  int kept = 0;  // so many low bits hold no more than `quota` marks
#pragma unroll
  for (int step = sizeof(Bits) * 4; step > 0; step /= 2)
    if (count_marks(static_cast<Bits>(marks & ((Bits{1} << (kept + step)) - 1))) <= quota) kept += step;
  return marks & ((Bits{1} << kept) - 1);
}

/// Of the sets that threads marked, in ascending columns: the first k that are sure, then the first that fill up.
/// @param place where the thread's first one goes among the row's. All that run in step call it.
template <class Group, class Bits>
__device__ __forceinline__ Bits choose(Group& group, Bits sure, Bits fill, int k, int& place) {
  int all_sure = 0;
  const int sure_before = group.before(count_marks(sure), all_sure);
  int all_fill = 0;
  const int fill_before = group.before(count_marks(fill), all_fill);
  const int missing = max(k - all_sure, 0);
  place = min(sure_before, k) + min(fill_before, missing);
  return keep_first(sure, k - sure_before) | keep_first(fill, missing - fill_before);
}

constexpr int kKeyGuesses = 8;  // passes that interpolate between values; later ones halve brackets of keys

/// The border of any row, by counting its keys; one row at a time, all threads of the group together. Not inlined, and
/// given copies: what the search before it holds stays in registers. The caller synchronises the group afterwards.
/// @param k in [1, row.count]. @param deviations where the border of normal data lies, from the mean.
template <class Group, class Stored>
__device__ __noinline__ key_border find_border_by_keys(Group group, staged_row<Stored> row, int k, float deviations,
                                                       early_stop stop) {
  std::uint32_t least = 0;  // of the complements
  std::uint32_t most = 0;
  float sum = 0.0f;
  float squares = 0.0f;
  std::uint32_t numbers = 0;
  row.visit(group, [&](float value) {
    const std::uint32_t key = core::score_key(value, metric::inner_product);
    least = max(least, ~key);
    most = max(most, key);
    if (isfinite(value)) {
      sum += value;
      squares += value * value;
      numbers++;
    }
  });
  least = ~group.largest(least);
  most = group.largest(most);
  numbers = group.sum(numbers);
  const float mean = group.sum(sum) / static_cast<float>(numbers);
  const float variance = group.sum(squares) / static_cast<float>(numbers) - mean * mean;
  const float deviation = sqrtf(fmaxf(variance, 0.0f));
  const bool has_shape = isfinite(mean) && isfinite(deviation) && deviation > 0.0f;

  std::uint32_t low = least;      // at_low >= k values reach it
  std::uint32_t high = most + 1;  // at_high < k do
  int at_low = row.count;
  int at_high = 0;
  float at = mean + deviations * deviation;
  float step = 0.25f * deviation;
  key_border border{high, low};
  bool exact = false;
#pragma unroll 1
  for (int pass = 0; high - low > 1; pass++) {
    const bool guesses = has_shape && pass < kKeyGuesses;
    if (!guesses) {            // the ends become values that are there
      std::uint32_t from = 0;  // of the complements
      std::uint32_t below = 0;
      row.visit(group, [&](float value) {
        const std::uint32_t key = core::score_key(value, metric::inner_product);
        if (key >= low) from = max(from, ~key);
        if (key < high) below = max(below, key);
      });
      low = ~group.largest(from);
      high = group.largest(below) + 1;
      if (high - low <= 1) break;
    }
    std::uint32_t from = low + (high - low) / 2;
    if (guesses) {
      if (low > kMinusInfinityKey && high < kInfinityKey) {
        const float low_value = core::from_ascending_key(low);
        const float share = (static_cast<float>(at_low - k) + 0.5f) / static_cast<float>(at_low - at_high);
        at = low_value + (core::from_ascending_key(high) - low_value) * fminf(0.9f, fmaxf(0.1f, share));
      }
      if (isfinite(at)) from = core::ascending_key(at);
    }
    from = min(max(from, low + 1), high - 1);
    std::uint32_t mine = 0;
    row.visit(group, [&](float value) { mine += core::score_key(value, metric::inner_product) >= from ? 1u : 0u; });
    const int reached = static_cast<int>(group.sum(mine));
    if (reached == k) {
      border = {from, from};
      exact = true;
      break;
    }
    if (reached > k) {
      low = from;
      at_low = reached;
      at += step;
    } else {
      high = from;
      at_high = reached;
      at -= step;
    }
    step *= 2.0f;
  }
  if (!exact) border = {high, low};
  if (!stop.asked() || row.count <= k || least <= kMinusInfinityKey || most >= kInfinityKey) return border;

  std::uint32_t kth = low;
  std::uint32_t next = low;
  if (exact) {
    std::uint32_t from = 0;  // of the complements
    std::uint32_t below = 0;
    row.visit(group, [&](float value) {
      const std::uint32_t key = core::score_key(value, metric::inner_product);
      if (key >= border.from) from = max(from, ~key);
      if (key < border.from) below = max(below, key);
    });
    kth = ~group.largest(from);
    next = group.largest(below);
  }
  float lower = core::from_ascending_key(least);
  float upper = core::from_ascending_key(most);
  if (bisect(stop, core::from_ascending_key(kth), core::from_ascending_key(next), lower, upper)) return border;
  const std::uint32_t lower_key = core::ascending_key(lower);
  return {stop.by_count ? lower_key : core::ascending_key(upper), lower_key};
}

/// What stays the same for all rows of a request.
struct search_plan {
  int k;
  float deviations;  // where the border of normal data lies, in standard deviations above the mean
  float density;     // of such data there: values a standard deviation
  float reach;       // how many values a guess of the border is off, at most
  early_stop stop;
};

inline search_plan search_plan_of(const core::top_k_request& request) {
  const auto cols = static_cast<double>(request.matrix.cols);
  const double share = (static_cast<double>(request.options.k) + 0.5) / (cols + 1.0);
  const double deviations = core::upper_quantile(share);
  return {static_cast<int>(request.options.k), static_cast<float>(deviations),
          static_cast<float>(cols * core::normal_density(deviations)),
          kReach * std::sqrt(static_cast<float>(request.options.k)) + kReach, early_stop_of(request.options)};
}

constexpr float kLearning = 0.25f;        // weight of the last row
constexpr float kLearningSlope = 0.125f;  // the same, of how close values lie
constexpr float kSteepest = 3.0f;         // change that one row may tell
constexpr float kMostSlope = 8.0f;        // of its logarithm: beyond lie ties, and maps that overflow
constexpr float kFarthest =
    1e20f;  // of a map's offset: finite, too, when the bracket's map makes it 2^28 times as large

/// What a group has learned from its rows so far.
struct row_shape {
  float border;        // in standard deviations from the mean
  float slope = 1.0f;  // how close the values around it lie, over how close those of normal data do
  float scale = 1.0f;  // how many values a unit around it has
  float at = 0.0f;     // where borders are
  bool steady =
      false;  // the last rows' were there too, those of all groups in step: the next rows' shape is not looked at
  bool tied = false;  // they were numbers that many share
};

constexpr int kCountedSteps = 8;      // of Algorithm 2: more of them cost more than the exact border does
constexpr float kCountedEps = 2e-3f;  // of Algorithm 1: less takes more steps

/// An early stop by counting its midpoints. All that run in step call it.
/// @param settled whether the marks are right: a row that holds NaN or an infinity takes the exact path.
template <int Values, class Stored, class Group>
__device__ __forceinline__ row_marks<typename row_share<Stored, Values>::bits> count_midpoints(
    Group& group, const search_plan& plan, const staged_row<Stored>& row, const row_share<Stored, Values>& share,
    bool& settled) {
  using bits = typename row_share<Stored, Values>::bits;
  constexpr bool kHeld = Values <= 32;  // in registers; read anew for every step where they are too many
  float values[kHeld ? Values : 1];
  if constexpr (kHeld) share.visit_all([&](unsigned v, float value) { values[v] = value; });
  const auto each = [&](auto f) {
    if constexpr (kHeld) {
#pragma unroll
      for (unsigned v = 0; v < Values; v++) f(v, values[v]);
    } else {
      share.visit_all(f);
    }
  };
  float lower = INFINITY;
  float upper = -INFINITY;
  float odd = 0.0f;
  each([&](unsigned, float value) {
    lower = fminf(lower, value);
    upper = fmaxf(upper, value);
    odd = __fmaf_rn(value, 0.0f, odd);
  });
  if (share.present() != share.kEvery) odd = share.odd();
  lower = -group.largest(-lower);
  upper = group.largest(upper);
  const bool takes_all = row.count <= plan.k;
  settled = isfinite(group.sum(odd)) || takes_all;
  const float width = __fmul_rn(plan.stop.eps, fabsf(upper));
  bool open = settled && !takes_all;
#pragma unroll 1
  for (int step = 0;; step++) {
    const float middle = midpoint(lower, upper);
    open = open && (plan.stop.by_count ? step < plan.stop.max_iter
                                       : __fsub_rn(upper, lower) > width && lower < middle && middle < upper);
    if (group.all(!open)) break;
    float count = 0.0f;
    each([&](unsigned, float value) { count += value >= middle ? 1.0f : 0.0f; });
    const auto reached = static_cast<int>(group.sum_count(count));
    if (open && plan.stop.by_eps && reached == plan.k) {
      lower = upper = middle;
      open = false;
    } else if (open) {
      (reached < plan.k ? upper : lower) = middle;
    }
  }
  row_marks<bits> marks;
  const float from = plan.stop.by_count ? lower : upper;
  each([&](unsigned v, float value) { marks.sure |= value >= from ? bits{1} << v : bits{0}; });
  if (!group.all(from == lower))
    each([&](unsigned v, float value) { marks.fill |= value >= lower ? bits{1} << v : bits{0}; });
  marks.fill &= ~marks.sure;
  if (takes_all) marks = {share.present(), 0};
  return marks;
}

/// Marks the k best of a row, if 16-bit numbers settle it. All that run in step call it.
/// @tparam Plain no early stop is asked, and k is below the count. @param settled whether the marks are right; a row of
/// no more than k columns always is. @param learns whether to learn how close values lie, which changes slowly.
template <int Values, bool Plain, class Stored, class Group>
__device__ __forceinline__ row_marks<typename row_share<Stored, Values>::bits> search_row(
    Group& group, const search_plan& plan, const staged_row<Stored>& row, const row_share<Stored, Values>& share,
    row_shape& shape, bool learns, bool& settled) {
  using kind = thread_numbers<Stored, Values>;
  if (!Plain &&
      (plan.stop.by_count ? plan.stop.max_iter <= kCountedSteps : plan.stop.by_eps && plan.stop.eps >= kCountedEps))
    return count_midpoints<Values>(group, plan, row, share, settled);
  const bool takes_all = !Plain && row.count <= plan.k;
  kind numbers;
  const auto look = [&] {
    float mean = 0.0f;
    float variance = 0.0f;
    if constexpr (Group::kHasRoom) {
      share.moments(group, mean, variance);
    } else {
      const float2 moments = moments_of<Stored, Values>(group, row, group.rank());
      group.sync();
      mean = moments.x;
      variance = moments.y;
    }
    if (isfinite(mean) && isfinite(variance)) {  // else squares overflow, and the row before must do
      constexpr float kLeast = 9.5e-7f;          // of the mean's square: rounding leaves less of a constant row
      variance = fmaxf(variance, fmaxf(mean * mean * kLeast, 1e-30f));
      const float each = rsqrtf(variance);
      shape.scale = plan.density * shape.slope * each;
      shape.at = __fmaf_rn(shape.border, variance * each, row.negated ? -mean : mean);
    }
  };
  float at = 0.0f;      // where the search begins, as a number
  float offset = 0.0f;  // of fp32 numbers
  float beyond = 0.0f;
  const auto wanted = static_cast<float>(plan.k);
  if constexpr (!kind::kMapped) share.read(numbers, 1.0f, 0.0f);
  bool steady = shape.steady;
  const bool was_tied = Group::kHasRoom && shape.tied;
  const float before = shape.at;
  number_border border;
#pragma unroll 1
  for (;;) {
    if (!steady) look();
    if constexpr (kind::kMapped) {
      offset = -shape.at * shape.scale;
      share.read(numbers, row.negated ? -shape.scale : shape.scale, offset);
      if (was_tied) at = kind::rounded(__fmaf_rn(shape.at, shape.scale, offset));  // what the tie became
    } else {
      at = kind::rounded(shape.at);
    }
    beyond = group.sum_count(numbers.count_from(at)) - wanted;
    if (was_tied) {  // as before: more than k reach it, fewer what lies above?
      border.above = kind::next_above(at);
      const float reach_more = group.sum_count(numbers.count_from(border.above));
      border.tied = beyond > 0.0f && reach_more < wanted;
      if (group.all(border.tied)) break;
      border.tied = false;
    }
    if (!steady || group.all(takes_all || fabsf(beyond) <= plan.reach)) break;
    steady = false;
  }
  const auto zoom = [&](float center, float factor) {
    const float sharper = shape.scale * factor;
    if constexpr (kind::kMapped) share.read(numbers, row.negated ? -sharper : sharper, (offset - center) * factor);
  };
  const bool usable = !takes_all && fabsf(offset) < kFarthest;  // else numbers might become NaN
  const float each = near_reciprocal(shape.scale);              // from one value to the next
  const float step = kind::kMapped ? 1.0f : fmaxf(each, kind::grid_at(at));
  if (was_tied && group.all(border.tied)) {
    border.found = true;
    border.from = border.plain = at;
  } else {
    border = find_border(group, numbers, plan.k, at, beyond, step, plan.reach, usable, zoom);
  }
  settled = takes_all || border.found;
  const float moved = (border.plain - at) * (kind::kMapped ? 1.0f : shape.scale);  // in values
  const float found_at = __fmaf_rn(moved, each, shape.at);
  shape.steady = group.all(takes_all || (border.found && fabsf(found_at - before) * shape.scale < 0.5f * plan.reach));
  if (border.found) {
    if (!steady) {
      const float most = plan.density * shape.slope;
      shape.border = __fmaf_rn(kLearning * fminf(most, fmaxf(-most, moved)), near_reciprocal(most), shape.border);
      shape.at = found_at;
    } else if (!was_tied || !border.tied) {
      shape.at = __fmaf_rn(kLearning * moved, each, shape.at);
    }
    if (learns && !border.tied) {
      const float steeper = (fabsf(beyond) + 1.0f) * near_reciprocal(fabsf(moved) + 1.0f);
      const float change = __fmaf_rn(kLearningSlope, fminf(kSteepest, steeper) - 1.0f, 1.0f);
      if (fabsf(__log2f(shape.slope * change)) < kMostSlope) {
        shape.slope *= change;
        shape.scale *= change;
      }
    }
  }

  row_marks<typename row_share<Stored, Values>::bits> marks;
  if (border.found) marks.sure = share.marks_from(numbers, border.tied ? border.above : border.from);
  if (takes_all) marks.sure = share.present();
  marks.chosen = takes_all || (border.found && !border.tied);
  float tie = 0.0f;
  shape.tied = false;
  if (!group.all(!border.tied)) {
    if (border.tied) marks.fill = share.marks_from(numbers, border.from) & ~marks.sure;
    if constexpr (kind::kMapped) {  // are those that fp16 cannot tell apart equal?
      tie = group.largest(marks.fill ? share.first_of(marks.fill) : -INFINITY);
      const bool equal = group.largest((marks.fill & ~share.marks_equal(tie)) != 0 ? 1.0f : 0.0f) == 0.0f;
      if (border.tied) settled = equal;
    } else {
      tie = border.from;
    }
    if constexpr (Group::kHasRoom) {
      shape.tied = group.all(border.tied && settled);
      if (shape.tied) shape.at = tie;
    }
  }
  if constexpr (Plain) return marks;
  if (!plan.stop.asked()) return marks;

  const row_facts mine = share.facts(marks.sure);
  float lower = -group.largest(-mine.least);
  float upper = group.largest(mine.most);
  float kth = -group.largest(-mine.kth);
  float next = plan.stop.by_count ? 0.0f : group.largest(mine.next);
  if (border.tied) kth = next = tie;
  const bool odd = !isfinite(group.sum(mine.odd));
  const bool exact = takes_all || !settled || odd || bisect(plan.stop, kth, next, lower, upper);
  if (group.all(exact)) return marks;
  const auto stopped = share.marks_between(lower, plan.stop.by_count ? lower : upper);
  if (!exact) marks = stopped;
  return marks;
}

}  // namespace shortlist::cuda
