// What a block has kept of a long row: a list of keys above a cut that rises, and how the cut is found. See
// stream_rows_kernel.cuh.
#pragma once

#include <bit>
#include <cstdint>

#include "cuda/device/block_select.cuh"
#include "cuda/top_k/stream_chunks.cuh"

namespace shortlist::cuda::streaming {

constexpr std::uint32_t kListRoom = 4096;  // places above k in a list: at least two chunks' columns
constexpr int kLevels = kWarp;             // bins of what is appended: a warp sums them up at once
constexpr std::uint32_t kLeastTold = 5;    // bins are looked at every 2^5 keys, or 1/8 of a block's share of k
constexpr int kBins = 2048;
constexpr int kHeld = 4;                  // keys of a thread between two barriers of keep_from
constexpr std::uint64_t kEverything = 1;  // a cut that every column reaches
static_assert(kListRoom / 2 >= kChunk * 16 / 2, "a chunk must fit into what raise_cut frees");
constexpr std::uint32_t kGroupsByWarps = 4;  // so few groups of a block are of its warps

/// What a team shares in global memory; its two sets of maxima and its list follow.
struct alignas(128) team_board {
  unsigned long long cut;         // the best of the cuts that blocks found in their lists
  unsigned long long base;        // of the bins of rows in portions; 0: not told yet
  std::uint32_t shift;            // log2 of their width
  std::uint32_t found;            // keys in the team's list
  std::uint32_t arrived;          // blocks that have handed over
  std::uint32_t levels[kLevels];  // what blocks have told of their bins: all begin with the same
};

/// What a block's warps share while they stream.
struct stream_state {
  unsigned long long cut;         // only rises
  std::uint32_t count;            // keys in the list; more than its capacity after an append that did not fit
  unsigned long long base;        // of the bins: the cut when they were empty
  std::uint32_t shift;            // log2 of a bin's width
  bool common;                    // the bins are those of the whole team
  std::uint32_t levels[kLevels];  // keys appended and not told, by value; the last bin has all that are better, too
};

template <class Form>
struct alignas(kLineBytes) stream_scratch {
  select_scratch<Form::kThreads> select;
  union {
    std::uint32_t bins[kBins];
    std::uint64_t maxima[Form::kThreads];
  };
  stream_state state;
  std::uint32_t largest;  // high word of the best key that cut_of saw; thread 0's
  std::uint32_t last;
};

/// Keys in shared memory that all threads of a block append to.
template <class Form>
struct block_list {
  std::uint64_t* keys;
  std::uint32_t capacity;
  stream_scratch<Form>* scratch;

  __device__ __forceinline__ std::uint32_t count() const { return min(scratch->state.count, capacity); }
  /// While other warps may append.
  __device__ __forceinline__ bool overflowed() const {
    return *static_cast<volatile std::uint32_t*>(&scratch->state.count) > capacity;
  }
  __device__ __forceinline__ std::uint64_t cut() const {
    return *static_cast<volatile unsigned long long*>(&scratch->state.cut);
  }
};

/// The least value that reaches a cut, of a chunk that begins at a column. Of the chunk in which the cut's own column
/// lies, all that equal the cut reach it, which does no harm.
struct least_value {
  float value;
  bool all;  // NaN, too

  __device__ __forceinline__ least_value(std::uint64_t cut, std::uint32_t first_column) {
    const std::uint32_t key = core::key_of(cut) + (first_column <= core::position_of(cut) ? 0 : 1);
    all = key == core::kNanKey;
    value = core::from_ascending_key(max(key, kMinusInfinityKey));  // NaN, which nothing reaches, above infinity
  }
};

/// Exclusive sum over the lanes; with lanes_up_to of filter_parts.cuh, rows of 10^8 columns and more took 3 % longer.
__device__ __forceinline__ std::uint32_t lanes_before(std::uint32_t value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::uint32_t sum = value;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset <<= 1) {
    const std::uint32_t other = __shfl_up_sync(kFullWarp, sum, offset);
    if (lane >= offset) sum += other;
  }
  return sum - value;
}

