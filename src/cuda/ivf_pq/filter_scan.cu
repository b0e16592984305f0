// Lists against all queries that look at them, on the matrix units.
//
// An item is a list, or a part of a long one, with up to `queries_of_item` queries; persistent blocks take items as
// they come. A warp holds a page of 32 decoded rows in registers and multiplies it with the item's queries, eight at a
// time, from shared memory; the next page's codes and the next item's queries are on their way meanwhile. Products
// begin at the rows' terms, so that one comparison with the query's limit is left of a distance.
// A sample keeps, of each list and query, the least distance of 64 groups of rows; a full pass appends rows that reach
// their query's threshold to its list.
// Limit: bytes of codes where lists have few queries; look-ups in shared memory for product codes; else products.
#include <algorithm>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/score.cuh"
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
constexpr int kSampleQueries = 32;  // of an item
constexpr int kQueries = 128;
constexpr int kQueriesOfWide = 64;  // of items whose rows and table leave less room
constexpr int kWideSteps = 8;
constexpr std::int64_t kMaxSharedTable = 64 * 1024;
static_assert(kGroupsOfList == kWarps * 8);

constexpr int queries_of(int steps, bool sample) {
  return sample ? kSampleQueries : steps >= kWideSteps ? kQueriesOfWide : kQueries;
}

template <code_form Form, int Steps, bool Sample>
struct scan_shared {
  using layout = form_layout<Form, Steps>;
  static constexpr int kItemQueries = queries_of(Steps, Sample);
  std::uint32_t table[layout::kLooksUp ? layout::kPieces * 256 * layout::kHalves / 2 : 4];
  uint4 columns[2][kItemQueries * 2 * Steps];  // by eight queries: [Steps / 2][32 lanes]
  float limits[2][kItemQueries];               // of products
  float bases[2][kItemQueries];
  std::uint32_t queries[2][kItemQueries];
  float least[Sample ? kItemQueries * kGroupsOfList : 4];
  std::uint64_t hits[Sample ? 2 : kBlockHits];
  std::uint16_t hit_columns[Sample ? 4 : kBlockHits];
  std::uint32_t hit_count;
  scan_item items[3];
};

__device__ __forceinline__ void append_hit(const filter_batch& batch, std::uint32_t query, std::uint64_t key) {
  const std::uint32_t place = atomicAdd(batch.hit_counts + query, 1u);
  if (place < batch.capacity) batch.hits[static_cast<std::int64_t>(query) * batch.capacity + place] = key;
}

template <code_form Form, int Steps, bool Sample>
class scan_block {
 public:
  using shared_memory = scan_shared<Form, Steps, Sample>;
  using layout = form_layout<Form, Steps>;
  static constexpr int kChunksOfLane = Steps / 2;  // of 16 bytes, of a column

  __device__ scan_block(const filter_batch& batch, shared_memory& shared)
      : batch_(batch),
        pass_(Sample ? batch.sample : batch.all),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        warp_(static_cast<int>(threadIdx.x / kWarp)),
        item_count_(*pass_.item_count),
        page_bytes_(batch.page_bytes),
        unit_(batch.header->unit),
        inverse_unit_(batch.header->inverse_unit) {}

  __device__ void run() {
    if constexpr (layout::kLooksUp) {
      const auto* from = reinterpret_cast<const uint4*>(batch_.table);
      auto* to = reinterpret_cast<uint4*>(shared_.table);
      for (int i = threadIdx.x; i < static_cast<int>(sizeof(shared_.table) / 16); i += kThreads) to[i] = from[i];
    }
    if (threadIdx.x == 0) {
      shared_.hit_count = 0;
      take_item(0);
      take_item(1);
    }
    __syncthreads();
    stage(0, shared_.items[0]);
    async_wait<0>();
    __syncthreads();
    for (int turn = 0;; turn++) {
      const scan_item item = shared_.items[turn % 3];
      if (item.pairs == 0) break;
      if (threadIdx.x == kThreads - 1) take_item((turn + 2) % 3);
      if constexpr (Sample) {
        for (int i = threadIdx.x; i < static_cast<int>(item.pairs) * kGroupsOfList; i += kThreads)
          shared_.least[i] = __uint_as_float(0x7F800000u);
        __syncthreads();
      }
      stage((turn + 1) % 2, shared_.items[(turn + 1) % 3]);
      scan(turn % 2, item);
      async_wait<0>();
      __syncthreads();
      finish(turn % 2, item);
      __syncthreads();
    }
  }

 private:
  __device__ void take_item(int place) {
    const std::uint32_t number = atomicAdd(pass_.next_item, 1u);
    shared_.items[place] = number < item_count_ ? pass_.items[number] : scan_item{};
  }

