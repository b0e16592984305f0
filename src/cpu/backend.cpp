// The CPU backend: memory, copies, and the table of ops.
#include "cpu/backend.hpp"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <string>

#include "cpu/flat/certified.hpp"
#include "cpu/flat/search.hpp"
#include "cpu/isa.hpp"
#include "cpu/ivf_pq/ops.hpp"
#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "cpu/sample/sample.hpp"
#include "cpu/top_k/top_k.hpp"

namespace shortlist::cpu {
namespace {

/// Copies below this are done before another core has woken up.
constexpr std::int64_t kSerialCopyBytes = std::int64_t{4} << 20;

/// The value of `key` in /proc/cpuinfo, or `otherwise`.
std::string cpu_info(std::string_view key, std::string_view otherwise) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(key) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return std::string(otherwise);
}

class backend final : public core::backend {
 public:
  device where() const noexcept override { return device::cpu(); }

  std::string description() const override {
    const int cores = core_count();
    return fmt::format("{}, {} core{}, {}", cpu_info("model name", "unnamed processor"), cores, cores == 1 ? "" : "s",
                       to_string(current_isa()));
  }

  std::int64_t row_alignment_bytes() const noexcept override { return kCacheLineBytes; }

  void* allocate(std::int64_t bytes) override { return allocate_aligned(bytes); }
  void* allocate_on_host(std::int64_t bytes) override { return allocate_aligned(bytes); }
  void release(void* memory) noexcept override { release_aligned(memory); }
  void zero(void*, void* memory, std::int64_t bytes) override {
    if (bytes > 0) std::memset(memory, 0, static_cast<std::size_t>(bytes));
  }

  void copy_rows(void*, core::copy_kind, void* to, std::int64_t to_stride_bytes, const void* from,
                 std::int64_t from_stride_bytes, std::int64_t row_bytes, std::int64_t rows) override {
    const auto copy = [=](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        std::memcpy(static_cast<std::byte*>(to) + row * to_stride_bytes,
                    static_cast<const std::byte*>(from) + row * from_stride_bytes, static_cast<std::size_t>(row_bytes));
      }
    };
    if (row_bytes == 0) return;
    const std::int64_t slots = rows * row_bytes <= kSerialCopyBytes ? 1 : std::min<std::int64_t>(thread_count(), rows);
    for_each_slot(static_cast<int>(slots), [&](int slot) { copy(rows * slot / slots, rows * (slot + 1) / slots); });
  }

  void* create_stream() override { return nullptr; }
  void destroy_stream(void*) noexcept override {}
  void synchronize(void*) override {}
  void order_after(void*, void*) override {}

  void inverse_norms(void*, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                     float* inverse_norms) override {
    cpu::inverse_norms(corpus, first, count, inverse_norms);
  }

  std::int64_t plane_block_bytes(std::int64_t dim, metric by, storage) const noexcept override {
    return core::plane_layout(dim, by).block_bytes();
  }
  void write_plane(void*, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count, std::byte* plane,
                   core::plane_summary* summary) override {
    cpu::write_plane(corpus, first, count, plane, *summary);
  }

  std::unique_ptr<core::scratch> make_scratch(const search_limits& limits, std::int64_t max_dim,
                                              storage kept) override {
    return make_flat_scratch(limits, max_dim, kept);
  }

  void flat_search(void*, core::scratch& memory, const core::flat_corpus& corpus,
                   const core::flat_request& request) override {
    const core::flat_algorithm algorithm =
        core::choose_flat_algorithm(device_kind::cpu, core::shape_of(corpus, request), corpus.summary);
    cpu::flat_search(algorithm, memory, corpus, request);
  }
  void flat_search_host(void* stream, core::scratch& memory, const core::flat_corpus& corpus,
                        const core::flat_request& request) override {
    flat_search(stream, memory, corpus, request);  // device memory is host memory here
  }

  void top_k(void*, const core::top_k_request& request) override {
    cpu::top_k(core::choose_top_k_algorithm(device_kind::cpu, core::shape_of(request)), request);
  }

  void sample(void*, const core::sample_request& request) override { cpu::sample(request); }

  core::ivf_pq_ops& ivf_pq() override { return cpu::ivf_pq(); }
};

}  // namespace

core::backend& cpu_backend() {
  static backend the_backend;
  return the_backend;
}

}  // namespace shortlist::cpu
