// A thread's columns of a row that lies in shared memory: read as numbers or as values, and marked by bits.
//
// A thread has `Values` neighbouring columns, so that the order of threads is the order of columns. It reads them in
// units of 16 bytes, each thread beginning elsewhere where all would read the same banks.
//
// A row may begin within a unit. What is before it in the first thread's first unit is then taken for absent; or, where
// rows are short, the last columns take that place, so that a row needs no more threads wherever it begins.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/device/shared_memory.cuh"
#include "cuda/top_k/mark_bits.cuh"
#include "cuda/top_k/row_numbers.cuh"
#include "cuda/top_k/row_parts.cuh"
#include "cuda/top_k/row_values.cuh"
#include "cuda/top_k/unit_places.cuh"

namespace shortlist::cuda {

/// The keys that are sure are >= from; those in [fill_from, from) fill up.
struct key_border {
  std::uint32_t from;
  std::uint32_t fill_from;
};

/// A thread's columns of a row.
/// @tparam Lanes of a group that holds a row: columns that these have no room for, behind a lead, are read in its
/// place. 0: there is room.
/// @tparam WholeUnits rows begin and end with a unit.
template <class Stored, int Values, bool Keeps = false, int Lanes = 0, bool WholeUnits = false>
class row_share {
 public:
  using stored = Stored;
  using places = unit_places<Stored, Values, Keeps>;
  using bits = typename places::bits;
  static constexpr unsigned kUnit = places::kUnit;
  static constexpr unsigned kUnits = places::kUnits;
  static constexpr bits kEvery = places::kEvery;
  static constexpr int kValues = Values;
  static constexpr bool kWholeUnits = WholeUnits;
  static constexpr unsigned kSampled = Values < 32 ? 1 : Values / 16;  // one unit of so many tells the row's shape

  __device__ __forceinline__ row_share(const staged_row<Stored>& row, int rank, const places& units)
      : row_(row), units_(units), turn_(units.turn()), first_(rank * Values - row.lead), rank_(rank) {
    if constexpr (Lanes > 0) wrapped_ = row.wraps && rank == 0 ? row.lead : 0;
    if constexpr (kForRow) asm volatile("" : "+r"(turn_));  // else all places are kept, in local memory
  }

  /// How many columns the row has.
  __device__ __forceinline__ int columns() const { return row_.count; }
  /// May be negative: the columns that are not there, before or behind the row, are never marked.
  __device__ __forceinline__ int first_column() const { return wraps() ? first_ + row_.lead : first_; }

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
    read_all(numbers, scale, offset);
    if (whole()) return;
    if constexpr (WholeUnits) {
      numbers.keep_units([&](unsigned i) { return has_unit(i); });
      return;
    }
    if constexpr (Lanes > 0) {
      const int gap = kHeld - row_.count;
      if (gap <= static_cast<int>(kUnit)) {  // what is not there is in the row's first unit, or in its last
        const int in_lead = rank_ == 0 ? row_.lead : 0;
        const int before = row_.wraps ? max(in_lead - gap, 0) : 0;
        numbers.set_absent(0, (1u << in_lead) - (1u << before));
        numbers.set_absent(kLastUnit, rank_ == Lanes - 1 ? ~0u << (static_cast<int>(kUnit) + row_.lead - gap) : 0);
        return;
      }
    }
    numbers.keep_only(present());
  }

  /// The same, also of columns that are not there.
  __device__ __forceinline__ void read_all(thread_numbers<Stored, Values>& numbers, float scale, float offset) const {
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
  }

  /// fp32: two a word, also of columns that are not there. Calls f(values) for each unit; not negated.
  template <class Window, class F>
  __device__ __forceinline__ void read_levels(std::uint32_t (&levels)[Values / 2], const Window& window, F f) const {
#pragma unroll
    for (unsigned i = 0; i < kUnits; i++) {
      float values[kUnit];
      widen_unit<Stored>(unit(i), values);
      f(values);
#pragma unroll
      for (unsigned c = 0; c < kUnit; c += 2) levels[(kUnit * i + c) / 2] = window.levels(values[c], values[c + 1]);
    }
  }

