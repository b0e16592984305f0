// Lists against all queries that look at them, on the matrix units.
//
// An item is a list, or a part of a long one, with up to `queries_of_item` queries; persistent blocks take items as
// they come. A warp holds a page of 32 decoded rows in registers and multiplies it with the item's queries, eight at a
// time, from shared memory; the next page's codes and the next item's queries are on their way meanwhile. Products
// begin at the rows' terms, so that one comparison with the query's limit is left of a distance.
// A sample keeps, of each list and query, the least distance of 64 groups of rows; a full pass appends rows that reach
// their query's threshold to its list, or writes all distances out.
// Limit: half of the issue slots are used; warps wait at the ends of items, for products, and for codes from memory.
// The bytes of codes would take a third of the time. History: docs/kernels.md.
#include <algorithm>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/bulk_copy.cuh"
#include "cuda/device/chain.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/score.cuh"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/decode.cuh"
#include "cuda/ivf_pq/filter.hpp"
#include "cuda/ivf_pq/filter_decode.cuh"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocksPerMultiprocessor = 2;
constexpr int kColumns = 8;  // queries of a product
constexpr int kBlockHits = 1024;
constexpr int kBlockHitsOfHalves = 4096;  // of lists' centroids: searches for many lists have many hits
constexpr int kItemsAhead = 3;
constexpr int kSampleQueries = 32;  // of an item
constexpr int kQueries = 128;
constexpr int kQueriesOfWide = 64;  // of items whose rows and table leave less room
constexpr int kWideSteps = 8;
constexpr std::int64_t kMaxSharedTable = 64 * 1024;
static_assert(kGroupsOfList == kWarps * 8);

/// What becomes of distances.
enum class scan_kind : std::uint8_t {
  sample,     ///< the least of each group of rows is kept
  hits,       ///< those that reach their query's limit go to its list
  distances,  ///< all are written out
};

constexpr int queries_of(int steps, bool sample) {
  return sample ? kSampleQueries : steps >= kWideSteps ? kQueriesOfWide : kQueries;
}

struct alignas(8) block_hit {
  float distance;
  slot row;
};

template <code_form Form, int Steps, scan_kind Kind>
struct scan_shared {
  using layout = form_layout<Form, Steps>;
  static constexpr int kItemQueries = queries_of(Steps, Kind == scan_kind::sample);
  std::uint32_t table[layout::kLooksUp ? layout::kPieces * 256 * layout::kHalves / 2 : 4];
  uint4 columns[2][kItemQueries * 2 * Steps];  // by eight queries: [Steps / 2][32 lanes]
  float limits[2][kItemQueries];               // of products; where distances are written, their unit
  float bases[2][kItemQueries];
  std::uint32_t queries[2][kItemQueries];  // where distances are written, where those of the list begin
  float least[Kind == scan_kind::sample ? kItemQueries * kGroupsOfList : 4];
  static constexpr std::uint32_t kHits = Form == code_form::halves ? kBlockHitsOfHalves : kBlockHits;
  block_hit hits[Kind == scan_kind::hits ? kHits : 2];
  std::uint32_t hit_queries[Kind == scan_kind::hits ? kHits : 4];
  std::uint32_t hit_count;
  scan_item items[kItemsAhead + 1];
};

__device__ __forceinline__ void append_hit(const filter_batch& batch, std::uint32_t query, const block_hit& hit) {
  const std::uint64_t key = (static_cast<std::uint64_t>(distance_key(hit.distance)) << 32) | hit.row;
  const std::uint32_t place = atomicAdd(batch.hit_counts + query, 1u);
  if (place < batch.capacity) batch.hits[static_cast<std::int64_t>(query) * batch.capacity + place] = key;
}

