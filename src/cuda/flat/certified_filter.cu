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
// A block ends when all of its queries have more candidates than their segments hold: they are searched in full.
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
#include "cuda/flat/certified_filter_hits.cuh"
#include "cuda/flat/certified_filter_parts.cuh"
#include "cuda/flat/certified_filter_sample.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

using namespace certifying;

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
    shared.open = 0;
    barrier_init(&shared.barrier, 1);
    barrier_init_fence();
    barrier_expect(&shared.barrier, column_bytes);
    bulk_copy(columns, args.batch.columns + static_cast<std::int64_t>(column_tile) * column_bytes, column_bytes,
              &shared.barrier);
  }
  __syncthreads();
  for (int c = threadIdx.x; c < N; c += kThreads) {
    const filter_weights weights = args.batch.weights[first_query + c];
    shared.weights[c] = weights;
    shared.counts[c] = 0;
    if (wants_rows(weights)) atomicAdd(&shared.open, 1);
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
      const tile_outlook outlook = ask(shared, tests);
      if (outlook.is_over) {
        listed = 0;
        break;
      }
      is_tame = outlook.is_tame;
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

/// How many row tiles a choice visits of a corpus.
std::int64_t tiles_visited(std::int64_t rows, tile_choice choice) {
  const std::int64_t tiles = (rows + kFilterRows - 1) / kFilterRows;
  return (tiles + choice.every - 1) / choice.every;
}

filter_args args_of(const core::flat_corpus& corpus, const filter_batch& batch, tile_choice choice) {
  const core::fragment_layout layout(corpus.dim, corpus.metric, corpus.storage);
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
  if (shared_bytes<256>(chunks) <= kMaxSharedBytes) return 256;
  if (shared_bytes<128>(chunks) <= kMaxSharedBytes) return 128;
  if (shared_bytes<64>(chunks) <= kMaxSharedBytes) return 64;
  return shared_bytes<16>(chunks) <= kMaxSharedBytes ? 16 : 0;
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
