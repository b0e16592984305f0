// What scans of rows that registers do not hold share, whatever multiplies: how items, codes and tables of codewords
// come, and what becomes of sums. See wide_scan.cu, and wide_scan_hopper.cu.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/filter_decode.cuh"
#include "cuda/ivf_pq/filter_hits.cuh"
#include "cuda/ivf_pq/wide_scan.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {

inline constexpr int kEight = 8;        // queries of a product, at least
inline constexpr int kWideStages = 4;   // of the ring
inline constexpr int kStagesAhead = 2;  // that are filled before they are needed
inline constexpr std::int64_t kWideHeadBytes = 128;
inline constexpr std::uint32_t kCodeBytes = kChunk * sizeof(__half);  // of a chunk's table, for each code
inline constexpr int kGroupsOfTile = kWarp / static_cast<int>(kLanesOfRow);
inline constexpr int kRowsOfLane = 2 * static_cast<int>(kPageTiles);  // rows g, g + 8, g + 16 and g + 24
static_assert(kGroupsOfList == kSamplingWarps * kPageTiles * kGroupsOfTile);

/// What a code stands for: a number, or halves of a table, two, four, or some eights. Or pages hold the halves.
enum class wide_form : std::uint8_t { numbers8, numbers4, pairs, quads, eights, halves };
constexpr bool looks_up(wide_form form) {
  return form == wide_form::pairs || form == wide_form::quads || form == wide_form::eights;
}

/// Words of codes of a row that a lane takes at once.
template <wide_form Form>
using wide_word = std::conditional_t<Form == wide_form::numbers8, uint2, std::uint32_t>;

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

inline constexpr std::uint32_t kWideItems = 4;  // that is scanned, and those after, which are here or on their way
inline constexpr std::uint32_t kItemsAhead = 2;

struct wide_head {
  scan_item items[kWideItems];
  std::uint64_t is_full[kWideStages];   ///< barriers: a chunk's table is there
  std::uint64_t is_empty[kWideStages];  ///< no warp needs it any more
};
static_assert(sizeof(wide_head) <= kWideHeadBytes);

/// What a query has beside its column: its pair, and that of the next item.
inline constexpr std::int64_t kWideFactsBytes = 2 * static_cast<std::int64_t>(sizeof(scan_pair));

/// Of a chunk's table; 0 if codes are numbers.
inline std::uint32_t stage_bytes_of(const core::ivf_pq_shape& shape) {
  return shape.uniform ? 0 : static_cast<std::uint32_t>(table_codes(shape)) * kCodeBytes;
}

wide_args wide_args_of(const filter_batch& batch, std::int32_t queries);
wide_form wide_form_of(const filter_batch& batch);

/// A lane's part of the codes of a page.
class page_codes {
 public:
  __device__ page_codes(const wide_args& args, const std::byte* page, int lane)
      : args_(args),
        words_(reinterpret_cast<const std::uint32_t*>(page) + (lane << args.plane_shift)),
        has_planes_(args.row_words % 4 == 0) {}

  /// The i-th word of each of the lane's rows, or as many as Words from there on, which lie together.
  template <class Words>
  __device__ __forceinline__ void load(std::int32_t i, Words (&words)[kRowsOfLane]) const {
    for_each_row(i,
                 [&](int row, const std::uint32_t* from) { words[row] = __ldg(reinterpret_cast<const Words*>(from)); });
  }

  /// Calls visit(row, where those are).
  template <class Visit>
  __device__ __forceinline__ void for_each_row(std::int32_t i, Visit visit) const {
#pragma unroll
    for (int upper = 0; upper < 2; upper++) {
      const std::int32_t word = upper * args_.row_words + i;
      const std::int32_t in_plane = word & ((1 << args_.plane_shift) - 1);
      // Planes of four words are of one row each, if its words are fours: then one sum serves both.
      const std::int32_t at = has_planes_ ? i / 4 * (4 * kWarp) + i % 4 + upper * args_.row_words * kWarp
                                          : ((word >> args_.plane_shift) * kWarp << args_.plane_shift) + in_plane;
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++) visit(2 * tile + upper, words_ + at + tile * args_.tile_words);
    }
  }

 private:
  const wide_args& args_;
  const std::uint32_t* words_;
  bool has_planes_;
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
__device__ __forceinline__ void decode_numbers(const uint2 (&words)[kRowsOfLane], chunk_rows& rows) {
#pragma unroll
  for (int row = 0; row < kRowsOfLane; row++) {
#pragma unroll
    for (int j = 0; j < 4; j++) set_word(rows, row, j, halves_of_bytes(j < 2 ? words[row].x : words[row].y, j % 2));
  }
}

