// Read bandwidth of the CPU. See read_speed.hpp.
#include "read_speed.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "parallel.hpp"

// One body, compiled for each width of vector that the machine may have; the loader picks.
#if defined(__x86_64__)
#define SHORTLIST_BENCH_EVERY_WIDTH __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define SHORTLIST_BENCH_EVERY_WIDTH
#endif

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kPrefetchBytes = 8192;  // far enough ahead for DRAM's latency at full speed
constexpr int kTrials = 5;
constexpr double kTrialMs = 20;  // short reads are repeated until a trial takes about this long

using line = std::uint64_t __attribute__((vector_size(kLineBytes)));

SHORTLIST_BENCH_EVERY_WIDTH std::uint64_t read_plain(const std::byte* data, std::int64_t bytes) {
  line folded = {};
  for (std::int64_t at = 0; at + kLineBytes <= bytes; at += kLineBytes) {
    line next;
    std::memcpy(&next, data + at, kLineBytes);
    folded ^= next;
  }
  return folded[0] ^ folded[1] ^ folded[2] ^ folded[3] ^ folded[4] ^ folded[5] ^ folded[6] ^ folded[7];
}

SHORTLIST_BENCH_EVERY_WIDTH std::uint64_t read_prefetching(const std::byte* data, std::int64_t bytes) {
  line folded = {};
  for (std::int64_t at = 0; at + kLineBytes <= bytes; at += kLineBytes) {
    __builtin_prefetch(data + at + kPrefetchBytes);
    line next;
    std::memcpy(&next, data + at, kLineBytes);
    folded ^= next;
  }
  return folded[0] ^ folded[1] ^ folded[2] ^ folded[3] ^ folded[4] ^ folded[5] ^ folded[6] ^ folded[7];
}

using reader = std::uint64_t (*)(const std::byte*, std::int64_t);

/// One trial: every core reads its part `passes` times; milliseconds a pass.
double pass_ms(reader read, const std::byte* data, std::int64_t bytes, std::int64_t passes) {
  using clock = std::chrono::steady_clock;
  std::atomic<std::uint64_t> sink{0};
  clock::time_point start;
  std::barrier ready(core_count(), [&]() noexcept { start = clock::now(); });
  {
    const std::int64_t lines = bytes / kLineBytes;
    std::vector<std::jthread> threads;
    for (std::int64_t t = 0; t < core_count(); ++t) {
      threads.emplace_back([&, first = lines * t / core_count(), last = lines * (t + 1) / core_count()] {
        ready.arrive_and_wait();
        for (std::int64_t p = 0; p < passes; ++p) {
          sink.fetch_xor(read(data + first * kLineBytes, (last - first) * kLineBytes), std::memory_order_relaxed);
        }
      });
    }
  }
  return std::chrono::duration<double, std::milli>(clock::now() - start).count() / static_cast<double>(passes);
}

double best_ms(reader read, const std::byte* data, std::int64_t bytes) {
  double best = pass_ms(read, data, bytes, 1);
  const auto passes = static_cast<std::int64_t>(std::clamp(kTrialMs / best, 1.0, 10000.0));
  for (int t = 0; t < kTrials; ++t) best = std::min(best, pass_ms(read, data, bytes, passes));
  return best;
}

}  // namespace

double cpu_read_ms(const void* data, std::int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  return std::min(best_ms(read_plain, from, bytes), best_ms(read_prefetching, from, bytes));
}

}  // namespace shortlist::benchmark
