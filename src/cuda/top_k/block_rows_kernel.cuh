// The kernel of row-wise top k of rows of up to 32,768 columns: a block a row.
//
// Why it is fast: several blocks share a multiprocessor, so that the copy engine fills the buffers of some while others
// search; one pass over a row lists the few that may be among its best, which a warp alone searches while the others go
// on to the next row.
// Steps of a block, a row at a time: bulk copy -> list, and search it (row_candidates.cuh). Rows that a list does not
// serve are searched in registers as 16-bit numbers (row_search.cuh; those of 16 bits with a larger k or fewer
// columns by planes of bits: row_levels.cuh), chosen and written by all (row_output.cuh); those that such numbers do
// not settle, by their keys in shared memory. Ragged rows are copied by the threads.
//
// Limit: bytes(in) + bytes(out) over read bandwidth. Measured share: docs/kernels.md.
//
// History, 65,536 x 8192, k 64: staged, every row searched with care 0.74 ms -> a plain loop for most rows 0.57 -> no
// look at the shape of rows like those before 0.54 to 0.58 -> lists of candidates 0.51. 4096 columns: 128 threads 0.40
// -> 64 threads, 64 values each 0.29 -> lists 0.27; lognormal 0.55 -> how close values lie is learned 0.41 -> 0.30;
// bf16 0.67 -> its own values as numbers 0.25 -> 0.18. Sorted, 65,536 x 8192, k 64: 0.97 -> lists sorted by a warp
// 0.52. 32,736 x 8200 of bf16, k 512, on an H100: eight warps 0.66 -> five 0.51; 32,768 x 8192 of bf16, k 512, on an
// H200: counts, as no list has room 0.37 -> levels in planes of bits (row_levels.cuh) 0.228 -> the next row comes
// meanwhile 0.215; 2,000 of them, the border of a block's first row guessed for levels, too, 0.037 -> 0.026.
#pragma once

#include <cstdint>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/top_k/block_launch.cuh"
#include "cuda/top_k/row_candidates.cuh"
#include "cuda/top_k/row_levels.cuh"
#include "cuda/top_k/row_output.cuh"
#include "cuda/top_k/row_search.cuh"
#include "cuda/top_k/row_stage.cuh"
#include "cuda/top_k/row_stop.cuh"

