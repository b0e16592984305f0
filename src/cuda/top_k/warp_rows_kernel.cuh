// The kernel of row-wise top k of short rows (cols <= 2048, of 16 bits 8192): 4, 8, 16 or 32 lanes of a warp a row.
//
// Why it is fast: rows are on their way into shared memory while others are searched, so that memory never waits for
// the search, and warps take the next that have come, so that none is idle before the end (row_queue.cuh); a row is
// then searched in the registers of its lanes as 16-bit numbers, two a register, from where the borders of the rows
// before were, and a few counts are enough.
//
// Steps, for 1 to 8 rows at a time: bulk copy -> search (row_search.cuh; rows like those before: row_levels.cuh; early
// stops: row_stop.cuh, of 16 bits row_half_stop.cuh; an eps: row_eps.cuh, a wide one: row_wide_eps.cuh) -> choose and
// write (row_output.cuh). fp32 rows of more than 1,024 columns list the few that may be among the best, and search
// these (row_candidates.cuh); so do sorted ones of 16 bits, where k is small. Rows that 16-bit numbers do not settle
// are searched one at a time by the whole warp. Ragged rows are copied by the lanes, and wait for it. Limit: bytes(in)
// + bytes(out) over read bandwidth. Measured share: docs/kernels.md.
//
// History, 2^20 x 256, k 32: loads into registers, search by keys 1.19 ms -> staged by the copy engine 0.54 -> a plain
// loop for most rows, hard ones apart 0.45 -> instances for what is asked 0.41 -> no look at rows like those before,
// places of their units kept, entries written in step 0.35 -> eight rows a warp 0.340 -> the places of all 16 units
// kept 0.336 -> a queue instead of equal shares 0.330 -> four rows, by levels 0.326 (65,536 rows: 0.0345 -> 0.0312);
// bf16 0.69 -> its own values as numbers 0.36 -> four lanes a row 0.30 -> a queue 0.26; 90 % ties 0.96 -> the tie of
// the row before is tried first 0.37. 2^20 x 512, k 64: 0.68 -> four rows a warp, 64 values a lane 0.66 -> a queue
// 0.64. 2^20 x 768, k 128: 1.07 -> a queue, a warp a row 1.00. 65,536 x 1280, k 64: 0.131 -> lists of candidates 0.098;
// k 512: 0.233 -> a queue 0.159. Sorted, 2^20 x 256, k 32: 64-bit keys in shared memory 1.00 -> registers 0.38; bf16
// 1.08 -> 0.35. 2^20 x 255, k 32: a copy a row 0.74 -> one for eight 0.55 -> the last columns in the place of what
// precedes the row 0.36; 2^20 x 256 of a wider matrix: copies asked for by one lane 0.71 -> by a lane each 0.37. 16-bit
// rows: counts -> levels in planes of bits, 1,495 -> 971 instructions for eight rows; on an H100 2^20 x 256, k 32,
// sorted 0.34 -> 0.26, 2^20 x 128, k 16, 0.17 -> 0.13. bf16, 65,536 x 1536, k 96: lists 0.110 -> levels in 24 warps
// 0.081; 65,536 x 4096, k 256, a block a row 0.307 -> a warp, 128 values a lane, 0.180; 262,144 x 640, k 64, from
// anywhere, on an H100: 96 values a lane 0.190 -> 80 0.165; 65,536 x 2049, k 128: NaN for what is not there 0.155 ->
// marks of what is 0.137. 262,144 x 768, k 32, 90 % ties: places of 12 units worked out for every row 0.323 -> four of
// them kept 0.289. 65,536 x 5120 bf16, k 320: a block a row 0.300 -> a warp, 160 values a lane, 0.194. 65,536 x 4096
// bf16, k 256, each row of another scale: counts 0.466 -> levels around the row's own guess 0.162.
#pragma once

#include <algorithm>

#include "core/normal.hpp"
#include "core/plan.hpp"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/row_apart.cuh"
#include "cuda/top_k/row_candidates.cuh"
#include "cuda/top_k/row_eps.cuh"
#include "cuda/top_k/row_levels.cuh"
#include "cuda/top_k/row_output.cuh"
#include "cuda/top_k/row_queue.cuh"
#include "cuda/top_k/row_search.cuh"
#include "cuda/top_k/row_stage.cuh"
#include "cuda/top_k/row_stop.cuh"
#include "cuda/top_k/row_wide_eps.cuh"

