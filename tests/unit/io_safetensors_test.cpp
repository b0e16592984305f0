// Index files: what is written is read, by any reader; what was changed by a bit or forged with care is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "io/safetensors.hpp"
#include "io_files.hpp"

namespace shortlist::io {
namespace {

using test::bytes_of;
using test::expect_error;
using test::file_size_limit;
using test::read_bytes;
using test::temporary_folder;
using test::write_bytes;

constexpr std::string_view kHeaderKey = R"("xxh3.header":")";
constexpr std::string_view kZeros = "0000000000000000";

std::string hash_of(std::string_view bytes) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(XXH3_64bits(bytes.data(), bytes.size())));
  return text;
}

std::string pattern(std::size_t bytes, int seed) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + static_cast<std::size_t>(seed));
  return text;
}

const std::string kVectors = pattern(3 * 5 * 4, 1);
const std::string kIds = pattern(3 * 8, 2);
const std::string kNorms = pattern(3 * 4, 3);
const std::map<std::string, std::string> kMetadata = {{"format", "test"}, {"rows", "3"}, {"text", "a \"b\" \n\u00e9"}};

void write_sample(const std::filesystem::path& path) {
  safetensors_writer out(
      path, kMetadata,
      {{"vectors", "F32", {3, 5}}, {"none", "F16", {0, 5}}, {"ids", "I64", {3}}, {"norms", "F32", {3}}});
  out.write("vectors", kVectors.data(), 13);
  out.write("vectors", kVectors.data() + 13, 47);
  out.write("none", nullptr, 0);
  out.write("ids", kIds.data(), 24);
  out.write("norms", kNorms.data(), 12);
  out.commit();
}

std::string tensor_of(const safetensors_file& file, const std::string& name) {
  std::string bytes(static_cast<std::size_t>(file.tensor(name).bytes), '?');
  file.read_checked(name, bytes.data());
  return bytes;
}

// A file of any header whatever, with a header checksum that is right where the header has a place for one.
std::string forge(std::string header, const std::string& data) {
  if (const std::size_t key = header.find(kHeaderKey); key != std::string::npos) {
    header.replace(key + kHeaderKey.size(), kZeros.size(), kZeros);
    header.replace(key + kHeaderKey.size(), kZeros.size(), hash_of(header));
  }
  return bytes_of(static_cast<std::uint64_t>(header.size())) + header + data;
}

std::string metadata_text(const std::string& more = "") {
  return R"("__metadata__":{)" + std::string(kHeaderKey) + std::string(kZeros) + "\"" + more + "}";
}

std::string header_of(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  return file.substr(8, length);
}

TEST(Safetensors, WhatIsWrittenIsRead) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  write_sample(path);
  EXPECT_EQ(folder.files(), 1);
  const safetensors_file file(path);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.tensor_names(), (std::vector<std::string>{"vectors", "none", "ids", "norms"}));
  for (const auto& [key, value] : kMetadata) {
    EXPECT_TRUE(file.has_metadata(key));
    EXPECT_EQ(file.metadata(key), value);
  }
  EXPECT_EQ(tensor_of(file, "vectors"), kVectors);
  EXPECT_EQ(tensor_of(file, "ids"), kIds);
  EXPECT_EQ(tensor_of(file, "norms"), kNorms);
  EXPECT_EQ(tensor_of(file, "none"), "");
  for (const std::string& name : file.tensor_names()) {
    EXPECT_EQ(file.tensor(name).file_offset % 64, 0) << name;
    file.verify(name);
  }
  EXPECT_EQ(file.tensor("vectors").dtype, "F32");
  EXPECT_EQ(file.tensor("vectors").shape, (std::vector<std::int64_t>{3, 5}));

  // Tensors lie in the file where their entries say, raw.
  const auto& ids = file.tensor("ids");
  EXPECT_EQ(read_bytes(path).substr(static_cast<std::size_t>(ids.file_offset), static_cast<std::size_t>(ids.bytes)),
            kIds);

  std::string part(10, '?');
  file.read("vectors", 7, 10, part.data());
  EXPECT_EQ(part, kVectors.substr(7, 10));
}

