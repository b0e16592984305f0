// Repeats a piece of work and keeps the median and the minimum of its times.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace shortlist::benchmark {

/// How long to repeat: until `seconds` of timed work are done, within [fewest, most] runs.
struct patience {
  double seconds = 0.3;
  std::int64_t fewest = 5;
  std::int64_t most = 2000;
};

struct timing {
  double median_ms = 0;
  double min_ms = 0;
  std::int64_t runs = 0;
};

/// Milliseconds that `work` takes by the wall clock.
template <class Work>
double wall_ms(Work&& work) {
  using clock = std::chrono::steady_clock;
  const auto start = clock::now();
  work();
  return std::chrono::duration<double, std::milli>(clock::now() - start).count();
}

/// Calls `run_ms(i)`, which does run i and returns its milliseconds. The first tenth of the time is warm-up.
template <class Run>
timing repeat(const patience& limit, Run&& run_ms) {
  constexpr double kWarmUpShare = 0.1;
  double warm_ms = 0;
  for (std::int64_t i = 0; i == 0 || (warm_ms < limit.seconds * 1e3 * kWarmUpShare && i < limit.most); ++i) {
    warm_ms += run_ms(i);
  }
  std::vector<double> times_ms;
  double total_ms = 0;
  for (std::int64_t i = 0; i < limit.fewest || (i < limit.most && total_ms < limit.seconds * 1e3); ++i) {
    times_ms.push_back(run_ms(i));
    total_ms += times_ms.back();
  }
  std::sort(times_ms.begin(), times_ms.end());
  return {times_ms[times_ms.size() / 2], times_ms.front(), static_cast<std::int64_t>(times_ms.size())};
}

}  // namespace shortlist::benchmark
