// The filter of a batch: every row's codes against every query's, on the matrix units, and the few rows that may be
// among a query's best appended to its list.
//
// Why it is fast: a tile of queries stays in shared memory; rows go from memory to registers in the order in which
// matrix units take them, 16 bytes a lane, several loads in flight, with no barrier and no shared memory between. The
// test of a product costs four fused multiply-adds and a comparison and needs no conversion: sums start at 1.5 x 2^23,
// so that their bits, read as fp32, are at least 1.5 x 2^23 + sum. Two warpgroups take turns: one tests while the other
// multiplies.
// Steps of a warpgroup: a tile of 64 rows: multiply along dim -> fetch the next tile's first codes -> test 64 x N sums
// -> hits to slots of shared memory -> their keys to the lists. Limit: the plane's bytes over read bandwidth for few
// queries, products over the matrix units' rate for many.
#include <algorithm>

#include "core/order.hpp"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/matrix_bytes.cuh"
#include "cuda/device/score.cuh"
#include "cuda/flat/certified_filter.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kGroupThreads = 128;  // of a warpgroup
constexpr int kGroups = 2;
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kSteps = 4;              // products of a chunk: 128 elements
constexpr int kSlots = 8;              // hits of a thread in a tile that take the short way
constexpr int kSlotRoom = kSlots + 4;  // a thread looks after every four
constexpr std::int64_t kMaxShared = 227 * 1024;
constexpr float kOrigin = 12582912.0f;            // 1.5 x 2^23
constexpr std::int32_t kOriginBits = 0x4B400000;  // its bits
constexpr float kPaddedOrigin = kOrigin - 4.0f;   // pays for four roundings; see docs/certified.md
constexpr float kLeastScale = 0x1p-50f;           // rows of smaller scales are kept without a test

struct filter_args {
  const unsigned char* plane;
  filter_batch batch;
  candidate_lists lists;
  std::uint32_t* maxima;
  std::int64_t maxima_stride;
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

__host__ __device__ constexpr std::uint32_t tile_at(std::uint32_t i, tile_choice choice) {
  return choice.others ? i + i / (choice.every - 1) + 1 : i * choice.every;
}

/// What a row brings to the test, in units of the integer product.
struct row_test {
  float target;    // 1 / s, or 1 / (s ix)
  float residual;  // e / s
  float norm;      // n / s
  float square;    // w / s under squared L2
};

__device__ __forceinline__ row_test test_of(const core::plane_row& row, float inverse_norm, metric by) {
  constexpr float kHuge = std::numeric_limits<float>::max();        // times a weight of e: beyond every sum
  const float scale = row.scale == 0.0f ? kLeastScale : row.scale;  // codes are 0: any scale says the same
  if (scale < kLeastScale || !(row.residual <= kHuge)) return {0.0f, kHuge, 1.0f, 0.0f};  // passes
  const float inverse = __frcp_rn(scale);
  row_test test{inverse, __fmul_rn(row.residual, inverse), __fmul_rn(row.norm, inverse), 0.0f};
  if (by == metric::l2) test.square = __fmul_rn(row.square, inverse);
  if (by == metric::cosine) {
    if (inverse_norm < 0.0f)
      test.residual = -kHuge;  // the score is -inf: dropped, unless no target is known
    else
      test.target = __fdiv_rn(inverse, inverse_norm);
  }
  return test;
}

/// The least value of a sum's bits, read as fp32, that a row's upper end may reach the target with.
__device__ __forceinline__ float least_value(const filter_weights& query, const row_test& row) {
  float value = __fmaf_rn(query.norm, row.norm, kPaddedOrigin);
  value = __fmaf_rn(query.square, row.square, value);
  value = __fmaf_rn(query.residual, row.residual, value);
  return __fmaf_rn(query.target, row.target, value);
}

/// A thread's two rows of a tile.
struct row_pair {
  core::plane_row rows[2];
  float inverse_norms[2];
  std::uint32_t first;  // position of the first; the second is eight further
};

__device__ __forceinline__ row_pair load_rows(const filter_args& args, std::uint32_t tile, std::uint32_t blocks) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x % kGroupThreads / kWarp;
  const std::uint32_t block = tile * (kFilterRows / core::kPlaneRows) + warp;
  const auto* terms =
      reinterpret_cast<const float*>(args.plane + min(block, blocks - 1) * args.block_bytes + args.codes_bytes);
  row_pair pair;
  pair.first = block * core::kPlaneRows + lane / 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = lane / 4 + 8 * i;
    pair.rows[i] = {terms[at], terms[core::kPlaneRows + at], terms[2 * core::kPlaneRows + at], 0.0f};
    pair.inverse_norms[i] = 0.0f;
    if (args.by == metric::l2) pair.rows[i].square = terms[3 * core::kPlaneRows + at];
    if (args.by == metric::cosine) pair.inverse_norms[i] = terms[3 * core::kPlaneRows + at];
  }
  return pair;
}

