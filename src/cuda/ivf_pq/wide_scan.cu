// Lists against all queries that look at them, on the matrix units: rows of any number of elements, and codes of any
// pieces. filter_scan.cu has the same for rows that registers hold, and is faster.
//
// An item is a list, or a part of a long one, with as many queries as shared memory holds. A warp takes a page of 32
// rows: it keeps the sums of those with all of the item's queries, and goes through the rows' elements 32 at a time,
// which become halves in registers: numbers by arithmetic, codewords by look-ups in global memory, which the caches
// hold. Sums begin at the rows' terms, so that one comparison with the query's limit is left of a distance.
// Limit: products of halves; of codewords, look-ups.
// History: docs/kernels.md.
#include <algorithm>

#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/filter_decode.cuh"
#include "cuda/ivf_pq/filter_hits.cuh"
#include "cuda/ivf_pq/wide_scan.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 2;  // of a multiprocessor
constexpr int kThreadsOfSample = kSamplingWarps * kWarp;
constexpr int kBlocksOfSample = 4;
constexpr int kColumns = 8;  // queries of a product
constexpr int kQueries = 64;
constexpr int kSampleQueries = 32;
constexpr std::int64_t kSharedBytes = 228 * 1024;  // of a multiprocessor
constexpr std::int64_t kReservedBytes = 1024;      // of a block
constexpr std::int64_t kHeadBytes = 64;
constexpr std::int64_t kMaxHalves = 4096;
constexpr int kChunkHalves = 8;  // of a row, of a lane, that are multiplied at once: two steps of the matrix units
constexpr int kChunk = kChunkHalves * static_cast<int>(kLanesOfRow);
constexpr int kGroupsOfTile = kWarp / static_cast<int>(kLanesOfRow);
constexpr int kRowsOfLane = 2 * static_cast<int>(kPageTiles);  // rows g, g + 8, g + 16 and g + 24
static_assert(kGroupsOfList == kSamplingWarps * kPageTiles * kGroupsOfTile);

/// What a code stands for: a number, or halves of a table, two, four, or some eights. Or pages hold the halves.
enum class wide_form : std::uint8_t { numbers8, numbers4, pairs, quads, eights, halves };

constexpr int threads_of(bool samples) { return samples ? kThreadsOfSample : kThreads; }
constexpr int blocks_of(bool samples) { return samples ? kBlocksOfSample : kBlocks; }
constexpr int most_queries(bool samples) { return samples ? kSampleQueries : kQueries; }

struct wide_head {
  std::uint32_t number;
};

/// What shared memory has of an item, behind the head.
struct wide_item {
  uint4* columns;  // by eight queries: [chunks][32 lanes]
  float* limits;
  float* bases;
  std::uint32_t* queries;
};
constexpr std::int64_t bytes_of_query(std::int64_t halves) {
  return halves * static_cast<std::int64_t>(sizeof(__half)) + 3 * static_cast<std::int64_t>(sizeof(float));
}

struct wide_args {
  filter_batch batch;
  std::int32_t chunks;       ///< of a row
  std::int32_t queries;      ///< of an item, at most
  std::int32_t row_words;    ///< of codes that a lane has of a row
  std::int32_t plane_shift;  ///< of the words that lie together
  std::int32_t tile_words;
  std::int32_t code_bits;
  std::int32_t halves;  ///< of a piece
};

/// A lane's part of the codes of a page.
class page_codes {
 public:
  __device__ page_codes(const wide_args& args, const std::byte* page, int lane)
      : args_(args), words_(reinterpret_cast<const std::uint32_t*>(page)), lane_(lane) {}

  /// The i-th word of each of the lane's rows.
  __device__ __forceinline__ void load(std::int32_t i, std::uint32_t (&words)[kRowsOfLane]) const {
#pragma unroll
    for (int row = 0; row < kRowsOfLane; row++) {
      const std::int32_t word = row % 2 * args_.row_words + i;
      const std::int32_t plane_words = 1 << args_.plane_shift;
      words[row] =
          __ldg(words_ + row / 2 * args_.tile_words +
                ((((word >> args_.plane_shift) * kWarp) + lane_) << args_.plane_shift) + (word & (plane_words - 1)));
    }
  }

 private:
  const wide_args& args_;
  const std::uint32_t* words_;
  int lane_;
};

/// 32 elements of a page's rows, as the matrix units take them: two steps.
using chunk_rows = page_rows<2>;

/// Word `at` of the lane's part of one of its rows, of four of a chunk.
__device__ __forceinline__ void set_word(chunk_rows& rows, int row, int at, std::uint32_t word) {
  rows[row / 2][at / 2][at % 2 * 2 + row % 2] = word;
}

