// IVF-PQ on the GPU over ten million deep-like vectors: what each code reaches when every list is probed, how long
// building takes, recall and time over nprobe and refine_ratio, and the table of targets out of those.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "campaigns.hpp"
#include "deep_like.hpp"
#include "ivf_pq_bench.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kRows = 10'000'000;
constexpr std::int64_t kDim = deep_like::kDim;
constexpr std::int64_t kLists = 8192;
constexpr std::int64_t kQueries = 10'000;
constexpr std::int64_t kUnlimitedQueries = 200;  // that probe every list, and whose 1,000 nearest are known
constexpr std::int64_t kMostK = 1000;
constexpr std::int64_t kComparedRows = 64;  // of the set, made on the host too
constexpr std::int64_t kSkewedRow = 4711;
constexpr std::int64_t kWarmUpRows = 100'000;  // of an index whose kernels are loaded before one is timed
constexpr std::int64_t kWarmUpLists = 64;
constexpr std::int64_t kNprobes[] = {2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128};

struct code_jobs {
  ivf_pq_code code;
  std::vector<std::int64_t> ratios;
};
const code_jobs kCodes[] = {
    {{"pq48", code_kind::pq, 48, 8}, {0, 4}},
    {{"sq4", code_kind::sq4}, {0, 2, 4}},
    {{"sq8", code_kind::sq8}, {0, 1, 2}},
};

/// A line of the table of targets: the least time of any code and setting that serves.
struct wanted {
  std::string_view name;
  std::int64_t queries;
  double recall;
  std::int64_t most_bytes;  // of a row's code and term; 0: any
  bool refined;
};
constexpr wanted kWanted[] = {
    {"recall0.885/bytes52", kQueries, 0.885, 52, false}, {"recall0.965/bytes100", kQueries, 0.965, 100, false},
    {"recall0.977/refined", kQueries, 0.977, 0, true},   {"recall0.994/refined", kQueries, 0.994, 0, true},
    {"recall0.999/refined", kQueries, 0.999, 0, true},   {"recall0.977/refined", 10, 0.977, 0, true},
    {"recall0.977/refined", 100, 0.977, 0, true},        {"recall0.977/refined", 1000, 0.977, 0, true},
    {"recall0.994/refined/host", 1, 0.994, 0, true},
};

std::string work_of(const wanted& line) {
  return fmt::format("ivf_pq/{}x{}/q{}/k10/{}", kRows, kDim, line.queries, line.name);
}

bool serves(const wanted& line, const ivf_pq_code& code, std::int64_t ratio) {
  return (ratio > 0) == line.refined && (line.most_bytes == 0 || code.scanned_bytes(kDim) <= line.most_bytes);
}

// What k beyond 10 and queries that all probe the same lists may take beside ordinary ones.
constexpr std::int64_t kNprobeOfCliffs = 32;
constexpr double kRatioOfK = 1.5;
constexpr double kRatioOfMostK = 2;
constexpr double kRatioOfSkew = 2;

class ivf_pq_campaign {
 public:
  ivf_pq_campaign(results& out, const campaign_settings& settings)
      : out_(out),
        limit_(settings.quick ? patience{.seconds = 0.02, .fewest = 3} : patience{.seconds = 0.1, .fewest = 5}),
        stream_(stream::wrap(where_, gpu_.stream())),
        rows_(where_, kRows * kDim * static_cast<std::int64_t>(sizeof(float))),
        host_rows_(static_cast<std::size_t>(kRows * kDim)),
        queries_(where_, set_.queries(kQueries), kDim),
        skewed_(where_, set_.queries_near_row(kSkewedRow, kQueries), kDim) {
    read_gb_per_s_ = gpu_.read_gb_per_s();
    make_rows();
    find_truth();
    warm_up();
  }

  double read_gb_per_s() const { return read_gb_per_s_; }

