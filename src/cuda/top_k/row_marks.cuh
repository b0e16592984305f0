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

// Places of a row's columns in shared memory: those of its vectors, then from a whole word of marks on those behind
// them, and a word later those before them.
constexpr std::uint32_t kPlacesOfWord = 32;
static_assert(kPlacesOfWord == kValues);
constexpr int kMarkRounds = core::kResidentRowsMaxPlaces / kPlacesOfWord / kThreads;  // words of a thread

/// Where a row's columns are placed.
template <class Stored>
struct row_places {
  std::uint32_t head;     // columns
  std::uint32_t vectors;  // columns of them
  std::uint32_t behind;   // the place of the first column behind them

  explicit __device__ __forceinline__ row_places(const whole_row<Stored>& row)
      : head(row.head), vectors(row.vectors * kPerVector<Stored>) {
    behind = (vectors + kPlacesOfWord - 1) / kPlacesOfWord * kPlacesOfWord;
  }
  __device__ __forceinline__ std::uint32_t words() const { return behind / kPlacesOfWord; }
  __device__ __forceinline__ std::uint32_t before() const { return behind + kPlacesOfWord; }
  /// The column of a place, counted from the row's first.
  __device__ __forceinline__ std::uint32_t column(std::uint32_t place) const {
    if (place < behind) return place + head;
    return place < before() ? place - behind + head + vectors : place - before();
  }
};

/// A row's values in shared memory, brought by the copy engine in chunks that each have a barrier.
template <class Stored>
class resident_row {
 public:
  static constexpr std::uint32_t kChunk = 2048;  // vectors
  static_assert(kChunk % kPiece<Stored> == 0);

  /// @param values the shared address of place 0, a whole line's. @param full barriers, one behind the other.
  __device__ __forceinline__ resident_row(std::uint32_t values, std::uint32_t full) : values_(values), full_(full) {}

  __device__ __forceinline__ std::uint32_t address(std::uint32_t place) const {
    return values_ + place * static_cast<std::uint32_t>(sizeof(Stored));
  }
  /// The bits of a place's value.
  __device__ __forceinline__ std::uint32_t bits(std::uint32_t place) const { return load_bits<Stored>(address(place)); }
  /// Begins to bring a row's vectors, a chunk by each lane. One warp comes, after a fence behind what has used the
  /// memory.
  __device__ __forceinline__ void bring(const whole_row<Stored>& row, std::uint32_t lane) const {
    const std::uint32_t first = lane * kChunk;
    if (first >= row.vectors) return;
    const std::uint32_t bytes = min(kChunk, row.vectors - first) * 16;
    barrier_expect_at(full_ + lane * 8, bytes);
    bulk_copy_to(values_ + first * 16, reinterpret_cast<const uint4*>(row.values + row.head) + first, bytes,
                 full_ + lane * 8);
  }
  /// Waits for a vector of the row that is on its way.
  __device__ __forceinline__ void await(std::uint32_t vector) const {
    const std::uint32_t chunk = vector / kChunk;
    barrier_wait_at(full_ + chunk * 8, phases_ >> chunk & 1);
  }
  /// All of it has been awaited.
  __device__ __forceinline__ void used(const whole_row<Stored>& row) {
    phases_ ^= (1u << ((row.vectors + kChunk - 1) / kChunk)) - 1;
  }

 private:
  std::uint32_t values_;
  std::uint32_t full_;
  std::uint32_t phases_ = 0;  // a bit for each barrier
};

/// Marks of a vector of 16-bit values, in the lowest byte.
template <class Stored, bool Negated>
__device__ __forceinline__ std::uint32_t marks_of_vector(const uint4& raw, std::uint32_t least) {
  if (Negated) least ^= kSigns<Stored>;
  const std::uint32_t both = (pair_mask<Stored, Negated>(raw.x, least) & 0x00020001u) |
                             (pair_mask<Stored, Negated>(raw.y, least) & 0x00080004u) |
                             (pair_mask<Stored, Negated>(raw.z, least) & 0x00200010u) |
                             (pair_mask<Stored, Negated>(raw.w, least) & 0x00800040u);
  return both | both >> 16;
}

