// The search for the k best of a row that lies in shared memory, by a group of threads; each marks those of its
// columns.
//
// Steps: mean and deviation -> fp16 numbers in registers, counted until k reach a threshold (row_halves.cuh) -> marks.
// Rows that this does not settle (NaN, infinities, values that fp16 cannot tell apart) are searched by their 32-bit
// keys, counted in shared memory. Either way the result is two sets, told apart by bits: those that are sure, and those
// that fill up what is missing, in the order of columns.
//
// A thread has `Values` neighbouring columns, so that the order of threads is the order of columns. It reads them in
// units of four, each thread beginning elsewhere: else all would read the same banks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/normal.hpp"
#include "cuda/top_k/row_halves.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {

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

template <class Stored>
__device__ __forceinline__ float4 four_values(const unsigned char* at) {
  if constexpr (sizeof(Stored) == 4) {
    return *reinterpret_cast<const float4*>(at);
  } else {
    const uint2 words = *reinterpret_cast<const uint2*>(at);
    if constexpr (std::is_same_v<Stored, bfloat16>) {
      return {core::float_from_bits(words.x << 16), core::float_from_bits(words.x & 0xFFFF0000u),
              core::float_from_bits(words.y << 16), core::float_from_bits(words.y & 0xFFFF0000u)};
    } else {
      __half2 first;
      __half2 second;
      memcpy(&first, &words.x, sizeof first);
      memcpy(&second, &words.y, sizeof second);
      return {__low2float(first), __high2float(first), __low2float(second), __high2float(second)};
    }
  }
}

/// Two sets of a thread's columns, a bit for each, in the order that the thread reads them.
template <class Bits>
struct row_marks {
  Bits sure = 0;
  Bits fill = 0;
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

/// A thread's columns of a row.
template <class Stored, int Values>
class row_share {
 public:
  using bits = std::conditional_t<(Values > 32), std::uint64_t, std::uint32_t>;
  static constexpr unsigned kUnits = Values / 4;
  static constexpr bits kEvery = ~bits{0} >> (sizeof(bits) * 8 - Values);
  static constexpr unsigned kSampled = Values < 32 ? 1 : Values / 16;  // one unit of so many tells the row's shape

  __device__ __forceinline__ row_share(const staged_row<Stored>& row, int rank)
      : row_(row), first_(rank * Values - row.lead) {
    // The first units of threads that read together lie in different banks.
    constexpr unsigned kApart = sizeof(Stored) == 4 ? 32 : 64;
    const auto r = static_cast<unsigned>(rank);
    turn_ = (Values >= kApart ? r : r * Values / kApart) % kUnits;
  }

  /// May be negative: the columns that are not there, before or behind the row, are never marked.
  __device__ __forceinline__ int first_column() const { return first_; }

  /// Mean and deviation, from a sample; columns that are not there count as 0.
  template <class Group>
  __device__ __forceinline__ void moments(Group& group, float& mean, float& variance) const {
    float sums[2] = {0.0f, 0.0f};
    float squares[2] = {0.0f, 0.0f};
    const bool all = whole();
#pragma unroll
    for (unsigned i = 0; i < kUnits; i += kSampled) {
      float4 four = unit(i);
      if (!all) {
        four = {has(4 * i) ? four.x : 0.0f, has(4 * i + 1) ? four.y : 0.0f, has(4 * i + 2) ? four.z : 0.0f,
                has(4 * i + 3) ? four.w : 0.0f};
      }
      sums[0] += four.x + four.z;
      sums[1] += four.y + four.w;
      squares[0] = __fmaf_rn(four.x, four.x, squares[0]);
      squares[1] = __fmaf_rn(four.y, four.y, squares[1]);
      squares[0] = __fmaf_rn(four.z, four.z, squares[0]);
      squares[1] = __fmaf_rn(four.w, four.w, squares[1]);
    }
    const float each = kSampled * near_reciprocal(static_cast<float>(row_.count));
    mean = group.sum(sums[0] + sums[1]) * each;
    variance = group.sum(squares[0] + squares[1]) * each - mean * mean;
  }

  __device__ __forceinline__ void map(thread_halves<Values>& halves, float scale, float offset) const {
    constexpr int kPairs = thread_halves<Values>::kPairs;
    const auto mapped = [&](float value) { return __fmaf_rn(value, scale, offset); };
#pragma unroll
    for (int at = 0; at < Values / 2; at += 4) {
      const int v = at / kPairs * 2 * kPairs + at % kPairs;
      const float4 low = unit(v / 4);
      const float4 high = unit((v + kPairs) / 4);
      halves.set(at, mapped(low.x), mapped(high.x));
      halves.set(at + 1, mapped(low.y), mapped(high.y));
      halves.set(at + 2, mapped(low.z), mapped(high.z));
      halves.set(at + 3, mapped(low.w), mapped(high.w));
    }
    if (!whole()) {
#pragma unroll
      for (int v = 0; v < Values; v++)
        if (!has(static_cast<unsigned>(v))) halves.drop(v);
    }
  }

