// Lists of rows: a coarse search for the nearest centroid, or a flat search where elements are too many for it.
#include <algorithm>

#include "cuda/ivf_pq/assign.hpp"
#include "cuda/ivf_pq/coarse.hpp"
#include "cuda/ivf_pq/coarse_scan.cuh"
#include "cuda/runtime/memory.cuh"

namespace shortlist::cuda {
namespace {

constexpr std::int64_t kRowsAtOnce = 198 * kCoarseScanQueries;  // full rounds of blocks, some 300 MB of scratch

struct assign_scratch final : core::scratch {
  std::int64_t batch = 0;
  device_memory scores;
  device_memory pages;  // of the centroids, as halves
  device_memory search;
  std::unique_ptr<core::scratch> flat;  // if the coarse search does not serve

  std::int64_t bytes() const noexcept override {
    return scores.bytes() + pages.bytes() + search.bytes() + (flat ? flat->bytes() : 0);
  }
  std::int64_t device_allocations() const noexcept override { return flat ? 1 + flat->device_allocations() : 3; }
};

}  // namespace

std::unique_ptr<core::scratch> make_assign_scratch(core::backend& backend, const core::flat_corpus& centroids,
                                                   std::int64_t max_rows, int multiprocessors) {
  auto made = std::make_unique<assign_scratch>();
  made->batch = std::min(max_rows, kRowsAtOnce);
  made->scores = device_memory(made->batch * static_cast<std::int64_t>(sizeof(float)));
  if (has_coarse(centroids.dim, 1)) {
    made->pages = device_memory(coarse_pages_bytes(centroids.dim, centroids.count));
    made->search = device_memory(coarse_search_bytes(centroids.dim, centroids.count, made->batch, 1, multiprocessors));
  } else {
    made->flat = backend.make_scratch({.max_rows = centroids.count, .max_queries = made->batch, .max_k = 1}, 0,
                                      centroids.storage);
  }
  return made;
}

void launch_assign(cudaStream_t stream, core::backend& backend, core::scratch& memory,
                   const core::flat_corpus& centroids, const float* rows, std::int64_t n, std::int64_t* lists,
                   int multiprocessors) {
  auto& scratch = static_cast<assign_scratch&>(memory);
  auto* pages = static_cast<std::byte*>(scratch.pages.get());
  if (!scratch.flat) launch_coarse_pages(stream, centroids, pages);
  for (std::int64_t first = 0; first < n; first += scratch.batch) {
    core::flat_request request{};
    request.queries = rows + first * centroids.dim;
    request.query_stride = centroids.dim;
    request.query_count = std::min(scratch.batch, n - first);
    request.k = 1;
    request.scores = static_cast<float*>(scratch.scores.get());
    request.ids = lists + first;
    if (scratch.flat) {
      backend.flat_search(stream, *scratch.flat, centroids, request);
    } else {
      launch_coarse_search(stream, scratch.search.get(), pages, centroids, request, multiprocessors);
    }
  }
}

}  // namespace shortlist::cuda
