// Rows from their codes, and their canonical scores by a warp.
#pragma once

#include "cuda/device/score.cuh"
#include "cuda/ivf_pq/page_layout.hpp"

namespace shortlist::cuda {

/// A row's place: number of its page times 32, and its row there.
using slot = std::uint32_t;

/// What decoding takes, in 32-bit numbers.
struct decoder {
  const std::byte* pages;
  const float* codebook;
  const float* steps;      ///< of uniform codes, else null
  const float* centroids;  ///< null with encoded::row
  std::int64_t centroid_stride;
  std::int64_t page_bytes;
  std::int32_t dim;
  std::int32_t piece_dim;
  std::int32_t piece_shift;  ///< piece_dim is 1 << piece_shift; -1 if it is no power of two
  std::int32_t codewords;
  std::int32_t code_bits;
  std::int32_t lane_pieces;
  std::int32_t row_words;  ///< words of codes that a lane holds of one row
  std::int32_t plane_shift;
  std::int32_t tile_words;
  std::int32_t positions_at;
  std::int32_t list_at;

  __device__ const std::byte* page_of(slot at) const { return pages + at / core::kPageRows * page_bytes; }
  __device__ std::uint32_t position_of(slot at) const {
    return reinterpret_cast<const std::uint32_t*>(page_of(at) + positions_at)[at % core::kPageRows];
  }
  __device__ std::uint32_t list_of(slot at) const {
    return *reinterpret_cast<const std::uint32_t*>(page_of(at) + list_at);
  }
};

decoder decoder_of(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists);

/// A byte of a word less half of the most it may be: exact, and without a conversion, which takes four times as long.
__device__ __forceinline__ float centred(std::uint32_t word, std::uint32_t byte, int most) {
  constexpr std::uint32_t kBits = 0x47000000u;  // of 2^15, whose second byte counts ones
  return __uint_as_float(__byte_perm(word, kBits, 0x7504u | byte << 4)) - (0x1p15f + 0.5f * static_cast<float>(most));
}

/// A lane's part of one row: four neighbouring elements in every 128.
class row_decoder {
 public:
  __device__ row_decoder(const decoder& from, slot at)
      : from_(from),
        words_(reinterpret_cast<const std::uint32_t*>(from.page_of(at)) +
               at % core::kPageRows / kTileRows * from.tile_words),
        first_word_(static_cast<std::int32_t>(at % kTileRows / 8) * from.row_words),
        lane_(static_cast<std::int32_t>(at % 8 * kLanesOfRow)) {}

  /// What the codes stand for in elements [first, first + 4); 0 past dim. `first` is a multiple of 4.
  __device__ __forceinline__ float4 four(std::int32_t first) const {
    float4 w = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (first >= from_.dim) return w;
    if (from_.steps != nullptr) return of_numbers(first);
    if (from_.piece_dim % 4 == 0) {
      const std::int32_t piece = piece_of(first);
      return *reinterpret_cast<const float4*>(codeword(piece) + (first - piece * from_.piece_dim));
    }
    if (from_.piece_dim == 2) {  // of whose pieces two neighbours' codes are of one word
      const std::int32_t piece = first / 2;
      const std::uint32_t codes = codes_from(piece);
      const bool bytes = from_.code_bits == 8;
      const std::uint32_t code = bytes ? codes & 0xFFu : codes & 0xFu;
      const std::uint32_t next = bytes ? codes >> 8 & 0xFFu : codes >> 16 & 0xFu;
      const float2 low = *reinterpret_cast<const float2*>(codeword(piece, code));
      const float2 high =
          first + 2 < from_.dim ? *reinterpret_cast<const float2*>(codeword(piece + 1, next)) : make_float2(0.0f, 0.0f);
      return make_float4(low.x, low.y, high.x, high.y);
    }
    float each[4] = {};
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (first + e >= from_.dim) break;
      const std::int32_t piece = piece_of(first + e);
      each[e] = codeword(piece)[first + e - piece * from_.piece_dim];
    }
    return make_float4(each[0], each[1], each[2], each[3]);
  }

