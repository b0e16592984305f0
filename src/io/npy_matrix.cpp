// Matrices as npy files: read whole, in the order in which they lie; written in C order, in pieces where the memory has
// gaps between elements.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/message.hpp"
#include "io/allocate.hpp"
#include "io/npy.hpp"
#include "io/vector_layout.hpp"
#include "shortlist/error.hpp"
#include "shortlist/io.hpp"

namespace shortlist {
namespace {

struct value_dtype {
  std::string_view name;
  value_type type;
};
constexpr value_dtype kValueDtypes[] = {{"<f4", value_type::f32}, {"<f2", value_type::f16}, {"<f8", value_type::f64}};
constexpr std::string_view kValueDtypeNames = "<f4, <f2 and <f8";

constexpr std::int64_t kMostHeaderBytes = 128;               // with two extents of 19 digits
constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;  // of a matrix with gaps: large enough for the disk

// What is written: elements of a size, whatever they mean.
struct element_matrix {
  const std::byte* data;
  std::string_view descr;
  std::int64_t element_bytes;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t row_stride;
  std::int64_t col_stride;

  bool dense() const { return (col_stride == 1 || cols <= 1) && (row_stride == cols || rows <= 1); }
};

value_type type_of(const io::input_file& file, std::string_view descr) {
  for (const value_dtype& known : kValueDtypes) {
    if (known.name == descr) return known.type;
  }
  io::throw_unknown_dtype(file, descr, kValueDtypeNames);
}

std::string_view descr_of(value_type type) {
  for (const value_dtype& known : kValueDtypes) {
    if (known.type == type) return known.name;
  }
  if (type != value_type::bf16) core::throw_invalid("values.type", static_cast<std::int64_t>(type), "f32, f16 or f64");
  throw unsupported("values.type is bf16, which npy does not have; allowed is f32, f16 or f64");
}

// As NumPy writes it: version 1.0, the array at a multiple of 64 bytes.
std::string header_of(const element_matrix& m) {
  constexpr std::string_view kPreamble("\x93NUMPY\x01\x00", 8);
  constexpr std::size_t kLengthBytes = 2;
  constexpr std::size_t kAlignment = 64;
  std::string dictionary =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}), }}", m.descr, m.rows, m.cols);
  const std::size_t bytes = kPreamble.size() + kLengthBytes + dictionary.size() + 1;
  dictionary.append((kAlignment - bytes % kAlignment) % kAlignment, ' ');
  dictionary += '\n';
  std::string header(kPreamble);
  header += static_cast<char>(dictionary.size() & 0xFFu);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

void check(const element_matrix& m) {
  if (m.rows < 0) core::throw_invalid("values.rows", m.rows, "0 or more");
  if (m.cols < 0) core::throw_invalid("values.cols", m.cols, "0 or more");
  if (m.row_stride < 1 && m.rows > 1) core::throw_invalid("values.row_stride", m.row_stride, "1 or more");
  if (m.col_stride < 1 && m.cols > 1) core::throw_invalid("values.col_stride", m.col_stride, "1 or more");
  if (!io::checked_end(kMostHeaderBytes, m.rows, m.cols, m.element_bytes)) {
    core::throw_invalid("values", fmt::format("{} x {}", m.rows, m.cols), "what 2^63 bytes hold");
  }
  if (m.data == nullptr && m.rows > 0 && m.cols > 0) {
    core::throw_invalid("values.data", "null", fmt::format("{} rows of {} columns", m.rows, m.cols));
  }
}

void write_gathered(io::output_file& file, std::int64_t offset, const element_matrix& m) {
  const auto element_bytes = static_cast<std::size_t>(m.element_bytes);
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(kPieceBytes, m.rows * m.cols * m.element_bytes)));
  std::size_t filled = 0;
  const auto flush = [&] {
    file.write(offset, piece.data(), static_cast<std::int64_t>(filled));
    offset += static_cast<std::int64_t>(filled);
    filled = 0;
  };
  for (std::int64_t row = 0; row < m.rows; ++row) {
    for (std::int64_t col = 0; col < m.cols; ++col) {
      if (filled == piece.size()) flush();
      const std::int64_t at = row * m.row_stride + col * m.col_stride;
      std::memcpy(piece.data() + filled, m.data + at * m.element_bytes, element_bytes);
      filled += element_bytes;
    }
  }
  flush();
}

void write_elements(const std::filesystem::path& path, const element_matrix& m) {
  check(m);
  io::output_file file(path);
  const std::string header = header_of(m);
  const auto begin = static_cast<std::int64_t>(header.size());
  file.write(0, header.data(), begin);
  if (m.dense())
    file.write(begin, m.data, m.rows * m.cols * m.element_bytes);
  else
    write_gathered(file, begin, m);
  file.commit();
}

template <class T>
element_matrix elements_of(const matrix_view<const T>& view, std::string_view descr) {
  return {reinterpret_cast<const std::byte*>(view.data), descr, sizeof(T), view.rows, view.cols, view.row_stride, 1};
}

}  // namespace

matrix_data read_npy_matrix(const std::filesystem::path& path) {
  const io::input_file file(path);
  const io::npy_header header = io::read_npy_header(file, kValueDtypeNames);
  const value_type type = type_of(file, header.descr);
  io::check_npy_size(file, header, size_bytes(type));
  const std::int64_t bytes = file.size_bytes() - header.begin;
  matrix_data matrix{header.rows(), header.cols(), type, header.fortran_order, io::allocate<std::byte>(path, bytes)};
  file.read(header.begin, bytes, matrix.data.data());
  return matrix;
}

void write_npy(const std::filesystem::path& path, const value_matrix& values) {
  write_elements(path, {static_cast<const std::byte*>(values.data), descr_of(values.type), size_bytes(values.type),
                        values.rows, values.cols, values.row_stride, values.col_stride});
}

void write_npy(const std::filesystem::path& path, matrix_view<const std::int32_t> values) {
  write_elements(path, elements_of(values, "<i4"));
}

void write_npy(const std::filesystem::path& path, matrix_view<const std::int64_t> values) {
  write_elements(path, elements_of(values, "<i8"));
}

void write_npy(const std::filesystem::path& path, matrix_view<const std::uint8_t> values) {
  write_elements(path, elements_of(values, "|u1"));
}

}  // namespace shortlist
