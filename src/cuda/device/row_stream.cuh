// A row on its way past a cluster's blocks: each has a piece of it, and as much of that at a time as its shared memory
// has room for.
#pragma once

#include <cstdint>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/element.cuh"
#include "cuda/device/score.cuh"
#include "cuda/device/value_pair.cuh"

namespace shortlist::cuda {

constexpr int kFlight = 4;  // rounds that are looked at together

/// A word of values of -inf.
template <class Stored>
constexpr std::uint32_t kLeastWord = sizeof(Stored) == 4                              ? 0xFF800000u
                                     : element_type_of<Stored>() == element_type::f16 ? 0xFC00FC00u
                                                                                      : 0xFF80FF80u;

/// The larger; NaN if either is.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
}

/// The larger of each of two words' 16-bit values: NaN if either is, or passed over.
template <class Stored, bool Nan>
__device__ __forceinline__ std::uint32_t larger_pair(std::uint32_t a, std::uint32_t b) {
  using pair = pair_of<Stored>;
  const auto x = reinterpret_cast<const pair&>(a);
  const auto y = reinterpret_cast<const pair&>(b);
  const pair most = Nan ? __hmax2_nan(x, y) : __hmax2(x, y);
  return reinterpret_cast<const std::uint32_t&>(most);
}

/// The largest of a vector's values: NaN if there is one, or passed over.
template <class Stored, bool Nan>
__device__ __forceinline__ float largest_of(uint4 raw) {
  const auto larger = [](float a, float b) { return Nan ? larger_or_nan(a, b) : fmaxf(a, b); };
  if constexpr (sizeof(Stored) == 4) {
    return larger(larger(__uint_as_float(raw.x), __uint_as_float(raw.y)),
                  larger(__uint_as_float(raw.z), __uint_as_float(raw.w)));
  } else {
    const std::uint32_t two =
        larger_pair<Stored, Nan>(larger_pair<Stored, Nan>(raw.x, raw.y), larger_pair<Stored, Nan>(raw.z, raw.w));
    const float4 wide = quad<element_type_of<Stored>()>::widen(make_uint2(two, two));
    return larger(wide.x, wide.y);
  }
}

/// The largest of the values of vectors, looked at one after the other: NaN if there is one.
template <class Stored>
class running_largest {
 public:
  __device__ __forceinline__ void look(uint4 raw) {
    if constexpr (sizeof(Stored) == 4) {
      most_ = larger_or_nan(most_, largest_of<Stored, true>(raw));
    } else {
      for (const std::uint32_t word : {raw.x, raw.y, raw.z, raw.w}) two_ = larger_pair<Stored, true>(two_, word);
    }
  }
  __device__ __forceinline__ float value() const {
    if constexpr (sizeof(Stored) == 4) return most_;
    return largest_of<Stored, true>(make_uint4(two_, two_, two_, two_));
  }

 private:
  float most_ = core::float_from_bits(0xFF800000u);
  std::uint32_t two_ = kLeastWord<Stored>;  // of 16-bit values: those at even and at odd places
};

/// The least of a vector's values that are numbers.
template <class Stored>
__device__ __forceinline__ float least_of(uint4 raw) {
  if constexpr (sizeof(Stored) == 4) {
    return fminf(fminf(__uint_as_float(raw.x), __uint_as_float(raw.y)),
                 fminf(__uint_as_float(raw.z), __uint_as_float(raw.w)));
  } else {
    using pair = pair_of<Stored>;
    const auto as_pair = [](const std::uint32_t& word) { return reinterpret_cast<const pair&>(word); };
    const pair least = __hmin2(__hmin2(as_pair(raw.x), as_pair(raw.y)), __hmin2(as_pair(raw.z), as_pair(raw.w)));
    const auto two = reinterpret_cast<const std::uint32_t&>(least);
    const float4 wide = quad<element_type_of<Stored>()>::widen(make_uint2(two, two));
    return fminf(wide.x, wide.y);
  }
}

/// A vector's values, widened.
template <class Stored>
__device__ __forceinline__ void widen_values(uint4 raw, float (&x)[16 / sizeof(Stored)]) {
  constexpr int kFours = 4 / sizeof(Stored);
  float4 four[kFours];
  if constexpr (sizeof(Stored) == 4) {
    four[0] = quad<element_type::f32>::widen(raw);
  } else {
    four[0] = quad<element_type_of<Stored>()>::widen(make_uint2(raw.x, raw.y));
    four[1] = quad<element_type_of<Stored>()>::widen(make_uint2(raw.z, raw.w));
  }
#pragma unroll
  for (int f = 0; f < kFours; f++)
    x[4 * f] = four[f].x, x[4 * f + 1] = four[f].y, x[4 * f + 2] = four[f].z, x[4 * f + 3] = four[f].w;
}

