// What the kernels of a certified batch share: the queries' state and lists, in one workspace.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>

#include "core/certified.hpp"
#include "cuda/flat/certified_batch.hpp"
#include "cuda/flat/certified_filter.hpp"

namespace shortlist::cuda {

/// What is known of a query besides its terms.
struct query_state {
  std::uint32_t scored;   ///< keys in the query's list of scores
  std::uint32_t in_full;  ///< 1: to be searched without the plane
};

/// A list of keys for each query.
struct query_lists {
  std::uint64_t* keys = nullptr;  ///< [queries, capacity]
  std::int64_t capacity = 0;
};

struct batch_memory {
  certified_counters* counters;
  unsigned char* columns;    ///< see filter_batch
  core::query_terms* terms;  ///< [padded to whole tiles], as weights and targets
  filter_weights* weights;
  float* targets;                 ///< merits that rows must reach
  query_state* states;            ///< [queries]
  std::uint32_t* maxima;          ///< of the sample, see launch_filter_sample
  candidate_segments candidates;  ///< keys of upper ends
  query_lists scored;             ///< keys of scores
  std::uint32_t* full_count;      ///< queries that are searched in full,
  std::uint32_t* full_queries;    ///< which they are,
  float* gathered;                ///< their vectors side by side,
  float* full_scores;             ///< and their answers
  std::int64_t* full_ids;
};

/// Relative padding of weights; see docs/certified.md, section 11.
inline constexpr double kWeightPad = 0x1p-19;
/// What the underflow of a cosine comes to, at most.
inline constexpr double kCosinePad = 0x1p-70;

/// What of 1 / s, or 1 / (s ix), a row must bring to reach a merit.
__device__ inline float target_weight(metric by, const core::query_terms& terms, float merit) {
  const float infinity = __uint_as_float(0x7F800000u);
  if (!(merit > -infinity)) return -infinity;
  const double scale = terms.scale;
  double target = merit;
  if (by == metric::l2) {
    target = (target + terms.square - static_cast<double>(terms.floor)) / (2.0 * scale);
  } else if (by == metric::cosine) {
    target = (target - kWeightPad * fabs(target) - kCosinePad) / terms.inverse_norm / scale;
  } else {
    target /= scale;
  }
  const auto padded = static_cast<float>(target - kWeightPad * fabs(target));
  return padded < infinity ? padded : -infinity;
}

/// Scores the sample's best rows, which gives each query its first target (`last` false); or the best candidates, then
/// all that reach the target they give, and writes the k best of those.
void launch_refine(cudaStream_t stream, const batch_memory& memory, const core::flat_corpus& corpus,
                   const core::flat_request& request, const sample_plan& sample, bool last, int multiprocessors);

}  // namespace shortlist::cuda
