// Files of flat indexes: tensors `vectors` [rows, dim], dense, and `ids` [rows] if ids were given.
//
// Inverse norms and planes are not stored: `load` computes them anew, so that they cannot contradict the rows. Of a
// plane the file knows that there is to be one; a file without `storage`, as older versions wrote it, has none.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/order.hpp"
#include "index/checks.hpp"
#include "index/file_parts.hpp"
#include "index/flat_index_impl.hpp"
#include "io/safetensors.hpp"
#include "shortlist/error.hpp"
#include "shortlist/version.hpp"

namespace shortlist {
namespace {

constexpr const char* kFormatVersion = "1";
constexpr const char* kVectors = "vectors";
constexpr const char* kIds = "ids";
constexpr const char* kIdsDtype = "I64";

struct description {
  flat_index_options options;
  std::int64_t rows = 0;
  bool has_ids = false;

  std::int64_t row_bytes() const { return options.dim * size_bytes(options.type); }
  std::int64_t rows_per_chunk() const { return std::max<std::int64_t>(1, index::kFileChunkBytes / row_bytes()); }
};

/// What the header says, every field of it checked.
description describe(const io::safetensors_file& file) {
  index::require_metadata(file, "format", index::kFlatFormat);
  index::require_metadata(file, "format_version", kFormatVersion);
  description found;
  found.options.metric = index::parse_metadata(file, "metric", parse_metric);
  found.options.type = index::parse_metadata(file, "element_type", parse_element_type);
  if (file.has_metadata("storage")) found.options.storage = index::parse_metadata(file, "storage", parse_storage);
  if (found.options.storage != storage::full && size_bytes(found.options.type) == 1) {
    index::throw_corrupt(file.path(), fmt::format("storage is '{}' with an element_type of '{}'; allowed is 'full'",
                                                  to_string(found.options.storage), to_string(found.options.type)));
  }
  found.options.dim = file.metadata_integer("dim", 1, index::kMaxDim);
  found.rows = file.metadata_integer("rows", 0, core::kMaxRows);
  for (const std::string& name : file.tensor_names()) {
    if (name != kVectors && name != kIds) {
      index::throw_corrupt(file.path(),
                           fmt::format("tensor '{}' does not belong into a {} file", name, index::kFlatFormat));
    }
  }
  const std::int64_t vectors_shape[] = {found.rows, found.options.dim};
  file.tensor(kVectors, io::safetensors_dtype(found.options.type), vectors_shape);
  found.has_ids = file.has_tensor(kIds);
  if (found.has_ids) file.tensor(kIds, kIdsDtype, {vectors_shape, 1});
  return found;
}

std::vector<std::int64_t> load_ids(const io::safetensors_file& file, const description& found, verify checks) {
  std::vector<std::int64_t> ids;
  if (!found.has_ids) return ids;
  ids.resize(static_cast<std::size_t>(found.rows));
  index::read_tensor(file, kIds, checks, ids.data());
  return ids;
}

}  // namespace

index_summary index::summary_of_flat(const io::safetensors_file& file) {
  const description found = describe(file);
  return {.kind = index_kind::flat,
          .rows = found.rows,
          .dim = found.options.dim,
          .metric = found.options.metric,
          .type = found.options.type,
          .segments = {}};
}

void flat_index::save(const std::filesystem::path& path) const {
  index::with_host_memory([&] {
    const description saved = {impl_->options, rows(), impl_->store.ids().given()};
    std::vector<io::tensor_description> tensors = {
        {kVectors, std::string(io::safetensors_dtype(saved.options.type)), {saved.rows, saved.options.dim}}};
    if (saved.has_ids) tensors.push_back({kIds, kIdsDtype, {saved.rows}});
    io::safetensors_writer out(path,
                               {{"format", index::kFlatFormat},
                                {"format_version", kFormatVersion},
                                {"library_version", version()},
                                {"metric", std::string(to_string(saved.options.metric))},
                                {"element_type", std::string(to_string(saved.options.type))},
                                {"storage", std::string(to_string(saved.options.storage))},
                                {"rows", std::to_string(saved.rows)},
                                {"dim", std::to_string(saved.options.dim)}},
                               tensors);

    const stream own(where());
    const std::int64_t per_chunk = std::min(saved.rows, saved.rows_per_chunk());
    std::vector<std::byte> chunk(static_cast<std::size_t>(per_chunk * saved.row_bytes()));
    for (std::int64_t first = 0; first < saved.rows; first += per_chunk) {
      const std::int64_t count = std::min(per_chunk, saved.rows - first);
      impl_->store.read(own.native(), first, count, chunk.data());
      out.write(kVectors, chunk.data(), count * saved.row_bytes());
    }
    if (saved.has_ids) {
      const auto ids = impl_->store.ids().all();
      out.write(kIds, ids.data(), static_cast<std::int64_t>(ids.size_bytes()));
    }
    out.commit();
  });
}

flat_index flat_index::load(device where, const std::filesystem::path& path, verify checks) {
  return index::with_host_memory([&] {
    const io::safetensors_file file(path);
    const description found = describe(file);
    const std::vector<std::int64_t> ids = load_ids(file, found, checks);
    flat_index loaded(where, found.options);
    if (found.rows == 0) return loaded;
    loaded.impl_->store.reserve(loaded.impl_->own.native(), found.rows);

    const std::int64_t row_bytes = found.row_bytes();
    const auto append = [&](std::int64_t byte_offset, std::span<const std::byte> data) {
      const std::int64_t first = byte_offset / row_bytes;
      const std::int64_t count = static_cast<std::int64_t>(data.size()) / row_bytes;
      const any_matrix_view rows(data.data(), found.options.type, count, found.options.dim, found.options.dim);
      const auto their_ids = std::span<const std::int64_t>(ids).subspan(
          found.has_ids ? static_cast<std::size_t>(first) : 0, found.has_ids ? static_cast<std::size_t>(count) : 0);
      try {
        loaded.add(rows, their_ids);
      } catch (const invalid_argument& failure) {
        index::throw_corrupt(path, fmt::format("{} (counted from row {})", failure.what(), first));
      }
    };
    index::stream_tensor(file, kVectors, found.rows_per_chunk() * row_bytes, checks, append);
    return loaded;
  });
}

}  // namespace shortlist
