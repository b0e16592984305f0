// What the files of sampling's tests share: the fixture that runs a test on each kind of device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "shortlist/device.hpp"

namespace shortlist::conformance {

// A sanitizer makes everything slower, and looks for other faults than a wrong bit: it gets each fourth case.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::size_t kSampleStep = 4;
#else
inline constexpr std::size_t kSampleStep = 1;
#endif

/// Runs on the CPU and on the first GPU; without one, the GPU's half is skipped.
class SampleOnDevice : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::vector<device> all = device::all();
    const auto found =
        std::find_if(all.begin(), all.end(), [](const device& one) { return one.name().starts_with(GetParam()); });
    if (found == all.end()) GTEST_SKIP() << "no GPU";
    where_ = *found;
  }
  device where_ = device::cpu();
};

}  // namespace shortlist::conformance
