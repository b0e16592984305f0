// Lists of row-wise top k jobs, as the campaigns rows and logits run them.
#pragma once

#include <vector>

#include "campaigns.hpp"
#include "rows_bench.hpp"

namespace shortlist::benchmark {

constexpr double kGpuSeconds = 0.25;       // of timed runs of a job
constexpr double kGpuBriefSeconds = 0.08;  // where jobs are many

struct listed_rows_job {
  rows_job job;
  nlohmann::ordered_json more;  ///< fields of its record: targets, and what it is compared with
  double seconds = kGpuSeconds;
};

/// Jobs on the GPU by name; one that is asked for twice runs once, with the targets of both.
class gpu_rows_list {
 public:
  void add(rows_job job, const nlohmann::ordered_json& more = {}, double seconds = kGpuSeconds);
  /// A job, and the same with sorted results.
  void add_unsorted_and_sorted(rows_job job, double seconds = kGpuSeconds);
  /// A job that may take so many times what another takes, which is listed, too.
  void add_beside(const rows_job& job, rows_job other, double most_ratio, double seconds = kGpuSeconds);
  /// A job that may take so many times what the same takes without early stop, on normal data.
  void add_beside_plain(const rows_job& job, double most_ratio, double seconds = kGpuSeconds);
  /// Those that are wanted: on one matrix together, and one that others are compared with before them.
  std::vector<listed_rows_job> wanted(const results& out) &&;

 private:
  std::vector<listed_rows_job> jobs_;
};

/// Runs those that are wanted on the CPU. Jobs on one matrix stand together.
void run_on_cpu(std::vector<listed_rows_job> jobs, const patience& limit, results& out);

/// Runs jobs on the GPU, for the seconds of each. Those on one matrix stand together.
void run_on_gpu(gpu_clock& gpu, const std::vector<listed_rows_job>& jobs, bool quick, results& out);

/// How long a job on the GPU is timed.
patience gpu_patience(double seconds, bool quick);

/// Adds the read bandwidth that the largest work so far is held against: smaller ones lie in caches.
void add_cpu_read_speed(const results& out, limits_report& limits);
/// Adds the read bandwidth of the GPU's memory.
void add_gpu_read_speed(gpu_clock& gpu, limits_report& limits);

}  // namespace shortlist::benchmark
