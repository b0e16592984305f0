// Lists against all queries that look at them, on the matrix units.
//
// An item is a list, or a part of a long one, with up to `queries_of_item` queries; teams of threads, which stay, take
// items as they come. Where codewords are looked up, the teams of a multiprocessor are one block and share its table,
// for which there is room twice then, so that no two lanes of a look-up meet in a bank. A warp holds a page of 32
// decoded rows in registers and multiplies it with the item's queries, eight at a time, from shared memory; the next
// page's codes and later items' queries are on their way meanwhile. Warps do not meet: one may be at the next item
// while another still scans this one. Products begin at the rows' terms, so that one comparison with the query's limit
// is left of a distance.
// A sample keeps, of each list and query, the least distance of 64 groups of rows; a full pass appends rows that reach
// their query's threshold to its list, or marks them, a bit each, or writes all distances out.
// Limit: two thirds of the issue slots are used, half of them by decoding where lists have few queries, and 60 % of
// the turns of shared memory; where all distances are written, memory. The bytes of codes would take half of the time.
// History: docs/kernels.md.
#include <algorithm>
#include <bit>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/score.cuh"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/filter_decode.cuh"
#include "cuda/ivf_pq/filter_hits.cuh"
#include "cuda/ivf_pq/wide_scan.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreadsOfMultiprocessor = 512;  // teams of it are blocks, or parts of one
constexpr int kThreads = 256;                  // of a team
constexpr int kThreadsOfSample = kSamplingWarps * kWarp;
constexpr int kSharedBytes = 228 * 1024;  // of a multiprocessor, of which the driver takes some of each block
constexpr int kReservedBytes = 1024;
constexpr int kColumns = 8;  // queries of a product
constexpr int kWideSteps = 8;
// Queries of an item; of those with many steps fewer, whose rows and table leave less room. For few of them there are
// three stages, otherwise as many as fit, two at least.
constexpr int kSampleQueries = 32;
constexpr int kSampleQueriesOfWide = 24;
constexpr int kQueries = 120;
constexpr int kQueriesOfWide = 64;
constexpr int kFewQueries = 80;
constexpr int kFewQueriesOfWide = 40;
constexpr std::int64_t kFewPairsOfList = 48;  // in the mean, so that lists seldom have more than kFewQueries
constexpr std::int64_t kFewPairsOfWideList = 12;
constexpr int kMostStages = 3;
constexpr int kItemRoom = 8;  // of items that are scanned or staged, and those after
constexpr int kWarpHits = 96;
constexpr int kWarpHitsOfHalves = 384;  // of lists' centroids: searches for many lists have many hits
constexpr int kHitsAtOnce = 4;          // of a lane, on their way to their queries' lists
constexpr int kGroupsOfWarp = kGroupsOfList / kSamplingWarps;  // of a sample: of 32 rows two each
constexpr int kGroupsOfTile = kWarp / kLanesOfRow;
static_assert(kGroupsOfWarp == kPageTiles * kGroupsOfTile);

/// What becomes of distances.
enum class scan_kind : std::uint8_t {
  sample,     ///< the least of each group of rows is kept
  hits,       ///< those that reach their query's limit go to its list
  distances,  ///< all are written out, of all pages or of some
  marks,      ///< those that reach their query's limit are marked, a bit each
};

constexpr int queries_of(int steps, bool sample) {
  if (sample) return steps >= kWideSteps ? kSampleQueriesOfWide : kSampleQueries;
  return steps >= kWideSteps ? kQueriesOfWide : kQueries;
}

