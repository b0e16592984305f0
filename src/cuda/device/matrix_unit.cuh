// Products of small tiles by the matrix units.
#pragma once

#include <cstdint>

namespace shortlist::cuda {

/// sums += rows x columns, 16 rows by 8 columns over 32 signed bytes each, added in 32 bits that wrap. Of lane 4 g + t:
/// `rows` has bytes 4 t .. + 3 of rows g and g + 8, then bytes 16 + 4 t .. + 3 of both; `columns` those two of column
/// g; `sums` columns 2 t and 2 t + 1 of row g, then of row g + 8.
__device__ __forceinline__ void multiply_codes(const uint4& rows, const uint2& columns, std::int32_t (&sums)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, "
      "%13};"
      : "=r"(sums[0]), "=r"(sums[1]), "=r"(sums[2]), "=r"(sums[3])
      : "r"(rows.x), "r"(rows.y), "r"(rows.z), "r"(rows.w), "r"(columns.x), "r"(columns.y), "r"(sums[0]), "r"(sums[1]),
        "r"(sums[2]), "r"(sums[3]));
}

}  // namespace shortlist::cuda
