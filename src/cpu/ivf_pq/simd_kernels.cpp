// IVF-PQ in vector instructions: one source for AVX-512, AVX2 and NEON.
//
// coarse_estimates: lanes are centroids; a block of them meets six queries, whose sums fill the registers.
//
// encode, make_table: lanes are codewords, so that each distance is summed by itself, in the defined order; every lane
// keeps its nearest codeword and the nearest of the lanes is found at the end.
//
// scan_list: bytes of a vector are the rows of a page. A piece's entries of all rows are one byte shuffle of a table of
// 16 that stays in a register; wider codes take one for each 16 codewords and choose by the upper bits. Entries of two
// pieces that share a strip, or two strips, are at most 255 together and added in bytes before they are widened.
// Up to four queries share what is unpacked, two of wider codes. Limit: AVX2, 9 to 12 instructions for 32 rows and two
// pieces of 4 bits, some 70 for two of 8 bits; a page of 48 pieces takes 22 ns for each of four queries, 24 for each of
// two, 30 for one.
#include "cpu/targets.hpp"
// Highway compiles this file once for each target, each time in a namespace of its own.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ivf_pq/simd_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// Highway's headers come first: foreach_target includes this file again from here.
#include <cmath>
#include <limits>
#include <utility>

#include "cpu/ivf_pq/kernels.hpp"
#include "cpu/ivf_pq/layout.hpp"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace shortlist::cpu::HWY_NAMESPACE {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON

namespace hn = hwy::HWY_NAMESPACE;

using float_tag = hn::ScalableTag<float>;
constexpr float_tag kFloats;
constexpr hn::RebindToSigned<float_tag> kInts;
using vector = hn::Vec<float_tag>;
using ints = hn::Vec<decltype(kInts)>;

constexpr int kLanes = HWY_LANES(float);

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

// ---- lists

void coarse_estimates(const lane_centroids& centroids, std::int64_t block, const float* queries, std::int64_t stride,
                      std::int64_t count, float factor, float* out, std::int64_t out_stride) {
  constexpr int kVectors = static_cast<int>(kCentroidBlock) / kLanes;
  constexpr int kQueries = static_cast<int>(kCoarseQueries);
  const float* query[kQueries];
  for (int q = 0; q < kQueries; ++q) query[q] = queries + (q < count ? q : 0) * stride;
  const float* elements = centroids.elements + block * centroids.dim * kCentroidBlock;
  vector sums[kQueries * kVectors];
  unroll<kQueries * kVectors>([&](auto i) SHORTLIST_INLINE_LAMBDA { sums[i] = hn::Zero(kFloats); });
  for (std::int64_t i = 0; i < centroids.dim; ++i, elements += kCentroidBlock) {
    vector element[kVectors];
    unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA { element[v] = hn::Load(kFloats, elements + v * kLanes); });
    unroll<kQueries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
      const vector of_query = hn::Set(kFloats, query[q][i]);
      unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA {
        sums[q * kVectors + v] = hn::MulAdd(of_query, element[v], sums[q * kVectors + v]);
      });
    });
  }
  const float* offsets = centroids.offsets + block * kCentroidBlock;
  out += block * kCentroidBlock;
  unroll<kQueries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
    if (q >= count) return;
    unroll<kVectors>([&](auto v) SHORTLIST_INLINE_LAMBDA {
      const vector offset = hn::Load(kFloats, offsets + v * kLanes);
      hn::StoreU(hn::MulAdd(hn::Set(kFloats, factor), sums[q * kVectors + v], offset), kFloats,
                 out + q * out_stride + v * kLanes);
    });
  });
}

void least_of_groups(const float* values, std::int64_t count, std::int64_t groups, float* least) {
  for (std::int64_t g = 0; g < groups; g += kLanes) {
    vector low = hn::LoadU(kFloats, values + g);
    for (std::int64_t i = g + groups; i < count; i += groups) low = hn::Min(low, hn::LoadU(kFloats, values + i));
    hn::StoreU(low, kFloats, least + g);
  }
}