/// Marks the columns of a row's vectors that reach the filter, a bit each, as they come: 16-bit values a vector at a
/// time, which makes a byte. @param marks the shared address of their words. @param seen looks at the vectors. All
/// threads come, and leave through a barrier.
template <class Stored, bool Negated, class Seen>
__device__ __forceinline__ void mark_vectors(const whole_row<Stored>& row, const resident_row<Stored>& values,
                                             const row_filter<Stored>& filter, std::uint32_t marks, Seen& seen) {
  constexpr std::uint32_t kChunk = resident_row<Stored>::kChunk;
  constexpr int kEach = kChunk / kThreads;
  constexpr std::uint32_t kOfWord = kPlacesOfWord / kPerVector<Stored>;
  std::uint32_t from = values.address(0) + threadIdx.x * 16;
  std::uint32_t to = marks + threadIdx.x;
#pragma unroll 1
  for (std::uint32_t first = 0; first < row.vectors; first += kChunk, from += kChunk * 16, to += kChunk) {
    values.await(first);
    const std::uint32_t behind = first + kChunk;
    if (behind <= row.vectors && (filter.ties_end <= first || filter.ties_end >= behind)) {
      const std::uint32_t least = filter.of(first);
      uint4 raw[kEach];
#pragma unroll
      for (int i = 0; i < kEach; i++) raw[i] = load_shared<uint4>(from + i * (kThreads * 16));
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        store_shared_byte(to + i * kThreads, marks_of_vector<Stored, Negated>(raw[i], least));
        if constexpr (Seen::kSees) seen.add(raw[i]);
      }
    } else {
      const std::uint32_t end = min(behind, (row.vectors + kOfWord - 1) / kOfWord * kOfWord);  // a whole word
      std::uint32_t vector = first + threadIdx.x;
#pragma unroll 1
      for (int i = 0; vector < end; i++, vector += kThreads) {
        const uint4 raw = load_shared<uint4>(from + i * (kThreads * 16));
        const std::uint32_t found = marks_of_vector<Stored, Negated>(raw, filter.of(vector));
        store_shared_byte(to + i * kThreads, vector < row.vectors ? found : 0);
        if constexpr (Seen::kSees)
          if (vector < row.vectors) seen.add(raw);
      }
    }
  }
  __syncthreads();
}

/// Gives a piece of so many columns its first vector in the place of those that are not there, up to a whole word of
/// marks. All lanes come.
template <class Stored>
__device__ __forceinline__ void fill_word(std::uint32_t piece, std::uint32_t columns, std::uint32_t lane) {
  const std::uint32_t missing = (kPlacesOfWord - columns % kPlacesOfWord) % kPlacesOfWord / kPerVector<Stored>;
  if (lane < missing)
    store_shared(piece + columns * static_cast<std::uint32_t>(sizeof(Stored)) + lane * 16, load_shared<uint4>(piece));
  __syncwarp();
}

/// The same, a word of marks at a time: each thread writes the words that it reads later.
template <class Stored, bool Negated, class Seen>
__device__ __forceinline__ void mark_pieces(const whole_row<Stored>& row, const resident_row<Stored>& values,
                                            const row_filter<Stored>& filter, std::uint32_t marks,
                                            const block_sums& sums, Seen& seen) {
  const piece_marker<Stored, Negated> marker(sums.lane());
  std::uint32_t first = sums.warp() * kPiece<Stored>;
  std::uint32_t piece = values.address(first * kPerVector<Stored>);
  std::uint32_t word = marks + threadIdx.x * 4;
#pragma unroll 1
  for (; first < row.vectors; first += kWarps * kPiece<Stored>) {
    values.await(first);
    const std::uint32_t left = (row.vectors - first) * kPerVector<Stored>;  // columns
    if constexpr (Seen::kSees)
      if (left < kPiece<Stored> * kPerVector<Stored>) fill_word<Stored>(piece, left, sums.lane());
    std::uint32_t found = 0;
    if (left > sums.lane() * kValues) {  // so that no word is read that holds no column
      found = marks_of_piece(marker, piece, first, sums.lane(), filter, seen);
      const std::uint32_t there = left - sums.lane() * kValues;
      if (there < kValues) found &= (1u << there) - 1;
    }
    store_shared(word, found);
    piece += kWarps * kPiece<Stored> * 16;
    word += kThreads * 4;
  }
}

