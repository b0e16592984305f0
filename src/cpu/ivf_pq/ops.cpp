// IVF-PQ on the CPU: the table of its ops.
#include "cpu/ivf_pq/ops.hpp"

#include "cpu/ivf_pq/filter.hpp"
#include "cpu/ivf_pq/layout.hpp"
#include "cpu/ivf_pq/parts.hpp"

namespace shortlist::cpu {
namespace {

class ops final : public core::ivf_pq_ops {
 public:
  std::int64_t prepared_bytes(const core::ivf_pq_shape& shape) const noexcept override {
    return prepared_model::bytes(shape);
  }
  void prepare(void*, const core::ivf_pq_model& model, std::byte* prepared) override {
    prepared_model::write(model, prepared);
  }

  std::unique_ptr<core::scratch> make_assign_scratch(const core::flat_corpus& centroids,
                                                     std::int64_t max_rows) override {
    return cpu::make_assign_scratch(centroids, max_rows);
  }
  void assign(void*, core::scratch& memory, const core::flat_corpus& centroids, const float* rows, std::int64_t n,
              std::int64_t* lists) override {
    cpu::assign(memory, centroids, rows, n, lists);
  }

  std::vector<std::int64_t> rows_not_finite(void*, const any_matrix_view& rows, std::int64_t limit) override {
    return cpu::rows_not_finite(rows, limit);
  }
  void take_rows(void*, metric by, const float* rotation, const any_matrix_view& rows, float* out) override {
    cpu::take_rows(by, rotation, rows, out);
  }
  void residuals(void*, const core::ivf_pq_shape& shape, const float* rows, std::int64_t n, const std::int64_t* lists,
                 const float* centroids, std::int64_t centroid_stride, float* out) override {
    cpu::residuals(shape, rows, n, lists, centroids, centroid_stride, out);
  }
  void encode(void*, const core::ivf_pq_shape& shape, const float* codebook, const float* residuals, std::int64_t n,
              std::uint8_t* codes) override {
    cpu::encode(shape, codebook, residuals, n, codes);
  }

  void add_to_means(void*, const float* rows, std::int64_t n, std::int64_t dim, const std::int64_t* group_of, int scale,
                    std::int64_t* sums, std::int64_t* counts) override {
    cpu::add_to_means(rows, n, dim, group_of, scale, sums, counts);
  }
  void add_to_codewords(void*, const core::ivf_pq_shape& shape, const float* residuals, std::int64_t n,
                        const std::uint8_t* codes, int scale, std::int64_t* sums, std::int64_t* counts) override {
    cpu::add_to_codewords(shape, residuals, n, codes, scale, sums, counts);
  }

  std::int64_t page_bytes(const core::ivf_pq_shape& shape) const noexcept override {
    return page_layout(shape).bytes();
  }
  void clear_pages(void*, const core::ivf_pq_shape& shape, std::byte* pages, std::int64_t first,
                   std::int64_t count) override {
    cpu::clear_pages(shape, pages, first, count);
  }
  void place_rows(void*, const std::int64_t* lists, std::int64_t n, std::int64_t nlist, std::uint32_t* counts,
                  std::uint32_t* places) override {
    cpu::place_rows(lists, n, nlist, counts, places);
  }
  void write_rows(void*, const core::ivf_pq_model& model, const core::ivf_pq_lists& to,
                  const std::uint32_t* sizes_before, const std::int64_t* lists, const std::uint32_t* places,
                  const std::uint8_t* codes, std::int64_t n, std::int64_t first_position,
                  const std::uint32_t* positions) override {
    cpu::write_rows(model, to, sizes_before, lists, places, codes, n, first_position, positions);
  }
  void read_rows(void*, const core::ivf_pq_shape& shape, const core::ivf_pq_lists& lists,
                 const std::int64_t* list_starts, std::int64_t first, std::int64_t n, std::uint8_t* codes,
                 std::uint32_t* positions) override {
    cpu::read_rows(shape, lists, list_starts, first, n, codes, positions);
  }

  std::unique_ptr<core::scratch> make_scratch(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                                              const core::ivf_pq_limits& limits) override {
    return make_ivf_pq_scratch(model, lists, limits);
  }
  void search(void*, core::scratch& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
              const core::ivf_pq_request& request) override {
    ivf_pq_search(memory, model, lists, request);
  }
  void search_host(void* stream, core::scratch& memory, const core::ivf_pq_model& model,
                   const core::ivf_pq_lists& lists, const core::ivf_pq_request& request) override {
    search(stream, memory, model, lists, request);  // device memory is host memory here
  }
};

}  // namespace

core::ivf_pq_ops& ivf_pq() {
  static ops the_ops;
  return the_ops;
}

}  // namespace shortlist::cpu