/// Codewords, by look-ups.
template <wide_form Form>
class wide_table {
 public:
  __device__ wide_table(const wide_args& args, int lane)
      : args_(args), of_lane_(args.batch.table + lane % kLanesOfRow * args.halves) {}

  __device__ __forceinline__ const __half* codeword(std::int32_t piece, std::uint32_t code) const {
    const std::uint32_t group = static_cast<std::uint32_t>(piece) / kGroupPieces;
    const std::uint32_t at =
        (group * kTableCodes + code) * kGroupPieces + static_cast<std::uint32_t>(piece) % kGroupPieces;
    return of_lane_ + at * static_cast<std::uint32_t>(kLanesOfRow * args_.halves);
  }
  /// The i-th code of a word.
  __device__ __forceinline__ std::uint32_t code_of(std::uint32_t word, std::int32_t i) const {
    return args_.code_bits == 8 ? (word >> (8 * i)) & 0xFFu : (word >> (i % 2 * 16 + i / 2 * 4)) & 0xFu;
  }

  /// The chunk that begins at the i-th code of the words, which is of this piece, at its `half`.
  __device__ __forceinline__ void decode(const std::uint32_t (&words)[kRowsOfLane], std::int32_t i, std::int32_t piece,
                                         std::int32_t half, chunk_rows& rows) const {
#pragma unroll
    for (int row = 0; row < kRowsOfLane; row++) {
      if constexpr (Form == wide_form::pairs) {
#pragma unroll
        for (int j = 0; j < 4; j++)
          set_word(rows, row, j,
                   __ldg(reinterpret_cast<const std::uint32_t*>(codeword(piece + j, code_of(words[row], i + j)))));
      } else if constexpr (Form == wide_form::quads) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const uint2 found = __ldg(reinterpret_cast<const uint2*>(codeword(piece + j, code_of(words[row], i + j))));
          set_word(rows, row, 2 * j, found.x);
          set_word(rows, row, 2 * j + 1, found.y);
        }
      } else {
        const uint4 found = __ldg(reinterpret_cast<const uint4*>(codeword(piece, code_of(words[row], i)) + half));
        set_word(rows, row, 0, found.x);
        set_word(rows, row, 1, found.y);
        set_word(rows, row, 2, found.z);
        set_word(rows, row, 3, found.w);
      }
    }
  }

 private:
  const wide_args& args_;
  const __half* of_lane_;
};

/// Two words of codes of eight bits, less 128.
__device__ __forceinline__ void decode_bytes(const std::uint32_t (&first)[kRowsOfLane],
                                             const std::uint32_t (&second)[kRowsOfLane], chunk_rows& rows) {
#pragma unroll
  for (int row = 0; row < kRowsOfLane; row++) {
#pragma unroll
    for (int j = 0; j < 4; j++) set_word(rows, row, j, halves_of_bytes(j < 2 ? first[row] : second[row], j % 2));
  }
}

/// A word of codes of four bits, less 8.
__device__ __forceinline__ void decode_nibbles(const std::uint32_t (&words)[kRowsOfLane], chunk_rows& rows) {
  const nibble_reader nibbles;
#pragma unroll
  for (int row = 0; row < kRowsOfLane; row++) {
#pragma unroll
    for (int j = 0; j < 4; j++) set_word(rows, row, j, nibbles.halves(words[row], j));
  }
}

/// A block at work on one item after another.
template <wide_form Form, bool Samples>
class wide_scan {
 public:
  static constexpr int kMost = most_queries(Samples) / kColumns;  // products of a page at once
  static constexpr int kWarps = threads_of(Samples) / kWarp;

  __device__ wide_scan(const wide_args& args, unsigned char* shared)
      : args_(args),
        batch_(args.batch),
        pass_(Samples ? args.batch.sample : args.batch.all),
        head_(*reinterpret_cast<wide_head*>(shared)),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        warp_(threadIdx.x / kWarp) {
    item_.columns = reinterpret_cast<uint4*>(shared + kHeadBytes);
    item_.limits = reinterpret_cast<float*>(item_.columns + args.queries * args.chunks * kLanesOfRow);
    item_.bases = item_.limits + args.queries;
    item_.queries = reinterpret_cast<std::uint32_t*>(item_.bases + args.queries);
  }

