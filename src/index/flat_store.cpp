// The rows of a flat index, resident on one device.
#include "index/flat_store.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/certified.hpp"
#include "core/order.hpp"
#include "shortlist/error.hpp"

namespace shortlist::index {
namespace {

constexpr std::int64_t kNormBytes = sizeof(float);
constexpr std::int64_t kIdBytes = sizeof(std::int64_t);
constexpr std::int64_t kSummaryBytes = sizeof(core::plane_summary);

constexpr std::int64_t round_up(std::int64_t bytes, std::int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

/// Half as much again: a row is copied about twice in the life of an index, and a third of the memory is spare at most.
constexpr std::int64_t grown_capacity(std::int64_t capacity, std::int64_t needed) {
  return std::min(std::max(needed, capacity + capacity / 2), core::kMaxRows);
}

}  // namespace

flat_store::flat_store(core::backend& backend, const flat_index_options& options, row_place place)
    : backend_(backend),
      options_(options),
      place_(place),
      row_bytes_(options.dim * size_bytes(options.type)),
      stride_bytes_(round_up(row_bytes_, backend.row_alignment_bytes())),
      block_bytes_(backend.plane_block_bytes(options.dim, options.metric, options.storage)) {
  if (has_plane()) new_summary_ = allocate(kSummaryBytes);
}

std::int64_t flat_store::blocks_of(std::int64_t rows) const noexcept {
  return (rows + core::kPlaneRows - 1) / core::kPlaneRows;
}

core::flat_corpus flat_store::corpus_of(const arrays& from, std::int64_t count) const noexcept {
  return {.rows = from.row_data(),
          .row_stride_bytes = stride_bytes_,
          .type = options_.type,
          .metric = options_.metric,
          .count = count,
          .dim = options_.dim,
          .inverse_norms = from.inverse_norms.as<const float>(),
          .ids = from.ids.as<const std::int64_t>(),
          .storage = options_.storage,
          .plane = from.plane.as<const std::byte>(),
          .summary = summary_};
}

memory_use flat_store::memory() const noexcept {
  memory_use use;
  use.rows_bytes = arrays_.mapped ? arrays_.mapped.bytes() : arrays_.rows.bytes();
  const bool on_host = place_ == row_place::host && backend_.where().kind() != device_kind::cpu;
  use.host_rows_bytes = on_host ? use.rows_bytes : 0;
  use.planes_bytes = arrays_.plane.bytes();
  use.norms_bytes = arrays_.inverse_norms.bytes();
  use.ids_bytes = arrays_.ids.bytes() + ids_.bytes();
  use.device_allocations = allocations_;
  return use;
}

device_memory flat_store::allocate(std::int64_t bytes) {
  device_memory made(backend_, backend_.allocate(bytes), bytes);
  ++allocations_;
  return made;
}

device_memory flat_store::allocate_rows(std::int64_t bytes) {
  if (place_ == row_place::nowhere) return {};
  if (place_ == row_place::device) return allocate(bytes);
  device_memory made(backend_, backend_.allocate_on_host(bytes), bytes);
  ++allocations_;
  return made;
}

flat_store::arrays flat_store::moved_to(void* stream, std::int64_t capacity, bool with_ids) {
  arrays made;
  made.capacity = capacity;
  made.rows = allocate_rows(capacity * stride_bytes_);
  if (has_plane()) made.plane = allocate(blocks_of(capacity) * block_bytes_);
  if (keeps_rows() && options_.metric == metric::cosine) made.inverse_norms = allocate(capacity * kNormBytes);
  if (with_ids) made.ids = allocate(capacity * kIdBytes);

  const auto copy = [&](const device_memory& to, const void* from, std::int64_t row_bytes, std::int64_t rows) {
    if (!to || from == nullptr || rows_ == 0) return;
    backend_.copy_rows(stream, core::copy_kind::device_to_device, to.as<void>(), row_bytes, from, row_bytes, row_bytes,
                       rows);
  };
  copy(made.rows, arrays_.row_data(), stride_bytes_, rows_);  // row by row: a backend may divide these between cores
  copy(made.plane, arrays_.plane.as<void>(), block_bytes_, blocks_of(rows_));
  copy(made.inverse_norms, arrays_.inverse_norms.as<void>(), rows_ * kNormBytes, 1);
  copy(made.ids, arrays_.ids.as<void>(), rows_ * kIdBytes, 1);
  return made;
}

flat_store::arrays flat_store::grown_to(void* stream, std::int64_t needed, bool with_ids) {
  const std::int64_t wanted = grown_capacity(arrays_.capacity, needed);
  if (wanted == needed) return moved_to(stream, needed, with_ids);
  try {
    return moved_to(stream, wanted, with_ids);
  } catch (const out_of_memory&) {
    return moved_to(stream, needed, with_ids);
  }
}

void flat_store::reserve(void* stream, std::int64_t max_rows) {
  if (max_rows <= arrays_.capacity) return;
  arrays larger = moved_to(stream, max_rows, ids_.given());
  backend_.synchronize(stream);
  arrays_ = std::move(larger);
}

bool flat_store::can_map() const noexcept {
  return keeps_rows() && backend_.where().kind() == device_kind::cpu && stride_bytes_ == row_bytes_ && !has_plane();
}

void flat_store::map(void* stream, io::file_mapping rows, std::int64_t count, std::span<const std::int64_t> ids) {
  labels::pending fresh_ids = ids_.append(0, count, ids);
  arrays made;
  made.capacity = count;
  made.mapped = std::move(rows);
  if (options_.metric == metric::cosine) {
    made.inverse_norms = allocate(count * kNormBytes);
    backend_.inverse_norms(stream, corpus_of(made, count), 0, count, made.inverse_norms.as<float>());
  }
  if (ids_.given()) {
    made.ids = allocate(count * kIdBytes);
    write_ids(stream, made.ids, 0, count);
  }
  backend_.synchronize(stream);
  arrays_ = std::move(made);
  fresh_ids.keep();
  rows_ = count;
}

void flat_store::append(void* stream, core::copy_kind kind, const any_matrix_view& vectors,
                        std::span<const std::int64_t> ids) {
  labels::pending fresh_ids = ids_.append(rows_, vectors.rows, ids);
  if (vectors.rows == 0) return;

  const std::int64_t needed = rows_ + vectors.rows;
  const bool grows = needed > arrays_.capacity;
  arrays larger;
  if (grows) larger = grown_to(stream, needed, ids_.given());
  const arrays& target = grows ? larger : arrays_;

  write_rows(stream, kind, target, vectors);
  if (target.inverse_norms) {
    core::flat_corpus fresh = corpus_of(target, vectors.rows);  // of the new rows alone
    fresh.rows = target.rows.as<std::byte>() + rows_ * stride_bytes_;
    backend_.inverse_norms(stream, fresh, 0, vectors.rows, target.inverse_norms.as<float>() + rows_);
  }
  const core::plane_summary added = has_plane() ? write_plane(stream, target, vectors.rows) : core::plane_summary{};
  device_memory first_ids;  // the first ids ever given, on a device that has had room for the rows only
  if (ids_.given()) {
    if (!target.ids) first_ids = allocate(target.capacity * kIdBytes);
    const bool all = !arrays_.ids;  // positions that stand for the ids of earlier rows go up as well
    write_ids(stream, first_ids ? first_ids : target.ids, all ? 0 : rows_, needed);
  }
  backend_.synchronize(stream);

  if (grows) arrays_ = std::move(larger);
  if (first_ids) arrays_.ids = std::move(first_ids);
  fresh_ids.keep();
  summary_.add(added);
  rows_ = needed;
}

core::plane_summary flat_store::write_plane(void* stream, const arrays& to, std::int64_t count) {
  auto* summary = new_summary_.as<core::plane_summary>();
  backend_.zero(stream, summary, kSummaryBytes);
  backend_.write_plane(stream, corpus_of(to, rows_ + count), rows_, count, to.plane.as<std::byte>(), summary);
  core::plane_summary added;
  backend_.copy_rows(stream, core::copy_kind::device_to_host, &added, kSummaryBytes, summary, kSummaryBytes,
                     kSummaryBytes, 1);
  return added;
}

void flat_store::write_rows(void* stream, core::copy_kind kind, const arrays& to,
                            const any_matrix_view& vectors) const {
  if (!keeps_rows()) return;
  std::byte* begin = to.rows.as<std::byte>() + rows_ * stride_bytes_;
  if (stride_bytes_ != row_bytes_) backend_.zero(stream, begin, vectors.rows * stride_bytes_);
  const std::int64_t from_stride_bytes = vectors.rows == 1 ? row_bytes_ : vectors.row_stride * size_bytes(vectors.type);
  backend_.copy_rows(stream, kind, begin, stride_bytes_, vectors.data, from_stride_bytes, row_bytes_, vectors.rows);
}

void flat_store::write_ids(void* stream, const device_memory& to, std::int64_t first, std::int64_t end) const {
  const std::int64_t bytes = (end - first) * kIdBytes;
  backend_.copy_rows(stream, core::copy_kind::host_to_device, to.as<std::int64_t>() + first, bytes,
                     ids_.all().data() + first, bytes, bytes, 1);
}

void flat_store::clear() noexcept {
  if (arrays_.mapped) arrays_ = {};  // others have no room there
  arrays_.ids = {};
  ids_ = {};
  summary_ = {};
  rows_ = 0;
}

void flat_store::read(void* stream, std::int64_t first, std::int64_t count, void* out) const {
  const std::byte* from = arrays_.row_data() + first * stride_bytes_;
  backend_.copy_rows(stream, core::copy_kind::device_to_host, out, row_bytes_, from, stride_bytes_, row_bytes_, count);
}

}  // namespace shortlist::index