  /// Brings an item's queries in.
  __device__ void stage(int half, const scan_item& item) {
    const int queries = static_cast<int>(item.pairs);
    const int padded = (queries + kColumns - 1) / kColumns * kColumns;
    constexpr int kChunks = 2 * Steps;  // of a query
    const std::uint32_t to = shared_address(shared_.columns[half]);
    for (int i = threadIdx.x; i < padded * kChunks; i += kThreads) {
      const int q = i / kChunks;
      const int chunk = i % kChunks;
      const int place =
          (q / kColumns * kChunksOfLane + chunk % kChunksOfLane) * kWarp + q % kColumns * 4 + chunk / kChunksOfLane;
      const std::uint32_t query = query_of(item, min(q, queries - 1));
      async_copy_16(to + place * 16,
                    reinterpret_cast<const uint4*>(batch_.columns) + static_cast<std::int64_t>(query) * kChunks + chunk,
                    q < queries);
    }
    async_commit();
    for (int q = threadIdx.x; q < padded; q += kThreads) {
      float limit = -__uint_as_float(0x7F800000u);
      scan_pair pair{0, 0.0f};
      if (q < queries) {
        pair = pass_.pairs[item.first_pair + q];
        if constexpr (!Sample) limit = (batch_.thresholds[pair.query] - pair.base) * inverse_unit_;
      }
      shared_.limits[half][q] = limit;
      shared_.bases[half][q] = pair.base;
      shared_.queries[half][q] = pair.query;
    }
  }

  __device__ __forceinline__ std::uint32_t query_of(const scan_item& item, int q) const {
    const std::uint32_t named = pass_.pairs[item.first_pair + q].query;
    return Sample ? named / static_cast<std::uint32_t>(pass_.lists_of_query) : named;
  }

  __device__ void scan(int half, const scan_item& item) {
    const std::uint32_t* table = batch_.lists.table + item.table_at;
    const std::uint32_t end = item.pages;
    const std::uint32_t* codewords =
        shared_.table + (layout::kLooksUp ? lane_ % 4 * layout::kLanePieces * 256 * layout::kHalves / 2 : 0);
    if constexpr (Form == code_form::halves) {  // few pages, which caches hold
      for (std::uint32_t at = warp_; at < end; at += kWarps) {
        page_rows<Steps> rows;
        float terms[kPageTiles][2];
        const std::uint32_t page = table[at];
        load_halves<Steps>(batch_.lists.pages + page * page_bytes_, lane_, rows, terms);
        scan_page(half, static_cast<int>(item.pairs), page, rows, terms);
      }
    } else {
      std::uint32_t at = warp_;
      if (at >= end) return;
      lane_codes<Form, Steps> codes;
      std::uint32_t page = table[at];
      std::uint32_t next_page = at + kWarps < end ? table[at + kWarps] : 0;
      codes.load(batch_.lists.pages + page * page_bytes_, lane_);
      for (; at < end; at += kWarps) {
        page_rows<Steps> rows;
        float terms[kPageTiles][2];
#pragma unroll
        for (int tile = 0; tile < kPageTiles; tile++) {
          terms[tile][0] = codes.terms[tile][0];
          terms[tile][1] = codes.terms[tile][1];
        }
        decode<Form, Steps>(codes, codewords, rows);
        const std::uint32_t this_page = page;
        if (at + kWarps < end) {
          page = next_page;
          codes.load(batch_.lists.pages + page * page_bytes_, lane_);
          if (at + 2 * kWarps < end) next_page = table[at + 2 * kWarps];
        }
        scan_page(half, static_cast<int>(item.pairs), this_page, rows, terms);
      }
    }
  }

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
#pragma unroll
    for (int tile = 0; tile < kPageTiles; tile++) {
      sums[tile][0] = sums[tile][1] = terms[tile][0];
      sums[tile][2] = sums[tile][3] = terms[tile][1];
    }
    const uint4* columns = shared_.columns[half] + q / kColumns * kChunksOfLane * kWarp + lane_;
#pragma unroll
    for (int chunk = 0; chunk < kChunksOfLane; chunk++) {
      const uint4 column = columns[chunk * kWarp];
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++)
        multiply_halves(rows[tile][2 * chunk], column.x, column.y, sums[tile]);
#pragma unroll
      for (int tile = 0; tile < kPageTiles; tile++)
        multiply_halves(rows[tile][2 * chunk + 1], column.z, column.w, sums[tile]);
    }
  }

  /// What comes of 32 rows and 8 queries: the lane has columns q + 2 t and q + 2 t + 1.
  __device__ __forceinline__ void use(int half, int q, std::uint32_t page, const float (&sums)[kPageTiles][4]) {
    const int column = q + lane_ % 4 * 2;
    if constexpr (Sample) {
      if (column >= kSampleQueries) return;
      float* least = shared_.least + column * kGroupsOfList + warp_ * 8 + lane_ / 4;
      const float of_first = fminf(fminf(sums[0][0], sums[0][2]), fminf(sums[1][0], sums[1][2]));
      const float of_second = fminf(fminf(sums[0][1], sums[0][3]), fminf(sums[1][1], sums[1][3]));
      least[0] = fminf(least[0], of_first);
      least[kGroupsOfList] = fminf(least[kGroupsOfList], of_second);
      return;
    }
    const float2 limit = *reinterpret_cast<const float2*>(shared_.limits[half] + column);
    bool any = false;
#pragma unroll
    for (int tile = 0; tile < kPageTiles; tile++)
      any |= (sums[tile][0] <= limit.x) | (sums[tile][1] <= limit.y) | (sums[tile][2] <= limit.x) |
             (sums[tile][3] <= limit.y);
    if (!any) return;
#pragma unroll
    for (int tile = 0; tile < kPageTiles; tile++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (!(sums[tile][i] <= (i % 2 == 0 ? limit.x : limit.y))) continue;
        if (!(sums[tile][i] < __uint_as_float(0x7F800000u))) continue;  // a place without a row
        const int q_of_item = column + i % 2;
        const float distance = shared_.bases[half][q_of_item] + sums[tile][i] * unit_;
        const slot row = page * static_cast<slot>(core::kPageRows) + tile * kTileRows + i / 2 * 8 + lane_ / 4;
        const std::uint64_t key = (static_cast<std::uint64_t>(distance_key(distance)) << 32) | row;
        const std::uint32_t place = atomicAdd(&shared_.hit_count, 1u);
        if (place < kBlockHits) {
          shared_.hits[place] = key;
          shared_.hit_columns[place] = static_cast<std::uint16_t>(q_of_item);
        } else {
          append_hit(batch_, shared_.queries[half][q_of_item], key);
        }
      }
    }
  }

  __device__ void finish(int half, const scan_item& item) {
    if constexpr (Sample) {
      for (int i = threadIdx.x; i < static_cast<int>(item.pairs) * kGroupsOfList; i += kThreads) {
        const int q = i / kGroupsOfList;
        batch_.minima[static_cast<std::int64_t>(shared_.queries[half][q]) * kGroupsOfList + i % kGroupsOfList] =
            shared_.bases[half][q] + shared_.least[i] * unit_;
      }
    } else {
      const std::uint32_t n = min(shared_.hit_count, static_cast<std::uint32_t>(kBlockHits));
      for (std::uint32_t i = threadIdx.x; i < n; i += kThreads)
        append_hit(batch_, shared_.queries[half][shared_.hit_columns[i]], shared_.hits[i]);
      __syncthreads();
      if (threadIdx.x == 0) shared_.hit_count = 0;
    }
  }

  const filter_batch& batch_;
  const scan_pass& pass_;
  shared_memory& shared_;
  int lane_;
  int warp_;
  std::uint32_t item_count_;
  std::int64_t page_bytes_;
  float unit_;
  float inverse_unit_;
};