  __device__ void run() {
    const std::uint32_t items = min(*pass_.item_count, pass_.item_room);
    for (;;) {
      __syncthreads();  // all are done with the item before
      if (threadIdx.x == 0) head_.number = atomicAdd(pass_.next_item, 1u);
      __syncthreads();
      if (head_.number >= items) return;
      const scan_item item = pass_.items[head_.number];
      stage(item);
      __syncthreads();
      scan(item);
    }
  }

 private:
  __device__ __forceinline__ std::int64_t query_of(const scan_pair& pair) const {
    return Samples ? pair.query / static_cast<std::uint32_t>(pass_.lists_of_query) : pair.query;
  }

  /// Brings an item's queries in, and makes up for the last eight.
  __device__ void stage(const scan_item& item) const {
    const std::uint32_t padded = (item.pairs + kColumns - 1) / kColumns * kColumns;
    for (std::uint32_t q = threadIdx.x; q < padded; q += kWarps * kWarp) {
      const scan_pair pair = q < item.pairs ? pass_.pairs[item.first_pair + q] : scan_pair{};
      item_.limits[q] = q < item.pairs ? pair.limit : -__uint_as_float(0x7F800000u);
      item_.bases[q] = pair.base;
      item_.queries[q] = pair.query;
    }
    const auto chunks = static_cast<std::uint32_t>(args_.chunks);
    const auto* columns = reinterpret_cast<const uint4*>(batch_.columns);
    for (std::uint32_t at = warp_; at < padded / kColumns * chunks; at += kWarps) {  // 32 lanes of a chunk
      const std::uint32_t q = at / chunks * kColumns + lane_ / kLanesOfRow;
      uint4 column = make_uint4(0, 0, 0, 0);
      if (q < item.pairs) {
        const std::int64_t query = query_of(pass_.pairs[item.first_pair + q]);
        column = __ldg(columns + query * chunks * kLanesOfRow + lane_ % kLanesOfRow * chunks + at % chunks);
      }
      item_.columns[at * kWarp + lane_] = column;
    }
  }

  /// The warps' pages of an item.
  __device__ void scan(const scan_item& item) const {
    const int products = static_cast<int>(item.pairs + kColumns - 1) / kColumns;
    float least[Samples ? kMost : 1][kPageTiles][2];
    if constexpr (Samples) {
#pragma unroll
      for (int p = 0; p < kMost; p++)
#pragma unroll
        for (int tile = 0; tile < kPageTiles; tile++)
          least[p][tile][0] = least[p][tile][1] = __uint_as_float(0x7F800000u);
    }
    for (std::uint32_t at = warp_; at < item.pages; at += kWarps) {
      const std::uint32_t page = batch_.lists.table[item.table_at + at];
      float sums[kMost][kPageTiles][4];
      multiply(page, products, sums);
      if constexpr (Samples) {
#pragma unroll
        for (int p = 0; p < kMost; p++)
#pragma unroll
          for (int tile = 0; tile < kPageTiles; tile++)
#pragma unroll
            for (int i = 0; i < 2; i++)
              least[p][tile][i] = fminf(least[p][tile][i], fminf(sums[p][tile][i], sums[p][tile][i + 2]));
      } else {
#pragma unroll
        for (int p = 0; p < kMost; p++)
          if (p < products) keep(page, p, sums[p]);
      }
    }
    if constexpr (Samples) write_least(item, least);
  }

  /// sums = terms + a page x the item's queries.
  __device__ __forceinline__ void multiply(std::uint32_t page, int products,
                                           float (&sums)[kMost][kPageTiles][4]) const {
    const std::byte* from = batch_.lists.pages + page * batch_.page_bytes;
    const auto* terms = reinterpret_cast<const float*>(from + kPageTiles * args_.tile_words * 4);
#pragma unroll
    for (int row = 0; row < kRowsOfLane; row++) {
      const float term = __ldg(terms + row * kGroupsOfTile + lane_ / kLanesOfRow);
#pragma unroll
      for (int p = 0; p < kMost; p++) sums[p][row / 2][row % 2 * 2] = sums[p][row / 2][row % 2 * 2 + 1] = term;
    }
    const uint4* columns = item_.columns + lane_;
    const auto multiply_chunk = [&](const chunk_rows& rows) {
      multiply_columns(rows, columns, products, sums);
      columns += kWarp;
    };
    if constexpr (Form == wide_form::halves)
      return for_each_chunk_of_halves(reinterpret_cast<const uint4*>(from), multiply_chunk);
    else
      return for_each_chunk_of_codes(page_codes(args_, from, lane_), multiply_chunk);
  }

