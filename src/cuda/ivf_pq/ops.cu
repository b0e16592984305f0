// IVF-PQ on CUDA devices: the table of its ops.
#include "cuda/ivf_pq/assign.hpp"
#include "cuda/ivf_pq/encode.hpp"
#include "cuda/ivf_pq/means.hpp"
#include "cuda/ivf_pq/ops.hpp"
#include "cuda/ivf_pq/page_layout.hpp"
#include "cuda/ivf_pq/pages.hpp"
#include "cuda/ivf_pq/prepared.hpp"
#include "cuda/ivf_pq/rows.hpp"
#include "cuda/ivf_pq/search.hpp"
#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {
namespace {

cudaStream_t native(void* stream) { return static_cast<cudaStream_t>(stream); }

class ivf_pq_on_gpu final : public core::ivf_pq_ops {
 public:
  ivf_pq_on_gpu(core::backend& backend, int ordinal) : backend_(backend), ordinal_(ordinal) {}

  std::int64_t prepared_bytes(const core::ivf_pq_shape& shape) const noexcept override {
    return prepared_model_bytes(shape);
  }
  void prepare(void* stream, const core::ivf_pq_model& model, std::byte* prepared) override {
    const current_device here(ordinal_);
    launch_prepare_model(native(stream), model, prepared);
  }

  std::unique_ptr<core::scratch> make_assign_scratch(const core::flat_corpus& centroids,
                                                     std::int64_t max_rows) override {
    const current_device here(ordinal_);
    return cuda::make_assign_scratch(backend_, centroids, max_rows, multiprocessors());
  }
  void assign(void* stream, core::scratch& memory, const core::flat_corpus& centroids, const float* rows,
              std::int64_t n, std::int64_t* lists) override {
    const current_device here(ordinal_);
    launch_assign(native(stream), backend_, memory, centroids, rows, n, lists, multiprocessors());
  }

  std::vector<std::int64_t> rows_not_finite(void* stream, const any_matrix_view& rows, std::int64_t limit) override {
    const current_device here(ordinal_);
    return find_rows_not_finite(native(stream), rows, limit);
  }

  void take_rows(void* stream, metric by, const float* rotation, const any_matrix_view& rows, float* out) override {
    const current_device here(ordinal_);
    launch_take_rows(native(stream), by, rotation, rows, out);
  }

  void residuals(void* stream, const core::ivf_pq_shape& shape, const float* rows, std::int64_t n,
                 const std::int64_t* lists, const float* centroids, std::int64_t centroid_stride, float* out) override {
    const current_device here(ordinal_);
    launch_residuals(native(stream), shape, rows, n, lists, centroids, centroid_stride, out);
  }

  void encode(void* stream, const core::ivf_pq_shape& shape, const float* codebook, const float* residuals,
              std::int64_t n, std::uint8_t* codes) override {
    const current_device here(ordinal_);
    launch_encode(native(stream), shape, codebook, residuals, n, codes);
  }

  void add_to_means(void* stream, const float* rows, std::int64_t n, std::int64_t dim, const std::int64_t* group_of,
                    int scale, std::int64_t* sums, std::int64_t* counts) override {
    const current_device here(ordinal_);
    launch_add_to_means(native(stream), rows, n, dim, group_of, scale, sums, counts);
  }

  void add_to_codewords(void* stream, const core::ivf_pq_shape& shape, const float* residuals, std::int64_t n,
                        const std::uint8_t* codes, int scale, std::int64_t* sums, std::int64_t* counts) override {
    const current_device here(ordinal_);
    launch_add_to_codewords(native(stream), shape, residuals, n, codes, scale, sums, counts);
  }

  std::int64_t page_bytes(const core::ivf_pq_shape& shape) const noexcept override {
    return page_layout(shape).page_bytes();
  }

  void clear_pages(void* stream, const core::ivf_pq_shape& shape, std::byte* pages, std::int64_t first,
                   std::int64_t count) override {
    const current_device here(ordinal_);
    launch_clear_pages(native(stream), shape, pages, first, count);
  }

  void place_rows(void* stream, const std::int64_t* lists, std::int64_t n, std::int64_t nlist, std::uint32_t* counts,
                  std::uint32_t* places) override {
    const current_device here(ordinal_);
    launch_place_rows(native(stream), lists, n, nlist, counts, places);
  }

  void write_rows(void* stream, const core::ivf_pq_model& model, const core::ivf_pq_lists& to,
                  const std::uint32_t* sizes_before, const std::int64_t* lists, const std::uint32_t* places,
                  const std::uint8_t* codes, std::int64_t n, std::int64_t first_position,
                  const std::uint32_t* positions) override {
    const current_device here(ordinal_);
    launch_write_rows(native(stream), model, to, sizes_before, lists, places, codes, n, first_position, positions);
  }

  void read_rows(void* stream, const core::ivf_pq_shape& shape, const core::ivf_pq_lists& lists,
                 const std::int64_t* list_starts, std::int64_t first, std::int64_t n, std::uint8_t* codes,
                 std::uint32_t* positions) override {
    const current_device here(ordinal_);
    launch_read_rows(native(stream), shape, lists, list_starts, first, n, codes, positions);
  }

  std::unique_ptr<core::scratch> make_scratch(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                                              const core::ivf_pq_limits& limits) override {
    const current_device here(ordinal_);
    return make_search_scratch(backend_, model, lists, limits, multiprocessors());
  }
  void search(void* stream, core::scratch& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
              const core::ivf_pq_request& request) override {
    const current_device here(ordinal_);
    launch_search(native(stream), backend_, *this, memory, model, lists, request, multiprocessors());
  }
  void search_host(void* stream, core::scratch& memory, const core::ivf_pq_model& model,
                   const core::ivf_pq_lists& lists, const core::ivf_pq_request& request) override {
    const current_device here(ordinal_);
    search_from_host(native(stream), backend_, *this, memory, model, lists, request, multiprocessors());
  }

 private:
  int multiprocessors() const {
    int count = 0;
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal_), "reading the GPU's properties");
    return count;
  }

  core::backend& backend_;
  int ordinal_;
};

}  // namespace

std::unique_ptr<core::ivf_pq_ops> make_ivf_pq_ops(core::backend& backend, int ordinal) {
  return std::make_unique<ivf_pq_on_gpu>(backend, ordinal);
}

}  // namespace shortlist::cuda