  void run(const code_jobs& jobs) {
    ivf_pq_index index(where_, {.dim = kDim,
                                .metric = metric::l2,
                                .nlist = kLists,
                                .code = jobs.code.kind,
                                .pq_dim = jobs.code.pq_dim,
                                .pq_bits = jobs.code.pq_bits,
                                .rows = kept_rows::device});
    build(index, jobs.code);
    const ivf_pq_bench bench(index, jobs.code, gpu_, read_gb_per_s_);
    for (const std::int64_t ratio : jobs.ratios) {
      every_list(bench, ratio);
      const std::vector<point> points = sweep(bench, ratio);
      std::map<double, std::optional<point>> fewest;  // by the recall that they reach
      for (const wanted& line : kWanted) {
        if (!serves(line, jobs.code, ratio) || !out_.wants(work_of(line))) continue;
        try {
          const auto [at, is_new] = fewest.try_emplace(line.recall);
          if (is_new) at->second = fewest_lists(bench, line.recall, points);
          if (at->second) offer(bench, line, *at->second);
        } catch (const std::exception& failure) {
          out_.add_wrong(fmt::format("{} by {} with refine_ratio {}", work_of(line), jobs.code.name, ratio),
                         failure.what());
        }
      }
    }
    for (const std::int64_t ratio : {jobs.ratios.front(), jobs.ratios.back()}) cliffs(bench, ratio);
  }

  /// The lines of the table, from all that was offered.
  void add_best() {
    for (const wanted& line : kWanted) {
      const std::string work = work_of(line);
      if (!out_.wants(work)) continue;
      if (const auto best = best_.find(work); best != best_.end())
        out_.add(work, best->second.what, best->second.fields);
      else
        out_.add_wrong(work, "no code and setting reaches the recall");
    }
  }

 private:
  struct point {
    ivf_pq_job job;
    ivf_pq_outcome outcome;
  };

  void make_rows() {
    const deep_like_on_gpu made(set_);
    made.write_rows(gpu_.stream(), 0, kRows, static_cast<float*>(rows_.data()));
    rows_.download(stream_, host_rows_.data());
    std::vector<float> expected(static_cast<std::size_t>(kComparedRows * kDim));
    for (const std::int64_t first : {std::int64_t{0}, kRows - kComparedRows}) {
      set_.write_rows(first, kComparedRows, expected.data());
      if (!std::equal(expected.begin(), expected.end(), host_rows_.begin() + first * kDim))
        throw std::runtime_error("the GPU makes other deep-like rows than the host");
    }
  }

  matrix_view<const float> on_gpu(std::int64_t rows = kRows) const {
    return {static_cast<const float*>(rows_.data()), rows, kDim};
  }

  void find_truth() {
    flat_index exact(where_, {.dim = kDim, .metric = metric::l2, .storage = storage::int8_and_full});
    exact.add(stream_, on_gpu());
    queries_.set_truth(10, exact.search(queries_.on_host(0, kQueries), {.k = 10}).ids);
    queries_.set_truth(kMostK, exact.search(queries_.on_host(0, kUnlimitedQueries), {.k = kMostK}).ids);
  }

  void warm_up() {
    ivf_pq_index index(where_, {.dim = kDim, .metric = metric::l2, .nlist = kWarmUpLists});
    index.train(matrix_view<const float>(host_rows_.data(), kWarmUpRows, kDim));
    index.add(stream_, on_gpu(kWarmUpRows));
  }

  void build(ivf_pq_index& index, const ivf_pq_code& code) {
    const double train_ms = wall_ms([&] { index.train(matrix_view<const float>(host_rows_.data(), kRows, kDim)); });
    const double add_ms = wall_ms([&] { index.add(stream_, on_gpu()); });
    const ivf_pq_memory memory = index.memory();
    const list_statistics lists = index.lists();
    attempt(out_, fmt::format("ivf_pq/{}x{}/build/nlist{}/{}", kRows, kDim, kLists, code.name), [&] {
      const double ms = train_ms + add_ms;
      ivf_pq_outcome made;
      made.what = {.time = {.median_ms = ms, .min_ms = ms, .runs = 1},
                   .bytes = rows_.bytes(),
                   .limit_ms = static_cast<double>(rows_.bytes()) / (read_gb_per_s_ * 1e6)};
      made.fields = {{"train_ms", train_ms},
                     {"add_ms", add_ms},
                     {"codes_bytes_per_row", static_cast<double>(memory.codes_bytes) / static_cast<double>(kRows)},
                     {"imbalance", lists.imbalance},
                     {"largest_list", lists.largest},
                     {"empty_lists", lists.empty}};
      return made;
    });
  }

  /// What the code alone loses: every list is probed.
  void every_list(const ivf_pq_bench& bench, std::int64_t ratio) {
    const ivf_pq_job all{.queries = kUnlimitedQueries, .nprobe = kLists, .refine_ratio = ratio};
    attempt(out_, bench.work(all), [&] { return bench.on_device(queries_, all, {.seconds = 0, .fewest = 1}); });
  }

