// The keys of rows by their codes, to the bit: eight lanes a row.
#pragma once

#include "cuda/ivf_pq/answer.cuh"
#include "cuda/ivf_pq/decode_eights.cuh"

namespace shortlist::cuda {

/// The key of one of a lane's two rows, by its code. The query is staged.
template <row_form Form, bool L2>
class code_scorer {
 public:
  __device__ code_scorer(const decoder& from, metric by, const float* staged, int lane)
      : from_(from), by_(by), staged_(staged), lane_(lane), codes_(from, lane) {
    if (by == metric::cosine) inverse_norm_ = inverse_norm_of_query(staged, from.dim, lane);
  }

  __device__ __forceinline__ std::uint64_t operator()(const slot (&slots)[kScoredOfLanes], int mine) const {
    std::uint32_t lists[kScoredOfLanes];
#pragma unroll
    for (int r = 0; r < kScoredOfLanes; r++) lists[r] = from_.centroids ? from_.list_of(slots[r]) : 0;
    const std::uint32_t position = from_.position_of(mine == 0 ? slots[0] : slots[1]);
    const float sum = codes_.template sum<L2, kFoursAtOnce>(slots, lists, staged_, lane_);
    return core::row_key(core::score_key(code_score(sum, by_, inverse_norm_), by_), position);
  }

 private:
  static constexpr int kFoursAtOnce = 1;  // of a row that is decoded, of a lane: more would not fit the registers

  const decoder& from_;
  metric by_;
  const float* staged_;
  int lane_;
  decoder_by_form<Form> codes_;
  float inverse_norm_ = 0.0f;
};

}  // namespace shortlist::cuda