/// How much of what shared memory has room for.
template <code_form Form, int Steps, scan_kind Kind>
struct scan_room {
  using layout = form_layout<Form, Steps>;
  static constexpr bool kSamples = Kind == scan_kind::sample;
  static constexpr int kTeamThreads = kSamples ? kThreadsOfSample : kThreads;
  static constexpr int kTeams = kThreadsOfMultiprocessor / kTeamThreads;
  static constexpr int kTeamsOfBlock = layout::kLooksUp ? kTeams : 1;  // which share the table
  static constexpr int kBlocks = kTeams / kTeamsOfBlock;
  static constexpr int kBlockBytes = kSharedBytes / kBlocks - kReservedBytes;
  static constexpr int kWarps = kTeamThreads / kWarp;
  static constexpr int kOfItem = queries_of(Steps, kSamples);
  static constexpr int kTableWords = layout::kLooksUp ? layout::kPieces * 256 * layout::kHalves / 2 : 4;  // of a copy
  static constexpr int kCopies = layout::kLooksUp ? kTableCopies<layout::kHalves> : 1;
  static constexpr int kNumberSets = kSamples ? 3 : 2;
  static constexpr int kLeast = kSamples ? kOfItem * kGroupsOfWarp : 4;  // of a warp, as is the next
  static constexpr int kHits = Kind != scan_kind::hits ? 4 : Form == code_form::halves ? kWarpHitsOfHalves : kWarpHits;
  // Queries that are staged: for three items of the most, or what is left.
  static constexpr int kRestBytes = 240;
  static constexpr int kOtherBytes =
      kOfItem * static_cast<int>(sizeof(scan_pair)) +
      kWarps * (4 * kNumberSets * kWarp + 4 * kLeast + static_cast<int>(sizeof(scan_hit)) * kHits) + kRestBytes;
  static constexpr int kQueryBytes = Steps * 32 + 12;
  static constexpr int kTeamBytes = (kBlockBytes - 4 * kCopies * kTableWords) / kTeamsOfBlock;
  static constexpr int kFit = (kTeamBytes - kOtherBytes) / kQueryBytes / kColumns * kColumns;
  static constexpr int kQueries = kFit < kMostStages * kOfItem ? kFit : kMostStages * kOfItem;
  static_assert(kQueries >= 2 * kOfItem);
  static_assert(kSamples || kQueries >= kMostStages * (Steps >= kWideSteps ? kFewQueriesOfWide : kFewQueries));
};

/// What a team works in, besides the table.
template <code_form Form, int Steps, scan_kind Kind>
struct scan_team {
  using room = scan_room<Form, Steps, Kind>;
  uint4 columns[room::kQueries * 2 * Steps];  // by eight queries: [Steps / 2][32 lanes]
  float limits[room::kQueries];               // of products; where distances are written, their unit
  float bases[room::kQueries];
  std::uint32_t queries[room::kQueries];  // where distances or marks are written, where those of the list begin
  scan_pair pairs[room::kOfItem];         // of an item that is staged next
  std::uint32_t numbers[room::kWarps][room::kNumberSets][kWarp];  // of each warp's pages, for items in turn
  float2 least[room::kWarps][room::kLeast / 2];  // of two queries: [tiles][pairs of the item's][groups of a tile]
  scan_hit hits[room::kWarps][room::kHits];
  std::uint32_t hit_counts[room::kWarps];
  float unit;  // of products
  scan_item items[kItemRoom];
  std::uint64_t is_staged[kMostStages];  // barriers: the queries of an item are there
  std::uint64_t is_done[kMostStages];    // no warp needs them any more
};

template <code_form Form, int Steps, scan_kind Kind>
struct scan_shared {
  using room = scan_room<Form, Steps, Kind>;
  alignas(16) std::uint32_t table[room::kCopies * room::kTableWords];  // [codes of all groups, copies, 16 codewords]
  scan_team<Form, Steps, Kind> teams[room::kTeamsOfBlock];
};

/// A team at work. Its warps go from item to item without meeting. An item's queries lie in one of two or three
/// stages; when all warps are done with an item, its stage takes the queries of the next but one or two. Pairs, numbers
/// of pages and items are asked for an item before they are needed, so that warps wait for codes alone, whose first are
/// asked for while the item before is scanned.
template <code_form Form, int Steps, scan_kind Kind>
class team_scan {
 public:
  using room = scan_room<Form, Steps, Kind>;
  using layout = form_layout<Form, Steps>;
  static constexpr int kChunksOfLane = Steps / 2;  // of 16 bytes, of a column
  static constexpr int kChunks = 2 * Steps;        // of a column
  static constexpr bool kDecodes = Form != code_form::halves;
  static constexpr bool kSamples = Kind == scan_kind::sample;
  static constexpr bool kWrites = Kind == scan_kind::distances || Kind == scan_kind::marks;  // by places
  static constexpr int kItemsAfter = 2;  // the last that is staged, which are here or on their way
  static constexpr int kTeamThreads = room::kTeamThreads;
  static constexpr int kWarps = room::kWarps;
  static constexpr int kThreadsOfQuery =  // which copy a column: all of one warp
      std::bit_floor(static_cast<unsigned>(kTeamThreads / room::kOfItem));
  static_assert(kMostStages - 1 + kItemsAfter < kItemRoom);

