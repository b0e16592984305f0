// Row-wise top k of few long rows: a team of blocks a row, which stream it past a cut that the k best surely reach.
//
// Why it is fast: a row is read once by 16-byte copies into shared memory, eight under way in a thread even while it
// appends; each lane reads what it copied itself, so that nothing waits for another. What is below the cut costs a
// maximum and a share of a vote. The cut: of disjoint groups of columns, the k-th largest of the groups' maxima is no
// better than the k-th best of the row, and with two groups or more for each of the k it is hardly worse than the k-th
// best of what the groups cover.
// Steps: every warp loads the first chunks of its slice, and asks L2 for the next -> maxima of groups -> the team
// meets, every block finds the cut -> slices are streamed, what reaches the cut goes to the block's list, and is
// counted in bins that the team sums up: a bin that k columns reach is the next cut; a full list is shortened by it,
// or to its k best -> where much may have been kept, the team agrees on a cut of the lists -> lists to the team's, and
// the last block to hand over chooses, orders and writes.
// A team of one block does the same without meetings. Keys are distinct, value above and column below, so that ties
// need no care anywhere.
// Limit: bytes(in) over read bandwidth. Measured share: docs/kernels.md.
// History, 100 x 10^6, k 100: loads into registers, all appends against one cut 0.22 ms -> copies under way during
// appends, the cut raised by counts of bins 0.13 -> teams count together 0.12.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "core/order.hpp"
#include "core/plan.hpp"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/element.cuh"
#include "cuda/device/grid.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"
#include "cuda/top_k/row_parts.cuh"
#include "cuda/top_k/stream_rows.hpp"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 384;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocks = 2;   // a multiprocessor holds
constexpr int kVectors = 4;  // of a chunk, in a lane
constexpr int kStages = 2;   // chunks under way in a warp: 96 KB a multiprocessor, where about 40 KB hide the latency
constexpr int kSampled = kStages * kVectors;        // vectors of a thread whose maxima make the first cut
constexpr std::uint32_t kChunk = kVectors * kWarp;  // vectors that a warp loads at a time
constexpr int kAhead = 4;  // chunks of a warp that come into L2 while the cut is found: 25 MB on 132 multiprocessors
constexpr std::uint32_t kNoChunk = ~0u;
constexpr std::uint32_t kLineVectors = 8;   // 128 bytes: slices begin where lines do, if the row does
constexpr std::uint32_t kMostEven = 8;      // slices of more chunks take them whole, others divide evenly
constexpr std::uint32_t kGroupsPerK = 2;    // of G groups, G ln(G / (G - k)) columns reach the cut: < 1.4 k
constexpr std::int64_t kLeastPiece = 8192;  // columns worth a block: five or six vectors a thread, of fp32
constexpr std::uint32_t kListRoom = 4096;   // places above k in a list: at least two chunks' columns
constexpr std::uint32_t kCounted = 256;     // keys are ranked by all pairs up to here, and sorted above
constexpr std::uint32_t kCountedCut = 96;   // the same for a cut, for which one pass over bins is enough mostly
constexpr int kLevels = kWarp;              // bins of what is appended: a warp sums them up at once
constexpr std::uint32_t kLeastTold = 5;     // bins are looked at every 2^5 keys, or 1/8 of a block's share of k
constexpr int kBins = 2048;
constexpr int kBinsPerThread = (kBins + kThreads - 1) / kThreads;
constexpr int kHeld = 4;                            // keys of a thread between two barriers of keep_from
constexpr std::uint64_t kEverything = 1;            // a cut that every column reaches
constexpr std::uint32_t kGoldenRatio = 2654435769;  // 0.618 of 2^32
static_assert(kListRoom / 2 >= kChunk * 16 / 2, "a chunk must fit into what raise_cut frees");
static_assert(kCounted <= kThreads && kCountedCut <= kThreads, "all pairs: a thread or several a key");

/// What a team shares in global memory; its two sets of maxima and its list follow.
struct alignas(128) team_board {
  unsigned long long cut;         // the best of the cuts that blocks found in their lists
  std::uint32_t found;            // keys in the team's list
  std::uint32_t arrived;          // blocks that have handed over
  std::uint32_t levels[kLevels];  // what blocks have told of their bins: all begin with the same
};

struct stream_args {
  core::top_k_request request;
  std::int64_t first_row;
  unsigned char* boards;     // of teams of several blocks
  std::int64_t board_bytes;  // of one team
  std::uint32_t team;        // blocks a row
  std::uint32_t groups;      // of each block: see groups_for
  std::uint32_t capacity;    // keys in a block's list
  bool agrees_twice;

  __host__ __device__ std::uint32_t team_groups() const { return team * groups; }
};

/// What a block's warps share while they stream.
struct stream_state {
  unsigned long long cut;         // only rises
  std::uint32_t count;            // keys in the list; more than its capacity after an append that did not fit
  std::uint32_t base;             // of the bins: the key of the cut when they were empty
  std::uint32_t shift;            // log2 of a bin's width
  bool common;                    // the bins are those of the whole team
  std::uint32_t levels[kLevels];  // keys appended and not told, by value; the last bin has all that are better, too
};

struct alignas(16) stream_scratch {
  select_scratch<kThreads> select;
  union {
    std::uint32_t bins[kBins];
    std::uint64_t maxima[kThreads];
  };
  stream_state state;
  std::uint64_t result;
  std::uint32_t largest;  // high word of the best key that cut_of saw; thread 0's
  std::uint32_t last;
};

