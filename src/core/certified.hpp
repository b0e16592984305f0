// Certified search: int8 copies of rows, and intervals that surely hold the score. docs/certified.md has the proof; the
// names of its terms stand beside what implements them.
//
// A row is filtered by the integer product of its codes with the query's, which costs a quarter of the bytes of fp32.
// What this header computes is compiled by host and device; how codes are multiplied is each backend's own.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.hpp"
#include "core/score.hpp"
#include "shortlist/types.hpp"

namespace shortlist::core {

// ---- the plane

inline constexpr int kPlaneRows = 16;    ///< rows of a block: lanes of a vector
inline constexpr int kPlaneWord = 4;     ///< codes of a row that lie side by side
inline constexpr int kCodeOffset = 128;  ///< a code is stored as the byte code + 128
inline constexpr int kMaxRowCode = 127;
inline constexpr int kCoarseStep = 4;      ///< coarse codes are multiples of it
inline constexpr int kMaxCoarseCode = 31;  ///< times kCoarseStep

/// A plane is a sequence of blocks of 16 rows: codes [ceil(dim / 4)][16 rows][4 codes], padded with code 0, then fp32
/// scale[16], residual[16], norm[16] and, under squared L2, square[16]. Blocks are multiples of 64 bytes.
struct plane_layout {
  std::int64_t words = 0;  ///< of four codes, in a row
  std::int64_t terms = 0;  ///< fp32 numbers of a row

  constexpr plane_layout(std::int64_t dim, metric by)
      : words((dim + kPlaneWord - 1) / kPlaneWord), terms(by == metric::l2 ? 4 : 3) {}
  constexpr std::int64_t codes_bytes() const { return words * kPlaneWord * kPlaneRows; }
  constexpr std::int64_t block_bytes() const { return codes_bytes() + terms * kPlaneRows * 4; }
  constexpr std::int64_t bytes(std::int64_t rows) const { return (rows + kPlaneRows - 1) / kPlaneRows * block_bytes(); }
  /// Where code `i` of row `row` of a block lies in it.
  static constexpr std::int64_t code_at(std::int64_t row, std::int64_t i) {
    return (i / kPlaneWord * kPlaneRows + row) * kPlaneWord + i % kPlaneWord;
  }
};

/// A plane as matrix units take it, for CUDA devices: blocks of 16 rows of codes, signed bytes, padded with code 0,
/// [ceil(dim / 32)][32 lanes][16 bytes], then fp32 scale[16], residual[16], norm[16] and, under cosine, the inverse
/// norm[16] or, under squared L2, square[16]. Lane 4 g + t of group j holds what it gives to a product of 16 rows by 32
/// codes: codes 32 j + 4 t .. + 3 of row g, the same of row g + 8, codes 32 j + 16 + 4 t .. + 3 of row g, the same of
/// row g + 8. Blocks are multiples of 64 bytes. Rows past the count are rows that nothing is known of.
///
/// Where the rows are on the device, too, a block goes on with a **coarse copy** for scans of one query: codes of six
/// bits, in three quarters of the bytes, and their own numbers of the rows as above. As bytes, these codes are
/// multiples of four. Of row g, lane 4 (g mod 8) + t has the words w0 .. w3 of a pair of groups p: codes 64 p + 16 w +
/// 4 t .. + 3. Words 0, 1 and 2 are stored, and in the lower two bits of their bytes the upper six of those of w3, the
/// highest in word 0: [ceil(dim / 64)] of [32 lanes][words 0 and 1][rows g and g + 8] and [32 lanes][word 2][both
/// rows].
struct fragment_layout {
  static constexpr std::int64_t kGroup = 32;          ///< codes of a row that one product takes
  static constexpr std::int64_t kGroupBytes = 512;    ///< of 16 rows
  static constexpr std::int64_t kPair = 2 * kGroup;   ///< of codes in a coarse copy
  static constexpr std::int64_t kPairBytes = 768;     ///< of 16 rows
  static constexpr std::int64_t kThirdWordsAt = 512;  ///< where in a pair words 2 begin
  std::int64_t groups = 0;
  std::int64_t terms = 0;
  std::int64_t pairs = 0;  ///< 0: there is no coarse copy

