// Headers of the files of IVF-PQ indexes.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "core/order.hpp"
#include "index/checks.hpp"
#include "index/file_parts.hpp"
#include "index/ivf_pq_codes.hpp"
#include "index/ivf_pq_file.hpp"
#include "shortlist/error.hpp"
#include "shortlist/version.hpp"

namespace shortlist::index::ivf_pq_file {
namespace {

constexpr const char* kFormatVersion = "1";
constexpr const char* kIdsGiven = "given";
constexpr const char* kIdsNone = "none";

constexpr std::int64_t kMaxSegments = 1 << 20;
constexpr int kMostExponent = 127;

std::string segment_key(std::size_t number, const char* what) { return fmt::format("segment.{}.{}", number, what); }

/// What a file of rows says of them.
metadata row_metadata(const char* format, const ivf_pq_options& options, std::int64_t rows) {
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

std::vector<io::tensor_description> model_tensors(const ivf_pq_options& options) {
  const core::ivf_pq_shape shape = shape_of(options);
  std::vector<io::tensor_description> made = {{kCentroids, "F32", {shape.nlist, shape.dim}}};
  if (shape.uniform) {
    made.push_back({kSteps, "F32", {shape.dim}});
  } else {
    made.push_back({kCodebook, "F32", {shape.pieces, shape.codewords(), shape.piece_dim}});
  }
  if (options.rotation != rotation::none) made.push_back({kRotation, "F32", {shape.dim, shape.dim}});
  return made;
}

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
  found.type = parse_metadata(file, "element_type", parse_element_type);
  found.dim = file.metadata_integer("dim", 1, kMaxDim);
  found.nlist = file.metadata_integer("nlist", 1, core::kMaxRows);
  found.code = parse_metadata(file, "code", parse_code_kind);
  found.pq_dim = file.metadata_integer("pq_dim", 1, kMaxDim);
  found.pq_bits = static_cast<int>(file.metadata_integer("pq_bits", 1, 8));
  found.rows = parse_metadata(file, "kept_rows", parse_kept_rows);
  return found;
}

}  // namespace

metadata metadata_of_index(const description& saved) {
  auto made = row_metadata(kIvfPqFormat, saved.options, saved.rows);
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

metadata metadata_of_segment(const description& saved) {
  return row_metadata(kSegmentFormat, saved.options, saved.rows);
}

std::vector<io::tensor_description> row_tensors(const description& of) {
  const core::ivf_pq_shape shape = shape_of(of.options);
  std::vector<io::tensor_description> made = {
      {kSizes, "U32", {shape.nlist}}, {kCodes, "U8", {of.rows, packed_bytes(shape)}}, {kPositions, "U32", {of.rows}}};
  if (of.has_ids) made.push_back({kIds, "I64", {of.rows}});
  if (of.options.rows != kept_rows::none) {
    made.push_back({kVectors, std::string(io::safetensors_dtype(of.options.type)), {of.rows, of.options.dim}});
  }
  return made;
}

std::vector<io::tensor_description> index_tensors(const description& of) {
  std::vector<io::tensor_description> made = model_tensors(of.options);
  for (io::tensor_description& one : row_tensors(of)) made.push_back(std::move(one));
  return made;
}

description describe_index(const io::safetensors_file& file) {
  require_metadata(file, "format", kIvfPqFormat);
  require_metadata(file, "format_version", kFormatVersion);
  description found;
  found.options = row_options_of(file);
  found.options.metric = parse_metadata(file, "metric", parse_metric);
  found.options.encodes = parse_metadata(file, "encodes", parse_encoded);
  found.options.rotation = parse_metadata(file, "rotation", parse_rotation);
  found.options.seed = parse_seed(file);
  try {
    const ivf_pq_options complete = completed(found.options);
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
  check_tensors(file, index_tensors(found));
  return found;
}

description describe_segment(const io::safetensors_file& file, const ivf_pq_options& options, const segment& expected) {
  if (file.header_checksum() != expected.checksum) {
    throw_corrupt(file.path(), fmt::format("the header's checksum is '{}'; the index that names it expects '{}'",
                                           file.header_checksum(), expected.checksum));
  }
  description found;
  if (file.metadata("format") == kIvfPqFormat) {
    found = describe_index(file);
    if (!found.segments.empty()) throw_corrupt(file.path(), "a segment has segments of its own");
  } else {
    require_metadata(file, "format", kSegmentFormat);
    require_metadata(file, "format_version", kFormatVersion);
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

}  // namespace shortlist::index::ivf_pq_file
