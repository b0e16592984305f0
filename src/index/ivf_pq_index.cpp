// ivf_pq_index: arguments are checked here, once; then rows go to the lists, and searches to the backend.
#include "shortlist/ivf_pq_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/message.hpp"
#include "core/order.hpp"
#include "index/checks.hpp"
#include "index/ivf_pq_encode.hpp"
#include "index/ivf_pq_impl.hpp"
#include "index/ivf_pq_train.hpp"
#include "index/queued_use.hpp"
#include "index/widen.hpp"

namespace shortlist {
namespace {

core::ivf_pq_request part_of(const float* queries, std::int64_t stride, std::int64_t first, std::int64_t count,
                             const ivf_pq_search_options& options, const search_output& out) {
  return {.queries = queries,
          .query_stride = stride,
          .query_count = count,
          .k = options.k,
          .nprobe = options.nprobe,
          .refine_ratio = options.refine_ratio,
          .scores = out.scores + first * options.k,
          .ids = out.ids + first * options.k,
          .stats = options.stats};
}

void check_training(const ivf_pq_options& options, const any_matrix_view& vectors, const train_options& training) {
  if (training.iterations < 1) core::throw_invalid("training.iterations", training.iterations, "1 or more");
  if (training.rows_per_list < 1) core::throw_invalid("training.rows_per_list", training.rows_per_list, "1 or more");
  index::check_matrix("vectors", vectors, options.dim);
  const std::int64_t codewords = std::int64_t{1} << options.pq_bits;
  if (vectors.rows < options.nlist) {
    core::throw_invalid("vectors.rows", vectors.rows, fmt::format("{} or more, the lists", options.nlist));
  }
  if (options.code == code_kind::pq && vectors.rows < codewords) {
    core::throw_invalid("vectors.rows", vectors.rows, fmt::format("{} or more, the codewords of a piece", codewords));
  }
}

}  // namespace

std::span<const float> ivf_pq_result::scores_of(std::int64_t query) const {
  return std::span<const float>(scores).subspan(static_cast<std::size_t>(query * k), static_cast<std::size_t>(k));
}

std::span<const std::int64_t> ivf_pq_result::ids_of(std::int64_t query) const {
  return std::span<const std::int64_t>(ids).subspan(static_cast<std::size_t>(query * k), static_cast<std::size_t>(k));
}

ivf_pq_index::impl::impl(core::backend& on, const ivf_pq_options& chosen)
    : options(index::completed(chosen)),
      backend(on),
      where(on.where()),
      own(where),
      rows(backend, own.native(), options),
      slots(backend) {}

ivf_pq_index::ivf_pq_index(device where, const ivf_pq_options& options) {
  index::completed(options);  // its errors come first
  impl_ = index::with_host_memory([&] { return std::make_unique<impl>(core::backend_of(where), options); });
}

ivf_pq_index::ivf_pq_index(std::unique_ptr<impl> p) : impl_(std::move(p)) {}
ivf_pq_index::~ivf_pq_index() = default;
ivf_pq_index::ivf_pq_index(ivf_pq_index&&) noexcept = default;
ivf_pq_index& ivf_pq_index::operator=(ivf_pq_index&&) noexcept = default;

device ivf_pq_index::where() const noexcept { return impl_->where; }
const ivf_pq_options& ivf_pq_index::options() const noexcept { return impl_->options; }
std::int64_t ivf_pq_index::rows() const noexcept { return impl_->rows.count(); }
bool ivf_pq_index::is_trained() const noexcept { return impl_->model != nullptr; }

ivf_pq_memory ivf_pq_index::memory() const {
  const memory_use rows = impl_->rows.kept.memory();
  return {.model_bytes = impl_->model ? impl_->model->bytes() : 0,
          .codes_bytes = impl_->rows.codes.bytes(),
          .rows_bytes = rows.rows_bytes + rows.norms_bytes,
          .host_rows_bytes = rows.host_rows_bytes,
          .mapped_rows_bytes = impl_->rows.kept.mapped_bytes(),
          .ids_bytes = rows.ids_bytes,
          .workspaces_bytes = impl_->slots.bytes()};
}

list_statistics ivf_pq_index::lists() const {
  return index::with_host_memory([&] {
    const std::span<const std::uint32_t> sizes = impl_->rows.codes.sizes();
    std::vector<std::uint32_t> sorted(sizes.begin(), sizes.end());
    std::sort(sorted.begin(), sorted.end());
    list_statistics found;
    found.lists = static_cast<std::int64_t>(sorted.size());
    found.empty = std::upper_bound(sorted.begin(), sorted.end(), 0u) - sorted.begin();
    found.smallest = sorted.front();
    found.median = sorted[sorted.size() / 2];
    found.largest = sorted.back();
    double squares = 0.0;
    for (const std::uint32_t size : sorted) squares += static_cast<double>(size) * static_cast<double>(size);
    const auto all = static_cast<double>(rows());
    if (rows() > 0) found.imbalance = static_cast<double>(found.lists) * squares / (all * all);
    return found;
  });
}

void ivf_pq_index::impl::require_trained(std::string_view what) const {
  if (!model) core::throw_invalid("index", "not trained", fmt::format("{} after train", what));
}

void ivf_pq_index::impl::use(index::ivf_pq_arrays trained) {
  auto made = std::make_unique<index::ivf_pq_model>(backend, own.native(), options, std::move(trained));
  slots.clear();
  model = std::move(made);
}

void ivf_pq_index::train(any_matrix_view vectors, const train_options& options) { impl_->train(vectors, options); }

void ivf_pq_index::impl::train(const any_matrix_view& vectors, const train_options& training) {
  check_training(options, vectors, training);
  if (rows.count() > 0) {
    core::throw_invalid("index", fmt::format("one of {} rows", rows.count()), "one without rows: clear() drops them");
  }
  index::with_host_memory([&] { use(index::train_ivf_pq(backend, own.native(), options, vectors, training)); });
}

void ivf_pq_index::impl::add(void* on, core::copy_kind kind, const any_matrix_view& vectors,
                             std::span<const std::int64_t> ids) {
  index::check_matrix("vectors", vectors, options.dim);
  if (vectors.type != options.type) {
    core::throw_invalid("vectors.type", to_string(vectors.type),
                        fmt::format("{}, the type of the index", to_string(options.type)));
  }
  require_trained("add");
  index::check_row_count("vectors", vectors.rows, rows.count());
  index::with_host_memory([&] {
    slots.order_before(on);  // pages that an earlier addition left are written again
    rows.append(on, kind, model->view(), vectors, ids);
  });
}

void ivf_pq_index::add(any_matrix_view vectors, std::span<const std::int64_t> ids) {
  impl_->add(impl_->own.native(), core::copy_kind::host_to_device, vectors, ids);
}

void ivf_pq_index::add(const stream& s, any_matrix_view vectors, std::span<const std::int64_t> ids) {
  index::check_stream(s, impl_->where);
  impl_->add(s.native(), core::copy_kind::device_to_device, vectors, ids);
}

void ivf_pq_index::reserve(std::int64_t max_rows) {
  if (max_rows < 0 || max_rows > core::kMaxRows) {
    core::throw_invalid("max_rows", max_rows, fmt::format("0 to {}", core::kMaxRows));
  }
  index::with_host_memory([&] { impl_->rows.reserve(impl_->own.native(), max_rows); });
}

void ivf_pq_index::clear() {
  impl_->slots.order_before(impl_->own.native());
  impl_->rows.clear(impl_->own.native());
}

void ivf_pq_index::impl::check_search(const any_matrix_view& queries, const ivf_pq_search_options& search) const {
  index::check_matrix("queries", queries, options.dim);
  index::check_search(queries.rows, {.k = search.k});
  if (search.nprobe < 1 || search.nprobe > options.nlist) {
    core::throw_invalid("nprobe", search.nprobe, fmt::format("1 to {}, the lists", options.nlist));
  }
  if (search.refine_ratio < 0) core::throw_invalid("refine_ratio", search.refine_ratio, "0 or more");
  if (search.refine_ratio > 0 && options.rows == kept_rows::none) {
    core::throw_invalid("refine_ratio", search.refine_ratio, "0 for an index that keeps no rows");
  }
  require_trained("search");
}

index::ivf_pq_slots::lease ivf_pq_index::impl::take_slot(std::int64_t queries,
                                                         const ivf_pq_search_options& search) const {
  return slots.take(
      model->view(), rows.lists(),
      {.max_queries = queries, .max_k = search.k, .max_nprobe = search.nprobe, .max_refine_ratio = search.refine_ratio},
      rows.capacity());
}

ivf_pq_result ivf_pq_index::search(any_matrix_view queries, const ivf_pq_search_options& options) const {
  impl_->check_search(queries, options);
  ivf_pq_result result;
  result.queries = queries.rows;
  result.k = options.k;
  index::with_host_memory([&] {
    const auto entries = static_cast<std::size_t>(queries.rows * options.k);
    result.k_found.resize(static_cast<std::size_t>(queries.rows));
    result.scores.resize(entries);
    result.ids.resize(entries);
  });
  search(queries, options, {result.scores.data(), result.ids.data()});
  for (std::int64_t query = 0; query < queries.rows; ++query) {
    const std::span<const std::int64_t> ids = result.ids_of(query);
    result.k_found[static_cast<std::size_t>(query)] = std::find(ids.begin(), ids.end(), core::kNoId) - ids.begin();
  }
  return result;
}

void ivf_pq_index::search(any_matrix_view queries, const ivf_pq_search_options& options, search_output out) const {
  impl_->check_search(queries, options);
  index::check_output(out, queries.rows);
  if (queries.rows == 0) return;
  if (rows() == 0) {
    std::fill_n(out.scores, queries.rows * options.k, core::worst_score(impl_->options.metric));
    std::fill_n(out.ids, queries.rows * options.k, core::kNoId);
    return;
  }
  index::with_host_memory([&] { impl_->search_host(queries, options, out); });
}

void ivf_pq_index::impl::search_host(const any_matrix_view& queries, const ivf_pq_search_options& search,
                                     const search_output& out) const {
  const auto taken = take_slot(queries.rows, search);
  const std::int64_t batch = std::min(queries.rows, taken->limits.max_queries);
  const bool widens = queries.type != element_type::f32;
  if (widens) taken->widened.resize(std::max(taken->widened.size(), static_cast<std::size_t>(batch * options.dim)));
  for (std::int64_t first = 0; first < queries.rows; first += batch) {
    const std::int64_t count = std::min(batch, queries.rows - first);
    const std::int64_t stride = widens ? options.dim : index::stride_of(queries);
    const float* from = widens ? taken->widened.data() : static_cast<const float*>(queries.data) + first * stride;
    if (widens) index::widen_rows(queries, first, count, taken->widened.data());
    backend.ivf_pq().search_host(taken->own.native(), *taken->scratch, model->view(), rows.lists(),
                                 part_of(from, stride, first, count, search, out));
  }
}

void ivf_pq_index::search(const stream& s, any_matrix_view queries, const ivf_pq_search_options& options,
                          search_output out) const {
  index::check_stream(s, impl_->where);
  impl_->check_search(queries, options);
  index::check_output(out, queries.rows);
  if (queries.type != element_type::f32) {
    core::throw_invalid("queries.type", to_string(queries.type), "f32 for queries in device memory");
  }
  if (queries.rows == 0) return;
  index::with_host_memory([&] { impl_->search_queued(s.native(), queries, options, out); });
}

void ivf_pq_index::impl::search_queued(void* on, const any_matrix_view& queries, const ivf_pq_search_options& search,
                                       const search_output& out) const {
  const auto taken = take_slot(queries.rows, search);
  const std::int64_t batch = std::min(queries.rows, taken->limits.max_queries);
  const std::int64_t stride = index::stride_of(queries);
  ivf_pq_search_options quiet = search;
  quiet.stats = nullptr;
  const index::queued_use ordered(backend, taken->own.native(), on);
  for (std::int64_t first = 0; first < queries.rows; first += batch) {
    const std::int64_t count = std::min(batch, queries.rows - first);
    backend.ivf_pq().search(
        on, *taken->scratch, model->view(), rows.lists(),
        part_of(static_cast<const float*>(queries.data) + first * stride, stride, first, count, quiet, out));
  }
}

search_result ivf_pq_index::search_kept_rows(any_matrix_view queries, const search_options& options) const {
  index::check_matrix("queries", queries, impl_->options.dim);
  index::check_search(queries.rows, options);
  if (impl_->options.rows == kept_rows::none) {
    core::throw_invalid("index", "one that keeps no rows", "one made with rows = device or host");
  }
  return index::with_host_memory([&] { return impl_->search_kept(queries, options); });
}

search_result ivf_pq_index::impl::search_kept(const any_matrix_view& queries, const search_options& search) const {
  // In batches: their candidates stay few, and the rows are read seldom enough.
  constexpr std::int64_t kBatch = 1024;
  const core::flat_corpus corpus = rows.kept.corpus();
  search_result result;
  result.queries = queries.rows;
  result.k = search.k;
  result.k_found = std::min(search.k, corpus.count);
  const auto entries = static_cast<std::size_t>(queries.rows * search.k);
  result.scores.assign(entries, core::worst_score(options.metric));
  result.ids.assign(entries, core::kNoId);
  if (queries.rows == 0 || corpus.count == 0) return result;
  const std::int64_t batch = std::min(queries.rows, kBatch);
  const stream reader(where);
  const auto scratch = backend.make_scratch({.max_rows = corpus.count, .max_queries = batch, .max_k = search.k},
                                            options.dim, storage::full);
  std::vector<float> widened(static_cast<std::size_t>(batch * options.dim));
  for (std::int64_t first = 0; first < queries.rows; first += batch) {
    const std::int64_t count = std::min(batch, queries.rows - first);
    index::widen_rows(queries, first, count, widened.data());
    backend.flat_search_host(reader.native(), *scratch, corpus,
                             {.queries = widened.data(),
                              .query_stride = options.dim,
                              .query_count = count,
                              .k = search.k,
                              .scores = result.scores.data() + first * search.k,
                              .ids = result.ids.data() + first * search.k,
                              .stats = search.stats});
  }
  return result;
}

}  // namespace shortlist
