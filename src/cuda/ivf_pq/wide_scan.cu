// Lists against all queries that look at them, on the matrix units: rows of any number of elements, and codes of any
// pieces. filter_scan.cu has the same for rows that registers hold, and is faster.
//
// An item is a list, or a part of a long one, with as many queries as shared memory holds. A warp takes a page of 32
// rows: it keeps the sums of those with all of the item's queries, and goes through the rows' halves 32 at a time, by
// chunks, which it makes of codes in registers: numbers by arithmetic, codewords by look-ups in a chunk's table. Those
// tables go through shared memory one after another, in a ring, for all warps of the block, which need each but once a
// page and so are as many as can be. Sums begin at the rows' terms, so that one comparison with the query's limit is
// left of a distance.
// Limit: products of halves. History: docs/kernels.md.
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

constexpr int kThreads = 256;         // in two blocks of a multiprocessor
constexpr int kThreadsOfTable = 512;  // in one, whose warps share a table
constexpr int kThreadsOfSample = kSamplingWarps * kWarp;
constexpr int kStages = 4;   // of the ring
constexpr int kAhead = 2;    // stages that are filled before they are needed
constexpr int kColumns = 8;  // queries of a product
constexpr int kQueries = 64;
constexpr int kSampleQueries = 32;
constexpr std::int64_t kSharedBytes = 228 * 1024;  // of a multiprocessor
constexpr std::int64_t kReservedBytes = 1024;      // of a block
constexpr std::int64_t kHeadBytes = 128;
constexpr std::int64_t kMaxHalves = 4096;
constexpr std::uint32_t kCodeBytes = kChunk * sizeof(__half);  // of a chunk's table, for each code
constexpr int kGroupsOfTile = kWarp / static_cast<int>(kLanesOfRow);
constexpr int kRowsOfLane = 2 * static_cast<int>(kPageTiles);  // rows g, g + 8, g + 16 and g + 24
static_assert(kGroupsOfList == kSamplingWarps * kPageTiles * kGroupsOfTile);

/// What a code stands for: a number, or halves of a table, two, four, or some eights. Or pages hold the halves.
enum class wide_form : std::uint8_t { numbers8, numbers4, pairs, quads, eights, halves };
constexpr bool looks_up(wide_form form) {
  return form == wide_form::pairs || form == wide_form::quads || form == wide_form::eights;
}

constexpr int threads_of(bool looks_up, bool samples) {
  return samples ? kThreadsOfSample : looks_up ? kThreadsOfTable : kThreads;
}
constexpr int blocks_of(bool looks_up, bool samples) { return looks_up ? (samples ? 2 : 1) : samples ? 4 : 2; }
constexpr int most_queries(bool samples) { return samples ? kSampleQueries : kQueries; }

struct wide_head {
  std::uint32_t number;             // of the item
  std::uint64_t is_full[kStages];   // barriers: a chunk's table is there
  std::uint64_t is_empty[kStages];  // no warp needs it any more
};
static_assert(sizeof(wide_head) <= kHeadBytes);

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
  std::int32_t eights;        ///< of a piece, if it has some
  std::uint32_t stage_bytes;  ///< of a chunk's table
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

/// Codewords, by look-ups in a chunk's table. The eight lanes that look at the same pieces, of eight rows, would often
/// meet in a bank: so lanes take a chunk's pieces in an order of their own, as codeword_reader's do.
template <wide_form Form>
class chunk_reader {
 public:
  static constexpr int kCodes = Form == wide_form::pairs ? 4 : Form == wide_form::quads ? 2 : 1;  // of a chunk
  using codeword = std::conditional_t<Form == wide_form::pairs, std::uint32_t,
                                      std::conditional_t<Form == wide_form::quads, uint2, uint4>>;

  __device__ chunk_reader(std::int32_t code_bits, int lane)
      : has_bytes_(code_bits == 8),
        lane_(static_cast<std::uint32_t>(lane) % kLanesOfRow),
        turn_(static_cast<std::uint32_t>(lane) / kLanesOfRow % kCodes) {}

