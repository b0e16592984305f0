// Matrices in npy files: every dtype and order as it should be, then every way in which a file can be wrong.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "io_files.hpp"
#include "shortlist/io.hpp"

namespace shortlist {
namespace {

using test::bytes_of;
using test::expect_error;
using test::file_size_limit;
using test::npy_header;
using test::read_bytes;
using test::temporary_folder;
using test::write_bytes;

constexpr std::int64_t kRows = 3;
constexpr std::int64_t kCols = 5;
constexpr std::size_t kPreambleBytes = 10;  // of version 1: magic, version, length of the header

std::string header(const std::string& descr, const std::string& shape, const std::string& fortran_order = "False") {
  return npy_header("{'descr': '" + descr + "', 'fortran_order': " + fortran_order + ", 'shape': (" + shape + "), }");
}

/// `count` numbered elements, which no two places of a matrix share.
template <class T>
std::string numbered(std::int64_t count) {
  std::string bytes;
  for (std::int64_t i = 0; i < count; ++i) bytes += bytes_of(static_cast<T>(i + 1));
  return bytes;
}

struct sample {
  std::string descr;
  value_type type;
  std::string elements;  // kRows x kCols of them, in the order of the file
};

std::vector<sample> samples() {
  return {{"<f4", value_type::f32, numbered<float>(kRows * kCols)},
          {"<f2", value_type::f16, numbered<std::uint16_t>(kRows * kCols)},
          {"<f8", value_type::f64, numbered<double>(kRows * kCols)}};
}

std::string to_bytes(const std::vector<std::byte>& data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

/// The elements of a view in C order, fetched one by one through its strides.
std::string elements_of(const value_matrix& m) {
  std::string bytes;
  const auto size = static_cast<std::size_t>(size_bytes(m.type));
  for (std::int64_t row = 0; row < m.rows; ++row) {
    for (std::int64_t col = 0; col < m.cols; ++col) {
      const std::int64_t at = row * m.row_stride + col * m.col_stride;
      bytes.append(static_cast<const char*>(m.data) + at * size_bytes(m.type), size);
    }
  }
  return bytes;
}

TEST(NpyMatrix, ReadsEveryDtype) {
  const temporary_folder folder;
  for (const sample& good : samples()) {
    SCOPED_TRACE(good.descr);
    write_bytes(folder / "any name", header(good.descr, "3, 5") + good.elements);
    const matrix_data matrix = read_npy_matrix(folder / "any name");
    EXPECT_EQ(matrix.type, good.type);
    EXPECT_EQ(to_bytes(matrix.data), good.elements);
    const value_matrix view = matrix.view();
    EXPECT_EQ(view.rows, kRows);
    EXPECT_EQ(view.cols, kCols);
    EXPECT_EQ(view.row_stride, kCols);
    EXPECT_EQ(view.col_stride, 1);
    EXPECT_EQ(elements_of(view), good.elements);
  }
}

TEST(NpyMatrix, ReadsFortranOrderThroughStrides) {
  const temporary_folder folder;
  for (const sample& good : samples()) {
    SCOPED_TRACE(good.descr);
    write_bytes(folder / "a.npy", header(good.descr, "3, 5", "True") + good.elements);
    const matrix_data matrix = read_npy_matrix(folder / "a.npy");
    const auto size = static_cast<std::size_t>(size_bytes(good.type));
    std::string expected;
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t col = 0; col < kCols; ++col) expected += good.elements.substr((col * kRows + row) * size, size);
    }
    EXPECT_EQ(elements_of(matrix.view()), expected);
  }
}

TEST(NpyMatrix, OneAxisIsOneRow) {
  const temporary_folder folder;
  for (const char* fortran_order : {"False", "True"}) {
    write_bytes(folder / "a.npy", header("<f8", "5,", fortran_order) + numbered<double>(5));
    const matrix_data matrix = read_npy_matrix(folder / "a.npy");
    EXPECT_EQ(matrix.rows, 1);
    EXPECT_EQ(matrix.cols, 5);
    EXPECT_EQ(elements_of(matrix.view()), numbered<double>(5));
  }
}

TEST(NpyMatrix, ReadsMatricesWithoutElements) {
  const temporary_folder folder;
  struct empty {
    const char* shape;
    std::int64_t rows, cols;
  };
  for (const empty& one : {empty{"0, 5", 0, 5}, {"5, 0", 5, 0}, {"0, 0", 0, 0}, {"0,", 1, 0}}) {
    for (const char* fortran_order : {"False", "True"}) {
      SCOPED_TRACE(std::string(one.shape) + ", fortran_order " + fortran_order);
      write_bytes(folder / "a.npy", header("<f4", one.shape, fortran_order));
      const matrix_data matrix = read_npy_matrix(folder / "a.npy");
      EXPECT_EQ(matrix.rows, one.rows);
      EXPECT_EQ(matrix.cols, one.cols);
      EXPECT_TRUE(matrix.data.empty());
      EXPECT_GE(matrix.view().row_stride, 1);
      EXPECT_GE(matrix.view().col_stride, 1);
    }
  }
}

TEST(NpyMatrix, EveryCutIsNoticed) {
  const temporary_folder folder;
  for (const sample& good : samples()) {
    const std::string file = header(good.descr, "3, 5") + good.elements;
    for (std::size_t bytes = 0; bytes < file.size(); ++bytes) {
      SCOPED_TRACE(good.descr + " cut to " + std::to_string(bytes));
      write_bytes(folder / "a.npy", file.substr(0, bytes));
      EXPECT_THROW(read_npy_matrix(folder / "a.npy"), corrupt_file);
    }
    SCOPED_TRACE(good.descr + " with one more byte");
    write_bytes(folder / "a.npy", file + '\0');
    EXPECT_THROW(read_npy_matrix(folder / "a.npy"), corrupt_file);
  }
}

TEST(NpyMatrix, EveryChangedBitOfAHeaderIsNoticedOrHarmless) {
  const temporary_folder folder;
  const sample good = samples().front();
  const std::string file = header(good.descr, "3, 5") + good.elements;
  int noticed = 0;
  for (std::size_t at = 0; at < file.size() - good.elements.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = file;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      write_bytes(folder / "a.npy", bytes);
      try {
        const matrix_data matrix = read_npy_matrix(folder / "a.npy");
        EXPECT_EQ(static_cast<std::int64_t>(matrix.data.size()), matrix.rows * matrix.cols * size_bytes(matrix.type));
      } catch (const corrupt_file&) {
        ++noticed;
      } catch (const unsupported&) {
        ++noticed;
      }
    }
  }
  EXPECT_GT(noticed, 500);  // of 1024: all but quotes of a kind, padding and a few others that mean the same
}

