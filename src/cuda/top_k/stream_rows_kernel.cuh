// Row-wise top k of few long rows: a team of blocks a row, which stream it past a cut that the k best surely reach.
//
// Why it is fast: a row is read once by 16-byte copies into shared memory, eight under way in a thread even while it
// appends; each lane reads what it copied itself, so that nothing waits for another. What is below the cut costs a
// maximum and a share of a vote. The cut: of disjoint groups of columns, the k-th largest of the groups' maxima is no
// better than the k-th best of the row, and with two groups or more for each of the k it is hardly worse than the k-th
// best of what the groups cover.
// Steps: every warp loads the first of its chunks, which lie all over the row -> maxima of groups -> the team meets,
// every block finds the cut -> chunks are streamed, what reaches the cut goes to the block's list, and is counted in
// bins that the team sums up: a bin that k columns reach is the next cut; a full list is shortened by it, or to its k
// best -> where much may have been kept, the team agrees on a cut of the lists -> lists to the team's, and the last
// block to hand over takes what reaches the last cut, chooses, orders and writes.
// A team of one block does the same without meetings. Rows that do not divide evenly among the blocks are shared in
// portions: a block ends one row and begins the next, whose cut is known by then. Keys are distinct, value above and
// column below, so that ties are exact everywhere; where the first maxima tie, a team alone on the GPU meets once more,
// over finer groups. Early stops: stream_stop.cuh.
//
// Limit: bytes(in) over read bandwidth. Measured share: docs/kernels.md.
//
// History, 100 x 10^6, k 100: loads into registers, all appends against one cut 0.22 ms -> copies under way during
// appends, the cut raised by counts of bins 0.13 -> teams count together 0.12 -> teams of two sizes 0.115 -> stages at
// whole lines, no asking L2 ahead 0.111 -> portions 0.107; k 2048: 0.145 -> 0.132. 1 x 10^6: 0.018 -> counting instead
// of sorting at the ends, 0.0155. 1 x 10^8: 0.1064 -> larger blocks for a row that all share 0.1047.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/plan.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/grid.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"
#include "cuda/top_k/list_output.cuh"
#include "cuda/top_k/row_parts.cuh"
#include "cuda/top_k/stream_chunks.cuh"
#include "cuda/top_k/stream_list.cuh"
#include "cuda/top_k/stream_stop.cuh"

namespace shortlist::cuda::streaming {

constexpr int kBlocks = 2;                // a multiprocessor holds
constexpr int kTurns = 4;                 // keys that a team brings together: of columns, of lists, each twice
constexpr std::uint32_t kGroupsPerK = 2;  // of G groups, G ln(G / (G - k)) columns reach the cut: < 1.4 k
constexpr std::int64_t kSmallTeam = 4;    // whose blocks give all they have, if k is small, too
template <class Form>
constexpr int kOrderBins = 5 * Form::kThreads;   // of keys that are put into order
constexpr std::int64_t kSecondPart = 128 << 10;  // bytes that a block streams while it ends a part and begins another
constexpr std::int64_t kLeastPiece = 4096;       // columns worth a block: two or three vectors a thread, of fp32
constexpr std::int64_t kLongRow = 1 << 25;       // columns: see long_row_form

/// Rows one behind the other, gaps between them, in portions of equal length: each block has one, the end of a row, or
/// all of the block, and what is left of it at the beginning of the next row. The gap stands for what a block is
/// longer about two parts than about one.
struct row_portions {
  static constexpr std::uint32_t kUnits = 4096;  // of a row
  static constexpr std::int64_t kMostBlocks = 512;
  std::uint32_t pitch;  // from row to row
  std::uint32_t all;    // from the first row's beginning to the last one's end

  __device__ __forceinline__ std::uint32_t begin_of(std::uint32_t block) const { return block * all / gridDim.x; }
  /// The first block that begins with a row, or within the gap before.
  __device__ __forceinline__ std::uint32_t first_of(std::uint32_t row) const {
    if (row == 0) return 0;
    return shares_of((row * pitch - (pitch - kUnits)) * gridDim.x, all);
  }
};
static_assert(row_portions::kMostBlocks * row_portions::kMostBlocks * 2 * row_portions::kUnits <= ~0u);  // no overflow

/// What is asked of rows.
enum class row_goal : std::uint8_t {
  exact,
  stopped_largest,  // signs stay as they are: that makes up for looking for the worst value
  stopped_smallest
};
constexpr bool is_stopped(row_goal goal) { return goal != row_goal::exact; }

struct stream_args {
  core::top_k_request request;
  std::int64_t first_row;
  row_portions portions;     // no pitch: rows are shared evenly
  unsigned char* boards;     // of teams of several blocks
  std::int64_t board_bytes;  // of one team
  std::uint32_t team;        // blocks a row
  std::uint32_t larger;      // of the first rows, which have one more
  std::uint32_t groups;      // of each block: see groups_for
  std::uint32_t fine;        // the same, where values tie
  std::uint32_t capacity;    // keys in a block's list
  std::uint32_t handed;      // that it gives to its team, at most
  bool all_sampled;          // the first chunks are the whole row
  bool agrees_twice;
  early_stop stop;
  std::uint32_t* sights;  // of rows that are stopped early
  std::uint32_t groups_of_sight;

