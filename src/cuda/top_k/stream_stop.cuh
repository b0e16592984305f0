// Early stops of rows that a team of blocks streams: what the team learns of a row on the way, and how its last block
// chooses. See stream_rows_kernel.cuh.
//
// The path of the bisection follows from a row's extremes and its k-th best (row_path.cuh). The worst value is looked
// for while the row comes; the best and the k-th best are in the team's list. What reaches the path's lower end is in
// the list, too, if no cut was above that end; else the first columns that reach it are looked for. A piece of a row is
// what a warp loads at once, a vector a lane, and its best value is told while it comes: the first k columns that reach
// an end lie in the first k pieces whose best does, and only those are read again, by the last block alone, which takes
// 40 to 60 ns for each.
//
// History, 1 x 10^7, k 100, in a graph (exact: 0.0212), an eps of 1e-4 and four steps: by radix_rows behind the exact
// search 0.0554 and 0.0682 ms -> words of a chunk stored at once, all steps unrolled 0.0248 and 0.0332 -> words of
// eight chunks held by a warp's lanes, signs left as they are where the largest are asked for, short code 0.0236 and
// 0.0302 -> pieces counted by each warp for itself 0.0236 and 0.0298. A word for a chunk, not for each of its four
// pieces: 0.0242 and 0.0433. 1 x 10^8 (exact: 0.1014), the eps: each warp in an order of its own 0.1171 -> warps whose
// words share a line in the same order 0.1114.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda/device/async_copy.cuh"
#include "cuda/top_k/filter_parts.cuh"
#include "cuda/top_k/stop_range.cuh"
#include "cuda/top_k/stream_chunks.cuh"
#include "cuda/top_k/stream_list.cuh"

namespace shortlist::cuda::streaming {

constexpr std::uint32_t kPieces = kVectors;  // of a chunk
constexpr std::uint32_t kPieceVectors = kWarp;
constexpr std::uint32_t kGroupChunks = kWarp / kPieces;  // whose pieces are a line of words
constexpr std::uint32_t kLineWords = 32;

/// What a team tells of a row, in global memory. All but the pieces' words must be zero before.
struct row_sight {
  std::uint32_t* memory;
  std::uint32_t most_groups;

  /// The key of the row's worst value, its bits inverted.
  __device__ __forceinline__ std::uint32_t* worst() const { return memory; }
  /// The keys of the best values of kGroupChunks chunks each.
  __device__ __forceinline__ std::uint32_t* groups() const { return memory + kLineWords; }
  /// [chunks, kPieces], the same of a piece each; 0 of one without vectors.
  __device__ __forceinline__ std::uint32_t* pieces() const { return groups() + most_groups; }

  /// Groups for so many chunks, in whole lines.
  static constexpr std::int64_t groups_for(std::int64_t chunks) {
    constexpr std::int64_t kOfLine = std::int64_t{kGroupChunks} * kLineWords;
    return (chunks + kOfLine - 1) / kOfLine * kLineWords;
  }
  __host__ __device__ static constexpr std::int64_t cleared_words(std::int64_t groups) { return kLineWords + groups; }
  __host__ __device__ static constexpr std::int64_t words(std::int64_t groups) {
    return cleared_words(groups) + groups * kWarp;
  }
};

/// Clears what must be zero: all blocks of a team do, before they meet. All threads come.
template <class Form>
__device__ __forceinline__ void clear_sight(const row_sight& sight, std::uint32_t rank, std::uint32_t blocks) {
  const auto vectors = static_cast<std::uint32_t>(row_sight::cleared_words(sight.most_groups)) / 4;
#pragma unroll 1
  for (std::uint32_t i = rank * Form::kThreads + threadIdx.x; i < vectors; i += blocks * Form::kThreads)
    reinterpret_cast<uint4*>(sight.memory)[i] = make_uint4(0, 0, 0, 0);
}

/// A warp's part of what is told of a row that is searched in full: nothing.
struct no_sight {
  template <class Part>
  __device__ __forceinline__ void add(const Part& /*part*/, std::uint32_t /*first*/, const uint4 (&/*raw*/)[kVectors]) {
  }
};

/// A warp's part of what is told of a row that is stopped early. Its lanes hold the pieces' words of several chunks.
template <class Stored>
class warp_sight {
 public:
  __device__ __forceinline__ void open(const row_sight& row, std::uint32_t chunk) {
    row_ = row;
    per_vector_ = ~0u / chunk + 1;
  }

