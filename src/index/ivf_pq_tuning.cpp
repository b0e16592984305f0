// How to choose an IVF-PQ index.
#include "shortlist/ivf_pq_tuning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_set>

#include "core/message.hpp"
#include "core/order.hpp"
#include "index/checks.hpp"
#include "shortlist/error.hpp"

namespace shortlist {
namespace {

// ---- suggest

// Of a page of codes, beside them: the row's position.
constexpr std::int64_t kPositionBytes = sizeof(std::uint32_t);
// Lists of 1/4 sqrt(rows) rows: finding them costs a query about as much as looking at some tens of them.
constexpr double kListsPerRoot = 4.0;
constexpr std::int64_t kMostLists = std::int64_t{1} << 17;
// Fewer elements a byte than two find little more, more than sixteen find hardly anything.
constexpr std::int64_t kLeastPieceDim = 2, kMostPieceDim = 16;

/// Rules of thumb: at so many probed lists of 8,192 the true neighbours are in them with this recall, and with so many
/// candidates for each of the k they survive the codes.
struct recall_rule {
  double recall;
  std::int64_t nprobe;
  std::int64_t refine_ratio;
};
constexpr recall_rule kRecallRules[] = {{0.70, 8, 0},  {0.80, 16, 0}, {0.90, 16, 2},  {0.95, 32, 2},
                                        {0.98, 48, 4}, {0.99, 64, 4}, {0.995, 96, 8}, {1.0, 256, 16}};
constexpr double kRuleLists = 8192.0;

std::int64_t lists_for(std::int64_t rows) {
  const double wanted = kListsPerRoot * std::sqrt(static_cast<double>(rows));
  std::int64_t lists = 1;
  while (lists < kMostLists && static_cast<double>(2 * lists) <= wanted) lists *= 2;
  return std::min(lists, rows);
}

/// Of a row on the device: its code and its position.
std::int64_t coded_bytes(std::int64_t pq_dim, std::int64_t pq_bits) {
  constexpr std::int64_t kByteBits = 8;
  return (pq_dim * pq_bits + kByteBits - 1) / kByteBits + kPositionBytes;
}
std::int64_t code_bytes(std::int64_t dim, std::int64_t piece_dim) {
  return coded_bytes((dim + piece_dim - 1) / piece_dim, ivf_pq_options{}.pq_bits);
}

/// What a query reads of `nprobe` mean lists.
std::int64_t probed_bytes(std::int64_t rows, std::int64_t nlist, std::int64_t nprobe, std::int64_t row_bytes) {
  const double mean_list = static_cast<double>(rows) / static_cast<double>(nlist);
  return static_cast<std::int64_t>(static_cast<double>(nprobe) * mean_list * static_cast<double>(row_bytes));
}

void check_need(const ivf_pq_need& need) {
  index::check_options({.dim = need.dim, .type = need.type});
  if (need.rows < 1 || need.rows > core::kMaxRows) {
    core::throw_invalid("need.rows", need.rows, fmt::format("1 to {}", core::kMaxRows));
  }
  if (!(need.recall > 0.0 && need.recall < 1.0)) {
    core::throw_invalid("need.recall", fmt::format("{}", need.recall), "above 0 and below 1");
  }
  if (!(need.read_bytes_per_second > 0.0)) {
    core::throw_invalid("need.read_bytes_per_second", fmt::format("{}", need.read_bytes_per_second), "above 0");
  }
  const std::int64_t least = need.rows * code_bytes(need.dim, std::min(kMostPieceDim, need.dim));
  if (need.memory_bytes < least) {
    core::throw_invalid("need.memory_bytes", need.memory_bytes,
                        fmt::format("{} or more, for the smallest codes of {} rows", least, need.rows));
  }
}

// ---- tune

/// See tune_point.
std::int64_t model_bytes(const ivf_pq_index& index, const ivf_pq_search_options& search) {
  const ivf_pq_options& options = index.options();
  const std::int64_t refined = search.refine_ratio * search.k * options.dim * size_bytes(options.type);
  return probed_bytes(index.rows(), options.nlist, search.nprobe, coded_bytes(options.pq_dim, options.pq_bits)) +
         refined;
}

constexpr int kTimedRuns = 3;
constexpr std::int64_t kRefineRatios[] = {0, 1, 2, 4, 8, 16, 32};
// nprobe that are tried: all up to here, then so many an octave.
constexpr std::int64_t kEveryProbe = 16;
constexpr int kProbesPerOctave = 8;

class measurer {
 public:
  measurer(const ivf_pq_index& index, const any_matrix_view& queries, const tune_options& options)
      : index_(index), queries_(queries), options_(options), truth_(options.truth) {
    check();
    if (truth_.data) return;
    exact_ = index.search_kept_rows(queries, {.k = options.k});
    truth_ = {exact_.ids.data(), exact_.queries, exact_.k};
  }

