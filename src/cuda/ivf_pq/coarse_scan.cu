// The rows that may be among the best of a coarse search, by Hopper's matrix units, in one launch.
//
// A cluster of one to four blocks has 160 queries, each block all of them and a part of the rows. A sample of tiles of
// 64 rows gives each query the least distance of 128 groups of rows a block; the blocks exchange those, and the k'-th
// least of all is the query's threshold. Then all tiles are multiplied, and what reaches its threshold goes to the
// query's list.
//
// Why it is fast: queries stay in shared memory, from which the matrix units take them; rows go from the L2 cache to
// registers in the order in which matrix units take them, with no barrier in between. Sums begin at a row's term less
// the query's limit, so that a hit is a negative sum. Four warpgroups take turns: some test while others multiply. What
// has a hit waits in a queue, so that lanes part once for 32 of those, and not for each.
// Limit: fewer than half of the issue slots are used; instructions that wait for each other. Products would take a
// quarter of the time. History: docs/kernels.md.
#include <algorithm>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/last_reached.cuh"
#include "cuda/device/matrix_halves.cuh"
#include "cuda/device/score.cuh"
#include "cuda/device/shared_memory.cuh"
#include "cuda/ivf_pq/coarse_scan.cuh"
#include "cuda/runtime/hopper.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kGroupThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kParts = 2;  // of the columns: warpgroups multiply the same rows by one each
constexpr int kWorkers = kThreads / kGroupThreads / kParts;
constexpr int kWarpsOfGroup = kGroupThreads / kWarp;
constexpr int kColumns = kCoarseScanQueries;
constexpr int kColumnsOfGroup = kColumns / kParts;
constexpr int kEights = kColumnsOfGroup / 8;
constexpr int kEightsBetween = kEights / 2;  // one look at a queue and the next
constexpr int kColumnBits = 8;
static_assert(kColumns <= 1 << kColumnBits);
constexpr std::int64_t kMostDim = 128;
constexpr std::int64_t kMostCentroids = std::int64_t{1} << (32 - kColumnBits);
constexpr int kSums = kColumnsOfGroup / 2;  // of a lane
constexpr int kRowsOfWarp = 16;
constexpr int kGroups = kWorkers * kWarpsOfGroup * kRowsOfWarp;  // of rows of a block, whose least distances are kept
constexpr int kMinimaStride = kGroups + 4;                       // so that lanes that store together meet no bank twice
constexpr int kMostBlocks = 4;                                   // of a cluster
constexpr int kOfBlock = kGroups / kWarp;                        // least distances of a lane
constexpr std::int64_t kGroupsPerRow = 2;                        // at least, for each row that is asked for
constexpr std::int64_t kMostRows = kMostBlocks * kGroups / kGroupsPerRow;
constexpr std::int64_t kProductRows = kWarpsOfGroup * kRowsOfWarp;
constexpr std::int64_t kLeastTiles = kWorkers * kMostBlocks;
// One tile in so many is sampled: the more rows are asked for, the more a looser threshold costs.
constexpr std::uint32_t kStepForOne = 4;
constexpr std::uint32_t kStepForFew = 3;
constexpr std::uint32_t kStepForSome = 2;
constexpr std::int64_t kFewRows = 16;
constexpr std::int64_t kSomeRows = 64;
constexpr std::uint32_t kFewWanted = 10;  // that the best of each lane's groups tell well enough
constexpr float kNoLimit = -__builtin_huge_valf();

struct coarse_scan_plan {
  filter_batch batch;
  std::uint32_t sixteens;  // of rows, with those behind the last
  std::uint32_t tiles;
  std::uint32_t step;  // from a sampled tile to the next
  std::uint32_t samples;
  std::uint32_t room;  // for hits of a query in shared memory
};

/// In shared memory, between the columns and what changes: least distances, and then hits.
struct alignas(16) query_facts {
  float limits[kColumns];  // of products; just beyond those that rows of the answer reach
  float bases[kColumns];
  std::uint32_t counts[kColumns];  // of hits
  std::uint32_t first[kColumns];   // of their places
};