  /// A chunk, which may be told again. @param raw of the chunk's vectors; of lanes past its end, copies of its last.
  __device__ __forceinline__ void add(const row_slice<Stored>& part, std::uint32_t first,
                                      const uint4 (&raw)[kVectors]) {
    const std::uint32_t lane = threadIdx.x % kWarp;
    const std::uint32_t piece = lane % kPieces;
#pragma unroll
    for (int v = 0; v < kVectors; v++) worst_.add(raw[v]);
    std::uint32_t best = 0;
#pragma unroll
    for (std::uint32_t v = 0; v < kPieces; v++) {
      const std::uint32_t of_piece = __reduce_max_sync(kFullWarp, core::ascending_key(best_of<Stored>(raw[v])));
      if (piece == v) best = of_piece;
    }
    if (lane / kPieces == held_) {
      best_ = first + piece * kPieceVectors < part.chunk_end(first) ? best : 0;
      first_ = first;
    }
    held_++;
    if (held_ == kGroupChunks) tell_pieces();
  }

  /// The columns outside all vectors. A warp comes.
  __device__ __forceinline__ void add_beside(const whole_row<Stored>& row, std::uint32_t flip) {
    const std::uint32_t lane = threadIdx.x % kWarp;
    const std::uint32_t beside = row.head + row.tail();
    if (lane >= beside) return;
    const Stored value = row.values[lane < row.head ? lane : row.columns - beside + lane];
    std::uint32_t word = filtering::bits_of(value);
    if constexpr (sizeof(Stored) == 2) word |= word << 16;
    word ^= flip;
    worst_.add(make_uint4(word, word, word, word));
  }

  /// Tells what is left, and the block's worst value. All threads come, after a barrier; the bins are free, and a
  /// barrier follows.
  template <class Form>
  __device__ __forceinline__ void finish(stream_scratch<Form>& scratch) {
    if (held_ > 0) tell_pieces();
    const std::uint32_t inverted = __reduce_max_sync(kFullWarp, ~worst_.key());
    if (threadIdx.x % kWarp == 0) scratch.bins[threadIdx.x / kWarp] = inverted;
    __syncthreads();
    if (threadIdx.x >= kWarp) return;
    const std::uint32_t of_block =
        __reduce_max_sync(kFullWarp, threadIdx.x < Form::kWarps ? scratch.bins[threadIdx.x] : 0);
    if (threadIdx.x == 0) atomicMax(row_.worst(), of_block);
  }

 private:
  __device__ __forceinline__ void tell_pieces() {
    const std::uint32_t lane = threadIdx.x % kWarp;
    std::uint32_t of_chunk = best_;
#pragma unroll
    for (std::uint32_t apart = 1; apart < kPieces; apart *= 2)
      of_chunk = max(of_chunk, __shfl_xor_sync(kFullWarp, of_chunk, static_cast<int>(apart)));
    if (lane / kPieces < held_) {
      const std::uint32_t chunk = __umulhi(first_, per_vector_);  // exact, for one begins there
      row_.pieces()[chunk * kPieces + lane % kPieces] = best_;
      if (lane % kPieces == 0) atomicMax(row_.groups() + chunk / kGroupChunks, of_chunk);
    }
    held_ = 0;
  }

  row_sight row_;
  std::uint32_t per_vector_;         // chunks, in 2^-32
  std::uint32_t held_ = 0;           // chunks
  std::uint32_t best_ = 0;           // of the lane's piece
  std::uint32_t first_ = 0;          // vector of its chunk
  worst_seen<Stored, false> worst_;  // of values whose signs are turned where the smallest are asked for
};

/// How many the threads before this one have counted, and how many all have. @param turn in which of two places, in
/// turns. All threads come.
template <class Form>
__device__ __noinline__ uint2 count_before(std::uint32_t mine, std::uint32_t turn, stream_scratch<Form>& scratch) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t warp = threadIdx.x / kWarp;
  auto& totals = scratch.select.totals[turn & 1];
  const std::uint32_t before = lanes_before(mine);
  if (lane == kWarp - 1) totals[warp] = before + mine;
  __syncthreads();
  const std::uint32_t told = lane < Form::kWarps ? totals[lane] : 0;
  return make_uint2(before + __reduce_add_sync(kFullWarp, lane < warp ? told : 0), __reduce_add_sync(kFullWarp, told));
}

