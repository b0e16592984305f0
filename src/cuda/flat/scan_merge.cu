// The end of a one-query scan: one block merges what the scan's blocks kept into the sorted answer.
//
// Its cost is latency: of a few dependent loads, and of instructions that no cache holds, some 20 cycles each. So it is
// launched together with the scan (programmatic dependent launch), and goes through its own steps once on made-up keys,
// which fetches the instructions, before it waits for the scan's end. There is no room for it beside a block of the
// scan: it comes where the first of those has ended.
// Steps: gather what reaches the scan's threshold or, if that is too much or there is none, a cut from the keys that
// blocks published at their ends (blocks with few keys wrote them best first, so reading stops early) -> rank by
// counting, or by bins where many remain -> scores and labels -> tell the host -> leave the workspace clean.
// History: as the scan's last block 13 us of 360 at 1M x 384; with 1,024 threads beyond k 256 7 us instead of 11 at
// k 1000; see docs/kernels.md for today's.
#include <algorithm>
#include <bit>

#include "cuda/device/block_select.cuh"
#include "cuda/flat/scan.hpp"
#include "cuda/flat/scan_merge.cuh"
#include "cuda/runtime/check.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kFewThreads = 256;
constexpr int kManyThreads = 1024;  // beyond a k of kManyResults they save more than their barriers take
constexpr std::int64_t kManyResults = 256;
constexpr std::uint32_t kCountedKeys = 256;  // up to here, counting the better keys beats bins
constexpr int kCountedAtOnce = 8;            // of them: the loads' latency is what counting takes
template <int Threads>
constexpr int kLanesPerBlock = Threads == kFewThreads ? 8 : 16;  // threads that read one block's slots
template <int Threads>
constexpr int kReaders = Threads / kLanesPerBlock<Threads>;
template <int Threads>
constexpr int kBlocksPerReader = (kMaxBlocks + kReaders<Threads> - 1) / kReaders<Threads>;
// More keys than this that reach the scan's threshold are cut by what blocks published at their ends.
constexpr std::uint32_t kManyPerResult = 4;
constexpr std::uint32_t kManyKeys = 64;
constexpr std::int64_t kFewResults = 512;        // k up to here fits beside a scan
constexpr std::int64_t kSmallBytes = 41 * 1024;  // of shared memory: what a scan leaves on its multiprocessor
constexpr std::int64_t kLargeBytes = 180 * 1024;
static_assert(kMaxBlocks * kMaxPublished * 8 <= kSmallBytes - 8 * 1024, "published keys are gathered too");

template <int Threads>
struct merge_shared {
  select_scratch<Threads> select;
  std::uint32_t kept;
};

/// Shared memory behind merge_shared: room for the sorted best, bins, and the gathered keys.
struct merge_room {
  std::uint64_t* best;      // [best_keys]
  std::uint32_t best_keys;  // a power of two, at least k + kMaxInBin
  sort_bins<>* bins;
  std::uint64_t* gathered;
  std::uint32_t capacity;
};

/// Writes list entry i: score and label, or padding.
__device__ __forceinline__ void write_result(const merge_args& args, std::uint32_t i, std::uint64_t key) {
  if (key == core::kNoRow) {
    args.scores[i] = core::worst_score(args.by);
    args.labels[i] = core::kNoId;
    return;
  }
  const std::uint32_t position = core::position_of(key);
  args.scores[i] = core::score_from_key(core::key_of(key), args.by);
  args.labels[i] = args.ids ? args.ids[position] : static_cast<std::int64_t>(position);
}

/// A made-up key for the rehearsal.
__device__ __forceinline__ std::uint64_t rehearsed_key(std::uint32_t i) {
  return (static_cast<std::uint64_t>(i * 2654435761u | 1u) << 32) | i;
}

