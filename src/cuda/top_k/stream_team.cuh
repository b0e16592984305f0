// Which blocks of stream_rows_kernel.cuh share a row, and what they share: teams of equal size, or one larger, or rows
// in portions.
#pragma once

#include <cstdint>

#include "core/backend.hpp"
#include "cuda/top_k/row_parts.cuh"
#include "cuda/top_k/stream_chunks.cuh"
#include "cuda/top_k/stream_list.cuh"

namespace shortlist::cuda::streaming {

constexpr int kBlocks = 2;  // a multiprocessor holds
constexpr int kTurns = 4;   // keys that a team brings together: of columns, of lists, each twice

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

}  // namespace shortlist::cuda::streaming
