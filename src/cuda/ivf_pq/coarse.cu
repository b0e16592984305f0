// The best of few rows for many queries, to the bit.
//
// The filter of lists, with one list for all queries, whose rows are halves: a sample of the rows gives each query a
// threshold, all rows are scanned on the matrix units, and what reaches the threshold within the margin gets its score.
// What rows lose as halves counts as an error. Rows stay in the L2 cache.
// Limit: products, at the rate that filter_scan.cu reaches.
#include <algorithm>

#include "cuda/device/chain.cuh"
#include "cuda/device/warp_total.cuh"
#include "cuda/ivf_pq/coarse.hpp"
#include "cuda/ivf_pq/coarse_scan.cuh"
#include "cuda/ivf_pq/code_table.hpp"
#include "cuda/ivf_pq/exact_search.cuh"
#include "cuda/ivf_pq/filter_answer.cuh"
#include "cuda/runtime/carver.hpp"
#include "cuda/runtime/launch.cuh"

namespace shortlist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / kWarp;
constexpr int kTopExponent = 7;              // of the largest element, as a half
constexpr std::int64_t kGroupsPerRow = 6;    // of a sample, for each row that is asked for
constexpr std::uint32_t kSampledShare = 3;   // one in so many rows
constexpr std::uint32_t kSampledOfMany = 2;  // the same where many are asked for, whose hits cost more than the sample
constexpr std::int64_t kManyRows = 64;
constexpr std::int64_t kMostChunkPages = 32;  // of an item
constexpr std::int64_t kLeastChunkPages = 16;
constexpr std::int64_t kChunksPerRow = 4;    // so that an item's hits fit the block's list
constexpr std::int64_t kColumns = 8;         // queries of a product
constexpr std::int64_t kColumnsOfItem = 16;  // that would take as long as an item's pages do
constexpr std::int64_t kHeaderBytes = 64;

/// In front of the pages.
struct coarse_header {
  prepared_header scales;
  float largest;          // norm of a row
  std::uint32_t element;  // bits of the largest magnitude of an element
};
static_assert(sizeof(coarse_header) <= kHeaderBytes);

core::ivf_pq_shape shape_of_rows(std::int64_t dim, metric by) {
  core::ivf_pq_shape shape;
  shape.dim = dim;
  shape.nlist = 1;
  shape.pieces = dim;
  shape.piece_dim = 1;
  shape.encodes = encoded::row;
  shape.metric = by;
  return shape;
}

std::int64_t page_bytes_of(std::int64_t dim) { return core::kPageRows * (coarse_halves(dim) * 2 + 4); }
std::int64_t pages_of(std::int64_t rows) { return (rows + core::kPageRows - 1) / core::kPageRows; }
std::int64_t table_bytes_of(std::int64_t rows) { return (pages_of(rows) * 4 + 127) / 128 * 128; }

struct rows_view {
  const float* rows;
  std::int64_t stride;
  std::int64_t count;
  std::int32_t dim;
  const float* inverse_norms;  // under cosine, whose rows are divided by their norms
  metric by;

  __device__ double element(std::int64_t row, std::int32_t i) const {
    const double value = rows[row * stride + i];
    return by != metric::cosine ? value : inverse_norms[row] < 0.0f ? 0.0 : value * inverse_norms[row];
  }
};

__global__ void __launch_bounds__(kThreads) largest_element_kernel(rows_view view, coarse_header* header) {
  float largest = 0.0f;
  const std::int64_t all = view.count * view.dim;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < all;
       at += static_cast<std::int64_t>(gridDim.x) * kThreads)
    largest = fmaxf(largest,
                    fabsf(static_cast<float>(view.element(at / view.dim, static_cast<std::int32_t>(at % view.dim)))));
  const std::uint32_t bits = __reduce_max_sync(kFullWarp, __float_as_uint(largest));
  if (threadIdx.x % kWarp == 0) atomicMax(&header->element, bits);
}

