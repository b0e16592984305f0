// The filter of a batch: every row's codes against every query's, on the matrix units, and the few rows that may be
// among a query's best appended to its list.
//
// Why it is fast: a tile of queries stays in shared memory; rows go from memory to registers in the order in which
// matrix units take them, 16 bytes a lane, several loads in flight, with no barrier and no shared memory between. What
// a query asks of a tile's rows is settled for the tile, by its largest residual and norm; the test of a product is
// then one fused multiply-add, and one instruction that adds and keeps the least of eight: columns hold negated codes,
// and the bits of what is asked, 1.5 x 2^23 + theta as fp32, are those of 1.5 x 2^23 plus theta, so that their sum with
// -I tells which is larger. The few groups of eight with a hit go to a list in shared memory, and are held to their own
// rows' terms while the next tile is multiplied. Two warpgroups take turns: one tests while the other multiplies.
//
// Steps of a warpgroup: what the queries ask of a tile of 64 rows -> multiply along dim, and meanwhile append the hits
// of the tile before -> fetch the next tile's first codes -> test 64 x N sums.
// Limit: the plane's bytes over read bandwidth for few queries, products over the matrix units' rate for many.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/order.hpp"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/element.cuh"
#include "cuda/device/matrix_bytes.cuh"
#include "cuda/device/score.cuh"
#include "cuda/flat/certified_filter.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kGroups = 2;
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kSteps = 4;        // products of a chunk: 128 elements
constexpr int kGroupSums = 8;    // sums of a thread that are tested together
constexpr int kBusyChunk = 1;    // while this chunk is multiplied, the hits of the tile before are appended
constexpr int kListGroups = 64;  // such groups in a warp's list
constexpr std::int64_t kMaxShared = 227 * 1024;
constexpr float kOrigin = 12582912.0f;            // 1.5 x 2^23
constexpr std::int32_t kOriginBits = 0x4B400000;  // its bits
constexpr float kTameValue = -kOrigin / 2;        // what is asked, above it, keeps sums with the origin positive
constexpr float kPaddedOrigin = kOrigin - 4.0f;   // pays for roundings; see docs/certified.md
constexpr float kLeastScale = 0x1p-50f;           // rows of smaller scales are kept without a test
constexpr float kLeastUnit = 0x1p-126f;           // whatever is asked of such a row, it comes to less than 4

struct filter_args {
  const unsigned char* plane;
  filter_batch batch;
  candidate_segments candidates;
  std::uint32_t* maxima;  // [queries, maxima_stride]
  std::int64_t maxima_stride;
  std::int32_t merged;  // tiles whose maxima become one
  std::int64_t block_bytes;
  std::int64_t codes_bytes;
  std::uint32_t rows;
  std::uint32_t tiles;  // visited
  tile_choice choice;
  std::int32_t steps;   // products of 32 along dim
  std::int32_t chunks;  // of 128
  std::int32_t column_tiles;
  metric by;
};

__host__ __device__ constexpr std::uint32_t tile_at(std::uint32_t i, tile_choice choice) { return i * choice.every; }

/// A row as the plane has it, with the inverse norm under cosine.
struct alignas(16) known_row {
  float scale;
  float residual;
  float norm;
  float fourth;  // the square under squared L2, the inverse norm under cosine

  __device__ core::plane_row row() const { return {scale, residual, norm, fourth}; }
  __device__ float inverse_norm() const { return fourth; }
};

/// What a row brings to the test, in units of the integer product.
struct row_test {
  float unit;      // 1 / s, or 1 / (s ix) under cosine
  float residual;  // e, or e ix
  float norm;      // n, or n ix
  float square;    // w / s under squared L2
};

