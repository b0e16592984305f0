// IVF-PQ over 10^9 deep-like vectors on one GPU, codes only: vectors are made on the GPU in pieces, added and
// forgotten.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "campaigns.hpp"
#include "deep_like.hpp"
#include "ivf_pq_bench.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kDim = deep_like::kDim;
constexpr std::int64_t kRows = 1'000'000'000;
constexpr std::int64_t kQuickRows = 100'000'000;
constexpr std::int64_t kLists = 32'768;
constexpr std::int64_t kRowsPerList = 64;        // to train with
constexpr std::int64_t kPieceRows = 10'000'000;  // made, added and forgotten at a time
constexpr std::int64_t kQueries = 10'000;
constexpr std::int64_t kQueriesWithTruth = 100;
constexpr std::int64_t kK = 10;
constexpr std::int64_t kNprobes[] = {8, 16, 32, 64, 128};
constexpr ivf_pq_code kCode{"pq48", code_kind::pq, 48, 8};

struct neighbour {
  float score;
  std::int64_t id;
};

/// The k nearest of all rows, from exact searches of one piece after the other.
class exact_truth {
 public:
  explicit exact_truth(std::int64_t queries) : best_(static_cast<std::size_t>(queries)) {}

  void add(const search_result& part, std::int64_t first_row) {
    for (std::size_t q = 0; q < best_.size(); ++q) {
      std::vector<neighbour>& best = best_[q];
      for (std::int64_t i = 0; i < part.k_found; ++i) {
        const std::size_t at = q * static_cast<std::size_t>(part.k) + static_cast<std::size_t>(i);
        best.push_back({part.scores[at], part.ids[at] + first_row});
      }
      std::ranges::stable_sort(best, {}, &neighbour::score);  // of equals the earlier row stays in front
      best.resize(std::min(best.size(), static_cast<std::size_t>(kK)));
    }
  }

  std::vector<std::int64_t> ids() const {
    std::vector<std::int64_t> all;
    for (const std::vector<neighbour>& best : best_)
      for (const neighbour& one : best) all.push_back(one.id);
    return all;
  }

 private:
  std::vector<std::vector<neighbour>> best_;
};

}  // namespace

limits_report run_ivf_pq_billion(results& out, const campaign_settings& settings) {
  if (!find_gpu()) {
    throw std::runtime_error("the campaign ivf_pq_billion needs a GPU, and a shortlist_bench built with CUDA");
  }
  const std::int64_t rows = settings.quick ? kQuickRows : kRows;
  const patience limit =
      settings.quick ? patience{.seconds = 0.05, .fewest = 3} : patience{.seconds = 0.5, .fewest = 7};
  const device where = device::cuda();
  gpu_clock gpu;
  const stream s = stream::wrap(where, gpu.stream());
  const double read_gb_per_s = gpu.read_gb_per_s();
  limits_report limits;
  limits["read_gb_per_s"]["gpu"] = read_gb_per_s;

  const deep_like set;
  const deep_like_on_gpu maker(set);
  ivf_pq_queries queries(where, set.queries(kQueries), kDim);
  buffer piece(where, kPieceRows * kDim * static_cast<std::int64_t>(sizeof(float)));
  const auto make = [&](std::int64_t first, std::int64_t count) {
    maker.write_rows(gpu.stream(), first, count, static_cast<float*>(piece.data()));
    return matrix_view<const float>(static_cast<const float*>(piece.data()), count, kDim);
  };
  const auto for_each_piece = [&](const auto& use) {
    for (std::int64_t first = 0; first < rows; first += kPieceRows) {
      const std::int64_t count = std::min(kPieceRows, rows - first);
      use(make(first, count), first);
    }
  };

  ivf_pq_index index(where, {.dim = kDim,
                             .metric = metric::l2,
                             .nlist = kLists,
                             .code = kCode.kind,
                             .pq_dim = kCode.pq_dim,
                             .pq_bits = kCode.pq_bits});
  double train_ms = 0;
  {
    constexpr std::int64_t kTrainRows = kLists * kRowsPerList;
    std::vector<float> to_train(static_cast<std::size_t>(kTrainRows * kDim));
    set.write_rows(0, kTrainRows, to_train.data());
    train_ms = wall_ms([&] {
      index.train(matrix_view<const float>(to_train.data(), kTrainRows, kDim), {.rows_per_list = kRowsPerList});
    });
  }
  const double make_ms = gpu.time_ms([&] { make(0, kPieceRows); }) * static_cast<double>(rows) / kPieceRows;
  const double add_ms = wall_ms([&] {
    index.reserve(rows);
    for_each_piece([&](const matrix_view<const float>& made, std::int64_t) { index.add(s, made); });
  });
  const double build_ms = train_ms + add_ms;
  const ivf_pq_memory memory = index.memory();
  const list_statistics lists = index.lists();
  const double rows_bytes = static_cast<double>(rows * kDim) * sizeof(float);
  out.add(fmt::format("ivf_pq/{}x{}/build/nlist{}/{}", rows, kDim, kLists, kCode.name),
          {.time = {.median_ms = build_ms, .min_ms = build_ms, .runs = 1},
           .bytes = static_cast<std::int64_t>(rows_bytes),
           .limit_ms = rows_bytes / (read_gb_per_s * 1e6)},
          {{"train_ms", train_ms},
           {"add_ms", add_ms},
           {"of_which_making_rows_ms", make_ms},
           {"codes_gb", static_cast<double>(memory.codes_bytes) / 1e9},
           {"imbalance", lists.imbalance},
           {"largest_list", lists.largest},
           {"empty_lists", lists.empty}});

  exact_truth truth(kQueriesWithTruth);
  for_each_piece([&](const matrix_view<const float>& made, std::int64_t first) {
    flat_index exact(where, {.dim = kDim, .metric = metric::l2});
    exact.add(s, made);
    truth.add(exact.search(queries.on_host(0, kQueriesWithTruth), {.k = kK}), first);
  });
  queries.set_truth(kK, truth.ids());

  const ivf_pq_bench bench(index, kCode, gpu, read_gb_per_s);
  for (const std::int64_t nprobe : kNprobes) {
    const ivf_pq_job job{.queries = kQueries, .k = kK, .nprobe = nprobe};
    const std::string work = bench.work(job);
    if (!out.wants(work)) continue;
    try {
      const ivf_pq_outcome made = bench.on_device(queries, job, limit);
      out.add(work, made.what, made.fields);
    } catch (const std::exception& failure) {
      out.add_wrong(work, failure.what());
    }
  }
  return limits;
}

}  // namespace shortlist::benchmark
