// Files of IVF-PQ indexes: what their headers say, and what they hold. docs/files.md describes them.
//
// A file holds what was trained and rows; or it names further files, its segments, that hold rows. Codes are packed,
// list after list, with each row's position beside it; kept rows and ids lie by position. What a backend prepares, and
// how it lays out pages, is made anew.
#pragma once

#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "index/ivf_pq_model.hpp"
#include "index/ivf_pq_rows.hpp"
#include "io/safetensors.hpp"
#include "shortlist/ivf_pq_index.hpp"

namespace shortlist::index::ivf_pq_file {

inline constexpr const char* kSegmentFormat = "shortlist.ivf_pq_segment";
inline constexpr const char* kCentroids = "centroids";
inline constexpr const char* kCodebook = "codebook";
inline constexpr const char* kSteps = "steps";
inline constexpr const char* kRotation = "rotation";
inline constexpr const char* kSizes = "sizes";
inline constexpr const char* kCodes = "codes";
inline constexpr const char* kPositions = "positions";
inline constexpr const char* kIds = "ids";
inline constexpr const char* kVectors = "vectors";

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

// Headers.
using metadata = std::map<std::string, std::string>;
metadata metadata_of_index(const description& saved);
metadata metadata_of_segment(const description& saved);
/// The tensors of an index file, in their order.
std::vector<io::tensor_description> index_tensors(const description& of);
/// Those that hold rows.
std::vector<io::tensor_description> row_tensors(const description& of);

/// An index file's header, every field of it checked. @throws corrupt_file, as all that reads here.
description describe_index(const io::safetensors_file& file);
/// The header of a segment of an index of these options: rows as an index file has them, alone or with a model.
description describe_segment(const io::safetensors_file& file, const ivf_pq_options& options, const segment& expected);

// Content.
void write_model(io::safetensors_writer& out, const ivf_pq_arrays& arrays);
/// Codes, positions, ids and kept rows, in the order of their descriptions.
void write_rows(io::safetensors_writer& out, const ivf_pq_rows& from, void* stream, const ivf_pq_options& options);
/// Of a file without rows.
void write_no_rows(io::safetensors_writer& out, const ivf_pq_options& options);

ivf_pq_arrays read_model(const io::safetensors_file& file, const description& found, verify checks);
std::vector<std::int64_t> read_ids(const io::safetensors_file& file, const description& found, verify checks);
/// Rows of a file behind those that are there; mapped rows, into an index that has none.
void read_rows(ivf_pq_rows& into, void* stream, const core::ivf_pq_model& model, const io::safetensors_file& file,
               const description& found, verify checks, mapped in_file = mapped::nothing);

}  // namespace shortlist::index::ivf_pq_file
