// Row-wise top k, a row in the registers of 8, 16 or 32 lanes (cols <= 1024).
//
// Why it is fast: a row is read once into registers; its values become fp16 numbers, two a register, by a map that
// keeps their order and whose unit near the border is about one count, so that a pass of a compare and an add for two
// values counts how many reach a threshold. Where exactly k do, the set is proved, whatever the map rounded.
// Steps of a group of lanes: load -> mean and deviation -> map -> count, step, interpolate until k reach the threshold
// -> places in column order from one packed scan -> stage -> store whole lines. Rows for which that fails (ties at the
// border, NaN, infinities, early stops, ragged rows) go over to order-preserving keys: the border is then sought by
// counting 32-bit keys, in the end among the values that are there. Early stops (docs/ordering.md, section 9) run the
// bisection's own thresholds through the same count. Limit: bytes(in) + bytes(out) over read bandwidth. Measured share:
// docs/kernels.md.
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>

#include "core/normal.hpp"
#include "core/order.hpp"
#include "core/score.hpp"
#include "cuda/device/cluster.cuh"
#include "cuda/device/score.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/warp_rows.hpp"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kGuesses = 8;  // passes before the border is sought among the values themselves
constexpr float kSteep = 1.5f;
constexpr int kHalfPasses = 8;  // counts of fp16 numbers before a row is given up to the keys
constexpr std::uint32_t kInfinityKey = 0xFF800000u;
constexpr std::uint32_t kMinusInfinityKey = 0x007FFFFFu;
constexpr std::uint32_t kZeroKey = 0x80000000u;

struct rows_args {
  core::top_k_request request;
  float deviations;  // where the border of normal data lies, in standard deviations above the mean
  float density;     // columns a standard deviation there
  float eps;
  std::int32_t max_iter;
  bool stops_by_eps;
  bool stops_by_count;
  bool by_halves;  // whole rows, exact, in column order: the common case
};

/// One of the best, on its way out.
struct staged_entry {
  std::uint32_t key;     // or the value's bits
  std::uint32_t column;  // from the row's begin
};

/// What a search selects: the first `sure` of the keys >= from, and the first `fill` of those in [fill_from, from).
struct selection {
  std::uint32_t from;
  std::uint32_t fill_from;
  int sure;
  int fill;
};

template <class T>
__device__ __forceinline__ T of_group_max(T value, int lanes) {
  for (int o = lanes / 2; o > 0; o >>= 1) value = max(value, __shfl_xor_sync(kFullWarp, value, o));
  return value;
}

/// The keys of a row in Lanes lanes: unit j of lane l holds the columns (j x Lanes + l) x kUnit + c.
template <class Stored, int Values, int Lanes>
struct lane_keys {
  static constexpr int kUnit =
      16 / static_cast<int>(sizeof(Stored)) < Values ? 16 / static_cast<int>(sizeof(Stored)) : Values;
  static constexpr int kUnits = Values / kUnit;
  std::uint32_t keys[Values];  // at first the bits of the values

  static __device__ __forceinline__ int first_column(int unit, int lane) { return (unit * Lanes + lane) * kUnit; }

  __device__ __forceinline__ float value(int v) const { return core::float_from_bits(keys[v]); }

