// Lists against all queries that look at them, on the matrix units: rows of any number of elements, and codes of any
// pieces. filter_scan.cu has the same for rows that registers hold, and is faster; wide_scan_hopper.cu the full scan
// for Hopper.
//
// An item is a list, or a part of a long one, with as many queries as shared memory holds. A warp takes a page of 32
// rows: it keeps the sums of those with all of the item's queries, and goes through the rows' halves 32 at a time, by
// chunks, which it makes of codes in registers: numbers by arithmetic, codewords by look-ups in a chunk's table. Those
// tables go through shared memory one after another, in a ring, for all warps of the block, which need each but once a
// page and so are as many as can be. Sums begin at the rows' terms, so that one comparison with the query's limit is
// left of a distance.
// Limit: instructions, some nine for each product of 16 rows and 8 queries. History: docs/kernels.md.
#include "cuda/ivf_pq/wide_scan.cuh"
#include "cuda/runtime/hopper.hpp"

namespace shortlist::cuda {
namespace {

constexpr int kQueries = 64;
constexpr int kSampleQueries = 32;
constexpr int kSmallQueries = 24;
constexpr std::int64_t kSharedBytes = 228 * 1024;  // of a multiprocessor
constexpr std::int64_t kReservedBytes = 1024;      // of a block

/// Products of warps on their own, two tiles of 16 rows by eight queries.
template <int Threads, int Blocks, int Queries>
struct warp_products {
  static constexpr int kThreads = Threads;
  static constexpr int kBlocks = Blocks;  // of a multiprocessor
  static constexpr int kQueries = Queries;
  static constexpr int kWarpsTogether = 1;
  static constexpr bool kStagesCodes = false;

  /// By eight queries: [chunks][32 lanes] of 16 bytes.
  class columns {
   public:
    __device__ columns(unsigned char* begin, const wide_args& args)
        : begin_(reinterpret_cast<uint4*>(begin)), queries_(args.queries), chunks_(args.chunks) {}

    __device__ std::int64_t bytes() const {
      return static_cast<std::int64_t>(queries_) * chunks_ * kChunk * static_cast<std::int64_t>(sizeof(__half));
    }
    /// A piece of 16 bytes of a query's column: here, those of a chunk that a lane has.
    __device__ __forceinline__ void put(std::uint32_t query, std::uint32_t piece, const uint4* column,
                                        bool is_real) const {
      constexpr std::uint32_t kLanes = kLanesOfRow;
      const auto* words = reinterpret_cast<const std::uint32_t*>(column + piece / kLanes * kLanes) + piece % kLanes;
      uint4 of_lane = make_uint4(0, 0, 0, 0);
      if (is_real)
        of_lane = make_uint4(__ldg(words), __ldg(words + kLanes), __ldg(words + 2 * kLanes), __ldg(words + 3 * kLanes));
      begin_[(query / kEight * chunks_ + piece / kLanes) * kWarp + query % kEight * kLanes + piece % kLanes] = of_lane;
    }
    __device__ void put_all() const {}

    template <int Sums>
    __device__ __forceinline__ void multiply(const chunk_rows& rows, std::int32_t chunk, int eights,
                                             float (&sums)[kPageTiles][Sums]) const {
      const uint4* from = begin_ + chunk * kWarp + threadIdx.x % kWarp;
      const int of_eight = chunks_ * kWarp;
#pragma unroll
      for (int p = 0; p < Sums / 4; p += 2) {  // two at once: their products overlap
        if (p >= eights) break;
        const uint4 two[2] = {from[p * of_eight], from[min(p + 1, eights - 1) * of_eight]};
#pragma unroll
        for (int step = 0; step < 2; step++) {
#pragma unroll
          for (int tile = 0; tile < kPageTiles; tile++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
              auto& four = reinterpret_cast<float(&)[4]>(sums[tile][4 * (p + i)]);
              multiply_halves(rows[tile][step], step == 0 ? two[i].x : two[i].z, step == 0 ? two[i].y : two[i].w, four,
                              four);
            }
          }
        }
      }
    }

   private:
    uint4* begin_;
    std::int32_t queries_;
    std::int32_t chunks_;
  };
};

/// Where warps share tables, as many as can be do.
template <bool LooksUp, bool Samples>
using products_for =
    std::conditional_t<Samples, warp_products<kSamplingWarps * kWarp, LooksUp ? 2 : 4, kSampleQueries>,
                       std::conditional_t<LooksUp, warp_products<512, 1, kQueries>, warp_products<256, 2, kQueries>>>;

template <wide_form Form, bool Samples>
__global__ void __launch_bounds__((products_for<looks_up(Form), Samples>::kThreads),
                                  (products_for<looks_up(Form), Samples>::kBlocks))
    wide_scan_kernel(const __grid_constant__ wide_args args) {
  join_chain();
  wide_scan<Form, products_for<looks_up(Form), Samples>, Samples>(args, dynamic_shared()).run();
}

std::int64_t bytes_of_query(std::int64_t halves) {
  return halves * static_cast<std::int64_t>(sizeof(__half)) + kWideFactsBytes;
}

/// Of an item, beside the ring, whose stages have so many bytes.
template <class Products>
std::int32_t queries_that_fit(std::int64_t halves, std::uint32_t stage_bytes) {
  const std::int64_t room = kSharedBytes / Products::kBlocks - kReservedBytes - kWideHeadBytes -
                            kWideStages * static_cast<std::int64_t>(stage_bytes);
  const std::int64_t fit = room / bytes_of_query(halves) / kEight * kEight;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(fit, kEight, Products::kQueries));
}

