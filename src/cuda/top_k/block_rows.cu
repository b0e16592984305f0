// Row-wise top k of rows of up to 32,768 columns: which kernel, and which shape of it, a request gets.
#include "cuda/top_k/block_rows.hpp"
#include "cuda/top_k/block_rows_kernel.cuh"

namespace shortlist::cuda {
namespace {

// Rows of 16 bits of which planes tell the border sooner than one warp a list's: of so few columns, or more entries.
constexpr std::int64_t kFewColsOf16Bits = 8192;
constexpr int kMostListedOf16Bits = 128;

// Values a thread, the most threads, blocks a multiprocessor: as many values as registers take, so that few warps must
// meet, and no more warps than the row needs.
template <class Stored, block_rows_kind Kind>
void launch_columns(cudaStream_t stream, block_args& args, int multiprocessors) {
  constexpr bool kListed = Kind == block_rows_kind::listed;
  constexpr bool kLong = kListed && sizeof(Stored) == 2;  // than kFewColsOf16Bits: others are levelled
  const std::int64_t columns = args.stage.columns_held();
  if constexpr (!kLong) {
    if constexpr (Kind == block_rows_kind::any)
      if (columns <= 2048) return launch_block_rows_of<Stored, 32, 64, 12, Kind>(stream, args, multiprocessors);
    if constexpr (kListed)
      if (columns <= 3072) return launch_block_rows_of<Stored, 48, 64, 12, Kind>(stream, args, multiprocessors);
    if (columns <= 4096) return launch_block_rows_of<Stored, 64, 64, 10, Kind>(stream, args, multiprocessors);
    if constexpr (kListed)
      if (columns <= 4608) return launch_block_rows_of<Stored, 48, 128, 6, Kind>(stream, args, multiprocessors);
    if (columns <= 8192) return launch_block_rows_of<Stored, 64, 128, 5, Kind>(stream, args, multiprocessors);
    if constexpr (kListed)
      if (columns <= 12288 && args.candidates.room == 0)  // by counts: fewer warps must meet
        return launch_block_rows_of<Stored, 96, 128, 4, Kind>(stream, args, multiprocessors);
  }
  if (columns <= 24576) return launch_block_rows_of<Stored, 64, 384, 2, Kind>(stream, args, multiprocessors);
  launch_block_rows_of<Stored, 64, 512, 1, Kind>(stream, args, multiprocessors);
}

/// The same for rows whose borders are looked for among levels.
template <class Stored>
void launch_levelled(cudaStream_t stream, block_args& args, int multiprocessors) {
  constexpr block_rows_kind kKind = block_rows_kind::levelled;
  const std::int64_t columns = args.stage.columns_held();
  if (columns <= 4096) return launch_block_rows_of<Stored, 64, 64, 12, kKind>(stream, args, multiprocessors);
  if (columns <= 8192) return launch_block_rows_of<Stored, 64, 128, 6, kKind>(stream, args, multiprocessors);
  if (columns <= 10240) return launch_block_rows_of<Stored, 160, 64, 8, kKind>(stream, args, multiprocessors);
  if (columns <= 12288) return launch_block_rows_of<Stored, 192, 64, 6, kKind>(stream, args, multiprocessors);
  if (columns <= 16384) return launch_block_rows_of<Stored, 128, 128, 4, kKind>(stream, args, multiprocessors);
  launch_block_rows_of<Stored, 128, 256, 2, kKind>(stream, args, multiprocessors);
}

template <class Stored>
void launch_type(cudaStream_t stream, block_args& args, int multiprocessors) {
  if (!args.search.stop.asked() && args.search.k < args.request.matrix.cols &&
      args.stage.mode != stage_mode::by_threads) {
    const bool sorts = args.output.sort_size > 1;
    if constexpr (sizeof(Stored) == 2)
      if (!sorts && (args.request.matrix.cols <= kFewColsOf16Bits || args.search.k > kMostListedOf16Bits))
        return launch_levelled<Stored>(stream, args, multiprocessors);
    args.candidates = candidate_plan_of(args.request, kListedShareOfBlock);
    if (sorts) return launch_columns<Stored, block_rows_kind::sorted>(stream, args, multiprocessors);
    return launch_columns<Stored, block_rows_kind::listed>(stream, args, multiprocessors);
  }
  launch_columns<Stored, block_rows_kind::any>(stream, args, multiprocessors);
}

}  // namespace

void launch_block_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  block_args args = block_args_of(request);
  by_stored_type(request.matrix.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, args, multiprocessors); });
}

}  // namespace shortlist::cuda