/// Lanes' sums of two rows and two queries that have hits among them; a warp's.
struct alignas(16) hit_queue {
  static constexpr int kRoom = kWarp + kEightsBetween * kWarp;
  float4 sums[kRoom];
  std::uint32_t whose[kRoom];  // the first row, and the first query's column
  std::uint32_t count;
};

template <int Steps>
constexpr std::int64_t kColumnBytes = (Steps * kBytesDeep + kColumnChunk - 1) / kColumnChunk* kColumns* kColumnChunk;

template <int Steps>
class coarse_block {
 public:
  __device__ coarse_block(const coarse_scan_plan& plan, unsigned char* columns)
      : plan_(plan),
        batch_(plan.batch),
        columns_(shared_address(columns)),
        facts_(*reinterpret_cast<query_facts*>(columns + kColumnBytes<Steps>)),
        queue_(reinterpret_cast<hit_queue*>(&facts_ + 1)[threadIdx.x / kWarp]),
        minima_(reinterpret_cast<float*>(reinterpret_cast<hit_queue*>(&facts_ + 1) + kWarps)),
        hits_(reinterpret_cast<std::uint64_t*>(minima_)),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        blocks_(cluster_size()),
        rank_(cluster_rank()),
        first_query_(blockIdx.x / blocks_ * kColumns),
        first_column_(threadIdx.x / kGroupThreads % kParts * kColumnsOfGroup),
        row_of_tile_(threadIdx.x % kGroupThreads / kWarp * kRowsOfWarp),
        worker_(rank_ * kWorkers + threadIdx.x / (kParts * kGroupThreads)),
        workers_(blocks_ * kWorkers) {}

  __device__ void run() {
    if (lane_ == 0) queue_.count = 0;
    bring_columns();
    __syncthreads();
    sample();
    meet();
    find_limits();
    meet();
    scan();
    __syncthreads();
    write_hits();
  }

 private:
  static constexpr std::int64_t kPageBytes = kPageTiles * Steps * 512 + core::kPageRows * 4;

  /// 64 rows, of which the warp has 16: the lane's elements, and the terms of rows g and g + 8.
  struct row_tile {
    uint4 rows[Steps];
    float terms[2];
  };

  __device__ void meet() const {
    if (blocks_ > 1)
      cluster_sync();
    else
      __syncthreads();
  }

  /// Queries beyond the last are zeros, which reach nothing.
  __device__ void bring_columns() {
    constexpr int kPieces = 4 * Steps;  // of 8 bytes: lane t of a row's four has those from Steps * t on
    const auto* from =
        reinterpret_cast<const uint2*>(batch_.columns) + static_cast<std::int64_t>(first_query_) * kPieces;
    for (int i = threadIdx.x; i < kColumns * kPieces; i += kThreads) {
      const int column = i / kPieces;
      const int t = i % kPieces / Steps;
      const int at = i % Steps * kBytesDeep + t * 4;
      const uint2 piece = is_query(column) ? from[i] : make_uint2(0, 0);
      const auto put = [&](int byte, std::uint32_t value) {
        store_shared(columns_ + static_cast<std::uint32_t>(column_byte_at(kColumns, column, byte)), value);
      };
      put(at, piece.x);
      put(at + kBytesDeep / 2, piece.y);
    }
    for (int column = threadIdx.x; column < kColumns; column += kThreads) {
      facts_.bases[column] = is_query(column) ? batch_.shares[first_query_ + column] : 0.0f;
      facts_.counts[column] = 0;
    }
    async_fence();
  }
  __device__ __forceinline__ bool is_query(int column) const {
    return first_query_ + column < static_cast<std::uint32_t>(batch_.count);
  }