/// Which columns of a lane's vectors reach the least value: bit e of each kPerVector bits is a vector's column e.
template <class Stored>
__device__ __forceinline__ std::uint32_t reaching(const uint4 (&raw)[kVectors], least_value least) {
  constexpr int kPerVector = cuda::kPerVector<Stored>;
  static_assert(kVectors * kPerVector <= 32);
  std::uint32_t reach = least.all ? ~0u >> (32 - kVectors * kPerVector) : 0u;
#pragma unroll
  for (int v = 0; v < kVectors; v++) {
    float values[kPerVector];
    widen_vector<Stored>(raw[v], values);
#pragma unroll
    for (int e = 0; e < kPerVector; e++) reach |= values[e] >= least.value ? 1u << (v * kPerVector + e) : 0u;
  }
  return reach;
}

/// A cut that k columns reach, as far as bins can tell: the team's, who are told what the block has counted since, or
/// the block's own where it has begun new ones. Every column is counted once. A warp comes.
/// @returns it in one lane, and 0 in the others, or in all of them.
__device__ __forceinline__ unsigned long long cut_by_levels(stream_state& state, team_board* board, std::uint32_t k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::uint32_t level = kLevels - 1 - lane;
  std::uint32_t mine = 0;
  if (board && state.common) {
    const std::uint32_t fresh = atomicExch(&state.levels[level], 0u);
    mine = atomicAdd(&board->levels[level], fresh) + fresh;
  } else {
    mine = *static_cast<volatile std::uint32_t*>(&state.levels[level]);
  }
  const unsigned enough = __ballot_sync(kFullWarp, lanes_before(mine) + mine >= k);
  if (enough == 0 || lane != __ffs(static_cast<int>(enough)) - 1) return 0;
  return state.base + (static_cast<unsigned long long>(level) << state.shift);
}

/// Raises the cut to that of the levels, or of the team.
__device__ __forceinline__ void raise_by_levels(stream_state& state, team_board* board, std::uint32_t k) {
  unsigned long long cut = cut_by_levels(state, board, k);
  if (cut <= *static_cast<volatile unsigned long long*>(&state.cut)) return;
  if (board) cut = max(cut, atomicMax(&board->cut, cut));
  atomicMax(&state.cut, cut);
}

/// Empties the bins, which are to tell keys apart from the cut up to those of the largest value: of ties, columns.
__device__ __forceinline__ void start_levels(stream_state& state, std::uint64_t cut, std::uint32_t largest,
                                             bool common) {
  const std::uint64_t width = max(static_cast<std::uint64_t>(largest) << 32 | ~0u, cut) - cut;
  constexpr int kLevelBits = std::bit_width(static_cast<unsigned>(kLevels)) - 1;
  state.base = cut;
  state.common = common;
  state.shift = max(0, 64 - __clzll(static_cast<long long>(width)) - kLevelBits);
  for (int l = 0; l < kLevels; l++) state.levels[l] = 0;
}
__device__ __forceinline__ void count_level(stream_state& state, std::uint64_t key) {
  if (key < state.base) return;
  const std::uint64_t level = (key - state.base) >> state.shift;
  atomicAdd(&state.levels[min(level, std::uint64_t{kLevels - 1})], 1u);
}

