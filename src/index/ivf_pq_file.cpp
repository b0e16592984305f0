// Files of IVF-PQ indexes; docs/files.md describes them.
//
// A file holds what was trained and rows; or it names further files, its segments, that hold rows. Codes are packed,
// list after list, with each row's position beside it; kept rows and ids lie by position. What a backend prepares, and
// how it lays out pages, is made anew.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "core/order.hpp"
#include "index/checks.hpp"
#include "index/file_parts.hpp"
#include "index/ivf_pq_codes.hpp"
#include "index/ivf_pq_encode.hpp"
#include "index/ivf_pq_impl.hpp"
#include "io/file.hpp"
#include "io/safetensors.hpp"
#include "shortlist/error.hpp"
#include "shortlist/version.hpp"

namespace shortlist {
namespace {

constexpr const char* kIndexFormat = "shortlist.ivf_pq_index";
constexpr const char* kSegmentFormat = "shortlist.ivf_pq_segment";
constexpr const char* kFormatVersion = "1";
constexpr const char* kCentroids = "centroids";
constexpr const char* kCodebook = "codebook";
constexpr const char* kSteps = "steps";
constexpr const char* kRotation = "rotation";
constexpr const char* kSizes = "sizes";
constexpr const char* kCodes = "codes";
constexpr const char* kPositions = "positions";
constexpr const char* kIds = "ids";
constexpr const char* kVectors = "vectors";

constexpr const char* kIdsGiven = "given";
constexpr const char* kIdsNone = "none";

constexpr std::int64_t kMaxSegments = 1 << 20;
constexpr std::int64_t kPositionBytes = sizeof(std::uint32_t);
// Of a trained number: sums of two are finite then.
constexpr float kMostMagnitude = 0x1p126f;
constexpr int kMostExponent = 127;

using index::throw_corrupt;
using path = std::filesystem::path;

/// A file that holds rows for an index that names it.
struct segment {
  std::string name;  ///< in the folder of the index
  std::int64_t rows = 0;
  bool has_ids = false;
  std::string checksum;  ///< of its header
};

struct description {
  ivf_pq_options options;
  std::int64_t rows = 0;  ///< of this file alone
  bool has_ids = false;
  int exponent = 0;
  std::vector<segment> segments;