  __device__ __forceinline__ row_tile load(std::uint32_t tile) const {
    const std::uint32_t sixteen = tile * kWarpsOfGroup + row_of_tile_ / kRowsOfWarp;
    const bool is_there = sixteen < plan_.sixteens;
    const std::byte* page = batch_.lists.pages + (is_there ? sixteen / 2 : 0) * kPageBytes;
    const auto* from = reinterpret_cast<const uint4*>(page) + sixteen % 2 * (Steps * kWarp) + lane_;
    const auto* terms = reinterpret_cast<const float*>(page + kPageTiles * Steps * 512) + sixteen % 2 * kRowsOfWarp;
    row_tile tile_of;
#pragma unroll
    for (int s = 0; s < Steps; s++) tile_of.rows[s] = __ldg(from + s * kWarp);
#pragma unroll
    for (int upper = 0; upper < 2; upper++)
      tile_of.terms[upper] = is_there ? __ldg(terms + lane_ / 4 + upper * 8) : __uint_as_float(0x7F800000u);
    return tile_of;
  }

  __device__ __forceinline__ void multiply(row_tile& tile, float (&sums)[kSums]) const {
    constexpr int kStepsOfChunk = kColumnChunk / kBytesDeep;
    const std::uint64_t columns = describe_columns(columns_ + first_column_ * kColumnChunk);
    products_hold(sums);
    products_hold(tile.rows);
    products_fence();
#pragma unroll
    for (int s = 0; s < Steps; s++) {
      const int at = s / kStepsOfChunk * (kColumns * kColumnChunk) + s % kStepsOfChunk * kBytesDeep;
      multiply_add(sums, tile.rows[s], columns + at / 16);
    }
    products_commit();
  }

  /// Until then the rows' registers are read.
  __device__ __forceinline__ void await(row_tile& tile, float (&sums)[kSums]) const {
    products_wait<0>();
    products_hold(sums);
    products_hold(tile.rows);
  }

  /// The least distances of the lane's rows of the sampled tiles.
  __device__ void sample() {
    float least[kSums];
#pragma unroll
    for (int i = 0; i < kSums; i++) least[i] = __uint_as_float(0x7F800000u);
#pragma unroll 1
    for (std::uint32_t i = worker_; i < plan_.samples; i += workers_) {
      row_tile tile = load(i * plan_.step);
      float sums[kSums];
#pragma unroll
      for (int s = 0; s < kSums; s++) sums[s] = tile.terms[s % 4 / 2];
      multiply(tile, sums);
      await(tile, sums);
#pragma unroll
      for (int s = 0; s < kSums; s++) least[s] = fminf(least[s], sums[s]);
    }
    const int group = static_cast<int>(worker_ % kWorkers * kProductRows + row_of_tile_) + lane_ / 4;
#pragma unroll
    for (int s = 0; s < kSums; s++) minima_[column_of(s) * kMinimaStride + group + s % 4 / 2 * 8] = least[s];
  }

  __device__ __forceinline__ int column_of(int sum) const {
    return first_column_ + sum / 4 * 8 + lane_ % 4 * 2 + sum % 2;
  }

  /// Each block finds the limits of some queries, a warp one at a time, and tells the others.
  __device__ void find_limits() {
    switch (blocks_) {
      case 1: return find_limits_of<1>();
      case 2: return find_limits_of<2>();
      default: return find_limits_of<4>();
    }
  }
  template <int Blocks>
  __device__ void find_limits_of() {
    constexpr int kShare = kColumns / Blocks;
    for (int i = threadIdx.x / kWarp; i < kShare; i += kWarps) {
      const int column = static_cast<int>(rank_) * kShare + i;
      const float limit = is_query(column) ? limit_of(column, nearest_of<Blocks>(column)) : kNoLimit;
      if (lane_ < Blocks) *of_block(facts_.limits + column, lane_) = limit;
    }
  }

