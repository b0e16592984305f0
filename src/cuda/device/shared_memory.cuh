// Shared memory by its own 32-bit addresses, and values that stay in registers.
//
// The compiler computes the base of a pointer to shared memory, and a thread's number in its block, anew wherever they
// are used: a dozen instructions in a loop of a hundred.
#pragma once

#include <cstdint>

namespace shortlist::cuda {

/// Keeps a value in its register instead of computing it again.
template <class T>
__device__ __forceinline__ T held(T value) {
  static_assert(sizeof(T) == 4);
  asm volatile("" : "+r"(value));
  return value;
}

template <class T>
__device__ __forceinline__ T load_shared(std::uint32_t address);

template <>
__device__ __forceinline__ std::uint32_t load_shared(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
template <>
__device__ __forceinline__ std::uint16_t load_shared(std::uint32_t address) {
  std::uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}
template <>
__device__ __forceinline__ uint2 load_shared(std::uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address) : "memory");
  return value;
}
template <>
__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

/// The bits of a value of 32 or 16 bits, or 0 where it is not to be read; without a branch. @param reads 0 where not.
template <class T>
__device__ __forceinline__ std::uint32_t load_shared_if(std::uint32_t reads, std::uint32_t address) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 2);
  std::uint32_t bits = 0;
  if constexpr (sizeof(T) == 4) {
    asm volatile(
        "{\n"
        ".reg .pred reads;\n"
        "setp.ne.u32 reads, %1, 0;\n"
        "@reads ld.shared.u32 %0, [%2];\n"
        "}"
        : "+r"(bits)
        : "r"(reads), "r"(address)
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred reads;\n"
        ".reg .u16 half;\n"
        "setp.ne.u32 reads, %1, 0;\n"
        "mov.u16 half, 0;\n"
        "@reads ld.shared.u16 half, [%2];\n"
        "cvt.u32.u16 %0, half;\n"
        "}"
        : "+r"(bits)
        : "r"(reads), "r"(address)
        : "memory");
  }
  return bits;
}

/// A value where i < end, else `otherwise`; without a branch.
__device__ __forceinline__ std::uint32_t load_shared_below(int i, int end, std::uint32_t address,
                                                           std::uint32_t otherwise) {
  asm volatile(
      "{\n"
      ".reg .pred has;\n"
      "setp.lt.s32 has, %1, %2;\n"
      "@has ld.shared.u32 %0, [%3];\n"
      "}"
      : "+r"(otherwise)
      : "r"(i), "r"(end), "r"(address)
      : "memory");
  return otherwise;
}

__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint16_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}
/// Where `stores` is not 0; without a branch.
__device__ __forceinline__ void store_shared_if(std::uint32_t stores, std::uint32_t address, std::uint16_t value) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.u32 stores, %0, 0;\n"
      "@stores st.shared.u16 [%1], %2;\n"
      "}" ::"r"(stores),
      "r"(address), "h"(value)
      : "memory");
}
/// The lowest byte of a value.
__device__ __forceinline__ void store_shared_byte(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, uint2 value) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y) : "memory");
}

__device__ __forceinline__ void add_shared(std::uint32_t address, std::uint32_t value) {
  asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void set_shared_bits(std::uint32_t address, std::uint32_t bits) {
  asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}
__device__ __forceinline__ void clear_shared_bits(std::uint32_t address, std::uint32_t bits) {
  asm volatile("red.shared.and.b32 [%0], %1;" ::"r"(address), "r"(~bits) : "memory");
}
/// @returns what was there before.
__device__ __forceinline__ std::uint32_t fetch_add_shared(std::uint32_t address, std::uint32_t value) {
  std::uint32_t before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(value) : "memory");
  return before;
}

/// Adds one to a count in shared memory where a number is no more than `most`: lanes that count in the same place are
/// added up first, which costs a branch around it, and a fifth fewer instructions than one around all of this.
__device__ __forceinline__ void count_up_to(std::uint32_t number, std::uint32_t most, std::uint32_t address) {
  asm volatile(
      "{\n"
      ".reg .pred counts;\n"
      "setp.le.u32 counts, %1, %2;\n"
      "@counts red.shared.add.u32 [%0], 1;\n"
      "}" ::"r"(address),
      "r"(number), "r"(most)
      : "memory");
}

/// The same where no number is too large.
__device__ __forceinline__ void count_shared(std::uint32_t address) {
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(address) : "memory");
}

/// The bits of a value in shared memory.
template <class Stored>
__device__ __forceinline__ std::uint32_t load_bits(std::uint32_t address) {
  if constexpr (sizeof(Stored) == 4)
    return load_shared<std::uint32_t>(address);
  else
    return load_shared<std::uint16_t>(address);
}
template <class Stored>
__device__ __forceinline__ void store_bits(std::uint32_t address, std::uint32_t bits) {
  if constexpr (sizeof(Stored) == 4)
    store_shared(address, bits);
  else
    store_shared(address, static_cast<std::uint16_t>(bits));
}

}  // namespace shortlist::cuda
