// Lists of rows on the CPU: estimates of their distances from all centroids, or a flat search for the one nearest.
#include <algorithm>
#include <atomic>

#include "core/plan.hpp"
#include "cpu/flat/search.hpp"
#include "cpu/ivf_pq/parts.hpp"
#include "cpu/ivf_pq/probe.hpp"
#include "cpu/memory.hpp"

namespace shortlist::cpu {
namespace {

constexpr std::int64_t kRowsAtOnce = 16'384;  // enough to keep the centroids in caches, little memory

class assign_scratch final : public core::scratch {
 public:
  assign_scratch(const core::flat_corpus& centroids, std::int64_t max_rows)
      : batch(std::min(max_rows, kRowsAtOnce)),
        flat(make_flat_scratch({.max_rows = centroids.count, .max_queries = batch, .max_k = 1}, centroids.dim,
                               centroids.storage)) {
    scores.reserve(batch * static_cast<std::int64_t>(sizeof(float)));
    if (!pays(centroids, batch)) return;
    lanes.reserve(coarse_lists::bytes(centroids.count, centroids.dim));
    slots.reserve(core_count() * probe_bytes(centroids.count, centroids.dim));
  }
  std::int64_t bytes() const noexcept override {
    return flat->bytes() + scores.bytes() + lanes.bytes() + slots.bytes();
  }
  std::int64_t device_allocations() const noexcept override { return flat->device_allocations() + 1; }

  /// Centroids are brought into lanes first, which costs as much as some ten rows.
  static bool pays(const core::flat_corpus& centroids, std::int64_t rows) {
    constexpr std::int64_t kMinRows = 256;
    return rows >= kMinRows && probes_by_estimates(centroids, rows);
  }

  std::int64_t batch;
  std::unique_ptr<core::scratch> flat;
  growing_memory scores;
  growing_memory lanes, slots;
};

void assign_flat(assign_scratch& scratch, const core::flat_corpus& centroids, const float* rows, std::int64_t n,
                 std::int64_t* lists) {
  const core::flat_request request = {.queries = rows,
                                      .query_stride = centroids.dim,
                                      .query_count = n,
                                      .k = 1,
                                      .scores = scratch.scores.as<float>(),
                                      .ids = lists};
  flat_search(core::choose_flat_algorithm(device_kind::cpu, core::shape_of(centroids, request), centroids.summary),
              *scratch.flat, centroids, request);
}

/// False if nothing is known of some row's distances; then not all lists were written.
bool assign_by_estimates(assign_scratch& scratch, const core::flat_corpus& centroids, const float* rows, std::int64_t n,
                         std::int64_t* lists) {
  const coarse_lists coarse(centroids, scratch.lanes.as<std::byte>());
  const std::int64_t bytes = probe_bytes(centroids.count, centroids.dim);
  const default_float_environment environment;
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> all{true};
  const std::int64_t parts = divide_up(n, kProbeQueries);
  for_each_slot(static_cast<int>(std::min<std::int64_t>(thread_count(), parts)), [&](int slot) {
    for (std::int64_t row = next.fetch_add(kProbeQueries); row < n; row = next.fetch_add(kProbeQueries)) {
      if (!probe_by_estimates(coarse, rows + row * centroids.dim, centroids.dim, std::min(kProbeQueries, n - row), 1,
                              scratch.slots.as<std::byte>() + slot * bytes, nullptr, lists + row)) {
        all = false;
      }
    }
  });
  return all;
}

}  // namespace

std::unique_ptr<core::scratch> make_assign_scratch(const core::flat_corpus& centroids, std::int64_t max_rows) {
  return std::make_unique<assign_scratch>(centroids, max_rows);
}

void assign(core::scratch& memory, const core::flat_corpus& centroids, const float* rows, std::int64_t n,
            std::int64_t* lists) {
  auto& scratch = static_cast<assign_scratch&>(memory);
  const bool by_estimates = scratch.lanes.bytes() > 0 && assign_scratch::pays(centroids, n);
  if (by_estimates) coarse_lists::write(centroids, scratch.lanes.as<std::byte>());
  for (std::int64_t first = 0; first < n; first += scratch.batch) {
    const std::int64_t count = std::min(scratch.batch, n - first);
    const float* part = rows + first * centroids.dim;
    if (by_estimates && assign_by_estimates(scratch, centroids, part, count, lists + first)) continue;
    assign_flat(scratch, centroids, part, count, lists + first);
  }
}

}  // namespace shortlist::cpu