  __device__ team_scan(const filter_batch& batch, scan_shared<Form, Steps, Kind>& shared)
      : batch_(batch),
        pass_(kSamples                       ? batch.sample
              : Kind == scan_kind::distances ? batch.spread
                                             : batch.all),
        table_(shared.table),
        shared_(shared.teams[threadIdx.y]),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        warp_(static_cast<std::uint32_t>(threadIdx.x / kWarp)),
        stages_(kMostStages * pass_.queries_of_item <= room::kQueries ? kMostStages : 2),
        next_turn_(warp_) {}

  __device__ void run() {
    if (threadIdx.x == kTeamThreads - 1) {
      for (int i = 0; i < kItemsAfter; i++) shared_.items[i] = item_of(atomicAdd(pass_.next_item, 1u));
      number_ = atomicAdd(pass_.next_item, 1u);
      shared_.unit = batch_.header->unit;
      for (int stage = 0; stage < kMostStages; stage++) {
        barrier_init(&shared_.is_staged[stage], 2 * kTeamThreads);
        barrier_init(&shared_.is_done[stage], kTeamThreads);
      }
    }
    if (lane_ == 0) shared_.hit_counts[warp_] = 0;
    __syncthreads();
    if (__syncthreads_and(shared_.items[0].pairs == 0)) return;  // most blocks of a second scan: they need no table
    for (std::uint32_t turn = 0; turn + 1 < stages_; turn++) {
      ask_for_pairs(shared_.items[turn]);
      async_commit();
      stage(turn);
    }
    if constexpr (layout::kLooksUp) {
      bring_table();
    }
    if constexpr (kSamples) {
      for (int i = lane_; i < room::kLeast / 2; i += kWarp) shared_.least[warp_][i] = no_distances();
    }
    ask_for_numbers(0, shared_.items[0], next_turn_);
    if constexpr (kSamples) ask_for_numbers(1, shared_.items[1], turn_after(next_turn_, shared_.items[0]));
    async_commit();
    async_wait<0>();
    __syncthreads();
    for (std::uint32_t turn = 0;; turn++) {
      const scan_item& item = shared_.items[turn % kItemRoom];
      barrier_wait(&shared_.is_staged[stage_of(turn)], phase_of(turn));
      if (item.pairs == 0) break;
      scan(turn, item);
      if constexpr (kSamples) write_least(first_query(turn), item);
      barrier_arrive_at(shared_address(&shared_.is_done[stage_of(turn)]));
    }
    if constexpr (Kind == scan_kind::hits) flush_hits(0);
    async_wait<0>();
  }

 private:
  /// All teams of the block.
  __device__ void bring_table() const {
    constexpr int kChunksOfRow = kGroupPieces * kLanesOfRow * layout::kHalves / 8;
    constexpr int kStep = room::kTeamsOfBlock * kTeamThreads;
    const auto* from = reinterpret_cast<const uint4*>(batch_.table);
    auto* to = reinterpret_cast<uint4*>(table_);
    for (int i = threadIdx.y * kTeamThreads + threadIdx.x; i < room::kTableWords / 4; i += kStep) {
      const uint4 chunk = from[i];
#pragma unroll
      for (int copy = 0; copy < room::kCopies; copy++)
        to[(i / kChunksOfRow * room::kCopies + copy) * kChunksOfRow + i % kChunksOfRow] = chunk;
    }
  }

  /// Where the queries of an item lie, and whether those of an odd number of others lay there before.
  __device__ __forceinline__ std::uint32_t stage_of(std::uint32_t turn) const {
    return stages_ == kMostStages ? turn % kMostStages : turn % 2;
  }
  __device__ __forceinline__ std::uint32_t phase_of(std::uint32_t turn) const {
    return stages_ == kMostStages ? turn / kMostStages % 2 : turn / 2 % 2;
  }
  __device__ __forceinline__ std::uint32_t first_query(std::uint32_t turn) const {
    return stage_of(turn) * static_cast<std::uint32_t>(pass_.queries_of_item);
  }

  __device__ std::uint32_t item_count() const { return min(*pass_.item_count, pass_.item_room); }
  __device__ scan_item item_of(std::uint32_t number) const {
    return number < item_count() ? pass_.items[number] : scan_item{};
  }

  /// The pairs of the item that is staged next: those whose columns the warp copies.
  __device__ __forceinline__ void ask_for_pairs(const scan_item& item) const {
    const std::uint32_t q = threadIdx.x / kThreadsOfQuery;
    __syncwarp();  // all lanes have read the pairs before
    if (threadIdx.x % kThreadsOfQuery == 0 && q < item.pairs)
      async_copy_16(shared_address(shared_.pairs + q), pass_.pairs + item.first_pair + q, true);
  }