std::int64_t numbers_below(const float* values, std::int64_t count, float limit, std::uint32_t* numbers) {
  const vector most = hn::Set(kFloats, limit);
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const vector v = hn::LoadU(kFloats, values + i);
    if (HWY_LIKELY(hn::AllFalse(kFloats, hn::Le(v, most)))) continue;
    for (std::int64_t lane = i; lane < i + kLanes; ++lane) {
      numbers[found] = static_cast<std::uint32_t>(lane);
      found += values[lane] <= limit ? 1 : 0;
    }
  }
  return found;
}

// ---- encoding

/// kDim is the elements of a piece where they are few, else 0.
template <int kDim>
void encode_pieces(const lane_codewords& codewords, const float* pieces, std::int64_t stride, std::int64_t rows,
                   std::uint8_t* codes, std::int64_t code_stride) {
  const std::int64_t dim = kDim > 0 ? kDim : codewords.piece_dim;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* piece = pieces + row * stride;
    vector best = hn::Set(kFloats, std::numeric_limits<float>::infinity());
    ints code = hn::Zero(kInts);
    ints numbers = hn::Iota(kInts, 0);
    for (std::int64_t n = 0; n < codewords.count; n += kLanes) {
      vector d = hn::Zero(kFloats);
      for (std::int64_t i = 0; i < dim; ++i) {
        const vector t =
            hn::Sub(hn::Set(kFloats, piece[i]), hn::LoadU(kFloats, codewords.words + i * codewords.count + n));
        d = hn::MulAdd(t, t, d);
      }
      const auto nearer = hn::Lt(d, best);  // never where distances are NaN, which all of a piece are or none
      best = hn::IfThenElse(nearer, d, best);
      code = hn::IfThenElse(hn::RebindMask(kInts, nearer), numbers, code);
      numbers = hn::Add(numbers, hn::Set(kInts, kLanes));
    }
    const vector least = hn::MinOfLanes(kFloats, best);
    const auto others = hn::RebindMask(kInts, hn::Gt(best, least));
    const ints smallest = hn::MinOfLanes(kInts, hn::IfThenElse(others, hn::Set(kInts, INT32_MAX), code));
    codes[row * code_stride] = static_cast<std::uint8_t>(hn::GetLane(smallest));
  }
}

void encode(const lane_codewords& codewords, const float* pieces, std::int64_t stride, std::int64_t rows,
            std::uint8_t* codes, std::int64_t code_stride) {
  const auto encode_with = [&] {
    switch (codewords.piece_dim) {
      case 1: return encode_pieces<1>;
      case 2: return encode_pieces<2>;
      case 3: return encode_pieces<3>;
      case 4: return encode_pieces<4>;
      case 8: return encode_pieces<8>;
      default: return encode_pieces<0>;
    }
  }();
  encode_with(codewords, pieces, stride, rows, codes, code_stride);
}

// ---- tables

table_range make_table(const lane_codewords& codewords, std::int64_t pieces, const float* query, float factor,
                       float* table, float* least) {
  const std::int64_t count = codewords.count;
  const vector by = hn::Set(kFloats, factor);
  table_range range;
  float width = 0.0f;  // of two pieces
  const float* words = codewords.words;
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    vector low = hn::Set(kFloats, std::numeric_limits<float>::infinity());
    vector high = hn::Neg(low);
    for (std::int64_t n = 0; n < count; n += kLanes) {
      vector sum = hn::Zero(kFloats);
      for (std::int64_t i = 0; i < codewords.piece_dim; ++i) {
        sum = hn::MulAdd(hn::Set(kFloats, query[i]), hn::LoadU(kFloats, words + i * count + n), sum);
      }
      sum = hn::Mul(by, sum);
      hn::StoreU(sum, kFloats, table + n);
      low = hn::Min(low, sum);
      high = hn::Max(high, sum);
    }
    least[piece] = hn::GetLane(hn::MinOfLanes(kFloats, low));
    range.sum_of_least += static_cast<double>(least[piece]);
    width = (piece % 2 == 0 ? 0.0f : width) + (hn::GetLane(hn::MaxOfLanes(kFloats, high)) - least[piece]);
    range.widest = HWY_MAX(range.widest, width);
    query += codewords.piece_dim;
    words += codewords.piece_dim * count;
    table += count;
  }
  return range;
}