/// A row of which nothing is known brings next to no unit, and so passes whatever the others bring.
__device__ __forceinline__ row_test test_of(const known_row& row, metric by) {
  const float scale = row.scale == 0.0f ? kLeastScale : row.scale;  // codes are 0: any scale says the same
  const float infinity = __uint_as_float(0x7F800000u);
  if (scale < kLeastScale || !(row.residual < infinity)) return {kLeastUnit, 0.0f, 0.0f, 0.0f};
  row_test test{__frcp_rn(scale), row.residual, row.norm, 0.0f};
  if (by == metric::l2) test.square = __fmul_rn(row.fourth, test.unit);
  if (by == metric::cosine) {
    const float inverse_norm = row.fourth;
    if (inverse_norm < 0.0f) return {kLeastUnit, 0.0f, 0.0f, 0.0f};
    test.unit = __fdiv_rn(test.unit, inverse_norm);
    test.residual = __fmul_rn(row.residual, inverse_norm);
    test.norm = __fmul_rn(row.norm, inverse_norm);
  }
  return test;
}

/// What a query asks of rows whose residuals and norms are at most these.
__device__ __forceinline__ float asked_of(const filter_weights& query, float residual, float norm) {
  return __fmaf_rn(query.norm, norm, __fmaf_rn(query.residual, residual, query.target));
}

/// The least value of a sum's bits, read as fp32, that a row's upper end may reach the target with.
__device__ __forceinline__ float least_value(float asked, float square_weight, const row_test& row) {
  return __fmaf_rn(asked, row.unit, __fmaf_rn(square_weight, row.square, kPaddedOrigin));
}

__device__ __forceinline__ known_row load_row(const filter_args& args, std::uint32_t block, int at) {
  const auto* terms = reinterpret_cast<const float*>(args.plane + block * args.block_bytes + args.codes_bytes) + at;
  const float fourth = args.by == metric::inner_product ? 0.0f : terms[3 * core::kPlaneRows];
  return {terms[0], terms[core::kPlaneRows], terms[2 * core::kPlaneRows], fourth};
}

/// A thread's two rows of a tile.
struct row_pair {
  known_row rows[2];
  std::uint32_t first;  // position of the first; the second is eight further
};

__device__ __forceinline__ row_pair load_rows(const filter_args& args, std::uint32_t tile, std::uint32_t blocks) {
  const int at = threadIdx.x % kWarp / 4;
  const std::uint32_t block = tile * (kFilterRows / core::kPlaneRows) + threadIdx.x % kGroupThreads / kWarp;
  const std::uint32_t there = min(block, blocks - 1);
  return {{load_row(args, there, at), load_row(args, there, at + 8)}, block * core::kPlaneRows + at};
}

/// How many chunks of codes a lane has in registers, the one at work included. A sample of 256 columns has no room for
/// more.
template <int N, bool Sample>
inline constexpr int kChunksHeld = Sample&& N == 256 ? 2 : 3;

/// Blocks of a multiprocessor: few queries take little of it, and need many loads in flight.
template <int N>
inline constexpr int kBlocksHeld = N <= 64 ? 2 : 1;

/// What the queries ask of a tile's rows, for two columns at a time.
struct alignas(16) asked_pair {
  float asked[2];
  float square_weight[2];
};

constexpr int kWarps = kThreads / kWarp;

/// Groups of sums among which there is a hit.
struct hit_list {
  int4 sums[kListGroups][2];
  std::uint16_t groups[kListGroups];  // whose: lane * groups of a thread + group
};

constexpr int kTilesKept = 2;  // of whose rows the terms stay: the tile at work, and that of the listed hits

template <int N>
struct filter_shared {
  filter_weights weights[N];
  asked_pair asked[kGroups][N / 2];
  hit_list hits[kWarps];
  known_row rows[kTilesKept][kWarps][core::kPlaneRows];
  std::uint32_t counts[N];   // of candidates in the block's segments
  float largest[3][kWarps];  // residual, norm and unit among a warp's rows
  std::uint64_t barrier;
};

template <int N>
__host__ __device__ constexpr std::int64_t shared_bytes(std::int64_t chunks) {
  return kColumnsAligned + chunks * N * kColumnChunk + static_cast<std::int64_t>(sizeof(filter_shared<N>));
}

__device__ __forceinline__ void load_chunk(uint4 (&codes)[kSteps], const uint4* from, int chunk, int steps) {
#pragma unroll
  for (int s = 0; s < kSteps; s++)  // past the end, any codes will do: the columns are 0 there
    codes[s] = load_streaming(from + min(chunk * kSteps + s, steps - 1) * kWarp);
}

