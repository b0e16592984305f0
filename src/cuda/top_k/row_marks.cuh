// A row in a block's shared memory, which of its columns reach a filter as a map of bits, and a list of those in their
// order. See resident_rows.cu.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/plan.hpp"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/filter_pieces.cuh"

namespace shortlist::cuda::filtering {

// Places of a row's columns: a word of marks for those before the first vector, then the vectors from the next word on,
// then a word for those behind them.
constexpr std::uint32_t kPlacesOfWord = 32;
constexpr std::uint32_t kPlacesOfByte = 8;
constexpr std::uint32_t kBytesOfWord = 4;
constexpr int kMarkRounds = core::kResidentRowsMaxPlaces / kPlacesOfWord / kThreads;  // words of a thread

/// Of a row, where its columns are placed.
template <class Stored>
struct row_places {
  std::uint32_t head;
  std::uint32_t vectors;
  std::uint32_t tail;
  std::uint32_t tail_place;  // of the first one behind the vectors

  explicit __device__ __forceinline__ row_places(const whole_row<Stored>& row)
      : head(row.head), vectors(row.vectors), tail(row.tail()) {
    constexpr std::uint32_t kOfWord = kPlacesOfWord / kPerVector<Stored>;
    tail_place = kPlacesOfWord * (1 + (vectors + kOfWord - 1) / kOfWord);
  }
  __device__ __forceinline__ std::uint32_t words() const { return tail_place / kPlacesOfWord + (tail > 0 ? 1 : 0); }
  /// The column of a place, counted from the row's first.
  __device__ __forceinline__ std::uint32_t column(std::uint32_t place) const {
    const std::uint32_t of_vectors = place - kPlacesOfWord + head;
    if (place >= tail_place) return place - tail_place + head + vectors * kPerVector<Stored>;
    return place < kPlacesOfWord ? place : of_vectors;
  }
};

/// A row's values in shared memory, brought by the copy engine in chunks that each have a barrier.
template <class Stored>
class resident_row {
 public:
  static constexpr std::uint32_t kChunk = 2048;  // vectors

  /// @param values the shared address of place 0; that of the first vector's is a whole line's. @param full barriers,
  /// one behind the other.
  __device__ __forceinline__ resident_row(std::uint32_t values, std::uint32_t full) : values_(values), full_(full) {}

  __device__ __forceinline__ std::uint32_t values() const { return values_; }
  __device__ __forceinline__ std::uint32_t vectors() const { return values_ + kPlacesOfWord * sizeof(Stored); }
  /// The bits of a column's value.
  __device__ __forceinline__ std::uint32_t bits(std::uint32_t place) const {
    const std::uint32_t at = values_ + place * sizeof(Stored);
    if constexpr (sizeof(Stored) == 4) return load_shared<std::uint32_t>(at);
    return load_shared<std::uint16_t>(at);
  }
  /// Begins to bring a row's vectors. One thread comes, after a fence behind what has used the memory.
  __device__ __forceinline__ void bring(const whole_row<Stored>& row) const {
    const auto* from = reinterpret_cast<const uint4*>(row.values + row.head);
    std::uint32_t barrier = full_;
#pragma unroll 1
    for (std::uint32_t first = 0; first < row.vectors; first += kChunk, barrier += 8) {
      const std::uint32_t bytes = min(kChunk, row.vectors - first) * 16;
      barrier_expect_at(barrier, bytes);
      bulk_copy_to(vectors() + first * 16, from + first, bytes, barrier);
    }
  }
  /// Waits for a chunk of the row that is on its way.
  __device__ __forceinline__ void await(std::uint32_t chunk) const {
    barrier_wait_at(full_ + chunk * 8, phases_ >> chunk & 1);
  }
  /// All chunks of it have been awaited.
  __device__ __forceinline__ void used(const whole_row<Stored>& row) {
    phases_ ^= (1u << ((row.vectors + kChunk - 1) / kChunk)) - 1;
  }

 private:
  std::uint32_t values_;
  std::uint32_t full_;
  std::uint32_t phases_ = 0;  // a bit for each barrier
};

/// Marks of eight columns, of which words of two 16-bit values are compared.
template <class Stored, bool Negated>
__device__ __forceinline__ std::uint32_t marks_of_pairs(const uint4& pairs, std::uint32_t least) {
  const std::uint32_t both = (pair_mask<Stored, Negated>(pairs.x, least) & 0x00020001u) |
                             (pair_mask<Stored, Negated>(pairs.y, least) & 0x00080004u) |
                             (pair_mask<Stored, Negated>(pairs.z, least) & 0x00200010u) |
                             (pair_mask<Stored, Negated>(pairs.w, least) & 0x00800040u);
  return both | both >> 16;
}

/// How eight neighbouring columns of the row are compared, a lane's at once: vectors are read in such an order that
/// lanes meet no bank twice.
template <class Stored, bool Negated>
class byte_marker {
 public:
  static constexpr std::uint32_t kVectors = 8 / kPerVector<Stored>;  // of a byte of marks
  struct raw_vectors {
    uint4 raw[kVectors];
  };

