// Logits: row-wise top k of long rows, and sampling one token of every row.
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "campaigns.hpp"
#include "gpu.hpp"
#include "logits_bench.hpp"
#include "rows_list.hpp"

namespace shortlist::benchmark {
namespace {

constexpr double kMostOnHardData = 2;     // times the time on normal data
constexpr double kMostOverOurTopK = 1.5;  // times the top k of the same shape
constexpr double kSeconds = kGpuBriefSeconds;
constexpr std::int64_t kK = 50;
constexpr std::int64_t kVocab = 128'256;  // Llama 3

struct matrix_shape {
  std::int64_t rows;
  std::int64_t cols;
  value_type type;
};

rows_job top_k_of(const matrix_shape& m, std::int64_t k, row_values values = row_values::normal) {
  rows_job job{.rows = m.rows, .cols = m.cols, .type = m.type, .values = values};
  job.options.k = k;
  return job;
}

// Row-wise top k on the GPU.
constexpr matrix_shape kManyWide = {1024, 50'000, value_type::f32};
constexpr std::int64_t kManyWideK = 2048;
constexpr matrix_shape kShortVocab = {4096, 32'000, value_type::bf16};
constexpr row_values kHardData[] = {row_values::all_equal, row_values::ties90, row_values::one_bin};

std::vector<rows_job> target_top_k() {
  return {top_k_of(kManyWide, kManyWideK),
          top_k_of({1024, 50'000, value_type::bf16}, kManyWideK),
          top_k_of({64, kVocab, value_type::bf16}, kK),
          top_k_of({64, kVocab, value_type::f32}, kK),
          top_k_of({256, 152'064, value_type::f32}, 1024),
          top_k_of({1, kVocab, value_type::f32}, kK)};
}

std::vector<listed_rows_job> gpu_top_k(const results& out) {
  gpu_rows_list list;
  for (const rows_job& job : target_top_k()) list.add_unsorted_and_sorted(job, kSeconds);
  for (const row_values values : {row_values::lognormal, row_values::uniform}) {
    list.add(top_k_of(kManyWide, kManyWideK, values), {}, kSeconds);
  }
  for (const row_values values : kHardData) {
    list.add_beside_plain(top_k_of(kManyWide, kManyWideK, values), kMostOnHardData, kSeconds);
  }
  for (const std::int64_t rows : {16, 24, 32}) {
    for (const value_type type : {value_type::f32, value_type::bf16}) {
      list.add(top_k_of({rows, kVocab, type}, kK), {}, kSeconds);
    }
  }
  list.add(top_k_of({4096, 1000, value_type::f32}, kK), {}, kSeconds);
  list.add(top_k_of({1, 2'000'000, value_type::f32}, kK), {}, kSeconds);
  list.add_unsorted_and_sorted(top_k_of(kShortVocab, kK), kSeconds);
  list.add_beside_plain(top_k_of(kShortVocab, kK, row_values::all_equal), kMostOnHardData, kSeconds);
  for (const value_type type : {value_type::f32, value_type::bf16}) {
    list.add(top_k_of({64, kVocab, type}, kK, row_values::half_inf), {}, kSeconds);
  }
  return std::move(list).wanted(out);
}

std::vector<listed_rows_job> cpu_top_k() {
  std::vector<listed_rows_job> jobs;
  for (const std::int64_t rows : {1, 64}) {
    for (const value_type type : {value_type::f32, value_type::bf16}) {
      jobs.push_back({top_k_of({rows, kVocab, type}, kK), {}});
    }
  }
  jobs.push_back({top_k_of(kManyWide, kManyWideK), {}});
  return jobs;
}

// Sampling.
sample_job sample_of(const matrix_shape& m) { return {.rows = m.rows, .vocab = m.cols, .type = m.type}; }

sample_job top_k_and_top_p(const matrix_shape& m) {
  sample_job job = sample_of(m);
  job.top_k = kK;
  job.top_p = 0.95f;
  return job;
}

sample_job top_p_alone(const matrix_shape& m) {
  sample_job job = sample_of(m);
  job.top_p = 0.95f;
  return job;
}

/// Of which top_p keeps tens of thousands of tokens; of which nothing is filtered; of which min_p alone filters.
std::vector<sample_job> flat_samples(const matrix_shape& m) {
  std::vector<sample_job> jobs;
  for (const float temperature : {1.0f, 1.5f, 3.0f}) {
    jobs.push_back(top_p_alone(m));
    jobs.back().temperature = temperature;
  }
  for (const float min_p : {0.0f, 0.05f}) {
    jobs.push_back(sample_of(m));
    jobs.back().temperature = 1;
    jobs.back().min_p = min_p;
  }
  return jobs;
}

sample_job greedy(const matrix_shape& m) {
  sample_job job = sample_of(m);
  job.temperature = 0;
  return job;
}

/// What servers ask for most.
std::vector<sample_job> usual_samples(const matrix_shape& m) { return {top_k_and_top_p(m), top_p_alone(m), greedy(m)}; }

/// The first of those with something beside it.
std::vector<sample_job> samples_with_more(const matrix_shape& m) {
  std::vector<sample_job> jobs;
  for (const sample_extra extra : {sample_extra::logprobs, sample_extra::penalties, sample_extra::mask}) {
    jobs.push_back(top_k_and_top_p(m));
    jobs.back().extra = extra;
  }
  return jobs;
}

/// As servers hold what their requests ask for: an array of each parameter. Plain, with penalties, with a mask, and
/// with top_p alone.
std::vector<sample_job> samples_by_arrays(const matrix_shape& m) {
  std::vector<sample_job> jobs(3, top_k_and_top_p(m));
  jobs[1].extra = sample_extra::penalties;
  jobs[2].extra = sample_extra::mask;
  jobs.push_back(top_p_alone(m));
  for (sample_job& job : jobs) job.arrays = true;
  return jobs;
}

/// All of those, and min_p once.
std::vector<sample_job> all_samples(const matrix_shape& m) {
  std::vector<sample_job> jobs = usual_samples(m);
  std::ranges::copy(samples_with_more(m), std::back_inserter(jobs));
  jobs.push_back(top_p_alone(m));
  jobs.back().min_p = 0.05f;
  return jobs;
}

/// Jobs on one matrix stand together.
std::vector<sample_job> gpu_samples() {
  std::vector<sample_job> jobs;
  const auto add = [&](const std::vector<sample_job>& more) { jobs.insert(jobs.end(), more.begin(), more.end()); };
  for (const value_type type : {value_type::bf16, value_type::f32}) {
    add(all_samples({64, kVocab, type}));
    add(samples_by_arrays({64, kVocab, type}));
    for (const std::int64_t rows : {1, 16, 32, 256}) {
      add(usual_samples({rows, kVocab, type}));
      add(samples_with_more({rows, kVocab, type}));
      add(samples_by_arrays({rows, kVocab, type}));
    }
    for (const std::int64_t rows : {1, 64, 256}) add(flat_samples({rows, kVocab, type}));
    for (const std::int64_t rows : {1, 64, 4096}) add({top_k_and_top_p({rows, 32'000, type})});
    for (const matrix_shape& m : {matrix_shape{16, 32'000, type}, matrix_shape{200, 32'000, type},
                                  matrix_shape{4096, 32'000, type}, matrix_shape{1024, 8'192, type}}) {
      add({top_p_alone(m), top_p_alone(m)});
      jobs.back().temperature = 1.5f;
    }
    add({top_k_and_top_p({64, 151'936, type})});
    add({top_k_and_top_p({1024, 50'000, type}), top_p_alone({1024, 50'000, type})});
    add(flat_samples({1024, 50'000, type}));
    add({top_k_and_top_p({8, 1'000'000, type}), top_p_alone({8, 1'000'000, type})});
    add(samples_with_more({8, 1'000'000, type}));
  }
  return jobs;
}

std::vector<sample_job> cpu_samples() {
  std::vector<sample_job> jobs;
  const auto add = [&](const std::vector<sample_job>& more) { jobs.insert(jobs.end(), more.begin(), more.end()); };
  for (const value_type type : {value_type::f32, value_type::bf16}) {
    add(usual_samples({1, kVocab, type}));
    add(all_samples({64, kVocab, type}));
  }
  return jobs;
}

/// Calls `run(matrix, job)` for every job; those on one matrix share it.
template <class Run>
void over_logits(const std::vector<sample_job>& jobs, const Run& run) {
  for (auto first = jobs.begin(); first != jobs.end();) {
    const auto last =
        std::find_if_not(first, jobs.end(), [&](const sample_job& job) { return job.same_matrix(*first); });
    const row_matrix matrix(first->rows, first->vocab, first->type, row_values::logits);
    run(matrix, std::vector<sample_job>(first, last));
    first = last;
  }
}

void sample_on_cpu(const patience& limit, results& out) {
  std::vector<sample_job> jobs = cpu_samples();
  std::erase_if(jobs, [&](const sample_job& job) { return !out.wants(work_name(job, "cpu")); });
  over_logits(jobs, [&](const row_matrix& matrix, const std::vector<sample_job>& of_matrix) {
    for (const sample_job& job : of_matrix) run_on_cpu(matrix, job, limit, out);
  });
}

/// Beside which top k of ours a job stands, and how much longer one of them may take; nothing where there is none.
nlohmann::ordered_json beside_top_k(const sample_job& job) {
  if (job.rows != 64 || job.vocab != kVocab) return {};
  rows_job top_k = top_k_of({job.rows, job.vocab, job.type}, kK);
  top_k.indices_as = index_type::i32;
  nlohmann::ordered_json more = {{"compared_with", work_name(top_k)}};
  const bool has_target =
      job.type == value_type::bf16 && job.top_k == kK && job.extra == sample_extra::none && !job.arrays;
  if (has_target) more["target_ratio"] = kMostOverOurTopK;
  return more;
}

}  // namespace

limits_report run_logits(results& out, const campaign_settings& settings) {
  const patience limit =
      settings.quick ? patience{.seconds = 0.05, .fewest = 3} : patience{.seconds = 0.5, .fewest = 7};
  limits_report limits;
  run_on_cpu(cpu_top_k(), limit, out);
  sample_on_cpu(limit, out);
  add_cpu_read_speed(out, limits);

  const std::vector<listed_rows_job> top_k = gpu_top_k(out);
  std::vector<sample_job> samples = gpu_samples();
  std::erase_if(samples, [&](const sample_job& job) { return !out.wants(work_name(job)); });
  if (!find_gpu() || (top_k.empty() && samples.empty())) return limits;
  gpu_clock gpu;
  add_gpu_read_speed(gpu, limits);
  run_on_gpu(gpu, top_k, settings.quick, out);
  over_logits(samples, [&](const row_matrix& matrix, const std::vector<sample_job>& of_matrix) {
    const gpu_matrices copies(gpu, matrix);
    for (const sample_job& job : of_matrix) {
      run_on_gpu(gpu, copies, job, gpu_patience(kSeconds, settings.quick), out, beside_top_k(job));
    }
  });
  return limits;
}

}  // namespace shortlist::benchmark
