// The filter over an int8 plane in vector instructions: one source for AVX-512, AVX2 and NEON.
//
// A block holds 16 rows, four codes of each side by side, so that lanes are rows: nothing is summed across lanes, and a
// query's four codes are one broadcast. Codes are bytes; those at even places are masked out of each 16-bit lane and
// those at odd places shifted down, and both meet the query's 16-bit codes in multiply-adds of pairs. Where x86
// multiplies bytes, a query in byte codes takes three instructions for 32 products instead of four and the masking, and
// one where the processor sums products of bytes in 32 bits (VNNI, ARM's dot product); its intervals are wider, which
// pays for batches and small k. Where there is a matrix unit (AMX), a block's codes are its tiles as they stand, and a
// code of 16 bits is two tiles of bytes.
//
// Steps: products -> estimate and bound -> one comparison against the threshold -> append, which is rare.
// Limit: one query, the bytes of the plane over the read bandwidth; many, the rate of 16-bit multiply-adds.
#include "cpu/targets.hpp"
// Highway compiles this file once for each target, each time in a namespace of its own.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/flat/certified_simd.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// Highway's headers come first: foreach_target includes this file again from here.
#include <algorithm>
#include <array>
#include <utility>

#include "cpu/flat/amx_tiles.hpp"
#include "cpu/flat/certified_kernels.hpp"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace shortlist::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON

namespace hn = hwy::HWY_NAMESPACE;

using float_tag = hn::ScalableTag<float>;
using vector = hn::Vec<float_tag>;
constexpr float_tag kFloats;
constexpr hn::RebindToSigned<float_tag> kInts;
constexpr hn::Repartition<std::int16_t, float_tag> kShorts;
constexpr hn::Repartition<std::uint16_t, float_tag> kBytePairs;
using ints = hn::Vec<decltype(kInts)>;
using shorts = hn::Vec<decltype(kShorts)>;

constexpr int kLanes = HWY_LANES(float);
constexpr int kVectors = core::kPlaneRows / kLanes;  // of a block's rows
constexpr int kWordBytes = core::kPlaneRows * core::kPlaneWord;
// As many accumulators as registers hold beside a block's codes: of 16, 32 and 32 registers. Where NEON has a dot
// product, a vector holds four of as many queries.
constexpr int kTileQueries = HWY_TARGET == HWY_AVX2 ? 4 : HWY_TARGET == HWY_AVX3 ? 8 : 2;
constexpr int kDotTileQueries = HWY_TARGET == HWY_NEON ? 4 : kTileQueries;

// Byte codes pay for batches and a k times dim up to this: their intervals are wider, the more so the longer rows are,
// and let more rows survive. 256 queries, byte codes and 16-bit ones, ms. VNNI: 100,000 x 768, k 128, 91 and 116, k
// 300, 193 and 135; 100,000 x 128, k 400, 40 and 42; 20,000 x 1536, k 64, 57 and 53. AVX2: 100,000 x 768, k 16, 110 and
// 123, k 32, 125 and 124; 100,000 x 384, k 32, 60 and 66.
constexpr std::int64_t kByteCodesMaxWork = 16 * 768;
constexpr std::int64_t kDotCodesMaxWork = 128 * 768;

// How far ahead of the block that is filtered the plane is fetched, where it streams past one query.
constexpr std::int64_t kPrefetchBytes = 4096;
constexpr std::int64_t kLineBytes = 64;
constexpr int kSecondCache = 2;  // the locality that __builtin_prefetch takes for it

// Compilers inline a lambda of this size only when told to.
#undef SHORTLIST_INLINE_LAMBDA
#define SHORTLIST_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))

template <class Body, int... I>
HWY_INLINE void unroll_over(Body&& body, std::integer_sequence<int, I...>) {
  (body(std::integral_constant<int, I>()), ...);
}

