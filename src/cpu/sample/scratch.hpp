// A worker's memory for sampling.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shortlist::cpu {

/// It only grows; nothing in it outlives a row, but that `counts` are all 0 between rows.
class sample_scratch {
 public:
  float* logits(std::int64_t count) { return grown(logits_, count); }
  std::int32_t* counts(std::int64_t count) { return grown(counts_, count); }
  float* maxima(std::int64_t blocks) { return grown(maxima_, blocks); }
  float* ordered(std::int64_t blocks) { return grown(ordered_, blocks); }
  std::uint64_t* tokens(std::int64_t count) { return grown(tokens_, count); }
  float* listed_logits(std::int64_t count) { return grown(listed_logits_, count); }
  std::uint64_t* weights(std::int64_t count) { return grown(weights_, count); }
  std::uint64_t* by_id(std::int64_t count) { return grown(by_id_, count); }
  std::uint64_t* bins(std::int64_t count) { return grown(bins_, count); }
  std::uint64_t* block_sums(std::int64_t blocks) { return grown(block_sums_, blocks); }

  /// Gives all memory back if a call has made it large.
  void forget_if_large() {
    const std::size_t bytes =
        (logits_.capacity() + maxima_.capacity() + ordered_.capacity() + listed_logits_.capacity()) * sizeof(float) +
        counts_.capacity() * sizeof(std::int32_t) +
        (tokens_.capacity() + weights_.capacity() + by_id_.capacity() + bins_.capacity() + block_sums_.capacity()) *
            sizeof(std::uint64_t);
    if (bytes > kKeptBytes) *this = sample_scratch();
  }

 private:
  static constexpr std::size_t kKeptBytes = std::size_t{32} << 20;

  template <class T>
  static T* grown(std::vector<T>& memory, std::int64_t count) {
    if (static_cast<std::int64_t>(memory.size()) < count) memory.resize(static_cast<std::size_t>(count));
    return memory.data();
  }

  std::vector<float> logits_;
  std::vector<std::int32_t> counts_;
  std::vector<float> maxima_;
  std::vector<float> ordered_;
  std::vector<std::uint64_t> tokens_;
  std::vector<float> listed_logits_;
  std::vector<std::uint64_t> weights_;
  std::vector<std::uint64_t> by_id_;
  std::vector<std::uint64_t> bins_;
  std::vector<std::uint64_t> block_sums_;
};

}  // namespace shortlist::cpu
