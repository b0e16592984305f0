// Arrays in a GPU's memory, and data for the parts of IVF-PQ.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "core/ivf_pq.hpp"
#include "shortlist/device.hpp"

namespace shortlist::conformance {

/// The ops of a GPU, on a stream of their own, and those of the CPU.
struct ivf_pq_pair {
  explicit ivf_pq_pair(device where)
      : gpu(where), on(where), ops(core::backend_of(where).ivf_pq()), host(core::backend_of(device::cpu()).ivf_pq()) {}

  device gpu;
  stream on;
  core::ivf_pq_ops& ops;
  core::ivf_pq_ops& host;
};

template <class T>
class gpu_array {
 public:
  gpu_array(const ivf_pq_pair& pair, const std::vector<T>& values)
      : on_(pair.on),
        size_(values.size()),
        memory_(pair.gpu, static_cast<std::int64_t>(std::max<std::size_t>(size_, 1) * sizeof(T))) {
    if (size_ > 0) memory_.upload(on_, values.data());
  }
  T* get() { return static_cast<T*>(memory_.data()); }
  std::vector<T> values() const {
    std::vector<T> read(size_);
    if (size_ > 0) memory_.download(on_, read.data());
    return read;
  }

 private:
  stream on_;
  std::size_t size_;
  buffer memory_;
};

/// Fails with the first place at which two arrays differ in any bit. NaN, from elements of a turned row that overflow,
/// is NaN: its bits reach no code.
template <class T>
void expect_same_bits(const std::vector<T>& found, const std::vector<T>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::memcmp(&found[i], &expected[i], sizeof(T)) == 0) continue;
    if (found[i] != found[i] && expected[i] != expected[i]) continue;
    FAIL() << what << " differs at " << i << ": " << +found[i] << ", expected " << +expected[i];
  }
}

enum class ivf_pq_values { normal, ties, all_equal, huge, denormal, odd };
inline constexpr ivf_pq_values kIvfPqValues[] = {ivf_pq_values::normal,    ivf_pq_values::ties,
                                                 ivf_pq_values::all_equal, ivf_pq_values::huge,
                                                 ivf_pq_values::denormal,  ivf_pq_values::odd};

/// Finite numbers. `ties` has few different ones, `odd` signed zeros and neighbours of powers of two.
inline std::vector<float> make_values(ivf_pq_values kind, std::int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    const float x = normal(random);
    switch (kind) {
      case ivf_pq_values::normal: value = x; break;
      case ivf_pq_values::ties: value = std::round(x * 2.0f) / 4.0f; break;
      case ivf_pq_values::all_equal: value = 0.75f; break;
      case ivf_pq_values::huge: value = x * (random() % 4 == 0 ? 6e37f : 1e19f); break;
      case ivf_pq_values::denormal: value = x * 1e-39f; break;
      case ivf_pq_values::odd:
        value = std::ldexp(random() % 2 ? 1.0f : std::nextafter(1.0f, 0.0f), static_cast<int>(random() % 9) - 4);
        if (random() % 3 == 0) value = 0.0f;
        if (random() % 2) value = -value;
        break;
    }
  }
  return values;
}

}  // namespace shortlist::conformance
