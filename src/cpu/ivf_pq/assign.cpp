// Lists of rows on the CPU: a flat search of the centroids for the one nearest.
#include <algorithm>

#include "core/plan.hpp"
#include "cpu/flat/search.hpp"
#include "cpu/ivf_pq/parts.hpp"
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
  }
  std::int64_t bytes() const noexcept override { return flat->bytes() + scores.bytes(); }
  std::int64_t device_allocations() const noexcept override { return flat->device_allocations() + 1; }

  std::int64_t batch;
  std::unique_ptr<core::scratch> flat;
  growing_memory scores;
};

}  // namespace

std::unique_ptr<core::scratch> make_assign_scratch(const core::flat_corpus& centroids, std::int64_t max_rows) {
  return std::make_unique<assign_scratch>(centroids, max_rows);
}

void assign(core::scratch& memory, const core::flat_corpus& centroids, const float* rows, std::int64_t n,
            std::int64_t* lists) {
  auto& scratch = static_cast<assign_scratch&>(memory);
  for (std::int64_t first = 0; first < n; first += scratch.batch) {
    core::flat_request request;
    request.queries = rows + first * centroids.dim;
    request.query_stride = centroids.dim;
    request.query_count = std::min(scratch.batch, n - first);
    request.k = 1;
    request.scores = scratch.scores.as<float>();
    request.ids = lists + first;
    flat_search(core::choose_flat_algorithm(device_kind::cpu, core::shape_of(centroids, request), centroids.summary),
                *scratch.flat, centroids, request);
  }
}

}  // namespace shortlist::cpu