  __host__ __device__ std::uint32_t largest_team() const { return team + (larger > 0 ? 1 : 0); }
  __host__ __device__ std::uint32_t most_groups() const { return groups > fine ? groups : fine; }
};

/// The blocks of a team, and what they share.
struct row_team {
  team_board* board;      // null if the team is one block
  std::uint64_t* maxima;  // [kTurns, groups of the team]
  std::uint64_t* handed;  // [blocks, what each may give]
  std::uint32_t index;    // among the teams
  std::uint32_t rank;     // of this block; none of one that has begun with the row before
  std::uint32_t size;     // that agree on cuts
  std::uint32_t members;  // that hand over: that one, too
};

__device__ __forceinline__ row_team team_with_board(const stream_args& args, std::uint32_t index, std::uint32_t rank,
                                                    std::uint32_t size, std::uint32_t members) {
  unsigned char* memory = args.boards + index * args.board_bytes;
  auto* maxima = reinterpret_cast<std::uint64_t*>(memory + sizeof(team_board));
  return {reinterpret_cast<team_board*>(memory),
          maxima,
          maxima + kTurns * args.largest_team() * args.most_groups(),
          index,
          rank,
          size,
          members};
}

/// Of rows that are shared evenly, by as many blocks each, or one more.
__device__ __forceinline__ row_team team_of(const stream_args& args) {
  if (args.largest_team() == 1) return {nullptr, nullptr, nullptr, blockIdx.x, 0, 1, 1};
  const std::uint32_t in_larger = args.larger * (args.team + 1);
  const bool is_larger = blockIdx.x < in_larger;
  const std::uint32_t size = is_larger ? args.team + 1 : args.team;
  const std::uint32_t block = is_larger ? blockIdx.x : blockIdx.x - in_larger;
  const std::uint32_t index = block / size + (is_larger ? 0 : args.larger);
  if (size == 1) return {nullptr, nullptr, nullptr, index, 0, 1, 1};
  return team_with_board(args, index, block % size, size, size);
}

/// What a block does of its rows.
struct block_portion {
  std::uint32_t row;
  std::uint32_t from;  // of the row's units
  std::uint32_t to;
  std::uint32_t over;  // units of the next row
};

__device__ __forceinline__ block_portion portion_of(const row_portions& portions, std::uint32_t block) {
  const std::uint32_t begin = portions.begin_of(block);
  const std::uint32_t end = portions.begin_of(block + 1);
  const std::uint32_t row = (begin + portions.pitch - row_portions::kUnits) / portions.pitch;
  const std::uint32_t at = row * portions.pitch;
  return {row, max(begin, at) - at, min(end - at, row_portions::kUnits),
          max(end, at + portions.pitch) - at - portions.pitch};
}
/// Where a unit begins among a row's chunks.
__device__ __forceinline__ std::uint32_t place_of(std::uint32_t unit, std::uint32_t chunks) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(chunks) * unit / row_portions::kUnits);
}

/// The team of a row in portions.
__device__ __forceinline__ row_team team_of_row(const stream_args& args, std::uint32_t row) {
  const std::uint32_t first = args.portions.first_of(row);
  const std::uint32_t size = args.portions.first_of(row + 1) - first;
  const std::uint32_t before = args.portions.begin_of(first) > row * args.portions.pitch ? 1 : 0;
  return team_with_board(args, row, blockIdx.x - first, size, size + before);
}

/// Brings the team's keys together, `groups` from each block, each the best of its own set of columns: `turn` is the
/// set of places for them. All blocks of the grid come, if teams have several.
template <class Form>
__device__ __forceinline__ const std::uint64_t* bring_maxima(const stream_args& args, const row_team& team, int turn,
                                                             std::uint64_t (&best)[kSampled], std::uint32_t groups,
                                                             const block_list<Form>& list, std::uint64_t* own) {
  std::uint64_t* all = team.size == 1 ? own : team.maxima + turn * args.most_groups() * team.size;
  write_groups(best, groups, all + team.rank * groups, *list.scratch);
  if (args.boards) grid_sync();
  if (team.size == 1) __syncthreads();
  return all;
}

