// Lists of row-wise top k jobs. See rows_list.hpp.
#include "rows_list.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace shortlist::benchmark {

void gpu_rows_list::add(rows_job job, const nlohmann::ordered_json& more, double seconds) {
  job.indices_as = index_type::i32;
  const auto found =
      std::ranges::find_if(jobs_, [&](const listed_rows_job& other) { return work_name(other.job) == work_name(job); });
  if (found == jobs_.end()) {
    jobs_.push_back({job, more, seconds});
  } else if (more.is_object()) {
    found->more.update(more);
  }
}

void gpu_rows_list::add_unsorted_and_sorted(rows_job job, double seconds) {
  add(job, {}, seconds);
  job.options.sorted = true;
  add(job, {}, seconds);
}

void gpu_rows_list::add_beside(const rows_job& job, rows_job other, double most_ratio, double seconds) {
  other.indices_as = index_type::i32;
  add(job, {{"compared_with", work_name(other)}, {"target_ratio", most_ratio}}, seconds);
}

void gpu_rows_list::add_beside_plain(const rows_job& job, double most_ratio, double seconds) {
  rows_job plain = job;
  plain.values = row_values::normal;
  plain.options.eps = {};
  plain.options.max_iter = {};
  add_beside(job, plain, most_ratio, seconds);
}

std::vector<listed_rows_job> gpu_rows_list::wanted(const results& out) && {
  std::erase_if(jobs_, [&](const listed_rows_job& j) { return !out.wants(work_name(j.job)); });
  std::ranges::stable_sort(jobs_, {}, [](const listed_rows_job& of) {
    return std::tuple(of.job.values, of.job.type, of.job.matrix_cols(), of.job.rows);
  });
  return std::move(jobs_);
}

void run_on_cpu(std::vector<listed_rows_job> jobs, const patience& limit, results& out) {
  std::erase_if(jobs, [&](const listed_rows_job& j) { return !out.wants(work_name(j.job, "cpu")); });
  for (auto first = jobs.begin(); first != jobs.end();) {
    const rows_job of_matrix = first->job;
    const auto last =
        std::find_if_not(first, jobs.end(), [&](const listed_rows_job& j) { return j.job.same_matrix(of_matrix); });
    const auto room_of = [](const listed_rows_job& j) { return j.job.room_bytes(); };
    row_matrix matrix(of_matrix.rows, of_matrix.cols, of_matrix.type, of_matrix.values,
                      room_of(*std::ranges::max_element(first, last, {}, room_of)));
    for (; first != last; ++first) {
      run_on_cpu(matrix, first->job, work_name(first->job, "cpu"), limit, out, first->more);
    }
  }
}

patience gpu_patience(double seconds, bool quick) {
  return {.seconds = quick ? kGpuBriefSeconds / 4 : seconds, .fewest = quick ? 3 : 7};
}

void run_on_gpu(gpu_clock& gpu, const std::vector<listed_rows_job>& jobs, bool quick, results& out) {
  for (auto first = jobs.begin(); first != jobs.end();) {
    const rows_job of_matrix = first->job;
    const row_matrix matrix(of_matrix.rows, of_matrix.matrix_cols(), of_matrix.type, of_matrix.values);
    const gpu_matrices matrices(gpu, matrix);
    for (; first != jobs.end() && first->job.same_matrix(of_matrix); ++first) {
      run_on_gpu(gpu, matrices, first->job, work_name(first->job), gpu_patience(first->seconds, quick), out,
                 first->more);
    }
  }
}

void add_cpu_read_speed(const results& out, limits_report& limits) {
  std::int64_t most_bytes = 0;
  for (const auto& record : out.records()) {
    if (!record.contains("limit_ms") || record["bytes"] < most_bytes) continue;
    most_bytes = record["bytes"];
    limits["read_gb_per_s"]["cpu"] = static_cast<double>(most_bytes) / (record["limit_ms"].get<double>() * 1e6);
  }
}

void add_gpu_read_speed(gpu_clock& gpu, limits_report& limits) {
  constexpr std::int64_t kLimitBytes = std::int64_t{1} << 32;
  limits["read_gb_per_s"]["gpu"] = static_cast<double>(kLimitBytes) / (gpu.read_ms(kLimitBytes) * 1e6);
}

}  // namespace shortlist::benchmark