  __device__ __forceinline__ bits marks_from(const thread_numbers<Stored, Values>& numbers, float from) const {
    using kind = thread_numbers<Stored, Values>;
    const auto threshold = numbers.twice(from);
    bits marks = numbers.marks_from(threshold, 0);
#pragma unroll
    for (int w = 1; w < kind::kWords; w++)
      marks |= static_cast<bits>(numbers.marks_from(threshold, w)) << (2 * w * kind::kPairs);
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
    const int v = first_mark(marks);
    const int column = first_ + static_cast<int>(units_.number(static_cast<unsigned>(v) / kUnit) * kUnit) +
                       v % static_cast<int>(kUnit);
    return row_.value(wraps() && column < 0 ? column + kHeld : column);
  }
  /// The same of ascending marks.
  __device__ __forceinline__ float first_of_ascending(bits marks) const {
    return row_.value(first_column() + first_mark(marks));
  }
  __device__ __forceinline__ float first_value() const { return row_.value(0); }
  /// All values; in the place of a column that is not there the row's first value.
  __device__ __forceinline__ void read_values(float (&values)[Values]) const {
#pragma unroll
    for (unsigned i = 0; i < kUnits; i++) {
      float of_unit[kUnit];
      widen_unit<Stored>(unit(i), of_unit);
#pragma unroll
      for (unsigned c = 0; c < kUnit; c++) values[kUnit * i + c] = of_unit[c];
    }
    if (row_.negated) {
#pragma unroll
      for (float& value : values) value = -value;
    }
    if (whole()) return;
    const bits there = present();
    const float first = first_value();
#pragma unroll
    for (unsigned v = 0; v < Values; v++) values[v] = there >> v & 1 ? values[v] : first;
  }
  /// Unit by unit: calls f(values), with `absent` in the place of a column that is not there.
  template <class F>
  __device__ __forceinline__ void visit_there(float absent, F f) const {
    const bool all = whole();
    const bits there = all ? kEvery : present();
    visit_units([&](unsigned first, float(&values)[kUnit]) {
      if (!all) {
#pragma unroll
        for (unsigned c = 0; c < kUnit; c++) values[c] = there >> (first + c) & 1 ? values[c] : absent;
      }
      f(values);
    });
  }
  /// Calls f(i, values) for each unit, of columns from i x kUnit on, with the row's first ones in the place of those
  /// that are not there: in a loop, for what few rows need is sooner fetched if it is short.
  template <class F>
  __device__ __forceinline__ void visit_units_by_turns(F f) const {
    static_assert(WholeUnits);
    const std::uint32_t sign = row_.negated ? core::kSignBit : 0u;
    const std::uint32_t row = shared_address(row_.bytes);
    const std::uint32_t own = row + first_ * static_cast<int>(sizeof(Stored));
    constexpr unsigned kStep = kUnits <= 8 ? kUnits : 2;
#pragma unroll kStep
    for (unsigned i = 0; i < kUnits; i++) {
      const unsigned at = units_.number(i);
      const bool there = first_ + static_cast<int>(at * kUnit) < row_.count;
      float values[kUnit];
      widen_unit<Stored>(load_shared<uint4>(there ? own + at * 16 : row), values);
#pragma unroll
      for (float& value : values) value = __uint_as_float(__float_as_uint(value) ^ sign);
      f(at, values);
    }
  }
  /// Calls f(v of the first, values) for each unit, from the last one on, with the row's first value in the place of
  /// columns that are not there; not negated. One way for a warp: two would be gone one after the other.
  template <class F>
  __device__ __forceinline__ void visit_raw(F f) const {
    const auto visit_all = [&](auto all) {
      const bits there = all ? kEvery : present();
      const auto first = all ? 0.0f : core::widen(*reinterpret_cast<const Stored*>(row_.bytes));
#pragma unroll
      for (int i = kUnits - 1; i >= 0; i--) {
        const unsigned at = static_cast<unsigned>(i) * kUnit;
        float values[kUnit];
        widen_unit<Stored>(unit(static_cast<unsigned>(i)), values);
        if constexpr (!all) fill_absent(there, at, first, values);
        f(at, values);
      }
    };
    if (__all_sync(kFullWarp, whole())) return visit_all(std::true_type());
    visit_all(std::false_type());
  }
  /// Those better than a number that is finite and not -0, NaN not. Adds all that are there to `ends`, and to the least
  /// of their bits; not negated.
  __device__ __forceinline__ bits above_among(float than, float_ends& ends, std::uint32_t& least_bits) const {
    const auto visit_all = [&](auto all) {
      const bits there = all ? kEvery : present();
      const auto first = all ? 0.0f : core::widen(*reinterpret_cast<const Stored*>(row_.bytes));
      return marks_of_signs(row_.negated ? 1.0f : -1.0f, than, [&](unsigned at, float(&values)[kUnit]) {
        if constexpr (!all) fill_absent(there, at, first, values);
        ends.add(values);
        least_bits = least_bits_of(values, least_bits);
      });
    };
    // One way for a warp: two would be gone one after the other.
    return __all_sync(kFullWarp, whole()) ? visit_all(std::true_type()) : visit_all(std::false_type()) & present();
  }
  /// The row's extremes; not negated. All that run in step call it: where all values have one sign, they look twice.
  template <class Group>
  __device__ __forceinline__ float_ends ends(Group& group) const {
    float_ends ends;
    visit_raw([&](unsigned, const float(&values)[kUnit]) { ends.add(values); });
    ends.join(group);
    if (!group.all(ends.have_both_signs())) {
      std::uint32_t least = ~0u;
      visit_raw([&](unsigned, const float(&values)[kUnit]) { least = least_bits_of(values, least); });
      ends.add_least_bits(~group.largest(~least));
    }
    return ends;
  }
  /// Those that reach `low`, and those that reach `high`. @pre all columns hold finite numbers.
  __device__ __forceinline__ void reaching_both(float low, float high, bits& reach_low, bits& reach_high) const {
    sign_words below_low{};
    sign_words below_high{};
    const float factor = row_.negated ? -1.0f : 1.0f;
    const float from_low = -without_plus_zero(low);
    const float from_high = -without_plus_zero(high);
    visit_raw([&](unsigned at, const float(&values)[kUnit]) {
      shift_in_signs(below_low, at, values, factor, from_low);
      shift_in_signs(below_high, at, values, factor, from_high);
    });
    const bits those = there();
    reach_low = ~joined_words<bits>(below_low.all) & those;
    reach_high = ~joined_words<bits>(below_high.all) & those;
  }
  /// Calls f(value, chosen) for all that are there. @param chosen ascending
  template <class F>
  __device__ __forceinline__ void visit_chosen(bits chosen, F f) const {
    const bits in_order = as_read(chosen);
    const bits there = present();
    visit_units([&](unsigned first, const float(&values)[kUnit]) {
#pragma unroll
      for (unsigned c = 0; c < kUnit; c++)
        if (there >> (first + c) & 1) f(values[c], (in_order >> (first + c) & 1) != 0);
    });
  }
  /// Those >= from. @pre all columns hold finite numbers.
  __device__ __forceinline__ bits finite_from(float from) const {
    bits marks = 0;
    from = without_plus_zero(from);
    visit_units([&](unsigned first, const float(&values)[kUnit]) {
      std::uint32_t less = 0;
#pragma unroll
      for (int c = kUnit - 1; c >= 0; c--) less = shift_in_less(values[c], from, less);
      marks |= static_cast<bits>(~less & ((1u << kUnit) - 1u)) << first;
    });
    return marks;
  }
  /// Those that are there and >= from. @pre all columns hold finite numbers.
  __device__ __forceinline__ bits reaching(float from) const {
    const bits less = marks_of_signs(row_.negated ? -1.0f : 1.0f, -without_plus_zero(from), [](unsigned, auto&) {});
    return whole() ? ~less & kEvery : ~less & present();
  }
  /// fp32: those better than a number that is finite and not -0; NaN is not.
  __device__ __forceinline__ bits above(float than) const {
    const bits marks = marks_of_signs(row_.negated ? 1.0f : -1.0f, than, [](unsigned, auto&) {});
    return whole() ? marks : marks & present();
  }
  /// The columns that are there, ascending.
  __device__ __forceinline__ bits present_ascending() const {
    const int there = row_.count - first_;
    return there >= Values ? kEvery : first_marks<bits>(max(there, 0));
  }
  /// The columns that are there.
  __device__ __forceinline__ bits present() const {
    const auto below = [](int column) { return column >= Values ? kEvery : first_marks<bits>(max(column, 0)); };
    bits there = below(row_.count - first_) & ~below(-first_);
    if (wraps()) there |= below(min(wrapped_, row_.count - first_ - kHeld));
    return as_read(there);
  }
  /// The same, sooner where all are.
  __device__ __forceinline__ bits there() const { return whole() ? kEvery : present(); }
  /// Whether all of the thread's columns are there.
  __device__ __forceinline__ bool whole() const {
    return first_ + Values <= row_.count && (first_ >= 0 || (wraps() && row_.count == kHeld));
  }
  /// Whether the unit that is read as the i-th is there, which all of it is then.
  __device__ __forceinline__ bool has_unit(unsigned i) const {
    static_assert(WholeUnits);
    return units_.bytes(i) < (row_.count - first_) * static_cast<int>(sizeof(Stored));
  }
  /// Bit i then stands for column first_column() + i. All threads that run in step call it.
  __device__ __forceinline__ bits ascending(bits marks) const {
    marks = places::turned(marks, units_.turn());
    if constexpr (Lanes > 0) {
      if (row_.wraps) {  // a thread's last columns are the first that the next one holds
        const int next = (static_cast<int>(threadIdx.x) + 1) % Lanes;
        const std::uint32_t of_next = __shfl_sync(kFullWarp, word_of(marks, 0), next, Lanes);
        marks = moved_down<Values>(marks, of_next, row_.lead) & kEvery;
      }
    }
    return marks;
  }