namespace shortlist::cuda {

constexpr int kListedShare = 4;      // see candidate_plan_of
constexpr float kWideEps = 0x1p-8f;  // from here on, rows about 0 need no more than kEpsHalvings

struct warp_args {
  core::top_k_request request;
  search_plan search;
  output_plan output;
  row_stage stage;
  std::int32_t stage_bytes;  // of a slot: rows that a warp takes at once
  std::uint32_t slots;
  std::uint32_t shares_each;  // of a block; a share is what a slot holds
  std::uint32_t shares_over;  // so many blocks have another
  std::int32_t staged_bytes;  // of a row's entries, or of its list
  candidate_plan candidates;
  bool wraps;     // see row_share
  bool together;  // see write_together
};

/// What else there is costs instructions that count here, so that the common requests have kernels of their own.
enum class warp_rows_kind : std::uint8_t {
  packed,  // exact, k < cols, by ascending column, no mask; whole rows behind each other, at multiples of 16 bytes
  sorted,  // the same, best first
  plain,   // as packed, of rows that begin anywhere
  plain_sorted,  // the same, best first
  eps,           // as packed, with an eps: searched exactly, and then looked at
  half_early,    // as packed, of 16 bits, more than 128 columns, with no more than so many steps or an eps of few
                 // halvings
  wide_eps,      // as packed, of fp32, with an eps of few halvings
  early,         // as packed, with no more than so many steps, or any k
  any
};

/// With k below the count, and no early stop: what most requests ask for.
constexpr bool is_exact(warp_rows_kind kind) { return kind <= warp_rows_kind::plain_sorted; }
/// Searched as exact ones are.
constexpr bool is_plain(warp_rows_kind kind) { return kind <= warp_rows_kind::half_early; }
/// Of whole rows behind each other, at multiples of 16 bytes.
constexpr bool is_packed(warp_rows_kind kind) {
  return kind <= warp_rows_kind::sorted || (kind >= warp_rows_kind::eps && kind <= warp_rows_kind::early);
}
/// Searched by cells.
constexpr bool has_cells(warp_rows_kind kind) {
  return kind == warp_rows_kind::wide_eps || kind == warp_rows_kind::early;
}

/// Rows whose candidates are listed: of fewer columns a lane, the counts that a list saves are too short. 16-bit rows
/// have levels instead; of sorted ones, a short list is sorted sooner than what levels choose.
template <class Stored, int Values, int Lanes, warp_rows_kind Kind>
constexpr bool kLists = is_exact(Kind) && (Lanes == kWarp) && (Values > 32) &&
                        (sizeof(Stored) == 4 || Kind == warp_rows_kind::sorted);

/// Kernels that look for borders among levels.
template <class Stored, int Values, int Lanes, warp_rows_kind Kind>
constexpr bool kHasLevels = is_plain(Kind) && (sizeof(Stored) == 2 || !kLists<Stored, Values, Lanes, Kind>);

/// Warps of a multiprocessor: as many as have registers.
template <class Stored, int Values, int Lanes, warp_rows_kind Kind>
constexpr int most_warps() {
  constexpr bool kWide = sizeof(Stored) == 4;
  if (kLists<Stored, Values, Lanes, Kind>) return kWide ? 16 : 20;
  if (Values > 160) return Values == 192 ? 12 : 8;
  if (Kind == warp_rows_kind::half_early) return Values > 64 ? 12 : 20;
  if (Values > 64) return Values == 96 || (Values == 80 && Lanes > 8) ? 20 : 16;
  if (Values == 64 && kWide) return is_plain(Kind) ? 16 : 12;
  if (Values == 64 && has_cells(Kind)) return 12;
  if (Values == 48 && kWide) return Lanes == 4 ? 20 : 16;
  if (Values == 48 && !is_plain(Kind)) return 16;
  if (Values >= 24 && kWide) return 20;
  return Kind >= warp_rows_kind::wide_eps || (Values == 32 && Lanes == 16) ? 20 : 24;
}

/// Kernels that know where the borders of rows lay that they searched by calls.
template <int Values, int Lanes, warp_rows_kind Kind>
constexpr bool kKeepsApart = has_cells(Kind) && kKnowsApart<Values, Lanes>;

/// Shared memory before the slots of rows.
template <class Stored, int Values, int Lanes, warp_rows_kind Kind>
constexpr std::int64_t kBeforeSlots = kQueueBytes + (kKeepsApart<Values, Lanes, Kind>
                                                         ? apart_bytes<Lanes>(most_warps<Stored, Values, Lanes, Kind>())
                                                         : 0);

/// Entries of a lane that are sorted in registers: more where sorted rows are the common ones, for each takes room in
/// the library; 0: kinds that write by ascending column.
constexpr int most_sorted(warp_rows_kind kind) {
  if (kind == warp_rows_kind::sorted) return 32;
  if (kind == warp_rows_kind::plain_sorted) return 16;
  return kind == warp_rows_kind::any ? 8 : 0;
}

/// Early stops select the first k of more columns. Of 16 bits rows are short, so that there is room for what is written
/// beyond: a look at each mark took 5 % more of 2^20 x 256.
constexpr mark_limit limit_of(warp_rows_kind kind) {
  if (kind == warp_rows_kind::half_early) return mark_limit::word;
  return kind == warp_rows_kind::early ? mark_limit::mark : mark_limit::none;
}

template <class Stored, int Values, int Lanes, warp_rows_kind Kind>
__global__ void __launch_bounds__((kWarp * most_warps<Stored, Values, Lanes, Kind>()), 1)
    warp_rows_kernel(const __grid_constant__ warp_args args) {
  constexpr int kGroups = kWarp / Lanes;
  constexpr bool kPacked = is_packed(Kind);
  constexpr bool kPlain = is_plain(Kind);
  constexpr bool kSimple = Kind != warp_rows_kind::any;
  constexpr int kSorted = most_sorted(Kind);
  constexpr bool kStopsHalves = Kind == warp_rows_kind::half_early;
  const core::top_k_request& request = args.request;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group_index = lane / Lanes;
  lane_group<Lanes> group;
  using queue_type = row_queue<(!kPacked && kGroups > 1)>;
  queue_type& queue = *reinterpret_cast<queue_type*>(dynamic_shared());
  unsigned char* slots = dynamic_shared() + kBeforeSlots<Stored, Values, Lanes, Kind>;
  unsigned char* staged = slots + args.slots * args.stage_bytes + (warp * kGroups + group_index) * args.staged_bytes;
  const std::int64_t rows = request.matrix.rows;
  const auto first_row = [&](std::uint32_t order) {
    return (blockIdx.x + static_cast<std::int64_t>(order) * gridDim.x) * kGroups;
  };
  const auto rows_from = [&](std::int64_t first) {  // of a share
    return static_cast<int>(min(rows - first, std::int64_t{kGroups}));
  };
  const std::uint32_t shares = args.shares_each + (blockIdx.x < args.shares_over ? 1 : 0);
  const auto fetch = [&](std::uint32_t order, std::uint32_t slot, std::uint64_t* barrier) {
    const std::int64_t first = first_row(order);
    const int there = rows_from(first);
    unsigned char* to = slots + slot * args.stage_bytes;
    if constexpr (kPacked) {
      args.stage.fetch_packed(first, there, to, barrier);
    } else if constexpr (kGroups == 1) {
      args.stage.fetch_row(first, to, barrier);
    } else {
      args.stage.fetch_rows(first, there, to, barrier);
    }
  };
  const bool packed = kPacked || args.stage.mode == stage_mode::packed;
  const bool fetches = kSimple || args.stage.mode != stage_mode::by_threads;
  output_plan output = args.output;
  if constexpr (kSimple) {
    output.out.mask = nullptr;
  }
  join_chain();
  queued_rows taken = queue.begin(fetches ? args.slots : 0, shares, fetch);
  __syncthreads();
  constexpr bool kKeeps = Values != 96;  // where they are spilled: 65,536 x 3072 bf16, k 192, 0.123 ms instead of 0.119
  using share_type = row_share<Stored, Values, kKeeps, kPacked ? 0 : Lanes, kPacked>;
  typename share_type::places units(group.rank());
  row_shape shape{.border = args.search.deviations};
  stop_guess guess{.deviations = args.search.deviations};
  const bool stops = Kind == warp_rows_kind::early || (Kind == warp_rows_kind::any && args.search.stop.asked());
  candidate_threshold threshold;
  level_trials<> trials;
  if constexpr (kKeepsApart<Values, Lanes, Kind>)
    keep<Lanes>(known_apart<Lanes>(), {.shape = {.border = args.search.deviations}});
  float each = 0.0f;
  const auto done = [&] {
    taken = fetches ? queue.next_after(taken, args.slots, shares, fetch) : queue.next_unfetched(shares);
  };
  for (int turn = 0; taken.there; turn++) {
    const std::int64_t first = first_row(taken.order);
    unsigned char* rows_bytes = slots + taken.slot * args.stage_bytes;
    const bool there = first + group_index < rows;
    const std::int64_t index = there ? first + group_index : -1;
    row_span span{0, kSimple || there ? request.matrix.cols : 0};  // simple: what is not there is searched, not written
    if (!kSimple && there) span = span_of(request, index);
    if (fetches) queue.wait(taken);
    if (!packed) {
      const int fetched = rows_from(first);
      if (args.stage.has_rest(first, fetched)) {
        if (kSimple || fetches) {
          args.stage.call_copy_ends(first, fetched, rows_bytes, lane, kWarp);
        } else {
          args.stage.copy_ragged(request, first, fetched, rows_bytes, lane, kWarp);
        }
        __syncwarp();
      }
    }
    const int offset_bytes =
        packed ? group_index * args.stage.pitch_bytes : args.stage.offset_bytes(first, group_index);
    const int lead_bytes = packed ? 0 : offset_bytes % static_cast<int>(kCopyUnit);
    const staged_row<Stored> row{rows_bytes + offset_bytes, static_cast<int>(span.count),
                                 request.options.order == order::smallest,
                                 lead_bytes / static_cast<int>(sizeof(Stored)), !kPacked && args.wraps};
    const share_type share(row, group.rank(), units);
    bool tries = false;
    int count = 0;
    if constexpr (kLists<Stored, Values, Lanes, Kind>) {
      tries = args.candidates.room > 0 && there && threshold.tries();
      if (tries) {
        const float least = threshold.of<Stored>();
        const auto better = share.ascending(candidates_of(share, least));
        const int before = group.before(count_marks(better), count);
        if (count >= args.search.k && count <= args.candidates.room) {
          auto* list = reinterpret_cast<std::int32_t*>(staged);
          write_marked<Lanes>(better, share.first_column(), list, before);
          __syncwarp();
          write_listed<(kSorted > 0)>(row, list, {count, args.search.k, least, args.candidates.entries}, each,
                                      output.out, index * args.search.k, [] {});
          threshold.hit(count, args.candidates.aim);
          __syncwarp();
          done();
          continue;
        }
      }
    }
    using choice_type = row_choice<typename share_type::bits>;
    const auto search_others = [&](bool settled, const choice_type& before) {
      if constexpr (kKnowsApart<Values, Lanes>) {
        return choose_exactly<share_type, Lanes>(args.search, row, settled, before);
      } else {
        return search_exactly<share_type, Lanes>(args.search, row, settled, before);
      }
    };
    const auto choose_by_search = [&](typename share_type::bits& chosen, int& place) {
      bool settled = false;
      row_marks<typename share_type::bits> marks;
      if constexpr (!kPlain)
        if (stops)
          marks = search_stopped_row<(Kind == warp_rows_kind::early)>(group, args.search, row, share, guess,
                                                                      learns_from(turn), settled);
      if constexpr (Kind != warp_rows_kind::early) {
        if (!stops || !group.all(settled)) {
          bool found = false;
          const auto exact = search_row<kPlain>(group, args.search, row, share, shape, learns_from(turn), found);
          if (!settled) marks = exact;
          settled = settled || found;
        }
      }
      const int best = kPlain ? args.search.k : min(args.search.k, row.count);
      chosen = share.ascending(marks.sure);
      if (group.all(marks.chosen || Kind == warp_rows_kind::early)) {  // most rows
        place = group.before(count_marks(chosen));
      } else {
        if constexpr (Kind != warp_rows_kind::early)
          settle_by_keys<share_type>(group, args.search, row, shape.at, settled, marks);
        chosen = choose(group, share.ascending(marks.sure), share.ascending(marks.fill), best, place);
      }
      if constexpr (Kind == warp_rows_kind::early) {
        if (!group.all(settled)) {
          const choice_type exact = search_others(settled, {chosen, place});
          chosen = exact.chosen;
          place = exact.place;
          units.renew();  // kept during the call, they would be read from memory for every row
        }
      }
    };
    typename share_type::bits chosen = 0;
    int place = 0;
    bool found = false;
    std::conditional_t<kStopsHalves, half_stop, std::conditional_t<Kind == warp_rows_kind::eps, eps_gap, no_gap>> gap;
    if constexpr (kHasLevels<Stored, Values, Lanes, Kind>)
      found = trials.choose(group, args.search, row, share, turn == 0, shape, chosen, place, gap);
    if constexpr (Kind == warp_rows_kind::wide_eps) {
      auto [choice, settled, odd] = choose_by_cells(group, args.search, row, share);
      if (!group.all(settled)) {
        choice = search_others(settled, choice);
        settled = settled || odd;
        if (!group.all(settled))
          choice = choose_by_path<share_type, Lanes>(args.search, row, settled, choice, 0.0f, false);
        units.renew();
      }
      chosen = choice.chosen;
      place = choice.place;
    } else if (!found) {
      choose_by_search(chosen, place);
    }
    if constexpr (Kind == warp_rows_kind::eps) {
      if (!group.all(found && gap.wide)) {
        const auto choice =
            choose_by_path<share_type, Lanes>(args.search, row, found && gap.wide, {chosen, place}, gap.border, found);
        chosen = choice.chosen;
        place = choice.place;
        units.renew();
      }
    }
    if constexpr (kStopsHalves) {
      if (!found) {
        const auto choice = choose_by_path<share_type, Lanes>(args.search, row, false, {chosen, place}, 0.0f, false);
        chosen = choice.chosen;
        place = choice.place;
        units.renew();
      }
    }
    write_row<limit_of(Kind), kSorted>(group, output, row, share, chosen, place, index, span.begin, staged, [&] {
      if constexpr (kGroups > 1 && kSimple) {
        if (!args.together) return false;
        const warp_entries entries{first, rows_from(first), staged - group_index * args.staged_bytes,
                                   args.staged_bytes};
        write_together<Stored>(output, entries, [&](int r, int column) {
          const int offset = packed ? r * args.stage.pitch_bytes : args.stage.offset_bytes(first, r);
          return reinterpret_cast<const Stored*>(rows_bytes + offset)[column];
        });
        return true;
      }
      return false;
    });
    if constexpr (kLists<Stored, Values, Lanes, Kind>) {
      threshold.miss(shape.at, shape.scale, tries, count, args.search.k, args.candidates.aim);
      each = threshold.each;
    }
    __syncwarp();
    done();
  }
}

/// Shares that arrive while others are searched. Of rows that wait for memory alone, more on their way take longer; and
/// what is written comes between.
template <class Stored, int Values, int Lanes, warp_rows_kind Kind>
std::int64_t waiting_shares(std::int64_t warps, std::int64_t share_bytes) {
  constexpr std::int64_t kOnTheirWay = 32 * 1024;  // bytes
  if (is_plain(Kind) && sizeof(Stored) == 2) return warps / 2;
  constexpr bool kWaitsForMemory = has_cells(Kind) || kHasLevels<Stored, Values, Lanes, Kind>;
  return kWaitsForMemory ? std::min(warps, kOnTheirWay / share_bytes) : warps;
}

template <class Stored, int Values, int Lanes, warp_rows_kind Kind>
void launch_warp_rows_of(cudaStream_t stream, warp_args& args, int multiprocessors) {
  constexpr int kGroups = kWarp / Lanes;
  const bool packed = args.stage.mode == stage_mode::packed;
  const int behind = packed ? 0 : static_cast<int>(kCopyUnit / sizeof(Stored));  // the last columns may be
  args.stage_bytes = static_cast<std::int32_t>(args.stage.bytes_of(kGroups, Values * Lanes + behind));
  args.wraps = args.stage.columns_held() > Values * Lanes;
  constexpr int kFewEntries = 16;  // of a row: fewer are written sooner by its own lanes
  args.together = args.output.aligned && kGroups * args.output.k % 4 == 0 && args.output.k > kFewEntries;
  constexpr int kListedEntries = sizeof(Stored) == 4 ? kMostListed : 64;  // of more, levels serve 16-bit rows better
  if constexpr (kLists<Stored, Values, Lanes, Kind>)
    if (args.search.k <= kListedEntries) args.candidates = candidate_plan_of(args.request, kListedShare);
  args.staged_bytes = static_cast<std::int32_t>(
      std::max(staged_bytes<lane_group<Lanes>, most_sorted(Kind)>(args.output), args.candidates.bytes()));
  if constexpr (limit_of(Kind) == mark_limit::word)
    args.staged_bytes += static_cast<std::int32_t>((kOverrun + 1) * sizeof(std::int32_t));
  const std::int64_t shares = (args.request.matrix.rows + kGroups - 1) / kGroups;
  const std::int64_t blocks = std::min<std::int64_t>(shares, multiprocessors);
  // Where memory is short, two warps have three slots: as many warps as can be count more than rows on their way.
  const std::int64_t room = kMaxSharedBytes - kBeforeSlots<Stored, Values, Lanes, Kind>;
  const std::int64_t staged_each = std::int64_t{kGroups} * args.staged_bytes;
  const std::int64_t warps =
      std::min({std::int64_t{most_warps<Stored, Values, Lanes, Kind>()}, (shares + blocks - 1) / blocks,
                2 * room / (3 * args.stage_bytes + 2 * staged_each)});
  const std::int64_t waiting = waiting_shares<Stored, Values, Lanes, Kind>(warps, args.stage_bytes);
  const std::int64_t slots =
      std::min(warps + std::max(waiting, std::int64_t{1}), (room - warps * staged_each) / args.stage_bytes);
  args.slots = static_cast<std::uint32_t>(slots);
  args.shares_each = static_cast<std::uint32_t>(shares / blocks);
  args.shares_over = static_cast<std::uint32_t>(shares % blocks);
  const launch_shape how{
      .grid = dim3(static_cast<unsigned>(blocks)),
      .threads = static_cast<int>(warps) * kWarp,
      .shared_bytes = kBeforeSlots<Stored, Values, Lanes, Kind> + slots * args.stage_bytes + warps * staged_each,
      .overlaps = true};
  launch(warp_rows_kernel<Stored, Values, Lanes, Kind>, how, stream, args, "launching the row-wise top k");
}

/// Which shape of the kernel a request gets.
template <class Stored, warp_rows_kind Kind>
void launch_warp_rows_as(cudaStream_t stream, warp_args& args, int multiprocessors) {
  const std::int64_t columns = args.request.matrix.cols;
  constexpr bool kPlain = is_plain(Kind);
  constexpr bool kSimple = Kind != warp_rows_kind::any && Kind != warp_rows_kind::plain_sorted;  // worth all shapes
  constexpr int kLanes = Kind == warp_rows_kind::any ? 8 : 4;
  constexpr bool kWritesAscending = Kind == warp_rows_kind::packed || Kind == warp_rows_kind::plain;
  constexpr int kMostValues = kWritesAscending && sizeof(Stored) == 2 ? 256 : 64;  // of a lane
  if (columns <= 64) return launch_warp_rows_of<Stored, 64 / kLanes, kLanes, Kind>(stream, args, multiprocessors);
  if (columns <= 128) return launch_warp_rows_of<Stored, 128 / kLanes, kLanes, Kind>(stream, args, multiprocessors);
  if constexpr (kPlain && sizeof(Stored) == 2) {  // half the registers: twice the values a lane
    if (columns <= 192) return launch_warp_rows_of<Stored, 48, 4, Kind>(stream, args, multiprocessors);
    if (columns <= 256) return launch_warp_rows_of<Stored, 64, 4, Kind>(stream, args, multiprocessors);
    if constexpr (kWritesAscending)
      if (columns <= 320) return launch_warp_rows_of<Stored, 40, 8, Kind>(stream, args, multiprocessors);
    if (columns <= 384) return launch_warp_rows_of<Stored, 48, 8, Kind>(stream, args, multiprocessors);
    if (columns <= 512) return launch_warp_rows_of<Stored, 64, 8, Kind>(stream, args, multiprocessors);
    if constexpr (kWritesAscending)
      if (columns <= 640) return launch_warp_rows_of<Stored, 80, 8, Kind>(stream, args, multiprocessors);
    constexpr int kLanesOf768 = kMostValues > 64 ? 8 : 16;
    if (columns <= 768)
      return launch_warp_rows_of<Stored, 768 / kLanesOf768, kLanesOf768, Kind>(stream, args, multiprocessors);
    if (columns <= 1024) return launch_warp_rows_of<Stored, 64, 16, Kind>(stream, args, multiprocessors);
    if constexpr (kWritesAscending)
      if (columns <= 1280) return launch_warp_rows_of<Stored, 80, 16, Kind>(stream, args, multiprocessors);
  } else {
    constexpr int kFewEntries = 128;  // of more, the shared memory takes the place of other warps
    // An early stop's few rows take fewer turns by four a warp, though that leaves room for fewer warps.
    const int few_of_512 = has_cells(Kind) && args.request.matrix.rows < kManyRows ? kFewEntries : 96;
    constexpr int kFewOf768 = kPlain ? 96 : kFewEntries;
    if constexpr (kSimple) {  // eight rows a warp, where they are enough
      constexpr std::int64_t kSomeRows = 1 << 14;
      constexpr std::int64_t kRowsOf48 = Kind == warp_rows_kind::sorted ? kManyRows : kSomeRows;
      constexpr std::int64_t kRowsOf64 = Kind == warp_rows_kind::plain ? kSomeRows : kManyRows;
      const auto enough = [&](std::int64_t least) { return args.search.k <= 64 && args.request.matrix.rows >= least; };
      if constexpr (kPlain)
        if (columns <= 192 && enough(kRowsOf48))
          return launch_warp_rows_of<Stored, 48, 4, Kind>(stream, args, multiprocessors);
      constexpr bool kOneByLevels = Kind == warp_rows_kind::packed || Kind == warp_rows_kind::eps;
      if constexpr (!kOneByLevels && (!has_cells(Kind) || sizeof(Stored) == 2))
        if (columns <= 256 && enough(kRowsOf64))
          return launch_warp_rows_of<Stored, 64, 4, Kind>(stream, args, multiprocessors);
    }
    if (columns <= 256) return launch_warp_rows_of<Stored, 32, 8, Kind>(stream, args, multiprocessors);
    if constexpr (kPlain)
      if (columns <= 384 && args.search.k <= kFewEntries)
        return launch_warp_rows_of<Stored, 48, 8, Kind>(stream, args, multiprocessors);
    if constexpr (kSimple)
      if (columns <= 512 && args.search.k <= few_of_512)
        return launch_warp_rows_of<Stored, 64, 8, Kind>(stream, args, multiprocessors);
    if (columns <= 512) return launch_warp_rows_of<Stored, 32, 16, Kind>(stream, args, multiprocessors);
    if constexpr (kSimple)
      if (columns <= 768 && args.search.k <= kFewOf768)
        return launch_warp_rows_of<Stored, 48, 16, Kind>(stream, args, multiprocessors);
    if constexpr (kSimple)
      if (columns <= 768) return launch_warp_rows_of<Stored, 24, 32, Kind>(stream, args, multiprocessors);
    if (columns <= 1024) return launch_warp_rows_of<Stored, 32, 32, Kind>(stream, args, multiprocessors);
  }
  if constexpr (kMostValues > 64) {
    if (columns > 6144) return launch_warp_rows_of<Stored, 256, 32, Kind>(stream, args, multiprocessors);
    if (columns > 5120) return launch_warp_rows_of<Stored, 192, 32, Kind>(stream, args, multiprocessors);
    if (columns > 4096) return launch_warp_rows_of<Stored, 160, 32, Kind>(stream, args, multiprocessors);
    if (columns > 3584) return launch_warp_rows_of<Stored, 128, 32, Kind>(stream, args, multiprocessors);
    if (columns > 3072) return launch_warp_rows_of<Stored, 112, 32, Kind>(stream, args, multiprocessors);
    if (columns > 2560) return launch_warp_rows_of<Stored, 96, 32, Kind>(stream, args, multiprocessors);
    if (columns > 2048) return launch_warp_rows_of<Stored, 80, 32, Kind>(stream, args, multiprocessors);
  }
  if constexpr (kPlain || has_cells(Kind))
    if (columns > core::kWarpRowsMaxCols)
      return launch_warp_rows_of<Stored, 64, 32, Kind>(stream, args, multiprocessors);
  launch_warp_rows_of<Stored, 48, 32, Kind>(stream, args, multiprocessors);
}

/// Whether an early stop of 16 bits has its own kernel. ms, cells before, k 32 or 64, bf16, four and eight steps: 2^20
/// x 256 0.213 and 0.223, 0.283 and 0.298; 65,536 x 256 0.026 and 0.028, 0.028 and 0.030; fp16: 2^20 x 256 0.217 and
/// 0.272, 0.275 and 0.298, but of lognormal rows, whose borders levels often miss, 0.23 and 0.62; 65,536 x 256 0.025,
/// 0.028; 65,536 x 1024 0.059, 0.070. An eps of 1e-2, gaps before: bf16 0.242, 0.385, fp16 0.292, 0.429.
inline bool stops_by_halves(const warp_args& args) {
  constexpr std::int64_t kShort = 256;
  constexpr std::int64_t kManyShort = 1 << 16;
  const auto& matrix = args.request.matrix;
  if (size_bytes(matrix.type) != 2 || matrix.cols <= kShort / 2 || args.search.k >= matrix.cols) return false;
  if (matrix.cols > core::kWarpRowsMaxWholeCols) return true;
  if (args.search.stop.by_eps) return args.search.stop.eps >= kWideEps;
  if (matrix.cols > kShort) return true;
  const bool few = args.search.stop.max_iter <= kCountedSteps<float16, 4>;
  return matrix.rows >= kManyShort && (matrix.type == value_type::bf16 || few);
}

/// The kind of the kernel that a request gets.
inline warp_rows_kind kind_of(const warp_args& args) {
  using kind = warp_rows_kind;
  const bool packed = args.stage.mode == stage_mode::packed;
  const bool exact = !args.search.stop.asked() && args.search.k < args.request.matrix.cols;
  const bool sorts = args.output.sort_size > 1;
  if (args.stage.mode == stage_mode::by_threads || args.output.out.mask || (!exact && (sorts || !packed)))
    return kind::any;
  if (args.search.stop.by_eps) {
    if (args.search.k >= args.request.matrix.cols) return kind::any;
    if (stops_by_halves(args)) return kind::half_early;
    const bool is_wide = args.request.matrix.type == value_type::f32 && args.search.stop.eps >= kWideEps;
    return is_wide ? kind::wide_eps : kind::eps;
  }
  if (!exact) return stops_by_halves(args) ? kind::half_early : kind::early;
  if (packed) return sorts ? kind::sorted : kind::packed;
  return sorts ? kind::plain_sorted : kind::plain;
}

/// What the kernel needs of a request, but for what its shape decides.
inline warp_args warp_args_of(const core::top_k_request& request) {
  warp_args args{};
  args.request = request;
  args.search = search_plan_of(request);
  args.output = output_plan_of(request);
  args.stage = row_stage_of(request, core::kWarpRowsMaxHalfCols + kCopyUnit);  // what comes along takes no room
  return args;
}

}  // namespace shortlist::cuda