  /// Pages of all items are dealt out to the warps by turns: which of the next item's is the warp's first, if this is
  /// its first of an item.
  static __device__ __forceinline__ std::uint32_t turn_after(std::uint32_t turn, const scan_item& item) {
    return (turn - item.pages) % kWarps;
  }

  /// The numbers of the warp's pages of an item: the first 32, or those after so many.
  __device__ __forceinline__ void ask_for_numbers(std::uint32_t turn, const scan_item& item,
                                                  std::uint32_t first) const {
    const std::uint32_t at = first + lane_ * kWarps;
    if (at < item.pages)
      async_copy_4(shared_address(numbers_of(turn) + lane_),
                   batch_.lists.table + item.table_at + (Kind == scan_kind::distances ? at * pass_.stride : at));
  }
  __device__ __forceinline__ std::uint32_t* numbers_of(std::uint32_t turn) const {
    return shared_.numbers[warp_][turn % room::kNumberSets];
  }
  /// Those of the item that is scanned, from its step-th on: a warp may have more than 32.
  __device__ __forceinline__ void bring_numbers(std::uint32_t turn, const scan_item& item, int step) const {
    __syncwarp();
    ask_for_numbers(turn, item, (next_turn_ + item.pages) % kWarps + step * kWarps);
    async_commit();
    async_wait<0>();
    __syncwarp();
  }

  __device__ const std::byte* page_at(std::uint32_t page) const {
    return batch_.lists.pages + page * batch_.page_bytes;
  }

  /// Brings the queries of an item in, whose pairs were asked for, and one of the items that come after it. All warps
  /// are done with what was there before.
  __device__ void stage(std::uint32_t turn) {
    const std::uint32_t q = threadIdx.x / kThreadsOfQuery;
    const std::uint32_t part = threadIdx.x % kThreadsOfQuery;
    const std::uint32_t pairs = shared_.items[turn % kItemRoom].pairs;
    async_wait<0>();
    __syncwarp();
    if (q < (pairs + kColumns - 1) / kColumns * kColumns) {
      const bool is_real = q < pairs;
      const scan_pair pair = is_real ? shared_.pairs[q] : scan_pair{};
      const std::uint32_t query = kSamples ? pair.query / static_cast<std::uint32_t>(pass_.lists_of_query) : pair.query;
      const auto* from = reinterpret_cast<const uint4*>(batch_.columns) + static_cast<std::int64_t>(query) * kChunks;
      const std::uint32_t at = first_query(turn) + q;
      const std::uint32_t to =
          shared_address(shared_.columns + at / kColumns * kChunksOfLane * kWarp + at % kColumns * 4);
#pragma unroll
      for (int i = 0; i < (kChunks + kThreadsOfQuery - 1) / kThreadsOfQuery; i++) {
        const std::uint32_t chunk = part + i * kThreadsOfQuery;
        if (chunk >= kChunks) break;
        async_copy_16(to + (chunk % kChunksOfLane * kWarp + chunk / kChunksOfLane) * 16, from + chunk, is_real);
      }
      if (part == 0) {
        shared_.limits[at] = is_real ? pair.limit : -__uint_as_float(0x7F800000u);
        shared_.bases[at] = pair.base;
        shared_.queries[at] = kWrites ? pair.place : pair.query;
      }
    }
    if (threadIdx.x == kTeamThreads - 1) {
      const bool is_real = number_ < item_count();
      async_copy_16(shared_address(&shared_.items[(turn + kItemsAfter) % kItemRoom]),
                    pass_.items + (is_real ? number_ : 0), is_real);
      number_ = atomicAdd(pass_.next_item, 1u);
    }
    const std::uint32_t barrier = shared_address(&shared_.is_staged[stage_of(turn)]);
    async_arrive(barrier);
    barrier_arrive_at(barrier);
  }