/// A block at work. While an item is scanned, the queries of the next are copied in, and of the one after that the
/// queries' names and the first pages' numbers are on their way, and its pages to the L2 cache: nothing waits for
/// memory but the scan itself, which begins with a page that was asked for while the item before was scanned.
template <code_form Form, int Steps, scan_kind Kind>
class scan_block {
 public:
  using shared_memory = scan_shared<Form, Steps, Kind>;
  using layout = form_layout<Form, Steps>;
  static constexpr int kChunksOfLane = Steps / 2;  // of 16 bytes, of a column
  static constexpr int kChunks = 2 * Steps;        // of a column
  static constexpr bool kDecodes = Form != code_form::halves;
  static constexpr bool kSamples = Kind == scan_kind::sample;
  static constexpr bool kWrites = Kind == scan_kind::distances;
  static constexpr int kThreadsOfQuery = kThreads / shared_memory::kItemQueries;  // which copy a column

  __device__ scan_block(const filter_batch& batch, shared_memory& shared)
      : batch_(batch),
        pass_(kSamples ? batch.sample : batch.all),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        warp_(static_cast<std::uint32_t>(threadIdx.x / kWarp)),
        item_count_(min(*pass_.item_count, pass_.item_room)) {}

  __device__ void run() {
    std::uint32_t number = 0;  // of the item after those that are here; the block's last thread
    if (threadIdx.x == kThreads - 1) {
      shared_.hit_count = 0;
      for (int i = 0; i < kItemsAhead; i++) shared_.items[i] = item_of(atomicAdd(pass_.next_item, 1u));
      number = atomicAdd(pass_.next_item, 1u);
    }
    __syncthreads();
    if (shared_.items[0].pairs == 0) return;  // most blocks of a second scan: they need no table
    if constexpr (layout::kLooksUp) {
      const auto* from = reinterpret_cast<const uint4*>(batch_.table);
      auto* to = reinterpret_cast<uint4*>(shared_.table);
      for (int i = threadIdx.x; i < static_cast<int>(sizeof(shared_.table) / 16); i += kThreads) to[i] = from[i];
    }
    if constexpr (kSamples) {
      for (int i = threadIdx.x; i < shared_memory::kItemQueries * kGroupsOfList; i += kThreads)
        shared_.least[i] = __uint_as_float(0x7F800000u);
    }
    pair_ = pair_of(shared_.items[0]);
    stage(0, shared_.items[0]);
    pair_ = pair_of(shared_.items[1]);
    next_first_ = first_page(shared_.items[0]);
    async_wait<0>();
    __syncthreads();
    for (int turn = 0;; turn++) {
      const scan_item item = shared_.items[turn % (kItemsAhead + 1)];
      if (item.pairs == 0) break;
      const scan_item& next = shared_.items[(turn + 1) % (kItemsAhead + 1)];
      const scan_item& after = shared_.items[(turn + 2) % (kItemsAhead + 1)];
      stage((turn + 1) % 2, next);
      pair_ = pair_of(after);
      scan_item taken{};
      if (threadIdx.x == kThreads - 1) {
        taken = item_of(number);
        number = atomicAdd(pass_.next_item, 1u);
      }
      std::uint32_t sent_for = 0;
      if (kDecodes && threadIdx.x < after.pages) sent_for = batch_.lists.table[after.table_at + threadIdx.x];
      const std::uint32_t first = next_first_;
      next_first_ = first_page(next);
      scan(turn % 2, item, first, next);
      if (kDecodes) send_for_pages(after, sent_for);
      if (threadIdx.x == kThreads - 1) shared_.items[(turn + kItemsAhead) % (kItemsAhead + 1)] = taken;
      async_wait<0>();
      // What one thread sees: others would see hits of warps that are further on.
      const bool is_full =
          __syncthreads_or(!kSamples && threadIdx.x == 0 && shared_.hit_count > shared_memory::kHits / 2);
      if constexpr (kSamples) {
        write_least(turn % 2, item);
        __syncthreads();
      } else if (is_full) {
        flush_hits();
      }
    }
    if constexpr (Kind == scan_kind::hits) flush_hits();
  }

 private:
  __device__ scan_item item_of(std::uint32_t number) const {
    return number < item_count_ ? pass_.items[number] : scan_item{};
  }

  /// The pair of an item whose column this thread copies a part of, if there is one.
  __device__ scan_pair pair_of(const scan_item& item) const {
    const std::uint32_t q = threadIdx.x / kThreadsOfQuery;
    return q < item.pairs ? pass_.pairs[item.first_pair + q] : scan_pair{};
  }

