// The header of an npy file, which the reader of vectors and the reader of matrices share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.hpp"

namespace shortlist::io {

struct npy_header {
  std::string descr;  ///< the dtype: "<f4"
  bool fortran_order = false;
  std::vector<std::int64_t> shape;  ///< one extent or two
  std::int64_t begin = 0;           ///< offset of the array in the file

  std::int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }  ///< one axis is one row
  std::int64_t cols() const { return shape.back(); }
};

/// Reads the header of an array of one axis or two. Its dtype, and that the array fits the file, are still to be
/// checked. `dtypes` lists what the caller reads, for the message that refuses a structured dtype.
/// @throws corrupt_file, io_error, unsupported.
npy_header read_npy_header(const input_file& file, std::string_view dtypes);

/// The array must end where the file ends. @throws corrupt_file.
void check_npy_size(const input_file& file, const npy_header& header, std::int64_t element_bytes);

[[noreturn]] void throw_unknown_dtype(const input_file& file, std::string_view descr, std::string_view dtypes);

}  // namespace shortlist::io