  /// The values' bits, widened; columns that are not there hold a NaN. Sums all, and the squares of every other one:
  /// the first is not finite if any value is not.
  __device__ __forceinline__ void load(const Stored* row, int count, int lane, float& sum, float& squares) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(row) % 16 == 0;
#pragma unroll
    for (int j = 0; j < kUnits; j++) {
      const int first = first_column(j, lane);
      alignas(16) Stored unit[kUnit];
      const bool whole = first + kUnit <= count;
      if (aligned && whole) {
        *reinterpret_cast<uint4*>(unit) = __ldcs(reinterpret_cast<const uint4*>(row + first));
      } else {
#pragma unroll
        for (int c = 0; c < kUnit; c++) unit[c] = first + c < count ? row[first + c] : Stored{};
      }
#pragma unroll
      for (int c = 0; c < kUnit; c++) {
        const bool there = whole || first + c < count;
        const float wide = core::widen(unit[c]);
        keys[j * kUnit + c] = there ? core::float_bits(wide) : core::kCanonicalNan;
        if (there) sum += wide;
        if (there && c % 2 == 0) squares += wide * wide;
      }
    }
#pragma unroll
    for (int o = Lanes / 2; o > 0; o >>= 1) {
      sum += __shfl_xor_sync(kFullWarp, sum, o);
      squares += __shfl_xor_sync(kFullWarp, squares, o);
    }
  }

  /// Turns the bits of the values into keys.
  __device__ __forceinline__ void to_keys(bool negate) {
    const std::uint32_t flip = negate ? core::kSignBit : 0u;
#pragma unroll
    for (int v = 0; v < Values; v++) {
      const float wide = core::float_from_bits(keys[v] ^ flip);
      keys[v] = core::score_key(wide, metric::inner_product);
    }
  }

  __device__ __forceinline__ int count_from(std::uint32_t from) const {
    std::uint32_t count = 0;
#pragma unroll
    for (int v = 0; v < Values; v++) count += keys[v] >= from ? 1u : 0u;
    if constexpr (Lanes == kWarp) {
      count = __reduce_add_sync(kFullWarp, count);
    } else {
#pragma unroll
      for (int o = Lanes / 2; o > 0; o >>= 1) count += __shfl_xor_sync(kFullWarp, count, o);
    }
    return static_cast<int>(count);
  }
  __device__ __forceinline__ std::uint32_t least_from(std::uint32_t from) const {
    std::uint32_t most = 0;  // of the complements
#pragma unroll
    for (int v = 0; v < Values; v++) most = keys[v] >= from ? max(most, ~keys[v]) : most;
    return ~of_group_max(most, Lanes);
  }
  __device__ __forceinline__ std::uint32_t most_below(std::uint32_t limit) const {
    std::uint32_t most = 0;
#pragma unroll
    for (int v = 0; v < Values; v++) most = keys[v] < limit ? max(most, keys[v]) : most;
    return of_group_max(most, Lanes);
  }
};

/// The exact border, for all groups of the warp at once. @pre 1 <= k <= columns that are there.
template <class Row>
__device__ __forceinline__ selection find_border(const rows_args& args, const Row& row, int count, int k, float mean,
                                                 float deviation, float& learned) {
  const bool has_shape = isfinite(mean) && isfinite(deviation) && deviation > 0.0f;
  std::uint32_t low = 0;     // count(>= low) = at_low >= k
  std::uint32_t high = ~0u;  // count(>= high) = at_high < k
  int at_low = count;
  int at_high = 0;
  float at = mean + learned * deviation;
  float step = 1.0f;
  selection found{0, 0, 0, 0};
  bool done = false;
  for (int pass = 0; !__all_sync(kFullWarp, done); pass++) {
    const bool guesses = has_shape && pass < kGuesses;
    if (pass >= kGuesses) {  // the ends become values that are there
      const std::uint32_t least = row.least_from(low);
      const std::uint32_t most = row.most_below(high);
      if (!done) {
        low = least;
        high = most + 1;
        if (low >= most) {
          found = {most + 1, most, at_high, k - at_high};
          done = true;
        }
      }
    }
    std::uint32_t from = low + (high - low) / 2;
    if (guesses) {
      if (low > kMinusInfinityKey && high < kInfinityKey && low < high) {
        const float low_value = core::from_ascending_key(low);
        const float share = (static_cast<float>(at_low - k) + 0.5f) / static_cast<float>(at_low - at_high);
        at = low_value + (core::from_ascending_key(high) - low_value) * fminf(0.9f, fmaxf(0.1f, share));
      }
      if (isfinite(at)) from = core::ascending_key(at);
    }
    from = min(max(from, low + 1), high - 1);
    const int reached = row.count_from(from);
    if (done) continue;
    if (reached == k || high - low <= 1) {
      found = reached == k ? selection{from, from, k, 0} : selection{low + 1, low, at_high, k - at_high};
      if (has_shape) learned += ((core::from_ascending_key(from) - mean) / deviation - learned) * 0.125f;
      done = true;
    } else if (reached > k) {
      low = from;
      at_low = reached;
    } else {
      high = from;
      at_high = reached;
    }
    at += step * deviation * static_cast<float>(reached - k) / args.density;  // until both ends are numbers
    step *= kSteep;
  }
  if (!isfinite(learned)) learned = args.deviations;
  return found;
}