 private:
  static constexpr int kHeld = Values * Lanes;
  static constexpr bool kForRow = !places::kKept && !places::kOneByOne;  // places are worked out for each row
  // Where the last thread reads its last unit, in the order of reading.
  static constexpr unsigned kLastTurn = Lanes > 0 ? (Lanes - 1) / places::kApart % places::kGroup : 0;
  static constexpr unsigned kLastUnit = kUnits - 1 - kLastTurn;

  /// Marks in the order of reading, of ascending ones.
  __device__ __forceinline__ bits as_read(bits marks) const { return places::turned(marks, units_.turn_back()); }
  __device__ __forceinline__ bool wraps() const { return Lanes > 0 && row_.wraps; }
  __device__ __forceinline__ bool has(unsigned v) const {
    const unsigned column = static_cast<unsigned>(first_) + units_.number(v / kUnit) * kUnit + v % kUnit;
    return column < static_cast<unsigned>(row_.count);
  }
  __device__ __forceinline__ int bytes_of(unsigned i) const {
    if constexpr (kForRow) return places::bytes_from(turn_, i);
    return units_.bytes(i);
  }
  __device__ __forceinline__ uint4 unit(unsigned i) const {
    constexpr int kSize = static_cast<int>(sizeof(Stored));
    const unsigned char* from = row_.bytes + first_ * kSize + bytes_of(i);
    const uint4 own = *reinterpret_cast<const uint4*>(from);
    if (Lanes == 0 || i > 0 || !row_.wraps) return own;  // the first thread begins with its first unit
    const uint4 last = *reinterpret_cast<const uint4*>(from + (wrapped_ > 0 ? kHeld * kSize : 0));
    const auto joined = [&](std::uint32_t of_own, std::uint32_t of_last, int w) {
      const std::uint32_t taken =
          __funnelshift_lc(~0u, 0u, static_cast<unsigned>(max(wrapped_ * kSize * 8 - w * 32, 0)));
      return (of_own & ~taken) | (of_last & taken);
    };
    return make_uint4(joined(own.x, last.x, 0), joined(own.y, last.y, 1), joined(own.z, last.z, 2),
                      joined(own.w, last.w, 3));
  }
  /// The row's first value in the place of a unit's columns that are not there. @param at v of the first
  static __device__ __forceinline__ void fill_absent(bits there, unsigned at, float first, float (&values)[kUnit]) {
#pragma unroll
    for (unsigned c = 0; c < kUnit; c++) values[c] = there >> (at + c) & 1 ? values[c] : first;
  }
  struct sign_words {
    std::uint32_t all[(Values + 31) / 32];
  };
  /// Marks values of a unit for which value x factor + addend has its sign bit set; the units come from the last one
  /// on.
  static __device__ __forceinline__ void shift_in_signs(sign_words& words, unsigned at, const float (&values)[kUnit],
                                                        float factor, float addend) {
#pragma unroll
    for (int c = kUnit - 1; c >= 0; c--) {
      std::uint32_t& word = words.all[(at + static_cast<unsigned>(c)) / 32];
      word = __funnelshift_l(__float_as_uint(__fmaf_rn(values[c], factor, addend)), word, 1);
    }
  }
  /// The same of all values. Calls f(v of the first, values) for each unit before, which may change them.
  template <class F>
  __device__ __forceinline__ bits marks_of_signs(float factor, float addend, F f) const {
    sign_words words{};
#pragma unroll
    for (int i = kUnits - 1; i >= 0; i--) {
      float values[kUnit];
      widen_unit<Stored>(unit(static_cast<unsigned>(i)), values);
      f(static_cast<unsigned>(i) * kUnit, values);
      shift_in_signs(words, static_cast<unsigned>(i) * kUnit, values, factor, addend);
    }
    return joined_words<bits>(words.all);
  }
  /// Calls f(v of the first, values) for each unit.
  template <class F>
  __device__ __forceinline__ void visit_units(F f) const {
    const std::uint32_t sign = row_.negated ? core::kSignBit : 0u;
#pragma unroll
    for (unsigned i = 0; i < kUnits; i++) {
      float values[kUnit];
      widen_unit<Stored>(unit(i), values);
#pragma unroll
      for (unsigned c = 0; c < kUnit; c++) values[c] = __uint_as_float(__float_as_uint(values[c]) ^ sign);
      f(kUnit * i, values);
    }
  }
  template <class F>
  __device__ __forceinline__ void visit(F f) const {
    visit_units([&](unsigned first, const float(&values)[kUnit]) {
#pragma unroll
      for (unsigned c = 0; c < kUnit; c++) f(first + c, values[c]);
    });
  }

  const staged_row<Stored>& row_;
  const places& units_;
  unsigned turn_;
  int first_;
  int rank_;
  int wrapped_ = 0;  // columns of the row's end that the thread holds before its first ones
};

}  // namespace shortlist::cuda