/// body(0), ..., body(Count - 1), with constants: arrays that they index stay in registers.
template <int Count, class Body>
HWY_INLINE void unroll(Body&& body) {
  unroll_over(body, std::make_integer_sequence<int, Count>());
}

/// Takes no time, and leaves a sum as it is: in a register. Compilers would otherwise add up products first, for which
/// there are no registers left, and keep sums in memory.
HWY_INLINE void settle(ints& sum) {
#if HWY_TARGET == HWY_NEON
  __asm__("" : "+w"(sum.raw));
#else
  __asm__("" : "+x"(sum.raw));
#endif
}

/// Two of a query's codes, one behind the other, in each 32-bit lane.
HWY_INLINE shorts broadcast_pair(const std::int16_t* pair) {
  std::int32_t both;
  __builtin_memcpy(&both, pair, sizeof both);
  return hn::BitCast(kShorts, hn::Set(kInts, both));
}

#if HWY_TARGET == HWY_AVX3
// What plain AVX-512 does not have, by its name: this target's functions are compiled for that, and others, which are
// called only where there is more, could not be inlined.

/// Two codes of a query, or four in bytes, as they meet every lane.
struct code_group {
  std::byte bytes[sizeof(std::int32_t)];
};

/// sum + the products of two codes of a row with two of the query's, in each lane.
HWY_INLINE ints add_vnni_pairs(ints sum, shorts row, const void* query) {
  __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum.raw) : "v"(row.raw), "m"(*static_cast<const code_group*>(query)));
  return sum;
}
#endif

/// Products of a block's codes with those of Queries queries of Width that were packed together: lanes of
/// products[q * kVectors + v] are rows.
template <int Queries, int Width, bool Dot>
HWY_INLINE void products_of(const std::int16_t* packed, const filter_query* queries, const std::byte* block,
                            std::int64_t words, const std::byte* ahead, std::int64_t ahead_bytes, ints* products) {
  ints even_sums[Queries * kVectors];  // where a multiply-add of pairs leaves them apart, of lower and upper halves
  ints odd_sums[Queries * kVectors];
  unroll<Queries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
    unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA {
      even_sums[q * kVectors + v] = hn::Zero(kInts);
      odd_sums[q * kVectors + v] = hn::Zero(kInts);
    });
  });
  const auto* codes = reinterpret_cast<const std::uint8_t*>(block);
  const auto even_bytes = hn::Set(kBytePairs, 0x00FF);
  const auto add_word = [&](std::int64_t word) SHORTLIST_INLINE_LAMBDA {
    shorts even[kVectors], odd[kVectors];
    unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA {
      const auto* from = reinterpret_cast<const std::uint16_t*>(codes + word * kWordBytes) + v * 2 * kLanes;
      const auto pairs = hn::Load(kBytePairs, from);
      even[v] = hn::BitCast(kShorts, hn::And(pairs, even_bytes));
      odd[v] = hn::BitCast(kShorts, hn::ShiftRight<8>(pairs));
    });
    unroll<Queries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
      const std::int16_t* from = packed + (word * Width + q) * core::kPlaneWord;
#if HWY_TARGET == HWY_AVX3
      if constexpr (Dot) {
        even_sums[q] = add_vnni_pairs(add_vnni_pairs(even_sums[q], even[0], from), odd[0], from + 2);
        return;
      }
