// Codes become rows as the matrix units take them, in registers.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/element.cuh"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/page_layout.hpp"

namespace shortlist::cuda {

/// What a code stands for: two halves or four, by a look-up in shared memory; or one whole number, by arithmetic. Or
/// pages hold the halves themselves.
enum class code_form : std::uint8_t { pairs, quads, numbers4, numbers8, halves };

/// The rows of a page: for each step of 16 halves, the lane's part of rows g and g + 8, twice.
template <int Steps>
using page_rows = std::uint32_t[kPageTiles][Steps][4];

/// The layout of a row of 16 * Steps halves, at compile time; page_layout has the same at run time.
template <code_form Form, int Steps>
struct form_layout {
  static constexpr int kHalves = Form == code_form::pairs ? 2 : Form == code_form::quads ? 4 : 1;  // of a piece
  static constexpr int kCodeBits = Form == code_form::numbers4 ? 4 : 8;
  static constexpr bool kLooksUp = Form == code_form::pairs || Form == code_form::quads;
  static constexpr int kLanePieces = 4 * Steps / kHalves;
  static constexpr int kRowWords = kLanePieces * kCodeBits / 32;  // of a lane, of one of its two rows
  static constexpr int kLaneWords = 2 * kRowWords;
  static constexpr int kPlaneWords = kLaneWords % 4 == 0 ? 4 : 2;
  static constexpr int kTileWords = kLaneWords * 32;
  static constexpr int kPieces = kLanePieces * 4;
  static_assert(kRowWords >= 1);
};

/// Rows as halves: tiles of [Steps][32 lanes][16 bytes], then terms.
template <int Steps>
inline constexpr std::int64_t kHalvesPageBytes = kPageTiles* Steps * 512 + core::kPageRows * 4;

/// What one lane takes of a page: two tiles' codes, and the term of one of its four rows: of row g + 8 t. Registers may
/// hold the codes of the first tile alone while another page is looked at; then those of the other wait in the L2
/// cache.
template <code_form Form, int Steps>
struct lane_codes {
  using layout = form_layout<Form, Steps>;
  static constexpr int kMostWords = 71;  // of codes and of decoded rows
  static constexpr int kTilesAhead = kPageTiles * (layout::kLaneWords + 4 * Steps) > kMostWords ? 1 : kPageTiles;
  std::uint32_t words[kPageTiles][layout::kLaneWords];
  float term;

  /// What may be asked for while another page is looked at.
  __device__ __forceinline__ void load_ahead(const std::byte* page, int lane) {
    constexpr std::int64_t kTileBytes = layout::kTileWords * 4;
    term = __ldcs(reinterpret_cast<const float*>(page + kPageTiles * kTileBytes) + lane % kLanesOfRow * 8 +
                  lane / kLanesOfRow);
#pragma unroll
    for (int tile = 0; tile < kTilesAhead; tile++) load_tile(page, lane, tile);
    if (kTilesAhead == kPageTiles) return;
    const std::int64_t of_lane = kTilesAhead * kTileBytes + lane * kLineBytes;
    if (of_lane < kPageTiles * kTileBytes) prefetch_line(page + of_lane);
  }

  /// The rest, when the page is looked at.
  __device__ __forceinline__ void load_rest(const std::byte* page, int lane) {
#pragma unroll
    for (int tile = kTilesAhead; tile < kPageTiles; tile++) load_tile(page, lane, tile);
  }