template <code_form Form, int Steps, bool Sample>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    filter_scan_kernel(const __grid_constant__ filter_batch batch) {
  scan_block<Form, Steps, Sample>(batch, *reinterpret_cast<scan_shared<Form, Steps, Sample>*>(dynamic_shared())).run();
}

template <code_form Form, int Steps, bool Sample>
void launch_form(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  launch(filter_scan_kernel<Form, Steps, Sample>,
         {.grid = dim3(static_cast<unsigned>(multiprocessors * kBlocksPerMultiprocessor)),
          .threads = kThreads,
          .shared_bytes = static_cast<std::int64_t>(sizeof(scan_shared<Form, Steps, Sample>))},
         stream, batch, "launching the scan of lists");
}

code_form form_of(const filter_batch& batch) {
  const core::ivf_pq_shape& shape = batch.shape;
  if (batch.table == nullptr && !shape.uniform) return code_form::halves;
  if (shape.uniform) return shape.bits == 4 ? code_form::numbers4 : code_form::numbers8;
  return page_layout(shape).halves == 2 ? code_form::pairs : code_form::quads;
}

int steps_of(const core::ivf_pq_shape& shape) { return static_cast<int>(page_layout(shape).padded_halves() / 16); }

template <bool Sample>
void launch_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  const auto launch_steps = [&]<int Steps>() {
    switch (form_of(batch)) {
      case code_form::pairs: return launch_form<code_form::pairs, Steps, Sample>(stream, batch, multiprocessors);
      case code_form::quads:
        if constexpr (Steps % 4 == 0) launch_form<code_form::quads, Steps, Sample>(stream, batch, multiprocessors);
        return;
      case code_form::numbers4: return launch_form<code_form::numbers4, Steps, Sample>(stream, batch, multiprocessors);
      case code_form::numbers8: return launch_form<code_form::numbers8, Steps, Sample>(stream, batch, multiprocessors);
      case code_form::halves: return launch_form<code_form::halves, Steps, Sample>(stream, batch, multiprocessors);
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

void launch_sample_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  launch_scan<true>(stream, batch, multiprocessors);
}

void launch_filter_scan(cudaStream_t stream, const filter_batch& batch, int multiprocessors) {
  launch_scan<false>(stream, batch, multiprocessors);
}

}  // namespace shortlist::cuda