template <class Stored, bool Negated, class Seen>
__device__ __forceinline__ void mark_row(const whole_row<Stored>& row, const resident_row<Stored>& values,
                                         const row_filter<Stored>& filter, std::uint32_t marks, const block_sums& sums,
                                         Seen& seen) {
  if constexpr (sizeof(Stored) == 4)
    mark_pieces<Stored, Negated>(row, values, filter, marks, sums, seen);
  else
    mark_vectors<Stored, Negated>(row, values, filter, marks, seen);
}

/// How many of the few columns beside a row's vectors reach the filter. All lanes of all warps come.
template <class Stored>
__device__ __forceinline__ unsigned marks_beside(const whole_row<Stored>& row, std::uint32_t first,
                                                 std::uint32_t columns, std::uint32_t vector,
                                                 const row_filter<Stored>& filter, bool negated, std::uint32_t lane) {
  if (columns == 0) return 0;
  return __ballot_sync(kFullWarp, lane < columns && filter.reached_by(row.values[first + lane], vector, negated));
}

/// A row's marks: the words that a thread has, every kThreads-th, how many marks are before each, and those of the
/// columns beside the vectors, a bit each.
struct row_marks {
  std::uint32_t words[kMarkRounds];
  std::uint32_t before[kMarkRounds];
  unsigned before_vectors;
  unsigned behind_vectors;
};

/// Reads the marks. @param totals the shared address of room for a number of each warp and round. @returns how many
/// marks there are in all. All threads come, after mark_row; a barrier is within.
template <class Stored>
__device__ __forceinline__ std::uint32_t read_marks(const whole_row<Stored>& row, const row_filter<Stored>& filter,
                                                    bool negated, std::uint32_t marks, std::uint32_t totals,
                                                    row_marks& found, const block_sums& sums) {
  static_assert(kMarkRounds * kWarps == 2 * kWarp && kMarkRounds % 2 == 0);
  const std::uint32_t count = row_places<Stored>(row).words();
#pragma unroll
  for (int r = 0; r < kMarkRounds; r++) {
    const std::uint32_t word = r * kThreads + threadIdx.x;
    found.words[r] = word < count ? load_shared<std::uint32_t>(marks + word * 4) : 0;
  }
#pragma unroll
  for (int r = 0; r < kMarkRounds; r += 2) {  // two sums in one
    const std::uint32_t both = __popc(found.words[r]) | __popc(found.words[r + 1]) << 16;
    const std::uint32_t up_to = lanes_up_to(both);
    found.before[r] = (up_to - both) & 0xFFFFu;
    found.before[r + 1] = (up_to - both) >> 16;
    if (sums.lane() == kWarp - 1) {
      store_shared(totals + (r * kWarps + sums.warp()) * 4, up_to & 0xFFFFu);
      store_shared(totals + ((r + 1) * kWarps + sums.warp()) * 4, up_to >> 16);
    }
  }
  __syncthreads();
  found.before_vectors = marks_beside(row, 0, row.head, 0, filter, negated, sums.lane());
  found.behind_vectors =
      marks_beside(row, row.columns - row.tail(), row.tail(), row.vectors, filter, negated, sums.lane());
  const std::uint32_t low = load_shared<std::uint32_t>(totals + sums.lane() * 4);
  const std::uint32_t high = load_shared<std::uint32_t>(totals + (kWarp + sums.lane()) * 4);
  const std::uint32_t low_up_to = lanes_up_to(low) + __popc(found.before_vectors);
  const std::uint32_t all_low = __shfl_sync(kFullWarp, low_up_to, kWarp - 1);
  const std::uint32_t high_up_to = lanes_up_to(high) + all_low;
#pragma unroll
  for (int r = 0; r < kMarkRounds; r++) {
    const int at = r % (kMarkRounds / 2) * kWarps + static_cast<int>(sums.warp());
    found.before[r] += r < kMarkRounds / 2 ? __shfl_sync(kFullWarp, low_up_to - low, at)
                                           : __shfl_sync(kFullWarp, high_up_to - high, at);
  }
  return __shfl_sync(kFullWarp, high_up_to, kWarp - 1) + __popc(found.behind_vectors);
}

