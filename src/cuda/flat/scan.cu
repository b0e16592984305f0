// Exact search for one query: one pass over the rows with selection fused in; a second, tiny kernel merges.
//
// Why it is fast: the rows stream through shared memory by bulk copies, some 150 KB in flight on each multiprocessor,
// with no block-wide barrier; each row costs a few shuffles and one comparison with a threshold that only rises.
// Steps of a warp: await its stage -> a few rows at a time: partial sums -> tree -> key -> append if above the
// threshold -> refill the stage. Now and then one warp publishes its block's best keys and, in one block of eight,
// raises the common threshold to about the k-th best of all published ones: distinct rows, so a valid lower bound.
// End of a block: cut its list by the threshold, sort it if short, write it to the block's slots. See scan_merge.cu for
// what follows; it is launched with the scan, and begins where the first block has ended.
// Nothing is ever dropped: what does not fit a block's list in shared memory goes to its spill, sized for all its rows.
// Limit: bytes of the rows over read bandwidth; measured share: see docs/kernels.md.
// History, 1M x 384, k 100, host to host, us on an H200: last block merges by radix cuts 361 -> keys published and cut
// before the merge 363, no cliff with k or ties -> the merge as a kernel of its own that rehearses 354 -> cuts probed
// by all warps at once 353. int8: 32 lanes a row 166 -> eight lanes 125 -> 122 with the last two steps.
#include <algorithm>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/flat/scan.hpp"
#include "cuda/flat/scan_merge.cuh"
#include "cuda/flat/scan_plan.cuh"
#include "cuda/flat/scan_score.cuh"
#include "cuda/flat/scan_search.cuh"
#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kMaxStages = 4;  // of a warp

struct scan_args : scan_search {
  const unsigned char* rows;
  const float* inverse_norms;
  std::int64_t row_stride_bytes;
  std::uint32_t groups;     // of stage_rows rows
  std::int32_t stage_rows;  // rows of a stage, a multiple of what a warp holds at once
  std::int32_t stages;      // stages of a warp
  std::int32_t ring_bytes;
  float inline_query[kScanParameterDim];
};

/// What a block keeps in shared memory, behind the ring of stages.
struct alignas(16) scan_shared : scan_selection {
  std::uint64_t barriers[kScanWarps * kMaxStages];
  std::int32_t stage_group[kScanWarps * kMaxStages];  // which group of rows a stage holds; -1: none left
};