/// A cut that the k best of the row reach, from one key each of disjoint sets of its columns: the k-th best of what the
/// team's blocks bring, or a little less. Uses the memory before `end`. All blocks of the grid come, if teams have
/// several; the k best's keys are in the list or not yet looked for.
template <class Form>
__device__ __forceinline__ std::uint64_t agree(const stream_args& args, const row_team& team, int turn,
                                               std::uint64_t (&best)[kSampled], const block_list<Form>& list,
                                               std::uint64_t* end) {
  constexpr std::uint32_t kSlackShare = 16;
  const auto k = static_cast<std::uint32_t>(args.request.options.k);
  const std::uint32_t slack = k / kSlackShare + 1;
  std::uint32_t n = team.size * args.groups;
  const std::uint64_t* brought = bring_maxima(args, team, turn, best, args.groups, list, end - args.groups);
  if (n <= Form::kThreads) {
    const std::uint64_t cut = quick_cut(brought, n, k, slack, *list.scratch);
    // Where values tie, only more keys of the best columns tell where these end; if the grid is one team, it can meet
    // for them.
    const bool ties = static_cast<std::uint32_t>(cut) != 0 && cut != kEverything;
    if (!ties || team.size < gridDim.x || args.groups >= args.fine) return cut;
    n = team.size * args.fine;
    brought = bring_maxima(args, team, turn + 1, best, args.fine, list, end - args.fine);
  }
  std::uint64_t* all = end - n;
  if (team.size > 1)
    for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads)
      all[i] = __ldcg(reinterpret_cast<const unsigned long long*>(brought + i));
  __syncthreads();
  return cut_of(all, n, k, slack, *list.scratch);
}

/// Makes room in a full list: drops what no longer reaches the cut, or, if that is little, all but the k best, which
/// raises the cut, of the team too.
template <class Form>
__device__ __forceinline__ void raise_cut(const block_list<Form>& list, const row_team& team, std::uint32_t k) {
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
  for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads) count_level(state, list.keys[i]);
  __syncthreads();  // before anything is appended
}

/// Streams the parts of a block's warps past the cut, into the list. @param chunks what is under way in the stages.
/// @param sight is told of every chunk.
template <class Form, class Part, class Walk, class Sight>
__device__ __forceinline__ void stream_part(const block_list<Form>& list, const row_team& team, const Part& part,
                                            Walk& walk, std::uint32_t (&chunks)[kStages], unsigned char* ring,
                                            std::uint32_t flip, std::uint32_t k, Sight& sight) {
  using stored = typename Part::stored;
  const std::uint32_t ring_address = shared_address(ring);
  const std::uint32_t told = max(kLeastTold, 29u - __clz(static_cast<int>(max(k / team.size, 4u))));
  std::uint32_t stage = 0;  // bytes from the ring's begin
  for (;;) {
    while (chunks[0] != kNoChunk) {
      async_wait<kStages - 1>();
      uint4 raw[kVectors];
      read_stage<Form>(ring + stage, flip, raw);
      const least_value least(list.cut(), part.column_of(chunks[0]));
      const bool full = list.overflowed();
      if (__any_sync(kFullWarp, best_of<stored>(raw) >= least.value || least.all || full)) {
        if (__any_sync(kFullWarp, full)) break;  // the same answer in all lanes
        const std::uint32_t reach = reaching<stored>(raw, least);
        if (!append_chunk(list, part, chunks[0], ring + stage, reach, flip != 0, team.board, k, told)) break;
      }
      const std::uint32_t first = chunks[0];
#pragma unroll
      for (int s = 0; s < kStages - 1; s++) chunks[s] = chunks[s + 1];
      chunks[kStages - 1] = walk.next(part);
      copy_chunk<Form>(part, chunks[kStages - 1], ring_address + stage);
      sight.add(part, first, raw);
      stage = stage + Form::kStagePitch == Form::kRingBytes ? 0 : stage + Form::kStagePitch;
    }
    if (!__syncthreads_or(chunks[0] != kNoChunk)) return;
    raise_cut(list, team, k);
  }
}

/// Leaves at most so many keys in the list, and mostly no more than the block's share of what reaches the cut of the
/// team. @returns a cut: what it or the list's cut was above is left out. All threads come, after a barrier; they leave
/// through one.
template <class Form>
__device__ __forceinline__ std::uint64_t shorten(const block_list<Form>& list, const row_team& team, std::uint32_t k,
                                                 std::uint32_t most) {
  if (list.count() <= most) return kEverything;
  if (threadIdx.x < kWarp) raise_by_levels(list.scratch->state, team.board, k);
  __syncthreads();
  keep_from(list, list.scratch->state.cut);
  return list.count() > most ? keep_best(list, k) : kEverything;
}