/// Lists marked columns beside the vectors, and has their values in their places. One warp comes.
template <class Stored>
__device__ __forceinline__ void list_beside(const whole_row<Stored>& row, std::uint32_t first, unsigned marks,
                                            std::uint32_t place, const resident_row<Stored>& values, std::uint32_t list,
                                            std::uint32_t lane) {
  if ((marks >> lane & 1) == 0) return;
  store_bits<Stored>(values.address(place + lane), bits_of(row.values[first + lane]));
  store_shared(list + __popc(marks & ((1u << lane) - 1)) * 2, static_cast<std::uint16_t>(place + lane));
}

constexpr int kUsualMarks = 3;  // that a word has at most, mostly

/// Lists the places of all n marks, in the order of columns, as 16-bit numbers. @param list their shared address. All
/// threads come; a barrier must follow.
template <class Stored>
__device__ __forceinline__ void list_places(const whole_row<Stored>& row, const resident_row<Stored>& values,
                                            const row_marks& found, std::uint32_t n, std::uint32_t list,
                                            const block_sums& sums) {
  const row_places<Stored> places(row);
#pragma unroll
  for (int r = 0; r < kMarkRounds; r++) {
    if (r * kThreads >= places.words()) break;
    std::uint32_t rest = found.words[r];
    std::uint32_t to = list + found.before[r] * 2;
    const std::uint32_t first = (r * kThreads + threadIdx.x) * kPlacesOfWord;
    const auto list_one = [&] {  // if one is left; without a branch, for lanes would wait for each other behind it
      const std::uint32_t others = rest & (rest - 1);
      const std::uint32_t bit = only_mark(rest ^ others);
      store_shared_if(rest, to, static_cast<std::uint16_t>(first + bit));
      rest = others;
      to += 2;
    };
#pragma unroll
    for (int i = 0; i < kUsualMarks; i++) list_one();
    while (__any_sync(kFullWarp, rest != 0)) {
      list_one();
      list_one();
    }
  }
  if ((found.before_vectors | found.behind_vectors) == 0 || sums.warp() != 0) return;
  list_beside(row, 0, found.before_vectors, places.before(), values, list, sums.lane());
  list_beside(row, row.columns - row.tail(), found.behind_vectors, places.behind, values,
              list + (n - __popc(found.behind_vectors)) * 2, sums.lane());
}

/// Lists the places of the first of n marks, so many, of a row that is looked at again: in a loop of few instructions.
/// Else the same.
template <class Stored>
__device__ __forceinline__ void list_first_places(const whole_row<Stored>& row, const resident_row<Stored>& values,
                                                  const row_marks& found, std::uint32_t n, std::uint32_t most,
                                                  std::uint32_t list, const block_sums& sums) {
  const row_places<Stored> places(row);
  const std::uint32_t end = list + most * 2;
#pragma unroll 1
  for (int r = 0; r < kMarkRounds; r++) {
    std::uint32_t rest = 0;
    std::uint32_t to = 0;
#pragma unroll
    for (int i = 0; i < kMarkRounds; i++) {  // an index would keep them in memory
      rest = i == r ? found.words[i] : rest;
      to = i == r ? list + found.before[i] * 2 : to;
    }
    const std::uint32_t first = (r * kThreads + threadIdx.x) * kPlacesOfWord;
#pragma unroll 1
    for (; rest != 0 && to < end; rest &= rest - 1, to += 2)
      store_shared(to, static_cast<std::uint16_t>(first + __ffs(static_cast<int>(rest)) - 1));
  }
  if ((found.before_vectors | found.behind_vectors) == 0 || sums.warp() != 0) return;
  const auto beside = [&](std::uint32_t column, unsigned marks, std::uint32_t place, std::uint32_t before) {
    const std::uint32_t left = most - min(before, most);
    if (__popc(marks & ((2u << sums.lane()) - 1)) > left) marks &= ~(1u << sums.lane());
    list_beside(row, column, marks, place, values, list + before * 2, sums.lane());
  };
  beside(0, found.before_vectors, places.before(), 0);
  beside(row.columns - row.tail(), found.behind_vectors, places.behind, n - __popc(found.behind_vectors));
}

}  // namespace shortlist::cuda::filtering
