// A build without CUDA: there is no GPU to time.
#include "gpu.hpp"

#include <stdexcept>

#include "deep_like.hpp"

namespace shortlist::benchmark {
namespace {

[[noreturn]] void refuse() { throw std::runtime_error("this shortlist_bench was built without CUDA"); }

}  // namespace

struct gpu_clock::impl {};
struct gpu_clock::graph::impl {};

std::optional<gpu_facts> find_gpu() { return std::nullopt; }

gpu_clock::gpu_clock() { refuse(); }
gpu_clock::~gpu_clock() = default;
void* gpu_clock::stream() const { refuse(); }
double gpu_clock::time_ms(const std::function<void()>&) { refuse(); }
gpu_clock::graph gpu_clock::capture(const std::function<void()>&) { refuse(); }
void gpu_clock::copy(void*, const void*, std::int64_t) { refuse(); }
double gpu_clock::read_ms(std::int64_t) { refuse(); }

gpu_clock::graph::graph(std::unique_ptr<impl> p) : impl_(std::move(p)) {}
gpu_clock::graph::graph(graph&&) noexcept = default;
gpu_clock::graph::~graph() = default;
void gpu_clock::graph::replay() const { refuse(); }

struct deep_like_on_gpu::impl {};
deep_like_on_gpu::deep_like_on_gpu(const deep_like&) { refuse(); }
deep_like_on_gpu::~deep_like_on_gpu() = default;
void deep_like_on_gpu::write_rows(void*, std::int64_t, std::int64_t, float*) const { refuse(); }

}  // namespace shortlist::benchmark