 private:
  __device__ __forceinline__ void load_tile(const std::byte* page, int lane, int tile) {
    const auto* codes = reinterpret_cast<const std::uint32_t*>(page) + tile * layout::kTileWords;
#pragma unroll
    for (int plane = 0; plane < layout::kLaneWords / layout::kPlaneWords; plane++) {
      const std::uint32_t* from = codes + (plane * 32 + lane) * layout::kPlaneWords;
      std::uint32_t* to = words[tile] + plane * layout::kPlaneWords;
      if constexpr (layout::kPlaneWords == 4) {
        const uint4 v = load_streaming(reinterpret_cast<const uint4*>(from));
        to[0] = v.x;
        to[1] = v.y;
        to[2] = v.z;
        to[3] = v.w;
      } else {
        const uint2 v = load_streaming(reinterpret_cast<const uint2*>(from));
        to[0] = v.x;
        to[1] = v.y;
      }
    }
  }
};

__device__ __forceinline__ std::uint32_t subtract_halves(std::uint32_t a, std::uint32_t b) {
  std::uint32_t difference;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}

/// (a & b) | c, by one instruction: constants that it would take two for are kept in registers.
__device__ __forceinline__ std::uint32_t and_or(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

__device__ __forceinline__ std::uint32_t multiply_add_halves(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

/// Two of the four codes of a word of eight bits, those of byte 2 j and the next, less 128.
__device__ __forceinline__ std::uint32_t halves_of_bytes(std::uint32_t word, int j) {
  const std::uint32_t both = __byte_perm(word, 0x64646464u, j == 0 ? 0x4140 : 0x4342);  // 1024 + code as halves
  return subtract_halves(both, 0x64806480u);
}

/// Two of the eight codes of a word of four bits, 2 j and the next (page_layout::place_of), less 8.
class nibble_reader {
 public:
  __device__ __forceinline__ nibble_reader() { asm volatile("" : "+r"(low_), "+r"(high_), "+r"(thousand_)); }

  __device__ __forceinline__ std::uint32_t halves(std::uint32_t word, int j) const {
    if (j % 2 == 0)  // 1024 + code, less 1032
      return subtract_halves(and_or(word >> (4 * j), low_, thousand_), 0x64086408u);
    // (1024 + 16 code) / 16 - 72: the word is not moved
    return multiply_add_halves(and_or(word >> (4 * (j - 1)), high_, thousand_), 0x2C002C00u, 0xD480D480u);
  }

 private:
  std::uint32_t low_ = 0x000F000Fu;
  std::uint32_t high_ = 0x00F000F0u;
  std::uint32_t thousand_ = 0x64006400u;  // 1024 as halves
};

/// From an address in shared memory.
__device__ __forceinline__ void load_codeword(std::uint32_t at, std::uint32_t& codeword) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(codeword) : "r"(at));
}
__device__ __forceinline__ void load_codeword(std::uint32_t at, uint2& codeword) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(codeword.x), "=r"(codeword.y) : "r"(at));
}
__device__ __forceinline__ void load_codeword(std::uint32_t at, uint4& codeword) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(codeword.x), "=r"(codeword.y), "=r"(codeword.z), "=r"(codeword.w)
               : "r"(at));
}

__device__ __forceinline__ void exchange_if(bool is_other, std::uint32_t& a, std::uint32_t& b) {
  const std::uint32_t first = is_other ? b : a;
  b = is_other ? a : b;
  a = first;
}
__device__ __forceinline__ void exchange_if(bool is_other, uint2& a, uint2& b) {
  exchange_if(is_other, a.x, b.x);
  exchange_if(is_other, a.y, b.y);
}

/// How often a table of codewords of so many halves is in shared memory, so that the lanes of a look-up read different
/// banks: a row of it, of 16 codewords of one code, fills them all.
template <int Halves>
inline constexpr int kTableCopies = Halves == 2 ? 2 : 1;

/// Where a lane looks codewords up. The eight lanes that look at the same pieces, of eight rows, would often meet in a
/// bank: so lane 4 g + t takes piece i ^ (g % 4) of a group in step i, which lies in banks of its own, and what was
/// found goes to its place by exchanges of registers, one for each of two bits of g.
/// Codewords of two halves leave half of the banks to a second copy, for the lanes from 16 on.
class codeword_reader {
 public:
  __device__ codeword_reader(const std::uint32_t* table, int lane)
      : table_(shared_address(table)),
        lane_(lane % kLanesOfRow),
        turn_(lane / kLanesOfRow % kGroupPieces),
        copy_(static_cast<std::uint32_t>(lane) / (kLanesOfRow * kGroupPieces)) {}

