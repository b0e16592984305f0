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

#include <cstdint>

#include "core/plan.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/grid.cuh"
#include "cuda/top_k/list_output.cuh"
#include "cuda/top_k/row_parts.cuh"
#include "cuda/top_k/stream_chunks.cuh"
#include "cuda/top_k/stream_list.cuh"
#include "cuda/top_k/stream_stop.cuh"
#include "cuda/top_k/stream_team.cuh"

namespace shortlist::cuda::streaming {

template <class Form>
constexpr int kOrderBins = 5 * Form::kThreads;  // of keys that are put into order

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

}  // namespace shortlist::cuda::streaming