namespace shortlist::cuda {

/// What else there is costs registers.
enum class block_rows_kind : std::uint8_t {
  listed,    // exact, k below the columns of every row, by ascending column; a list may hold the candidates
  levelled,  // the same of 16 bits, without lists: rows like those before are searched by planes of bits
  sorted,    // as listed, best first
  any
};

/// Kinds of which the next row may come while one is searched; that of lists spills by it, and gains nothing.
constexpr bool may_bring_ahead(block_rows_kind kind) { return kind == block_rows_kind::levelled; }

constexpr int kMostSortedByWarp = 8;  // entries of a lane that one warp sorts in registers while the others wait

/// Of so many threads and blocks a multiprocessor, or of fewer threads and more blocks.
template <class Stored, int Values, int Threads, int Blocks, block_rows_kind Kind>
__global__ void __launch_bounds__(Threads, Blocks) block_rows_kernel(const __grid_constant__ block_args args) {
  constexpr bool kPlain = Kind != block_rows_kind::any;
  constexpr bool kLists = Kind == block_rows_kind::listed || Kind == block_rows_kind::sorted;
  constexpr bool kSorts = Kind == block_rows_kind::sorted || Kind == block_rows_kind::any;
  // 65,536 x 8192, k 512, lists: 0.659 ms with them kept, 0.575 without.
  constexpr bool kKeeps = !kPlain || Values > 128;
  static_assert(Threads <= block_group::kMostWarps * kWarp && sizeof(block_group::memory) + 16 <= kStartBytes);
  const core::top_k_request& request = args.request;
  auto* barrier = reinterpret_cast<std::uint64_t*>(dynamic_shared());
  block_group group(*reinterpret_cast<block_group::memory*>(dynamic_shared() + 16));
  unsigned char* slots = dynamic_shared() + kStartBytes;
  const std::uint32_t ahead = may_bring_ahead(Kind) ? args.ahead : 0;
  unsigned char* staged = slots + (args.stage_bytes << ahead);
  const std::int64_t rows = request.matrix.rows;
  const bool fetches = args.stage.mode != stage_mode::by_threads;
  join_chain();
  if (fetches && threadIdx.x == 0) {
    barrier_init(barrier, 1);
    if (ahead > 0) barrier_init(barrier + 1, 1);
    barrier_init_fence();
    args.stage.fetch_row(blockIdx.x, slots, barrier);
    if (ahead > 0 && blockIdx.x + gridDim.x < rows)
      args.stage.fetch_row(blockIdx.x + gridDim.x, slots + args.stage_bytes, barrier + 1);
  }
  __syncthreads();
  using share_type = row_share<Stored, Values, kKeeps>;
  const typename share_type::places units(group.rank());
  row_shape shape{.border = args.search.deviations};
  stop_guess guess{.deviations = args.search.deviations};
  const bool stops = !kPlain && args.search.stop.asked();
  candidate_threshold threshold;
  level_trials<> trials;
  float each = 0.0f;  // of the warp's lists
  std::uint32_t turn = 0;
  for (std::int64_t index = blockIdx.x; index < rows; index += gridDim.x, turn++) {
    const row_span span = span_of(request, index);
    const std::uint32_t slot = turn & ahead;
    unsigned char* row_bytes = slots + slot * args.stage_bytes;
    if (fetches) barrier_wait(barrier + slot, turn >> ahead & 1);
    if (args.stage.has_rest(index, 1)) {
      __syncthreads();  // the row before is no longer read
      const auto thread = static_cast<int>(threadIdx.x);
      if (kPlain || fetches) {
        args.stage.copy_ends(index, 1, row_bytes, thread, group.threads());
      } else {
        args.stage.copy_ragged(request, index, 1, row_bytes, thread, group.threads());
      }
      __syncthreads();
    }
    const int lead_bytes = args.stage.offset_bytes(index, 0);
    const staged_row<Stored> row{row_bytes + lead_bytes, static_cast<int>(span.count),
                                 request.options.order == order::smallest,
                                 lead_bytes / static_cast<int>(sizeof(Stored))};
    const share_type share(row, group.rank(), units);
    const auto fetch_next = [&] {
      if (fetches && index + (gridDim.x << ahead) < rows)
        args.stage.fetch_row(index + (gridDim.x << ahead), row_bytes, barrier + slot);
    };
    bool tries = false;
    int count = 0;
    if constexpr (kLists) {
      tries = args.candidates.room > 0 && threshold.tries();
      if (tries) {
        const float least = threshold.of<Stored>();
        const auto better = share.ascending(candidates_of(share, least));
        const int before = group.before(count_marks(better), count);  // meets: the list before is no longer read
        if (count >= args.search.k && count <= args.candidates.room) {
          auto* list = reinterpret_cast<std::int32_t*>(staged);
          write_marked<kWarp>(better, share.first_column(), list, before);
          __syncthreads();
          if (threadIdx.x / kWarp == (turn & args.searchers)) {  // the others go on to the next row
            write_listed<kSorts>(row, list, {count, args.search.k, least, args.candidates.entries}, each,
                                 args.output.out, index * args.search.k, [&] {
                                   __syncwarp();
                                   if (threadIdx.x % kWarp == 0) fetch_next();
                                 });
          }
          threshold.hit(count, args.candidates.aim);
          continue;
        }
      }
    }
    typename share_type::bits chosen = 0;
    int place = 0;
    const auto choose_by_search = [&] {
      bool settled = false;
      row_marks<typename share_type::bits> marks;
      const bool learns = learns_from(static_cast<int>(turn));
      if constexpr (!kPlain)
        if (stops) marks = search_stopped_row<false>(group, args.search, row, share, guess, learns, settled);
      if (!settled) marks = search_row<kPlain>(group, args.search, row, share, shape, learns, settled);
      if (!settled) {
        marks = share.marks_of(find_border_by_keys(group, row, args.search.k, shape.at, args.search.deviations));
        group.sync();
      }
      chosen = share.ascending(marks.sure);
      if (marks.chosen) {
        place = group.before(count_marks(chosen));
      } else {
        chosen = choose(group, chosen, share.ascending(marks.fill), min(args.search.k, row.count), place);
      }
    };
    bool found = false;
    if constexpr (Kind == block_rows_kind::levelled)
      found = trials.choose(group, args.search, row, share, shape, chosen, place);
    if (!found) choose_by_search();
    write_row<mark_limit::none, kSorts ? kMostSortedByWarp : 0>(group, args.output, row, share, chosen, place, index,
                                                                span.begin, staged, [] { return false; });
    if constexpr (kLists) {
      threshold.miss(shape.at, shape.scale, tries, count, args.search.k, args.candidates.aim);
      each = threshold.each;
    }
    __syncthreads();
    if (threadIdx.x == 0) fetch_next();
  }
}

template <class Stored, int Values, int Threads, int Blocks, block_rows_kind Kind>
void launch_block_rows_of(cudaStream_t stream, block_args& args, int multiprocessors) {
  launch_block_shape<Values, kMostSortedByWarp, may_bring_ahead(Kind)>(
      block_rows_kernel<Stored, Values, Threads, Blocks, Kind>, stream, args, multiprocessors);
}

}  // namespace shortlist::cuda