  /// The warp's pages of an item; in the midst, or after them, a later item is staged.
  __device__ void scan(std::uint32_t turn, const scan_item& item) {
    const scan_item& next = shared_.items[(turn + 1) % kItemRoom];
    const scan_item& after = shared_.items[(turn + 2) % kItemRoom];
    const std::uint32_t first = next_turn_;
    const int pages = first < item.pages ? static_cast<int>((item.pages - first + kWarps - 1) / kWarps) : 0;
    next_turn_ = turn_after(first, item);
    if constexpr (kSamples) {  // a page of each item, or so: the next is asked for at once
      ask_for_numbers(turn + 2, after, turn_after(next_turn_, next));
    } else {
      ask_for_numbers(turn + 1, next, next_turn_);
    }
    ask_for_pairs(stages_ == kMostStages ? after : next);
    async_commit();
    const std::uint32_t* numbers = numbers_of(turn);
    const std::uint32_t queries = item.pairs;
    const std::uint32_t staged = first_query(turn);
    if (kDecodes && !has_codes_ && pages > 0) codes_.load_ahead(page_at(numbers[0]), lane_);
    for (int step = 0; step < max(pages, 1); step++) {
      const bool is_last = step + 1 >= pages;
      if (pages > 0) {
        if (!kDecodes && step > 0 && step % kWarp == 0) bring_numbers(turn, item, step);
        const std::uint32_t page = numbers[step % kWarp];
        page_rows<Steps> rows;
        page_terms terms;
        if constexpr (kDecodes) {
          decode_page(page, rows, terms);
          ask_for_next(turn, item, next, step, is_last);
        } else {  // few pages, which caches hold
          load_halves<Steps>(page_at(page), lane_, rows, terms);
        }
        scan_page(staged, queries, kWrites ? item.table_at + first + step * kWarps : page, rows, terms);
        if constexpr (Kind == scan_kind::hits) flush_hits(room::kHits / 2);
      }
      if (stages_ == kMostStages ? is_last : step == 1 || pages <= 1) {
        if (turn > 0) barrier_wait(&shared_.is_done[stage_of(turn - 1)], phase_of(turn - 1));
        stage(turn + stages_ - 1);
      }
    }
  }

  __device__ __forceinline__ void decode_page(std::uint32_t page, page_rows<Steps>& rows, page_terms& terms) {
    codes_.load_rest(page_at(page), lane_);
    if constexpr (layout::kLooksUp) {
      decode(codes_, codeword_reader(table_, lane_), rows);
    } else {
      decode(codes_, rows);
    }
    terms.take_shared<kTermsApart<Steps>>(codes_.term, lane_);
  }

  /// The codes of the warp's next page are asked for, which may be one of the next item.
  __device__ __forceinline__ void ask_for_next(std::uint32_t turn, const scan_item& item, const scan_item& next,
                                               int step, bool is_last) {
    if (is_last) {
      async_wait<kSamples ? 1 : 0>();
      __syncwarp();
    } else if (step % kWarp == kWarp - 1) {
      bring_numbers(turn, item, step + 1);
    }
    has_codes_ = !is_last || next_turn_ < next.pages;
    if (!has_codes_) return;
    codes_.load_ahead(page_at(is_last ? numbers_of(turn + 1)[0] : numbers_of(turn)[(step + 1) % kWarp]), lane_);
  }

  /// `page` is the page's number; where distances are written, its place in the table. Of queries from `staged` on.
  __device__ __forceinline__ void scan_page(std::uint32_t staged, std::uint32_t queries, std::uint32_t page,
                                            const page_rows<Steps>& rows, const page_terms& terms) {
    constexpr int kChunksOfProduct = kChunksOfLane * kWarp;
    static_assert(kChunksOfProduct % kColumns == 0);
    const auto columns_of = [&](std::uint32_t first) {
      return shared_.columns + (staged + first) * (kChunksOfProduct / kColumns) + lane_;
    };
    std::uint32_t q = 0;
#pragma unroll 1
    for (; q + kColumns < queries; q += 2 * kColumns) {  // two at once: their products overlap
      float low[kPageTiles][4];
      float high[kPageTiles][4];
      multiply_page<Steps>(rows, terms, columns_of(q), low);
      multiply_page<Steps>(rows, terms, columns_of(q) + kChunksOfProduct, high);
      if constexpr (Kind == scan_kind::marks) {
        write_marks(staged + q, page, beyond(staged + q + kColumns, high, beyond(staged + q, low, 0)));
      } else {
        use(staged, q, page, low);
        use(staged, q + kColumns, page, high);
      }
    }
    if (q < queries) {
      float low[kPageTiles][4];
      multiply_page<Steps>(rows, terms, columns_of(q), low);
      if constexpr (Kind == scan_kind::marks) {
        write_marks(staged + q, page, beyond(staged + q, low, 0) << kColumns | 0xFFu);
      } else {
        use(staged, q, page, low);
      }
    }
  }