std::int32_t queries_that_fit(std::int64_t halves, std::uint32_t stage_bytes, bool sample) {
  if (stage_bytes > 0)
    return sample ? queries_that_fit<products_for<true, true>>(halves, stage_bytes)
                  : queries_that_fit<products_for<true, false>>(halves, stage_bytes);
  return sample ? queries_that_fit<products_for<false, true>>(halves, 0)
                : queries_that_fit<products_for<false, false>>(halves, 0);
}

template <bool Samples>
void launch_form(cudaStream_t stream, const wide_args& args, int multiprocessors) {
  with_wide_form(wide_form_of(args.batch), [&]<wide_form Form>() {
    using products = products_for<looks_up(Form), Samples>;
    launch(wide_scan_kernel<Form, Samples>,
           {.grid = dim3(static_cast<unsigned>(multiprocessors * products::kBlocks)),
            .threads = products::kThreads,
            .shared_bytes = kWideHeadBytes + args.queries * bytes_of_query(args.chunks * kChunk) +
                            (looks_up(Form) ? kWideStages * args.stage_bytes : 0),
            .overlaps = true},
           stream, args, "launching the scan of lists");
  });
}

bool has_hopper_scan(std::int64_t halves) { return halves <= kMaxHopperHalves && runs_hopper_code(); }

}  // namespace

wide_form wide_form_of(const filter_batch& batch) {
  const core::ivf_pq_shape& shape = batch.shape;
  if (batch.table == nullptr && !shape.uniform) return wide_form::halves;
  if (shape.uniform) return shape.bits == 4 ? wide_form::numbers4 : wide_form::numbers8;
  const std::int64_t halves = page_layout(shape).halves;
  return halves == 2 ? wide_form::pairs : halves == 4 ? wide_form::quads : wide_form::eights;
}

wide_args wide_args_of(const filter_batch& batch, std::int32_t queries) {
  const page_layout layout(batch.shape);
  const std::int64_t tile_bytes = wide_form_of(batch) == wide_form::halves
                                      ? kTileRows * layout.padded_halves() * static_cast<std::int64_t>(sizeof(__half))
                                      : layout.tile_bytes();
  return {.batch = batch,
          .chunks = static_cast<std::int32_t>(layout.padded_halves() / kChunk),
          .queries = queries,
          .row_words = static_cast<std::int32_t>(layout.row_words()),
          .plane_shift = layout.plane_shift(),
          .tile_words = static_cast<std::int32_t>(tile_bytes / 4),
          .code_bits = static_cast<std::int32_t>(layout.code_bits),
          .eights = static_cast<std::int32_t>(std::max<std::int64_t>(layout.halves / kChunkHalves, 1)),
          .stage_bytes = stage_bytes_of(batch.shape)};
}

bool has_wide_scan(const core::ivf_pq_shape& shape) {
  const page_layout layout(shape);
  return (shape.uniform || layout.halves > 1) && layout.padded_halves() <= kMaxWideHalves;
}

std::int32_t queries_of_wide_item(const core::ivf_pq_shape& shape, bool sample) {
  const std::int64_t halves = page_layout(shape).padded_halves();
  if (!sample && has_hopper_scan(halves)) return queries_of_hopper_item(halves);
  return queries_that_fit(halves, stage_bytes_of(shape), sample);
}

std::int32_t queries_of_wide_halves(std::int64_t halves, bool sample) {
  if (!sample && has_hopper_scan(halves)) return queries_of_hopper_item(halves);
  return queries_that_fit(halves, 0, sample);
}

std::int32_t queries_of_small_item(const core::ivf_pq_shape& shape) {
  return std::min(queries_that_fit(page_layout(shape).padded_halves(), stage_bytes_of(shape), false), kSmallQueries);
}

void launch_wide_scan(cudaStream_t stream, const filter_batch& batch, bool samples, int multiprocessors) {
  const std::int32_t queries = (samples ? batch.sample : batch.all).queries_of_item;
  const wide_args args = wide_args_of(batch, queries);
  if (samples) return launch_form<true>(stream, args, multiprocessors);
  if (queries > kSmallQueries && has_hopper_scan(page_layout(batch.shape).padded_halves()))
    return launch_hopper_scan(stream, args, multiprocessors);
  launch_form<false>(stream, args, multiprocessors);
}

}  // namespace shortlist::cuda
