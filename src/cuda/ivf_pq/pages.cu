// Rows in pages: empty pages, places in lists, writing and reading.
//
// Places: rows sorted by list, stably, so that those of a list stand in their order; a row's place is how far behind
// its list's first it came out.
// Writing and reading: four lanes a row, as the matrix units hold it, each with whole words of its codes; sums of terms
// in fp64, which leaves only the last rounding to be bounded.
// Limit: the bytes of codes and pages; of places, CUB's passes over 8 bytes a row for each 8 bits of a list's number.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "cuda/device/score.cuh"
#include "cuda/ivf_pq/page_layout.hpp"
#include "cuda/ivf_pq/pages.hpp"
#include "cuda/ivf_pq/prepared.hpp"
#include "cuda/runtime/launch.cuh"
#include "cuda/runtime/stream_memory.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRowLanes = static_cast<int>(kLanesOfRow);
constexpr std::int64_t kRowsPerBlock = kThreads / kRowLanes;
constexpr std::int64_t kMaxBlocks = 65536;  // each strides over what is beyond
constexpr std::uint32_t kInfinityBits = 0x7F800000u;
constexpr double kRoundsUp = 1.0 + 0x1p-40;  // more than the sum and the root in fp64 can err, dim up to 2^16

launch_shape shape_for(std::int64_t items, std::int64_t per_block) {
  return {.grid = dim3(static_cast<unsigned>(std::min((items + per_block - 1) / per_block, kMaxBlocks))),
          .threads = kThreads};
}

/// Places of a layout in 32 bits: pages are small, and their addresses are computed for each word.
struct word_places {
  std::int32_t half_words;  // of a lane, of one row
  std::int32_t plane_shift;
  std::int32_t tile_bytes;

  explicit word_places(const page_layout& layout)
      : half_words(static_cast<std::int32_t>(layout.row_words())),
        plane_shift(std::countr_zero(static_cast<std::uint64_t>(layout.plane_words))),
        tile_bytes(static_cast<std::int32_t>(layout.tile_bytes())) {}

  /// page_layout::word_at.
  __device__ __forceinline__ std::int32_t word_at(std::int32_t row, std::int32_t lane_of_row, std::int32_t i) const {
    const std::int32_t lane = row % 8 * kRowLanes + lane_of_row;
    const std::int32_t word = row % static_cast<std::int32_t>(kTileRows) / 8 * half_words + i;
    const std::int32_t in_plane = word & ((1 << plane_shift) - 1);
    const std::int32_t in_tile = (((word >> plane_shift) * kWarp + lane) << plane_shift) + in_plane;
    return row / static_cast<std::int32_t>(kTileRows) * tile_bytes + in_tile * 4;
  }
};

struct clear_args {
  std::byte* pages;  // the first of them
  std::int64_t count;
  std::int32_t page_vectors;  // of 16 bytes
  std::int32_t terms_at;      // in vectors
  std::int32_t positions_at;
};

/// A warp a page.
__global__ void __launch_bounds__(kThreads) clear_pages_kernel(const __grid_constant__ clear_args args) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t page = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; page < args.count;
       page += step) {
    auto* to = reinterpret_cast<uint4*>(args.pages) + page * args.page_vectors;
    for (int v = lane; v < args.page_vectors; v += kWarp) {
      const std::uint32_t word = v < args.terms_at ? 0u : v < args.positions_at ? kInfinityBits : core::kNoPosition;
      to[v] = make_uint4(word, word, word, word);
    }
  }
}

struct narrow_args {
  const std::int64_t* lists;
  std::uint32_t* keys;
  std::uint32_t* rows;
  std::int64_t n;
};

__global__ void __launch_bounds__(kThreads) narrow_kernel(const __grid_constant__ narrow_args args) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= args.n) return;
  args.keys[row] = static_cast<std::uint32_t>(args.lists[row]);
  args.rows[row] = static_cast<std::uint32_t>(row);
}