/// Appends what reaches the cut of the chunk that a warp has in a stage, all of it or nothing. Bins are looked at every
/// 2^told keys.
/// @returns false if it did not fit; the list has then overflowed, and what was left of it holds no keys.
template <class Form, class Part>
__device__ __forceinline__ bool append_chunk(const block_list<Form>& list, const Part& part, std::uint32_t first,
                                             const unsigned char* stage, std::uint32_t reach, bool negated,
                                             team_board* board, std::uint32_t k, std::uint32_t told) {
  using stored = typename Part::stored;
  constexpr std::uint32_t kPerVector = Part::kPerVector;
  stream_state& state = list.scratch->state;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t mine = first + lane;
  const std::uint32_t end = part.chunk_end(first);
  if (end - first != kChunk) {
    const std::uint32_t there = mine < end ? (end - mine + kWarp - 1) / kWarp * kPerVector : 0;  // columns of this lane
    if (there < 32) reach &= (1u << there) - 1u;
  }
  const std::uint32_t all = __reduce_add_sync(kFullWarp, static_cast<std::uint32_t>(__popc(reach)));
  if (all == 0) return true;
  std::uint32_t begin = 0;
  if (lane == 0) begin = atomicAdd(&state.count, all);
  begin = __shfl_sync(kFullWarp, begin, 0);
  if (begin + all > list.capacity) {
    for (std::uint32_t i = begin + lane; i < list.capacity; i += kWarp) list.keys[i] = core::kNoRow;
    return false;
  }
  std::uint32_t at = begin;
#pragma unroll 1
  for (unsigned those = __ballot_sync(kFullWarp, reach != 0); those != 0;
       those = __ballot_sync(kFullWarp, reach != 0)) {
    if (reach != 0) {
      const std::uint32_t bit = __ffs(static_cast<int>(reach)) - 1;
      const std::uint32_t v = bit / kPerVector;
      const std::uint32_t e = bit % kPerVector;
      const stored value = reinterpret_cast<const stored*>(stage + v * Form::kVectorPitch)[e];
      const std::uint64_t key =
          core::row_key(key_of_value<stored>(value, negated), part.column_of(mine + v * kWarp) + e);
      list.keys[at + __popc(those & ((1u << lane) - 1u))] = key;
      count_level(state, key);
      reach &= reach - 1;
    }
    at += __popc(those);
  }
  if ((begin ^ at) >> told) raise_by_levels(state, board, k);
  return true;
}

/// Makes the list new: it holds what reaches the cut of the columns outside all vectors, in the team's first block.
/// All threads come; the list's memory is free.
template <class Stored, class Form>
__device__ __forceinline__ void start_list(const block_list<Form>& list, const whole_row<Stored>& row, bool first_block,
                                           bool negated, std::uint64_t cut) {
  constexpr std::uint32_t kHalfWarp = kWarp / 2;  // lanes for the columns at either end: fewer than a vector's
  if (threadIdx.x < kWarp) {
    const std::uint32_t place = threadIdx.x % kHalfWarp;
    const bool ahead = threadIdx.x < kHalfWarp;
    std::uint64_t key = core::kNoRow;
    if (first_block && place < (ahead ? row.head : row.tail())) {
      const std::uint32_t i = ahead ? place : row.columns - row.tail() + place;
      key = core::row_key(key_of_value<Stored>(row.values[i], negated), row.first_column + i);
    }
    const bool reaches = key >= cut;
    const unsigned those = __ballot_sync(kFullWarp, reaches);
    if (reaches) list.keys[__popc(those & ((1u << threadIdx.x) - 1u))] = key;
    if (threadIdx.x == 0) {
      list.scratch->state.count = __popc(those);
      list.scratch->state.cut = cut;
      start_levels(list.scratch->state, cut, list.scratch->largest, true);
    }
  }
  __syncthreads();
}

/// Tells the team which bins all blocks count in. All threads may come, after a barrier.
template <class Form>
__device__ __forceinline__ void tell_levels(const block_list<Form>& list, team_board& board) {
  if (threadIdx.x != 0) return;
  const stream_state& state = list.scratch->state;
  board.shift = state.shift;
  __threadfence();  // who sees the base sees the width, too
  *static_cast<volatile unsigned long long*>(&board.base) = state.base;
}

/// Makes the list new for columns of a row that others have begun: with their cut, and their bins. All threads come;
/// the list's memory is free.
template <class Form>
__device__ __forceinline__ void join_list(const block_list<Form>& list, team_board& board) {
  if (threadIdx.x == 0) {
    stream_state& state = list.scratch->state;
    const unsigned long long base = *static_cast<volatile unsigned long long*>(&board.base);
    state.count = 0;
    if (base == 0) {  // not told yet
      state.cut = kEverything;
      start_levels(state, kEverything, ~0u, false);
    } else {
      __threadfence();
      state.cut = max(base, *static_cast<volatile unsigned long long*>(&board.cut));
      start_levels(state, base, 0, true);
      state.shift = *static_cast<volatile std::uint32_t*>(&board.shift);
    }
  }
  __syncthreads();
}

