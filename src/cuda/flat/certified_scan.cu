// Certified exact search for one query: one pass over the int8 plane, a quarter of the rows' bytes or less, then the
// scores of the few rows whose interval reaches the threshold. docs/certified.md proves that no other row counts.
//
// Why it is fast: blocks of 16 rows stream through shared memory as in scan.cu; a block is the left side of products by
// the matrix units, one 16-byte load a lane and one instruction for 512 codes, and the query the right side.
// Steps of a warp: await its stage -> products -> intervals -> append to the survivors if the upper end reaches the
// threshold, keep the best lower ends for it -> refill the stage. The threshold rises as that of scan.cu does, from
// lower ends that blocks publish.
// End of a block: cut its survivors by the threshold, score those rows, a few a warp, and write the scores' keys to the
// block's slots, for the scan's merge.
// A filter that lets too much pass is given up: the block's warps then read rows instead, and score them all. Nothing
// is ever dropped: survivors and scored rows that shared memory cannot hold go to the block's spill, sized for all its
// rows.
// Limit: bytes of the plane over read bandwidth; measured share: see docs/kernels.md.
// History, 1M x 1024, k 8, host to host, us on an H200: stages of half a block of rows 262 -> the last quarter of the
// rows drawn by all blocks in common 268, taken back -> copies that begin at whole lines 256 -> the published keys
// loaded by twelves 255. All-equal rows, 1M x 768, k 100: 946 -> 851 since the first threshold judges the filter.
#include <algorithm>
#include <optional>