  explicit __device__ __forceinline__ byte_marker(const row_filter<Stored>& filter, std::uint32_t lane)
      : filter_(filter), swapped_(kVectors == 2 ? lane >> 2 & 1 : 0), turn_(swapped_ * 4) {}

  /// @param first the shared address of the row's vectors.
  __device__ __forceinline__ void load(std::uint32_t first, std::uint32_t byte, raw_vectors& from) const {
    const std::uint32_t at = first + byte * (kVectors * 16) + swapped_ * 16;
    from.raw[0] = load_shared<uint4>(at);
    if constexpr (kVectors == 2) from.raw[1] = load_shared<uint4>(at ^ 16);
  }
  /// @param vector the byte's first, in the row.
  __device__ __forceinline__ std::uint32_t marks(const raw_vectors& from, std::uint32_t vector) const {
    if constexpr (kVectors == 1) {
      return marks_above(from, filter_.of(vector));
    } else {
      if (filter_.is_coarse) return marks_above(from, filter_.least);
      return in_order(fine(from.raw[0], filter_.of(vector + swapped_)) |
                      fine(from.raw[1], filter_.of(vector + 1 - swapped_)) << 4);
    }
  }
  /// The same where all vectors must reach the same.
  __device__ __forceinline__ std::uint32_t marks_above(const raw_vectors& from,
                                                       typename row_filter<Stored>::word least) const {
    if constexpr (kVectors == 1) {
      return marks_of_pairs<Stored, Negated>(from.raw[0], turned(least));
    } else {
      const uint4& a = from.raw[0];
      const uint4& b = from.raw[1];
      if (filter_.is_coarse) {
        const uint4 pairs =
            make_uint4(upper_halves(a.x, a.y), upper_halves(a.z, a.w), upper_halves(b.x, b.y), upper_halves(b.z, b.w));
        return in_order(marks_of_pairs<bfloat16, Negated>(pairs, turned(both_upper_halves(least))));
      }
      return in_order(fine(a, least) | fine(b, least) << 4);
    }
  }

 private:
  /// In the lowest byte, the vectors' marks the other way round where they were read so.
  __device__ __forceinline__ std::uint32_t in_order(std::uint32_t marks) const { return marks * 0x101u >> turn_; }
  static __device__ __forceinline__ std::uint32_t turned(std::uint32_t least) {
    return Negated ? least ^ 0x80008000u : least;
  }
  static __device__ __forceinline__ std::uint32_t fine(const uint4& raw, float least) {
    const auto mark = [&](std::uint32_t bits, std::uint32_t bit) {
      const float value = __uint_as_float(bits);
      return (Negated ? value <= -least : value >= least) ? bit : 0u;
    };
    return mark(raw.x, 1) | mark(raw.y, 2) | mark(raw.z, 4) | mark(raw.w, 8);
  }

  const row_filter<Stored>& filter_;
  std::uint32_t swapped_;
  std::uint32_t turn_;
};

/// Marks the columns beside a row's vectors, which come to shared memory, too: a word of marks. All lanes of one warp
/// come.
template <class Stored>
__device__ __forceinline__ void mark_beside(const whole_row<Stored>& row, std::uint32_t first, std::uint32_t columns,
                                            std::uint32_t vector, const row_filter<Stored>& filter, bool negated,
                                            std::uint32_t values, std::uint32_t word, std::uint32_t lane) {
  bool reaches = false;
  if (lane < columns) {
    const Stored value = row.values[first + lane];
    reaches = filter.reached_by(value, vector, negated);
    if constexpr (sizeof(Stored) == 4)
      store_shared(values + lane * 4, __float_as_uint(value));
    else
      store_shared(values + lane * 2, value.bits);
  }
  const unsigned marks = __ballot_sync(kFullWarp, reaches);
  if (lane == 0) store_shared(word, marks);
}

/// Marks the columns of a row that reach the filter, a bit each, as its chunks come. @param marks the shared address of
/// their words. All threads come; a barrier must follow.
template <class Stored, bool Negated>
__device__ __forceinline__ void mark_row(const whole_row<Stored>& row, const resident_row<Stored>& values, const row_filter<Stored>& filter,
                                         std::uint32_t marks, const block_sums& sums) {
  using marker = byte_marker<Stored, Negated>;
  constexpr std::uint32_t kOfChunk = resident_row<Stored>::kChunk / marker::kVectors;  // bytes of marks
  constexpr int kEach = kOfChunk / kThreads;
  const marker mark(filter, sums.lane());
  const row_places<Stored> places(row);
  const std::uint32_t vectors = values.vectors();
  const std::uint32_t bytes = marks + kBytesOfWord;
  if (sums.warp() == 0) {
    mark_beside(row, 0, row.head, 0, filter, Negated, values.values(), marks, sums.lane());
    if (places.tail > 0)
      mark_beside(row, row.columns - places.tail, places.tail, row.vectors, filter, Negated,
                  values.values() + places.tail_place * sizeof(Stored), marks + places.tail_place / kPlacesOfByte, sums.lane());
  }
#pragma unroll 1
  for (std::uint32_t first = 0, chunk = 0; first < row.vectors; first += resident_row<Stored>::kChunk, chunk++) {
    values.await(chunk);
    const std::uint32_t begin = first / marker::kVectors + threadIdx.x;
    const std::uint32_t behind = first + resident_row<Stored>::kChunk;
    if (behind <= row.vectors && (filter.ties_end <= first || filter.ties_end >= behind)) {
      const auto least = filter.of(first);
      typename marker::raw_vectors raw[kEach];
#pragma unroll
      for (int i = 0; i < kEach; i++) mark.load(vectors, begin + i * kThreads, raw[i]);
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        const std::uint32_t byte = begin + i * kThreads;
        store_shared_byte(bytes + byte, mark.marks_above(raw[i], least));
      }
    } else {  // of the last chunk up to a whole word of marks
      const std::uint32_t end =
          behind < row.vectors ? behind / marker::kVectors : places.tail_place / kPlacesOfByte - kBytesOfWord;
#pragma unroll 1
      for (std::uint32_t byte = begin; byte < end; byte += kThreads) {
        const std::uint32_t vector = byte * marker::kVectors;
        std::uint32_t found = 0;
        if (vector < row.vectors) {
          typename marker::raw_vectors raw;
          mark.load(vectors, byte, raw);
          found = mark.marks(raw, vector);
          if (vector + marker::kVectors > row.vectors) found &= 0xFu;
        }
        store_shared_byte(bytes + byte, found);
      }
    }
  }
}