  /// Chunks of a page of halves: [tiles][steps][32 lanes] of 16 bytes.
  template <class Use>
  __device__ __forceinline__ void for_each_chunk_of_halves(const uint4* page, Use use) const {
    page += lane_;
    const std::int32_t of_tile = 2 * args_.chunks * kWarp;
    uint4 next[kPageTiles][2];
    const auto load = [&](std::int32_t chunk) {
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++)
#pragma unroll
        for (int step = 0; step < 2; step++)
          next[tile][step] = __ldg(page + tile * of_tile + (2 * chunk + step) * kWarp);
    };
    load(0);
#pragma unroll 1
    for (std::int32_t chunk = 0; chunk < args_.chunks; chunk++) {
      chunk_rows rows;
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++) {
#pragma unroll
        for (int step = 0; step < 2; step++) {
          rows[tile][step][0] = next[tile][step].x;
          rows[tile][step][1] = next[tile][step].y;
          rows[tile][step][2] = next[tile][step].z;
          rows[tile][step][3] = next[tile][step].w;
        }
      }
      if (chunk + 1 < args_.chunks) load(chunk + 1);
      use(rows);
    }
  }

  /// Chunks of a page of codes.
  template <class Use>
  __device__ __forceinline__ void for_each_chunk_of_codes(const page_codes& codes, Use use) const {
    constexpr int kWords = Form == wide_form::numbers8 ? 2 : 1;  // at once
    std::uint32_t words[kWords][kRowsOfLane];
    std::uint32_t next[kWords][kRowsOfLane];
#pragma unroll
    for (int w = 0; w < kWords; w++) codes.load(w, next[w]);
#pragma unroll 1
    for (std::int32_t i = 0; i < args_.row_words; i += kWords) {
#pragma unroll
      for (int w = 0; w < kWords; w++) {
#pragma unroll
        for (int row = 0; row < kRowsOfLane; row++) words[w][row] = next[w][row];
        if (i + kWords < args_.row_words) codes.load(i + kWords + w, next[w]);
      }
      chunk_rows rows;
      if constexpr (Form == wide_form::numbers8) {
        decode_bytes(words[0], words[1], rows);
        use(rows);
      } else if constexpr (Form == wide_form::numbers4) {
        decode_nibbles(words[0], rows);
        use(rows);
      } else {
        const wide_table<Form> table(args_, lane_);
        const std::int32_t codes_of_word = 32 / args_.code_bits;
        const std::int32_t codes_of_chunk = Form == wide_form::pairs ? 4 : Form == wide_form::quads ? 2 : 1;
        const std::int32_t halves = Form == wide_form::eights ? args_.halves : kChunkHalves;
#pragma unroll 1
        for (std::int32_t code = 0; code < codes_of_word; code += codes_of_chunk) {
#pragma unroll 1
          for (std::int32_t half = 0; half < halves; half += kChunkHalves) {
            table.decode(words[0], code, i * codes_of_word + code, half, rows);
            use(rows);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_columns(const chunk_rows& rows, const uint4* columns, int products,
                                                   float (&sums)[kMost][kPageTiles][4]) const {
    const int chunk_columns = args_.chunks * kWarp;
#pragma unroll
    for (int p = 0; p < kMost; p += 2) {
      if (p >= products) break;
      const uint4 first = columns[p * chunk_columns];
      const uint4 second = columns[min(p + 1, products - 1) * chunk_columns];
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++) {
        multiply_halves(rows[tile][0], first.x, first.y, sums[p][tile], sums[p][tile]);
        multiply_halves(rows[tile][0], second.x, second.y, sums[p + 1][tile], sums[p + 1][tile]);
      }
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++) {
        multiply_halves(rows[tile][1], first.z, first.w, sums[p][tile], sums[p][tile]);
        multiply_halves(rows[tile][1], second.z, second.w, sums[p + 1][tile], sums[p + 1][tile]);
      }
    }
  }

  /// What reaches the limits of eight queries.
  __device__ __forceinline__ void keep(std::uint32_t page, int product, const float (&sums)[kPageTiles][4]) const {
    const int first = product * kColumns + lane_ % static_cast<int>(kLanesOfRow) * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float limit = item_.limits[first + i];
#pragma unroll
      for (int row = 0; row < kRowsOfLane; row++) {
        const float sum = sums[row / 2][row % 2 * 2 + i];
        if (!(sum <= limit)) continue;
        const scan_hit hit{
            __fmaf_rn(sum, batch_.header->unit, item_.bases[first + i]),
            page * static_cast<slot>(core::kPageRows) + row * kGroupsOfTile + lane_ / static_cast<int>(kLanesOfRow),
            item_.queries[first + i]};
        put_hit(batch_, take_place(batch_, hit), hit);
      }
    }
  }

  /// The warp's part of an item's sample.
  __device__ void write_least(const scan_item& item, const float (&least)[kMost][kPageTiles][2]) const {
    const float unit = batch_.header->unit;
#pragma unroll
    for (int p = 0; p < kMost; p++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const std::uint32_t q = p * kColumns + lane_ % kLanesOfRow * 2 + i;
        if (q >= item.pairs) continue;
        float* to = batch_.minima + static_cast<std::int64_t>(item_.queries[q]) * kGroupsOfList +
                    warp_ * kPageTiles * kGroupsOfTile + lane_ / kLanesOfRow;
#pragma unroll
        for (int tile = 0; tile < kPageTiles; tile++)
          to[tile * kGroupsOfTile] = item_.bases[q] + least[p][tile][i] * unit;
      }
    }
  }

  const wide_args& args_;
  const filter_batch& batch_;
  const scan_pass& pass_;
  wide_head& head_;
  wide_item item_;
  int lane_;
  std::uint32_t warp_;
};

