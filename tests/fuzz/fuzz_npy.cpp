// libFuzzer target: npy files, as vectors, as ids and as matrices.
#include "memory_file.hpp"

namespace {

using shortlist::fuzz::require;

/// Reads the input as a matrix: it is refused with one of the library's errors, or what is read is the end of the file,
/// and the last element of its view is the last element in memory.
void read_matrix(const std::uint8_t* data, std::size_t bytes) {
  const shortlist::fuzz::memory_file input(data, bytes);
  try {
    const shortlist::matrix_data matrix = shortlist::read_npy_matrix(input.path());
    require(matrix.rows >= 0 && matrix.cols >= 0, "rows >= 0 and cols >= 0");
    require(matrix.data.size() <= bytes, "no more data than the file has");
    const auto count = static_cast<std::int64_t>(matrix.data.size()) / size_bytes(matrix.type);
    const shortlist::value_matrix view = matrix.view();
    require(view.row_stride >= 1 && view.col_stride >= 1, "strides >= 1");
    if (matrix.data.empty()) {
      require(matrix.rows == 0 || matrix.cols == 0, "no data, no elements");
      return;
    }
    require((view.rows - 1) * view.row_stride + (view.cols - 1) * view.col_stride == count - 1, "shape == size");
    require(std::memcmp(matrix.data.data(), data + (bytes - matrix.data.size()), matrix.data.size()) == 0,
            "data == the file's last bytes");
  } catch (const shortlist::corrupt_file&) {
  } catch (const shortlist::unsupported&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using enum shortlist::vector_format;
  shortlist::fuzz::read_as({npy}, data, bytes);
  read_matrix(data, bytes);
  return 0;
}