TEST(NpyMatrix, SaysWhatIsWrongWithAFile) {
  const temporary_folder folder;
  const auto path = folder / "a.npy";
  const auto reject = [&](const std::string& bytes, std::string_view part) {
    write_bytes(path, bytes);
    expect_error<corrupt_file>([&] { read_npy_matrix(path); }, part);
  };
  const std::string data = numbered<double>(15);
  reject("", "the file has 0 bytes; an npy file has at least 10");
  reject("no npy file, but long enough to be one", "the magic at offset 0");
  std::string forged = header("<f8", "3, 5");
  reject(forged.replace(8, 2, bytes_of(std::uint16_t{0xFFFF})) + data, "the header's length at offset 8 is 65535");
  const auto reject_shape = [&](const std::string& shape, std::string_view part) {
    for (const char* fortran_order : {"False", "True"}) reject(header("<f8", shape, fortran_order) + data, part);
  };
  reject_shape("3, 6", "shape is (3, 6) of <f8, for which the file must have 272 bytes; it has 248");
  reject_shape("2, 5", "must have 208 bytes; it has 248");
  reject_shape("1152921504606846976, 5", "must have 2^63 or more bytes; it has 248");
  reject_shape("0, 2305843009213693952", "must have 2^63 or more");
  reject_shape("9223372036854775808, 1", "an integer below 2^63");
  reject_shape("-3, 5", "an integer of 0 or more at offset");
  reject_shape("3, 0", "must have 128 bytes; it has 248");
}

