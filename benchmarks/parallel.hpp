// One piece of work on every core.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace shortlist::benchmark {

inline std::int64_t core_count() { return std::max<std::int64_t>(1, std::thread::hardware_concurrency()); }

/// Calls `work(first, last)` over equal parts of [0, count), one thread a core, and waits.
template <class Work>
void over_cores(std::int64_t count, const Work& work) {
  const std::int64_t parts = std::clamp<std::int64_t>(count, 1, core_count());
  std::vector<std::jthread> threads;
  for (std::int64_t p = 0; p < parts; ++p) {
    threads.emplace_back([&work, first = count * p / parts, last = count * (p + 1) / parts] { work(first, last); });
  }
}

}  // namespace shortlist::benchmark