 private:
  /// Elements of uniform codes. A lane's pieces are whole words, so that four neighbours lie in one.
  __device__ __forceinline__ float4 of_numbers(std::int32_t first) const {
    const std::int32_t t =
        (first >= from_.lane_pieces) + (first >= 2 * from_.lane_pieces) + (first >= 3 * from_.lane_pieces);
    const std::int32_t i = first - t * from_.lane_pieces;
    const bool bytes = from_.code_bits == 8;
    const std::uint32_t codes = word(t, bytes ? i / 4 : i / 8);
    float steps[4] = {};
    if (first + 4 <= from_.dim) {
      const float4 all = *reinterpret_cast<const float4*>(from_.steps + first);
      steps[0] = all.x;
      steps[1] = all.y;
      steps[2] = all.z;
      steps[3] = all.w;
    } else {
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (first + e < from_.dim) steps[e] = from_.steps[first + e];
    }
    float each[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const std::uint32_t code =
          bytes ? (codes >> (8 * e)) & 0xFFu : (codes >> (e % 2 * 16 + (i % 8 / 2 + e / 2) * 4)) & 0xFu;
      const float number = static_cast<float>(code) - 0.5f * static_cast<float>(from_.codewords - 1);
      each[e] = first + e < from_.dim ? __fmul_rn(number, steps[e]) : 0.0f;
    }
    return make_float4(each[0], each[1], each[2], each[3]);
  }

  /// Word i of what lane t of the row's four holds of it.
  __device__ __forceinline__ std::uint32_t word(std::int32_t t, std::int32_t i) const {
    const std::int32_t at = first_word_ + i;
    const std::int32_t plane_words = 1 << from_.plane_shift;
    return words_[((((at >> from_.plane_shift) * static_cast<std::int32_t>(kWarpLanes)) + lane_ + t)
                   << from_.plane_shift) +
                  (at & (plane_words - 1))];
  }

  __device__ __forceinline__ std::int32_t piece_of(std::int32_t element) const {
    return from_.piece_shift >= 0 ? element >> from_.piece_shift : element / from_.piece_dim;
  }
  __device__ __forceinline__ const float* codeword(std::int32_t piece) const {
    return codeword(piece, codes_from(piece) & (from_.code_bits == 8 ? 0xFFu : 0xFu));
  }
  __device__ __forceinline__ const float* codeword(std::int32_t piece, std::uint32_t code) const {
    return from_.codebook + (static_cast<std::int64_t>(piece) * from_.codewords + code) * from_.piece_dim;
  }
  /// The word that a piece's code is in, which is its lowest bits.
  __device__ __forceinline__ std::uint32_t codes_from(std::int32_t piece) const {
    const std::int32_t t =  // piece / lane_pieces, below 4
        (piece >= from_.lane_pieces) + (piece >= 2 * from_.lane_pieces) + (piece >= 3 * from_.lane_pieces);
    const std::int32_t i = piece - t * from_.lane_pieces;
    const bool bytes = from_.code_bits == 8;
    return word(t, bytes ? i / 4 : i / 8) >> (bytes ? i % 4 * 8 : i % 2 * 16 + i % 8 / 2 * 4);
  }

  const decoder& from_;
  const std::uint32_t* words_;
  std::int32_t first_word_;
  std::int32_t lane_;
};

/// Elements [at, at + 4) of a decoded row: what its codes stand for, and its list's centroid.
__device__ __forceinline__ float4 decoded_four(const decoder& from, slot row, std::uint32_t list, std::int32_t at) {
  const float4 x = row_decoder(from, row).four(at);
  if (from.centroids == nullptr) return x;
  const auto* c = reinterpret_cast<const float4*>(from.centroids + list * from.centroid_stride + at);  // padded with 0
  return make_float4(__fadd_rn(c->x, x.x), __fadd_rn(c->y, x.y), __fadd_rn(c->z, x.z), __fadd_rn(c->w, x.w));
}