/// A word of codes of four bits, less 8.
__device__ __forceinline__ void decode_numbers(const std::uint32_t (&words)[kRowsOfLane], chunk_rows& rows) {
  const nibble_reader nibbles;
#pragma unroll
  for (int row = 0; row < kRowsOfLane; row++) {
#pragma unroll
    for (int j = 0; j < 4; j++) set_word(rows, row, j, nibbles.halves(words[row], j));
  }
}

/// A block at work on one item after another.
/// @tparam Products what multiplies: threads, queries of an item at most, how their columns lie, products, and whether
/// shared memory has room for codes of numbers on their way.
template <wide_form Form, class Products, bool Samples>
class wide_scan {
 public:
  static constexpr int kWarps = Products::kThreads / kWarp;
  static constexpr int kEights = Products::kQueries / kEight;
  using page_sums = float[kPageTiles][4 * kEights];  // of eight queries each: rows g and g + 8 of two

  /// `shared` has the columns, what the block keeps of itself, pairs and the ring, one behind the other.
  __device__ wide_scan(const wide_args& args, unsigned char* shared)
      : args_(args),
        batch_(args.batch),
        pass_(Samples ? args.batch.sample : args.batch.all),
        columns_(shared, args),
        head_(*reinterpret_cast<wide_head*>(shared + columns_.bytes())),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        warp_(threadIdx.x / kWarp) {
    pairs_ = reinterpret_cast<scan_pair*>(shared + columns_.bytes() + kWideHeadBytes);
    ring_ = shared_address(pairs_ + 2 * args.queries);
  }

  /// While an item is scanned, the next one's pairs come, and an item after that.
  __device__ void run() {
    const std::uint32_t items = min(*pass_.item_count, pass_.item_room);
    std::uint32_t number = 0;  // of the item that is asked for next; the first thread
    const auto ask_for_item = [&](std::uint32_t turn) {
      if (threadIdx.x != 0) return;
      const bool is_real = number < items;
      async_copy_16(shared_address(&head_.items[turn % kWideItems]), pass_.items + (is_real ? number : 0), is_real);
      number = atomicAdd(pass_.next_item, 1u);
    };
    if (threadIdx.x == 0) number = atomicAdd(pass_.next_item, 1u);
    for (std::uint32_t turn = 0; turn < kItemsAhead; turn++) ask_for_item(turn);
    if constexpr (looks_up(Form)) begin_ring();
    async_wait_all();
    __syncthreads();
    ask_for_pairs(0);
    for (std::uint32_t turn = 0;; turn++) {
      async_wait_all();
      __syncthreads();  // all are done with the item before, and this one's pairs are there
      const scan_item item = head_.items[turn % kWideItems];
      if (item.pairs == 0) break;
      stage(turn, item);
      async_wait_all();
      columns_.put_all();
      __syncthreads();
      ask_for_item(turn + kItemsAhead);
      ask_for_pairs(turn + 1);
      scan(turn, item);
    }
    if constexpr (looks_up(Form)) end_ring();
  }

 private:
  static __device__ __forceinline__ void async_wait_all() {
    async_commit();
    async_wait<0>();
  }

  __device__ __forceinline__ scan_pair* pairs_of(std::uint32_t turn) const {
    return pairs_ + turn % 2 * static_cast<std::uint32_t>(args_.queries);
  }

  /// Of the item's last eight queries those that are not there are pairs that nothing reaches.
  __device__ void ask_for_pairs(std::uint32_t turn) const {
    const scan_item& item = head_.items[turn % kWideItems];
    const std::uint32_t padded = (item.pairs + kEight - 1) / kEight * kEight;
    for (std::uint32_t q = threadIdx.x; q < padded; q += kWarps * kWarp) {
      if (q < item.pairs)
        async_copy_16(shared_address(pairs_of(turn) + q), pass_.pairs + item.first_pair + q, true);
      else
        pairs_of(turn)[q] = {0, 0.0f, -__uint_as_float(0x7F800000u)};
    }
  }