  std::vector<point> sweep(const ivf_pq_bench& bench, std::int64_t ratio) {
    std::vector<point> points;
    for (const std::int64_t nprobe : kNprobes) {
      const ivf_pq_job job{.queries = kQueries, .nprobe = nprobe, .refine_ratio = ratio};
      attempt(out_, bench.work(job), [&] {
        points.push_back({job, bench.on_device(queries_, job, limit_)});
        return points.back().outcome;
      });
    }
    return points;
  }

  /// The fewest lists that reach a recall: between two points of the sweep, found by halves.
  std::optional<point> fewest_lists(const ivf_pq_bench& bench, double recall, const std::vector<point>& points) {
    const auto enough = std::ranges::find_if(points, [&](const point& p) { return p.outcome.recall >= recall; });
    if (enough == points.end()) return std::nullopt;
    ivf_pq_job job = enough->job;
    std::int64_t too_few = enough == points.begin() ? 0 : std::prev(enough)->job.nprobe;
    while (job.nprobe - too_few > 1) {
      ivf_pq_job between = job;
      between.nprobe = too_few + (job.nprobe - too_few) / 2;
      if (bench.on_device(queries_, between, {.seconds = 0, .fewest = 1}).recall >= recall)
        job = between;
      else
        too_few = between.nprobe;
    }
    if (job.nprobe == enough->job.nprobe) return *enough;
    return point{job, bench.on_device(queries_, job, limit_)};
  }

  /// Measures a line with the fewest lists that reach its recall, and keeps the result if it is the best so far.
  void offer(const ivf_pq_bench& bench, const wanted& line, const point& fewest) {
    ivf_pq_job job = fewest.job;
    job.queries = line.queries;
    ivf_pq_outcome made = line.queries == 1          ? bench.on_host(queries_, job, limit_)
                          : line.queries == kQueries ? fewest.outcome
                                                     : bench.on_device(queries_, job, limit_);
    made.recall = fewest.outcome.recall;  // of all queries
    made.fields["recall"] = made.recall;
    made.fields["setting"] = bench.work(job);
    const std::string work = work_of(line);
    const auto before = best_.find(work);
    if (before == best_.end() || made.what.time.median_ms < before->second.what.time.median_ms)
      best_.insert_or_assign(work, std::move(made));
  }

  /// Larger k, and a batch of queries near one row, beside an ordinary batch.
  void cliffs(const ivf_pq_bench& bench, std::int64_t ratio) {
    const ivf_pq_job ordinary{.queries = kQueries, .nprobe = kNprobeOfCliffs, .refine_ratio = ratio};
    const auto beside = [&](ivf_pq_outcome made, double most) {
      made.fields["compared_with"] = bench.work(ordinary);
      made.fields["target_ratio"] = most;
      return made;
    };
    for (const std::int64_t k : {std::int64_t{100}, kMostK}) {
      ivf_pq_job job = ordinary;
      job.k = k;
      attempt(out_, bench.work(job),
              [&] { return beside(bench.on_device(queries_, job, limit_), k == kMostK ? kRatioOfMostK : kRatioOfK); });
    }
    attempt(out_, bench.work(ordinary, "skewed"),
            [&] { return beside(bench.on_device(skewed_, ordinary, limit_), kRatioOfSkew); });
  }

  results& out_;
  patience limit_;
  device where_ = device::cuda();
  gpu_clock gpu_;
  stream stream_;
  deep_like set_;
  buffer rows_;
  std::vector<float> host_rows_;
  ivf_pq_queries queries_;
  ivf_pq_queries skewed_;
  double read_gb_per_s_ = 0;
  std::map<std::string, ivf_pq_outcome> best_;
};

}  // namespace

limits_report run_ivf_pq(results& out, const campaign_settings& settings) {
  if (!find_gpu()) throw std::runtime_error("the campaign ivf_pq needs a GPU, and a shortlist_bench built with CUDA");
  ivf_pq_campaign campaign(out, settings);
  for (const code_jobs& jobs : kCodes) campaign.run(jobs);
  campaign.add_best();
  limits_report limits;
  limits["read_gb_per_s"]["gpu"] = campaign.read_gb_per_s();
  return limits;
}

}  // namespace shortlist::benchmark
