// Rows decoded by eight lanes each, for one form of codes at compile time. Of up to 128 elements, all loads of a row
// are on their way before one is waited for; longer ones go by chunks of 128. decode.cuh has the same for any shape.
#pragma once

#include <type_traits>

#include "cuda/ivf_pq/decode.cuh"

namespace shortlist::cuda {

/// What codes stand for: a whole number of 8 or 4 bits times a step, or a codeword of two elements named by a byte; of
/// rows of more than 128 elements, such a number, or a codeword of 2, 4, 8 ... elements named by a byte; or anything
/// else. Or there are none: slots are positions of rows.
enum class row_form : std::uint8_t { numbers8, numbers4, pairs, wide_numbers, wide_pieces, any, none };

/// Of rows of up to 128 elements.
constexpr bool is_short(row_form form) { return form <= row_form::pairs; }

inline row_form row_form_of(const decoder& codes) {
  if (codes.pages == nullptr) return row_form::none;
  if (codes.dim > core::kPartialSums) {
    if (codes.steps) return row_form::wide_numbers;
    return codes.piece_shift >= 1 && codes.code_bits == 8 ? row_form::wide_pieces : row_form::any;
  }
  if (codes.steps) return codes.code_bits == 8 ? row_form::numbers8 : row_form::numbers4;
  return codes.piece_dim == 2 && codes.code_bits == 8 ? row_form::pairs : row_form::any;
}

template <row_form Form>
class eights_decoder {
  static_assert(is_short(Form));

 public:
  static constexpr int kQuads = kQuadsPerLane<kLanesOfScore>;

  __device__ eights_decoder(const decoder& from, int lane) : from_(from), first_(lane % kLanesOfScore * 4) {
    const std::int32_t in_word = first_ / kPieceDim % kWordCodes;  // of all of the lane's fours
    shift_ = Form == row_form::numbers4 ? in_word / 2 * 4 : in_word * 8;
#pragma unroll
    for (int v = 0; v < kQuads; v++) {
      const std::int32_t piece = first_of(v) / kPieceDim;
      const std::int32_t t =
          (piece >= from.lane_pieces) + (piece >= 2 * from.lane_pieces) + (piece >= 3 * from.lane_pieces);
      const std::int32_t word = (piece - t * from.lane_pieces) / kWordCodes;
#pragma unroll
      for (int upper = 0; upper < 2; upper++) {
        const std::int32_t at = upper * from.row_words + word;
        const std::int32_t plane = at >> from.plane_shift;
        words_at_[upper][v] = (((plane * static_cast<std::int32_t>(kWarpLanes)) + t) << from.plane_shift) + at -
                              (plane << from.plane_shift);
      }
      if constexpr (Form != row_form::pairs)
        steps_[v] = make_float4(step(first_of(v)), step(first_of(v) + 1), step(first_of(v) + 2), step(first_of(v) + 3));
    }
  }

  /// The sum of row finished_row<8, 2>(lane) of two rows, which lie in these lists. AtOnce of the lane's fours are
  /// decoded together.
  template <bool L2, int AtOnce = kQuads>
  __device__ __forceinline__ float sum(const slot (&rows)[kScoredOfLanes], const std::uint32_t (&lists)[kScoredOfLanes],
                                       const float* staged, int lane) const {
    std::uint32_t words[kScoredOfLanes][kQuads];
#pragma unroll
    for (int r = 0; r < kScoredOfLanes; r++) load_words(rows[r], words[r]);
    float sums[kScoredOfLanes][kQuads][4] = {};
#pragma unroll
    for (int v = 0; v < kQuads; v += AtOnce) add_fours<L2, AtOnce>(lists, words, staged, v, sums);
    __syncwarp();
    return finish_sums<kLanesOfScore, kScoredOfLanes>(sums, lane);
  }

 private:
  static constexpr std::int32_t kPieceDim = Form == row_form::pairs ? 2 : 1;
  static constexpr std::int32_t kWordCodes = Form == row_form::numbers4 ? 8 : 4;

  /// The element that the lane's v-th four begin with.
  __device__ __forceinline__ std::int32_t first_of(int v) const { return v * kLanesOfScore * 4 + first_; }