  /// Brings an item's queries in.
  __device__ void stage(std::uint32_t turn, const scan_item& item) const {
    const std::uint32_t padded = (item.pairs + kEight - 1) / kEight * kEight;
    const auto pieces = static_cast<std::uint32_t>(args_.chunks) * static_cast<std::uint32_t>(kLanesOfRow);
    for (std::uint32_t q = warp_; q < padded; q += kWarps) {
      const std::uint32_t of_pair = pairs_of(turn)[q].query;
      const std::int64_t query = Samples ? of_pair / static_cast<std::uint32_t>(pass_.lists_of_query) : of_pair;
      const uint4* column = reinterpret_cast<const uint4*>(batch_.columns) + query * pieces;
      for (std::uint32_t piece = lane_; piece < pieces; piece += kWarp) columns_.put(q, piece, column, q < item.pairs);
    }
  }

  /// The warps' pages of an item. Warps that multiply together come together: one that has no page takes the last.
  __device__ void scan(std::uint32_t turn, const scan_item& item) {
    const int eights = static_cast<int>(item.pairs + kEight - 1) / kEight;
    float least[Samples ? kEights : 1][kPageTiles][2];
    if constexpr (Samples) {
#pragma unroll
      for (int p = 0; p < kEights; p++)
#pragma unroll
        for (int tile = 0; tile < kPageTiles; tile++)
          least[p][tile][0] = least[p][tile][1] = __uint_as_float(0x7F800000u);
    }
    for (std::uint32_t round = 0; round < item.pages; round += kWarps) {
      const std::uint32_t at = round + warp_;
      if (round + warp_ / Products::kWarpsTogether * Products::kWarpsTogether >= item.pages) {
        if constexpr (looks_up(Form)) pass_table();
        break;
      }
      const std::uint32_t page = batch_.lists.table[item.table_at + min(at, item.pages - 1)];
      if (at + kWarps < item.pages) send_for(batch_.lists.table[item.table_at + at + kWarps]);
      page_sums sums;
      multiply(page, eights, sums);
      if (at >= item.pages) break;
      if constexpr (Samples) {
#pragma unroll
        for (int p = 0; p < kEights; p++)
#pragma unroll
          for (int tile = 0; tile < kPageTiles; tile++)
#pragma unroll
            for (int i = 0; i < 2; i++)
              least[p][tile][i] = fminf(least[p][tile][i], fminf(sums[tile][4 * p + i], sums[tile][4 * p + i + 2]));
      } else {
#pragma unroll
        for (int p = 0; p < kEights; p++)
          if (p < eights) keep(pairs_of(turn), page, p, sums);
      }
    }
    if constexpr (Samples) write_least(pairs_of(turn), item.pairs, least);
  }

  /// Has a page come into the L2 cache.
  __device__ __forceinline__ void send_for(std::uint32_t page) const {
    const std::byte* from = batch_.lists.pages + page * batch_.page_bytes;
    for (std::int64_t at = lane_ * kLineBytes; at < batch_.page_bytes; at += kWarp * kLineBytes)
      prefetch_line(from + at);
  }

