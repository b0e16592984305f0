// ivf_pq_index as a file: save, load, and growing by segments.
#include "index/ivf_pq_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "index/checks.hpp"
#include "index/file_parts.hpp"
#include "index/ivf_pq_impl.hpp"
#include "index/labels.hpp"
#include "io/file.hpp"
#include "io/safetensors.hpp"

namespace shortlist {
namespace {

using namespace index::ivf_pq_file;
using path = std::filesystem::path;

path beside(const path& file, const std::string& name) { return file.parent_path() / name; }

std::string segment_name(const path& index_path, std::size_t number) {
  return fmt::format("{}.{}.rows", index_path.filename().string(), number);
}

io::safetensors_file open_segment(const path& index_path, const segment& one) {
  return io::safetensors_file(beside(index_path, one.name));
}

/// The file at `from` under a second name, without copying it where the file system can do that.
void link_file(const path& from, const path& to) {
  std::error_code failure;
  std::filesystem::remove(to, failure);  // what an interrupted call left: no index names it
  std::filesystem::create_hard_link(from, to, failure);
  if (!failure) return;
  const io::input_file source(from);
  io::output_file copy(to);
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min(index::kFileChunkBytes, source.size_bytes())));
  for (std::int64_t at = 0; at < source.size_bytes(); at += index::kFileChunkBytes) {
    const std::int64_t bytes = std::min(index::kFileChunkBytes, source.size_bytes() - at);
    source.read(at, bytes, chunk.data());
    copy.write(at, chunk.data(), bytes);
  }
  copy.commit();
}

bool same_training(const ivf_pq_options& a, const ivf_pq_options& b) {
  return a.dim == b.dim && a.metric == b.metric && a.type == b.type && a.nlist == b.nlist && a.code == b.code &&
         a.pq_dim == b.pq_dim && a.pq_bits == b.pq_bits && a.encodes == b.encodes && a.rotation == b.rotation &&
         (a.rows == kept_rows::none) == (b.rows == kept_rows::none);
}

/// The ids that a file's rows have, for finding out whether new ones are in use.
index::labels ids_in(const path& file, const description& found) {
  index::labels all;
  std::int64_t rows = 0;
  const auto take = [&](const io::safetensors_file& part, const description& of) {
    const std::vector<std::int64_t> ids = index::ivf_pq_file::read_ids(part, of, verify::full);
    all.append(rows, of.rows, ids).keep();
    rows += of.rows;
  };
  take(io::safetensors_file(file), found);
  for (const segment& one : found.segments) {
    const io::safetensors_file part = open_segment(file, one);
    take(part, describe_segment(part, found.options, one));
  }
  return all;
}

bool any_ids(const description& found) {
  return found.has_ids ||
         std::any_of(found.segments.begin(), found.segments.end(), [](const segment& one) { return one.has_ids; });
}

/// A file of rows that an index will name; returns what it will say.
segment write_segment(const path& index_path, std::size_t number, const index::ivf_pq_rows& from, void* stream,
                      const ivf_pq_options& options) {
  const description saved = {
      .options = options, .rows = from.count(), .has_ids = from.kept.ids().given(), .segments = {}};
  const std::string name = segment_name(index_path, number);
  io::safetensors_writer out(beside(index_path, name), metadata_of_segment(saved), row_tensors(saved));
  write_rows(out, from, stream, options);
  out.commit();
  return {name, saved.rows, saved.has_ids, io::safetensors_file(beside(index_path, name)).header_checksum()};
}

/// @throws unsupported if a file's rows cannot stay in it.
void require_mappable(const index::flat_store& rows, device where, const path& file, const description& found) {
  const auto refuse = [&](const std::string& why) {
    throw unsupported(fmt::format("in_file is mapped::rows, and '{}' {}", file.string(), why));
  };
  if (where.kind() != device_kind::cpu) refuse(fmt::format("is loaded onto {}; allowed is the CPU", where.name()));
  if (!found.segments.empty()) refuse("is one of several files; `load` and `save` make one of them");
  if (!rows.can_map()) {
    const std::int64_t bytes = found.options.dim * size_bytes(found.options.type);
    refuse(fmt::format("has rows of {} bytes; allowed are multiples of 64", bytes));
  }
}

