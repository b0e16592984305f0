// Four neighbouring stored elements: how they are loaded, and how they widen to fp32, exactly.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "shortlist/types.hpp"

namespace shortlist::cuda {

/// Streaming loads: each byte of the corpus is used once, so L1 keeps none of it.
__device__ __forceinline__ uint4 load_streaming(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_streaming(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ std::uint32_t load_streaming(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

/// The same of rows that lie apart: no more than their own lines are brought to L2.
__device__ __forceinline__ uint4 load_apart(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_apart(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ std::uint32_t load_apart(const std::uint32_t* p) {
  std::uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

/// quad<E>::raw holds four elements; widen() makes them fp32.
template <element_type E>
struct quad;

template <>
struct quad<element_type::f32> {
  using raw = uint4;
  static __device__ __forceinline__ float4 widen(raw v) {
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
  }
};

template <>
struct quad<element_type::f16> {
  using raw = uint2;
  static __device__ __forceinline__ float4 widen(raw v) {
    const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&v.x));
    const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&v.y));
    return make_float4(a.x, a.y, b.x, b.y);
  }
};

template <>
struct quad<element_type::bf16> {
  using raw = uint2;
  static __device__ __forceinline__ float4 widen(raw v) {
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000u), __uint_as_float(v.y << 16),
                       __uint_as_float(v.y & 0xFFFF0000u));
  }
};

/// A byte in the low mantissa of 2^23 is 2^23 + byte, exactly: one permute and one add, where a conversion
/// instruction runs at a quarter of the rate.
__device__ __forceinline__ float4 widen_bytes(std::uint32_t bytes, float offset) {
  constexpr std::uint32_t kTwoTo23 = 0x4B000000u;
  return make_float4(__fsub_rn(__uint_as_float(__byte_perm(bytes, kTwoTo23, 0x7440)), offset),
                     __fsub_rn(__uint_as_float(__byte_perm(bytes, kTwoTo23, 0x7441)), offset),
                     __fsub_rn(__uint_as_float(__byte_perm(bytes, kTwoTo23, 0x7442)), offset),
                     __fsub_rn(__uint_as_float(__byte_perm(bytes, kTwoTo23, 0x7443)), offset));
}

template <>
struct quad<element_type::u8> {
  using raw = std::uint32_t;
  static __device__ __forceinline__ float4 widen(raw v) { return widen_bytes(v, 8388608.0f); }
};

template <>
struct quad<element_type::i8> {
  using raw = std::uint32_t;
  static __device__ __forceinline__ float4 widen(raw v) {
    return widen_bytes(v ^ 0x80808080u, 8388608.0f + 128.0f);  // i8 + 128 is a u8
  }
};

}  // namespace shortlist::cuda