/// The midpoint of docs/ordering.md, section 9.
__device__ __forceinline__ float midpoint(float low, float high) {
  const float sum = __fadd_rn(low, high);
  return isfinite(sum) ? __fmul_rn(sum, 0.5f) : __fadd_rn(__fmul_rn(low, 0.5f), __fmul_rn(high, 0.5f));
}

/// Algorithms 1 and 2, for all groups of the warp at once; `applies` says for which.
template <class Row>
__device__ __forceinline__ selection bisect(const rows_args& args, const Row& row, int count, int k, bool applies) {
  float low = core::from_ascending_key(row.least_from(1));
  float high = core::from_ascending_key(row.most_below(~0u));
  const float width = __fmul_rn(args.eps, fabsf(high));
  selection found{};
  bool done = !applies;
  bool equal = false;
  for (int pass = 0; !__all_sync(kFullWarp, done); pass++) {
    const float middle = midpoint(low, high);
    if (!done) {
      done = args.stops_by_count ? pass == args.max_iter
                                 : !(__fsub_rn(high, low) > width) || middle <= low || middle >= high;
    }
    const std::uint32_t from = core::ascending_key(middle);
    const int reached = row.count_from(from);
    if (done) continue;
    if (args.stops_by_eps && reached == k) {
      found = {from, from, k, 0};
      equal = done = true;
    } else if (reached < k) {
      high = middle;
    } else {
      low = middle;
    }
  }
  const std::uint32_t low_key = core::ascending_key(low);
  const std::uint32_t high_key = core::ascending_key(high);
  const int above = row.count_from(high_key);
  if (equal || !applies) return found;
  if (args.stops_by_count) return {low_key, low_key, k, 0};
  return {high_key, low_key, min(above, k), max(k - above, 0)};
}

/// For each unit, the place in column order of the lane's first marked column; and how many there are in all.
template <class Row, int Lanes>
struct places {
  int first[Row::kUnits];
  int total = 0;

  __device__ __forceinline__ places(const bool (&marked)[Row::kUnits * Row::kUnit], int lane) {
#pragma unroll
    for (int pair = 0; pair < Row::kUnits; pair += 2) {  // two units in the halves of a word
      std::uint32_t own = 0;
#pragma unroll
      for (int c = 0; c < Row::kUnit; c++) {
        own += marked[pair * Row::kUnit + c] ? 1u : 0u;
        if (pair + 1 < Row::kUnits) own += marked[(pair + 1) * Row::kUnit + c] ? 1u << 16 : 0u;
      }
      std::uint32_t sum = own;
#pragma unroll
      for (int o = 1; o < Lanes; o <<= 1) {
        const std::uint32_t left = __shfl_up_sync(kFullWarp, sum, o, Lanes);
        if (lane >= o) sum += left;
      }
      const std::uint32_t all = __shfl_sync(kFullWarp, sum, Lanes - 1, Lanes);
      const std::uint32_t before = sum - own;
      first[pair] = total + static_cast<int>(before & 0xFFFFu);
      total += static_cast<int>(all & 0xFFFFu);
      if (pair + 1 < Row::kUnits) {
        first[pair + 1] = total + static_cast<int>(before >> 16);
        total += static_cast<int>(all >> 16);
      }
    }
  }
};

/// Leaves marked only the first `quota` of a row.
template <class Row, int Lanes>
__device__ __forceinline__ void keep_first(bool (&marked)[Row::kUnits * Row::kUnit], int quota, int lane) {
  const places<Row, Lanes> at(marked, lane);
#pragma unroll
  for (int j = 0; j < Row::kUnits; j++) {
    int place = at.first[j];
#pragma unroll
    for (int c = 0; c < Row::kUnit; c++) {
      bool& mark = marked[j * Row::kUnit + c];
      if (mark) mark = place++ < quota;
    }
  }
}