#endif
      const shorts query_even = broadcast_pair(from);
      const shorts query_odd = broadcast_pair(from + 2);
      unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA {
        constexpr int kAt = q * kVectors + v;
        even_sums[kAt] = hn::ReorderWidenMulAccumulate(kInts, even[v], query_even, even_sums[kAt], odd_sums[kAt]);
        settle(even_sums[kAt]);
        even_sums[kAt] = hn::ReorderWidenMulAccumulate(kInts, odd[v], query_odd, even_sums[kAt], odd_sums[kAt]);
        settle(even_sums[kAt]);
      });
    });
  };
  std::int64_t word = 0;
  for (const std::int64_t lines = HWY_MIN(words, (ahead_bytes + kLineBytes - 1) / kLineBytes); word < lines; ++word) {
    if constexpr (Queries == 1) {
      hwy::Prefetch(ahead + word * kLineBytes);
    } else {
      __builtin_prefetch(ahead + word * kLineBytes, 0, kSecondCache);
    }
    add_word(word);
  }
  for (; word < words; ++word) add_word(word);
  unroll<Queries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
    const ints offset = hn::Set(kInts, static_cast<std::int32_t>(queries[q].offset));
    unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA {
      constexpr int kAt = q * kVectors + v;
      products[kAt] = hn::Add(offset, hn::RearrangeToOddPlusEven(even_sums[kAt], odd_sums[kAt]));
    });
  });
}

constexpr hn::Repartition<std::uint8_t, float_tag> kBytes;
using bytes = hn::Vec<decltype(kBytes)>;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
/// sum + the products of four bytes of a row with four signed codes, in each lane. Highway has no name for the first of
/// the three instructions, which saturates beyond 16 bits: see kMaxByteCode.
HWY_INLINE ints add_byte_products(ints sum, bytes row, ints query) {
#if HWY_TARGET == HWY_AVX3
  const __m512i pairs = _mm512_maddubs_epi16(row.raw, query.raw);
  return ints{_mm512_add_epi32(sum.raw, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
#else
  const __m256i pairs = _mm256_maddubs_epi16(row.raw, query.raw);
  return ints{_mm256_add_epi32(sum.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
#endif
}
#endif

/// Adds the products of a word of a block's codes with those of the queries that are packed at `from`.
template <bool Dot>
HWY_INLINE void add_byte_word(const bytes (&rows)[kVectors], const std::byte* from, ints* sums) {
#if HWY_TARGET == HWY_NEON
  // Both sides are signed here: a row's bytes are codes + 128. Four queries' codes fill a vector.
  const bytes queries = hn::LoadU(kBytes, reinterpret_cast<const std::uint8_t*>(from));
  unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA {
    const bytes row = hn::Xor(rows[v], hn::Set(kBytes, std::uint8_t{core::kCodeOffset}));
    unroll<kDotTileQueries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
      __asm__(".arch armv8.2-a+crypto+dotprod\n\tsdot %0.4s, %1.16b, %2.4b[%3]"
              : "+w"(sums[q * kVectors + v].raw)
              : "w"(row.raw), "w"(queries.raw), "i"(int{q}));
    });
  });
#else
  unroll<kDotTileQueries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
    const std::byte* codes = from + q * core::kPlaneWord;
#if HWY_TARGET == HWY_AVX3
    if constexpr (Dot) {  // add_byte_products by one instruction, and without a limit
      __asm__("vpdpbusd %2%{1to16%}, %1, %0"
              : "+v"(sums[q].raw)
              : "v"(rows[0].raw), "m"(*reinterpret_cast<const code_group*>(codes)));
      return;
    }
#endif
    std::int32_t four;
    __builtin_memcpy(&four, codes, sizeof four);
    const ints query = hn::Set(kInts, four);
    unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA {
      sums[q * kVectors + v] = add_byte_products(sums[q * kVectors + v], rows[v], query);
    });
  });
#endif
}

