// Certified exact search for one query: one pass over the int8 plane, or over its coarse copy of six bits an element,
// less than a fifth of the rows' bytes, then the scores of the few rows whose interval reaches the threshold.
// docs/certified.md proves that no other row counts.
//
// Why it is fast: blocks of 16 rows stream through shared memory as in scan.cu; a block is the left side of products by
// the matrix units, one 16-byte load a lane and one instruction for 512 codes, and the query the right side.
// Steps of a warp: await its stage -> products -> intervals -> append to the survivors if the upper end reaches the
// threshold, keep the best lower ends for it -> refill the stage. The threshold rises as that of scan.cu does, from
// lower ends that blocks publish. Lower ends of coarse codes are far from the scores: now and then some warps of each
// block score the rows with the best upper ends, and blocks publish those scores.
// End of a block: cut its survivors by the threshold, score those rows, a few a warp, and write the scores' keys to the
// block's slots, for the scan's merge.
// A filter that lets too much pass is given up: the block's warps then read rows instead, and score them all. Nothing
// is ever dropped: survivors and scored rows that shared memory cannot hold go to the block's spill, sized for all its
// rows.
// Limit: bytes of the plane over read bandwidth; measured share: see docs/kernels.md.
// History, 1M x 1024, k 8, host to host, us on an H200: stages of half a block of rows 262 -> the last quarter of the
// rows drawn by all blocks in common 268, taken back -> copies that begin at whole lines 256 -> the published keys
// loaded by twelves 255 -> six bits an element instead of eight 206. All-equal rows, 1M x 768, k 100: 946 -> 851 since
// the first threshold judges the filter. 1M x 768, k 1000: 224 -> 196 since warps share a round of scores.
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

/// Bytes by which the codes of a block, and each of their pieces, begin after a whole line of memory. Copies begin at
/// whole lines: others are a twentieth slower.
__device__ __forceinline__ int skew_of(const certified_args& args, std::int64_t block) {
  return static_cast<int>((block * args.block_bytes + args.codes_at) % kLineBytes);
}

/// Fills a stage with the next piece, if need be of group `drawn`, which may be -1.
__device__ __forceinline__ void issue_piece(const certified_args& args, certified_shared& shared, unsigned char* ring,
                                            int slot, std::int64_t drawn, stage_cursor& cursor) {
  if (cursor.piece == args.pieces) cursor = {drawn, drawn < 0 ? args.pieces : 0};
  shared.stage_group[slot] = static_cast<std::int32_t>(cursor.group);
  if (cursor.group < 0) return;
  const std::int64_t first_block = cursor.group * args.group_blocks;
  const std::int64_t all_blocks = (static_cast<std::int64_t>(args.count) + core::kPlaneRows - 1) / core::kPlaneRows;
  const std::int64_t end = min(first_block + args.group_blocks, all_blocks);
  const int first_step = cursor.piece * args.piece_steps;
  const std::int64_t from = args.codes_at + static_cast<std::int64_t>(first_step) * args.step_bytes;
  cursor.piece++;
  const int bytes = min(args.piece_steps, args.steps - first_step) * args.step_bytes +
                    (cursor.piece == args.pieces ? args.terms_bytes : 0);
  int expected = 0;
  for (std::int64_t block = first_block; block < end; block++) expected += bytes + skew_of(args, block);
  barrier_expect(&shared.barriers[slot], expected);
  unsigned char* to = ring + slot * static_cast<std::int64_t>(args.stage_bytes);
  for (std::int64_t block = first_block; block < end; block++, to += args.unit_bytes) {
    const int skew = skew_of(args, block);
    bulk_copy(to, args.plane + block * args.block_bytes + from - skew, bytes + skew, &shared.barriers[slot]);
  }
}