/// The values of a lane as fp16 numbers, two a register, in the same order.
template <int Values>
struct lane_halves {
  __half2 u[Values / 2];

  template <class Row>
  __device__ __forceinline__ void map(const Row& row, float scale, float offset) {
#pragma unroll
    for (int i = 0; i < Values / 2; i++)
      u[i] =
          __floats2half2_rn(__fmaf_rn(row.value(2 * i), scale, offset), __fmaf_rn(row.value(2 * i + 1), scale, offset));
  }

  /// How many of the group's values reach the threshold; a NaN reaches none.
  template <int Lanes>
  __device__ __forceinline__ int count_from(__half2 from) const {
    __half2 even = __hge2(u[0], from);
    __half2 odd = __hge2(u[1], from);
#pragma unroll
    for (int i = 2; i < Values / 2; i += 2) {
      even = __hadd2(even, __hge2(u[i], from));
      odd = __hadd2(odd, __hge2(u[i + 1], from));
    }
    const __half2 both = __hadd2(even, odd);
    auto count = static_cast<std::uint32_t>(__low2float(both) + __high2float(both));
    if constexpr (Lanes == kWarp) {
      count = __reduce_add_sync(kFullWarp, count);
    } else {
#pragma unroll
      for (int o = Lanes / 2; o > 0; o >>= 1) count += __shfl_xor_sync(kFullWarp, count, o);
    }
    return static_cast<int>(count);
  }
};

/// A threshold that exactly k of the group's values reach, if one is found for every group of the warp. Thresholds are
/// in units of about one count, from the place where the border was last.
template <int Lanes, int Values>
__device__ __forceinline__ bool find_half_threshold(const lane_halves<Values>& halves, int k, bool has_shape,
                                                    __half2& threshold, float& moved) {
  float at = 0.0f;
  float low = -INFINITY;
  float high = INFINITY;
  float at_low = 0.0f;
  float at_high = 0.0f;
  float steep = 1.0f;
  bool done = !has_shape;
  for (int pass = 0; pass < kHalfPasses; pass++) {
    const __half2 from = __float2half2_rn(at);
    const int reached = halves.template count_from<Lanes>(from);
    if (!done) {
      threshold = from;
      at = __low2float(from);
      moved = at;
      done = reached == k;
    }
    if (__all_sync(kFullWarp, done)) break;
    const auto beyond = static_cast<float>(reached - k);
    if (done) continue;
    if (beyond > 0.0f) {
      low = at;
      at_low = beyond;
    } else {
      high = at;
      at_high = beyond;
    }
    if (isfinite(low) && isfinite(high)) {
      const float share = __fdividef(at_low, at_low - at_high);
      at = __fmaf_rn(high - low, fminf(0.9f, fmaxf(0.1f, share)), low);
    } else {
      at = __fmaf_rn(beyond, steep, at + (beyond > 0.0f ? 0.5f : -0.5f));
      steep *= kSteep;
    }
  }
  return __all_sync(kFullWarp, done && has_shape);
}

template <class Stored>
__device__ __forceinline__ Stored narrowed(float value);
template <>
__device__ __forceinline__ float narrowed<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ float16 narrowed<float16>(float value) {
  return {__half_as_ushort(__float2half_rn(value))};  // exact: it was one
}
template <>
__device__ __forceinline__ bfloat16 narrowed<bfloat16>(float value) {
  return {static_cast<std::uint16_t>(core::float_bits(value) >> 16)};
}

/// The input's own bits: from the key, unless it stands for several patterns.
template <class Stored>
__device__ __forceinline__ Stored original(const Stored* row, const staged_entry& entry, bool negated) {
  if (entry.key == core::kNanKey || entry.key == kZeroKey) return row[entry.column];
  const float value = core::from_ascending_key(entry.key);
  return narrowed<Stored>(negated ? -value : value);
}

