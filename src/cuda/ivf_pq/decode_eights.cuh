// Rows of up to 128 elements decoded by eight lanes each, for one form of codes at compile time: all loads of a row are
// on their way before one is waited for. decode.cuh has the same for any shape.
#pragma once

#include "cuda/ivf_pq/decode.cuh"

namespace shortlist::cuda {

/// What codes stand for: a whole number of 8 or 4 bits times a step, a codeword of two elements named by a byte, or
/// anything else.
enum class row_form : std::uint8_t { numbers8, numbers4, pairs, any };

inline row_form row_form_of(const decoder& codes) {
  if (codes.steps) return codes.code_bits == 8 ? row_form::numbers8 : row_form::numbers4;
  return codes.piece_dim == 2 && codes.code_bits == 8 ? row_form::pairs : row_form::any;
}

template <row_form Form>
class eights_decoder {
 public:
  static constexpr int kQuads = kQuadsPerLane<kLanesOfScore>;

  __device__ eights_decoder(const decoder& from, int lane) : from_(from) {
#pragma unroll
    for (int v = 0; v < kQuads; v++) {
      const std::int32_t first = (v * kLanesOfScore + lane % kLanesOfScore) * 4;
      first_[v] = first;
      if constexpr (Form == row_form::any) continue;
      const std::int32_t piece = Form == row_form::pairs ? first / 2 : first;
      const std::int32_t t =
          (piece >= from.lane_pieces) + (piece >= 2 * from.lane_pieces) + (piece >= 3 * from.lane_pieces);
      const std::int32_t i = piece - t * from.lane_pieces;
      of_lane_[v] = t;
      word_[v] = i / kWordCodes;
      shift_[v] = Form == row_form::numbers4 ? i % 8 / 2 * 4 : i % 4 * 8;
      if constexpr (Form != row_form::pairs)
        steps_[v] = make_float4(step(first), step(first + 1), step(first + 2), step(first + 3));
    }
  }

  /// The sum of row finished_row<8, 2>(lane) of two rows, which lie in these lists. AtOnce of the lane's fours are on
  /// their way together.
  template <bool L2, int AtOnce = kQuads>
  __device__ __forceinline__ float sum(const slot (&rows)[kScoredOfLanes], const std::uint32_t (&lists)[kScoredOfLanes],
                                       const float* staged, int lane) const {
    float sums[kScoredOfLanes][kQuads][4] = {};
#pragma unroll
    for (int v = 0; v < kQuads; v += AtOnce) add_fours<L2, AtOnce>(rows, lists, staged, v, sums);
    __syncwarp();
    return finish_sums<kLanesOfScore, kScoredOfLanes>(sums, lane);
  }

 private:
  template <bool L2, int AtOnce>
  __device__ __forceinline__ void add_fours(const slot (&rows)[kScoredOfLanes],
                                            const std::uint32_t (&lists)[kScoredOfLanes], const float* staged,
                                            int begin, float (&sums)[kScoredOfLanes][kQuads][4]) const {
    std::uint32_t words[kScoredOfLanes][AtOnce];
    float4 centroids[kScoredOfLanes][AtOnce];
#pragma unroll
    for (int i = 0; i < AtOnce; i++) {
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) {
        const int v = begin + i;
        centroids[r][i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first_[v] >= from_.dim) continue;
        if constexpr (Form != row_form::any) words[r][i] = word_of(rows[r], v);
        if (from_.centroids)
          centroids[r][i] =
              *reinterpret_cast<const float4*>(from_.centroids + lists[r] * from_.centroid_stride + first_[v]);
      }
    }
    float4 coded[kScoredOfLanes][AtOnce];
#pragma unroll
    for (int i = 0; i < AtOnce; i++) {
      if (first_[begin + i] >= from_.dim) continue;
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) coded[r][i] = expand(rows[r], words[r][i], begin + i);
    }
#pragma unroll
    for (int i = 0; i < AtOnce; i++) {
      const int v = begin + i;
      if (first_[v] >= from_.dim) continue;
      const float4 q = *reinterpret_cast<const float4*>(staged + first_[v]);
#pragma unroll
      for (int r = 0; r < kScoredOfLanes; r++) {
        float4 x = coded[r][i];
        const float4 c = centroids[r][i];
        if (from_.centroids)
          x = make_float4(__fadd_rn(c.x, x.x), __fadd_rn(c.y, x.y), __fadd_rn(c.z, x.z), __fadd_rn(c.w, x.w));
        step4<L2>(q, x, sums[r][v]);
      }
    }
  }

  static constexpr std::int32_t kWordCodes = Form == row_form::numbers4 ? 8 : 4;

  __device__ float step(std::int32_t i) const { return i < from_.dim ? from_.steps[i] : 0.0f; }

  __device__ __forceinline__ std::uint32_t word_of(slot row, int v) const {
    const auto* words = reinterpret_cast<const std::uint32_t*>(from_.page_of(row));
    const auto in_page = static_cast<std::int32_t>(row % core::kPageRows);
    const std::int32_t tile = in_page / kTileRows;
    const std::int32_t at = in_page % kTileRows / 8 * from_.row_words + word_[v];
    const std::int32_t lane = in_page % 8 * kLanesOfRow + of_lane_[v];
    const std::int32_t plane = at >> from_.plane_shift;
    return words[tile * from_.tile_words +
                 (((plane * static_cast<std::int32_t>(kWarpLanes)) + lane) << from_.plane_shift) + at -
                 (plane << from_.plane_shift)];
  }

  __device__ __forceinline__ float4 expand(slot row, std::uint32_t word, int v) const {
    if constexpr (Form == row_form::any) {
      return row_decoder(from_, row).four(first_[v]);
    } else if constexpr (Form == row_form::pairs) {
      const std::int32_t piece = first_[v] / 2;
      const std::uint32_t codes = word >> shift_[v];
      const float2 low = codeword(piece, codes & 0xFFu);
      const float2 high = first_[v] + 2 < from_.dim ? codeword(piece + 1, codes >> 8 & 0xFFu) : make_float2(0.0f, 0.0f);
      return make_float4(low.x, low.y, high.x, high.y);
    } else {
      constexpr float kMiddle = Form == row_form::numbers8 ? 127.5f : 7.5f;
      std::uint32_t codes[4];
#pragma unroll
      for (int e = 0; e < 4; e++)
        codes[e] = Form == row_form::numbers8 ? (word >> (8 * e)) & 0xFFu
                                              : (word >> (e % 2 * 16 + shift_[v] + e / 2 * 4)) & 0xFu;
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
  std::int32_t first_[kQuads];    // element of the lane's v-th four
  std::int32_t of_lane_[kQuads];  // of a row's four lanes in a page, which holds them
  std::int32_t word_[kQuads];     // of that lane's
  std::int32_t shift_[kQuads];
  float4 steps_[kQuads];
};

}  // namespace shortlist::cuda