void make_bytes(const float* table, const float* least, std::int64_t pieces, std::int64_t count, float inverse_step,
                float largest, std::uint8_t* bytes) {
  const hn::Rebind<std::uint8_t, float_tag> narrow;
  const vector scale = hn::Set(kFloats, inverse_step);
  const vector most = hn::Set(kFloats, largest);
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const vector base = hn::Set(kFloats, least[piece]);
    for (std::int64_t n = 0; n < count; n += kLanes) {
      const vector steps = hn::Mul(hn::Sub(hn::LoadU(kFloats, table + n), base), scale);
      hn::StoreU(hn::DemoteTo(narrow, hn::ConvertTo(kInts, hn::Min(steps, most))), narrow, bytes + n);
    }
    table += count;
    bytes += count;
  }
}

// ---- selection

float limit_of_rank(float* values, std::int64_t count, std::int64_t rank) {
  constexpr int kSteps = 16;
  hn::StoreU(hn::Set(kFloats, values[0]), kFloats, values + count);
  vector least = hn::LoadU(kFloats, values);
  vector most = least;
  for (std::int64_t i = kLanes; i < count; i += kLanes) {
    const vector more = hn::LoadU(kFloats, values + i);
    least = hn::Min(least, more);
    most = hn::Max(most, more);
  }
  hn::StoreU(hn::Set(kFloats, std::numeric_limits<float>::infinity()), kFloats, values + count);
  float below = hn::GetLane(hn::MinOfLanes(kFloats, least));
  float reached = hn::GetLane(hn::MaxOfLanes(kFloats, most));
  for (int step = 0; step < kSteps; ++step) {
    const float middle = below * 0.5f + reached * 0.5f;
    if (!(middle > below && middle < reached)) break;
    const vector limit = hn::Set(kFloats, middle);
    ints less = hn::Zero(kInts);
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const auto is_less = hn::RebindMask(kInts, hn::Le(hn::LoadU(kFloats, values + i), limit));
      less = hn::Sub(less, hn::VecFromMask(kInts, is_less));
    }
    const std::int64_t found = hn::GetLane(hn::SumOfLanes(kInts, less));
    (found < rank ? below : reached) = middle;
    if (found == rank) break;
  }
  return reached;
}

// ---- the filter

// A page's strip is 32 bytes: AVX-512 uses half of its vectors, NEON two.
constexpr hn::CappedTag<std::uint8_t, 32> kBytes;
constexpr hn::RebindToSigned<decltype(kBytes)> kSignedBytes;
constexpr hn::RepartitionToWide<decltype(kBytes)> kPairs;
constexpr hn::RebindToSigned<decltype(kPairs)> kSums;
constexpr hn::RepartitionToWide<decltype(kSums)> kWhole;
constexpr hn::RebindToFloat<decltype(kWhole)> kTerms;
using bytes_vector = hn::Vec<decltype(kBytes)>;
using pairs_vector = hn::Vec<decltype(kPairs)>;
using sums_vector = hn::Vec<decltype(kSums)>;

constexpr int kStrip = static_cast<int>(core::kPageRows);
constexpr int kByteLanes = static_cast<int>(HWY_MIN(HWY_LANES(std::uint8_t), 32));
constexpr int kParts = kStrip / kByteLanes;  // vectors of a strip
constexpr std::int64_t kLineBytes = 64;