  /// sums = terms + a page x the item's queries.
  __device__ __forceinline__ void multiply(std::uint32_t page, int eights, page_sums& sums) {
    const std::byte* from = batch_.lists.pages + page * batch_.page_bytes;
    const auto* terms = reinterpret_cast<const float*>(from + kPageTiles * args_.tile_words * 4);
#pragma unroll
    for (int row = 0; row < kRowsOfLane; row++) {
      const float term = __ldg(terms + row * kGroupsOfTile + lane_ / kLanesOfRow);
#pragma unroll
      for (int p = 0; p < kEights; p++)
        sums[row / 2][4 * p + row % 2 * 2] = sums[row / 2][4 * p + row % 2 * 2 + 1] = term;
    }
    std::int32_t chunk = 0;
    const auto use = [&](chunk_rows& rows) { columns_.multiply(rows, chunk++, eights, sums); };
    if constexpr (Form == wide_form::halves)
      for_each_chunk_of_halves(reinterpret_cast<const uint4*>(from), use);
    else
      for_each_chunk_of_codes(page_codes(args_, from, lane_), use);
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
    using word = wide_word<Form>;
    constexpr int kWords = sizeof(word) / sizeof(std::uint32_t);
    word words[kRowsOfLane];
    if constexpr (Products::kStagesCodes && !looks_up(Form)) {
      const auto places = static_cast<std::uint32_t>(args_.row_words / kWords);
      const auto ask_for = [&](std::uint32_t place) {
        if (place < places) ask_for_words<word>(codes, place);
        async_commit();
      };
      for (std::uint32_t place = 0; place + 1 < kWideStages; place++) ask_for(place);
#pragma unroll 1
      for (std::uint32_t place = 0; place < places; place++) {
        async_wait<kWideStages - 2>();
#pragma unroll
        for (int row = 0; row < kRowsOfLane; row++) load_codeword(words_at<word>(place, row), words[row]);
        ask_for(place + kWideStages - 1);
        chunk_rows rows;
        decode_numbers(words, rows);
        use(rows);
      }
      return;
    }
    word next[kRowsOfLane];
    codes.load(0, next);
#pragma unroll 1
    for (std::int32_t i = 0; i < args_.row_words; i += kWords) {
#pragma unroll
      for (int row = 0; row < kRowsOfLane; row++) words[row] = next[row];
      if (i + kWords < args_.row_words) codes.load(i + kWords, next);
      chunk_rows rows;
      if constexpr (!looks_up(Form)) {
        decode_numbers(words, rows);
        use(rows);
      } else {
        using reader = chunk_reader<Form>;
        const reader table(args_.code_bits, lane_);
        const std::int32_t codes_of_word = 32 / args_.code_bits;
#pragma unroll 1
        for (std::int32_t code = 0; code < codes_of_word; code += reader::kCodes) {
#pragma unroll 1
          for (std::int32_t eight = 0; eight < args_.eights; eight++) {
            table.decode(words, code, await_table(), rows);
            leave_table();
            use(rows);
          }
        }
      }
    }
  }

  // Codes of numbers that are on their way to shared memory, each lane's own: [warps, stages, rows, lanes].

  template <class Word>
  __device__ __forceinline__ std::uint32_t words_at(std::uint32_t place, int row) const {
    const std::uint32_t at = ((warp_ * kWideStages + place % kWideStages) * kRowsOfLane + row) * kWarp + lane_;
    return ring_ + at * sizeof(Word);
  }
  template <class Word>
  __device__ __forceinline__ void ask_for_words(const page_codes& codes, std::uint32_t place) const {
    constexpr std::int32_t kWords = sizeof(Word) / sizeof(std::uint32_t);
    codes.for_each_row(static_cast<std::int32_t>(place) * kWords, [&](int row, const std::uint32_t* from) {
      if constexpr (kWords == 2)
        async_copy_8(words_at<Word>(place, row), from, true);
      else
        async_copy_4(words_at<Word>(place, row), from);
    });
  }

  // The ring of chunks' tables, which all warps go through in step, page after page: turn n has chunk n modulo the
  // chunks of a row. A warp fills it in its turn.

