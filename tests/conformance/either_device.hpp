// Tests that run on the CPU and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "shortlist/device.hpp"

namespace shortlist::conformance {

/// The first device of a kind, "cpu" or "cuda", if there is one.
inline std::optional<device> first_device(std::string_view kind) {
  const std::vector<device> all = device::all();
  const auto found = std::find_if(all.begin(), all.end(), [&](const device& d) { return d.name().starts_with(kind); });
  if (found == all.end()) return std::nullopt;
  return *found;
}

/// Queues the work of all cases on two streams by turns, so many times, the second stream's each time in another order.
template <class Work>
void queue_on_both(const std::vector<std::unique_ptr<Work>> (&of_streams)[2], int rounds) {
  const std::size_t cases = of_streams[0].size();
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < cases; ++i) {
      of_streams[0][i]->queue();
      of_streams[1][(i + static_cast<std::size_t>(round)) % cases]->queue();
    }
  }
}

/// Runs on the first device of the parameter's kind; without a GPU, its half is skipped.
class EitherDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::optional<device> found = first_device(GetParam());
    if (!found) GTEST_SKIP() << "no GPU";
    where_ = *found;
  }
  device where_ = device::cpu();
};

}  // namespace shortlist::conformance
