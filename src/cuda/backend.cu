// The CUDA backend: memory, streams and the table of ops of one GPU. Exported to the loader as `shortlist_cuda_entry`.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/backend.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"
#include "cuda/entry.hpp"
#include "cuda/flat/certified_batch.hpp"
#include "cuda/flat/certified_scan.hpp"
#include "cuda/flat/norms.hpp"
#include "cuda/flat/plane.hpp"
#include "cuda/flat/plane_summary.hpp"
#include "cuda/flat/scan.hpp"
#include "cuda/flat/tiles.hpp"
#include "cuda/ivf_pq/ops.hpp"
#include "cuda/runtime/check.cuh"
#include "cuda/runtime/memory.cuh"
#include "cuda/runtime/stream_memory.cuh"
#include "cuda/sample/change_rows.hpp"
#include "cuda/sample/overlay_rows.hpp"
#include "cuda/sample/sample_rows.hpp"
#include "cuda/sample/stream_sample.hpp"
#include "cuda/top_k/block_rows.hpp"
#include "cuda/top_k/bracket_rows.hpp"
#include "cuda/top_k/cluster_rows.hpp"
#include "cuda/top_k/filter_rows.hpp"
#include "cuda/top_k/radix_rows.hpp"
#include "cuda/top_k/resident_rows.hpp"
#include "cuda/top_k/sort_rows.hpp"
#include "cuda/top_k/stop_rows.hpp"
#include "cuda/top_k/stream_rows.hpp"
#include "cuda/top_k/warp_rows.hpp"

namespace shortlist::cuda {
namespace {

constexpr int kMinComputeCapability = 9;                 // the kernels use Hopper's copy engine
constexpr std::int64_t kMappedResultBytes = 256 * 1024;  // larger results are copied down instead of written through
constexpr std::int64_t kQueriesOneByOne = 3;             // through the plane, on GPUs without batches; more take tiles

cudaStream_t native(void* stream) { return static_cast<cudaStream_t>(stream); }

bool stops_early(const core::top_k_request& request) { return request.options.eps || request.options.max_iter; }

core::top_k_request by_column(core::top_k_request request) {
  request.options.sorted = false;
  return request;
}

core::top_k_request exact_of(core::top_k_request request) {
  request.options.eps = {};
  request.options.max_iter = {};
  return by_column(request);
}

/// Scratch of one search: the algorithms' workspaces and, for host searches, staging of queries and results.
struct cuda_scratch final : core::scratch {
  search_limits limits;
  device_memory scan;
  device_memory certified;  // of indexes with a plane
  device_memory certified_batch;
  device_memory tiles;
  device_memory queries;              // [max_queries, max_dim] fp32
  device_memory results;              // ids, then scores, [max_queries, max_k]; only if too large to be mapped
  mapped_memory staged_queries;       // as `queries`
  mapped_memory staged_results;       // as `results`, with the completion flag in front
  std::unique_ptr<scan_graph> graph;  // for host queries
  std::unique_ptr<certified_scan_graph> certified_graph;
  std::uint32_t searches = 0;  // value of the completion flag of the latest search
  std::int64_t allocations = 0;

  std::int64_t bytes() const noexcept override {
    return scan.bytes() + certified.bytes() + certified_batch.bytes() + tiles.bytes() + queries.bytes() +
           results.bytes() + staged_queries.bytes() + staged_results.bytes();
  }
  std::int64_t device_allocations() const noexcept override { return allocations; }
};

// The plan knows what the merge of a scan takes.
static_assert(core::kCertifiedScanMaxK == kScanMaxK);

constexpr std::int64_t kFlagBytes = 64;  // a cache line of its own

class cuda_backend final : public core::backend {
 public:
  explicit cuda_backend(int ordinal) : ordinal_(ordinal) {
    const current_device here(ordinal);
    check(cudaGetDeviceProperties(&properties_, ordinal), "reading the GPU's properties");
    prepare_flat_scan();
    prepare_certified_scan();
    stream_pool();  // cannot be made while a stream is captured
  }

  device where() const noexcept override { return device::cuda(ordinal_); }

  std::string description() const override {
    return std::string(properties_.name) + ", " +
           core::readable_bytes(static_cast<std::int64_t>(properties_.totalGlobalMem)) + ", " +
           std::to_string(properties_.multiProcessorCount) + " multiprocessors";
  }

  std::int64_t row_alignment_bytes() const noexcept override { return 16; }