  __device__ float step(std::int32_t i) const { return i < from_.dim ? from_.steps[i] : 0.0f; }

  /// The words that hold the codes of the lane's fours.
  __device__ __forceinline__ void load_words(slot row, std::uint32_t (&words)[kQuads]) const {
    const auto in_page = static_cast<std::int32_t>(row % core::kPageRows);
    const auto* of_row = reinterpret_cast<const std::uint32_t*>(from_.page_of(row)) +
                         in_page / kTileRows * from_.tile_words +
                         (in_page % 8 * static_cast<std::int32_t>(kLanesOfRow) << from_.plane_shift);
    const bool upper = in_page & 8;
#pragma unroll
    for (int v = 0; v < kQuads; v++)
      if (first_of(v) < from_.dim) words[v] = of_row[upper ? words_at_[1][v] : words_at_[0][v]];
  }

  template <bool L2, int AtOnce>
  __device__ __forceinline__ void add_fours(const std::uint32_t (&lists)[kScoredOfLanes],
                                            const std::uint32_t (&words)[kScoredOfLanes][kQuads], const float* staged,
                                            int begin, float (&sums)[kScoredOfLanes][kQuads][4]) const {
    float4 centroids[kScoredOfLanes][AtOnce];
    float4 coded[kScoredOfLanes][AtOnce];
#pragma unroll
    for (int i = 0; i < AtOnce; i++) {
      const std::int32_t first = first_of(begin + i);
      if (first >= from_.dim) continue;
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) {
        if (from_.centroids)
          centroids[r][i] =
              *reinterpret_cast<const float4*>(from_.centroids + lists[r] * from_.centroid_stride + first);
        coded[r][i] = expand(words[r][begin + i], begin + i);
      }
    }
#pragma unroll
    for (int i = 0; i < AtOnce; i++) {
      const std::int32_t first = first_of(begin + i);
      if (first >= from_.dim) continue;
      const float4 q = *reinterpret_cast<const float4*>(staged + first);
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) {
        float4 x = coded[r][i];
        const float4 c = centroids[r][i];
        if (from_.centroids)
          x = make_float4(__fadd_rn(c.x, x.x), __fadd_rn(c.y, x.y), __fadd_rn(c.z, x.z), __fadd_rn(c.w, x.w));
        step4<L2>(q, x, sums[r][begin + i]);
      }
    }
  }

  __device__ __forceinline__ float4 expand(std::uint32_t word, int v) const {
    if constexpr (Form == row_form::pairs) {
      const std::int32_t piece = first_of(v) / 2;
      const std::uint32_t codes = word >> shift_;
      const float2 low = codeword(piece, codes & 0xFFu);
      const float2 high =
          first_of(v) + 2 < from_.dim ? codeword(piece + 1, codes >> 8 & 0xFFu) : make_float2(0.0f, 0.0f);
      return make_float4(low.x, low.y, high.x, high.y);
    } else {
      constexpr float kMiddle = Form == row_form::numbers8 ? 127.5f : 7.5f;
      std::uint32_t codes[4];
#pragma unroll
      for (int e = 0; e < 4; e++)
        codes[e] =
            Form == row_form::numbers8 ? (word >> (8 * e)) & 0xFFu : (word >> (e % 2 * 16 + shift_ + e / 2 * 4)) & 0xFu;
      return make_float4(__fmul_rn(static_cast<float>(codes[0]) - kMiddle, steps_[v].x),
                         __fmul_rn(static_cast<float>(codes[1]) - kMiddle, steps_[v].y),
                         __fmul_rn(static_cast<float>(codes[2]) - kMiddle, steps_[v].z),
                         __fmul_rn(static_cast<float>(codes[3]) - kMiddle, steps_[v].w));
    }
  }

  __device__ __forceinline__ float2 codeword(std::int32_t piece, std::uint32_t code) const {
    return *reinterpret_cast<const float2*>(from_.codebook +
                                            (piece * from_.codewords + static_cast<std::int32_t>(code)) * 2);
  }

  const decoder& from_;
  std::int32_t first_;                // element of the lane's first four
  std::int32_t shift_ = 0;            // of the lane's codes in their words
  std::int32_t words_at_[2][kQuads];  // of a row of a page in the upper or lower half of its tile
  float4 steps_[kQuads];
};