  std::int64_t all_rows() const {
    return std::accumulate(segments.begin(), segments.end(), rows,
                           [](std::int64_t sum, const segment& one) { return sum + one.rows; });
  }
};

std::string segment_key(std::size_t number, const char* what) { return fmt::format("segment.{}.{}", number, what); }

/// What a file of rows says of them.
std::map<std::string, std::string> row_metadata(const char* format, const ivf_pq_options& options, std::int64_t rows) {
  return {{"format", format},
          {"format_version", kFormatVersion},
          {"library_version", version()},
          {"element_type", std::string(to_string(options.type))},
          {"dim", std::to_string(options.dim)},
          {"nlist", std::to_string(options.nlist)},
          {"code", std::string(to_string(options.code))},
          {"pq_dim", std::to_string(options.pq_dim)},
          {"pq_bits", std::to_string(options.pq_bits)},
          {"kept_rows", std::string(to_string(options.rows))},
          {"rows", std::to_string(rows)}};
}

std::map<std::string, std::string> index_metadata(const description& saved) {
  auto made = row_metadata(kIndexFormat, saved.options, saved.rows);
  made["metric"] = to_string(saved.options.metric);
  made["encodes"] = to_string(saved.options.encodes);
  made["rotation"] = to_string(saved.options.rotation);
  made["seed"] = std::to_string(saved.options.seed);
  made["codebook_exponent"] = std::to_string(saved.exponent);
  made["segments"] = std::to_string(saved.segments.size());
  for (std::size_t i = 0; i < saved.segments.size(); ++i) {
    made[segment_key(i, "name")] = saved.segments[i].name;
    made[segment_key(i, "ids")] = saved.segments[i].has_ids ? kIdsGiven : kIdsNone;
    made[segment_key(i, "rows")] = std::to_string(saved.segments[i].rows);
    made[segment_key(i, "header")] = saved.segments[i].checksum;
  }
  return made;
}

std::vector<io::tensor_description> model_tensors(const ivf_pq_options& options) {
  const core::ivf_pq_shape shape = index::shape_of(options);
  std::vector<io::tensor_description> made = {{kCentroids, "F32", {shape.nlist, shape.dim}}};
  if (shape.uniform) {
    made.push_back({kSteps, "F32", {shape.dim}});
  } else {
    made.push_back({kCodebook, "F32", {shape.pieces, shape.codewords(), shape.piece_dim}});
  }
  if (options.rotation != rotation::none) made.push_back({kRotation, "F32", {shape.dim, shape.dim}});
  return made;
}

std::vector<io::tensor_description> row_tensors(const description& of) {
  const core::ivf_pq_shape shape = index::shape_of(of.options);
  std::vector<io::tensor_description> made = {{kSizes, "U32", {shape.nlist}},
                                              {kCodes, "U8", {of.rows, index::packed_bytes(shape)}},
                                              {kPositions, "U32", {of.rows}}};
  if (of.has_ids) made.push_back({kIds, "I64", {of.rows}});
  if (of.options.rows != kept_rows::none) {
    made.push_back({kVectors, std::string(io::safetensors_dtype(of.options.type)), {of.rows, of.options.dim}});
  }
  return made;
}

template <class T>
void write_values(io::safetensors_writer& out, const char* name, std::span<const T> values) {
  out.write(name, values.data(), static_cast<std::int64_t>(values.size_bytes()));
}

void write_model(io::safetensors_writer& out, const index::ivf_pq_arrays& arrays) {
  write_values<float>(out, kCentroids, arrays.centroids);
  if (arrays.steps.empty()) {
    write_values<float>(out, kCodebook, arrays.codebook);
  } else {
    write_values<float>(out, kSteps, arrays.steps);
  }
  if (!arrays.rotation.empty()) write_values<float>(out, kRotation, arrays.rotation);
}

std::int64_t rows_per_chunk(std::int64_t row_bytes) {
  return std::max<std::int64_t>(1, index::kFileChunkBytes / row_bytes);
}

// ---- what a header says

std::uint64_t parse_seed(const io::safetensors_file& file) {
  const std::string& text = file.metadata("seed");
  char* end = nullptr;
  errno = 0;
  const std::uint64_t seed = std::strtoull(text.c_str(), &end, 10);
  if (errno != 0 || text.empty() || *end != '\0' || std::to_string(seed) != text) {
    throw_corrupt(file.path(), fmt::format("seed is '{}'; allowed is 0 to 2^64 - 1", text));
  }
  return seed;
}

void check_segment_name(const io::safetensors_file& file, const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    throw_corrupt(file.path(), fmt::format("a segment's name is '{}'; allowed is that of a file beside it", name));
  }
}

std::vector<segment> segments_of(const io::safetensors_file& file, std::int64_t rows) {
  const std::int64_t count = file.metadata_integer("segments", 0, kMaxSegments);
  std::vector<segment> found;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::size_t>(i);
    segment one = {.name = file.metadata(segment_key(number, "name")),
                   .rows = file.metadata_integer(segment_key(number, "rows"), 0, core::kMaxRows - rows),
                   .has_ids = file.metadata(segment_key(number, "ids")) == kIdsGiven,
                   .checksum = file.metadata(segment_key(number, "header"))};
    check_segment_name(file, one.name);
    rows += one.rows;
    found.push_back(std::move(one));
  }
  return found;
}

/// The tensors of a file are these and no others.
void check_tensors(const io::safetensors_file& file, const std::vector<io::tensor_description>& expected) {
  for (const io::tensor_description& one : expected) file.tensor(one.name, one.dtype, one.shape);
  for (const std::string& name : file.tensor_names()) {
    const bool known = std::any_of(expected.begin(), expected.end(), [&](const auto& one) { return one.name == name; });
    if (!known) throw_corrupt(file.path(), fmt::format("tensor '{}' does not belong into this file", name));
  }
}