/// Keys in shared memory that all threads of a block append to.
struct block_list {
  std::uint64_t* keys;
  std::uint32_t capacity;
  stream_scratch* scratch;

  __device__ __forceinline__ std::uint32_t count() const { return min(scratch->state.count, capacity); }
  /// While other warps may append.
  __device__ __forceinline__ bool overflowed() const {
    return *static_cast<volatile std::uint32_t*>(&scratch->state.count) > capacity;
  }
  __device__ __forceinline__ std::uint64_t cut() const {
    return *static_cast<volatile unsigned long long*>(&scratch->state.cut);
  }
};

/// Copies under way: every thread's own vectors, read by itself alone.
constexpr std::uint32_t kVectorPitch = kThreads * 16;  // bytes from a thread's vector to its next
constexpr std::uint32_t kStagePitch = kVectors * kVectorPitch;
constexpr std::int64_t kRingBytes = std::int64_t{kStages} * kStagePitch;
static_assert(kRingBytes >= core::kStreamRowsMaxK * std::int64_t{sizeof(std::uint64_t)},
              "k keys beside as many maxima as a list holds");

/// One warp's part of a row, in vectors of 16 bytes counted from the row's first whole one.
template <class Stored>
struct row_slice {
  static constexpr int kPerVector = 16 / static_cast<int>(sizeof(Stored));
  const uint4* vectors;
  std::uint32_t first_column;  // of vector 0
  std::uint32_t begin;
  std::uint32_t end;
  std::uint32_t chunk;   // vectors, at most kChunk
  std::uint32_t chunks;  // 0 if the slice is empty

  __device__ __forceinline__ std::uint32_t column_of(std::uint32_t vector) const {
    return first_column + vector * kPerVector;
  }
  __device__ __forceinline__ std::uint32_t chunk_end(std::uint32_t first) const { return min(first + chunk, end); }
};

/// A whole row: the columns before its first vector, its vectors, and the columns behind them.
template <class Stored>
struct whole_row {
  const Stored* values;  // of its first column
  std::uint32_t first_column;
  std::uint32_t columns;
  std::uint32_t head;
  std::uint32_t vectors;

  __device__ __forceinline__ std::uint32_t tail() const {
    return columns - head - vectors * row_slice<Stored>::kPerVector;
  }
};

template <class Stored>
__device__ __forceinline__ whole_row<Stored> open_row(const core::top_k_request& request, std::int64_t row) {
  constexpr std::uint32_t kPerVector = row_slice<Stored>::kPerVector;
  const row_span span = span_of(request, row);
  const Stored* values = static_cast<const Stored*>(request.matrix.data) + row * request.matrix.row_stride + span.begin;
  const auto columns = static_cast<std::uint32_t>(span.count);
  const auto past = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(values) % 16 / sizeof(Stored));
  const std::uint32_t head = min(columns, past == 0 ? 0 : kPerVector - past);
  return {values, static_cast<std::uint32_t>(span.begin), columns, head, (columns - head) / kPerVector};
}

/// The slice of warp `slot` of `slots`. Slices are far apart, so that their first chunks are a sample of the row.
template <class Stored>
__device__ __forceinline__ row_slice<Stored> slice_of(const whole_row<Stored>& row, std::uint32_t slot,
                                                      std::uint32_t slots) {
  const std::uint32_t length = ((row.vectors + slots - 1) / slots + kLineVectors - 1) / kLineVectors * kLineVectors;
  row_slice<Stored> slice;
  slice.vectors = reinterpret_cast<const uint4*>(row.values + row.head);
  slice.first_column = row.first_column + row.head;
  slice.begin = min(slot * length, row.vectors);
  slice.end = min(slice.begin + length, row.vectors);
  const std::uint32_t chunks = (length + kChunk - 1) / kChunk;
  slice.chunk = kChunk;
  if (chunks > 0 && chunks <= kMostEven)
    slice.chunk = min(kChunk, ((length + chunks - 1) / chunks + kLineVectors - 1) / kLineVectors * kLineVectors);
  slice.chunks = (slice.end - slice.begin + slice.chunk - 1) / slice.chunk;
  return slice;
}

/// What turns the signs of a word of stored values, so that larger is better.
template <class Stored>
__device__ __forceinline__ std::uint32_t sign_flip(const core::top_k_request& request) {
  if (request.options.order == order::largest) return 0;
  return sizeof(Stored) == 4 ? core::kSignBit : 0x80008000u;
}

/// The chunks of a slice, out of order, so that no order of the data makes each chunk better than those before.
template <class Stored>
struct chunk_walk {
  std::uint32_t turns;  // a power of two; those that stand for no chunk are passed over
  std::uint32_t step;
  std::uint32_t turn = 0;
  std::uint32_t chunk = 0;

  /// @returns the next chunk's first vector, or kNoChunk.
  __device__ __forceinline__ std::uint32_t next(const row_slice<Stored>& slice) {
    while (turn < turns) {
      const std::uint32_t here = chunk;
      turn++;
      chunk = (chunk + step) & (turns - 1);
      if (here < slice.chunks) return slice.begin + here * slice.chunk;
    }
    return kNoChunk;
  }
};