/// The threads of a warpgroup meet.
__device__ __forceinline__ void meet_group() {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + static_cast<int>(threadIdx.x) / kGroupThreads), "n"(kGroupThreads)
               : "memory");
}

/// The same; whether `value` holds for all of them.
__device__ __forceinline__ bool meet_group_and(bool value) {
  int all;
  asm volatile(
      "{\n"
      ".reg .pred mine, all;\n"
      "setp.ne.s32 mine, %3, 0;\n"
      "barrier.cta.red.and.pred all, %1, %2, mine;\n"
      "selp.s32 %0, 1, 0, all;\n"
      "}"
      : "=r"(all)
      : "r"(1 + static_cast<int>(threadIdx.x) / kGroupThreads), "n"(kGroupThreads), "r"(static_cast<int>(value))
      : "memory");
  return all != 0;
}

/// Settles what the queries ask of a tile's rows. @returns whether all of it stays within what the short test takes.
template <int N>
__device__ __forceinline__ bool ask(filter_shared<N>& shared, const row_test (&tests)[2]) {
  const int group = threadIdx.x / kGroupThreads;
  const int warp = threadIdx.x / kWarp;
  const int first_warp = group * (kGroupThreads / kWarp);
  // Positive numbers: their bits are in their order.
  const unsigned residual = __reduce_max_sync(kFullWarp, __float_as_uint(fmaxf(tests[0].residual, tests[1].residual)));
  const unsigned norm = __reduce_max_sync(kFullWarp, __float_as_uint(fmaxf(tests[0].norm, tests[1].norm)));
  const unsigned unit = __reduce_max_sync(kFullWarp, __float_as_uint(fmaxf(tests[0].unit, tests[1].unit)));
  if (threadIdx.x % kWarp == 0) {
    shared.largest[0][warp] = __uint_as_float(residual);
    shared.largest[1][warp] = __uint_as_float(norm);
    shared.largest[2][warp] = __uint_as_float(unit);
  }
  meet_group();
  float largest[3] = {0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int w = 0; w < kGroupThreads / kWarp; w++)
#pragma unroll
    for (int i = 0; i < 3; i++) largest[i] = fmaxf(largest[i], shared.largest[i][first_warp + w]);
  bool is_tame = true;
  for (int column = threadIdx.x % kGroupThreads; column < N; column += kGroupThreads) {
    const filter_weights weights = shared.weights[column];
    asked_pair& pair = shared.asked[group][column / 2];
    const float asked = asked_of(weights, largest[0], largest[1]);
    pair.asked[column % 2] = asked;
    pair.square_weight[column % 2] = weights.square;
    is_tame = is_tame && __fmul_rn(asked, largest[2]) > kTameValue;
  }
  return meet_group_and(is_tame);
}

/// Element i of a thread's sums: its row of the pair, and its column.
__device__ __forceinline__ int row_of_sum(int i) { return i / 2 % 2; }
__device__ __forceinline__ int column_of_sum(int i, int lane) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

/// Appends a row to a query's candidates if its upper end reaches the target.
template <int N>
__device__ __forceinline__ void append_row(const filter_args& args, filter_shared<N>& shared, int first_query,
                                           int column, std::uint32_t position, const known_row& known,
                                           std::int32_t product) {
  const int query = first_query + column;
  if (query >= args.batch.count || position >= args.rows) return;
  const float high =
      core::interval_of(args.by, args.batch.terms[query], known.row(), known.inverse_norm(), product).high;
  if (high < args.batch.targets[query]) return;
  const std::uint32_t key = core::ascending_key(high == high ? high : __uint_as_float(0x7F800000u));
  const std::uint32_t place = atomicAdd(&shared.counts[column], 1u);
  const candidate_segments& to = args.candidates;
  const std::int64_t segment = static_cast<std::int64_t>(query) * to.segments + blockIdx.x / args.column_tiles;
  if (place < static_cast<std::uint32_t>(to.capacity))
    to.keys[segment * to.capacity + place] = core::row_key(key, position);
  else
    shared.weights[column] = weights_of_none();  // too many: the query will be searched in full
}