  /// The bits of `before` moved up by eight, and below them those of the lane's rows that do not reach the limits of
  /// its two queries.
  __device__ __forceinline__ std::uint32_t beyond(std::uint32_t first, const float (&sums)[kPageTiles][4],
                                                  std::uint32_t before) const {
    const float2 limit = *reinterpret_cast<const float2*>(shared_.limits + first + lane_ % kLanesOfRow * 2);
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int row = 0; row < 2 * kPageTiles; row++) {
        const float room = (i == 0 ? limit.x : limit.y) - sums[row / 2][row % 2 * 2 + i];
        before = __funnelshift_l(__float_as_uint(room), before, 1);  // its sign
      }
    }
    return before;
  }
  __device__ __forceinline__ void write_marks(std::uint32_t first, std::uint32_t page, std::uint32_t beyond) const {
    static_assert(kMarkedQueries == 2 * kColumns && kMarksOfPage == kWarp);
    const std::uint32_t at = shared_.queries[first] + page;
    batch_.marks[static_cast<std::int64_t>(at) * kMarksOfPage + lane_] = static_cast<std::uint16_t>(~beyond);
  }

  /// What comes of 32 rows and 8 queries, from the q-th of the item on: the lane has two columns.
  __device__ __forceinline__ void use(std::uint32_t staged, std::uint32_t q, std::uint32_t page,
                                      const float (&sums)[kPageTiles][4]) {
    const std::uint32_t of_item = q + lane_ % kLanesOfRow * 2;
    const std::uint32_t column = staged + of_item;
    if constexpr (Kind == scan_kind::distances) return write_distances(column, page, sums);
    if constexpr (kSamples) {
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++) {
        float2& least = shared_.least[warp_][least_at(of_item, tile, lane_ / kLanesOfRow)];
        least = make_float2(fminf(least.x, fminf(sums[tile][0], sums[tile][2])),
                            fminf(least.y, fminf(sums[tile][1], sums[tile][3])));
      }
      return;
    }
    const float2 limit = *reinterpret_cast<const float2*>(shared_.limits + column);