/// Gives the block's list to its team, and, if it `tells`, what it has counted.
/// @returns whether this is the block that has them all.
template <class Form>
__device__ __forceinline__ bool hand_over(const block_list<Form>& list, const row_team& team, std::uint32_t k,
                                          bool tells) {
  stream_scratch<Form>& scratch = *list.scratch;
  const std::uint32_t n = list.count();
  if (threadIdx.x < kWarp) {
    if (tells && scratch.state.common) {
      if (const auto cut = cut_by_levels(scratch.state, team.board, k)) atomicMax(&team.board->cut, cut);
    }
  } else if (threadIdx.x == kWarp) {
    scratch.last = atomicAdd(&team.board->found, n);
  }
  __syncthreads();
  const std::uint32_t at = scratch.last;
  for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads) team.handed[at + i] = list.keys[i];
  __syncthreads();  // all have written, and read `last`
  if (threadIdx.x == 0) {
    __threadfence();  // what the block wrote is seen before it is counted, and what others did after
    scratch.last = atomicAdd(&team.board->arrived, 1u) == team.members - 1 ? 1 : 0;
    __threadfence();
  }
  __syncthreads();
  return scratch.last != 0;
}

/// Fetches what reaches the cut of the team's list, piece by piece: where that is more than the block's list holds, all
/// but the k best are dropped. @returns the last cut.
template <class Form>
__device__ __forceinline__ std::uint64_t gather(const block_list<Form>& list, const row_team& team, std::uint32_t k) {
  constexpr std::uint32_t kPiece = kHeld * Form::kThreads;
  const unsigned before = (1u << (threadIdx.x % kWarp)) - 1u;
  const std::uint32_t all = __ldcg(&team.board->found);
  std::uint64_t cut = __ldcg(&team.board->cut);
  if (threadIdx.x == 0) list.scratch->state.count = 0;
  const auto load = [&](std::uint32_t first, std::uint64_t(&keys)[kHeld]) {
#pragma unroll
    for (int h = 0; h < kHeld; h++) {
      const std::uint32_t i = first + h * Form::kThreads + threadIdx.x;
      keys[h] = i < all ? __ldcg(reinterpret_cast<const unsigned long long*>(team.handed + i)) : core::kNoRow;
    }
  };
  std::uint64_t held[kHeld];
  load(0, held);
  __syncthreads();
  for (std::uint32_t taken = 0; taken < all; taken += kPiece) {
    std::uint64_t next[kHeld];
    load(taken + kPiece, next);
    if (all > list.capacity) {
      const bool full = list.count() + kPiece > list.capacity;
      __syncthreads();  // before anything is appended
      if (full) cut = keep_best(list, k);
    }
#pragma unroll
    for (int h = 0; h < kHeld; h++) {
      const bool reaches = held[h] != core::kNoRow && held[h] >= cut;
      const unsigned those = __ballot_sync(kFullWarp, reaches);
      if (those == 0) continue;
      std::uint32_t at = 0;
      if (threadIdx.x % kWarp == 0)
        at = atomicAdd(&list.scratch->state.count, static_cast<std::uint32_t>(__popc(those)));
      at = __shfl_sync(kFullWarp, at, 0);
      if (reaches) list.keys[at + __popc(those & before)] = held[h];
    }
#pragma unroll
    for (int h = 0; h < kHeld; h++) held[h] = next[h];
    __syncthreads();
  }
  return cut;
}

