// Row-wise top k of short rows: which shape of the kernel a request gets.
#include "cuda/top_k/warp_rows.hpp"
#include "cuda/top_k/warp_rows_kernel.cuh"

namespace shortlist::cuda {
namespace {

constexpr std::int64_t kManyRows = 1 << 18;  // fewer of them end sooner in smaller steps

template <class Stored, warp_rows_kind Kind>
void launch_columns(cudaStream_t stream, warp_args& args, int multiprocessors) {
  const std::int64_t columns = args.stage.columns_held();
  constexpr bool kPlain = Kind <= warp_rows_kind::plain;
  constexpr bool kSimple = Kind != warp_rows_kind::any;
  constexpr int kLanes = kSimple ? 4 : 8;  // more of them sort sooner
  if (columns <= 64) return launch_warp_rows_of<Stored, 64 / kLanes, kLanes, Kind>(stream, args, multiprocessors);
  if (columns <= 128) return launch_warp_rows_of<Stored, 128 / kLanes, kLanes, Kind>(stream, args, multiprocessors);
  if constexpr (kPlain && sizeof(Stored) == 2) {  // half the registers: twice the values a lane
    if (columns <= 256) return launch_warp_rows_of<Stored, 64, 4, Kind>(stream, args, multiprocessors);
    if (columns <= 512) return launch_warp_rows_of<Stored, 64, 8, Kind>(stream, args, multiprocessors);
    if (columns <= 1024) return launch_warp_rows_of<Stored, 64, 16, Kind>(stream, args, multiprocessors);
  } else {
    constexpr int kFewEntries = 128;  // of more, the shared memory takes the place of other warps
    constexpr int kFewOfWide = kPlain ? 96 : kFewEntries;
    if constexpr (kSimple)
      if (columns <= 256 && args.search.k <= 64 && args.request.matrix.rows >= kManyRows)
        return launch_warp_rows_of<Stored, 64, 4, Kind>(stream, args, multiprocessors);
    if (columns <= 256) return launch_warp_rows_of<Stored, 32, 8, Kind>(stream, args, multiprocessors);
    if constexpr (kPlain)
      if (columns <= 384 && args.search.k <= kFewEntries)
        return launch_warp_rows_of<Stored, 48, 8, Kind>(stream, args, multiprocessors);
    if constexpr (kSimple)
      if (columns <= 512 && args.search.k <= kFewOfWide)
        return launch_warp_rows_of<Stored, 64, 8, Kind>(stream, args, multiprocessors);
    if (columns <= 512) return launch_warp_rows_of<Stored, 32, 16, Kind>(stream, args, multiprocessors);
    if constexpr (kSimple)
      if (columns <= 768 && args.search.k <= kFewOfWide)
        return launch_warp_rows_of<Stored, 48, 16, Kind>(stream, args, multiprocessors);
    if constexpr (kSimple)
      if (columns <= 768) return launch_warp_rows_of<Stored, 24, 32, Kind>(stream, args, multiprocessors);
    if (columns <= 1024) return launch_warp_rows_of<Stored, 32, 32, Kind>(stream, args, multiprocessors);
  }
  launch_warp_rows_of<Stored, 48, 32, Kind>(stream, args, multiprocessors);
}

template <class Stored>
void launch_type(cudaStream_t stream, warp_args& args, int multiprocessors) {
  const bool simple = args.stage.mode != stage_mode::by_threads && args.output.sort_size == 0 && !args.output.out.mask;
  const bool packed = args.stage.mode == stage_mode::packed;
  const bool exact = !args.search.stop.asked() && args.search.k < args.request.matrix.cols;
  if (!simple || (!exact && !packed)) return launch_columns<Stored, warp_rows_kind::any>(stream, args, multiprocessors);
  if (!exact) return launch_columns<Stored, warp_rows_kind::early>(stream, args, multiprocessors);
  if (packed) return launch_columns<Stored, warp_rows_kind::packed>(stream, args, multiprocessors);
  launch_columns<Stored, warp_rows_kind::plain>(stream, args, multiprocessors);
}

}  // namespace

void launch_warp_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  warp_args args = warp_args_of(request);
  by_stored_type(request.matrix.type,
                 [&](auto stored) { launch_type<decltype(stored)>(stream, args, multiprocessors); });
}

}  // namespace shortlist::cuda
