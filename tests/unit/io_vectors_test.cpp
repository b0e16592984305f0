// Files of vectors: every format as it should be, then every way in which a file can be wrong.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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
constexpr std::int64_t kDim = 5;

template <class T>
std::string row_bytes(std::int64_t row, std::int64_t dim) {
  std::string bytes;
  for (std::int64_t i = 0; i < dim; ++i) bytes += bytes_of(static_cast<T>(row * 16 + i));
  return bytes;
}

template <class T>
std::string dense_bytes(std::int64_t rows, std::int64_t dim) {
  std::string bytes;
  for (std::int64_t row = 0; row < rows; ++row) bytes += row_bytes<T>(row, dim);
  return bytes;
}

template <class T>
std::string vecs_bytes(std::int64_t rows, std::int64_t dim) {
  std::string bytes;
  for (std::int64_t row = 0; row < rows; ++row) {
    bytes += bytes_of(static_cast<std::int32_t>(dim)) + row_bytes<T>(row, dim);
  }
  return bytes;
}

std::string bin_header(std::uint32_t rows, std::uint32_t dim) { return bytes_of(rows) + bytes_of(dim); }

std::string npy_dictionary(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

// A good file of every format and npy dtype, and what is in it.
struct sample {
  std::string name;
  std::string file;   // its bytes
  std::string dense;  // [kRows, kDim] as read
  element_type type = element_type::f32;
};

std::vector<sample> vector_samples() {
  const auto header = bin_header(kRows, kDim);
  const auto npy = [](const std::string& descr, int version = 1) {
    return npy_header(npy_dictionary(descr, "(3, 5)"), version);
  };
  const auto f32 = dense_bytes<float>(kRows, kDim);
  const auto f16 = dense_bytes<std::uint16_t>(kRows, kDim);
  const auto i8 = dense_bytes<std::int8_t>(kRows, kDim);
  const auto u8 = dense_bytes<std::uint8_t>(kRows, kDim);
  return {{"a.fvecs", vecs_bytes<float>(kRows, kDim), f32, element_type::f32},
          {"a.bvecs", vecs_bytes<std::uint8_t>(kRows, kDim), u8, element_type::u8},
          {"a.fbin", header + f32, f32, element_type::f32},
          {"a.u8bin", header + u8, u8, element_type::u8},
          {"a.i8bin", header + i8, i8, element_type::i8},
          {"f4.npy", npy("<f4") + f32, f32, element_type::f32},
          {"f4_version2.npy", npy("<f4", 2) + f32, f32, element_type::f32},
          {"f4_version3.npy", npy("<f4", 3) + f32, f32, element_type::f32},
          {"f2.npy", npy("<f2") + f16, f16, element_type::f16},
          {"i1.npy", npy("|i1") + i8, i8, element_type::i8},
          {"u1.npy", npy("|u1") + u8, u8, element_type::u8}};
}

std::vector<sample> id_samples() {
  const auto i32 = dense_bytes<std::int32_t>(kRows, kDim);
  const auto i64 = dense_bytes<std::int64_t>(kRows, kDim);
  return {{"a.ivecs", vecs_bytes<std::int32_t>(kRows, kDim), i64},
          {"a.ibin", bin_header(kRows, kDim) + i32, i64},
          {"i4.npy", npy_header(npy_dictionary("<i4", "(3, 5)")) + i32, i64},
          {"i8.npy", npy_header(npy_dictionary("<i8", "(3, 5)")) + i64, i64}};
}

std::string to_bytes(const std::vector<std::byte>& data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}
std::string to_bytes(const std::vector<std::int64_t>& data) {
  return {reinterpret_cast<const char*>(data.data()), data.size() * sizeof(std::int64_t)};
}

TEST(VectorFile, ReadsEveryFormatWholeAndInSlices) {
  const temporary_folder folder;
  for (const sample& good : vector_samples()) {
    SCOPED_TRACE(good.name);
    const auto path = folder / good.name;
    write_bytes(path, good.file);
    const vectors all = read_vectors(path);
    EXPECT_EQ(all.rows, kRows);
    EXPECT_EQ(all.dim, kDim);
    EXPECT_EQ(all.type, good.type);
    EXPECT_EQ(to_bytes(all.data), good.dense);

    vector_file file(path);
    const std::int64_t bytes = kDim * size_bytes(file.type());
    for (std::int64_t first = 0; first <= kRows; ++first) {
      for (std::int64_t count = 0; count <= kRows - first; ++count) {
        std::string slice(static_cast<std::size_t>(count * bytes), '?');
        file.read(first, count, slice.data());
        EXPECT_EQ(slice, good.dense.substr(static_cast<std::size_t>(first * bytes), slice.size()))
            << "first " << first << " count " << count;
      }
    }
  }
}

TEST(VectorFile, ReadsIdsOfEveryFormat) {
  const temporary_folder folder;
  for (const sample& good : id_samples()) {
    SCOPED_TRACE(good.name);
    const auto path = folder / good.name;
    write_bytes(path, good.file);
    const id_table table = read_ids(path);
    EXPECT_EQ(table.rows, kRows);
    EXPECT_EQ(table.dim, kDim);
    EXPECT_EQ(to_bytes(table.data), good.dense);
    EXPECT_EQ(vector_file(path).rows(), kRows);
    expect_error<unsupported>([&] { read_vectors(path); }, "which is for ids");
    std::int64_t out = 0;
    expect_error<unsupported>([&] { vector_file(path).read(0, 0, &out); }, "which is for ids");
  }
  write_bytes(folder / "a.fbin", bin_header(1, 1) + bytes_of(1.0f));
  expect_error<unsupported>([&] { read_ids(folder / "a.fbin"); }, "holds f32; ids are i32 or i64");
}

TEST(VectorFile, ReadsIdsThatDistancesFollow) {
  const temporary_folder folder;
  const std::string ids = dense_bytes<std::int32_t>(kRows, kDim);
  const std::string distances = dense_bytes<float>(kRows, kDim);
  write_bytes(folder / "a.ibin", bin_header(kRows, kDim) + ids + distances);
  const id_table table = read_ids(folder / "a.ibin");
  EXPECT_EQ(table.rows, kRows);
  EXPECT_EQ(to_bytes(table.data), dense_bytes<std::int64_t>(kRows, kDim));
  for (const std::size_t missing : {std::size_t{1}, distances.size() / 2, distances.size() - 1}) {
    write_bytes(folder / "a.ibin", bin_header(kRows, kDim) + ids + distances.substr(missing));
    expect_error<corrupt_file>([&] { read_ids(folder / "a.ibin"); }, "or as many distances more");
  }
  write_bytes(folder / "a.fbin", bin_header(kRows, kDim) + distances + distances);  // of vectors, nothing follows
  EXPECT_THROW(vector_file{folder / "a.fbin"}, corrupt_file);
}

TEST(VectorFile, NegativeIdsStayNegative) {
  const temporary_folder folder;
  write_bytes(folder / "a.ibin", bin_header(1, 2) + bytes_of(std::int32_t{-1}) + bytes_of(std::int32_t{7}));
  EXPECT_EQ(read_ids(folder / "a.ibin").data, (std::vector<std::int64_t>{-1, 7}));
}

TEST(VectorFile, ReadsMoreThanOneBufferOfRows) {
  const temporary_folder folder;
  constexpr std::int64_t kMany = 80'000;  // 10.6 MB of bvecs rows; the reader takes 8 MiB at a time
  constexpr std::int64_t kWide = 128;
  write_bytes(folder / "a.bvecs", vecs_bytes<std::uint8_t>(kMany, kWide));
  EXPECT_EQ(to_bytes(read_vectors(folder / "a.bvecs").data), dense_bytes<std::uint8_t>(kMany, kWide));
  write_bytes(folder / "a.ivecs", vecs_bytes<std::int32_t>(20'000, kWide));
  EXPECT_EQ(to_bytes(read_ids(folder / "a.ivecs").data), dense_bytes<std::int64_t>(20'000, kWide));
}

TEST(VectorFile, ReadsRowsLongerThanTheBuffer) {
  const temporary_folder folder;
  constexpr std::int64_t kLong = 3'000'000;  // 12 MB a row
  write_bytes(folder / "a.fvecs", vecs_bytes<float>(2, kLong));
  EXPECT_EQ(to_bytes(read_vectors(folder / "a.fvecs").data), dense_bytes<float>(2, kLong));
}

TEST(VectorFile, RejectsSlicesOutsideOfTheFile) {
  const temporary_folder folder;
  write_bytes(folder / "a.fbin", bin_header(kRows, kDim) + dense_bytes<float>(kRows, kDim));
  vector_file file(folder / "a.fbin");
  std::vector<float> out(kRows * kDim);
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::pair<std::int64_t, std::int64_t> wrong[] = {{-1, 1}, {0, -1}, {0, 4}, {4, 0}, {1, kMost}, {kMost, kMost}};
  for (const auto& [first, count] : wrong) {
    expect_error<invalid_argument>([&] { file.read(first, count, out.data()); }, "allowed are rows [0, 3)");
  }
  expect_error<invalid_argument>([&] { file.read(0, 1, nullptr); }, "out is null");
}

TEST(VectorFile, FormatOfKnowsTheExtensions) {
  for (const char* name : {"fvecs", "bvecs", "ivecs", "fbin", "u8bin", "i8bin", "ibin", "npy"}) {
    EXPECT_EQ(to_string(format_of(std::string("folder.x/a.b.") + name)), name);
    EXPECT_EQ(to_string(format_of(std::string("base.1B.") + name + ".crop_nb_10000000")), name);
  }
  for (const char* name : {"a", "a.", "a.txt", "a.fbin2", ".fbin", "a.FBIN", "", "a.fbin.safetensors", "a.crop_nb_10",
                           ".fbin.crop_nb_10"}) {
    expect_error<invalid_argument>([&] { format_of(name); }, "allowed is .fvecs, .bvecs");
  }
}

TEST(VectorFile, TakesTheFormatFromTheCallerWhereTheNameDoesNotTell) {
  const temporary_folder folder;
  write_bytes(folder / "data", bin_header(kRows, kDim) + dense_bytes<std::int32_t>(kRows, kDim));
  EXPECT_EQ(read_ids(folder / "data", vector_format::ibin).rows, kRows);
  EXPECT_EQ(read_vectors(folder / "data", vector_format::fbin).dim, kDim);
}

TEST(VectorFile, EveryCutIsNoticed) {
  const temporary_folder folder;
  std::vector<sample> samples = vector_samples();
  for (const sample& ids : id_samples()) samples.push_back(ids);
  for (const sample& good : samples) {
    const auto path = folder / good.name;
    const bool by_row = good.name.find("vecs") != std::string::npos;
    const std::size_t row = good.file.size() / kRows;
    for (std::size_t bytes = 0; bytes < good.file.size(); ++bytes) {
      SCOPED_TRACE(good.name + " cut to " + std::to_string(bytes));
      write_bytes(path, good.file.substr(0, bytes));
      if (by_row && bytes > 0 && bytes % row == 0) {
        // Without a header, whole rows are a whole file.
        EXPECT_EQ(vector_file(path).rows(), static_cast<std::int64_t>(bytes / row));
      } else {
        EXPECT_THROW(vector_file{path}, corrupt_file);
      }
    }
    SCOPED_TRACE(good.name + " with one more byte");
    write_bytes(path, good.file + '\0');
    EXPECT_THROW(vector_file{path}, corrupt_file);
  }
}

TEST(VectorFile, EveryChangedByteOfAHeaderIsNoticedOrHarmless) {
  const temporary_folder folder;
  for (const sample& good : vector_samples()) {
    const auto path = folder / good.name;
    for (std::size_t at = 0; at < good.file.size(); ++at) {
      for (const int bit : {0, 3, 7}) {
        std::string bytes = good.file;
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
        write_bytes(path, bytes);
        // Without checksums a change of the data cannot be seen; it must not do more harm than that.
        try {
          const vectors all = read_vectors(path);
          EXPECT_EQ(static_cast<std::int64_t>(all.data.size()), all.rows * all.dim * size_bytes(all.type));
        } catch (const corrupt_file&) {
        } catch (const unsupported&) {
        }
      }
    }
  }
}

TEST(VectorFile, SaysWhatIsWrongWithAVecsFile) {
  const temporary_folder folder;
  const auto path = folder / "a.fvecs";
  const auto reject = [&](const std::string& bytes, std::string_view part) {
    write_bytes(path, bytes);
    expect_error<corrupt_file>([&] { read_vectors(path); }, part);
  };
  reject("", "the file has 0 bytes; row 0 begins with a dimension of 4 bytes");
  reject(bytes_of(std::int32_t{0}), "dimension of row 0 at offset 0 is 0; allowed is 1 or more");
  reject(bytes_of(std::int32_t{-4}) + row_bytes<float>(0, 4), "dimension of row 0 at offset 0 is -4");
  reject(bytes_of(std::numeric_limits<std::int32_t>::max()) + row_bytes<float>(0, 4),
         "every row takes 8589934592 bytes; the file's 20 bytes are no multiple");
  reject(bytes_of(std::int32_t{__builtin_bswap32(4)}) + row_bytes<float>(0, 4), "would fit as a big-endian number");
  reject(bytes_of(static_cast<std::int32_t>(__builtin_bswap32(128))) + row_bytes<float>(0, 128),
         "is -2147483648; allowed is 1 or more (it would fit as a big-endian number)");

  std::string rows = vecs_bytes<float>(4, 4);
  rows.replace(20, 4, bytes_of(std::int32_t{3}));
  reject(rows, "row 1 at offset 20 has dimension 3; row 0 has 4");
  std::string last = vecs_bytes<float>(4, 4);
  last.replace(60, 4, bytes_of(std::int32_t{5}));
  write_bytes(path, last);
  expect_error<corrupt_file>([&] { vector_file{path}; }, "row 3 at offset 60 has dimension 5; row 0 has 4");
}

TEST(VectorFile, SaysWhatIsWrongWithABinFile) {
  const temporary_folder folder;
  const auto path = folder / "a.fbin";
  const auto reject = [&](const std::string& bytes, std::string_view part) {
    write_bytes(path, bytes);
    expect_error<corrupt_file>([&] { vector_file{path}; }, part);
  };
  const std::string data = dense_bytes<float>(3, 4);
  reject("", "the file has 0 bytes; its header of rows and dim has 8");
  reject(bin_header(3, 0), "dim at offset 4 is 0; allowed is 1 or more");
  reject(bin_header(3, 5) + data,
         "rows at offset 0 is 3 and dim at offset 4 is 5, for which the file must have 68 bytes; it has 56");
  reject(bin_header(2, 4) + data, "must have 40 bytes; it has 56");
  reject(bin_header(0xFFFFFFFF, 0xFFFFFFFF) + data, "must have 2^63 or more bytes; it has 56");
  reject(bin_header(__builtin_bswap32(3), __builtin_bswap32(4)) + data, "(they would fit as big-endian numbers)");
  // A row count that makes rows * dim * 4 wrap around to the true size in 64 bits must not pass.
  reject(bin_header(0x80000000, 0x80000000), "must have 2^63 or more bytes; it has 8");
}

TEST(VectorFile, AFileWithoutRowsIsAFile) {
  const temporary_folder folder;
  write_bytes(folder / "a.fbin", bin_header(0, 4));
  EXPECT_EQ(read_vectors(folder / "a.fbin").rows, 0);
  EXPECT_EQ(read_vectors(folder / "a.fbin").dim, 4);
  write_bytes(folder / "a.npy", npy_header(npy_dictionary("<i4", "(0, 4)")));
  EXPECT_EQ(read_ids(folder / "a.npy").rows, 0);

  // No byte of such a file bears its dim out: a caller who allocates one row must not be led to 16 GiB.
  write_bytes(folder / "a.fbin", bin_header(0, 65536));
  EXPECT_EQ(read_vectors(folder / "a.fbin").dim, 65536);
  write_bytes(folder / "a.fbin", bin_header(0, 65537));
  expect_error<corrupt_file>([&] { vector_file{folder / "a.fbin"}; },
                             "dim is 65537; allowed in a file without rows is");
  write_bytes(folder / "a.npy", npy_header(npy_dictionary("<i4", "(0, 4294967296)")));
  expect_error<corrupt_file>([&] { read_ids(folder / "a.npy"); }, "dim is 4294967296; allowed in a file without rows");
  expect_error<invalid_argument>([&] { write_fbin(folder / "b.fbin", {nullptr, 0, 65537}); }, "allowed is 1 to 65536");
}

TEST(VectorFile, AnNpyFileOfOneAxisIsOneRow) {
  const temporary_folder folder;
  write_bytes(folder / "a.npy", npy_header(npy_dictionary("<i8", "(4,)")) + row_bytes<std::int64_t>(1, 4));
  const id_table table = read_ids(folder / "a.npy");
  EXPECT_EQ(table.rows, 1);
  EXPECT_EQ(table.data, (std::vector<std::int64_t>{16, 17, 18, 19}));
}

TEST(VectorFile, TakesEveryWayToWriteAnNpyHeader) {
  const temporary_folder folder;
  for (const char* dictionary : {"{'descr':'<f4','fortran_order':False,'shape':(3,4)}",
                                 "{ \"shape\" : ( 3 , 4 , ) , \"descr\" : \"<f4\" , 'fortran_order' : False , }",
                                 "{'fortran_order': False,\n'shape': (03, 4), 'descr': '<f4'}"}) {
    SCOPED_TRACE(dictionary);
    write_bytes(folder / "a.npy", npy_header(dictionary) + dense_bytes<float>(3, 4));
    EXPECT_EQ(read_vectors(folder / "a.npy").rows, 3);
  }
}

TEST(VectorFile, SaysWhatIsWrongWithAnNpyFile) {
  const temporary_folder folder;
  const auto path = folder / "a.npy";
  const std::string data = dense_bytes<float>(3, 4);
  const auto reject = [&](const std::string& bytes, std::string_view part) {
    write_bytes(path, bytes);
    expect_error<corrupt_file>([&] { vector_file{path}; }, part);
  };
  reject("", "the file has 0 bytes; an npy file has at least 10");
  reject("\x93NUMPZ" + npy_header("{}").substr(6) + data, "the magic at offset 0");
  std::string length = npy_header(npy_dictionary("<f4", "(3, 4)"));
  reject(length.replace(8, 2, bytes_of(std::uint16_t{0xFFFF})) + data, "the header's length at offset 8 is 65535");
  length = npy_header(npy_dictionary("<f4", "(3, 4)"), 2);
  reject(length.replace(8, 4, bytes_of(std::uint32_t{0xFFFFFFFF})) + data,
         "the header's length at offset 8 is 4294967295");

  const auto reject_shape = [&](const std::string& shape, std::string_view part) {
    reject(npy_header(npy_dictionary("<f4", shape)) + data, part);
  };
  reject_shape("(3, 5)", "shape is (3, 5) of <f4, for which the file must have 188 bytes; it has 176");
  reject_shape("(2, 4)", "must have 160 bytes; it has 176");
  reject_shape("(1152921504606846976, 4)", "must have 2^63 or more bytes; it has 176");
  reject_shape("(4611686018427387904, 4)", "must have 2^63 or more");
  reject_shape("(0, 4611686018427387904)", "must have 2^63 or more");
  reject_shape("(9223372036854775808, 1)", "an integer below 2^63");
  reject_shape("(99999999999999999999999, 1)", "an integer below 2^63");
  reject_shape("(3, 0)", "dim must be 1 or more");
  reject_shape("(0,)", "dim must be 1 or more");
  reject_shape("(-3, 4)", "an integer of 0 or more at offset");
  reject_shape("(3 4)", "the npy header must have ')' at offset");
  reject_shape("(3, 4", "an integer of 0 or more at offset");
  reject_shape("[3, 4]", "the npy header must have '(' at offset");

  const auto reject_header = [&](const std::string& dictionary, std::string_view part) {
    reject(npy_header(dictionary) + data, part);
  };
  reject_header("", "the npy header must have '{' at offset 64");
  reject_header("{}", "all of descr, fortran_order and shape");
  reject_header("{'descr': '<f4', 'shape': (3, 4)}", "all of descr, fortran_order and shape");
  reject_header("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}", "each once");
  reject_header("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), 'more': 1}", "each once");
  reject_header("{'descr': '<f4', 'fortran_order': false, 'shape': (3, 4)}", "True or False at offset");
  reject_header("{'descr': <f4, 'fortran_order': False, 'shape': (3, 4)}", "a quoted text at offset");
  reject_header("{'descr': '<f4, }", "the end of the quoted text");
  reject_header("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)} x", "the end of the header at offset");
}

TEST(VectorFile, SaysWhichNpyFilesAreNotRead) {
  const temporary_folder folder;
  const auto path = folder / "a.npy";
  const auto reject = [&](const std::string& header, std::string_view part) {
    write_bytes(path, header + dense_bytes<double>(3, 4));
    expect_error<unsupported>([&] { vector_file{path}; }, part);
  };
  reject(npy_header("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }"), "fortran_order is True");
  reject(npy_header(npy_dictionary(">f4", "(3, 4)")), "descr is '>f4', a big-endian type; allowed is <f4");
  reject(npy_header(npy_dictionary("<f8", "(3, 4)")), "descr is '<f8'; allowed is <f4");
  reject(npy_header(npy_dictionary("|b1", "(3, 4)")), "descr is '|b1'");
  reject(npy_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3, 4), }"), "structured dtype");
  reject(npy_header(npy_dictionary("<f4", "(3, 2, 2)")), "shape is (3, 2, 2); allowed are two axes");
  reject(npy_header(npy_dictionary("<f4", "()")), "shape is (); allowed are two axes");
  reject(npy_header(npy_dictionary("<f4", "(3, 4)"), 4), "the npy version is 4.0");
}

TEST(VectorFile, SaysWhatTheSystemRefuses) {
  const temporary_folder folder;
  expect_error<io_error>([&] { vector_file{folder / "none.fbin"}; }, "none.fbin': No such file or directory");
  std::filesystem::create_directory(folder / "folder.fbin");
  expect_error<io_error>([&] { vector_file{folder / "folder.fbin"}; }, "it is a directory; allowed is a regular file");
  ASSERT_EQ(mkfifo((folder / "pipe.fbin").c_str(), 0600), 0);
  expect_error<io_error>([&] { vector_file{folder / "pipe.fbin"}; }, "it is a pipe, socket or device");

  write_bytes(folder / "locked.fbin", bin_header(0, 1));
  ASSERT_EQ(chmod((folder / "locked.fbin").c_str(), 0), 0);
  const uid_t user = geteuid();
  constexpr uid_t kNobody = 65534;
  if (user == 0) {  // whom no mode keeps out
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  expect_error<io_error>([&] { vector_file{folder / "locked.fbin"}; }, "locked.fbin': Permission denied");
  ASSERT_EQ(seteuid(user), 0);
}

TEST(VectorFile, NoticesAFileThatShrinksWhileItIsOpen) {
  const temporary_folder folder;
  write_bytes(folder / "a.fbin", bin_header(kRows, kDim) + dense_bytes<float>(kRows, kDim));
  vector_file file(folder / "a.fbin");
  std::filesystem::resize_file(folder / "a.fbin", 20);
  std::vector<float> out(kRows * kDim);
  expect_error<io_error>([&] { file.read(0, kRows, out.data()); }, "has become shorter");
}

TEST(WriteVectors, IbinAndFbinAreReadBack) {
  const temporary_folder folder;
  constexpr std::int64_t kStride = 7;
  std::vector<std::int64_t> ids(kRows * kStride);
  std::iota(ids.begin(), ids.end(), -2);
  ids[0] = std::numeric_limits<std::int32_t>::min();
  ids[1] = std::numeric_limits<std::int32_t>::max();
  write_ibin(folder / "a.ibin", {ids.data(), kRows, kDim, kStride});
  const id_table table = read_ids(folder / "a.ibin");
  ASSERT_EQ(table.rows, kRows);
  ASSERT_EQ(table.dim, kDim);
  for (std::int64_t i = 0; i < kRows * kDim; ++i) {
    EXPECT_EQ(table.data[static_cast<std::size_t>(i)], ids[static_cast<std::size_t>(i / kDim * kStride + i % kDim)]);
  }

  // More than one piece of 4 MiB, the last one partly filled.
  constexpr std::int64_t kMany = 1001;
  constexpr std::int64_t kWide = 1301;
  std::vector<float> values(kMany * kWide);
  std::iota(values.begin(), values.end(), 0.0f);
  write_fbin(folder / "a.fbin", {values.data(), kMany, kWide});
  const vectors all = read_vectors(folder / "a.fbin");
  ASSERT_EQ(all.data.size(), values.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(all.data.data(), values.data(), all.data.size()), 0);
  EXPECT_EQ(folder.files(), 2);

  write_ibin(folder / "none.ibin", {nullptr, 0, 4});
  EXPECT_EQ(read_bytes(folder / "none.ibin"), bin_header(0, 4));
}

TEST(WriteVectors, RejectsWhatDoesNotFitAndLeavesTheOldFile) {
  const temporary_folder folder;
  const auto path = folder / "a.ibin";
  write_bytes(path, "old");
  const std::int64_t ids[] = {0, 1, std::int64_t{1} << 31, 3};
  expect_error<invalid_argument>(
      [&] {
        write_ibin(path, {ids, 2, 2});
      },
      "ids[1, 0] is 2147483648; allowed in an ibin file is -2147483648 to 2147483647");
  expect_error<invalid_argument>([&] { write_ibin(path, {ids, -1, 2}); }, "ids.rows is -1; allowed is 0 to 4294967295");
  expect_error<invalid_argument>([&] { write_ibin(path, {ids, std::int64_t{1} << 32, 2}); }, "ids.rows is 4294967296");
  expect_error<invalid_argument>([&] { write_ibin(path, {ids, 2, 0}); }, "ids.cols is 0; allowed is 1 to");
  expect_error<invalid_argument>([&] { write_ibin(path, {ids, 2, 2, 1}); }, "ids.row_stride is 1; allowed is 2");
  expect_error<invalid_argument>([&] { write_fbin(path, {nullptr, 2, 2}); }, "data.data is null");
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.files(), 1);
}

TEST(WriteVectors, AFullDiskLeavesTheOldFile) {
  const temporary_folder folder;
  const auto path = folder / "a.fbin";
  write_bytes(path, "old");
  const std::vector<float> values(10'000, 1.0f);
  for (const rlim_t limit : {0, 4, 8, 100, 40'007}) {
    const file_size_limit full(limit);
    expect_error<io_error>([&] { write_fbin(path, {values.data(), 100, 100}); }, "a.fbin': File too large");
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.files(), 1);
  const file_size_limit just_enough(40'008);
  write_fbin(path, {values.data(), 100, 100});
  EXPECT_EQ(read_vectors(path).rows, 100);
}

TEST(WriteVectors, SaysWhatTheSystemRefuses) {
  const temporary_folder folder;
  const float value = 1.0f;
  expect_error<io_error>([&] { write_fbin(folder / "none" / "a.fbin", {&value, 1, 1}); }, "No such file or directory");
  std::filesystem::create_directory(folder / "folder");
  expect_error<io_error>([&] { write_fbin(folder / "folder", {&value, 1, 1}); }, "it is a directory");
  expect_error<io_error>([&] { write_fbin("/dev/null", {&value, 1, 1}); }, "it is a pipe, socket or device");
  EXPECT_FALSE(std::filesystem::is_regular_file("/dev/null"));
}

}  // namespace
}  // namespace shortlist
