// The campaigns of the flat search, of row-wise top k, of sampling and of IVF-PQ. docs/benchmarks.md says what each
// measures.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "results.hpp"

namespace shortlist::benchmark {

struct campaign_settings {
  bool quick = false;           ///< fewer repetitions; every shape is still verified and timed
  std::int64_t gigabytes = 64;  ///< of the corpus of flat_host_rows
};

/// What a campaign adds to the head of its file: the read bandwidths that it measured.
using limits_report = nlohmann::ordered_json;

limits_report run_seeds(results& out, const campaign_settings& settings);
limits_report run_flat_gpu(results& out, const campaign_settings& settings);
limits_report run_flat_cpu(results& out, const campaign_settings& settings);
limits_report run_flat_certified(results& out, const campaign_settings& settings);
limits_report run_flat_certified_gpu(results& out, const campaign_settings& settings);
limits_report run_flat_host_rows(results& out, const campaign_settings& settings);
limits_report run_rows(results& out, const campaign_settings& settings);
limits_report run_logits(results& out, const campaign_settings& settings);
limits_report run_ivf_pq(results& out, const campaign_settings& settings);
limits_report run_ivf_pq_billion(results& out, const campaign_settings& settings);
limits_report run_ivf_pq_wide(results& out, const campaign_settings& settings);

/// The accuracy of RTop-K's early stops, in the form of its tables 1, 2 and 5; null where `out` does not want
/// "top_k/accuracy". Not timed.
nlohmann::ordered_json rows_accuracy(const results& out, const campaign_settings& settings);

}  // namespace shortlist::benchmark