TEST(Safetensors, ChecksumsAreXxh3) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  safetensors_writer out(path, {}, {{"empty", "U8", {0}}, {"vectors", "F32", {3, 5}}});
  out.write("vectors", kVectors.data(), 60);
  out.commit();
  const std::string header = header_of(read_bytes(path));
  // 2d06800538d394c2 is XXH3's published 64-bit value of no bytes.
  EXPECT_NE(header.find(R"("xxh3.empty":"2d06800538d394c2")"), std::string::npos) << header;
  EXPECT_NE(header.find("\"xxh3.vectors\":\"" + hash_of(kVectors) + "\""), std::string::npos) << header;
  EXPECT_EQ(forge(header, read_bytes(path).substr(8 + header.size())), read_bytes(path));
  EXPECT_EQ((8 + header.size()) % 64, 0u);
}

TEST(Safetensors, TheDataSectionIsCoveredWithoutHoles) {
  const temporary_folder folder;
  for (const std::int64_t first : {0, 1, 2, 63, 64, 65, 127, 128, 129}) {
    SCOPED_TRACE(first);
    const std::string bytes = pattern(static_cast<std::size_t>(first), 5);
    safetensors_writer out(folder / "a.index", {}, {{"a", "U8", {first}}, {"b", "I8", {}}, {"c", "BF16", {2}}});
    out.write("a", bytes.data(), first);
    out.write("b", "x", 1);
    out.write("c", "abcd", 4);
    out.commit();
    const safetensors_file file(folder / "a.index");
    EXPECT_EQ(tensor_of(file, "a"), bytes);
    EXPECT_EQ(tensor_of(file, "b"), "x");
    EXPECT_EQ(tensor_of(file, "c"), "abcd");
    EXPECT_EQ(file.tensor("b").file_offset % 64, 0);
    EXPECT_EQ(file.tensor("c").file_offset % 64, 0);
    // One gap before c in any case, another before b unless a fills its lines of 64 bytes.
    EXPECT_TRUE(file.has_tensor("_pad0"));
    EXPECT_EQ(file.has_tensor("_pad1"), first % 64 != 0);
  }
}

TEST(Safetensors, ReadsInChunks) {
  const temporary_folder folder;
  write_sample(folder / "a.index");
  const safetensors_file file(folder / "a.index");
  for (const std::int64_t chunk_bytes : {1, 7, 59, 60, 61, 1000}) {
    std::string all;
    file.read_checked("vectors", chunk_bytes, [&](std::int64_t offset, std::span<const std::byte> data) {
      EXPECT_EQ(offset, static_cast<std::int64_t>(all.size()));
      EXPECT_LE(static_cast<std::int64_t>(data.size()), chunk_bytes);
      all.append(reinterpret_cast<const char*>(data.data()), data.size());
    });
    EXPECT_EQ(all, kVectors);
  }
  expect_error<invalid_argument>([&] { file.read_checked("vectors", 0, {}); }, "chunk_bytes is 0");
}

TEST(Safetensors, ManyThreadsReadOneFile) {
  const temporary_folder folder;
  write_sample(folder / "a.index");
  const safetensors_file file(folder / "a.index");
  std::vector<std::string> found(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] { found[i] = tensor_of(file, i % 2 == 0 ? "vectors" : "ids"); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], i % 2 == 0 ? kVectors : kIds);
}

TEST(Safetensors, MappedTensorsOutliveTheirFile) {
  const temporary_folder folder;
  write_sample(folder / "a");
  std::vector<file_mapping> mapped;
  {
    const safetensors_file file(folder / "a");
    for (const char* name : {"vectors", "none", "ids", "norms"}) mapped.push_back(file.map(name));
    expect_error<corrupt_file>([&] { file.map("missing"); }, "missing");
  }
  file_mapping moved;
  moved = std::move(mapped[0]);
  std::filesystem::remove(folder / "a");
  const auto text = [](const file_mapping& of) {
    return std::string(reinterpret_cast<const char*>(of.data()), static_cast<std::size_t>(of.bytes()));
  };
  EXPECT_EQ(text(moved), kVectors);
  EXPECT_EQ(text(mapped[2]), kIds);
  EXPECT_EQ(text(mapped[3]), kNorms);
  EXPECT_FALSE(mapped[1]) << "nothing of nothing";
  EXPECT_FALSE(mapped[0]) << "moved away";
}