#include "core/plan.hpp"
#include "cuda/flat/certified_scan.cuh"
#include "cuda/flat/certified_scan.hpp"
#include "cuda/flat/scan_plan.cuh"
#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {
namespace {

/// Where lane 0 of a warp is in the order in which its stages are filled.
struct stage_cursor {
  std::int64_t group;  // -1: none left
  std::int32_t piece;  // the next; all done: a group is to be drawn
};

/// Bytes by which a group, and with it each of its pieces, begins after a whole line of memory. Copies begin at whole
/// lines: others are a twentieth slower.
__device__ __forceinline__ int skew_of(const certified_args& args, std::int64_t group) {
  return static_cast<int>(group * args.group_blocks * args.block_bytes % kLineBytes);
}

/// Fills a stage with the next piece, if need be of group `drawn`, which may be -1.
__device__ __forceinline__ void issue_piece(const certified_args& args, certified_shared& shared, unsigned char* ring,
                                            int slot, std::int64_t drawn, stage_cursor& cursor) {
  if (cursor.piece == args.pieces) cursor = {drawn, drawn < 0 ? args.pieces : 0};
  shared.stage_group[slot] = static_cast<std::int32_t>(cursor.group);
  if (cursor.group < 0) return;
  const std::int64_t first_block = cursor.group * args.group_blocks;
  const std::int64_t blocks = (static_cast<std::int64_t>(args.count) + core::kPlaneRows - 1) / core::kPlaneRows;
  const std::int64_t from = static_cast<std::int64_t>(cursor.piece) * args.piece_fragments * kFragmentBytes;
  cursor.piece++;
  const std::int64_t bytes =
      cursor.piece < args.pieces
          ? static_cast<std::int64_t>(args.piece_fragments) * kFragmentBytes
          : min(static_cast<std::int64_t>(args.group_blocks), blocks - first_block) * args.block_bytes - from;
  const std::int64_t skew = skew_of(args, cursor.group);
  const auto copied = static_cast<std::uint32_t>(bytes + skew);
  barrier_expect(&shared.barriers[slot], copied);
  bulk_copy(ring + slot * static_cast<std::int64_t>(args.stage_bytes),
            args.plane + first_block * args.block_bytes + from - skew, copied, &shared.barriers[slot]);
}

/// A warp's share of the plane, until there is no more of it or the filter is given up.
__device__ __forceinline__ void filter_plane(const certified_args& args, certified_shared& shared, unsigned char* ring,
                                             const std::uint32_t* columns, stage_cursor cursor, std::uint32_t primed) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const core::query_terms query = shared.terms;
  std::int32_t sums[4] = {};
  int stage = 0;
  int piece = 0;
  std::uint32_t parity = 0;
  while (true) {
    const int slot = warp * args.stages + stage;
    const std::int64_t group = *reinterpret_cast<volatile std::int32_t*>(&shared.stage_group[slot]);
    if (group < 0) break;
    std::uint32_t draw = 0;
    std::int64_t drawn = -1;
    unsigned long long common = 0;  // now and then somebody looks at the threshold that all blocks share
    if (lane == 0 && cursor.piece == args.pieces && !reads_rows(shared)) {
      draw = atomicAdd(&shared.next_draw, 1u);
      drawn = group_of(args, draw);
      if (draw % kDrawsPerLook == 0) common = common_threshold(args.control);
    }
    barrier_wait(&shared.barriers[slot], parity);
    const unsigned char* staged = ring + slot * static_cast<std::int64_t>(args.stage_bytes) + skew_of(args, group);
    const int first_fragment = piece * args.piece_fragments;
    const int fragments = min(args.piece_fragments, args.fragments - first_fragment);
    const bool is_last = piece + 1 == args.pieces;
    std::uint32_t appended = 0;
    for (int b = 0; b < args.group_blocks; b++, staged += args.block_bytes) {
      const std::int64_t first = (group * args.group_blocks + b) * core::kPlaneRows;
      if (first >= args.count) break;
      if (piece == 0) sums[0] = sums[1] = sums[2] = sums[3] = 0;
      multiply_fragments(staged, columns + first_fragment * kColumnWords, fragments, lane, sums);
      if (!is_last) continue;
      const auto* terms = reinterpret_cast<const float*>(staged + fragments * kFragmentBytes);
      appended = max(appended, filter_rows(args, shared, query, terms, first, sums, lane));
    }
    __syncwarp();
    if (lane == 0) {
      issue_piece(args, shared, ring, slot, drawn, cursor);
      if (common > threshold_of(shared)) atomicMax(&shared.threshold, common);
    }
    piece = is_last ? 0 : piece + 1;
    if (++stage == args.stages) {
      stage = 0;
      parity ^= 1;
    }
    // Refresh at draws that double, then regularly, and out of turn when many rows survived.
    draw = __shfl_sync(kFullWarp, draw, 0);
    const std::uint32_t refreshed_at = *reinterpret_cast<volatile std::uint32_t*>(&shared.refreshed_at);
    const std::uint32_t since = draw - primed;
    const bool due = draw >= primed && since >= static_cast<std::uint32_t>(args.warps) &&
                     ((since & (since - 1)) == 0 || since % args.refresh_draws == 0);
    const auto listed = [&] { return *reinterpret_cast<volatile std::uint32_t*>(&shared.survivor_count); };
    bool refreshed = false;
    if (__any_sync(kFullWarp, appended > refreshed_at + args.pressure)) {
      refreshed = refresh_threshold(args, shared, lane, true, listed);
    } else if (due && (static_cast<std::int64_t>(draw) + primed) * gridDim.x < args.groups) {  // not at the very end
      refresh_threshold(args, shared, lane, (blockIdx.x & 7) == (__ffs(since) & 7), listed);
    }
    if (appended > 0) {
      judge_sample(args, shared, lane);
      judge_filter(args, shared, lane, primed, refreshed);
    }
    __syncwarp();
  }
}

/// A warp's share of what is left when the filter has been given up.
template <element_type E, bool L2>
__device__ __noinline__ void read_rows(const certified_args& args, certified_shared& shared, const float* query) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t group_rows = static_cast<std::int64_t>(args.group_blocks) * core::kPlaneRows;
  while (true) {
    std::uint32_t draw = 0;
    if (lane == 0) draw = atomicAdd(&shared.next_draw, 1u);
    draw = __shfl_sync(kFullWarp, draw, 0);
    std::int64_t group = 0;
    if (lane == 0) group = group_of(args, draw);
    group = __shfl_sync(kFullWarp, group, 0);
    if (group < 0) break;
    const std::int64_t end = min((group + 1) * group_rows, static_cast<std::int64_t>(args.count));
    std::uint32_t appended = 0;
    for (std::int64_t first = group * group_rows; first < end; first += kRowsAtOnce<E>) {
      const int rows = static_cast<int>(min(end - first, std::int64_t{kRowsAtOnce<E>}));
      appended = max(appended, score_rows<E, L2>(args, shared, query, nullptr, first, rows));
    }
    if (lane == 0) {
      atomicAdd(&shared.rows_read, static_cast<std::uint32_t>(end - group * group_rows));
      const std::uint64_t common = draw % kDrawsPerLook == 0 ? common_threshold(args.control) : 0;
      if (common > threshold_of(shared)) atomicMax(&shared.threshold, static_cast<unsigned long long>(common));
    }
    const std::uint32_t refreshed_at = *reinterpret_cast<volatile std::uint32_t*>(&shared.refreshed_at);
    const bool pressed = __any_sync(kFullWarp, appended > refreshed_at + args.pressure);
    if (pressed || draw % args.refresh_draws == 0) {
      refresh_threshold(args, shared, lane, true,
                        [&] { return *reinterpret_cast<volatile std::uint32_t*>(&shared.list_count); });
    }
    __syncwarp();
  }
}