  void* allocate(std::int64_t bytes) override {
    const current_device here(ordinal_);
    return keep(on_device_, device_memory(bytes), &device_memory::get);
  }

  void* allocate_on_host(std::int64_t bytes) override {
    const current_device here(ordinal_);
    return keep(on_host_, mapped_memory(bytes), &mapped_memory::get);
  }

  void release(void* memory) noexcept override {
    std::unordered_map<void*, device_memory>::node_type from_device;  // freed after the lock is
    std::unordered_map<void*, mapped_memory>::node_type from_host;
    const std::lock_guard lock(mutex_);
    from_device = on_device_.extract(memory);
    from_host = on_host_.extract(memory);
  }

  void zero(void* stream, void* memory, std::int64_t bytes) override {
    const current_device here(ordinal_);
    check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(bytes), native(stream)), "clearing GPU memory");
  }

  void copy_rows(void* stream, core::copy_kind kind, void* to, std::int64_t to_stride_bytes, const void* from,
                 std::int64_t from_stride_bytes, std::int64_t row_bytes, std::int64_t rows) override {
    if (rows == 0 || row_bytes == 0) return;
    const current_device here(ordinal_);
    constexpr cudaMemcpyKind kByAddress = cudaMemcpyDefault;  // an index's rows may lie in host memory
    const bool dense = rows == 1 || (to_stride_bytes == row_bytes && from_stride_bytes == row_bytes);
    const auto width = static_cast<std::size_t>(row_bytes);
    const auto height = static_cast<std::size_t>(rows);
    if (dense)
      check(cudaMemcpyAsync(to, from, width * height, kByAddress, native(stream)), "copying rows");
    else
      check(cudaMemcpy2DAsync(to, static_cast<std::size_t>(to_stride_bytes), from,
                              static_cast<std::size_t>(from_stride_bytes), width, height, kByAddress, native(stream)),
            "copying rows");
    if (kind != core::copy_kind::device_to_device) synchronize(stream);
  }

  void* create_stream() override {
    const current_device here(ordinal_);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
    return stream;
  }

  void destroy_stream(void* stream) noexcept override { cudaStreamDestroy(native(stream)); }

  void synchronize(void* stream) override {
    const current_device here(ordinal_);
    check(cudaStreamSynchronize(native(stream)), "waiting for the GPU");
  }

  void order_after(void* later, void* earlier) override {
    const current_device here(ordinal_);
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
    cudaError_t code = cudaEventRecord(event, native(earlier));
    if (code == cudaSuccess) code = cudaStreamWaitEvent(native(later), event, 0);
    cudaEventDestroy(event);  // freed by the driver once it has passed
    check(code, "ordering two streams");
  }

  void inverse_norms(void* stream, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                     float* inverse_norms) override {
    const current_device here(ordinal_);
    launch_inverse_norms(native(stream), corpus, first, count, inverse_norms);
  }

  std::int64_t plane_block_bytes(std::int64_t dim, metric by, storage kept) const noexcept override {
    return core::fragment_layout(dim, by, kept).block_bytes();
  }

  void write_plane(void* stream, const core::flat_corpus& corpus, std::int64_t first, std::int64_t count,
                   std::byte* plane, core::plane_summary* summary) override {
    const current_device here(ordinal_);
    launch_write_plane(native(stream), corpus, first, count, plane);
    launch_plane_summary(native(stream), corpus, first, count, plane, summary);
  }

  std::unique_ptr<core::scratch> make_scratch(const search_limits& limits, std::int64_t max_dim,
                                              storage kept) override {
    const current_device here(ordinal_);
    const int multiprocessors = properties_.multiProcessorCount;
    auto made = std::make_unique<cuda_scratch>();
    made->limits = limits;
    made->scan = zeroed(scan_workspace_bytes(limits.max_rows, limits.max_k, multiprocessors));
    made->tiles = device_memory(tiles_workspace_bytes(limits));
    made->allocations = 2;
    if (kept != storage::full) {
      made->certified = zeroed(certified_scan_workspace_bytes(limits.max_rows, limits.max_k, multiprocessors));
      made->allocations++;
      if (limits.max_queries >= core::kCertifiedBatchMinQueries && has_batches()) {
        made->certified_batch = zeroed(certified_batch_workspace_bytes(limits));
        made->allocations++;
      }
    }
    if (max_dim > 0) {
      const std::int64_t query_bytes = limits.max_queries * max_dim * static_cast<std::int64_t>(sizeof(float));
      const std::int64_t result_bytes = result_bytes_of(limits.max_queries, limits.max_k);
      made->queries = device_memory(query_bytes);
      made->staged_queries = mapped_memory(query_bytes);
      made->staged_results = mapped_memory(kFlagBytes + result_bytes);
      std::memset(made->staged_results.host<void>(), 0, static_cast<std::size_t>(kFlagBytes));
      made->allocations += 3;
      made->graph = std::make_unique<scan_graph>(made->scan.get(), multiprocessors);
      if (kept != storage::full) {
        made->certified_graph = std::make_unique<certified_scan_graph>(made->certified.get(), multiprocessors);
      }
      if (result_bytes > kMappedResultBytes) {
        made->results = device_memory(result_bytes);
        made->allocations++;
      }
    }
    return made;
  }