/// An index file without rows of its own, in place of the one at `target`.
void write_manifest(const path& target, const description& saved, const index::ivf_pq_arrays& arrays) {
  io::safetensors_writer out(target, metadata_of_index(saved), index_tensors(saved));
  write_model(out, arrays);
  write_no_rows(out, saved.options);
  out.commit();
}

}  // namespace

index_summary index::summary_of_ivf_pq(const io::safetensors_file& file) {
  const description found = describe_index(file);
  index_summary made = {.kind = index_kind::ivf_pq,
                        .rows = found.all_rows(),
                        .dim = found.options.dim,
                        .metric = found.options.metric,
                        .type = found.options.type,
                        .segments = {}};
  for (const segment& one : found.segments) made.segments.push_back(beside(file.path(), one.name));
  return made;
}

void ivf_pq_index::save(const std::filesystem::path& path) const {
  impl_->require_trained("save");
  index::with_host_memory([&] {
    const description saved = {.options = impl_->options,
                               .rows = rows(),
                               .has_ids = impl_->rows.kept.ids().given(),
                               .exponent = impl_->model->arrays().exponent,
                               .segments = {}};
    io::safetensors_writer out(path, metadata_of_index(saved), index_tensors(saved));
    write_model(out, impl_->model->arrays());
    const stream reader(where());  // a save may run beside searches
    write_rows(out, impl_->rows, reader.native(), saved.options);
    out.commit();
  });
}

void ivf_pq_index::append_to(const std::filesystem::path& path) const {
  impl_->require_trained("append_to");
  index::with_host_memory([&] {
    const io::safetensors_file file(path);
    description whole = describe_index(file);
    if (!same_training(whole.options, impl_->options) ||
        read_model(file, whole, verify::full) != impl_->model->arrays()) {
      core::throw_invalid("path", path.string(),
                          "a file of an index that was trained as this one, and keeps rows alike");
    }
    index::check_row_count("index", rows(), whole.all_rows());
    if (impl_->rows.kept.ids().given() || any_ids(whole)) {
      ids_in(path, whole).append(whole.all_rows(), rows(), impl_->rows.kept.ids().all()).keep();
    }
    if (rows() == 0) return;
    if (whole.rows > 0) {  // its rows stay where they are, under another name
      const std::string name = segment_name(path, whole.segments.size());
      link_file(path, beside(path, name));
      whole.segments.push_back(
          {name, std::exchange(whole.rows, 0), std::exchange(whole.has_ids, false), file.header_checksum()});
    }
    const stream reader(where());
    whole.segments.push_back(write_segment(path, whole.segments.size(), impl_->rows, reader.native(), whole.options));
    write_manifest(path, whole, impl_->model->arrays());
  });
}

ivf_pq_index ivf_pq_index::load_trained(device where, const std::filesystem::path& path, verify checks) {
  return index::with_host_memory([&] {
    const io::safetensors_file file(path);
    const description found = describe_index(file);
    ivf_pq_index loaded(where, found.options);
    loaded.impl_->use(read_model(file, found, checks));
    return loaded;
  });
}

ivf_pq_index ivf_pq_index::load(device where, const std::filesystem::path& path, verify checks, mapped in_file) {
  return index::with_host_memory([&] {
    const io::safetensors_file file(path);
    const description found = describe_index(file);
    ivf_pq_index loaded(where, found.options);
    impl& made = *loaded.impl_;
    if (!made.rows.keeps_rows) in_file = mapped::nothing;
    if (in_file == mapped::rows) require_mappable(made.rows.kept, where, path, found);
    made.use(read_model(file, found, checks));
    if (in_file == mapped::rows) {
      made.rows.codes.reserve(made.own.native(), found.rows);
    } else if (found.all_rows() > 0) {
      loaded.reserve(found.all_rows());
    }
    read_rows(made.rows, made.own.native(), made.model->view(), file, found, checks, in_file);
    for (const segment& one : found.segments) {
      const io::safetensors_file part = open_segment(path, one);
      const description rows = describe_segment(part, found.options, one);
      read_rows(made.rows, made.own.native(), made.model->view(), part, rows, checks);
    }
    return loaded;
  });
}

}  // namespace shortlist
