// Row-wise top k: short rows and long ones, types, k, data that is hard, and RTop-K's early stops.
#include <algorithm>
#include <set>
#include <string>
#include <tuple>
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

constexpr shape kGpuShapes[] = {
    {1'048'576, 256, 32},    {1'048'576, 512, 64},  {1'048'576, 768, 128}, {kRows, 256, 32},     {kRows, 1024, 64},
    {kRows, 4096, 64},       {kRows, 8192, 64},     {1, 1'000'000, 100},   {1, 10'000'000, 100}, {1, 100'000'000, 100},
    {1, 1'000'000'000, 100}, {100, 1'000'000, 100}, {100, 1'000'000, 2048}};
constexpr std::int64_t kFigureCols[] = {256, 512, 768, 1024, 1280, 2048, 3072, 4096, 6144, 8192};  // figures 4 and 6
constexpr std::int64_t kFigureKs[] = {64, 128, 256, 512};

/// The table of targets, the early stops, the hard data, and the shapes of the paper's figures.
std::vector<rows_job> gpu_jobs() {
  std::vector<rows_job> jobs;
  for (const shape& s : kGpuShapes) jobs.push_back(job_of(s));
  for (const std::int64_t cols : {256, 512, 768}) {
    const std::int64_t k = cols == 256 ? 32 : cols == 512 ? 64 : 128;
    for (const int steps : {2, 4, 8}) {
      jobs.push_back(job_of({1'048'576, cols, k}));
      jobs.back().options.max_iter = steps;
    }
    jobs.push_back(job_of({1'048'576, cols, k}));
    jobs.back().options.eps = 1e-4f;
  }
  for (const value_type type : {value_type::f16, value_type::bf16}) {
    jobs.push_back(job_of({1'048'576, 256, 32}));
    jobs.back().type = type;
  }
  for (const row_values values : kOtherData) {
    for (const shape& s : {shape{1'048'576, 256, 32}, shape{kRows, 1024, 64}, shape{kRows, 8192, 64}}) {
      jobs.push_back(job_of(s));
      jobs.back().values = values;
    }
  }
  for (const std::int64_t cols : kFigureCols) {
    for (const std::int64_t k : kFigureKs) {
      if (k < cols) jobs.push_back(job_of({kRows, cols, k}));
    }
  }
  for (rows_job& job : jobs) job.indices_as = index_type::i64;
  std::stable_sort(jobs.begin(), jobs.end(), [](const rows_job& a, const rows_job& b) {
    return std::tie(a.values, a.type, a.cols, a.rows) < std::tie(b.values, b.type, b.cols, b.rows);
  });
  return jobs;
}

void run_gpu_rows(results& out, const patience& limit, limits_report& limits) {
  if (!find_gpu()) return;
  std::vector<rows_job> jobs = gpu_jobs();
  std::erase_if(jobs, [&](const rows_job& j) { return !out.wants(work_name(j)); });
  gpu_clock gpu;
  constexpr std::int64_t kLimitBytes = std::int64_t{1} << 32;
  if (!jobs.empty())
    limits["read_gb_per_s"]["gpu"] = static_cast<double>(kLimitBytes) / (gpu.read_ms(kLimitBytes) * 1e6);
  std::set<std::string> done;
  for (auto first = jobs.begin(); first != jobs.end();) {
    const rows_job of_matrix = *first;
    const row_matrix matrix(of_matrix.rows, of_matrix.cols, of_matrix.type, of_matrix.values);
    for (; first != jobs.end() && first->same_matrix(of_matrix); ++first) {
      const std::string work = work_name(*first);
      if (!done.insert(work).second) continue;
      nlohmann::ordered_json more;
      rows_job normal = *first;
      normal.values = row_values::normal;
      if (first->values != row_values::normal)
        more = {{"compared_with", work_name(normal)}, {"target_ratio", kMostOnOtherData}};
      run_on_gpu(gpu, matrix, *first, work, limit, out, more);
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
  run_gpu_rows(out, limit, limits);
  return limits;
}

}  // namespace shortlist::benchmark
