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
struct staged_row {
  const unsigned char* bytes;
  int count;
  value_type type;  // not f64
  bool negated;     // the smallest are best

  template <class Stored>
  __device__ __forceinline__ float at(int column) const {
    const float value = core::widen(reinterpret_cast<const Stored*>(bytes)[column]);
    return negated ? -value : value;
  }
  __device__ __forceinline__ float value(int column) const {
    if (type == value_type::f32) return at<float>(column);
    return type == value_type::f16 ? at<float16>(column) : at<bfloat16>(column);
  }
  /// Calls f(value) for each of a thread's columns, all threads of the group together for all columns.
  template <class Group, class F>
  __device__ __forceinline__ void visit(const Group& group, F f) const {
    if (type == value_type::f32) return visit_as<float>(group, f);
    return type == value_type::f16 ? visit_as<float16>(group, f) : visit_as<bfloat16>(group, f);
  }

 private:
  template <class Stored, class Group, class F>
  __device__ __forceinline__ void visit_as(const Group& group, F f) const {
#pragma unroll 4
    for (int c = group.rank(); c < count; c += Group::kThreads) f(at<Stored>(c));
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

/// A thread's columns of a row.
template <int Values>
class row_share {
 public:
  using bits = std::conditional_t<(Values > 32), std::uint64_t, std::uint32_t>;
  static constexpr int kUnits = Values / 4;

  __device__ __forceinline__ row_share(const staged_row& row, int rank) : row_(row), first_(rank * Values) {
    // The first units of threads that read together lie in different banks.
    const int apart = row.type == value_type::f32 ? 32 : 64;
    turn_ = (Values >= apart ? rank : rank * Values / apart) % kUnits;
  }

  __device__ __forceinline__ int first_column() const { return first_; }
  __device__ __forceinline__ int column_of(int v) const { return first_ + (v / 4 + turn_) % kUnits * 4 + v % 4; }
  __device__ __forceinline__ bool has(int v) const { return column_of(v) < row_.count; }
  __device__ __forceinline__ bool whole() const { return first_ + Values <= row_.count; }

  /// Sums of the values, and of the squares of every other one; columns that are not there count as 0.
  template <class Group>
  __device__ __forceinline__ void moments(Group& group, float& mean, float& deviation) const {
    float sums[2] = {0.0f, 0.0f};
    float squares[2] = {0.0f, 0.0f};
    const auto add = [&](const float4& unit) {
      sums[0] += unit.x + unit.z;
      sums[1] += unit.y + unit.w;
      squares[0] = __fmaf_rn(unit.x, unit.x, squares[0]);
      squares[1] = __fmaf_rn(unit.z, unit.z, squares[1]);
    };
    if (whole()) {
      visit([&](int, const float4& unit) { add(unit); });
    } else {
      visit([&](int v, const float4& unit) {
        add({has(v) ? unit.x : 0.0f, has(v + 1) ? unit.y : 0.0f, has(v + 2) ? unit.z : 0.0f,
             has(v + 3) ? unit.w : 0.0f});
      });
    }
    const float each = 1.0f / static_cast<float>(row_.count);
    mean = group.sum(sums[0] + sums[1]) * each;
    const float square = group.sum(squares[0] + squares[1]) * (2.0f * each);
    deviation = sqrtf(fmaxf(square - mean * mean, 0.0f));
  }

  __device__ __forceinline__ void map(thread_halves<Values>& halves, float scale, float offset) const {
    if (row_.negated) scale = -scale;
    if (row_.type == value_type::f32) {
      map_as<float>(halves, scale, offset);
    } else if (row_.type == value_type::f16) {
      map_as<float16>(halves, scale, offset);
    } else {
      map_as<bfloat16>(halves, scale, offset);
    }
    if (!whole()) {
#pragma unroll
      for (int v = 0; v < Values; v++)
        if (!has(v)) halves.drop(v);
    }
  }

  __device__ __forceinline__ bits marks_from(const thread_halves<Values>& halves, float from) const {
    const __half2 threshold = __float2half2_rn(from);
    bits marks = halves.marks_from(threshold, 0);
    if constexpr (Values > 32) marks |= static_cast<bits>(halves.marks_from(threshold, 1)) << 32;
    return marks;
  }
  __device__ __forceinline__ row_marks<bits> marks_of(const key_border& border) const {
    row_marks<bits> marks;
    visit([&](int v, const float4& unit) {
      const float values[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const std::uint32_t key = core::score_key(row_.negated ? -values[c] : values[c], metric::inner_product);
        const bits own = bits{1} << (v + c);
        if (!has(v + c)) continue;
        if (key >= border.from) {
          marks.sure |= own;
        } else if (key >= border.fill_from) {
          marks.fill |= own;
        }
      }
    });
    return marks;
  }
  /// The least and the largest of the marked values.
  __device__ __forceinline__ void range_of(bits marks, float& least, float& most) const {
    least = INFINITY;
    most = -INFINITY;
    visit([&](int v, const float4& unit) {
      const float values[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const float value = row_.negated ? -values[c] : values[c];
        if (marks >> (v + c) & 1) {
          least = fminf(least, value);
          most = fmaxf(most, value);
        }
      }
    });
  }
  /// The columns that are there.
  __device__ __forceinline__ bits present() const {
    const int there = min(max(row_.count - first_, 0), Values);
    const bits ascending = there == Values ? ~bits{0} >> (sizeof(bits) * 8 - Values) : (bits{1} << there) - 1;
    return turned(ascending, (kUnits - turn_) % kUnits);
  }
  /// Bit i then stands for column first_column() + i.
  __device__ __forceinline__ bits ascending(bits marks) const { return turned(marks, turn_); }

 private:
  static __device__ __forceinline__ bits turned(bits marks, int units) {
    if (units == 0) return marks;
    return (marks << (4 * units) | marks >> (Values - 4 * units)) & (~bits{0} >> (sizeof(bits) * 8 - Values));
  }
  template <class Stored>
  __device__ __forceinline__ float4 unit(int i) const {
    return four_values<Stored>(row_.bytes + (first_ + (i + turn_) % kUnits * 4) * static_cast<int>(sizeof(Stored)));
  }
  template <class F>
  __device__ __forceinline__ void visit(F f) const {
    if (row_.type == value_type::f32) {
      visit_as<float>(f);
    } else if (row_.type == value_type::f16) {
      visit_as<float16>(f);
    } else {
      visit_as<bfloat16>(f);
    }
  }
  template <class Stored, class F>
  __device__ __forceinline__ void visit_as(F f) const {
#pragma unroll
    for (int i = 0; i < kUnits; i++) f(4 * i, unit<Stored>(i));
  }
  template <class Stored>
  __device__ __forceinline__ void map_as(thread_halves<Values>& halves, float scale, float offset) const {
    constexpr int kPairs = thread_halves<Values>::kPairs;
    const auto mapped = [&](float value) { return __fmaf_rn(value, scale, offset); };
#pragma unroll
    for (int at = 0; at < Values / 2; at += 4) {
      const int v = at / kPairs * 2 * kPairs + at % kPairs;
      const float4 low = unit<Stored>(v / 4);
      const float4 high = unit<Stored>((v + kPairs) / 4);
      halves.set(at, mapped(low.x), mapped(high.x));
      halves.set(at + 1, mapped(low.y), mapped(high.y));
      halves.set(at + 2, mapped(low.z), mapped(high.z));
      halves.set(at + 3, mapped(low.w), mapped(high.w));
    }
  }

  const staged_row& row_;
  int first_;
  int turn_;
};

/// The first `quota` of the marked columns; marks are ascending.
template <class Bits>
__device__ __forceinline__ Bits keep_first(Bits marks, int quota) {
  int extra = __popcll(marks) - max(quota, 0);
  for (; extra > 0; extra--) marks &= ~(Bits{1} << (63 - __clzll(static_cast<long long>(marks))));
  return marks;
}

/// Of the sets that threads marked, in ascending columns: the first k that are sure, then the first that fill up.
/// @param place where the thread's first one goes among the row's. All that run in step call it.
template <class Group, class Bits>
__device__ __forceinline__ Bits choose(Group& group, row_marks<Bits> marks, int k, int& place) {
  int sure = 0;
  const int sure_before = group.before(__popcll(marks.sure), sure);
  place = sure_before;
  if (group.all(sure == k)) return marks.sure;
  marks.sure = keep_first(marks.sure, k - sure_before);
  int fill = 0;
  const int fill_before = group.before(__popcll(marks.fill), fill);
  const int missing = max(k - sure, 0);
  marks.fill = keep_first(marks.fill, missing - fill_before);
  place = min(sure_before, k) + min(fill_before, missing);
  return marks.sure | marks.fill;
}

constexpr int kKeyGuesses = 8;  // passes that interpolate between values; later ones halve brackets of keys

/// The border of any row, by counting its keys; one row at a time, all threads of the group together.
/// @param k in [1, row.count]. @param deviations where the border of normal data lies, from the mean.
template <class Group>
__device__ __noinline__ key_border find_border_by_keys(Group& group, const staged_row& row, int k, float deviations,
                                                       const early_stop& stop) {
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
  early_stop stop;
};

inline search_plan search_plan_of(const core::top_k_request& request) {
  const auto cols = static_cast<double>(request.matrix.cols);
  const double share = (static_cast<double>(request.options.k) + 0.5) / (cols + 1.0);
  const double deviations = core::upper_quantile(share);
  return {static_cast<int>(request.options.k), static_cast<float>(deviations),
          static_cast<float>(cols * core::normal_density(deviations)), early_stop_of(request.options)};
}

/// Marks the k best of a row, if fp16 numbers settle it.
/// @param learned in deviations; moves to where borders of this thread's rows lie.
/// @param settled whether `marks` are right. All that run in step call it.
template <int Values, class Group>
__device__ __forceinline__ row_marks<typename row_share<Values>::bits> search_halves(Group& group,
                                                                                     const search_plan& plan,
                                                                                     const staged_row& row,
                                                                                     const row_share<Values>& share,
                                                                                     float& learned, bool& settled) {
  float mean = 0.0f;
  float deviation = 0.0f;
  share.moments(group, mean, deviation);
  const float scale = plan.density / deviation;
  const float at = __fmaf_rn(learned, deviation, row.negated ? -mean : mean);
  const bool takes_all = row.count <= plan.k;
  const bool usable = !takes_all && isfinite(mean) && scale > 0.0f && isfinite(scale);
  thread_halves<Values> halves;
  share.map(halves, scale, -at * scale);
  const half_border border = find_border(group, halves, plan.k, usable);
  settled = takes_all || border.found;
  if (border.found && fabsf(border.from) < plan.density) learned += 0.125f * border.from / plan.density;

  row_marks<typename row_share<Values>::bits> marks;
  if (border.found) marks.sure = share.marks_from(halves, border.tied ? border.above : border.from);
  if (takes_all) marks.sure = share.present();
  float tie = 0.0f;
  if (!group.all(!border.tied)) {  // are those that fp16 cannot tell apart equal?
    if (border.tied) marks.fill = share.marks_from(halves, border.from) & ~marks.sure;
    float least;
    float most;
    share.range_of(marks.fill, least, most);
    tie = group.largest(most);
    const bool equal = -group.largest(-least) == tie;
    if (border.tied) settled = equal;
  }
  if (!plan.stop.asked()) return marks;

  float least;
  float most;
  share.range_of(share.present(), least, most);
  float lower = -group.largest(-least);
  float upper = group.largest(most);
  share.range_of(marks.sure, least, most);
  float kth = -group.largest(-least);
  share.range_of(share.present() & ~marks.sure, least, most);
  float next = group.largest(most);
  if (border.tied) kth = next = tie;
  const bool exact = takes_all || !settled || bisect(plan.stop, kth, next, lower, upper);
  if (group.all(exact)) return marks;
  const std::uint32_t lower_key = core::ascending_key(lower);
  const row_marks<typename row_share<Values>::bits> stopped =
      share.marks_of({plan.stop.by_count ? lower_key : core::ascending_key(upper), lower_key});
  if (!exact) marks = stopped;
  return marks;
}

}  // namespace shortlist::cuda