TEST(Safetensors, NothingIsMappedBehindTheEndOfAFile) {
  const temporary_folder folder;
  write_bytes(folder / "a", "0123456789");
  const input_file file(folder / "a");
  EXPECT_EQ(*reinterpret_cast<const char*>(file_mapping(file, 9, 1).data()), '9');
  expect_error<io_error>([&] { file_mapping(file, 9, 2); }, "cannot map 2 bytes at offset 9");
  expect_error<io_error>([&] { file_mapping(file, -1, 2); }, "at offset -1");
}

TEST(Safetensors, SaysWhatAFileDoesNotHave) {
  const temporary_folder folder;
  write_sample(folder / "a.index");
  const safetensors_file file(folder / "a.index");
  expect_error<corrupt_file>([&] { file.metadata("dim"); }, "a.index': the metadata has no 'dim'");
  EXPECT_FALSE(file.has_metadata("xxh3.vectors"));
  EXPECT_EQ(file.metadata_integer("rows", 0, 3), 3);
  expect_error<corrupt_file>([&] { file.metadata_integer("rows", 4, 9); }, "'rows' is '3'; allowed is 4 to 9");
  expect_error<corrupt_file>([&] { file.metadata_integer("rows", 0, 2); }, "'rows' is '3'; allowed is 0 to 2");
  expect_error<corrupt_file>([&] { file.metadata_integer("format", 0, 9); }, "'format' is 'test'");
  expect_error<corrupt_file>([&] { file.tensor("codes"); }, "there is no tensor 'codes'");
  const std::int64_t shape[] = {3, 5};
  const std::int64_t other[] = {3, 5, 1};
  EXPECT_EQ(file.tensor("vectors", "F32", shape).bytes, 60);
  expect_error<corrupt_file>([&] { file.tensor("vectors", "F16", shape); }, "is F32 [3, 5]; expected is F16 [3, 5]");
  expect_error<corrupt_file>([&] { file.tensor("vectors", "F32", other); }, "expected is F32 [3, 5, 1]");
  char out[100];
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::pair<std::int64_t, std::int64_t> wrong[] = {{-1, 1}, {0, -1}, {0, 61}, {61, 0}, {1, kMost}, {kMost, 1}};
  for (const auto& [offset, bytes] : wrong) {
    expect_error<invalid_argument>([&] { file.read("vectors", offset, bytes, out); }, "tensor 'vectors' has 60 bytes");
  }
}

TEST(Safetensors, TheWriterRejectsWhatItCannotWrite) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  write_bytes(path, "old");
  using descriptions = std::vector<tensor_description>;
  const auto reject = [&](const std::map<std::string, std::string>& metadata, const descriptions& tensors,
                          std::string_view part) {
    expect_error<invalid_argument>([&] { safetensors_writer(path, metadata, tensors); }, part);
  };
  reject({{"xxh3.a", "1"}}, {}, "metadata key is 'xxh3.a', which is reserved");
  reject({}, {{"__metadata__", "U8", {1}}}, "tensor name is '__metadata__', which is reserved");
  reject({}, {{"_pad7", "U8", {1}}}, "tensor name is '_pad7', which is reserved");
  reject({}, {{"header", "U8", {1}}}, "tensor name is 'header', which is reserved");
  reject({}, {{"a", "U8", {1}}, {"a", "U8", {1}}}, "tensor name is 'a' twice");
  reject({}, {{"a", "F64", {1}}}, "dtype of 'a' is 'F64'; allowed is F32, F16");
  reject({}, {{"a", "F32", {2, -1}}}, "shape of 'a' is [2, -1]; allowed are dimensions of 0 or more");
  reject({}, {{"a", "F32", {1LL << 60, 4}}}, "shape of 'a' is [1152921504606846976, 4]");
  reject({}, {{"a", "U8", {1LL << 62}}, {"b", "U8", {1LL << 62}}}, "more than 2^63 bytes");
  reject({{"a", "\xff"}}, {}, "no UTF-8");
  reject({}, {{"\xff", "U8", {1}}}, "no UTF-8");

  safetensors_writer out(path, {}, {{"a", "U8", {4}}, {"b", "U8", {4}}});
  expect_error<invalid_argument>([&] { out.write("b", "xxxx", 4); }, "name is 'b'; it is the turn of 'a'");
  expect_error<invalid_argument>([&] { out.write("a", "xxxxx", 5); }, "bytes is 5; allowed is 0 to 4");
  expect_error<invalid_argument>([&] { out.write("a", "x", -1); }, "bytes is -1; allowed is 0 to 4");
  out.write("a", "xxxx", 4);
  expect_error<invalid_argument>([&] { out.commit(); }, "'b' has 0 of its 4 bytes");
  out.write("b", "yyyy", 4);
  expect_error<invalid_argument>([&] { out.write("b", "x", 1); }, "every tensor is complete");
  EXPECT_EQ(read_bytes(path), "old");
  out.commit();
  EXPECT_EQ(tensor_of(safetensors_file(path), "b"), "yyyy");
}