struct count_args {
  const std::uint32_t* keys;  // [n] ascending
  std::uint32_t* starts;      // [nlist]
  std::uint32_t* counts;      // [nlist]
  std::int64_t n;
  std::int64_t nlist;
};

/// How many of the sorted keys are below `key`.
__device__ std::int64_t keys_below(const std::uint32_t* keys, std::int64_t n, std::int64_t key) {
  std::int64_t low = 0;
  std::int64_t high = n;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (keys[middle] < key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ count_args args) {
  const std::int64_t list = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (list >= args.nlist) return;
  const std::int64_t start = keys_below(args.keys, args.n, list);
  args.starts[list] = static_cast<std::uint32_t>(start);
  args.counts[list] = static_cast<std::uint32_t>(keys_below(args.keys, args.n, list + 1) - start);
}

struct place_args {
  const std::uint32_t* keys;
  const std::uint32_t* rows;
  const std::uint32_t* starts;
  std::uint32_t* places;
  std::int64_t n;
};

__global__ void __launch_bounds__(kThreads) place_kernel(const __grid_constant__ place_args args) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < args.n) args.places[args.rows[i]] = static_cast<std::uint32_t>(i) - args.starts[args.keys[i]];
}

struct write_args {
  std::byte* pages;
  const std::uint32_t* table;
  const std::uint32_t* first;
  const std::uint32_t* sizes_before;
  const std::int64_t* lists;
  const std::uint32_t* places;
  const std::uint8_t* codes;
  const std::uint32_t* positions;  // null: first_position + row
  const float* centroids;          // null unless terms need them
  const float* codebook;
  const prepared_header* prepared;
  std::uint32_t* largest;  // the bits of a number that is not negative
  std::int64_t n;
  std::int64_t first_position;
  std::int64_t centroid_stride;
  std::int64_t page_bytes;
  word_places words;
  std::int32_t terms_at;
  std::int32_t positions_at;
  std::int32_t list_at;
  std::int32_t dim;
  std::int32_t pieces;
  std::int32_t piece_dim;
  std::int32_t codewords;
  std::int32_t lane_pieces;
  bool is_uniform;
  bool has_terms;  // other than 0
};

/// What is summed over the elements of a row that one lane holds.
struct row_sums {
  double term = 0.0;     // c.w + |w|^2 / 2
  double squares = 0.0;  // |w|^2, of uniform codes |m|^2
};

__device__ __forceinline__ void add_piece(const write_args& args, std::int32_t piece, std::int32_t code,
                                          const float* centroid, row_sums& sums) {
  const float* codeword = args.codebook + (static_cast<std::int64_t>(piece) * args.codewords + code) * args.piece_dim;
  const std::int32_t first = piece * args.piece_dim;
  const std::int32_t elements = min(args.piece_dim, args.dim - first);
  for (std::int32_t i = 0; i < elements; i++) {
    const double w = __ldg(codeword + i);
    if (args.has_terms) sums.term += w * ((centroid ? __ldg(centroid + first + i) : 0.0) + 0.5 * w);
    const double measured = args.is_uniform ? code - 0.5 * (args.codewords - 1) : w;
    sums.squares += measured * measured;
  }
}