/// The options that both kinds of file give.
ivf_pq_options row_options_of(const io::safetensors_file& file) {
  ivf_pq_options found;
  found.type = index::parse_metadata(file, "element_type", parse_element_type);
  found.dim = file.metadata_integer("dim", 1, index::kMaxDim);
  found.nlist = file.metadata_integer("nlist", 1, core::kMaxRows);
  found.code = index::parse_metadata(file, "code", parse_code_kind);
  found.pq_dim = file.metadata_integer("pq_dim", 1, index::kMaxDim);
  found.pq_bits = static_cast<int>(file.metadata_integer("pq_bits", 1, 8));
  found.rows = index::parse_metadata(file, "kept_rows", parse_kept_rows);
  return found;
}

/// An index file's header, every field of it checked.
description describe_index(const io::safetensors_file& file) {
  index::require_metadata(file, "format", kIndexFormat);
  index::require_metadata(file, "format_version", kFormatVersion);
  description found;
  found.options = row_options_of(file);
  found.options.metric = index::parse_metadata(file, "metric", parse_metric);
  found.options.encodes = index::parse_metadata(file, "encodes", parse_encoded);
  found.options.rotation = index::parse_metadata(file, "rotation", parse_rotation);
  found.options.seed = parse_seed(file);
  try {
    const ivf_pq_options complete = index::completed(found.options);
    if (complete.pq_dim != found.options.pq_dim || complete.pq_bits != found.options.pq_bits) {
      throw_corrupt(file.path(), fmt::format("pq_dim {} and pq_bits {} do not go with the code '{}'",
                                             found.options.pq_dim, found.options.pq_bits, to_string(complete.code)));
    }
  } catch (const invalid_argument& failure) {
    throw_corrupt(file.path(), failure.what());
  }
  found.exponent = static_cast<int>(file.metadata_integer("codebook_exponent", -kMostExponent, kMostExponent));
  found.rows = file.metadata_integer("rows", 0, core::kMaxRows);
  found.segments = segments_of(file, found.rows);
  found.has_ids = file.has_tensor(kIds);
  std::vector<io::tensor_description> tensors = model_tensors(found.options);
  for (io::tensor_description& one : row_tensors(found)) tensors.push_back(std::move(one));
  check_tensors(file, tensors);
  return found;
}

/// The header of a segment of an index of these options: rows as an index file has them, alone or with a model.
description describe_segment(const io::safetensors_file& file, const ivf_pq_options& options, const segment& expected) {
  if (file.header_checksum() != expected.checksum) {
    throw_corrupt(file.path(), fmt::format("the header's checksum is '{}'; the index that names it expects '{}'",
                                           file.header_checksum(), expected.checksum));
  }
  description found;
  if (file.metadata("format") == kIndexFormat) {
    found = describe_index(file);
    if (!found.segments.empty()) throw_corrupt(file.path(), "a segment has segments of its own");
  } else {
    index::require_metadata(file, "format", kSegmentFormat);
    index::require_metadata(file, "format_version", kFormatVersion);
    found.options = row_options_of(file);
    found.rows = file.metadata_integer("rows", 0, core::kMaxRows);
    found.has_ids = file.has_tensor(kIds);
  }
  const ivf_pq_options& has = found.options;
  if (found.rows != expected.rows || found.has_ids != expected.has_ids || has.type != options.type ||
      has.dim != options.dim || has.nlist != options.nlist || has.code != options.code ||
      has.pq_dim != options.pq_dim || has.pq_bits != options.pq_bits ||
      (has.rows == kept_rows::none) != (options.rows == kept_rows::none)) {
    throw_corrupt(file.path(), "its rows are not those that the index that names it expects");
  }
  if (file.metadata("format") == kSegmentFormat) check_tensors(file, row_tensors(found));
  return found;
}

// ---- reading

std::vector<float> read_floats(const io::safetensors_file& file, const char* name, verify checks) {
  std::vector<float> values(static_cast<std::size_t>(file.tensor(name).bytes) / sizeof(float));
  index::read_tensor(file, name, checks, values.data());
  const auto wrong =
      std::find_if(values.begin(), values.end(), [](float x) { return !(std::abs(x) < kMostMagnitude); });
  if (wrong != values.end()) {
    throw_corrupt(file.path(), fmt::format("{} holds {}; allowed are numbers below 2^126", name, *wrong));
  }
  return values;
}