/// Calls f with this thread's share of the keys that reach the cut (kNoRow for others).
template <int Threads, class F>
__device__ __forceinline__ void visit_slots(const merge_args& args, std::uint64_t cut, bool rehearsal, F f) {
  const int reader = threadIdx.x / kLanesPerBlock<Threads>;
  std::uint32_t counts[kBlocksPerReader<Threads>];
  bool more = true;
#pragma unroll
  for (int j = 0; j < kBlocksPerReader<Threads>; j++) {
    const int b = reader + j * kReaders<Threads>;
    counts[j] = b >= args.blocks ? 0 : rehearsal ? 1 : __ldcg(args.slot_counts + b);
  }
#pragma unroll 1
  for (std::uint32_t i = threadIdx.x % kLanesPerBlock<Threads>; more; i += kLanesPerBlock<Threads>) {
    std::uint64_t keys[kBlocksPerReader<Threads>];
    more = false;
#pragma unroll
    for (int j = 0; j < kBlocksPerReader<Threads>; j++) {
      const std::int64_t block = reader + j * kReaders<Threads>;
      keys[j] = core::kNoRow;
      if (i < counts[j]) {
        keys[j] = __ldcg(args.slots + block * args.slot_capacity + i);
        if (rehearsal) keys[j] = rehearsed_key(static_cast<std::uint32_t>(block));
      }
    }
#pragma unroll
    for (int j = 0; j < kBlocksPerReader<Threads>; j++) {
      const bool passes = keys[j] >= cut;
      if (!passes && counts[j] <= kSortedSlots) counts[j] = 0;  // best first: nothing beyond reaches the cut
      more |= i + kLanesPerBlock<Threads> < counts[j];
      f(passes ? keys[j] : core::kNoRow);
    }
  }
}

/// Sorts whatever bins could not: cuts to exactly k, then a sorting network.
template <int Threads, class Write>
__device__ __noinline__ void sort_any(const merge_args& args, merge_shared<Threads>& shared, const merge_room& room,
                                      std::uint64_t cut, std::uint32_t found, Write write) {
  const std::uint32_t k = args.k;
  const bool overflow = found > room.capacity;
  const auto visit = [&](auto&& f) { visit_slots<Threads>(args, cut, false, f); };
  const std::uint64_t exact = overflow ? block_cut_radix<Threads>(visit, k, shared.select)
                                       : block_cut<Threads>(room.gathered, found, k, 0, shared.select);
  __syncthreads();
  if (threadIdx.x == 0) shared.kept = 0;
  __syncthreads();
  const auto keep = [&](std::uint64_t key) {
    if (key != core::kNoRow && key >= exact) room.best[atomicAdd(&shared.kept, 1u)] = key;
  };
  if (overflow) {
    visit(keep);
  } else {
    for (std::uint32_t i = threadIdx.x; i < found; i += Threads) keep(room.gathered[i]);
  }
  const std::uint32_t kept = min(found, k);
  std::uint32_t padded = Threads;
  while (padded < kept) padded <<= 1;
  for (std::uint32_t i = kept + threadIdx.x; i < padded; i += Threads) room.best[i] = core::kNoRow;
  block_sort<Threads>(room.best, padded);
  for (std::uint32_t i = threadIdx.x; i < kept; i += Threads) write(i, room.best[i]);
}

/// The cut that the published keys give; 1 if they are too few. `keys` is room for all of them.
template <int Threads>
__device__ __noinline__ std::uint64_t published_cut(const merge_args& args, merge_shared<Threads>& shared,
                                                    std::uint64_t* keys, bool rehearsal) {
  const int published = args.blocks * args.publish;
#pragma unroll 3
  for (int i = threadIdx.x; i < published; i += Threads) {
    const std::uint64_t key = published_key(args.published, args.publish, i);
    keys[i] = rehearsal ? rehearsed_key(i) : key;
  }
  __syncthreads();
  const std::uint32_t wanted = published_keys_of(args.k, args.rows_per_key);
  const std::uint64_t cut = block_cut<Threads>(keys, published, wanted, slack_of(wanted), shared.select);
  __syncthreads();  // `keys` are read no more
  return cut;
}

/// Gathers what reaches the cut. @returns how many keys do.
template <int Threads>
__device__ __forceinline__ std::uint32_t gather(const merge_args& args, merge_shared<Threads>& shared,
                                                const merge_room& room, std::uint64_t cut, bool rehearsal) {
  if (threadIdx.x == 0) shared.kept = 0;
  __syncthreads();
  visit_slots<Threads>(args, cut, rehearsal, [&](std::uint64_t key) {
    if (key == core::kNoRow) return;
    const std::uint32_t at = atomicAdd(&shared.kept, 1u);
    if (at < room.capacity) room.gathered[at] = key;
  });
  __syncthreads();
  return shared.kept;
}

