// What a benchmark needs of a GPU beyond the library: its read bandwidth, event timing and graphs.
//
// The build takes cuda/gpu.cu, or no_cuda/gpu.cpp, whose only answer is that there is no GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace shortlist::benchmark {

struct gpu_facts {
  std::string name;
  std::string cuda;  ///< the newest CUDA version that the driver serves, "13.0"
  double memory_gb = 0;
};

/// GPU 0, or nothing where this build or this machine has none.
std::optional<gpu_facts> find_gpu();

/// GPU 0's clock, graphs and read kernel, on one stream of its own. Every call throws std::runtime_error on failure.
class gpu_clock {
 public:
  gpu_clock();
  ~gpu_clock();
  gpu_clock(const gpu_clock&) = delete;
  gpu_clock& operator=(const gpu_clock&) = delete;

  /// The `cudaStream_t`, to be wrapped for the library's calls.
  void* stream() const;

  /// GPU milliseconds of what `work` queues on the stream. A waiting kernel goes ahead of the first event, so that all
  /// of it is queued before it starts: the time is the GPU's alone, not the host's.
  double time_ms(const std::function<void()>& work);

  /// Captures what `work` queues on the stream into a graph; `replay` queues it again.
  class graph {
   public:
    ~graph();
    graph(graph&&) noexcept;
    void replay() const;

   private:
    friend class gpu_clock;
    struct impl;
    explicit graph(std::unique_ptr<impl> p);
    std::unique_ptr<impl> impl_;
  };
  graph capture(const std::function<void()>& work);

  /// Queues a copy within the GPU's memory.
  void copy(void* to, const void* from, std::int64_t bytes);

  /// Milliseconds in which a kernel that only reads, with 16-byte loads, reads `bytes` bytes: the median of launches
  /// back to back, so that what fits the L2 cache comes from there. The best of several unrolls and grids.
  double read_ms(std::int64_t bytes);

  /// How fast that kernel reads what no cache holds.
  double read_gb_per_s() {
    constexpr std::int64_t kBytes = std::int64_t{1} << 32;
    return static_cast<double>(kBytes) / (read_ms(kBytes) * 1e6);
  }

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace shortlist::benchmark