  /// A distance, by its key, that as many groups reach as are wanted, or slightly more.
  template <int Blocks>
  __device__ std::uint32_t nearest_of(int column) const {
    std::uint32_t keys[Blocks][kOfBlock];
    std::uint32_t least = ~0u;
    std::uint32_t best = 0;
#pragma unroll
    for (int block = 0; block < Blocks; block++) {
      const float* of_mine = minima_ + column * kMinimaStride + lane_;
      const float* from = Blocks > 1 ? of_block(of_mine, block) : of_mine;
#pragma unroll
      for (int i = 0; i < kOfBlock; i++) keys[block][i] = distance_key(from[i * kWarp]);
    }
    const auto each = [&](auto f) {
#pragma unroll
      for (int block = 0; block < Blocks; block++)
#pragma unroll
        for (int i = 0; i < kOfBlock; i++) f(keys[block][i]);
    };
    each([&](std::uint32_t key) {
      least = min(least, key);
      best = max(best, key);
    });
    const std::uint32_t high = __reduce_max_sync(kFullWarp, best);
    const std::uint32_t wanted = batch_.wanted;
    if (wanted == 1) return high;
    if (wanted <= kFewWanted) {  // as many lanes' best will do
      const auto lanes_with = [&](std::uint32_t key) {
        return static_cast<std::uint32_t>(__popc(__ballot_sync(kFullWarp, best >= key)));
      };
      return last_reached({__reduce_min_sync(kFullWarp, best), high}, wanted, wanted / 8, lanes_with).low;
    }
    const auto groups_with = [&](std::uint32_t key) {
      std::uint32_t count = 0;
      each([&](std::uint32_t other) { count += other >= key; });
      return __reduce_add_sync(kFullWarp, count);
    };
    return last_reached({__reduce_min_sync(kFullWarp, least), high}, wanted, wanted / 8, groups_with).low;
  }

  __device__ float limit_of(int column, std::uint32_t nearest) const {
    constexpr float kMost = 0x1p100f;
    const float base = facts_.bases[column];
    const float margin = batch_.margins[first_query_ + column];
    const float threshold = __fmaf_rn(distance_of_key(nearest), batch_.header->unit, base) + margin;
    const float limit = (threshold - base) * batch_.header->inverse_unit;
    // A sum that is only just a hit's is negative, too.
    return fabsf(limit) < kMost ? limit + fabsf(limit) * 0x1p-20f + 0x1p-100f : kNoLimit;
  }

  __device__ void scan() {
    if (worker_ >= plan_.tiles) return;
    row_tile next = load(worker_);
#pragma unroll 1
    for (std::uint32_t i = worker_; i < plan_.tiles; i += workers_) {
      row_tile tile = next;
      float sums[kSums];
#pragma unroll
      for (int j = 0; j < kEights; j++) {
        const float2 limit = limits_of(j);
#pragma unroll
        for (int e = 0; e < 4; e++) sums[4 * j + e] = tile.terms[e / 2] - (e % 2 == 0 ? limit.x : limit.y);
      }
      multiply(tile, sums);
      next = load(min(i + workers_, plan_.tiles - 1));
      await(tile, sums);
      const std::uint32_t row = static_cast<std::uint32_t>(i * kProductRows) + row_of_tile_ + lane_ / 4;
      queue<0>(row, sums);
      empty_queue(kWarp);
      queue<kEightsBetween>(row, sums);
      empty_queue(kWarp);
    }
    empty_queue(0);
  }

  __device__ __forceinline__ float2 limits_of(int eight) const {
    return *reinterpret_cast<const float2*>(facts_.limits + first_column_ + eight * 8 + lane_ % 4 * 2);
  }