  /// The number of the warp's first page of an item.
  __device__ std::uint32_t first_page(const scan_item& item) const {
    return warp_ < item.pages ? batch_.lists.table[item.table_at + warp_] : 0;
  }

  __device__ const std::byte* page_at(std::uint32_t page) const {
    return batch_.lists.pages + page * batch_.page_bytes;
  }

  __device__ void send_for_pages(const scan_item& item, std::uint32_t page) const {
    for (std::uint32_t i = threadIdx.x; i < item.pages; i += kThreads) {
      if (i >= kThreads) page = batch_.lists.table[item.table_at + i];
      prefetch_bytes(page_at(page), static_cast<std::uint32_t>(batch_.page_bytes));
    }
  }

  /// Brings the queries of an item in, whose pair the thread has.
  __device__ void stage(int half, const scan_item& item) {
    const std::uint32_t q = threadIdx.x / kThreadsOfQuery;
    const std::uint32_t part = threadIdx.x % kThreadsOfQuery;
    if (q >= (item.pairs + kColumns - 1) / kColumns * kColumns) return;
    const bool is_real = q < item.pairs;
    const std::uint32_t query = kSamples ? pair_.query / static_cast<std::uint32_t>(pass_.lists_of_query) : pair_.query;
    const auto* from = reinterpret_cast<const uint4*>(batch_.columns) + static_cast<std::int64_t>(query) * kChunks;
    const std::uint32_t to =
        shared_address(shared_.columns[half] + q / kColumns * kChunksOfLane * kWarp + q % kColumns * 4);
#pragma unroll
    for (int i = 0; i < (kChunks + kThreadsOfQuery - 1) / kThreadsOfQuery; i++) {
      const std::uint32_t chunk = part + i * kThreadsOfQuery;
      if (chunk >= kChunks) break;
      async_copy_16(to + (chunk % kChunksOfLane * kWarp + chunk / kChunksOfLane) * 16, from + chunk, is_real);
    }
    async_commit();
    if (part != 0) return;
    shared_.limits[half][q] = is_real ? pair_.limit : -__uint_as_float(0x7F800000u);
    shared_.bases[half][q] = pair_.base;
    shared_.queries[half][q] = kWrites ? pair_.place : pair_.query;
  }

  /// `first` is the number of the warp's first page; at the end the first of the next item is asked for.
  __device__ void scan(int half, const scan_item& item, std::uint32_t first, const scan_item& next) {
    const std::uint32_t* table = batch_.lists.table + item.table_at;
    const auto queries = static_cast<int>(item.pairs);
    if constexpr (!kDecodes) {  // few pages, which caches hold
      std::uint32_t page = first;
      for (std::uint32_t at = warp_; at < item.pages; at += kWarps) {
        page_rows<Steps> rows;
        float terms[kPageTiles][2];
        load_halves<Steps>(page_at(page), lane_, rows, terms);
        const std::uint32_t this_page = page;
        if (at + kWarps < item.pages) page = table[at + kWarps];
        scan_page(half, queries, this_page, rows, terms);
      }
    } else {
      if (warp_ >= item.pages) return;
      if (!has_codes_) codes_.load(page_at(first), lane_);
      std::uint32_t page = first;
      std::uint32_t next_page = warp_ + kWarps < item.pages ? table[warp_ + kWarps] : 0;
      for (std::uint32_t at = warp_; at < item.pages; at += kWarps) {
        page_rows<Steps> rows;
        float terms[kPageTiles][2];
#pragma unroll
        for (int tile = 0; tile < kPageTiles; tile++) {
          terms[tile][0] = codes_.terms[tile][0];
          terms[tile][1] = codes_.terms[tile][1];
        }
        if constexpr (layout::kLooksUp) {
          decode(codes_, codeword_reader(shared_.table, lane_), rows);
        } else {
          decode(codes_, rows);
        }
        const std::uint32_t this_page = page;
        const bool is_last = at + kWarps >= item.pages;
        page = is_last ? next_first_ : next_page;
        has_codes_ = !is_last || warp_ < next.pages;
        if (has_codes_) codes_.load(page_at(page), lane_);
        if (at + 2 * kWarps < item.pages) next_page = table[at + 2 * kWarps];
        scan_page(half, queries, kWrites ? item.table_at + at : this_page, rows, terms);
      }
    }
  }

