// Rows of one request that different kernels draw from: whether few remain of a row by count may be known on the device
// alone.
#pragma once

#include <cstdint>

#include "core/backend.hpp"
#include "core/plan.hpp"
#include "core/sampling.hpp"
#include "cuda/device/row_groups.cuh"

namespace shortlist::cuda {

/// Which rows of a request a launch serves.
enum class row_kinds : std::uint8_t {
  all,
  counted,  ///< those of which a top_k within kMostByGroups, or the best alone, remains: is_counted
  others
};

/// Whether the logits are so many that another launch costs less than it spares, or the algorithm is forced.
inline bool has_many_logits(const core::sample_request& request, std::int64_t least) {
  return request.logits.rows * request.logits.cols >= least || core::forces_sample_algorithm(device_kind::cuda);
}

/// Whether counted rows and others are best drawn from by launches of their own: an array of top_k tells on the device
/// alone which they are.
inline bool splits_rows(const core::sample_request& request) {
  constexpr std::int64_t kLeastLogits = 3 << 21;
  return request.params.top_k.rows && has_many_logits(request, kLeastLogits);
}

__device__ __forceinline__ bool is_counted(const core::sample_request& request, std::int64_t row) {
  const sample_params& params = request.params;
  const float temperature = core::value_for(params.temperature, row);
  const float top_p = core::value_for(params.top_p, row);
  const std::int32_t top_k = core::value_for(params.top_k, row);
  const bool few = top_k >= 1 && top_k < request.logits.cols && top_k <= static_cast<std::int32_t>(kMostByGroups);
  return few || temperature == 0.0f || top_p <= 0.0f;
}

/// Whether a launch leaves a row to another.
__device__ __forceinline__ bool skips(row_kinds kinds, const core::sample_request& request, std::int64_t row) {
  return kinds != row_kinds::all && is_counted(request, row) != (kinds == row_kinds::counted);
}

}  // namespace shortlist::cuda