/// products_of for byte codes.
template <bool Dot>
HWY_INLINE void byte_products_of(const std::int16_t* packed, const filter_query* queries, const std::byte* block,
                                 std::int64_t words, const std::byte* ahead, std::int64_t ahead_bytes, ints* products) {
  ints sums[kDotTileQueries * kVectors];
  unroll<kDotTileQueries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
    // What a row's bytes have too much, where they are multiplied as they stand.
    const ints offset =
        HWY_TARGET == HWY_NEON ? hn::Zero(kInts) : hn::Set(kInts, static_cast<std::int32_t>(queries[q].offset));
    unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA { sums[q * kVectors + v] = offset; });
  });
  const auto* codes = reinterpret_cast<const std::uint8_t*>(block);
  const auto* query_codes = reinterpret_cast<const std::byte*>(packed);
  for (std::int64_t word = 0; word < words; ++word) {
    if (word * kLineBytes < ahead_bytes) __builtin_prefetch(ahead + word * kLineBytes, 0, kSecondCache);
    bytes rows[kVectors];
    unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA { rows[v] = hn::Load(kBytes, codes + v * 4 * kLanes); });
    add_byte_word<Dot>(rows, query_codes, sums);
    codes += kWordBytes;
    query_codes += kDotTileQueries * core::kPlaneWord;
  }
  unroll<kDotTileQueries * kVectors>([&](auto i) SHORTLIST_INLINE_LAMBDA { products[i] = sums[i]; });
}

/// core::cosine_score in the lanes.
HWY_INLINE vector cosine_of(vector dots, vector query_inverse_norm, vector inverse_norms) {
  const vector cosine = hn::Mul(hn::Mul(dots, query_inverse_norm), inverse_norms);
  return hn::IfThenElse(hn::Lt(inverse_norms, hn::Zero(kFloats)), hn::Set(kFloats, core::worst_score(metric::cosine)),
                        cosine);
}

/// A bit for each lane of a mask, the first lane's the lowest.
template <class Mask>
HWY_INLINE std::uint32_t bits_of(Mask mask) {
  std::uint8_t bytes[8] = {};  // as many may be written
  hn::StoreMaskBits(kFloats, mask, bytes);
  std::uint32_t bits;
  __builtin_memcpy(&bits, bytes, sizeof bits);
  return bits;
}

/// core::interval_of in the lanes, and the rows that are not below the threshold appended.
template <metric By>
HWY_INLINE void append_rows(const filter_query& query, const plane_span& block, const ints* products,
                            survivor_list& list) {
  const core::query_terms& of = query.terms;
  const auto* terms = reinterpret_cast<const float*>(block.blocks + block.layout.codes_bytes());
  const vector threshold = hn::Set(kFloats, list.threshold);
  unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA {
    const auto term = [&](int which) SHORTLIST_INLINE_LAMBDA {
      return hn::Load(kFloats, terms + which * core::kPlaneRows + v * kLanes);
    };
    const vector estimate = hn::Mul(hn::Mul(hn::ConvertTo(kFloats, products[v]), term(0)), hn::Set(kFloats, of.scale));
    vector bound = hn::Set(kFloats, of.floor);
    if constexpr (By == metric::l2) bound = hn::MulAdd(hn::Set(kFloats, of.square_weight), term(3), bound);
    bound = hn::MulAdd(hn::Set(kFloats, of.norm_weight), term(2), bound);
    bound = hn::MulAdd(hn::Set(kFloats, of.residual_weight), term(1), bound);
    vector center = estimate;
    if constexpr (By == metric::l2) {
      center = hn::Sub(hn::Add(estimate, estimate), hn::Add(hn::Set(kFloats, of.square), term(3)));
    }
    vector low = hn::Sub(center, bound);
    vector high = hn::Add(center, bound);
    const int present = static_cast<int>(HWY_MIN(kLanes, block.rows - v * kLanes));
    if constexpr (By == metric::cosine) {
      if (present <= 0) return;
      HWY_ALIGN float lanes[kLanes] = {};  // nothing may be read past the last row's
      const float* from = block.inverse_norms + v * kLanes;
      if (HWY_UNLIKELY(present < kLanes)) {
        for (int lane = 0; lane < present; ++lane) lanes[lane] = from[lane];
        from = lanes;
      }
      const vector inverse_norms = hn::LoadU(kFloats, from);
      const vector query_inverse_norm = hn::Set(kFloats, of.inverse_norm);
      low = cosine_of(low, query_inverse_norm, inverse_norms);
      high = cosine_of(high, query_inverse_norm, inverse_norms);
    }
    const auto below = hn::Lt(high, threshold);  // false for NaN
    if (HWY_LIKELY(hn::AllTrue(kFloats, below))) return;
    HWY_ALIGN float lows[kLanes];
    HWY_ALIGN float highs[kLanes];
    hn::Store(low, kFloats, lows);
    hn::Store(high, kFloats, highs);
    const std::uint32_t lanes_present = (std::uint32_t{1} << HWY_MAX(present, 0)) - 1;
    for (std::uint32_t lanes = ~bits_of(below) & lanes_present; lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      append_survivor({lows[lane], highs[lane]}, By, block.first + static_cast<std::uint32_t>(v * kLanes + lane), list);
    }
  });
}