template <wide_form Form, bool Samples>
__global__ void __launch_bounds__(threads_of(Samples), blocks_of(Samples))
    wide_scan_kernel(const __grid_constant__ wide_args args) {
  join_chain();
  wide_scan<Form, Samples>(args, dynamic_shared()).run();
}

wide_form form_of(const filter_batch& batch) {
  const core::ivf_pq_shape& shape = batch.shape;
  if (batch.table == nullptr && !shape.uniform) return wide_form::halves;
  if (shape.uniform) return shape.bits == 4 ? wide_form::numbers4 : wide_form::numbers8;
  const std::int64_t halves = page_layout(shape).halves;
  return halves == 2 ? wide_form::pairs : halves == 4 ? wide_form::quads : wide_form::eights;
}

template <bool Samples>
void launch_form(cudaStream_t stream, const wide_args& args, int multiprocessors) {
  const auto launch_as = [&]<wide_form Form>() {
    launch(wide_scan_kernel<Form, Samples>,
           {.grid = dim3(static_cast<unsigned>(multiprocessors * blocks_of(Samples))),
            .threads = threads_of(Samples),
            .shared_bytes = kHeadBytes + args.queries * bytes_of_query(args.chunks * kChunk),
            .overlaps = true},
           stream, args, "launching the scan of lists");
  };
  switch (form_of(args.batch)) {
    case wide_form::numbers8: return launch_as.template operator()<wide_form::numbers8>();
    case wide_form::numbers4: return launch_as.template operator()<wide_form::numbers4>();
    case wide_form::pairs: return launch_as.template operator()<wide_form::pairs>();
    case wide_form::quads: return launch_as.template operator()<wide_form::quads>();
    case wide_form::eights: return launch_as.template operator()<wide_form::eights>();
    case wide_form::halves: return launch_as.template operator()<wide_form::halves>();
  }
}

}  // namespace

bool has_wide_scan(const core::ivf_pq_shape& shape) {
  const page_layout layout(shape);
  return (shape.uniform || layout.halves > 1) && layout.padded_halves() <= kMaxHalves;
}

std::int32_t queries_of_wide_item(std::int64_t halves, bool sample) {
  const std::int64_t room = kSharedBytes / blocks_of(sample) - kReservedBytes - kHeadBytes;
  const std::int64_t fit = room / bytes_of_query(halves) / kColumns * kColumns;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(fit, kColumns, most_queries(sample)));
}

void launch_wide_scan(cudaStream_t stream, const filter_batch& batch, bool samples, int multiprocessors) {
  const page_layout layout(batch.shape);
  const std::int64_t tile_bytes = form_of(batch) == wide_form::halves
                                      ? kTileRows * layout.padded_halves() * static_cast<std::int64_t>(sizeof(__half))
                                      : layout.tile_bytes();
  const wide_args args{.batch = batch,
                       .chunks = static_cast<std::int32_t>(layout.padded_halves() / kChunk),
                       .queries = queries_of_wide_item(layout.padded_halves(), samples),
                       .row_words = static_cast<std::int32_t>(layout.lane_words / 2),
                       .plane_shift = layout.plane_words == 4 ? 2 : 1,
                       .tile_words = static_cast<std::int32_t>(tile_bytes / 4),
                       .code_bits = static_cast<std::int32_t>(layout.code_bits),
                       .halves = static_cast<std::int32_t>(layout.halves)};
  if (samples)
    launch_form<true>(stream, args, multiprocessors);
  else
    launch_form<false>(stream, args, multiprocessors);
}

}  // namespace shortlist::cuda