template <int Threads>
__device__ __forceinline__ void merge_once(const merge_args& args, merge_shared<Threads>& shared,
                                           const merge_room& room, bool rehearsal) {
  const std::uint32_t k = args.k;
  std::uint64_t cut = core::kNoRow;
  std::uint32_t found = 0;
  if (args.is_long) {
    cut = common_threshold(args.control);
    if (rehearsal) cut = 1;
    if (cut != core::kNoRow) found = gather(args, shared, room, cut, rehearsal);
  }
  // Not rehearsed where it is unlikely: of many results' rehearsals the end of a scan would have to wait.
  if (cut == core::kNoRow || (!rehearsal && found > min(kManyPerResult * k + kManyKeys, room.capacity))) {
    __syncthreads();  // all have read how many were found
    cut = published_cut(args, shared, room.best, rehearsal);
    found = gather(args, shared, room, cut, rehearsal);
  }
  const auto write = [&](std::uint32_t rank, std::uint64_t key) {
    if (rank < k && !rehearsal) write_result(args, rank, key);
  };
  const bool counted = rehearsal ? k <= kCountedKeys : found <= kCountedKeys;  // rehearse the way that is likely
  if (counted) {
    rank_by_counting<Threads, kCountedAtOnce>(room.gathered, found, write);
  } else if (found > room.capacity ||
             !sort_by_bins<Threads>(keys_in_turn<Threads>{room.gathered, found}, found, k, room.best, room.best_keys,
                                    *room.bins, shared.select, write)) {
    sort_any(args, shared, room, cut, found, write);
  }
  for (std::uint32_t i = found + threadIdx.x; i < k; i += Threads) write(i, core::kNoRow);
  __syncthreads();
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    scan_merge_kernel(const __grid_constant__ merge_args args, std::uint32_t best_keys, std::uint32_t capacity) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<merge_shared<Threads>*>(memory);
  merge_room room{};
  room.best = reinterpret_cast<std::uint64_t*>(memory + (sizeof(merge_shared<Threads>) + 127) / 128 * 128);
  room.best_keys = best_keys;
  room.gathered = room.best + best_keys;
  room.capacity = capacity;
  room.bins = reinterpret_cast<sort_bins<>*>(room.gathered + capacity);

#pragma unroll 1
  for (int turn = 0; turn < 2; turn++) {
    if (turn == 1) cudaGridDependencySynchronize();
    merge_once(args, shared, room, turn == 0);
  }

  if (args.done_word) {
    __threadfence_system();  // the results first
    __syncthreads();
    if (threadIdx.x == 0) {
      *reinterpret_cast<volatile std::uint32_t*>(args.done_word) = args.done_value;
      __threadfence_system();
    }
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < args.blocks * kMaxPublished; i += Threads) args.published[i] = 0;
  if (threadIdx.x == 0) *args.control = scan_control{};
}

}  // namespace

void prepare_scan_merge() {
  for (const auto kernel : {scan_merge_kernel<kFewThreads>, scan_merge_kernel<kManyThreads>})
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kLargeBytes)),
          "raising the merge's shared memory");
}

merge_launch::merge_launch(const merge_args& merged) : args(merged) {
  const bool is_large = args.k > kManyResults;
  kernel = is_large ? scan_merge_kernel<kManyThreads> : scan_merge_kernel<kFewThreads>;
  threads = is_large ? kManyThreads : kFewThreads;
  shared_bytes = args.k <= kFewResults ? kSmallBytes : kLargeBytes;
  best_keys = std::bit_ceil(static_cast<std::uint32_t>(std::max(args.k + static_cast<int>(kMaxInBin), threads)));
  const auto fixed_bytes = [](std::size_t bytes) { return static_cast<std::int64_t>((bytes + 127) / 128 * 128); };
  const std::int64_t left =
      shared_bytes - fixed_bytes(is_large ? sizeof(merge_shared<kManyThreads>) : sizeof(merge_shared<kFewThreads>)) -
      best_keys * std::int64_t{8} - static_cast<std::int64_t>(sizeof(sort_bins<>));
  capacity = static_cast<std::uint32_t>(left / 8);
  pointers[0] = &args;
  pointers[1] = &best_keys;
  pointers[2] = &capacity;
}

cudaKernelNodeParams merge_launch::node() const {
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(kernel);
  params.gridDim = dim3(1);
  params.blockDim = dim3(static_cast<unsigned>(threads));
  params.sharedMemBytes = static_cast<unsigned>(shared_bytes);
  params.kernelParams = const_cast<void**>(pointers);
  return params;
}

void merge_launch::run(cudaStream_t stream) const {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, args, best_keys, capacity), "launching the scan's merge");
}

}  // namespace shortlist::cuda
