// Row-wise top k: short rows and long ones, types, k, data that is hard, and RTop-K's early stops.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "campaigns.hpp"
#include "gpu.hpp"
#include "rows_list.hpp"

namespace shortlist::benchmark {
namespace {

constexpr double kMostOnOtherData = 1.5;  // times the time on normal data
constexpr std::int64_t kRows = 65'536;
constexpr std::int64_t kCols = 256;
constexpr std::int64_t kK = 32;
constexpr std::int64_t kOtherKs[] = {1, 8, 64, 128, 255};
constexpr row_values kOtherData[] = {row_values::ties90,  row_values::all_equal, row_values::lognormal,
                                     row_values::uniform, row_values::nan10,     row_values::scaled};
struct shape {
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t k;
};
constexpr shape kOtherShapes[] = {{kRows, 1024, 64},   {kRows, 4096, 64},    {1'048'576, kCols, kK},
                                  {1, 1'000'000, 100}, {1, 10'000'000, 100}, {100, 100'000, 100}};

constexpr std::int64_t kStoppedCols = 4096;  // early stops of other shapes from here on, too

rows_job job_of(const shape& s, value_type type = value_type::f32) {
  rows_job job{.rows = s.rows, .cols = s.cols, .type = type};
  job.options.k = s.k;
  return job;
}

/// Jobs on one matrix stand together; a job that others are compared with stands before them.
std::vector<listed_rows_job> cpu_jobs() {
  const rows_job base = job_of({kRows, kCols, kK});
  const std::string base_work = work_name(base, "cpu");
  std::vector<listed_rows_job> jobs = {{base, {}}};
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
  for (const shape& s : kOtherShapes) {
    rows_job job = job_of(s);
    jobs.push_back({job, {}});
    if (s.cols < kStoppedCols) continue;
    const nlohmann::ordered_json beside = {{"compared_with", work_name(job, "cpu")}};
    job.options.eps = 1e-4f;
    jobs.push_back({job, beside});
    job.options.eps = {};
    job.options.max_iter = 8;
    jobs.push_back({job, beside});
  }
  return jobs;
}

// On the GPU.
constexpr double kMostOfEarlyStop = 1.05;  // times the time of the exact search
constexpr double kLeastShare = 0.6;        // of the read bandwidth, at every shape of the figures
constexpr double kLeastSpeedup = 1.0;      // over torch.topk, there too
constexpr shape kGpuShapes[] = {{1'048'576, 256, 32}, {1'048'576, 512, 64}, {1'048'576, 768, 128}, {kRows, 256, 32},
                                {kRows, 1024, 64},    {kRows, 4096, 64},    {kRows, 8192, 64}};
constexpr shape kGpuOddShapes[] = {{1'048'576, 255, 32}, {kRows, 1001, 64}, {kRows, 4095, 64}};  // begin anywhere
constexpr shape kGpuApartShapes[] = {{1'048'576, 256, 32}, {kRows, 1000, 64}};                   // lie apart
constexpr std::int64_t kApart = 8;
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
constexpr shape kLongerStopped[] = {{kRows, 1024, 64}, {kRows, 4096, 64}};  // than table 3 has
constexpr int kLongerSteps[] = {2, 4, 8};
constexpr float kLongerEps = 1e-4f;
constexpr shape kOnceStopped[] = {{kRows, kCols, kK}, {kRows, 8192, 64}};  // as RTop-K's code was measured
constexpr shape kHalvesStopped[] = {{1'048'576, kCols, kK}, {kRows, 1024, 64}, {kRows, 4096, 64}};
constexpr int kHalvesSteps[] = {4, 8};
constexpr float kHalvesEps[] = {1e-4f, 1e-2f};
constexpr shape kLongStopped[] = {{1024, 50'000, 64}, {1024, 50'000, 2048}, {64, 128'256, 50}, {1, 10'000'000, 100}};
constexpr shape kHalvesLongStopped[] = {{1024, 50'000, 64}, {1024, 50'000, 2048}};  // of bf16
constexpr shape kExactStopped[] = {{1'048'576, kCols, kK}, {kRows, 1024, 64}};      // rows that take the exact path
constexpr row_values kExactData[] = {row_values::nan10, row_values::half_inf};
constexpr int kExactSteps = 4;

// A row that is a little longer, or asks for a little more, may take so many times the time of its neighbour.
constexpr double kMostOfNeighbour = 1.25;
constexpr std::int64_t kFullCols[] = {64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192};
constexpr std::int64_t kWholeUnit = 8;  // columns: rows still begin at multiples of 16 bytes, of either type
constexpr std::int64_t kColsOfK = 16;
constexpr std::int64_t kEvenKs[] = {32, 64, 96, 128, 248};
// Between these the plan changes the kernel, by rows, by k, or by columns.
struct two_shapes {
  value_type type;
  shape first;
  shape next;
};
constexpr two_shapes kAtBorders[] = {{value_type::f32, {66, 128'256, 50}, {67, 128'256, 50}},
                                     {value_type::f32, {132, 128'256, 50}, {133, 128'256, 50}},
                                     {value_type::f32, {63, 50'000, 128}, {64, 50'000, 128}},
                                     {value_type::bf16, {4095, 4096, 256}, {4096, 4096, 256}},
                                     {value_type::f32, {64, 128'256, 112}, {64, 128'256, 113}},
                                     {value_type::f32, {16, 128'256, 128}, {16, 128'256, 129}},
                                     {value_type::f32, {1, 1'000'000, 2048}, {1, 1'000'000, 2049}},
                                     {value_type::f32, {1024, 50'000, 2616}, {1024, 50'000, 2617}},
                                     {value_type::f32, {1024, 50'000, 4096}, {1024, 50'000, 4097}},
                                     {value_type::f32, {1024, 50'000, 11'269}, {1024, 50'000, 11'270}},
                                     {value_type::f32, {1024, 50'000, 11'740}, {1024, 50'000, 11'741}},
                                     {value_type::bf16, {1024, 50'000, 4545}, {1024, 50'000, 4546}},
                                     {value_type::f32, {4096, 20'000, 2540}, {4096, 20'000, 2541}},
                                     {value_type::f32, {4096, 32'768, 3000}, {4096, 32'769, 3000}},
                                     {value_type::f32, {1024, 16'384, 64}, {1024, 16'385, 64}},
                                     {value_type::bf16, {1024, 32'768, 64}, {1024, 32'769, 64}}};

void add_neighbours(gpu_rows_list& list) {
  for (const two_shapes& border : kAtBorders) {
    list.add(job_of(border.first, border.type), {}, kGpuBriefSeconds);
    list.add_beside(job_of(border.next, border.type), job_of(border.first, border.type), kMostOfNeighbour,
                    kGpuBriefSeconds);
  }
  for (const value_type type : {value_type::f32, value_type::bf16}) {
    const auto add = [&](const shape& first, const shape& next) {
      list.add(job_of(first, type), {}, kGpuBriefSeconds);
      list.add_beside(job_of(next, type), job_of(first, type), kMostOfNeighbour, kGpuBriefSeconds);
    };
    for (const std::int64_t cols : kFullCols) {
      const std::int64_t k = cols / kColsOfK;
      for (const std::int64_t more : {kWholeUnit, std::int64_t{1}}) add({kRows, cols, k}, {kRows, cols + more, k});
    }
    for (const std::int64_t k : kEvenKs) add({kRows, kCols, k}, {kRows, kCols, k + 1});
  }
}

/// The table of targets, hard data, neighbours, and the shapes of the paper's figures and of its table 3.
std::vector<listed_rows_job> gpu_jobs(const results& out) {
  gpu_rows_list list;
  std::vector<rows_job> short_rows;
  for (const shape& s : kGpuShapes) short_rows.push_back(job_of(s));
  for (const value_type type : {value_type::f16, value_type::bf16}) {
    short_rows.push_back(job_of(kGpuShapes[0], type));
  }
  for (const rows_job& job : short_rows) list.add_unsorted_and_sorted(job);
  for (const shape& s : kGpuOddShapes) {
    for (const value_type type : {value_type::f32, value_type::bf16}) {
      list.add_unsorted_and_sorted(job_of(s, type));
    }
  }
  for (const shape& s : kGpuApartShapes) {
    for (const value_type type : {value_type::f32, value_type::bf16}) {
      rows_job job = job_of(s, type);
      job.of_cols = s.cols + kApart;
      list.add_unsorted_and_sorted(job);
    }
  }
  add_neighbours(list);
  for (const shape& s : kGpuLongShapes) list.add_unsorted_and_sorted(job_of(s));
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
  const auto add_stopped = [&](rows_job job, std::span<const int> steps, std::span<const float> widths) {
    for (const float eps : widths) {
      job.options.eps = eps;
      list.add_beside_plain(job, kMostOfEarlyStop, kGpuBriefSeconds);
    }
    job.options.eps = {};
    for (const int most : steps) {
      job.options.max_iter = most;
      list.add_beside_plain(job, kMostOfEarlyStop, kGpuBriefSeconds);
    }
  };
  for (const shape& s : kLongerStopped) add_stopped(job_of(s), kLongerSteps, {&kLongerEps, 1});
  for (const shape& s : kOnceStopped) add_stopped(job_of(s), {&kExactSteps, 1}, {});
  for (const value_type type : {value_type::f16, value_type::bf16}) {
    for (const shape& s : kHalvesStopped) {
      list.add(job_of(s, type), {}, kGpuBriefSeconds);
      add_stopped(job_of(s, type), kHalvesSteps, kHalvesEps);
    }
  }
  const auto add_long_stopped = [&](const rows_job& job) {
    list.add(job, {}, kGpuBriefSeconds);
    add_stopped(job, {&kExactSteps, 1}, {&kLongerEps, 1});
  };
  for (const shape& s : kLongStopped) add_long_stopped(job_of(s));
  for (const shape& s : kHalvesLongStopped) add_long_stopped(job_of(s, value_type::bf16));
  for (const shape& s : kExactStopped) {
    for (const row_values values : kExactData) {
      rows_job exact = job_of(s);
      exact.values = values;
      rows_job job = exact;
      job.options.max_iter = kExactSteps;
      list.add(exact);
      list.add_beside(job, exact, kMostOfEarlyStop);
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
  return std::move(list).wanted(out);
}

}  // namespace

limits_report run_rows(results& out, const campaign_settings& settings) {
  const patience limit =
      settings.quick ? patience{.seconds = 0.05, .fewest = 3} : patience{.seconds = 0.5, .fewest = 7};
  limits_report limits;
  run_on_cpu(cpu_jobs(), limit, out);
  add_cpu_read_speed(out, limits);

  const std::vector<listed_rows_job> on_gpu = gpu_jobs(out);
  if (!find_gpu() || on_gpu.empty()) return limits;
  gpu_clock gpu;
  add_gpu_read_speed(gpu, limits);
  run_on_gpu(gpu, on_gpu, settings.quick, out);
  return limits;
}

}  // namespace shortlist::benchmark
