// The best rows that a search has found, by keys that order them completely.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "core/order.hpp"
#include "cpu/ivf_pq/scratch.hpp"

namespace shortlist::cpu {

/// Cut back to `wanted` rows when they fill their room, after which only better ones are let in.
class best_rows {
 public:
  best_rows(std::uint64_t* keys, std::int64_t wanted) : keys_(keys), wanted_(wanted), room_(key_capacity(wanted)) {}

  void add(std::uint64_t key) {
    keys_[size_] = key;
    size_ += key > least_ ? 1 : 0;
    if (size_ == room_) cut();
  }
  void cut() {
    if (size_ < wanted_ || wanted_ == 0) return;
    std::nth_element(keys_, keys_ + wanted_ - 1, keys_ + size_, std::greater<>());
    size_ = wanted_;
    least_ = keys_[wanted_ - 1];
  }
  std::uint64_t* keys() const { return keys_; }
  std::int64_t size() const { return size_; }
  std::int64_t wanted() const { return wanted_; }
  /// After a cut: a key that `wanted` rows reach, or kNoRow if there are fewer.
  std::uint64_t least() const { return least_; }

 private:
  std::uint64_t* keys_;
  std::int64_t wanted_;
  std::int64_t room_;
  std::int64_t size_ = 0;
  std::uint64_t least_ = core::kNoRow;
};

}  // namespace shortlist::cpu