/// A block's piece of a row: whole vectors of 16 bytes, a round of them for its threads at a time; and, of the first
/// and last block, the columns beside the vectors, one for a thread.
template <class Stored, int Threads>
struct row_piece {
  static constexpr std::uint32_t kPerVector = 16 / sizeof(Stored);
  const uint4* vectors;
  std::uint32_t count;         // of them
  std::uint32_t head;          // columns before the row's first vector
  std::uint32_t behind;        // the first column behind its last one
  std::uint32_t first_column;  // of the block's vectors
  bool has_edge;
  float edge;
  std::uint32_t edge_column;

  __device__ __forceinline__ row_piece(const Stored* row, std::uint32_t columns, std::uint32_t rank,
                                       std::uint32_t blocks) {
    const auto past = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(row) % 16 / sizeof(Stored));
    head = min(columns, past == 0 ? 0 : kPerVector - past);
    const std::uint32_t all = (columns - head) / kPerVector;
    const std::uint32_t piece = (all + blocks - 1) >> shift_of(blocks);
    const std::uint32_t first = min(rank * piece, all);
    count = min(piece, all - first);
    vectors = reinterpret_cast<const uint4*>(row + head) + first;
    first_column = head + first * kPerVector;
    behind = head + all * kPerVector;
    const bool in_head = rank == 0 && threadIdx.x < head;
    const bool in_tail = rank == blocks - 1 && threadIdx.x >= kPerVector && threadIdx.x - kPerVector < columns - behind;
    has_edge = in_head || in_tail;
    edge_column = in_head ? threadIdx.x : behind + threadIdx.x - kPerVector;
    edge = has_edge ? core::widen(row[edge_column]) : core::float_from_bits(0xFF800000u);
  }

  /// Calls look(raw, first column) for the thread's vectors where they lie.
  template <class Look>
  __device__ __forceinline__ void for_each_in_place(Look look) const {
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < count; i += kFlight * Threads) {
      uint4 raw[kFlight];
#pragma unroll
      for (int v = 0; v < kFlight; v++) {
        if (i + v * Threads < count) raw[v] = load_streaming(vectors + i + v * Threads);
      }
#pragma unroll
      for (int v = 0; v < kFlight; v++) {
        if (i + v * Threads < count) look(raw[v], first_column + (i + v * Threads) * kPerVector);
      }
    }
  }
};

/// The rounds of a piece that are no multiples of a step, in order: there are none where the step is 1.
class other_rounds {
 public:
  __device__ __forceinline__ other_rounds(std::uint32_t step, std::uint32_t rounds)
      : step_(step), next_(step == 1 ? rounds : 1), left_(step - 1) {}
  __device__ __forceinline__ std::uint32_t next() {
    const std::uint32_t round = next_++;
    if (--left_ == 0) {
      next_++;
      left_ = step_ - 1;
    }
    return round;
  }

 private:
  std::uint32_t step_;
  std::uint32_t next_;
  std::uint32_t left_;  // before the next multiple
};

/// A piece on its way through shared memory: rounds from all over the piece come first, the others behind them and
/// wherever those looked at leave room.
template <class Stored, int Threads>
struct row_ring : row_piece<Stored, Threads> {
  using base = row_piece<Stored, Threads>;
  using base::count;
  using base::first_column;
  using base::kPerVector;
  using base::vectors;
  std::uint32_t rounds;
  std::uint32_t step;  // of the first ones
  std::uint32_t others;
  std::uint32_t batches;  // of kFlight rounds that shared memory has room for,
  std::uint32_t first;    // the first ones among them
  std::uint32_t absent;   // a word of values that are not there
  uint4* held;
  std::uint32_t unasked;  // others
  other_rounds asked;

  __device__ __forceinline__ row_ring(const Stored* row, std::uint32_t columns, std::uint32_t rank,
                                      std::uint32_t blocks, uint4* memory, std::uint32_t room, std::uint32_t first_room,
                                      std::uint32_t worst_word)
      : base(row, columns, rank, blocks),
        rounds((count + Threads - 1) / Threads),
        step(max((rounds + first_room * kFlight - 1) / (first_room * kFlight), 1u)),
        others(rounds - (rounds + step - 1) / step),
        batches(room),
        first(first_room),
        absent(worst_word),
        held(memory + threadIdx.x),
        unasked(others),
        asked(step, rounds) {}