  tune_point measure(std::int64_t nprobe, std::int64_t refine_ratio) const {
    const ivf_pq_search_options search = {.k = options_.k, .nprobe = nprobe, .refine_ratio = refine_ratio};
    const ivf_pq_result found = index_.search(queries_, search);  // warms caches and scratch up
    double seconds = std::numeric_limits<double>::infinity();
    for (int run = 0; run < kTimedRuns; ++run) {
      const auto start = std::chrono::steady_clock::now();
      index_.search(queries_, search);
      seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    const tune_point point = {.nprobe = nprobe,
                              .refine_ratio = refine_ratio,
                              .recall = recall_of({found.ids.data(), found.queries, found.k}, truth_, options_.k),
                              .queries_per_second = static_cast<double>(queries_.rows) / seconds,
                              .bytes_per_query = model_bytes(index_, search)};
    if (options_.progress && options_.progress(point) == proceed::no) throw cancelled("tuning was cancelled");
    return point;
  }

 private:
  void check() const {
    if (options_.k < 1) core::throw_invalid("options.k", options_.k, "1 or more");
    if (!(options_.recall > 0.0 && options_.recall <= 1.0)) {
      core::throw_invalid("options.recall", fmt::format("{}", options_.recall), "above 0, up to 1");
    }
    if (queries_.rows < 1) core::throw_invalid("queries.rows", queries_.rows, "1 or more");
    if (index_.rows() == 0) core::throw_invalid("index", "one without rows", "one that holds some");
    if (!truth_.data) return;
    if (truth_.rows != queries_.rows) {
      core::throw_invalid("options.truth.rows", truth_.rows, fmt::format("{}, the queries", queries_.rows));
    }
    if (truth_.cols < options_.k) {
      core::throw_invalid("options.truth.cols", truth_.cols, fmt::format("{} or more, k", options_.k));
    }
  }

  const ivf_pq_index& index_;
  const any_matrix_view& queries_;
  const tune_options& options_;
  matrix_view<const std::int64_t> truth_;
  search_result exact_;
};

std::vector<std::int64_t> probes_to_try(std::int64_t nlist) {
  std::vector<std::int64_t> probes;
  for (std::int64_t n = 1; n < std::min(nlist, kEveryProbe); ++n) probes.push_back(n);
  for (int step = 0;; ++step) {
    const double n = static_cast<double>(kEveryProbe) * std::exp2(static_cast<double>(step) / kProbesPerOctave);
    if (n >= static_cast<double>(nlist)) break;
    probes.push_back(static_cast<std::int64_t>(n));
  }
  probes.push_back(nlist);
  return probes;
}

}  // namespace

ivf_pq_suggestion suggest(const ivf_pq_need& need) {
  check_need(need);
  ivf_pq_suggestion made;
  made.options.dim = need.dim;
  made.options.type = need.type;
  made.options.nlist = lists_for(need.rows);
  std::int64_t piece_dim = std::min(kLeastPieceDim, need.dim);
  while (need.rows * code_bytes(need.dim, piece_dim) > need.memory_bytes) ++piece_dim;
  made.options.pq_dim = (need.dim + piece_dim - 1) / piece_dim;
  made.device_bytes = need.rows * code_bytes(need.dim, piece_dim);

  const recall_rule& rule = *std::find_if(std::begin(kRecallRules), std::end(kRecallRules),
                                          [&](const auto& one) { return need.recall <= one.recall; });
  // The share of the lists falls with their number as their width does: by its root.
  const double scaled =
      static_cast<double>(rule.nprobe) * std::sqrt(static_cast<double>(made.options.nlist) / kRuleLists);
  made.search.nprobe = std::clamp<std::int64_t>(std::llround(scaled), 1, made.options.nlist);
  // Codes of more elements lose more, which more candidates make good.
  const bool coarse = piece_dim > kLeastPieceDim;
  made.search.refine_ratio =
      coarse ? std::max<std::int64_t>(2, rule.refine_ratio * piece_dim / kLeastPieceDim) : rule.refine_ratio;
  if (made.search.refine_ratio > 0) {
    const double rows_bytes = static_cast<double>(need.rows) * static_cast<double>(need.dim * size_bytes(need.type));
    const bool fit = static_cast<double>(made.device_bytes) + rows_bytes <= static_cast<double>(need.memory_bytes);
    made.options.rows = fit ? kept_rows::device : kept_rows::host;
    if (fit) made.device_bytes += static_cast<std::int64_t>(rows_bytes);
  }
  made.bytes_per_query =
      probed_bytes(need.rows, made.options.nlist, made.search.nprobe, code_bytes(need.dim, piece_dim));
  made.predicted_qps =
      need.read_bytes_per_second / static_cast<double>(std::max<std::int64_t>(1, made.bytes_per_query));
  return made;
}

double recall_of(matrix_view<const std::int64_t> found, matrix_view<const std::int64_t> truth, std::int64_t k) {
  if (k < 1) core::throw_invalid("k", k, "1 or more");
  if (found.cols < k) core::throw_invalid("found.cols", found.cols, fmt::format("{} or more, k", k));
  if (truth.cols < k) core::throw_invalid("truth.cols", truth.cols, fmt::format("{} or more, k", k));
  if (found.rows != truth.rows) {
    core::throw_invalid("found.rows", found.rows, fmt::format("{}, those of the truth", truth.rows));
  }
  return index::with_host_memory([&] {
    std::int64_t hits = 0, possible = 0;
    std::unordered_set<std::int64_t> wanted;
    for (std::int64_t query = 0; query < truth.rows; ++query) {
      const std::int64_t* of = truth.data + query * truth.row_stride;
      wanted.clear();
      std::copy_if(of, of + k, std::inserter(wanted, wanted.end()), [](std::int64_t id) { return id >= 0; });
      possible += static_cast<std::int64_t>(wanted.size());
      const std::int64_t* got = found.data + query * found.row_stride;
      hits += std::count_if(got, got + k, [&](std::int64_t id) { return wanted.count(id) > 0; });
    }
    return possible == 0 ? 1.0 : static_cast<double>(hits) / static_cast<double>(possible);
  });
}

tune_result tune(const ivf_pq_index& index, any_matrix_view queries, const tune_options& options) {
  return index::with_host_memory([&] {
    const measurer measured(index, queries, options);
    const std::vector<std::int64_t> probes = probes_to_try(index.options().nlist);
    const bool refines = index.options().rows != kept_rows::none;
    tune_result result;
    const auto better = [&](const tune_point& a, const tune_point& b) {
      const bool a_reaches = a.recall >= options.recall, b_reaches = b.recall >= options.recall;
      if (a_reaches != b_reaches) return a_reaches;
      return a_reaches ? a.queries_per_second > b.queries_per_second : a.recall > b.recall;
    };
    for (const std::int64_t ratio : kRefineRatios) {
      if (ratio > 0 && !refines) break;
      // The least that reaches the recall, by halves: a recall hardly ever falls when more lists are looked at.
      std::size_t low = 0, high = probes.size();
      while (low < high) {
        const std::size_t middle = low + (high - low) / 2;
        result.points.push_back(measured.measure(probes[middle], ratio));
        (result.points.back().recall >= options.recall ? high : low) =
            result.points.back().recall >= options.recall ? middle : middle + 1;
      }
    }
    result.best = *std::min_element(result.points.begin(), result.points.end(), better);
    result.reached = result.best.recall >= options.recall;
    return result;
  });
}

std::vector<tune_point> recall_curve(const ivf_pq_index& index, any_matrix_view queries, const tune_options& options,
                                     std::int64_t refine_ratio) {
  return index::with_host_memory([&] {
    const measurer measured(index, queries, options);
    std::vector<tune_point> points;
    const std::int64_t nlist = index.options().nlist;
    for (std::int64_t nprobe = 1; nprobe < nlist; nprobe *= 2) points.push_back(measured.measure(nprobe, refine_ratio));
    points.push_back(measured.measure(nlist, refine_ratio));
    return points;
  });
}

}  // namespace shortlist