/// Where the words of a row's codes lie, in its page.
class row_codes {
 public:
  __device__ __forceinline__ row_codes(const decoder& from, slot at)
      : words_(reinterpret_cast<const std::uint32_t*>(from.page_of(at)) +
               (at % core::kPageRows / kTileRows * from.tile_words +
                (static_cast<std::int32_t>(at % 8 * kLanesOfRow) << from.plane_shift))),
        first_(static_cast<std::int32_t>(at % kTileRows / 8) * from.row_words) {}

  /// Word i of what lane t of the row's four holds of it.
  __device__ __forceinline__ std::uint32_t word(const decoder& from, std::int32_t t, std::int32_t i) const {
    const std::int32_t at = first_ + i;
    const std::int32_t plane = at >> from.plane_shift;
    return words_[((plane * static_cast<std::int32_t>(kWarpLanes - 1) + t) << from.plane_shift) + at];
  }

 private:
  const std::uint32_t* words_;
  std::int32_t first_;
};

/// The same by chunks of 128 elements, of rows of any dim. Where more than one four is decoded at once, the next codes
/// are on their way; who decodes one has no registers for them.
template <row_form Form>
class chunk_decoder {
  static_assert(!is_short(Form));

 public:
  __device__ chunk_decoder(const decoder& from, int) : from_(from) {}

  template <bool L2, int AtOnce>
  __device__ __forceinline__ float sum(const slot (&rows)[kScoredOfLanes], const std::uint32_t (&lists)[kScoredOfLanes],
                                       const float* staged, int lane) const {
    constexpr int kQuads = kQuadsPerLane<kLanesOfScore>;
    constexpr std::int32_t kApart = kLanesOfScore * 4;
    const row_codes of_rows[kScoredOfLanes] = {row_codes(from_, rows[0]), row_codes(from_, rows[1])};
    float sums[kScoredOfLanes][kQuads][4] = {};
    std::int32_t chunk = lane % kLanesOfScore * 4;
    constexpr bool kAhead = AtOnce > 1;
    words<AtOnce> next;
    if constexpr (kAhead) load<AtOnce>(of_rows, chunk, next);
#pragma unroll 1
    for (; chunk < from_.dim; chunk += core::kPartialSums) {
#pragma unroll
      for (int v = 0; v < kQuads; v += AtOnce) {
        words<AtOnce> now;
        if constexpr (kAhead) {
          memcpy(now, next, sizeof now);
          load<AtOnce>(of_rows, chunk + (v + AtOnce) * kApart, next);
        } else {
          load<AtOnce>(of_rows, chunk + v * kApart, now);
        }
        for_each_four<AtOnce>(chunk + v * kApart, from_.dim, [&](int i, std::int32_t at) {
          const float4 q = *reinterpret_cast<const float4*>(staged + at);
#pragma unroll
          for (int r = 0; r < kScoredOfLanes; r++) step4<L2>(q, four(rows[r], lists[r], now[i][r], at), sums[r][v + i]);
        });
      }
    }
    __syncwarp();
    return finish_sums<kLanesOfScore, kScoredOfLanes>(sums, lane);
  }

 private:
  template <int AtOnce>
  using words = std::uint32_t[AtOnce][kScoredOfLanes];