/// How many chunks of codes a lane has in registers, the one at work included.
template <int N>
inline constexpr int kChunksHeld = N == 256 ? 3 : 4;

template <int N>
struct filter_shared {
  filter_weights weights[N];
  std::int32_t slots[kSlotRoom][kThreads];
  std::uint64_t barrier;
};

template <int N>
__host__ __device__ constexpr std::int64_t shared_bytes(std::int64_t chunks) {
  return kColumnsAligned + chunks * N * kColumnChunk + static_cast<std::int64_t>(sizeof(filter_shared<N>));
}

__device__ __forceinline__ void load_chunk(uint4 (&codes)[kSteps], const uint4* from, int chunk, int steps) {
#pragma unroll
  for (int s = 0; s < kSteps; s++)  // past the end, any codes will do: the columns are 0 there
    codes[s] = __ldcs(from + min(chunk * kSteps + s, steps - 1) * kWarp);
}

/// The upper end of a pair's interval as a list's key.
__device__ __forceinline__ std::uint32_t high_key(const filter_args& args, int query, const core::plane_row& row,
                                                  float inverse_norm, std::int32_t product) {
  const float high = core::interval_of(args.by, args.batch.terms[query], row, inverse_norm, product).high;
  return high == high ? core::ascending_key(high) : core::ascending_key(__uint_as_float(0x7F800000u));
}

__device__ __forceinline__ void append_hit(const filter_args& args, filter_weights* weights, int column, int query,
                                           const core::plane_row& row, float inverse_norm, std::uint32_t position,
                                           std::int32_t product) {
  if (query >= args.batch.count || position >= args.rows) return;
  const std::uint32_t key = high_key(args, query, row, inverse_norm, product);
  const std::uint32_t place = atomicAdd(args.lists.counts + query, 1u);
  if (place < args.lists.capacity)
    args.lists.keys[query * args.lists.capacity + place] = core::row_key(key, position);
  else
    weights[column] = weights_of_none();  // too many: the query will be searched in full
}

/// Element i of a thread's sums: its row of the pair, and its column.
__device__ __forceinline__ int row_of_sum(int i) { return i / 2 % 2; }
__device__ __forceinline__ int column_of_sum(int i, int lane) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

/// Tests a tile's sums and appends the hits.
template <int N>
__device__ __forceinline__ void append_hits(const filter_args& args, filter_shared<N>& shared, const row_pair& pair,
                                            const std::int32_t (&sums)[N / 2], int first_query) {
  const int lane = threadIdx.x % kWarp;
  const row_test tests[2] = {test_of(pair.rows[0], pair.inverse_norms[0], args.by),
                             test_of(pair.rows[1], pair.inverse_norms[1], args.by)};
  constexpr int kWords = (N / 2 + 31) / 32;
  std::uint32_t hits[kWords] = {};
  std::int32_t* slot = &shared.slots[0][threadIdx.x];
  std::int32_t* const last_slot = &shared.slots[kSlots][threadIdx.x];
  filter_weights ahead[2] = {shared.weights[column_of_sum(0, lane)], shared.weights[column_of_sum(1, lane)]};
#pragma unroll
  for (int i = 0; i < N / 2; i += 4) {
    const filter_weights weights[2] = {ahead[0], ahead[1]};
#pragma unroll
    for (int c = 0; c < 2; c++)  // the stores below would hold up loads that come after them
      if (i + 4 < N / 2) ahead[c] = shared.weights[column_of_sum(i + 4 + c, lane)];
#pragma unroll
    for (int c = 0; c < 2; c++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int at = i + 2 * r + c;
        if (!(__int_as_float(sums[at]) < least_value(weights[c], tests[r]))) {
          *slot = sums[at];
          slot += kThreads;
          hits[at / 32] |= 1u << at % 32;
        }
      }
    }
    slot = slot < last_slot ? slot : last_slot;
  }
  int found = 0;