TEST(NpyMatrix, SaysWhichFilesAreNotRead) {
  const temporary_folder folder;
  const auto path = folder / "a.npy";
  const auto reject = [&](const std::string& bytes, std::string_view part) {
    write_bytes(path, bytes + numbered<double>(15));
    expect_error<unsupported>([&] { read_npy_matrix(path); }, part);
  };
  reject(header(">f4", "3, 5"), "descr is '>f4', a big-endian type; allowed is <f4, <f2 and <f8");
  for (const char* descr : {"|i1", "|u1", "<i4", "<i8", "|b1", "<V2", "<c8"}) {
    reject(header(descr, "3, 5"), "descr is '" + std::string(descr) + "'; allowed is <f4, <f2 and <f8");
  }
  reject(header("<f8", "3, 5, 1"), "shape is (3, 5, 1); allowed are two axes");
  reject(header("<f8", ""), "shape is (); allowed are two axes");
  std::string structured = header("<f8", "3, 5");
  structured.replace(structured.find("'<f8'"), 5, "[   ]");
  reject(structured, "a structured dtype; allowed is <f4, <f2 and <f8");
  std::string version = header("<f8", "3, 5");
  version[6] = 4;
  reject(version, "the npy version is 4.0");
}

TEST(NpyMatrix, SaysWhatTheSystemRefuses) {
  const temporary_folder folder;
  expect_error<io_error>([&] { read_npy_matrix(folder / "none.npy"); }, "none.npy': No such file or directory");
  std::filesystem::create_directory(folder / "folder.npy");
  expect_error<io_error>([&] { read_npy_matrix(folder / "folder.npy"); }, "it is a directory");
}

template <class T>
matrix_view<const T> view_of(const std::string& elements, std::int64_t rows, std::int64_t cols) {
  return {reinterpret_cast<const T*>(elements.data()), rows, cols};
}

TEST(WriteNpy, WritesEveryDtypeAsNumPyDoes) {
  const temporary_folder folder;
  const auto path = folder / "a.npy";
  for (const sample& good : samples()) {
    SCOPED_TRACE(good.descr);
    write_npy(path, value_matrix(good.elements.data(), good.type, kRows, kCols, kCols));
    EXPECT_EQ(read_bytes(path), header(good.descr, "3, 5") + good.elements);
  }
  const std::string i32 = numbered<std::int32_t>(15), i64 = numbered<std::int64_t>(15), u8 = numbered<char>(15);
  write_npy(path, view_of<std::int32_t>(i32, 5, 3));
  EXPECT_EQ(read_bytes(path), header("<i4", "5, 3") + i32);
  write_npy(path, view_of<std::int64_t>(i64, 5, 3));
  EXPECT_EQ(read_bytes(path), header("<i8", "5, 3") + i64);
  write_npy(path, view_of<std::uint8_t>(u8, 5, 3));
  EXPECT_EQ(read_bytes(path), header("|u1", "5, 3") + u8);
  EXPECT_EQ(folder.files(), 1);
}

TEST(WriteNpy, WhatIsWrittenIsReadBack) {
  const temporary_folder folder;
  const std::string elements = numbered<double>(15);
  write_npy(folder / "a.npy", value_matrix(elements.data(), value_type::f64, kRows, kCols, kCols));
  EXPECT_EQ(elements_of(read_npy_matrix(folder / "a.npy").view()), elements);
  const std::string ids = numbered<std::int32_t>(15);
  write_npy(folder / "ids.npy", view_of<std::int32_t>(ids, kRows, kCols));
  EXPECT_EQ(read_ids(folder / "ids.npy").data.back(), 15);
}

