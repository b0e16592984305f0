// Times work on a GPU with events and graphs, and measures how fast the GPU reads. See gpu.hpp.
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "gpu.hpp"

namespace shortlist::benchmark {
namespace {

// Longer than the host takes to queue a search, a graph or the few kernels of a peer.
constexpr unsigned long long kWaitNs = 60'000;
constexpr int kThreads = 256;
constexpr int kReadTrials = 11;
constexpr int kReadsPerTrial = 10;           // back to back, so that launching hides behind the read before
constexpr std::int64_t kLongRead = 1 << 30;  // one read takes long enough to need no company

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

__global__ void wait_kernel(unsigned long long nanoseconds) {
  unsigned long long start;
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

__global__ void fill_kernel(uint4* data, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto seed = static_cast<unsigned>(i) * 2654435761u;
    data[i] = {seed, seed ^ 0x9E3779B9u, seed * 747796405u, ~seed};
  }
}

/// Reads [count] once: each thread `Unroll` independent 16-byte loads at a time. The sum is stored in one case of 2^32,
/// which is enough for the compiler to keep the loads.
template <int Unroll>
__global__ void read_kernel(const uint4* data, std::int64_t count, unsigned* sink) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads * Unroll;
  unsigned folded = 0;
  for (std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * kThreads * Unroll; base < count; base += step) {
    uint4 loaded[Unroll];
#pragma unroll
    for (int u = 0; u < Unroll; ++u) {
      const std::int64_t i = base + u * kThreads + threadIdx.x;
      loaded[u] = i < count ? __ldcg(data + i) : uint4{};
    }
#pragma unroll
    for (int u = 0; u < Unroll; ++u) folded ^= loaded[u].x ^ loaded[u].y ^ loaded[u].z ^ loaded[u].w;
  }
  if (folded == 0x5EED5EEDu) *sink = folded;
}

}  // namespace

struct gpu_clock::impl {
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
  uint4* readable = nullptr;
  std::int64_t readable_bytes = 0;
  unsigned* sink = nullptr;
  int processors = 0;

  ~impl() {
    cudaFree(readable);
    cudaFree(sink);
    if (start) cudaEventDestroy(start);
    if (stop) cudaEventDestroy(stop);
    if (stream) cudaStreamDestroy(stream);
  }

  void make_readable(std::int64_t bytes) {
    if (bytes <= readable_bytes) return;
    check(cudaFree(readable), "freeing the buffer of the read kernel");
    readable = nullptr;
    readable_bytes = 0;
    check(cudaMalloc(&readable, static_cast<std::size_t>(bytes)), "allocating the buffer of the read kernel");
    readable_bytes = bytes;
    fill_kernel<<<processors * 8, kThreads, 0, stream>>>(readable, bytes / 16);
    check(cudaGetLastError(), "filling the buffer of the read kernel");
  }

  template <int Unroll>
  double read_once_ms(std::int64_t bytes, std::int64_t blocks, gpu_clock& timer) {
    const int reads = bytes < kLongRead ? kReadsPerTrial : 1;
    const auto queue = [&] {
      for (int r = 0; r < reads; ++r) {
        read_kernel<Unroll><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(readable, bytes / 16, sink);
      }
      check(cudaGetLastError(), "the read kernel");
    };
    std::vector<double> times_ms;
    for (int t = 0; t <= kReadTrials; ++t) {
      const double ms = timer.time_ms(queue) / reads;
      if (t > 0) times_ms.push_back(ms);  // the first one warms up
    }
    std::sort(times_ms.begin(), times_ms.end());
    return times_ms[times_ms.size() / 2];
  }

  /// A grid that fills the GPU once, and one with a block for every piece.
  template <int Unroll>
  double best_read_ms(std::int64_t bytes, gpu_clock& timer) {
    const std::int64_t pieces = std::max<std::int64_t>(1, bytes / (16 * kThreads * Unroll));
    const std::int64_t resident = std::min<std::int64_t>(pieces, std::int64_t{processors} * 2048 / kThreads);
    return std::min(read_once_ms<Unroll>(bytes, resident, timer), read_once_ms<Unroll>(bytes, pieces, timer));
  }
};

std::optional<gpu_facts> find_gpu() {
  int count = 0;
  cudaDeviceProp properties{};
  int version = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return std::nullopt;
  check(cudaGetDeviceProperties(&properties, 0), "reading the properties of GPU 0");
  check(cudaDriverGetVersion(&version), "reading the driver's CUDA version");
  return gpu_facts{.name = properties.name,
                   .cuda = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10),
                   .memory_gb = static_cast<double>(properties.totalGlobalMem) / 1e9};
}

gpu_clock::gpu_clock() : impl_(std::make_unique<impl>()) {
  check(cudaSetDevice(0), "choosing GPU 0");
  check(cudaDeviceGetAttribute(&impl_->processors, cudaDevAttrMultiProcessorCount, 0), "counting multiprocessors");
  check(cudaStreamCreateWithFlags(&impl_->stream, cudaStreamNonBlocking), "creating a stream");
  check(cudaEventCreate(&impl_->start), "creating an event");
  check(cudaEventCreate(&impl_->stop), "creating an event");
  check(cudaMalloc(&impl_->sink, sizeof(unsigned)), "allocating four bytes");
}

gpu_clock::~gpu_clock() = default;

void* gpu_clock::stream() const { return impl_->stream; }

double gpu_clock::time_ms(const std::function<void()>& work) {
  wait_kernel<<<1, 1, 0, impl_->stream>>>(kWaitNs);
  check(cudaEventRecord(impl_->start, impl_->stream), "recording an event");
  work();
  check(cudaEventRecord(impl_->stop, impl_->stream), "recording an event");
  check(cudaEventSynchronize(impl_->stop), "waiting for the timed work");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, impl_->start, impl_->stop), "reading the events");
  return ms;
}

void gpu_clock::copy(void* to, const void* from, std::int64_t bytes) {
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, impl_->stream),
        "copying on the GPU");
}

double gpu_clock::read_ms(std::int64_t bytes) {
  impl_->make_readable(bytes);
  return std::min(impl_->best_read_ms<4>(bytes, *this), impl_->best_read_ms<8>(bytes, *this));
}

struct gpu_clock::graph::impl {
  cudaGraphExec_t executable = nullptr;
  cudaStream_t stream = nullptr;
  ~impl() {
    if (executable) cudaGraphExecDestroy(executable);
  }
};

gpu_clock::graph::graph(std::unique_ptr<impl> p) : impl_(std::move(p)) {}
gpu_clock::graph::graph(graph&&) noexcept = default;
gpu_clock::graph::~graph() = default;

void gpu_clock::graph::replay() const { check(cudaGraphLaunch(impl_->executable, impl_->stream), "replaying a graph"); }

gpu_clock::graph gpu_clock::capture(const std::function<void()>& work) {
  auto made = std::make_unique<graph::impl>();
  made->stream = impl_->stream;
  cudaGraph_t captured = nullptr;
  check(cudaStreamBeginCapture(impl_->stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(impl_->stream, &captured);
    if (captured) cudaGraphDestroy(captured);
    throw;
  }
  check(cudaStreamEndCapture(impl_->stream, &captured), "ending a capture");
  const cudaError_t status = cudaGraphInstantiate(&made->executable, captured, 0);
  cudaGraphDestroy(captured);
  check(status, "instantiating a graph");
  return graph(std::move(made));
}

}  // namespace shortlist::benchmark