/// Scores the survivors that reach the threshold, the last first; `room` is the ring's memory. @returns how many did.
template <element_type E, bool L2>
__device__ __forceinline__ std::uint32_t score_survivors(const certified_args& args, certified_shared& shared,
                                                         const float* query, std::uint64_t* room) {
  const survivor_list survivors = survivors_of(args, shared);
  const std::uint64_t cut = shared.threshold;
  const std::uint32_t room_keys = args.ring_bytes / 8;
  std::uint32_t scored = 0;
#pragma unroll 1
  for (std::uint32_t left = shared.survivor_count; left > 0;) {
    const std::uint32_t chunk = min(left, room_keys);
    left -= chunk;
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x; i < chunk; i += kScanThreads) {
      const std::uint64_t key = survivors[left + i];
      if (key >= cut) room[atomicAdd(&shared.kept, 1u)] = key;
    }
    __syncthreads();
    const std::uint32_t kept = shared.kept;
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x / kWarp * kRowsAtOnce<E>; i < kept; i += kScanWarps * kRowsAtOnce<E>)
      score_rows<E, L2>(args, shared, query, room + i, 0,
                        static_cast<int>(min(kept - i, std::uint32_t{kRowsAtOnce<E>})));
    scored += kept;
    __syncthreads();
    if (threadIdx.x == 0) shared.kept = 0;
    __syncthreads();
  }
  return scored;
}

__device__ __forceinline__ void count_search(const certified_args& args, const certified_shared& shared,
                                             std::uint32_t scored) {
  atomicAdd(&args.counters->rescored, static_cast<unsigned long long>(scored) + shared.rows_read);
  if (blockIdx.x == 0) atomicAdd(&args.counters->certified_queries, 1ull);
  if (shared.reads_rows && atomicExch(&args.control->reads_rows, 1u) == 0) {
    atomicAdd(&args.counters->full_queries, 1ull);
    atomicAdd(&args.counters->certified_queries, ~0ull);
  }
}

template <element_type E, bool L2>
__global__ void __launch_bounds__(kScanThreads, 1) certified_scan_kernel(const __grid_constant__ certified_args args) {
  cudaTriggerProgrammaticLaunchCompletion();  // the merge may come and wait
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* ring = memory;
  auto& shared = *reinterpret_cast<certified_shared*>(memory + args.ring_bytes);
  auto* query = reinterpret_cast<float*>(memory + args.ring_bytes + sizeof(certified_shared));
  const int padded_dim = (args.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  auto* columns = reinterpret_cast<std::uint32_t*>(query + padded_dim);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::uint32_t primed = args.warps * ((args.stages + args.pieces - 1) / args.pieces);

  clear_selection(shared, reinterpret_cast<std::uint64_t*>(columns + args.fragments * kColumnWords), primed);
  if (threadIdx.x == 0) {
    shared.survivor_count = 0;
    shared.judged_survivors = 0;
    shared.judged_draws = 0;
    shared.reads_rows = 0;
    shared.rows_read = 0;
    shared.sample_judged = 0;
  }
  const float* given_query = args.query ? args.query : args.inline_query;
  const query_head head = fetch_query_head(given_query, args.dim);
  stage_cursor cursor{-1, args.pieces};
  if (lane == 0 && warp < args.warps) {  // lane 0 of a warp owns its stages
    for (int s = 0; s < args.stages; s++) barrier_init(&shared.barriers[warp * args.stages + s], 1);
    barrier_init_fence();
    std::uint32_t draw = warp;
    for (int s = 0; s < args.stages; s++) {
      const bool draws = cursor.piece == args.pieces;
      issue_piece(args, shared, ring, warp * args.stages + s, draws ? group_of(args, draw) : -1, cursor);
      if (draws) draw += args.warps;
    }
  }
  place_query(args, given_query, head, query, shared);
  encode_query(args, shared, query, columns);

  if (warp < args.warps) filter_plane(args, shared, ring, columns, cursor, primed);
  if (__any_sync(kFullWarp, reads_rows(shared))) read_rows<E, L2>(args, shared, query);
  __syncthreads();
  refresh_at_end(args, shared, shared.survivor_count + shared.list_count, 0, shared.list_count);
  const std::uint32_t scored = score_survivors<E, L2>(args, shared, query, reinterpret_cast<std::uint64_t*>(ring));
  if (warp == 0) publish_best(args, shared, lane);  // scores are tighter than the intervals' ends
  write_slots(args, shared, reinterpret_cast<std::uint64_t*>(ring));
  if (threadIdx.x == 0) count_search(args, shared, scored);
}

/// How the ring is cut into stages.
struct ring_shape {
  int group_blocks;
  int pieces;
  int piece_fragments;
  std::int64_t stage_bytes;
  int warps;
  int stages;
};

/// Room for so many bytes that begin anywhere in a line.
std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 2 * kLineBytes - 1) / kLineBytes * kLineBytes; }

