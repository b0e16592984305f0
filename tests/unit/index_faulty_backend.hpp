// A backend for tests of what an index does when memory runs out, or anything else fails.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "core/ivf_pq.hpp"
#include "shortlist/error.hpp"

namespace shortlist::test {

/// The CPU backend, with a call that fails when its turn comes, and a count of what is allocated and not released.
class faulty_backend final : public core::backend {
 public:
  int calls_before_failure = std::numeric_limits<int>::max();
  int live_allocations = 0;
  std::int64_t largest_allocation = std::numeric_limits<std::int64_t>::max();

  device where() const noexcept override { return real_.where(); }
  std::string description() const override { return real_.description(); }
  std::int64_t row_alignment_bytes() const noexcept override { return real_.row_alignment_bytes(); }
  void* allocate(std::int64_t bytes) override {
    step();
    if (bytes > largest_allocation) throw out_of_memory("larger than this backend allows");
    ++live_allocations;
    return real_.allocate(bytes);
  }
  void* allocate_on_host(std::int64_t bytes) override { return allocate(bytes); }
  void release(void* memory) noexcept override {
    --live_allocations;
    real_.release(memory);
  }
  void zero(void* s, void* memory, std::int64_t bytes) override {
    step();
    real_.zero(s, memory, bytes);
  }
  void copy_rows(void* s, core::copy_kind kind, void* to, std::int64_t to_stride_bytes, const void* from,
                 std::int64_t from_stride_bytes, std::int64_t row_bytes, std::int64_t rows) override {
    step();
    real_.copy_rows(s, kind, to, to_stride_bytes, from, from_stride_bytes, row_bytes, rows);
  }
  void* create_stream() override { return real_.create_stream(); }
  void destroy_stream(void* s) noexcept override { real_.destroy_stream(s); }
  void synchronize(void* s) override {
    step();
    real_.synchronize(s);
  }
  void order_after(void* later, void* earlier) override { real_.order_after(later, earlier); }
  void inverse_norms(void* s, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                     float* norms) override {
    step();
    real_.inverse_norms(s, corpus, first, count, norms);
  }
  std::int64_t plane_block_bytes(std::int64_t dim, metric by, storage kept) const noexcept override {
    return real_.plane_block_bytes(dim, by, kept);
  }
  void write_plane(void* s, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count, std::byte* plane,
                   core::plane_summary* summary) override {
    step();
    real_.write_plane(s, corpus, first, count, plane, summary);
  }
  std::unique_ptr<core::scratch> make_scratch(const search_limits& limits, std::int64_t max_dim,
                                              storage kept) override {
    step();
    return real_.make_scratch(limits, max_dim, kept);
  }
  void flat_search(void* s, core::scratch& memory, const core::flat_corpus& corpus,
                   const core::flat_request& request) override {
    real_.flat_search(s, memory, corpus, request);
  }
  void flat_search_host(void* s, core::scratch& memory, const core::flat_corpus& corpus,
                        const core::flat_request& request) override {
    real_.flat_search_host(s, memory, corpus, request);
  }
  void top_k(void* s, const core::top_k_request& request) override { real_.top_k(s, request); }
  void sample(void* s, const core::sample_request& request) override { real_.sample(s, request); }
  core::ivf_pq_ops& ivf_pq() override { return ivf_pq_; }

 private:
  void step() {
    if (calls_before_failure-- <= 0) throw out_of_memory("the call that was to fail");
  }

  /// The CPU's, each call of which counts.
  class faulty_ops final : public core::ivf_pq_ops {
   public:
    explicit faulty_ops(faulty_backend& owner) : owner_(owner) {}