/// Stages and stores the values that reach the threshold, for whole rows `first` and on, one a group; `stage` is the
/// warp's.
template <class Stored, int Values, int Lanes>
__device__ __forceinline__ void emit_halves(const rows_args& args, const lane_keys<Stored, Values, Lanes>& held,
                                            const lane_halves<Values>& halves, __half2 threshold, std::int64_t first,
                                            int lane, int group, int warp_lane, staged_entry* stage) {
  using row_type = lane_keys<Stored, Values, Lanes>;
  const int k = static_cast<int>(args.request.options.k);
  staged_entry* mine = stage + group * k;
  int total = 0;
#pragma unroll
  for (int pair = 0; pair < row_type::kUnits; pair += 2) {  // two units in the halves of a word
    std::uint32_t own = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (pair + half >= row_type::kUnits) continue;
      __half2 marks = __hge2(halves.u[(pair + half) * row_type::kUnit / 2], threshold);
#pragma unroll
      for (int i = 1; i < row_type::kUnit / 2; i++)
        marks = __hadd2(marks, __hge2(halves.u[(pair + half) * row_type::kUnit / 2 + i], threshold));
      own += static_cast<std::uint32_t>(__low2float(marks) + __high2float(marks)) << (16 * half);
    }
    std::uint32_t sum = own;
#pragma unroll
    for (int o = 1; o < Lanes; o <<= 1) {
      const std::uint32_t left = __shfl_up_sync(kFullWarp, sum, o, Lanes);
      if (lane >= o) sum += left;
    }
    const std::uint32_t all = __shfl_sync(kFullWarp, sum, Lanes - 1, Lanes);
    const std::uint32_t before = sum - own;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (pair + half >= row_type::kUnits) continue;
      staged_entry* to = mine + total + static_cast<int>(before >> (16 * half) & 0xFFFFu);
      total += static_cast<int>(all >> (16 * half) & 0xFFFFu);
      const int column = row_type::first_column(pair + half, lane);
#pragma unroll
      for (int c = 0; c < row_type::kUnit; c++) {
        const int v = (pair + half) * row_type::kUnit + c;
        const __half2 two = halves.u[v / 2];
        const bool reaches =
            v % 2 == 0 ? __hge(__low2half(two), __low2half(threshold)) : __hge(__high2half(two), __low2half(threshold));
        if (reaches) *to++ = {held.keys[v], static_cast<std::uint32_t>(column + c)};
      }
    }
  }
  __syncwarp();
  const top_k_output& out = args.request.out;
  const std::int64_t at = first * k;
  const int entries = kWarp / Lanes * k;
  for (int i = warp_lane; i < entries; i += kWarp) {
    const staged_entry entry = stage[i];
    if (out.values) static_cast<Stored*>(out.values)[at + i] = narrowed<Stored>(core::float_from_bits(entry.key));
    if (!out.indices) continue;
    if (out.indices_as == index_type::i32) {
      static_cast<std::int32_t*>(out.indices)[at + i] = static_cast<std::int32_t>(entry.column);
    } else {
      static_cast<std::int64_t*>(out.indices)[at + i] = entry.column;
    }
  }
  __syncwarp();
}