/// The words of marks that a thread looks at, every kThreads-th, and how many marks are before each.
struct marked_words {
  std::uint32_t words[kMarkRounds];
  std::uint32_t before[kMarkRounds];
};

/// Reads the marks. @param totals room for a number of each warp and round. @returns how many there are. All threads
/// come, after a barrier; they leave through one.
__device__ __forceinline__ std::uint32_t read_marks(std::uint32_t marks, std::uint32_t count, std::uint32_t totals,
                                                    marked_words& mine, const block_sums& sums) {
  static_assert(kMarkRounds * kWarps == 2 * kWarp && kMarkRounds % 2 == 0);
#pragma unroll
  for (int r = 0; r < kMarkRounds; r++) {
    const std::uint32_t word = r * kThreads + threadIdx.x;
    mine.words[r] = word < count ? load_shared<std::uint32_t>(marks + word * 4) : 0;
  }
#pragma unroll
  for (int r = 0; r < kMarkRounds; r += 2) {
    const std::uint32_t both = __popc(mine.words[r]) | __popc(mine.words[r + 1]) << 16;
    const std::uint32_t up_to = lanes_up_to(both);
    mine.before[r] = (up_to - both) & 0xFFFFu;
    mine.before[r + 1] = (up_to - both) >> 16;
    if (sums.lane() == kWarp - 1) {
      store_shared(totals + (r * kWarps + sums.warp()) * 4, up_to & 0xFFFFu);
      store_shared(totals + ((r + 1) * kWarps + sums.warp()) * 4, up_to >> 16);
    }
  }
  __syncthreads();
  const std::uint32_t low = load_shared<std::uint32_t>(totals + sums.lane() * 4);
  const std::uint32_t high = load_shared<std::uint32_t>(totals + (kWarp + sums.lane()) * 4);
  const std::uint32_t low_up_to = lanes_up_to(low);
  const std::uint32_t all_low = __shfl_sync(kFullWarp, low_up_to, kWarp - 1);
  const std::uint32_t high_up_to = lanes_up_to(high) + all_low;
#pragma unroll
  for (int r = 0; r < kMarkRounds; r++) {
    const int at = r % (kMarkRounds / 2) * kWarps + static_cast<int>(sums.warp());
    mine.before[r] += r < kMarkRounds / 2 ? __shfl_sync(kFullWarp, low_up_to - low, at)
                                          : __shfl_sync(kFullWarp, high_up_to - high, at);
  }
  return __shfl_sync(kFullWarp, high_up_to, kWarp - 1);
}

/// Lists the places of all marks, in their order, as 16-bit numbers. All threads come; a barrier must follow.
__device__ __forceinline__ void list_places(const marked_words& mine, std::uint32_t count, std::uint32_t list) {
#pragma unroll
  for (int r = 0; r < kMarkRounds; r++) {
    if (r * kThreads >= count) break;
    std::uint32_t rest = mine.words[r];
    std::uint32_t to = list + mine.before[r] * 2;
    const std::uint32_t first = (r * kThreads + threadIdx.x) * kPlacesOfWord;
    while (rest != 0) {
      const std::uint32_t others = rest & (rest - 1);
      std::uint32_t bit;  // of the only one that is set: found in one instruction
      asm("bfind.u32 %0, %1;" : "=r"(bit) : "r"(rest ^ others));
      store_shared(to, static_cast<std::uint16_t>(first + bit));
      rest = others;
      to += 2;
    }
  }
}

}  // namespace shortlist::cuda::filtering