template <class Stored>
__device__ __forceinline__ chunk_walk<Stored> walk_of(const row_slice<Stored>& slice) {
  const std::uint32_t turns = slice.chunks == 0 ? 0 : 1u << (32 - __clz(static_cast<int>(slice.chunks - 1)));
  return {turns, static_cast<std::uint32_t>(static_cast<std::uint64_t>(turns) * kGoldenRatio >> 32) | 1u};
}

/// Begins to copy a chunk to a stage: lane l has the vectors l, l + 32, ..; those past the chunk's end are copies of
/// its last. Without a chunk, only counts as a group of copies.
template <class Stored>
__device__ __forceinline__ void copy_chunk(const row_slice<Stored>& slice, std::uint32_t first,
                                           std::uint32_t stage_address) {
  if (first != kNoChunk) {
    const std::uint32_t mine = first + threadIdx.x % kWarp;
    const std::uint32_t end = slice.chunk_end(first);
    if (end - first == kChunk) {
      const uint4* from = slice.vectors + mine;
#pragma unroll
      for (int v = 0; v < kVectors; v++) async_copy_16(stage_address + v * kVectorPitch, from + v * kWarp, true);
    } else {
#pragma unroll
      for (int v = 0; v < kVectors; v++)
        async_copy_16(stage_address + v * kVectorPitch, slice.vectors + min(mine + v * kWarp, end - 1), true);
    }
  }
  async_commit();
}

__device__ __forceinline__ void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/// Brings a warp's next chunks into L2, so that memory does not rest while the cut is found.
template <class Stored>
__device__ __forceinline__ void prefetch_chunks(const row_slice<Stored>& slice, chunk_walk<Stored> walk) {
  static_assert(kChunk <= kWarp * kLineVectors);
#pragma unroll 1
  for (int i = 0; i < kAhead; i++) {
    const std::uint32_t first = walk.next(slice);
    if (first == kNoChunk) return;
    const std::uint32_t mine = first + threadIdx.x % kWarp * kLineVectors;
    if (mine < slice.chunk_end(first)) prefetch_line(slice.vectors + mine);
  }
}

/// A thread's vectors of a stage, which must have come.
__device__ __forceinline__ void read_stage(const unsigned char* stage, std::uint32_t flip, uint4 (&raw)[kVectors]) {
#pragma unroll
  for (int v = 0; v < kVectors; v++) raw[v] = *reinterpret_cast<const uint4*>(stage + v * kVectorPitch);
#pragma unroll
  for (int v = 0; v < kVectors; v++)
    raw[v] = make_uint4(raw[v].x ^ flip, raw[v].y ^ flip, raw[v].z ^ flip, raw[v].w ^ flip);
}

template <class Stored>
__device__ __forceinline__ void widen_vector(uint4 raw, float (&values)[row_slice<Stored>::kPerVector]) {
  if constexpr (sizeof(Stored) == 4) {
    const float4 all = quad<element_type::f32>::widen(raw);
    values[0] = all.x, values[1] = all.y, values[2] = all.z, values[3] = all.w;
  } else {
    using half_vector = quad<std::is_same_v<Stored, float16> ? element_type::f16 : element_type::bf16>;
    const float4 low = half_vector::widen(make_uint2(raw.x, raw.y));
    const float4 high = half_vector::widen(make_uint2(raw.z, raw.w));
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
  }
}

__device__ __forceinline__ std::uint32_t key_of_wide(float value) {
  return core::score_key(value, metric::inner_product);
}

/// The larger of two words of stored values, each with each; NaN only against NaN. Of zeros, either.
template <class Stored>
__device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  if constexpr (sizeof(Stored) == 4) {
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
  } else {
    using pair = std::conditional_t<std::is_same_v<Stored, float16>, __half2, __nv_bfloat162>;
    const pair most = __hmax2(reinterpret_cast<const pair&>(a), reinterpret_cast<const pair&>(b));
    return reinterpret_cast<const std::uint32_t&>(most);
  }
}

template <class Stored>
__device__ __forceinline__ std::uint32_t most_of(uint4 raw) {
  return larger<Stored>(larger<Stored>(raw.x, raw.y), larger<Stored>(raw.z, raw.w));
}
/// The best of a word's values, of a vector's, and of a chunk's: NaN if all are.
template <class Stored>
__device__ __forceinline__ float best_of(std::uint32_t word) {
  if constexpr (sizeof(Stored) == 4) {
    return __uint_as_float(word);
  } else {
    float values[8];
    widen_vector<Stored>(make_uint4(word, word, word, word), values);
    return fmaxf(values[0], values[1]);
  }
}
template <class Stored>
__device__ __forceinline__ float best_of(uint4 raw) {
  return best_of<Stored>(most_of<Stored>(raw));
}
template <class Stored>
__device__ __forceinline__ float best_of(const uint4 (&raw)[kVectors]) {
  std::uint32_t most[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; v++) most[v] = most_of<Stored>(raw[v]);
#pragma unroll
  for (int half = kVectors / 2; half > 0; half /= 2)
#pragma unroll
    for (int v = 0; v < half; v++) most[v] = larger<Stored>(most[v], most[v + half]);
  return best_of<Stored>(most[0]);
}

/// For every vector of a chunk, a key that its best column reaches: the best value, as if its last column had it.
template <class Stored>
__device__ __forceinline__ void chunk_maxima(const row_slice<Stored>& slice, std::uint32_t first,
                                             const uint4 (&raw)[kVectors], std::uint64_t* best) {
  const std::uint32_t mine = first + threadIdx.x % kWarp;
  const std::uint32_t end = slice.chunk_end(first);
#pragma unroll
  for (int v = 0; v < kVectors; v++) {
    const std::uint32_t vector = mine + v * kWarp;
    const std::uint32_t last_column = slice.column_of(vector) + row_slice<Stored>::kPerVector - 1;
    best[v] = vector < end ? core::row_key(key_of_wide(best_of<Stored>(raw[v])), last_column) : core::kNoRow;
  }
}

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

