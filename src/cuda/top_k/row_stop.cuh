// An early stop's search of a row that lies in shared memory, by a group of threads; each marks those of its columns.
//
// Why it is fast: a midpoint is reached by k values exactly where it does not exceed the k-th best value, so that the
// path of the bisection depends on the row's extremes and on that value alone. Up to eight steps end in a cell that
// planes of bits tell without a step (row_cells.cuh; not of blocks, of which each count would be a meeting). Else a
// guess of the border gives a path without a count; the path is the right one if k values reach its lower end and fewer
// its upper end, whatever was passed on the way; and where exactly k values reach any midpoint, they are the result.
// Steps: the extremes -> up to eight: the cell and its marks -> else a guess from the rows before -> for many steps:
// the border between two levels (row_levels.cuh; blocks: between 16-bit numbers), a bound that is proved; for an eps
// of rows that row_eps.cuh does not take the border itself, from which the path follows -> the path -> counts at its
// ends until both are proved -> marks. A count that refutes a guess tells by how many values it was off. After a few
// guesses the bisection's own midpoints are counted.
// Limit: as in warp_rows_kernel.cuh; measured share: docs/kernels.md.
// History, 2^20 x 256, k 32, 4 and 8 steps: every midpoint counted 0.411 and 0.567 ms -> guessed paths 0.369 and 0.561
// -> numbers first, for eight steps 0.488 -> a path is followed anew only where a count refutes it, more than k marks
// are written, but none behind the k-th 0.348 and 0.463 -> places of units kept 0.338 and 0.452 -> levels instead of
// numbers, for eight steps 0.400 -> cells, four rows a warp 0.318 and 0.343. The exact search: 0.319.
#pragma once

#include <cstdint>

#include "cuda/top_k/row_cells.cuh"
#include "cuda/top_k/row_levels.cuh"
#include "cuda/top_k/row_path.cuh"

namespace shortlist::cuda {

constexpr int kStopGuesses = 6;  // counts after which the bisection's own midpoints are counted, one after the other
constexpr float kFineShare = 0.25f;   // of what is known of the border: a narrower bracket is not needed for a count
constexpr int kNarrowCounts = 12;     // of numbers; what is known then must do
constexpr float kNarrowShare = 1.0f;  // of the bracket where the bisection ends: half and twice as much cost more
constexpr int kLevelSteps = 6;        // so many, or an eps, pay for levels
constexpr int kLevelTries = 3;        // windows of levels, each beside the one before
constexpr float kNextWindow = 0.9f;   // of their width
constexpr float kTrustGain = 8.0f;    // values; a single row tells no more about which guess is better

/// What a group has learned from its rows: two guesses of a border, and which is better.
struct stop_guess {
  float deviations;    // from the middle of a row's extremes; those of normal data lie so many apart
  float at = 0.0f;     // where the borders of the rows before were
  float trust = 0.0f;  // by how many values this was nearer
};

/// The first midpoint within (low, high) on the way to what lies there; `low` if the bisection ends before.
inline __device__ __noinline__ float first_midpoint_within(early_stop stop, stop_path path, float low, float high) {
  float lower = path.lower;
  float upper = path.upper;
#pragma unroll 1
  for (int step = 0; !stop.by_count || step < stop.max_iter; step++) {
    const float middle = midpoint(lower, upper);
    if (middle > low && middle < high) return middle;
    if (middle <= lower || middle >= upper || (stop.by_eps && !(__fsub_rn(upper, lower) > path.width))) break;
    (middle <= low ? lower : upper) = middle;
  }
  return low;
}

/// A thread's columns as finite values, the largest first: in registers where these have room, else read for each pass.
template <class Share, bool Held>
class stop_values {
 public:
  static constexpr int kValues = Share::kValues;
  static_assert(kValues <= 64);
  using bits = typename Share::bits;