TEST(Safetensors, WithoutCommitTheOldFileStays) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  write_bytes(path, "old");
  {
    safetensors_writer out(path, {}, {{"a", "U8", {4}}});
    out.write("a", "xxxx", 4);
    EXPECT_EQ(folder.files(), 2);
  }
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.files(), 1);
}

TEST(Safetensors, AFullDiskLeavesTheOldFile) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  write_sample(path);
  const std::string old = read_bytes(path);
  for (rlim_t limit = 0; limit < old.size(); limit += 13) {
    const file_size_limit full(limit);
    expect_error<io_error>([&] { write_sample(path); }, "a.index': File too large");
  }
  EXPECT_EQ(read_bytes(path), old);
  EXPECT_EQ(folder.files(), 1);
}

TEST(Safetensors, EveryCutIsNoticed) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  write_sample(path);
  const std::string good = read_bytes(path);
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    write_bytes(path, good.substr(0, bytes));
    EXPECT_THROW(safetensors_file{path}, corrupt_file) << "cut to " << bytes << " bytes";
  }
  write_bytes(path, good + '\0');
  expect_error<corrupt_file>([&] { safetensors_file{path}; }, "its tensors end at " + std::to_string(good.size()));
}

TEST(Safetensors, EveryChangedBitIsNoticedOrChangesNothing) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  write_sample(path);
  const std::string good = read_bytes(path);
  const std::size_t data_begin = 8 + header_of(good).size();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      SCOPED_TRACE("bit " + std::to_string(bit) + " of byte " + std::to_string(at));
      std::string changed = good;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      write_bytes(path, changed);
      if (at < data_begin) {
        EXPECT_THROW(safetensors_file{path}, corrupt_file);
        continue;
      }
      const safetensors_file file(path);
      bool noticed = false;
      try {
        for (const std::string& name : file.tensor_names()) file.verify(name);
      } catch (const corrupt_file&) {
        noticed = true;
      }
      if (!noticed) {
        EXPECT_EQ(tensor_of(file, "vectors") + tensor_of(file, "ids") + tensor_of(file, "norms"),
                  kVectors + kIds + kNorms);
      }
    }
  }
}

TEST(Safetensors, SwappedTensorsAreNoticed) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  {
    safetensors_writer out(path, {}, {{"left", "U8", {64}}, {"rite", "U8", {64}}});
    out.write("left", pattern(64, 1).data(), 64);
    out.write("rite", pattern(64, 9).data(), 64);
    out.commit();
  }
  const std::string good = read_bytes(path);
  const auto swap_once = [](std::string text, const std::string& a, const std::string& b) {
    const std::size_t at_a = text.find(a);
    const std::size_t at_b = text.find(b);
    text.replace(at_a, a.size(), b);
    text.replace(at_b, b.size(), a);
    return text;
  };
  // Names exchanged in the table of tensors.
  const std::string names = swap_once(good, R"("left":{)", R"("rite":{)");
  ASSERT_NE(names, good);
  write_bytes(path, names);
  expect_error<corrupt_file>([&] { safetensors_file{path}; }, "the header was changed or damaged");
  // The same by somebody who also computes the header's checksum anew: the tensors' own checksums tell.
  const std::string header = header_of(names);
  write_bytes(path, forge(header, names.substr(8 + header.size())));
  const safetensors_file file(path);
  expect_error<corrupt_file>([&] { file.verify("left"); }, "checksum of tensor 'left' is");
  expect_error<corrupt_file>([&] { tensor_of(file, "rite"); }, "checksum of tensor 'rite' is");
  // Data exchanged.
  write_bytes(path, swap_once(good, pattern(64, 1), pattern(64, 9)));
  expect_error<corrupt_file>([&] { safetensors_file(path).verify("left"); }, "belongs to another tensor");
}