/// Exclusive sum over the lanes.
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
  constexpr int kPerVector = row_slice<Stored>::kPerVector;
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

/// Looks for a cut that k columns reach, as far as bins can tell: the team's, or the block's own where it has begun
/// new ones. Every column is counted once. A warp comes.
__device__ __forceinline__ void raise_by_levels(stream_state& state, team_board* board, std::uint32_t k) {
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
  if (enough == 0 || lane != __ffs(static_cast<int>(enough)) - 1) return;
  unsigned long long cut = static_cast<unsigned long long>(state.base + (level << state.shift)) << 32;
  if (cut <= *static_cast<volatile unsigned long long*>(&state.cut)) return;
  if (board) cut = max(cut, atomicMax(&board->cut, cut));
  atomicMax(&state.cut, cut);
}

/// Empties the bins, which are to tell keys apart from the cut's up to the largest's.
__device__ __forceinline__ void start_levels(stream_state& state, std::uint64_t cut, std::uint32_t largest,
                                             bool common) {
  const std::uint32_t base = core::key_of(cut);
  const std::uint32_t width = max(largest, base) - base;
  constexpr int kLevelBits = std::bit_width(static_cast<unsigned>(kLevels)) - 1;
  state.base = base;
  state.common = common;
  state.shift = max(0, 32 - __clz(static_cast<int>(width)) - kLevelBits);
  for (int l = 0; l < kLevels; l++) state.levels[l] = 0;
}
__device__ __forceinline__ void count_level(stream_state& state, std::uint32_t key) {
  const std::uint32_t level = (key - state.base) >> state.shift;
  atomicAdd(&state.levels[min(level, std::uint32_t{kLevels - 1})], 1u);
}

