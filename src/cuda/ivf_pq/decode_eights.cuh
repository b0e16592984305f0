// Rows of up to 128 elements decoded by eight lanes each, for one form of codes at compile time: all loads of a row are
// on their way before one is waited for. decode.cuh has the same for any shape.
#pragma once

#include "cuda/ivf_pq/decode.cuh"

namespace shortlist::cuda {

/// What codes stand for: a whole number of 8 or 4 bits times a step, a codeword of two elements named by a byte, or
/// anything else. Or there are none: slots are positions of rows.
enum class row_form : std::uint8_t { numbers8, numbers4, pairs, any, none };

inline row_form row_form_of(const decoder& codes) {
  if (codes.pages == nullptr) return row_form::none;
  if (codes.dim > core::kPartialSums) return row_form::any;
  if (codes.steps) return codes.code_bits == 8 ? row_form::numbers8 : row_form::numbers4;
  return codes.piece_dim == 2 && codes.code_bits == 8 ? row_form::pairs : row_form::any;
}

template <row_form Form>
class eights_decoder {
 public:
  static constexpr int kQuads = kQuadsPerLane<kLanesOfScore>;

  __device__ eights_decoder(const decoder& from, int lane) : from_(from), first_(lane % kLanesOfScore * 4) {
    if constexpr (Form == row_form::any) return;
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
    if constexpr (Form != row_form::any)
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) load_words(rows[r], words[r]);
    float sums[kScoredOfLanes][kQuads][4] = {};
#pragma unroll
    for (int v = 0; v < kQuads; v += AtOnce) add_fours<L2, AtOnce>(rows, lists, words, staged, v, sums);
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
  __device__ __forceinline__ void add_fours(const slot (&rows)[kScoredOfLanes],
                                            const std::uint32_t (&lists)[kScoredOfLanes],
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
        coded[r][i] = expand(rows[r], words[r][begin + i], begin + i);
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

  __device__ __forceinline__ float4 expand(slot row, std::uint32_t word, int v) const {
    if constexpr (Form == row_form::any) {
      return row_decoder(from_, row).four(first_of(v));
    } else if constexpr (Form == row_form::pairs) {
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

}  // namespace shortlist::cuda