/// Entries of 16 << Upper codewords for codes of 4 + Upper bits.
template <int Upper>
HWY_INLINE bytes_vector look_up(const std::uint8_t* entries, bytes_vector codes) {
  const bytes_vector lower = hn::And(codes, hn::Set(kBytes, 15));
  bytes_vector found[1 << Upper];
  unroll<1 << Upper>([&](auto i) SHORTLIST_INLINE_LAMBDA {
    found[i] = hn::TableLookupBytes(hn::LoadDup128(kBytes, entries + 16 * i), lower);
  });
  unroll<Upper>([&](auto level) SHORTLIST_INLINE_LAMBDA {  // bit 4 + level chooses, from each byte's sign
    const auto chooser = hn::BitCast(kSignedBytes, hn::ShiftLeft<3 - level>(hn::BitCast(kPairs, codes)));
    unroll<(1 << Upper >> level) / 2>([&](auto i) SHORTLIST_INLINE_LAMBDA {
      found[i] = hn::BitCast(kBytes, hn::IfNegativeThenElse(chooser, hn::BitCast(kSignedBytes, found[2 * i + 1]),
                                                            hn::BitCast(kSignedBytes, found[2 * i])));
    });
  });
  return found[0];
}

/// A code's strips, as they are looked up: of codes of 4 bits the halves of one, else two.
template <int Upper>
struct two_pieces {
  HWY_INLINE explicit two_pieces(const std::uint8_t* from) : first(hn::LoadU(kBytes, from)), second(first) {
    if constexpr (Upper == 0) {
      second = hn::BitCast(kBytes, hn::ShiftRight<4>(hn::BitCast(kPairs, first)));
    } else {
      second = hn::LoadU(kBytes, from + kStrip);
    }
  }
  bytes_vector first, second;
};

/// Sums of a page's entries for Queries queries, in halves: of query q, rows of even parts at halves[2 q * kParts].
template <int Upper, int Queries>
HWY_INLINE void sum_page(const std::uint8_t* const* entries, const std::uint8_t* HWY_RESTRICT codes,
                         std::int64_t strips, const std::byte* ahead, sums_vector* sums) {
  pairs_vector both[Queries * kParts], upper[Queries * kParts];
  unroll<Queries * kParts>([&](auto i) SHORTLIST_INLINE_LAMBDA { both[i] = upper[i] = hn::Zero(kPairs); });
  constexpr int kStep = Upper == 0 ? 1 : 2;  // strips of two pieces
  constexpr int kPiece = 16 << Upper;        // entries
  const auto add_two_pieces = [&](std::int64_t strip) SHORTLIST_INLINE_LAMBDA {
    unroll<kParts>([&](auto part) SHORTLIST_INLINE_LAMBDA {
      const two_pieces<Upper> pieces(codes + strip * kStrip + part * kByteLanes);
      unroll<Queries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
        constexpr int kAt = q * kParts + part;
        const std::uint8_t* table = entries[q] + strip / kStep * 2 * kPiece;
        // The sum of both bytes' worth less 256 times that of the upper ones is that of the lower ones, modulo 2^16.
        const pairs_vector pairs = hn::BitCast(
            kPairs, hn::Add(look_up<Upper>(table, pieces.first), look_up<Upper>(table + kPiece, pieces.second)));
        both[kAt] = hn::Add(both[kAt], pairs);
        upper[kAt] = hn::Add(upper[kAt], hn::ShiftRight<8>(pairs));
      });
    });
  };
  std::int64_t strip = 0;
  for (; strip + 2 * kStep <= strips; strip += 2 * kStep) {
    hwy::Prefetch(ahead + strip * kStrip);
    if constexpr (kStep == 2) hwy::Prefetch(ahead + strip * kStrip + kLineBytes);
    add_two_pieces(strip);
    add_two_pieces(strip + kStep);
  }
  if (strip < strips) add_two_pieces(strip);
  unroll<Queries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
    unroll<kParts>([&](auto part) SHORTLIST_INLINE_LAMBDA {
      constexpr int kAt = q * kParts + part;
      sums[2 * q * kParts + part] = hn::BitCast(kSums, hn::Sub(both[kAt], hn::ShiftLeft<8>(upper[kAt])));
      sums[(2 * q + 1) * kParts + part] = hn::BitCast(kSums, upper[kAt]);
    });
  });
}