  void flat_search(void* stream, core::scratch& memory, const core::flat_corpus& corpus,
                   const core::flat_request& request) override {
    const current_device here(ordinal_);
    run(native(stream), static_cast<cuda_scratch&>(memory), corpus, request);
  }

  void top_k(void* stream, const core::top_k_request& request) override {
    const current_device here(ordinal_);
    const int multiprocessors = properties_.multiProcessorCount;
    switch (core::choose_top_k_algorithm(device_kind::cuda, core::shape_of(request))) {
      case core::top_k_algorithm::warp_rows: return launch_warp_rows(native(stream), request, multiprocessors);
      case core::top_k_algorithm::block_rows: return launch_block_rows(native(stream), request, multiprocessors);
      case core::top_k_algorithm::stop_rows: return launch_stop_rows(native(stream), request, multiprocessors);
      case core::top_k_algorithm::resident_rows: return launch_resident_rows(native(stream), request, multiprocessors);
      case core::top_k_algorithm::filter_rows:
        if (!stops_early(request)) return launch_filter_rows(native(stream), request, multiprocessors);
        launch_stopped_filter_rows(native(stream), by_column(request), multiprocessors);
        if (request.options.sorted) launch_sort_rows(native(stream), request);
        return;
      case core::top_k_algorithm::bracket_rows:
        launch_bracket_rows(native(stream), by_column(request), multiprocessors);
        if (request.options.sorted) launch_sort_rows(native(stream), request);
        return;
      case core::top_k_algorithm::cluster_rows:
        if (!stops_early(request)) return launch_cluster_rows(native(stream), request, multiprocessors);
        return launch_stopped_cluster_rows(native(stream), request, multiprocessors);
      case core::top_k_algorithm::stream_rows:
        if (!stops_early(request)) return launch_stream_rows(native(stream), request, multiprocessors);
        return launch_stopped_stream_rows(native(stream), request, multiprocessors);
      default:
        if (core::follows_exact_search(core::shape_of(request))) {
          top_k(stream, exact_of(request));
          launch_radix_stops(native(stream), request, multiprocessors);
        } else {
          launch_radix_rows(native(stream), request, multiprocessors);
        }
        if (request.options.sorted && !request.out.mask) launch_sort_rows(native(stream), request);
    }
  }

  void sample(void* stream, const core::sample_request& request) override {
    const current_device here(ordinal_);
    if (!changes_rows(request)) return sample_plain(native(stream), request);
    if (sample_algorithm_of(request) == core::sample_algorithm::stream_rows && overlay_serves(request))
      return sample_under_overlay(native(stream), request, properties_.multiProcessorCount);
    sample_changed_rows(native(stream), request, row_kinds::all, properties_.multiProcessorCount,
                        [&](const core::sample_request& plain) { sample_plain(native(stream), plain); });
  }

  core::ivf_pq_ops& ivf_pq() override {
    std::call_once(ivf_pq_made_, [&] { ivf_pq_ = make_ivf_pq_ops(*this, ordinal_); });
    return *ivf_pq_;
  }