/// Appends what reaches the cut of the chunk that a warp has in a stage, all of it or nothing. Bins are looked at every
/// 2^told keys.
/// @returns false if it did not fit; the list has then overflowed, and what was left of it holds no keys.
template <class Stored>
__device__ __forceinline__ bool append_chunk(const block_list& list, const row_slice<Stored>& slice,
                                             std::uint32_t first, const unsigned char* stage, std::uint32_t reach,
                                             bool negated, team_board* board, std::uint32_t k, std::uint32_t told) {
  constexpr std::uint32_t kPerVector = row_slice<Stored>::kPerVector;
  stream_state& state = list.scratch->state;
  const std::uint32_t lane = threadIdx.x % kWarp;
  const std::uint32_t mine = first + lane;
  const std::uint32_t end = slice.chunk_end(first);
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
      const Stored value = reinterpret_cast<const Stored*>(stage + v * kVectorPitch)[e];
      const std::uint32_t key = key_of_value<Stored>(value, negated);
      list.keys[at + __popc(those & ((1u << lane) - 1u))] = core::row_key(key, slice.column_of(mine + v * kWarp) + e);
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
template <class Stored>
__device__ __forceinline__ void start_list(const block_list& list, const whole_row<Stored>& row, bool first_block,
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

/// The k-th largest of up to kCountedCut keys, by all pairs. @pre there are k.
__device__ __forceinline__ std::uint64_t counted_cut(const std::uint64_t* keys, std::uint32_t n, std::uint32_t k,
                                                     stream_scratch& scratch) {
  rank_by_counting<kThreads>(keys, n, [&](std::uint32_t rank, std::uint64_t key) {
    if (rank == k - 1 && key != core::kNoRow) scratch.result = key;
  });
  __syncthreads();
  const std::uint64_t cut = scratch.result;
  __syncthreads();
  return cut;
}

/// The bin that holds the k-th largest, of bins that are in increasing order. `above` keys lie above all bins.
/// @returns the bin; `above` then counts what lies above it, and `reached` its own keys too.
__device__ __forceinline__ std::uint32_t find_bin(std::uint32_t k, std::uint32_t& above, std::uint32_t& reached,
                                                  stream_scratch& scratch) {
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

/// A cut that at least k and at most k + slack of keys[0, n) in shared memory reach: all of them if they are k, and
/// kEverything if they are fewer. kNoRow is no key. Passes over equal bins of the range that is left: six are enough
/// for any data, two or three mostly. All threads come, after a barrier; the keys may be written again at once.
__device__ __noinline__ std::uint64_t cut_of(const std::uint64_t* keys, std::uint32_t n, std::uint32_t k,
                                             std::uint32_t slack, stream_scratch& scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  std::uint32_t smallest = ~0u;  // the range by high words alone: they reduce in one instruction
  std::uint32_t largest = 0;
  std::uint32_t there = 0;
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) {
    const std::uint64_t key = keys[i];
    if (key == core::kNoRow) continue;
    there++;
    smallest = min(smallest, core::key_of(key));
    largest = max(largest, core::key_of(key));
  }
  const uint3 of_warp = make_uint3(__reduce_min_sync(kFullWarp, smallest), __reduce_max_sync(kFullWarp, largest),
                                   __reduce_add_sync(kFullWarp, there));
  if (lane == 0) scratch.select.ranges[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  const uint3 range = lane < kWarps ? scratch.select.ranges[lane] : make_uint3(~0u, 0, 0);
  smallest = __reduce_min_sync(kFullWarp, range.x);
  largest = __reduce_max_sync(kFullWarp, range.y);
  there = __reduce_add_sync(kFullWarp, range.z);
  if (threadIdx.x == 0) scratch.largest = largest;
  __syncthreads();  // the ranges have been read
  if (there < k) return kEverything;
  if (there == k) return max(static_cast<std::uint64_t>(smallest) << 32, kEverything);
  if (n <= kCountedCut) return counted_cut(keys, n, k, scratch);

  std::uint64_t low = static_cast<std::uint64_t>(smallest) << 32;
  std::uint64_t high = static_cast<std::uint64_t>(largest) << 32 | ~0u;
  std::uint32_t above = 0;
  for (;;) {
    constexpr int kBinBits = std::bit_width(static_cast<unsigned>(kBins)) - 1;
    const int shift = max(0, 64 - __clzll(static_cast<long long>(high - low)) - kBinBits);
    for (int b = threadIdx.x; b < kBins; b += kThreads) scratch.bins[b] = 0;
    __syncthreads();
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) {
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
__device__ __noinline__ void keep_from(block_list list, std::uint64_t cut) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::uint32_t n = list.count();
  __syncthreads();  // all have read the count
  if (threadIdx.x == 0) list.scratch->state.count = 0;
  for (std::uint32_t start = 0; start < n; start += kHeld * kThreads) {
    std::uint64_t held[kHeld];
#pragma unroll
    for (int h = 0; h < kHeld; h++) {
      const std::uint32_t i = start + h * kThreads + threadIdx.x;
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
__device__ __noinline__ std::uint64_t keep_best(block_list list, std::uint32_t k) {
  const std::uint64_t cut = cut_of(list.keys, list.count(), k, 0, *list.scratch);
  keep_from(list, cut);
  return cut;
}

/// Joins a block's keys, kSampled a thread, into its groups' maxima, and writes these. Groups are spread over the
/// vectors, so that the columns that begin a slice are in different ones. All threads come.
__device__ __forceinline__ void write_groups(std::uint64_t (&best)[kSampled], std::uint32_t groups, std::uint64_t* to,
                                             stream_scratch& scratch) {
#pragma unroll
  for (int half = kSampled / 2; half > 0; half /= 2) {
    if (groups < 2u * half * kThreads) {
#pragma unroll
      for (int v = 0; v < half; v++) best[v] = max(best[v], best[v + half]);
    }
  }
  if (groups >= kThreads) {
#pragma unroll
    for (int v = 0; v < kSampled; v++)
      if (v * kThreads < groups) to[v * kThreads + threadIdx.x] = best[v];
    return;
  }
  std::uint64_t most = best[0];
  for (std::uint32_t offset = kWarp / 2; offset >= groups; offset /= 2)
    most = max(most, __shfl_xor_sync(kFullWarp, most, static_cast<int>(offset)));
  scratch.maxima[threadIdx.x] = most;
  __syncthreads();
  if (threadIdx.x < groups) {
    for (std::uint32_t i = threadIdx.x; i < kThreads; i += max(groups, static_cast<std::uint32_t>(kWarp)))
      most = max(most, scratch.maxima[i]);
    to[threadIdx.x] = most;
  }
}

/// The blocks of a team, and what they share.
struct row_team {
  team_board* board;      // null if the team is one block
  std::uint64_t* maxima;  // [2, groups of the team]
  std::uint64_t* handed;  // [blocks, k]
  std::uint32_t rank;
  std::uint32_t size;
};

__device__ __forceinline__ row_team team_of(const stream_args& args, std::uint32_t index, std::uint32_t rank) {
  if (args.team == 1) return {nullptr, nullptr, nullptr, 0, 1};
  unsigned char* memory = args.boards + index * args.board_bytes;
  auto* maxima = reinterpret_cast<std::uint64_t*>(memory + sizeof(team_board));
  return {reinterpret_cast<team_board*>(memory), maxima, maxima + 2 * args.team_groups(), rank, args.team};
}

/// A cut that the k best of the row reach, from one key each of disjoint sets of its columns: the k-th best of what the
/// team's blocks bring, or a little less. Uses the memory before `end`. All blocks of the grid come, if teams have
/// several; the k best's keys are in the list or not yet looked for.
__device__ __forceinline__ std::uint64_t agree(const stream_args& args, const row_team& team, int turn,
                                               std::uint64_t (&best)[kSampled], const block_list& list,
                                               std::uint64_t* end) {
  constexpr std::uint32_t kSlackShare = 16;  // a pass less, mostly
  const auto k = static_cast<std::uint32_t>(args.request.options.k);
  const std::uint32_t groups = args.team_groups();
  std::uint64_t* all = end - groups;
  if (team.size == 1) {
    write_groups(best, args.groups, all, *list.scratch);
  } else {
    std::uint64_t* shared = team.maxima + turn * groups;
    write_groups(best, args.groups, shared + team.rank * args.groups, *list.scratch);
    grid_sync();
    for (std::uint32_t i = threadIdx.x; i < groups; i += kThreads)
      all[i] = __ldcg(reinterpret_cast<const unsigned long long*>(shared + i));
  }
  __syncthreads();
  return cut_of(all, groups, k, k / kSlackShare, *list.scratch);
}

/// Makes room in a full list: drops what no longer reaches the cut, or, if that is little, all but the k best, which
/// raises the cut, of the team too.
__device__ __forceinline__ void raise_cut(const block_list& list, const row_team& team, std::uint32_t k) {
  stream_state& state = list.scratch->state;
  keep_from(list, state.cut);
  const std::uint32_t left = list.count();
  __syncthreads();  // before anything is appended
  if (left <= list.capacity - kListRoom / 2) return;
  const std::uint64_t of_list = keep_best(list, k);
  if (threadIdx.x == 0) {
    unsigned long long cut = max(state.cut, static_cast<unsigned long long>(of_list));
    if (team.board) cut = max(cut, atomicMax(&team.board->cut, cut));
    state.cut = cut;
    start_levels(state, cut, list.scratch->largest, false);
  }
  __syncthreads();
  const std::uint32_t n = list.count();
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) {
    const std::uint32_t key = core::key_of(list.keys[i]);
    if (key >= state.base) count_level(state, key);
  }
  __syncthreads();  // before anything is appended
}

/// Streams the slices of a block's warps past the cut, into the list. @param chunks what is under way in the stages.
template <class Stored>
__device__ __forceinline__ void stream_slices(const block_list& list, const row_team& team,
                                              const row_slice<Stored>& slice, chunk_walk<Stored>& walk,
                                              std::uint32_t (&chunks)[kStages], unsigned char* ring, std::uint32_t flip,
                                              std::uint32_t k) {
  const std::uint32_t ring_address = shared_address(ring);
  const std::uint32_t told = max(kLeastTold, 29u - __clz(static_cast<int>(max(k / team.size, 4u))));
  std::uint32_t stage = 0;  // bytes from the ring's begin
  for (;;) {
    while (chunks[0] != kNoChunk) {
      async_wait<kStages - 1>();
      uint4 raw[kVectors];
      read_stage(ring + stage, flip, raw);
      const least_value least(list.cut(), slice.column_of(chunks[0]));
      const bool full = list.overflowed();
      if (__any_sync(kFullWarp, best_of<Stored>(raw) >= least.value || least.all || full)) {
        if (__any_sync(kFullWarp, full)) break;  // the same answer in all lanes
        const std::uint32_t reach = reaching<Stored>(raw, least);
        if (!append_chunk(list, slice, chunks[0], ring + stage, reach, flip != 0, team.board, k, told)) break;
      }
#pragma unroll
      for (int s = 0; s < kStages - 1; s++) chunks[s] = chunks[s + 1];
      chunks[kStages - 1] = walk.next(slice);
      copy_chunk(slice, chunks[kStages - 1], ring_address + stage);
      stage = stage + kStagePitch == kRingBytes ? 0 : stage + kStagePitch;
    }
    if (!__syncthreads_or(chunks[0] != kNoChunk)) return;
    raise_cut(list, team, k);
  }
}

/// Leaves at most k keys in the list, and mostly no more than the block's share of what reaches the cut of the team.
/// All threads come, after a barrier; they leave through one.
__device__ __forceinline__ void shorten(const block_list& list, const row_team& team, std::uint32_t k) {
  if (list.count() <= k) return;
  if (threadIdx.x < kWarp) raise_by_levels(list.scratch->state, team.board, k);
  __syncthreads();
  keep_from(list, list.scratch->state.cut);
  if (list.count() > k) keep_best(list, k);
}

/// Gives the block's list, of at most k keys, to its team. @returns whether this is the block that has them all.
__device__ __forceinline__ bool hand_over(const block_list& list, const row_team& team) {
  stream_scratch& scratch = *list.scratch;
  const std::uint32_t n = list.count();
  if (threadIdx.x == 0) scratch.last = atomicAdd(&team.board->found, n);
  __syncthreads();
  const std::uint32_t at = scratch.last;
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) team.handed[at + i] = list.keys[i];
  __threadfence();
  __syncthreads();  // all have written, and read `last`
  if (threadIdx.x == 0) scratch.last = atomicAdd(&team.board->arrived, 1u) == team.size - 1 ? 1 : 0;
  __syncthreads();
  return scratch.last != 0;
}

/// Fetches the team's list, piece by piece where it is longer than the block's: more than its k best need not stay.
__device__ __forceinline__ void gather(const block_list& list, const row_team& team, std::uint32_t k) {
  __threadfence();
  const std::uint32_t all = __ldcg(&team.board->found);
  std::uint32_t held = 0;
  for (std::uint32_t taken = 0; taken < all;) {
    const std::uint32_t piece = min(list.capacity - held, all - taken);
    for (std::uint32_t i = threadIdx.x; i < piece; i += kThreads)
      list.keys[held + i] = __ldcg(reinterpret_cast<const unsigned long long*>(team.handed + taken + i));
    taken += piece;
    if (threadIdx.x == 0) list.scratch->state.count = held + piece;
    __syncthreads();
    if (taken < all) keep_best(list, k);
    held = list.count();
    __syncthreads();  // all have read the count
  }
}

/// Calls write(rank, key) for list.keys[0, n), the largest first. The keys may be moved. All threads come.
template <class Write>
__device__ __forceinline__ void for_each_in_order(const block_list& list, std::uint32_t n, Write write) {
  if (n <= kCounted) {
    rank_by_counting<kThreads>(list.keys, n, write);
    return;
  }
  const std::uint32_t padded = 1u << (32 - __clz(static_cast<int>(n - 1)));
  for (std::uint32_t i = n + threadIdx.x; i < padded; i += kThreads) list.keys[i] = core::kNoRow;
  block_sort<kThreads>(list.keys, padded);
  for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) write(i, list.keys[i]);
}

/// Chooses the k best of the list, and writes them in the order that the request asks for, padded.
template <class Stored>
__device__ __forceinline__ void write_row(const stream_args& args, const block_list& list, std::int64_t row,
                                          const whole_row<Stored>& data) {
  const core::top_k_request& request = args.request;
  const bool negated = request.options.order == order::smallest;
  const bool sorted = request.options.sorted;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  if (list.count() > k && list.count() > kCounted) keep_best(list, k);
  std::uint32_t n = list.count();
  // By column: the halves of a key change places, and smaller columns are larger then.
  const auto turned = [](std::uint64_t key) { return key << 32 | key >> 32; };
  if (!sorted && n > k) {
    std::uint32_t place = k;
    std::uint64_t mine = core::kNoRow;
    rank_by_counting<kThreads>(list.keys, n, [&](std::uint32_t rank, std::uint64_t key) {
      place = rank;
      mine = turned(key);
    });
    __syncthreads();  // all have read the keys
    if (place < k) list.keys[place] = mine;
    n = k;
  } else if (!sorted) {
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads) list.keys[i] = turned(list.keys[i]);
  }
  __syncthreads();
  const std::int64_t to = row * k;
  for_each_in_order(list, n, [&](std::uint32_t rank, std::uint64_t key) {
    if (rank >= k) return;
    if (!sorted) key = turned(key);
    const std::uint32_t column = core::position_of(key);
    if (request.out.values) {
      const std::uint32_t bits = core::key_of(key);
      const float value = is_ambiguous(bits) ? 0.0f : core::from_ascending_key(bits);
      static_cast<Stored*>(request.out.values)[to + rank] =
          is_ambiguous(bits) ? data.values[column - data.first_column] : narrowed<Stored>(negated ? -value : value);
    }
    write_index(request.out, to + rank, column);
  });
  for (std::uint32_t rank = n + threadIdx.x; rank < k; rank += kThreads)
    write_entry<Stored>(request.out, to + rank, worst_value<Stored>(negated), kNoColumn);
}

/// Agrees once more, on a cut of what the team's lists hold. @param end of the list's memory and what is free behind it
/// @pre teams of several blocks; all blocks come.
__device__ __forceinline__ void agree_on_lists(const stream_args& args, const row_team& team, const block_list& list,
                                               std::uint64_t* end, std::uint32_t k) {
  if (list.count() > end - list.keys - args.team_groups()) keep_best(list, k);
  const std::uint32_t n = list.count();
  std::uint64_t best[kSampled]{};
  for (std::uint32_t start = 0; start < n; start += kSampled * kThreads) {
#pragma unroll
    for (int v = 0; v < kSampled; v++) {
      const std::uint32_t i = start + v * kThreads + threadIdx.x;
      if (i < n) best[v] = max(best[v], list.keys[i]);
    }
  }
  keep_from(list, agree(args, team, 1, best, list, end));
}

template <class Stored>
__global__ void __launch_bounds__(kThreads, kBlocks) stream_rows_kernel(const __grid_constant__ stream_args args) {
  const core::top_k_request& request = args.request;
  auto& scratch = *reinterpret_cast<stream_scratch*>(dynamic_shared());
  const block_list list{reinterpret_cast<std::uint64_t*>(&scratch + 1), args.capacity, &scratch};
  const std::uint32_t flip = sign_flip<Stored>(request);
  const auto k = static_cast<std::uint32_t>(request.options.k);
  unsigned char* ring = reinterpret_cast<unsigned char*>(list.keys + list.capacity);
  const std::uint32_t index = blockIdx.x / args.team;
  const std::int64_t row = args.first_row + index;
  const row_team team = team_of(args, index, blockIdx.x % args.team);
  const whole_row<Stored> data = open_row<Stored>(request, row);
  const row_slice<Stored> slice = slice_of(data, team.rank * kWarps + threadIdx.x / kWarp, team.size * kWarps);

  unsigned char* own = ring + threadIdx.x * 16;
  chunk_walk<Stored> walk = walk_of(slice);
  std::uint32_t chunks[kStages];
#pragma unroll
  for (int s = 0; s < kStages; s++) {
    chunks[s] = walk.next(slice);
    copy_chunk(slice, chunks[s], shared_address(own + s * kStagePitch));
  }
  if (team.board && team.rank == 0 && threadIdx.x == 0) *team.board = {};
  std::uint64_t best[kSampled]{};
  async_wait<0>();
  prefetch_chunks(slice, walk);
#pragma unroll
  for (int s = 0; s < kStages; s++) {
    if (chunks[s] == kNoChunk) continue;
    uint4 raw[kVectors];
    read_stage(own + s * kStagePitch, flip, raw);
    chunk_maxima(slice, chunks[s], raw, best + s * kVectors);
  }
  const std::uint64_t cut = agree(args, team, 0, best, list, list.keys + list.capacity);
  start_list(list, data, team.rank == 0, flip != 0, cut);
  stream_slices(list, team, slice, walk, chunks, own, flip, k);
  if (team.size > 1) {
    if (args.agrees_twice) agree_on_lists(args, team, list, reinterpret_cast<std::uint64_t*>(ring + kRingBytes), k);
    shorten(list, team, k);
    if (!hand_over(list, team)) return;
    gather(list, team, k);
  }
  write_row(args, list, row, data);
}

/// The fewest groups a block that give a team kGroupsPerK for each of the k, if a block has so many: a power of two of
/// threads, or of vectors in each thread. No more than `most` of a team.
std::uint32_t groups_for(std::int64_t k, std::int64_t team, std::int64_t most) {
  constexpr auto kBelowThreads = std::bit_floor(static_cast<std::uint32_t>(kThreads - 1));
  std::uint32_t groups = 1;
  while (groups < kThreads * kSampled && groups * team < kGroupsPerK * k) {
    const std::uint32_t more = groups == kBelowThreads ? kThreads : 2 * groups;
    if (more * team > most) break;  // of 1.5 k or more: those are enough, too
    groups = more;
  }
  return groups;
}

/// Whether so much may be left of a row in the team's lists that one block would be longer about it than all blocks are
/// about agreeing once more: more than two lists.
bool agrees_twice(const stream_args& args, std::int64_t vectors) {
  const std::int64_t k = args.request.options.k;
  const std::int64_t sampled = std::int64_t{args.team} * kWarps * kStages * kChunk;
  if (args.team == 1 || vectors <= sampled) return false;
  constexpr double kReaching = 1.4;  // columns of the sample that reach the cut, over k
  const double expected =
      kReaching * static_cast<double>(k) * static_cast<double>(vectors) / static_cast<double>(sampled);
  return std::min(expected, static_cast<double>(k * args.team)) > 2.0 * args.capacity;
}

/// blocks_per_multiprocessor, which is asked once for each GPU and size: a call would spend microseconds on it.
template <class Stored>
int fitting_blocks(std::int64_t shared_bytes, const char* what) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::int64_t>, int> known;
  int ordinal = 0;
  check(cudaGetDevice(&ordinal), "reading the current GPU");
  const std::lock_guard lock(mutex);
  const std::pair key(ordinal, shared_bytes);
  if (const auto place = known.find(key); place != known.end()) return place->second;
  const int blocks = blocks_per_multiprocessor(stream_rows_kernel<Stored>, kThreads, shared_bytes, what);
  known.emplace(key, blocks);
  return blocks;
}

template <class Stored>
void launch_type(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  constexpr const char* kWhat = "launching the row-wise top k of long rows";
  const std::int64_t k = request.options.k;
  const std::int64_t rows = request.matrix.rows;
  const std::int64_t most_blocks = std::int64_t{kBlocks} * multiprocessors;
  // Places for k and an append, for the maxima that a team brings, and for the k best padded to a power of two; the
  // stages begin at a multiple of 16 bytes.
  const std::int64_t capacity = (std::max<std::int64_t>(k + kListRoom, most_blocks) + 1) / 2 * 2;
  const std::int64_t shared_bytes = static_cast<std::int64_t>(sizeof(stream_scratch)) +
                                    capacity * static_cast<std::int64_t>(sizeof(std::uint64_t)) + kRingBytes;

  const auto launch_part = [&](std::int64_t first_row, std::int64_t part_rows, std::int64_t team) {
    stream_args args{};
    args.request = request;
    args.first_row = first_row;
    args.team = static_cast<std::uint32_t>(team);
    args.groups = groups_for(k, team, capacity);
    args.capacity = static_cast<std::uint32_t>(capacity);
    args.agrees_twice = agrees_twice(args, request.matrix.cols / row_slice<Stored>::kPerVector);
    const launch_shape shape{.grid = dim3(static_cast<unsigned>(part_rows * team)),
                             .threads = kThreads,
                             .shared_bytes = shared_bytes,
                             .cooperative = team > 1};
    if (team == 1) return launch(stream_rows_kernel<Stored>, shape, stream, args, kWhat);
    const std::int64_t keys = 2 * std::int64_t{args.team_groups()} + team * k;
    args.board_bytes = static_cast<std::int64_t>(sizeof(team_board)) +
                       (keys * 8 + std::int64_t{alignof(team_board)} - 1) / std::int64_t{alignof(team_board)} *
                           std::int64_t{alignof(team_board)};
    const stream_memory boards(stream, part_rows * args.board_bytes);
    args.boards = static_cast<unsigned char*>(boards.data());
    launch(stream_rows_kernel<Stored>, shape, stream, args, kWhat);
  };

  const int fitting = fitting_blocks<Stored>(shared_bytes, kWhat);
  const std::int64_t resident = std::int64_t{std::clamp(fitting, 1, kBlocks)} * multiprocessors;
  // Rows that fill the GPU take a block each; those left over share it, if they are so few.
  const std::int64_t full = rows / resident * resident;
  const std::int64_t left = rows - full;
  const std::int64_t most_team = (request.matrix.cols + kLeastPiece - 1) / kLeastPiece;
  const std::int64_t team = left == 0 ? 1 : std::min(most_team, resident / left);
  if (team == 1) return launch_part(0, rows, 1);
  if (full > 0) launch_part(0, full, 1);
  launch_part(full, left, team);
}

}  // namespace

void launch_stream_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  switch (request.matrix.type) {
    case value_type::f32: return launch_type<float>(stream, request, multiprocessors);
    case value_type::f16: return launch_type<float16>(stream, request, multiprocessors);
    case value_type::bf16: return launch_type<bfloat16>(stream, request, multiprocessors);
    case value_type::f64: return;
  }
}

}  // namespace shortlist::cuda