TEST(Safetensors, AMissingChecksumIsAnError) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  const std::string tensor = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  write_bytes(path, forge("{" + metadata_text() + "," + tensor + "}", "abcd"));
  const safetensors_file file(path);
  char out[4];
  file.read("a", 0, 4, out);
  expect_error<corrupt_file>([&] { file.verify("a"); }, "the metadata has no 'xxh3.a'");
  expect_error<corrupt_file>([&] { file.read_checked("a", out); }, "the metadata has no 'xxh3.a'");

  write_bytes(path, forge(R"({"__metadata__":{},)" + tensor + "}", "abcd"));
  expect_error<corrupt_file>([&] { safetensors_file{path}; }, "no checksum 'xxh3.header'; another program wrote it");
  write_bytes(path, forge("{" + metadata_text(",\"xxh3.a\":\"" + hash_of("abcd") + "\"") + "," + tensor + "}", "abcd"));
  safetensors_file(path).verify("a");
}

TEST(Safetensors, TheHeaderLengthIsNotBelieved) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  write_sample(path);
  const std::string good = read_bytes(path);
  const auto reject = [&](std::uint64_t length, std::string_view part) {
    write_bytes(path, bytes_of(length) + good.substr(8));
    expect_error<corrupt_file>([&] { safetensors_file{path}; }, part);
  };
  reject(0, "the header's length at offset 0 is 0; allowed is 2 to");
  reject(1, "the header's length at offset 0 is 1; allowed is 2 to");
  reject(good.size() - 7, "allowed is 2 to " + std::to_string(good.size() - 8));
  reject(std::uint64_t{1} << 60, "the header's length at offset 0 is 1152921504606846976");
  reject(~std::uint64_t{0}, "the header's length at offset 0 is 18446744073709551615");
  reject(__builtin_bswap64(header_of(good).size()), "it would fit as a big-endian number");
}