  /// `page` is the page's number; where distances are written, its place in the table.
  __device__ __forceinline__ void scan_page(int half, int queries, std::uint32_t page, const page_rows<Steps>& rows,
                                            const float (&terms)[kPageTiles][2]) {
    int q = 0;
#pragma unroll 1
    for (; q + kColumns < queries; q += 2 * kColumns) {  // two at once: their products overlap
      float low[kPageTiles][4];
      float high[kPageTiles][4];
      multiply(half, q, rows, terms, low);
      multiply(half, q + kColumns, rows, terms, high);
      use(half, q, page, low);
      use(half, q + kColumns, page, high);
    }
    if (q < queries) {
      float low[kPageTiles][4];
      multiply(half, q, rows, terms, low);
      use(half, q, page, low);
    }
  }

  __device__ __forceinline__ void multiply(int half, int q, const page_rows<Steps>& rows,
                                           const float (&terms)[kPageTiles][2], float (&sums)[kPageTiles][4]) const {
    multiply_page<Steps>(rows, terms, shared_.columns[half] + q / kColumns * kChunksOfLane * kWarp + lane_, sums);
  }

  /// What comes of 32 rows and 8 queries: the lane has columns q + 2 t and q + 2 t + 1.
  __device__ __forceinline__ void use(int half, int q, std::uint32_t page, const float (&sums)[kPageTiles][4]) {
    const int column = q + lane_ % 4 * 2;
    if constexpr (kWrites) return write_distances(half, column, page, sums);
    if constexpr (kSamples) {
      if (column >= kSampleQueries) return;
      float* least = shared_.least + column * kGroupsOfList + static_cast<int>(warp_) * 8 + lane_ / 4;
      const float of_first = fminf(fminf(sums[0][0], sums[0][2]), fminf(sums[1][0], sums[1][2]));
      const float of_second = fminf(fminf(sums[0][1], sums[0][3]), fminf(sums[1][1], sums[1][3]));
      least[0] = fminf(least[0], of_first);
      least[kGroupsOfList] = fminf(least[kGroupsOfList], of_second);
      return;
    }
    const float2 limit = *reinterpret_cast<const float2*>(shared_.limits[half] + column);
#pragma unroll
    for (int tile = 0; tile < kPageTiles; tile++) {
      const bool reached[4] = {sums[tile][0] <= limit.x, sums[tile][1] <= limit.y, sums[tile][2] <= limit.x,
                               sums[tile][3] <= limit.y};
      if (reached[0] | reached[1] | reached[2] | reached[3]) append(half, column, page, tile, sums[tile], reached);
    }
  }

