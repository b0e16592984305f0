// Lists of a batch of queries: estimates of all centroids' scores, then the scores of those that may be among the best.
//
// Steps: one pass of multiply-adds over the centroids -> a limit that nprobe groups' least estimates keep -> the few
// below it -> the nprobe-th -> scores, to the bit, of those within the bound of it.
#include "cpu/ivf_pq/probe.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "core/order.hpp"
#include "core/score.hpp"
#include "cpu/flat/kernels.hpp"
#include "cpu/flat/scratch.hpp"
#include "cpu/ivf_pq/filter.hpp"

namespace shortlist::cpu {
namespace {

constexpr auto kFloat = static_cast<std::size_t>(element_type::f32);
/// Fewer lists, or queries, gain nothing.
constexpr std::int64_t kMinLists = 128;
/// Groups of centroids for each list looked for: the more, the fewer are below the limit by chance.
constexpr std::int64_t kGroupsPerProbe = 4;
/// Centroids that are scored together.
constexpr std::int64_t kScoredRows = 16;

/// A slot's memory.
struct probe_memory {
  std::int64_t lists;    // padded to whole blocks
  float* estimates;      // [kProbeQueries, lists]
  float* some;           // [lists] to select from
  std::uint32_t* below;  // [lists]
  std::uint64_t* keys;   // [lists]
  float* query;          // padded
  float* rows;           // [kScoredRows, dim padded]

  probe_memory(const core::ivf_pq_shape& shape, std::byte* memory)
      : lists(round_up(shape.nlist, kCentroidBlock)),
        estimates(reinterpret_cast<float*>(memory)),
        some(estimates + kProbeQueries * lists),
        below(reinterpret_cast<std::uint32_t*>(some + lists)),
        keys(reinterpret_cast<std::uint64_t*>(below + lists)),
        query(reinterpret_cast<float*>(keys + lists)),
        rows(query + padded_dim(shape.dim)) {}
  static std::int64_t bytes(const core::ivf_pq_shape& shape) {
    const std::int64_t lists = round_up(shape.nlist, kCentroidBlock);
    return (kProbeQueries + 2) * lists * 4 + lists * 8 + padded_dim(shape.dim) * 4 +
           kScoredRows * round_up(shape.dim * 4, kCacheLineBytes);
  }
};

/// Numbers of the centroids that may be among the nprobe best, in memory.below.
std::int64_t select(const ivf_pq_kernels& kernels, const probe_memory& memory, const float* estimates,
                    std::int64_t nprobe, double bound) {
  const std::int64_t groups = round_up(kGroupsPerProbe * nprobe, kCentroidBlock);
  float* some = memory.some;
  float limit = std::numeric_limits<float>::max();
  if (groups * 2 <= memory.lists) {
    kernels.least_of_groups(estimates, memory.lists, groups, some);
    std::nth_element(some, some + nprobe - 1, some + groups);
    limit = some[nprobe - 1];
  }
  const std::int64_t found = kernels.numbers_below(estimates, memory.lists, limit, memory.below);
  for (std::int64_t i = 0; i < found; ++i) some[i] = estimates[memory.below[i]];
  std::nth_element(some, some + nprobe - 1, some + found);
  return kernels.numbers_below(estimates, memory.lists, rounded_up(static_cast<double>(some[nprobe - 1]) + 2.0 * bound),
                               memory.below);
}

/// Keys of the centroids in memory.below.
void score(const core::ivf_pq_model& model, const probe_memory& memory, std::int64_t found) {
  const core::flat_corpus& probes = model.probes;
  const auto kind = probes.metric == metric::l2 ? sum_kind::l2 : sum_kind::dot;
  const auto row_sums = current_flat_kernels().row_sums[kFloat][static_cast<std::size_t>(kind)];
  const std::int64_t stride = round_up(model.shape.dim * 4, kCacheLineBytes);
  for (std::int64_t first = 0; first < found; first += kScoredRows) {
    const std::int64_t count = std::min(kScoredRows, found - first);
    auto* rows = reinterpret_cast<std::byte*>(memory.rows);
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(rows + i * stride,
                  static_cast<const std::byte*>(probes.rows) + memory.below[first + i] * probes.row_stride_bytes,
                  static_cast<std::size_t>(stride));
    }
    float sums[kScoredRows + kSumsSlack];
    row_sums(memory.query, {rows, stride, count}, model.shape.dim, sums);
    for (std::int64_t i = 0; i < count; ++i) {
      memory.keys[first + i] = core::row_key(core::score_key(sums[i], probes.metric), memory.below[first + i]);
    }
  }
}

}  // namespace

bool probes_by_estimates(const core::ivf_pq_shape& shape, std::int64_t queries) {
  return queries >= kCoarseQueries && shape.nlist >= kMinLists && shape.metric != metric::cosine;
}

std::int64_t probe_bytes(const core::ivf_pq_shape& shape) {
  return round_up(probe_memory::bytes(shape), kCacheLineBytes);
}

bool probe_by_estimates(const core::ivf_pq_model& model, const float* queries, std::int64_t stride, std::int64_t count,
                        std::int64_t nprobe, std::byte* memory, float* scores, std::int64_t* lists) {
  double bounds[kProbeQueries];
  for (std::int64_t q = 0; q < count; ++q) {
    bounds[q] = coarse_bound(model, queries + q * stride);
    if (bounds[q] == std::numeric_limits<double>::infinity()) return false;
  }
  const core::ivf_pq_shape& shape = model.shape;
  const ivf_pq_kernels& kernels = current_ivf_pq_kernels();
  const probe_memory own(shape, memory);
  const lane_centroids centroids = prepared_model(model).centroids;
  const float factor = shape.metric == metric::l2 ? -2.0f : -1.0f;
  for (std::int64_t block = 0; block < centroids.blocks; ++block) {
    for (std::int64_t q = 0; q < count; q += kCoarseQueries) {
      kernels.coarse_estimates(centroids, block, queries + q * stride, stride, std::min(kCoarseQueries, count - q),
                               factor, own.estimates + q * own.lists, own.lists);
    }
  }
  std::fill(own.query + shape.dim, own.query + padded_dim(shape.dim), core::kQueryPadding);
  for (std::int64_t q = 0; q < count; ++q) {
    const std::int64_t found = select(kernels, own, own.estimates + q * own.lists, nprobe, bounds[q]);
    std::copy_n(queries + q * stride, shape.dim, own.query);
    score(model, own, found);
    std::partial_sort(own.keys, own.keys + nprobe, own.keys + found, std::greater<>());
    for (std::int64_t n = 0; n < nprobe; ++n) {
      scores[q * nprobe + n] = core::score_from_key(core::key_of(own.keys[n]), shape.metric);
      lists[q * nprobe + n] = core::position_of(own.keys[n]);
    }
  }
  return true;
}

}  // namespace shortlist::cpu