/// Chooses the k best of the list, and writes them in the order that the request asks for, padded. The ring is free.
template <class Stored, class Form>
__device__ __forceinline__ void write_row(const stream_args& args, const block_list<Form>& list, std::int64_t row,
                                          const whole_row<Stored>& data, unsigned char* ring) {
  const core::top_k_request& request = args.request;
  const bool sorted = request.options.sorted;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  if (list.count() > k && list.count() > Form::kThreads) keep_best(list, k);
  const std::uint32_t n = list.count();
  if (n <= Form::kThreads) {
    const std::uint64_t cut = n > k && !sorted ? quick_cut(list.keys, n, k, 0, *list.scratch) : kEverything;
    auto& counts = *reinterpret_cast<count_room<Form::kThreads>*>(ring);
    return write_counted<Form::kThreads>(request, row, data, list.keys, n, cut, counts);
  }
  if (!sorted) {
    for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads) list.keys[i] = turned_key(list.keys[i]);
    __syncthreads();
  }
  static_assert(core::kStreamRowsMaxK * std::int64_t{sizeof(std::uint64_t)} +
                    std::int64_t{sizeof(sort_bins<kOrderBins<Form>>)} <=
                Form::kRingBytes);
  const row_writer<Stored> writer(request, row, data);
  const auto write = [&](std::uint32_t rank, std::uint64_t key) { writer(rank, sorted ? key : turned_key(key)); };
  auto* room = reinterpret_cast<std::uint64_t*>(ring);
  auto& bins = *reinterpret_cast<sort_bins<kOrderBins<Form>>*>(room + core::kStreamRowsMaxK);
  if (!sort_by_bins<Form::kThreads>(keys_in_turn<Form::kThreads>{list.keys, n}, n, k, room,
                                    static_cast<std::uint32_t>(core::kStreamRowsMaxK), bins, list.scratch->select,
                                    write)) {
    const std::uint32_t padded = 1u << (32 - __clz(static_cast<int>(n - 1)));
    for (std::uint32_t i = n + threadIdx.x; i < padded; i += Form::kThreads) list.keys[i] = core::kNoRow;
    block_sort<Form::kThreads>(list.keys, padded);
    for (std::uint32_t i = threadIdx.x; i < n; i += Form::kThreads) write(i, list.keys[i]);
  }
  for (std::uint32_t rank = n + threadIdx.x; rank < k; rank += Form::kThreads) writer.pad(rank);
}

/// Agrees once more, on a cut of what the team's lists hold. @param end of the list's memory and what is free behind it
/// @returns a cut: what it is above is left out. @pre teams of several blocks; all blocks come.
template <class Form>
__device__ __forceinline__ std::uint64_t agree_on_lists(const stream_args& args, const row_team& team,
                                                        const block_list<Form>& list, std::uint64_t* end,
                                                        std::uint32_t k) {
  std::uint64_t cut = kEverything;
  if (list.count() > end - list.keys - team.size * args.most_groups()) cut = keep_best(list, k);
  const std::uint32_t n = list.count();
  std::uint64_t best[kSampled]{};
  for (std::uint32_t start = 0; start < n; start += kSampled * Form::kThreads) {
#pragma unroll
    for (int v = 0; v < kSampled; v++) {
      const std::uint32_t i = start + v * Form::kThreads + threadIdx.x;
      if (i < n) best[v] = max(best[v], list.keys[i]);
    }
  }
  const std::uint64_t agreed = agree(args, team, 2, best, list, end);
  keep_from(list, agreed);
  return max(cut, agreed);
}

/// Begins to copy the first chunks of a part.
template <class Form, class Part, class Walk>
__device__ __forceinline__ void copy_first(const Part& part, Walk& walk, std::uint32_t (&chunks)[kStages],
                                           unsigned char* ring) {
#pragma unroll
  for (int s = 0; s < kStages; s++) {
    chunks[s] = walk.next(part);
    copy_chunk<Form>(part, chunks[s], shared_address(ring + s * Form::kStagePitch));
  }
}

/// Keys that the best of each vector of the first chunks reach.
template <class Form, class Part>
__device__ __forceinline__ void sample_first(const Part& part, const std::uint32_t (&chunks)[kStages],
                                             const unsigned char* ring, std::uint32_t flip,
                                             std::uint64_t (&best)[kSampled]) {
  async_wait<0>();
#pragma unroll
  for (int s = 0; s < kStages; s++) {
    if (chunks[s] == kNoChunk) continue;
    uint4 raw[kVectors];
    read_stage<Form>(ring + s * Form::kStagePitch, flip, raw);
    chunk_maxima(part, chunks[s], raw, best + s * kVectors);
  }
}

/// The memory of a block.
template <class Form>
struct block_memory {
  block_list<Form> list;
  unsigned char* ring;

  __device__ __forceinline__ explicit block_memory(std::uint32_t capacity) {
    auto& scratch = *reinterpret_cast<stream_scratch<Form>*>(dynamic_shared());
    list = {reinterpret_cast<std::uint64_t*>(&scratch + 1), capacity, &scratch};
    ring = reinterpret_cast<unsigned char*>(list.keys + capacity);
  }
};

__device__ __forceinline__ row_sight sight_of(const stream_args& args, const row_team& team) {
  return {args.sights + team.index * row_sight::words(args.groups_of_sight), args.groups_of_sight};
}