/// Looks for the first columns of a row that reach the end of an early stop's path, in what shared memory is free. Its
/// code runs once, and is short: what it takes is the latency of memory, of instructions, too.
template <class Stored, class Form>
class second_look {
 public:
  __device__ __forceinline__ second_look(const row_sight& sight, const row_slice<Stored>& slice,
                                         const unsigned char* end)
      : sight_(sight), slice_(slice), end_(end) {}

  /// Appends the first columns with low <= value < high to a list that has room for them, so that it holds k. @param
  /// low of its key. @pre so many are there; fewer than k are no less than `high`, and all of these are in the list.
  /// All threads come, after a barrier; they leave through one.
  __device__ __forceinline__ void operator()(const block_list<Form>& list, const whole_row<Stored>& row,
                                             std::uint32_t flip, float low, float high, std::uint32_t k) {
    const std::uint32_t begin = list.count();
    const wanted_columns wanted{low, high, flip, begin, k - begin};
    const std::uint32_t behind_list = (k * 8 + kLineBytes - 1) / kLineBytes * kLineBytes;
    free_ = reinterpret_cast<unsigned char*>(list.keys) + behind_list;
    append_beside(list, row, 0, row.head, wanted);
    append_pieces(list, list_pieces(core::ascending_key(low), k, *list.scratch), k, wanted);
    if (found_ < wanted.count) append_beside(list, row, row.columns - row.tail(), row.tail(), wanted);
    __syncthreads();
    if (threadIdx.x == 0) list.scratch->state.count = k;
    __syncthreads();
  }

 private:
  static constexpr std::uint32_t kWords = 8;  // of a thread at a time

  struct wanted_columns {
    float low;
    float high;
    std::uint32_t flip;
    std::uint32_t begin;  // of their places in the list
    std::uint32_t count;

    __device__ __forceinline__ bool has(float value) const { return value >= low && value < high; }
  };

  /// Groups listed, and pieces listed, k of each at most.
  __device__ __forceinline__ std::uint32_t* places(std::uint32_t of_pieces, std::uint32_t k) const {
    return reinterpret_cast<std::uint32_t*>(free_) + of_pieces * k;
  }

  /// Lists the first groups that reach a key, at most k, and then the first of their pieces. @returns how many.
  __device__ __forceinline__ std::uint32_t list_pieces(std::uint32_t key, std::uint32_t k,
                                                       stream_scratch<Form>& scratch) {
    const std::uint32_t chunks = shares_of(slice_.end, slice_.chunk);
    std::uint32_t words = shares_of(chunks, kGroupChunks);
    std::uint32_t listed = 0;
#pragma unroll 1
    for (std::uint32_t of_pieces = 0; of_pieces < 2; of_pieces++) {
      listed = 0;
#pragma unroll 1
      for (std::uint32_t tile = 0; tile < words && listed < k; tile += kWords * Form::kThreads) {
        const std::uint32_t at = tile + threadIdx.x * kWords;
        std::uint32_t first = at;
        std::uint32_t reach = 0;
        if (at < words) {
          if (of_pieces) first = places(0, k)[at / kWarp] * kWarp + at % kWarp;
          const auto* from = reinterpret_cast<const uint4*>((of_pieces ? sight_.pieces() : sight_.groups()) + first);
          const uint4 four = __ldcg(from);
          const uint4 other = __ldcg(from + 1);
          const std::uint32_t all[kWords] = {four.x, four.y, four.z, four.w, other.x, other.y, other.z, other.w};
#pragma unroll
          for (std::uint32_t w = 0; w < kWords; w++) reach |= all[w] >= key ? 1u << w : 0u;
          if (of_pieces && first + kWords > chunks * kPieces)
            reach &= (1u << (chunks * kPieces - min(first, chunks * kPieces))) - 1u;
        }
        const uint2 counts = count_before(__popc(reach), turn_++, scratch);
        for (std::uint32_t place = listed + counts.x; reach != 0 && place < k; reach &= reach - 1, place++)
          places(of_pieces, k)[place] = first + __ffs(static_cast<int>(reach)) - 1;
        listed += counts.y;
      }
      __syncthreads();
      listed = min(listed, k);
      words = listed * kWarp;
    }
    return listed;
  }