  __device__ void begin_ring() {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < kWideStages; stage++) {
        barrier_init(&head_.is_full[stage], 1);
        barrier_init(&head_.is_empty[stage], kWarps * kWarp);
      }
      barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0)
      for (std::uint32_t turn = 0; turn < kStagesAhead; turn++) fill(turn);
  }
  /// What is on its way has to come before the block may end.
  __device__ void end_ring() {
    for (std::uint32_t turn = turn_; turn < turn_ + kStagesAhead; turn++) await_full(turn);
  }
  __device__ __forceinline__ void fill(std::uint32_t turn) const {
    const std::uint32_t stage = turn % kWideStages;
    async_fence();  // what was read before is, before it is written anew
    barrier_expect(&head_.is_full[stage], args_.stage_bytes);
    bulk_copy_to(ring_ + stage * args_.stage_bytes,
                 reinterpret_cast<const std::byte*>(batch_.table) +
                     static_cast<std::int64_t>(turn % static_cast<std::uint32_t>(args_.chunks)) * args_.stage_bytes,
                 args_.stage_bytes, shared_address(&head_.is_full[stage]));
  }
  __device__ __forceinline__ void await_full(std::uint32_t turn) const {
    barrier_wait(&head_.is_full[turn % kWideStages], turn / kWideStages % 2);
  }

  /// Where the table of the next chunk lies, when it is there.
  __device__ __forceinline__ std::uint32_t await_table() {
    const std::uint32_t next = turn_ + kStagesAhead;
    if (turn_ % kWarps == warp_ && lane_ == 0) {
      if (next >= kWideStages) barrier_wait(&head_.is_empty[next % kWideStages], (next / kWideStages - 1) % 2);
      fill(next);
    }
    await_full(turn_);
    return ring_ + turn_ % kWideStages * args_.stage_bytes;
  }
  /// The warp has looked up what it needs.
  __device__ __forceinline__ void leave_table() {
    barrier_arrive_at(shared_address(&head_.is_empty[turn_ % kWideStages]));  // each lane, whose reads that follows
    turn_++;
  }
  /// The warp has no page that the others need the table for.
  __device__ __forceinline__ void pass_table() {
    for (std::int32_t chunk = 0; chunk < args_.chunks; chunk++) {
      await_table();
      leave_table();
    }
  }

  /// What reaches the limits of eight queries.
  __device__ __forceinline__ void keep(const scan_pair* pairs, std::uint32_t page, int eight,
                                       const page_sums& sums) const {
    const scan_pair* two = pairs + eight * kEight + lane_ % static_cast<int>(kLanesOfRow) * 2;
    const float limits[2] = {two[0].limit, two[1].limit};
#pragma unroll
    for (int tile = 0; tile < kPageTiles; tile++) {
      const float* of_tile = sums[tile] + 4 * eight;
      const bool reached[4] = {of_tile[0] <= limits[0], of_tile[1] <= limits[1], of_tile[2] <= limits[0],
                               of_tile[3] <= limits[1]};
      if (!(reached[0] | reached[1] | reached[2] | reached[3])) continue;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (!reached[i]) continue;
        const int row = (2 * tile + i / 2) * kGroupsOfTile + lane_ / static_cast<int>(kLanesOfRow);
        const scan_hit hit{__fmaf_rn(of_tile[i], batch_.header->unit, two[i % 2].base),
                           page * static_cast<slot>(core::kPageRows) + row, two[i % 2].query};
        put_hit(batch_, take_place(batch_, hit), hit);
      }
    }
  }

  /// The warp's part of an item's sample.
  __device__ void write_least(const scan_pair* pairs, std::uint32_t count,
                              const float (&least)[kEights][kPageTiles][2]) const {
    const float unit = batch_.header->unit;
#pragma unroll
    for (int p = 0; p < kEights; p++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const std::uint32_t q = p * kEight + lane_ % kLanesOfRow * 2 + i;
        if (q >= count) continue;
        float* to = batch_.minima + static_cast<std::int64_t>(pairs[q].query) * kGroupsOfList +
                    warp_ * kPageTiles * kGroupsOfTile + lane_ / kLanesOfRow;
#pragma unroll
        for (int tile = 0; tile < kPageTiles; tile++)
          to[tile * kGroupsOfTile] = pairs[q].base + least[p][tile][i] * unit;
      }
    }
  }

  const wide_args& args_;
  const filter_batch& batch_;
  const scan_pass& pass_;
  typename Products::columns columns_;
  wide_head& head_;
  scan_pair* pairs_;  // [2, queries]
  int lane_;
  std::uint32_t warp_;
  std::uint32_t ring_ = 0;
  std::uint32_t turn_ = 0;
};

/// Calls launch.operator()<Form>().
template <class Launch>
void with_wide_form(wide_form form, Launch launch) {
  switch (form) {
    case wide_form::numbers8: return launch.template operator()<wide_form::numbers8>();
    case wide_form::numbers4: return launch.template operator()<wide_form::numbers4>();
    case wide_form::pairs: return launch.template operator()<wide_form::pairs>();
    case wide_form::quads: return launch.template operator()<wide_form::quads>();
    case wide_form::eights: return launch.template operator()<wide_form::eights>();
    case wide_form::halves: return launch.template operator()<wide_form::halves>();
  }
}

}  // namespace shortlist::cuda
