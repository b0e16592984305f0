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

#include "core/plan.hpp"
#include "cuda/device/block_select.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/grid.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"
#include "cuda/top_k/row_parts.cuh"
#include "cuda/top_k/stream_chunks.cuh"
#include "cuda/top_k/stream_list.cuh"
#include "cuda/top_k/stream_rows.hpp"

namespace shortlist::cuda {
namespace {

using namespace streaming;

constexpr int kBlocks = 2;                  // a multiprocessor holds
constexpr std::uint32_t kGroupsPerK = 2;    // of G groups, G ln(G / (G - k)) columns reach the cut: < 1.4 k
constexpr std::int64_t kLeastPiece = 8192;  // columns worth a block: five or six vectors a thread, of fp32

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
  const row_writer<Stored> write(request, row, data);
  for_each_in_order(list, n, [&](std::uint32_t rank, std::uint64_t key) {
    if (rank < k) write(rank, sorted ? key : turned(key));
  });
  for (std::uint32_t rank = n + threadIdx.x; rank < k; rank += kThreads) write.pad(rank);
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
  by_stored_type(request.matrix.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, request, multiprocessors); });
}

}  // namespace shortlist::cuda