/// Holds the groups of a warp's list to their own rows' terms, and appends the hits among them; a lane each.
template <int N>
__device__ __forceinline__ void append_listed(const filter_args& args, filter_shared<N>& shared, int first_query,
                                              std::uint32_t block, int kept, int listed) {
  constexpr int kGroupsOfThread = N / 2 / kGroupSums;
  const int lane = threadIdx.x % kWarp;
  const hit_list& list = shared.hits[threadIdx.x / kWarp];
  const known_row* rows = shared.rows[kept][threadIdx.x / kWarp];
  __syncwarp();
#pragma unroll 1
  for (int entry = lane; entry < listed; entry += kWarp) {
    const int owner = list.groups[entry] / kGroupsOfThread;
    const int first_sum = list.groups[entry] % kGroupsOfThread * kGroupSums;
    const row_test tests[2] = {test_of(rows[owner / 4], args.by), test_of(rows[owner / 4 + 8], args.by)};
    const auto* sums = reinterpret_cast<const std::int32_t*>(list.sums[entry]);
    unsigned hits = 0;
#pragma unroll
    for (int i = 0; i < kGroupSums; i++) {
      const row_test& test = tests[row_of_sum(i)];
      const filter_weights weights = shared.weights[column_of_sum(first_sum + i, owner)];
      const float least = least_value(asked_of(weights, test.residual, test.norm), weights.square, test);
      if (!(__int_as_float(kOriginBits - sums[i]) < least)) hits |= 1u << i;
    }
#pragma unroll 1
    for (; hits != 0; hits &= hits - 1) {
      const int i = __ffs(static_cast<int>(hits)) - 1;
      const int at = owner / 4 + 8 * row_of_sum(i);
      append_row(args, shared, first_query, column_of_sum(first_sum + i, owner), block * core::kPlaneRows + at,
                 rows[at], -sums[i]);
    }
  }
  __syncwarp();
}

/// Which groups of a thread's sums have a hit, as bits. The short form takes no squares, and nothing out of range.
template <int N, bool Short>
__device__ __forceinline__ unsigned groups_with_hit(const asked_pair* asked, const row_test (&tests)[2],
                                                    const std::int32_t (&sums)[N / 2]) {
  unsigned found = 0;
#pragma unroll
  for (int group = 0; group < N / 2 / kGroupSums; group++) {
    const asked_pair pairs[2] = {asked[8 * group], asked[8 * group + 4]};
    std::int32_t least = INT32_MAX;
#pragma unroll
    for (int i = 0; i < kGroupSums; i++) {
      const asked_pair& pair = pairs[i / 4];
      const row_test& row = tests[row_of_sum(i)];
      float value = __fmaf_rn(pair.asked[i % 2], row.unit, kPaddedOrigin);
      if (!Short) value = fmaxf(least_value(pair.asked[i % 2], pair.square_weight[i % 2], row), 0.0f);  // NaN: 0
      least = __viaddmin_s32(__float_as_int(value), sums[group * kGroupSums + i], least);
    }
    found |= least <= kOriginBits ? 1u << group : 0u;
  }
  return found;
}

/// Stores a group of sums in a list.
template <int N>
__device__ __forceinline__ void list_group(hit_list& list, int place, int lane, int group,
                                           const std::int32_t (&sums)[N / 2]) {
  const std::int32_t* mine = sums + group * kGroupSums;
  list.sums[place][0] = make_int4(mine[0], mine[1], mine[2], mine[3]);
  list.sums[place][1] = make_int4(mine[4], mine[5], mine[6], mine[7]);
  list.groups[place] = static_cast<std::uint16_t>(lane * (N / 2 / kGroupSums) + group);
}