/// A warp a row, or a place behind the last.
__global__ void __launch_bounds__(kThreads)
    pages_kernel(rows_view view, std::int32_t halves, std::int64_t page_bytes, coarse_header* header,
                 std::uint32_t* table, std::byte* pages) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t page = row / core::kPageRows;
  const auto in_page = static_cast<std::int32_t>(row % core::kPageRows);
  std::byte* at = pages + page * page_bytes;
  const float element = __uint_as_float(header->element);
  const int exponent = element > 0.0f ? ilogbf(element) : 0;
  const double scale = scalbn(1.0, kTopExponent - exponent);
  const bool is_real = row < view.count;
  double squares = 0.0;
  double lost_squares = 0.0;
  auto* tile = reinterpret_cast<__half*>(at) + in_page / 16 * (16 * halves);
  for (std::int32_t i = lane; i < halves; i += kWarp) {
    const double value = is_real && i < view.dim ? view.element(row, i) : 0.0;
    const __half half = __double2half(value * scale);
    const double lost = value - static_cast<double>(__half2float(half)) / scale;
    squares += value * value;
    lost_squares += lost * lost;
    // Lane 4 g + t has halves t * halves / 4 and following, of rows g and g + 8: four of each a step.
    const std::int32_t t = i / (halves / 4);
    const std::int32_t of_lane = i % (halves / 4);
    const std::int32_t owner = in_page % 8 * 4 + t;
    tile[(of_lane / 4 * kWarp + owner) * 8 + of_lane % 4 / 2 * 4 + in_page % 16 / 8 * 2 + of_lane % 2] = half;
  }
  squares = warp_total(squares);
  lost_squares = warp_total(lost_squares);
  if (lane != 0) return;
  const double inverse_unit = scale * scale;
  const bool is_last = !is_real || (view.by == metric::cosine && view.inverse_norms[row] < 0.0f);
  const double term = view.by == metric::l2 ? 0.5 * squares * inverse_unit : 0.0;
  reinterpret_cast<float*>(at + core::kPageRows * halves * 2)[in_page] =
      is_last ? __uint_as_float(0x7F800000u) : static_cast<float>(term);
  if (in_page == 0) table[page] = static_cast<std::uint32_t>(page);
  atomicMax(reinterpret_cast<int*>(&header->largest),
            __float_as_int(__double2float_ru(sqrt(squares) * (1.0 + 0x1p-40))));
  atomicMax(reinterpret_cast<int*>(&header->scales.lost_of_rows),
            __float_as_int(__double2float_ru(sqrt(lost_squares) * (1.0 + 0x1p-40))));
  if (row != 0) return;
  header->scales.query_scale = static_cast<float>(scale);
  header->scales.unit = static_cast<float>(1.0 / inverse_unit);
  header->scales.inverse_unit = static_cast<float>(inverse_unit);
}

struct coarse_cut {
  std::uint32_t samples;       // parts of the rows that are sampled
  std::uint32_t sample_pages;  // of each
  std::uint32_t chunks;        // items of a group of queries
  std::uint32_t chunk_pages;   // of an item
  std::uint32_t pages;
};

coarse_cut cut_of(std::int64_t rows, std::int64_t k) {
  coarse_cut cut{};
  cut.pages = static_cast<std::uint32_t>(pages_of(rows));
  cut.samples = static_cast<std::uint32_t>(
      std::clamp<std::int64_t>((kGroupsPerRow * k + kGroupsOfList - 1) / kGroupsOfList, 1, cut.pages));
  const std::uint32_t share = k > kManyRows ? kSampledOfMany : kSampledShare;
  cut.sample_pages = std::max(1u, cut.pages / (share * cut.samples));
  cut.chunk_pages =
      static_cast<std::uint32_t>(std::clamp(rows / (kChunksPerRow * k), kLeastChunkPages, kMostChunkPages));
  cut.chunks = (cut.pages + cut.chunk_pages - 1) / cut.chunk_pages;
  return cut;
}

/// Queries of an item: fewer than fit, where the blocks' rounds over `items` of each group then take clearly less.
std::int32_t queries_of_groups(std::int64_t queries, std::int64_t items, std::int64_t most, int blocks) {
  const auto time_of = [&](std::int64_t each) {
    const std::int64_t all = (queries + each - 1) / each * items;
    return (all + blocks - 1) / blocks * (each + kColumnsOfItem);
  };
  std::int64_t best = most;
  for (std::int64_t each = most - kColumns; each > 0; each -= kColumns)
    if (4 * time_of(each) < 3 * time_of(best)) best = each;
  return static_cast<std::int32_t>(best);
}

struct coarse_plan_args {
  filter_batch batch;
  coarse_cut cut;
};