  /// The lane's vector of a piece, or kNoChunk.
  __device__ __forceinline__ std::uint32_t vector_of(std::uint32_t piece) const {
    const std::uint32_t first = piece / kPieces * slice_.chunk;
    const std::uint32_t vector = first + piece % kPieces * kPieceVectors + threadIdx.x % kWarp;
    return vector < slice_.chunk_end(first) ? vector : kNoChunk;
  }

  /// Which columns of a vector are wanted: bits.
  __device__ __forceinline__ std::uint32_t marks_of(const uint4& raw, const wanted_columns& wanted) const {
    constexpr std::uint32_t kPer = kPerVector<Stored>;
    const std::uint32_t flip = wanted.flip;
    float values[kPer];
    widen_vector<Stored>(make_uint4(raw.x ^ flip, raw.y ^ flip, raw.z ^ flip, raw.w ^ flip), values);
    std::uint32_t marks = 0;
#pragma unroll
    for (std::uint32_t e = 0; e < kPer; e++) marks |= wanted.has(values[e]) ? 1u << e : 0u;
    return marks;
  }

  /// Appends what is wanted of the pieces listed, in their order, until there is enough: as many of them at a time as
  /// there is room for, each warp some that follow each other.
  __device__ __forceinline__ void append_pieces(const block_list<Form>& list, std::uint32_t pieces, std::uint32_t k,
                                                const wanted_columns& wanted) {
    constexpr std::uint32_t kPer = kPerVector<Stored>;
    constexpr std::uint32_t kPieceBytes = kPieceVectors * 16;
    const std::uint32_t lane = threadIdx.x % kWarp;
    const std::uint32_t lists = (2 * k * 4 + kLineBytes - 1) / kLineBytes * kLineBytes;
    const auto* copies = reinterpret_cast<const uint4*>(free_ + lists) + lane;
    const std::uint32_t room = (static_cast<std::uint32_t>(end_ - free_) - lists) / kPieceBytes;
#pragma unroll 1
    for (std::uint32_t begin = 0; begin < pieces && found_ < wanted.count; begin += room) {
      const std::uint32_t* those = places(1, k) + begin;
      const std::uint32_t n = min(pieces - begin, room);
      const std::uint32_t each = shares_of(n, Form::kWarps);
      const std::uint32_t first = threadIdx.x / kWarp * each;
      const std::uint32_t last = min(first + each, n);
#pragma unroll 1
      for (std::uint32_t p = first; p < last; p++) {
        const std::uint32_t vector = vector_of(those[p]);
        if (vector != kNoChunk)
          async_copy_16(shared_address(copies + p * kPieceVectors), slice_.vectors + vector, true);
      }
      async_commit();
      async_wait<0>();  // each thread reads what it has copied itself
      std::uint32_t mine = 0;
#pragma unroll 2
      for (std::uint32_t p = first; p < last; p++)
        if (vector_of(those[p]) != kNoChunk) mine += __popc(marks_of(copies[p * kPieceVectors], wanted));
      const std::uint32_t of_warp = __reduce_add_sync(kFullWarp, mine);
      const uint2 counts = count_before(lane == 0 ? of_warp : 0, turn_++, *list.scratch);
      std::uint32_t next = found_ + __shfl_sync(kFullWarp, counts.x, 0);
      found_ += counts.y;
#pragma unroll 1
      for (std::uint32_t p = first; p < last && next < wanted.count; p++) {
        const std::uint32_t vector = vector_of(those[p]);
        const uint4* raw = copies + p * kPieceVectors;
        std::uint32_t marks = vector != kNoChunk ? marks_of(*raw, wanted) : 0;
        std::uint32_t place = next;
#pragma unroll
        for (std::uint32_t e = 0; e < kPer; e++) {
          const unsigned have = __ballot_sync(kFullWarp, (marks >> e & 1u) != 0);
          place += __popc(have & ((1u << lane) - 1u));
          next += __popc(have);
        }
#pragma unroll 1
        for (; marks != 0 && place < wanted.count; marks &= marks - 1, place++) {
          const std::uint32_t e = __ffs(static_cast<int>(marks)) - 1;
          append(list, reinterpret_cast<const Stored*>(raw)[e], slice_.column_of(vector) + e, place, wanted);
        }
      }
      __syncthreads();  // the copies have been read
    }
  }

