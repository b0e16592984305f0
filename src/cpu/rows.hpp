// What row-wise work on the CPU shares: rows handed out to workers, and a worker's memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cpu/parallel.hpp"

namespace shortlist::cpu {

/// The rows of a matrix, which workers take from until none is left.
class row_queue {
 public:
  /// @pre rows >= 1, row_bytes >= 1.
  row_queue(std::int64_t rows, std::int64_t row_bytes)
      : rows_(rows), grab_(std::clamp<std::int64_t>(kGrabBytes / row_bytes, 1, rows)) {}

  /// Workers for a matrix with so many values.
  int slots(double values) const {
    constexpr double kSerialValues = 32'768;  // fewer are done before another core has woken up
    const std::int64_t grabs = (rows_ + grab_ - 1) / grab_;
    return static_cast<int>(values <= kSerialValues ? 1 : std::min<std::int64_t>(thread_count(), grabs));
  }

  /// Calls each(row) for rows that no other worker has, until none is left.
  template <class Each>
  void drain(const Each& each) {
    for (std::int64_t first = take(); first < rows_; first = take()) {
      const std::int64_t end = std::min(first + grab_, rows_);
      for (std::int64_t row = first; row < end; ++row) each(row);
    }
  }

 private:
  static constexpr std::int64_t kGrabBytes = std::int64_t{64} << 10;  // of rows that a worker takes at a time

  std::int64_t take() { return next_++ * grab_; }

  std::int64_t rows_;
  std::int64_t grab_;
  std::atomic<std::int64_t> next_ = 0;
};

/// A thread's scratch, which is not kept if a call has made it large.
template <class Scratch>
class thread_scratch {
 public:
  thread_scratch() = default;
  ~thread_scratch() { memory_.forget_if_large(); }
  thread_scratch(const thread_scratch&) = delete;
  thread_scratch& operator=(const thread_scratch&) = delete;
  Scratch& operator*() { return memory_; }

 private:
  static Scratch& of_this_thread() {
    thread_local Scratch memory;
    return memory;
  }
  Scratch& memory_ = of_this_thread();
};

}  // namespace shortlist::cpu
