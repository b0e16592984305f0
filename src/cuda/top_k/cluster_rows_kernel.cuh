// Row-wise top k of long rows for a small k: a cluster of blocks a row, which list what reaches a cut that the k best
// surely reach.
//
// Why it is fast: one launch, which follows the kernel before without a gap; a row is read once, all of it under way
// from the beginning where registers and shared memory have room; blocks tell each other by sends, which wait for no
// loads.
// Steps: rounds of vectors from all over the row, into registers, and the others into shared memory -> the best of 128
// groups of the first ones, shared -> their k-th best is the cut -> vectors that reach it are kept, then their values
// listed in the first block's memory, each block in its own share -> the first block ranks the list and writes. Exact
// for any data: where too much is kept, or fewer than k numbers are there, the blocks narrow the range of keys by
// counting, until a list has room. Keys are distinct, value above and column below, so that ties need no care.
// Early stops: the worst value is looked for while the row comes, and told to the first block, where the list tells the
// best and the k-th best; these tell what the bisection ends with (stop_range.cuh). What reaches its lower end is in
// the shares if that end is no lower than the cut; else it is looked for in the row, from its first column on
// (row_front.cuh), by the first block alone.
// Limit: bytes(in) over read bandwidth. Measured share: docs/kernels.md.
// History, 64 x 128,256, k 50: a part held in shared memory, the rest read from L2, 0.0232 ms (bf16 0.0170) -> into
// registers, sixteen vectors of a thread at a time, 0.0220 (0.0156) -> sends instead of meetings, 0.0211 (0.0146) ->
// later vectors into shared memory, all at once, 0.0174 (0.0140) -> shifts instead of divisions, 0.0171 (0.0133). In a
// graph of 24 launches 0.0144 (0.0105) -> ties of 16-bit values placed without ranking, fewer copies asked for in vain,
// barriers readied behind the loads, 0.0140 (0.0100). k 112: room for 512 vectors, which most
// blocks passed, 0.054 -> for 1,024 0.021. 67 rows, by calls: filter_rows 0.0287 -> a block alone for each 0.0228.
// History of early stops, 64 x 128,256 fp32, k 50, calls on an H200 (exact 0.0206 ms), eps 1e-4 and four steps:
// filter_rows 0.0295 and 0.0294 -> the path from this kernel's list 0.0226 and 0.0315 -> steps that share their
// instructions, a deeper cut for three to six steps 0.0240 and 0.0276. Calling the end of a row once before it is
// needed, so that its instructions are at hand, in a graph: 0.0157 and 0.0249 -> 0.0217 and 0.0360.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/row_groups.cuh"
#include "cuda/device/row_stream.cuh"
#include "cuda/device/shared_list.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/long_row.cuh"
#include "cuda/top_k/row_front.cuh"
#include "cuda/top_k/stop_range.cuh"