template <element_type E, bool L2, bool Bulk>
__global__ void __launch_bounds__(kScanThreads, 1) flat_scan_kernel(const __grid_constant__ scan_args args) {
  cudaTriggerProgrammaticLaunchCompletion();  // the merge may come and wait
  extern __shared__ __align__(128) unsigned char memory[];
  unsigned char* ring = memory;
  auto& shared = *reinterpret_cast<scan_shared*>(memory + args.ring_bytes);
  auto* query = reinterpret_cast<float*>(memory + args.ring_bytes + sizeof(scan_shared));
  const auto* q4 = reinterpret_cast<const float4*>(query);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const std::int64_t stride = args.row_stride_bytes;
  const int stage_rows = args.stage_rows;
  const std::uint32_t groups = args.groups;
  const int stages = args.stages;
  const std::uint32_t primed = args.warps * stages;
  const std::int64_t stage_bytes = stage_rows * (stride + (args.inverse_norms ? sizeof(float) : 0));

  const int padded_dim = (args.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  clear_selection(shared, reinterpret_cast<std::uint64_t*>(query + padded_dim), primed);

  // Lane 0 of a warp owns its stages. Draw d of the block is group d * blocks + block, so that positions rise together.
  const auto issue = [&](int stage, std::uint32_t draw) {
    const std::int64_t group = static_cast<std::int64_t>(draw) * gridDim.x + blockIdx.x;
    const int slot = warp * stages + stage;
    const bool there = group < groups;
    shared.stage_group[slot] = there ? static_cast<std::int32_t>(group) : -1;
    if (!Bulk || !there) return;
    const std::int64_t first = group * stage_rows;
    const int rows = min(static_cast<std::int64_t>(stage_rows), args.count - first);
    unsigned char* to = ring + slot * stage_bytes;
    const std::uint32_t row_bytes = static_cast<std::uint32_t>(rows * stride);
    const std::uint32_t norm_bytes =
        args.inverse_norms ? (rows + 3) / 4 * 4 * sizeof(float) : 0;  // allocations have slack
    barrier_expect(&shared.barriers[slot], row_bytes + norm_bytes);
    bulk_copy(to, args.rows + first * stride, row_bytes, &shared.barriers[slot]);
    if (norm_bytes) bulk_copy(to + stage_rows * stride, args.inverse_norms + first, norm_bytes, &shared.barriers[slot]);
  };
  const float* given_query = args.query ? args.query : args.inline_query;
  const query_head head = fetch_query_head(given_query, args.dim);
  if (lane == 0 && warp < args.warps) {
    if constexpr (Bulk) {
      for (int s = 0; s < stages; s++) barrier_init(&shared.barriers[warp * stages + s], 1);
      barrier_init_fence();
    }
    for (int s = 0; s < stages; s++) issue(s, s * args.warps + warp);
  }
  place_query(args, given_query, head, query, shared);
  const float query_inverse_norm = shared.query_inverse_norm;
  const block_list list = list_of(args, shared);
  const int my_row = scored_row<E>(lane);
  const bool leads = leads_scored_row<E>(lane);
  std::uint64_t my_best = core::kNoRow;

  if (warp < args.warps) {
    int stage = 0;
    std::uint32_t parity = 0;
    while (true) {
      const int slot = warp * stages + stage;
      const int group = *reinterpret_cast<volatile std::int32_t*>(&shared.stage_group[slot]);
      if (group < 0) break;
      std::uint32_t draw = 0;
      if (lane == 0) draw = atomicAdd(&shared.next_draw, 1u);
      unsigned long long common = 0;  // now and then somebody looks at the threshold that all blocks share
      if (lane == 0 && draw % kDrawsPerLook == 0) common = common_threshold(args.control);
      if constexpr (Bulk) barrier_wait(&shared.barriers[slot], parity);
      const unsigned char* staged = ring + slot * stage_bytes;
      std::uint32_t appended = 0;

      for (int r0 = 0; r0 < stage_rows; r0 += kRowsAtOnce<E>) {
        const std::int64_t first = static_cast<std::int64_t>(group) * stage_rows + r0;
        if (first >= args.count) break;
        const std::int64_t row = first + my_row;
        partial_sums<E> sums = {};
        float row_inverse_norm = 0.0f;
        if constexpr (Bulk) {
          if (args.inverse_norms)
            row_inverse_norm = reinterpret_cast<const float*>(staged + stage_rows * stride)[r0 + my_row];
          sums_from_shared<E, L2>(staged + r0 * stride, static_cast<int>(stride), q4, lane, sums);
        } else {
          if (args.inverse_norms && row < args.count) row_inverse_norm = args.inverse_norms[row];
          const unsigned char* rows[kRowsPerLane<E>];
#pragma unroll
          for (int r = 0; r < kRowsPerLane<E>; r++) {
            const std::int64_t mine = first + r * kRowsPerPass<E> + lane / kLanesPerRow<E>;
            rows[r] = mine < args.count ? args.rows + mine * stride : nullptr;
          }
          sums_from_global<E, L2>(rows, stride, q4, lane, sums);
        }
        const float score = score_of(finish_sums<kLanesPerRow<E>, kRowsPerLane<E>>(sums, lane), args.by,
                                     query_inverse_norm, row_inverse_norm);
        const std::uint64_t key = core::row_key(core::score_key(score, args.by), static_cast<std::uint32_t>(row));
        const bool passes = leads && row < args.count && key > threshold_of(shared);
        if (passes) {
          appended = atomicAdd(&shared.list_count, 1u) + 1;
          list[appended - 1] = key;
          if (key > my_best) {
            my_best = key;
            *reinterpret_cast<volatile std::uint64_t*>(&shared.slot_best[warp * kRowsAtOnce<E> + my_row]) = key;
          }
        }
      }
      __syncwarp();
      if (lane == 0) {
        issue(stage, draw);
        if (common > threshold_of(shared)) atomicMax(&shared.threshold, common);
      }
      draw = __shfl_sync(kFullWarp, draw, 0);
      if (++stage == stages) {
        stage = 0;
        parity ^= 1;
      }
      // Refresh at draws that double, then every 1024th, and out of turn when many keys were appended.
      const std::uint32_t refreshed_at = *reinterpret_cast<volatile std::uint32_t*>(&shared.refreshed_at);
      const bool pressed = __any_sync(kFullWarp, appended > refreshed_at + kPressure);
      const std::uint32_t since = draw - primed;
      const bool due =
          since >= static_cast<std::uint32_t>(args.warps) && ((since & (since - 1)) == 0 || since % 1024 == 0);
      const auto listed = [&] { return *reinterpret_cast<volatile std::uint32_t*>(&shared.list_count); };
      if (pressed) {
        refresh_threshold(args, shared, lane, true, listed);
      } else if (due && static_cast<std::int64_t>(draw) * gridDim.x < groups) {
        refresh_threshold(args, shared, lane, (blockIdx.x & 7) == (__ffs(since) & 7), listed);
      }
      __syncwarp();
    }
  }
  __syncthreads();
  refresh_at_end(args, shared, shared.list_count, kSortedSlots, shared.list_count);
  write_slots(args, shared, reinterpret_cast<std::uint64_t*>(ring));
}

constexpr int rows_at_once_of(element_type type) {
  switch (size_bytes(type)) {
    case 4: return kRowsAtOnce<element_type::f32>;
    case 2: return kRowsAtOnce<element_type::f16>;
    default: return kRowsAtOnce<element_type::i8>;
  }
}

/// How the ring is cut into stages. Measured on an H200: 6 to 16 KB a stage, about 190 KB in flight.
struct ring_shape {
  int stage_rows;
  int warps;
  int stages;
  bool bulk;
};

ring_shape choose_ring(std::int64_t stride, std::int64_t norm_bytes, int rows_at_once, std::int64_t ring_bytes) {
  constexpr std::int64_t kStageTarget = 6 * 1024;
  const std::int64_t pass_bytes = rows_at_once * (stride + norm_bytes);
  if (pass_bytes > ring_bytes / 4) return {rows_at_once, kScanWarps, 1, false};
  const std::int64_t passes = std::max<std::int64_t>(1, kStageTarget / pass_bytes);
  const std::int64_t stage_bytes = passes * pass_bytes;
  const std::int64_t slots = ring_bytes / stage_bytes;
  const std::int64_t warps = std::min<std::int64_t>(kScanWarps, slots);
  const std::int64_t stages = std::min<std::int64_t>(kMaxStages, slots / warps);
  return {static_cast<int>(passes) * rows_at_once, static_cast<int>(warps), static_cast<int>(stages), true};
}

/// Rows that a block's spill may hold beyond its share of all: a group has few hundred rows.
constexpr std::int64_t kSpillSlack = 2048;

using kernel_pointer = void (*)(scan_args);

template <element_type E>
kernel_pointer kernel_of(bool l2, bool bulk) {
  if (l2) return bulk ? flat_scan_kernel<E, true, true> : flat_scan_kernel<E, true, false>;
  return bulk ? flat_scan_kernel<E, false, true> : flat_scan_kernel<E, false, false>;
}

kernel_pointer kernel_of(element_type type, bool l2, bool bulk) {
  switch (type) {
    case element_type::f32: return kernel_of<element_type::f32>(l2, bulk);
    case element_type::f16: return kernel_of<element_type::f16>(l2, bulk);
    case element_type::bf16: return kernel_of<element_type::bf16>(l2, bulk);
    case element_type::i8: return kernel_of<element_type::i8>(l2, bulk);
    case element_type::u8: return kernel_of<element_type::u8>(l2, bulk);
  }
  return nullptr;
}

/// All that a search's two launches need.
struct scan_plan {
  kernel_pointer kernel;
  int blocks;
  scan_args scan;
  merge_args merge;
};

scan_plan plan_scan(void* workspace, const core::flat_corpus& corpus, const core::flat_request& request,
                    const float* host_query, completion_flag done, int multiprocessors) {
  const int blocks = std::min(multiprocessors, kMaxBlocks);
  const std::int64_t padded_dim = (corpus.dim + core::kPartialSums - 1) / core::kPartialSums * core::kPartialSums;
  const scan_search search = search_of(workspace, corpus, request, blocks);
  const std::int64_t fixed_bytes = static_cast<std::int64_t>(sizeof(scan_shared)) +
                                   padded_dim * static_cast<std::int64_t>(sizeof(float)) +
                                   published_bytes(search, blocks);
  const std::int64_t ring_bytes = (kScanSharedBytes - fixed_bytes) / 128 * 128;
  const int rows_at_once = rows_at_once_of(corpus.type);
  const ring_shape ring =
      choose_ring(corpus.row_stride_bytes, corpus.inverse_norms ? sizeof(float) : 0, rows_at_once, ring_bytes);
  const std::int64_t groups = (corpus.count + ring.stage_rows - 1) / ring.stage_rows;

  scan_plan made{};
  scan_args& args = made.scan;
  static_cast<scan_search&>(args) = search;
  if (host_query) args.query = nullptr;
  args.spill_capacity = (groups + blocks - 1) / blocks * ring.stage_rows;
  args.warps = ring.warps;
  args.warp_slots = rows_at_once;
  args.rows = static_cast<const unsigned char*>(corpus.rows);
  args.inverse_norms = corpus.inverse_norms;
  args.row_stride_bytes = corpus.row_stride_bytes;
  args.groups = static_cast<std::uint32_t>(groups);
  args.stage_rows = ring.stage_rows;
  args.stages = ring.stages;
  args.ring_bytes = static_cast<std::int32_t>(ring_bytes);
  if (host_query) std::copy_n(host_query, corpus.dim, args.inline_query);

  made.kernel = kernel_of(corpus.type, corpus.metric == metric::l2, ring.bulk);
  made.blocks = blocks;
  made.merge = merge_of(args, corpus, request, done, blocks);
  return made;
}

void launch_both(cudaStream_t stream, const scan_plan& plan) {
  plan.kernel<<<plan.blocks, kScanThreads, kScanSharedBytes, stream>>>(plan.scan);
  check(cudaGetLastError(), "launching the flat scan");
  merge_launch(plan.merge).run(stream);
}

}  // namespace