index::ivf_pq_arrays read_model(const io::safetensors_file& file, const description& found, verify checks) {
  const core::ivf_pq_shape shape = index::shape_of(found.options);
  index::ivf_pq_arrays arrays;
  arrays.exponent = found.exponent;
  arrays.centroids = read_floats(file, kCentroids, checks);
  if (found.options.rotation != rotation::none) arrays.rotation = read_floats(file, kRotation, checks);
  if (shape.uniform) {
    arrays.steps = read_floats(file, kSteps, checks);
    if (!std::all_of(arrays.steps.begin(), arrays.steps.end(), [](float step) { return step > 0.0f; })) {
      throw_corrupt(file.path(), "steps holds one that is not above 0");
    }
    arrays.codebook = index::codebook_of(shape, arrays.steps);
  } else {
    arrays.codebook = read_floats(file, kCodebook, checks);
    if (!index::is_rounded(arrays.codebook, arrays.exponent)) {
      throw_corrupt(file.path(), fmt::format("codebook holds numbers that are no halves times 2^{}", arrays.exponent));
    }
  }
  return arrays;
}

/// Sizes of the lists, which must add up to the rows.
std::vector<std::uint32_t> read_sizes(const io::safetensors_file& file, const description& found, verify checks) {
  std::vector<std::uint32_t> sizes(static_cast<std::size_t>(found.options.nlist));
  index::read_tensor(file, kSizes, checks, sizes.data());
  const auto sum = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  if (sum != static_cast<std::uint64_t>(found.rows)) {
    throw_corrupt(file.path(),
                  fmt::format("the sizes of the lists add up to {}; the file has {} rows", sum, found.rows));
  }
  return sizes;
}

/// Positions of a file's rows: each below the number of rows, none twice.
class position_check {
 public:
  position_check(const path& file, std::int64_t rows) : file_(file), seen_(static_cast<std::size_t>(rows)) {}
  void take(std::span<const std::uint32_t> positions) {
    for (const std::uint32_t position : positions) {
      if (position >= seen_.size()) {
        throw_corrupt(file_, fmt::format("a position is {}; the file has {} rows", position, seen_.size()));
      }
      if (seen_[position]) throw_corrupt(file_, fmt::format("two rows have the position {}", position));
      seen_[position] = true;
    }
  }

 private:
  const path& file_;
  std::vector<bool> seen_;
};

/// Rows of a file on their way into the lists: chunks of codes, with lists and positions.
class row_reader {
 public:
  row_reader(core::backend& backend, void* stream, const io::safetensors_file& file, const description& found,
             verify checks)
      : backend_(backend),
        stream_(stream),
        file_(file),
        shape_(index::shape_of(found.options)),
        sizes_(read_sizes(file, found, checks)),
        seen_(file.path(), found.rows) {
    if (checks == verify::full) file.verify(kPositions);
  }

  /// Rows [first, ...) in the order of the lists, from their packed codes.
  void take(std::int64_t first, std::span<const std::byte> packed, std::int64_t position_base,
            const core::ivf_pq_model& model, index::ivf_pq_store::addition& to) {
    const auto n = static_cast<std::int64_t>(packed.size()) / index::packed_bytes(shape_);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n * shape_.pieces));
    if (!index::unpack_codes(shape_, reinterpret_cast<const std::uint8_t*>(packed.data()), n, codes.data())) {
      throw_corrupt(file_.path(), "codes holds bits behind a row's last code");
    }
    std::vector<std::uint32_t> positions(static_cast<std::size_t>(n));
    file_.read(kPositions, first * kPositionBytes, n * kPositionBytes, positions.data());
    seen_.take(positions);
    for (std::uint32_t& position : positions) position += static_cast<std::uint32_t>(position_base);
    std::vector<std::int64_t> lists(static_cast<std::size_t>(n));
    for (std::int64_t& list : lists) list = next_list();
    const auto upload = [&](const auto& values) {
      return index::uploaded(backend_, stream_, values.data(),
                             static_cast<std::int64_t>(values.size() * sizeof(values[0])));
    };
    const index::device_memory on_device[] = {upload(lists), upload(codes), upload(positions)};
    to.write(stream_, model,
             {.n = n,
              .lists = on_device[0].as<const std::int64_t>(),
              .codes = on_device[1].as<const std::uint8_t>(),
              .positions = on_device[2].as<const std::uint32_t>()});
  }

 private:
  std::int64_t next_list() {
    while (of_list_ == sizes_[static_cast<std::size_t>(list_)]) {
      ++list_;
      of_list_ = 0;
    }
    ++of_list_;
    return list_;
  }

  core::backend& backend_;
  void* stream_;
  const io::safetensors_file& file_;
  core::ivf_pq_shape shape_;
  std::vector<std::uint32_t> sizes_;
  position_check seen_;
  std::int64_t list_ = 0;
  std::uint32_t of_list_ = 0;
};