#pragma unroll
    for (int tile = 0; tile < kPageTiles; tile++) {
      const bool reached[4] = {sums[tile][0] <= limit.x, sums[tile][1] <= limit.y, sums[tile][2] <= limit.x,
                               sums[tile][3] <= limit.y};
      if (reached[0] | reached[1] | reached[2] | reached[3]) append(column, page, tile, sums[tile], reached);
    }
  }

  /// Takes places for the lane's hits at once; then stores are predicated, so that lanes do not part again.
  __device__ __forceinline__ void append(std::uint32_t column, std::uint32_t page, int tile, const float (&sums)[4],
                                         const bool (&reached)[4]) {
    const float unit = shared_.unit;
    const float2 base = *reinterpret_cast<const float2*>(shared_.bases + column);
    const uint2 query = *reinterpret_cast<const uint2*>(shared_.queries + column);
    const slot row = page * static_cast<slot>(core::kPageRows) + tile * kTileRows + lane_ / kLanesOfRow;
    const auto count = static_cast<std::uint32_t>(reached[0] + reached[1] + reached[2] + reached[3]);
    const std::uint32_t place = atomicAdd(&shared_.hit_counts[warp_], count);
    const auto each = [&](auto enter) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const bool is_first = i % 2 == 0;
        if (reached[i])
          enter(scan_hit{__fmaf_rn(sums[i], unit, is_first ? base.x : base.y), row + i / 2 * 8,
                         is_first ? query.x : query.y});
      }
    };
    scan_hit* to = shared_.hits[warp_] + place;
    if (place + count <= room::kHits) return each([&](const scan_hit& hit) { *to++ = hit; });
    each([&](const scan_hit& hit) {
      if (to >= shared_.hits[warp_] + room::kHits) return put_hit(batch_, take_place(batch_, hit), hit);
      *to++ = hit;
    });
  }

  /// The lane's rows are g, g + 8, g + 16 and g + 24: neighbours where distances lie.
  __device__ __forceinline__ void write_distances(std::uint32_t column, std::uint32_t page,
                                                  const float (&sums)[kPageTiles][4]) const {
    const float2 unit = *reinterpret_cast<const float2*>(shared_.limits + column);
    const float2 base = *reinterpret_cast<const float2*>(shared_.bases + column);
    const uint2 place = *reinterpret_cast<const uint2*>(shared_.queries + column);
    const auto write = [&](std::uint32_t begin, float unit_of_query, float base_of_query, int i) {
      if (unit_of_query < 0.0f) return;  // the item has no more queries
      const auto distance = [&](int tile, int row) {
        return __fmaf_rn(sums[tile][i + 2 * row], unit_of_query, base_of_query);
      };
      const __half2 upper = __floats2half2_rn(distance(0, 0), distance(0, 1));
      const __half2 lower = __floats2half2_rn(distance(1, 0), distance(1, 1));
      reinterpret_cast<uint2*>(batch_.distances +
                               static_cast<std::int64_t>(begin + page) * core::kPageRows)[lane_ / 4] =
          make_uint2(reinterpret_cast<const std::uint32_t&>(upper), reinterpret_cast<const std::uint32_t&>(lower));
    };
    write(place.x, unit.x, base.x, 0);
    write(place.y, unit.y, base.y, 1);
  }

  /// Where the least distances of a query and the next are, so that lanes read neighbours.
  static __device__ __forceinline__ int least_at(int query, int tile, int group) {
    return (tile * (room::kOfItem / 2) + query / 2) * kGroupsOfTile + group;
  }
  static __device__ __forceinline__ float2 no_distances() {
    return make_float2(__uint_as_float(0x7F800000u), __uint_as_float(0x7F800000u));
  }

  /// The warp's part of an item's sample.
  __device__ void write_least(std::uint32_t staged, const scan_item& item) {
    __syncwarp();
    const int two = static_cast<int>((item.pairs + kColumns - 1) / kColumns * kColumns) / 2 * kGroupsOfWarp;
    for (int i = lane_; i < two; i += kWarp) {
      const int q = i / kGroupsOfWarp * 2;
      const int group = i % kGroupsOfWarp;
      float2& least = shared_.least[warp_][least_at(q, group / kGroupsOfTile, group % kGroupsOfTile)];
      const auto write = [&](int query, float distance) {
        if (query < static_cast<int>(item.pairs))
          batch_.minima[static_cast<std::int64_t>(shared_.queries[staged + query]) * kGroupsOfList +
                        warp_ * kGroupsOfWarp + group] = shared_.bases[staged + query] + distance * shared_.unit;
      };
      write(q, least.x);
      write(q + 1, least.y);
      least = no_distances();
    }
    __syncwarp();
  }

  /// The warp's hits go to their queries' lists, if they are more than this.
  __device__ __forceinline__ void flush_hits(std::uint32_t fewer) {
    __syncwarp();
    const std::uint32_t n = min(shared_.hit_counts[warp_], room::kHits);
    __syncwarp();  // all know how many before one enters more
    if (n <= fewer) return;
    for (std::uint32_t begin = lane_; begin < n; begin += kHitsAtOnce * kWarp) {
      std::uint32_t places[kHitsAtOnce];
#pragma unroll
      for (int i = 0; i < kHitsAtOnce; i++) {
        const std::uint32_t at = begin + i * kWarp;
        if (at < n) places[i] = take_place(batch_, shared_.hits[warp_][at]);
      }
#pragma unroll
      for (int i = 0; i < kHitsAtOnce; i++) {
        const std::uint32_t at = begin + i * kWarp;
        if (at < n) put_hit(batch_, places[i], shared_.hits[warp_][at]);
      }
    }
    __syncwarp();
    if (lane_ == 0) shared_.hit_counts[warp_] = 0;
    __syncwarp();
  }

  const filter_batch& batch_;
  const scan_pass& pass_;
  std::uint32_t* table_;
  scan_team<Form, Steps, Kind>& shared_;
  int lane_;
  std::uint32_t warp_;
  std::uint32_t number_ = 0;  // of the item that is taken next; the block's last thread
  std::uint32_t stages_;      // that are in use
  std::uint32_t next_turn_;   // which of the next item's pages is the warp's first
  bool has_codes_ = false;    // of the page that comes next
  lane_codes<kDecodes ? Form : code_form::numbers4, Steps> codes_;
};

template <code_form Form, int Steps, scan_kind Kind>
__global__ void __launch_bounds__(
    scan_room<Form, Steps, Kind>::kTeamThreads* scan_room<Form, Steps, Kind>::kTeamsOfBlock,
    scan_room<Form, Steps, Kind>::kBlocks) filter_scan_kernel(const __grid_constant__ filter_batch batch) {
  static_assert(sizeof(scan_shared<Form, Steps, Kind>) <= scan_room<Form, Steps, Kind>::kBlockBytes);
  join_chain();
  team_scan<Form, Steps, Kind>(batch, *reinterpret_cast<scan_shared<Form, Steps, Kind>*>(dynamic_shared())).run();
}