template <metric By>
std::int64_t filter_rows(const std::int16_t* packed, const filter_query& query, const plane_span& span,
                         std::int64_t limit, survivor_list& list) {
  plane_span block = span;
  const std::int64_t block_bytes = span.layout.block_bytes();
  while (block.rows > 0 && list.size + core::kPlaneRows <= limit) {
    ints products[kVectors];
    products_of<1, 1, false>(packed, &query, block.blocks, span.layout.words, block.blocks + kPrefetchBytes,
                             block_bytes, products);
    append_rows<By>(query, block, products, list);
    block = block.next();
  }
  return span.rows - HWY_MAX(block.rows, std::int64_t{0});
}

template <bool Dot>
constexpr int kTileOf = Dot ? kDotTileQueries : kTileQueries;

template <metric By, bool Dot>
void filter_block(const std::int16_t* packed, const filter_query* queries, std::int64_t count, const plane_span& block,
                  const std::byte* ahead, std::int64_t ahead_bytes, survivor_list* lists) {
  constexpr int kTile = kTileOf<Dot>;
  ints products[kTile * kVectors];
  for (int q = 0; q < kTile; q += kTileQueries) {
    products_of<kTileQueries, kTile, Dot>(packed + q * core::kPlaneWord, queries + q, block.blocks, block.layout.words,
                                          ahead, q == 0 ? ahead_bytes : 0, products + q * kVectors);
  }
  for (std::int64_t q = 0; q < count; ++q) append_rows<By>(queries[q], block, products + q * kVectors, lists[q]);
}

template <metric By, bool Dot>
void filter_block_by_bytes(const std::int16_t* packed, const filter_query* queries, std::int64_t count,
                           const plane_span& block, const std::byte* ahead, std::int64_t ahead_bytes,
                           survivor_list* lists) {
  ints products[kDotTileQueries * kVectors];
  byte_products_of<Dot>(packed, queries, block.blocks, block.layout.words, ahead, ahead_bytes, products);
  for (std::int64_t q = 0; q < count; ++q) append_rows<By>(queries[q], block, products + q * kVectors, lists[q]);
}

template <bool Dot>
constexpr filter_kernels kernels_of() {
  constexpr metric kDot = metric::inner_product;
  filter_kernels kernels = {
      .tile_queries = kTileOf<Dot>,
      .tile_blocks = 1,
      .pack = pack_query_codes,
      .pack_bytes = pack_byte_codes,
      .filter_rows = {filter_rows<kDot>, filter_rows<metric::cosine>, filter_rows<metric::l2>},
      .filter_blocks = {filter_block<kDot, Dot>, filter_block<metric::cosine, Dot>, filter_block<metric::l2, Dot>},
      .filter_blocks_by_bytes = {},
      .max_byte_code = Dot ? kMaxDotCode : kMaxByteCode,
      .byte_codes_max_work = Dot ? kDotCodesMaxWork : kByteCodesMaxWork,
  };
  if constexpr (Dot || HWY_TARGET != HWY_NEON) {  // which, without the dot product, multiplies bytes no faster
    kernels.filter_blocks_by_bytes = {filter_block_by_bytes<kDot, Dot>, filter_block_by_bytes<metric::cosine, Dot>,
                                      filter_block_by_bytes<metric::l2, Dot>};
  }
  return kernels;
}

