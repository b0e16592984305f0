// The search of an IVF-PQ index on one GPU.
//
// A few queries: their lists by the scores or estimates of all centroids, then every row of those decoded, by all of
// the GPU.
// A batch: the nprobe best centroids of each query, by flat search -> queries become columns, pairs of query and list
// are grouped by list -> a sample of the nearest lists gives each query a threshold -> all lists are scanned on the
// matrix units, rows that reach the threshold are kept -> their scores, and with refining those of the rows themselves,
// to the bit -> the answers. For many rows by code the scan marks rows instead, or writes all distances out, of which
// the best are chosen. Queries that the filter cannot serve have all rows of their lists decoded: the device decides,
// the launches depend on shapes alone.
#include <algorithm>
#include <bit>
#include <limits>

#include "core/ivf_pq_plan.hpp"
#include "cuda/ivf_pq/coarse.hpp"
#include "cuda/ivf_pq/exact_search.cuh"
#include "cuda/ivf_pq/few_search.cuh"
#include "cuda/ivf_pq/filter_answer.cuh"
#include "cuda/ivf_pq/many_rows.cuh"
#include "cuda/ivf_pq/nearest_lists.hpp"
#include "cuda/ivf_pq/search.hpp"
#include "cuda/ivf_pq/search_plan.cuh"
#include "cuda/runtime/carver.hpp"
#include "cuda/runtime/check.cuh"
#include "cuda/runtime/memory.cuh"

namespace shortlist::cuda {
namespace {

constexpr std::int64_t kMaxBatch = 16'384;
constexpr std::int64_t kMappedResultBytes = 64 * 1024;  // larger results are copied down instead of written through
constexpr std::int64_t kFlagBytes = 64;

struct search_scratch final : core::scratch {
  batch_memory batches;
  device_memory queries;  // of host searches
  device_memory scores;
  device_memory ids;
  mapped_memory results;       // small ones, behind a flag
  std::uint32_t searches = 0;  // announced by the flag
  std::unique_ptr<core::scratch> coarse;