/// A warp's share of the plane, until there is no more of it or the filter is given up.
template <element_type E, bool L2>
__device__ __forceinline__ void filter_plane(const certified_args& args, certified_shared& shared, unsigned char* ring,
                                             const float* scored_query, const std::uint32_t* columns,
                                             stage_cursor cursor, std::uint32_t primed) {
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
    const unsigned char* staged = ring + slot * static_cast<std::int64_t>(args.stage_bytes);
    const int first_step = piece * args.piece_steps;
    const int steps = min(args.piece_steps, args.steps - first_step);
    const bool is_last = piece + 1 == args.pieces;
    std::uint32_t appended = 0;
    for (int b = 0; b < args.group_blocks; b++, staged += args.unit_bytes) {
      const std::int64_t block = group * args.group_blocks + b;
      const std::int64_t first = block * core::kPlaneRows;
      if (first >= args.count) break;
      if (piece == 0) sums[0] = sums[1] = sums[2] = sums[3] = 0;
      const unsigned char* codes = staged + skew_of(args, block);
      const std::uint32_t* right = columns + first_step * args.step_words;
      if (args.is_coarse)
        multiply_pairs(codes, right, steps, lane, sums);
      else
        multiply_groups(codes, right, steps, lane, sums);
      if (!is_last) continue;
      const auto* terms = reinterpret_cast<const float*>(codes + steps * args.step_bytes);
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
    const bool reached = args.score_draws != 0 && draw > primed &&
                         since >= *reinterpret_cast<volatile std::uint32_t*>(&shared.next_scores);
    const bool scores_wait = *reinterpret_cast<volatile std::int32_t*>(&shared.to_score) > 0;
    if (__any_sync(kFullWarp, scores_wait)) help_to_score<E, L2>(args, shared, scored_query, lane);
    const bool pressed = __any_sync(kFullWarp, appended > refreshed_at + args.pressure) && draw < args.last_pressed;
    const bool is_open = draw < args.last_refresh;  // what is raised at the very end comes late, and all wait for it
    bool refreshed = false;
    if (pressed || ((due || reached) && is_open)) {
      const bool raises = pressed || reached || (blockIdx.x & 7) == (__ffs(since) & 7);
      const bool scores = reached || (pressed && args.score_draws != 0);
      refreshed = refresh_threshold(args, shared, lane, raises, listed, [&] {
        if (scores) score_best<E, L2>(args, shared, scored_query, lane, reached ? since : 0);
      });
      refreshed = refreshed && pressed;
    }
    if (appended > 0) {
      judge_sample(args, shared, lane, primed);
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

constexpr int kGatheredAtOnce = 8;  // survivors of a thread

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
    for (std::uint32_t first = threadIdx.x; first < chunk; first += kGatheredAtOnce * kScanThreads) {
      std::uint64_t keys[kGatheredAtOnce];  // most are far: their loads are to be in flight together
#pragma unroll
      for (int j = 0; j < kGatheredAtOnce; j++) {
        const std::uint32_t i = first + j * kScanThreads;
        keys[j] = core::kNoRow;
        if (i < chunk) keys[j] = survivors[left + i];
      }
#pragma unroll
      for (int j = 0; j < kGatheredAtOnce; j++)
        if (keys[j] >= cut && keys[j] != core::kNoRow) room[atomicAdd(&shared.kept, 1u)] = keys[j];
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
  const std::uint32_t primed = primed_draws(args.warps, args.stages, args.pieces);

  clear_selection(shared, reinterpret_cast<std::uint64_t*>(columns + args.steps * args.step_words), primed);
  for (int i = threadIdx.x; i < kScanWarps * kSlotsPerWarp; i += kScanThreads) shared.slot_next[i] = 0;
  if (threadIdx.x == 0) {
    shared.survivor_count = 0;
    shared.judged_survivors = 0;
    shared.judged_draws = 0;
    shared.reads_rows = 0;
    shared.rows_read = 0;
    shared.sample_judged = 0;
    shared.next_scores = first_scores(args.score_draws);
    shared.to_score = 0;
    shared.scored = 0;
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

  if (warp < args.warps) filter_plane<E, L2>(args, shared, ring, query, columns, cursor, primed);
  if (__any_sync(kFullWarp, reads_rows(shared))) read_rows<E, L2>(args, shared, query);
  __syncthreads();
  refresh_at_end(args, shared, shared.survivor_count + shared.list_count, 0, shared.list_count);
  const std::uint32_t scored = score_survivors<E, L2>(args, shared, query, reinterpret_cast<std::uint64_t*>(ring));
  if (warp == 0) publish_best(args, shared, lane);  // scores are tighter than the intervals' ends
  write_slots(args, shared, reinterpret_cast<std::uint64_t*>(ring));
  if (threadIdx.x == 0) count_search(args, shared, scored);
}

/// What a scan reads of each block of a plane.
struct plane_part {
  std::int64_t at;
  std::int64_t steps;
  std::int64_t step_bytes;
  std::int64_t step_words;  ///< of the query's columns
  std::int64_t terms_bytes;
};

plane_part part_of(const core::fragment_layout& layout, bool is_coarse) {
  using core::fragment_layout;
  if (is_coarse)
    return {layout.whole_bytes(), layout.pairs, fragment_layout::kPairBytes, 2 * kColumnWords, layout.terms_bytes()};
  return {0, layout.groups, fragment_layout::kGroupBytes, kColumnWords, layout.terms_bytes()};
}

/// How the ring is cut into stages.
struct ring_shape {
  int group_blocks;
  int pieces;
  int piece_steps;
  std::int64_t unit_bytes;
  std::int64_t stage_bytes;
  int warps;
  int stages;
};

/// Room for so many bytes that begin anywhere in a line.
std::int64_t whole_lines(std::int64_t bytes) { return (bytes + 2 * kLineBytes - 1) / kLineBytes * kLineBytes; }

ring_shape choose_ring(const plane_part& part, std::int64_t ring_bytes) {
  constexpr std::int64_t kStageTarget = 9984;  // 16 stages fill the ring: each warp has one
  const std::int64_t target = std::min(kStageTarget, ring_bytes / 4);
  const auto unit_bytes = [&](std::int64_t steps) { return whole_lines(steps * part.step_bytes + part.terms_bytes); };
  std::int64_t steps = part.steps;
  for (std::int64_t pieces = 2; unit_bytes(steps) > target; pieces++) steps = (part.steps + pieces - 1) / pieces;
  ring_shape shape{};
  shape.pieces = static_cast<int>((part.steps + steps - 1) / steps);
  shape.piece_steps = static_cast<int>(steps);
  shape.unit_bytes = unit_bytes(steps);
  shape.group_blocks = shape.pieces > 1 ? 1 : static_cast<int>(target / shape.unit_bytes);
  shape.stage_bytes = shape.group_blocks * shape.unit_bytes;
  const std::int64_t slots = ring_bytes / shape.stage_bytes;
  shape.warps = static_cast<int>(std::min<std::int64_t>(kScanWarps, slots));
  shape.stages = static_cast<int>(std::min<std::int64_t>(kMaxPlaneStages, slots / shape.warps));
  return shape;
}

/// Rows that spills may hold beyond all: those of a group a block.
constexpr std::int64_t kSpillSlack = 2048;
constexpr std::int64_t kRefreshes = 16;  // of the threshold, at least
// Nothing is raised in the last draws of a long scan, so many for each key that a block publishes: all would wait for
// it.
constexpr std::int64_t kDrawsPerPublished = 8;
constexpr std::int64_t kLongDraws = 256;
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
  const core::fragment_layout layout(corpus.dim, corpus.metric, corpus.storage);
  const bool is_coarse = core::scans_coarse_copy(core::shape_of(corpus, request), corpus.summary);
  const plane_part part = part_of(layout, is_coarse);
  const std::int64_t padded_dim = (corpus.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  const scan_search search =
      search_of(static_cast<unsigned char*>(workspace) + kCountersBytes, corpus, request, blocks);
  const std::int64_t fixed_bytes = static_cast<std::int64_t>(sizeof(certified_shared)) +
                                   padded_dim * static_cast<std::int64_t>(sizeof(float)) +
                                   part.steps * part.step_words * 4 + published_bytes(search, blocks);
  const std::int64_t ring_bytes = (kScanSharedBytes - fixed_bytes) / 128 * 128;
  const ring_shape ring = choose_ring(part, ring_bytes);
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
  args.warp_slots = kSlotsPerWarp;
  args.plane = reinterpret_cast<const unsigned char*>(corpus.plane);
  args.rows = static_cast<const unsigned char*>(corpus.rows);
  args.inverse_norms = corpus.inverse_norms;
  args.counters = static_cast<certified_counters*>(workspace);
  args.row_stride_bytes = corpus.row_stride_bytes;
  args.block_bytes = layout.block_bytes();
  args.codes_at = part.at;
  args.terms_bytes = static_cast<std::int32_t>(part.terms_bytes);
  args.is_coarse = is_coarse;
  args.groups = static_cast<std::uint32_t>(groups);
  args.group_blocks = ring.group_blocks;
  args.steps = static_cast<std::int32_t>(part.steps);
  args.step_bytes = static_cast<std::int32_t>(part.step_bytes);
  args.step_words = static_cast<std::int32_t>(part.step_words);
  args.pieces = ring.pieces;
  args.piece_steps = ring.piece_steps;
  args.unit_bytes = static_cast<std::int32_t>(ring.unit_bytes);
  args.stage_bytes = static_cast<std::int32_t>(ring.stage_bytes);
  args.stages = ring.stages;
  args.ring_bytes = static_cast<std::int32_t>(ring_bytes);
  args.max_query_code = core::max_query_code(corpus.dim, kWideQueryCode);
  args.near_survivors =
      static_cast<std::uint32_t>(std::min<std::int64_t>(forced.value_or(kNearSurvivors), kNearSurvivors));
  args.pressure = std::min(args.near_survivors, kPressure);
  args.refresh_draws = static_cast<std::uint32_t>(std::clamp<std::int64_t>(draws / kRefreshes, 16, 1024));
  const std::int64_t primed = primed_draws(ring.warps, ring.stages, ring.pieces);
  const bool is_long = draws >= kLongDraws;
  const std::int64_t raising = is_long ? std::max(primed, kDrawsPerPublished * search.publish) : primed;
  args.last_refresh = static_cast<std::uint32_t>(std::max<std::int64_t>(0, draws - raising));
  args.last_pressed = is_long ? args.last_refresh : ~0u;
  // The last round of scores: all blocks, the slowest too, are to have its threshold before the first of them ends.
  if (is_coarse) args.score_draws = static_cast<std::uint32_t>(std::max<std::int64_t>(1, draws - primed - 3 * raising));
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