  void flat_search_host(void* stream, core::scratch& memory, const core::flat_corpus& corpus,
                        const core::flat_request& request) override {
    const current_device here(ordinal_);
    auto& scratch = static_cast<cuda_scratch&>(memory);
    const cudaStream_t on = native(stream);
    const std::int64_t n = request.query_count;
    const std::int64_t result_bytes = result_bytes_of(n, request.k);
    const std::int64_t id_bytes = n * request.k * static_cast<std::int64_t>(sizeof(std::int64_t));
    const bool mapped = result_bytes <= kMappedResultBytes;
    const core::flat_algorithm algorithm = algorithm_of(corpus, request);
    const bool certified = algorithm == core::flat_algorithm::certified;
    const bool by_parameter = n == 1 && corpus.dim <= kScanParameterDim && algorithm != core::flat_algorithm::tiles;
    const bool counts = certified && request.stats != nullptr;
    const certified_counters before = counts ? counters_of(on, scratch) : certified_counters{};
    core::flat_request there = request;
    if (!by_parameter) {
      auto* staged = scratch.staged_queries.host<float>();
      for (std::int64_t q = 0; q < n; q++)
        std::copy_n(request.queries + q * request.query_stride, corpus.dim, staged + q * corpus.dim);
      check(cudaMemcpyAsync(scratch.queries.get(), staged, static_cast<std::size_t>(n * corpus.dim) * sizeof(float),
                            cudaMemcpyHostToDevice, on),
            "sending queries to the GPU");
      there.queries = static_cast<const float*>(scratch.queries.get());
      there.query_stride = corpus.dim;
    }
    auto* results = mapped ? scratch.staged_results.device<unsigned char>(kFlagBytes)
                           : static_cast<unsigned char*>(scratch.results.get());
    there.ids = reinterpret_cast<std::int64_t*>(results);
    there.scores = reinterpret_cast<float*>(results + id_bytes);
    if (by_parameter) {
      const completion_flag done{scratch.staged_results.device<std::uint32_t>(), ++scratch.searches};
      if (certified) {
        scratch.certified_graph->launch(on, scratch.certified.get(), corpus, there, request.queries, done);
      } else {
        scratch.graph->launch(on, scratch.scan.get(), corpus, there, request.queries, done);
      }
      await(on, scratch.staged_results.host<volatile std::uint32_t>(), done.value);
    } else {
      run(on, scratch, corpus, there);
      if (!mapped)
        check(cudaMemcpyAsync(scratch.staged_results.host<void>(kFlagBytes), results,
                              static_cast<std::size_t>(result_bytes), cudaMemcpyDeviceToHost, on),
              "bringing results from the GPU");
      check(cudaStreamSynchronize(on), "waiting for the search");
    }
    std::memcpy(request.ids, scratch.staged_results.host<void>(kFlagBytes), static_cast<std::size_t>(id_bytes));
    std::memcpy(request.scores, scratch.staged_results.host<void>(kFlagBytes + id_bytes),
                static_cast<std::size_t>(result_bytes - id_bytes));
    if (counts) {
      const certified_counters after = counters_of(on, scratch);
      request.stats->certified_queries += static_cast<std::int64_t>(after.certified_queries - before.certified_queries);
      request.stats->survivors += static_cast<std::int64_t>(after.rescored - before.rescored);
    }
  }

 private:
  core::sample_algorithm sample_algorithm_of(const core::sample_request& request) const {
    const sample_shape shape{.rows = request.logits.rows, .vocab = request.logits.cols, .type = request.logits.type};
    return core::choose_sample_algorithm(device_kind::cuda, shape, sample_work_of(request));
  }

  void sample_plain(cudaStream_t stream, const core::sample_request& request) const {
    const core::sample_algorithm algorithm = sample_algorithm_of(request);
    if (algorithm == core::sample_algorithm::stream_rows)
      return launch_stream_sample(stream, request, row_kinds::all, properties_.multiProcessorCount);
    launch_sample_rows(stream, algorithm, request, properties_.multiProcessorCount);
  }

  static device_memory zeroed(std::int64_t bytes) {
    device_memory made(bytes);
    clear_now(made.get(), made.bytes());
    return made;
  }

  /// What all searches with this scratch have counted so far.
  static certified_counters counters_of(cudaStream_t stream, const cuda_scratch& scratch) {
    certified_counters counted{};
    for (const device_memory* workspace : {&scratch.certified, &scratch.certified_batch}) {
      if (!workspace->get()) continue;
      certified_counters part{};
      check(cudaMemcpyAsync(&part, workspace->get(), sizeof part, cudaMemcpyDeviceToHost, stream),
            "reading the counters of a search");
      check(cudaStreamSynchronize(stream), "reading the counters of a search");
      counted.rescored += part.rescored;
      counted.certified_queries += part.certified_queries;
      counted.full_queries += part.full_queries;
    }
    return counted;
  }