/// A thread a query and sample: pairs; and the items.
__global__ void __launch_bounds__(kThreads) coarse_plan_kernel(const __grid_constant__ coarse_plan_args args) {
  join_chain();
  const filter_batch& batch = args.batch;
  const coarse_cut& cut = args.cut;
  const std::uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  const auto count = static_cast<std::uint32_t>(batch.count);
  if (at == 0) {
    const std::uint32_t groups = (count + batch.all.queries_of_item - 1) / batch.all.queries_of_item;
    const std::uint32_t sampled = (count + batch.sample.queries_of_item - 1) / batch.sample.queries_of_item;
    *batch.all.item_count = groups * cut.chunks;
    *batch.sample.item_count = sampled * cut.samples;
    *batch.all.next_item = *batch.sample.next_item = 0;
  }
  const std::uint32_t query = at / cut.samples;
  const std::uint32_t sample = at % cut.samples;
  if (query >= count) return;
  const float base = batch.shares[query];
  const auto of_sample = static_cast<std::uint32_t>(batch.sample.queries_of_item);
  const std::uint32_t item = query / of_sample * cut.samples + sample;
  const std::uint32_t first = item * of_sample;
  batch.sample.pairs[first + query % of_sample] = {at, base, 0.0f};
  if (query % of_sample == 0)
    batch.sample.items[item] = {first, min(of_sample, count - query), cut.pages / cut.samples * sample,
                                cut.sample_pages};
  if (sample != 0) return;
  batch.all.pairs[query] = {query, base, 0.0f};
  const auto of_item = static_cast<std::uint32_t>(batch.all.queries_of_item);
  if (query % of_item != 0) return;
  for (std::uint32_t chunk = 0; chunk < cut.chunks; chunk++)
    batch.all.items[query / of_item * cut.chunks + chunk] = {query, min(of_item, count - query),
                                                             chunk * cut.chunk_pages,
                                                             min(cut.chunk_pages, cut.pages - chunk * cut.chunk_pages)};
}

struct coarse_memory {
  filter_batch filter;
  std::uint32_t* unanswered;
  std::uint32_t* unanswered_count;
  std::uint64_t* exact_keys;
  std::int64_t exact_capacity;
  std::int32_t exact_blocks;
};

coarse_memory memory_of(carver& carve, std::int64_t dim, std::int64_t rows, std::int64_t queries, std::int64_t k,
                        int multiprocessors) {
  const coarse_cut cut = cut_of(rows, k);
  coarse_memory memory{};
  filter_batch& filter = memory.filter;
  filter.capacity = static_cast<std::uint32_t>(hits_capacity(k));
  filter.columns = carve.take<__half>(queries * coarse_halves(dim));
  filter.margins = carve.take<float>(queries);
  filter.shares = carve.take<float>(queries);
  filter.inverse_norms = carve.take<float>(queries);
  filter.thresholds = carve.take<float>(queries);
  filter.hit_counts = carve.take<std::uint32_t>(queries);
  filter.minima = carve.take<float>(queries * cut.samples * kGroupsOfList);
  filter.hits = carve.take<std::uint64_t>(queries * filter.capacity);
  for (scan_pass* pass : {&filter.sample, &filter.all}) {
    const bool sample = pass == &filter.sample;
    const std::int32_t most = queries_of_halves(coarse_halves(dim), sample);
    const std::int64_t items = sample ? cut.samples : cut.chunks;
    pass->queries_of_item = queries_of_groups(queries, items, most, filter_scan_teams(multiprocessors));
    // Whatever fewer queries are grouped by.
    pass->pairs = carve.take<scan_pair>((queries + most) * (sample ? cut.samples : 1));
    pass->items = carve.take<scan_item>((queries / kColumns + 1) * items);
    pass->item_count = carve.take<std::uint32_t>(1);
    pass->next_item = carve.take<std::uint32_t>(1);
  }
  filter.sample.lists_of_query = static_cast<std::int32_t>(cut.samples);
  memory.unanswered = carve.take<std::uint32_t>(queries);
  memory.unanswered_count = carve.take<std::uint32_t>(1);
  filter.zeroed = memory.unanswered_count;
  filter.zeroed_count = 1;
  memory.exact_capacity = exact_search_capacity(k);
  memory.exact_blocks = static_cast<std::int32_t>(std::min(queries, kExactBlocksPerMultiprocessor * multiprocessors));
  memory.exact_keys = carve.take<std::uint64_t>(2 * memory.exact_capacity * memory.exact_blocks);
  return memory;
}

/// Hits by the scan of lists.
void scan_as_list(cudaStream_t stream, filter_batch& filter, const coarse_cut& cut, int multiprocessors) {
  filter.pairs_by_query = true;
  const std::int64_t threads = static_cast<std::int64_t>(filter.count) * cut.samples;
  launch(
      coarse_plan_kernel,
      {.grid = dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)), .threads = kThreads, .overlaps = true},
      stream, {filter, cut}, "launching the plan of a coarse search");
  launch_sample_scan(stream, filter, multiprocessors);
  launch_thresholds(stream, filter);
  launch_filter_scan(stream, filter, multiprocessors);
}

}  // namespace

bool has_coarse(std::int64_t dim, std::int64_t k) { return dim <= kCoarseMaxDim && k <= kCoarseMaxLists; }

std::int64_t coarse_pages_bytes(std::int64_t dim, std::int64_t rows) {
  return kHeaderBytes + table_bytes_of(rows) + pages_of(rows) * page_bytes_of(dim);
}