  /// Codes [i, i + kCodes) of each word, from the table at this address.
  __device__ __forceinline__ void decode(const std::uint32_t (&words)[kRowsOfLane], std::int32_t i, std::uint32_t table,
                                         chunk_rows& rows) const {
#pragma unroll
    for (int row = 0; row < kRowsOfLane; row++) {
      const std::uint32_t codes = __byte_perm(bytes_of(words[row], i), 0, 0x3210u ^ (turn_ * 0x1111u));
      codeword found[kCodes];
#pragma unroll
      for (int c = 0; c < kCodes; c++) {
        const std::uint32_t bank = table + ((turn_ ^ c) * kLanesOfRow + lane_) * sizeof(codeword);
        load_codeword(__dp4a(codes, kCodeBytes << (8 * c), bank), found[c]);  // the c-th byte times kCodeBytes
      }
      if constexpr (Form == wide_form::pairs) {
        exchange_if((turn_ & 1) != 0, found[0], found[1]);
        exchange_if((turn_ & 1) != 0, found[2], found[3]);
        exchange_if((turn_ & 2) != 0, found[0], found[2]);
        exchange_if((turn_ & 2) != 0, found[1], found[3]);
#pragma unroll
        for (int j = 0; j < 4; j++) set_word(rows, row, j, found[j]);
      } else if constexpr (Form == wide_form::quads) {
        exchange_if(turn_ != 0, found[0], found[1]);
#pragma unroll
        for (int j = 0; j < 4; j++) set_word(rows, row, j, j % 2 == 0 ? found[j / 2].x : found[j / 2].y);
      } else {
        set_word(rows, row, 0, found[0].x);
        set_word(rows, row, 1, found[0].y);
        set_word(rows, row, 2, found[0].z);
        set_word(rows, row, 3, found[0].w);
      }
    }
  }

 private:
  /// Codes from the i-th on, a byte each.
  __device__ __forceinline__ std::uint32_t bytes_of(std::uint32_t word, std::int32_t i) const {
    if (has_bytes_) return word >> (8 * i);
    word >>= i % 2 * 16 + i / 2 * 4;  // i is even, unless one code is a chunk
    const std::uint32_t even = word & 0x000F000Fu;
    const std::uint32_t odd = (word >> 4) & 0x000F000Fu;
    return __byte_perm(even, odd, 0x6420u);
  }