/// The bin that holds the k-th largest, of bins that are in increasing order. `above` keys lie above all bins.
/// @returns the bin; `above` then counts what lies above it, and `reached` its own keys too.
template <class Form>
__device__ __forceinline__ std::uint32_t find_bin(std::uint32_t k, std::uint32_t& above, std::uint32_t& reached,
                                                  stream_scratch<Form>& scratch) {
  constexpr int kBinsPerThread = (kBins + Form::kThreads - 1) / Form::kThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsPerThread;  // a thread's bins, from here down
  std::uint32_t mine = 0;
#pragma unroll
  for (int b = 0; b < kBinsPerThread; b++) mine += top >= b ? scratch.bins[top - b] : 0;
  std::uint32_t before = above + lanes_before(mine);
  const std::uint32_t of_warp = __reduce_add_sync(kFullWarp, mine);
  if (lane == 0) scratch.select.totals[0][warp] = of_warp;
  __syncthreads();
  before += __reduce_add_sync(kFullWarp, lane < warp ? scratch.select.totals[0][lane] : 0u);
  if (before < k && before + mine >= k) {
    int b = 0;
    while (before + scratch.bins[top - b] < k) before += scratch.bins[top - b++];
    scratch.select.digit = static_cast<std::uint32_t>(top - b);
    scratch.select.above = before;
    scratch.select.counter = before + scratch.bins[top - b];
  }
  __syncthreads();
  above = scratch.select.above;
  reached = scratch.select.counter;
  return scratch.select.digit;
}

