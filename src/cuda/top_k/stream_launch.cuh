// How many blocks stream_rows_kernel.cuh has for a request's rows, and their launch.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"
#include "cuda/top_k/stream_rows_kernel.cuh"

namespace shortlist::cuda::streaming {

constexpr std::uint32_t kGroupsPerK = 2;         // of G groups, G ln(G / (G - k)) columns reach the cut: < 1.4 k
constexpr std::int64_t kSmallTeam = 4;           // whose blocks give all they have, if k is small, too
constexpr std::int64_t kSecondPart = 128 << 10;  // bytes that a block streams while it ends a part and begins another
constexpr std::int64_t kLeastPiece = 4096;       // columns worth a block: two or three vectors a thread, of fp32
constexpr std::int64_t kLongRow = 1 << 25;       // columns: see long_row_form

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