  /// The codewords of the four codes of a word, which is `group` among the lane's words of its row.
  template <typename Codeword>
  __device__ __forceinline__ void look_up(std::uint32_t group, std::uint32_t word,
                                          Codeword (&found)[kGroupPieces]) const {
    constexpr std::uint32_t kOfCopy = kGroupPieces * kLanesOfRow * sizeof(Codeword);
    constexpr std::uint32_t kCopies = kTableCopies<sizeof(Codeword) / sizeof(__half)>;
    constexpr std::uint32_t kOfCode = kCopies * kOfCopy;
    static_assert(kOfCode < 256, "a factor in a dot product of bytes");
    const std::uint32_t turned = __byte_perm(word, 0, 0x3210u ^ (turn_ * 0x1111u));
#pragma unroll
    for (int i = 0; i < kGroupPieces; i++) {
      const std::uint32_t bank =
          table_ + (kCopies > 1 ? copy_ * kOfCopy : 0) + ((turn_ ^ i) * kLanesOfRow + lane_) * sizeof(Codeword);
      const std::uint32_t at = __dp4a(turned, kOfCode << (8 * i), bank);  // the i-th byte times kOfCode
      load_codeword(at + group * (kOfCode * kTableCodes), found[i]);
    }
    exchange_if((turn_ & 1) != 0, found[0], found[1]);
    exchange_if((turn_ & 1) != 0, found[2], found[3]);
    exchange_if((turn_ & 2) != 0, found[0], found[2]);
    exchange_if((turn_ & 2) != 0, found[1], found[3]);
  }

 private:
  std::uint32_t table_;
  std::uint32_t lane_;
  std::uint32_t turn_;
  std::uint32_t copy_;
};

/// Codes that are looked up.
template <code_form Form, int Steps>
__device__ __forceinline__ void decode(const lane_codes<Form, Steps>& codes, const codeword_reader& table,
                                       page_rows<Steps>& rows) {
  using layout = form_layout<Form, Steps>;
  using codeword = std::conditional_t<Form == code_form::pairs, std::uint32_t, uint2>;
#pragma unroll
  for (int word = 0; word < kPageTiles * layout::kLaneWords; word++) {
    const int tile = word / layout::kLaneWords;
    const int upper = word % layout::kLaneWords / layout::kRowWords;
    const int group = word % layout::kRowWords;
    codeword found[kGroupPieces];
    table.look_up(group, codes.words[tile][word % layout::kLaneWords], found);
#pragma unroll
    for (int i = 0; i < kGroupPieces; i++) {
      const int piece = group * kGroupPieces + i;
      if constexpr (Form == code_form::pairs) {
        rows[tile][piece / 2][piece % 2 * 2 + upper] = found[i];
      } else {
        rows[tile][piece][upper] = found[i].x;
        rows[tile][piece][2 + upper] = found[i].y;
      }
    }
  }
}

/// Codes that are numbers.
template <code_form Form, int Steps>
__device__ __forceinline__ void decode(const lane_codes<Form, Steps>& codes, page_rows<Steps>& rows) {
  using layout = form_layout<Form, Steps>;
  using reader = std::conditional_t<Form == code_form::numbers4, nibble_reader, int>;
  [[maybe_unused]] const reader nibbles{};
#pragma unroll
  for (int tile = 0; tile < kPageTiles; tile++) {
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
      const std::uint32_t* words = codes.words[tile] + upper * layout::kRowWords;
#pragma unroll
      for (int j = 0; j < 2 * Steps; j++) {  // registers of two halves
        std::uint32_t& to = rows[tile][j / 2][j % 2 * 2 + upper];
        if constexpr (Form == code_form::numbers8)
          to = halves_of_bytes(words[j / 2], j % 2);
        else
          to = nibbles.halves(words[j / 4], j % 4);
      }
    }
  }
}