#pragma unroll
  for (int w = 0; w < kWords; w++) found += __popc(hits[w]);
  if (!__any_sync(kFullWarp, found > 0)) return;

  if (__any_sync(kFullWarp, found > kSlots)) {  // rare: sums by number, from local memory
    std::int32_t copy[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) copy[i] = sums[i];
#pragma unroll 1
    for (int i = 0; i < N / 2; i++) {
      if (hits[0] >> i % 32 & 1u) {
        const int r = row_of_sum(i);
        const int column = column_of_sum(i, lane);
        append_hit(args, shared.weights, column, first_query + column, pair.rows[r], pair.inverse_norms[r],
                   pair.first + 8 * r, copy[i] - kOriginBits);
      }
      if (i % 32 == 31) {
#pragma unroll
        for (int w = 0; w + 1 < kWords; w++) hits[w] = hits[w + 1];
      }
    }
    return;
  }
  // The slots hold sums in the order of i within each group of four, columns first: the order of the test above.
  slot = &shared.slots[0][threadIdx.x];
#pragma unroll 1
  for (int w = 0; w < kWords; w++) {
#pragma unroll 1
    while (hits[0] != 0) {
      const int low = __ffs(static_cast<int>(hits[0])) - 1;
      const int group = low & ~3;
      const std::uint32_t four = hits[0] >> group & 15u;
      // Order of the test: 0, 2, 1, 3.
      const int in_group = four & 1u ? 0 : four & 4u ? 2 : four & 2u ? 1 : 3;
      const int i = group + in_group;
      hits[0] &= ~(1u << i);
      const int at = 32 * w + i;
      const int r = row_of_sum(at);
      const int column = column_of_sum(at, lane);
      append_hit(args, shared.weights, column, first_query + column, r ? pair.rows[1] : pair.rows[0],
                 pair.inverse_norms[r], pair.first + 8 * r, *slot - kOriginBits);
      slot += kThreads;
    }
#pragma unroll
    for (int v = 0; v + 1 < kWords; v++) hits[v] = hits[v + 1];
  }
}

/// The largest lower end of each block of 16 rows, for every column.
template <int N>
__device__ __forceinline__ void store_maxima(const filter_args& args, const row_pair& pair,
                                             const std::int32_t (&sums)[N / 2], int first_query, std::int64_t block) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int i = 0; i < N / 2; i += 4) {
    std::int32_t four[4];
#pragma unroll
    for (int j = 0; j < N / 2; j += 4)
      if (j == i) {
#pragma unroll
        for (int c = 0; c < 4; c++) four[c] = sums[j + c];
      }
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int query = first_query + column_of_sum(i + c, lane);
      std::uint32_t best = 0;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float low = core::interval_of(args.by, args.batch.terms[query], pair.rows[r], pair.inverse_norms[r],
                                            four[2 * r + c] - kOriginBits)
                              .low;
        if (low == low && pair.first + 8 * r < args.rows) best = max(best, core::ascending_key(low));
      }
#pragma unroll
      for (int offset = 4; offset < kWarp; offset *= 2) best = max(best, __shfl_xor_sync(kFullWarp, best, offset));
      if (lane < 4 && query < args.batch.count) args.maxima[query * args.maxima_stride + block] = best;
    }
  }
}