/// The smallest, the largest, and the sum of `there`, of all threads.
template <class Form>
__device__ __forceinline__ void join_ranges(std::uint32_t& smallest, std::uint32_t& largest, std::uint32_t& there,
                                            stream_scratch<Form>& scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto join = [&](uint3 range) {
    return make_uint3(__reduce_min_sync(kFullWarp, range.x), __reduce_max_sync(kFullWarp, range.y),
                      __reduce_add_sync(kFullWarp, range.z));
  };
  const uint3 of_warp = join(make_uint3(smallest, largest, there));
  if (lane == 0) scratch.select.ranges[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  const uint3 all = join(lane < Form::kWarps ? scratch.select.ranges[lane] : make_uint3(~0u, 0, 0));
  smallest = all.x;
  largest = all.y;
  there = all.z;
  if (threadIdx.x == 0) scratch.largest = largest;
}

/// A word that at least k and at most k + slack of the threads' words reach, of which 0 is none; all that do are
/// counted in `reached`. More than k + slack reach it only if they are equal. 0 if there are fewer than k. All threads
/// come.
template <class Form>
__device__ __forceinline__ std::uint32_t word_cut(std::uint32_t word, std::uint32_t k, std::uint32_t slack,
                                                  std::uint32_t& reached, stream_scratch<Form>& scratch) {
  std::uint32_t low = word == 0 ? ~0u : word;
  std::uint32_t high = word;
  reached = word != 0 ? 1 : 0;
  join_ranges(low, high, reached, scratch);
  __syncthreads();  // the ranges have been read
  if (reached < k) return 0;
#pragma unroll 1
  while (reached > k + slack && low < high) {  // k reach `low`, fewer reach what is above `high`
    const std::uint32_t middle = high - (high - low) / 2;
    const std::uint32_t count = __syncthreads_count(word >= middle);
    if (count >= k) {
      low = middle;
      reached = count;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// cut_of for no more keys than threads, in shared or global memory: by values, and of ties by columns. All threads
/// come.
template <class Form>
__device__ __noinline__ std::uint64_t quick_cut(const std::uint64_t* keys, std::uint32_t n, std::uint32_t k,
                                                std::uint32_t slack, stream_scratch<Form>& scratch) {
  const std::uint64_t key =
      threadIdx.x < n ? *static_cast<const volatile std::uint64_t*>(keys + threadIdx.x) : core::kNoRow;
  std::uint32_t reached = 0;
  const std::uint32_t value = word_cut(core::key_of(key), k, slack, reached, scratch);
  const std::uint32_t largest = scratch.largest;
  if (value != 0 && reached <= k + slack) return static_cast<std::uint64_t>(value) << 32;
  const auto column_word = static_cast<std::uint32_t>(key);
  const std::uint32_t among = core::key_of(key) > value ? ~0u : core::key_of(key) == value ? column_word : 0u;
  const std::uint32_t column = word_cut(among, k, slack, reached, scratch);
  if (threadIdx.x == 0) scratch.largest = largest;
  return max(static_cast<std::uint64_t>(value) << 32 | column, kEverything);
}

/// A cut that at least k and at most k + slack of keys[0, n) in shared memory reach: all of them if they are k, and
/// kEverything if they are fewer. kNoRow is no key. Passes over equal bins of the range that is left: six are enough
/// for any data, two or three mostly. All threads come, after a barrier; the keys may be written again at once.
template <class Form>
__device__ __noinline__ std::uint64_t cut_of(const std::uint64_t* keys, std::uint32_t n, std::uint32_t k,
                                             std::uint32_t slack, stream_scratch<Form>& scratch) {
  if (n <= Form::kThreads) return quick_cut(keys, n, k, slack, scratch);
  std::uint32_t smallest = ~0u;  // the range by high words alone: they reduce in one instruction
  std::uint32_t largest = 0;
  std::uint32_t there = 0;
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads) {
    const std::uint64_t key = keys[i];
    if (key == core::kNoRow) continue;
    there++;
    smallest = min(smallest, core::key_of(key));
    largest = max(largest, core::key_of(key));
  }
  join_ranges(smallest, largest, there, scratch);
  __syncthreads();  // the ranges have been read
  if (there < k) return kEverything;
  if (there == k) return max(static_cast<std::uint64_t>(smallest) << 32, kEverything);

  std::uint64_t low = static_cast<std::uint64_t>(smallest) << 32;
  std::uint64_t high = static_cast<std::uint64_t>(largest) << 32 | ~0u;
  if (smallest == largest) {  // ties: the range of columns
    std::uint32_t least = ~0u;
    std::uint32_t most = 0;
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads) {
      const std::uint64_t key = keys[i];
      if (key == core::kNoRow) continue;
      least = min(least, static_cast<std::uint32_t>(key));
      most = max(most, static_cast<std::uint32_t>(key));
    }
    join_ranges(least, most, there, scratch);
    if (threadIdx.x == 0) scratch.largest = largest;
    __syncthreads();  // the ranges have been read
    high = low | most;
    low |= least;
  }
  std::uint32_t above = 0;
  for (;;) {
    constexpr int kBinBits = std::bit_width(static_cast<unsigned>(kBins)) - 1;
    const int shift = max(0, 64 - __clzll(static_cast<long long>(high - low)) - kBinBits);
    for (int b = threadIdx.x; b < kBins; b += Form::kThreads) scratch.bins[b] = 0;
    __syncthreads();
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads) {
      const std::uint64_t key = keys[i];
      if (key >= low && key <= high && key != core::kNoRow) atomicAdd(&scratch.bins[(key - low) >> shift], 1u);
    }
    __syncthreads();
    std::uint32_t reached = 0;
    const std::uint32_t bin = find_bin(k, above, reached, scratch);
    low += static_cast<std::uint64_t>(bin) << shift;
    high = low + min(high - low, (std::uint64_t{1} << shift) - 1);
    if (reached <= k + slack || shift == 0) return max(low, kEverything);
  }
}

/// Keeps only what reaches the cut. All threads come, after a barrier; they leave through one.
template <class Form>
__device__ __noinline__ void keep_from(block_list<Form> list, std::uint64_t cut) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::uint32_t n = list.count();
  __syncthreads();  // all have read the count
  if (threadIdx.x == 0) list.scratch->state.count = 0;
  for (std::uint32_t start = 0; start < n; start += kHeld * Form::kThreads) {
    std::uint64_t held[kHeld];
#pragma unroll
    for (int h = 0; h < kHeld; h++) {
      const std::uint32_t i = start + h * Form::kThreads + threadIdx.x;
      held[h] = i < n ? list.keys[i] : core::kNoRow;
    }
    __syncthreads();  // all hold theirs: what is kept goes to places before those still unread
#pragma unroll
    for (int h = 0; h < kHeld; h++) {
      const unsigned kept = __ballot_sync(kFullWarp, held[h] >= cut);
      std::uint32_t at = 0;
      if (lane == 0 && kept) at = atomicAdd(&list.scratch->state.count, static_cast<std::uint32_t>(__popc(kept)));
      at = __shfl_sync(kFullWarp, at, 0);
      if (held[h] >= cut) list.keys[at + __popc(kept & ((1u << lane) - 1u))] = held[h];
    }
  }
  __syncthreads();
}