  /// Fours of the lane's sums that have a hit among them wait in the warp's queue; by stores that are predicated, since
  /// lanes that part take as long as all of them together.
  template <int First>
  __device__ __forceinline__ void queue(std::uint32_t row, const float (&sums)[kSums]) {
    int signs[kEightsBetween];
    std::uint32_t count = 0;
#pragma unroll
    for (int j = 0; j < kEightsBetween; j++) {
      const float* four = sums + 4 * (First + j);
      signs[j] = __float_as_int(four[0]) | __float_as_int(four[1]) | __float_as_int(four[2]) | __float_as_int(four[3]);
      count += static_cast<std::uint32_t>(signs[j]) >> 31;
    }
    if (count == 0) return;
    const std::uint32_t place = atomicAdd(&queue_.count, count);
    float4* to = queue_.sums + place;
    std::uint32_t* whose = queue_.whose + place;
    const std::uint32_t column = row << kColumnBits | (first_column_ + lane_ % 4 * 2);
#pragma unroll
    for (int j = 0; j < kEightsBetween; j++) {
      const float* four = sums + 4 * (First + j);
      if (signs[j] >= 0) continue;
      *to++ = make_float4(four[0], four[1], four[2], four[3]);
      *whose++ = column + 8 * (First + j);
    }
  }

  /// What is queued goes to the queries' lists, if it is more than this.
  __device__ __forceinline__ void empty_queue(std::uint32_t fewer) {
    __syncwarp();
    const std::uint32_t queued = queue_.count;
    __syncwarp();  // all know how many before one enters more
    if (queued <= fewer) return;
#pragma unroll 1
    for (std::uint32_t at = lane_; at < queued; at += kWarp) {
      const float4 four = queue_.sums[at];
      const float sums[4] = {four.x, four.y, four.z, four.w};
      const std::uint32_t row = queue_.whose[at] >> kColumnBits;
      const auto column = static_cast<int>(queue_.whose[at] & ((1u << kColumnBits) - 1));
      const float2 limit = *reinterpret_cast<const float2*>(facts_.limits + column);
      const float2 base = *reinterpret_cast<const float2*>(facts_.bases + column);
      const float unit = batch_.header->unit;
      std::uint32_t places[4];
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (sums[e] < 0.0f) places[e] = atomicAdd(facts_.counts + column + e % 2, 1u);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (!(sums[e] < 0.0f)) continue;
        const float distance =
            __fmaf_rn(sums[e] + (e % 2 == 0 ? limit.x : limit.y), unit, e % 2 == 0 ? base.x : base.y);
        const std::uint64_t hit = static_cast<std::uint64_t>(distance_key(distance)) << 32 | (row + e / 2 * 8);
        if (places[e] < plan_.room)
          hits_[(column + e % 2) * plan_.room + places[e]] = hit;
        else
          put_hit(column + e % 2, atomicAdd(hit_count(column + e % 2), 1u), hit);
      }
    }
    __syncwarp();
    if (lane_ == 0) queue_.count = 0;
    __syncwarp();
  }
  __device__ __forceinline__ std::uint32_t* hit_count(int column) const {
    return batch_.hit_counts + first_query_ + column;
  }
  __device__ __forceinline__ void put_hit(int column, std::uint32_t place, std::uint64_t hit) const {
    if (place < batch_.capacity)
      batch_.hits[static_cast<std::int64_t>(first_query_ + column) * batch_.capacity + place] = hit;
  }

  /// To the queries' lists: a thread a query, for its place; then a warp.
  __device__ void write_hits() const {
    for (int column = threadIdx.x; column < kColumns; column += kThreads) {
      const std::uint32_t n = min(facts_.counts[column], plan_.room);
      facts_.counts[column] = n;
      if (n > 0) facts_.first[column] = atomicAdd(hit_count(column), n);
    }
    __syncthreads();
    for (int column = threadIdx.x / kWarp; column < kColumns; column += kWarps) {
      for (std::uint32_t i = lane_; i < facts_.counts[column]; i += kWarp)
        put_hit(column, facts_.first[column] + i, hits_[column * plan_.room + i]);
    }
  }

  const coarse_scan_plan& plan_;
  const filter_batch& batch_;
  std::uint32_t columns_;
  query_facts& facts_;
  hit_queue& queue_;
  float* minima_;        // [kColumns, kMinimaStride], of which kGroups
  std::uint64_t* hits_;  // [kColumns, room], in the same place
  int lane_;
  std::uint32_t blocks_;  // of the cluster
  std::uint32_t rank_;
  std::uint32_t first_query_;
  int first_column_;           // of the warpgroup
  std::uint32_t row_of_tile_;  // the warp's first
  std::uint32_t worker_;       // of the cluster's, who take tiles
  std::uint32_t workers_;
};