/// Tests a tile's sums: lists the groups with a hit. @returns how many; if they do not fit they are appended at once.
template <int N>
__device__ __forceinline__ int list_hits(const filter_args& args, filter_shared<N>& shared, const row_test (&tests)[2],
                                         const std::int32_t (&sums)[N / 2], bool is_tame, int first_query,
                                         std::uint32_t block, int kept) {
  constexpr int kGroupsOfThread = N / 2 / kGroupSums;
  const int lane = threadIdx.x % kWarp;
  hit_list& list = shared.hits[threadIdx.x / kWarp];
  const asked_pair* asked = shared.asked[threadIdx.x / kGroupThreads] + lane % 4;
  const unsigned found = is_tame && args.by != metric::l2 ? groups_with_hit<N, true>(asked, tests, sums)
                                                          : groups_with_hit<N, false>(asked, tests, sums);
  if (!__any_sync(kFullWarp, found != 0)) return 0;
  int before = __popc(found);
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int other = __shfl_up_sync(kFullWarp, before, offset);
    if (lane >= offset) before += other;
  }
  const int all = __shfl_sync(kFullWarp, before, kWarp - 1);
  if (all <= kListGroups) {
    int place = before - __popc(found);
#pragma unroll
    for (int group = 0; group < kGroupsOfThread; group++)
      if (found >> group & 1u) list_group<N>(list, place++, lane, group, sums);
    return all;
  }
  constexpr int kLanesAtOnce = kListGroups / kGroupsOfThread;
#pragma unroll 1
  for (int first = 0; first < kWarp; first += kLanesAtOnce) {
    const bool now = lane >= first && lane < first + kLanesAtOnce;
    const unsigned mine = now ? found : 0;
    const int listed_before = __shfl_sync(kFullWarp, before - __popc(found), first % kWarp);
    int place = before - __popc(found) - listed_before;
#pragma unroll
    for (int group = 0; group < kGroupsOfThread; group++)
      if (mine >> group & 1u) list_group<N>(list, place++, lane, group, sums);
    const int listed_after = __shfl_sync(kFullWarp, before, min(first + kLanesAtOnce, kWarp) - 1);
    append_listed(args, shared, first_query, block, kept, listed_after - listed_before);
  }
  return 0;
}

/// A row's merit, or nearly, as a key whose last bits tell the row: which of `merged` tiles, and which of its 16.
constexpr std::uint32_t kRowBits = 6;
static_assert(kMaxMerged * core::kPlaneRows == 1u << kRowBits);

/// The best of a block's 16 rows, for each column; lane l gets columns best_column(l, 0), ...
template <int N>
inline constexpr int kBestColumns = N >= 32 ? N / 32 : 1;

template <int N>
__device__ __forceinline__ int best_column(int lane, int i) {
  int index = i;
  int count = N / 4;
#pragma unroll
  for (int offset = kWarp / 2; offset >= 4; offset /= 2) {
    if (count > 1) {
      count /= 2;
      index += lane & offset ? count : 0;
    }
  }
  return index / 2 * 8 + lane % 4 * 2 + index % 2;
}

template <int N, int Count, int Offset>
__device__ __forceinline__ void best_across_lanes(std::uint32_t (&keys)[N / 4], int lane) {
  if constexpr (Offset >= 4) {
    if constexpr (Count > 1) {
      const bool upper = lane & Offset;
#pragma unroll
      for (int i = 0; i < Count / 2; i++) {
        const std::uint32_t keep = upper ? keys[i + Count / 2] : keys[i];
        const std::uint32_t give = upper ? keys[i] : keys[i + Count / 2];
        keys[i] = max(keep, __shfl_xor_sync(kFullWarp, give, Offset));
      }
      best_across_lanes<N, Count / 2, Offset / 2>(keys, lane);
    } else {
      keys[0] = max(keys[0], __shfl_xor_sync(kFullWarp, keys[0], Offset));
      best_across_lanes<N, 1, Offset / 2>(keys, lane);
    }
  }
}

