// The filter over an int8 plane in vector instructions: one source for AVX-512, AVX2 and NEON.
//
// A block holds 16 rows, four codes of each side by side, so that lanes are rows: nothing is summed across lanes, and a
// query's four codes are one broadcast. Codes are bytes; those at even places are masked out of each 16-bit lane and
// those at odd places shifted down, and both meet the query's 16-bit codes in multiply-adds of pairs. Where x86
// multiplies bytes, a query in byte codes takes three instructions for 32 products instead of four and the masking, and
// one for 64 where there is VNNI; its intervals are wider, which pays for batches and small k.
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
#include <utility>

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
// As many accumulators as registers hold beside a block's codes: of 16, 32 and 32 registers.
constexpr int kTileQueries = HWY_TARGET == HWY_AVX2 ? 4 : HWY_TARGET == HWY_AVX3 ? 8 : 2;

// Byte codes pay for batches and a k times dim up to this: their intervals are wider, the more so the longer rows are,
// and let more rows survive. 256 queries, byte codes and 16-bit ones, ms. VNNI: 100,000 x 768, k 128, 91 and 116, k
// 300, 193 and 135; 100,000 x 128, k 400, 40 and 42; 20,000 x 1536, k 64, 57 and 53. AVX2: 100,000 x 768, k 16, 110 and
// 123, k 32, 125 and 124; 100,000 x 384, k 32, 60 and 66.
constexpr std::int64_t kByteCodesMaxWork = 16 * 768;
constexpr std::int64_t kVnniCodesMaxWork = 128 * 768;

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

/// Products of a block's codes with those of Queries queries: lanes of products[q * kVectors + v] are rows.
template <int Queries, bool Vnni>
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
      const std::int16_t* from = packed + (word * Queries + q) * core::kPlaneWord;
#if HWY_TARGET == HWY_AVX3
      if constexpr (Vnni) {
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

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
constexpr hn::Repartition<std::uint8_t, float_tag> kBytes;

/// sum + the products of four bytes of a row with four signed codes, in each lane. Highway has no name for the first of
/// the three instructions, which saturates beyond 16 bits: see kMaxByteCode.
HWY_INLINE ints add_byte_products(ints sum, hn::Vec<decltype(kBytes)> row, ints query) {
#if HWY_TARGET == HWY_AVX3
  const __m512i pairs = _mm512_maddubs_epi16(row.raw, query.raw);
  return ints{_mm512_add_epi32(sum.raw, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
#else
  const __m256i pairs = _mm256_maddubs_epi16(row.raw, query.raw);
  return ints{_mm256_add_epi32(sum.raw, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
#endif
}

#if HWY_TARGET == HWY_AVX3
/// add_byte_products by one instruction, and without a limit.
HWY_INLINE ints add_vnni_bytes(ints sum, hn::Vec<decltype(kBytes)> row, const void* query) {
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum.raw) : "v"(row.raw), "m"(*static_cast<const code_group*>(query)));
  return sum;
}
#endif

/// products_of for byte codes.
template <bool Vnni>
HWY_INLINE void byte_products_of(const std::int16_t* packed, const filter_query* queries, const std::byte* block,
                                 std::int64_t words, const std::byte* ahead, std::int64_t ahead_bytes, ints* products) {
  ints sums[kTileQueries * kVectors];
  unroll<kTileQueries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
    const ints offset = hn::Set(kInts, static_cast<std::int32_t>(queries[q].offset));
    unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA { sums[q * kVectors + v] = offset; });
  });
  const auto* codes = reinterpret_cast<const std::uint8_t*>(block);
  const auto* query_codes = reinterpret_cast<const std::byte*>(packed);
  for (std::int64_t word = 0; word < words; ++word) {
    if (word * kLineBytes < ahead_bytes) __builtin_prefetch(ahead + word * kLineBytes, 0, kSecondCache);
    hn::Vec<decltype(kBytes)> rows[kVectors];
    unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA { rows[v] = hn::Load(kBytes, codes + v * 4 * kLanes); });
    unroll<kTileQueries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
      const std::byte* from = query_codes + q * core::kPlaneWord;
#if HWY_TARGET == HWY_AVX3
      if constexpr (Vnni) {
        sums[q] = add_vnni_bytes(sums[q], rows[0], from);
        return;
      }
#endif
      std::int32_t four;
      __builtin_memcpy(&four, from, sizeof four);
      const ints query = hn::Set(kInts, four);
      unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA {
        sums[q * kVectors + v] = add_byte_products(sums[q * kVectors + v], rows[v], query);
      });
    });
    codes += kWordBytes;
    query_codes += kTileQueries * core::kPlaneWord;
  }
  unroll<kTileQueries * kVectors>([&](auto i) SHORTLIST_INLINE_LAMBDA { products[i] = sums[i]; });
}
#endif

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
    products_of<1, false>(packed, &query, block.blocks, span.layout.words, block.blocks + kPrefetchBytes, block_bytes,
                          products);
    append_rows<By>(query, block, products, list);
    block.blocks += block_bytes;
    block.rows -= core::kPlaneRows;
    block.first += core::kPlaneRows;
    if constexpr (By == metric::cosine) block.inverse_norms += core::kPlaneRows;
  }
  return span.rows - HWY_MAX(block.rows, std::int64_t{0});
}