template <int Steps>
__global__ void __launch_bounds__(kThreads, 1) coarse_scan_kernel(const __grid_constant__ coarse_scan_plan plan) {
  join_chain();
  unsigned char* columns = dynamic_shared();
  columns += (kColumnsAligned - shared_address(columns) % kColumnsAligned) % kColumnsAligned;
  coarse_block<Steps>(plan, columns).run();
}

/// Blocks of a cluster, so that rounds of all blocks take the least time.
int cluster_of(std::int64_t queries, std::int64_t k, int multiprocessors) {
  const std::int64_t clusters = (queries + kColumns - 1) / kColumns;
  const auto rounds = [&](int blocks) { return (clusters * blocks + multiprocessors - 1) / multiprocessors; };
  int best = kMostBlocks;
  for (int blocks = kMostBlocks / 2; blocks > 0 && blocks * kGroups >= kGroupsPerRow * k; blocks /= 2)
    if (rounds(blocks) * best <= rounds(best) * blocks) best = blocks;
  return best;
}

std::uint32_t step_of(std::int64_t k) {
  if (k == 1) return kStepForOne;
  return k <= kFewRows ? kStepForFew : k <= kSomeRows ? kStepForSome : 1;
}

template <int Steps>
void launch_steps(cudaStream_t stream, coarse_scan_plan plan, int multiprocessors) {
  constexpr std::int64_t kFixed = kColumnsAligned + kColumnBytes<Steps> +
                                  static_cast<std::int64_t>(sizeof(query_facts) + kWarps * sizeof(hit_queue));
  static_assert(kMaxSharedBytes - kFixed >= kColumns * kMinimaStride * static_cast<std::int64_t>(sizeof(float)));
  plan.room = static_cast<std::uint32_t>((kMaxSharedBytes - kFixed) / (kColumns * 8));
  const int blocks = cluster_of(plan.batch.count, plan.batch.wanted, multiprocessors);
  launch(coarse_scan_kernel<Steps>,
         {.grid = dim3(static_cast<unsigned>((plan.batch.count + kColumns - 1) / kColumns * blocks)),
          .threads = kThreads,
          .shared_bytes = kMaxSharedBytes,
          .cluster = blocks,
          .overlaps = true},
         stream, plan, "launching the scan of centroids");
}

}  // namespace

bool has_coarse_scan(std::int64_t dim, std::int64_t rows, std::int64_t k) {
  return dim <= kMostDim && runs_hopper_code() && k <= kMostRows && rows / kProductRows >= kLeastTiles &&
         rows <= kMostCentroids;
}

void launch_coarse_scan(cudaStream_t stream, const filter_batch& batch, std::int64_t rows, int multiprocessors) {
  coarse_scan_plan plan{};
  plan.batch = batch;
  plan.sixteens = static_cast<std::uint32_t>((rows + core::kPageRows - 1) / core::kPageRows * kPageTiles);
  plan.tiles = static_cast<std::uint32_t>((rows + kProductRows - 1) / kProductRows);
  plan.step = std::min(step_of(batch.wanted), plan.tiles / static_cast<std::uint32_t>(kLeastTiles));
  plan.samples = plan.tiles / plan.step;
  switch (page_layout(batch.shape).padded_halves() / kHalvesDeep) {
    case 2: return launch_steps<2>(stream, plan, multiprocessors);
    case 4: return launch_steps<4>(stream, plan, multiprocessors);
    case 6: return launch_steps<6>(stream, plan, multiprocessors);
    default: return launch_steps<8>(stream, plan, multiprocessors);
  }
}

}  // namespace shortlist::cuda