template <int N>
__device__ __forceinline__ void raise_best(const filter_args& args, const filter_shared<N>& shared,
                                           const row_pair& pair, const std::int32_t (&sums)[N / 2],
                                           std::uint32_t merged, std::uint32_t (&best)[kBestColumns<N>]) {
  const int lane = threadIdx.x % kWarp;
  std::uint32_t keys[N / 4];
  float scales[2];
  float squares[2];
  std::uint32_t rows[2];
  bool known[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    known[r] = pair.first + 8 * r < args.rows && pair.rows[r].residual < __uint_as_float(0x7F800000u) &&
               !(args.by == metric::cosine && pair.rows[r].fourth < 0.0f);
    squares[r] = args.by == metric::l2 ? pair.rows[r].fourth : 0.0f;
    scales[r] = args.by == metric::cosine ? __fmul_rn(pair.rows[r].scale, pair.rows[r].fourth) : pair.rows[r].scale;
    rows[r] = merged * core::kPlaneRows + lane / 4 + 8 * r;
  }
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const float square_weight = shared.weights[column_of_sum(i + c, lane)].square;
      std::uint32_t key = 0;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float product =
            __fmul_rn(__fsub_rn(__int_as_float(kOriginBits - sums[i + 2 * r + c]), kOrigin), scales[r]);
        const float merit = __fmaf_rn(-square_weight, squares[r], product);
        const std::uint32_t mine = (core::ascending_key(merit) & ~((1u << kRowBits) - 1u)) | rows[r];
        key = known[r] ? max(key, mine) : key;
      }
      keys[i / 2 + c] = key;
    }
  }
  best_across_lanes<N, N / 4, kWarp / 2>(keys, lane);
#pragma unroll
  for (int i = 0; i < kBestColumns<N>; i++) best[i] = max(best[i], keys[i]);
}