/// Ends a row that is stopped early, whose team has several blocks. @param cut that the list began with.
template <class Stored, class Form>
__device__ __forceinline__ void end_stopped(const stream_args& args, const row_team& team,
                                            const block_memory<Form>& memory, const whole_row<Stored>& data,
                                            const row_slice<Stored>& slice, std::uint64_t cut, std::int64_t row,
                                            std::uint32_t flip) {
  const block_list<Form>& list = memory.list;
  const auto k = static_cast<std::uint32_t>(args.request.options.k);
  if (args.agrees_twice)
    cut =
        max(cut, agree_on_lists(args, team, list, reinterpret_cast<std::uint64_t*>(memory.ring + Form::kRingBytes), k));
  cut = max(cut, shorten(list, team, k, args.handed));
  // Nothing that reaches the team's cut may be missing from its list.
  if (threadIdx.x == 0) atomicMax(&team.board->cut, max(static_cast<unsigned long long>(cut), list.scratch->state.cut));
  if (!hand_over(list, team, k, !args.all_sampled)) return;
  const row_sight sight = sight_of(args, team);
  const std::uint32_t worst = ~__ldcg(sight.worst());
  const std::uint64_t complete = gather(list, team, k);
  choose_stopped(args.stop, list, data, complete, worst, flip, k,
                 second_look<Stored, Form>(sight, slice, memory.ring + Form::kRingBytes));
  write_row(args, list, row, data, memory.ring);
}

template <class Stored, class Form, row_goal Goal>
__global__ void __launch_bounds__(Form::kThreads, kBlocks)
    stream_rows_kernel(const __grid_constant__ stream_args args) {
  constexpr bool kStops = is_stopped(Goal);
  const core::top_k_request& request = args.request;
  const block_memory<Form> memory(args.capacity);
  const block_list<Form>& list = memory.list;
  const std::uint32_t flip = Goal == row_goal::stopped_largest ? 0 : sign_flip<Stored>(request);
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const row_team team = team_of(args);
  const std::int64_t row = args.first_row + team.index;
  const whole_row<Stored> data = open_row<Stored>(request, row);
  const row_slice<Stored> slice = slice_of(data, threadIdx.x / kWarp * team.size + team.rank, team.size * Form::kWarps);

  unsigned char* own = memory.ring + threadIdx.x * 16;
  chunk_walk walk = walk_of(slice, kStops ? slice.slot / kGroupChunks : slice.slot);
  std::uint32_t chunks[kStages];
  copy_first<Form>(slice, walk, chunks, own);
  if (team.board && team.rank == 0 && threadIdx.x == 0) *team.board = {};
  std::conditional_t<kStops, warp_sight<Stored>, no_sight> sight;
  if constexpr (kStops) {
    sight.open(sight_of(args, team), slice.chunk);
    clear_sight<Form>(sight_of(args, team), team.rank, team.size);
    if (team.rank == 0 && threadIdx.x < kWarp) sight.add_beside(data, flip);
  }
  std::uint64_t best[kSampled]{};
  sample_first<Form>(slice, chunks, own, flip, best);
  const std::uint64_t cut = agree(args, team, 0, best, list, list.keys + list.capacity);
  start_list(list, data, team.rank == 0, flip != 0, cut);
  stream_part(list, team, slice, walk, chunks, own, flip, k, sight);
  if constexpr (kStops) {
    sight.finish(*list.scratch);
    return end_stopped(args, team, memory, data, slice, cut, row, flip);
  }
  if (team.size > 1) {
    if (args.agrees_twice)
      agree_on_lists(args, team, list, reinterpret_cast<std::uint64_t*>(memory.ring + Form::kRingBytes), k);
    shorten(list, team, k, args.handed);
    if (!hand_over(list, team, k, !args.all_sampled)) return;
    gather(list, team, k);
  }
  write_row(args, list, row, data, memory.ring);
}

/// The same, of rows that do not divide evenly among the blocks: each block has the same share of all columns, so that
/// all end together. A block that ends a row before its share ends begins the next, whose cut the others know by then.
template <class Stored, class Form>
__global__ void __launch_bounds__(Form::kThreads, kBlocks)
    stream_portions_kernel(const __grid_constant__ stream_args args) {
  const core::top_k_request& request = args.request;
  const block_memory<Form> memory(args.capacity);
  const block_list<Form>& list = memory.list;
  const std::uint32_t flip = sign_flip<Stored>(request);
  const auto k = static_cast<std::uint32_t>(request.options.k);
  unsigned char* own = memory.ring + threadIdx.x * 16;
  block_portion portion = portion_of(args.portions, blockIdx.x);
  bool begins = true;
#pragma unroll 1
  for (;;) {
    const row_team team = team_of_row(args, portion.row);
    const std::int64_t row = args.first_row + portion.row;
    const whole_row<Stored> data = open_row<Stored>(request, row);
    const auto part = scattered(data);
    scattered_walk<Form> walk{place_of(portion.from, part.chunks) + threadIdx.x / kWarp,
                              place_of(portion.to, part.chunks)};
    std::uint32_t chunks[kStages];
    copy_first<Form>(part, walk, chunks, own);
    if (begins) {
      if (team.rank == 0 && threadIdx.x == 0) *team.board = {};
      std::uint64_t best[kSampled]{};
      sample_first<Form>(part, chunks, own, flip, best);
      const std::uint64_t cut = agree(args, team, 0, best, list, list.keys + list.capacity);
      start_list(list, data, team.rank == 0, flip != 0, cut);
      if (team.rank == 0) tell_levels(list, *team.board);
    } else {
      join_list(list, *team.board);
    }
    no_sight sight;
    stream_part(list, team, part, walk, chunks, own, flip, k, sight);
    shorten(list, team, k, args.handed);
    if (hand_over(list, team, k, true)) {
      gather(list, team, k);
      write_row(args, list, row, data, memory.ring);
    }
    if (portion.over == 0) return;
    portion = {portion.row + 1, 0, portion.over, 0};
    begins = false;
    __syncthreads();  // the ring and the list are free
  }
}

