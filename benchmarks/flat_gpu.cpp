// The flat search on the GPU: every row of the table of targets in docs/benchmarks.md.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "campaigns.hpp"
#include "flat_bench.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kMillion = 1'000'000;
constexpr std::int64_t kQuerySets = 8;
constexpr std::int64_t kHeadlineKs[] = {8, 100};
constexpr std::int64_t kSweepKs[] = {8, 32, 100, 256, 1000, 2048, 4096, 10'000};
constexpr double kMostStep = 1.3;  // between neighbouring k, and between unusual and normal data
constexpr int kHostThreads = 16;
constexpr std::int64_t kBatches[] = {16, 64, 1024};
constexpr std::int64_t kCrossingRows[] = {100, 300, 1000, 3000, 10'000, 30'000, 100'000};
constexpr std::int64_t kCrossingDims[] = {128, 384, 1024};
constexpr std::int64_t kCrossingQueries[] = {1, 16, 256};
constexpr std::int64_t kCrossingK = 10;
constexpr std::int64_t kReadSizes[] = {15 << 20, 100 << 20, 205 << 20, std::int64_t{1} << 30, std::int64_t{1} << 32};

class campaign {
 public:
  campaign(results& out, const campaign_settings& settings)
      : out_(out),
        limit_(settings.quick ? patience{.seconds = 0.03, .fewest = 3} : patience{.seconds = 0.4, .fewest = 9}),
        crossing_limit_(settings.quick ? patience{.seconds = 0.01, .fewest = 3}
                                       : patience{.seconds = 0.05, .fewest = 9}) {}

  limits_report run() {
    limits_report limits;
    for (const std::int64_t bytes : kReadSizes) {
      const double ms = gpu_.read_ms(bytes);
      const double gb_per_s = static_cast<double>(bytes) / (ms * 1e6);
      limits["gpu_reads"].push_back({{"bytes", bytes}, {"ms", ms}, {"gb_per_s", gb_per_s}});
      limits["read_gb_per_s"]["gpu"] = gb_per_s;  // the last and largest stays
    }
    small_corpus();
    one_query(100'000, 768);
    one_query(kMillion, 1024);
    million_by_384();
    other_types();
    distributions();
    batches();
    crossings();
    return limits;
  }

 private:
  static std::string name(const flat_data& data, std::int64_t queries, std::int64_t k, std::string_view place,
                          std::string_view apart = {}) {
    return work_name(data.shape(queries, k), place, apart);
  }

  /// Whether any work over rows of this shape and type is wanted, so that they need to be made.
  bool wants(std::int64_t rows, std::int64_t dim, element_type type, std::int64_t queries,
             const std::vector<std::int64_t>& ks, const std::vector<std::string>& ends) const {
    for (const std::int64_t k : ks) {
      for (const std::string& end : ends) {
        const search_shape shape{.rows = rows, .dim = dim, .queries = queries, .k = k, .type = type};
        if (out_.wants(work_name(shape, end))) return true;
      }
    }
    return false;
  }

  void headline(flat_bench& bench, double limit_ms) {
    for (const std::int64_t k : kHeadlineKs) {
      bench.host(1, k, name(bench.data(), 1, k, "host"), limit_ms);
      bench.on_device(gpu_, 1, k, name(bench.data(), 1, k, "device"), limit_ms);
    }
  }

  void one_query(std::int64_t rows, std::int64_t dim) {
    if (!wants(rows, dim, element_type::f32, 1, {8, 100}, {"host", "device"})) return;
    flat_data data(rows, dim, element_type::f32, distribution::normal, kQuerySets, 100);
    flat_bench bench(gpu_device_, data, out_, limit_, 1, 100);
    headline(bench, bench.limit_ms(&gpu_));
  }

  void host_threads(flat_bench& bench, std::int64_t k, double limit_ms) {
    const std::string alone = name(bench.data(), 1, k, "host", "threads1");
    bench.many_threads(1, k, alone, limit_ms);
    bench.many_threads(kHostThreads, k, name(bench.data(), 1, k, "host", "threads" + std::to_string(kHostThreads)),
                       limit_ms, {{"compared_with", alone}, {"target_ratio", 1.0}});
  }

  /// 10k x 384: the fixed costs of a call.
  void small_corpus() {
    if (!wants(10'000, 384, element_type::f32, 1, {8, 100},
               {"host/threads1", "host/threads16", "host/allocations", "device"})) {
      return;
    }
    flat_data data(10'000, 384, element_type::f32, distribution::normal, kQuerySets, 100);
    flat_bench bench(gpu_device_, data, out_, limit_, 1, 100, kHostThreads);
    const double limit_ms = bench.limit_ms(&gpu_);
    headline(bench, limit_ms);
    bench.allocations(gpu_, 100, name(data, 1, 100, "host", "allocations"), limit_ms);
    host_threads(bench, 100, limit_ms);
  }

  /// 1M x 384: the headline, the sweep over k, and many threads.
  void million_by_384() {
    const std::vector<std::int64_t> sweep(std::begin(kSweepKs), std::end(kSweepKs));
    if (!wants(kMillion, 384, element_type::f32, 1, sweep,
               {"host/threads1", "host/threads16", "host/allocations", "device"})) {
      return;
    }
    flat_data data(kMillion, 384, element_type::f32, distribution::normal, kQuerySets, sweep.back());
    flat_bench bench(gpu_device_, data, out_, limit_, 1, sweep.back(), kHostThreads);
    const double limit_ms = bench.limit_ms(&gpu_);
    std::string neighbour;
    for (const std::int64_t k : sweep) {
      const std::string work = name(data, 1, k, "host");
      nlohmann::ordered_json more;
      if (!neighbour.empty()) more = {{"compared_with", neighbour}, {"target_ratio", kMostStep}};
      bench.host(1, k, work, limit_ms, more);
      if (std::ranges::find(kHeadlineKs, k) != std::end(kHeadlineKs)) {
        bench.on_device(gpu_, 1, k, name(data, 1, k, "device"), limit_ms);
      }
      neighbour = work;
    }
    bench.allocations(gpu_, 100, name(data, 1, 100, "host", "allocations"), limit_ms);
    host_threads(bench, 100, limit_ms);
  }

  void other_types() {
    for (const element_type type : {element_type::f16, element_type::i8}) {
      if (!wants(kMillion, 384, type, 1, {100}, {"host", "device"})) continue;
      flat_data data(kMillion, 384, type, distribution::normal, kQuerySets, 100);
      flat_bench bench(gpu_device_, data, out_, limit_, 1, 100);
      const double limit_ms = bench.limit_ms(&gpu_);
      bench.host(1, 100, name(data, 1, 100, "host"), limit_ms);
      bench.on_device(gpu_, 1, 100, name(data, 1, 100, "device"), limit_ms);
    }
  }

  void distributions() {
    for (const distribution values : {distribution::all_equal, distribution::ascending, distribution::ties90}) {
      const search_shape shape{.rows = kMillion, .dim = 384, .queries = 1, .k = 100};
      const std::string work = work_name(shape, "host", to_string(values));
      if (!out_.wants(work)) continue;
      flat_data data(shape.rows, shape.dim, shape.type, values, kQuerySets, shape.k);
      flat_bench bench(gpu_device_, data, out_, limit_, 1, shape.k);
      bench.host(1, shape.k, work, bench.limit_ms(&gpu_),
                 {{"compared_with", work_name(shape, "host")}, {"target_ratio", kMostStep}});
    }
  }

  void batches() {
    constexpr std::int64_t kDim = 768;
    constexpr std::int64_t kK = 100;
    const bool wanted = std::ranges::any_of(kBatches, [&](std::int64_t queries) {
      return wants(kMillion, kDim, element_type::f32, queries, {kK}, {"device"});
    });
    if (!wanted) return;
    flat_data data(kMillion, kDim, element_type::f32, distribution::normal, 2 * kBatches[2], kK);
    flat_bench bench(gpu_device_, data, out_, limit_, 1, kK);  // batches bring their workspace
    const double limit_ms = bench.limit_ms(&gpu_);
    for (const std::int64_t queries : kBatches) {
      bench.on_device(gpu_, queries, kK, name(data, queries, kK, "device"), limit_ms);
    }
  }

  /// Where the CPU answers before the GPU: both host to host, over small corpora.
  void crossings() {
    for (const std::int64_t dim : kCrossingDims) {
      for (const std::int64_t rows : kCrossingRows) {
        const std::int64_t most_queries = kCrossingQueries[2];
        const bool wanted = std::ranges::any_of(kCrossingQueries, [&](std::int64_t queries) {
          return wants(rows, dim, element_type::f32, queries, {kCrossingK}, {"host/cpu"});
        });
        if (!wanted) continue;
        flat_data data(rows, dim, element_type::f32, distribution::normal, 2 * most_queries, kCrossingK);
        flat_bench on_cpu(device::cpu(), data, out_, crossing_limit_, most_queries, kCrossingK);
        flat_bench on_gpu(gpu_device_, data, out_, crossing_limit_, most_queries, kCrossingK);
        const double cpu_limit_ms = on_cpu.limit_ms(nullptr);
        const double gpu_limit_ms = on_gpu.limit_ms(&gpu_);
        for (const std::int64_t queries : kCrossingQueries) {
          const std::string best_for = device::best_for(data.shape(queries, kCrossingK)).name();
          const std::string cpu_work = name(data, queries, kCrossingK, "host", "cpu");
          on_cpu.host(queries, kCrossingK, cpu_work, cpu_limit_ms);
          on_gpu.host(queries, kCrossingK, name(data, queries, kCrossingK, "host"), gpu_limit_ms,
                      {{"compared_with", cpu_work}, {"best_for", best_for}});
        }
      }
    }
  }

  results& out_;
  patience limit_;
  patience crossing_limit_;
  gpu_clock gpu_;
  device gpu_device_ = device::cuda();
};

}  // namespace

limits_report run_flat_gpu(results& out, const campaign_settings& settings) {
  if (!find_gpu()) throw std::runtime_error("the campaign flat_gpu needs a GPU, and a shortlist_bench built with CUDA");
  return campaign(out, settings).run();
}

}  // namespace shortlist::benchmark