void launch_coarse_pages(cudaStream_t stream, const core::flat_corpus& rows, std::byte* pages) {
  auto* header = reinterpret_cast<coarse_header*>(pages);
  const rows_view view{static_cast<const float*>(rows.rows), rows.row_stride_bytes / 4, rows.count,
                       static_cast<std::int32_t>(rows.dim),  rows.inverse_norms,        rows.metric};
  check(cudaMemsetAsync(header, 0, sizeof *header, stream), "clearing a header");
  const std::int64_t blocks = std::min<std::int64_t>((rows.count * rows.dim + kThreads - 1) / kThreads, 1024);
  largest_element_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(view, header);
  pages_kernel<<<static_cast<unsigned>(pages_of(rows.count) * core::kPageRows / kWarps), kThreads, 0, stream>>>(
      view, static_cast<std::int32_t>(coarse_halves(rows.dim)), page_bytes_of(rows.dim), header,
      reinterpret_cast<std::uint32_t*>(pages + kHeaderBytes), pages + kHeaderBytes + table_bytes_of(rows.count));
  check(cudaGetLastError(), "launching the pages of centroids");
}

std::int64_t coarse_halves(std::int64_t dim) { return page_layout(shape_of_rows(dim, metric::l2)).padded_halves(); }

void set_coarse(filter_batch& filter, const std::byte* pages, const core::flat_corpus& rows,
                const core::flat_request& request) {
  const auto* header = reinterpret_cast<const coarse_header*>(pages);
  filter.shape = shape_of_rows(rows.dim, rows.metric);
  filter.lists.table = reinterpret_cast<const std::uint32_t*>(pages + kHeaderBytes);
  filter.lists.pages = const_cast<std::byte*>(pages) + kHeaderBytes + table_bytes_of(rows.count);  // only read
  filter.lists.largest = const_cast<float*>(&header->largest);
  filter.page_bytes = page_bytes_of(rows.dim);
  filter.by_chunks = coarse_halves(rows.dim) > kRegisterHalves;
  filter.header = &header->scales;
  filter.queries = request.queries;
  filter.query_stride = request.query_stride;
  filter.count = static_cast<std::int32_t>(request.query_count);
  filter.wanted = static_cast<std::uint32_t>(std::min(request.k, rows.count));
}

std::int64_t coarse_search_bytes(std::int64_t dim, std::int64_t rows, std::int64_t queries, std::int64_t k,
                                 int multiprocessors) {
  carver carve(nullptr);
  memory_of(carve, dim, rows, queries, k, multiprocessors);
  return carve.taken();
}

void launch_coarse_search(cudaStream_t stream, void* memory_begin, const std::byte* pages,
                          const core::flat_corpus& rows, const core::flat_request& request, int multiprocessors,
                          const filter_batch* next, exact_part* parts) {
  carver carve(memory_begin);
  coarse_memory memory = memory_of(carve, rows.dim, rows.count, request.query_count, request.k, multiprocessors);
  filter_batch& filter = memory.filter;
  set_coarse(filter, pages, rows, request);
  launch_prepare_queries(stream, filter, next);
  if (has_coarse_scan(rows.dim, rows.count, filter.wanted))
    launch_coarse_scan(stream, filter, rows.count, multiprocessors);
  else
    scan_as_list(stream, filter, cut_of(rows.count, request.k), multiprocessors);

  answer_plan answer{};
  answer.results = {rows.ids, request.scores, request.ids, request.k, rows.metric};
  answer.queries = request.queries;
  answer.query_stride = request.query_stride;
  answer.dim = static_cast<std::int32_t>(rows.dim);
  answer.by_code = filter.wanted;
  answer.type = element_type::f32;
  answer.rows = static_cast<const unsigned char*>(rows.rows);
  answer.row_stride_bytes = rows.row_stride_bytes;
  answer.inverse_norms = rows.inverse_norms;
  filter_answer_plan answers{};
  answers.batch = filter;
  answers.codes.dim = answer.dim;
  answers.answer = answer;
  answers.unanswered = memory.unanswered;
  answers.unanswered_count = memory.unanswered_count;
  launch_filter_answers(stream, answers);

  exact_search_plan exact{};
  exact.codes.dim = answer.dim;
  exact.answer = answer;
  exact.queries = request.queries;
  exact.query_stride = request.query_stride;
  exact.plain_rows = rows.count;
  exact.query_count = request.query_count;
  exact.keys = memory.exact_keys;
  exact.capacity = memory.exact_capacity;
  exact.parts = parts;
  exact.blocks = memory.exact_blocks;
  exact.which = memory.unanswered;
  exact.count = memory.unanswered_count;
  launch_exact_search(stream, exact);
}

}  // namespace shortlist::cuda