    std::int64_t prepared_bytes(const core::ivf_pq_shape& shape) const noexcept override {
      return real_.prepared_bytes(shape);
    }
    void prepare(void* s, const core::ivf_pq_model& model, std::byte* prepared) override {
      owner_.step();
      real_.prepare(s, model, prepared);
    }
    std::unique_ptr<core::scratch> make_assign_scratch(const core::flat_corpus& centroids,
                                                       std::int64_t max_rows) override {
      owner_.step();
      return real_.make_assign_scratch(centroids, max_rows);
    }
    void assign(void* s, core::scratch& memory, const core::flat_corpus& centroids, const float* rows, std::int64_t n,
                std::int64_t* lists) override {
      owner_.step();
      real_.assign(s, memory, centroids, rows, n, lists);
    }
    std::vector<std::int64_t> rows_not_finite(void* s, const any_matrix_view& rows, std::int64_t limit) override {
      owner_.step();
      return real_.rows_not_finite(s, rows, limit);
    }
    void take_rows(void* s, metric by, const float* rotation, const any_matrix_view& rows, float* out) override {
      owner_.step();
      real_.take_rows(s, by, rotation, rows, out);
    }
    void residuals(void* s, const core::ivf_pq_shape& shape, const float* rows, std::int64_t n,
                   const std::int64_t* lists, const float* centroids, std::int64_t stride, float* out) override {
      owner_.step();
      real_.residuals(s, shape, rows, n, lists, centroids, stride, out);
    }
    void encode(void* s, const core::ivf_pq_shape& shape, const float* codebook, const float* residuals, std::int64_t n,
                std::uint8_t* codes) override {
      owner_.step();
      real_.encode(s, shape, codebook, residuals, n, codes);
    }
    void add_to_means(void* s, const float* rows, std::int64_t n, std::int64_t dim, const std::int64_t* group_of,
                      int scale, std::int64_t* sums, std::int64_t* counts) override {
      owner_.step();
      real_.add_to_means(s, rows, n, dim, group_of, scale, sums, counts);
    }
    void add_to_codewords(void* s, const core::ivf_pq_shape& shape, const float* residuals, std::int64_t n,
                          const std::uint8_t* codes, int scale, std::int64_t* sums, std::int64_t* counts) override {
      owner_.step();
      real_.add_to_codewords(s, shape, residuals, n, codes, scale, sums, counts);
    }
    std::int64_t page_bytes(const core::ivf_pq_shape& shape) const noexcept override { return real_.page_bytes(shape); }
    void clear_pages(void* s, const core::ivf_pq_shape& shape, std::byte* pages, std::int64_t first,
                     std::int64_t count) override {
      owner_.step();
      real_.clear_pages(s, shape, pages, first, count);
    }
    void place_rows(void* s, const std::int64_t* lists, std::int64_t n, std::int64_t nlist, std::uint32_t* counts,
                    std::uint32_t* places) override {
      owner_.step();
      real_.place_rows(s, lists, n, nlist, counts, places);
    }
    void write_rows(void* s, const core::ivf_pq_model& model, const core::ivf_pq_lists& to,
                    const std::uint32_t* sizes_before, const std::int64_t* lists, const std::uint32_t* places,
                    const std::uint8_t* codes, std::int64_t n, std::int64_t first_position,
                    const std::uint32_t* positions) override {
      owner_.step();
      real_.write_rows(s, model, to, sizes_before, lists, places, codes, n, first_position, positions);
      owner_.step();  // and when it is done
    }
    void read_rows(void* s, const core::ivf_pq_shape& shape, const core::ivf_pq_lists& lists,
                   const std::int64_t* list_starts, std::int64_t first, std::int64_t n, std::uint8_t* codes,
                   std::uint32_t* positions) override {
      owner_.step();
      real_.read_rows(s, shape, lists, list_starts, first, n, codes, positions);
    }
    std::unique_ptr<core::scratch> make_scratch(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                                                const core::ivf_pq_limits& limits) override {
      owner_.step();
      return real_.make_scratch(model, lists, limits);
    }
    void search(void* s, core::scratch& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                const core::ivf_pq_request& request) override {
      real_.search(s, memory, model, lists, request);
    }
    void search_host(void* s, core::scratch& memory, const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                     const core::ivf_pq_request& request) override {
      real_.search_host(s, memory, model, lists, request);
    }

   private:
    faulty_backend& owner_;
    core::ivf_pq_ops& real_ = core::backend_of(device::cpu()).ivf_pq();
  };

  core::backend& real_ = core::backend_of(device::cpu());
  faulty_ops ivf_pq_{*this};
};

}  // namespace shortlist::test