  /// Begins to copy as much as there is room for.
  __device__ __forceinline__ void begin() {
    for (std::uint32_t i = 0; i < first * kFlight && i * step * Threads + threadIdx.x < count; i++)
      async_copy_16(shared_address(held + i * Threads), vectors + i * step * Threads + threadIdx.x, true);
    async_commit();
#pragma unroll 1
    for (std::uint32_t batch = first; batch < batches; batch++) copy_others(batch);
  }
  /// Waits until the thread's vectors of the first rounds are there.
  __device__ __forceinline__ void await_first() const { wait(batches - first); }
  /// Calls look(raw, which of the block's vectors) for the thread's vectors of the first rounds.
  template <class Look>
  __device__ __forceinline__ void for_each_first(Look look) const {
    await_first();
#pragma unroll 4
    for (std::uint32_t i = 0; i < first * kFlight; i++) {
      const std::uint32_t vector = i * step * Threads + threadIdx.x;
      if (vector < count) look(held[i * Threads], vector);
    }
  }
  /// Calls mark(raw, which of the block's vectors) for all of the thread's vectors: bits of the values that are wanted.
  /// Then room(how many) for those of a batch, and take(room + i, x, column) for each. Vectors that are not there are
  /// passed as `absent`, and with a number from `count` on.
  template <class Mark, class Room, class Take>
  __device__ __forceinline__ void for_each_vector(Mark mark, Room room, Take take) {
    static_assert(kFlight * kPerVector <= 32);
    const std::uint32_t all = first + (others + kFlight - 1) / kFlight;
    std::uint32_t slot = 0;
#pragma unroll 1
    for (std::uint32_t batch = 0; batch < all; batch++) {
      if (batch >= first) wait(batches - 1);
      uint4* const here = held + slot * kFlight * Threads;
      uint4 raw[kFlight];
#pragma unroll
      for (std::uint32_t v = 0; v < kFlight; v++) raw[v] = here[v * Threads];
      const std::uint32_t last = (batch + 1) * kFlight - 1;
      const bool whole = batch < first ? (last * step + 1) * Threads <= count : last + 1 - first * kFlight < others;
      if (!whole) {
#pragma unroll
        for (std::uint32_t v = 0; v < kFlight; v++)
          if (round_of(batch * kFlight + v) * Threads + threadIdx.x >= count) raw[v] = {absent, absent, absent, absent};
      }
      std::uint32_t marks = 0;
#pragma unroll
      for (std::uint32_t v = 0; v < kFlight; v++)
        marks |= mark(raw[v], round_of(batch * kFlight + v) * Threads + threadIdx.x) << (v * kPerVector);
      if (marks != 0) {
        std::uint32_t to = room(__popc(marks));
        for (; marks; marks &= marks - 1) {
          const std::uint32_t bit = __ffs(static_cast<int>(marks)) - 1;
          const std::uint32_t v = bit / kPerVector;
          const std::uint32_t e = bit % kPerVector;
          take(to++, core::widen(reinterpret_cast<const Stored*>(here + v * Threads)[e]),
               first_column + (round_of(batch * kFlight + v) * Threads + threadIdx.x) * kPerVector + e);
        }
      }
      copy_others(slot);
      slot = slot + 1 == batches ? 0 : slot + 1;
    }
  }

 private:
  /// The i-th round that is looked at.
  __device__ __forceinline__ std::uint32_t round_of(std::uint32_t i) const {
    if (i < first * kFlight) return i * step;
    const std::uint32_t j = i - first * kFlight;
    return j + 1 + j / (step - 1);
  }
  __device__ __forceinline__ void copy_others(std::uint32_t slot) {
    if (unasked > 0) {
#pragma unroll
      for (std::uint32_t v = 0; v < kFlight; v++) {
        const std::uint32_t at = asked.next() * Threads + threadIdx.x;
        if (at < count) async_copy_16(shared_address(held + (slot * kFlight + v) * Threads), vectors + at, true);
      }
      unasked -= min(unasked, static_cast<std::uint32_t>(kFlight));
    }
    async_commit();
  }
  /// Waits until no more than so many of the youngest groups are under way: fewer where the number is none of these.
  static __device__ __forceinline__ void wait(std::uint32_t groups) {
    if (groups >= 10) {
      async_wait<10>();
    } else if (groups >= 7) {
      async_wait<7>();
    } else if (groups >= 4) {
      async_wait<4>();
    } else if (groups >= 2) {
      async_wait<2>();
    } else if (groups == 1) {
      async_wait<1>();
    } else {
      async_wait<0>();
    }
  }
};

}  // namespace shortlist::cuda
