// The parts of a certified filter: what rows bring to the test of a product, what queries ask of a tile of rows, and
// what a block keeps in shared memory. See certified_filter.cu.
#pragma once

#include <cstdint>

#include "core/certified.hpp"
#include "core/order.hpp"
#include "cuda/device/score.cuh"
#include "cuda/flat/certified_filter.hpp"

namespace shortlist::cuda::certifying {

constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kGroups = 2;
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kSteps = 4;               // products of a chunk: 128 elements
constexpr int kGroupSums = 8;           // sums of a thread that are tested together
constexpr int kBusyChunk = 1;           // while this chunk is multiplied, the hits of the tile before are appended
constexpr int kListGroups = 64;         // such groups in a warp's list
constexpr float kOrigin = 12582912.0f;  // 1.5 x 2^23
constexpr std::int32_t kOriginBits = 0x4B400000;  // its bits
constexpr float kTameValue = -kOrigin / 2;        // what is asked, above it, keeps sums with the origin positive
constexpr float kPaddedOrigin = kOrigin - 4.0f;   // pays for roundings; see docs/certified.md
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
constexpr int kChunksHeld = Sample&& N == 256 ? 2 : 3;

/// Blocks of a multiprocessor: few queries take little of it, and need many loads in flight.
template <int N>
constexpr int kBlocksHeld = N <= 64 ? 2 : 1;

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
  std::int32_t open;         // columns whose rows are still wanted
  bool ends[kGroups];        // there was none when the group last asked
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

/// What a warpgroup agrees on before a tile.
struct tile_outlook {
  bool is_tame;  // all that is asked stays within what the short test takes
  bool is_over;  // no query wants rows any more
};

/// Settles what the queries ask of a tile's rows.
template <int N>
__device__ __forceinline__ tile_outlook ask(filter_shared<N>& shared, const row_test (&tests)[2]) {
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
  if (threadIdx.x % kGroupThreads == 0) shared.ends[group] = *const_cast<volatile std::int32_t*>(&shared.open) == 0;
  meet_group();
  const bool is_over = shared.ends[group];
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
  return {meet_group_and(is_tame), is_over};
}

/// Element i of a thread's sums: its row of the pair, and its column.
__device__ __forceinline__ int row_of_sum(int i) { return i / 2 % 2; }
__device__ __forceinline__ int column_of_sum(int i, int lane) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

}  // namespace shortlist::cuda::certifying