  std::int64_t bytes() const noexcept override {
    return batches.memory.bytes() + queries.bytes() + scores.bytes() + ids.bytes() + coarse->bytes();
  }
  std::int64_t device_allocations() const noexcept override { return 5 + coarse->device_allocations(); }
};

exact_search_plan exact_plan_of(const search_memory& memory, const decoder& codes, const answer_plan& answer,
                                const float* queries, std::int64_t query_stride, const core::ivf_pq_lists& lists,
                                const core::ivf_pq_request& request) {
  exact_search_plan plan{};
  plan.codes = codes;
  plan.answer = answer;
  plan.queries = queries;
  plan.query_stride = query_stride;
  plan.probes = memory.probes;
  plan.nprobe = request.nprobe;
  plan.table = lists.table;
  plan.first = lists.first;
  plan.sizes = lists.sizes;
  plan.query_count = request.query_count;
  plan.keys = memory.exact_keys;
  plan.capacity = memory.exact_capacity;
  plan.parts = memory.exact_parts;
  plan.blocks = memory.exact_blocks;
  plan.decoded = memory.counters;
  return plan;
}

answer_plan answer_of(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                      const core::ivf_pq_request& request) {
  answer_plan answer{};
  answer.results = {lists.ids, request.scores, request.ids, request.k, model.shape.metric};
  answer.queries = request.queries;
  answer.query_stride = request.query_stride;
  answer.dim = static_cast<std::int32_t>(model.shape.dim);
  answer.by_code = static_cast<std::uint32_t>(rows_by_code(request.k, request.refine_ratio));
  answer.type = lists.kept.type;
  if (request.refine_ratio > 0) {
    answer.rows = static_cast<const unsigned char*>(lists.kept.rows);
    answer.row_stride_bytes = lists.kept.row_stride_bytes;
    answer.inverse_norms = lists.kept.inverse_norms;
  }
  return answer;
}

/// The queries' nearest lists, into memory.probes; and what they are filtered for next is prepared, if it is given.
void find_lists(cudaStream_t stream, core::backend& backend, search_scratch& scratch, const search_memory& memory,
                const core::ivf_pq_model& model, const core::flat_request& request, const float* inline_query,
                int multiprocessors, const filter_batch* next) {
  const std::byte* pages = model.prepared + prepared_table_end(model.shape);  // if rows are short enough for either
  if (scores_centroids(model.shape, request.query_count, request.k))
    return launch_nearest_lists(stream, memory.nearest, model.probes, pages, request, inline_query, next);
  const bool is_last_of_many = request.query_count > scratch.batches.batch && has_coarse(model.shape.dim, request.k);
  if (is_last_of_many || filters_centroids(model.shape, request.query_count, request.k))
    return launch_coarse_search(stream, memory.coarse, pages, model.probes, request, multiprocessors, next,
                                memory.exact_parts);
  backend.flat_search(stream, *scratch.coarse, model.probes, request);
  if (next) launch_prepare_queries(stream, *next);
}

/// Answers of many rows by code. Queries that neither marks nor distances serve are left.
void answer_many(cudaStream_t stream, const search_memory& memory, const decoder& codes, const answer_plan& answer,
                 int multiprocessors) {
  const filter_batch& filter = memory.filter;
  launch_fill_regions(stream, filter);
  launch_distance_scan(stream, filter, multiprocessors);
  if (filter.marks) {
    launch_sampled_thresholds(stream, filter);
    launch_mark_scan(stream, filter, multiprocessors);
  }
  many_plan plan{};
  plan.batch = filter;
  plan.codes = codes;
  plan.answer = answer;
  plan.rows = memory.many;
  plan.counts = memory.many_counts;
  plan.border_counts = memory.border_counts;
  plan.room = static_cast<std::uint32_t>(many_rows_room(answer.by_code));
  plan.unanswered = memory.retry.left;
  plan.unanswered_count = memory.retry.left_count;
  plan.decoded = memory.counters;
  launch_many_answers(stream, plan, multiprocessors);
}

/// Rows that reach a threshold, and the answers from those, where need be in a second scan. Queries that neither serves
/// are left.
void answer_from_hits(cudaStream_t stream, const search_memory& memory, const decoder& codes, const answer_plan& answer,
                      int multiprocessors) {
  launch_sample_scan(stream, memory.filter, multiprocessors);
  launch_thresholds(stream, memory.filter);
  launch_filter_scan(stream, memory.filter, multiprocessors);
  filter_answer_plan plan{};
  plan.batch = memory.filter;
  plan.codes = codes;
  plan.answer = answer;
  plan.unanswered = memory.unanswered;
  plan.unanswered_count = memory.counts;
  plan.decoded = memory.counters;
  launch_filter_answers(stream, plan);
  launch_retry_scan(stream, memory.filter, memory.retry, multiprocessors);
  plan.which = memory.retry.retried;
  plan.which_count = memory.retry.retried_count;
  plan.unanswered = memory.retry.left;
  plan.unanswered_count = memory.retry.left_count;
  launch_filter_answers(stream, plan);
}

/// A host that waits for one query's answer.
struct waiting_host {
  const float* query = nullptr;  // in its memory, if it travels with the kernels
  completion_flag done;
};

void search_batch(cudaStream_t stream, core::backend& backend, core::ivf_pq_ops& ops, search_scratch& scratch,
                  const core::ivf_pq_model& model, const core::ivf_pq_lists& lists, const core::ivf_pq_request& request,
                  const search_shape_of_batch& batch, int multiprocessors, const waiting_host& host = {}) {
  carver carve(scratch.batches.memory.get());
  search_memory memory = memory_of(carve, model.shape, model.rotation != nullptr, batch, multiprocessors);

  const float* queries = request.queries;
  std::int64_t query_stride = request.query_stride;
  if (model.rotation) {
    const any_matrix_view given(queries, element_type::f32, request.query_count, model.shape.dim, query_stride);
    ops.take_rows(stream, metric::l2, model.rotation, given, memory.turned);
    queries = memory.turned;
    query_stride = model.shape.dim;
  }
  core::flat_request coarse{};
  coarse.queries = queries;
  coarse.query_stride = query_stride;
  coarse.query_count = request.query_count;
  coarse.k = request.nprobe;
  coarse.scores = memory.probe_scores;
  coarse.ids = memory.probes;
  filter_batch& filter = memory.filter;
  const bool by_few = goes_by_few(model.shape, batch, lists);
  const bool filters =
      !by_few && request.k <= kFilterMaxResults && is_filtered(model.shape, batch.by_code, batch.nprobe);
  if (filters) set_filter(memory, model, lists, batch, queries, query_stride, multiprocessors);
  const std::uint32_t* centroid_keys = nullptr;
  if (by_few && has_centroid_keys(batch.queries, model.shape.nlist))
    centroid_keys = launch_centroid_keys(stream, memory.nearest, model.probes, coarse, host.query);
  else
    find_lists(stream, backend, scratch, memory, model, coarse, host.query, multiprocessors,
               filters ? &filter : nullptr);

  const decoder codes = decoder_of(model, lists);
  const answer_plan answer = answer_of(model, lists, request);
  if (by_few) {
    few_search_plan few{};
    few.codes = codes;
    few.answer = answer;
    if (host.query) few.answer.queries = nullptr;
    few.queries = query_source(queries, query_stride, host.query, model.shape.dim);
    few.centroid_keys = centroid_keys;
    few.probes = memory.probes;
    few.table = lists.table;
    few.first = lists.first;
    few.sizes = lists.sizes;
    few.query_count = static_cast<std::int32_t>(batch.queries);
    few.nprobe = static_cast<std::int32_t>(batch.nprobe);
    few.nlist = static_cast<std::int32_t>(model.shape.nlist);
    few.parts = few_search_parts(batch.queries, multiprocessors);
    few.keys = memory.few_keys;
    few.control = memory.few;
    few.decoded = memory.counters;
    few.done = host.done;
    return launch_few_search(stream, few);
  }
  exact_search_plan exact = exact_plan_of(memory, codes, answer, queries, query_stride, lists, request);
  if (!filters) return launch_exact_search(stream, exact);
  launch_group_pairs(stream, filter);
  if (filter.distances)
    answer_many(stream, memory, codes, answer, multiprocessors);
  else
    answer_from_hits(stream, memory, codes, answer, multiprocessors);
  exact.which = memory.retry.left;
  exact.count = memory.retry.left_count;
  launch_exact_search(stream, exact);
}

}  // namespace

decoder decoder_of(const core::ivf_pq_model& model, const core::ivf_pq_lists& lists) {
  const core::ivf_pq_shape& shape = model.shape;
  const page_layout layout(shape);
  decoder made{};
  made.pages = lists.pages;
  made.codebook = model.codebook;
  made.steps = shape.uniform ? model.steps : nullptr;
  if (shape.encodes == encoded::residual) made.centroids = static_cast<const float*>(model.probes.rows);
  made.centroid_stride = model.probes.row_stride_bytes / 4;
  made.page_bytes = layout.page_bytes();
  made.dim = static_cast<std::int32_t>(shape.dim);
  made.piece_dim = static_cast<std::int32_t>(shape.piece_dim);
  const auto piece_dim = static_cast<std::uint64_t>(shape.piece_dim);
  made.piece_shift = std::has_single_bit(piece_dim) ? std::countr_zero(piece_dim) : -1;
  made.codewords = static_cast<std::int32_t>(shape.codewords());
  made.code_bits = static_cast<std::int32_t>(layout.code_bits);
  made.lane_pieces = static_cast<std::int32_t>(layout.lane_pieces);
  made.row_words = static_cast<std::int32_t>(layout.row_words());
  made.plane_shift = layout.plane_shift();
  made.tile_words = static_cast<std::int32_t>(layout.tile_bytes() / 4);
  made.positions_at = static_cast<std::int32_t>(layout.positions_at());
  made.list_at = static_cast<std::int32_t>(layout.list_at());
  return made;
}

std::unique_ptr<core::scratch> make_search_scratch(core::backend& backend, const core::ivf_pq_model& model,
                                                   const core::ivf_pq_lists& lists, const core::ivf_pq_limits& limits,
                                                   int multiprocessors) {
  auto made = std::make_unique<search_scratch>();
  made->batches.limits = limits;
  made->batches.most_queries = std::min(limits.max_queries, kMaxBatch);
  take_memory(made->batches, model, lists, multiprocessors);
  const search_shape_of_batch batch{made->batches.batch, limits.max_nprobe,
                                    rows_by_code(limits.max_k, limits.max_refine_ratio)};
  carver carve(made->batches.memory.get());
  const search_memory memory = memory_of(carve, model.shape, false, batch, multiprocessors);
  clear_now(memory.few, kFewQueries * static_cast<std::int64_t>(sizeof(few_control)));
  clear_now(memory.exact_parts,
            kExactBlocksPerMultiprocessor * multiprocessors * static_cast<std::int64_t>(sizeof(exact_part)));
  made->queries = device_memory(made->batches.most_queries * model.shape.dim * 4);
  made->scores = device_memory(batch.queries * limits.max_k * 4);
  made->ids = device_memory(batch.queries * limits.max_k * 8);
  made->results = mapped_memory(kFlagBytes + kMappedResultBytes);
  made->coarse =
      backend.make_scratch({.max_rows = model.shape.nlist, .max_queries = batch.queries, .max_k = limits.max_nprobe}, 0,
                           model.probes.storage);
  return made;
}

void launch_search(cudaStream_t stream, core::backend& backend, core::ivf_pq_ops& ops, core::scratch& memory,
                   const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                   const core::ivf_pq_request& request, int multiprocessors) {
  auto& scratch = static_cast<search_scratch&>(memory);
  constexpr std::int64_t kAnyResults = std::numeric_limits<std::int64_t>::max();  // they go where they belong
  search_shape_of_batch batch = batch_of(scratch.batches, model, lists, request, kAnyResults, multiprocessors);
  const std::int64_t most = batch.queries;
  for (std::int64_t first = 0; first < request.query_count; first += most) {
    core::ivf_pq_request part = request;
    batch.queries = part.query_count = std::min(most, request.query_count - first);
    part.queries = request.queries + first * request.query_stride;
    part.scores = request.scores + first * request.k;
    part.ids = request.ids + first * request.k;
    search_batch(stream, backend, ops, scratch, model, lists, part, batch, multiprocessors);
  }
}

void search_from_host(cudaStream_t stream, core::backend& backend, core::ivf_pq_ops& ops, core::scratch& memory,
                      const core::ivf_pq_model& model, const core::ivf_pq_lists& lists,
                      const core::ivf_pq_request& request, int multiprocessors) {
  auto& scratch = static_cast<search_scratch&>(memory);
  const auto width = static_cast<std::size_t>(model.shape.dim) * sizeof(float);
  auto* counters = static_cast<unsigned long long*>(scratch.batches.memory.get());  // carved first
  search_shape_of_batch batch = batch_of(scratch.batches, model, lists, request,
                                         scratch.batches.batch * scratch.batches.limits.max_k, multiprocessors);
  const std::int64_t most = batch.queries;
  for (std::int64_t first = 0; first < request.query_count; first += most) {
    core::ivf_pq_request part = request;
    batch.queries = part.query_count = std::min(most, request.query_count - first);
    const auto entries = static_cast<std::size_t>(part.query_count * request.k);
    const bool mapped =
        static_cast<std::int64_t>(entries * (sizeof(float) + sizeof(std::int64_t))) <= kMappedResultBytes;
    part.ids =
        mapped ? scratch.results.device<std::int64_t>(kFlagBytes) : static_cast<std::int64_t*>(scratch.ids.get());
    part.scores = mapped ? reinterpret_cast<float*>(part.ids + entries) : static_cast<float*>(scratch.scores.get());
    if (request.stats) check(cudaMemsetAsync(counters, 0, 2 * sizeof *counters, stream), "clearing the counters");

    waiting_host host;
    if (mapped && part.query_count == 1 && goes_by_few(model.shape, batch, lists))
      host.done = {scratch.results.device<std::uint32_t>(), ++scratch.searches};
    if (host.done.word && !model.rotation && model.shape.dim <= kInlineQueryDim) {
      host.query = request.queries + first * request.query_stride;
    } else {
      part.queries = static_cast<const float*>(scratch.queries.get());
      part.query_stride = model.shape.dim;
      check(cudaMemcpy2DAsync(scratch.queries.get(), width, request.queries + first * request.query_stride,
                              static_cast<std::size_t>(request.query_stride) * sizeof(float), width,
                              static_cast<std::size_t>(part.query_count), cudaMemcpyHostToDevice, stream),
            "sending queries to the GPU");
    }
    search_batch(stream, backend, ops, scratch, model, lists, part, batch, multiprocessors, host);
    if (!mapped) {
      check(cudaMemcpyAsync(request.scores + first * request.k, part.scores, entries * sizeof(float),
                            cudaMemcpyDeviceToHost, stream),
            "bringing results from the GPU");
      check(cudaMemcpyAsync(request.ids + first * request.k, part.ids, entries * sizeof(std::int64_t),
                            cudaMemcpyDeviceToHost, stream),
            "bringing results from the GPU");
    }
    unsigned long long counted[2] = {};
    if (request.stats)
      check(cudaMemcpyAsync(counted, counters, sizeof counted, cudaMemcpyDeviceToHost, stream), "reading the counters");
    if (host.done.word && !request.stats) {
      await(stream, scratch.results.host<volatile std::uint32_t>(), host.done.value);
    } else {
      check(cudaStreamSynchronize(stream), "waiting for the search");
    }
    if (mapped) {
      const auto* ids = scratch.results.host<std::int64_t>(kFlagBytes);
      std::copy_n(ids, entries, request.ids + first * request.k);
      std::copy_n(reinterpret_cast<const float*>(ids + entries), entries, request.scores + first * request.k);
    }
    if (request.stats) {
      request.stats->decoded_rows += static_cast<std::int64_t>(counted[0]);
      request.stats->unfiltered_queries += static_cast<std::int64_t>(counted[1]);
    }
  }
}

}  // namespace shortlist::cuda