std::int64_t scan_workspace_bytes(std::int64_t max_rows, std::int64_t max_k, int multiprocessors) {
  const int blocks = std::min(multiprocessors, kMaxBlocks);
  return layout_of(max_k, blocks).bytes_with_spill(max_rows + blocks * kSpillSlack);
}

void prepare_flat_scan() {
  for (const element_type type :
       {element_type::f32, element_type::f16, element_type::bf16, element_type::i8, element_type::u8})
    for (const bool l2 : {false, true})
      for (const bool bulk : {false, true})
        check(cudaFuncSetAttribute(kernel_of(type, l2, bulk), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(kScanSharedBytes)),
              "raising the scan's shared memory");
  prepare_scan_merge();
}

void launch_flat_scan(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus,
                      const core::flat_request& request, int multiprocessors) {
  launch_both(stream, plan_scan(workspace, corpus, request, nullptr, {}, multiprocessors));
}

scan_graph::scan_graph(void* workspace, int multiprocessors) : multiprocessors_(multiprocessors) {
  // Any valid search will do: each launch sets its own parameters.
  const core::flat_corpus corpus{.rows = workspace, .row_stride_bytes = 16, .count = 1, .dim = 1};
  const core::flat_request request{.query_count = 1, .k = 1};
  scan_plan plan = plan_scan(workspace, corpus, request, nullptr, {}, multiprocessors);
  void* pointers[] = {&plan.scan};
  launches_.emplace(scan_node(plan, pointers), merge_launch(plan.merge));
}

void scan_graph::launch(cudaStream_t stream, void* workspace, const core::flat_corpus& corpus,
                        const core::flat_request& request, const float* host_query, completion_flag done) {
  scan_plan plan = plan_scan(workspace, corpus, request, host_query, done, multiprocessors_);
  void* pointers[] = {&plan.scan};
  launches_->launch(stream, scan_node(plan, pointers), merge_launch(plan.merge));
}

}  // namespace shortlist::cuda