/// The fewest groups a block that give a team kGroupsPerK for each of the k, if a block has so many: a power of two of
/// threads, or of vectors in each thread. No more than `most` of the largest team.
template <class Form>
std::uint32_t groups_for(const stream_args& args, std::int64_t most) {
  constexpr std::uint32_t kThreads = Form::kThreads;
  constexpr std::uint32_t kBelowThreads = std::bit_floor(kThreads - 1);
  std::uint32_t groups = 1;
  while (groups < kThreads * kSampled && groups * args.team < kGroupsPerK * args.request.options.k) {
    const std::uint32_t more = groups == kBelowThreads ? kThreads : 2 * groups;
    if (more * args.largest_team() > most) break;  // of 1.5 k or more: those are enough, too
    groups = more;
  }
  return groups;
}

/// Vectors that the teams' first chunks are.
template <class Form>
std::int64_t sampled_by(const stream_args& args) {
  return std::int64_t{args.team} * Form::kWarps * kStages * kChunk;
}

/// Whether so much may be left of a row in the team's lists that one block would be longer about it than all blocks are
/// about agreeing once more: more than two lists.
inline bool agrees_twice(const stream_args& args, std::int64_t vectors, std::int64_t sampled) {
  const std::int64_t k = args.request.options.k;
  if (args.team == 1 || vectors <= sampled) return false;  // blocks of their own do not come
  constexpr double kReaching = 1.4;                        // columns of the sample that reach the cut, over k
  const double expected =
      kReaching * static_cast<double>(k) * static_cast<double>(vectors) / static_cast<double>(sampled);
  return std::min(expected, static_cast<double>(k * args.largest_team())) > 2.0 * args.capacity;
}

/// Portions for rows that do not divide evenly among the blocks, if the blocks of the smaller teams would have that
/// many more bytes; where these are of one block, handing over comes on top. @returns no pitch, if they would not. As
/// many blocks begin a row as if it were shared evenly.
inline row_portions portions_for(std::int64_t rows, std::int64_t row_bytes, std::int64_t blocks) {
  constexpr std::int64_t kUnits = row_portions::kUnits;
  const std::int64_t team = blocks / rows;
  const std::int64_t least = team > 1 ? kSecondPart : 3 * kSecondPart;
  if (blocks > row_portions::kMostBlocks || row_bytes * (blocks % rows) <= least * team * blocks) return {0, 0};
  const std::int64_t pitch = kUnits + kUnits * kSecondPart / row_bytes;
  return {static_cast<std::uint32_t>(pitch), static_cast<std::uint32_t>(rows * pitch - (pitch - kUnits))};
}

/// Launches blocks of a form for some of a request's rows.
template <class Stored, class Form, row_goal Goal>
class stream_launch {
 public:
  stream_launch(cudaStream_t stream, const core::top_k_request& request, int multiprocessors)
      : stream_(stream), request_(request), multiprocessors_(multiprocessors) {
    // Places for k and an append, for the maxima that a team brings, and for the k best padded to a power of two; whole
    // lines of them.
    constexpr std::int64_t kPerLine = kLineBytes / std::int64_t{sizeof(std::uint64_t)};
    const std::int64_t places = std::max(request.options.k + kListRoom, std::int64_t{kBlocks} * multiprocessors);
    capacity_ = (places + kPerLine - 1) / kPerLine * kPerLine;
    shared_bytes_ = static_cast<std::int64_t>(sizeof(stream_scratch<Form>)) +
                    capacity_ * static_cast<std::int64_t>(sizeof(std::uint64_t)) + Form::kRingBytes;
  }

  /// Blocks that run at a time.
  std::int64_t resident() const {
    const int fitting =
        blocks_per_multiprocessor(stream_rows_kernel<Stored, Form, Goal>, Form::kThreads, shared_bytes_, kWhat);
    return std::int64_t{std::clamp(fitting, 1, kBlocks)} * multiprocessors_;
  }

