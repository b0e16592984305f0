// IVF-PQ on the GPU over a million vectors of 768 elements, as embeddings of texts have: building, recall and time of
// batches of several sizes, k 100 and refined answers, for codes of numbers and of pieces of two and of eight elements.
//
// A vector is a deep-like one of 96 elements eight times over, each time with other normal noise.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "campaigns.hpp"
#include "deep_like.hpp"
#include "ivf_pq_bench.hpp"
#include "parallel.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kRows = 1'000'000;
constexpr std::int64_t kTimes = 8;
constexpr std::int64_t kDim = kTimes * deep_like::kDim;
constexpr std::int64_t kLists = 1024;
constexpr std::int64_t kQueries = 10'000;
constexpr std::int64_t kMostK = 100;
constexpr float kNoise = 0.05f;
constexpr std::uint64_t kNoiseOfRows = std::uint64_t{101} << 56;
constexpr std::uint64_t kNoiseOfQueries = std::uint64_t{102} << 56;
constexpr ivf_pq_code kCodes[] = {
    {"pq384", code_kind::pq, 384, 8}, {"pq96", code_kind::pq, 96, 8}, {"sq4", code_kind::sq4}, {"sq8", code_kind::sq8}};
constexpr ivf_pq_job kJobs[] = {
    {.queries = kQueries, .nprobe = 8},
    {.queries = kQueries, .nprobe = 32},
    {.queries = kQueries, .nprobe = 32, .refine_ratio = 4},
    {.queries = kQueries, .k = kMostK, .nprobe = 32},
    {.queries = 1000, .nprobe = 32},
    {.queries = 100, .nprobe = 32},
};
constexpr ivf_pq_job kHostJob{.queries = 1, .nprobe = 32, .refine_ratio = 4};

/// Vectors [first, first + count) of the set from deep-like ones, and noise from `noise` on.
std::vector<float> widened(const std::vector<float>& deep, std::uint64_t noise) {
  const auto count = static_cast<std::int64_t>(deep.size()) / deep_like::kDim;
  std::vector<float> wide(static_cast<std::size_t>(count * kDim));
  over_cores(count, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first * kDim; i < last * kDim; i += 2) {
      const deep_like_row::sine_cosine two =
          deep_like_row::two_normals(deep_like_row::random_bits(noise + static_cast<std::uint64_t>(i / 2)));
      const float* from = deep.data() + i / kDim * deep_like::kDim + i % deep_like::kDim;
      wide[static_cast<std::size_t>(i)] = from[0] + kNoise * two.cosine;
      wide[static_cast<std::size_t>(i + 1)] = from[1] + kNoise * two.sine;
    }
  });
  return wide;
}

std::vector<float> made_rows(const deep_like& set) {
  std::vector<float> deep(static_cast<std::size_t>(kRows * deep_like::kDim));
  set.write_rows(0, kRows, deep.data());
  return widened(deep, kNoiseOfRows);
}

}  // namespace

limits_report run_ivf_pq_wide(results& out, const campaign_settings& settings) {
  if (!find_gpu()) {
    throw std::runtime_error("the campaign ivf_pq_wide needs a GPU, and a shortlist_bench built with CUDA");
  }
  const patience limit =
      settings.quick ? patience{.seconds = 0.02, .fewest = 3} : patience{.seconds = 0.2, .fewest = 7};
  const device where = device::cuda();
  gpu_clock gpu;
  const stream s = stream::wrap(where, gpu.stream());
  const double read_gb_per_s = gpu.read_gb_per_s();

  const deep_like set;
  const std::vector<float> host_rows = made_rows(set);
  const matrix_view<const float> on_host(host_rows.data(), kRows, kDim);
  buffer rows(where, kRows * kDim * static_cast<std::int64_t>(sizeof(float)));
  rows.upload(s, host_rows.data());
  const matrix_view<const float> on_gpu(static_cast<const float*>(rows.data()), kRows, kDim);
  ivf_pq_queries queries(where, widened(set.queries(kQueries), kNoiseOfQueries), kDim);
  {
    flat_index exact(where, {.dim = kDim, .metric = metric::l2});
    exact.add(s, on_gpu);
    queries.set_truth(kMostK, exact.search(queries.on_host(0, kQueries), {.k = kMostK}).ids);
  }

  for (const ivf_pq_code& code : kCodes) {
    ivf_pq_index index(where, {.dim = kDim,
                               .metric = metric::l2,
                               .nlist = kLists,
                               .code = code.kind,
                               .pq_dim = code.pq_dim,
                               .pq_bits = code.pq_bits,
                               .rows = kept_rows::device});
    const double train_ms = wall_ms([&] { index.train(on_host); });
    const double add_ms = wall_ms([&] { index.add(s, on_gpu); });
    attempt(out, fmt::format("ivf_pq/{}x{}/build/nlist{}/{}", kRows, kDim, kLists, code.name), [&] {
      ivf_pq_outcome made;
      made.what = {.time = {.median_ms = train_ms + add_ms, .min_ms = train_ms + add_ms, .runs = 1},
                   .bytes = rows.bytes(),
                   .limit_ms = static_cast<double>(rows.bytes()) / (read_gb_per_s * 1e6)};
      made.fields = {{"train_ms", train_ms}, {"add_ms", add_ms}, {"imbalance", index.lists().imbalance}};
      return made;
    });
    const ivf_pq_bench bench(index, code, gpu, read_gb_per_s);
    for (const ivf_pq_job& job : kJobs)
      attempt(out, bench.work(job), [&] { return bench.on_device(queries, job, limit); });
    attempt(out, bench.work(kHostJob, "host"), [&] { return bench.on_host(queries, kHostJob, limit); });
  }
  limits_report limits;
  limits["read_gb_per_s"]["gpu"] = read_gb_per_s;
  return limits;
}

}  // namespace shortlist::benchmark