template <int CodeBits>
__global__ void __launch_bounds__(kThreads) write_rows_kernel(const __grid_constant__ write_args args) {
  constexpr int kPerWord = 32 / CodeBits;
  const int lane_of_row = threadIdx.x % kRowLanes;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kRowsPerBlock;
  float largest = 0.0f;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock; first < args.n; first += step) {
    const std::int64_t row = first + threadIdx.x / kRowLanes;
    const bool is_real = row < args.n;  // all lanes take part in the sums
    row_sums sums;
    std::byte* page = nullptr;
    std::int32_t row_of_page = 0;
    if (is_real) {
      const std::int64_t list = args.lists[row];
      const std::uint32_t place = args.sizes_before[list] + args.places[row];
      page = args.pages + args.table[args.first[list] + place / core::kPageRows] * args.page_bytes;
      row_of_page = static_cast<std::int32_t>(place % core::kPageRows);
      const float* centroid = args.centroids ? args.centroids + list * args.centroid_stride : nullptr;
      const std::uint8_t* codes = args.codes + row * args.pieces;
      const std::int32_t first_piece = lane_of_row * args.lane_pieces;
      for (std::int32_t i = 0; i < args.words.half_words; i++) {
        std::uint32_t word = 0;
#pragma unroll
        for (int j = 0; j < kPerWord; j++) {
          const std::int32_t piece = first_piece + i * kPerWord + j;
          if (piece >= args.pieces) break;
          const std::uint32_t code = codes[piece];
          add_piece(args, piece, static_cast<std::int32_t>(code), centroid, sums);
          word |= code << (CodeBits == 8 ? 8 * j : 4 * (j % 2 * 4 + j / 2));
        }
        *reinterpret_cast<std::uint32_t*>(page + args.words.word_at(row_of_page, lane_of_row, i)) = word;
      }
    }
#pragma unroll
    for (int offset = kRowLanes / 2; offset > 0; offset /= 2) {
      sums.term += __shfl_xor_sync(kFullWarp, sums.term, offset);
      sums.squares += __shfl_xor_sync(kFullWarp, sums.squares, offset);
    }
    largest = fmaxf(largest, __double2float_ru(sqrt(sums.squares) * kRoundsUp));
    if (is_real && lane_of_row == 0) {
      const double term = args.has_terms ? sums.term * args.prepared->inverse_unit : 0.0;
      reinterpret_cast<float*>(page + args.terms_at)[row_of_page] = __double2float_rn(term);
      const std::int64_t position = args.positions ? args.positions[row] : args.first_position + row;
      reinterpret_cast<std::uint32_t*>(page + args.positions_at)[row_of_page] = static_cast<std::uint32_t>(position);
      *reinterpret_cast<std::uint32_t*>(page + args.list_at) = static_cast<std::uint32_t>(args.lists[row]);
    }
  }
  const std::uint32_t bits = __reduce_max_sync(kFullWarp, __float_as_uint(largest));  // they order as the numbers
  if (threadIdx.x % kWarp == 0 && bits > *static_cast<volatile std::uint32_t*>(args.largest))
    atomicMax(args.largest, bits);
}

struct read_args {
  const std::byte* pages;
  const std::uint32_t* table;
  const std::uint32_t* first_page;
  const std::int64_t* list_starts;  // [nlist + 1]
  std::uint8_t* codes;
  std::uint32_t* positions;
  std::int64_t nlist;
  std::int64_t first;
  std::int64_t n;
  std::int64_t page_bytes;
  word_places words;
  std::int32_t positions_at;
  std::int32_t pieces;
  std::int32_t lane_pieces;
};

/// The last list that begins at or before `place`: that which holds it, since empty ones begin where the next does.
__device__ std::int64_t list_of(const std::int64_t* list_starts, std::int64_t nlist, std::int64_t place) {
  std::int64_t low = 0;
  std::int64_t high = nlist;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (list_starts[middle] <= place)
      low = middle;
    else
      high = middle;
  }
  return low;
}