  __device__ __forceinline__ explicit stop_values(const Share& share) : share_(share), there_(share.there()) {
    if constexpr (Held) share.read_values(values_);
  }
  __device__ __forceinline__ bits there() const { return there_; }
  __device__ __forceinline__ float_ends ends() const {
    float_ends ends;
    visit([&](const auto& values) { ends.add(values); });
    return ends;
  }
  /// Of numbers that have all the same sign.
  __device__ __forceinline__ std::uint32_t least_bits() const {
    std::uint32_t least = ~0u;
    visit([&](const auto& values) { least = least_bits_of(values, least); });
    return least;
  }
  /// Numbers value x scale + offset, NaN for a column that is not there; to be counted, not marked.
  __device__ __forceinline__ void map(thread_numbers<float, kValues>& numbers, float scale, float offset) const {
    int at = 0;
    visit_pairs([&](float a, float b) { numbers.set(at++, __fmaf_rn(a, scale, offset), __fmaf_rn(b, scale, offset)); });
  }
  /// Levels, two a word; 0 for a column that is not there.
  __device__ __forceinline__ void map(std::uint32_t (&levels)[kValues / 2], const value_window& window) const {
    int at = 0;
    visit_pairs([&](float a, float b) { levels[at++] = window.levels(a, b); });
  }
  /// Numbers, two a word, also of columns that are not there.
  __device__ __forceinline__ void map(std::uint32_t (&numbers)[kValues / 2], const cell_map& map) const {
    static_assert(Held);
#pragma unroll
    for (int v = 0; v < kValues; v += 2) numbers[v / 2] = map.levels(values_[Held ? v : 0], values_[Held ? v + 1 : 0]);
  }
  /// Marks those that are no less.
  __device__ __forceinline__ bits reaching(float from) const {
    from = without_plus_zero(from);
    if constexpr (!Held) return share_.finite_from(from) & there_;
    constexpr int kEach = 16;  // marks that wait for one another
    constexpr int kRuns = (kValues + kEach - 1) / kEach;
    std::uint32_t less[(kRuns + 1) / 2 * 2] = {};
#pragma unroll
    for (int i = kEach - 1; i >= 0; i--) {
#pragma unroll
      for (int r = 0; r < kRuns; r++) {
        const int v = r * kEach + i;
        if (v < kValues) less[r] = shift_in_less(values_[Held && v < kValues ? v : 0], from, less[r]);
      }
    }
    bits marks = ~(less[0] | less[1] << kEach);
    if constexpr (kValues > 32)
      marks = static_cast<bits>(~(less[2] | less[3] << kEach)) << 32 | static_cast<std::uint32_t>(marks);
    return marks & there_;
  }

 private:
  template <class F>
  __device__ __forceinline__ void visit(F f) const {
    if constexpr (Held) {
      f(values_);
    } else {
      share_.visit_there(there_ == Share::kEvery ? 0.0f : share_.first_value(), f);
    }
  }

  /// NaN for a column that is not there.
  template <class F>
  __device__ __forceinline__ void visit_pairs(F f) const {
    const float absent = core::float_from_bits(core::kCanonicalNan);
    if constexpr (!Held) {
      share_.visit_there(absent, [&](const float(&values)[Share::kUnit]) {
#pragma unroll
        for (unsigned c = 0; c < Share::kUnit; c += 2) f(values[c], values[c + 1]);
      });
    } else if (there_ == Share::kEvery) {
#pragma unroll
      for (int v = 0; v < kValues; v += 2) f(values_[v], values_[v + 1]);
    } else {
      const auto value = [&](int v) { return there_ >> v & 1 ? values_[v] : absent; };
#pragma unroll
      for (int v = 0; v < kValues; v += 2) f(value(v), value(v + 1));
    }
  }