namespace shortlist::cuda::clustering {

constexpr std::uint32_t kOwn = 2048;   // keys in a block's list
constexpr std::uint32_t kKept = 1024;  // vectors that a block keeps: of 66 rows of 200,000, k 112, 800
constexpr int kThreads = 512;
constexpr std::uint32_t kFew = 64;     // so many keys of a list are compared each with each as they are
constexpr std::uint32_t kFirst = 8;    // rounds of vectors that are looked at first, in registers
constexpr std::uint32_t kBatch = 4;    // those behind them come in batches,
constexpr std::uint32_t kBatches = 5;  // as many at a time as shared memory holds
constexpr std::uint32_t kSampled = 8;  // so many more are looked at first if there are no others
constexpr int kFewestSteps = 3;        // of a bisection: up to so many may end where many columns reach,
constexpr int kFewSteps = 6;           // and up to so many somewhat below what the best of the groups reach
constexpr float kDeepList = 512;       // columns that reach a cut for these

struct alignas(16) cluster_scratch {
  uint4 vectors[kKept];
  std::uint32_t places[kKept];  // of the vectors, in the block's piece of the row
  row_groups<kThreads> groups;
  share_scratch<kThreads> shares;
  std::uint64_t list[kThreads];
  std::uint64_t own[kOwn];
  std::uint32_t kept;  // vectors: more than there is room for where not all are
  std::uint32_t listed;
  std::uint32_t before;  // of the range that a pass finds: keys above it, and within
  std::uint32_t inside;
  std::uint32_t narrow_bins[kThreads];
};

/// A request for an early stop, and what such rows take beside.
struct stopped_request : core::top_k_request {
  early_stop stop;
};
struct stopped_scratch : cluster_scratch {
  std::uint32_t worst[kMostBlocks];  // keys: of the row's values that each block has seen, in the first block
  std::uint32_t warps_worst[kThreads / kWarp];
  std::uint32_t totals[kThreads / kWarp];
  std::uint64_t border;    // the last of the best keys
  std::uint32_t best;      // key of the row's best value
  std::uint32_t reaching;  // keys of the shares,
  std::uint32_t early;     // and the first ones of them, by column
  std::uint32_t above;
};
template <class Request>
inline constexpr bool kStops = std::is_same_v<Request, stopped_request>;
template <class Request>
using scratch_for = std::conditional_t<kStops<Request>, stopped_scratch, cluster_scratch>;

/// Lists the `wanted` best keys and a few more, whatever the data: passes count the keys of a range, and go on with the
/// part of it that the last of those wanted lies in. All threads of the cluster come.
template <class Stored>
__device__ __noinline__ void list_by_counting(const row_piece<Stored, kThreads>& piece, std::uint32_t first_column,
                                              bool negated, std::uint32_t wanted, std::uint64_t low, std::uint64_t high,
                                              const cluster_place& place, cluster_scratch& scratch) {
  constexpr int kBits = std::bit_width(static_cast<unsigned>(kThreads)) - 1;
  const auto for_each_key = [&](auto f) {
    const auto see = [&](float x, std::uint32_t column) {
      f(core::row_key(key_of_wide(negated ? -x : x), first_column + column));
    };
    piece.for_each_in_place([&](uint4 raw, std::uint32_t column) {
      float x[16 / sizeof(Stored)];
      widen_values<Stored>(raw, x);
#pragma unroll
      for (std::uint32_t e = 0; e < 16 / sizeof(Stored); e++) see(x[e], column + e);
    });
    if (piece.has_edge) see(piece.edge, piece.edge_column);
  };
  std::uint32_t before = 0;
  for (;;) {
    const int shift = max(0, 64 - __clzll(static_cast<long long>(high - low)) - kBits);
    scratch.narrow_bins[threadIdx.x] = 0;
    if (threadIdx.x == 0) scratch.shares.border = kThreads;
    __syncthreads();
    for_each_key([&](std::uint64_t key) {
      if (key < low || key > high) return;
      const auto bin = static_cast<std::uint32_t>((high - key) >> shift);
      // Equal values crowd in a bin: one addition for a warp's.
      const unsigned active = __activemask();
      int same = 0;
      __match_all_sync(active, bin, &same);
      if (!same)
        atomicAdd(&scratch.narrow_bins[bin], 1u);
      else if (threadIdx.x % kWarp == __ffs(static_cast<int>(active)) - 1)
        atomicAdd(&scratch.narrow_bins[bin], static_cast<std::uint32_t>(__popc(active)));
    });
    cluster_sync();
    std::uint32_t mine = 0;
    for (std::uint32_t b = 0; b < place.blocks; b++) mine += of_block(scratch.narrow_bins, b)[threadIdx.x];
    const std::uint32_t above = before + count_before(mine, scratch.shares);
    if (above < wanted && above + mine >= wanted) {
      scratch.shares.border = threadIdx.x;
      scratch.before = above;
      scratch.inside = mine;
    }
    cluster_sync();  // the bins have been read
    const std::uint32_t bin = scratch.shares.border;
    if (bin == kThreads) break;  // all of the range are wanted
    before = scratch.before;
    const bool fits = before + scratch.inside <= place.share();
    high -= static_cast<std::uint64_t>(bin) << shift;
    const std::uint64_t width = (std::uint64_t{1} << shift) - 1;
    low = high - low > width ? high - width : low;
    __syncthreads();  // all have read what was found
    if (shift == 0 || fits) break;
  }
  if (threadIdx.x == 0) {
    scratch.shares.appended = 0;
    scratch.shares.refused = false;
  }
  __syncthreads();
  for_each_key([&](std::uint64_t key) {
    if (key >= low) put_in_share(atomicAdd(&scratch.shares.appended, 1u), key, place, scratch.shares);
  });
  __syncthreads();
}

/// Sums of(other, mine) over the first keys for each of them, no more than threads, several threads for one where there
/// are enough, and calls then(sum, key) in one of them.
template <class Of, class KeyOf, class Then>
__device__ __forceinline__ void for_each_slot(std::uint32_t slots, Of of, KeyOf key_of, Then then) {
  std::uint32_t shift = 0;
  while (shift < 3 && slots << (shift + 1) <= kThreads) shift++;
  const std::uint32_t helpers = 1u << shift;
  const std::uint32_t helper = threadIdx.x & (helpers - 1);
  const std::uint32_t slot = threadIdx.x >> shift;
  if (threadIdx.x / kWarp * kWarp >= slots << shift) return;
  const std::uint64_t mine = slot < slots ? key_of(slot) : core::kNoRow;
  std::uint32_t sum = 0;
#pragma unroll 8
  for (std::uint32_t j = helper; j < slots; j += helpers) sum += of(key_of(j), mine);
  for (std::uint32_t apart = 1; apart < helpers; apart *= 2)
    sum += __shfl_xor_sync(kFullWarp, sum, static_cast<int>(apart));
  if (slot < slots && helper == 0) then(sum, mine);
}

__device__ __forceinline__ std::uint32_t is_better(std::uint64_t other, std::uint64_t mine) {
  return other > mine ? 1u : 0u;
}
__device__ __forceinline__ std::uint32_t is_left(std::uint64_t other, std::uint64_t mine) {
  return static_cast<std::uint32_t>(other) > static_cast<std::uint32_t>(mine) ? 1u : 0u;  // a larger word
}

/// Keys of two kinds counted together: of the first kind by so much.
constexpr std::uint32_t kSure = 1u << 16;

/// Writes the k best of the list's n keys, no more than threads, in the order that the request asks for, padded: each
/// is compared with each. The first block comes, after a barrier.
template <class Stored>
__device__ __forceinline__ void write_best(const top_k_options& options, const row_writer<Stored>& write,
                                           std::uint32_t n, const list_cut& cut, cluster_scratch& scratch) {
  const auto k = static_cast<std::uint32_t>(options.k);
  const auto listed = [&](std::uint32_t i) { return scratch.list[i]; };
  const auto chosen = [&](std::uint32_t i) { return scratch.own[i]; };
  if (options.sorted) {
    for_each_slot(n, is_better, listed, [&](std::uint32_t rank, std::uint64_t key) {
      if (rank < k) write(rank, key);
    });
  } else if (n <= k) {
    for_each_slot(n, is_left, listed, write);
  } else if (cut.shift <= kSharedBits<Stored>) {
    // Those that are not surely among the best have one value: the first of them are.
    const std::uint32_t ties = k - cut.sure;
    const auto is_sure = [&](std::uint64_t key) { return core::key_of(key) > cut.above; };
    const auto left_by_kind = [&](std::uint64_t other, std::uint64_t mine) {
      return is_left(other, mine) * (is_sure(other) ? kSure : 1);
    };
    for_each_slot(n, left_by_kind, listed, [&](std::uint32_t left, std::uint64_t key) {
      const std::uint32_t tied = left % kSure;
      if (is_sure(key) || tied < ties) write(left / kSure + min(tied, ties), key);
    });
  } else {
    for_each_slot(n, is_better, listed, [&](std::uint32_t rank, std::uint64_t key) {
      if (rank < k) scratch.own[rank] = key;
    });
    __syncthreads();
    for_each_slot(k, is_left, chosen, write);
  }
  for (std::uint32_t i = n + threadIdx.x; i < k; i += kThreads) write.pad(i);
}

/// Tells the first block the worst key that a block has seen.
struct tells_worst {
  static constexpr std::uint32_t kBytes = sizeof(std::uint32_t);
  std::uint32_t of_thread;
  const cluster_place& place;
  stopped_scratch& scratch;