const filter_kernels kFilterKernels = kernels_of<false>();
#if HWY_TARGET != HWY_AVX2
const filter_kernels kDotFilterKernels = kernels_of<true>();
#endif

#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64
// ---- the matrix unit

static_assert(core::kPlaneRows == kTileRows && kWordBytes == kTileRowBytes);
constexpr std::int64_t kTileWords = 16;                             // of a block in a tile
constexpr std::int64_t kTileCodes = kTileWords * core::kPlaneWord;  // of a query
constexpr std::int64_t kAmxQueries = 2 * kTileRows;                 // codes of one byte, two tiles
constexpr std::int64_t kAmxBlocks = 16;  // that meet the same queries: the second cache has room for longer rows, too

// Byte codes pay up to this k times dim, as above. Two cores of a Xeon, 100,000 x 768, k 10, 22 to 34 ms and 27; k 100,
// 51 to 54 and 44.
constexpr std::int64_t kAmxByteCodesMaxWork = 16 * 768;

/// Two tiles of queries for every 64 codes: those of 32 queries, or, with Halves, the upper and the lower bytes of 16
/// queries' codes, of which two such sets follow each other.
template <bool Halves>
void pack_tiles(const std::int16_t* codes, std::int64_t count, std::int64_t dim, std::int64_t, std::int16_t* packed) {
  const std::int64_t pairs = (dim + kTileCodes - 1) / kTileCodes;
  auto* to = reinterpret_cast<std::int8_t*>(packed);
  std::fill_n(to, pairs * kAmxQueries * kTileCodes * (Halves ? 2 : 1), std::int8_t{0});
  for (std::int64_t q = 0; q < count; ++q) {
    const std::int64_t tile = q / kTileRows;
    for (std::int64_t i = 0; i < dim; ++i) {
      const std::int64_t pair = i / kTileCodes + (Halves ? tile * pairs : 0);
      std::int8_t* at = to + 2 * pair * kTileBytes + q % kTileRows * kTileRowBytes + i % kTileCodes;
      const int code = codes[q * dim + i];
      const auto low = static_cast<std::int8_t>(code & 0xFF);
      if constexpr (Halves) {
        at[0] = static_cast<std::int8_t>((code - low) / 256);
        at[kTileBytes] = low;
      } else {
        at[tile * kTileBytes] = low;
      }
    }
  }
}

/// Fetches lines into the second cache, as many at every step.
struct line_fetch {
  const std::byte* at = nullptr;
  std::int64_t lines = 0;
  std::int64_t lines_a_step = 0;

  HWY_INLINE void step() {
    for (std::int64_t n = HWY_MIN(lines, lines_a_step); n > 0; --n, --lines, at += kLineBytes) {
      __builtin_prefetch(at, 0, kSecondCache);
    }
  }
};