  constexpr fragment_layout(std::int64_t dim, metric by, storage kept)
      : groups((dim + kGroup - 1) / kGroup),
        terms(by == metric::inner_product ? 3 : 4),
        pairs(kept == storage::int8_and_full ? (dim + kPair - 1) / kPair : 0) {}
  constexpr std::int64_t codes_bytes() const { return groups * kGroupBytes; }
  constexpr std::int64_t terms_bytes() const { return terms * kPlaneRows * 4; }
  constexpr std::int64_t whole_bytes() const { return codes_bytes() + terms_bytes(); }  ///< before the coarse copy
  constexpr std::int64_t coarse_codes_bytes() const { return pairs * kPairBytes; }
  constexpr std::int64_t coarse_bytes() const { return pairs == 0 ? 0 : coarse_codes_bytes() + terms_bytes(); }
  constexpr std::int64_t block_bytes() const { return whole_bytes() + coarse_bytes(); }
  constexpr std::int64_t bytes(std::int64_t rows) const { return (rows + kPlaneRows - 1) / kPlaneRows * block_bytes(); }
  /// Where code `i` of row `row` of a block lies in it.
  static constexpr std::int64_t code_at(std::int64_t row, std::int64_t i) {
    const std::int64_t in_group = i % kGroup;
    const std::int64_t lane = row % 8 * 4 + in_group % 16 / 4;
    return i / kGroup * kGroup * kPlaneRows + lane * 16 + in_group / 16 * 8 + row / 8 * 4 + in_group % 4;
  }
  /// Where in a coarse copy the word lies that has codes `i` .. + 3 of row `row`, of words 0 to 2 of a pair.
  static constexpr std::int64_t coarse_at(std::int64_t row, std::int64_t i) {
    const std::int64_t lane = row % 8 * 4 + i % 16 / 4;
    const std::int64_t word = i % kPair / 16;
    const std::int64_t in_pair = word < 2 ? lane * 16 + word * 8 : kThirdWordsAt + lane * 8;
    return i / kPair * kPairBytes + in_pair + row / 8 * 4;
  }
};

/// What a plane knows of a row x with codes c.
struct plane_row {
  float scale = 0.0f;     ///< s: the row is about s c
  float residual = 0.0f;  ///< e >= |x - s c|; infinity if the row cannot be certified
  float norm = 0.0f;      ///< n >= |s c|
  float square = 0.0f;    ///< w, |x|^2 rounded to nearest
};

/// What the rows of a plane tell about how many of them a search will have to score. Whole numbers: the order in which
/// rows are added does not matter.
struct plane_summary {
  std::int64_t certifiable = 0;  ///< rows
  std::int64_t uncertifiable = 0;
  std::int64_t looseness = 0;         ///< sum over the certifiable rows of looseness_of
  std::int64_t coarse_looseness = 0;  ///< the same of a coarse copy, where there is one