ring_shape choose_ring(const core::fragment_layout& layout, std::int64_t ring_bytes) {
  constexpr std::int64_t kStageTarget = 8704;  // 16 stages fill the ring: each warp has one
  const std::int64_t target = std::min(kStageTarget, ring_bytes / 4);
  ring_shape shape{};
  if (layout.block_bytes() <= target) {
    shape.group_blocks = static_cast<int>(target / layout.block_bytes());
    shape.pieces = 1;
    shape.piece_fragments = static_cast<int>(layout.groups);
    shape.stage_bytes = whole_lines(shape.group_blocks * layout.block_bytes());
  } else {
    const std::int64_t terms_bytes = layout.block_bytes() - layout.codes_bytes();
    const std::int64_t most = (target - terms_bytes) / kFragmentBytes;
    const std::int64_t pieces = (layout.groups + most - 1) / most;
    const std::int64_t fragments = (layout.groups + pieces - 1) / pieces;
    shape.group_blocks = 1;
    shape.pieces = static_cast<int>((layout.groups + fragments - 1) / fragments);
    shape.piece_fragments = static_cast<int>(fragments);
    shape.stage_bytes = whole_lines(fragments * kFragmentBytes + terms_bytes);
  }
  const std::int64_t slots = ring_bytes / shape.stage_bytes;
  shape.warps = static_cast<int>(std::min<std::int64_t>(kScanWarps, slots));
  shape.stages = static_cast<int>(std::min<std::int64_t>(kMaxPlaneStages, slots / shape.warps));
  return shape;
}

/// Rows that spills may hold beyond all: those of a group a block.
constexpr std::int64_t kSpillSlack = 2048;
constexpr std::int64_t kRefreshes = 16;  // of the threshold, at least
constexpr std::int64_t kCountersBytes = 256;

using kernel_pointer = void (*)(certified_args);

template <element_type E>
kernel_pointer kernel_of(bool l2) {
  return l2 ? certified_scan_kernel<E, true> : certified_scan_kernel<E, false>;
}

kernel_pointer kernel_of(element_type type, bool l2) {
  switch (type) {
    case element_type::f32: return kernel_of<element_type::f32>(l2);
    case element_type::f16: return kernel_of<element_type::f16>(l2);
    case element_type::bf16: return kernel_of<element_type::bf16>(l2);
    case element_type::i8:
    case element_type::u8: break;
  }
  throw_cuda(cudaErrorNotSupported, "a certified scan of rows of one byte an element");
}

/// All that a search's two launches need.
struct certified_plan {
  kernel_pointer kernel;
  int blocks;
  certified_args scan;
  merge_args merge;
};

