// The rows of an IVF-PQ index.
#include "index/ivf_pq_rows.hpp"

#include "index/ivf_pq_encode.hpp"
#include "index/ivf_pq_model.hpp"

namespace shortlist::index {
namespace {

row_place place_of(kept_rows kept) {
  switch (kept) {
    case kept_rows::none: return row_place::nowhere;
    case kept_rows::device: return row_place::device;
    case kept_rows::host: return row_place::host;
  }
  return row_place::nowhere;
}

}  // namespace

ivf_pq_rows::ivf_pq_rows(core::backend& on, void* stream, const ivf_pq_options& options)
    : backend(on),
      codes(on, stream, shape_of(options)),
      kept(on, {.dim = options.dim, .metric = options.metric, .type = options.type}, place_of(options.rows)),
      keeps_rows(options.rows != kept_rows::none) {}

core::ivf_pq_lists ivf_pq_rows::lists() const noexcept {
  core::ivf_pq_lists searched = codes.lists();
  const core::flat_corpus corpus = kept.corpus();
  if (keeps_rows) searched.kept = corpus;
  searched.ids = corpus.ids;
  return searched;
}

void ivf_pq_rows::reserve(void* stream, std::int64_t max_rows) {
  codes.reserve(stream, max_rows);
  kept.reserve(stream, max_rows);
}

void ivf_pq_rows::clear(void* stream) {
  codes.clear(stream);
  kept.clear();
}

void ivf_pq_rows::append(void* stream, core::copy_kind kind, const core::ivf_pq_model& model,
                         const any_matrix_view& vectors, std::span<const std::int64_t> ids) {
  check_finite(backend, stream, kind, vectors);
  ivf_pq_store::addition added(codes);
  add_encoded(backend, stream, model, kind, vectors, count(), added);
  added.prepare_commit(stream);
  kept.append(stream, kind, vectors, ids);
  added.commit();
}

}  // namespace shortlist::index