/// Sums of kDecodedRows decoded rows against the query, in shared memory, padded with -0 to whole chunks of 128.
/// Returns that of row finished_row<kWarp, kDecodedRows>(lane).
inline constexpr int kDecodedRows = 4;  // of a warp at once

template <bool L2>
__device__ __forceinline__ float sum_of_decoded(const decoder& from, const slot (&rows)[kDecodedRows],
                                                const std::uint32_t (&lists)[kDecodedRows], const float* query,
                                                int lane) {
  float sums[kDecodedRows][kQuadsPerLane<kWarp>][4] = {};
#pragma unroll 1
  for (std::int32_t at = lane * 4; at < from.dim; at += core::kPartialSums) {
    const float4 q = *reinterpret_cast<const float4*>(query + at);
#pragma unroll
    for (int r = 0; r < kDecodedRows; r++) {
      step4<L2>(q, decoded_four(from, rows[r], lists[r], at), sums[r][0]);
    }
  }
  return finish_sums<kWarp, kDecodedRows>(sums, lane);
}

inline constexpr int kLanesOfScore = 8;   // of a row that is scored
inline constexpr int kScoredOfLanes = 2;  // rows of those lanes at once
inline constexpr std::uint32_t kScoredAtOnce = kWarpLanes / kLanesOfScore * kScoredOfLanes;  // rows of a warp

/// Fours of elements of a lane's rows: every eighth four of a row, as many as are loaded at once.
template <int AtOnce>
using scored_fours = float4[AtOnce][kScoredOfLanes];

/// Calls visit(i, at) for each of a lane's fours from `first` on: elements [at, at + 4), if the row has them.
template <int AtOnce, class Visit>
__device__ __forceinline__ void for_each_four(std::int32_t first, std::int32_t dim, Visit visit) {
#pragma unroll
  for (int i = 0; i < AtOnce; i++) {
    const std::int32_t at = first + i * kLanesOfScore * 4;
    if (at < dim) visit(i, at);
  }
}

/// The sum of row finished_row<8, 2>(lane) of a lane's two rows. `load(first, x)` brings what for_each_four visits: the
/// more at once, the fewer waits for memory, and the more registers.
template <bool L2, int AtOnce, class Load>
__device__ __forceinline__ float sum_by_eights(std::int32_t dim, const float* staged, int lane, Load load) {
  constexpr int kQuads = kQuadsPerLane<kLanesOfScore>;
  float sums[kScoredOfLanes][kQuads][4] = {};
#pragma unroll 1
  for (std::int32_t chunk = lane % kLanesOfScore * 4; chunk < dim; chunk += core::kPartialSums) {
#pragma unroll
    for (int v = 0; v < kQuads; v += AtOnce) {
      const std::int32_t first = chunk + v * kLanesOfScore * 4;
      scored_fours<AtOnce> x;
      load(first, x);
      for_each_four<AtOnce>(first, dim, [&](int i, std::int32_t at) {
        const float4 q = *reinterpret_cast<const float4*>(staged + at);
#pragma unroll
        for (int r = 0; r < kScoredOfLanes; r++) step4<L2>(q, x[i][r], sums[r][v + i]);
      });
    }
  }
  __syncwarp();
  return finish_sums<kLanesOfScore, kScoredOfLanes>(sums, lane);
}

/// A finished sum as the score by code: rows were divided by their norms before they were encoded.
__device__ __forceinline__ float code_score(float sum, metric by, float query_inverse_norm) {
  if (by != metric::cosine) return sum;
  return query_inverse_norm < 0.0f ? core::worst_score(by) : __fmul_rn(sum, query_inverse_norm);
}

}  // namespace shortlist::cuda
