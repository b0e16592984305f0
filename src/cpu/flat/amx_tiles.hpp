// Intel's matrix unit (AMX): tiles of 16 rows of 64 bytes, and products of bytes summed in 32 bits.
//
// In assembly, as compilers know these instructions only in functions that are compiled for them, and those could not
// be inlined where the rest is compiled for plain AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shortlist::cpu {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kTileRowBytes = 64;
inline constexpr std::int64_t kTileBytes = kTileRows * kTileRowBytes;

/// The shapes of a thread's eight tiles: all of them whole.
struct alignas(64) tile_shapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(tile_shapes) == 64);

#if defined(__x86_64__)

/// While it lives, this thread has tiles; afterwards they cost a change of threads nothing.
class tile_use {
 public:
  tile_use() {
    static constexpr tile_shapes kShapes;
    __asm__ volatile("ldtilecfg %0" : : "m"(kShapes));
  }
  ~tile_use() { __asm__ volatile("tilerelease"); }
  tile_use(const tile_use&) = delete;
  tile_use& operator=(const tile_use&) = delete;
};

/// Sums of products of two tiles of signed codes with two of unsigned ones: sums[a][b][i][j] adds up the products of
/// row i of the a-th with the four bytes in each of the 16 rows of the b-th that stand at column j. It lives in tiles 0
/// to 3.
class tile_sums {
 public:
  tile_sums() { __asm__ volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3"); }

  /// Adds products of 64 codes. `codes` are the two tiles of signed ones, one behind the other.
  void add(const std::byte* codes, const std::byte* first, const std::byte* second) {
    __asm__ volatile(
        "tileloadd (%[first],%[stride],1), %%tmm6\n\t"
        "tileloadd (%[codes],%[stride],1), %%tmm4\n\t"
        "tdpbsud %%tmm6, %%tmm4, %%tmm0\n\t"
        "tileloadd (%[second],%[stride],1), %%tmm7\n\t"
        "tdpbsud %%tmm7, %%tmm4, %%tmm1\n\t"
        "tileloadd %c[next](%[codes],%[stride],1), %%tmm5\n\t"
        "tdpbsud %%tmm6, %%tmm5, %%tmm2\n\t"
        "tdpbsud %%tmm7, %%tmm5, %%tmm3"
        :
        : [codes] "r"(codes), [first] "r"(first), [second] "r"(second), [stride] "r"(kTileRowBytes),
          [next] "i"(kTileBytes)
        : "memory");
  }

  void store(std::int32_t (&sums)[2][2][kTileRows][kTileRows]) const {
    __asm__ volatile(
        "tilestored %%tmm0, (%[to],%[stride],1)\n\t"
        "tilestored %%tmm1, %c[tile](%[to],%[stride],1)\n\t"
        "tilestored %%tmm2, 2*%c[tile](%[to],%[stride],1)\n\t"
        "tilestored %%tmm3, 3*%c[tile](%[to],%[stride],1)"
        :
        : [to] "r"(&sums[0][0][0][0]), [stride] "r"(kTileRowBytes), [tile] "i"(kTileBytes)
        : "memory");
  }
};

#endif

}  // namespace shortlist::cpu