template <metric By, bool Vnni>
void filter_block(const std::int16_t* packed, const filter_query* queries, std::int64_t count, const plane_span& block,
                  const std::byte* ahead, std::int64_t ahead_bytes, survivor_list* lists) {
  ints products[kTileQueries * kVectors];
  products_of<kTileQueries, Vnni>(packed, queries, block.blocks, block.layout.words, ahead, ahead_bytes, products);
  for (std::int64_t q = 0; q < count; ++q) append_rows<By>(queries[q], block, products + q * kVectors, lists[q]);
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
template <metric By, bool Vnni>
void filter_block_by_bytes(const std::int16_t* packed, const filter_query* queries, std::int64_t count,
                           const plane_span& block, const std::byte* ahead, std::int64_t ahead_bytes,
                           survivor_list* lists) {
  ints products[kTileQueries * kVectors];
  byte_products_of<Vnni>(packed, queries, block.blocks, block.layout.words, ahead, ahead_bytes, products);
  for (std::int64_t q = 0; q < count; ++q) append_rows<By>(queries[q], block, products + q * kVectors, lists[q]);
}
#else
template <metric By, bool Vnni>
constexpr filter_kernels::filter_block_fn filter_block_by_bytes = nullptr;
#endif

template <bool Vnni>
constexpr filter_kernels kernels_of() {
  constexpr metric kDot = metric::inner_product;
  return {
      .tile_queries = kTileQueries,
      .pack = pack_query_codes,
      .filter_rows = {filter_rows<kDot>, filter_rows<metric::cosine>, filter_rows<metric::l2>},
      .filter_block = {filter_block<kDot, Vnni>, filter_block<metric::cosine, Vnni>, filter_block<metric::l2, Vnni>},
      .filter_block_by_bytes = {filter_block_by_bytes<kDot, Vnni>, filter_block_by_bytes<metric::cosine, Vnni>,
                                filter_block_by_bytes<metric::l2, Vnni>},
      .max_byte_code = Vnni ? kMaxVnniCode : kMaxByteCode,
      .byte_codes_max_work = Vnni ? kVnniCodesMaxWork : kByteCodesMaxWork,
  };
}

const filter_kernels kFilterKernels = kernels_of<false>();
#if HWY_TARGET == HWY_AVX3
const filter_kernels kVnniFilterKernels = kernels_of<true>();
#endif

#endif
}  // namespace shortlist::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shortlist::cpu {

const filter_kernels& current_filter_kernels() {
  switch (current_isa()) {
#if HWY_TARGETS & HWY_AVX3
    case isa::avx512_vnni: return N_AVX3::kVnniFilterKernels;
    case isa::avx512: return N_AVX3::kFilterKernels;
#endif
#if HWY_TARGETS & HWY_AVX2
    case isa::avx2: return N_AVX2::kFilterKernels;
#endif
#if HWY_TARGETS & HWY_NEON
    case isa::neon: return N_NEON::kFilterKernels;
#endif
    default: return scalar_filter_kernels();
  }
}

}  // namespace shortlist::cpu
#endif