  __device__ __forceinline__ void note() const {
    const std::uint32_t worst = __reduce_min_sync(kFullWarp, of_thread);
    if (threadIdx.x % kWarp == 0) scratch.warps_worst[threadIdx.x / kWarp] = worst;
  }
  __device__ __forceinline__ std::uint32_t joined() const {
    return __reduce_min_sync(kFullWarp, scratch.warps_worst[threadIdx.x % (kThreads / kWarp)]);
  }
  __device__ __forceinline__ void tell(std::uint32_t worst) const {
    if (place.blocks == 1)
      scratch.worst[0] = worst;
    else
      send_to_block(scratch.worst + place.rank, 0, worst, &scratch.shares.told);
  }
};
/// The row's worst key. By whole warps of the first block.
__device__ __forceinline__ std::uint32_t told_worst(const cluster_place& place, const stopped_scratch& scratch) {
  const std::uint32_t lane = threadIdx.x % kWarp;
  return __reduce_min_sync(kFullWarp, lane < place.blocks ? scratch.worst[lane] : ~0u);
}

/// Whether so few steps may well end where many columns reach, so that the row's first ones are asked for ahead.
__device__ __forceinline__ bool may_read_front(const early_stop& stop) {
  return stop.by_count && stop.max_iter <= kFewestSteps;
}

/// A cut that the `wanted` best reach, and where few steps often end somewhat below what the best of the groups reach,
/// about kDeepList columns. @param rounds of vectors that a block has.
__device__ __forceinline__ std::uint32_t deep_cut(const early_stop& stop, std::uint32_t wanted, std::uint32_t rounds,
                                                  const row_groups<kThreads>& groups) {
  std::uint32_t reaching = wanted;  // groups
  if (stop.by_count && stop.max_iter >= kFewestSteps && stop.max_iter <= kFewSteps) {
    const float looked_at =
        rounds <= kFirst + kSampled ? 1.0f : static_cast<float>(kFirst) / static_cast<float>(rounds);
    constexpr float kLog2E = 1.442695f;
    const float without = exp2f(-kLog2E * kDeepList / kGroups * looked_at);  // the share of groups that have none
    reaching = max(wanted, static_cast<std::uint32_t>((1.0f - without) * (kGroups - 1)));
  }
#pragma unroll 1
  for (;;) {
    const std::uint32_t cut = cut_of_groups(reaching, groups);
    if (cut > kMinusInfinityKey || reaching == wanted) return cut;
    reaching = wanted;  // so many groups have no number
  }
}

/// What is chosen of a row: the first of the keys from `high` on, and if those are fewer than wanted, the first of
/// those from `low` on.
struct key_range {
  std::uint64_t low;
  std::uint64_t high;
  std::uint32_t wanted;
};

/// Which keys an early stop chooses; the best ones where there is none. @param worst the row's worst key. @param border
/// the last of its best keys.
template <class Stored>
__device__ __forceinline__ key_range range_of_stop(const early_stop& stop, std::uint32_t worst, std::uint32_t best,
                                                   std::uint64_t border, std::uint32_t k) {
  constexpr std::uint32_t kShared = kSharedBits<Stored>;
  const std::uint32_t number = core::key_of(border) >> kShared;
  stop_range range{0, 0, k};
  if (!find_stop<Stored>(stop, {worst >> kShared, best >> kShared, number}, range)) return {border, border, k};
  // All that have the best value, or none but ties at the border: the best keys are chosen.
  if (range.high <= number || (range.low == number && range.high == number + 1)) return {border, border, k};
  const auto from = [](std::uint32_t least) { return static_cast<std::uint64_t>(least << kShared) << 32; };
  return {from(range.low), range.none_above() ? ~core::kNoRow : from(range.high), k};
}

/// Finds the keys that a stop chooses among, be they more than the list has: `keys`, m of them. @param cut all columns
/// that reach it are in the shares. @param how the list was cut from these. @returns whether all that reach the range
/// are there. The first block comes, after a barrier; it leaves through one.
template <class Stored>
__device__ __forceinline__ bool gather_keys(const key_range& range, const whole_row<Stored>& row,
                                            const cluster_place& place, std::uint32_t cut, const list_cut& how,
                                            const std::uint64_t*& keys, std::uint32_t& m, std::uint32_t& above,
                                            stopped_scratch& scratch) {
  constexpr std::uint32_t kEarly = 2;  // so many times as many as are wanted are looked at of those that are early
  const std::uint32_t n = m;
  const std::uint32_t low = core::key_of(range.low);
  const bool is_exact = range.low == range.high;
  const bool is_listed = is_exact || low >= cut;
  const bool gathers = is_listed && !is_exact && !how.holds(low);
  auto* const gathered = reinterpret_cast<std::uint64_t*>(scratch.vectors);
  static_assert(sizeof scratch.vectors >= kThreads * sizeof(std::uint64_t));
  if (gathers) {
    for_each_in_shares(place, scratch.shares, [&](std::uint64_t key) {
      if (key < range.low) return;
      const std::uint32_t to = atomicAdd(&scratch.reaching, 1u);
      if (to < kThreads) gathered[to] = key;
    });
  }
  above = static_cast<std::uint32_t>(__syncthreads_count(threadIdx.x < n && scratch.list[threadIdx.x] >= range.high));
  if (!gathers) return is_listed;
  keys = gathered;
  m = scratch.reaching;
  if (m > kThreads) return false;
  if (above > 0 || m <= 2 * kEarly * range.wanted) return true;
  const float share = static_cast<float>(kEarly * range.wanted) / static_cast<float>(m);
  const auto end = static_cast<std::uint32_t>(static_cast<float>(row.columns) * share);
  if (threadIdx.x < m && core::position_of(gathered[threadIdx.x]) - row.first_column < end)
    scratch.list[atomicAdd(&scratch.early, 1u)] = gathered[threadIdx.x];
  __syncthreads();
  if (scratch.early < range.wanted) return true;
  keys = scratch.list;
  m = scratch.early;
  return true;
}

/// Finds the columns that reach a range from the row's first one on, and puts those chosen into the block's own list.
/// @param n keys are listed, those above the range among them. The first block comes, after a barrier; one must follow.
template <class Stored, bool Negated>
__device__ __forceinline__ void choose_from_front(const key_range& range, std::uint32_t n, std::uint32_t above,
                                                  row_front<Stored, kThreads>& front, stopped_scratch& scratch) {
  constexpr std::uint32_t kShared = kSharedBits<Stored>;
  if (threadIdx.x < n && scratch.list[threadIdx.x] >= range.high)
    scratch.own[atomicAdd(&scratch.above, 1u)] = scratch.list[threadIdx.x];
  const float from = value_of_number<Stored>(core::key_of(range.low) >> kShared);
  const bool has_end = range.high != ~core::kNoRow;
  const float end = has_end ? value_of_number<Stored>(core::key_of(range.high) >> kShared) : INFINITY;
  const auto keep = [&](std::uint32_t at, Stored value, std::uint32_t column) {
    scratch.own[above + at] = core::row_key(key_of_value(value, Negated), column);
  };
  front.find(
      Negated, range.wanted - above, scratch.totals, [&](float x) { return x >= from && x < end; }, keep);
}

/// Writes what an early stop selects, in steps that share their instructions, which come from memory for every row:
/// ranks the list's keys, which tells the border; then chooses by column, and if sorted, ranks those chosen. @param cut
/// and how as above. The first block comes, after a barrier.
template <class Stored, bool Negated>
__device__ __forceinline__ void write_stopped(const stopped_request& request, const row_writer<Stored>& write,
                                              const whole_row<Stored>& row, const cluster_place& place,
                                              std::uint32_t cut, const list_cut& how,
                                              row_front<Stored, kThreads>& front, stopped_scratch& scratch) {
  enum step : std::uint32_t { ranks, chooses, orders };
  constexpr std::uint64_t kByColumn = ~0u;
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const std::uint32_t n = scratch.listed;
  const std::uint64_t* keys = scratch.list;
  const std::uint64_t* chosen = scratch.own;
  std::uint32_t m = n;
  std::uint64_t compared = row.columns > k ? ~core::kNoRow : kByColumn;
  key_range range{0, 0, n};  // all, and of a row that has no more than k all are chosen
  std::uint32_t ties = 0;
#pragma unroll 1
  for (std::uint32_t step = row.columns > k ? ranks : chooses;; step++) {
    const auto before = [&](std::uint64_t other, std::uint64_t mine) {
      return is_better(other & compared, mine & compared) * (other >= range.high ? kSure : other >= range.low ? 1 : 0);
    };
    for_each_slot(
        m, before, [&](std::uint32_t i) { return keys[i]; },
        [&](std::uint32_t sum, std::uint64_t key) {
          const std::uint32_t tied = sum % kSure;
          const std::uint32_t at = sum / kSure + min(tied, ties);
          if (step == ranks) {
            if (at == 0) scratch.best = core::key_of(key);
            if (at == k - 1) scratch.border = key;
          } else if (step == orders) {
            scratch.list[at] = key;
          } else if (key >= range.high || (key >= range.low && tied < ties)) {
            scratch.own[at] = key;
          }
        });
    __syncthreads();
    if (step == orders) {
      chosen = scratch.list;
      break;
    }
    if (step == ranks) {
      std::uint32_t above = 0;
      compared = kByColumn;
      range = range_of_stop<Stored>(request.stop, told_worst(place, scratch), scratch.best, scratch.border, k);
      const bool are_there = gather_keys(range, row, place, cut, how, keys, m, above, scratch);
      ties = range.wanted - min(above, range.wanted);
      if (are_there) continue;
      if (!may_read_front(request.stop)) front.ask();
      choose_from_front<Stored, Negated>(range, n, above, front, scratch);
      __syncthreads();
      step = chooses;
      if (!request.options.sorted && above == 0) break;
    } else if (!request.options.sorted) {
      break;
    }
    if (request.options.sorted) compared = ~core::kNoRow;
    keys = scratch.own;
    m = range.wanted;
    range.low = range.high = 0;
  }
  if (threadIdx.x < range.wanted) write(threadIdx.x, chosen[threadIdx.x]);
  for (std::uint32_t i = range.wanted + threadIdx.x; i < k; i += kThreads) write.pad(i);
  async_wait<0>();  // for what the front has asked for in vain
}

/// The rounds of whole vectors in the order that they are looked at: some, spread over all, first.
class round_order {
 public:
  __device__ __forceinline__ explicit round_order(std::uint32_t whole)
      : step_(whole <= kFirst + kSampled ? 1 : whole / kFirst),
        next_(step_ == 1 ? kFirst : 1),
        skipped_(step_ == 1 ? ~0u : step_) {}
  __device__ __forceinline__ std::uint32_t first(std::uint32_t i) const { return i * step_; }
  /// The next of the others.
  __device__ __forceinline__ std::uint32_t next() {
    const std::uint32_t round = next_++;
    if (next_ == skipped_) {
      next_++;
      skipped_ = skipped_ < step_ * (kFirst - 1) ? skipped_ + step_ : ~0u;
    }
    return round;
  }