  /// Takes places for the lane's hits at once; then stores are predicated, so that lanes do not part again.
  __device__ __forceinline__ void append(int half, int column, std::uint32_t page, int tile, const float (&sums)[4],
                                         const bool (&reached)[4]) {
    const float unit = batch_.header->unit;
    const float2 base = *reinterpret_cast<const float2*>(shared_.bases[half] + column);
    const uint2 query = *reinterpret_cast<const uint2*>(shared_.queries[half] + column);
    const slot row = page * static_cast<slot>(core::kPageRows) + tile * kTileRows + lane_ / 4;
    const auto count = static_cast<std::uint32_t>(reached[0] + reached[1] + reached[2] + reached[3]);
    std::uint32_t place = atomicAdd(&shared_.hit_count, count);
    const auto each = [&](auto enter) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const block_hit hit{(i % 2 == 0 ? base.x : base.y) + sums[i] * unit, row + i / 2 * 8};
        if (reached[i]) enter(hit, i % 2 == 0 ? query.x : query.y);
      }
    };
    if (place + count <= shared_memory::kHits) {
      each([&](const block_hit& hit, std::uint32_t whose) {
        shared_.hits[place] = hit;
        shared_.hit_queries[place++] = whose;
      });
    } else {
      each([&](const block_hit& hit, std::uint32_t whose) {
        if (place >= shared_memory::kHits) return append_hit(batch_, whose, hit);
        shared_.hits[place] = hit;
        shared_.hit_queries[place++] = whose;
      });
    }
  }

  /// The lane's rows are g, g + 8, g + 16 and g + 24: neighbours where distances lie.
  __device__ __forceinline__ void write_distances(int half, int column, std::uint32_t page,
                                                  const float (&sums)[kPageTiles][4]) const {
    const float2 unit = *reinterpret_cast<const float2*>(shared_.limits[half] + column);
    const float2 base = *reinterpret_cast<const float2*>(shared_.bases[half] + column);
    const uint2 place = *reinterpret_cast<const uint2*>(shared_.queries[half] + column);
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

  __device__ void write_least(int half, const scan_item& item) {
    const float unit = batch_.header->unit;
    for (int i = threadIdx.x; i < static_cast<int>(item.pairs + kColumns - 1) / kColumns * kColumns * kGroupsOfList;
         i += kThreads) {
      const int q = i / kGroupsOfList;
      if (q < static_cast<int>(item.pairs)) {
        batch_.minima[static_cast<std::int64_t>(shared_.queries[half][q]) * kGroupsOfList + i % kGroupsOfList] =
            shared_.bases[half][q] + shared_.least[i] * unit;
      }
      shared_.least[i] = __uint_as_float(0x7F800000u);
    }
  }

  /// The block's hits go to their queries' lists.
  __device__ void flush_hits() {
    const std::uint32_t n = min(shared_.hit_count, shared_memory::kHits);
    for (std::uint32_t i = threadIdx.x; i < n; i += kThreads)
      append_hit(batch_, shared_.hit_queries[i], shared_.hits[i]);
    __syncthreads();
    if (threadIdx.x == 0) shared_.hit_count = 0;
    __syncthreads();
  }

  const filter_batch& batch_;
  const scan_pass& pass_;
  shared_memory& shared_;
  int lane_;
  std::uint32_t warp_;
  std::uint32_t item_count_;
  scan_pair pair_{};              // of the next item, or of the one after
  std::uint32_t next_first_ = 0;  // the warp's first page of the next item
  bool has_codes_ = false;        // of the page that comes next
  lane_codes<kDecodes ? Form : code_form::numbers4, Steps> codes_;
};

template <code_form Form, int Steps, scan_kind Kind>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    filter_scan_kernel(const __grid_constant__ filter_batch batch) {
  join_chain();
  scan_block<Form, Steps, Kind>(batch, *reinterpret_cast<scan_shared<Form, Steps, Kind>*>(dynamic_shared())).run();
}

template <code_form Form, int Steps, scan_kind Kind>
void launch_form(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  launch(filter_scan_kernel<Form, Steps, Kind>,
         {.grid = dim3(static_cast<unsigned>(filter_scan_blocks(multiprocessors))),
          .threads = kThreads,
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
        if constexpr (Kind != scan_kind::distances)
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

bool has_filter(const core::ivf_pq_shape& shape) {
  const page_layout layout(shape);
  const int steps = steps_of(shape);
  if (steps > 8 || steps % 2 != 0) return false;
  if (shape.uniform) return true;
  return layout.code_bits == 8 && (layout.halves == 2 || (layout.halves == 4 && steps % 4 == 0)) &&
         layout.padded_halves() * kTableCodes * 2 <= kMaxSharedTable;
}

std::int32_t queries_of_item(const core::ivf_pq_shape& shape, bool sample) {
  return queries_of(steps_of(shape), sample);
}

int filter_scan_blocks(int multiprocessors) { return multiprocessors * kBlocksPerMultiprocessor; }

void launch_sample_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  launch_scan<scan_kind::sample>(stream, batch, multiprocessors);
}

void launch_filter_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  launch_scan<scan_kind::hits>(stream, batch, multiprocessors);
}

void launch_distance_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  launch_scan<scan_kind::distances>(stream, batch, multiprocessors);
}

}  // namespace shortlist::cuda