std::vector<std::int64_t> read_ids(const io::safetensors_file& file, const description& found, verify checks) {
  std::vector<std::int64_t> ids;
  if (!found.has_ids) return ids;
  ids.resize(static_cast<std::size_t>(found.rows));
  index::read_tensor(file, kIds, checks, ids.data());
  return ids;
}

/// Kept rows and ids of a file.
void load_kept(index::flat_store& rows, core::backend& backend, void* stream, const io::safetensors_file& file,
               const description& found, verify checks) {
  const std::vector<std::int64_t> ids = read_ids(file, found, checks);
  const auto ids_of = [&](std::int64_t first, std::int64_t count) {
    return found.has_ids ? std::span<const std::int64_t>(ids).subspan(static_cast<std::size_t>(first),
                                                                      static_cast<std::size_t>(count))
                         : std::span<const std::int64_t>();
  };
  const ivf_pq_options& options = found.options;
  const auto append = [&](const void* data, std::int64_t first, std::int64_t count) {
    const any_matrix_view view(data, options.type, count, options.dim, options.dim);
    try {
      if (data) index::check_finite(backend, stream, core::copy_kind::host_to_device, view);
      rows.append(stream, core::copy_kind::host_to_device, view, ids_of(first, count));
    } catch (const invalid_argument& failure) {
      throw_corrupt(file.path(), fmt::format("{} (counted from row {})", failure.what(), first));
    }
  };
  if (options.rows == kept_rows::none) return append(nullptr, 0, found.rows);
  const std::int64_t row_bytes = options.dim * size_bytes(options.type);
  index::stream_tensor(file, kVectors, rows_per_chunk(row_bytes) * row_bytes, checks,
                       [&](std::int64_t offset, std::span<const std::byte> data) {
                         append(data.data(), offset / row_bytes, static_cast<std::int64_t>(data.size()) / row_bytes);
                       });
}

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
    const std::vector<std::int64_t> ids = read_ids(part, of, verify::full);
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

/// Rows of a file behind those that are there.
void load_rows(index::ivf_pq_rows& into, void* stream, const core::ivf_pq_model& model,
               const io::safetensors_file& file, const description& found, verify checks) {
  if (found.rows == 0) return;
  const std::int64_t position_base = into.count();
  row_reader reader(into.backend, stream, file, found, checks);
  index::ivf_pq_store::addition added(into.codes);
  const std::int64_t row_bytes = index::packed_bytes(model.shape);
  index::stream_tensor(file, kCodes, rows_per_chunk(row_bytes) * row_bytes, checks,
                       [&](std::int64_t offset, std::span<const std::byte> data) {
                         reader.take(offset / row_bytes, data, position_base, model, added);
                       });
  added.prepare_commit(stream);
  load_kept(into.kept, into.backend, stream, file, found, checks);
  added.commit();
}