/// Pairs of blocks with a tile of queries: each pair's codes are two tiles for every 64, as they stand in the plane.
template <metric By, bool Halves>
void filter_blocks_by_tiles(const std::int16_t* packed, const filter_query* queries, std::int64_t count,
                            const plane_span& span, const std::byte* ahead, std::int64_t ahead_bytes,
                            survivor_list* lists) {
  const tile_use tiles;
  const std::int64_t steps = span.layout.words / kTileWords;  // whole ones
  const std::int64_t last_bytes = span.layout.words % kTileWords * kWordBytes;
  const std::int64_t set_bytes = (steps + (last_bytes != 0 ? 1 : 0)) * 2 * kTileBytes;
  const std::int64_t set_queries = Halves ? kTileRows : kAmxQueries;
  const std::int64_t all_steps = (span.rows + 2 * core::kPlaneRows - 1) / (2 * core::kPlaneRows) *
                                 ((count + set_queries - 1) / set_queries) * HWY_MAX(steps, std::int64_t{1});
  const std::int64_t lines = ahead_bytes / kLineBytes;
  line_fetch fetch = {ahead, lines, (lines + all_steps - 1) / all_steps};
  alignas(kTileRowBytes) std::byte last[2][kTileBytes] = {};  // the codes beyond whole steps
  alignas(kTileRowBytes) std::int32_t products[2][2][kTileRows][kTileRows];

  plane_span pair[2] = {span, span};
  for (; pair[0].rows > 0; pair[0] = pair[1].next()) {
    const bool has_second = pair[0].rows > core::kPlaneRows;
    pair[1] = pair[0].next();
    const std::byte* second = has_second ? pair[1].blocks : pair[0].blocks;
    const auto* codes = reinterpret_cast<const std::byte*>(packed);
    __builtin_memcpy(last[0], pair[0].blocks + steps * kTileBytes, last_bytes);
    __builtin_memcpy(last[1], second + steps * kTileBytes, last_bytes);
    for (std::int64_t from = 0; from < count; from += set_queries, codes += set_bytes) {
      tile_sums sums;
      for (std::int64_t step = 0; step < steps; ++step) {
        fetch.step();
        sums.add(codes + step * 2 * kTileBytes, pair[0].blocks + step * kTileBytes, second + step * kTileBytes);
      }
      if (last_bytes != 0) sums.add(codes + steps * 2 * kTileBytes, last[0], last[1]);
      sums.store(products);
      for (std::int64_t q = from; q < HWY_MIN(count, from + set_queries); ++q) {
        const std::int64_t row = q % kTileRows;
        const ints offset = hn::Set(kInts, static_cast<std::int32_t>(queries[q].offset));
        for (int b = 0; b < (has_second ? 2 : 1); ++b) {
          ints product = hn::Load(kInts, products[Halves ? 0 : q / kTileRows][b][row]);
          if constexpr (Halves) {
            product = hn::Add(hn::ShiftLeft<8>(product), hn::Load(kInts, products[1][b][row]));
          }
          product = hn::Add(product, offset);
          append_rows<By>(queries[q], pair[b], &product, lists[q]);
        }
      }
    }
  }
}

template <bool Halves>
constexpr std::array<filter_blocks_fn, 3> kAmxFilters = {filter_blocks_by_tiles<metric::inner_product, Halves>,
                                                         filter_blocks_by_tiles<metric::cosine, Halves>,
                                                         filter_blocks_by_tiles<metric::l2, Halves>};

constexpr filter_kernels amx_kernels() {
  filter_kernels kernels = kernels_of<true>();
  kernels.tile_queries = kAmxQueries;
  kernels.tile_blocks = kAmxBlocks;
  kernels.pack = pack_tiles<true>;
  kernels.pack_bytes = pack_tiles<false>;
  kernels.filter_blocks = kAmxFilters<true>;
  kernels.filter_blocks_by_bytes = kAmxFilters<false>;
  kernels.byte_codes_max_work = kAmxByteCodesMaxWork;
  return kernels;
}

const filter_kernels kAmxFilterKernels = amx_kernels();
#endif

#endif
}  // namespace shortlist::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shortlist::cpu {

const filter_kernels& current_filter_kernels() {
  switch (current_isa()) {
#if HWY_TARGETS & HWY_AVX3
#if HWY_ARCH_X86_64
    case isa::amx: return N_AVX3::kAmxFilterKernels;
#endif
    case isa::avx512_vnni: return N_AVX3::kDotFilterKernels;
    case isa::avx512: return N_AVX3::kFilterKernels;
#endif
#if HWY_TARGETS & HWY_AVX2
    case isa::avx2: return N_AVX2::kFilterKernels;
#endif
#if HWY_TARGETS & HWY_NEON
    case isa::neon_dotprod: return N_NEON::kDotFilterKernels;
    case isa::neon: return N_NEON::kFilterKernels;
#endif
    default: return scalar_filter_kernels();
  }
}

}  // namespace shortlist::cpu
#endif