  /// Each of the rows has a team of so many of the blocks, or of one more.
  void operator()(std::int64_t first_row, std::int64_t rows, std::int64_t blocks) const {
    const std::int64_t k = request_.options.k;
    stream_args args{};
    args.request = request_;
    args.first_row = first_row;
    args.team = static_cast<std::uint32_t>(blocks / rows);
    args.larger = static_cast<std::uint32_t>(blocks % rows);
    args.groups = groups_for<Form>(args, capacity_);
    args.capacity = static_cast<std::uint32_t>(capacity_);
    const std::int64_t team = args.largest_team();
    args.fine =
        std::bit_floor(static_cast<std::uint32_t>(std::min<std::int64_t>(Form::kThreads / 2, capacity_ / team)));
    const std::int64_t vectors = request_.matrix.cols / kPerVector<Stored>;
    args.all_sampled = vectors <= sampled_by<Form>(args);
    args.agrees_twice = agrees_twice(args, vectors, sampled_by<Form>(args));
    auto kernel = stream_rows_kernel<Stored, Form, Goal>;
    if constexpr (std::is_same_v<Form, usual_form> && !is_stopped(Goal)) {
      if (!args.agrees_twice)  // where all would wait for all before any begins its second part
        args.portions = portions_for(rows, request_.matrix.cols * std::int64_t{sizeof(Stored)}, blocks);
      if (args.portions.pitch > 0) kernel = stream_portions_kernel<Stored, Form>;
    }
    const launch_shape shape{.grid = dim3(static_cast<unsigned>(blocks)),
                             .threads = Form::kThreads,
                             .shared_bytes = shared_bytes_,
                             .cooperative = team > 1};
    if (team == 1) return launch(kernel, shape, stream_, args, kWhat);
    args.handed = static_cast<std::uint32_t>(team <= kSmallTeam && 4 * k <= capacity_ ? capacity_ : k);
    const std::int64_t keys =
        team * (std::int64_t{kTurns} * args.most_groups() + args.handed) + (args.portions.pitch > 0 ? args.handed : 0);
    args.board_bytes = static_cast<std::int64_t>(sizeof(team_board)) +
                       (keys * 8 + std::int64_t{alignof(team_board)} - 1) / std::int64_t{alignof(team_board)} *
                           std::int64_t{alignof(team_board)};
    std::int64_t sight_bytes = 0;
    if constexpr (is_stopped(Goal)) {
      args.stop = early_stop_of(request_.options);
      const std::int64_t chunks = std::max(team * Form::kWarps * kMostEven, (vectors + kChunk - 1) / kChunk);
      const std::int64_t groups = row_sight::groups_for(chunks);
      args.groups_of_sight = static_cast<std::uint32_t>(groups);
      sight_bytes = row_sight::words(groups) * std::int64_t{sizeof(std::uint32_t)};
    }
    const stream_memory memory(stream_, rows * (args.board_bytes + sight_bytes));
    args.boards = static_cast<unsigned char*>(memory.data());
    args.sights = reinterpret_cast<std::uint32_t*>(args.boards + rows * args.board_bytes);
    launch(kernel, shape, stream_, args, kWhat);
  }

 private:
  static constexpr const char* kWhat = "launching the row-wise top k of long rows";
  cudaStream_t stream_;
  const core::top_k_request& request_;
  int multiprocessors_;
  std::int64_t capacity_;  // keys of a list
  std::int64_t shared_bytes_;
};

/// Blocks that a row is long enough for.
inline std::int64_t most_team(const core::top_k_request& request) {
  return (request.matrix.cols + kLeastPiece - 1) / kLeastPiece;
}

/// Launches blocks for rows that share so many of them, or all that run at a time.
template <class Stored, row_goal Goal>
void launch_shared(const stream_launch<Stored, usual_form, Goal>& launch_usual, cudaStream_t stream,
                   const core::top_k_request& request, int multiprocessors, std::int64_t first, std::int64_t rows,
                   std::int64_t blocks) {
  // A row that all share is read sooner by larger blocks, if it is long enough to make up for what these take to meet;
  // not because more is on its way: docs/kernels.md, "In which order a row is read".
  if (rows == 1 && request.matrix.cols >= kLongRow) {
    const stream_launch<Stored, long_row_form, Goal> launch_long(stream, request, multiprocessors);
    if (launch_long.resident() == launch_usual.resident()) return launch_long(first, rows, blocks);
  }
  launch_usual(first, rows, blocks);
}

}  // namespace shortlist::cuda::streaming