  constexpr void add(const plane_summary& other) {
    certifiable += other.certifiable;
    uncertifiable += other.uncertifiable;
    looseness += other.looseness;
    coarse_looseness += other.coarse_looseness;
  }
};

inline constexpr std::int64_t kLoosenessUnit = std::int64_t{1} << 20;

/// Residual over norm of a certifiable row, at most 1, in units of 2^-20.
SHORTLIST_HOST_DEVICE std::int64_t looseness_of(float residual, float norm) {
  constexpr float kResidualOfZero = 0x1p-125f;  // a zero vector's, padded; nothing is known better
  if (residual <= kResidualOfZero) return 0;
  return residual < norm ? static_cast<std::int64_t>(residual / norm * static_cast<float>(kLoosenessUnit))
                         : kLoosenessUnit;
}

/// The summary of one row.
SHORTLIST_HOST_DEVICE plane_summary summary_of(float residual, float norm) {
  const bool certifiable = residual < float_from_bits(0x7F800000u);
  return {certifiable ? 1 : 0, certifiable ? 0 : 1, certifiable ? looseness_of(residual, norm) : 0, 0};
}

// ---- codes

/// Largest norm of rows and queries for which nothing overflows, however the score is computed.
inline constexpr double kMaxCertifiedNorm = 0x1p62;
/// Vectors whose elements are all smaller are their own residual, so that no scale is near the denormals.
inline constexpr float kLeastQuantised = 0x1p-100f;

/// s for codes of up to max_code; 0 if the vector is too small, or not finite, and all codes are to be 0.
SHORTLIST_HOST_DEVICE float code_scale(float largest_magnitude, int max_code) {
  const bool is_quantised = largest_magnitude >= kLeastQuantised && largest_magnitude <= float(kMaxCertifiedNorm);
  return is_quantised ? largest_magnitude / static_cast<float>(max_code) : 0.0f;
}

/// What code_of multiplies by: 1 / s, or 0.
SHORTLIST_HOST_DEVICE float inverse_scale(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

/// The code of an element, about element / s, as a whole fp32 number. Any other would be right too: the residual is
/// that of the codes chosen. @pre |element * inverse| < 2^22.
SHORTLIST_HOST_DEVICE float code_of(float element, float inverse, int max_code) {
  constexpr float kRoundsToWhole = 0x1.8p23f;  // added, it leaves no bits for fractions
  const float whole = (element * inverse + kRoundsToWhole) - kRoundsToWhole;
  const float limit = static_cast<float>(max_code);
  const float from_below = whole > -limit ? whole : -limit;  // two forms that compilers make one instruction each of
  return from_below < limit ? from_below : limit;
}

/// The largest query code, at most `wanted`, for which a product of codes fits 32 bits.
SHORTLIST_HOST_DEVICE int max_query_code(std::int64_t dim, int wanted) {
  const std::int64_t fits = INT32_MAX / (kMaxRowCode * dim);
  return fits < wanted ? static_cast<int>(fits) : wanted;
}

// ---- terms

/// fp32 from above: at least value (1 + 6 u), u = 2^-24, and at least value + 2^-127.
SHORTLIST_HOST_DEVICE float padded_up(double value) {
  constexpr double kPad = 1.0 + 0x1p-21;
  constexpr float kFloor = 0x1p-126f;  // above every error by underflow
  return static_cast<float>(value * kPad) + kFloor;
}

/// The terms of a row from sums over its elements: of x^2, of (x - s c)^2 and of c^2. Codes must be 0 where scale is.
SHORTLIST_HOST_DEVICE plane_row row_terms(float scale, double squares, double residual_squares,
                                          std::int64_t code_squares) {
  if (!(squares <= kMaxCertifiedNorm * kMaxCertifiedNorm)) {  // or NaN
    return {0.0f, float_from_bits(0x7F800000u), 0.0f, 0.0f};
  }
  return {scale, padded_up(std::sqrt(residual_squares)),
          padded_up(static_cast<double>(scale) * std::sqrt(static_cast<double>(code_squares))),
          static_cast<float>(squares)};
}

/// What the interval of a query q with codes a takes from it.
struct query_terms {
  float scale = 0.0f;            ///< t: the query is about t a
  float residual_weight = 0.0f;  ///< of e
  float norm_weight = 0.0f;      ///< of n
  float square_weight = 0.0f;    ///< of w
  float floor = 0.0f;            ///< what no row changes
  float square = 0.0f;           ///< |q|^2 rounded to nearest, under squared L2
  float inverse_norm = 0.0f;     ///< under cosine
};

/// Whether intervals can be given for a query: from its sum of q^2 and, under cosine, its inverse norm.
SHORTLIST_HOST_DEVICE bool is_certifiable(double squares, float query_inverse_norm) {
  return squares <= kMaxCertifiedNorm * kMaxCertifiedNorm && !(query_inverse_norm < 0.0f);
}

/// How often a term of a sum over dim elements is rounded at most: along its chain, then in the tree's levels that have
/// anything to add.
SHORTLIST_HOST_DEVICE int roundings_of_sum(std::int64_t dim) {
  int count = static_cast<int>((dim + kPartialSums - 1) / kPartialSums);
  for (std::int64_t s = kPartialSums / 2; s > 0; s /= 2) count += s < dim ? 1 : 0;
  return count;
}

/// The bound of that many roundings, relative.
SHORTLIST_HOST_DEVICE double gamma_of(int roundings) {
  const double most = roundings * 0x1p-24;
  return most / (1.0 - most);
}

/// The terms of a query from sums over its elements: of q^2 and of (q - t a)^2.
SHORTLIST_HOST_DEVICE query_terms terms_of_query(metric by, std::int64_t dim, float scale, double squares,
                                                 double residual_squares, float query_inverse_norm) {
  constexpr double kUnit = 0x1p-24;
  const double norm = std::sqrt(squares);
  const double residual = std::sqrt(residual_squares);
  const int roundings = roundings_of_sum(dim);
  query_terms terms;
  terms.scale = scale;
  terms.inverse_norm = query_inverse_norm;
  if (by == metric::l2) {
    const double square_weight = 2.0 * gamma_of(roundings + 2) + 3.0 * kUnit;
    terms.residual_weight = padded_up(2.0 * norm);
    terms.norm_weight = padded_up(2.0 * residual + 8.0 * kUnit * (norm + residual));
    terms.square_weight = padded_up(square_weight);
    terms.floor = padded_up(square_weight * squares);
    terms.square = static_cast<float>(squares);
  } else {
    const double gamma = gamma_of(roundings);
    terms.residual_weight = padded_up(norm * (1.0 + gamma));
    terms.norm_weight = padded_up(residual + gamma * norm + 3.0 * kUnit * (norm + residual));
    terms.floor = padded_up(0.0);
  }
  return terms;
}

// ---- intervals

/// Merit is the score where larger is better, and minus the score where smaller is: the merit of the row lies in
/// [low, high]. Either end may be NaN for rows that cannot be certified.
struct merit_interval {
  float low;
  float high;
};

SHORTLIST_HOST_DEVICE float merit_of(float score, metric by) { return smaller_is_better(by) ? -score : score; }

/// The interval of a row and a query, from the integer product of their codes. The plain form of the vector kernels,
/// which may fuse any of its products and sums.
SHORTLIST_HOST_DEVICE merit_interval interval_of(metric by, const query_terms& query, const plane_row& row,
                                                 float row_inverse_norm, std::int32_t product) {
  const float estimate = (static_cast<float>(product) * row.scale) * query.scale;
  float bound = query.residual_weight * row.residual + (query.norm_weight * row.norm + query.floor);
  if (by == metric::l2) {
    bound = query.residual_weight * row.residual +
            (query.norm_weight * row.norm + (query.square_weight * row.square + query.floor));
    const float center = 2.0f * estimate - (query.square + row.square);
    return {center - bound, center + bound};
  }
  if (by == metric::cosine) {
    return {cosine_score(estimate - bound, query.inverse_norm, row_inverse_norm),
            cosine_score(estimate + bound, query.inverse_norm, row_inverse_norm)};
  }
  return {estimate - bound, estimate + bound};
}

}  // namespace shortlist::core