/// Two vectors of numbers as one of 16 bits, in order; numbers that it does not hold become the nearest.
HWY_INLINE sums_vector narrowed(hn::Vec<decltype(kWhole)> lower, hn::Vec<decltype(kWhole)> upper) {
  const sums_vector both = hn::ReorderDemote2To(kSums, lower, upper);
  if constexpr (kByteLanes <= 16) {
    return both;
  } else {  // by 128 bits: the lower halves of both, then the upper ones
    constexpr hn::Repartition<std::uint64_t, decltype(kSums)> kQuarters;
    alignas(32) static constexpr std::uint64_t kOrder[] = {0, 2, 1, 3};
    return hn::BitCast(kSums,
                       hn::TableLookupLanes(hn::BitCast(kQuarters, both), hn::SetTableIndices(kQuarters, kOrder)));
  }
}

/// The highest sums with which rows stay, or up to two more, of a vector of rows; below 0 where none does. They are
/// never stored: a vector that is read from parts which were just written waits for them.
HWY_INLINE sums_vector highest_sums(const list_filter& filter, const float* terms) {
  // Added to this, a number is rounded to a whole one, which then stands in the lowest bits; and bits of larger floats
  // are larger numbers. One is added since each of two roundings takes up to a half.
  constexpr float kOrigin = 12'582'912.0f;  // 2^23 + 2^22
  constexpr float kLeast = kOrigin - 65'536.0f;
  const auto scale = hn::Set(kTerms, filter.inverse_step);
  const auto left = hn::Set(kTerms, (filter.limit - filter.offset) * filter.inverse_step + (kOrigin + 1.0f));
  const auto of_terms = [&](const float* from) SHORTLIST_INLINE_LAMBDA {
    // NaN, of terms that are no numbers, is above all: the second of two that are compared, with its bits.
    const auto steps = hn::Max(hn::Set(kTerms, kLeast), hn::NegMulAdd(hn::LoadU(kTerms, from), scale, left));
    return hn::Sub(hn::BitCast(kWhole, steps), hn::BitCast(kWhole, hn::Set(kTerms, kOrigin)));
  };
  return narrowed(of_terms(terms), of_terms(terms + hn::MaxLanes(kTerms)));
}

/// Appends the rows of a page whose sums are not too high.
HWY_INLINE void append_rows(const list_filter& filter, const list_span& list, const std::byte* page,
                            std::uint32_t page_number, std::int64_t rows, const sums_vector* sums,
                            candidate_list& found) {
  constexpr int kSumLanes = kByteLanes / 2;
  hn::Mask<decltype(kSums)> out[2 * kParts];  // rows that are left out
  unroll<2 * kParts>([&](auto part) SHORTLIST_INLINE_LAMBDA {
    out[part] = hn::Gt(sums[part], highest_sums(filter, page_layout::terms(page) + part * kSumLanes));
  });
  auto all = out[0];
  unroll<2 * kParts - 1>([&](auto part) SHORTLIST_INLINE_LAMBDA { all = hn::And(all, out[part + 1]); });
  if (HWY_LIKELY(hn::AllTrue(kSums, all))) return;
  std::uint32_t in = 0;  // by bits
  HWY_ALIGN std::int16_t lanes[kStrip];
  unroll<2 * kParts>([&](auto part) SHORTLIST_INLINE_LAMBDA {
    std::uint8_t bits[8] = {};
    hn::StoreMaskBits(kSums, hn::Not(out[part]), bits);
    in |= (bits[0] | static_cast<std::uint32_t>(bits[1]) << 8) << (part * kSumLanes);
    hn::Store(sums[part], kSums, lanes + part * kSumLanes);
  });
  for (; in != 0; in &= in - 1) {
    const int row = __builtin_ctz(in);
    if (row >= rows) break;
    const float term = page_layout::terms(page)[row];
    found.rows[found.size++] = {
        .estimate = filter.offset + term + filter.step * static_cast<float>(lanes[row]),
        .base = filter.base,
        .place = page_number * static_cast<std::uint32_t>(kStrip) + static_cast<std::uint32_t>(row),
        .list = list.list};
  }
}