template <class Stored, int Values, int Lanes>
__global__ void __launch_bounds__(kThreads) warp_rows_kernel(const __grid_constant__ rows_args args) {
  using row_type = lane_keys<Stored, Values, Lanes>;
  constexpr int kGroups = kWarp / Lanes;
  const core::top_k_request& request = args.request;
  const int warp_lane = static_cast<int>(threadIdx.x) % kWarp;
  const int lane = warp_lane % Lanes;
  const int group = warp_lane / Lanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int k = static_cast<int>(request.options.k);
  const bool negated = request.options.order == order::smallest;
  const std::int64_t rows = request.matrix.rows;
  auto* stage = reinterpret_cast<staged_entry*>(dynamic_shared()) + (warp * kGroups + group) * k;
  float learned = args.deviations;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps * kGroups;
  for (std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kWarps + warp) * kGroups; first < rows;
       first += step) {
    const std::int64_t index = min(first + group, rows - 1);
    const bool there = first + group < rows;
    const std::int64_t begin = request.ragged.begins ? request.ragged.begins[index] : 0;
    const std::int64_t end = request.ragged.ends ? request.ragged.ends[index] : request.matrix.cols;
    const int count = static_cast<int>(end - begin);
    const auto* row = static_cast<const Stored*>(request.matrix.data) + index * request.matrix.row_stride + begin;
    const int best = min(k, count);

    row_type held;
    float sum = 0.0f;
    float squares = 0.0f;
    held.load(row, count, lane, sum, squares);
    const float mean = sum / static_cast<float>(max(count, 1));
    const float deviation = sqrtf(fmaxf(2.0f * squares / static_cast<float>(max(count, 1)) - mean * mean, 0.0f));
    const float sign = negated ? -1.0f : 1.0f;

    if (args.by_halves && first + kGroups <= rows) {
      const float border = __fmaf_rn(learned, deviation, sign * mean);
      const float scale = args.density / deviation;
      const bool has_shape = isfinite(mean) && scale > 0.0f && isfinite(scale);
      lane_halves<Values> halves;
      halves.map(held, sign * scale, -border * scale);
      __half2 threshold = __float2half2_rn(0.0f);
      float moved = 0.0f;
      if (find_half_threshold<Lanes>(halves, k, has_shape, threshold, moved)) {
        learned += 0.125f * moved / args.density;
        emit_halves(args, held, halves, threshold, first, lane, group, warp_lane, stage - group * k);
        continue;
      }
    }
    held.to_keys(negated);

    selection chosen{};
    bool early = false;
    if (args.stops_by_eps || args.stops_by_count) {
      const int numbers = held.count_from(kMinusInfinityKey + 1);  // all lanes count twice: they shuffle
      const int infinities = held.count_from(kInfinityKey);
      early = numbers == count && infinities == 0 && count > k;
      chosen = bisect(args, held, count, k, early);
    }
    if (!__all_sync(kFullWarp, early)) {
      const selection exact = find_border(args, held, count, max(best, 1), sign * mean, deviation, learned);
      if (!early) chosen = exact;
    }
    if (best == 0) chosen = {~0u, ~0u, 0, 0};

    bool marked[Values];
    bool filling[Values];
#pragma unroll
    for (int v = 0; v < Values; v++) marked[v] = held.keys[v] >= chosen.from;
    if (__any_sync(kFullWarp, chosen.fill > 0 || args.stops_by_eps || args.stops_by_count)) {
#pragma unroll
      for (int v = 0; v < Values; v++) filling[v] = held.keys[v] >= chosen.fill_from && held.keys[v] < chosen.from;
      keep_first<row_type, Lanes>(marked, chosen.sure, lane);
      keep_first<row_type, Lanes>(filling, chosen.fill, lane);
#pragma unroll
      for (int v = 0; v < Values; v++) marked[v] = marked[v] || filling[v];
    }

    if (request.out.mask) {
      std::uint8_t* mask = request.out.mask + index * request.matrix.cols;
      if (there) {
        for (std::int64_t c = lane; c < request.matrix.cols; c += Lanes)
          if (c < begin || c >= end) mask[c] = 0;
#pragma unroll
        for (int v = 0; v < Values; v++) {
          const int column = row_type::first_column(v / row_type::kUnit, lane) + v % row_type::kUnit;
          if (column < count) mask[begin + column] = marked[v] ? 1 : 0;
        }
      }
      continue;
    }

    const places<row_type, Lanes> at(marked, lane);
#pragma unroll
    for (int j = 0; j < row_type::kUnits; j++) {
      int place = at.first[j];
#pragma unroll
      for (int c = 0; c < row_type::kUnit; c++) {
        const int v = j * row_type::kUnit + c;
        if (marked[v]) {
          stage[place] = {held.keys[v], static_cast<std::uint32_t>(row_type::first_column(j, lane) + c)};
          place++;
        }
      }
    }
    __syncwarp();
    if (there) {
      for (int i = lane; i < k; i += Lanes) {
        int place = i;
        if (i < best && request.options.sorted) {
          place = 0;
          for (int other = 0; other < best; other++)
            place += stage[other].key > stage[i].key || (stage[other].key == stage[i].key && other < i) ? 1 : 0;
        }
        const std::int64_t to = index * k + place;
        if (request.out.values) {
          auto* values = static_cast<Stored*>(request.out.values);
          values[to] = i < best ? original(row, stage[i], negated)
                                : narrowed<Stored>(core::float_from_bits(negated ? 0x7F800000u : 0xFF800000u));
        }
        const std::int64_t column = i < best ? begin + stage[i].column : -1;
        if (request.out.indices && request.out.indices_as == index_type::i32)
          static_cast<std::int32_t*>(request.out.indices)[to] = static_cast<std::int32_t>(column);
        if (request.out.indices && request.out.indices_as == index_type::i64)
          static_cast<std::int64_t*>(request.out.indices)[to] = column;
      }
    }
    __syncwarp();
  }
}

