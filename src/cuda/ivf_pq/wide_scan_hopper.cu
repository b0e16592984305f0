// The full scan of wide_scan.cu by Hopper's matrix units, which take rows from registers, as they are decoded, and
// queries from shared memory.
//
// Why it is fast: four warps multiply 64 rows by all of an item's queries with one instruction for 16 elements, where
// warps on their own need ten, and loads of the queries besides. While one warpgroup multiplies, others decode.
// Limit: half of the time products; of codewords, turns of shared memory. History: docs/kernels.md.
#include "cuda/device/matrix_halves.cuh"
#include "cuda/ivf_pq/wide_scan.cuh"

namespace shortlist::cuda {
namespace {

constexpr std::int64_t kHalvesOfMany = 1024;  // of a row, at most, so that shared memory has room for many queries
constexpr int kManyQueries = 80;
constexpr int kFewQueries = 40;
constexpr int kThreads = 512;

template <int Queries>
struct group_products {
  static constexpr int kThreads = cuda::kThreads;
  static constexpr int kQueries = Queries;
  static constexpr int kWarpsTogether = 4;
  static constexpr bool kStagesCodes = Queries == kManyQueries;  // of fewer, registers hold those of the next chunk

  /// As column_byte_at has them.
  class columns {
   public:
    __device__ columns(unsigned char* begin, const wide_args& args)
        : begin_(shared_address(begin)), bytes_(bytes_of(args.chunks)) {}

    static constexpr __host__ __device__ std::int64_t bytes_of(std::int32_t chunks) {
      return (chunks * 2 * kBytesDeep + kColumnChunk - 1) / kColumnChunk * kColumnChunk * std::int64_t{Queries};
    }
    __device__ std::int64_t bytes() const { return bytes_; }
    __device__ __forceinline__ void put(std::uint32_t query, std::uint32_t piece, const uint4* column,
                                        bool is_real) const {
      async_copy_16(begin_ + static_cast<std::uint32_t>(column_byte_at(Queries, query, piece * 16)), column + piece,
                    is_real);
    }
    /// Known to the matrix units after a barrier.
    __device__ void put_all() const { async_fence(); }

    template <int Sums>
    __device__ __forceinline__ void multiply(chunk_rows& rows, std::int32_t chunk, int,
                                             float (&sums)[kPageTiles][Sums]) const {
      constexpr int kStepsOfChunk = kColumnChunk / kBytesDeep;
      uint4 halves[kPageTiles][2];
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++)
#pragma unroll
        for (int step = 0; step < 2; step++)
          halves[tile][step] =
              make_uint4(rows[tile][step][0], rows[tile][step][1], rows[tile][step][2], rows[tile][step][3]);
      const int first = 2 * chunk;
      const int at = first / kStepsOfChunk * (Queries * kColumnChunk) + first % kStepsOfChunk * kBytesDeep;
      const std::uint64_t from = describe_columns(begin_) + at / 16;
      hold(halves, sums);
      products_fence();
#pragma unroll
      for (int step = 0; step < 2; step++)
#pragma unroll
        for (int tile = 0; tile < kPageTiles; tile++)
          multiply_add(sums[tile], halves[tile][step], from + step * (kBytesDeep / 16));
      products_commit();
      products_wait<0>();
      hold(halves, sums);
    }

   private:
    template <int Sums>
    static __device__ __forceinline__ void hold(uint4 (&halves)[kPageTiles][2], float (&sums)[kPageTiles][Sums]) {
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++) {
        products_hold(halves[tile]);
        products_hold(sums[tile]);
      }
    }

    std::uint32_t begin_;
    std::int64_t bytes_;
  };
};

template <wide_form Form, int Queries>
__global__ void __launch_bounds__(kThreads, 1) hopper_scan_kernel(const __grid_constant__ wide_args args) {
  join_chain();
  extern __shared__ __align__(kColumnsAligned) unsigned char shared[];
  wide_scan<Form, group_products<Queries>, false>(args, shared).run();
}

template <wide_form Form, int Queries>
std::int64_t ring_bytes(const wide_args& args) {
  if (looks_up(Form)) return kWideStages * args.stage_bytes;
  return Form == wide_form::halves || !group_products<Queries>::kStagesCodes
             ? 0
             : kWideStages * kThreads * kRowsOfLane * sizeof(wide_word<Form>);
}

template <int Queries>
void launch_queries(cudaStream_t stream, const wide_args& args, int multiprocessors) {
  with_wide_form(wide_form_of(args.batch), [&]<wide_form Form>() {
    launch(hopper_scan_kernel<Form, Queries>,
           {.grid = dim3(static_cast<unsigned>(multiprocessors)),
            .threads = kThreads,
            .shared_bytes = kWideHeadBytes + group_products<Queries>::columns::bytes_of(args.chunks) +
                            Queries * kWideFactsBytes + ring_bytes<Form, Queries>(args),
            .overlaps = true},
           stream, args, "launching the scan of lists");
  });
}

}  // namespace

std::int32_t queries_of_hopper_item(std::int64_t halves) {
  return halves <= kHalvesOfMany ? kManyQueries : kFewQueries;
}

void launch_hopper_scan(cudaStream_t stream, wide_args args, int multiprocessors) {
  if (args.queries > kFewQueries) {
    args.queries = kManyQueries;
    return launch_queries<kManyQueries>(stream, args, multiprocessors);
  }
  args.queries = kFewQueries;
  launch_queries<kFewQueries>(stream, args, multiprocessors);
}

}  // namespace shortlist::cuda