/// A page of a list: where it is, and how many rows it has.
struct page_span {
  const std::byte* page = nullptr;
  const std::byte* next = nullptr;
  std::uint32_t number = 0;
  std::int64_t rows = 0;
};

template <int Upper, int Queries>
HWY_INLINE void scan_page(const list_filter* filters, const list_span& list, const page_span& of,
                          candidate_list* const* found) {
  const std::uint8_t* entries[Queries];
  for (int q = 0; q < Queries; ++q) entries[q] = filters[q].bytes;
  sums_vector sums[2 * Queries * kParts];
  sum_page<Upper, Queries>(entries, page_layout::codes(of.page), list.strips, of.next + page_layout::kCodesAt, sums);
  unroll<Queries>([&](auto q) SHORTLIST_INLINE_LAMBDA {
    append_rows(filters[q], list, of.page, of.number, of.rows, sums + 2 * q * kParts, *found[q]);
  });
}

template <int Upper>
std::int64_t scan_list_of(const list_filter* filters, std::int64_t queries, const list_span& list,
                          std::int64_t first_page, candidate_list* const* found) {
  constexpr std::int64_t kTogether = Upper == 0 ? 4 : 2;  // whose sums registers hold
  const std::int64_t pages = divide_up(list.rows, core::kPageRows);
  for (std::int64_t number = first_page; number < pages; ++number) {
    for (std::int64_t q = 0; q < queries; ++q) {
      if (found[q]->size + core::kPageRows > found[q]->room) return number;
    }
    const std::byte* page = list.pages + list.table[number] * list.page_bytes;
    const page_span of = {.page = page,
                          .next = number + 1 < pages ? list.pages + list.table[number + 1] * list.page_bytes : page,
                          .number = list.table[number],
                          .rows = HWY_MIN(core::kPageRows, list.rows - number * core::kPageRows)};
    for (std::int64_t q = 0; q < queries; q += kTogether) {
      const std::int64_t together = HWY_MIN(queries - q, kTogether);
      if constexpr (kTogether == 4) {
        if (together == 4) scan_page<Upper, 4>(filters + q, list, of, found + q);
        if (together == 3) scan_page<Upper, 3>(filters + q, list, of, found + q);
      }
      if (together == 2) scan_page<Upper, 2>(filters + q, list, of, found + q);
      if (together == 1) scan_page<Upper, 1>(filters + q, list, of, found + q);
    }
  }
  return pages;
}

std::int64_t scan_list(const list_filter* filters, std::int64_t queries, const list_span& list, std::int64_t first_page,
                       candidate_list* const* found) {
  switch (filters->bits) {
    case 4: return scan_list_of<0>(filters, queries, list, first_page, found);
    case 5: return scan_list_of<1>(filters, queries, list, first_page, found);
    case 6: return scan_list_of<2>(filters, queries, list, first_page, found);
    case 7: return scan_list_of<3>(filters, queries, list, first_page, found);
    default: return scan_list_of<4>(filters, queries, list, first_page, found);
  }
}

const ivf_pq_kernels kIvfPqKernels = {.coarse_estimates = coarse_estimates,
                                      .least_of_groups = least_of_groups,
                                      .numbers_below = numbers_below,
                                      .encode = encode,
                                      .make_table = make_table,
                                      .make_bytes = make_bytes,
                                      .limit_of_rank = limit_of_rank,
                                      .scan_list = scan_list};

#endif
}  // namespace shortlist::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shortlist::cpu {

const ivf_pq_kernels& current_ivf_pq_kernels() {
  switch (current_isa()) {
#if HWY_TARGETS & HWY_AVX3
    case isa::amx:
    case isa::avx512_vnni:
    case isa::avx512: return N_AVX3::kIvfPqKernels;
#endif
#if HWY_TARGETS & HWY_AVX2
    case isa::avx2: return N_AVX2::kIvfPqKernels;
#endif
#if HWY_TARGETS & HWY_NEON
    case isa::neon_dotprod:
    case isa::neon: return N_NEON::kIvfPqKernels;
#endif
    default: return scalar_ivf_pq_kernels();
  }
}

}  // namespace shortlist::cpu
#endif