  bool has_bytes_;
  std::uint32_t lane_;
  std::uint32_t turn_;
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
  static constexpr bool kLooksUp = looks_up(Form);
  static constexpr int kWarps = threads_of(kLooksUp, Samples) / kWarp;

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
    if constexpr (kLooksUp) ring_ = shared_address(item_.queries + args.queries);
  }

  __device__ void run() {
    const std::uint32_t items = min(*pass_.item_count, pass_.item_room);
    if constexpr (kLooksUp) begin_ring();
    for (;;) {
      __syncthreads();  // all are done with the item before
      if (threadIdx.x == 0) head_.number = atomicAdd(pass_.next_item, 1u);
      __syncthreads();
      if (head_.number >= items) break;
      const scan_item item = pass_.items[head_.number];
      stage(item);
      __syncthreads();
      scan(item);
    }
    if constexpr (kLooksUp) end_ring();
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
  __device__ void scan(const scan_item& item) {
    const int products = static_cast<int>(item.pairs + kColumns - 1) / kColumns;
    float least[Samples ? kMost : 1][kPageTiles][2];
    if constexpr (Samples) {
#pragma unroll
      for (int p = 0; p < kMost; p++)
#pragma unroll
        for (int tile = 0; tile < kPageTiles; tile++)
          least[p][tile][0] = least[p][tile][1] = __uint_as_float(0x7F800000u);
    }
    for (std::uint32_t round = 0; round < item.pages; round += kWarps) {
      const std::uint32_t at = round + warp_;
      if (at >= item.pages) {
        if constexpr (kLooksUp) pass_table();
        break;
      }
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
  __device__ __forceinline__ void multiply(std::uint32_t page, int products, float (&sums)[kMost][kPageTiles][4]) {
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
  __device__ __forceinline__ void for_each_chunk_of_codes(const page_codes& codes, Use use) {
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
        using reader = chunk_reader<Form>;
        const reader table(args_.code_bits, lane_);
        const std::int32_t codes_of_word = 32 / args_.code_bits;
#pragma unroll 1
        for (std::int32_t code = 0; code < codes_of_word; code += reader::kCodes) {
#pragma unroll 1
          for (std::int32_t eight = 0; eight < args_.eights; eight++) {
            table.decode(words[0], code, await_table(), rows);
            leave_table();
            use(rows);
          }
        }
      }
    }
  }

  // The ring of chunks' tables, which all warps go through in step, page after page: turn n has chunk n modulo the
  // chunks of a row. A warp fills it in its turn.

  __device__ void begin_ring() {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kStages; stage++) {
        barrier_init(&head_.is_full[stage], 1);
        barrier_init(&head_.is_empty[stage], kWarps);
      }
      barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (std::uint32_t turn = 0; turn < kAhead; turn++) fill(turn);
  }
  /// What is on its way has to come before the block may end.
  __device__ void end_ring() {
    for (std::uint32_t turn = turn_; turn < turn_ + kAhead; turn++) await_full(turn);
  }
  __device__ __forceinline__ void fill(std::uint32_t turn) const {
    const std::uint32_t stage = turn % kStages;
    async_fence();  // what was read before is, before it is written anew
    barrier_expect(&head_.is_full[stage], args_.stage_bytes);
    bulk_copy_to(ring_ + stage * args_.stage_bytes,
                 reinterpret_cast<const std::byte*>(batch_.table) +
                     static_cast<std::int64_t>(turn % static_cast<std::uint32_t>(args_.chunks)) * args_.stage_bytes,
                 args_.stage_bytes, shared_address(&head_.is_full[stage]));
  }
  __device__ __forceinline__ void await_full(std::uint32_t turn) const {
    barrier_wait(&head_.is_full[turn % kStages], turn / kStages % 2);
  }

  /// Where the table of the next chunk lies, when it is there.
  __device__ __forceinline__ std::uint32_t await_table() {
    const std::uint32_t next = turn_ + kAhead;
    if (turn_ % kWarps == warp_ && lane_ == 0) {
      if (next >= kStages) barrier_wait(&head_.is_empty[next % kStages], (next / kStages - 1) % 2);
      fill(next);
    }
    await_full(turn_);
    return ring_ + turn_ % kStages * args_.stage_bytes;
  }
  /// The warp has looked up what it needs.
  __device__ __forceinline__ void leave_table() {
    __syncwarp();
    if (lane_ == 0) barrier_arrive_at(shared_address(&head_.is_empty[turn_ % kStages]));
    turn_++;
  }
  /// The warp has no page that the others need the table for.
  __device__ __forceinline__ void pass_table() {
    for (std::int32_t chunk = 0; chunk < args_.chunks; chunk++) {
      await_table();
      leave_table();
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
  std::uint32_t ring_ = 0;
  std::uint32_t turn_ = 0;
};

template <wide_form Form, bool Samples>
__global__ void __launch_bounds__(threads_of(looks_up(Form), Samples), blocks_of(looks_up(Form), Samples))
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
           {.grid = dim3(static_cast<unsigned>(multiprocessors * blocks_of(looks_up(Form), Samples))),
            .threads = threads_of(looks_up(Form), Samples),
            .shared_bytes = kHeadBytes + args.queries * bytes_of_query(args.chunks * kChunk) +
                            (looks_up(Form) ? kStages * args.stage_bytes : 0),
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

std::uint32_t stage_bytes_of(const core::ivf_pq_shape& shape) {
  return static_cast<std::uint32_t>(table_codes(shape)) * kCodeBytes;
}

/// Of an item, beside the ring, whose stages have so many bytes.
std::int32_t queries_that_fit(std::int64_t halves, std::uint32_t stage_bytes, bool sample) {
  const std::int64_t room = kSharedBytes / blocks_of(stage_bytes > 0, sample) - kReservedBytes - kHeadBytes -
                            kStages * static_cast<std::int64_t>(stage_bytes);
  const std::int64_t fit = room / bytes_of_query(halves) / kColumns * kColumns;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(fit, kColumns, most_queries(sample)));
}

}  // namespace

bool has_wide_scan(const core::ivf_pq_shape& shape) {
  const page_layout layout(shape);
  return (shape.uniform || layout.halves > 1) && layout.padded_halves() <= kMaxHalves;
}

std::int32_t queries_of_wide_item(const core::ivf_pq_shape& shape, bool sample) {
  return queries_that_fit(page_layout(shape).padded_halves(), shape.uniform ? 0 : stage_bytes_of(shape), sample);
}

std::int32_t queries_of_wide_halves(std::int64_t halves, bool sample) { return queries_that_fit(halves, 0, sample); }

void launch_wide_scan(cudaStream_t stream, const filter_batch& batch, bool samples, int multiprocessors) {
  const page_layout layout(batch.shape);
  const std::int64_t tile_bytes = form_of(batch) == wide_form::halves
                                      ? kTileRows * layout.padded_halves() * static_cast<std::int64_t>(sizeof(__half))
                                      : layout.tile_bytes();
  const wide_args args{.batch = batch,
                       .chunks = static_cast<std::int32_t>(layout.padded_halves() / kChunk),
                       .queries = form_of(batch) == wide_form::halves
                                      ? queries_of_wide_halves(layout.padded_halves(), samples)
                                      : queries_of_wide_item(batch.shape, samples),
                       .row_words = static_cast<std::int32_t>(layout.lane_words / 2),
                       .plane_shift = layout.plane_words == 4 ? 2 : 1,
                       .tile_words = static_cast<std::int32_t>(tile_bytes / 4),
                       .code_bits = static_cast<std::int32_t>(layout.code_bits),
                       .eights = static_cast<std::int32_t>(std::max<std::int64_t>(layout.halves / kChunkHalves, 1)),
                       .stage_bytes = stage_bytes_of(batch.shape)};
  if (samples)
    launch_form<true>(stream, args, multiprocessors);
  else
    launch_form<false>(stream, args, multiprocessors);
}

}  // namespace shortlist::cuda