  /// The codes of fours of elements, from the lowest bits on.
  template <int AtOnce>
  __device__ __forceinline__ void load(const row_codes (&rows)[kScoredOfLanes], std::int32_t first,
                                       words<AtOnce>& codes) const {
    const bool bytes = from_.code_bits == 8;
    for_each_four<AtOnce>(first, from_.dim, [&](int i, std::int32_t at) {
      const std::int32_t piece = piece_of(at);
      const std::int32_t t =
          (piece >= from_.lane_pieces) + (piece >= 2 * from_.lane_pieces) + (piece >= 3 * from_.lane_pieces);
      const std::int32_t of_lane = piece - t * from_.lane_pieces;
      const std::int32_t shift = bytes ? of_lane % 4 * 8 : of_lane % 8 / 2 * 4;  // of 4 bits: even pieces
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++)
        codes[i][r] = rows[r].word(from_, t, of_lane >> (bytes ? 2 : 3)) >> shift;
    });
  }

  /// The piece that element `at` is of.
  __device__ __forceinline__ std::int32_t piece_of(std::int32_t at) const {
    return Form == row_form::wide_pieces ? at >> from_.piece_shift : at;
  }

  /// Elements [at, at + 4) of a decoded row. @param codes of piece_of(at) and those behind it
  __device__ __forceinline__ float4 four(slot row, std::uint32_t list, std::uint32_t codes, std::int32_t at) const {
    if (at + 4 > from_.dim) return decoded_four(from_, row, list, at);
    const float4 x = Form == row_form::wide_numbers ? of_numbers(codes, at) : of_pieces(codes, at);
    if (from_.centroids == nullptr) return x;
    const float4 c = *reinterpret_cast<const float4*>(from_.centroids + list * from_.centroid_stride + at);
    return make_float4(__fadd_rn(c.x, x.x), __fadd_rn(c.y, x.y), __fadd_rn(c.z, x.z), __fadd_rn(c.w, x.w));
  }

  __device__ __forceinline__ float4 of_numbers(std::uint32_t codes, std::int32_t at) const {
    const float4 steps = *reinterpret_cast<const float4*>(from_.steps + at);
    const auto times = [](float number, float step) { return __fmul_rn(number, step); };
    if (from_.code_bits == 8)
      return make_float4(times(centred(codes, 0, 255), steps.x), times(centred(codes, 1, 255), steps.y),
                         times(centred(codes, 2, 255), steps.z), times(centred(codes, 3, 255), steps.w));
    const std::uint32_t low = codes & 0x000F000Fu;
    const std::uint32_t high = codes >> 4 & 0x000F000Fu;
    return make_float4(times(centred(low, 0, 15), steps.x), times(centred(low, 2, 15), steps.y),
                       times(centred(high, 0, 15), steps.z), times(centred(high, 2, 15), steps.w));
  }

  __device__ __forceinline__ float4 of_pieces(std::uint32_t codes, std::int32_t at) const {
    const std::int32_t piece = piece_of(at);
    if (from_.piece_dim == 2) {
      const float2 low = *reinterpret_cast<const float2*>(codeword(piece, codes & 0xFFu));
      const float2 high = *reinterpret_cast<const float2*>(codeword(piece + 1, codes >> 8 & 0xFFu));
      return make_float4(low.x, low.y, high.x, high.y);
    }
    return *reinterpret_cast<const float4*>(codeword(piece, codes & 0xFFu) + (at - (piece << from_.piece_shift)));
  }
  __device__ __forceinline__ const float* codeword(std::int32_t piece, std::uint32_t code) const {
    return from_.codebook + ((piece * from_.codewords + static_cast<std::int32_t>(code)) << from_.piece_shift);
  }

  const decoder& from_;
};

/// Rows of any form: nothing of a row is known before it is decoded.
template <>
class chunk_decoder<row_form::any> {
 public:
  __device__ chunk_decoder(const decoder& from, int) : from_(from) {}

  template <bool L2, int AtOnce>
  __device__ __forceinline__ float sum(const slot (&rows)[kScoredOfLanes], const std::uint32_t (&lists)[kScoredOfLanes],
                                       const float* staged, int lane) const {
    return sum_by_eights<L2, AtOnce>(from_.dim, staged, lane, [&](std::int32_t first, scored_fours<AtOnce>& x) {
      for_each_four<AtOnce>(first, from_.dim, [&](int i, std::int32_t at) {
#pragma unroll
        for (int r = 0; r < kScoredOfLanes; r++) x[i][r] = decoded_four(from_, rows[r], lists[r], at);
      });
    });
  }

 private:
  const decoder& from_;
};

template <row_form Form>
using decoder_by_form = std::conditional_t<is_short(Form), eights_decoder<Form>, chunk_decoder<Form>>;

}  // namespace shortlist::cuda