 private:
  std::uint32_t step_;
  std::uint32_t next_;
  std::uint32_t skipped_;  // the next of the first ones
};

template <class Stored, bool Negated, class Request>
__global__ void __launch_bounds__(kThreads, 1) cluster_rows_kernel(const __grid_constant__ Request request) {
  constexpr std::uint32_t kPer = kPerVector<Stored>;
  constexpr std::uint32_t kFlip = Negated ? kSigns<Stored> : 0;
  auto& scratch = *reinterpret_cast<scratch_for<Request>*>(dynamic_shared());
  const cluster_place place{cluster_rank(), cluster_size(), scratch.own, kOwn};
  const std::int64_t index = blockIdx.x >> shift_of(place.blocks);
  join_chain();
  const whole_row<Stored> row = open_row<Stored>(request, index);
  const row_piece<Stored, kThreads> piece(row.values, row.columns, place.rank, place.blocks);
  const uint4* mine = piece.vectors + threadIdx.x;
  const std::uint32_t whole = piece.count / kThreads;
  const std::uint32_t later = whole - min(whole, kFirst);
  round_order asked(whole);
  round_order looked(whole);
  constexpr std::uint32_t kAbsent = kLeastWord<Stored> ^ kFlip;
  constexpr uint4 kNothing{kAbsent, kAbsent, kAbsent, kAbsent};
  uint4 first[kFirst];
#pragma unroll
  for (std::uint32_t v = 0; v < kFirst; v++)
    first[v] = v < whole ? load_streaming(mine + asked.first(v) * kThreads) : kNothing;
  const std::uint32_t behind = whole * kThreads + threadIdx.x;  // a part of a round
  const uint4 rest = behind < piece.count ? load_streaming(piece.vectors + behind) : kNothing;
  uint4* held = reinterpret_cast<uint4*>(&scratch + 1) + threadIdx.x;
  std::uint32_t copied = 0;
  const auto copy_batch = [&](std::uint32_t batch) {
    if (copied < later) {
#pragma unroll
      for (std::uint32_t v = 0; v < kBatch; v++, copied++) {
        if (copied < later)
          async_copy_16(shared_address(held + (batch * kBatch + v) * kThreads), mine + asked.next() * kThreads, true);
      }
    }
    async_commit();
  };
  if (later > 0) {
#pragma unroll 1
    for (std::uint32_t batch = 0; batch < kBatches; batch++) copy_batch(batch);
  }
  if (threadIdx.x == 0) {  // while the loads are under way
    init_groups(place.blocks, scratch.groups);
    init_shares(place.blocks, scratch.shares);
    scratch.kept = 0;
    scratch.listed = 0;
    if constexpr (kStops<Request>) scratch.reaching = scratch.early = scratch.above = 0;
    cluster_barriers_ready();
  }
  cluster_arrive_begun();
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const std::uint32_t wanted = min(k, row.columns);
  const auto best_of = [&](uint4 raw) {
    return largest_of<Stored, false>(make_uint4(raw.x ^ kFlip, raw.y ^ kFlip, raw.z ^ kFlip, raw.w ^ kFlip));
  };
  const float edge = piece.has_edge ? (Negated ? -piece.edge : piece.edge) : core::float_from_bits(0xFF800000u);
  float most = fmaxf(fmaxf(core::float_from_bits(0xFF800000u), edge), best_of(rest));
#pragma unroll
  for (std::uint32_t v = 0; v < kFirst; v++) most = fmaxf(most, best_of(first[v]));
  [[maybe_unused]] worst_seen<Stored, Negated> seen;
  if constexpr (kStops<Request>) {
#pragma unroll
    for (std::uint32_t v = 0; v < kFirst; v++)
      if (v < whole) seen.add(first[v]);
    if (behind < piece.count) seen.add(rest);
  }
  const bool sampled = later > 0 && later <= kSampled;
  float best_held[kSampled];  // of vectors in shared memory, where they are looked at first too
  if (sampled) {
    async_wait<0>();
#pragma unroll
    for (std::uint32_t v = 0; v < kSampled; v++) {
      best_held[v] = v < later ? best_of(held[v * kThreads]) : core::float_from_bits(0xFF800000u);
      most = fmaxf(most, best_held[v]);
      if constexpr (kStops<Request>)
        if (v < later) seen.add(held[v * kThreads]);
    }
  }
  cluster_wait();  // all blocks have begun
  share_groups(place.blocks, place.rank, core::ascending_key(most), scratch.groups);
  std::uint32_t cut = 0;
  if constexpr (kStops<Request>)
    cut = deep_cut(request.stop, wanted, row.vectors / kThreads >> shift_of(place.blocks), scratch.groups);
  else
    cut = cut_of_groups(wanted, scratch.groups);

  const float least = core::from_ascending_key(cut);
  const auto keep = [&](float best, std::uint32_t round, auto read) {
    if (!(best >= least)) return;
    most = fmaxf(most, best);
    const std::uint32_t to = atomicAdd(&scratch.kept, 1u);
    if (to >= kKept) return;
    scratch.vectors[to] = read();
    scratch.places[to] = round * kThreads + threadIdx.x;
  };
  bool lists = cut > kMinusInfinityKey;  // else fewer numbers than are wanted may be there
  if (lists) {
#pragma unroll
    for (std::uint32_t v = 0; v < kFirst; v++) keep(best_of(first[v]), looked.first(v), [&] { return first[v]; });
    keep(best_of(rest), whole, [&] { return rest; });
    if (sampled) {
#pragma unroll
      for (std::uint32_t v = 0; v < kSampled; v++)
        if (v < later) keep(best_held[v], kFirst + v, [&] { return held[v * kThreads]; });
    }
    std::uint32_t batch = 0;
#pragma unroll 1
    for (std::uint32_t done = sampled ? later : 0; done < later; done += kBatch) {
      async_wait<kBatches - 1>();
      uint4 raw[kBatch];
#pragma unroll
      for (std::uint32_t v = 0; v < kBatch; v++) raw[v] = held[(batch * kBatch + v) * kThreads];
#pragma unroll
      for (std::uint32_t v = 0; v < kBatch; v++)
        if (done + v < later) keep(best_of(raw[v]), looked.next(), [&] { return raw[v]; });
      if constexpr (kStops<Request>) {
#pragma unroll
        for (std::uint32_t v = 0; v < kBatch; v++)
          if (done + v < later) seen.add(raw[v]);
      }
      copy_batch(batch);
      batch = batch + 1 == kBatches ? 0 : batch + 1;
    }
    __syncthreads();  // all that reach the cut are kept
    const std::uint32_t kept = scratch.kept;
    const auto list = [&](float x, std::uint32_t column) {
      put_in_share(atomicAdd(&scratch.shares.appended, 1u),
                   core::row_key(core::ascending_key(x), row.first_column + column), place, scratch.shares);
    };
    if (kept <= kKept) {
      const auto* values = reinterpret_cast<const Stored*>(scratch.vectors);
      for (std::uint32_t i = threadIdx.x; i < kept * kPer; i += kThreads) {
        const float x = core::widen(values[i]);
        if ((Negated ? -x : x) >= least)
          list(Negated ? -x : x, piece.first_column + scratch.places[i / kPer] * kPer + i % kPer);
      }
      if (piece.has_edge && edge >= least) list(edge, piece.edge_column);
    } else if (threadIdx.x == 0) {
      scratch.shares.refused = true;
    }
  }
  async_wait<0>();
  [[maybe_unused]] row_front<Stored, kThreads> front(row, reinterpret_cast<uint4*>(&scratch + 1));
  const row_writer<Stored> write(request, index, row);
  told_shares told;
  if constexpr (kStops<Request>) {
    if (!lists) piece.for_each_in_place([&](uint4 raw, std::uint32_t /*column*/) { seen.add(raw); });
    const std::uint32_t worst = piece.has_edge ? min(seen.key(), key_of_wide(edge)) : seen.key();
    told = tell_shares(core::ascending_key(most), place, scratch.shares, 0, tells_worst{worst, place, scratch});
    if (place.rank == 0 && may_read_front(request.stop)) front.ask();
  } else {
    told = tell_shares(core::ascending_key(most), place, scratch.shares);
  }
  lists = lists && told.fit;
  if (!lists) {
    const std::uint32_t last = ~(row.first_column + row.columns - 1);
    const bool some = cut > kMinusInfinityKey;
    const std::uint64_t low = some ? static_cast<std::uint64_t>(cut) << 32 | last : 0;
    const std::uint64_t high =
        some ? core::row_key(told.best, row.first_column) : core::row_key(kInfinityKey, row.first_column);
    list_by_counting(piece, row.first_column, Negated, wanted, low, high, place, scratch);
    told = tell_shares(0, place, scratch.shares, 1);
  }
  if (place.rank != 0) return;
  const list_cut how = list_from_shares<kFew>(wanted, lists ? told.best : ~0u, lists ? cut : 0, place, scratch.list,
                                              scratch.listed, scratch.shares);
  if constexpr (kStops<Request>)
    write_stopped<Stored, Negated>(request, write, row, place, lists ? cut : ~0u, how, front, scratch);
  else
    write_best<Stored>(request.options, write, scratch.listed, how, scratch);
}

template <class Stored, class Request>
void launch_type(cudaStream_t stream, const Request& request, int blocks) {
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(request.matrix.rows * blocks));
  shape.threads = kThreads;
  const std::int64_t vectors = request.matrix.cols / (16 / static_cast<std::int64_t>(sizeof(Stored)));
  const std::int64_t rounds = (vectors + blocks - 1) / blocks / kThreads;
  const std::int64_t held = std::clamp<std::int64_t>((rounds - kFirst + kBatch - 1) / kBatch, 0, kBatches) * kBatch;
  std::int64_t held_vectors = held * kThreads;
  if constexpr (kStops<Request>) held_vectors = std::max(held_vectors, row_front<Stored, kThreads>::kVectors);
  shape.shared_bytes = static_cast<std::int64_t>(sizeof(scratch_for<Request>) + held_vectors * sizeof(uint4));
  shape.cluster = blocks;
  shape.overlaps = true;
  const bool negated = request.options.order == order::smallest;
  launch(negated ? cluster_rows_kernel<Stored, true, Request> : cluster_rows_kernel<Stored, false, Request>, shape,
         stream, request, "launching the row-wise top k of long rows by clusters");
}

/// A cluster's blocks for each row. @param request a top_k_request, or a stopped_request.
template <class Request>
void launch_clusters(cudaStream_t stream, const Request& request, int multiprocessors) {
  const int blocks = blocks_of_row(request.matrix.rows, request.matrix.cols, multiprocessors);
  by_stored_type(request.matrix.type, [&](auto stored) { launch_type<decltype(stored)>(stream, request, blocks); });
}

}  // namespace shortlist::cuda::clustering
