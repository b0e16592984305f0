// What the kernels of row-wise top k share: keys, what a search selects, early stops, and writing an entry.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/backend.hpp"
#include "core/order.hpp"
#include "core/score.hpp"

namespace shortlist::cuda {

constexpr std::uint32_t kMinusInfinityKey = 0x007FFFFFu;
constexpr std::uint32_t kZeroKey = 0x80000000u;  // of -0 and of +0
constexpr std::uint32_t kInfinityKey = 0xFF800000u;

/// 32-bit keys of fp32, fp16 and bf16, 64-bit ones of fp64: unsigned order is the order of docs/ordering.md, section 8.
template <class Stored>
using key_for = std::conditional_t<sizeof(Stored) == 8, std::uint64_t, std::uint32_t>;

template <class Stored>
__device__ __forceinline__ key_for<Stored> key_of_value(Stored value, bool negated) {
  if constexpr (sizeof(Stored) == 8) {
    if (value != value) return 0;
    constexpr std::uint64_t kSign = std::uint64_t{1} << 63;
    const auto bits = static_cast<std::uint64_t>(__double_as_longlong((negated ? -value : value) + 0.0));
    return bits & kSign ? ~bits : bits | kSign;
  } else {
    const float wide = core::widen(value);
    return core::score_key(negated ? -wide : wide, metric::inner_product);
  }
}

/// Calls launch(stored), stored being a value of the matrix's type. @pre not f64.
template <class Launch>
void by_stored_type(value_type type, Launch launch) {
  switch (type) {
    case value_type::f32: return launch(float{});
    case value_type::f16: return launch(float16{});
    case value_type::bf16: return launch(bfloat16{});
    case value_type::f64: return;
  }
}

/// A value of the matrix again, from its own widened value.
template <class Stored>
__device__ __forceinline__ Stored narrowed(float value) {
  if constexpr (std::is_same_v<Stored, float16>) {
    return {__half_as_ushort(__float2half_rn(value))};
  } else if constexpr (std::is_same_v<Stored, bfloat16>) {
    return {static_cast<std::uint16_t>(core::float_bits(value) >> 16)};
  } else {
    return value;
  }
}

/// Whether a 32-bit key stands for several patterns of bits, so that the value must be read again.
__device__ __forceinline__ bool is_ambiguous(std::uint32_t key) { return key == core::kNanKey || key == kZeroKey; }

/// What pads a row of fewer than k columns.
template <class Stored>
__device__ __forceinline__ Stored worst_value(bool negated) {
  if constexpr (sizeof(Stored) == 8) {
    return negated ? HUGE_VAL : -HUGE_VAL;
  } else {
    return narrowed<Stored>(core::float_from_bits(negated ? 0x7F800000u : 0xFF800000u));
  }
}
constexpr std::int64_t kNoColumn = -1;

__device__ __forceinline__ void write_index(const top_k_output& out, std::int64_t to, std::int64_t column) {
  if (!out.indices) return;
  if (out.indices_as == index_type::i32) {
    static_cast<std::int32_t*>(out.indices)[to] = static_cast<std::int32_t>(column);
  } else {
    static_cast<std::int64_t*>(out.indices)[to] = column;
  }
}

template <class Stored>
__device__ __forceinline__ void write_entry(const top_k_output& out, std::int64_t to, Stored value,
                                            std::int64_t column) {
  if (out.values) static_cast<Stored*>(out.values)[to] = value;
  write_index(out, to, column);
}

/// The columns of one row: ragged or whole.
struct row_span {
  std::int64_t begin;
  std::int64_t count;
};
__device__ __forceinline__ row_span span_of(const core::top_k_request& request, std::int64_t row) {
  const std::int64_t begin = request.ragged.begins ? request.ragged.begins[row] : 0;
  const std::int64_t end = request.ragged.ends ? request.ragged.ends[row] : request.matrix.cols;
  return {begin, end - begin};
}

/// What a search selects, in the order of columns: the first `sure` of the keys >= from, and the first `fill` of those
/// in [fill_from, from).
template <class Key>
struct row_selection {
  Key from;
  Key fill_from;
  std::int64_t sure;
  std::int64_t fill;
};

/// The early stop that a request asks for.
struct early_stop {
  float eps = 0.0f;
  std::int32_t max_iter = 0;
  bool by_eps = false;
  bool by_count = false;

  __host__ __device__ bool asked() const { return by_eps || by_count; }
};
inline early_stop early_stop_of(const top_k_options& options) {
  return {options.eps.value_or(0.0f), options.max_iter.value_or(0), options.eps.has_value(),
          options.max_iter.has_value()};
}

/// The midpoint of docs/ordering.md, section 9.
__device__ __forceinline__ float midpoint(float low, float high) {
  const float sum = __fadd_rn(low, high);
  return isfinite(sum) ? __fmul_rn(sum, 0.5f) : __fadd_rn(__fmul_rn(low, 0.5f), __fmul_rn(high, 0.5f));
}

/// Follows the bisection of a row of finite numbers. A midpoint is reached by k values exactly where it does not exceed
/// the k-th best, so that no midpoint need be counted. In: `low` and `high`, the row's least and most; out: where the
/// bisection leaves them.
/// @param border the k-th best. @param next the (k+1)-th best; for Algorithm 1 alone.
/// @return whether Algorithm 1 met a midpoint that exactly k values reach: then the result is the exact set.
__device__ __forceinline__ bool bisect(const early_stop& stop, float border, float next, float& low, float& high) {
  const float width = __fmul_rn(stop.eps, fabsf(high));
  const bool sums_fit = isfinite(__fadd_rn(low, low)) && isfinite(__fadd_rn(high, high));  // and all in between
  for (int step = 0; !stop.by_count || step < stop.max_iter; step++) {
    const float middle = sums_fit ? __fmul_rn(__fadd_rn(low, high), 0.5f) : midpoint(low, high);
    if (stop.by_eps) {
      if (!(__fsub_rn(high, low) > width) || middle <= low || middle >= high) return false;
      if (border >= middle && middle > next) return true;
    }
    (border >= middle ? low : high) = middle;
  }
  return false;
}

}  // namespace shortlist::cuda