  static std::int64_t result_bytes_of(std::int64_t queries, std::int64_t k) {
    return queries * k * static_cast<std::int64_t>(sizeof(std::int64_t) + sizeof(float));
  }

  core::flat_algorithm algorithm_of(const core::flat_corpus& corpus, const core::flat_request& request) const {
    const search_shape shape = core::shape_of(corpus, request);
    const core::flat_algorithm chosen = core::choose_flat_algorithm(device_kind::cuda, shape, corpus.summary);
    const bool can_scan = request.k <= kScanMaxK && corpus.dim <= kScanMaxDim;
    if (chosen == core::flat_algorithm::certified && core::goes_in_batches(shape) && !has_batches())
      return request.query_count <= kQueriesOneByOne ? chosen : core::flat_algorithm::tiles;
    return can_scan ? chosen : core::flat_algorithm::tiles;  // also where the scan was forced
  }

  void run(cudaStream_t stream, cuda_scratch& scratch, const core::flat_corpus& corpus,
           const core::flat_request& request) {
    switch (algorithm_of(corpus, request)) {
      case core::flat_algorithm::tiles:
        launch_flat_tiles(stream, scratch.tiles.get(), scratch.tiles.bytes(), corpus, request);
        break;
      case core::flat_algorithm::scan:
        for (std::int64_t q = 0; q < request.query_count; q++) {
          launch_flat_scan(stream, scratch.scan.get(), corpus, one_of(request, q), properties_.multiProcessorCount);
        }
        break;
      case core::flat_algorithm::certified: run_certified(stream, scratch, corpus, request); break;
    }
  }

  bool has_batches() const { return has_certified_batch(properties_.major); }

  /// The kernels of certified search, by the number of queries.
  void run_certified(cudaStream_t stream, cuda_scratch& scratch, const core::flat_corpus& corpus,
                     const core::flat_request& request) {
    if (core::goes_in_batches(core::shape_of(corpus, request)) && has_batches()) {
      launch_certified_batch(stream, scratch.certified_batch.get(), scratch.tiles.get(), scratch.tiles.bytes(), corpus,
                             request, properties_.multiProcessorCount);
      return;
    }
    for (std::int64_t q = 0; q < request.query_count; q++) {
      launch_certified_scan(stream, scratch.certified.get(), corpus, one_of(request, q),
                            properties_.multiProcessorCount);
    }
  }

  /// Query q alone.
  static core::flat_request one_of(const core::flat_request& request, std::int64_t q) {
    core::flat_request one = request;
    one.query_count = 1;
    one.queries = request.queries + q * request.query_stride;
    one.scores = request.scores + q * request.k;
    one.ids = request.ids + q * request.k;
    return one;
  }

  /// Owns what the index holds by its address.
  template <class Memory>
  void* keep(std::unordered_map<void*, Memory>& all, Memory made, void* (Memory::*address)() const) {
    void* const data = (made.*address)();
    const std::lock_guard lock(mutex_);
    all.emplace(data, std::move(made));
    return data;
  }

  int ordinal_;
  cudaDeviceProp properties_{};
  std::mutex mutex_;
  std::unordered_map<void*, device_memory> on_device_;
  std::unordered_map<void*, mapped_memory> on_host_;
  std::once_flag ivf_pq_made_;
  std::unique_ptr<core::ivf_pq_ops> ivf_pq_;
};

int device_count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    return 0;
  }
  check(code, "counting GPUs");
  for (int i = 0; i < count; i++) {  // usable are those in front of the first that is too old
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i), "reading the GPU's capability");
    if (major < kMinComputeCapability) return i;
  }
  return count;
}

core::backend& open_backend(int ordinal) {
  static std::mutex mutex;
  static std::vector<std::unique_ptr<cuda_backend>> backends;
  const std::lock_guard lock(mutex);
  if (backends.size() <= static_cast<std::size_t>(ordinal)) backends.resize(static_cast<std::size_t>(ordinal) + 1);
  auto& slot = backends[static_cast<std::size_t>(ordinal)];
  if (!slot) slot = std::make_unique<cuda_backend>(ordinal);
  return *slot;
}

}  // namespace
}  // namespace shortlist::cuda

extern "C" const shortlist::cuda::entry shortlist_cuda_entry = {
    shortlist::cuda::kInterfaceVersion, shortlist::cuda::device_count, shortlist::cuda::open_backend};
