// Sampling from plain rows that a cluster of blocks reads once: which kernel draws from which of them.
//
// Rows that keep their few best by count are drawn from by count_sample.cu, others by weight_sample.cu. An array of
// top_k tells on the device alone which rows are which: few rows are drawn from by array_sample.cu, which knows both
// ways; for more, both are launched, and each leaves the other's rows out.
#include <cstdint>

#include "cuda/sample/array_sample.hpp"
#include "cuda/sample/count_sample.hpp"
#include "cuda/sample/sample_parts.cuh"
#include "cuda/sample/stream_sample.hpp"
#include "cuda/sample/weight_sample.hpp"

namespace shortlist::cuda {
namespace {

/// Tokens that top_k leaves of every row; 0 if it is off, or not known here: values of rows lie on the device.
std::int64_t common_top_k(const core::sample_request& request) {
  const per_row<std::int32_t>& top_k = request.params.top_k;
  return !top_k.rows && top_k.common > 0 && top_k.common < request.logits.cols ? top_k.common : 0;
}

}  // namespace

bool counts_alone(const core::sample_request& request) {
  const per_row<float>& temperature = request.params.temperature;
  return common_top_k(request) > 0 || (!temperature.rows && temperature.common == 0);
}

core::sample_work sample_work_of(const core::sample_request& request) {
  const sample_params& params = request.params;
  const sample_output& out = request.out;
  const bool counts = counts_alone(request);
  const bool short_lists = common_top_k(request) <= static_cast<std::int64_t>(kMostByGroups);
  const bool top_p = params.top_p.rows || params.top_p.common < 1;
  const bool min_p_first = params.min_p_order == min_p_order::first && (params.min_p.rows || params.min_p.common > 0);
  // Rows that are weighed know the weight of all; those that are counted do not.
  const bool knows_all = !counts && !params.top_k.rows;
  const bool tells = out.top_n == 0 && (!out.logprobs || knows_all);
  const bool weighs_once = counts || !(min_p_first && top_p);  // else what min_p leaves, too
  const bool fits = request.logits.rows <= sampling::kMostGrid / kMostBlocks;
  return fits && tells && short_lists && weighs_once ? core::sample_work::filtered : core::sample_work::whole;
}

void launch_stream_sample(cudaStream_t stream, const core::sample_request& request, row_kinds kinds,
                          int multiprocessors) {
  if (counts_alone(request)) return launch_count_sample(stream, request, nullptr, row_kinds::all, multiprocessors);
  const bool may_differ = kinds == row_kinds::all && request.params.top_k.rows;
  if (may_differ && array_sample_serves(request, multiprocessors))
    return launch_array_sample(stream, request, multiprocessors);
  if (may_differ) {
    launch_count_sample(stream, request, nullptr, row_kinds::counted, multiprocessors);
    kinds = row_kinds::others;
  }
  launch_weight_sample(stream, request, kinds, multiprocessors);
}

}  // namespace shortlist::cuda
