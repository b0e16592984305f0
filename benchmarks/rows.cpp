// Row-wise top k: short rows and long ones, types, k, data that is hard, and RTop-K's early stops.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "campaigns.hpp"
#include "gpu.hpp"
#include "rows_bench.hpp"

namespace shortlist::benchmark {
namespace {

constexpr double kMostOnOtherData = 1.5;  // times the time on normal data
constexpr std::int64_t kRows = 65'536;
constexpr std::int64_t kCols = 256;
constexpr std::int64_t kK = 32;
constexpr std::int64_t kOtherKs[] = {1, 8, 64, 128, 255};
constexpr row_values kOtherData[] = {row_values::ties90, row_values::all_equal, row_values::lognormal,
                                     row_values::uniform, row_values::nan10};
struct shape {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t k;
};
constexpr shape kOtherShapes[] = {{kRows, 1024, 64},   {kRows, 4096, 64},    {1'048'576, kCols, kK},
                                  {1, 1'000'000, 100}, {1, 10'000'000, 100}, {100, 100'000, 100}};

rows_job job_of(const shape& s) {
  rows_job job{.rows = s.rows, .cols = s.cols};
  job.options.k = s.k;
  return job;
}

struct cpu_job {
  rows_job job;
  nlohmann::ordered_json more;
};

/// Jobs on one matrix stand together; a job that others are compared with stands before them.
std::vector<cpu_job> cpu_jobs() {
  const rows_job base = job_of({kRows, kCols, kK});
  const std::string base_work = work_name(base, "cpu");
  std::vector<cpu_job> jobs = {{base, {}}};
  const auto add = [&](const auto& change, const nlohmann::ordered_json& more) {
    rows_job job = base;
    change(job);
    jobs.push_back({job, more});
  };
  const nlohmann::ordered_json beside_base = {{"compared_with", base_work}};
  for (const std::int64_t k : kOtherKs) add([&](rows_job& j) { j.options.k = k; }, {});
  add([](rows_job& j) { j.options.sorted = true; }, beside_base);
  add([](rows_job& j) { j.indices_as = index_type::i32; }, beside_base);
  for (const int steps : {4, 8}) add([&](rows_job& j) { j.options.max_iter = steps; }, beside_base);
  add([](rows_job& j) { j.options.eps = 1e-4f; }, beside_base);
  for (const row_values values : kOtherData) {
    add([&](rows_job& j) { j.values = values; }, {{"compared_with", base_work}, {"target_ratio", kMostOnOtherData}});
  }
  for (const value_type type : {value_type::f16, value_type::bf16}) {
    add([&](rows_job& j) { j.type = type; }, beside_base);
  }
  for (const shape& s : kOtherShapes) jobs.push_back({job_of(s), {}});
  return jobs;
}

// On the GPU.
constexpr double kGpuSeconds = 0.25;       // of timed runs of a job
constexpr double kGpuBriefSeconds = 0.08;  // of the many of table 3, whose mean alone counts
constexpr double kMostOfEarlyStop = 1.05;  // times the time of the exact search
constexpr double kLeastShare = 0.6;        // of the read bandwidth, at every shape of the figures
constexpr double kLeastSpeedup = 1.0;      // over torch.topk, there too
constexpr shape kGpuShapes[] = {{1'048'576, 256, 32}, {1'048'576, 512, 64}, {1'048'576, 768, 128}, {kRows, 256, 32},
                                {kRows, 1024, 64},    {kRows, 4096, 64},    {kRows, 8192, 64}};
constexpr shape kGpuLongShapes[] = {{1, 1'000'000, 100},     {1, 10'000'000, 100},  {1, 100'000'000, 100},
                                    {1, 1'000'000'000, 100}, {100, 1'000'000, 100}, {100, 1'000'000, 2048}};
constexpr shape kGpuHardLongShapes[] = {{1, 10'000'000, 100}, {100, 1'000'000, 100}, {100, 1'000'000, 2048}};
constexpr row_values kHardLongData[] = {row_values::ties90, row_values::all_equal, row_values::ascending};
constexpr std::int64_t kFigureCols[] = {256, 512, 768, 1024, 1280, 2048, 3072, 4096, 6144, 8192};  // figures 4 and 6
constexpr std::int64_t kFigureKs[] = {64, 128, 256, 512};
constexpr float kFigureEps[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f};  // figure 7
constexpr std::int64_t kTable3Rows[] = {16'384, 1'048'576};
constexpr std::int64_t kTable3Cols[] = {256, 512, 768};
constexpr std::int64_t kTable3Ks[] = {32, 64, 128};
constexpr int kTable3Steps[] = {2, 3, 4, 5, 6, 7, 8};

struct gpu_job {
  rows_job job;
  double seconds = kGpuSeconds;
  nlohmann::ordered_json more;
};

/// Jobs by name; one that is asked for twice runs once, with the targets of both.
class gpu_job_list {
 public:
  void add(rows_job job, const nlohmann::ordered_json& more = {}, double seconds = kGpuSeconds) {
    job.indices_as = index_type::i32;
    const auto found =
        std::ranges::find_if(jobs_, [&](const gpu_job& other) { return work_name(other.job) == work_name(job); });
    if (found == jobs_.end()) {
      jobs_.push_back({job, seconds, more});
    } else if (more.is_object()) {
      found->more.update(more);
    }
  }
  /// A job that may take so many times what the same takes without early stop, on normal data.
  void add_beside_plain(const rows_job& job, double most_ratio, double seconds = kGpuSeconds) {
    rows_job plain = job;
    plain.values = row_values::normal;
    plain.options.eps = {};
    plain.options.max_iter = {};
    plain.indices_as = index_type::i32;
    add(job, {{"compared_with", work_name(plain)}, {"target_ratio", most_ratio}}, seconds);
  }
  /// Those on one matrix stand together, and a job that others are compared with stands before them.
  std::vector<gpu_job> in_order() && {
    std::ranges::stable_sort(
        jobs_, {}, [](const gpu_job& of) { return std::tuple(of.job.values, of.job.type, of.job.cols, of.job.rows); });
    return std::move(jobs_);
  }

 private:
  std::vector<gpu_job> jobs_;
};

/// The table of targets, hard data, and the shapes of the paper's figures and of its table 3.
std::vector<gpu_job> gpu_jobs() {
  gpu_job_list list;
  std::vector<rows_job> short_rows;
  for (const shape& s : kGpuShapes) short_rows.push_back(job_of(s));
  for (const value_type type : {value_type::f16, value_type::bf16}) {
    short_rows.push_back(job_of(kGpuShapes[0]));
    short_rows.back().type = type;
  }
  for (const rows_job& job : short_rows) list.add(job);
  for (const shape& s : kGpuLongShapes) list.add(job_of(s));
  for (const std::int64_t cols : kFigureCols) {
    for (const std::int64_t k : kFigureKs) {
      if (k >= cols) continue;
      list.add(job_of({kRows, cols, k}),
               {{"target_share", kLeastShare}, {"target_speedup", kLeastSpeedup}, {"target_peer", "torch"}});
    }
  }
  for (const float eps : kFigureEps) {
    rows_job job = job_of(kGpuShapes[0]);
    job.options.eps = eps;
    list.add_beside_plain(job, kMostOfEarlyStop);
  }
  for (const std::int64_t rows : kTable3Rows) {
    for (const std::int64_t cols : kTable3Cols) {
      for (const std::int64_t k : kTable3Ks) {
        rows_job job = job_of({rows, cols, k});
        list.add(job, {}, kGpuBriefSeconds);
        for (const int steps : kTable3Steps) {
          job.options.max_iter = steps;
          list.add_beside_plain(job, kMostOfEarlyStop, kGpuBriefSeconds);
        }
      }
    }
  }
  const auto add_hard = [&](rows_job job, row_values values) {
    job.values = values;
    list.add_beside_plain(job, kMostOnOtherData);
  };
  for (const row_values values : kOtherData) {
    for (const rows_job& job : short_rows) add_hard(job, values);
  }
  for (const row_values values : kHardLongData) {
    for (const shape& s : kGpuHardLongShapes) add_hard(job_of(s), values);
  }
  return std::move(list).in_order();
}

void run_gpu_rows(results& out, bool quick, limits_report& limits) {
  if (!find_gpu()) return;
  std::vector<gpu_job> jobs = gpu_jobs();
  std::erase_if(jobs, [&](const gpu_job& j) { return !out.wants(work_name(j.job)); });
  if (jobs.empty()) return;
  gpu_clock gpu;
  constexpr std::int64_t kLimitBytes = std::int64_t{1} << 32;
  limits["read_gb_per_s"]["gpu"] = static_cast<double>(kLimitBytes) / (gpu.read_ms(kLimitBytes) * 1e6);
  for (auto first = jobs.begin(); first != jobs.end();) {
    const rows_job of_matrix = first->job;
    const row_matrix matrix(of_matrix.rows, of_matrix.cols, of_matrix.type, of_matrix.values);
    const gpu_matrices matrices(gpu, matrix);
    for (; first != jobs.end() && first->job.same_matrix(of_matrix); ++first) {
      const patience limit{.seconds = quick ? kGpuBriefSeconds / 4 : first->seconds, .fewest = quick ? 3 : 7};
      run_on_gpu(gpu, matrices, first->job, work_name(first->job), limit, out, first->more);
    }
  }
}

}  // namespace

limits_report run_rows(results& out, const campaign_settings& settings) {
  const patience limit =
      settings.quick ? patience{.seconds = 0.05, .fewest = 3} : patience{.seconds = 0.5, .fewest = 7};
  std::vector<cpu_job> jobs = cpu_jobs();
  std::erase_if(jobs, [&](const cpu_job& j) { return !out.wants(work_name(j.job, "cpu")); });

  limits_report limits;
  std::int64_t most_bytes = 0;
  for (auto first = jobs.begin(); first != jobs.end();) {
    const rows_job& of_matrix = first->job;
    const auto last =
        std::find_if_not(first, jobs.end(), [&](const cpu_job& j) { return j.job.same_matrix(of_matrix); });
    const auto room_of = [](const cpu_job& j) { return j.job.room_bytes(); };
    row_matrix matrix(of_matrix.rows, of_matrix.cols, of_matrix.type, of_matrix.values,
                      room_of(*std::max_element(
                          first, last, [&](const cpu_job& a, const cpu_job& b) { return room_of(a) < room_of(b); })));
    for (; first != last; ++first) {
      run_on_cpu(matrix, first->job, work_name(first->job, "cpu"), limit, out, first->more);
      const auto& record = out.records().back();
      if (!record.contains("limit_ms") || first->job.bytes() < most_bytes) continue;
      most_bytes = first->job.bytes();  // of the largest work: smaller ones lie in caches
      limits["read_gb_per_s"]["cpu"] = static_cast<double>(most_bytes) / (record["limit_ms"].get<double>() * 1e6);
    }
  }
  run_gpu_rows(out, settings.quick, limits);
  return limits;
}

}  // namespace shortlist::benchmark