template <code_form Form, int Steps, scan_kind Kind>
void launch_form(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  using room = scan_room<Form, Steps, Kind>;
  launch(filter_scan_kernel<Form, Steps, Kind>,
         {.grid = dim3(static_cast<unsigned>(multiprocessors * room::kBlocks)),
          .threads = room::kTeamThreads,
          .teams = room::kTeamsOfBlock,
          .shared_bytes = static_cast<std::int64_t>(sizeof(scan_shared<Form, Steps, Kind>)),
          .overlaps = true},
         stream, batch, "launching the scan of lists");
}

code_form form_of(const filter_batch& batch) {
  const core::ivf_pq_shape& shape = batch.shape;
  if (batch.table == nullptr && !shape.uniform) return code_form::halves;
  if (shape.uniform) return shape.bits == 4 ? code_form::numbers4 : code_form::numbers8;
  return page_layout(shape).halves == 2 ? code_form::pairs : code_form::quads;
}

int steps_of(const core::ivf_pq_shape& shape) { return static_cast<int>(page_layout(shape).padded_halves() / 16); }

template <scan_kind Kind>
void launch_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  const auto launch_steps = [&]<int Steps>() {
    switch (form_of(batch)) {
      case code_form::pairs: return launch_form<code_form::pairs, Steps, Kind>(stream, batch, multiprocessors);
      case code_form::quads:
        if constexpr (Steps % 4 == 0) launch_form<code_form::quads, Steps, Kind>(stream, batch, multiprocessors);
        return;
      case code_form::numbers4: return launch_form<code_form::numbers4, Steps, Kind>(stream, batch, multiprocessors);
      case code_form::numbers8: return launch_form<code_form::numbers8, Steps, Kind>(stream, batch, multiprocessors);
      case code_form::halves:
        if constexpr (Kind == scan_kind::sample || Kind == scan_kind::hits)
          launch_form<code_form::halves, Steps, Kind>(stream, batch, multiprocessors);
        return;
    }
  };
  switch (steps_of(batch.shape)) {
    case 2: return launch_steps.template operator()<2>();
    case 4: return launch_steps.template operator()<4>();
    case 6: return launch_steps.template operator()<6>();
    default: return launch_steps.template operator()<8>();
  }
}

}  // namespace

bool has_filter(const core::ivf_pq_shape& shape) { return fits_registers(shape) || has_wide_scan(shape); }

bool writes_distances(const core::ivf_pq_shape& shape) { return fits_registers(shape); }

std::int32_t queries_of_item(const core::ivf_pq_shape& shape, bool sample) {
  return fits_registers(shape) ? queries_of(steps_of(shape), sample) : queries_of_wide_item(shape, sample);
}

std::int32_t queries_of_halves(std::int64_t halves, bool sample) {
  return halves <= kRegisterHalves ? queries_of(static_cast<int>(halves / 16), sample)
                                   : queries_of_wide_halves(halves, sample);
}

std::int32_t queries_of_full_item(const core::ivf_pq_shape& shape, std::int64_t pairs) {
  if (!fits_registers(shape))
    return pairs > kFewPairsOfWideList * shape.nlist ? queries_of_item(shape, false) : queries_of_small_item(shape);
  if (pairs > kFewPairsOfList * shape.nlist) return queries_of_item(shape, false);
  return steps_of(shape) >= kWideSteps ? kFewQueriesOfWide : kFewQueries;
}

int filter_scan_teams(int multiprocessors) { return multiprocessors * (kThreadsOfMultiprocessor / kThreads); }

void launch_sample_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  if (batch.by_chunks) return launch_wide_scan(stream, batch, true, multiprocessors);
  launch_scan<scan_kind::sample>(stream, batch, multiprocessors);
}

void launch_filter_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  if (batch.by_chunks) return launch_wide_scan(stream, batch, false, multiprocessors);
  launch_scan<scan_kind::hits>(stream, batch, multiprocessors);
}

void launch_distance_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  launch_scan<scan_kind::distances>(stream, batch, multiprocessors);
}

void launch_mark_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  launch_scan<scan_kind::marks>(stream, batch, multiprocessors);
}

}  // namespace shortlist::cuda