template <int N, bool Sample>
__global__ void __launch_bounds__(kThreads, kBlocksHeld<N>) filter_kernel(const __grid_constant__ filter_args args) {
  unsigned char* columns = dynamic_shared();
  columns += (kColumnsAligned - shared_address(columns) % kColumnsAligned) % kColumnsAligned;
  const std::int32_t column_bytes = args.chunks * N * kColumnChunk;
  auto& shared = *reinterpret_cast<filter_shared<N>*>(columns + column_bytes);
  const int column_tile = static_cast<int>(blockIdx.x) % args.column_tiles;
  const int first_query = column_tile * N;
  const std::uint32_t workers = gridDim.x / args.column_tiles * kGroups;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x % kGroupThreads / kWarp;
  std::uint32_t i = blockIdx.x / args.column_tiles * kGroups + threadIdx.x / kGroupThreads;

  if (threadIdx.x == 0) {
    barrier_init(&shared.barrier, 1);
    barrier_init_fence();
    barrier_expect(&shared.barrier, column_bytes);
    bulk_copy(columns, args.batch.columns + static_cast<std::int64_t>(column_tile) * column_bytes, column_bytes,
              &shared.barrier);
  }
  for (int c = threadIdx.x; c < N; c += kThreads) {
    shared.weights[c] = args.batch.weights[first_query + c];
    shared.counts[c] = 0;
  }

  const std::uint32_t blocks = (args.rows + core::kPlaneRows - 1) / core::kPlaneRows;
  const auto codes_of = [&](std::uint32_t tile) {
    const std::uint32_t block = min(tile * (kFilterRows / core::kPlaneRows) + warp, blocks - 1);
    return reinterpret_cast<const uint4*>(args.plane + block * args.block_bytes) + lane;
  };
  constexpr int kHeld = kChunksHeld<N, Sample>;
  uint4 codes[kHeld][kSteps];
  const uint4* from = codes_of(i < args.tiles ? tile_at(i, args.choice) : 0);
#pragma unroll
  for (int c = 0; c + 1 < kHeld; c++) load_chunk(codes[c], from, c, args.steps);
  __syncthreads();
  barrier_wait(&shared.barrier, 0);
  const std::uint64_t described = describe_columns(shared_address(columns));

  row_pair pair = load_rows(args, i < args.tiles ? tile_at(i, args.choice) : 0, blocks);
  std::uint32_t best[kBestColumns<N>] = {};
  std::uint32_t visits = 0;
  std::uint32_t listed_block = 0;
  int kept = 0;
  int listed = 0;
  for (; Sample ? visits * workers < args.tiles : i < args.tiles; i += workers) {
    const row_test tests[2] = {test_of(pair.rows[0], args.by), test_of(pair.rows[1], args.by)};
    bool is_tame = true;
    if constexpr (!Sample) {
      kept = (kept + 1) % kTilesKept;
      if (lane % 4 == 0) {
        known_row* rows = shared.rows[kept][threadIdx.x / kWarp];
        rows[lane / 4] = pair.rows[0];
        rows[lane / 4 + 8] = pair.rows[1];
      }
      is_tame = ask(shared, tests);
    }
    std::int32_t sums[N / 2];
    for (int first = 0; first < args.chunks; first += kHeld) {
#pragma unroll
      for (int c = 0; c < kHeld; c++) {
        if (first + c < args.chunks) {
          const std::uint64_t chunk = described + static_cast<std::uint64_t>(first + c) * (N * kColumnChunk / 16);
          products_fence();
#pragma unroll
          for (int s = 0; s < kSteps; s++)
            multiply_add(sums, codes[c][s], chunk + s * (kBytesDeep / 16), first + c + s > 0);
          products_commit();
          products_wait<1>();
          if (first + c + kHeld - 1 < args.chunks)
            load_chunk(codes[(c + kHeld - 1) % kHeld], from, first + c + kHeld - 1, args.steps);
          if (!Sample && first + c == kBusyChunk) {
            append_listed(args, shared, first_query, listed_block, (kept + 1) % kTilesKept, listed);
            listed = 0;
          }
        }
      }
    }
    products_wait<0>();
    const std::uint32_t next = min(i + workers, args.tiles - 1);
    from = codes_of(tile_at(next, args.choice));
#pragma unroll
    for (int c = 0; c + 1 < kHeld; c++) load_chunk(codes[c], from, c, args.steps);
    const row_pair now = pair;
    pair = load_rows(args, tile_at(next, args.choice), blocks);
    if (next + workers < args.tiles && lane == 0)
      prefetch_bytes(codes_of(tile_at(next + workers, args.choice)), static_cast<std::uint32_t>(args.block_bytes));
    if constexpr (Sample) {
      if (i < args.tiles) raise_best<N>(args, shared, now, sums, visits % args.merged, best);
      visits++;
      if (visits % args.merged == 0 || visits * workers >= args.tiles) {
        const std::int64_t group =
            ((visits - 1) / args.merged * workers + i % workers) * (kGroupThreads / kWarp) + warp;
#pragma unroll
        for (int c = 0; c < kBestColumns<N>; c++) {
          const int query = first_query + best_column<N>(lane, c);
          if (query < args.batch.count) args.maxima[query * args.maxima_stride + group] = best[c];
          best[c] = 0;
        }
      }
    } else {
      if (args.chunks <= kBusyChunk)
        append_listed(args, shared, first_query, listed_block, (kept + 1) % kTilesKept, listed);
      listed_block = now.first / core::kPlaneRows;
      listed = list_hits<N>(args, shared, tests, sums, is_tame, first_query, listed_block, kept);
    }
  }
  if constexpr (!Sample) {
    append_listed(args, shared, first_query, listed_block, kept, listed);
    __syncthreads();
    const std::uint32_t segment = blockIdx.x / args.column_tiles;
    for (int c = threadIdx.x; c < N && first_query + c < args.batch.count; c += kThreads)
      args.candidates.counts[static_cast<std::int64_t>(first_query + c) * args.candidates.segments + segment] =
          shared.counts[c];
  }
}

filter_args args_of(const core::flat_corpus& corpus, const filter_batch& batch, tile_choice choice) {
  const core::fragment_layout layout(corpus.dim, corpus.metric);
  filter_args args{};
  args.plane = reinterpret_cast<const unsigned char*>(corpus.plane);
  args.batch = batch;
  args.block_bytes = layout.block_bytes();
  args.codes_bytes = layout.codes_bytes();
  args.rows = static_cast<std::uint32_t>(corpus.count);
  args.tiles = static_cast<std::uint32_t>(tiles_visited(corpus.count, choice));
  args.choice = choice;
  args.steps = static_cast<std::int32_t>(layout.groups);
  args.chunks = static_cast<std::int32_t>((corpus.dim + kColumnChunk - 1) / kColumnChunk);
  args.column_tiles = (batch.count + batch.tile - 1) / batch.tile;
  args.by = corpus.metric;
  return args;
}

