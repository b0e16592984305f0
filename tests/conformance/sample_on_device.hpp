// What the files of sampling's tests share: the fixture that runs a test on each kind of device.
#pragma once

#include <cstddef>

#include "conformance/either_device.hpp"

namespace shortlist::conformance {

// A sanitizer makes everything slower, and looks for other faults than a wrong bit: it gets each fourth case.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::size_t kSampleStep = 4;
#else
inline constexpr std::size_t kSampleStep = 1;
#endif

class SampleOnDevice : public EitherDevice {};

}  // namespace shortlist::conformance
