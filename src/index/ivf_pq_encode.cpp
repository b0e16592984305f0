// Rows on their way into an IVF-PQ index.
#include "index/ivf_pq_encode.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/message.hpp"
#include "index/widen.hpp"

namespace shortlist::index {
namespace {

constexpr std::int64_t kFloatBytes = sizeof(float);
constexpr std::int64_t kRowsNamed = 5;  // in an error

/// The device reads host memory as its own.
bool reads_host(core::backend& backend) { return backend.where().kind() == device_kind::cpu; }

bool is_uploaded(core::backend& backend, core::copy_kind kind) {
  return kind == core::copy_kind::host_to_device && !reads_host(backend);
}

device_memory allocate(core::backend& backend, std::int64_t bytes) {
  return device_memory(backend, backend.allocate(bytes), bytes);
}

/// Only these can hold what is not a number.
bool may_be_infinite(element_type type) { return size_bytes(type) > 1; }

[[noreturn]] void throw_not_finite(const std::vector<std::int64_t>& rows) {
  const auto named = static_cast<std::ptrdiff_t>(std::min<std::size_t>(rows.size(), kRowsNamed));
  const bool more = rows.size() > static_cast<std::size_t>(named);
  core::throw_invalid("vectors",
                      fmt::format("not finite in row{} {}{}", named == 1 && !more ? "" : "s",
                                  fmt::join(rows.begin(), rows.begin() + named, ", "), more ? ", ..." : ""),
                      "rows of finite elements, whose turn by the rotation is finite too");
}

std::int64_t slice_rows_for(std::int64_t row_bytes, std::int64_t max_rows) {
  return std::clamp<std::int64_t>(kSliceBytes / row_bytes, 1, std::max<std::int64_t>(max_rows, 1));
}

}  // namespace

any_matrix_view slice_of(const any_matrix_view& rows, std::int64_t first, std::int64_t count) {
  any_matrix_view slice = rows;
  const std::int64_t stride = stride_of(rows);
  slice.data = static_cast<const std::byte*>(rows.data) + first * stride * size_bytes(rows.type);
  slice.rows = count;
  slice.row_stride = stride;
  return slice;
}

void check_finite(core::backend& backend, void* stream, core::copy_kind kind, const any_matrix_view& rows,
                  std::span<const std::int64_t> numbers) {
  if (rows.rows == 0 || !may_be_infinite(rows.type)) return;
  const bool on_host = is_uploaded(backend, kind);  // looked at there, so that nothing crosses the bus twice
  core::backend& reader = on_host ? core::backend_of(device::cpu()) : backend;
  std::vector<std::int64_t> wrong =
      reader.ivf_pq().rows_not_finite(on_host ? nullptr : stream, slice_of(rows, 0, rows.rows), kRowsNamed + 1);
  for (std::int64_t& row : wrong) row = numbers.empty() ? row : numbers[static_cast<std::size_t>(row)];
  if (!wrong.empty()) throw_not_finite(wrong);
}

row_intake::row_intake(core::backend& backend, core::copy_kind kind, element_type type, std::int64_t dim,
                       std::int64_t max_rows)
    : backend_(backend), dim_(dim) {
  if (is_uploaded(backend, kind)) uploaded_ = allocate(backend, max_rows * dim * size_bytes(type));
}

std::int64_t row_intake::row_bytes(core::backend& backend, core::copy_kind kind, element_type type, std::int64_t dim) {
  return is_uploaded(backend, kind) ? dim * size_bytes(type) : 0;
}

void row_intake::take(void* stream, metric by, const float* rotation, const any_matrix_view& rows, float* out) {
  any_matrix_view from = slice_of(rows, 0, rows.rows);
  if (uploaded_) {
    const std::int64_t row_bytes = dim_ * size_bytes(rows.type);
    backend_.copy_rows(stream, core::copy_kind::host_to_device, uploaded_.as<void>(), row_bytes, from.data,
                       from.row_stride * size_bytes(rows.type), row_bytes, rows.rows);
    from.data = uploaded_.as<const void>();
    from.row_stride = dim_;
  }
  backend_.ivf_pq().take_rows(stream, by, rotation, from, out);
}

list_assigner::list_assigner(core::backend& backend, const core::flat_corpus& centroids, std::int64_t max_rows)
    : ops_(backend.ivf_pq()), scratch_(ops_.make_assign_scratch(centroids, max_rows)) {}

void list_assigner::assign(void* stream, const core::flat_corpus& centroids, const float* rows, std::int64_t n,
                           std::int64_t* lists) {
  ops_.assign(stream, *scratch_, centroids, rows, n, lists);
}

row_encoder::row_encoder(core::backend& backend, const core::ivf_pq_model& model, core::copy_kind kind,
                         element_type type, std::int64_t max_rows)
    : backend_(backend),
      model_(model),
      slice_rows_(slice_rows_for(row_intake::row_bytes(backend, kind, type, model.shape.dim) +
                                     (model.shape.dim + model.shape.padded_dim()) * kFloatBytes,
                                 max_rows)),
      intake_(backend, kind, type, model.shape.dim, slice_rows_),
      assigner_(backend, model.assigns, slice_rows_),
      taken_(allocate(backend, slice_rows_ * model.shape.dim * kFloatBytes)),
      residuals_(allocate(backend, slice_rows_ * model.shape.padded_dim() * kFloatBytes)) {}

void row_encoder::encode(void* stream, const any_matrix_view& rows, std::int64_t first_row, std::int64_t* lists,
                         std::uint8_t* codes) {
  core::ivf_pq_ops& ops = backend_.ivf_pq();
  const core::ivf_pq_shape& shape = model_.shape;
  const auto* centroids = static_cast<const float*>(model_.assigns.rows);
  const std::int64_t centroid_stride = model_.assigns.row_stride_bytes / kFloatBytes;
  for (std::int64_t first = 0; first < rows.rows; first += slice_rows_) {
    const std::int64_t count = std::min(slice_rows_, rows.rows - first);
    auto* taken = taken_.as<float>();
    auto* residuals = residuals_.as<float>();
    intake_.take(stream, shape.metric, model_.rotation, slice_of(rows, first, count), taken);
    if (model_.rotation) {
      std::vector<std::int64_t> wrong =
          ops.rows_not_finite(stream, matrix_view<const float>(taken, count, shape.dim), kRowsNamed + 1);
      for (std::int64_t& row : wrong) row += first_row + first;
      if (!wrong.empty()) throw_not_finite(wrong);
    }
    assigner_.assign(stream, model_.assigns, taken, count, lists + first);
    ops.residuals(stream, shape, taken, count, lists + first, centroids, centroid_stride, residuals);
    ops.encode(stream, shape, model_.codebook, residuals, count, codes + first * shape.pieces);
  }
}

void add_encoded(core::backend& backend, void* stream, const core::ivf_pq_model& model, core::copy_kind kind,
                 const any_matrix_view& rows, std::int64_t first_position, ivf_pq_store::addition& to) {
  if (rows.rows == 0) return;
  // A round's rows enter the lists together: the more, the fewer times the table of pages is made anew.
  constexpr std::int64_t kListBytes = sizeof(std::int64_t), kPlaceBytes = sizeof(std::uint32_t);
  const std::int64_t round = slice_rows_for(kListBytes + kPlaceBytes + model.shape.pieces, rows.rows);
  row_encoder encoder(backend, model, kind, rows.type, round);
  const device_memory lists = allocate(backend, round * kListBytes);
  const device_memory codes = allocate(backend, round * model.shape.pieces);
  for (std::int64_t first = 0; first < rows.rows; first += round) {
    const std::int64_t count = std::min(round, rows.rows - first);
    encoder.encode(stream, slice_of(rows, first, count), first, lists.as<std::int64_t>(), codes.as<std::uint8_t>());
    to.write(stream, model,
             {.n = count,
              .lists = lists.as<const std::int64_t>(),
              .codes = codes.as<const std::uint8_t>(),
              .first_position = first_position + first});
  }
}

}  // namespace shortlist::index