template <class Stored, int Values, int Lanes>
void launch_shape_of(cudaStream_t stream, const rows_args& args, int multiprocessors) {
  constexpr int kGroups = kWarp / Lanes;
  constexpr int kBlocksEach = 8;  // of a multiprocessor, more or less: persistent warps, which learn where borders lie
  const std::int64_t rows = args.request.matrix.rows;
  const std::int64_t blocks = (rows + kWarps * kGroups - 1) / (kWarps * kGroups);
  const launch_shape how{
      .grid = dim3(static_cast<unsigned>(std::min<std::int64_t>(blocks, std::int64_t{multiprocessors} * kBlocksEach))),
      .threads = kThreads,
      .shared_bytes = kWarps * kGroups * args.request.options.k * static_cast<std::int64_t>(sizeof(staged_entry))};
  launch(warp_rows_kernel<Stored, Values, Lanes>, how, stream, args, "launching the row-wise top k");
}

template <class Stored>
void launch_type(cudaStream_t stream, const rows_args& args, int multiprocessors) {
  const std::int64_t cols = args.request.matrix.cols;
  if (cols <= 64) return launch_shape_of<Stored, 8, 8>(stream, args, multiprocessors);
  if (cols <= 128) return launch_shape_of<Stored, 16, 8>(stream, args, multiprocessors);
  if (cols <= 256) return launch_shape_of<Stored, 32, 8>(stream, args, multiprocessors);
  if (cols <= 512) return launch_shape_of<Stored, 32, 16>(stream, args, multiprocessors);
  launch_shape_of<Stored, 32, 32>(stream, args, multiprocessors);
}

}  // namespace

bool warp_rows_serve(const core::top_k_request& request) {
  return request.matrix.type != value_type::f64 && request.matrix.col_stride == 1 &&
         request.matrix.cols <= kWarpRowsMaxCols;
}

void launch_warp_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  rows_args args{};
  args.request = request;
  const auto cols = static_cast<double>(request.matrix.cols);
  const double share = (static_cast<double>(request.options.k) + 0.5) / (cols + 1.0);
  args.deviations = static_cast<float>(core::upper_quantile(share));
  args.density = static_cast<float>(cols * core::normal_density(args.deviations));
  args.stops_by_eps = request.options.eps.has_value();
  args.eps = request.options.eps.value_or(0.0f);
  args.stops_by_count = request.options.max_iter.has_value();
  args.max_iter = request.options.max_iter.value_or(0);
  args.by_halves = !request.ragged.begins && !request.ragged.ends && !request.options.sorted && !request.out.mask &&
                   !args.stops_by_eps && !args.stops_by_count && request.options.k < request.matrix.cols;
  switch (request.matrix.type) {
    case value_type::f32: return launch_type<float>(stream, args, multiprocessors);
    case value_type::f16: return launch_type<float16>(stream, args, multiprocessors);
    case value_type::bf16: return launch_type<bfloat16>(stream, args, multiprocessors);
    case value_type::f64: return;
  }
}

}  // namespace shortlist::cuda
