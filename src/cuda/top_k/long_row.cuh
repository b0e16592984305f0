// A long row where it lies in global memory: the columns before its first whole vector of 16 bytes, the vectors, and
// the columns behind them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/order.hpp"
#include "cuda/device/element.cuh"
#include "cuda/top_k/row_parts.cuh"

namespace shortlist::cuda {

/// Stored values of a vector of 16 bytes.
template <class Stored>
inline constexpr int kPerVector = 16 / static_cast<int>(sizeof(Stored));

/// A whole row: the columns before its first vector, its vectors, and the columns behind them.
template <class Stored>
struct whole_row {
  const Stored* values;  // of its first column
  std::uint32_t first_column;
  std::uint32_t columns;
  std::uint32_t head;
  std::uint32_t vectors;

  __device__ __forceinline__ std::uint32_t tail() const { return columns - head - vectors * kPerVector<Stored>; }
};

template <class Stored>
__device__ __forceinline__ whole_row<Stored> open_row(const core::top_k_request& request, std::int64_t row) {
  const row_span span = span_of(request, row);
  const Stored* values = static_cast<const Stored*>(request.matrix.data) + row * request.matrix.row_stride + span.begin;
  const auto columns = static_cast<std::uint32_t>(span.count);
  const auto past = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(values) % 16 / sizeof(Stored));
  const std::uint32_t head = min(columns, past == 0 ? 0 : kPerVector<Stored> - past);
  return {values, static_cast<std::uint32_t>(span.begin), columns, head, (columns - head) / kPerVector<Stored>};
}

/// The low bits of a key that all values of the type share, but for their sign.
template <class Stored>
constexpr std::uint32_t kSharedBits = sizeof(Stored) == 4               ? 0
                                      : std::is_same_v<Stored, float16> ? 13
                                                                        : 16;

/// A stored value as a number, in the order of its keys: a key without the bits that all values of the type share.
template <class Stored>
__device__ __forceinline__ std::uint32_t number_of(Stored value, bool negated) {
  return key_of_value(value, negated) >> kSharedBits<Stored>;
}
template <class Stored>
constexpr std::uint32_t kInfinityNumber = kInfinityKey >> kSharedBits<Stored>;  // the best

/// The signs of a word of stored values.
template <class Stored>
inline constexpr std::uint32_t kSigns = sizeof(Stored) == 4 ? core::kSignBit : 0x80008000u;

/// What turns the signs of a word of stored values, so that larger is better.
template <class Stored>
__device__ __forceinline__ std::uint32_t sign_flip(const core::top_k_request& request) {
  if (request.options.order == order::largest) return 0;
  return kSigns<Stored>;
}

template <class Stored>
__device__ __forceinline__ void widen_vector(uint4 raw, float (&values)[kPerVector<Stored>]) {
  if constexpr (sizeof(Stored) == 4) {
    const float4 all = quad<element_type::f32>::widen(raw);
    values[0] = all.x, values[1] = all.y, values[2] = all.z, values[3] = all.w;
  } else {
    using half_vector = quad<std::is_same_v<Stored, float16> ? element_type::f16 : element_type::bf16>;
    const float4 low = half_vector::widen(make_uint2(raw.x, raw.y));
    const float4 high = half_vector::widen(make_uint2(raw.z, raw.w));
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
  }
}

__device__ __forceinline__ std::uint32_t key_of_wide(float value) {
  return core::score_key(value, metric::inner_product);
}

/// Writes the entries of one row of the result.
template <class Stored>
class row_writer {
 public:
  __device__ __forceinline__ row_writer(const core::top_k_request& request, std::int64_t index,
                                        const whole_row<Stored>& row)
      : request_(request), row_(row), to_(index * request.options.k) {}
  /// @param key of the chosen column, in a search for the largest.
  __device__ __forceinline__ void operator()(std::uint32_t place, std::uint64_t key) const {
    const std::uint32_t column = core::position_of(key);
    const std::uint32_t bits = core::key_of(key);
    const float value = core::from_ascending_key(bits);
    const bool is_read = request_.out.values && is_ambiguous(bits);
    const bool negated = request_.options.order == order::smallest;
    stored(place, column,
           is_read ? row_.values[column - row_.first_column] : narrowed<Stored>(negated ? -value : value));
  }
  /// The value as it is stored.
  __device__ __forceinline__ void stored(std::uint32_t place, std::uint32_t column, Stored value) const {
    write_entry(request_.out, to_ + place, value, column);
  }
  /// Where the row's first entry goes in the result.
  __device__ __forceinline__ std::int64_t first() const { return to_; }
  __device__ __forceinline__ void pad(std::uint32_t place) const {
    write_entry(request_.out, to_ + place, worst_value<Stored>(request_.options.order == order::smallest), kNoColumn);
  }

 private:
  const core::top_k_request& request_;
  const whole_row<Stored>& row_;
  std::int64_t to_;
};

}  // namespace shortlist::cuda