/// Keeps the k best alone. @returns their cut. All threads come, after a barrier; they leave through one.
template <class Form>
__device__ __noinline__ std::uint64_t keep_best(block_list<Form> list, std::uint32_t k) {
  const std::uint64_t cut = cut_of(list.keys, list.count(), k, 0, *list.scratch);
  keep_from(list, cut);
  return cut;
}

/// Joins a block's keys, kSampled a thread, into its groups' maxima, and writes these. Groups are spread over the
/// vectors, so that the columns that begin a slice are in different ones. All threads come.
template <class Form>
__device__ __forceinline__ void write_groups(std::uint64_t (&best)[kSampled], std::uint32_t groups, std::uint64_t* to,
                                             stream_scratch<Form>& scratch) {
#pragma unroll
  for (int half = kSampled / 2; half > 0; half /= 2) {
    if (groups < 2u * half * Form::kThreads) {
#pragma unroll
      for (int v = 0; v < half; v++) best[v] = max(best[v], best[v + half]);
    }
  }
  if (groups <= kGroupsByWarps) {
    const auto most_of_warp = [](std::uint64_t key) {
      const std::uint32_t high = __reduce_max_sync(kFullWarp, core::key_of(key));
      const std::uint32_t low =
          __reduce_max_sync(kFullWarp, core::key_of(key) == high ? static_cast<std::uint32_t>(key) : 0);
      return static_cast<std::uint64_t>(high) << 32 | low;
    };
    const std::uint32_t lane = threadIdx.x % kWarp;
    const std::uint64_t of_warp = most_of_warp(best[0]);
    if (lane == 0) scratch.maxima[threadIdx.x / kWarp] = of_warp;
    __syncthreads();
    if (threadIdx.x >= kWarp) return;
    const std::uint64_t mine = lane < Form::kWarps ? scratch.maxima[lane] : core::kNoRow;
#pragma unroll 1
    for (std::uint32_t g = 0; g < groups; g++) {
      const std::uint64_t of_group = most_of_warp(lane % groups == g ? mine : core::kNoRow);
      if (lane == 0) to[g] = of_group;
    }
    return;
  }
  if (groups >= Form::kThreads) {
#pragma unroll
    for (int v = 0; v < kSampled; v++)
      if (v * Form::kThreads < groups) to[v * Form::kThreads + threadIdx.x] = best[v];
    return;
  }
  std::uint64_t most = best[0];
  for (std::uint32_t offset = kWarp / 2; offset >= groups; offset /= 2)
    most = max(most, __shfl_xor_sync(kFullWarp, most, static_cast<int>(offset)));
  scratch.maxima[threadIdx.x] = most;
  __syncthreads();
  if (threadIdx.x < groups) {
    for (std::uint32_t i = threadIdx.x; i < Form::kThreads; i += max(groups, static_cast<std::uint32_t>(kWarp)))
      most = max(most, scratch.maxima[i]);
    to[threadIdx.x] = most;
  }
}

}  // namespace shortlist::cuda::streaming
