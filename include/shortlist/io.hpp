// Files of vectors: fvecs, bvecs, ivecs, fbin, u8bin, ibin and npy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "shortlist/types.hpp"

namespace shortlist {

/// The formats, by their file extension: .fvecs .bvecs .ivecs .fbin .u8bin .ibin .npy.
enum class vector_format : std::uint8_t { fvecs, bvecs, ivecs, fbin, u8bin, ibin, npy };

/// The format of a path, by its extension. @throws invalid_argument that lists the known ones.
vector_format format_of(const std::filesystem::path& path);

/// A file of vectors, open for reading in slices, so that a corpus larger than memory can be streamed into an index.
///
/// Header, sizes and (for *vecs) every row's dimension are checked against the file before they are believed.
class vector_file {
 public:
  /// @throws io_error, corrupt_file, unsupported (an npy dtype or order that is not read).
  explicit vector_file(const std::filesystem::path& path);
  ~vector_file();
  vector_file(vector_file&&) noexcept;
  vector_file& operator=(vector_file&&) noexcept;

  std::int64_t rows() const noexcept;
  std::int64_t dim() const noexcept;
  /// f32, f16, i8 or u8. @throws unsupported for the int32 formats, which read_ids reads.
  element_type type() const;
  /// Reads rows [first, first + count) densely into `out`, [count, dim] of type().
  /// @throws invalid_argument if the range is not in the file, io_error, corrupt_file.
  void read(std::int64_t first, std::int64_t count, void* out);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

/// A whole file of vectors in memory.
struct vectors {
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  element_type type = element_type::f32;
  std::vector<std::byte> data;  ///< [rows, dim], dense

  any_matrix_view view() const { return {data.data(), type, rows, dim, dim}; }
};
vectors read_vectors(const std::filesystem::path& path);

/// A whole ivecs or ibin file, or an npy file of int32 or int64: [rows, dim].
struct id_table {
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  std::vector<std::int64_t> data;
};
id_table read_ids(const std::filesystem::path& path);

/// Writes ids as ibin (uint32 rows, uint32 dim, int32 data). @throws invalid_argument if an id does not fit int32.
void write_ibin(const std::filesystem::path& path, matrix_view<const std::int64_t> ids);
/// Writes fp32 vectors as fbin.
void write_fbin(const std::filesystem::path& path, matrix_view<const float> data);

}  // namespace shortlist