template <int CodeBits>
__global__ void __launch_bounds__(kThreads) read_rows_kernel(const __grid_constant__ read_args args) {
  constexpr int kPerWord = 32 / CodeBits;
  constexpr std::uint32_t kMask = (1u << CodeBits) - 1;
  const int lane_of_row = threadIdx.x % kRowLanes;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kRowsPerBlock;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kRowLanes; row < args.n;
       row += step) {
    const std::int64_t list = list_of(args.list_starts, args.nlist, args.first + row);
    const std::int64_t place = args.first + row - args.list_starts[list];
    const std::byte* page = args.pages + args.table[args.first_page[list] + place / core::kPageRows] * args.page_bytes;
    const auto row_of_page = static_cast<std::int32_t>(place % core::kPageRows);
    const std::int32_t first_piece = lane_of_row * args.lane_pieces;
    for (std::int32_t i = 0; i < args.words.half_words; i++) {
      const std::uint32_t word =
          *reinterpret_cast<const std::uint32_t*>(page + args.words.word_at(row_of_page, lane_of_row, i));
#pragma unroll
      for (int j = 0; j < kPerWord; j++) {
        const std::int32_t piece = first_piece + i * kPerWord + j;
        if (piece >= args.pieces) break;
        const int shift = CodeBits == 8 ? 8 * j : 4 * (j % 2 * 4 + j / 2);
        args.codes[row * args.pieces + piece] = static_cast<std::uint8_t>(word >> shift & kMask);
      }
    }
    if (lane_of_row == 0)
      args.positions[row] = reinterpret_cast<const std::uint32_t*>(page + args.positions_at)[row_of_page];
  }
}

/// CUB's stable sort of rows by list; asks only for `temporary_bytes` if `temporary` is null.
void sort_by_list(cudaStream_t stream, void* temporary, std::size_t& temporary_bytes,
                  cub::DoubleBuffer<std::uint32_t>& keys, cub::DoubleBuffer<std::uint32_t>& rows, std::int64_t n,
                  std::int64_t nlist) {
  const int key_bits = std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(nlist - 1))));
  check(cub::DeviceRadixSort::SortPairs(temporary, temporary_bytes, keys, rows, n, 0, key_bits, stream),
        "sorting rows by list");
}

constexpr std::int64_t rounded_up(std::int64_t words) { return (words + 63) / 64 * 64; }

}  // namespace

void launch_clear_pages(cudaStream_t stream, const core::ivf_pq_shape& shape, std::byte* pages, std::int64_t first,
                        std::int64_t count) {
  if (count == 0) return;
  constexpr std::int64_t kVectorBytes = sizeof(uint4);
  const page_layout layout(shape);
  const clear_args args{pages + first * layout.page_bytes(), count,
                        static_cast<std::int32_t>(layout.page_bytes() / kVectorBytes),
                        static_cast<std::int32_t>(layout.terms_at() / kVectorBytes),
                        static_cast<std::int32_t>(layout.positions_at() / kVectorBytes)};
  launch(clear_pages_kernel, shape_for(count, kWarps), stream, args, "launching the clearing of pages");
}

void launch_place_rows(cudaStream_t stream, const std::int64_t* lists, std::int64_t n, std::int64_t nlist,
                       std::uint32_t* counts, std::uint32_t* places) {
  if (n == 0) {
    check(cudaMemsetAsync(counts, 0, static_cast<std::size_t>(nlist) * sizeof(std::uint32_t), stream),
          "clearing the counts of lists");
    return;
  }
  std::size_t temporary_bytes = 0;
  cub::DoubleBuffer<std::uint32_t> keys;
  cub::DoubleBuffer<std::uint32_t> rows;
  sort_by_list(stream, nullptr, temporary_bytes, keys, rows, n, nlist);
  const std::int64_t array = rounded_up(n);
  const std::int64_t words = 4 * array + rounded_up(nlist);
  const stream_memory memory(stream, words * 4 + static_cast<std::int64_t>(temporary_bytes));
  auto* words_at = static_cast<std::uint32_t*>(memory.data());
  keys = {words_at, words_at + array};
  rows = {words_at + 2 * array, words_at + 3 * array};
  std::uint32_t* starts = words_at + 4 * array;
  constexpr const char* kWhat = "launching the places of rows";
  const auto grid_of = [](std::int64_t items) {
    return launch_shape{.grid = dim3(static_cast<unsigned>((items + kThreads - 1) / kThreads)), .threads = kThreads};
  };
  launch(narrow_kernel, grid_of(n), stream, narrow_args{lists, keys.Current(), rows.Current(), n}, kWhat);
  sort_by_list(stream, words_at + words, temporary_bytes, keys, rows, n, nlist);
  launch(count_kernel, grid_of(nlist), stream, count_args{keys.Current(), starts, counts, n, nlist}, kWhat);
  launch(place_kernel, grid_of(n), stream, place_args{keys.Current(), rows.Current(), starts, places, n}, kWhat);
}