certified_plan plan_scan(void* workspace, const core::flat_corpus& corpus, const core::flat_request& request,
                         const float* host_query, completion_flag done, int multiprocessors) {
  const int blocks = std::min(multiprocessors, kMaxBlocks);
  const core::fragment_layout layout(corpus.dim, corpus.metric);
  const std::int64_t padded_dim = (corpus.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  const scan_search search =
      search_of(static_cast<unsigned char*>(workspace) + kCountersBytes, corpus, request, blocks);
  const std::int64_t fixed_bytes = static_cast<std::int64_t>(sizeof(certified_shared)) +
                                   padded_dim * static_cast<std::int64_t>(sizeof(float)) +
                                   layout.groups * kColumnWords * 4 + published_bytes(search, blocks);
  const std::int64_t ring_bytes = (kScanSharedBytes - fixed_bytes) / 128 * 128;
  const ring_shape ring = choose_ring(layout, ring_bytes);
  const std::int64_t group_rows = static_cast<std::int64_t>(ring.group_blocks) * core::kPlaneRows;
  const std::int64_t groups = (corpus.count + group_rows - 1) / group_rows;
  const std::int64_t draws = (groups + blocks - 1) / blocks;
  const std::optional<std::int64_t> forced = core::forced_survivors();

  certified_plan made{};
  certified_args& args = made.scan;
  static_cast<scan_search&>(args) = search;
  if (host_query) args.query = nullptr;
  args.may_read_rows = corpus.storage != storage::int8_and_host;
  args.spill_capacity = draws * group_rows;
  args.warps = ring.warps;
  args.warp_rows = core::kPlaneRows;
  args.plane = reinterpret_cast<const unsigned char*>(corpus.plane);
  args.rows = static_cast<const unsigned char*>(corpus.rows);
  args.inverse_norms = corpus.inverse_norms;
  args.counters = static_cast<certified_counters*>(workspace);
  args.row_stride_bytes = corpus.row_stride_bytes;
  args.block_bytes = layout.block_bytes();
  args.groups = static_cast<std::uint32_t>(groups);
  args.group_blocks = ring.group_blocks;
  args.fragments = static_cast<std::int32_t>(layout.groups);
  args.pieces = ring.pieces;
  args.piece_fragments = ring.piece_fragments;
  args.stage_bytes = static_cast<std::int32_t>(ring.stage_bytes);
  args.stages = ring.stages;
  args.ring_bytes = static_cast<std::int32_t>(ring_bytes);
  args.max_query_code = core::max_query_code(corpus.dim, kWideQueryCode);
  args.near_survivors =
      static_cast<std::uint32_t>(std::min<std::int64_t>(forced.value_or(kNearSurvivors), kNearSurvivors));
  args.pressure = std::min(args.near_survivors, kPressure);
  args.refresh_draws = static_cast<std::uint32_t>(std::clamp<std::int64_t>(draws / kRefreshes, 16, 1024));
  if (host_query) std::copy_n(host_query, corpus.dim, args.inline_query);

  made.kernel = kernel_of(corpus.type, corpus.metric == metric::l2);
  made.blocks = blocks;
  made.merge = merge_of(args, corpus, request, done, blocks);
  return made;
}

void launch_both(cudaStream_t stream, const certified_plan& plan) {
  plan.kernel<<<plan.blocks, kScanThreads, kScanSharedBytes, stream>>>(plan.scan);
  check(cudaGetLastError(), "launching the certified scan");
  merge_launch(plan.merge).run(stream);
}

}  // namespace

std::int64_t certified_scan_workspace_bytes(std::int64_t max_rows, std::int64_t max_k, int multiprocessors) {
  const int blocks = std::min(multiprocessors, kMaxBlocks);
  return kCountersBytes + layout_of(max_k, blocks).bytes_with_spill(max_rows + blocks * kSpillSlack);
}

void prepare_certified_scan() {
  for (const element_type type : {element_type::f32, element_type::f16, element_type::bf16})
    for (const bool l2 : {false, true})
      check(cudaFuncSetAttribute(kernel_of(type, l2), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kScanSharedBytes)),
            "raising the certified scan's shared memory");
  prepare_scan_merge();
}

void launch_certified_scan(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus,
                           const core::flat_request& request, int multiprocessors) {
  launch_both(stream, plan_scan(workspace, corpus, request, nullptr, {}, multiprocessors));
}

certified_scan_graph::certified_scan_graph(void* workspace, int multiprocessors) : multiprocessors_(multiprocessors) {
  // Any valid search will do: each launch sets its own parameters.
  const core::flat_corpus corpus{.rows = workspace, .row_stride_bytes = 16, .count = 1, .dim = 1};
  const core::flat_request request{.query_count = 1, .k = 1};
  certified_plan plan = plan_scan(workspace, corpus, request, nullptr, {}, multiprocessors);
  void* pointers[] = {&plan.scan};
  launches_.emplace(scan_node(plan, pointers), merge_launch(plan.merge));
}

void certified_scan_graph::launch(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus,
                                  const core::flat_request& request, const float* host_query, completion_flag done) {
  certified_plan plan = plan_scan(workspace, corpus, request, host_query, done, multiprocessors_);
  void* pointers[] = {&plan.scan};
  launches_->launch(stream, scan_node(plan, pointers), merge_launch(plan.merge));
}

}  // namespace shortlist::cuda
