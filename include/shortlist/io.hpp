// Files of vectors: fvecs, bvecs, ivecs, fbin, u8bin, i8bin, ibin and npy; and npy files of matrices. The formats stand
// in docs/files.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "shortlist/top_k.hpp"
#include "shortlist/types.hpp"

namespace shortlist {

/// The formats, by their file extension: .fvecs .bvecs .ivecs .fbin .u8bin .i8bin .ibin .npy.
enum class vector_format : std::uint8_t { fvecs, bvecs, ivecs, fbin, u8bin, i8bin, ibin, npy };

/// "fvecs", "bvecs", ...: the extension without its dot.
std::string_view to_string(vector_format format);
/// The format of a path, by its extension, or by that before .crop_nb_N. @throws invalid_argument that lists the known
/// ones.
vector_format format_of(const std::filesystem::path& path);

/// A file of vectors, open for reading in slices, so that a corpus larger than memory can be streamed into an index.
///
/// Header and sizes are checked against the file when it is opened, every row's dimension (in the *vecs formats) when
/// the row is read.
class vector_file {
 public:
  /// @throws io_error, corrupt_file, unsupported (an npy dtype or order that is not read), and what format_of throws.
  explicit vector_file(const std::filesystem::path& path);
  /// The same for a file whose name does not tell its format.
  vector_file(const std::filesystem::path& path, vector_format format);
  ~vector_file();
  vector_file(vector_file&&) noexcept;
  vector_file& operator=(vector_file&&) noexcept;

  std::int64_t rows() const noexcept;
  std::int64_t dim() const noexcept;
  /// f32, f16, i8 or u8. @throws unsupported for files of int32 or int64, which read_ids reads.
  element_type type() const;
  /// Reads rows [first, first + count) densely into `out`, [count, dim] of type().
  /// @throws invalid_argument if the range is not in the file, io_error, corrupt_file, and what type() throws.
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
/// @throws what vector_file throws, out_of_memory.
vectors read_vectors(const std::filesystem::path& path);
vectors read_vectors(const std::filesystem::path& path, vector_format format);

/// A whole ivecs or ibin file, without distances that follow its ids, or an npy file of int32 or int64: [rows, dim].
struct id_table {
  std::int64_t rows = 0;
  std::int64_t dim = 0;
  std::vector<std::int64_t> data;
};
/// @throws what vector_file throws, unsupported for a file of another element type, out_of_memory.
id_table read_ids(const std::filesystem::path& path);
id_table read_ids(const std::filesystem::path& path, vector_format format);

/// Writes ids as ibin (uint32 rows, uint32 dim, int32 data), beside `path` and then over it.
/// @throws invalid_argument if an id does not fit int32 or a size does not fit uint32, io_error; an old file then
/// stays.
void write_ibin(const std::filesystem::path& path, matrix_view<const std::int64_t> ids);
/// Writes fp32 vectors as fbin, in the same manner.
void write_fbin(const std::filesystem::path& path, matrix_view<const float> data);

/// A matrix of values in memory, in the order in which its file has it.
struct matrix_data {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  value_type type = value_type::f32;
  bool column_major = false;    ///< NumPy's Fortran order
  std::vector<std::byte> data;  ///< dense

  /// Strides of at least 1, also where the other extent is 0.
  value_matrix view() const {
    const std::int64_t down = column_major ? 1 : cols, across = column_major ? rows : 1;
    return {data.data(), type, rows, cols, down > 0 ? down : 1, across > 0 ? across : 1};
  }
};

/// Reads an npy file of float32, float16 or float64, in C or Fortran order, whatever its name. One axis is one row.
/// @throws io_error, corrupt_file, out_of_memory, unsupported for another dtype, big-endian or more axes.
matrix_data read_npy_matrix(const std::filesystem::path& path);

/// Writes a matrix as npy of two axes in C order, beside `path` and then over it.
/// @throws invalid_argument if an extent, a stride or the pointer is wrong, unsupported for bf16, which npy does not
/// have, io_error; an old file then stays.
void write_npy(const std::filesystem::path& path, const value_matrix& values);
void write_npy(const std::filesystem::path& path, matrix_view<const std::int32_t> values);
void write_npy(const std::filesystem::path& path, matrix_view<const std::int64_t> values);
void write_npy(const std::filesystem::path& path, matrix_view<const std::uint8_t> values);

}  // namespace shortlist