void launch_write_rows(cudaStream_t stream, const core::ivf_pq_model& model, const core::ivf_pq_lists& to,
                       const std::uint32_t* sizes_before, const std::int64_t* lists, const std::uint32_t* places,
                       const std::uint8_t* codes, std::int64_t n, std::int64_t first_position,
                       const std::uint32_t* positions) {
  if (n == 0) return;
  const core::ivf_pq_shape& shape = model.shape;
  const page_layout layout(shape);
  const bool has_terms = shape.metric == metric::l2;
  const bool has_centroid = has_terms && shape.encodes == encoded::residual;
  const write_args args{.pages = to.pages,
                        .table = to.table,
                        .first = to.first,
                        .sizes_before = sizes_before,
                        .lists = lists,
                        .places = places,
                        .codes = codes,
                        .positions = positions,
                        .centroids = has_centroid ? static_cast<const float*>(model.assigns.rows) : nullptr,
                        .codebook = model.codebook,
                        .prepared = reinterpret_cast<const prepared_header*>(model.prepared),
                        .largest = reinterpret_cast<std::uint32_t*>(to.largest),
                        .n = n,
                        .first_position = first_position,
                        .centroid_stride = model.assigns.row_stride_bytes / static_cast<std::int64_t>(sizeof(float)),
                        .page_bytes = layout.page_bytes(),
                        .words = word_places(layout),
                        .terms_at = static_cast<std::int32_t>(layout.terms_at()),
                        .positions_at = static_cast<std::int32_t>(layout.positions_at()),
                        .list_at = static_cast<std::int32_t>(layout.list_at()),
                        .dim = static_cast<std::int32_t>(shape.dim),
                        .pieces = static_cast<std::int32_t>(shape.pieces),
                        .piece_dim = static_cast<std::int32_t>(shape.piece_dim),
                        .codewords = static_cast<std::int32_t>(shape.codewords()),
                        .lane_pieces = static_cast<std::int32_t>(layout.lane_pieces),
                        .is_uniform = shape.uniform,
                        .has_terms = has_terms};
  launch(layout.code_bits == 4 ? write_rows_kernel<4> : write_rows_kernel<8>, shape_for(n, kRowsPerBlock), stream, args,
         "launching the writing of codes");
}

void launch_read_rows(cudaStream_t stream, const core::ivf_pq_shape& shape, const core::ivf_pq_lists& lists,
                      const std::int64_t* list_starts, std::int64_t first, std::int64_t n, std::uint8_t* codes,
                      std::uint32_t* positions) {
  if (n == 0) return;
  const page_layout layout(shape);
  const read_args args{.pages = lists.pages,
                       .table = lists.table,
                       .first_page = lists.first,
                       .list_starts = list_starts,
                       .codes = codes,
                       .positions = positions,
                       .nlist = shape.nlist,
                       .first = first,
                       .n = n,
                       .page_bytes = layout.page_bytes(),
                       .words = word_places(layout),
                       .positions_at = static_cast<std::int32_t>(layout.positions_at()),
                       .pieces = static_cast<std::int32_t>(shape.pieces),
                       .lane_pieces = static_cast<std::int32_t>(layout.lane_pieces)};
  launch(layout.code_bits == 4 ? read_rows_kernel<4> : read_rows_kernel<8>, shape_for(n, kRowsPerBlock), stream, args,
         "launching the reading of codes");
}

}  // namespace shortlist::cuda
