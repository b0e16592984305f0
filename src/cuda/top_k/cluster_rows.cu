// Row-wise top k of long rows for a small k: a cluster of blocks a row, which list what reaches a cut that the k best
// surely reach.
//
// Why it is fast: one launch, and three meetings of a cluster; a row is read once, as much of it as fits held in shared
// memory, the rest asked for from L2 while the cut is found.
// Steps: load what is held -> the best of 128 groups of it, shared -> their k-th best is the cut -> what reaches it
// goes to the first block's list, each block to its own share -> the first block ranks the list and writes. Exact for
// any data: where a share overflows, or fewer than k numbers are there, the blocks narrow the range of keys by
// counting, until a list has room. Keys are distinct, value above and column below, so that ties need no care.
// Limit: bytes(in) over read bandwidth. Measured share: docs/kernels.md.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "cuda/device/row_groups.cuh"
#include "cuda/device/row_stream.cuh"
#include "cuda/device/shared_list.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/top_k/cluster_rows.hpp"
#include "cuda/top_k/long_row.cuh"

namespace shortlist::cuda {
namespace {

constexpr std::uint32_t kOwn = 2048;          // keys in a block's list
constexpr std::int64_t kLeastColumns = 4096;  // a block: fewer do not pay for its part in the meetings
constexpr int kThreads = 256;
constexpr int kBlocks = 2;                 // a multiprocessor holds
constexpr std::uint32_t kHeldRounds = 16;  // of a vector for each thread: 64 KB

struct alignas(16) cluster_scratch {
  row_groups<kThreads> groups;
  share_scratch<kThreads> shares;
  std::uint64_t list[kThreads];
  std::uint64_t own[kOwn];
  std::uint64_t border_key;
  std::uint32_t listed;
  std::uint32_t before;  // of the range that a pass finds: keys above it, and within
  std::uint32_t inside;
  std::uint32_t narrow_bins[kThreads];
};

/// Lists the `wanted` best keys and a few more, whatever the data: passes count the keys of a range, and go on with the
/// part of it that the last of those wanted lies in. All threads of the cluster come.
template <class Stored>
__device__ __noinline__ void list_by_counting(const row_stream<Stored, kThreads>& stream, std::uint32_t first_column,
                                              bool negated, std::uint32_t wanted, std::uint64_t low, std::uint64_t high,
                                              const cluster_place& place, cluster_scratch& scratch) {
  constexpr int kBits = std::bit_width(static_cast<unsigned>(kThreads)) - 1;
  const std::uint32_t share = kOwn / place.blocks;
  const auto for_each_key = [&](auto f) {
    const auto see = [&](float x, std::uint32_t column) {
      f(core::row_key(key_of_wide(negated ? -x : x), first_column + column));
    };
    stream.for_each_in_place([&](uint4 raw, std::uint32_t column) {
      float x[16 / sizeof(Stored)];
      widen_values<Stored>(raw, x);
#pragma unroll
      for (std::uint32_t e = 0; e < 16 / sizeof(Stored); e++) see(x[e], column + e);
    });
    if (stream.has_edge) see(stream.edge, stream.edge_column);
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
    const bool fits = before + scratch.inside <= share;
    high -= static_cast<std::uint64_t>(bin) << shift;
    const std::uint64_t width = (std::uint64_t{1} << shift) - 1;
    low = high - low > width ? high - width : low;
    __syncthreads();  // all have read what was found
    if (shift == 0 || fits) break;
  }
  if (threadIdx.x == 0) scratch.shares.appended = 0;
  __syncthreads();
  std::uint64_t* to = of_block(scratch.own, 0) + place.rank * share;
  for_each_key([&](std::uint64_t key) {
    if (key >= low) to[atomicAdd(&scratch.shares.appended, 1u)] = key;
  });
  __syncthreads();
}

/// Writes the k best of the list's n keys, no more than threads, in the order that the request asks for, padded: each
/// is compared with each. The first block comes, after a barrier.
template <class Stored>
__device__ __forceinline__ void write_best(const core::top_k_request& request, std::int64_t index,
                                           const whole_row<Stored>& row, std::uint32_t n, cluster_scratch& scratch) {
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const row_writer<Stored> write(request, index, row);
  std::uint32_t shift = 0;  // 2^shift threads compare for one key
  while (shift < 5 && n << (shift + 1) <= kThreads) shift++;
  const std::uint32_t helpers = 1u << shift;
  const std::uint32_t helper = threadIdx.x & (helpers - 1);
  const std::uint32_t slot = threadIdx.x >> shift;
  const std::uint64_t mine = slot < n ? scratch.list[slot] : core::kNoRow;
  const auto add_helpers = [&](std::uint32_t value) {
#pragma unroll 1
    for (std::uint32_t apart = helpers / 2; apart > 0; apart /= 2)
      value += __shfl_xor_sync(kFullWarp, value, static_cast<int>(apart));
    return value;
  };
  std::uint32_t rank = 0;
#pragma unroll 8
  for (std::uint32_t j = helper; j < n; j += helpers) rank += scratch.list[j] > mine;
  rank = add_helpers(rank);
  const bool chosen = slot < n && rank < k;
  if (!request.options.sorted) {
    if (n > k) {
      if (chosen && rank == k - 1) scratch.border_key = mine;
    } else if (threadIdx.x == 0) {
      scratch.border_key = 0;
    }
    __syncthreads();
    const std::uint64_t border = scratch.border_key;
    const std::uint32_t column = core::position_of(mine);
    std::uint32_t place = 0;
#pragma unroll 8
    for (std::uint32_t j = helper; j < n; j += helpers) {
      const std::uint64_t other = scratch.list[j];
      place += other >= border && core::position_of(other) < column;
    }
    rank = add_helpers(place);
  }
  if (chosen && helper == 0) write(rank, mine);
  for (std::uint32_t i = n + threadIdx.x; i < k; i += kThreads) write.pad(i);
}

template <class Stored>
__global__ void __launch_bounds__(kThreads, kBlocks)
    cluster_rows_kernel(const __grid_constant__ core::top_k_request request) {
  auto& scratch = *reinterpret_cast<cluster_scratch*>(dynamic_shared());
  const cluster_place place{cluster_rank(), cluster_size(), scratch.own, kOwn};
  const std::int64_t index = blockIdx.x / place.blocks;
  cluster_arrive();
  const whole_row<Stored> row = open_row<Stored>(request, index);
  const std::uint32_t flip = sign_flip<Stored>(request);
  const row_stream<Stored, kThreads> stream(row.values, row.columns, place.rank, place.blocks,
                                            reinterpret_cast<uint4*>(&scratch + 1), kHeldRounds,
                                            kLeastWord<Stored> ^ flip);
  stream.begin_to_hold();
  stream.prefetch();
  if (threadIdx.x == 0) {
    scratch.shares.appended = 0;
    scratch.listed = 0;
  }
  const auto k = static_cast<std::uint32_t>(request.options.k);
  const std::uint32_t wanted = min(k, row.columns);
  const bool negated = request.options.order == order::smallest;
  const auto turned = [&](uint4 raw) { return make_uint4(raw.x ^ flip, raw.y ^ flip, raw.z ^ flip, raw.w ^ flip); };
  const float edge = stream.has_edge ? (negated ? -stream.edge : stream.edge) : core::float_from_bits(0xFF800000u);
  float most = fmaxf(core::float_from_bits(0xFF800000u), edge);
  const auto look = [&](uint4 raw) {
    most = fmaxf(most, largest_of<Stored, false>(turned(raw)));
    return 0u;
  };
  async_wait<0>();
  stream.template for_each_vector<true>(
      look, [](std::uint32_t) { return 0u; }, [](std::uint32_t, float, std::uint32_t) {});
  cluster_wait();  // all blocks have begun
  share_groups(place.blocks, place.rank, core::ascending_key(most), scratch.groups);
  const std::uint32_t cut = cut_of_groups(wanted, scratch.groups);

  const float least = core::from_ascending_key(cut);
  const std::uint32_t share = kOwn / place.blocks;
  std::uint64_t* to = of_block(scratch.own, 0) + place.rank * share;
  const auto room = [&](std::uint32_t count) { return atomicAdd(&scratch.shares.appended, count); };
  const auto take_value = [&](std::uint32_t at, float x, std::uint32_t column) {
    if (at < share) to[at] = core::row_key(core::ascending_key(x), row.first_column + column);
  };
  const auto take = [&](std::uint32_t at, float x, std::uint32_t column) { take_value(at, negated ? -x : x, column); };
  const auto mark = [&](uint4 stored) {
    const uint4 raw = turned(stored);
    const float largest = largest_of<Stored, false>(raw);
    most = fmaxf(most, largest);
    std::uint32_t marks = 0;
    if (largest >= least) {
      float x[16 / sizeof(Stored)];
      widen_values<Stored>(raw, x);
#pragma unroll
      for (std::uint32_t e = 0; e < 16 / sizeof(Stored); e++) marks |= x[e] >= least ? 1u << e : 0u;
    }
    return marks;
  };
  bool lists = cut > kMinusInfinityKey;  // else fewer numbers than are wanted may be there
  if (lists) {
    if (stream.has_edge && edge >= least) take_value(room(1), edge, stream.edge_column);
    stream.template for_each_vector<true>(mark, room, take);
    if (stream.step > 1) stream.template for_each_vector<false>(mark, room, take);
  }
  told_shares told = tell_shares(core::ascending_key(most), place, scratch.shares);
  lists = lists && told.fit;
  if (!lists) {
    const std::uint32_t last = ~(row.first_column + row.columns - 1);
    const bool some = cut > kMinusInfinityKey;
    const std::uint64_t low = some ? static_cast<std::uint64_t>(cut) << 32 | last : 0;
    const std::uint64_t high =
        some ? core::row_key(told.best, row.first_column) : core::row_key(kInfinityKey, row.first_column);
    list_by_counting(stream, row.first_column, negated, wanted, low, high, place, scratch);
    told = tell_shares(0, place, scratch.shares);
  }
  if (place.rank != 0) return;
  if (lists) {
    list_from_shares(wanted, told.best, cut, place, scratch.list, scratch.listed, scratch.shares);
  } else {
    list_from_shares(wanted, ~0u, 0, place, scratch.list, scratch.listed, scratch.shares);
  }
  write_best(request, index, row, scratch.listed, scratch);
  cluster_sync();  // the others may still look at this block's memory, until they end
}

template <class Stored>
void launch_type(cudaStream_t stream, const core::top_k_request& request, int blocks) {
  const std::int64_t vectors = request.matrix.cols * static_cast<std::int64_t>(sizeof(Stored)) / 16;
  const std::int64_t rounds = ((vectors + blocks - 1) / blocks + kThreads - 1) / kThreads;
  launch_shape shape;
  shape.grid = dim3(static_cast<unsigned>(request.matrix.rows * blocks));
  shape.threads = kThreads;
  shape.shared_bytes = static_cast<std::int64_t>(sizeof(cluster_scratch)) +
                       std::clamp<std::int64_t>(rounds, kFlight, kHeldRounds) * kThreads * 16;
  shape.cluster = blocks;
  launch(cluster_rows_kernel<Stored>, shape, stream, request, "launching the row-wise top k of long rows by clusters");
}

}  // namespace

void launch_cluster_rows(cudaStream_t stream, const core::top_k_request& request, int multiprocessors) {
  const std::int64_t cols = request.matrix.cols;
  const std::int64_t rows = request.matrix.rows;
  int blocks = 1;
  const auto more = [&] { return rows * blocks * 2 <= multiprocessors && cols >= 2 * kLeastColumns * blocks; };
  while (blocks < kMostBlocks && more()) blocks *= 2;
  by_stored_type(request.matrix.type, [&](auto stored) { launch_type<decltype(stored)>(stream, request, blocks); });
}

}  // namespace shortlist::cuda