// Each header here has a checksum that is right, so that it is the check itself that must refuse it.
TEST(Safetensors, ForgedHeadersAreRefused) {
  const temporary_folder folder;
  const auto path = folder / "a.index";
  const std::string data = pattern(64, 1);
  const auto reject_header = [&](const std::string& header, std::string_view part) {
    SCOPED_TRACE(header.substr(0, 400));
    write_bytes(path, forge(header, data));
    expect_error<corrupt_file>([&] { safetensors_file{path}; }, part);
  };
  const auto reject = [&](const std::string& tensors, std::string_view part) {
    reject_header("{" + metadata_text() + "," + tensors + "}", part);
  };
  const auto entry = [](const std::string& name, const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  const std::string good = entry("a", "U8", "[64]", "[0,64]");
  write_bytes(path, forge("{" + metadata_text() + "," + good + "}", data));
  EXPECT_EQ(safetensors_file(path).tensor("a").bytes, 64);

  reject_header("{}", "the header has no '__metadata__'");
  reject_header("[]", "the header is no JSON object");
  reject_header("{,", "are no JSON");
  reject_header("{" + metadata_text() + "," + good + "} x", "are no JSON");
  reject_header("{" + metadata_text() + "," + entry("\xff", "U8", "[64]", "[0,64]") + "}", "are no JSON");
  reject_header(R"({"__metadata__":[],)" + good + "}", "'__metadata__' is no JSON object");
  reject_header("{" + metadata_text(R"(,"rows":3)") + "," + good + "}",
                "the value of 'rows' in '__metadata__' is no string");
  reject_header("{" + metadata_text(R"(,"a":"1","a":"2")") + "," + good + "}", "the key 'a' twice");
  reject_header("{" + metadata_text() + "," + good + "," + metadata_text() + "}", "the key '__metadata__' twice");
  reject_header("{" + metadata_text() + ",\"a\":" + std::string(100'000, '[') + "}", "nested more than 3 deep");
  reject_header(std::string(1'000'000, '['), "nested more than 3 deep");

  reject(good + "," + good, "the key 'a' twice");
  reject(R"("a":5)", "tensor 'a' must have dtype, shape, data_offsets");
  reject(R"("a":{"dtype":"U8","shape":[64]})", "tensor 'a' must have dtype, shape, data_offsets");
  reject(R"("a":{"dtype":"U8","shape":[64],"data_offsets":[0,64],"more":1})", "and nothing else");
  reject(R"("a":{"dtype":"U8","dtype":"U8","shape":[64],"data_offsets":[0,64]})", "the key 'dtype' twice");
  reject(R"("a":{"dtype":8,"shape":[64],"data_offsets":[0,64]})", "dtype of tensor 'a' is no string");
  reject(entry("a", "U9", "[64]", "[0,64]"), "dtype of tensor 'a' is 'U9'; allowed is F32");
  reject(entry("a", "U8", "64", "[0,64]"), "shape of tensor 'a' is no array");
  reject(entry("a", "U8", "[-64]", "[0,64]"), "shape of tensor 'a' has a value that is no integer of 0 or more");
  reject(entry("a", "U8", "[64.0]", "[0,64]"), "shape of tensor 'a' has a value that is no integer");
  reject(entry("a", "U8", "[9223372036854775808]", "[0,64]"), "9223372036854775808; allowed is less than 2^63");
  reject(entry("a", "U8", "[99999999999999999999999]", "[0,64]"), "has a value that is no integer");
  reject(entry("a", "F32", "[1152921504606846976,4]", "[0,64]"), "2^63 bytes or more");
  reject(entry("a", "F32", "[4611686018427387904,16]", "[0,64]"), "2^63 bytes or more");
  reject(entry("a", "U8", "[1152921504606846976]", "[0,64]"), "U8 [1152921504606846976] needs 1152921504606846976");
  reject(entry("a", "U8", "[1152921504606846976]", "[0,1152921504606846976]"), "the file has 64 bytes of data");
  reject(entry("a", "U8", "[63]", "[0,64]"), "are [0, 64], 64 bytes; U8 [63] needs 63");
  reject(entry("a", "F32", "[64]", "[0,64]"), "F32 [64] needs 256");
  reject(entry("a", "U8", "[64]", "[64,0]"), "data_offsets of tensor 'a' are [64, 0]");
  reject(entry("a", "U8", "[64]", "[0]"), "data_offsets of tensor 'a' are not two numbers");
  reject(entry("a", "U8", "[64]", "[-1,63]"), "data_offsets of tensor 'a' has a value that is no integer");
  reject(entry("a", "U8", "[64]", "[1,65]"), "are [1, 65]; the file has 64 bytes of data");
  reject(entry("a", "U8", "[40]", "[0,40]") + "," + entry("b", "U8", "[40]", "[24,64]"), "tensors overlap at offset");
  reject(entry("a", "U8", "[64]", "[0,64]") + "," + entry("b", "U8", "[64]", "[0,64]"), "tensors overlap at offset");
  reject(entry("a", "U8", "[20]", "[0,20]") + "," + entry("b", "U8", "[24]", "[40,64]"),
         "tensors leave a gap at offset");
  reject(entry("a", "U8", "[20]", "[44,64]"), "tensors leave a gap at offset");
  reject(entry("a", "U8", "[20]", "[0,20]"), "its tensors end at");
}

TEST(Safetensors, SaysWhatTheSystemRefuses) {
  const temporary_folder folder;
  expect_error<io_error>([&] { safetensors_file{folder / "none.index"}; }, "none.index': No such file or directory");
  std::filesystem::create_directory(folder / "folder");
  expect_error<io_error>([&] { safetensors_file{folder / "folder"}; }, "it is a directory");
  expect_error<io_error>([&] { safetensors_writer(folder / "folder", {}, {}); }, "it is a directory");
  expect_error<io_error>([&] { safetensors_writer(folder / "none" / "a", {}, {}); }, "No such file or directory");
  write_bytes(folder / "empty", "");
  expect_error<corrupt_file>([&] { safetensors_file{folder / "empty"}; }, "the file has 0 bytes");

  write_sample(folder / "a.index");
  const safetensors_file file(folder / "a.index");
  std::filesystem::resize_file(folder / "a.index", 100);
  expect_error<io_error>([&] { file.verify("norms"); }, "has become shorter");
}

}  // namespace
}  // namespace shortlist::io
