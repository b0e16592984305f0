// Where a thread reads the units of 16 bytes that its columns of a row are, and in which order.
#pragma once

#include <cstdint>
#include <numeric>

#include "cuda/top_k/mark_bits.cuh"

namespace shortlist::cuda {

/// Where a thread reads its units of any row: bytes from its first column. Eight threads read 128 bytes at once, which
/// lie in other banks each if they begin with another unit wherever the same banks would come again: groups of units
/// are read in turned order, the same for each group, so that a few places serve all of them.
/// @tparam Keeps the places of more than 8 units, too, are kept in registers; where these are short, that costs more
/// than it saves.
template <class Stored, int Values, bool Keeps = false>
class unit_places {
 public:
  using bits = mark_bits<Values>;
  static constexpr unsigned kUnit = 16 / sizeof(Stored);  // values
  static constexpr unsigned kUnits = Values / kUnit;
  static constexpr bits kEvery = ~bits{0} >> (sizeof(bits) * 8 - Values);
  static constexpr unsigned kTogether = 8;  // threads
  static constexpr unsigned kEven = std::gcd(kUnits, kTogether);
  static constexpr unsigned kApart = kTogether / kEven;  // after so many threads come the same banks again
  static constexpr bool kKept = kUnits <= 8 || Keeps;
  static constexpr bool kOneByOne = !kKept && kEven < kTogether;  // worked out for each use, so that less is spilled
  static constexpr unsigned kGroup = kOneByOne ? kUnits : kEven;
  static constexpr unsigned kHalved = kUnits == 8 ? 2 : 1;  // half are kept: the others differ in a bit

  __device__ __forceinline__ explicit unit_places(int rank) : turn_(static_cast<unsigned>(rank) / kApart % kGroup) {
    work_out();
  }
  /// Works them out anew: behind a call, during which they then take no registers.
  __device__ __forceinline__ void renew() {
    asm volatile("" : "+r"(turn_));
    work_out();
  }
  __device__ __forceinline__ unsigned turn() const { return turn_; }
  /// With turn(), once round.
  __device__ __forceinline__ unsigned turn_back() const {
    if constexpr (kOneByOne) {
      return turn_ == 0 ? 0 : kGroup - turn_;
    } else {
      return (kGroup - turn_) % kGroup;
    }
  }
  /// Which of a thread's units, in the order of columns, it reads as its i-th.
  __device__ __forceinline__ unsigned number(unsigned i) const { return number(i, turn_); }
  __device__ __forceinline__ int bytes(unsigned i) const {
    if constexpr (kKept) {
      constexpr unsigned kEach = kGroup / kHalved;
      const int first = bytes_[i % kEach] ^ static_cast<int>(i % kGroup / kEach * kEach * 16);
      return first + static_cast<int>(i / kGroup * kGroup * 16);
    } else if constexpr (kOneByOne) {
      unsigned turn = turn_;
      asm volatile("" : "+r"(turn));  // else all of them are kept, in local memory
      return static_cast<int>(number(i, turn) * 16);
    } else {
      return bytes_from(turn_, i);
    }
  }
  /// @param turn turn(), or a copy of it: what follows from it is worked out anew for each copy
  static __device__ __forceinline__ int bytes_from(unsigned turn, unsigned i) {
    return static_cast<int>(number(i % kGroup, turn) * 16 + i / kGroup * kGroup * 16);
  }

  /// Marks of every group of units, so many units on; those of the last ones come first.
  static __device__ __forceinline__ bits turned(bits marks, unsigned units) {
    if constexpr (kOneByOne) {
      static_assert(Values <= 128);
      if (units == 0) return marks;
      return (marks << (kUnit * units) | marks >> (Values - kUnit * units)) & kEvery;
    } else if constexpr (kGroup > 1) {
      std::uint32_t words[(Values + 31) / 32];
#pragma unroll
      for (int w = 0; w < (Values + 31) / 32; w++) words[w] = word_of(marks, w);
      turn_words(words, kUnit * units);
      return joined_words<bits>(words);
    } else {
      return marks;
    }
  }

 private:
  static __device__ __forceinline__ unsigned number(unsigned i, unsigned turn) {
    const unsigned at = i + turn;
    if constexpr (kOneByOne) {
      return at < kUnits ? at : at - kUnits;
    } else {
      return i / kGroup * kGroup + at % kGroup;
    }
  }

  template <int Words>
  static __device__ __forceinline__ void turn_words(std::uint32_t (&words)[Words], unsigned by) {
    constexpr unsigned kBits = kGroup * kUnit;  // of a group
    if constexpr (kBits == 64) {
#pragma unroll
      for (int w = 0; w < Words; w += 2) {
        const std::uint32_t low = by < 32 ? words[w] : words[w + 1];
        const std::uint32_t high = by < 32 ? words[w + 1] : words[w];
        words[w] = __funnelshift_l(high, low, by);
        words[w + 1] = __funnelshift_l(low, high, by);
      }
    } else if constexpr (kBits == 32) {
#pragma unroll
      for (std::uint32_t& word : words) word = __funnelshift_l(word, word, by);
    } else {
      constexpr std::uint32_t kEach = kBits == 16 ? 0x00010001u : 0x01010101u;
      const std::uint32_t first = ((1u << by) - 1) * kEach;  // where the last ones go
#pragma unroll
      for (std::uint32_t& word : words) word = (word >> (kBits - by) & first) | (word << by & ~first);
    }
  }

  __device__ __forceinline__ void work_out() {
    if constexpr (kKept) {
#pragma unroll
      for (unsigned i = 0; i < kGroup / kHalved; i++) {
        bytes_[i] = static_cast<int>(number(i) * 16);
        if (kGroup > 1) asm("" : "+r"(bytes_[i]));  // else they are worked out anew for every row
      }
    }
  }

  unsigned turn_;
  int bytes_[kKept ? kGroup / kHalved : 1];
};

}  // namespace shortlist::cuda