template <int N, bool Sample>
__global__ void __launch_bounds__(kThreads) filter_kernel(const __grid_constant__ filter_args args) {
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
  for (int c = threadIdx.x; c < N; c += kThreads) shared.weights[c] = args.batch.weights[first_query + c];

  const std::uint32_t blocks = (args.rows + core::kPlaneRows - 1) / core::kPlaneRows;
  const auto codes_of = [&](std::uint32_t tile) {
    const std::uint32_t block = min(tile * (kFilterRows / core::kPlaneRows) + warp, blocks - 1);
    return reinterpret_cast<const uint4*>(args.plane + block * args.block_bytes) + lane;
  };
  constexpr int kHeld = kChunksHeld<N>;
  uint4 codes[kHeld][kSteps];
  const uint4* from = codes_of(i < args.tiles ? tile_at(i, args.choice) : 0);
#pragma unroll
  for (int c = 0; c + 1 < kHeld; c++) load_chunk(codes[c], from, c, args.steps);
  __syncthreads();
  barrier_wait(&shared.barrier, 0);
  const std::uint64_t described = describe_columns(shared_address(columns));

  for (; i < args.tiles; i += workers) {
    const row_pair pair = load_rows(args, tile_at(i, args.choice), blocks);
    std::int32_t sums[N / 2];
#pragma unroll
    for (int s = 0; s < N / 2; s++) sums[s] = kOriginBits;
    for (int first = 0; first < args.chunks; first += kHeld) {
#pragma unroll
      for (int c = 0; c < kHeld; c++) {
        if (first + c < args.chunks) {
          const std::uint64_t chunk = described + static_cast<std::uint64_t>(first + c) * (N * kColumnChunk / 16);
          products_fence();
#pragma unroll
          for (int s = 0; s < kSteps; s++) multiply_add(sums, codes[c][s], chunk + s * (kBytesDeep / 16));
          products_commit();
          products_wait<1>();
          if (first + c + kHeld - 1 < args.chunks)
            load_chunk(codes[(c + kHeld - 1) % kHeld], from, first + c + kHeld - 1, args.steps);
        }
      }
    }
    products_wait<0>();
    const std::uint32_t next = i + workers;
    if (next < args.tiles) from = codes_of(tile_at(next, args.choice));
#pragma unroll
    for (int c = 0; c + 1 < kHeld; c++) load_chunk(codes[c], from, c, args.steps);
    if constexpr (Sample)
      store_maxima<N>(args, pair, sums, first_query,
                      static_cast<std::int64_t>(i) * (kFilterRows / core::kPlaneRows) + warp);
    else
      append_hits<N>(args, shared, pair, sums, first_query);
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

template <int N, bool Sample>
void launch_tile(cudaStream_t stream, const filter_args& args, int multiprocessors, const char* what) {
  const std::int64_t bytes = shared_bytes<N>(args.chunks);
  const int blocks = blocks_per_multiprocessor(filter_kernel<N, Sample>, kThreads, bytes, what);
  const std::int64_t wanted = (args.tiles + kGroups - 1) / kGroups;
  const std::int64_t workers = std::max(1, blocks * multiprocessors / args.column_tiles);
  launch(filter_kernel<N, Sample>,
         {.grid = dim3(static_cast<unsigned>(std::min(wanted, workers) * args.column_tiles)),
          .threads = kThreads,
          .shared_bytes = bytes},
         stream, args, what);
}

template <bool Sample>
void launch_any(cudaStream_t stream, const filter_args& args, int multiprocessors, const char* what) {
  switch (args.batch.tile) {
    case 16: return launch_tile<16, Sample>(stream, args, multiprocessors, what);
    case 64: return launch_tile<64, Sample>(stream, args, multiprocessors, what);
    case 128: return launch_tile<128, Sample>(stream, args, multiprocessors, what);
    default: return launch_tile<256, Sample>(stream, args, multiprocessors, what);
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
  const std::int64_t chosen = (tiles + choice.every - 1) / choice.every;
  return choice.others ? tiles - chosen : chosen;
}

void launch_filter_sample(cudaStream_t stream, const core::flat_corpus& corpus, const filter_batch& batch,
                          tile_choice choice, std::uint32_t* maxima, std::int64_t blocks, int multiprocessors) {
  filter_args args = args_of(corpus, batch, choice);
  args.maxima = maxima;
  args.maxima_stride = blocks;
  launch_any<true>(stream, args, multiprocessors, "launching the filter's sample");
}

void launch_filter(cudaStream_t stream, const core::flat_corpus& corpus, const filter_batch& batch, tile_choice choice,
                   const candidate_lists& lists, int multiprocessors) {
  filter_args args = args_of(corpus, batch, choice);
  if (args.tiles == 0) return;
  args.lists = lists;
  launch_any<false>(stream, args, multiprocessors, "launching the filter");
}

}  // namespace shortlist::cuda