TEST(WriteNpy, GathersElementsWithGaps) {
  const temporary_folder folder;
  // More than one piece of 4 MiB, the last one partly filled.
  constexpr std::int64_t kManyRows = 701, kManyCols = 1201, kRowStride = 2500, kColStride = 2;
  std::vector<double> values(kManyRows * kRowStride);
  std::iota(values.begin(), values.end(), 0.0);
  const value_matrix gaps(values.data(), value_type::f64, kManyRows, kManyCols, kRowStride, kColStride);
  write_npy(folder / "a.npy", gaps);
  EXPECT_EQ(read_bytes(folder / "a.npy"), header("<f8", "701, 1201") + elements_of(gaps));

  const std::string i32 = numbered<std::int32_t>(15);
  write_npy(folder / "b.npy", matrix_view(reinterpret_cast<const std::int32_t*>(i32.data()), 3, 2, 5));
  EXPECT_EQ(read_bytes(folder / "b.npy"),
            header("<i4", "3, 2") + i32.substr(0, 8) + i32.substr(20, 8) + i32.substr(40, 8));

  // Strides that nobody follows are no gaps.
  write_npy(folder / "c.npy", value_matrix(i32.data(), value_type::f32, 1, 15, 0));
  EXPECT_EQ(read_bytes(folder / "c.npy"), header("<f4", "1, 15") + i32);
}

TEST(WriteNpy, WritesMatricesWithoutElements) {
  const temporary_folder folder;
  write_npy(folder / "a.npy", value_matrix(nullptr, value_type::f32, 0, 5, 5));
  EXPECT_EQ(read_bytes(folder / "a.npy"), header("<f4", "0, 5"));
  write_npy(folder / "a.npy", matrix_view<const std::int64_t>(nullptr, 5, 0, 1));
  EXPECT_EQ(read_bytes(folder / "a.npy"), header("<i8", "5, 0"));
}

TEST(WriteNpy, RejectsWhatItCannotWriteAndLeavesTheOldFile) {
  const temporary_folder folder;
  const auto path = folder / "a.npy";
  write_bytes(path, "old");
  const float values[15] = {};
  const auto reject = [&](const value_matrix& m, std::string_view part) {
    expect_error<invalid_argument>([&] { write_npy(path, m); }, part);
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  reject({values, value_type::f32, -1, 5, 5}, "values.rows is -1; allowed is 0 or more");
  reject({values, value_type::f32, 3, -5, 5}, "values.cols is -5; allowed is 0 or more");
  reject({values, value_type::f32, 3, 5, 0}, "values.row_stride is 0; allowed is 1 or more");
  reject({values, value_type::f32, 3, 5, 5, 0}, "values.col_stride is 0; allowed is 1 or more");
  reject({values, value_type::f32, kMost, kMost, kMost}, "values is 9223372036854775807 x 9223372036854775807");
  reject({nullptr, value_type::f32, 3, 5, 5}, "values.data is null; allowed is 3 rows of 5 columns");
  reject({values, static_cast<value_type>(9), 3, 5, 5}, "values.type is 9; allowed is f32, f16 or f64");
  expect_error<unsupported>([&] { write_npy(path, {values, value_type::bf16, 3, 5, 5}); }, "values.type is bf16");
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.files(), 1);
}

TEST(WriteNpy, AFullDiskLeavesTheOldFile) {
  const temporary_folder folder;
  const auto path = folder / "a.npy";
  write_bytes(path, "old");
  const std::vector<float> values(10'000, 1.0f);
  for (const bool dense : {true, false}) {
    const value_matrix m(values.data(), value_type::f32, 50, 100, dense ? 100 : 200);
    for (const rlim_t limit : {0, 10, 128, 1000, 20'127}) {
      const file_size_limit full(limit);
      expect_error<io_error>([&] { write_npy(path, m); }, "a.npy': File too large");
    }
    EXPECT_EQ(read_bytes(path), "old");
    EXPECT_EQ(folder.files(), 1);
  }
  const file_size_limit just_enough(20'128);
  write_npy(path, value_matrix(values.data(), value_type::f32, 50, 100, 100));
  EXPECT_EQ(read_npy_matrix(path).rows, 50);
}

}  // namespace
}  // namespace shortlist
