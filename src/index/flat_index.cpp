// flat_index: arguments are checked here, once; then rows go to the store, and searches to the backend.
#include "shortlist/flat_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/message.hpp"
#include "core/order.hpp"
#include "core/plan.hpp"
#include "index/checks.hpp"
#include "index/flat_index_impl.hpp"
#include "index/queued_use.hpp"
#include "index/widen.hpp"

namespace shortlist {
namespace {

/// Queries [first, first + count) of a search, with where their answers go.
core::flat_request part_of(const float* queries, std::int64_t stride, std::int64_t first, std::int64_t count,
                           const search_options& options, const search_output& out) {
  return {.queries = queries,
          .query_stride = stride,
          .query_count = count,
          .k = options.k,
          .scores = out.scores + first * options.k,
          .ids = out.ids + first * options.k,
          .stats = options.stats};
}

/// Everything that a search's caller can get wrong.
void check_request(const any_matrix_view& queries, const flat_index_options& options, const search_options& search,
                   const search_output& out) {
  index::check_matrix("queries", queries, options.dim);
  index::check_search(queries.rows, search);
  index::check_output(out, queries.rows);
}

void check_device_queries(const any_matrix_view& queries) {
  if (queries.type != element_type::f32) {
    core::throw_invalid("queries.type", to_string(queries.type), "f32 for queries in device memory");
  }
}

void check_workspace_limit(std::string_view what, std::int64_t value, std::int64_t limit, std::string_view name) {
  if (value > limit) core::throw_invalid(what, value, fmt::format("up to {}, the workspace's {}", limit, name));
}

}  // namespace

std::span<const float> search_result::scores_of(std::int64_t query) const {
  return std::span<const float>(scores).subspan(static_cast<std::size_t>(query * k), static_cast<std::size_t>(k));
}

std::span<const std::int64_t> search_result::ids_of(std::int64_t query) const {
  return std::span<const std::int64_t>(ids).subspan(static_cast<std::size_t>(query * k), static_cast<std::size_t>(k));
}

flat_index::flat_index(device where, const flat_index_options& options) {
  index::check_options(options);
  impl_ = index::with_host_memory([&] { return std::make_unique<impl>(where, options); });
}

flat_index::flat_index(std::unique_ptr<impl> p) : impl_(std::move(p)) {}
flat_index::~flat_index() = default;
flat_index::flat_index(flat_index&&) noexcept = default;
flat_index& flat_index::operator=(flat_index&&) noexcept = default;

device flat_index::where() const noexcept { return impl_->where; }
std::int64_t flat_index::rows() const noexcept { return impl_->store.rows(); }
std::int64_t flat_index::dim() const noexcept { return impl_->options.dim; }
shortlist::metric flat_index::metric() const noexcept { return impl_->options.metric; }
element_type flat_index::type() const noexcept { return impl_->options.type; }
storage flat_index::storage() const noexcept { return impl_->options.storage; }

memory_use flat_index::memory() const {
  memory_use use = impl_->store.memory();
  impl_->slots.add_to(use);
  return use;
}

void flat_index::impl::add(void* on, core::copy_kind kind, const any_matrix_view& vectors,
                           std::span<const std::int64_t> ids) {
  index::check_matrix("vectors", vectors, options.dim);
  if (vectors.type != options.type) {
    core::throw_invalid("vectors.type", to_string(vectors.type),
                        fmt::format("{}, the type of the index", to_string(options.type)));
  }
  index::check_row_count("vectors", vectors.rows, store.rows());
  index::with_host_memory([&] { store.append(on, kind, vectors, ids); });
}

void flat_index::add(any_matrix_view vectors, std::span<const std::int64_t> ids) {
  impl_->add(impl_->own.native(), core::copy_kind::host_to_device, vectors, ids);
}

void flat_index::add(const stream& s, any_matrix_view vectors, std::span<const std::int64_t> ids) {
  index::check_stream(s, impl_->where);
  impl_->add(s.native(), core::copy_kind::device_to_device, vectors, ids);
}

search_result flat_index::search(any_matrix_view queries, const search_options& options) const {
  index::check_matrix("queries", queries, dim());
  index::check_search(queries.rows, options);
  search_result result;
  result.queries = queries.rows;
  result.k = options.k;
  index::with_host_memory([&] {
    const auto entries = static_cast<std::size_t>(queries.rows * options.k);
    result.scores.resize(entries);
    result.ids.resize(entries);
  });
  result.k_found = search(queries, options, {result.scores.data(), result.ids.data()});
  return result;
}

std::int64_t flat_index::search(any_matrix_view queries, const search_options& options, search_output out) const {
  check_request(queries, impl_->options, options, out);
  return index::with_host_memory([&] { return impl_->search_host(queries, options, out); });
}

std::int64_t flat_index::impl::search_host(const any_matrix_view& queries, const search_options& search,
                                           const search_output& out) const {
  const std::int64_t k = search.k;
  const core::flat_corpus corpus = store.corpus();
  const std::int64_t k_found = std::min(k, corpus.count);
  if (queries.rows == 0) return k_found;
  if (corpus.count == 0) {
    std::fill_n(out.scores, queries.rows * k, core::worst_score(options.metric));
    std::fill_n(out.ids, queries.rows * k, core::kNoId);
    return 0;
  }
  const auto taken = slots.take({.max_rows = corpus.count, .max_queries = queries.rows, .max_k = k}, store.capacity());
  const std::int64_t batch = std::min(queries.rows, taken->limits.max_queries);
  const bool widens = queries.type != element_type::f32;
  if (widens) taken->widened.resize(std::max(taken->widened.size(), static_cast<std::size_t>(batch * options.dim)));
  for (std::int64_t first = 0; first < queries.rows; first += batch) {
    const std::int64_t count = std::min(batch, queries.rows - first);
    const std::int64_t stride = widens ? options.dim : index::stride_of(queries);
    const float* from = widens ? taken->widened.data() : static_cast<const float*>(queries.data) + first * stride;
    if (widens) index::widen_rows(queries, first, count, taken->widened.data());
    backend.flat_search_host(taken->own.native(), *taken->scratch, corpus,
                             part_of(from, stride, first, count, search, out));
  }
  return k_found;
}

std::int64_t flat_index::search(const stream& s, any_matrix_view queries, const search_options& options,
                                search_output out) const {
  index::check_stream(s, impl_->where);
  check_request(queries, impl_->options, options, out);
  check_device_queries(queries);
  return index::with_host_memory([&] { return impl_->search_queued(s.native(), queries, options.k, out); });
}

std::int64_t flat_index::impl::search_queued(void* on, const any_matrix_view& queries, std::int64_t k,
                                             const search_output& out) const {
  const core::flat_corpus corpus = store.corpus();
  const std::int64_t k_found = std::min(k, corpus.count);
  if (queries.rows == 0) return k_found;
  const auto taken = slots.take({.max_rows = corpus.count, .max_queries = queries.rows, .max_k = k}, store.capacity());
  const std::int64_t batch = std::min(queries.rows, taken->limits.max_queries);
  const std::int64_t stride = index::stride_of(queries);
  const index::queued_use ordered(backend, taken->own.native(), on);
  for (std::int64_t first = 0; first < queries.rows; first += batch) {
    const std::int64_t count = std::min(batch, queries.rows - first);
    backend.flat_search(
        on, *taken->scratch, corpus,
        part_of(static_cast<const float*>(queries.data) + first * stride, stride, first, count, {.k = k}, out));
  }
  return k_found;
}

std::int64_t flat_index::search(const stream& s, workspace& scratch, any_matrix_view queries,
                                const search_options& options, search_output out) const {
  index::check_stream(s, impl_->where);
  check_request(queries, impl_->options, options, out);
  check_device_queries(queries);
  if (!scratch.impl_) core::throw_invalid("workspace", "moved from", "one that still has its memory");
  if (scratch.where() != where()) {
    core::throw_invalid("workspace", "one of " + scratch.where().name(), "one of " + where().name());
  }
  const search_limits& limits = scratch.limits();
  check_workspace_limit("the index's number of rows", rows(), limits.max_rows, "max_rows");
  check_workspace_limit("queries.rows", queries.rows, limits.max_queries, "max_queries");
  check_workspace_limit("k", options.k, limits.max_k, "max_k");

  const core::flat_corpus corpus = impl_->store.corpus();
  if (queries.rows > 0) {
    impl_->backend.flat_search(s.native(), *scratch.impl_->scratch, corpus,
                               part_of(static_cast<const float*>(queries.data), index::stride_of(queries), 0,
                                       queries.rows, {.k = options.k}, out));
  }
  return std::min(options.k, corpus.count);
}

void flat_index::reserve(const search_limits& limits, int concurrency) {
  constexpr std::int64_t kMinRows = 0;
  index::check_limits(limits, kMinRows);
  if (concurrency < 1) core::throw_invalid("concurrency", concurrency, "1 or more");
  const std::int64_t max_rows = std::max(limits.max_rows, rows());
  index::with_host_memory([&] {
    auto slots = impl_->slots.make_reserved(
        {.max_rows = std::max<std::int64_t>(max_rows, 1), .max_queries = limits.max_queries, .max_k = limits.max_k},
        concurrency);
    impl_->store.reserve(impl_->own.native(), max_rows);
    impl_->slots.put_in(std::move(slots));
  });
}

void flat_index::read(std::int64_t first, std::int64_t count, void* out) const {
  if (first < 0 || first > rows()) core::throw_invalid("first", first, fmt::format("0 to {}, the rows", rows()));
  if (count < 0 || count > rows() - first) {
    core::throw_invalid("count", count, fmt::format("0 to {}, the rows from {} on", rows() - first, first));
  }
  if (count == 0) return;
  if (!out) core::throw_invalid("out", "null", fmt::format("memory of {} rows", count));
  const stream own(where());  // a read may run beside searches
  impl_->store.read(own.native(), first, count, out);
}

std::string flat_index::explain(std::int64_t queries, const search_options& options) const {
  const search_shape shape = {.rows = rows(),
                              .dim = dim(),
                              .queries = queries,
                              .k = options.k,
                              .type = type(),
                              .metric = metric(),
                              .storage = storage()};
  index::check_shape(shape);
  return core::explain_flat_search(where().kind(), where().description(), shape, impl_->store.corpus().summary);
}

std::string explain(device where, const search_shape& shape) {
  index::check_shape(shape);
  return core::explain_flat_search(where.kind(), where.description(), shape);
}

}  // namespace shortlist
