// Lists of a batch of queries: estimates of all centroids' scores, then the scores of those that may be among the best.
//
// Steps: one pass of multiply-adds over the centroids -> a limit that nprobe groups' least estimates keep -> the few
// below it -> the nprobe-th -> scores, to the bit, of those within the bound of it.
#include "cpu/ivf_pq/probe.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "core/order.hpp"
#include "core/score.hpp"
#include "cpu/flat/kernels.hpp"
#include "cpu/flat/scratch.hpp"
#include "cpu/ivf_pq/bounds.hpp"

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

  probe_memory(std::int64_t count, std::int64_t dim, std::byte* memory)
      : lists(round_up(count, kCentroidBlock)),
        estimates(reinterpret_cast<float*>(memory)),
        some(estimates + kProbeQueries * lists),
        below(reinterpret_cast<std::uint32_t*>(some + lists)),
        keys(reinterpret_cast<std::uint64_t*>(below + lists)),
        query(reinterpret_cast<float*>(keys + lists)),
        rows(query + padded_dim(dim)) {}
  static std::int64_t bytes(std::int64_t count, std::int64_t dim) {
    const std::int64_t lists = round_up(count, kCentroidBlock);
    return (kProbeQueries + 2) * lists * 4 + lists * 8 + padded_dim(dim) * 4 +
           kScoredRows * round_up(dim * 4, kCacheLineBytes);
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
void score(const core::flat_corpus& centroids, const probe_memory& memory, std::int64_t found) {
  const auto kind = centroids.metric == metric::l2 ? sum_kind::l2 : sum_kind::dot;
  const auto row_sums = current_flat_kernels().row_sums[kFloat][static_cast<std::size_t>(kind)];
  const std::int64_t stride = round_up(centroids.dim * 4, kCacheLineBytes);
  for (std::int64_t first = 0; first < found; first += kScoredRows) {
    const std::int64_t count = std::min(kScoredRows, found - first);
    auto* rows = reinterpret_cast<std::byte*>(memory.rows);
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(rows + i * stride,
                  static_cast<const std::byte*>(centroids.rows) + memory.below[first + i] * centroids.row_stride_bytes,
                  static_cast<std::size_t>(stride));
    }
    float sums[kScoredRows + kSumsSlack];
    row_sums(memory.query, {rows, stride, count}, centroids.dim, sums);
    for (std::int64_t i = 0; i < count; ++i) {
      memory.keys[first + i] = core::row_key(core::score_key(sums[i], centroids.metric), memory.below[first + i]);
    }
  }
}

/// How far a centroid's score, oriented, may be from its estimate and what all have in common; infinity if nothing is
/// known.
double bound_of(const coarse_lists& centroids, const float* query) {
  const std::int64_t dim = centroids.corpus.dim;
  const double norm = std::sqrt(squared_norm_of(query, dim));
  const double both = norm + centroids.largest;
  const double scale = centroids.corpus.metric == metric::l2 ? both * both : norm * centroids.largest;
  if (!(scale <= kMostCertain && norm <= kMostCertain)) return std::numeric_limits<double>::infinity();
  return kRounding * (3.0 * static_cast<double>(dim) + kOfTheRest) * scale +
         static_cast<double>(dim + kCacheLineBytes) * kUnderflow * (1.0 + norm);
}

}  // namespace

std::int64_t coarse_lists::bytes(std::int64_t count, std::int64_t dim) {
  return kCacheLineBytes + round_up(count, kCentroidBlock) * (dim + 1) * 4;
}

void coarse_lists::write(const core::flat_corpus& corpus, std::byte* to) {
  const std::int64_t dim = corpus.dim;
  const std::int64_t padded = round_up(corpus.count, kCentroidBlock);
  auto* elements = reinterpret_cast<float*>(to + kCacheLineBytes);
  float* offsets = elements + padded * dim;
  std::fill(elements, offsets, 0.0f);
  std::fill_n(offsets, padded, std::numeric_limits<float>::infinity());
  double largest = 0.0;
  for (std::int64_t list = 0; list < corpus.count; ++list) {
    const auto* centroid =
        reinterpret_cast<const float*>(static_cast<const std::byte*>(corpus.rows) + list * corpus.row_stride_bytes);
    float* lane = elements + list / kCentroidBlock * kCentroidBlock * dim + list % kCentroidBlock;
    for (std::int64_t i = 0; i < dim; ++i) lane[i * kCentroidBlock] = centroid[i];
    const double squares = squared_norm_of(centroid, dim);
    offsets[list] = corpus.metric == metric::l2 ? static_cast<float>(squares) : 0.0f;
    if (!(std::sqrt(squares) <= largest)) largest = std::sqrt(squares);  // NaN stays
  }
  *reinterpret_cast<double*>(to) = largest;
}

coarse_lists::coarse_lists(const core::flat_corpus& of, const std::byte* from)
    : corpus(of), largest(*reinterpret_cast<const double*>(from)) {
  lanes.blocks = divide_up(of.count, kCentroidBlock);
  lanes.dim = of.dim;
  lanes.elements = reinterpret_cast<const float*>(from + kCacheLineBytes);
  lanes.offsets = lanes.elements + lanes.blocks * kCentroidBlock * of.dim;
}

bool probes_by_estimates(const core::flat_corpus& centroids, std::int64_t queries) {
  return queries >= kCoarseQueries && centroids.count >= kMinLists && centroids.metric != metric::cosine;
}

std::int64_t probe_bytes(std::int64_t count, std::int64_t dim) {
  return round_up(probe_memory::bytes(count, dim), kCacheLineBytes);
}

bool probe_by_estimates(const coarse_lists& centroids, const float* queries, std::int64_t stride, std::int64_t count,
                        std::int64_t nprobe, std::byte* memory, float* scores, std::int64_t* lists) {
  double bounds[kProbeQueries];
  for (std::int64_t q = 0; q < count; ++q) {
    bounds[q] = bound_of(centroids, queries + q * stride);
    if (bounds[q] == std::numeric_limits<double>::infinity()) return false;
  }
  const core::flat_corpus& corpus = centroids.corpus;
  const ivf_pq_kernels& kernels = current_ivf_pq_kernels();
  const probe_memory own(corpus.count, corpus.dim, memory);
  const float factor = corpus.metric == metric::l2 ? -2.0f : -1.0f;
  for (std::int64_t block = 0; block < centroids.lanes.blocks; ++block) {
    for (std::int64_t q = 0; q < count; q += kCoarseQueries) {
      kernels.coarse_estimates(centroids.lanes, block, queries + q * stride, stride,
                               std::min(kCoarseQueries, count - q), factor, own.estimates + q * own.lists, own.lists);
    }
  }
  std::fill(own.query + corpus.dim, own.query + padded_dim(corpus.dim), core::kQueryPadding);
  for (std::int64_t q = 0; q < count; ++q) {
    const std::int64_t found = select(kernels, own, own.estimates + q * own.lists, nprobe, bounds[q]);
    if (found == 1 && scores == nullptr) {
      lists[q] = own.below[0];
      continue;
    }
    std::copy_n(queries + q * stride, corpus.dim, own.query);
    score(corpus, own, found);
    std::partial_sort(own.keys, own.keys + nprobe, own.keys + found, std::greater<>());
    for (std::int64_t n = 0; n < nprobe; ++n) {
      if (scores != nullptr) scores[q * nprobe + n] = core::score_from_key(core::key_of(own.keys[n]), corpus.metric);
      lists[q * nprobe + n] = core::position_of(own.keys[n]);
    }
  }
  return true;
}

}  // namespace shortlist::cpu
