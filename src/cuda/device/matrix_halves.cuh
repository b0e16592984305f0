// Hopper's matrix units on halves: 64 rows from registers by 40 or 80 columns from shared memory, 16 elements deep.
//
// As matrix_bytes.cuh has it, whose columns these are: a product takes 32 bytes of each. A lane's 16 bytes of rows are
// elements 2 t and the next of rows g and g + 8, then elements 2 t + 8 and the next of both. Products of halves are
// exact; their sums are rounded in ways that nobody promises. Works only in code for sm_90a.
#pragma once

#include <cstdint>

#include "cuda/device/matrix_bytes.cuh"

namespace shortlist::cuda {

inline constexpr int kHalvesDeep = kBytesDeep / 2;

/// Keeps the compiler from reading sums before they are waited for, and from writing them, or rows, after products have
/// begun.
template <int Sums>
__device__ __forceinline__ void products_hold(float (&d)[Sums]) {
#pragma unroll
  for (int i = 0; i < Sums; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <int Steps>
__device__ __forceinline__ void products_hold(uint4 (&rows)[Steps]) {
#pragma unroll
  for (int s = 0; s < Steps; s++)
    asm volatile("" : "+r"(rows[s].x), "+r"(rows[s].y), "+r"(rows[s].z), "+r"(rows[s].w)::"memory");
}

// clang-format off
/// d += rows x columns, of 40 columns.
__device__ __forceinline__ void multiply_add(float (&d)[20], const uint4& rows, std::uint64_t columns) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n40k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19"
      "}, {%20, %21, %22, %23}, %24, add, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
      : "r"(rows.x), "r"(rows.y), "r"(rows.z), "r"(rows.w), "l"(columns));
}

/// d += rows x columns, of 80 columns.
__device__ __forceinline__ void multiply_add(float (&d)[40], const uint4& rows, std::uint64_t columns) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.eq.u32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
      "}, {%40, %41, %42, %43}, %44, add, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
      : "r"(rows.x), "r"(rows.y), "r"(rows.z), "r"(rows.w), "l"(columns));
}
// clang-format on

}  // namespace shortlist::cuda