  const Share& share_;
  const bits there_;
  float values_[Held ? kValues : 1];
};

/// Where a border lies: in [low, high), and `at` if no more than the k best reach `low`.
struct number_range {
  float low = -INFINITY;
  float high = INFINITY;
  float over = INFINITY;  // so many more than k reach `low`, nearly
  float under = -INFINITY;
  float at = 0.0f;
};

/// A row's border by levels: where it lies, and if `known`, exactly.
template <class Bits>
struct level_found : number_range {
  bool known = false;
  float value = 0.0f;     // the k-th best
  float next = INFINITY;  // the next is no more
  Bits marks = 0;         // the k best, unless others equal the last of them
};

/// Finds where a row's border lies by counting 16-bit numbers, a unit for `each`, 0 for `at`: half the instructions of
/// counting values. All that run in step call it; only rows that are `open` are searched.
/// @param target so narrow a range is enough.
template <class Group, class StopValues>
__device__ __forceinline__ number_range narrow_by_numbers(Group& group, const StopValues& values, float k, float at,
                                                          float each, float target, bool open) {
  using kind = thread_numbers<float, StopValues::kValues>;
  const float scale = near_reciprocal(each);
  const float offset = -at * scale;
  const bool usable = open && fabsf(offset) < kFarthest && scale < kFarthest && scale > 1.0f / kFarthest;
  kind numbers;
  values.map(numbers, usable ? scale : 0.0f, usable ? offset : 0.0f);
  target *= scale;
  number_bracket known;
  float from = 0.0f;
  open = usable;
#pragma unroll 1
  for (int count = 0; count < kNarrowCounts && !group.all(!open); count++) {
    const float beyond = group.sum_count(numbers.count_from(from)) - k;
    if (!open) continue;
    const bool reached = beyond >= 0.0f;
    known.low = reached ? from : known.low;
    known.over = reached ? beyond : known.over;
    known.high = reached ? known.high : from;
    known.under = reached ? known.under : beyond;
    const float next = kind::rounded(known.has_ends() ? known.inside() : from + beyond);
    open = beyond != 0.0f && !(known.width() <= target) && next > known.low && next < known.high;
    from = next;
  }
  if (!usable) return {};
  // A number's values lie within it and the one before; what rounding adds here is within 2^-21 of both terms.
  const auto value_of = [&](float number, float side) {
    const float away = kind::grid_at(number) + kLeastGrid;
    return beyond_rounding(at, __fmaf_rn(side, away, number) * each, side);
  };
  number_range range;
  if (known.low > -INFINITY) {
    range.low = value_of(known.low, -1.0f);
    range.over = known.over;
    range.at = __fmaf_rn(known.low, each, at);
  }
  if (known.high < INFINITY) {
    range.high = value_of(known.high, 1.0f);
    range.under = known.under;
  }
  return range;
}

/// Finds a row's border by levels, for an eps exactly. All that run in step call it; only rows that are `open` are
/// searched.
/// @param width of the levels, around `at` at first
template <class Share, class Group, class StopValues>
__device__ __forceinline__ level_found<typename Share::bits> find_by_levels(Group& group, const StopValues& values,
                                                                            const Share& share, int k, bool by_eps,
                                                                            float at, float width, bool open) {
  using bits = typename Share::bits;
  const float scale = near_reciprocal(width);
  level_found<bits> found;
#pragma unroll 1
  for (int tries = 0; tries < kLevelTries; tries++) {
    const value_window window(at, width, scale, false);
    std::uint32_t levels[Share::kValues / 2];
    values.map(levels, window);
    const level_planes<Share::kValues, value_window::kBits> planes(levels);
    auto border = find_level<bits>(group, planes, k);
    const auto same = static_cast<int>(group.sum(static_cast<std::uint32_t>(count_marks(border.at))));
    open = open && window.usable();
    const bool settles = by_eps && open && window.holds(border.level) && same <= kMostRivals;
    if (open && border.level > 0) {
      found.low = window.least_of(border.level);
      found.over = static_cast<float>(same - border.missing);
    }
    if (open && border.level < value_window::kLast) {
      found.high = window.beyond(border.level);
      found.under = static_cast<float>(-border.missing);
    }
    if (by_eps) {
      const auto value_of = [&](bits marks) { return share.first_of(marks); };
      const float last = settle_level(group, border, same, true, settles, value_of);
      float next = window.beyond(planes.largest(values.there() & ~(border.above | border.at)));
      for (bits left = settles ? border.at : 0; left != 0; left &= left - 1) next = fmaxf(next, value_of(left));
      next = group.largest(next);
      if (settles) {
        found.known = true;
        found.value = last;
        found.next = next;
        found.marks = border.above;
      }
    }
    open = open && !window.holds(border.level);
    if (group.all(!open)) break;
    if (open) at += (border.level == 0 ? -kNextWindow : kNextWindow) * width;
  }
  return found;
}

/// Marks what an early stop selects of a row. All that run in step call it.
/// Algorithm 2's result are the first k of the marks; no marks fill up then.
/// @tparam ByCount the stop is of so many steps. @param learns whether to learn where borders lie. @param settled
/// whether the marks are right: a row that holds NaN or an infinity takes the exact path, and all its columns are
/// marked.
template <bool ByCount, class Share, class Group>
__device__ __forceinline__ row_marks<typename Share::bits> search_stopped_row(
    Group& group, const search_plan& plan, const staged_row<typename Share::stored>& row, const Share& share,
    stop_guess& guess, bool learns, bool& settled) {
  using bits = typename Share::bits;
  constexpr bool kByLevels = !Group::kIsBlock;  // of which each count would be a meeting
  early_stop stop = plan.stop;
  if constexpr (ByCount) {
    stop.by_eps = false;
    stop.by_count = true;
  }
  const stop_values<Share, Group::kHasRoom || (Share::kValues <= 32)> values(share);
  float_ends ends = values.ends();
  ends.join(group);
  if (!group.all(ends.have_both_signs())) ends.add_least_bits(~group.largest(~values.least_bits()));
  const float lower = ends.least();
  const float upper = ends.most();
  const bool takes_all = row.count <= plan.k;
  settled = takes_all || !ends.odd();
  bits marks = values.there();  // those that reach `marked`
  bool open = settled && !takes_all;
  bool proved = false;
  if constexpr (kByLevels) {
    if (group.all(!open)) return {marks, 0, true};
    if (!stop.by_eps && stop.max_iter <= kMostHalvings) {
      bits reaching = 0;
      proved = mark_by_cells(group, values, plan.k, stop.max_iter, lower, upper, open, reaching) && open;
      if (proved) marks = reaching;
      open = open && !proved;
      if (group.all(!open)) return {marks, 0, !proved};
    }
  }
  const bool fits = takes_all || (isfinite(__fadd_rn(lower, lower)) && isfinite(__fadd_rn(upper, upper)));
  const stop_path path{lower, upper, __fmul_rn(stop.eps, fabsf(upper)), group.all(fits)};
  const float deviation = (upper - lower) * plan.each_span;
  const float each = deviation * plan.each_value;  // from one value to the next
  const float middle = 0.5f * (lower + upper);
  const float by_extremes = __fmaf_rn(deviation, guess.deviations, middle);

  // `over` (>= 0) more than k values reach `low`, `under` (< 0) more `high`; at first the row's own ends.
  float low = lower;
  float high = INFINITY;
  float over = static_cast<float>(row.count - plan.k);
  float under = static_cast<float>(-plan.k);
  const auto between = [&] {
    return __fmaf_rn(fminf(high, upper) - low, (over + 0.5f) * near_reciprocal(over - under + 1.0f), low);
  };
  float at = guess.trust > 0.0f ? guess.at : by_extremes;
  float marked = lower;
  const auto learn_range = [&](const number_range& range) {
    if (range.low > low) {
      low = range.low;
      over = range.over;
    }
    if (range.high < upper) {
      high = range.high;
      under = range.under;
    }
  };
  bool exact = false;
  stop_bracket bracket{};
  if constexpr (kByLevels) {
    if (stop.by_eps || stop.max_iter >= kLevelSteps) {
      const auto border = find_by_levels(group, values, share, plan.k, stop.by_eps, at, plan.window * each, open);
      if (border.known) {
        bracket.low = lower;
        bracket.high = upper;
        exact = bisect(stop, border.value, border.next, bracket.low, bracket.high);
        if (exact) marks = border.marks;
        low = high = border.value;
        open = false;
      } else {
        learn_range(border);
        if (border.low > -INFINITY || border.high < INFINITY) at = between();
      }
    }
  } else if (stop.by_eps || stop.max_iter >= plan.narrowed_steps) {
    const float end = stop.by_eps ? path.width : (upper - lower) * exp2f(static_cast<float>(-stop.max_iter));
    const number_range near =
        narrow_by_numbers(group, values, static_cast<float>(plan.k), at, each, kNarrowShare * end, open);
    learn_range(near);
    if (near.low > -INFINITY || near.high < INFINITY) at = near.over == 0.0f ? near.at : between();
  }
  bool moved = true;
#pragma unroll 1
  for (int pass = 1; !group.all(!open); pass++) {
    if (!group.all(!moved)) {
      if (!(at > low && at < high)) at = low;
      bracket = follow(stop, path, at, low, high, over == 0.0f ? 0.0f : fminf(each, kFineShare * (high - low)));
    }
    const bool asks_low = bracket.low > low;
    // The row's maximum is never a midpoint, but where the bisection ends at it.
    const bool at_top = bracket.high >= upper && (stop.by_eps || midpoint(bracket.low, bracket.high) < upper);
    const bool asks_high = bracket.high < high && bracket.high > low && !at_top;
    const bool asks = asks_low || asks_high;
    moved = open && !asks && !bracket.ends;
    open = open && (asks || moved);
    if (group.all(!open)) break;
    const bool counts_low = asks_low && (!asks_high || at - bracket.low < bracket.high - at);
    const float from = counts_low ? bracket.low : bracket.high;
    const bits reaching = values.reaching(from);
    const float beyond = group.sum_count(static_cast<float>(count_marks(reaching))) - static_cast<float>(plan.k);
    if (open && asks) {
      const bool reached = beyond >= 0.0f;
      low = reached ? from : low;
      over = reached ? beyond : over;
      high = reached ? high : from;
      under = reached ? under : beyond;
      marks = reached ? reaching : marks;
      marked = reached ? from : marked;
      exact = beyond == 0.0f && from < upper;  // a midpoint
      open = !exact;
      const float stepped = __fmaf_rn(beyond + (reached ? 0.5f : -0.5f), each, from);
      const bool steps = (low == lower || high == INFINITY) && stepped > low && stepped < fminf(high, upper);
      at = steps ? stepped : between();
      moved = !(at >= bracket.low && at < bracket.high);
    }
    if (pass >= kStopGuesses && open) {
      moved = true;
      at = first_midpoint_within(stop, path, low, high);
    }
  }

  if (learns && settled && !takes_all && !proved) {
    const float found = between();
    const float gain = (fabsf(by_extremes - found) - fabsf(guess.at - found)) * near_reciprocal(each);
    const float known = fminf(kTrustGain, fmaxf(-kTrustGain, gain));
    const float moved = (found - middle) * near_reciprocal(deviation) - guess.deviations;
    guess.at = guess.trust > 0.0f ? __fmaf_rn(kLearning, found - guess.at, guess.at) : found;
    guess.trust = __fmaf_rn(kLearning, known - guess.trust, guess.trust);
    if (fabsf(moved) < INFINITY) guess.deviations = __fmaf_rn(kLearning, moved, guess.deviations);
  }
  const bool chosen = takes_all || exact || !settled;
  if (!group.all(chosen || proved || bracket.low == marked)) {  // proved by numbers, or by the maximum
    const bits reaching = values.reaching(bracket.low);
    if (!chosen && !proved) marks = reaching;
  }
  if (!stop.by_eps || group.all(chosen)) return {marks, 0, chosen};
  const bits sure = chosen ? marks : values.reaching(bracket.high);
  return {sure, marks & ~sure, chosen};
}

}  // namespace shortlist::cuda