/// sums = from + rows x columns: 16 rows by 8 columns over 16 halves.
__device__ __forceinline__ void multiply_halves(const std::uint32_t (&rows)[4], std::uint32_t column0,
                                                std::uint32_t column1, const float (&from)[4], float (&sums)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, "
      "%13};"
      : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
      : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(column0), "r"(column1), "f"(from[0]), "f"(from[1]),
        "f"(from[2]), "f"(from[3]));
}

/// A lane's value. Of what it brings the compiler does not know that it is the same.
__device__ __forceinline__ float from_lane(float value, int lane) {
  float brought;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(brought) : "f"(value), "r"(lane));
  return brought;
}

/// Whether terms are apart: in registers of their own, where there are some, since for each product the compiler would
/// rather make four of two.
template <int Steps>
inline constexpr bool kTermsApart = Steps < 8;

/// What the sums of a page begin with: its rows' terms, twice each.
struct page_terms {
  float of_tile[kPageTiles][4];

  /// Of row g + 8 i, which a lane has.
  template <bool Apart>
  __device__ __forceinline__ void take(int i, float term, int lane) {
    float* twice = of_tile[i / 2] + i % 2 * 2;
    twice[0] = from_lane(term, lane);
    twice[1] = Apart ? from_lane(term, lane) : twice[0];
  }

  /// Each of the four lanes that share rows has one of theirs: lane t that of row g + 8 t.
  template <bool Apart>
  __device__ __forceinline__ void take_shared(float term, int lane) {
    static_assert(kPageTiles * 2 == kLanesOfRow);
#pragma unroll
    for (int i = 0; i < kPageTiles * 2; i++)
      take<Apart>(i, term, lane / kLanesOfRow * static_cast<int>(kLanesOfRow) + i);
  }
};

/// A page that holds halves.
template <int Steps>
__device__ __forceinline__ void load_halves(const std::byte* page, int lane, page_rows<Steps>& rows,
                                            page_terms& terms) {
  const auto* from = reinterpret_cast<const uint4*>(page) + lane;
  const auto* terms_of_page = reinterpret_cast<const float*>(page + kPageTiles * Steps * 512) + lane / kLanesOfRow;
#pragma unroll
  for (int tile = 0; tile < kPageTiles; tile++) {
#pragma unroll
    for (int step = 0; step < Steps; step++) {
      const uint4 v = __ldg(from + (tile * Steps + step) * 32);
      rows[tile][step][0] = v.x;
      rows[tile][step][1] = v.y;
      rows[tile][step][2] = v.z;
      rows[tile][step][3] = v.w;
    }
#pragma unroll
    for (int upper = 0; upper < 2; upper++)
      terms.take<kTermsApart<Steps>>(2 * tile + upper, __ldg(terms_of_page + tile * kTileRows + upper * 8), lane);
  }
}

/// sums = terms + a page x 8 columns. `columns` are the lane's 16 bytes of [Steps / 2][32 lanes].
template <int Steps>
__device__ __forceinline__ void multiply_page(const page_rows<Steps>& rows, const page_terms& terms,
                                              const uint4* columns, float (&sums)[kPageTiles][4]) {
#pragma unroll
  for (int chunk = 0; chunk < Steps / 2; chunk++) {
    const uint4 column = columns[chunk * kWarpLanes];
#pragma unroll
    for (int tile = 0; tile < kPageTiles; tile++) {
      const auto& from = *(chunk == 0 ? &terms.of_tile[tile] : &sums[tile]);
      multiply_halves(rows[tile][2 * chunk], column.x, column.y, from, sums[tile]);
    }
#pragma unroll
    for (int tile = 0; tile < kPageTiles; tile++)
      multiply_halves(rows[tile][2 * chunk + 1], column.z, column.w, sums[tile], sums[tile]);
  }
}

}  // namespace shortlist::cuda