  __device__ __forceinline__ bits marks_from(const thread_halves<Values>& halves, float from) const {
    const __half2 threshold = __float2half2_rn(from);
    bits marks = halves.marks_from(threshold, 0);
    if constexpr (Values > 32) marks |= static_cast<bits>(halves.marks_from(threshold, 1)) << (Values / 2);
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
  /// The least and the largest of the marked values; NaN is none of them.
  __device__ __forceinline__ void range_of(bits marks, float& least, float& most) const {
    least = INFINITY;
    most = -INFINITY;
    visit([&](unsigned v, float value) {
      const bool marked = marks >> v & 1;
      least = fminf(least, marked ? value : INFINITY);
      most = fmaxf(most, marked ? value : -INFINITY);
    });
  }
  /// What an early stop needs to know of a thread's columns, of which `sure` are among the k best.
  __device__ __forceinline__ row_facts facts(bits sure) const {
    row_facts all;
    const bits there = present();
    visit([&](unsigned v, float value) {
      const bool is_sure = sure >> v & 1;
      if (!whole() && !(there >> v & 1)) return;
      all.least = fminf(all.least, value);
      all.most = fmaxf(all.most, value);
      all.kth = fminf(all.kth, is_sure ? value : INFINITY);
      all.next = fmaxf(all.next, is_sure ? -INFINITY : value);
      all.odd = __fmaf_rn(value, 0.0f, all.odd);
    });
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
    visit([&](unsigned v, float value) {
      if (value >= from) marks.sure |= bits{1} << v;
      if (value >= fill_from) marks.fill |= bits{1} << v;
    });
    const bits there = present();
    return {marks.sure & there, marks.fill & ~marks.sure & there};
  }
  /// The columns that are there.
  __device__ __forceinline__ bits present() const {
    const auto below = [](int column) { return column >= Values ? kEvery : (bits{1} << max(column, 0)) - 1; };
    return turned(below(row_.count - first_) & ~below(-first_), turn_ == 0 ? 0 : kUnits - turn_);
  }
  /// Bit i then stands for column first_column() + i.
  __device__ __forceinline__ bits ascending(bits marks) const { return turned(marks, turn_); }

 private:
  static __device__ __forceinline__ bits turned(bits marks, unsigned units) {
    if constexpr (Values == 32) {
      return __funnelshift_l(marks, marks, 4 * units);
    } else {
      if (units == 0) return marks;
      return (marks << (4 * units) | marks >> (Values - 4 * units)) & kEvery;
    }
  }
  __device__ __forceinline__ bool whole() const { return first_ >= 0 && first_ + Values <= row_.count; }
  __device__ __forceinline__ bool has(unsigned v) const {
    const unsigned column = static_cast<unsigned>(first_) + unit_at(v / 4) * 4 + v % 4;
    return column < static_cast<unsigned>(row_.count);
  }
  __device__ __forceinline__ float4 unit(unsigned i) const {
    constexpr int kSize = static_cast<int>(sizeof(Stored));
    return four_values<Stored>(row_.bytes + first_ * kSize + static_cast<int>(unit_at(i)) * (4 * kSize));
  }
  /// Which of a thread's units, in the order of columns, it reads as its i-th.
  __device__ __forceinline__ unsigned unit_at(unsigned i) const {
    const unsigned at = i + turn_;
    if constexpr ((kUnits & (kUnits - 1)) == 0) return at & (kUnits - 1);
    return at < kUnits ? at : at - kUnits;
  }
  template <class F>
  __device__ __forceinline__ void visit(F f) const {
#pragma unroll
    for (unsigned i = 0; i < kUnits; i++) {
      const float4 four = unit(i);
      const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (unsigned c = 0; c < 4; c++) f(4 * i + c, row_.negated ? -values[c] : values[c]);
    }
  }

  const staged_row<Stored>& row_;
  int first_;
  unsigned turn_;
};

__device__ __forceinline__ int count_marks(std::uint32_t marks) { return __popc(marks); }
__device__ __forceinline__ int count_marks(std::uint64_t marks) { return __popcll(marks); }

// What few rows need is not inlined, and is given copies: what the search of other rows holds stays in registers.

template <class Stored, int Values>
__device__ __noinline__ row_marks<typename row_share<Stored, Values>::bits> marks_by_key(staged_row<Stored> row,
                                                                                         int rank, key_border border) {
  return row_share<Stored, Values>(row, rank).marks_of(border);
}
/// The least and the largest of a thread's marked values.
template <class Stored, int Values>
__device__ __noinline__ float2 range_of_marked(staged_row<Stored> row, int rank,
                                               typename row_share<Stored, Values>::bits marks) {
  float2 range;
  row_share<Stored, Values>(row, rank).range_of(marks, range.x, range.y);
  return range;
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
__device__ __forceinline__ Bits choose(Group& group, row_marks<Bits> marks, int k, int& place) {
  int sure = 0;
  const int sure_before = group.before(count_marks(marks.sure), sure);
  place = sure_before;
  if (group.all(sure == k)) return marks.sure;
  marks.sure = keep_first(marks.sure, k - sure_before);
  int fill = 0;
  const int fill_before = group.before(count_marks(marks.fill), fill);
  const int missing = max(k - sure, 0);
  marks.fill = keep_first(marks.fill, missing - fill_before);
  place = min(sure_before, k) + min(fill_before, missing);
  return marks.sure | marks.fill;
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

constexpr float kLearning = 0.25f;  // weight of the last row
constexpr float kFarthest =
    1e20f;  // of a map's offset: finite, too, when the bracket's map makes it 2^28 times as large

/// What a group has learned from its rows so far.
struct row_shape {
  float border;         // in standard deviations from the mean
  float scale = 1.0f;   // of the last map
  float at = 0.0f;      // where borders are
  bool steady = false;  // the last row's was there too: the next row's shape need not be looked at
};

constexpr int kCountedSteps = 12;     // of Algorithm 2: more of them cost more than the exact border does
constexpr float kCountedEps = 1e-7f;  // of Algorithm 1: less, and rows of ties take a step for each bit of a number

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
    std::uint32_t count = 0;
    each([&](unsigned, float value) { count += value >= middle ? 1u : 0u; });
    const auto reached = static_cast<int>(group.sum(count));
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

/// Marks the k best of a row, if fp16 numbers settle it. All that run in step call it. Plain: no early stop is asked.
/// @param settled whether the marks are right; a row of no more than k columns always is.
template <int Values, bool Plain, class Stored, class Group>
__device__ __forceinline__ row_marks<typename row_share<Stored, Values>::bits> search_halves(
    Group& group, const search_plan& plan, const staged_row<Stored>& row, const row_share<Stored, Values>& share,
    row_shape& shape, bool& settled) {
  if (!Plain &&
      (plan.stop.by_count ? plan.stop.max_iter <= kCountedSteps : plan.stop.by_eps && plan.stop.eps >= kCountedEps))
    return count_midpoints<Values>(group, plan, row, share, settled);
  const bool takes_all = row.count <= plan.k;
  bool steady = Group::kHasRoom && group.all(shape.steady);
  thread_halves<Values> halves;
  float at = shape.at;
  const auto look = [&] {
    float mean = 0.0f;
    float variance = 0.0f;
    share.moments(group, mean, variance);
    if (isfinite(mean) && isfinite(variance)) {  // else NaN or infinities are there, and the row before must do
      constexpr float kLeast = 9.5e-7f;          // of the mean's square: rounding leaves less of a constant row
      variance = fmaxf(variance, fmaxf(mean * mean * kLeast, 1e-30f));
      const float each = rsqrtf(variance);
      shape.scale = plan.density * each;
      at = __fmaf_rn(shape.border, variance * each, row.negated ? -mean : mean);
    }
  };
  const auto map_and_count = [&] {
    share.map(halves, row.negated ? -shape.scale : shape.scale, -at * shape.scale);
    return group.sum(halves.count_from(__float2half2_rn(0.0f))) - static_cast<float>(plan.k);
  };
  if (!steady) look();
  float beyond = map_and_count();
  if constexpr (Group::kHasRoom) {
    if (steady && !group.all(takes_all || fabsf(beyond) <= plan.reach)) {
      steady = false;
      look();
      beyond = map_and_count();
    }
  }
  const float offset = -at * shape.scale;
  const auto zoom = [&](float center, float factor) {
    const float sharper = shape.scale * factor;
    share.map(halves, row.negated ? -sharper : sharper, (offset - center) * factor);
  };
  const bool usable = !takes_all && fabsf(offset) < kFarthest;  // else numbers might become NaN
  const half_border border = find_border(group, halves, plan.k, plan.reach, beyond, usable, zoom);
  settled = takes_all || border.found;
  if (border.found) {
    if (!steady) {
      const float moved = fminf(plan.density, fmaxf(-plan.density, border.moved));
      shape.border = __fmaf_rn(kLearning * moved, near_reciprocal(plan.density), shape.border);
    }
    const float found_at = __fmaf_rn(border.moved, near_reciprocal(shape.scale), at);
    if constexpr (Group::kHasRoom) {
      const float off = found_at - shape.at;
      shape.steady = fabsf(off) * shape.scale < 0.5f * plan.reach;
      shape.at = shape.steady ? __fmaf_rn(kLearning, off, shape.at) : found_at;
    } else {
      shape.at = found_at;
    }
  } else if (!takes_all) {
    shape.steady = false;
  }

  row_marks<typename row_share<Stored, Values>::bits> marks;
  if (border.found) marks.sure = share.marks_from(halves, border.tied ? border.above : border.from);
  if (takes_all) marks.sure = share.present();
  float tie = 0.0f;
  if (!group.all(!border.tied)) {  // are those that fp16 cannot tell apart equal?
    if (border.tied) marks.fill = share.marks_from(halves, border.from) & ~marks.sure;
    const float2 range = range_of_marked<Stored, Values>(row, group.rank(), marks.fill);
    tie = group.largest(range.y);
    const bool equal = -group.largest(-range.x) == tie;
    if (border.tied) settled = equal;
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
