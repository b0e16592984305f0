// The plan of sampling. Each line: the first that holds wins; the reason stands beside it and is printed by `explain`.
#include <fmt/format.h>

#include <algorithm>

#include "core/plan_parts.hpp"

namespace shortlist::core {
namespace {

constexpr const char* kForceSample = "SHORTLIST_FORCE_SAMPLE";

struct sample_algorithm_name {
  std::string_view name;
  sample_algorithm algorithm;
};
constexpr sample_algorithm_name kCpuSampleAlgorithms[] = {{"cpu_rows", sample_algorithm::cpu_rows}};
constexpr sample_algorithm_name kCudaSampleAlgorithms[] = {{"stream_rows", sample_algorithm::stream_rows},
                                                           {"chip_rows", sample_algorithm::chip_rows},
                                                           {"memory_rows", sample_algorithm::memory_rows}};

std::span<const sample_algorithm_name> sample_algorithms_of(device_kind kind) {
  using names = std::span<const sample_algorithm_name>;
  return kind == device_kind::cpu ? names(kCpuSampleAlgorithms) : names(kCudaSampleAlgorithms);
}

struct sample_step {
  const sample_shape& shape;
  sample_work work;
};

struct sample_rule {
  std::int64_t max_vocab = kAny;
  bool only_filtered = false;
  sample_algorithm algorithm;
  std::string_view reason;

  constexpr bool holds(const sample_step& step) const {
    return step.shape.vocab <= max_vocab && (!only_filtered || step.work == sample_work::filtered);
  }
};

constexpr sample_rule kCpuSampleRules[] = {
    {.algorithm = sample_algorithm::cpu_rows,
     .reason = "a row by one worker: its logits are read once, and what the filters leave is small"},
};
constexpr sample_rule kCudaSampleRules[] = {
    {.only_filtered = true,
     .algorithm = sample_algorithm::stream_rows,
     .reason =
         "filters that leave few: a cluster of blocks streams a row and lists what may be kept; rows of which top_p, "
         "min_p or nothing decides stay on the chip and are weighed (rows that penalties, a bias or a mask change are "
         "copied, changed, before, but not those of many logits without a bias that top_k, or greedy, leaves few of; "
         "with a larger top_k, top_p behind min_p, the best tokens, or log-probabilities beside a top_k: chip_rows, or "
         "memory_rows from 262,145 tokens)"},
    {.max_vocab = kChipRowsMaxVocab,
     .algorithm = sample_algorithm::chip_rows,
     .reason = "a row fits the shared memory of a cluster of blocks: it is read once, and filtered on the chip"},
    {.algorithm = sample_algorithm::memory_rows,
     .reason = "a longer row: a cluster of blocks reads it a few times where it lies"},
};

const sample_rule& sample_rule_for(device_kind kind, const sample_step& step) {
  return kind == device_kind::cpu ? first_that_holds(kCpuSampleRules, step) : first_that_holds(kCudaSampleRules, step);
}

/// Whether an algorithm that was forced can take the shape.
bool takes(device_kind kind, sample_algorithm algorithm, const sample_step& step) {
  const auto rules = kind == device_kind::cpu ? std::span<const sample_rule>(kCpuSampleRules)
                                              : std::span<const sample_rule>(kCudaSampleRules);
  return std::ranges::any_of(rules, [&](const sample_rule& r) { return r.algorithm == algorithm && r.holds(step); });
}
}  // namespace

std::string_view to_string(sample_algorithm algorithm) {
  for (const device_kind kind : {device_kind::cpu, device_kind::cuda}) {
    for (const auto& entry : sample_algorithms_of(kind)) {
      if (entry.algorithm == algorithm) return entry.name;
    }
  }
  return "unknown";
}

sample_plan plan_sample(device_kind kind, const sample_shape& shape, sample_work work) {
  const sample_step step{shape, work};
  const auto forced = forced_by(kForceSample, sample_algorithms_of(kind));
  if (forced && takes(kind, *forced, step)) {
    return {*forced, fmt::format("forced by {}={}", kForceSample, to_string(*forced))};
  }
  const sample_rule& rule = sample_rule_for(kind, step);
  if (!forced) return {rule.algorithm, std::string(rule.reason)};
  return {rule.algorithm,
          fmt::format("{} ({}={} cannot take the shape)", rule.reason, kForceSample, to_string(*forced))};
}

sample_algorithm choose_sample_algorithm(device_kind kind, const sample_shape& shape, sample_work work) {
  const sample_step step{shape, work};
  const auto forced = forced_by(kForceSample, sample_algorithms_of(kind));
  if (forced && takes(kind, *forced, step)) return *forced;
  return sample_rule_for(kind, step).algorithm;
}

bool forces_sample_algorithm(device_kind kind) {
  return forced_by(kForceSample, sample_algorithms_of(kind)).has_value();
}

std::string explain_sample(device_kind kind, std::string_view device_description, const sample_shape& shape) {
  const sample_plan plan = plan_sample(kind, shape);
  const double read_bytes =
      static_cast<double>(shape.rows) * static_cast<double>(shape.vocab) * static_cast<double>(size_bytes(shape.type));
  const auto [gb_per_s, machine] = example_bandwidth(kind);
  return fmt::format(
      "sample:     a token of each of {} rows of {} {} logits\n"
      "device:     {}\n"
      "algorithm:  {}\n"
      "because:    {}\n"
      "reads:      {:.6g} MB\n"
      "limit:      bytes over read bandwidth; at the {:g} GB/s of {} that is {:.4g} ms\n",
      shape.rows, shape.vocab, to_string(shape.type), device_description, to_string(plan.algorithm), plan.reason,
      read_bytes / 1e6, gb_per_s, machine, read_bytes / (gb_per_s * 1e6));
}

}  // namespace shortlist::core