/// Warpgroups that share a column tile's rows.
template <int N, bool Sample>
std::uint32_t workers_of(const filter_args& args, int multiprocessors) {
  const int blocks = blocks_per_multiprocessor(filter_kernel<N, Sample>, kThreads, shared_bytes<N>(args.chunks),
                                               "preparing the filter");
  const std::uint32_t wanted = (args.tiles + kGroups - 1) / kGroups;
  return std::min<std::uint32_t>(wanted, std::max(1, blocks * multiprocessors / args.column_tiles)) * kGroups;
}

template <int N, bool Sample>
void launch_tile(cudaStream_t stream, const filter_args& args, int multiprocessors, const char* what) {
  launch(filter_kernel<N, Sample>,
         {.grid = dim3(workers_of<N, Sample>(args, multiprocessors) / kGroups * args.column_tiles),
          .threads = kThreads,
          .shared_bytes = shared_bytes<N>(args.chunks)},
         stream, args, what);
}

/// Calls f with the number of columns of a tile as a constant.
template <class F>
auto with_tile(int tile, F&& f) {
  switch (tile) {
    case 16: return f(std::integral_constant<int, 16>{});
    case 64: return f(std::integral_constant<int, 64>{});
    case 128: return f(std::integral_constant<int, 128>{});
    default: return f(std::integral_constant<int, 256>{});
  }
}

}  // namespace

int widest_column_tile(std::int64_t dim) {
  const std::int64_t chunks = (dim + kColumnChunk - 1) / kColumnChunk;
  if (shared_bytes<256>(chunks) <= kMaxShared) return 256;
  if (shared_bytes<128>(chunks) <= kMaxShared) return 128;
  if (shared_bytes<64>(chunks) <= kMaxShared) return 64;
  return shared_bytes<16>(chunks) <= kMaxShared ? 16 : 0;
}

std::int64_t tiles_visited(std::int64_t rows, tile_choice choice) {
  const std::int64_t tiles = (rows + kFilterRows - 1) / kFilterRows;
  return (tiles + choice.every - 1) / choice.every;
}

sample_plan plan_filter_sample(const core::flat_corpus& corpus, const filter_batch& batch, tile_choice choice,
                               std::int64_t max_groups, int multiprocessors) {
  const filter_args args = args_of(corpus, batch, choice);
  const std::uint32_t workers =
      with_tile(batch.tile, [&](auto n) { return workers_of<decltype(n)::value, true>(args, multiprocessors); });
  const std::uint32_t visits = (args.tiles + workers - 1) / workers;
  constexpr std::uint32_t kWarpsOfGroup = kGroupThreads / kWarp;
  sample_plan plan{choice, workers, 1, 0};
  if (visits * workers * kWarpsOfGroup > max_groups) plan.merged = kMaxMerged;
  plan.groups = (visits + plan.merged - 1) / plan.merged * workers * kWarpsOfGroup;
  return plan;
}

std::int32_t count_segments(const core::flat_corpus& corpus, const filter_batch& batch, int multiprocessors) {
  const filter_args args = args_of(corpus, batch, {});
  return with_tile(batch.tile, [&](auto n) {
    return static_cast<std::int32_t>(workers_of<decltype(n)::value, false>(args, multiprocessors) / kGroups);
  });
}

void launch_filter_sample(cudaStream_t stream, const core::flat_corpus& corpus, const filter_batch& batch,
                          const sample_plan& plan, std::uint32_t* maxima, int multiprocessors) {
  filter_args args = args_of(corpus, batch, plan.choice);
  args.maxima = maxima;
  args.maxima_stride = plan.groups;
  args.merged = static_cast<std::int32_t>(plan.merged);
  with_tile(batch.tile, [&](auto n) {
    launch_tile<decltype(n)::value, true>(stream, args, multiprocessors, "launching the filter's sample");
  });
}

void launch_filter(cudaStream_t stream, const core::flat_corpus& corpus, const filter_batch& batch,
                   const candidate_segments& candidates, int multiprocessors) {
  filter_args args = args_of(corpus, batch, {});
  args.candidates = candidates;
  with_tile(batch.tile, [&](auto n) {
    launch_tile<decltype(n)::value, false>(stream, args, multiprocessors, "launching the filter");
  });
}

}  // namespace shortlist::cuda