/// Codes, positions, ids and kept rows, in the order of their descriptions.
void write_rows(io::safetensors_writer& out, const index::ivf_pq_rows& from, void* stream,
                const ivf_pq_options& options) {
  const core::ivf_pq_shape shape = index::shape_of(options);
  const std::int64_t count = from.count();
  write_values<std::uint32_t>(out, kSizes, from.codes.sizes());
  const std::int64_t step = rows_per_chunk(shape.pieces);
  std::vector<std::uint8_t> codes, packed;
  std::vector<std::uint32_t> positions;
  const auto read_from = [&](std::int64_t first) {
    const std::int64_t n = std::min(step, count - first);
    codes.resize(static_cast<std::size_t>(n * shape.pieces));
    positions.resize(static_cast<std::size_t>(n));
    from.codes.read(stream, first, n, codes.data(), positions.data());
    return n;
  };
  for (std::int64_t first = 0; first < count; first += step) {
    const std::int64_t n = read_from(first);
    packed.resize(static_cast<std::size_t>(n * index::packed_bytes(shape)));
    index::pack_codes(shape, codes.data(), n, packed.data());
    write_values<std::uint8_t>(out, kCodes, packed);
  }
  for (std::int64_t first = 0; first < count; first += step) {  // read again: a file has one tensor after the other
    read_from(first);
    write_values<std::uint32_t>(out, kPositions, positions);
  }
  write_values<std::int64_t>(out, kIds, from.kept.ids().all());
  if (options.rows == kept_rows::none) return;
  const std::int64_t row_bytes = options.dim * size_bytes(options.type);
  const std::int64_t kept_step = rows_per_chunk(row_bytes);
  std::vector<std::byte> chunk(static_cast<std::size_t>(std::min(kept_step, count) * row_bytes));
  for (std::int64_t first = 0; first < count; first += kept_step) {
    const std::int64_t n = std::min(kept_step, count - first);
    from.kept.read(stream, first, n, chunk.data());
    out.write(kVectors, chunk.data(), n * row_bytes);
  }
}

/// A file of rows that an index will name; returns what it will say.
segment write_segment(const path& index_path, std::size_t number, const index::ivf_pq_rows& from, void* stream,
                      const ivf_pq_options& options) {
  const description saved = {
      .options = options, .rows = from.count(), .has_ids = from.kept.ids().given(), .segments = {}};
  const std::string name = segment_name(index_path, number);
  io::safetensors_writer out(beside(index_path, name), row_metadata(kSegmentFormat, options, saved.rows),
                             row_tensors(saved));
  write_rows(out, from, stream, options);
  out.commit();
  return {name, saved.rows, saved.has_ids, io::safetensors_file(beside(index_path, name)).header_checksum()};
}

/// An index file without rows of its own, in place of the one at `target`.
void write_manifest(const path& target, const description& saved, const index::ivf_pq_arrays& arrays) {
  std::vector<io::tensor_description> tensors = model_tensors(saved.options);
  for (io::tensor_description& one : row_tensors(saved)) tensors.push_back(std::move(one));
  io::safetensors_writer out(target, index_metadata(saved), tensors);
  write_model(out, arrays);
  const std::vector<std::uint32_t> no_sizes(static_cast<std::size_t>(saved.options.nlist));
  write_values<std::uint32_t>(out, kSizes, no_sizes);
  out.commit();
}

}  // namespace

void ivf_pq_index::save(const std::filesystem::path& path) const {
  impl_->require_trained("save");
  index::with_host_memory([&] {
    const description saved = {.options = impl_->options,
                               .rows = rows(),
                               .has_ids = impl_->rows.kept.ids().given(),
                               .exponent = impl_->model->arrays().exponent,
                               .segments = {}};
    std::vector<io::tensor_description> tensors = model_tensors(saved.options);
    for (io::tensor_description& one : row_tensors(saved)) tensors.push_back(std::move(one));
    io::safetensors_writer out(path, index_metadata(saved), tensors);
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

ivf_pq_index ivf_pq_index::load(device where, const std::filesystem::path& path, verify checks) {
  return index::with_host_memory([&] {
    const io::safetensors_file file(path);
    const description found = describe_index(file);
    ivf_pq_index loaded(where, found.options);
    impl& made = *loaded.impl_;
    made.use(read_model(file, found, checks));
    if (found.all_rows() > 0) loaded.reserve(found.all_rows());
    load_rows(made.rows, made.own.native(), made.model->view(), file, found, checks);
    for (const segment& one : found.segments) {
      const io::safetensors_file part = open_segment(path, one);
      const description rows = describe_segment(part, found.options, one);
      load_rows(made.rows, made.own.native(), made.model->view(), part, rows, checks);
    }
    return loaded;
  });
}

}  // namespace shortlist