  /// The same of columns beside the row's vectors, fewer than a vector has.
  __device__ __forceinline__ void append_beside(const block_list<Form>& list, const whole_row<Stored>& row,
                                                std::uint32_t first, std::uint32_t columns,
                                                const wanted_columns& wanted) {
    if (columns == 0) return;
    const std::uint32_t lane = threadIdx.x % kWarp;
    const bool is_there = lane < columns;
    const Stored value = is_there ? row.values[first + lane] : Stored{};
    const float wide = core::widen(value);
    const bool is_wanted = is_there && wanted.has(wanted.flip != 0 ? -wide : wide);
    const unsigned those = __ballot_sync(kFullWarp, is_wanted);
    const std::uint32_t place = found_ + __popc(those & ((1u << lane) - 1u));
    if (is_wanted && threadIdx.x < kWarp && place < wanted.count)
      append(list, value, row.first_column + first + lane, place, wanted);
    found_ += __popc(those);
  }

  __device__ __forceinline__ void append(const block_list<Form>& list, Stored value, std::uint32_t column,
                                         std::uint32_t place, const wanted_columns& wanted) const {
    list.keys[wanted.begin + place] = core::row_key(key_of_value<Stored>(value, wanted.flip != 0), column);
  }

  row_sight sight_;
  const row_slice<Stored>& slice_;
  const unsigned char* end_;       // of shared memory that is free behind the list
  unsigned char* free_ = nullptr;  // and where that begins
  std::uint32_t found_ = 0;        // of what is wanted
  std::uint32_t turn_ = 0;
};

/// By column: the halves of a key change places, and smaller columns are larger then.
__device__ __forceinline__ std::uint64_t turned_key(std::uint64_t key) { return key << 32 | key >> 32; }

/// Keeps of a list of more than k keys the first k by column of those that reach `high`, and if these are fewer, of the
/// others. @pre columns are below 2^31. All threads come, after a barrier; they leave through one.
template <class Form>
__device__ __forceinline__ void keep_first(const block_list<Form>& list, std::uint32_t high, std::uint32_t k) {
  constexpr std::uint64_t kIsAbove = std::uint64_t{1} << 63;  // the inverted column of every key has this bit
  const std::uint32_t n = list.count();
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads) {
    const std::uint64_t key = list.keys[i];
    list.keys[i] = core::key_of(key) >= high ? turned_key(key) : turned_key(key) & ~kIsAbove;
  }
  __syncthreads();
  keep_best(list, k);
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x; i < k; i += Form::kThreads) list.keys[i] = turned_key(list.keys[i] | kIsAbove);
  __syncthreads();
}

/// Leaves in the list what an early stop selects of a row. @param complete all columns whose keys reach it are in the
/// list, and at least the k best. All threads come, after a barrier; they leave through one.
template <class Stored, class Form>
__device__ __forceinline__ void choose_stopped(const early_stop& stop, const block_list<Form>& list,
                                               const whole_row<Stored>& row, std::uint64_t complete,
                                               std::uint32_t worst, std::uint32_t flip, std::uint32_t k,
                                               second_look<Stored, Form> look) {
  constexpr std::uint32_t kShared = kSharedBits<Stored>;
  const std::uint32_t n = list.count();
  std::uint64_t exact = kEverything;
  std::uint32_t border = ~0u;
  std::uint32_t best = 0;
  if (row.columns > k) {
    exact = cut_of(list.keys, n, k, 0, *list.scratch);
    std::uint32_t there = 0;
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads) {
      const std::uint64_t key = list.keys[i];
      if (key >= exact) border = min(border, core::key_of(key));
      best = max(best, core::key_of(key));
    }
    join_ranges(border, best, there, *list.scratch);
  }
  stop_range range{0, 0, k};
  const row_numbers numbers{worst >> kShared, best >> kShared, border >> kShared};
  if (row.columns <= k || !find_stop<Stored>(stop, numbers, range) || range.is_above(numbers.border))
    return keep_from(list, exact);  // of those that equal the best, too, the first are the exact choice
  const float low = value_of_number<Stored>(range.low);
  const float high = range.none_above() ? INFINITY : value_of_number<Stored>(range.high);
  const std::uint64_t from = static_cast<std::uint64_t>(core::ascending_key(low)) << 32;
  const std::uint32_t above = core::ascending_key(high);  // infinity's, which nothing reaches, if none is above
  if (from >= complete) {
    keep_from(list, from);
    if (list.count() > k) keep_first(list, above, k);
    return;
  }
  keep_from(list, static_cast<std::uint64_t>(above) << 32);
  look(list, row, flip, low, high, k);
}

}  // namespace shortlist::cuda::streaming
